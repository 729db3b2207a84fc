"""Both engines against the naive recursion and against exact distributions; calls against forecasts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan import confidence
from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import Oracle
from smoothplan.recursive.batched import BatchedEngine
from smoothplan.recursive.compiled import CompiledEngine
from smoothplan.recursive.level import Level
from smoothplan.recursive.schedule import Schedule
from smoothplan.run.chunks import Sums
from smoothplan.theory.backups import HardMax, LogSumExp, SoftmaxMixture, restricted
from smoothplan.theory.curvature import Problem
from tests.naive import DIGITS, Built, Distribution, Exact, Naive, built, entrance, random_model, randomly, rooted

ENGINES = ("batched", "compiled")
FALSE_ALARM = 1e-6 / 1000
"""Of one statistical comparison; there are fewer than 1000 in this file, so 1e-6 for all of them."""


def engine_of(name: str, schedule: Schedule, backup: SoftmaxMixture, model: sp.TabularModel) -> Any:
    return BatchedEngine(schedule, backup) if name == "batched" else CompiledEngine(schedule, backup, model)


# --- Cases ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model, a backup, and a table of levels."""

    model: sp.TabularModel
    backup: SoftmaxMixture
    levels: tuple[Level, ...]

    @property
    def problem(self) -> Problem:
        return Problem.of(self.model, self.backup)

    def naive(self, seed: int) -> Naive:
        return Naive(self.problem, self.levels, self.backup, self.model, randomly(seed))


def table_of_all_kinds(middle: float) -> tuple[Level, ...]:
    """Every kind of level, debiased or as printed, with N = 0, shifts, clips that cut and averaged rewards."""
    clip = (middle - 0.25, middle + 0.35)
    return (
        Level("constant", shift=0.1, rewards=2),
        Level("plug-in", samples=2, reference=0, debias=1, shift=-0.05),
        Level("plug-in", samples=4, reference=0, debias=2, rewards=3),
        Level("order-1", samples=0, linear=1),
        Level("order-1", samples=2, reference=1, debias=1, linear=3, shift=0.1),
        Level("order-1", samples=4, reference=2, debias=2, linear=4, rewards=2),
        Level("order-2", samples=2, reference=0, linear=1, quadratic=2, pairs=2),
        Level("order-2", samples=1, reference=1, linear=0, quadratic=3, pairs=3, printed=True, clip=clip),
        Level("plug-in", samples=1, reference=4, clip=clip),
        Level("order-1", samples=1, reference=6, linear=1, printed=True, clip=clip, shift=0.02),
        Level("order-2", samples=0, linear=0, quadratic=1, pairs=4, shift=-0.03),
        Level("order-1", samples=8, reference=0, debias=2, linear=0, printed=True),
        Level("order-1", samples=2, reference=1, linear=2),
    )


def hard_table(middle: float) -> tuple[Level, ...]:
    """The levels that a hard maximum may have."""
    return (
        Level("constant"),
        Level("plug-in", samples=2, reference=0),
        Level("plug-in", samples=3, reference=1, shift=-0.1),
        Level("plug-in", samples=1, reference=2, clip=(middle - 0.25, middle + 0.25)),
    )


MODELS: dict[str, Built] = {
    "hard": built(HardMax(), 7, actions=3, discount=0.6, kind="bernoulli", terminal=0.2),
    "entropy": built(LogSumExp(0.7), 1, actions=2, discount=0.6),
    "entropy bernoulli": built(LogSumExp(0.3), 2, actions=4, discount=0.3, kind="bernoulli"),
    "fixed": built("fixed", 3, actions=3, discount=0.5, kind="successor", low=-2.0),
    "table": built("table", 4, actions=2, discount=0.4, kind="bernoulli"),
    "function": built("function", 5, actions=3, discount=0.7, high=3.0, terminal=0.3),
    "legal": built(LogSumExp(0.4), 8, actions=3, discount=0.5, kind="bernoulli", legal=0.6),
    "legal transport": built("function", 9, actions=3, discount=0.6, terminal=0.2, legal=0.5),
    "legal hard": built(HardMax(), 10, actions=3, discount=0.6, legal=0.5),
    "entropy ends": built(LogSumExp(1.0), 6, actions=3, discount=0.8, kind="successor", terminal=0.4),
}


