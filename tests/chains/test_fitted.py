"""Fitted references: agreement with exact solutions, what they ask of a simulator, accounts, bits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains import fitted
from smoothplan.chains.fitted import HingeRidge
from smoothplan.chains.hinges import in_one_thread
from smoothplan.chains.reference import Improvable
from smoothplan.models.model import States
from smoothplan.theory.backups import Backup
from studies.simulators import inventory, value

LENGTH = 10


def test_bits_do_not_depend_on_the_threads_of_linear_algebra() -> None:
    rng, found = np.random.default_rng(0), []
    points, targets = rng.normal(size=(4_000, 3)), rng.normal(size=(4_000, 2))
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            ridge = HingeRidge(points, seed=0)
            weights = ridge.fit(targets, ridge.variants[0])
            gains, going = targets[:, 0], np.ones(len(points))
            values = ridge.evaluate(gains, going, 0.9, points[::-1], gains, (-50.0, 50.0))
            found.append((ridge._gram, weights, ridge.function.predict(ridge._fitted, weights), *values))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_linear_algebra_has_one_thread_until_the_last_caller_leaves() -> None:
    def threads() -> list[int]:
        return [library.num_threads for library in in_one_thread._libraries]

    with ThreadPoolExecutor(1) as other:
        # A thread that is alive, as those of Dask are, has set the number before, and controls it.
        other.submit(threadpool_limits, 2, "blas").result()
        usual = threads()
        with in_one_thread:
            assert set(threads()) == {1}
            other.submit(in_one_thread.__enter__).result()
        assert set(threads()) == {1}  # for the other thread is still within
        other.submit(in_one_thread.__exit__).result()
        assert threads() == usual


def corridor(kind: type = float, discount: float = 0.9) -> sp.VectorModel:
    """Steps along 0..10, two ways, one in five of which goes wrong; the end is terminal, and a step costs 1."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats, Any]:
        forwards = (actions == 1) ^ (rng.random(len(states)) < 0.2)
        after = np.maximum(states + np.where(forwards, 1, -1)[:, None], 0).astype(states.dtype)
        return after, np.full(len(states), -1.0), after[:, 0] >= LENGTH

    return sp.VectorModel(
        step, actions=2, discount=discount, reward_range=(-1.0, 0.0), initial_state=np.zeros(1, dtype=kind)
    )


def solved_corridor(backup: Backup) -> Floats:
    """Its action values, [10, 2]."""
    states = np.arange(LENGTH + 1)
    successors = np.stack([np.maximum(states - 1, 0), np.minimum(states + 1, LENGTH)], axis=1)
    table = sp.TabularModel(
        np.broadcast_to(np.array([[0.8, 0.2], [0.2, 0.8]]), (LENGTH + 1, 2, 2)).copy(),
        np.repeat(successors[:, None], 2, axis=1),
        np.full((LENGTH + 1, 2), -1.0),
        discount=0.9,
        terminal=states == LENGTH,
    )
    return sp.exact.solve(table, backup).q[:LENGTH]


class LeastSquares:
    """A regressor of one's own, on powers up to the third."""

    def fit(self, X: Floats, y: Floats) -> None:
        self.weights = np.linalg.lstsq(self._powers(X), y, rcond=None)[0]

    def predict(self, X: Floats) -> Floats:
        return np.asarray(self._powers(X) @ self.weights)

    def _powers(self, X: Floats) -> Floats:
        return np.concatenate([np.ones((len(X), 1)), X, X**2, X**3], axis=1)


@pytest.mark.parametrize("backup", [sp.HardMax(), sp.LogSumExp(0.5)], ids=["hard", "soft"])
@pytest.mark.parametrize("regressor", [None, LeastSquares()], ids=["hinges", "own"])
@pytest.mark.parametrize("kind", [float, int])
def test_it_agrees_with_the_exact_solution(backup: Backup, regressor: Any, kind: type) -> None:
    """Values are in [−10, 0]: errors are below 0.5, and actions are the right ones where it matters."""
    reference = sp.FittedReference(corridor(kind), backup, regressor=regressor, seed=3)
    reference.improve(10_000)
    q, exact = reference.q(np.arange(LENGTH, dtype=kind)[:, None]), solved_corridor(backup)
    assert np.abs(q - exact).max() < 0.5
    assert (q[2:].argmax(axis=1) == 1).all()
    assert not hasattr(regressor, "weights")  # only copies of it are fitted


