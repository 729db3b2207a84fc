"""The recursive planners as configurations, and the published algorithms: their tables and prices."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.recursive import planners
from smoothplan.theory.curvature import Problem
from tests.recursive.common import SMOOTH, Recursive, each, entropy_problem, priced, slope


@each
def test_an_unknown_variant_is_named(cruiser: type[Recursive]) -> None:
    with pytest.raises(ValueError, match="variant must be 'certified' or 'paper', got 'x'"):
        cruiser(SMOOTH, epsilon=0.1, variant="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("smooth", [sp.SmoothCruiser, sp.SecondOrderSmoothCruiser, sp.DebiasedCruiser])
def test_the_hard_maximum_needs_sparse_sampling(smooth: type[Recursive]) -> None:
    with pytest.raises(ValueError, match=rf"{smooth.__name__} needs a smooth backup, got HardMax\(\): use SparseSamp"):
        smooth(sp.HardMax(), epsilon=0.1)
    assert sp.SparseSampling(sp.HardMax(), epsilon=0.1).schedule(priced()).problem.temperature == 0.0


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
    """At this accuracy the highest order that is allowed pays."""
    planner = allowed(SMOOTH, epsilon=0.1, variant=variant).with_epsilon(0.0003)
    assert planner == allowed(SMOOTH, epsilon=0.0003, variant=variant)
    schedule = planner.schedule(priced())
    used = {level.kind for level in schedule.levels}
    assert used <= kinds
    assert not any(level.debias for level in schedule.levels)
    if allowed is not sp.SparseSampling:
        assert ("order-1" if allowed is sp.SmoothCruiser else "order-2") in used
    assert schedule.epsilon == 0.0003
    assert schedule.early_stopping == (variant == "certified")


# --- As published -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("discount", "printed_least", "ours_most"), [(0.04, 3.2, 2.8), (0.2, 4.0, 3.1), (0.5, 6.3, 3.8), (0.9, 30.0, 13.0)]
)
def test_the_printed_children_cost_the_exponent(discount: float, printed_least: float, ours_most: float) -> None:
    """Five children at ε/√γ make the printed algorithm grow like ε^(−2·ln 5/ln(1/γ)) once γ > 1/25; ours does not."""
    problem, epsilons = entropy_problem(discount), [1e-2, 1e-3, 1e-4] if discount < 0.9 else [1e-1, 1e-2, 1e-3]
    printed = [math.log(planners.second_order_smooth_cruiser(problem, epsilon, 0.1).calls) for epsilon in epsilons]
    steepness = -np.polyfit(np.log(epsilons), printed, 1)[0]
    ours = slope(problem, (2, 0), epsilons)
    assert steepness >= printed_least
    assert steepness >= 2.0 * math.log(5.0) / math.log(1.0 / discount) - 0.3
    assert ours <= ours_most
    assert ours < steepness - 0.5


@each
def test_published_schedules_have_a_price_at_any_discount(cruiser: type[Recursive]) -> None:
    """Also where δ divided by the number of calls is no longer a float. Rewards in [0, 1] are all they cover."""
    planner = cruiser(SMOOTH, epsilon=1.0, variant="paper")
    for discount in (0.5, 0.9, 0.95):
        calls = [replace(planner, epsilon=epsilon).schedule(priced(discount)).calls for epsilon in (1.0, 0.1, 0.01)]
        assert 0 < calls[0] < calls[1] < calls[2]
    with pytest.raises(ValueError, match="reward_range"):
        planner.schedule(priced(reward_range=(-1.0, 1.0)))
    with pytest.raises(ValueError, match="discount"):
        planner.schedule(priced(0.0))


def test_the_printed_table_is_the_printed_algorithm() -> None:
    """Children at ε/√γ, references at ρ(ε)/√γ, two pairs, clipping to [0, B], the answer 0 from ε ≥ B on."""
    problem, epsilon = entropy_problem(discount=0.2), 0.1
    schedule = planners.second_order_smooth_cruiser(problem, epsilon, 0.1)
    bound = 1.0 / (1.0 - 0.2)
    fine = [level for level in schedule.levels if level.kind == "order-2"]
    assert fine
    for level in fine:
        assert (level.pairs, level.printed, level.shift) == (2, True, 0.0)
        assert level.linear == level.quadratic
    for level in schedule.levels[:-1]:
        if level.kind == "constant":
            assert problem.middle + level.shift == pytest.approx(0.0)
        else:
            assert level.clip == pytest.approx((0.0, bound))
    assert schedule.root.kind == "plug-in"
    assert (schedule.repeats, schedule.early_stopping) == (1, False)
    # Halving ε multiplies the root's N by about four: it is proportional to ε⁻² up to a logarithm.
    finer = planners.second_order_smooth_cruiser(problem, epsilon / 2.0, 0.1)
    assert 4.0 <= finer.root.samples / schedule.root.samples <= 5.5


@pytest.mark.parametrize("discount", [0.5, 0.7])
def test_certificates_of_printed_levels_are_finite_beyond_the_largest_float(discount: float) -> None:
    """Quadratic terms square supports and variances until they overflow; clipped samples are bounded all the same."""
    problem = entropy_problem(discount, actions=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = planners.second_order_smooth_cruiser(problem, 0.003, 0.1)
        assert np.isfinite([(proved.bias, proved.variance) for proved in schedule.certificates]).all()
        assert math.isfinite(schedule.bias + schedule.noise)


def test_the_constants_of_smooth_cruiser_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """K = 2, γ = 1/4, λ = 1/2, so that √γ = 1/2, L = 2 and M_λ = log(2)/2."""
    monkeypatch.setattr(planners, "_printed", lambda *given: given)
    model = sp.models.garnet(states=5, actions=2, discount=0.25, seed=0)
    found: Any = planners.smooth_cruiser(Problem.of(model, sp.LogSumExp(0.5)), 0.1, 0.1)
    bound, threshold, samples, tolerance = found[-4:]
    assert threshold == 0.125
    assert bound == pytest.approx(1.795431454)
    assert tolerance(0.02) == pytest.approx(0.05)
    # 18·1.346573590²/((3/4)⁴·(1/2)²) · log(2·2/0.1)/0.1² = 18·1.8132604/0.0791015625 · 3.6888795/0.01
    assert samples(0.1, 0.1) == 152210
