"""Chains around a reference: exact biases, intervals that hold for hostile references, limits, learning.

The statistical tests state how often they fail though everything is right. Most runs are small and seeded, so that a
test which passes once always passes.
"""

import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import binom

import smoothplan as sp
from smoothplan.arguments import Floats
from smoothplan.backups import SoftmaxMixture, is_mixture, line_cost
from smoothplan.curvature import reference_bias
from smoothplan.engines.chains import BatchedChains
from smoothplan.engines.compiled_chains import TableChains
from smoothplan.engines.jitted_chains import JittedChains
from smoothplan.models.base import GenerativeModel, Oracle, States
from smoothplan.planners.engines import chains_for, conditioned, likely_gap
from smoothplan.planners.preparing import IMPROVEMENTS
from smoothplan.planners.reference_cruiser import ReferenceCruiser, ReferenceRun
from smoothplan.planners.sampling import CUT_SHARE, Cut, support
from smoothplan.references import CriticReference, GridReference, Reference, SharedReference, TabularReference
from smoothplan.running.progress import Silent
from smoothplan.running.run import EngineName, Root, plain
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Problem
from tests import common
from tests.common import content, diagnosed
from tests.naive import ChainMeans

FALSE_ALARM = 1e-6
"""How often a statistical check fails though everything is right."""

DELTA = 0.01
"""Of runs whose intervals are checked: so small that failures in one case in ten are noticed."""

TRANSPORT = sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.4)

CORNER = np.array([2.4, 3.0, 0.21, 3.0])
"""The states of a cart with a pole lie between this and its opposite, for most of the time."""


def garnet(seed: int = 1, states: int = 12, actions: int = 3, discount: float = 0.7) -> sp.TabularModel:
    return sp.models.garnet(
        states=states, actions=actions, branching=3, discount=discount, seed=seed, reward_kind="bernoulli"
    )


def ending(seed: int = 1, discount: float = 0.7, actions: int = 3) -> sp.TabularModel:
    return common.ending(actions, discount, seed, (-3.0, 1.0))


def begun(planner: ReferenceCruiser, model: GenerativeModel, state: Any = 0) -> ReferenceRun:
    """A run that has made no call."""
    return cast(ReferenceRun, planner.begin(root_of(model, state)))


def root_of(model: GenerativeModel, state: Any = 0, engine: EngineName = "auto") -> Root:
    return Root(model, state, 0, None, None, engine, 0.0)


@cache
def _solved(model: Any, backup: Any) -> sp.exact.Solution:
    return sp.exact.solve(model, backup, 1e-9)


def solved(model: sp.TabularModel, backup: Any) -> sp.exact.Solution:
    """The exact solution, found once."""
    return _solved(model, backup)


def ranged(noise: Floats) -> Floats:
    """Errors [S, K] scaled so that max − min = 1 at every state."""
    return np.asarray((noise - noise.min(axis=1, keepdims=True)) / np.ptp(noise, axis=1)[:, None] - 0.5)


# Biases, by linear algebra


def exact_errors(
    model: sp.TabularModel, backup: SoftmaxMixture, noise: Floats, size: float
) -> tuple[Floats, Floats, Floats]:
    """V less what Q̂ = Q + size·noise says itself, and at orders 1 and 2, [S] each."""
    solution = solved(model, backup)
    table = solution.q + size * noise
    first, second = ChainMeans(model, backup, table).orders()
    claim = np.where(model.terminal, 0.0, backup.value(table, np.arange(model.states)))
    return solution.values - claim, solution.values - first, solution.values - second