def test_it_is_better_than_a_tuned_heuristic_in_five_dimensions() -> None:
    problem = inventory(5)
    reference = sp.FittedReference(problem.model, sp.HardMax())
    reference.improve(60_000)
    own, own_error = value(problem.model, lambda states: reference.q(states).argmax(axis=1), 400)
    other, other_error = value(problem.model, problem.heuristic(1.5), 400)  # `tuned` chooses 1.5
    assert own > other + 3.0 * np.hypot(own_error, other_error)


def test_it_asks_only_for_states_that_the_simulator_reached() -> None:
    """With the same random numbers for all actions, and every row counted; no limit is exceeded."""
    known, batches, rows = {b"start"}, list[tuple[States, Ints, Floats]](), 0

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats, Any]:
        nonlocal rows
        rows += len(states)
        assert all(state.tobytes() in known for state in states)
        noise = rng.standard_normal((len(states), 2))
        batches.append((states, actions, noise))
        after = 0.9 * states + noise + actions[:, None]
        ends = np.abs(after).max(axis=1) > 6.0
        known.update(state.tobytes() for state in after[~ends])
        return after, -np.minimum(np.abs(after).sum(axis=1), 20.0), ends

    model = sp.VectorModel(step, actions=3, discount=0.9, reward_range=(-20.0, 0.0), initial_state=np.zeros(2))
    known.add(np.zeros(2).tobytes())
    reference = sp.FittedReference(model, sp.HardMax())
    assert isinstance(reference, Improvable)
    assert reference.calls == rows == 0
    assert reference.q(np.zeros((4, 2))) == pytest.approx(np.full((4, 3), -100.0))
    for calls, state in [(2, None), (7, None), (3_001, None), (500, batches), (4_000, None)]:
        before = reference.calls
        reference.improve(calls, None if state is None else batches[-1][0][0])
        assert reference.calls == rows
        assert before + 0.95 * calls - 3 <= rows <= before + calls
    assert reference.states > 0.5 * rows / 3
    # Visited states are those at which all three actions were simulated, one after the other.
    visits = [
        triple
        for triple in zip(batches, batches[1:], batches[2:], strict=False)
        if all((actions == number).all() and len(actions) for number, (_, actions, _) in enumerate(triple))
    ]
    alike = [
        all((states == triple[0][0]).all() and (noise == triple[0][2]).all() for states, _, noise in triple)
        for triple in visits
        if len({len(states) for states, _, _ in triple}) == 1
    ]
    assert sum(alike) >= 20


@pytest.mark.parametrize("regressor", [None, LeastSquares()], ids=["hinges", "own"])
def test_same_seed_same_bits_also_after_a_restart(regressor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if not all transitions are kept, nor all states evaluated."""
    for name, size in (("MOST_TRANSITIONS", 2_000), ("MOST_EVALUATED", 300), ("LEAST_KEPT", 100)):
        monkeypatch.setattr(fitted, name, size)
    states = np.arange(LENGTH, dtype=float)[:, None]
    through, early, other, late = (
        sp.FittedReference(corridor(), sp.HardMax(), regressor=regressor, seed=seed) for seed in (5, 5, 6, 0)
    )
    for reference in (through, early, other):
        reference.improve(3_000)
        reference.improve(100, state=[4.0])  # too few to be fitted at once
    assert (through.q(states) == early.q(states)).all()
    assert (through.q(states) != other.q(states)).any()
    late.restore(early.saved())
    for reference in (through, late):
        reference.improve(6_000)
    assert len(late.saved()["states"]) < 2_000
    assert all((kept == late.saved()[name]).all() for name, kept in through.saved().items())
    assert (late.q(states) == through.q(states)).all()


class Scalar(LeastSquares):
    def predict(self, X: Floats) -> Floats:
        return np.zeros(1)


def fit(model: Any = None, at: Any = None, calls: int = 1_000, **options: Any) -> None:
    sp.FittedReference(model or corridor(), sp.HardMax(), **options).improve(calls, at)


NOWHERE = replace(corridor(), initial_state=None)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: fit(regressor=Scalar), "an object with the methods fit and predict"),
        (lambda: fit(NOWHERE), "root must be given"),
        (lambda: fit(NOWHERE, root=[True]), "states of numbers, got dtype bool"),
        (lambda: fit(at=[0.0, 1.0]), r"state must have shape \(1,\) and dtype float64"),
        (lambda: sp.FittedReference(corridor(), sp.HardMax()).q(np.zeros(3)), "states must have 2 axes"),
        (lambda: fit(regressor=Scalar()), r"the regressor must predict \d+ finite numbers, got shape \(1,\)"),
    ],
)
def test_misuse_is_named(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        call()
