"""References: the interface, exactness where it can be had, and what a grid is good for."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan import exact
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import HardMax, LogSumExp, OptimalTransport, SoftmaxMixture, line_cost
from smoothplan.engines.kernels import softmaxes
from smoothplan.models.base import GenerativeModel, Oracle, States
from smoothplan.references import (
    CriticReference,
    FittedReference,
    GridReference,
    Reference,
    SharedReference,
    TabularReference,
    default_reference,
    shared,
)
from smoothplan.references.iteration import Chances, iterate
from smoothplan.search.graph import Rules
from smoothplan.search.rules import rules_of
from tests.common import ending, vectorised

BACKUPS: list[SoftmaxMixture] = [
    HardMax(),
    LogSumExp(0.3),
    OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.25, reference=[0.5, 0.3, 0.2]),
]


def simulated(step: Callable[..., tuple[Any, ...]], **declared: Any) -> sp.VectorModel:
    """A simulator of one number, with one action and one successor, unless other things are declared."""
    usual: dict[str, Any] = {"actions": 1, "discount": 0.5, "reward_range": (0, 1), "initial_state": [0.0]}
    return sp.VectorModel(step, **usual | {"max_successors": 1, "terminates": False} | declared)


def line(initial_state: Any = (0.0,)) -> sp.VectorModel:
    """Steps of ±0.25 on a line, where the reward is the place; nothing ends."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        return np.clip(states + 0.25 * (2 * actions[:, None] - 1), -1.0, 1.0), states[:, 0]

    declared: dict[str, Any] = {"reward_range": (-1, 1), "reward_kind": "deterministic"}
    return simulated(step, actions=2, discount=0.9, initial_state=initial_state, **declared)


def greedy_steps(model: GenerativeModel, reference: Reference, most: int) -> int:
    """Steps that the greedy policy makes from the initial state before an episode ends."""
    oracle = Oracle(model, seed=0)
    state = np.asarray(model.initial_state)[None]
    for step in range(most):
        transition = oracle.sample(state, reference.q(state).argmax(axis=1))
        if transition.terminals[0]:
            return step
        state = transition.next_states
    return most


# The interface.


def test_a_critic_is_any_function() -> None:
    reference = CriticReference(lambda states: states @ np.ones((2, 3)))
    np.testing.assert_array_equal(reference.q(np.array([[1.0, 2.0]])), [[3.0, 3.0, 3.0]])
    assert reference.q(np.zeros((0, 2))).shape == (0, 3)


def test_a_table_is_what_was_given() -> None:
    solution = exact.solve(sp.models.garnet(states=6, actions=2, branching=2, discount=0.5, seed=1), HardMax())
    reference = TabularReference.from_solution(solution)
    np.testing.assert_array_equal(reference.q(np.array([4, 0])), solution.q[[4, 0]])
    assert not reference.table.flags.writeable


# Value iteration.


@pytest.mark.parametrize("backup", BACKUPS)
@pytest.mark.parametrize("model", [sp.models.garnet(states=30, actions=3, discount=0.9, seed=3), ending(3, 0.9, 3)])
def test_value_iteration_agrees_with_the_exact_solver(backup: SoftmaxMixture, model: sp.TabularModel) -> None:
    width = model.probabilities.shape[2]
    chances = Chances(
        rewards=np.where(model.terminal[:, None], 0.0, model.expected_rewards).reshape(-1),
        chances=np.where(model.terminal[:, None, None], 0.0, model.continuation).reshape(-1, width),
        successors=model.successors.reshape(-1, width),
        rows=np.arange(model.states),
        discount=0.9,
        soft=softmaxes(backup, 3, model.states),
    )
    q, values = np.zeros((model.states, 3)), np.zeros(model.states)
    iterate(chances, q, values, 1e-7)
    # A state that ends is worth F(0) to the iteration, and nobody looks.
    solution = exact.solve(model, backup, 1e-9)
    np.testing.assert_allclose(q[~model.terminal], solution.q[~model.terminal], atol=1e-7)
    assert iterate(chances, q, values, 1e-7) == 1


# Grids.


PLACES = np.linspace(-1.0, 1.0, 9)


def prior(states: Any) -> Floats:
    return np.stack([0.5 + 0.4 * states[:, 0], 0.5 - 0.4 * states[:, 0]], axis=1)