@pytest.mark.parametrize("discount", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_bias_is_linear_quadratic_cubic(discount: float, seed: int) -> None:
    model = garnet(seed, states=60, actions=4, discount=discount)
    noise = ranged(np.random.default_rng(seed).uniform(size=(60, 4)))
    wide, narrow = (
        [np.abs(errors).max() for errors in exact_errors(model, sp.LogSumExp(0.3), noise, size)]
        for size in (0.02, 0.005)
    )
    rates = np.log(np.divide(wide, narrow)) / math.log(4.0)
    np.testing.assert_allclose(rates[:2], [1.0, 2.0], atol=0.05)
    # At order 2 a term of fourth order adds, for values of the policy err by r²/(8η(1−γ)) themselves.
    assert 2.9 < rates[2] < 3.5


@pytest.mark.parametrize("discount", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("backup", [sp.LogSumExp(0.3), TRANSPORT])
@pytest.mark.parametrize("make", [garnet, ending])
def test_the_bias_keeps_to_its_bounds(
    discount: float, backup: SoftmaxMixture, make: Callable[..., sp.TabularModel]
) -> None:
    for seed in range(3):
        model = make(seed, discount=discount)
        noise = ranged(np.random.default_rng(seed).normal(size=(12, 3)))
        for size in (0.01, 0.1, 0.3, 1.0, 3.0):
            _, first, second = exact_errors(model, backup, noise, size)
            slack = 1e-7
            for order, errors in ((1, first), (2, second)):
                low, high = reference_bias(order, size, backup.temperature, discount)
                assert low - slack <= errors.min() <= errors.max() <= high + slack


def absorbing(discount: float, leaving: float) -> sp.TabularModel:
    """Of two actions one stays, the other may lead to where all is well for ever."""
    probabilities = [[[1.0, 0.0], [1.0 - leaving, leaving]], [[0.0, 1.0], [0.0, 1.0]]]
    successors = np.broadcast_to([0, 1], (2, 2, 2))
    return sp.TabularModel(probabilities, successors, np.zeros((2, 2)), discount=discount, reward_range=(0.0, 1.0))


@pytest.mark.parametrize(("discount", "size", "looseness"), [(0.5, 0.1, 4.0), (0.9, 0.1, 8.0), (0.99, 0.1, 20.0)])
def test_the_bounds_are_not_idle(discount: float, size: float, looseness: float) -> None:
    """Where errors are a matter of the region one is in, the bounds are nearly reached, and never passed."""
    nearest = {1: math.inf, 2: math.inf}
    for leaving, sign in product(np.linspace(0.005, 1.0, 40) ** 2, (1.0, -1.0)):
        noise = sign * np.array([[0.5, -0.5], [0.0, 0.0]])
        _, first, second = exact_errors(absorbing(discount, leaving), sp.LogSumExp(0.3), noise, size)
        for order, errors in ((1, first), (2, second)):
            low, high = reference_bias(order, size, 0.3, discount)
            assert low <= errors.min() + 1e-8
            assert errors.max() <= high + 1e-8
            nearest[order] = min(nearest[order], high / max(errors.max(), 1e-12), low / min(errors.min(), -1e-12))
    assert nearest[1] < 2.0
    assert nearest[2] < looseness


MEANS: list[tuple[sp.TabularModel, SoftmaxMixture, EngineName]] = [
    (garnet(discount=0.9), sp.LogSumExp(0.3), "auto"),
    (ending(), TRANSPORT, "auto"),
    (garnet(discount=0.5), sp.LogSumExp(0.3), "batched"),
    (ending(2, discount=0.5), TRANSPORT, "batched"),
]


@pytest.mark.parametrize("case", MEANS)
def test_sampled_means_are_the_exact_ones(case: tuple[sp.TabularModel, SoftmaxMixture, EngineName]) -> None:
    """Two comparisons in each of four cases, at 5.3 standard errors: one false alarm in a million runs."""
    model, backup, engine = case
    table = solved(model, backup).q + 0.5 * np.random.default_rng(0).normal(size=(12, 3))
    planner = ReferenceCruiser(backup, TabularReference(table), epsilon=1e-3, horizon=15, pairs=16)
    calls = 10_000_000 if engine == "auto" else 1_500_000
    found = diagnosed(sp.plan(planner, model, 0, max_calls=calls, engine=engine))
    first, second = ChainMeans(model, backup, table).orders(15, Problem.of(model, backup).middle)
    assert abs(found.order_1 - first[0]) < 5.3 * found.order_1_error
    assert found.order_2 is not None
    assert found.order_2_error is not None
    assert abs(found.order_2 - second[0]) < 5.3 * found.order_2_error
    assert abs(second[0] - first[0]) > 10.0 * found.order_2_error  # there is something to correct


# Intervals


def hostile(model: sp.TabularModel, backup: SoftmaxMixture, seed: int) -> Iterator[Floats]:
    """Tables that nobody should plan by."""
    rng = np.random.default_rng(seed)
    q = solved(model, backup).q
    yield rng.normal(size=q.shape)
    yield np.full(q.shape, 3.0)
    yield -q
    yield -1e6 * q + 1e6
    yield 1e6 * rng.normal(size=q.shape)
    yield (1e15 + rng.integers(2, size=q.shape)).astype(np.float64)
    yield 50.0 * q
    yield q + 0.1 * rng.normal(size=q.shape)


@dataclass
class Miss:
    """What a run's intervals fail to contain."""

    lower: bool
    interval: bool
    actions: bool
    policy: bool


def missed(planner: ReferenceCruiser, model: sp.TabularModel, **options: Any) -> Miss:
    """Compares a run with the exact solution, and with the exact value of the reference's policy."""
    backup, state = planner.backup, options.get("state", 0)
    assert planner.reference is not None
    assert is_mixture(backup)
    result = sp.plan(planner, model, **{"state": 0} | options)
    solution = solved(model, backup)
    problem = Problem.of(model, backup)
    gap = problem.action_gap if planner.error_range is not None else likely_gap(backup, problem)
    table = conditioned(planner.reference, gap, model.actions)(np.arange(model.states)).shifted
    policy = ChainMeans(model, backup, table).orders()[0][state]
    assert result.q_intervals is not None
    low, high = result.interval
    value, q, slack = solution.values[state], solution.q[state], 1e-8
    ends = diagnosed(result).policy_interval
    return Miss(
        lower=not low <= value + slack,
        interval=not low - slack <= value <= high + slack,
        actions=not (result.q_intervals[:, 0] <= q + slack).all() or not (q <= result.q_intervals[:, 1] + slack).all(),
        policy=not ends[0] - slack <= policy <= ends[1] + slack,
    )


def too_many(misses: list[Miss]) -> bool:
    """Whether any kind of interval fails more often than with probability `DELTA`. All four: `FALSE_ALARM`."""
    counts = np.array([[miss.lower, miss.interval, miss.actions, miss.policy] for miss in misses]).sum(axis=0)
    return bool((counts > binom.isf(FALSE_ALARM / 4.0, len(misses), DELTA)).any())


WORLDS: list[tuple[sp.TabularModel, SoftmaxMixture]] = [
    (sp.models.garnet(states=12, actions=3, branching=2, discount=0.8, seed=1, sparsity=0.8), sp.LogSumExp(1.0)),
    (garnet(discount=0.8), sp.LogSumExp(0.2)),
    (garnet(2, discount=0.6), sp.LogSumExp(2.0)),
    (garnet(3, discount=0.7), TRANSPORT),
    (ending(discount=0.8), sp.LogSumExp(0.5)),
    (ending(2, discount=0.7), TRANSPORT),
]


def hostile_misses(seeds: range, engine: EngineName = "auto", **options: Any) -> list[Miss]:
    misses = []
    for (model, backup), seed in product(WORLDS, seeds):
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
    monkeypatch.setattr(Cut, "at", classmethod(lambda cls, problem, horizon: cls(horizon, 0.0, 0.0, 0.0)))
    assert too_many(hostile_misses(range(2, 3), horizon=2))


def test_what_is_booked_for_a_cut_is_enough() -> None:
    """Exact means of chains that are cut off, beside the policy's value and the optimal one."""
    furthest = 0.0
    for (model, backup), horizon in product(WORLDS, (1, 2, 5)):
        problem = Problem.of(model, backup)
        cut = Cut.at(problem, horizon)
        best = solved(model, backup).values
        for table in hostile(model, backup, 0):
            at = conditioned(TabularReference(table), likely_gap(backup, problem), model.actions)
            exact = ChainMeans(model, backup, at(np.arange(model.states)).shifted)
            policy = exact.orders()[0]
            means = exact.orders(horizon, problem.middle)[0]
            missing = np.where(model.terminal, 0.0, policy - means)
            assert -cut.below - 1e-9 <= missing.min() <= missing.max() <= cut.above + 1e-9
            assert ((best - means)[~model.terminal] >= -cut.optimal - 1e-9).all()
            furthest = max(furthest, -missing.min() / cut.optimal)
    assert furthest > 1.2  # a policy may be worth less than any optimal value


def declared_worlds() -> list[tuple[sp.TabularModel, SoftmaxMixture]]:
    """The worlds with the narrowest range of ordinary values declared."""
    return [(common.declaring(model, value_range=common.ordinary_values(model)), backup) for model, backup in WORLDS]


def test_what_is_booked_for_a_cut_is_enough_with_declared_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chains' policy may be worth less than the declared range of optimal values allows."""
    monkeypatch.setattr(sys.modules[__name__], "WORLDS", declared_worlds())
    test_what_is_booked_for_a_cut_is_enough()
    monkeypatch.setattr(Problem, "policy_values", property(lambda problem: problem.values))
    with pytest.raises(AssertionError):
        test_what_is_booked_for_a_cut_is_enough()


def test_intervals_hold_with_declared_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """96 runs."""
    monkeypatch.setattr(sys.modules[__name__], "WORLDS", declared_worlds())
    assert not too_many(hostile_misses(range(1, 2)))
    assert not too_many(hostile_misses(range(1, 2), horizon=2))


def test_the_support_of_a_chain_is_that_of_its_rewards() -> None:
    """Tickets of a lottery: every optimal value is 0, and a chain of tickets is worth −1 or 90 at every step."""
    outcomes = [[[(1.0, 0, 0.0, False)], [(0.01, 0, 90.0, False), (0.99, 0, -1.0, False)]]]
    lottery = sp.TabularModel.from_outcomes(outcomes, discount=0.9, value_range=(0.0, 0.0))
    assert lottery.reward_kind == "bounded"
    backup, horizon = sp.LogSumExp(0.01), 20
    problem = Problem.of(lottery, backup)
    assert problem.values == pytest.approx((0.0, 0.0), abs=0.07)
    tempted = TabularReference(np.array([[0.0, 5.0]]))
    planner = ReferenceCruiser(backup, tempted, order=1, epsilon=0.1, delta=DELTA, horizon=horizon)
    samples = begun(planner, lottery).sampling
    low, high = samples.value.sequence.low, samples.value.sequence.high
    lone = [samples.engine.values(Oracle(lottery, 0, chunk), 0, 1, horizon).total for chunk in range(200)]
    assert low <= min(lone) < problem.values[0] - 8.0
    assert problem.values[1] + 8.0 < max(lone) <= high
    result = sp.plan(planner, lottery, max_calls=20_000)
    assert result.interval[0] <= 0.0 <= result.interval[1]
    worth = -0.09 / (1.0 - 0.9)
    ends = diagnosed(result).policy_interval
    assert ends[0] <= worth <= ends[1]
    assert worth < problem.values[0]


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
        assert low <= backup.value(q[state]) <= high == sp.curvature.value_interval(model, backup)[1]


@pytest.mark.parametrize("order", [1, 2])
def test_a_known_error_range_certifies(order: int) -> None:
    model, backup = garnet(discount=0.8), sp.LogSumExp(1.0)
    reference = known_error(model, backup, 0.2, 0, adversarial=False)
    planner = ReferenceCruiser(backup, reference, order=order, epsilon=0.2, delta=1e-6, error_range=0.2)
    result = sp.plan(planner, model, 0)
    assert result.status == "converged"
    assert diagnosed(result).certified
    assert max(result.interval[1] - result.value, result.value - result.interval[0]) <= 0.2 * (1.0 + 1e-8)
    assert abs(result.value - solved(model, backup).values[0]) <= 0.2


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99, 0.9999])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("error_range", [None, 0.1])
def test_the_default_horizon_costs_a_small_part_of_epsilon(
    discount: float, order: int, error_range: float | None
) -> None:
    """And is about the shortest that does."""
    model, backup = garnet(discount=discount), sp.LogSumExp(0.3)
    problem = Problem.of(model, backup)
    planner = ReferenceCruiser(backup, epsilon=0.2, order=order, error_range=error_range)
    cut = Cut.of(planner, problem)
    assert cut.optimal <= CUT_SHARE * 0.2
    assert discount == 0.0 or cut.horizon >= math.log(0.01 * 2.0 / problem.width) / math.log(discount) - 1e-9
    if order == 2 and error_range is not None:
        tail = cut.below + cut.above
        wide, narrow = (reference_bias(2, error_range, 0.3, discount, end) for end in (tail, 0.0))
        assert max(narrow[0] - wide[0], wide[1] - narrow[1]) <= 2.0 * CUT_SHARE * 0.2


