"""OT-GapCruiser: intervals of all root actions that hold at once, whatever stops a run; calls that follow the gaps."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import binom

import smoothplan as sp
from smoothplan.arguments import Floats
from smoothplan.backups import Backup, line_cost
from smoothplan.engines.batched import BatchedEngine
from smoothplan.planners.gapcruiser import CruiserRun
from smoothplan.running.progress import Silent
from smoothplan.running.run import EngineName, Root
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Problem
from smoothplan.schedules.optimise import PRICE_GROWTH, ladder
from tests.common import Counter, content, ending, identified, intervals_of, vectorised

SMOOTH = sp.LogSumExp(1.0)
SURE = 1e-7
"""A δ at which no interval of a few hundred fails."""


def garnet(actions: int = 3, discount: float = 0.2, seed: int = 0, kind: Any = "bernoulli") -> sp.TabularModel:
    return sp.models.garnet(states=20, actions=actions, branching=4, discount=discount, seed=seed, reward_kind=kind)


def twins(gap: float) -> sp.TabularModel:
    """State 0: both actions do the same, except that their rewards differ on average by the gap."""
    rng = np.random.default_rng(1)
    probabilities, successors = rng.dirichlet(np.ones(4), size=(20, 2)), rng.integers(1, 20, size=(20, 2, 4))
    rewards = rng.random((20, 2))
    probabilities[0, 1], successors[0, 1] = probabilities[0, 0], successors[0, 0]
    rewards[0] = 0.5 + gap / 2.0, 0.5 - gap / 2.0
    return sp.TabularModel(probabilities, successors, rewards, discount=0.2, reward_kind="bernoulli")


def started(planner: sp.OTGapCruiser, model: sp.GenerativeModel, max_calls: int | None = None) -> CruiserRun:
    return planner.begin(Root(model, 0, 0, max_calls, None, "auto", time.perf_counter()))


class Truth(NamedTuple):
    value: float
    q: Floats


def solved(model: sp.TabularModel, backup: Backup, state: int = 0) -> Truth:
    solution = sp.exact.solve(model, backup, 1e-10)
    return Truth(float(solution.values[state]), solution.q[state])


def holds(result: sp.PlanResult, truth: Truth, scale: float = 1.0) -> bool:
    """Whether all intervals, scaled around their middles, hold at once."""
    bounds = np.vstack([intervals_of(result), result.interval])
    middle, half = bounds.mean(axis=1), (bounds[:, 1] - bounds[:, 0]) / 2.0
    return bool((np.abs(np.append(truth.q, truth.value) - middle) <= scale * half + 1e-9).all())


# Coverage

DELTA = 0.1
SEEDS = range(70)
BUDGETS = (None, 40, 400, 4_000, 40_000)


@dataclass(frozen=True, eq=False)
class Case:
    """Runs on random models, one for each seed."""

    backup: Backup
    epsilon: float
    model: Callable[[int], sp.TabularModel]
    order: int = 2
    hidden: bool = False


CASES = {
    "entropy": Case(SMOOTH, 0.1, lambda seed: garnet(2, 0.2, seed)),
    "entropy, order 1": Case(sp.LogSumExp(0.5), 0.15, lambda seed: garnet(3, 0.3, seed), order=1),
    "transport": Case(sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=1.0), 0.1, lambda seed: garnet(3, 0.2, seed)),
    "hard maximum": Case(sp.HardMax(), 0.1, lambda seed: garnet(4, 0.2, seed)),
    "terminal states": Case(SMOOTH, 0.4, lambda seed: ending(3, 0.3, seed)),
    "hidden": Case(SMOOTH, 0.2, lambda seed: garnet(2, 0.3, seed), hidden=True),
}


@cache
def outcomes(name: str) -> list[tuple[sp.PlanResult, Truth]]:
    case = CASES[name]
    found = []
    for seed in SEEDS:
        model = case.model(seed)
        planner = sp.OTGapCruiser(case.backup, case.epsilon, DELTA, case.order)
        simulator = vectorised(model) if case.hidden else model
        result = sp.plan(planner, simulator, seed % 3, seed=seed, max_calls=BUDGETS[seed % len(BUDGETS)])
        found.append((result, solved(model, case.backup, seed % 3)))
    return found


def test_coverage() -> None:
    """Of 420 runs with δ = 0.1, on as many models, no more fail than may. False alarms: below 1e-6.

    Most of them are stopped by a limit. Intervals of a third of the width would fail.
    """
    found = [outcome for name in CASES for outcome in outcomes(name)]
    allowed = int(binom.isf(1e-6, len(found), DELTA))
    assert len(found) == 420
    assert sum(not holds(*outcome) for outcome in found) <= allowed
    assert sum(not holds(*outcome, scale=1.0 / 3.0) for outcome in found) > allowed


@pytest.mark.parametrize("name", CASES)
def test_what_the_intervals_imply(name: str) -> None:
    """Where they hold, the action is as close to optimal as the gap says: within ε if the run converged."""
    epsilon = CASES[name].epsilon
    statuses = set()
    for result, truth in outcomes(name):
        statuses.add(result.status)
        found = identified(result)
        assert result.action is not None
        assert found.certified
        assert (result.status == "converged") == (found.gap <= epsilon * (1 + 1e-8))
        low, high = intervals_of(result).T
        assert low[result.action] == low.max()
        assert found.gap == pytest.approx(np.delete(high, result.action).max() - low.max())
        if holds(result, truth):
            assert truth.q.max() - truth.q[result.action] <= max(found.gap, 0.0) + 1e-9
    assert statuses == {"converged", "max_calls"}


@pytest.mark.parametrize("backup", [SMOOTH, sp.HardMax()], ids=["entropy", "hard maximum"])
def test_the_bias_of_the_levels_is_needed(backup: Backup) -> None:
    """Where every reward is the largest, returns through coarse levels are as far off as is proved, and no further.

    The intervals hold with δ = 1e-7; without what is added for the bias they do not.
    """
    model = sp.TabularModel(
        np.full((1, 2, 2), 0.5),
        np.zeros((1, 2, 2), int),
        np.ones((1, 2, 2)),
        discount=0.4,
        reward_kind="bounded",
        reward_range=(0.0, 1.0),
    )
    truth = solved(model, backup)
    assert truth.value == pytest.approx(sp.curvature.value_interval(model, backup)[1])
    planner = sp.OTGapCruiser(backup, epsilon=0.2, delta=SURE)
    honest, careless = started(planner, model), started(planner, model)
    careless.stages = [stage._replace(through=stage.through._replace(bias=0.0)) for stage in careless.stages]
    for run in (honest, careless):
        run.go(Workers(), Silent())
        assert run.status == "converged"
    assert (honest.q_intervals[:, 0] <= truth.q).all()
    assert (truth.q <= honest.q_intervals[:, 1] + 1e-9).all()
    assert (careless.q_intervals[:, 1] < truth.q - 0.01).all()


# What a result says


@pytest.mark.parametrize("name", CASES)
def test_the_fields_of_a_result_agree(name: str) -> None:
    case = CASES[name]
    for place, (result, _) in enumerate(outcomes(name)):
        found = identified(result)
        max_calls = BUDGETS[place % len(BUDGETS)]
        assert max_calls is None or result.calls <= max_calls
        assert found.action_calls.sum() == result.calls >= result.samples
        assert found.challenger not in (None, result.action)
        assert (found.states, found.pairs, found.bytes, found.graph) == (0, 0, 0, None)
        bounds = intervals_of(result)
        assert (bounds[:, 0] <= result.q).all()
        assert (result.q <= bounds[:, 1]).all()
        assert result.interval[0] <= result.value <= result.interval[1]
        assert (result.epsilon, result.delta) == (case.epsilon, DELTA)
        # Intervals only shrink, and the last snapshot is the result.
        calls, snapshots = [s.calls for s in found.history], [s.intervals for s in found.history]
        assert calls == sorted(set(calls))
        assert calls[0] == 0
        assert (calls[-1], snapshots[-1].tolist()) == (result.calls, bounds.tolist())
        assert len(calls) <= 200
        for earlier, later in pairwise(snapshots):
            assert (earlier[:, 0] <= later[:, 0]).all()
            assert (later[:, 1] <= earlier[:, 1]).all()


def test_json_is_one_object_with_all_intervals() -> None:
    result = sp.plan(sp.OTGapCruiser(SMOOTH, epsilon=0.3), garnet(), 0)
    text = result.to_json()
    fields = json.loads(text)
    assert "NaN" not in text
    assert "Infinity" not in text
    assert fields["q_intervals"] == intervals_of(result).tolist()
    found = fields["identification"]
    assert sum(found["action_calls"]) == fields["calls"]
    assert found["history"][-1] == {"calls": fields["calls"], "intervals": fields["q_intervals"]}
    assert "graph" not in found


# Reproducibility


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("engine", ["compiled", "batched"])
@pytest.mark.parametrize("max_calls", [None, 30_000])
def test_the_result_does_not_depend_on_the_workers(
    engine: EngineName, max_calls: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smoothplan.engines.compiled import CompiledEngine

    # Batches of many chunks, each of a few returns.
    for kind in (CompiledEngine, BatchedEngine):
        monkeypatch.setattr(kind, "chunk_calls", 300)
    planner, model = sp.OTGapCruiser(SMOOTH, epsilon=0.06), garnet()
    results = [
        content(sp.plan(planner, model, 0, seed=5, workers=workers, engine=engine, max_calls=max_calls))
        for workers in (2, 1, 3, 1)
    ]
    assert all(result == results[0] for result in results)
    assert results[0] != content(sp.plan(planner, model, 0, seed=6, engine=engine, max_calls=max_calls))


@pytest.mark.parametrize("seed", range(3))
def test_both_engines_are_right(seed: int) -> None:
    model = garnet(3, 0.3, seed)
    truth = solved(model, SMOOTH)
    for engine in ("compiled", "batched"):
        result = sp.plan(sp.OTGapCruiser(SMOOTH, 0.1, SURE), model, 0, seed=seed, engine=engine)
        assert result.status == "converged"
        assert holds(result, truth)
        assert truth.q.max() - truth.q[result.action or 0] <= 0.1


def test_a_jitted_simulator() -> None:
    model = sp.models.cart_pole(discount=0.3)
    results = [
        sp.plan(sp.OTGapCruiser(sp.LogSumExp(0.3), 0.02), model, [0.0, 0.0, 0.1, 0.3], engine=engine)
        for engine in ("compiled", "batched", "auto")
    ]
    assert all(result.status == "converged" for result in results)
    for one in results:
        for two in results:
            assert (intervals_of(one)[:, 0] <= intervals_of(two)[:, 1]).all()


# Why a run stops


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("max_calls", [0, 1, 2, 3, 100, 1000, 20_000])
@pytest.mark.parametrize("epsilon", [0.0, 0.01])
def test_a_limit_on_calls_is_never_exceeded(max_calls: int, epsilon: float) -> None:
    model = twins(0.0)
    truth = solved(model, SMOOTH)
    for workers in (1, 2):
        counter = Counter(model)
        planner = sp.OTGapCruiser(SMOOTH, epsilon, SURE)
        result = sp.plan(planner, vectorised(model, counter), 0, max_calls=max_calls, workers=workers)
        assert result.status == "max_calls"
        assert result.calls == counter.calls <= max_calls
        assert result.calls >= 0.9 * max_calls
        assert holds(result, truth)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("after", [0, 100, 3000, 100_000])
def test_an_interrupt_returns_what_there_is(after: int, workers: int) -> None:
    model = twins(0.0)
    counter = Counter(model, interrupted_after=after)
    result = sp.plan(sp.OTGapCruiser(SMOOTH, 0.02, SURE), vectorised(model, counter), 0, workers=workers)
    assert result.status == "interrupted"
    assert (after > 0) == (result.calls > 0)
    assert result.calls == identified(result).action_calls.sum() <= counter.calls
    assert holds(result, solved(model, SMOOTH))
    json.loads(result.to_json())


@pytest.mark.parametrize("engine", ["compiled", "batched"])
@pytest.mark.parametrize("discount", [0.2, 0.95])
def test_a_limit_on_time(engine: EngineName, discount: float) -> None:
    model = garnet(2, discount)
    planner = sp.OTGapCruiser(SMOOTH, 0.0 if discount < 0.5 else 1e-3, SURE)
    for max_seconds in (0.0, 0.1):
        result = sp.plan(planner, model, 0, max_seconds=max_seconds, engine=engine)
        # With a large gap the best action is proved at once.
        assert result.status in ("max_seconds", "converged")
        assert holds(result, solved(model, SMOOTH))
        assert result.seconds < 20.0


def test_more_calls_narrow_the_intervals_of_a_hopeless_problem() -> None:
    model = garnet(2, 0.9)
    widths = []
    for max_calls in (0, 3_000, 100_000, 1_000_000):
        result = sp.plan(sp.OTGapCruiser(SMOOTH, 0.01, SURE), model, 0, max_calls=max_calls)
        assert result.status == "max_calls"
        assert holds(result, solved(model, SMOOTH))
        widths.append(float((intervals_of(result)[:, 1] - intervals_of(result)[:, 0]).max()))
    assert widths[0] == pytest.approx(1.0 + 0.9 * 10.0)
    assert all(finer < 0.97 * coarser for coarser, finer in pairwise(widths))


def test_a_hopeless_run_is_refused_with_numbers() -> None:
    with pytest.raises(sp.HopelessError, match=r"may need more than 1\.0e11 simulator calls") as refusal:
        sp.plan(sp.OTGapCruiser(SMOOTH, 0.1), garnet(2, 0.9), 0)
    assert "max_calls=N" in str(refusal.value)
    epsilon = float(str(refusal.value).split("epsilon=")[1].split(" ")[0])
    assert started(sp.OTGapCruiser(SMOOTH, 1.01 * epsilon), garnet(2, 0.9)).stages
    with pytest.raises(sp.HopelessError):
        started(sp.OTGapCruiser(SMOOTH, 0.9 * epsilon), garnet(2, 0.9))


def test_no_gap_at_all_needs_a_limit() -> None:
    planner = sp.OTGapCruiser(SMOOTH, epsilon=0.0)
    with pytest.raises(ValueError, match="epsilon must be greater than 0 where neither max_calls nor max_seconds"):
        sp.plan(planner, garnet(), 0)
    proved = sp.plan(planner, twins(0.5), 0, max_calls=10**6)
    assert (proved.status, proved.action) == ("converged", 0)
    assert identified(proved).gap <= 0.0


# Special cases


def test_an_accuracy_that_needs_no_sample() -> None:
    result = sp.plan(sp.OTGapCruiser(SMOOTH, epsilon=10.0), garnet(), 0)
    assert (result.status, result.calls, identified(result).rounds) == ("converged", 0, 0)
    assert identified(result).gap <= 10.0


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_one_action_is_the_best(epsilon: float) -> None:
    result = sp.plan(sp.OTGapCruiser(SMOOTH, epsilon), garnet(1, 0.99), 0)
    assert (result.status, result.action, result.calls) == ("converged", 0, 0)
    assert (identified(result).challenger, identified(result).gap) == (None, 0.0)


def test_rewards_that_never_differ_need_no_call() -> None:
    model = sp.TabularModel(np.ones((1, 2, 1)), np.zeros((1, 2, 1), int), np.full((1, 2), 2.0), discount=0.5)
    for epsilon in (0.0, 1e-9, 1.0):
        result = sp.plan(sp.OTGapCruiser(sp.HardMax(), epsilon), model, max_calls=10)
        assert (result.value, result.calls, result.status) == (4.0, 0, "converged")


@pytest.mark.parametrize("kind", ["bernoulli", "deterministic"])
def test_no_future(kind: str) -> None:
    model = garnet(3, 0.0, kind=kind)
    result = sp.plan(sp.OTGapCruiser(sp.HardMax(), 0.05, SURE), model, 0)
    assert result.status == "converged"
    assert holds(result, solved(model, sp.HardMax()))
    if kind == "deterministic":
        assert result.calls <= 3
        assert sp.plan(sp.OTGapCruiser(sp.HardMax(), 0.05, rewards="bounded"), model, 0).calls > 100


def test_what_has_no_variance_is_known_after_one_sample() -> None:
    """Deterministic all through: the price is that of the depth, however fine ε."""
    model = sp.models.garnet(states=20, actions=2, branching=1, discount=0.2, seed=0)
    truth = solved(model, sp.HardMax())
    result = sp.plan(sp.OTGapCruiser(sp.HardMax(), 1e-6), model, 0)
    assert result.status == "converged"
    assert result.calls < 10_000
    assert holds(result, truth)
    assert result.action == truth.q.argmax()


def test_a_terminal_state_is_worth_nothing() -> None:
    result = sp.plan(sp.OTGapCruiser(SMOOTH, 0.01), ending(3, 0.95, 0), 3)
    assert (result.status, result.value, result.calls, result.action) == ("terminal", 0.0, 0, None)
    assert (result.q_intervals, result.identification) == (None, None)


# The price


def test_the_gap_decides_the_price() -> None:
    """ε is the same; only the gap between the actions changes."""
    prices = [sp.plan(sp.OTGapCruiser(SMOOTH, 0.02), twins(gap), 0, seed=1).calls for gap in (0.0, 0.04, 0.16, 0.64)]
    assert all(later < earlier / 2 for earlier, later in pairwise(prices))


def test_calls_go_to_the_actions_that_are_hard_to_tell_apart() -> None:
    rewards = np.array([[0.9, 0.85, 0.1, 0.0]])
    model = sp.TabularModel(
        np.full((1, 4, 2), 0.5), np.zeros((1, 4, 2), int), rewards, discount=0.2, reward_kind="bernoulli"
    )
    calls = identified(sp.plan(sp.OTGapCruiser(SMOOTH, 0.02), model, 0)).action_calls
    assert calls[:2].min() > 5 * calls[2:].max() > 0


@pytest.mark.parametrize(("order", "least", "most"), [(1, 3.3, 4.0), (2, 2.75, 3.1)])
def test_the_price_of_a_radius_has_the_exponent_of_its_levels(order: int, least: float, most: float) -> None:
    """2 + α: towards 4 with levels of order 1, 3 with those of order 2."""
    problem = Problem.of(twins(0.0), SMOOTH)
    radii = [2.0**-k for k in range(8, 13)]
    rungs = [ladder(problem, radius, 0.05, order)[1][-1] for radius in radii]
    slope = -np.polyfit(np.log(radii), np.log([rung.price for rung in rungs]), 1)[0]
    assert least <= slope <= most
    # The bias is about α/(2 + α) of the radius.
    for rung in rungs:
        assert rung.through.bias / rung.radius == pytest.approx((slope - 2.0) / slope, abs=0.1)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_price_of_a_run_is_below_what_its_ladder_says(order: int) -> None:
    """The levels' variances are smaller than their bounds by more than the anytime intervals cost."""
    planner, model = sp.OTGapCruiser(SMOOTH, 0.04, order=order), twins(0.0)
    rungs = [stage.rung for stage in started(planner, model).stages]
    price = model.actions * sum(rung.price for rung in rungs)
    for seed in range(3):
        assert 0.1 * price < sp.plan(planner, model, 0, seed=seed).calls < price


