"""Value iteration on lists of successors."""

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.chains.iteration import Chances, iterate
from smoothplan.theory import exact
from smoothplan.theory.backups import SoftmaxMixture, softmaxes
from tests.chains.worlds import BACKUPS
from tests.common import ending


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