# Supports


def line(terminates: bool = True) -> sp.VectorModel:
    """A point on a line with two actions, which may fall off its left end."""

    def step(states: States, actions: Any, rng: Any) -> tuple[Any, Any, Any]:
        moved = states + 0.2 * (2.0 * actions - 1.0)[:, None] + 0.1 * rng.random(len(states))[:, None]
        moved = np.minimum(moved, 1.0)
        ends = moved[:, 0] < -0.5
        if not terminates:
            moved, ends = np.maximum(moved, -0.5), np.zeros(len(moved), dtype=np.bool_)
        return moved, np.where(moved[:, 0] > 0.0, 0.5, -1.0), ends

    declared: dict[str, Any] = {"reward_range": (-1.0, 0.5), "terminates": terminates, "initial_state": np.zeros(1)}
    return sp.VectorModel(step, actions=2, discount=0.8, **declared)


def signs(states: States) -> Floats:
    """A reference of any size that changes its mind."""
    flat = np.asarray(states, dtype=np.float64).reshape(len(states), -1).sum(axis=1)
    return np.stack([np.sin(50.0 * flat), np.cos(70.0 * flat)], axis=1)


def test_samples_lie_in_the_supports() -> None:
    """Chains, returns and corrections one by one, around references of all sizes. No false alarms."""
    cart = sp.models.cart_pole(discount=0.8)
    box = GridReference.build(cart, sp.LogSumExp(0.3), low=-CORNER, high=CORNER, cells=2)
    transport = sp.OptimalTransport(cost=line_cost(2), tau=2.0, lam=0.2)
    worlds: list[tuple[GenerativeModel, Any]] = [
        (ending(actions=2), 0),
        (garnet(actions=2, discount=0.9), 0),
        (line(), np.zeros(1)),
        (line(terminates=False), np.zeros(1)),
        (cart, cart.initial_state),
    ]
    seen = set()
    for (model, state), size, horizon in product(worlds, (0.0, 1.0, 1e6), (1, 9)):
        reference: Reference = CriticReference(lambda states, size=size: size * signs(states))  # type: ignore[misc]
        if model is cart:
            box.grid = box.grid._replace(table=size * signs(np.arange(box.nodes)))
            reference = box
        for backup in (sp.LogSumExp(0.3), transport):
            problem = Problem.of(model, backup)
            planner = ReferenceCruiser(backup, reference, epsilon=0.1, horizon=horizon, pairs=2)
            samples = begun(planner, model, state).sampling
            chains = samples.engine
            seen.add(type(chains))
            low, high = support(problem, samples._advantages, horizon)
            if isinstance(chains, BatchedChains):  # also those of actions that are too unlikely to be drawn
                points = np.linspace(-0.5, 1.0, 50)[:, None]
                q = np.asarray(chains.reference(points))
                ends = backup.value(q)[:, None] - q
                assert samples._advantages[0] <= ends.min() <= ends.max() <= samples._advantages[1] + 1e-9
            assert samples.correction is not None
            least, most = samples.correction.sequence.low, samples.correction.sequence.high
            slack = 1e-9 * max(1.0, high - low)
            for chunk in range(6):
                oracle = Oracle(model, 7, chunk)
                for sample in (
                    chains.values(oracle, state, 1, horizon).total,
                    chains.returns(oracle, state, chunk % 2, 1, horizon).total,
                ):
                    assert low - slack <= sample <= high + slack
                corrected = chains.corrections(oracle, state, 1, 2, horizon).total
                assert least - slack <= corrected <= most + slack
    assert seen == {TableChains, BatchedChains, JittedChains}


