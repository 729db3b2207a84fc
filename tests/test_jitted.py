"""The compiled engine on jitted simulators agrees with the batched engine, and says what went wrong."""

import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan.backups import Backup
from smoothplan.engines.base import Engine
from smoothplan.engines.batched import BatchedEngine
from smoothplan.engines.jitted import JittedEngine, calls_per_step
from smoothplan.schedules import Level, Problem, Schedule

SAMPLES = 2000
FALSE_ALARM = 1e-7


@numba.njit(nogil=True)
def walk(states: Any, actions: Any, rng: Any) -> Any:
    """A noisy walk on a line, rewarded near 1 with noise, that ends beyond 2."""
    next_states, rewards = np.empty_like(states), np.empty(len(actions))
    terminals = np.zeros(len(actions), dtype=np.bool_)
    for row in range(len(actions)):
        next_states[row, 0] = states[row, 0] + 0.5 * (actions[row] - 1) + 0.8 * (rng.random() - 0.5)
        next_states[row, 1] = states[row, 0]
        rewards[row] = np.exp(-((next_states[row, 0] - 1.0) ** 2)) * rng.random()
        terminals[row] = abs(next_states[row, 0]) > 2.0
    return next_states, rewards, terminals


def model(**changes: Any) -> sp.JitModel:
    declared: dict[str, Any] = {"actions": 3, "discount": 0.4, "reward_range": (0, 1), "initial_state": [1.0, 0.0]}
    return sp.JitModel(walk, **(declared | changes))


BACKUPS: list[Backup] = [
    sp.LogSumExp(0.3),
    sp.OptimalTransport(cost=sp.backups.line_cost(3), tau=0.5, lam=0.6, reference=[0.2, 0.5, 0.3]),
]
LEVELS = (
    Level("constant"),
    Level("plug-in", samples=2, reference=0, shift=-0.01),
    Level("order-1", linear=1, shift=0.02),
    Level("order-1", samples=3, reference=2, linear=1, centring="policy", clip=(0.5, 2.0)),
    Level("order-2", samples=2, reference=1, linear=3, quadratic=2, pairs=3),
    Level("order-2", samples=9, reference=4, linear=4, quadratic=1, pairs=2, equal_pairs=True),
)


def schedule(backup: Any, size: int = len(LEVELS)) -> Schedule:
    return Schedule(Problem.of(model(), backup), LEVELS[:size], 10, 0.1, 0.1)


@pytest.mark.parametrize(
    ("backup", "size"),
    [pytest.param(BACKUPS[0], 4, id="lse"), pytest.param(BACKUPS[1], 6, id="ot", marks=pytest.mark.full)],
)
def test_the_engines_draw_from_one_distribution(backup: Any, size: int) -> None:
    """Kolmogorov and Smirnov on single samples. False-alarm rate: 1e-7 for each of the 4 comparisons."""
    table = schedule(backup, size)
    around, state = np.array([0.8, 1.0, 0.9]), model().initial_state
    for kind in ("returns", "values"):
        if kind == "values" and table.root.linear is None:
            continue
        found = []
        engines: tuple[Engine, ...] = (JittedEngine(table, backup, model()), BatchedEngine(table, backup))
        for number, engine in enumerate(engines):
            oracles = [sp.Oracle(model(), seed=number, chunk=chunk) for chunk in range(SAMPLES)]
            if kind == "returns":
                found.append([engine.returns(oracle, state, 1, 1).total for oracle in oracles])
            else:
                found.append([engine.values(oracle, state, around, 1).total for oracle in oracles])
        assert stats.ks_2samp(*found).pvalue > FALSE_ALARM
        assert np.std(found[0]) > 0.0


def test_calls_are_those_of_the_forecast() -> None:
    endless = sp.JitModel(walk_on, actions=3, discount=0.4, reward_range=(0, 1), terminates=False, initial_state=[0.0])
    backup = BACKUPS[0]
    table = Schedule(Problem.of(endless, backup), LEVELS[:4], 10, 0.1, 0.1)
    oracle = sp.Oracle(endless, seed=0)
    JittedEngine(table, backup, endless).values(oracle, endless.initial_state, np.zeros(3), 7)
    assert oracle.calls == 7 * table.sample_calls
    oracle = sp.Oracle(endless, seed=0)
    JittedEngine(table, backup, endless).returns(oracle, endless.initial_state, 2, 5)
    assert oracle.calls == 5 * (1 + table.costs[2])


@numba.njit(nogil=True)
def walk_on(states: Any, actions: Any, rng: Any) -> Any:
    return states + rng.random(), np.full(len(actions), 0.5), np.zeros(len(actions), dtype=np.bool_)


@numba.njit(nogil=True)
def explode(states: Any, actions: Any, rng: Any) -> Any:
    return states * 0.0 / 0.0, np.full(len(actions), 0.5), np.zeros(len(actions), dtype=np.bool_)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (lambda: model(reward_range=(0, 0.1)), r"rewards in \[0, 0.1\].*state \[1.0, 0.0\], action 0, reward 0\.\d+"),
        (lambda: model(terminates=False), r"terminates=False"),
        (
            lambda: sp.JitModel(explode, actions=3, discount=0.4, reward_range=(0, 1), initial_state=[1.0, 0.0]),
            r"next state \[nan, nan\]",
        ),
    ],
)
def test_a_broken_promise_is_named(broken: Any, complaint: str) -> None:
    planner = sp.SmoothCruiser(BACKUPS[0], epsilon=0.1)
    with pytest.raises(sp.ModelError, match=complaint):
        sp.plan(planner, broken(), engine="compiled")


@pytest.mark.full
def test_plans_agree_and_do_not_depend_on_the_workers() -> None:
    """Both intervals hold together with probability 1 − 2e-6, and then they overlap."""
    planner = sp.SecondOrderSmoothCruiser(BACKUPS[1], epsilon=0.1, delta=1e-6)
    one, two = (sp.plan(planner, model(), engine="compiled", workers=workers) for workers in (1, 2))
    assert (one.value, one.interval, one.calls) == (two.value, two.interval, two.calls)
    other = sp.plan(planner, model(), engine="batched")
    assert max(one.interval[0], other.interval[0]) <= min(one.interval[1], other.interval[1])


def test_the_default_engine_is_chosen_by_the_calls_per_step() -> None:
    assert calls_per_step(schedule(BACKUPS[0], 3)) == 6.0
    assert 1.0 < calls_per_step(schedule(BACKUPS[0], 5)) < 6.0
    wide = (Level("constant"), Level("plug-in", samples=10, reference=0), Level("plug-in", samples=2, reference=1))
    assert calls_per_step(Schedule(Problem.of(model(), BACKUPS[0]), wide, 1, 0.1, 0.1)) == 30.0


def test_cached_code_loads_in_another_process() -> None:
    """A second process loads what the first compiled; a recursion compiled wrongly would crash there."""
    code = (
        "import smoothplan as sp; model = sp.models.mountain_car(discount=0.2);"
        "print(sp.plan(sp.SmoothCruiser(sp.LogSumExp(1.0), 0.05), model, engine='compiled').status)"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout == "converged\n"
