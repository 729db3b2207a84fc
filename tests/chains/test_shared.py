"""Shared references: they converge, and bound their own error."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains import shared
from smoothplan.chains.shared import SharedReference
from smoothplan.graph.graph import Rules, rules_of
from smoothplan.models.model import GenerativeModel, States
from smoothplan.theory import exact
from smoothplan.theory.backups import HardMax, LogSumExp, OptimalTransport, SoftmaxMixture, line_cost
from tests.chains.worlds import BACKUPS, simulated, small
from tests.common import vectorised
from tests.saving import equal

RUNS = 200


FALSE_ALARM = 1e-6


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


@pytest.mark.parametrize("with_table", [True, False])
def test_a_backup_that_depends_on_the_state_is_that_of_each_state(with_table: bool) -> None:
    table, prior = small(seed=4, branching=4), np.random.default_rng(0).dirichlet(np.ones(3), size=5)
    backup = OptimalTransport(
        cost=line_cost(3), tau=1.0, lam=0.2, prior=prior if with_table else lambda states: prior[states]
    )
    reference = SharedReference(table if with_table else vectorised(table), backup, seed=2)
    reference.improve(20_000)
    np.testing.assert_allclose(reference.q(np.arange(5)), exact.solve(table, backup).q, atol=0.1)


@pytest.mark.parametrize("actions", [1, 2, 4])
def test_the_bound_on_the_error_is_attained(actions: int) -> None:
    """The range of Q̂ − Q is convex in Q, so that it is largest in a corner of the intervals."""
    rng = np.random.default_rng(actions)
    low, high = np.sort(rng.normal(size=(2, 200, actions)), axis=0)
    q = np.clip(rng.normal(size=(200, actions)), low, high)
    corners = [np.where(corner, low, high) for corner in product([False, True], repeat=actions)]
    largest = np.max([np.ptp(q - truth, axis=1) for truth in corners], axis=0)
    np.testing.assert_allclose(shared._largest_range(q, low, high), largest, rtol=1e-12)


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


def test_hope_for_what_may_follow_leads_upstream() -> None:
    """The prize of the river is behind successors that are rare: a few samples without them must not be the last."""
    model = sp.models.river_swim()
    for seed in range(3):  # without hope, all states are found with the first only
        reference = SharedReference(model, HardMax(), seed=seed)
        reference.improve(600)
        assert reference.states == model.states


@pytest.mark.parametrize("with_table", [True, False])
def test_what_is_certain_is_learnt_once(with_table: bool) -> None:
    table = sp.models.chain(states=6, discount=0.95, slip=0.0)
    reference = SharedReference(table if with_table else vectorised(table), LogSumExp(0.1), seed=1)
    reference.improve(100_000)
    assert reference.calls == table.states * table.actions
    solution = exact.solve(table, LogSumExp(0.1))
    np.testing.assert_allclose(reference.q(np.arange(6)), solution.q, atol=1e-2)
    assert reference.error_range(np.arange(6)).max() < 0.01 * np.ptp(solution.q)


def test_a_simulator_is_surveyed_in_batches_and_a_restored_survey_has_the_same_bits() -> None:
    table, batches = sp.models.garnet(400, 3, 4, 0.8, 2), list[int]()  # few pairs are sampled twice

    def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
        batches.append(len(actions))
        return table.step(states, actions, rng)

    model = replace(vectorised(table), step=step)
    one, two = (SharedReference(model, HardMax(), seed=2) for _ in range(2))
    one.improve(5000)
    assert sum(batches) == one.calls == 5000
    assert len(batches) < 1000  # one by one until there were 2 · 128 calls, then in batches
    two.restore(one.saved())
    for reference in (one, two):
        reference.improve(777, state=np.array(3))
        assert reference.calls == 5777
    assert equal(one.saved(), two.saved())


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


def in_common(improve: int = 5, at: Any = None, table: Any = None, **options: Any) -> None:
    """A shared reference that is improved."""
    SharedReference(table or small(), HardMax(), **options).improve(improve, **({} if at is None else {"state": at}))


HIDDEN = vectorised(small())


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: in_common(root=9), "state 9 is not one of the states 0..4"),
        (lambda: in_common(table=replace(HIDDEN, initial_state=None)), "root must be given"),
        (lambda: in_common(1000, table=replace(HIDDEN, max_successors=1)), "more than 1 different next states"),
        (lambda: in_common(at=15, table=sp.models.frozen_lake()), "state 15 is terminal"),
        (lambda: SharedReference(small(), HardMax()).q(np.array([0.5])), "whole numbers"),
    ],
)
def test_misuse_is_named(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        call()


# Standard errors


def test_a_table_knows_its_own_accuracy() -> None:
    """Of 80 differences about 1 is off by more than 2.58 standard errors; 9 have a probability of about 1e-7."""
    model = sp.models.garnet(states=8, actions=3, branching=3, discount=0.9, seed=2, reward_kind="bernoulli")
    rows, pairs = np.arange(8), np.arange(8 * 3).repeat(3)
    moves = np.zeros((24, 8))
    np.add.at(moves, (pairs, model.successors.reshape(-1)), model.probabilities.reshape(-1))
    far, value_far, errors = [], [], []
    for seed in range(40):
        reference = sp.SharedReference(model, sp.HardMax(), seed=seed)
        reference.improve(6_000)
        found = reference.claims(0)
        assert found is not None
        policy = reference.q(rows).argmax(axis=1)
        followed = moves.reshape(8, 3, 8)[rows, policy]
        mean = (model.rewards.reshape(8, 3, -1) * model.probabilities.reshape(8, 3, -1)).sum(axis=2)
        values = np.linalg.solve(np.eye(8) - 0.9 * followed, mean[rows, policy])
        q = mean[0] + 0.9 * moves.reshape(8, 3, 8)[0] @ values
        best, others = policy[0], np.flatnonzero(np.arange(3) != policy[0])
        far += list(np.abs(found.q[others] - found.q[best] - q[others] + q[best]) / found.apart[others, best])
        value_far.append(abs(found.q[best] - q[best]) / found.errors[best])
        errors.append(found.errors[best])
    for deviations in (np.array(far), np.array(value_far)):
        assert np.count_nonzero(deviations > 2.58) <= 8
        assert np.count_nonzero(3.0 * deviations > 2.58) > 8  # a third of the error would be noticed
    assert max(errors) < 0.3


def test_a_table_of_few_samples_does_not_know_its_accuracy() -> None:
    reference = sp.SharedReference(sp.models.river_swim(discount=0.9), sp.HardMax())
    assert reference.claims(0) is None
    reference.improve(300)
    assert reference.claims(0) is None
    reference.improve(10_000)
    assert reference.claims(0) is not None