@pytest.mark.parametrize("horizon", [1, 2])
def test_supports_are_nearly_attained(horizon: int) -> None:
    """Fair coins for rewards, and hardly any regulariser: samples come within 5 % of all ends. The seed is fixed."""
    coin = [(0.5, 0, 0.0, False), (0.5, 0, 1.0, False)]
    model = sp.TabularModel.from_outcomes([[coin, coin]], discount=0.5)
    planner = ReferenceCruiser(
        sp.LogSumExp(0.01), TabularReference([[0.0, 0.0]]), epsilon=0.1, horizon=horizon, pairs=2
    )
    samples = begun(planner, model).sampling
    oracle = Oracle(model, 0)
    assert samples.correction is not None
    chains = [samples.engine.values(oracle, 0, 1, horizon).total for _ in range(200)]
    corrections = [samples.engine.corrections(oracle, 0, 1, 2, horizon).total for _ in range(5000)]
    for sequence, drawn in ((samples.value.sequence, chains), (samples.correction.sequence, corrections)):
        near = 0.05 * (sequence.high - sequence.low)
        assert sequence.low <= min(drawn) <= sequence.low + near
        assert sequence.high - near <= max(drawn) <= sequence.high


def test_a_chain_that_ends_has_no_tail() -> None:
    """It is worth nothing, or all of a debt that is not collected: both are in the support."""
    for sign in (1.0, -1.0):
        ends = sorted((0.0, sign))
        model = sp.TabularModel.from_outcomes(
            [[[(1.0, 0, 0.0, False)], [(1.0, 0, 0.0, True)]]], discount=0.9, reward_range=(ends[0], ends[1])
        )
        planner = ReferenceCruiser(sp.LogSumExp(0.01), TabularReference([[0.0, 0.0]]), epsilon=0.1, horizon=1, order=1)
        samples = begun(planner, model).sampling
        for action, worth in ((0, 0.9 * Problem.of(model, planner.backup).middle), (1, 0.0)):
            assert samples.engine.returns(Oracle(model, 0), 0, action, 1, 1).total == pytest.approx(worth)
            assert samples.value.sequence.low <= worth <= samples.value.sequence.high


