"""ReferenceCruiser: intervals that hold for hostile references, limits, learning.

The statistical tests state how often they fail though everything is right. Most runs are small and seeded, so that a
test which passes once always passes.
"""

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import smoothplan as sp
from smoothplan.base import streams
from smoothplan.base.arguments import Floats
from smoothplan.base.records import plain
from smoothplan.chains import cruiser
from smoothplan.chains.cruiser import Proof, ReferenceCruiser, Sampling, Truncation, proof
from smoothplan.chains.grid import GridReference
from smoothplan.chains.reference import CriticReference, TabularReference
from smoothplan.chains.shared import SharedReference
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.run.plan import outward
from smoothplan.run.progress import Display
from smoothplan.run.records import EngineName, Root
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import SoftmaxMixture, is_mixture
from smoothplan.theory.curvature import Problem
from tests.chains.worlds import (
    CORNER,
    SLACK,
    TRANSPORT,
    WORLDS,
    World,
    begun,
    declared_worlds,
    ending,
    garnet,
    hostile,
    line,
    policy_values,
    ranged,
    signs,
    solved,
    walk,
)
from tests.common import Counter, content, diagnosed, vectorised
from tests.naive import ChainMeans

FALSE_ALARM = 1e-6
"""How often a statistical check fails though everything is right."""


DELTA = 0.01
"""Of runs whose intervals are checked: so small that failures in one case in ten are noticed."""


# Intervals


def missed(planner: ReferenceCruiser, model: sp.TabularModel, **options: Any) -> list[bool]:
    """Whether a run's lower end, interval, action values and policy interval miss the exact numbers."""
    backup, reference = planner.backup, planner.reference
    assert is_mixture(backup)
    assert reference is not None
    result, solution = sp.plan(planner, model, 0, **options), solved(model, backup)
    assert result.q_intervals is not None
    (low, high), (worst, best), slack = result.interval, diagnosed(result).policy_interval, 1e-8
    value, policy = solution.values[0], policy_values(model, backup, reference)[0]
    beyond = (result.q_intervals - solution.q[0][:, None]) * [1.0, -1.0]
    return [
        low > value + slack,
        not low - slack <= value <= high + slack,
        bool((beyond > slack).any()),
        not worst - slack <= policy <= best + slack,
    ]


def too_many(misses: list[list[bool]]) -> bool:
    """Whether any kind of interval fails more often than with probability `DELTA`. All four: `FALSE_ALARM`."""
    return bool((np.sum(misses, axis=0) > binom.isf(FALSE_ALARM / 4.0, len(misses), DELTA)).any())


def hostile_misses(
    seeds: range, engine: EngineName = "auto", worlds: Sequence[World] = WORLDS, **options: Any
) -> list[list[bool]]:
    misses = []
    for (model, backup), seed in product(worlds, seeds):
        for number, table in enumerate(hostile(model, backup, seed)):
            planner = ReferenceCruiser(
                backup, TabularReference(table), epsilon=0.5, delta=DELTA, order=1 + (seed + number) % 2, **options
            )
            calls = [500, 10_000, 300_000][seed % 3] // (1 if engine == "auto" else 10)
            misses.append(missed(planner, model, seed=seed, max_calls=calls, engine=engine))
    return misses


def test_no_reference_breaks_an_interval() -> None:
    """288 runs on tables, and 48 on batches."""
    assert not too_many(hostile_misses(range(6)))
    assert not too_many(hostile_misses(range(1, 2), "batched"))


def test_a_short_horizon_is_booked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check notices if it is not."""
    assert not too_many(hostile_misses(range(2, 3), horizon=2))
    monkeypatch.setattr(Truncation, "at", classmethod(lambda cls, problem, horizon: cls(horizon, 0.0, 0.0, 0.0)))
    assert too_many(hostile_misses(range(2, 3), horizon=2))


def test_intervals_hold_with_declared_values() -> None:
    """96 runs."""
    for horizon in (None, 2):
        assert not too_many(hostile_misses(range(1, 2), worlds=declared_worlds(), horizon=horizon))


def known_error(
    model: sp.TabularModel, backup: SoftmaxMixture, size: float, seed: int, adversarial: bool
) -> TabularReference:
    """A reference whose error has a known range. An adversary's is as large as it may be where it matters."""
    q = solved(model, backup).q
    if adversarial:
        return TabularReference(q + size * ranged(np.tile(np.linspace(0.0, 1.0, q.shape[1]), (len(q), 1))))
    return TabularReference(q + size * ranged(np.random.default_rng(seed).normal(size=q.shape)))


