"""The driver: the same result for any number of threads, a valid interval whatever stops a run, errors that say why."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import binom

import smoothplan as sp
from smoothplan.base import streams
from smoothplan.recursive.compiled import CompiledEngine
from smoothplan.recursive.planners import HEADROOM
from smoothplan.run.records import REFUSED_CALLS, Planner
from smoothplan.theory.backups import Backup, line_cost
from tests.common import by_state, content, declaring, ending, holds, identified, ordinary_values, vectorised

SMOOTH = sp.LogSumExp(1.0)


def garnet(actions: int = 2, discount: float = 0.2, seed: int = 0, bernoulli: bool = True) -> sp.TabularModel:
    return sp.models.garnet(
        states=20,
        actions=actions,
        branching=4,
        discount=discount,
        seed=seed,
        reward_kind="bernoulli" if bernoulli else "deterministic",
    )


def second_order(epsilon: float, delta: float = 0.1) -> sp.SecondOrderSmoothCruiser:
    return sp.SecondOrderSmoothCruiser(SMOOTH, epsilon=epsilon, delta=delta)


# Reproducibility

RUNS: dict[str, tuple[Planner, sp.TabularModel]] = {
    "order-1 root": (second_order(0.05), garnet()),
    "plug-in root": (sp.SparseSampling(sp.HardMax(), epsilon=0.1), garnet(actions=3)),
    "terminal states": (second_order(0.2), ending(3, 0.3, 0)),
    "gap cruiser": (sp.OTGapCruiser(SMOOTH, epsilon=0.06), garnet(actions=3)),
    "published": (sp.SecondOrderSmoothCruiser(SMOOTH, epsilon=0.4, variant="paper"), garnet(bernoulli=False)),
}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("max_calls", [None, 3000])
def test_the_result_does_not_depend_on_the_workers(
    name: str, max_calls: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledEngine, "chunk_calls", 1_000)  # many chunks of a few samples
    planner, model = RUNS[name]
    results = [
        content(sp.plan(planner, model, 0, seed=5, workers=workers, engine="compiled", max_calls=max_calls))
        for workers in (2, 1, 3, 1, 2)
    ]
    assert all(result == results[0] for result in results)


# What a result says


def test_a_large_offset_of_the_rewards_does_not_matter() -> None:
    """Rewards of 0 or 1 on top of 10⁸, where sums of squares have lost the variance. With δ = 1e-7 all hold."""
    plain = ending(2, 0.2, 1)
    rewards = np.where(plain.rewards > 0.5, 1.0, 0.0) + 1e8
    model = sp.TabularModel(plain.probabilities, plain.successors, rewards, discount=0.2)
    value = float(sp.exact.solve(model, SMOOTH, 1e-3).values[0])
    for seed in range(10):
        result = sp.plan(second_order(0.1, 1e-7), model, 0, seed=seed)
        assert result.interval[0] - 1e-3 <= value <= result.interval[1] + 1e-3
        assert result.interval[1] - result.interval[0] <= 0.2 + 1e-6


# Why a run stops


@pytest.mark.parametrize("discount", [0.8, pytest.param(0.95, marks=pytest.mark.full)])
def test_a_limit_allows_a_hopeless_problem(discount: float) -> None:
    """The schedule that is run is the most accurate one that fits: it is completed, and no worse than it promises."""
    model = garnet(discount=discount)
    planner = second_order(0.01)
    result = sp.plan(planner, model, 0, max_calls=10_000)
    assert result.status == "max_calls"
    assert 0 < result.calls <= 10_000
    assert result.epsilon == 0.01
    grid = 0.5 / (1.0 - discount) * 1.01 ** -np.arange(100.0)
    affordable = min(epsilon for epsilon in grid if sp.forecast(planner.with_epsilon(epsilon), model).calls <= 10_000)
    half_width = max(result.interval[1] - result.value, result.value - result.interval[0])
    assert half_width <= 1.02 * affordable


def test_a_schedule_somewhat_too_dear_is_tried() -> None:
    """Most runs stop early, so a limit below the forecast need not cost accuracy."""
    planner, model = second_order(0.01), garnet()
    limit = math.ceil(sp.forecast(planner, model).calls / 2)
    assert sp.plan(planner, model, 0, max_calls=limit).status == "converged"
    limit = math.ceil(sp.forecast(planner, model).calls / HEADROOM)
    stopped = sp.plan(planner, model, 0, max_calls=limit)
    assert stopped.status == "max_calls"
    assert limit / 2 < stopped.calls <= limit


def test_a_published_schedule_runs_to_its_end() -> None:
    """It does not stop early; what is certified of it is less than what it promises, and the interval says so."""
    planner = sp.SecondOrderSmoothCruiser(SMOOTH, epsilon=0.3, delta=1e-6, variant="paper")
    model = garnet(bernoulli=False)
    result = sp.plan(planner, model, 0)
    assert result.status == "completed"
    assert result.samples == model.actions * sp.forecast(planner, model).schedule.root.samples
    assert holds(result, model, SMOOTH)
    assert result.interval[1] - result.interval[0] > 0.6


# Refusals and errors


def test_a_hopeless_run_is_refused_with_numbers() -> None:
    planner, model = second_order(0.1), garnet(discount=0.95)
    with pytest.raises(sp.TooExpensiveError) as refusal:
        sp.plan(planner, model, 0)
    message = str(refusal.value)
    assert re.match(r"this plan may need \d(\.\d)?e\d+ simulator calls, more than 1\.0e11", message)
    assert "max_calls=N" in message
    suggested = re.search(r"at epsilon=([\d.]+) it is ([\d,.e]+)\)", message)
    assert suggested is not None
    epsilon = float(suggested[1])
    assert epsilon < 1.0 / (1.0 - 0.95) / 2.0
    price = sp.forecast(planner.with_epsilon(epsilon), model).calls
    assert 0 < price <= REFUSED_CALLS
    assert price == pytest.approx(float(suggested[2].replace(",", "")), rel=0.5)  # epsilon is rounded


WRONG: dict[str, tuple[Planner, tuple[float, float]]] = {
    "a root of order 1, too low": (sp.DebiasedCruiser(sp.LogSumExp(0.1), epsilon=0.03), (0.0, 0.5)),
    "a root of order 1, too high": (sp.DebiasedCruiser(sp.LogSumExp(0.1), epsilon=0.03), (0.8, 1.25)),
    "a plug-in root, too low": (sp.SparseSampling(sp.HardMax(), epsilon=0.03), (0.0, 0.5)),
    "a plug-in root, too high": (sp.SparseSampling(sp.HardMax(), epsilon=0.03), (0.8, 1.25)),
    "returns of actions, too low": (sp.OTGapCruiser(sp.HardMax(), epsilon=0.01), (0.0, 0.5)),
    "returns of actions, too high": (sp.OTGapCruiser(sp.HardMax(), epsilon=0.01), (0.8, 1.25)),
    "chains, too low": (sp.ReferenceCruiser(sp.LogSumExp(0.1), epsilon=0.05), (0.0, 0.5)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_run_that_refutes_the_declared_values_says_so(name: str) -> None:
    """With the right range the same run ends as always, and its interval holds."""
    low, (planner, wrong) = "too low" in name, WRONG[name]
    model = garnet(actions=3 if low else 2)  # the root is worth 1.1, or 0.5
    refuted = rf"value_range={re.escape(str(wrong))} is refuted at state 0: the optimal value there is at "
    with pytest.raises(sp.ModelError, match=refuted + ("least" if low else "most")):
        sp.plan(planner, declaring(model, value_range=wrong), 0, max_calls=10**6)
    right = declaring(model, value_range=ordinary_values(model))
    assert holds(sp.plan(planner, right, 0, max_calls=10**6), right, planner.backup)


POINT = sp.VectorModel(
    lambda states, actions, rng: (states, np.zeros(len(states))),
    actions=2,
    discount=0.2,
    reward_range=(0, 1),
    initial_state=[0.5, 1.0],
)
NUMBERED = replace(POINT, initial_state=3)
NOWHERE = replace(POINT, initial_state=None)


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (garnet(), {"state": 20}, ValueError, r"state must be in 0\.\.19, got 20"),
        (garnet(), {"state": -1}, ValueError, "state must be at least 0, got -1"),
        (POINT, {"state": [0.5]}, ValueError, r"state must have shape \(2,\), got \(1,\)"),
        (POINT, {"state": [[1, 2], [3]]}, ValueError, r"state must be an array, got \[\[1, 2\], \[3\]\]"),
        (POINT, {"state": ["a", "b"]}, TypeError, r"state must be of dtype float64, got \['a', 'b'\]"),
        (POINT, {"state": [0.5, math.nan]}, ValueError, r"state must be finite, got \[0\.5, nan\]"),
        (NUMBERED, {"state": 1.5}, TypeError, r"state must be of dtype int64, got 1\.5"),
        (NOWHERE, {}, ValueError, "state must be given: this model declares no initial_state"),
        (garnet(), {"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        (garnet(), {"engine": "x"}, ValueError, "engine must be auto, compiled or batched, got 'x'"),
        (garnet(), {"max_calls": -1}, ValueError, "max_calls must be at least 0, got -1"),
        (garnet(), {"max_seconds": -1}, ValueError, "max_seconds must be at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(
    model: sp.GenerativeModel, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sp.plan(second_order(0.5), model, **options)


def test_a_backup_for_another_number_of_actions_is_named() -> None:
    backup = sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=1.0)
    with pytest.raises(ValueError, match="actions is 2 but this backup's cost matrix has 3 actions"):
        sp.plan(sp.SmoothCruiser(backup, epsilon=0.1), garnet(), 0)


# Coverage

DELTA = 0.1
HARD = sp.HardMax()
LIMITS = (None, 40, 400, 4_000, 40_000)


@dataclass(frozen=True, eq=False)
class Case:
    """Runs of a planner on random models, one for each seed."""

    planner: Planner
    model: Callable[..., sp.TabularModel]  # of a seed
    hidden: bool = False  # whether the table is hidden from the planner
    max_calls: tuple[int | None, ...] = (None,)  # in turn


def transport(actions: int, tau: float = 1.0, lam: float = 1.0) -> sp.OptimalTransport:
    return sp.OptimalTransport(cost=line_cost(actions), tau=tau, lam=lam)


RECURSIVE = {
    "entropy, bernoulli": Case(sp.DebiasedCruiser(SMOOTH, epsilon=0.05), garnet),
    "entropy, deterministic": Case(
        sp.DebiasedCruiser(sp.LogSumExp(0.5), epsilon=0.1), partial(garnet, 3, 0.3, bernoulli=False)
    ),
    "first order": Case(sp.SmoothCruiser(SMOOTH, epsilon=0.1), partial(garnet, 4, 0.2)),
    "soft sparse sampling": Case(sp.SparseSampling(SMOOTH, epsilon=0.1), partial(garnet, 2, 0.3)),
    "transport": Case(sp.DebiasedCruiser(transport(3), epsilon=0.1), partial(garnet, 3, 0.2)),
    "local transport": Case(
        sp.DebiasedCruiser(replace(by_state(garnet()), lam=1.0), epsilon=0.3), partial(garnet, 2, 0.4)
    ),
    "hard maximum, bernoulli": Case(sp.SparseSampling(HARD, epsilon=0.1), partial(garnet, 2, 0.3)),
    "hard maximum, deterministic": Case(sp.SparseSampling(HARD, epsilon=0.3), partial(garnet, 4, 0.5, bernoulli=False)),
    "terminal states": Case(second_order(0.3), partial(ending, 3, 0.3)),
    "terminal states, hidden": Case(second_order(0.8), partial(ending, 2, 0.5), hidden=True),
    "hidden": Case(sp.DebiasedCruiser(SMOOTH, epsilon=0.1), garnet, hidden=True),
    "transport, hidden": Case(
        sp.SmoothCruiser(transport(2, 0.5, 2.0), epsilon=0.2), partial(garnet, 2, 0.4), hidden=True
    ),
    "stopped in the samples": Case(second_order(0.02), garnet, max_calls=(40_000,)),
    "stopped in the reference": Case(second_order(0.05), garnet, max_calls=(2_000,)),
    "stopped in a plug-in root": Case(
        sp.SparseSampling(HARD, epsilon=0.1), partial(garnet, 2, 0.3), max_calls=(2_000,)
    ),
    "hopeless": Case(second_order(0.001), partial(garnet, 2, 0.5), max_calls=(5_000,)),
}

GAPS = {
    "entropy": Case(sp.OTGapCruiser(SMOOTH, 0.1), partial(garnet, 2, 0.2), max_calls=LIMITS),
    "order 1": Case(sp.OTGapCruiser(sp.LogSumExp(0.5), 0.15, order=1), partial(garnet, 3, 0.3), max_calls=LIMITS),
    "transport": Case(sp.OTGapCruiser(transport(3), 0.1), partial(garnet, 3, 0.2), max_calls=LIMITS),
    "hard maximum": Case(sp.OTGapCruiser(HARD, 0.1), partial(garnet, 4, 0.2), max_calls=LIMITS),
    "terminal states": Case(sp.OTGapCruiser(SMOOTH, 0.4), partial(ending, 3, 0.3), max_calls=LIMITS),
    "hidden": Case(sp.OTGapCruiser(SMOOTH, 0.2), partial(garnet, 2, 0.3), hidden=True, max_calls=LIMITS),
}


class Outcome(NamedTuple):
    """A result, and where the truth is to be found."""

    result: sp.PlanResult
    model: sp.TabularModel
    backup: Backup
    state: int


@cache
def outcomes(case: Case, seeds: int) -> list[Outcome]:
    """Results of a case."""
    found = []
    for seed in range(seeds):
        model = case.model(seed=seed)
        state = (4 * seed) % model.states  # never a terminal one
        simulator = vectorised(model) if case.hidden else model
        limit = case.max_calls[seed % len(case.max_calls)]
        result = sp.plan(case.planner, simulator, state, seed=seed, max_calls=limit)
        found.append(Outcome(result, model, case.planner.backup, state))
    statuses = {outcome.result.status for outcome in found}
    assert statuses <= {"converged", "max_calls"}
    assert ("converged" in statuses) >= (None in case.max_calls)
    assert ("max_calls" in statuses) == (case.max_calls != (None,))
    return found


@pytest.mark.parametrize(("cases", "seeds"), [(RECURSIVE, 20), (GAPS, 45)], ids=["recursive", "gap cruiser"])
def test_coverage(cases: dict[str, Case], seeds: int) -> None:
    """Of 320 and 270 runs with δ = 0.1, on as many models, no more miss the truth than may. False alarms: below 1e-6.

    The intervals of all actions and of the value are to hold at once. In fact almost all do, for the certified bias and
    the union bound are generous. So it is shown too that the test has teeth: intervals of a quarter of the width would
    fail it, and for recursive planners those of the value alone, and those of the actions alone.
    """
    found = [outcome for case in cases.values() for outcome in outcomes(case, seeds)]
    allowed = int(binom.isf(1e-6, len(found), DELTA))
    assert len(found) == (320 if cases is RECURSIVE else 270)
    assert sum(not holds(*outcome) for outcome in found) <= allowed
    parts: tuple[dict[str, Any], ...] = ({"q_intervals": None}, {"interval": (-1e9, 1e9)})
    for part in parts if cases is RECURSIVE else ({},):
        alone = [outcome._replace(result=replace(outcome.result, **part)) for outcome in found]
        assert sum(not holds(*outcome, scale=0.25) for outcome in alone) > allowed


@pytest.mark.parametrize("name", GAPS)
def test_what_the_intervals_imply(name: str) -> None:
    """If they hold, the action is as close to optimal as the gap says: within ε if the run converged."""
    for outcome in outcomes(GAPS[name], 45):
        found = identified(outcome.result)
        assert (outcome.result.status == "converged") == (found.gap <= outcome.result.epsilon * (1 + 1e-8))
        if holds(*outcome):
            q = sp.exact.solve(outcome.model, outcome.backup, 1e-10).q[outcome.state]
            assert q.max() - q[outcome.result.action] <= max(found.gap, 0.0) + 1e-9


def test_early_stopping_pays() -> None:
    """Certified variances are for the worst model: others let a run stop at half of the forecast or earlier."""
    planner, model = second_order(0.02), garnet()
    found = sp.plan(planner, model, 0)
    assert found.status == "converged"
    assert found.calls <= 0.5 * sp.forecast(planner, model).calls


def test_a_reference_shares_no_stream_with_what_is_sampled_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains around a reference must not depend on the samples that made it, even if both have the same seed."""
    model, soft = sp.models.garnet(30, 2, branching=3, discount=0.8, seed=1), sp.LogSumExp(0.5)
    used: set[tuple[int, ...]] = set()
    original = streams._seed_sequence

    def recorded(*key: Any) -> np.random.SeedSequence:
        found = original(*key)
        used.add(found.spawn_key)
        return found

    monkeypatch.setattr(streams, "_seed_sequence", recorded)

    def drawing(work: Callable[[], Any]) -> tuple[Any, set[tuple[int, ...]]]:
        """The keys of all chunks but the first, whose oracle is opened whether it is asked or not."""
        used.clear()
        return work(), {key for key in used if key[-1] > 0}

    decided, made = drawing(lambda: sp.decide(model, 0, calls=50_000, seed=3))
    assert len(made) > 3  # a search in rounds, and a race
    around = sp.ReferenceCruiser(soft, decided.reference, epsilon=0.1)
    _, chains = drawing(lambda: sp.plan(around, model, 0, seed=3, max_calls=20_000))
    assert len(chains) > 3
    _, search = drawing(lambda: sp.plan(sp.OTGapE(soft, 0.1), model, 0, seed=3, max_calls=50_000))
    assert len(search) > 3
    assert not made & (chains | search)


@pytest.mark.parametrize("discount", [0.1, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("shift", [0.0, 1e6, 1e12])
def test_intervals_are_rounded_outward(shift: float, discount: float) -> None:
    """The value of one state whose reward is an end of the declared range, in exact arithmetic."""
    for reward in (shift - 1.0, shift + 1.0):
        model = sp.TabularModel(
            np.ones((1, 1, 1)), [[[0]]], [[reward]], discount=discount, reward_range=(shift - 1.0, shift + 1.0)
        )
        exact = Fraction(reward) / (1 - Fraction(discount))
        for planner in (sp.OTGapE(sp.HardMax(), 1e-3), sp.SparseSampling(sp.HardMax(), max(0.1, 1e-9 * shift))):
            found = sp.plan(planner, model, 0, max_calls=2_000)
            assert Fraction(found.interval[0]) <= exact <= Fraction(found.interval[1])
            if found.q_intervals is not None:
                assert Fraction(found.q_intervals[0, 0]) <= exact <= Fraction(found.q_intervals[0, 1])