def test_what_is_common_to_all_actions_does_not_matter() -> None:
    """Not even where rounding would swallow the rest."""
    model, backup = garnet(), sp.LogSumExp(0.3)
    table = np.random.default_rng(0).integers(8, size=(12, 3)) / 8.0
    values = [
        sp.plan(ReferenceCruiser(backup, TabularReference(table + shift), epsilon=0.1), model, 0, engine=engine).value
        for shift in (0.0, 2.0**49)
        for engine in ("auto", "batched")
    ]
    assert values[0] == values[2]
    assert values[1] == values[3]


def test_conditioning_does_not_widen_the_error() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        q, reference = rng.uniform(0.0, 2.0, size=(1, 4)), 3.0 * rng.normal(size=(1, 4))
        gap = float(np.ptp(q)) + rng.exponential()
        after = conditioned(TabularReference(reference), gap, 4)(np.array([0])).shifted
        assert np.ptp(after - q) <= np.ptp(reference - q) + 1e-12


def test_a_reference_of_known_error_is_not_clamped_where_actions_may_be_that_far_apart() -> None:
    """An action that is worth as much less as any can be: with an error range, chains follow the reference as it is."""
    model = sp.TabularModel(np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=int), [[0.0, 1.0]], discount=0.0)
    backup, exact, here = sp.LogSumExp(0.01), TabularReference([[0.0, 1.0]]), np.array([0])
    problem = Problem.of(model, backup)
    assert likely_gap(backup, problem) < 0.5 < problem.action_gap == 1.0
    table, _ = chains_for(root_of(model), backup, exact, problem, bounded=True)
    batched, _ = chains_for(root_of(model, engine="batched"), backup, exact, problem, bounded=True)
    assert isinstance(table, TableChains)
    assert isinstance(batched, BatchedChains)
    assert table.table.tolist() == np.asarray(batched.reference(here)).tolist() == [[-1.0, 0.0]]