KNOWN: list[tuple[sp.TabularModel, SoftmaxMixture, float]] = [
    (garnet(discount=0.5), sp.LogSumExp(0.5), 0.5),
    (garnet(2, discount=0.9), sp.LogSumExp(0.5), 0.2),
    (ending(discount=0.7), sp.LogSumExp(0.5), 0.5),
    (ending(2, discount=0.5), TRANSPORT, 0.3),
]


def test_a_known_error_range_bounds_from_both_sides() -> None:
    """160 runs."""
    misses = []
    for (model, backup, size), seed, order, adversarial in product(KNOWN, range(10), (1, 2), (False, True)):
        reference = known_error(model, backup, size, seed, adversarial)
        planner = ReferenceCruiser(backup, reference, order=order, epsilon=0.1, delta=DELTA, error_range=size)
        misses.append(missed(replace(planner, horizon=[None, 3][seed % 2]), model, seed=seed, max_calls=300_000))
    assert not too_many(misses)


def test_a_false_error_range_is_noticed() -> None:
    """Half of an error range that an adversary uses up, without noise that could hide it."""
    model, backup = garnet(discount=0.9, actions=2), sp.LogSumExp(0.5)
    reference = known_error(model, backup, 1.0, 0, adversarial=True)
    for claimed in (1.0, 0.5):
        planner = ReferenceCruiser(backup, reference, order=1, epsilon=0.2, delta=DELTA, error_range=claimed)
        misses = [missed(planner, model, seed=seed, max_calls=3_000_000) for seed in range(20)]
        assert too_many(misses) == (claimed < 1.0)


def test_chains_that_refute_an_error_range_take_its_place() -> None:
    """With δ = 1e-9 no interval fails, so that what is refuted is the error range."""
    model, backup = garnet(discount=0.7), sp.LogSumExp(0.2)
    q = solved(model, backup).q
    exact = ChainMeans(model, backup, -q)
    policy = exact.orders()[0]
    state = int((backup.value(exact.action_values(policy)) - policy).argmax())  # where one step shows it
    for order in (1, 2):
        planner = ReferenceCruiser(backup, TabularReference(-q), order=order, epsilon=1e-3, delta=1e-9, error_range=0.0)
        result = sp.plan(planner, model, state, max_calls=30_000_000)
        assert not diagnosed(result).certified
        low, high = result.interval
        most = outward(np.array(sp.curvature.value_interval(model, backup)))[1]
        assert low <= backup.value(q[state]) <= high == most


# Proofs, if every mean were known exactly


def proved(
    model: sp.TabularModel, backup: SoftmaxMixture, table: Floats, state: int, order: int, horizon: int, size: float
) -> Proof:
    """What would be proved if every mean were known exactly: all that is left are biases."""
    planner = sp.ReferenceCruiser(
        backup, TabularReference(table), order=order, epsilon=0.1, horizon=horizon, error_range=size
    )
    problem = Problem.of(model, backup)
    first, returns, corrections = ChainMeans(model, backup, table).at_horizon(horizon, problem.middle)

    def known(mean: float) -> Any:
        return SimpleNamespace(sequence=SimpleNamespace(interval=(mean - 1e-9, mean + 1e-9)))

    root = Root(model, state, 0, None, None, "auto", 0.0)
    samples: Any = SimpleNamespace(
        planner=planner,
        root=root,
        problem=problem,
        truncation=planner.truncation(problem),
        value=known(first[state]),
        actions=[known(mean) for mean in returns[state]],
        correction=known(corrections[state]) if order == 2 else None,
    )
    return proof(samples)


Proved = Iterator[tuple[Proof, float, Floats]]
"""Proofs, with the exact value and the exact action values, [K]."""


def missed_by(proofs: Proved) -> dict[str, int]:
    """How often V or Q is outside of what is proved."""
    missed = dict.fromkeys(("low", "high", "q low", "q high", "not certified"), 0)
    for ((low, high), actions, certified), value, q in proofs:
        missed["low"] += low > value + SLACK
        missed["high"] += high < value - SLACK
        missed["q low"] += bool((actions[:, 0] > q + SLACK).any())
        missed["q high"] += bool((actions[:, 1] < q - SLACK).any())
        missed["not certified"] += not certified
    return missed