BY_PLACE = OptimalTransport(cost=[[0, 1], [1, 0]], tau=0.5, lam=0.2, reference=prior)


@pytest.mark.parametrize(
    ("backup", "at_places"),
    [
        (HardMax(), HardMax()),
        (LogSumExp(0.2), LogSumExp(0.2)),
        (BY_PLACE, replace(BY_PLACE, reference=prior(PLACES[:, None]))),
    ],
)
def test_a_grid_is_exact_where_states_stay_on_its_nodes(backup: SoftmaxMixture, at_places: SoftmaxMixture) -> None:
    """Steps of two cells: the aggregated model is the model itself, at nine places."""
    reference = GridReference.build(line(), backup, low=[-1.0], high=[1.0], cells=16)
    successors = np.clip(np.arange(9)[:, None] + [-1, 1], 0, 8)[..., None]
    table = sp.TabularModel(np.ones((9, 2, 1)), successors, np.repeat(PLACES[:, None], 2, axis=1), discount=0.9)
    np.testing.assert_allclose(reference.q(PLACES[:, None]), exact.solve(table, at_places).q, atol=2e-3)
    assert reference.calls == 2 * 17


def test_a_grid_is_exact_where_values_are_linear() -> None:
    """Drift towards 0 by a factor: V(x) = x/(1 − 0.5·0.8), whatever the action and the cells."""
    model = simulated(
        lambda s, a, rng: (0.8 * s, s.sum(axis=1)), actions=2, reward_range=(-2, 2), initial_state=[0.0, 0]
    )
    reference = GridReference.build(model, HardMax(), low=[-1.0, -1.0], high=[1.0, 1.0], cells=[1, 7])
    points = np.random.default_rng(0).uniform(-1.0, 1.0, (50, 2))
    np.testing.assert_allclose(reference.q(points)[:, 0], points.sum(axis=1) / (1.0 - 0.5 * 0.8), atol=1e-3)


def test_a_grid_averages_random_successors() -> None:
    model = simulated(
        lambda s, a, rng: (rng.choice([-1.0, 1.0], size=s.shape), (s[:, 0] > 0).astype(float)), max_successors=None
    )
    reference = GridReference.build(model, HardMax(), low=[-1.0], high=[1.0], cells=1, samples=4000)
    # V = r + 1/2 · (1/2): a half is within 6 standard deviations of 0.5/√4000 of every mean.
    np.testing.assert_allclose(reference.q(np.array([[-1.0], [1.0]]))[:, 0], [0.5, 1.5], atol=6 * 0.5 / 4000**0.5)


def test_the_end_of_an_episode_is_worth_nothing() -> None:
    model = simulated(lambda s, a, rng: (s + 0.5, np.ones(len(s)), s[:, 0] >= 0.5), discount=0.9, terminates=True)
    reference = GridReference.build(model, HardMax(), low=[0.0], high=[1.0], cells=2)
    np.testing.assert_allclose(reference.q(np.array([[0.0], [0.5], [1.0], [7.0]]))[:, 0], [1.9, 1, 1, 1], atol=1e-3)


def test_a_periodic_axis_closes() -> None:
    """A turn of a quarter: only the place 0 = 1 pays."""
    model = simulated(lambda s, a, rng: (s + 0.25, (np.abs(s[:, 0] % 1.0) < 1e-9).astype(float)))
    reference = GridReference.build(model, HardMax(), low=[0.0], high=[1.0], cells=4, periodic=[0])
    found = reference.q(np.array([[0.0], [1.0], [0.75], [-0.25], [0.5]]))[:, 0]
    np.testing.assert_allclose(found, np.array([1.0, 1.0, 1 / 2, 1 / 2, 1 / 4]) / (1.0 - 0.5**4), atol=1e-3)


def test_an_axis_along_which_nothing_moves_has_a_width() -> None:
    start = np.zeros(2, dtype=np.float32)
    model = simulated(lambda s, a, rng: (s + np.array([1.0, 0.0], np.float32), np.zeros(len(s))), initial_state=start)
    reference = GridReference.build(model, HardMax(), cells=4)
    np.testing.assert_allclose([reference.grid.low[1], reference.grid.high[1]], [-0.0005, 0.0005])
    assert reference.q(np.zeros((2, 2), dtype=np.float32)).shape == (2, 1)


