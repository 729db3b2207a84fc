"""Functions and tables as references, value iteration, and references that are saved, restored and interrupted."""

from collections.abc import Callable
from itertools import count
from typing import Any, cast

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays
from smoothplan.chains.fitted import FittedReference
from smoothplan.chains.grid import GridReference
from smoothplan.chains.maker import Learnt, default_reference
from smoothplan.chains.reference import CriticReference, FiniteModel, TabularReference, iterate
from smoothplan.chains.shared import SharedReference
from smoothplan.models.model import States
from smoothplan.theory import exact
from smoothplan.theory.backups import HardMax, SoftmaxMixture, softmaxes
from tests.chains.worlds import BACKUPS
from tests.common import Counter, by_state, ending, vectorised
from tests.saving import copied, equal


def test_a_critic_is_any_function_and_a_table_is_what_was_given() -> None:
    critic = CriticReference(lambda states: states @ np.ones((2, 3)))
    np.testing.assert_array_equal(critic.q(np.array([[1.0, 2.0]])), [[3.0, 3.0, 3.0]])
    assert critic.q(np.zeros((0, 2))).shape == (0, 3)
    solution = exact.solve(sp.models.garnet(states=6, actions=2, branching=2, discount=0.5, seed=1), HardMax())
    table = TabularReference(solution.q)
    np.testing.assert_array_equal(table.q(np.array([4, 0])), solution.q[[4, 0]])
    assert not table.table.flags.writeable


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: CriticReference(cast(Any, np.zeros((2, 2)))), "function must be a function"),
        (lambda: TabularReference(np.zeros((2, 2))).q(np.array([0, 5])), "state 5 is not one of the states 0..1"),
        (lambda: TabularReference(np.zeros((2, 2))).q(np.array([0.0])), "whole numbers"),
        (lambda: TabularReference([[np.nan]]), r"nan at index \(0, 0\)"),
    ],
)
def test_misuse_is_named(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        call()


@pytest.mark.parametrize("backup", BACKUPS)
@pytest.mark.parametrize("model", [sp.models.garnet(states=30, actions=3, discount=0.9, seed=3), ending(3, 0.9, 3)])
def test_value_iteration_agrees_with_the_exact_solver(backup: SoftmaxMixture, model: sp.TabularModel) -> None:
    width = model.probabilities.shape[2]
    finite = FiniteModel(
        rewards=np.where(model.terminal[:, None], 0.0, model.expected_rewards).reshape(-1),
        chances=np.where(model.terminal[:, None, None], 0.0, model.continuation).reshape(-1, width),
        successors=model.successors.reshape(-1, width),
        rows=np.arange(model.states),
        discount=0.9,
        soft=softmaxes(backup, 3, model.states),
    )
    q, values = np.zeros((model.states, 3)), np.zeros(model.states)
    iterate(finite, q, values, 1e-7)
    # A state that ends is worth F(0) to the iteration, and nobody looks.
    solution = exact.solve(model, backup, 1e-9)
    np.testing.assert_allclose(q[~model.terminal], solution.q[~model.terminal], atol=1e-7)


# Saved references

ENDING, LARGE = ending(2, 0.6, 1), sp.models.garnet(400, 3, 2, 0.8, 2)
"""The second has more states than there is room for at first."""


def _noisy(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    """Steps on a line, some of them lost; the reward is the place."""
    moved = np.clip(states + 0.2 * (2 * actions[:, None] - 1) + 0.05 * rng.normal(size=states.shape), -1.0, 1.0)
    return moved, states[:, 0]


def line(step: Any) -> sp.VectorModel:
    return sp.VectorModel(
        step, actions=2, discount=0.8, reward_range=(-1, 1), terminates=False, initial_state=np.zeros(1)
    )


LINE = line(_noisy)

REFERENCES: dict[str, Callable[[], Learnt]] = {
    "table": lambda: SharedReference(ENDING, by_state(ENDING), root=0, seed=1),
    "keyed": lambda: SharedReference(vectorised(ENDING), by_state(ENDING)),
    "key": lambda: SharedReference(vectorised(LARGE), sp.LogSumExp(0.1), key=int),
    "open grid": lambda: GridReference.build(LINE, sp.LogSumExp(0.1), cells=6, samples=2, seed=1),
    "given grid": lambda: GridReference.build(LINE, sp.HardMax(), low=[-1.0], high=[1.0], cells=6),
    "compiled simulator": lambda: GridReference.build(sp.models.mountain_car(), sp.HardMax(), cells=8),
    "fitted": lambda: FittedReference(LINE, sp.HardMax(), seed=1),
}


def answers(reference: Learnt, errors: bool = True) -> Arrays:
    """What a reference says of some states."""
    if isinstance(reference, SharedReference):
        found = {"q": reference.q(np.arange(12))}
        return found | ({"errors": reference.error_range(np.arange(12))} if errors else {})
    dimensions = len(reference.grid.low) if isinstance(reference, GridReference) else 1
    return {"q": reference.q(np.random.default_rng(0).uniform(-1.0, 1.0, (50, dimensions)))}


@pytest.mark.parametrize("make", REFERENCES.values(), ids=REFERENCES.keys())
def test_a_restored_reference_goes_on_with_the_same_bits(make: Callable[[], Learnt]) -> None:
    undisturbed = make()
    restored: list[Learnt] = []
    for number, calls in enumerate((1, 300, 700, 1, 2000)):
        fresh = make()
        fresh.restore(copied(undisturbed.saved()))
        restored.append(fresh)
        expected = None
        for reference in (undisturbed, *restored):
            # Questions are part of the history: estimates begin where the last ones ended.
            found = answers(reference) if number != 2 else {}
            reference.improve(calls)
            found |= {f"{name} then": values for name, values in answers(reference, number == 3).items()}
            expected = expected or found
            assert equal(found, expected)
            assert equal(reference.saved(), undisturbed.saved())
            assert reference.calls == undisturbed.calls


def test_a_default_reference_is_restored_without_a_call() -> None:
    table, plane = Counter(ENDING), Counter(LINE)
    for counter, model in ((table, vectorised(ENDING, table)), (plane, line(plane))):
        made = default_reference(model, sp.LogSumExp(0.1), calls=2000, seed=1)
        before = counter.calls
        again = default_reference(model, sp.LogSumExp(0.1), calls=2000, seed=1, saved=copied(made.saved()))
        assert counter.calls == before > 0
        assert equal(answers(again), answers(made))
        assert repr(again) == repr(made)


@pytest.mark.parametrize("name", ["keyed", "open grid", "fitted"])
def test_a_reference_is_whole_wherever_its_simulator_is_interrupted(name: str) -> None:
    simulator: Any = ENDING if name == "keyed" else LINE
    for last in range(0, 60, 3):
        calls = count(-1000)  # the calls that build a grid are not interrupted

        def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
            if next(calls) == last:  # noqa: B023
                raise KeyboardInterrupt
            return simulator.step(states, actions, rng)

        reference: Learnt = FittedReference(line(step), sp.HardMax())
        if name == "open grid":
            reference = GridReference.build(line(step), sp.HardMax(), cells=6, samples=2)
        elif name == "keyed":
            reference = SharedReference(vectorised(ENDING, step), by_state(ENDING))
        calls = count()
        before = answers(reference)
        try:
            reference.improve(2000)
        except KeyboardInterrupt:
            pass
        else:
            assert name != "keyed"  # which has nothing left to do after fewer calls
            continue
        assert all(np.isfinite(values).all() for values in (answers(reference) | before).values())
        fresh = REFERENCES[name]()
        fresh.restore(copied(reference.saved()))
        assert equal(answers(fresh), answers(reference))
