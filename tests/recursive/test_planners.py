"""The recursive planners as configurations."""

from typing import Any

import pytest

import smoothplan as sp
from tests.recursive.common import SMOOTH, Recursive, each, priced


@each
def test_an_unknown_variant_is_named(cruiser: type[Recursive]) -> None:
    with pytest.raises(ValueError, match="variant must be 'certified' or 'paper', got 'x'"):
        cruiser(SMOOTH, epsilon=0.1, variant="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("smooth", [sp.SmoothCruiser, sp.SecondOrderSmoothCruiser, sp.DebiasedCruiser])
def test_the_hard_maximum_needs_sparse_sampling(smooth: type[Recursive]) -> None:
    with pytest.raises(ValueError, match=rf"{smooth.__name__} needs a smooth backup, got HardMax\(\): use SparseSamp"):
        smooth(sp.HardMax(), epsilon=0.1)
    assert sp.SparseSampling(sp.HardMax(), epsilon=0.1).schedule(priced()).problem.temperature == 0.0


@each
def test_another_accuracy_leaves_the_rest(cruiser: type[Recursive]) -> None:
    planner = cruiser(SMOOTH, epsilon=0.1, delta=0.02, variant="paper")
    finer = planner.with_epsilon(0.05)
    assert finer == cruiser(SMOOTH, epsilon=0.05, delta=0.02, variant="paper")
    assert planner.epsilon == 0.1
    with pytest.raises(ValueError, match="epsilon must be greater than 0"):
        planner.with_epsilon(0.0)


@pytest.mark.parametrize(
    ("allowed", "kinds"),
    [
        (sp.SparseSampling, {"constant", "plug-in"}),
        (sp.SmoothCruiser, {"constant", "plug-in", "order-1"}),
        (sp.SecondOrderSmoothCruiser, {"constant", "plug-in", "order-1", "order-2"}),
    ],
)
@pytest.mark.parametrize("variant", ["certified", "paper"])
def test_each_planner_uses_its_kinds_of_levels(allowed: type[Recursive], kinds: set[str], variant: Any) -> None:
    schedule = allowed(SMOOTH, epsilon=0.0003, variant=variant).schedule(priced())
    used = {level.kind for level in schedule.levels}
    assert used <= kinds
    assert not any(level.debias for level in schedule.levels)
    # At this accuracy the highest order that is allowed pays.
    if allowed is not sp.SparseSampling:
        assert ("order-1" if allowed is sp.SmoothCruiser else "order-2") in used
    assert schedule.epsilon == 0.0003
    assert schedule.early_stopping == (variant == "certified")
