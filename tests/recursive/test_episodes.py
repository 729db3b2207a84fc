"""Recursive planners where actions are illegal, and where episodes end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.models import finite_horizon, garnet
from smoothplan.models.model import Oracle
from smoothplan.recursive.level import Level
from smoothplan.recursive.planners import engine_for
from smoothplan.recursive.schedule import Schedule
from smoothplan.theory import exact
from smoothplan.theory.backups import Backup
from smoothplan.theory.curvature import Problem
from tests.common import holds, vectorised
from tests.models.test_derived import BACKUPS, masked_garnet, with_an_illegal_action

PLANNERS: dict[str, Any] = {
    "sparse": lambda backup: sp.SparseSampling(backup, 0.3, 1e-4),
    "first": lambda backup: sp.SmoothCruiser(backup, 0.25, 1e-4),
    "debiased": lambda backup: sp.DebiasedCruiser(backup, 0.25, 1e-4),
    "gap": lambda backup: sp.OTGapCruiser(backup, 0.5, 1e-4),
}


CASES = [
    (name, backup) for name in PLANNERS for backup in BACKUPS if backup.temperature > 0.0 or name in ("sparse", "gap")
]


@pytest.mark.parametrize(
    ("name", "backup"), CASES, ids=lambda part: part if isinstance(part, str) else type(part).__name__
)
def test_proofs_hold_with_illegal_actions(name: str, backup: Backup) -> None:
    """Intervals of the value and of every legal action; each run may fail with a probability of 1e-4."""
    model = masked_garnet(0.3)
    planner = PLANNERS[name](backup)
    assert model.legal is not None
    solution = exact.solve(model, backup)
    for given in (model, vectorised(model)):
        for state in (0, 5):
            result = sp.plan(planner, given, state, seed=3)
            illegal = ~model.legal[state]
            assert result.interval[0] - 1e-9 <= solution.values[state] <= result.interval[1] + 1e-9
            assert (result.q[illegal] == -np.inf).all()
            assert not result.policy[illegal].any()
            assert result.action in np.flatnonzero(~illegal)
            assert result.q_intervals is not None
            inside = (result.q_intervals[:, 0] <= solution.q[state] + 1e-9) & (
                solution.q[state] <= result.q_intervals[:, 1] + 1e-9
            )
            assert inside.all()


@pytest.mark.parametrize("engine", ["auto", "batched"])
def test_an_illegal_action_changes_nothing(engine: Any) -> None:
    """The schedule is the same, so the samples are, to the bit."""
    model = garnet(states=9, actions=3, branching=2, discount=0.3, seed=2)
    wider, backup = with_an_illegal_action(model), sp.LogSumExp(0.5)
    found = []
    for given in (model, wider):
        problem = replace(Problem.of(given, backup), actions=given.actions)
        levels = (
            Level("constant"),
            Level("plug-in", samples=4, reference=0, debias=2),
            Level("order-1", samples=2, reference=1, debias=1, linear=1),
            Level("order-2", samples=2, reference=0, linear=2, quadratic=1, pairs=2),
            Level("order-1", samples=1, reference=3, linear=3),
        )
        run = engine_for(engine, Schedule(problem, levels, 1, 1.0, 0.1), backup, given)
        around = np.where(np.arange(given.actions) < 3, 0.5, -np.inf)
        found.append(
            (
                run.returns(Oracle(given, seed=1), 2, 1, 200),
                run.values(Oracle(given, seed=2), 2, around, 200),
            )
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("planner", [sp.DebiasedCruiser, sp.SmoothCruiser, sp.SparseSampling])
def test_a_horizon_never_makes_a_value_dearer(planner: Any) -> None:
    """It narrows the interval of all values; γ = 1 is refused with advice."""
    season: Any = finite_horizon(garnet(states=7, actions=2, branching=2, discount=0.4, seed=3), 2)
    undeclared: Any = sp.TabularModel(
        season.probabilities,
        season.successors,
        season.rewards,
        discount=0.4,
        reward_range=season.reward_range,
        terminal=season.terminal,
    )
    wanted = planner(sp.LogSumExp(0.5), 0.1, 1e-4)
    assert sp.forecast(wanted, season).calls < sp.forecast(wanted, undeclared).calls
    assert holds(sp.plan(wanted, season, 3, seed=1), season, wanted.backup, 3)
    with pytest.raises(ValueError, match=r"discount must be smaller for recursion, got 1\.0"):
        sp.plan(wanted, finite_horizon(season.stationary, 2, discount=1.0), 3)