def walk_proofs(horizon: int) -> Proved:
    """What exact means around a reference of known error prove."""
    backup, size = sp.LogSumExp(1.0), 0.05
    for better in (1, -1):
        model, q = walk(0.9, size, better)
        for state, order in product(range(0, 31, 5), (1, 2)):
            yield proved(model, backup, np.zeros_like(q), state, order, horizon, size), 0.0, q[state]


def test_what_exact_means_prove_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a horizon that matters and without. If no bias, or half of it, were booked, values would be missed."""
    for horizon in (1, 3, 300):
        assert sum(missed_by(walk_proofs(horizon)).values()) == 0
    bias = cruiser._bias
    monkeypatch.setattr(cruiser, "_bias", lambda samples, order: (0.0, 0.0) if order == 2 else bias(samples, order))
    found = missed_by(walk_proofs(300))
    assert min(found["low"], found["high"]) > 0
    monkeypatch.setattr(cruiser, "_bias", lambda samples, order: tuple(end / 2.0 for end in bias(samples, order)))
    found = missed_by(walk_proofs(300))
    assert min(found["high"], found["q high"]) > 0


def cut_proofs() -> Proved:
    """What exact means of chains that are cut off prove around Q̂ = Q, and the exact value and action values.

    Where the least or the largest reward is for ever, a chain is wrong by all that is booked for its cut. Where the
    best first reward leads to the worst for ever, two actions are worth the same, and pairs that are cut off see only
    the first reward.
    """
    for reward in (0.0, 1.0):
        model = sp.TabularModel(
            np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=int), [[reward] * 2], discount=0.8, reward_range=(0.0, 1.0)
        )
        value = (reward + math.log(2.0)) / (1.0 - 0.8)
        q = np.full((1, 2), reward + 0.8 * value)
        for order, horizon in product((1, 2), (1, 3)):
            yield proved(model, sp.LogSumExp(1.0), q, 0, order, horizon, 0.0), value, q[0]
    successors = np.array([[1, 2], [1, 1], [2, 2]])[..., None]
    rewards = np.array([[1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]])
    model = sp.TabularModel(np.ones((3, 2, 1)), successors, rewards, discount=0.5)
    bonus = 0.1 * math.log(2.0)
    values = np.array([0.0, -2.0, 2.0]) + 2.0 * bonus
    q = rewards + 0.5 * values[successors[..., 0]]
    yield proved(model, sp.LogSumExp(0.1), q, 0, 2, 1, 0.0), float(values[0]), q[0]


def test_what_exact_means_of_short_chains_prove_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values would be missed if a little less were booked for the cut, or half for what it does to pairs."""
    assert sum(missed_by(cut_proofs()).values()) == 0
    original = Truncation.at
    with monkeypatch.context() as patch:

        def narrower(problem: Problem, horizon: int) -> Truncation:
            cut = original(problem, horizon)
            return cut._replace(optimal=0.99 * cut.optimal)

        patch.setattr(Truncation, "at", narrower)
        assert missed_by(cut_proofs())["low"] > 0
    for share, enough in ((1.0, True), (0.5, False)):

        def booked(samples: Sampling, order: int, share: float = share) -> tuple[float, float]:
            tail = samples.truncation.below + samples.truncation.above
            return cruiser.bias(order, 0.0, samples.problem, share * tail)

        monkeypatch.setattr(cruiser, "_bias", booked)
        assert (sum(missed_by(cut_proofs()).values()) == 0) == enough


# Runs


@cache
def settings() -> list[tuple[str, ReferenceCruiser, GenerativeModel, EngineName]]:
    """One of each engine."""
    backup, model = sp.LogSumExp(0.3), garnet(discount=0.8)
    table = TabularReference(solved(model, backup).q + 0.2 * np.random.default_rng(0).normal(size=(12, 3)))
    cart = sp.models.cart_pole(discount=0.95)
    grid = GridReference.build(cart, sp.LogSumExp(0.1), low=-CORNER, high=CORNER, cells=4)
    return [
        ("table", ReferenceCruiser(backup, table, epsilon=0.2), model, "compiled"),
        ("table, order 1", ReferenceCruiser(backup, table, epsilon=0.2, order=1), model, "compiled"),
        ("known error", ReferenceCruiser(backup, table, epsilon=0.2, error_range=1.0), model, "compiled"),
        ("batched", ReferenceCruiser(backup, table, epsilon=0.5), model, "batched"),
        ("critic", ReferenceCruiser(sp.LogSumExp(0.1), CriticReference(signs), epsilon=0.5), line(), "auto"),
        ("grid", ReferenceCruiser(sp.LogSumExp(0.1), grid, epsilon=2.0), cart, "compiled"),
    ]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting[0])
