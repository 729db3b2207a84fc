"""Functions and tables as references, what they refuse, and value iteration."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.chains.reference import CriticReference, FiniteModel, TabularReference, iterate
from smoothplan.theory import exact
from smoothplan.theory.backups import HardMax, SoftmaxMixture, softmaxes
from tests.chains.worlds import BACKUPS
from tests.common import ending


def test_a_critic_is_any_function() -> None:
    reference = CriticReference(lambda states: states @ np.ones((2, 3)))
    np.testing.assert_array_equal(reference.q(np.array([[1.0, 2.0]])), [[3.0, 3.0, 3.0]])
    assert reference.q(np.zeros((0, 2))).shape == (0, 3)


def test_a_table_is_what_was_given() -> None:
    solution = exact.solve(sp.models.garnet(states=6, actions=2, branching=2, discount=0.5, seed=1), HardMax())
    reference = TabularReference.from_solution(solution)
    np.testing.assert_array_equal(reference.q(np.array([4, 0])), solution.q[[4, 0]])
    assert not reference.table.flags.writeable


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
    assert iterate(finite, q, values, 1e-7) == 1


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: CriticReference(cast(Any, np.zeros((2, 2)))), "function must be a function"),
        (lambda: TabularReference(np.zeros((2, 2))).q(np.array([0, 5])), "state 5 is not one of the states 0..1"),
        (lambda: TabularReference(np.zeros((2, 2))).q(np.array([-1])), "state -1"),
        (lambda: TabularReference(np.zeros((2, 2))).q(np.array([0.0])), "whole numbers"),
        (lambda: TabularReference(np.zeros(3)), r"q must be a table \[S, K\]"),
        (lambda: TabularReference([[np.nan]]), r"nan at index \(0, 0\)"),
    ],
)
def test_misuse_is_named(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        call()
