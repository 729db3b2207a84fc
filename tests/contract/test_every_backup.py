"""What every backup of the library keeps. A new class in `smoothplan.backups` is found and tested by itself."""

import pickle

import numpy as np
import pytest

import smoothplan as sp
from smoothplan import specs
from tests.common import holds

FALSE_ALARM = 1e-6
"""δ of a run here: the probability that its interval fails."""


@pytest.mark.parametrize("name", specs.BACKUPS)
@pytest.mark.parametrize("actions", [2, 5])
def test_it_is_what_it_declares(name: str, actions: int) -> None:
    backup = specs.build_backup(name, actions)
    assert sp.check_backup(backup, actions).points > 0
    copy = pickle.loads(pickle.dumps(backup))
    q = np.random.default_rng(0).standard_normal((20, actions))
    np.testing.assert_array_equal(copy.value(q), backup.value(q))


@pytest.mark.parametrize("name", specs.BACKUPS)
@pytest.mark.parametrize("planner", ["ot-gape:epsilon=0.1", "sparse-sampling:epsilon=0.3"])
def test_planners_for_any_backup_find_its_exact_value(name: str, planner: str) -> None:
    model = sp.models.garnet(states=25, actions=3, branching=2, discount=0.2, seed=4, reward_kind="bernoulli")
    backup = specs.build_backup(name, model.actions)
    result = sp.plan(specs.build_planner(f"{planner},delta={FALSE_ALARM}", backup), model, state=0, seed=1)
    assert result.status == "converged"
    assert holds(result, model, backup)