@pytest.mark.parametrize("backup", [sp.LogSumExp(0.05), replace(TRANSPORT, lam=0.05)])
def test_unlikely_actions_are_told_apart_as_far_as_it_matters(backup: SoftmaxMixture) -> None:
    problem = Problem.of(garnet(discount=0.95), backup)
    gap = likely_gap(backup, problem)
    assert gap < problem.action_gap
    table = np.array([[0.0, -0.5, -15.0], [-15.0, 0.0, -15.0]])
    after = conditioned(TabularReference(table), gap, 3)(np.arange(2)).shifted
    np.testing.assert_allclose(backup.policy(after), backup.policy(table), atol=1e-12)
    assert after.min() == -gap


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

    monkeypatch.setattr("smoothplan.running.work.Oracle", Counted)
    values = sp.curvature.value_interval(model, planner.backup)
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


@pytest.mark.parametrize("where", ["sample", "improve"])
def test_an_interrupt_leaves_a_valid_result(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, backup = sp.models.frozen_lake(), sp.LogSumExp(0.05)
    reference = SharedReference(model, backup)
    planner = ReferenceCruiser(backup, reference, epsilon=0.05, delta=1e-6, improve=True)
    owner, name, allowed = (TableChains, "corrections", 1) if where == "sample" else (SharedReference, "improve", 2)
    original, calls = getattr(owner, name), 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        result = original(*arguments)
        if calls > allowed:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, interrupted)
    result = sp.plan(planner, model, 0)
    assert result.status == "interrupted"
    assert result.interval[0] <= solved(model, backup).values[0] <= result.interval[1]
    assert result.calls >= reference.calls > 0
    assert "Infinity" not in result.to_json()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("actions", [1, 2])
@pytest.mark.parametrize("discount", [0.0, 0.6])
@pytest.mark.parametrize("error_range", [None, 0.0])
def test_runs_without_noise_end(order: int, actions: int, discount: float, error_range: float | None) -> None:
    """One action, no future, rewards that are always the same. With δ = 1e-9 all intervals hold."""
    model = sp.models.garnet(states=5, actions=actions, branching=1, discount=discount, seed=0)
    backup = sp.LogSumExp(0.3)
    reference = TabularReference.from_solution(solved(model, backup))
    planner = ReferenceCruiser(backup, reference, order=order, epsilon=0.3, delta=1e-9, error_range=error_range)
    result = sp.plan(planner, model, 0)
    assert result.status == "converged"
    assert abs(result.value - solved(model, backup).values[0]) <= 0.3


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("options", [{"horizon": 1}, {"error_range": 3.0}, {"error_range": 3.0, "horizon": 1}])
def test_what_is_out_of_reach_is_not_run_after_for_ever(order: int, options: dict[str, Any]) -> None:
    model, backup = garnet(discount=0.9), sp.LogSumExp(0.3)
    reference = TabularReference.from_solution(solved(model, backup))
    result = sp.plan(ReferenceCruiser(backup, reference, order=order, epsilon=0.3, **options), model, 0)
    assert result.status == "completed"