# Ladders


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("discount", [0.0, 0.2, 0.8])
@pytest.mark.parametrize("backup", [SMOOTH, sp.HardMax()], ids=["entropy", "hard maximum"])
def test_a_ladder_leads_down_to_its_radius(order: int, discount: float, backup: Backup) -> None:
    problem = Problem.of(garnet(3, discount), backup)
    radius = 0.02 if discount < 0.5 else 1.0
    levels, rungs = ladder(problem, radius, 0.05, order)
    assert rungs[-1].radius == pytest.approx(radius)
    for coarse, fine in pairwise(rungs):
        assert coarse.radius > fine.radius
        assert PRICE_GROWTH * coarse.price <= fine.price
        assert coarse.level != fine.level
    for rung in rungs:
        assert 0.0 <= rung.through.bias < rung.radius
        allowed = ("constant", "plug-in", "order-1", "order-2")[: 2 + (order if backup.temperature > 0.0 else 0)]
        assert levels[rung.level].kind in allowed
    dear = rungs[-1].price
    shorter = ladder(problem, radius, 0.05, order, budget=dear / 10.0)[1]
    assert shorter[-1].price <= dear / 10.0 or len(shorter) == 1
    assert shorter[-1].radius >= radius


def test_what_is_proved_of_a_rung_is_what_is_proved_of_its_schedule() -> None:
    for model in (garnet(3, 0.3), ending(2, 0.4, 1)):
        for stage in started(sp.OTGapCruiser(SMOOTH, 0.1), model).stages:
            np.testing.assert_allclose(stage.through, stage.rung.through, rtol=1e-9)
            assert stage.calls == stage.rung.through.calls


