"""References on a regular grid of states, interpolated multilinearly between its nodes."""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from smoothplan import arguments
from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.models.base import States
from smoothplan.streams import compiled

MOST_DIMENSIONS = 6
"""A lookup visits all 2^d corners of a cell."""


class Grid(NamedTuple):
    """Action values at the nodes of a regular grid on a box. All arrays are read-only; `make_grid` checks them.

    >>> grid = make_grid(low=[0.0], high=[2.0], shape=[3], table=[[0.0], [1.0], [4.0]])
    >>> grid.at(np.array([[1.5], [9.0]])).tolist()
    [[2.5], [4.0]]
    """

    low: Floats  # [d], one corner of the box
    high: Floats  # [d], the opposite corner
    shape: Ints  # [d], nodes along each axis; 1 where the values do not depend on it
    table: Floats  # [nodes, K], the last axis of the states running fastest

    def at(self, states: States) -> Floats:
        """Q̂ at states [n, d], [n, K]; outside of the box, at its nearest point."""
        result = np.empty((len(states), self.table.shape[1]))
        interpolate(self, frozen(np.asarray(states, dtype=np.float64)), result)
        return result


def make_grid(low: ArrayLike, high: ArrayLike, shape: ArrayLike, table: ArrayLike) -> Grid:
    """A `Grid` of checked arrays; the table may be [nodes, K] or [*shape, K]."""
    box = arguments.array("low", low), arguments.array("high", high)
    counts = np.array([arguments.whole("shape", count) for count in np.atleast_1d(shape)], dtype=np.int64)
    dimensions = len(counts)
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"a grid must have 1 to {MOST_DIMENSIONS} dimensions, got {dimensions}")
    if box[0].shape != (dimensions,) or box[1].shape != (dimensions,) or not (box[0] < box[1]).all():
        raise ValueError(f"low and high must be vectors [{dimensions}] with low < high, got {low!r} and {high!r}")
    values = arguments.numbers("table", table)
    nodes = int(np.prod(counts))
    if values.shape[:-1] == tuple(counts):
        values = values.reshape(nodes, -1)
    if values.ndim != 2 or len(values) != nodes:
        raise ValueError(f"table must have shape {(nodes, 'K')} or {(*counts.tolist(), 'K')}, got {values.shape}")
    if not np.isfinite(values).all():
        node, action = np.argwhere(~np.isfinite(values))[0]
        state = grid_nodes(box[0], box[1], counts)[node].tolist()
        raise ValueError(f"the reference must be finite, got {values[node, action]} (state {state}, action {action})")
    return Grid(frozen(box[0].copy()), frozen(box[1].copy()), frozen(counts), frozen(values.copy()))


def grid_nodes(low: Floats, high: Floats, shape: Ints) -> Floats:
    """The states at the nodes, [nodes, d], in the order of the table; the middle of an axis with one node."""
    axes = [
        np.linspace(start, stop, count) if count > 1 else np.array([(start + stop) / 2.0])
        for start, stop, count in zip(low, high, shape, strict=True)
    ]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


@partial(compiled, allocates=True)
def interpolate(grid: Grid, states: Floats, out: Floats) -> None:
    """Q̂ at states [n, d] into [n, K]; outside of the box, at its nearest point."""
    dimensions, actions = len(grid.low), out.shape[1]
    scales, strides = np.empty(dimensions), np.empty(dimensions, dtype=np.int64)
    stride = 1
    for axis in range(dimensions - 1, -1, -1):
        scales[axis] = (grid.shape[axis] - 1) / (grid.high[axis] - grid.low[axis])
        strides[axis] = stride
        stride *= grid.shape[axis]
    corners = 1 << dimensions
    weights, nodes = np.empty(corners), np.empty(corners, dtype=np.int64)
    for row in range(len(states)):
        weights[0], nodes[0] = 1.0, 0
        known = 1
        # Each axis doubles the corners and splits their weights.
        for axis in range(dimensions):
            last = grid.shape[axis] - 1
            place = min(max((states[row, axis] - grid.low[axis]) * scales[axis], 0.0), float(last))
            before = max(min(int(place), last - 1), 0)
            fraction = place - before
            stride = strides[axis] if last > 0 else 0
            for corner in range(known):
                node, weight = nodes[corner] + before * strides[axis], weights[corner]
                nodes[corner], nodes[known + corner] = node, node + stride
                weights[corner], weights[known + corner] = weight * (1.0 - fraction), weight * fraction
            known *= 2
        for action in range(actions):
            value = 0.0
            for corner in range(corners):
                value += weights[corner] * grid.table[nodes[corner], action]
            out[row, action] = value