def test_a_grid_balances_a_pole() -> None:
    model = sp.models.cart_pole()
    reference = GridReference.build(model, LogSumExp(0.1), seed=1)
    assert greedy_steps(model, reference, 300) >= 200
    assert reference.nodes == 11**4
    assert (reference.grid.low < 0.0).all()
    assert (reference.grid.high > 0.0).all()
    assert reference.calls < 250_000


def test_a_grid_finds_the_top_of_the_hill_and_improves() -> None:
    model = sp.models.mountain_car()
    reference = GridReference.build(model, HardMax(), cells=40, seed=1)
    assert greedy_steps(model, reference, 400) < 160
    before, nodes = reference.calls, reference.nodes
    reference.improve(60_000)
    assert reference.nodes > 2 * nodes
    assert 30_000 < reference.calls - before <= 60_000
    assert greedy_steps(model, reference, 400) < 130


def test_more_calls_mean_more_samples_where_successors_are_random() -> None:
    model = simulated(
        lambda s, a, rng: (np.clip(s + rng.normal(size=s.shape), -2, 2), np.ones(len(s))), max_successors=None
    )
    reference = GridReference.build(model, HardMax(), cells=10, samples=2)
    reference.improve(3000)
    assert reference.samples > 4
    assert reference.nodes > 11


def test_a_grid_depends_on_its_seed_only() -> None:
    model = sp.models.mountain_car()
    first, second, third = (GridReference.build(model, HardMax(), cells=10, seed=seed) for seed in (1, 1, 2))
    for one, other in zip(first.grid, second.grid, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(first.grid.low, third.grid.low)


# Shared references.

RUNS = 200
FALSE_ALARM = 1e-6


def small(seed: int = 0, branching: int = 2) -> sp.TabularModel:
    return sp.models.garnet(states=5, actions=3, branching=branching, discount=0.6, seed=seed, reward_kind="bernoulli")


@pytest.mark.parametrize("backup", BACKUPS)
@pytest.mark.parametrize("with_table", [True, False])
def test_a_shared_reference_converges(backup: SoftmaxMixture, with_table: bool) -> None:
    """Every pair gets a fair share n of the calls, and errs by 6 standard deviations of at most 1/√n, at worst."""
    table = small(seed=4, branching=4)
    model: GenerativeModel = table if with_table else vectorised(table)
    reference = SharedReference(model, backup, seed=2)
    truth = exact.solve(table, backup).q
    for calls in (300, 3000, 30_000):
        reference.improve(calls - reference.calls)
        assert reference.calls == calls
        worst = np.abs(reference.q(np.arange(5)) - truth).max()
        # The error of a model grows by 1/(1 − γ).
        assert worst <= 6.0 * np.sqrt(15 / calls) / (1.0 - 0.6)
    assert worst < 0.1
    assert reference.states == 5


def test_a_state_dependent_backup_is_shared() -> None:
    table = small(seed=4, branching=4)
    prior = np.random.default_rng(0).dirichlet(np.ones(3), size=5)
    by_table = OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.2, reference=prior)
    by_function = OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.2, reference=lambda states: prior[states])
    truth = exact.solve(table, by_table).q
    for model, backup in ((table, by_table), (vectorised(table), by_function)):
        reference = SharedReference(model, backup, seed=2)
        reference.improve(20_000)
        np.testing.assert_allclose(reference.q(np.arange(5)), truth, atol=0.1)


def _failures(delta: float) -> int:
    """Runs in which some bound on the error, of some state at some time, does not hold."""
    backup, failures = LogSumExp(0.2), 0
    for seed in range(RUNS):
        table = small(seed)
        reference = SharedReference(table, backup, delta=delta, seed=seed)
        truth = exact.solve(table, backup, 1e-6).q
        failed = False
        for calls in (10, 40, 200):
            reference.improve(calls)
            bound = reference.error_range(np.arange(5))  # of what `q` returns from now on
            failed |= bool((np.ptp(reference.q(np.arange(5)) - truth, axis=1) > bound + 1e-5).any())
        failures += failed
    return failures