@cache
def case(name: str) -> Case:
    model, backup = MODELS[name]()
    table = table_of_all_kinds if backup.temperature > 0.0 else hard_table
    restricted_backup: Any = restricted(backup, model)
    return Case(model, restricted_backup, table(Problem.of(model, backup).middle))


def drawn(name: str, case: Case, row: int, state: int, count: int, seed: int) -> tuple[Floats, Ints]:
    """Samples of a level at a state with fresh references, and the calls made for them: each sample's, or the total."""
    oracle = Oracle(case.model, seed)
    schedule = rooted(case.problem, case.levels, row)
    if name == "batched":
        samples = BatchedEngine(schedule, case.backup)._sample(oracle, row, np.full(count, state))
        return np.round(samples, DIGITS), np.array([oracle.calls])
    engine = CompiledEngine(schedule, case.backup, case.model)
    samples, calls = np.empty(count), np.empty(count, dtype=np.int64)
    through = float(case.model.rewards[entrance(case.model), state].flat[0])
    for entry in range(count):
        before = oracle.calls
        samples[entry] = engine.returns(oracle, entrance(case.model), state, 1).total
        calls[entry] = oracle.calls - before - case.levels[row].rewards
    return np.round((samples - through) / case.model.discount, DIGITS), calls


# --- Calls ---------------------------------------------------------------------------------------------------------


def second_order_below(levels: Sequence[Level], row: int) -> bool:
    return levels[row].kind == "order-2" or any(second_order_below(levels, child) for child in levels[row].children)


@pytest.mark.parametrize("name", MODELS)
def test_calls_of_each_level(name: str) -> None:
    """Exact without order 2, terminal states and illegal actions; otherwise at most the forecast."""
    table, some = case(name), 6
    costs = Schedule(table.problem, table.levels, 1, 1.0, 0.1).costs
    for row, cost in enumerate(costs[1:], start=1):
        naive = table.naive(seed=row)
        for _ in range(some):
            naive.sample(row, 0)
        counts = {sum(naive.calls), *(int(drawn(engine, table, row, 0, some, seed=row)[1].sum()) for engine in ENGINES)}
        if second_order_below(table.levels, row) or table.model.terminates or table.model.legal is not None:
            assert max(counts) <= some * cost
        else:
            assert counts == {some * cost}


# --- Samples: the two engines and the naive recursion ---------------------------------------------------------------

NAIVE_SAMPLES = 1200
DEVIATIONS = 7.0
"""Standard errors between two means: with a thousand bounded samples the normal tail beyond them is below 1e-10."""


def same_distribution(one: Floats, two: Floats) -> None:
    """Kolmogorov and Smirnov's test, conservative for distributions with atoms, and one of the means."""
    assert stats.ks_2samp(one, two, method="asymp").pvalue > FALSE_ALARM
    error = math.sqrt(one.var() / len(one) + two.var() / len(two))
    assert abs(one.mean() - two.mean()) <= DEVIATIONS * error + 1e-9


DAILY = {
    *(("entropy", 4), ("entropy", 11), ("function", 2), ("entropy ends", 5), ("entropy ends", 11)),
    *(("hard", 2), ("hard", 3), ("legal", 4), ("legal", 5), ("legal transport", 5), ("legal hard", 3)),
}
"""Models and rows that every test run compares, beside rows 7 and 10; the naive recursion is slow."""