def test_limits_on_calls_are_kept_and_threads_change_nothing(
    setting: tuple[str, ReferenceCruiser, GenerativeModel, EngineName], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the calls that are counted are those made."""
    _, planner, model, engine = setting
    oracles: list[Oracle] = []

    class Counted(Oracle):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            oracles.append(self)

    monkeypatch.setattr("smoothplan.run.chunks.Oracle", Counted)
    values = outward(np.array(sp.curvature.value_interval(model, planner.backup)))
    for limit in (0, 1, 40, 300, 2_000, 7_500, 60_000, 400_000):
        oracles.clear()
        one = sp.plan(planner, model, seed=3, max_calls=limit, engine=engine)
        assert one.calls == sum(oracle.calls for oracle in oracles)
        if engine == "compiled":
            assert content(one) == content(sp.plan(planner, model, seed=3, max_calls=limit, engine=engine, workers=2))
        assert one.calls <= limit
        assert one.status in ("max_calls", "converged", "completed")
        assert values[0] <= one.interval[0] <= one.value <= one.interval[1] <= values[1]
        assert one.action == one.q.argmax()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("actions", [1, 2])
@pytest.mark.parametrize("discount", [0.0, 0.6])
@pytest.mark.parametrize("error_range", [None, 0.0])
def test_runs_without_noise_end(order: int, actions: int, discount: float, error_range: float | None) -> None:
    """One action, no future, rewards that are always the same. With δ = 1e-9 all intervals hold."""
    model = sp.models.garnet(states=5, actions=actions, branching=1, discount=discount, seed=0)
    backup = sp.LogSumExp(0.3)
    reference = TabularReference(solved(model, backup).q)
    planner = ReferenceCruiser(backup, reference, order=order, epsilon=0.3, delta=1e-9, error_range=error_range)
    result = sp.plan(planner, model, 0)
    assert result.status == "converged"
    assert abs(result.value - solved(model, backup).values[0]) <= 0.3


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("options", [{"horizon": 1}, {"error_range": 3.0}, {"error_range": 3.0, "horizon": 1}])
def test_what_is_out_of_reach_is_not_run_after_for_ever(order: int, options: dict[str, Any]) -> None:
    model, backup = garnet(discount=0.9), sp.LogSumExp(0.3)
    reference = TabularReference(solved(model, backup).q)
    result = sp.plan(ReferenceCruiser(backup, reference, order=order, epsilon=0.3, **options), model, 0)
    assert result.status == "completed"


# References that are made and improved


def test_a_poor_reference_learns() -> None:
    """Exact values of the policies before and after; what the run saw, to six standard errors and the cut."""
    backup = sp.LogSumExp(0.001)
    model = sp.models.frozen_lake("8x8")
    solution, reference = solved(model, backup), SharedReference(model, backup)
    poor = policy_values(model, backup, reference)[0]
    result = sp.plan(ReferenceCruiser(backup, reference, epsilon=0.02, improve=True), model, max_calls=2_000_000)
    good, found = policy_values(model, backup, reference)[0], diagnosed(result)
    assert poor < 0.4 * solution.values[0]
    assert min(good, solution.q[0, result.action]) > 0.95 * solution.values[0]
    assert reference.calls < result.calls <= 2_000_000
    assert abs(found.order_1 - good) < 6.0 * found.order_1_error + found.truncation
    assert found.order_1 > poor + 2.0 * found.order_1_error  # it rises


@pytest.mark.parametrize("made", [True, False])
def test_no_sample_of_an_interval_draws_what_something_else_has_drawn(
    made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References have a role of their own, and every chunk of chains, a stream of its own."""
    model, backup, drawn = garnet(), sp.LogSumExp(0.3), list[int]()

    class Watched(Oracle):
        def __init__(self, model: GenerativeModel, seed: int, chunk: int = 0, role: streams.Role = "samples") -> None:
            super().__init__(model, seed, chunk, role)
            assert role == "samples"
            drawn.append(chunk)

    monkeypatch.setattr("smoothplan.run.chunks.Oracle", Watched)
    reference = None if made else SharedReference(model, backup)
    planner = ReferenceCruiser(backup, reference, epsilon=0.2, improve=True)
    result = sp.plan(planner, model, 0, max_calls=300_000)
    assert result.samples > 0
    assert len(drawn) == len(set(drawn)) > 8


class Greedy(TabularReference):
    """Makes more calls than it may."""

    calls = 0

    def improve(self, calls: int) -> None:
        """Makes one call too many."""
        self.calls += calls + 1


@pytest.mark.parametrize("order", [1, 2])
def test_a_limit_on_calls_is_hard_whatever_improves(order: int) -> None:
    """And improving takes no more than half of it, though chains have 1,500 steps."""
    model, backup = garnet(states=200, actions=4, discount=0.99), sp.LogSumExp(1.0)
    for limit in (0, 10, 3_000, 100_000):
        reference = SharedReference(model, backup)
        planner = ReferenceCruiser(backup, reference, order=order, epsilon=0.5, improve=True)
        result = sp.plan(planner, model, 0, max_calls=limit)
        assert reference.calls <= result.calls <= limit
    assert result.samples > 0
    assert reference.calls == 50_000
    with pytest.raises(ValueError, match=r"reference\.improve\(\d+\) must not make more than"):
        sp.plan(replace(planner, reference=Greedy(np.zeros((200, 4)))), model, 0, max_calls=100_000)


@pytest.mark.parametrize("given", [False, True])
def test_calls_are_exact_if_time_ends_the_preparation(given: bool) -> None:
    table, backup = garnet(discount=0.99), sp.LogSumExp(1.0)
    counter = Counter(table)

    def slow(states: States, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        time.sleep(1e-3)
        return counter(states, actions, rng)

    model = vectorised(table, slow)
    sp.plan(ReferenceCruiser(backup, epsilon=0.1), vectorised(table), max_calls=200)  # compiles
    reference = SharedReference(model, backup) if given else None
    result = sp.plan(ReferenceCruiser(backup, reference, epsilon=0.1, improve=given), model, max_seconds=0.3)
    assert (result.status, result.samples) == ("max_seconds", 0)
    assert result.calls == counter.calls > 10


def test_before_any_sample_the_reference_recommends() -> None:
    for best in range(3):
        q = np.tile(np.where(np.arange(3) == best, 1.5, 1.0), (12, 1))
        result = sp.plan(ReferenceCruiser(sp.LogSumExp(0.3), TabularReference(q), epsilon=0.1), garnet(), max_calls=0)
        assert (result.action, result.calls) == (best, 0)
        assert result.q == pytest.approx(q[0])


def test_a_pilot_that_takes_all_the_calls_is_not_wasted() -> None:
    model, backup = garnet(discount=0.9), sp.LogSumExp(0.3)
    table = TabularReference(solved(model, backup).q + 0.3 * np.random.default_rng(0).normal(size=(12, 3)))
    found = diagnosed(sp.plan(ReferenceCruiser(backup, table, epsilon=0.01), model, 0, max_calls=150_000))
    assert found.pairs == 32  # those of the pilot: with another number of pairs its corrections would be lost
    assert found.order_2 != found.order_1


def test_a_reference_is_made_from_where_one_plans() -> None:
    run = begun(ReferenceCruiser(sp.LogSumExp(0.3), epsilon=0.5), garnet(states=40), 7)
    run.run(Workers(), Display())
    assert isinstance(run.maker.reference, SharedReference)
    assert run.maker.reference.explorer.number(np.int64(7)) == 0


def test_a_reference_that_is_not_made_is_missed_aloud() -> None:
    model, planner = sp.models.mountain_car(discount=0.9), ReferenceCruiser(sp.LogSumExp(0.1), epsilon=0.5)
    found = diagnosed(sp.plan(planner, model, max_calls=1))
    (warning,) = found.warnings
    reason = "max_calls=1 leaves no calls for it"
    assert warning == f"no reference was made, so this is about a uniformly random policy: {reason}"
    assert found.summary().startswith(warning)
    assert plain(found)["warnings"] == [warning]
    assert diagnosed(sp.plan(planner, garnet(), 0, max_calls=40)).warnings == ()


def test_the_delta_of_a_shared_reference_is_added() -> None:
    """An error range that a reference bounds with probability 1 − δ_ref makes the result hold with 1 − δ − δ_ref."""
    model, backup = garnet(), sp.LogSumExp(1.0)
    shared = SharedReference(model, backup, delta=0.05)
    shared.improve(1_000)
    for reference, error_range, expected in ((shared, 1.0, 0.05), (shared, None, 0.0), (None, 1.0, 0.0)):
        table = TabularReference(shared.q(np.arange(12)))
        planner = ReferenceCruiser(backup, reference or table, epsilon=0.5, error_range=error_range)
        result = sp.plan(planner, model, 0, max_calls=20_000)
        assert result.delta == pytest.approx(0.1 + expected)
        assert diagnosed(result).reference_delta == expected
        assert ("delta includes 0.05" in diagnosed(result).summary()) == (expected > 0.0)


# What users see


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": 3}, ValueError, "order must be at most 2, got 3"),
        ({"pairs": 1}, ValueError, "pairs must be at least 2, got 1"),
        ({"improve": True, "reference": TabularReference([[0.0]])}, TypeError, "improve=True needs a reference with"),
        ({"reference": [[0.0]]}, TypeError, "reference must have a method q(states), got [[0.0]]"),
        ({"backup": sp.HardMax()}, ValueError, "ReferenceCruiser needs a smooth backup, got HardMax()"),
    ],
)
def test_invalid_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    defaults: dict[str, Any] = {"backup": sp.LogSumExp(0.3), "epsilon": 0.1}
    with pytest.raises(error, match=re.escape(message)):
        ReferenceCruiser(**defaults | options)


