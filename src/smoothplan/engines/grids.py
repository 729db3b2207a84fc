"""References on a regular grid of states, interpolated multilinearly between its nodes."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan import arguments
from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.compiling import compiled
from smoothplan.models.base import States

MOST_DIMENSIONS = 6
"""A lookup visits all 2^d corners of a cell."""


class Grid(NamedTuple):
    """Action values at the nodes of a regular grid on a box.

    >>> grid = make_grid(low=[0.0], high=[2.0], shape=[3], table=[[0.0], [1.0], [4.0]])
    >>> grid.at(np.array([[1.5], [9.0]])).tolist()
    [[2.5], [4.0]]
    """

    low: Floats  # [d], one corner of the box
    high: Floats  # [d], the opposite corner
    shape: Ints  # [d], nodes along each axis, at least 2
    table: Floats  # [nodes, K], the last axis of the states running fastest

    def at(self, states: States) -> Floats:
        """Q̂ at states [n, d], [n, K]; outside of the box, at its nearest point."""
        points = arguments.array("states", states)
        if points.shape != (len(points), len(self.low)):
            raise ValueError(f"states must have shape [n, {len(self.low)}], got {points.shape}")
        result = np.empty((len(points), self.table.shape[1]))
        interpolate(self, np.array(points, order="C"), result)  # writable, as those of compiled callers are
        return result


def make_grid(low: ArrayLike, high: ArrayLike, shape: ArrayLike, table: ArrayLike) -> Grid:
    """A `Grid` of arrays that are read-only copies; the table may be [nodes, K] or [*shape, K]."""
    counts = np.array(shape, dtype=np.int64)
    values = np.array(table, dtype=np.float64, order="C").reshape(int(np.prod(counts)), -1)
    box = (np.array(end, dtype=np.float64) for end in (low, high))
    return Grid(*(frozen(part) for part in (*box, counts, values)))


def grid_nodes(low: Floats, high: Floats, shape: Ints) -> Floats:
    """The states at the nodes, [nodes, d], in the order of the table."""
    axes = [np.linspace(*axis) for axis in zip(low, high, shape, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


class _Layout(NamedTuple):
    """A grid as the lookup wants it, and room for the weights of half of the 2^d corners of a cell."""

    values: Floats  # the table, [nodes·K]
    low: Floats  # [d]
    scales: Floats  # cells per unit of length, [d]
    ends: Floats  # the last node, counted in cells, [d]
    before: Floats  # the largest number below it, [d]
    strides: NDArray[np.uint64]  # from one node to the next along each axis, in values, [d]
    corners: NDArray[np.uint64]  # from the first corner of a cell to those that do not differ in the last axis
    weights: Floats


@partial(compiled, merged=True)
def _place(layout: _Layout, axis: Any, coordinate: float) -> tuple[Any, float]:
    """Where the cell of a coordinate begins, in values, and how far into the cell it is, from 0 to 1."""
    place = min(max((coordinate - layout.low[axis]) * layout.scales[axis], 0.0), layout.ends[axis])
    cell = np.int64(min(place, layout.before[axis]))
    return np.uint64(cell) * layout.strides[axis], place - cell


@partial(compiled, inner=True)
def _interpolate(layout: _Layout, states: Floats, out: Floats) -> None:
    """As `interpolate`. Unsigned numbers spare Numba the test for negative indices."""
    values, corners, weights = layout.values, layout.corners, layout.weights
    actions, last = np.uint64(out.shape[1]), np.uint64(len(layout.low) - 1)
    for row in range(np.uint64(len(states))):
        first, along = _place(layout, last, states[row, last])
        weights[0] = 1.0
        known = np.uint64(1)
        for axis in range(last):
            # Each axis doubles the corners and splits their weights.
            start, fraction = _place(layout, axis, states[row, axis])
            first += start
            for corner in range(known):
                beyond = weights[corner] * fraction
                weights[known + corner] = beyond
                weights[corner] -= beyond
            known += known
        for action in range(actions):
            below, above = 0.0, 0.0
            for corner in range(known):
                entry = first + corners[corner] + action
                below += weights[corner] * values[entry]
                above += weights[corner] * values[entry + actions]
            out[row, action] = (1.0 - along) * below + along * above


@partial(compiled, allocates=True)
def interpolate(grid: Grid, states: Floats, out: Floats) -> None:
    """Q̂ at states [n, d] into [n, K]; outside of the box, at its nearest point."""
    dimensions, actions = len(grid.low), grid.table.shape[1]
    strides, scales, ends = np.empty(dimensions, dtype=np.uint64), np.empty(dimensions), np.empty(dimensions)
    stride = actions
    for axis in range(dimensions - 1, -1, -1):
        strides[axis] = stride
        scales[axis] = (grid.shape[axis] - 1) / (grid.high[axis] - grid.low[axis])
        ends[axis] = grid.shape[axis] - 1
        stride *= grid.shape[axis]
    corners = np.zeros(1 << (dimensions - 1), dtype=np.uint64)
    for axis in range(dimensions - 1):
        for corner in range(1 << axis):
            corners[(1 << axis) + corner] = corners[corner] + strides[axis]
    layout = _Layout(
        grid.table.reshape(-1),
        grid.low,
        scales,
        ends,
        np.nextafter(ends, 0.0),
        strides,
        corners,
        np.empty(1 << (dimensions - 1)),
    )
    _interpolate(layout, states, out)