@pytest.mark.parametrize("actions", [1, 2, 4])
def test_the_bound_on_the_error_is_attained(actions: int) -> None:
    """The range of Q̂ − Q is convex in Q, so that it is largest in a corner of the intervals."""
    rng = np.random.default_rng(actions)
    low, high = np.sort(rng.normal(size=(2, 200, actions)), axis=0)
    q = np.clip(rng.normal(size=(200, actions)), low, high)
    corners = [np.where(corner, low, high) for corner in product([False, True], repeat=actions)]
    largest = np.max([np.ptp(q - truth, axis=1) for truth in corners], axis=0)
    np.testing.assert_allclose(shared._largest_range(q, low, high), largest, rtol=1e-12)


def test_hope_for_what_may_follow_leads_upstream() -> None:
    """The prize of the river is behind successors that are rare: a few samples without them must not be the last."""
    model = sp.models.river_swim()
    reference = SharedReference(model, HardMax(), seed=1)
    reference.improve(3_000)
    assert reference.states == model.states


def test_bounds_on_the_error_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each run fails with probability δ, more failures than this have probability 1e-6.

    Bounds that spend too much are caught: intervals for δ = e¹⁰ in place of 0.05.
    """
    assert _failures(delta=0.05) <= stats.binom.isf(FALSE_ALARM, RUNS, 0.05)
    honest = rules_of

    def broken(*arguments: Any) -> Rules:
        return honest(*arguments)._replace(log_odds=-10.0)

    monkeypatch.setattr(shared, "rules_of", broken)
    assert _failures(delta=0.05) > stats.binom.isf(FALSE_ALARM, RUNS, 0.05)


@pytest.mark.parametrize("with_table", [True, False])
def test_what_is_certain_is_learnt_once(with_table: bool) -> None:
    table = sp.models.chain(states=6, discount=0.95, slip=0.0)
    reference = SharedReference(table if with_table else vectorised(table), LogSumExp(0.1), seed=1)
    reference.improve(100_000)
    assert reference.calls == table.states * table.actions
    solution = exact.solve(table, LogSumExp(0.1))
    np.testing.assert_allclose(reference.q(np.arange(6)), solution.q, atol=1e-2)
    assert reference.error_range(np.arange(6)).max() < 0.01 * np.ptp(solution.q)


def test_unknown_states_get_one_guess_and_the_widest_bound() -> None:
    table = small()
    reference = SharedReference(table, HardMax(), seed=1)
    widest = 1.0 + 0.6 * 1.0 / 0.4
    np.testing.assert_array_equal(reference.q(np.arange(5)), np.full((5, 3), widest / 2.0))
    np.testing.assert_allclose(reference.error_range(np.arange(5)), widest)
    assert reference.calls == 0


def test_walks_may_start_elsewhere() -> None:
    """Two rooms without a door between them: what is not reached from the root is learnt by starting there."""
    successors = np.array([[[0], [1]], [[0], [1]], [[2], [3]], [[2], [3]]])
    table = sp.TabularModel(
        np.ones((4, 2, 1)), successors, [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], discount=0.5
    )
    for model in (table, vectorised(table)):
        reference = SharedReference(model, HardMax(), root=0)
        reference.improve(100)
        assert (reference.states, reference.calls) == (2, 4)
        reference.improve(100, state=3)
        assert (reference.states, reference.calls) == (4, 8)
        np.testing.assert_allclose(reference.q(np.arange(4)), exact.solve(table, HardMax()).q, atol=1e-3)


def test_keys_join_states() -> None:
    """A clock in the state that does not matter."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        place = np.where(actions == 0, 0, 1 - states[:, 0])
        return np.stack([place, states[:, 1] + 1], axis=1), states[:, 0].astype(np.float64)

    model = simulated(step, actions=2, reward_kind="deterministic", initial_state=[0, 0])
    reference = SharedReference(model, HardMax(), key=lambda state: int(state[0]))
    reference.improve(50)
    assert (reference.states, reference.calls) == (2, 4)
    # 0 → 1 → 0 → …: V(0) = V(1)/2 and V(1) = 1 + V(0)/2.
    np.testing.assert_allclose(reference.q(np.array([[0, 7], [1, 9]])).max(axis=1), [2 / 3, 4 / 3], atol=1e-3)