def test_a_pilot_that_takes_all_the_calls_is_not_wasted() -> None:
    model, backup = garnet(discount=0.9), sp.LogSumExp(0.3)
    table = TabularReference(solved(model, backup).q + 0.3 * np.random.default_rng(0).normal(size=(12, 3)))
    result = sp.plan(ReferenceCruiser(backup, table, epsilon=0.01), model, 0, max_calls=150_000)
    found = diagnosed(result)
    assert found.order_2 is not None
    assert found.order_2 != found.order_1
    assert found.order_2_error is not None
    assert found.order_2_error < 2.0


# References that are made and improved


def policy_value(model: sp.TabularModel, backup: SoftmaxMixture, reference: Reference) -> float:
    """The exact value of ∇F(Q̂) at the initial state."""
    policy = backup.policy(reference.q(np.arange(model.states)), np.arange(model.states))
    return float(sp.exact.evaluate(model, policy, backup).values[0])


def test_a_poor_reference_learns() -> None:
    """Exact values of the policies before and after; what the run saw of them, to six standard errors and the cut."""
    backup = sp.LogSumExp(0.001)
    for name in ("4x4", "8x8"):
        model = sp.models.frozen_lake(name)
        solution = solved(model, backup)
        for seed in range(3):
            reference = SharedReference(model, backup, seed=seed)
            poor = policy_value(model, backup, reference)
            planner = ReferenceCruiser(backup, reference, epsilon=0.02, improve=True)
            result = sp.plan(planner, model, seed=seed, max_calls=2_000_000)
            good = policy_value(model, backup, reference)
            assert poor < 0.4 * solution.values[0]
            assert good > 0.95 * solution.values[0]
            assert solution.q[0, result.action] > 0.95 * solution.values[0]
            found = diagnosed(result)
            lessons = found.learning
            assert len(lessons) == IMPROVEMENTS
            assert all(before.calls < after.calls for before, after in pairwise(lessons))
            assert lessons[-1].calls < result.calls <= 2_000_000
            assert abs(lessons[-1].value - good) < 6.0 * lessons[-1].error + found.truncation
            assert lessons[-1].value > poor + 2.0 * lessons[-1].error  # it rises


