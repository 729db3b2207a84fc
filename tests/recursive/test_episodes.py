"""Recursive planners where actions are illegal, and where episodes end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.models import finite_horizon, garnet
from smoothplan.models.model import Oracle
from smoothplan.recursive.level import Level, certify
from smoothplan.recursive.planners import engine_for
from smoothplan.recursive.schedule import Schedule
from smoothplan.theory import exact
from smoothplan.theory.backups import Backup
from smoothplan.theory.curvature import Problem
from tests.common import holds, vectorised
from tests.models.test_derived import BACKUPS, masked_garnet, with_an_illegal_action
from tests.naive import Exact, with_own_shifts

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
    """It narrows the interval of all values."""
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


STAGED: tuple[tuple[Level, ...], ...] = (
    (
        Level("constant", left=0),
        Level("plug-in", left=1, samples=2, reference=0, rewards=2),
        Level("plug-in", samples=1, reference=1),
    ),
    (
        Level("constant", left=1),
        Level("plug-in", left=2, samples=2, reference=0, debias=1),
        Level("order-1", left=2, samples=1, reference=0, linear=0),
        Level("order-1", samples=0, linear=2),
    ),
)


def truncated(model: sp.TabularModel, steps: int) -> Any:
    return finite_horizon(model, steps, discount=1.0)


@pytest.mark.parametrize("levels", STAGED)
@pytest.mark.parametrize("backup", [sp.LogSumExp(0.3), sp.HardMax()], ids=["smooth", "hard"])
def test_levels_of_stages_are_certified(levels: tuple[Level, ...], backup: Any) -> None:
    """At all states with the steps that a level is for or with fewer, by listing all outcomes; γ is 1."""
    if backup.temperature == 0.0:
        levels = tuple(replace(level, debias=0) for level in levels if level.kind in ("constant", "plug-in"))
    steps = 1 + max(level.left or 0 for level in levels)
    model = truncated(garnet(states=3, actions=2, branching=2, discount=0.9, seed=4, reward_kind="bernoulli"), steps)
    values, problem = exact.solve(model, backup).values, Problem.of(model, backup)
    levels = with_own_shifts(problem, levels)
    found = Exact(problem, levels, backup, model)
    for row, (level, proved) in enumerate(zip(levels, certify(problem, levels), strict=True)):
        for stage in range(0 if level.left is None else steps - level.left, steps):
            truth = found.level(row, 3 * stage)
            assert abs(truth.mean - values[3 * stage]) <= proved.bias + 1e-9
            assert truth.variance <= proved.variance + 1e-9
            assert proved.low - 1e-9 <= truth.values[0] <= truth.values[-1] <= proved.high + 1e-9


@pytest.mark.parametrize("engine", ["auto", "batched"])
@pytest.mark.parametrize("name", ["sparse", "first", "debiased", "gap"])
def test_episodes_of_a_few_steps_need_no_discount(name: str, engine: Any) -> None:
    """Proofs hold, each with a probability of at least 1 − 1e-4, at no more than the forecast price."""
    planner = PLANNERS[name](sp.LogSumExp(0.5))
    season = truncated(masked_garnet(), 2)
    for state in (0, 7):
        result = sp.plan(planner, season, state, seed=3, engine=engine)
        assert holds(result, season, planner.backup, state)
        assert result.status == "converged"
    if name != "gap":
        assert result.calls <= sp.forecast(planner, season).calls


def test_an_episode_without_noise_is_solved_exactly() -> None:
    """One sample of every action at every step: (K + K² + K³) calls, and no bias."""
    puzzle = truncated(garnet(states=9, actions=3, branching=1, discount=0.9, seed=1), 3)
    planner = sp.SparseSampling(sp.HardMax(), 1e-6)
    result = sp.plan(planner, puzzle, 0)
    assert result.calls == sp.forecast(planner, puzzle).calls == 3 + 9 + 27
    assert result.value == pytest.approx(exact.solve(puzzle, planner.backup).values[0], abs=1e-9)


def test_recursion_refuses_what_it_cannot_price_and_notices_a_broken_horizon() -> None:
    def step(states: Any, actions: Any, rng: np.random.Generator) -> Any:
        return states + 1.0, np.ones(len(states))

    declared: dict[str, Any] = {"actions": 2, "discount": 1.0, "reward_range": (0, 1), "initial_state": 0.0}
    planner = sp.SparseSampling(sp.HardMax(), 0.3)
    with pytest.raises(ValueError, match="horizon must be at most 12 for recursion with discount=1, got 52: the price"):
        sp.forecast(planner, sp.VectorModel(step, **declared, horizon=52))
    with pytest.raises(sp.ModelError, match=r"horizon=2 is exceeded: .* after 2 steps, at state 2\.0"):
        sp.plan(planner, sp.VectorModel(step, **declared, horizon=2))
    problem = Problem.of(sp.VectorModel(step, **declared, horizon=2), planner.backup)
    with pytest.raises(ValueError, match=r"level 1 for 2 steps refers to levels for \[0\]"):
        certify(problem, (Level("constant", left=0), Level("plug-in", samples=1, reference=0)))