def test_a_shared_reference_depends_on_its_seed_and_its_calls() -> None:
    table = sp.models.frozen_lake()
    found = []
    for seed in (1, 1, 2):
        reference = SharedReference(table, LogSumExp(0.01), seed=seed)
        reference.improve(700)
        assert reference.calls == 700
        found.append(reference.q(np.arange(table.states)))
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


# The default.


def counted(dimensions: int, single: bool, fail_at: float = np.inf) -> tuple[sp.VectorModel, list[int]]:
    """A walk in a cube, and a list of the sizes of its calls; after `fail_at` of them in all it raises."""
    made: list[int] = []

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        made.append(len(actions))
        if sum(made) > fail_at:
            raise KeyboardInterrupt
        noise = 0.0 if single else rng.normal(scale=0.2, size=states.shape)
        return np.clip(0.9 * states + 0.2 * (actions[:, None] - 1) + noise, -1.0, 1.0), np.abs(states).mean(axis=1)

    successors = 1 if single else None
    return simulated(step, actions=3, discount=0.9, max_successors=successors, initial_state=np.zeros(dimensions)), made


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("dimensions", range(1, 7))
@pytest.mark.parametrize("calls", [1_000, pytest.param(10_000, marks=pytest.mark.full), 100_000])
def test_a_grid_keeps_its_budget(calls: int, dimensions: int, single: bool) -> None:
    """By a coarser grid where there are few calls."""
    model, made = counted(dimensions, single)
    reference = GridReference.build(model, LogSumExp(0.1), max_calls=calls)
    assert reference.calls == sum(made) <= calls
    assert reference.calls > (0.04 if calls > 1_000 else 0.0) * calls
    assert np.isfinite(reference.q(np.zeros((1, dimensions)))).all()
    for more in (1, 50, 700, 5_000):
        reference.improve(more)
        assert reference.calls == sum(made) <= calls + more
        calls = reference.calls


@pytest.mark.parametrize("dimensions", [1, 7])
@pytest.mark.parametrize("calls", [1, 7, 3_000])
def test_a_default_of_floats_is_fitted_and_keeps_its_budget(calls: int, dimensions: int) -> None:
    model, made = counted(dimensions, single=False)
    reference = default_reference(model, HardMax(), calls=calls)
    assert isinstance(reference, FittedReference)
    assert calls - 3 < reference.calls == sum(made) <= calls  # all three actions of a state
    assert reference.q(np.zeros((1, dimensions))).shape == (1, 3)
    assert f"vectors of {dimensions} numbers, {calls} simulator calls at most" in repr(reference)


def test_a_default_of_a_compiled_simulator_is_a_grid_if_calls_suffice() -> None:
    model = sp.models.cart_pole()
    for calls, kind in ((10_000, GridReference), (100, FittedReference)):
        oracle = Oracle(model, 1)
        reference = default_reference(model, HardMax(), calls=calls, oracle=oracle)
        assert isinstance(reference, kind)
        assert 0 < reference.calls == oracle.calls <= calls
        assert ("too few for a grid" in repr(reference)) == (kind is FittedReference)


@pytest.mark.parametrize("calls", [1, 7, 500, 20_000])
def test_a_default_of_states_that_recur_keeps_its_budget(calls: int) -> None:
    for model in (small(), vectorised(small())):
        reference = default_reference(model, LogSumExp(0.1), calls=calls, seed=1)
        assert isinstance(reference, SharedReference)
        assert reference.calls == calls
        reference.improve(13)
        assert reference.calls == calls + 13
    assert "states of whole numbers recur" in repr(reference)


def test_whole_numbers_that_do_not_recur_are_fitted() -> None:
    made: list[int] = []

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        made.append(len(states))
        return states + rng.integers(-1000, 1000, states.shape), np.zeros(len(states))

    model = simulated(step, actions=2, max_successors=None, initial_state=np.zeros(2, dtype=np.int64))
    reference = default_reference(model, HardMax(), calls=5_000)
    assert isinstance(reference, FittedReference)
    assert "calls discovered a new state" in repr(reference)
    assert 4_998 <= sum(made) <= 5_000  # what it took to find out included