# Configurations


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epsilon": -0.1}, ValueError, r"epsilon must be at least 0, got -0\.1"),
        ({"epsilon": math.nan}, ValueError, "epsilon must be finite, got nan"),
        ({"epsilon": "fine"}, TypeError, "epsilon must be a number, got 'fine'"),
        ({"epsilon": 0.1, "delta": 0.0}, ValueError, r"delta must be strictly between 0 and 1, got 0\.0"),
        ({"epsilon": 0.1, "order": 3}, ValueError, "order must be at most 2, got 3"),
        ({"epsilon": 0.1, "order": -1}, ValueError, "order must be at least 0, got -1"),
        ({"epsilon": 0.1, "order": 1.5}, TypeError, r"order must be a whole number, got 1\.5"),
        ({"epsilon": 0.1, "rewards": "x"}, ValueError, "rewards must be 'declared' or 'bounded', got 'x'"),
        ({}, TypeError, "missing 1 required positional argument: 'epsilon'"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sp.OTGapCruiser(SMOOTH, **options)


def test_planners_are_frozen_values() -> None:
    planner = sp.OTGapCruiser(SMOOTH, epsilon=0.1)
    with pytest.raises(FrozenInstanceError):
        planner.epsilon = 0.2  # type: ignore[misc]
    assert planner == sp.OTGapCruiser(SMOOTH, 0.1, 0.1, 2, "declared")
    assert replace(planner, epsilon=0.2) != planner


def test_there_is_no_forecast() -> None:
    with pytest.raises(TypeError, match="OTGapCruiser has no forecast: its price depends on the gaps between the act"):
        sp.forecast(sp.OTGapCruiser(SMOOTH, epsilon=0.1), garnet())


def test_a_simulator_without_a_table_has_no_compiled_engine() -> None:
    with pytest.raises(ValueError, match="engine 'compiled' needs a TabularModel"):
        sp.plan(sp.OTGapCruiser(SMOOTH, 0.1), vectorised(garnet()), engine="compiled")
