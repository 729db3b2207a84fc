"""Finite models of discovered or aggregated states, and soft value iteration on them, compiled."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, Ints
from smoothplan.compiling import compiled
from smoothplan.engines.grids import Grid
from smoothplan.engines.kernels import Softmaxes, fill_frame, frame_value


class Chances(NamedTuple):
    """A model as lists of what may follow a pair: Q(s, a) = rewards + γ Σ chances·V(successors).

    What ends the episode has no entry, or chance 0. There are S states, K actions and at most B successors.
    """

    rewards: Floats  # [S·K], means
    chances: Floats  # [S·K, B]
    successors: Ints  # [S·K, B]
    rows: Ints  # [S], where a state's weights are in `soft.weights`
    discount: float
    soft: Softmaxes


def iterate(
    model: Chances, q: Floats, values: Floats, tolerance: float, backup: Callable[[Floats], Floats] | None = None
) -> int:
    """Sweeps over q [S, K] and values [S], in place, until no value is further than the tolerance from the truth.

    Args:
        model: what is iterated on.
        q: overwritten.
        values: where to begin; overwritten.
        tolerance: of a value.
        backup: F at all states, from [S, K] to [S], where it is no mixture of softmaxes.

    Returns:
        The number of sweeps, at most 100,000: more than any discount below 0.9999 needs.
    """
    columns, actions = model.soft.shifts.shape
    frames = np.zeros((1, 1 + columns, actions + 1))
    # What changes by d in a sweep is within dγ/(1−γ) of the fixed point.
    enough, most = tolerance * (1.0 - model.discount) / max(model.discount, tolerance), 100_000
    if backup is None:
        return _iterate(model, q.reshape(-1), values, enough, most, frames)
    for sweeps in range(1, most + 1):
        future = (model.chances * values[model.successors]).sum(axis=1)
        q[:] = (model.rewards + model.discount * future).reshape(q.shape)
        before, values[:] = values.copy(), backup(q)
        if np.abs(values - before).max(initial=0.0) <= enough:
            return sweeps
    return most


@compiled
def _iterate(model: Chances, q: Floats, values: Floats, enough: float, most: int, frames: Floats) -> int:
    for sweeps in range(1, most + 1):
        if _sweep(model, q, values, sweeps % 2 == 1, frames) <= enough:
            return sweeps
    return most


@partial(compiled, merged=True)
def _sweep(model: Chances, q: Floats, values: Floats, backwards: bool, frames: Floats) -> float:
    """Backs every state up, the last one first or last; the largest change of a value."""
    count = len(values)
    actions = model.soft.shifts.shape[1]
    change = 0.0
    for place in range(count):
        state = count - 1 - place if backwards else place
        for action in range(actions):
            pair = state * actions + action
            future = 0.0
            for branch in range(model.chances.shape[1]):
                future += model.chances[pair, branch] * values[model.successors[pair, branch]]
            q[pair] = frames[0, 0, action] = model.rewards[pair] + model.discount * future
        fill_frame(frames, 0, model.soft)
        value = frame_value(frames, 0, model.rows[state], model.soft)
        change = max(change, abs(value - values[state]))
        values[state] = value
    return change


@partial(compiled, allocates=True)
def spread(grid: Grid, points: Floats, ends: NDArray[np.bool_], samples: int) -> tuple[Floats, Ints, int]:
    """Spreads next states [n·m, d] over the corners of their cells: chances and nodes [n, m·2^d], and columns used."""
    dimensions = points.shape[1]
    bases, fractions = np.empty(dimensions, dtype=np.int64), np.empty(dimensions)
    pairs = len(points) // samples
    chances = np.zeros((pairs, samples << dimensions))
    nodes = np.zeros((pairs, samples << dimensions), dtype=np.int64)
    widest = 1
    for pair in range(pairs):
        width = 0
        for row in range(pair * samples, (pair + 1) * samples):
            if ends[row]:
                continue
            # The cell of the point, brought into the box: its lowest corner, and where in the cell the point is.
            for axis in range(dimensions):
                cells = grid.shape[axis] - 1
                place = (points[row, axis] - grid.low[axis]) / (grid.high[axis] - grid.low[axis]) * cells
                place = min(max(place, 0.0), float(cells))
                bases[axis] = min(int(place), cells - 1)
                fractions[axis] = place - bases[axis]
            # Its corners, numbered by bits: a node, and the weight of multilinear interpolation.
            for corner in range(1 << dimensions):
                node, weight = 0, 1.0
                for axis in range(dimensions):
                    upper = (corner >> axis) & 1
                    node = node * grid.shape[axis] + bases[axis] + upper
                    weight *= fractions[axis] if upper else 1.0 - fractions[axis]
                # The weight goes to the column of that node, or to the next free one.
                if weight > 0.0:
                    column = 0
                    while column < width and nodes[pair, column] != node:
                        column += 1
                    width = max(width, column + 1)
                    nodes[pair, column] = node
                    chances[pair, column] += weight / samples
        widest = max(widest, width)
    return chances, nodes, widest