@pytest.mark.parametrize(
    ("name", "row"),
    [
        pytest.param(name, row, marks=() if row in (7, 10) or (name, row) in DAILY else pytest.mark.full)
        for name in MODELS
        for row in range(1, 4 if "hard" in name else 13)
    ],
)
def test_engines_agree_with_the_naive_recursion(name: str, row: int) -> None:
    """The same distribution of samples and of calls. False-alarm rate 1e-6 for the whole file."""
    table, state = case(name), row % 2
    naive = table.naive(seed=row)
    samples, calls = np.empty(NAIVE_SAMPLES), np.empty(NAIVE_SAMPLES)
    for entry in range(NAIVE_SAMPLES):
        before = sum(naive.calls)
        samples[entry] = round(naive.sample(row, state), DIGITS)
        calls[entry] = sum(naive.calls) - before
    batched, _ = drawn("batched", table, row, state, 20_000, seed=1)
    compiled, compiled_calls = drawn("compiled", table, row, state, 4_000, seed=2)
    same_distribution(samples, batched)
    same_distribution(samples, compiled)
    same_distribution(batched, compiled)
    same_distribution(calls, compiled_calls.astype(np.float64))


# --- Samples: the two engines and exact distributions ---------------------------------------------------------------

SMALL: dict[str, Built] = {
    "deterministic": built(LogSumExp(0.5), 11, actions=2, states=3, discount=0.6, branching=2),
    "bernoulli": built(LogSumExp(0.25), 12, actions=2, states=3, discount=0.5, branching=1, kind="bernoulli"),
    "ends": built(
        LogSumExp(0.8), 13, actions=2, states=3, discount=0.7, branching=2, low=-1.0, kind="successor", terminal=0.3
    ),
    "transport": built("table", 14, actions=2, states=3, discount=0.4, branching=2),
}
"""Two actions and two outcomes of a call, so that all outcomes of a level can be listed."""


def small_table(middle: float) -> tuple[Level, ...]:
    clip = (middle - 0.2, middle + 0.3)
    return (
        Level("constant", shift=-0.1),
        Level("constant", rewards=2),
        Level("plug-in", samples=1, reference=0, shift=-0.05),
        Level("plug-in", samples=2, reference=0, clip=clip),
        Level("plug-in", samples=2, reference=1, debias=1, shift=-0.05),
        Level("plug-in", samples=4, reference=0, debias=2, rewards=3),
        Level("order-1", samples=0, linear=2),
        Level("order-1", samples=2, reference=0, linear=2),
        Level("order-1", samples=1, reference=2, linear=0, printed=True, clip=clip),
        Level("order-1", samples=2, reference=0, debias=1, linear=5, rewards=2),
        Level("order-1", samples=4, reference=0, debias=2, linear=1, shift=0.04),
        Level("order-2", samples=0, linear=2, quadratic=1, pairs=2),
        Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=3),
        Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=2, printed=True, shift=0.04),
        Level("order-1", samples=4, reference=9, linear=5),
        Level("order-2", samples=2, reference=5, linear=4, quadratic=1, pairs=2),
    )


@cache
def small_case(name: str) -> tuple[Case, Exact]:
    model, backup = SMALL[name]()
    found = Case(model, backup, small_table(Problem.of(model, backup).middle))
    return found, Exact(found.problem, found.levels, found.backup, found.model)


def near(sums: Sums, exact: Distribution) -> None:
    """Mean and second moment of many samples, by Bernstein's inequality with the exact variances: no approximation."""
    centre, variance, width = exact.mean, exact.variance, exact.values[-1] - exact.values[0]
    mean = sums.total / sums.samples
    square = sums.squares / sums.samples - 2.0 * centre * mean + centre**2
    assert abs(mean - centre) <= 1e-9 + confidence.bernstein_radius(variance, width, sums.samples, FALSE_ALARM)
    spread = exact.moment(lambda value: ((value - centre) ** 2 - variance) ** 2)
    assert abs(square - variance) <= 1e-9 + confidence.bernstein_radius(spread, width**2, sums.samples, FALSE_ALARM)


