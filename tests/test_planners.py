"""The recursive planners as configurations, and the forecast that prices them."""

import math
import re
import unicodedata
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.forecast import LEGEND
from smoothplan.models.base import States

SMOOTH = sp.LogSumExp(1.0)
RECURSIVE = (sp.SparseSampling, sp.SmoothCruiser, sp.SecondOrderSmoothCruiser)
Recursive = sp.SparseSampling | sp.SmoothCruiser | sp.SecondOrderSmoothCruiser


def untouched(states: States, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
    raise AssertionError("a forecast calls no simulator")


def model(discount: float = 0.2, **changes: Any) -> sp.VectorModel:
    """A model that cannot be called, only priced."""
    declared: dict[str, Any] = {"actions": 2, "reward_range": (0.0, 1.0), "terminates": False}
    return sp.VectorModel(untouched, discount=discount, **(declared | changes))


@pytest.fixture(params=RECURSIVE)
def cruiser(request: pytest.FixtureRequest) -> type[Recursive]:
    chosen: type[Recursive] = request.param
    return chosen


# Configurations


def test_an_unknown_variant_is_named(cruiser: type[Recursive]) -> None:
    with pytest.raises(ValueError, match="variant must be 'certified' or 'paper', got 'x'"):
        cruiser(SMOOTH, epsilon=0.1, variant="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("smooth", [sp.SmoothCruiser, sp.SecondOrderSmoothCruiser, sp.DebiasedCruiser])
def test_the_hard_maximum_needs_sparse_sampling(smooth: type[Recursive]) -> None:
    with pytest.raises(ValueError, match=rf"{smooth.__name__} needs a smooth backup, got HardMax\(\): use SparseSamp"):
        smooth(sp.HardMax(), epsilon=0.1)
    assert sp.SparseSampling(sp.HardMax(), epsilon=0.1).schedule(model()).problem.temperature == 0.0


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
    schedule = allowed(SMOOTH, epsilon=0.0003, variant=variant).schedule(model())
    used = {level.kind for level in schedule.levels}
    assert used <= kinds
    assert not any(level.debias for level in schedule.levels)
    # At this accuracy the highest order that is allowed pays.
    if allowed is not sp.SparseSampling:
        assert ("order-1" if allowed is sp.SmoothCruiser else "order-2") in used
    assert schedule.epsilon == 0.0003
    assert schedule.early_stopping == (variant == "certified")


def test_higher_orders_are_never_dearer() -> None:
    for epsilon in (0.2, 0.05, 0.01, 0.003):
        kinds = (*RECURSIVE, sp.DebiasedCruiser)
        prices = [sp.forecast(kind(SMOOTH, epsilon=epsilon), model()).calls for kind in kinds]
        assert prices == sorted(prices, reverse=True)


def test_published_constants_need_unit_rewards_and_a_future(cruiser: type[Recursive]) -> None:
    planner = cruiser(SMOOTH, epsilon=0.1, variant="paper")
    with pytest.raises(ValueError, match=r"reward_range must lie in \[0, 1\] for the published constants"):
        sp.forecast(planner, model(reward_range=(-1.0, 1.0))).calls  # noqa: B018 the price is found when asked for
    with pytest.raises(ValueError, match="discount must be greater than 0 for the published constants"):
        sp.forecast(planner, model(0.0)).calls  # noqa: B018


# Forecasts


def test_a_forecast_calls_no_simulator(cruiser: type[Recursive]) -> None:
    forecast = sp.forecast(cruiser(SMOOTH, epsilon=0.05), model())
    assert forecast.calls > 0
    assert forecast.summary()
    assert forecast.table()
    assert forecast.exponent > 0.0
    with pytest.raises(sp.SimulatorError, match="AssertionError: a forecast calls no simulator"):
        sp.plan(forecast.planner, forecast.model, 0)


def test_prices_rise_with_every_demand(cruiser: type[Recursive]) -> None:
    def price(epsilon: float = 0.1, delta: float = 0.1, discount: float = 0.2, **changes: Any) -> int:
        return sp.forecast(cruiser(SMOOTH, epsilon=epsilon, delta=delta), model(discount, **changes)).calls

    assert price() < price(epsilon=0.05) < price(epsilon=0.01)
    assert price() < price(delta=1e-6)
    assert price() < price(discount=0.4) < price(discount=0.7)
    assert price() < price(actions=4)
    assert price() < price(reward_range=(0.0, 2.0))
    assert price(reward_kind="deterministic") < price()
    assert price(epsilon=10.0) == 0


@pytest.mark.parametrize(
    ("planner", "low", "high"),
    [
        # The theory's total exponents are 4 and 3 (section 4 of the paper), and 2⅔ for debiased levels, all approached
        # from below; Sparse Sampling has none.
        (sp.SmoothCruiser, 3.0, 4.3),
        (sp.SecondOrderSmoothCruiser, 2.5, 3.0),
        (sp.DebiasedCruiser, 2.4, 2.7),
        (sp.SparseSampling, 5.5, 9.0),
    ],
)
def test_the_exponent_is_how_the_price_grows(
    planner: type[Recursive | sp.DebiasedCruiser], low: float, high: float
) -> None:
    fine = planner(SMOOTH, epsilon=2e-5)
    exponent = sp.forecast(fine, model()).exponent
    assert low <= exponent <= high
    growth = sp.forecast(fine.with_epsilon(1e-5), model()).calls / sp.forecast(fine, model()).calls
    assert exponent == pytest.approx(math.log2(growth))


def test_the_table_shows_every_level() -> None:
    forecast = sp.forecast(sp.SecondOrderSmoothCruiser(SMOOTH, epsilon=0.01), model())
    assert forecast.table().endswith(LEGEND)
    header, *rows = forecast.table().removesuffix(LEGEND).splitlines()
    for word in ("level", "kind", "bias", "deviation", "calls"):
        assert word in header
    levels = forecast.schedule.levels
    assert [row.split()[0] for row in rows] == ["root", *(str(row) for row in range(len(levels) - 2, -1, -1))]
    assert [row.split()[1] for row in rows] == [level.kind for level in levels[::-1]]
    assert rows[-1].split()[1] == "constant"
    # Every line is as wide as the header, so that columns stay columns.
    assert {len(line) for line in rows} == {sum(not unicodedata.combining(letter) for letter in header)}


def test_a_long_table_is_cut() -> None:
    table = sp.forecast(sp.SparseSampling(sp.HardMax(), epsilon=0.1), model(0.95)).table()
    lines = table.removesuffix(LEGEND).splitlines()
    assert re.fullmatch(r" +… and \d+ more levels", lines[-1])
    assert len(lines) == 32


def test_the_summary_states_the_price() -> None:
    forecast = sp.forecast(sp.SecondOrderSmoothCruiser(SMOOTH, epsilon=0.05), model())
    summary = forecast.summary()
    assert f"at most {forecast.calls:,} simulator calls" in summary
    assert f"{forecast.schedule.repeats:,} samples" in summary
    stated = re.search(r"error at most ([\d.e-]+) bias \+ ([\d.e-]+) noise", summary)
    assert stated is not None
    assert float(stated[1]) + float(stated[2]) == pytest.approx(0.05, rel=0.01)
    assert "halving epsilon" in summary


@pytest.mark.parametrize("discount", [0.9, 0.99])
def test_a_hopeless_forecast_still_has_a_price(discount: float) -> None:
    """Numbers beyond the largest float are whole numbers all the same."""
    forecast = sp.forecast(sp.SecondOrderSmoothCruiser(SMOOTH, epsilon=0.01), model(discount))
    assert forecast.calls > 10**20
    assert re.search(r"at most \d(\.\d)?e\d+ simulator calls", forecast.summary())
    assert "nan" not in forecast.table()
    assert math.isfinite(forecast.exponent)
