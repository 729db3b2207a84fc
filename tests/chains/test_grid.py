"""Grids: interpolation, exactness, what a grid is good for, and its budget."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains.grid import GridReference, grid_nodes, make_grid
from smoothplan.chains.reference import Reference, TooFewCallsError
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.theory import exact
from smoothplan.theory.backups import HardMax, LogSumExp, OptimalTransport, SoftmaxMixture
from tests.chains.worlds import counted, simulated


@pytest.mark.parametrize("dimensions", range(1, 7))
def test_grids_interpolate(dimensions: int) -> None:
    rng = np.random.default_rng(dimensions)
    shape = rng.integers(2, 6 if dimensions < 5 else 4, size=dimensions)
    low = rng.normal(size=dimensions)
    high = low + rng.uniform(0.5, 2.0, size=dimensions)
    table = rng.normal(size=(*shape, 3))
    grid = make_grid(low, high, shape, table)
    states = rng.uniform(low - 0.3, high + 0.3, size=(200, dimensions))
    known = RegularGridInterpolator([np.linspace(*axis) for axis in zip(low, high, shape, strict=True)], table)
    assert grid.at(states) == pytest.approx(known(np.clip(states, low, high)), abs=1e-12)
    nodes = grid_nodes(grid.low, grid.high, grid.shape)
    assert grid.at(nodes) == pytest.approx(grid.table, abs=1e-12)
    assert (grid.at(np.array([low - 1.0, high + 1.0])) == grid.table[[0, -1]]).all()
    slopes = rng.normal(size=(dimensions, 3))
    linear = make_grid(low, high, shape, nodes @ slopes)
    inside = np.clip(states, low, high)
    assert linear.at(inside) == pytest.approx(inside @ slopes, abs=1e-12)


def ladder(initial_state: Any = (0.0,)) -> sp.VectorModel:
    """Steps of ±0.25 on a line where the reward is the place; nothing ends."""

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


PLACES = np.linspace(-1.0, 1.0, 9)


def test_an_axis_along_which_nothing_moves_has_a_width() -> None:
    start = np.zeros(2, dtype=np.float32)
    model = simulated(lambda s, a, rng: (s + np.array([1.0, 0.0], np.float32), np.zeros(len(s))), initial_state=start)
    grid = GridReference.build(model, HardMax(), cells=4).grid
    assert (grid.low[1], grid.high[1]) == pytest.approx((-0.0005, 0.0005))


def prior(states: Any) -> Floats:
    return np.stack([0.5 + 0.4 * states[:, 0], 0.5 - 0.4 * states[:, 0]], axis=1)


BY_PLACE = OptimalTransport(cost=[[0, 1], [1, 0]], tau=0.5, lam=0.2, reference=prior)


@pytest.mark.parametrize(
    ("backup", "at_places"),
    [
        (HardMax(), HardMax()),
        (LogSumExp(0.2), LogSumExp(0.2)),
        (BY_PLACE, replace(BY_PLACE, prior=prior(PLACES[:, None]))),
    ],
)
def test_a_grid_is_exact_where_states_stay_on_its_nodes(backup: SoftmaxMixture, at_places: SoftmaxMixture) -> None:
    """Steps of two cells: the aggregated model is the model itself, at nine places."""
    reference = GridReference.build(ladder(), backup, low=[-1.0], high=[1.0], cells=16)
    successors = np.clip(np.arange(9)[:, None] + [-1, 1], 0, 8)[..., None]
    table = sp.TabularModel(np.ones((9, 2, 1)), successors, np.repeat(PLACES[:, None], 2, axis=1), discount=0.9)
    np.testing.assert_allclose(reference.q(PLACES[:, None]), exact.solve(table, at_places).q, atol=2e-3)
    assert reference.calls == 2 * 17


def test_a_grid_is_exact_where_values_are_linear() -> None:
    """Drift towards 0 by a factor: V(x) = x/(1 − 0.5·0.8), whatever the action and the cells."""
    model = simulated(
        lambda s, a, rng: (0.8 * s, s.sum(axis=1)), actions=2, reward_range=(-2, 2), initial_state=[0.0, 0]
    )
    reference = GridReference.build(model, HardMax(), low=[-1.0, -1.0], high=[1.0, 1.0], cells=3)
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


def test_a_grid_finds_the_top_of_the_hill_and_improves() -> None:
    model = sp.models.mountain_car()
    reference = GridReference.build(model, HardMax(), cells=40, seed=1)
    assert greedy_steps(model, reference, 400) < 160
    before, nodes = reference.calls, reference.nodes
    reference.improve(60_000)
    assert reference.nodes > 2 * nodes
    assert 30_000 < reference.calls - before <= 60_000
    assert greedy_steps(model, reference, 400) < 130


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("dimensions", range(1, 7))
@pytest.mark.parametrize("calls", [1_000, pytest.param(10_000, marks=pytest.mark.full), 100_000])
def test_a_grid_keeps_its_budget(calls: int, dimensions: int, single: bool) -> None:
    """By a coarser grid where there are few calls, or none at all."""
    model, made = counted(dimensions, single)
    if calls < 7 * model.actions * 3**dimensions:  # three nodes along each axis, seven times in all
        with pytest.raises(TooFewCallsError, match=f"more than the {calls} that are allowed"):
            GridReference.build(model, LogSumExp(0.1), max_calls=calls)
        assert not made
        return
    reference = GridReference.build(model, LogSumExp(0.1), max_calls=calls)
    assert reference.calls == sum(made) <= calls
    assert reference.calls > (0.04 if calls > 1_000 else 0.0) * calls
    assert np.isfinite(reference.q(np.zeros((1, dimensions)))).all()
    for more in (1, 50, 700, 5_000):
        reference.improve(more)
        assert reference.calls == sum(made) <= calls + more
        calls = reference.calls


def on_grid(states: Any = (), **options: Any) -> Floats:
    """A grid on the asked for states."""
    return GridReference.build(ladder(), HardMax(), **options).q(np.asarray(states))


BOX: dict[str, Any] = {"low": [-1.0], "high": [1.0], "cells": 4}


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: on_grid(low=[0.0], high=[0.0]), "low must be below high, got 0 and 0 along axis 0"),
        (lambda: on_grid(low=[0.0, 1.0], high=[2.0]), r"low must have shape \(1,\), got \(2,\)"),
        (lambda: on_grid(low=[0.0]), "low and high must be given together"),
        (lambda: on_grid(cells=[2, 2]), "cells must be a whole number"),
        (lambda: on_grid(samples=0), "samples must be at least 1"),
        (lambda: on_grid(cells=50, max_calls=100), "may take 458 simulator calls, more than the 100 that are allowed"),
        (lambda: on_grid([[np.nan]], **BOX), "nan at index"),
        (lambda: GridReference.build(sp.models.sysadmin(4), HardMax()), "vectors of 1 to 6 floats, got dtype int8"),
        (lambda: GridReference.build(ladder(initial_state=None), HardMax()), "declares no initial_state"),
        (lambda: GridReference.build(ladder(initial_state=np.zeros(7)), HardMax()), r"1 to 6 floats, .* shape \(7,\)"),
    ],
)
def test_misuse_is_named(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        call()
