"""Schedules: costs by hand, and forecasts. See test_optimise.py for exponents."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

import smoothplan as sp
from smoothplan.recursive.level import Level, certify
from smoothplan.recursive.schedule import CERTAIN_SHARE, REFERENCE_SHARE, Schedule, ScheduleRun, trimmed
from smoothplan.run.records import Root
from tests.recursive.common import SMOOTH, Recursive, each, entropy_problem, priced


def some_levels() -> list[Level]:
    return [
        Level("constant"),
        Level("plug-in", samples=5, reference=0),
        Level("order-1", samples=3, reference=0, linear=1),
        Level("order-1", linear=0),
        Level("order-2", samples=4, reference=1, linear=2, quadratic=1, pairs=3),
    ]


def test_costs_by_hand() -> None:
    schedule = Schedule(entropy_problem(actions=3), tuple(some_levels()), 10, 0.1, 0.1)
    plug_in = 3 * 5
    first = 3 * 3 + 1 + plug_in
    second = 3 * 4 * (1 + plug_in), 1 + first + 6 * (1 + plug_in)
    assert schedule.costs == [0, plug_in, first, 1, sum(second)]
    assert (schedule.reference_calls, schedule.sample_calls) == second
    assert schedule.calls == second[0] + 10 * second[1]
    assert [float(proved.calls) for proved in schedule.certificates] == schedule.costs


def test_what_a_run_spends_adds_up_to_delta() -> None:
    run = sp.SmoothCruiser(SMOOTH, epsilon=0.05, delta=0.2).start(Root(priced(), 0, 0, None, None, "auto", 0.0))
    assert isinstance(run, ScheduleRun)
    assert run.schedule.root.kind == "order-1"
    for _ in run._stages():  # the second one has samples around the reference
        assert sum(action.delta for action in run._actions) < 0.2
    assert run._mean is not None
    spent = sum(action.delta for action in run._actions) + run._mean.delta
    assert spent + (REFERENCE_SHARE + CERTAIN_SHARE) * 0.2 == pytest.approx(0.2)


def test_trimmed_keeps_what_is_needed_in_order() -> None:
    levels = some_levels()
    assert trimmed(levels) == (*levels[:3], levels[4])
    assert trimmed(levels[:4]) == (levels[0], replace(levels[3], linear=0))
    assert trimmed(levels[:1]) == (levels[0],)
    problem = entropy_problem()
    for count in range(1, len(levels) + 1):
        kept = trimmed(levels[:count])
        assert certify(problem, kept)[-1] == certify(problem, levels[:count])[-1]


@each
def test_a_forecast_calls_no_simulator(cruiser: type[Recursive]) -> None:
    forecast = sp.forecast(cruiser(SMOOTH, epsilon=0.05), priced())
    assert forecast.calls > 0
    assert forecast.table()
    with pytest.raises(sp.SimulatorError, match="AssertionError: a forecast calls no simulator"):
        sp.plan(forecast.planner, forecast.model, 0)


@each
def test_prices_rise_with_every_demand(cruiser: type[Recursive]) -> None:
    def price(epsilon: float = 0.1, delta: float = 0.1, discount: float = 0.2, **changes: Any) -> int:
        return sp.forecast(cruiser(SMOOTH, epsilon=epsilon, delta=delta), priced(discount, **changes)).calls

    assert price() < price(epsilon=0.05) < price(epsilon=0.01)
    assert price() < price(delta=1e-6)
    assert price() < price(discount=0.4) < price(discount=0.7)
    assert price() < price(actions=4)
    assert price() < price(reward_range=(0.0, 2.0))
    assert price(reward_kind="deterministic") < price()
    assert price(epsilon=10.0) == 0


def test_the_exponent_is_how_the_price_grows() -> None:
    fine = sp.SecondOrderSmoothCruiser(SMOOTH, epsilon=2e-5)
    exponent = sp.forecast(fine, priced()).exponent
    assert 2.5 <= exponent <= 3.0
    growth = sp.forecast(fine.with_epsilon(1e-5), priced()).calls / sp.forecast(fine, priced()).calls
    assert exponent == pytest.approx(math.log2(growth))


def test_the_table_shows_every_level() -> None:
    forecast = sp.forecast(sp.SecondOrderSmoothCruiser(SMOOTH, epsilon=0.01), priced())
    header, *rows = forecast.table().splitlines()[:-3]  # without the legend
    for word in ("level", "kind", "bias", "deviation", "calls"):
        assert word in header
    levels = forecast.schedule.levels
    assert [row.split()[0] for row in rows] == ["root", *(str(row) for row in range(len(levels) - 2, -1, -1))]
    assert [row.split()[1] for row in rows] == [level.kind for level in levels[::-1]]
    assert rows[-1].split()[1] == "constant"
    assert {len(line) for line in (header, *rows)} == {len(header)}  # columns stay columns: no accent has a width of 0


def test_a_long_table_is_cut() -> None:
    """And numbers beyond the largest float are whole numbers all the same."""
    forecast = sp.forecast(sp.SparseSampling(sp.HardMax(), epsilon=0.1), priced(0.99))
    lines = forecast.table().splitlines()[:-3]  # without the legend
    assert re.fullmatch(r"… and \d+ more levels", lines[-1])
    assert len(lines) == 32
    assert "nan" not in "".join(lines)
    assert forecast.calls > 10**300
    assert re.search(r"at most \d(\.\d)?e\d+ simulator calls", forecast.summary())
    assert math.isfinite(forecast.exponent)