@pytest.mark.parametrize("made", [True, False])
def test_no_sample_of_an_interval_draws_what_something_else_has_drawn(
    made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References draw from chunk 0, and every chunk of chains, trials included, from a stream of its own."""
    model, backup, drawn = garnet(), sp.LogSumExp(0.3), list[int]()

    class Watched(Oracle):
        def __init__(self, model: GenerativeModel, seed: int, chunk: int = 0) -> None:
            super().__init__(model, seed, chunk)
            drawn.append(chunk)

    monkeypatch.setattr("smoothplan.running.work.Oracle", Watched)
    reference = None if made else SharedReference(model, backup)
    planner = ReferenceCruiser(backup, reference, epsilon=0.2, improve=True)
    result = sp.plan(planner, model, 0, max_calls=300_000)
    assert len(diagnosed(result).learning) > 0
    assert result.samples > 0
    assert 0 not in drawn
    assert len(drawn) == len(set(drawn)) > 8


def test_a_reference_is_made_from_where_one_plans() -> None:
    run = begun(ReferenceCruiser(sp.LogSumExp(0.3), epsilon=0.5), garnet(states=40), 7)
    run.go(Workers(), Silent())
    reference = run.preparation.reference
    assert isinstance(reference, SharedReference)
    assert reference.explorer.number(np.int64(7)) == 0


class Greedy(TabularReference):
    """Makes more calls than it may."""

    calls = 0

    def improve(self, calls: int) -> None:
        """Makes one call too many."""
        self.calls += calls + 1


@pytest.mark.parametrize("order", [1, 2])
def test_a_limit_on_calls_is_hard_whatever_improves(order: int) -> None:
    """Chains of 1,500 steps, so that looks at the policy between improvements are dear."""
    model, backup = garnet(states=200, actions=4, discount=0.99), sp.LogSumExp(1.0)
    for limit in (0, 10, 3_000, 100_000):
        reference = SharedReference(model, backup)
        planner = ReferenceCruiser(backup, reference, order=order, epsilon=0.5, improve=True)
        result = sp.plan(planner, model, 0, max_calls=limit)
        assert reference.calls <= result.calls <= limit
    assert result.samples > 0
    assert 20_000 < reference.calls < 50_000
    with pytest.raises(ValueError, match=r"reference\.improve\(\d+\) must not make more than"):
        sp.plan(replace(planner, reference=Greedy(np.zeros((200, 4)))), model, 0, max_calls=100_000)


@pytest.mark.parametrize("given", [False, True])
def test_calls_are_exact_where_time_ends_the_preparation(given: bool) -> None:
    table = garnet(discount=0.99)
    counter, steps = common.Counter(table), 0

    def slow(states: States, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        nonlocal steps
        steps += 1
        time.sleep(1e-3)
        return counter(states, actions, rng)

    model, backup = common.vectorised(table, slow), sp.LogSumExp(1.0)
    sp.plan(ReferenceCruiser(backup, epsilon=0.1), common.vectorised(table), max_calls=200)  # compiles
    planner = ReferenceCruiser(backup, SharedReference(model, backup) if given else None, epsilon=0.1, improve=given)
    result = sp.plan(planner, model, max_seconds=0.3)
    assert (result.status, result.samples) == ("max_seconds", 0)
    assert result.calls == counter.calls > 10
    assert steps <= 301  # a given reference stops at the limit, too


def test_a_reference_that_is_not_made_is_missed_aloud() -> None:
    model, planner = sp.models.mountain_car(discount=0.9), ReferenceCruiser(sp.LogSumExp(0.1), epsilon=0.5)
    found = diagnosed(sp.plan(planner, model, max_calls=1))
    (warning,) = found.warnings
    reason = "max_calls=1 leaves no calls for it"
    assert warning == f"no reference was made, so that this is about a uniformly random policy: {reason}"
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


def test_a_grid_that_costs_too_much_is_not_made() -> None:
    model, backup = sp.models.mountain_car(discount=0.9), sp.LogSumExp(0.1)
    for limit in (1_000, 100_000, 400_000):
        result = sp.plan(ReferenceCruiser(backup, epsilon=0.5, order=1, improve=True), model, max_calls=limit)
        assert 0 < result.calls <= limit


def test_cart_pole() -> None:
    model, backup = sp.models.cart_pole(), sp.LogSumExp(0.01)
    reference = GridReference.build(model, backup)
    run = begun(ReferenceCruiser(backup, reference, epsilon=1.0), model, model.initial_state)
    assert isinstance(run.sampling.engine, JittedChains)
    result = sp.plan(ReferenceCruiser(backup, reference, epsilon=1.0), model, max_calls=3_000_000)
    assert result.calls <= 3_000_000
    assert diagnosed(result).order_1 > 80.0
    assert diagnosed(result).order_1_error < 2.0
    assert 0.0 <= result.interval[0] <= result.value <= result.interval[1]


def test_grids_that_compiled_chains_do_not_know_are_batched() -> None:
    model = sp.models.cart_pole()
    backup = sp.OptimalTransport(
        cost=line_cost(2), tau=1.0, lam=0.1, reference=lambda states: np.full((len(states), 2), 0.5)
    )
    for choice, periodic in ((backup, ()), (sp.LogSumExp(0.1), (2,))):
        reference = GridReference.build(model, choice, low=-CORNER, high=CORNER, cells=2, periodic=periodic)
        run = begun(ReferenceCruiser(choice, reference, epsilon=1.0), model, model.initial_state)
        assert isinstance(run.sampling.engine, BatchedChains)
        with pytest.raises(ValueError, match="engine 'compiled' needs"):
            chains_for(root_of(model, model.initial_state, "compiled"), choice, reference, Problem.of(model, choice))


# What users see


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": 3}, ValueError, "order must be at most 2, got 3"),
        ({"horizon": 0}, ValueError, "horizon must be at least 1, got 0"),
        ({"horizon": 2.5}, TypeError, "horizon must be a whole number, got 2.5"),
        ({"pairs": 1}, ValueError, "pairs must be at least 2, got 1"),
        ({"error_range": -1.0}, ValueError, "error_range must be at least 0, got -1.0"),
        ({"improve": 1}, TypeError, "improve must be true or false, got 1"),
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
    reference = TabularReference(solved(model, backup).q + 0.4 * np.random.default_rng(0).normal(size=(12, 3)))
    for order in (1, 2):
        found = diagnosed(sp.plan(ReferenceCruiser(backup, reference, order=order, epsilon=0.1), model, 0))
        words = found.summary()
        assert words.startswith("the reference claims ")
        assert "; its policy is worth " in words
        assert ("quadratic correction" in words) == (order == 2)
        assert found.reference == pytest.approx(float(backup.value(reference.q(np.array([0])))[0]))


def test_before_any_sample_the_reference_recommends() -> None:
    model = garnet()
    solution = sp.exact.solve(model, sp.LogSumExp(0.3))
    for best in range(3):
        q = solution.q.copy()
        q[0] = np.where(np.arange(3) == best, 1.5, 1.0)
        result = sp.plan(ReferenceCruiser(sp.LogSumExp(0.3), TabularReference(q), epsilon=0.1), model, 0, max_calls=0)
        assert (result.action, result.calls) == (best, 0)
        assert result.q == pytest.approx(q[0])