@pytest.mark.parametrize("engine", ["auto", "batched"])
def test_wrong_references_are_named(engine: EngineName) -> None:
    for q, error, message in (
        (np.zeros((1, 2)), ValueError, "the reference of 1 states must have shape (1, 3), got (1, 2)"),
        (np.zeros(3), ValueError, "must have shape (1, 3), got (3,)"),
        ([[0.0, math.inf, 0.0]], ValueError, "the reference must be finite, got inf (state 0, action 1)"),
        ([[0.0, math.nan, 0.0]], ValueError, "the reference must be finite, got nan (state 0, action 1)"),
        ("nothing", TypeError, "reference.q(states) must be an array of numbers, got 'nothing'"),
    ):
        reference: Any = SimpleNamespace(q=lambda states, q=q: q)
        with pytest.raises(error, match=re.escape(message)):
            sp.plan(ReferenceCruiser(sp.LogSumExp(0.3), reference, epsilon=0.1), garnet(), 0, engine=engine)


def test_the_summary_reads_well() -> None:
    model, backup = garnet(), sp.LogSumExp(0.3)
    given = TabularReference(solved(model, backup).q + 0.4 * np.random.default_rng(0).normal(size=(12, 3)))
    for order, reference in ((1, given), (2, given), (1, None)):
        found = diagnosed(sp.plan(ReferenceCruiser(backup, reference, order=order, epsilon=0.1), model, 0))
        words = found.summary()
        assert words.startswith("the reference claims ")
        assert (f"; its {'clamped ' if reference is None else ''}policy is worth ") in words
        assert ("quadratic correction" in words) == (order == 2)
        if reference is not None:
            assert found.reference == pytest.approx(float(backup.value(reference.q(np.array([0])))[0]))


@pytest.mark.parametrize("engine", ["auto", "batched"])
def test_the_policy_is_evaluated_as_given(engine: EngineName) -> None:
    """A rule that is surer of the worse action than any action values are. With δ = 1e-9 no interval fails."""
    model = sp.TabularModel(np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=int), [[0.0, 1.0]], discount=0.5)
    backup, rule = sp.LogSumExp(1.0), TabularReference([[10.0, 0.0]])
    worth = policy_values(model, backup, rule)[0]
    assert worth == pytest.approx(0.001, abs=1e-4)
    for error_range in (None, 12.0):
        planner = ReferenceCruiser(backup, rule, order=1, epsilon=0.1, delta=1e-9, error_range=error_range)
        low, high = diagnosed(sp.plan(planner, model, 0, max_calls=300_000, engine=engine)).policy_interval
        assert low <= worth <= high < 0.5