MANY = {"batched": 50_000, "compiled": 500_000}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=pytest.mark.full if row in (5, 9) else ()) for row in range(2, 14)]
)
@pytest.mark.parametrize("name", SMALL)
def test_levels_have_their_exact_distribution(name: str, row: int, engine: str) -> None:
    """Moments, and the distribution function by Massart's inequality: neither is asymptotic.

    False-alarm rate 1e-6 for the whole file.
    """
    table, exact = small_case(name)
    far = entrance(table.model)
    known = exact.level(row, 0)
    through = known.scaled(float(table.model.rewards[far, 0].flat[0]), table.model.discount)
    samples, _ = drawn(engine, table, row, 0, 4_000, seed=row)
    points = np.unique(samples)
    assert set(points) <= set(np.round(known.values, DIGITS))
    found = np.searchsorted(np.sort(samples), points, side="right") / len(samples)
    assert np.abs(found - known.below(points)).max() <= math.sqrt(math.log(2.0 / FALSE_ALARM) / 2.0 / len(samples))
    interpreter = engine_of(engine, rooted(table.problem, table.levels, row), table.backup, table.model)
    near(interpreter.returns(Oracle(table.model, seed=row, chunk=1), far, 0, MANY[engine]), through)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("row", [7, 8, 12, 13, 14, pytest.param(15, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", SMALL)
def test_root_samples_have_their_exact_moments(name: str, row: int, engine: str) -> None:
    """Samples around a given reference, and the returns of each action. False-alarm rate 1e-6 for the whole file."""
    table, exact = small_case(name)
    reference = np.array([0.3, -0.2]) + table.problem.middle
    schedule = Schedule(table.problem, table.levels[: row + 1], 1, 1.0, 0.1)
    interpreter = engine_of(engine, schedule, table.backup, table.model)
    around = exact.around(row, 1, reference.tolist())
    near(interpreter.values(Oracle(table.model, seed=row), 1, reference, MANY[engine]), around)
    child = table.levels[row].reference
    assert child is not None
    for action in range(2):
        known = Distribution.of(
            partial(lambda action, choose: exact.naive(choose).one_return(row, child, 1, action), action)
        )
        near(interpreter.returns(Oracle(table.model, row, 1 + action), 1, action, MANY[engine]), known)


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_of_a_large_chunk_are_rounded_by_less_than_confidence_sequences_allow_for(engine: str) -> None:
    """Samples that are all alike: every addition rounds in the same direction for long stretches."""
    count, level = 1 << 21, Level("constant")
    for reward in (0.1, 0.7, 0.93):
        table = np.full((1, 1), reward)
        model = sp.TabularModel(np.ones((1, 1, 1)), np.zeros((1, 1, 1), int), table, discount=0.0)
        problem = Problem.of(model, LogSumExp(1.0))
        schedule = Schedule(problem, (level, Level("plug-in", samples=1, reference=0)), 1, 1.0, 0.1)
        sums = engine_of(engine, schedule, LogSumExp(1.0), model).returns(Oracle(model, 0), 0, 0, count)
        assert sums.total == pytest.approx(count * reward, rel=1e-12)
        assert sums.squares == pytest.approx(count * reward**2, rel=1e-12)


# --- Whole runs: the forecast is the count --------------------------------------------------------------------------


RUNS: dict[str, Any] = {
    "sparse": sp.SparseSampling(LogSumExp(1.0), epsilon=0.05),
    "first": sp.SmoothCruiser(LogSumExp(1.0), epsilon=0.03),
    "printed sparse": sp.SparseSampling(LogSumExp(1.0), epsilon=2.0, variant="paper"),
    "printed first": sp.SmoothCruiser(LogSumExp(1.0), epsilon=1.0, variant="paper"),
    "printed second": sp.SecondOrderSmoothCruiser(LogSumExp(1.0), epsilon=0.1, variant="paper"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RUNS)
def test_a_full_run_makes_the_calls_of_its_forecast(
    name: str, engine: Literal["batched", "compiled"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the digit: without order-2 levels, and as printed, where equal pairs are drawn too. It does not stop early."""
    planner, model = RUNS[name], random_model(21, actions=2, discount=0.2, kind="bernoulli")
    schedule = replace(planner.schedule(model), early_stopping=False)
    monkeypatch.setattr(type(planner), "schedule", lambda self, model: schedule)
    result = sp.plan(planner, model, 0, seed=1, engine=engine)
    assert any(level.kind == "order-2" for level in schedule.levels) == (name == "printed second")
    assert result.calls == schedule.calls > 1000
    exact = sp.exact.solve(model, planner.backup).values[0]
    assert result.interval[0] <= exact <= result.interval[1]