@pytest.mark.parametrize("fail_at", [20, 3_000])
def test_calls_are_known_where_the_making_is_interrupted(fail_at: int) -> None:
    """An oracle from outside counts the call that did not come back, too."""
    model, made = counted(2, single=False, fail_at=fail_at)
    oracle = Oracle(model, 5)
    with pytest.raises(KeyboardInterrupt):
        default_reference(model, HardMax(), calls=10_000, oracle=oracle)
    assert oracle.calls == sum(made) > fail_at


def test_an_oracle_from_outside_changes_nothing() -> None:
    model, _ = counted(2, single=False)
    given = default_reference(model, HardMax(), calls=500, oracle=Oracle(model, 5))
    own = default_reference(model, HardMax(), calls=500, seed=5)
    np.testing.assert_array_equal(given.q(np.zeros((1, 2))), own.q(np.zeros((1, 2))))


# Misuse.


def on_grid(states: Any = (), **options: Any) -> Floats:
    """A grid on the line, asked for states."""
    return GridReference.build(line(), HardMax(), **options).q(np.asarray(states))


def in_common(improve: int = 5, at: Any = None, table: Any = None, **options: Any) -> None:
    """A shared reference that is improved."""
    SharedReference(table or small(), HardMax(), **options).improve(improve, **({} if at is None else {"state": at}))


BOX: dict[str, Any] = {"low": [-1.0], "high": [1.0], "cells": 4}
HIDDEN = vectorised(small())


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: CriticReference(cast(Any, np.zeros((2, 2)))), "function must be a function"),
        (lambda: TabularReference(np.zeros((2, 2))).q(np.array([0, 5])), "state 5 is not one of the states 0..1"),
        (lambda: TabularReference(np.zeros((2, 2))).q(np.array([-1])), "state -1"),
        (lambda: TabularReference(np.zeros((2, 2))).q(np.array([0.0])), "whole numbers"),
        (lambda: TabularReference(np.zeros(3)), r"q must be a table \[S, K\]"),
        (lambda: TabularReference([[np.nan]]), r"nan at index \(0, 0\)"),
        (lambda: on_grid(low=[0.0], high=[0.0]), "low must be below high, got 0 and 0 along axis 0"),
        (lambda: on_grid(low=[0.0, 1.0]), r"low must have shape \(1,\), got \(2,\)"),
        (lambda: on_grid(cells=0), "cells must be at least 1"),
        (lambda: on_grid(cells=[2, 2]), "cells must be a whole number or 1 of them"),
        (lambda: on_grid(samples=0), "samples must be at least 1"),
        (lambda: on_grid(cells=50, max_calls=100), "may take 268 simulator calls, more than the 100 that are allowed"),
        (lambda: on_grid(periodic=[0]), "low and high must be given where axes are periodic"),
        (lambda: on_grid(**BOX, periodic=[1]), "periodic must be at most 0"),
        (lambda: on_grid(np.zeros((2, 2)), **BOX), r"states must have shape \[n, 1\], got \(2, 2\)"),
        (lambda: on_grid([[np.nan]], **BOX), "nan at index"),
        (lambda: GridReference.build(sp.models.sysadmin(4), HardMax()), "vectors of floats, got dtype int8"),
        (lambda: GridReference.build(line(initial_state=None), HardMax()), "declares no initial_state"),
        (lambda: GridReference.build(line(initial_state=np.zeros(7)), HardMax()), "1 to 6 numbers, got 7"),
        (lambda: in_common(root=9), "state 9 is not one of the states 0..4"),
        (lambda: in_common(delta=0.0), "delta must be strictly between 0 and 1"),
        (lambda: in_common(successors=0), "successors must be at least 1"),
        (lambda: in_common(table=replace(HIDDEN, initial_state=None)), "root must be given"),
        (lambda: in_common(1000, table=replace(HIDDEN, max_successors=1)), "more than 1 different next states"),
        (lambda: in_common(0), "calls must be at least 1"),
        (lambda: in_common(at=15, table=sp.models.frozen_lake()), "state 15 is terminal"),
        (lambda: SharedReference(small(), HardMax()).q(np.array([0.5])), "whole numbers"),
        (lambda: default_reference(line(initial_state=np.zeros(0)), HardMax()), r"shape \(0,\).*Give a critic"),
        (lambda: default_reference(line(initial_state=None), HardMax()), "declares no initial_state"),
    ],
)
def test_misuse_is_named(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        call()
