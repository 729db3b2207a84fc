"""A reference on a regular grid of continuous states: soft value iteration at its nodes, interpolated between them."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.compiling import compiled
from smoothplan.base.records import Arrays, Readable, finite, piece, require
from smoothplan.base.streams import CALLS
from smoothplan.chains.iteration import Chances, iterate
from smoothplan.chains.reference import TooFewCallsError, reason
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, is_mixture
from smoothplan.theory.softmaxes import Softmaxes

MOST_DIMENSIONS = 6
"""A lookup visits all 2^d corners of a cell."""

WALKS = 32
"""Walks that advance together: simulator calls of one step."""


# Grids


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
        interpolate(self, np.array(points, order="C"), math.inf, result)  # writable, as those of compiled callers are
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
def _interpolate(layout: _Layout, states: Floats, gap: float, out: Floats) -> None:
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
        top = -np.inf
        for action in range(actions):
            below, above = 0.0, 0.0
            for corner in range(known):
                entry = first + corners[corner] + action
                below += weights[corner] * values[entry]
                above += weights[corner] * values[entry + actions]
            value = (1.0 - along) * below + along * above
            out[row, action] = value
            top = max(top, value)
        for action in range(actions):
            out[row, action] = max(out[row, action], top - gap)


@partial(compiled, allocates=True)
def interpolate(grid: Grid, states: Floats, gap: float, out: Floats) -> None:
    """Q̂ at states [n, d] into [n, K], no action further than a gap below the best; see `Grid.at`."""
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
    _interpolate(layout, states, gap, out)


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


# Boxes


class Box:
    """A box of states, some ends of which may still have to be found."""

    def __init__(
        self, low: Floats, high: Floats, fixed: NDArray[np.bool_], periodic: tuple[int, ...], dtype: Any
    ) -> None:
        self.low, self.high = low, high  # [d]
        self._fixed = fixed  # [2, d], which ends the user has given
        self.periodic = periodic
        self.dtype = dtype

    @classmethod
    def given(
        cls, model: GenerativeModel, low: ArrayLike | None, high: ArrayLike | None, periodic: Sequence[int]
    ) -> "Box":
        """A box with the ends that are given; the others are at the initial state."""
        start = model.initial_state
        if start is None:
            if low is None or high is None:
                raise ValueError("low and high must be given, for this model declares no initial_state to start from")
            start = arguments.array("low", low)
        start = np.asarray(start)
        if start.ndim != 1 or start.dtype.kind != "f":
            raise ValueError(
                f"a grid needs states that are vectors of floats, got dtype {start.dtype} and shape {start.shape}"
            )
        dimensions = len(start)
        ends = [start if end is None else arguments.array(name, end) for name, end in (("low", low), ("high", high))]
        for name, end in zip(("low", "high"), ends, strict=True):
            if end.shape != (dimensions,):
                raise ValueError(f"{name} must have shape ({dimensions},), got {end.shape}")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"a grid needs states of 1 to {MOST_DIMENSIONS} numbers, got {dimensions}")
        below, above = np.array(ends, dtype=np.float64)
        fixed = np.repeat([[low is not None], [high is not None]], dimensions, axis=1)
        wrong = below >= above if fixed.all() else below > above
        if wrong.any():
            axis = int(np.argmax(wrong))
            raise ValueError(f"low must be below high, got {below[axis]:g} and {above[axis]:g} along axis {axis}")
        axes = tuple(arguments.whole("periodic", axis, least=0, most=dimensions - 1) for axis in periodic)
        if axes and not fixed.all():
            raise ValueError("low and high must be given where axes are periodic: their ends are the same place")
        return cls(below, above, fixed, axes, start.dtype)

    @property
    def dimensions(self) -> int:
        """d."""
        return len(self.low)

    @property
    def closed(self) -> bool:
        """Whether all ends are given."""
        return bool(self._fixed.all())

    def wrapped(self, points: States) -> States:
        """Points [n, d], those along periodic axes brought into the box."""
        if not self.periodic or points.ndim != 2:
            return points
        axes, points = list(self.periodic), points.copy()
        low = self.low[axes]
        points[:, axes] = low + (points[:, axes] - low) % (self.high[axes] - low)
        return points

    def enlarged(self, visited: Floats) -> "Box":
        """The smallest box that also contains the box [2, d] of visited states, where its ends are not given.

        There is no margin: beyond what was visited there may be walls, and states that a simulator does not know. An
        axis along which nothing moves gets a width of a thousandth of its place, so that there is a grid.
        """
        low = np.where(self._fixed[0], self.low, np.minimum(self.low, visited[0]))
        high = np.where(self._fixed[1], self.high, np.maximum(self.high, visited[1]))
        flat = (low == high) * 1e-3 * np.maximum(1.0, np.abs(low)) / 2.0
        low, high = np.where(self._fixed[0], low, low - flat), np.where(self._fixed[1], high, high + flat)
        return Box(low, high, self._fixed, (), self.dtype)

    def moved(self, low: Floats, high: Floats) -> "Box":
        """The same box with other ends, where they are not given; those that are must be the same."""
        require((low < high).all(), "the lower corner of a box must be below the upper one")
        with np.errstate(over="ignore"):
            width = high - low
            usual = np.isfinite(width) & np.isfinite(np.iinfo(np.int64).max / width)  # for any number of cells
        require(usual.all(), "the width of a box must not be out of all proportion")
        given = np.where(self._fixed, [self.low, self.high], [low, high])
        require((given == [low, high]).all(), "the corners of a box must be those that were given")
        return Box(low, high, self._fixed, self.periodic, self.dtype)

    def exceeds(self, other: "Box") -> bool:
        """Whether one of its sides is further out than that of another box, by more than 5 % of the width."""
        little = 0.05 * (other.high - other.low)
        return bool(((other.low - self.low > little) | (self.high - other.high > little)).any())


def visited(model: GenerativeModel, oracle: Oracle, steps: int, grid: Grid | None = None) -> Floats:
    """The box [2, d] of what walks from the initial state visit; they start again where they end.

    They follow the greedy policy of a grid, with a tenth of random actions. Without a grid all actions are random, and
    some walks keep to an action for long: those get further.
    """
    rng, start = oracle.rng, np.asarray(model.initial_state)
    states = np.repeat(start[None], WALKS, axis=0)
    box = np.array([start, start], dtype=np.float64)
    if grid is None:
        changes, actions = np.geomspace(1.0, min(1.0, 4.0 / steps), WALKS), rng.integers(model.actions, size=WALKS)
    for _ in range(steps):
        changed = rng.random(WALKS) < (0.1 if grid is not None else changes)
        random = rng.integers(model.actions, size=WALKS)
        actions = np.where(changed, random, actions if grid is None else grid.at(states).argmax(axis=1))
        transition = oracle.sample(states, actions)
        alive = ~transition.terminals
        if alive.any():
            reached = transition.next_states[alive]
            box = np.array([np.minimum(box[0], reached.min(axis=0)), np.maximum(box[1], reached.max(axis=0))])
        states = np.where(alive[:, None], transition.next_states, start)
    return box


# References


class GridReference:
    """Q̂ on a regular grid, between whose nodes it is multilinear.

    Every node and action is simulated, once where there is one successor. What comes of it is spread over the corners
    of its cell, by the weights of multilinear interpolation, and the finite model that this makes is solved. Outside
    the box, Q̂ is that of the nearest point of the box. It is a state: `improve` changes it.

    Use `GridReference.build`. `why` says how a default reference was chosen; it is empty for any other.
    """

    why = ""

    def __init__(
        self, model: GenerativeModel, backup: Backup, oracle: Oracle, box: Box, samples: int, grid: Grid
    ) -> None:
        self._model, self._backup, self._oracle, self._box = model, backup, oracle, box
        self.samples, self.grid = samples, grid

    @classmethod
    def build(
        cls,
        model: GenerativeModel,
        backup: Backup,
        *,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        cells: int | Sequence[int] | None = None,
        samples: int | None = None,
        periodic: Sequence[int] = (),
        seed: int = 0,
        max_calls: int = 2_000_000,
        saved: Readable | None = None,
        oracle: Oracle | None = None,
    ) -> "GridReference":
        """A reference built from simulator calls.

        Args:
            model: a simulator whose states are vectors of at most six floats.
            backup: F.
            low, high: the box, [d] each; by default what walks from the initial state visit. A simulator is asked
                about all of the box: give one that it knows if it refuses some states.
            cells: of the grid, along each axis or [d]; by default about 10,000 nodes in all, or what `max_calls` allow.
            samples: simulator calls at each node and action; one where there is one successor, else eight by default,
                or what `max_calls` allow.
            periodic: axes that close on themselves, such as angles. Their ends in `low` and `high` are the same place;
                what reads `grid` directly must bring states between them, as most simulators do.
            seed: of the simulator calls.
            max_calls: no more simulator calls are made, walks included.
            saved: what `saved` gave, of a reference that was built with the same arguments. It takes no simulator call.
            oracle: makes the calls, and so counts them even if an error ends the building; by default one of `seed`.

        Raises:
            TooFewCallsError: the grid takes more than `max_calls`; no call was made.
        """
        box = Box.given(model, low, high, periodic)
        oracle = Oracle(model, seed, role="reference") if oracle is None else oracle
        if saved is not None:
            return cls(model, backup, oracle, *_read(saved, box, model, oracle))
        effort = _effort(model, box, cells, samples, arguments.whole("max_calls", max_calls))
        if not box.closed:
            box = _found(box, model, backup, oracle, effort)
        grid = _solved(model, backup, oracle, box, effort.cells, effort.samples)
        reference = cls(model, backup, oracle, box, effort.samples, grid)
        if not box.closed and reference._look_around(effort.steps):
            reference._solve(effort.cells, effort.samples)
        return reference

    @property
    def calls(self) -> int:
        """Simulator calls made, walks included."""
        return self._oracle.calls

    @property
    def nodes(self) -> int:
        """Nodes of the grid."""
        return len(self.grid.table)

    @property
    def periodic(self) -> tuple[int, ...]:
        """The axes that close on themselves: `q` knows, `grid` does not."""
        return self._box.periodic

    def q(self, states: States) -> Floats:
        """Interpolated estimates, [n, K]."""
        return self.grid.at(self._box.wrapped(np.asarray(states)))

    def improve(self, calls: int) -> None:
        """Makes the grid finer, by at most `calls` more simulator calls; by none if they are too few to help.

        It does so twice, with half of the calls each. Where the box was found by walks, walks by the policy of Q̂ come
        first, on a tenth of the calls, and may enlarge it. Where successors are random, half of the growth goes into
        samples. A grid has no more than 200,000 nodes.
        """
        share = arguments.whole("calls", calls) / 2.0
        for _ in range(2):
            steps = 0 if self._box.closed else int(0.1 * share / WALKS)
            self._look_around(steps)
            self._refine(share - steps * WALKS)

    def _look_around(self, steps: int) -> bool:
        """Walks by the policy of Q̂, which may enlarge the box; whether they did."""
        before = self._box
        self._box = before.enlarged(visited(self._model, self._oracle, steps, self.grid))
        return self._box.exceeds(before)

    def _refine(self, calls: float) -> None:
        """Solves a grid that takes at most that many calls, if that tells anything new."""
        before, samples, actions = self.grid, self.samples, self._model.actions
        growth = max(1.0, calls / (self.nodes * actions * samples))
        if self._model.max_successors != 1:
            samples = int(samples * math.sqrt(growth))
        nodes = min(calls / (actions * samples), 200_000.0)
        finer = max(1.0, nodes / self.nodes) ** (1.0 / len(before.shape))
        # Where the middle of the box was a node, it stays one.
        added = ((before.shape * finer).astype(np.int64) - before.shape) // 2 * 2
        larger = (self._box.low != before.low).any() or (self._box.high != before.high).any()
        cells = before.shape - 1 + added
        if _nodes(cells) * actions * samples <= calls and (larger or added.any() or samples > self.samples):
            self._solve(cells, samples)

    def _solve(self, cells: Ints, samples: int) -> None:
        self.grid = _solved(self._model, self._backup, self._oracle, self._box, cells, samples, self.grid)
        self.samples = samples

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`."""
        box, grid = self._box, self.grid
        return self._oracle.saved() | {
            "box": np.array([box.low, box.high]),  # [2, d]; walks may have enlarged it since the grid was solved
            "grid": np.array([grid.low, grid.high]),
            "shape": grid.shape.copy(),
            "table": grid.table.copy(),
            "samples": np.array([self.samples]),
        }

    def restore(self, arrays: Readable) -> None:
        """Takes on the state of a reference that was built with the same arguments, whatever it was before.

        Raises:
            ValueError: the arrays are not those of such a reference, which is then as it was.
        """
        self._box, self.samples, self.grid = _read(arrays, self._box, self._model, self._oracle)

    def __repr__(self) -> str:
        shape = "×".join(str(nodes) for nodes in self.grid.shape)
        return f"GridReference({shape} nodes, samples={self.samples}, calls={self.calls}{reason(self.why)})"


def _read(arrays: Readable, box: Box, model: GenerativeModel, oracle: Oracle) -> tuple[Box, int, Grid]:
    """Box, samples and grid of a reference that was built with the given ends of this box; sets the oracle."""
    corners, ends = (finite(arrays, name, 2, box.dimensions).copy() for name in ("box", "grid"))
    shape = piece(arrays, "shape", np.int64, box.dimensions)
    require((shape >= 2).all(), "'shape' must be 2 at least")
    nodes = math.prod(shape.tolist())
    table = finite(arrays, "table", nodes, model.actions)
    samples = int(piece(arrays, "samples", np.int64, 1)[0])
    made = int(piece(arrays, "stream", np.uint64, CALLS + 1)[CALLS])
    require(1 <= samples <= made // (nodes * model.actions), f"'samples' must be those of {made} calls, got {samples}")
    box.moved(ends[0], ends[1])
    inside = (corners[0] <= ends[0]) & (ends[1] <= corners[1])
    require(inside.all(), "'grid' must be inside the box")
    moved = box.moved(corners[0], corners[1])
    oracle.restore(arrays)
    return moved, samples, make_grid(ends[0], ends[1], shape, table)


# What building takes


class _Effort(NamedTuple):
    """The sizes of all that building does, so that its price is known before the first call."""

    cells: Ints  # of the grid, [d]
    samples: int  # simulator calls at each node and action
    steps: int  # of the walks that look for the box: at random, by coarse grids, by the grid
    rounds: int  # coarse grids, at most
    coarse: Ints  # their cells, [d]

    def calls(self, actions: int, closed: bool) -> int:
        """Simulator calls, at most. Where walks with the grid enlarge the box, the grid is solved again."""
        each = actions * self.samples
        if closed:
            return _nodes(self.cells) * each
        walks = (2 + self.rounds) * WALKS * self.steps
        return walks + each * (2 * _nodes(self.cells) + self.rounds * _nodes(self.coarse))


def _effort(
    model: GenerativeModel, box: Box, cells: int | Sequence[int] | None, samples: int | None, limit: int
) -> _Effort:
    """The largest effort of those below that takes no more calls than there may be."""
    for effort in _efforts(model, box.dimensions, cells, samples):
        needed = effort.calls(model.actions, box.closed)
        if needed <= limit:
            return effort
    raise TooFewCallsError(
        f"a grid of {effort.cells.tolist()} cells may take {needed} simulator calls, more than the {limit} that are "
        "allowed: give fewer cells or samples, a box, or more calls"
    )


def _efforts(
    model: GenerativeModel, dimensions: int, cells: int | Sequence[int] | None, samples: int | None
) -> Iterator[_Effort]:
    """Efforts in descending order; what the user has given does not change.

    Each has half of the nodes and of the steps of the one before. Where successors are random, their samples are
    halved every other time. The last ones look for the box by random walks only, with a grid of one cell.
    """
    given = None if samples is None else arguments.whole("samples", samples)
    most = 1 if model.max_successors == 1 else 8
    # Three effective horizons 1/(1−γ), but not more than 300 steps.
    steps = min(300, math.ceil(3.0 / (1.0 - model.discount)))
    most_nodes = 10_000
    for halvings in range(most_nodes.bit_length() + 1):
        nodes, size = most_nodes >> halvings, given or max(1, most >> halvings // 2)
        fine = _even_cells(nodes, dimensions) if cells is None else _given_cells(cells, dimensions)
        yield _Effort(fine, size, max(1, steps >> halvings), 5, _even_cells(nodes // 5, dimensions))
    for least in (2, 1):
        fine = np.full(dimensions, least) if cells is None else _given_cells(cells, dimensions)
        yield _Effort(fine, given or 1, 1, 0, fine)


def _nodes(cells: Ints) -> int:
    return math.prod((cells + 1).tolist())


def _even_cells(nodes: int, dimensions: int) -> Ints:
    """Cells along each axis for about that many nodes, [d]: even numbers, so that the middle of the box is a node."""
    return np.full(dimensions, 2 * max(1, math.ceil((nodes ** (1.0 / dimensions) - 1.0) / 2.0)))


def _given_cells(cells: int | Sequence[int], dimensions: int) -> Ints:
    """Cells along each axis that a user has given, [d]."""
    counts = np.broadcast_to(np.asarray(cells), (dimensions,)) if np.ndim(cells) == 0 else np.asarray(cells)
    if counts.shape != (dimensions,):
        raise ValueError(f"cells must be a whole number or {dimensions} of them, got {cells!r}")
    return np.array([arguments.whole("cells", count) for count in counts.tolist()])


# Building


def _found(box: Box, model: GenerativeModel, backup: Backup, oracle: Oracle, effort: _Effort) -> Box:
    """What walks from the initial state visit: random ones, then some by the policies of coarse grids.

    To a coarse grid everything outside its box looks good, so that its policy enlarges the box where it can.
    """
    box = box.enlarged(visited(model, oracle, effort.steps))
    for _ in range(effort.rounds):
        coarse = _solved(model, backup, oracle, box, effort.coarse, effort.samples, optimistic=True)
        before, box = box, box.enlarged(visited(model, oracle, effort.steps, coarse))
        if not box.exceeds(before):
            break
    return box


def _solved(
    model: GenerativeModel,
    backup: Backup,
    oracle: Oracle,
    box: Box,
    cells: Ints,
    samples: int,
    before: Grid | None = None,
    optimistic: bool = False,
) -> Grid:
    """The grid of a box, simulated and solved.

    A grid from before says where to begin. A state outside the box has the value of the nearest one in the box; or, to
    the optimistic, the largest value that there is.
    """
    actions = model.actions
    shape = cells + 1
    nodes = grid_nodes(box.low, box.high, shape).astype(box.dtype)
    low, high = curvature.value_interval(model, backup)
    start = np.full(len(nodes), np.mean([low, high])) if before is None else backup.value(before.at(nodes), nodes)
    q = np.repeat(start[:, None], actions, axis=1)
    grid = Grid(*(frozen(part) for part in (box.low, box.high, shape, q)))
    mixture = backup if is_mixture(backup) else HardMax()  # which stands in for a backup that is called
    weights = np.atleast_2d(mixture.weights(nodes))
    soft = Softmaxes(mixture.temperature, frozen(mixture.shifts(actions).T), frozen(weights))
    bonus = model.discount * high if optimistic else None
    rewards, chances, successors = _simulated(oracle, box, grid, nodes, actions, samples, bonus)
    chain = Chances(rewards, chances, successors, np.arange(len(nodes)), model.discount, soft)
    # To a ten-thousandth of the width of the value interval: the grid itself is coarser.
    called = None if is_mixture(backup) else lambda q: backup.value(q, nodes)
    iterate(chain, q, start, 1e-4 * curvature.value_scale(model, backup), called)
    return grid


def _simulated(
    oracle: Oracle, box: Box, grid: Grid, nodes: States, actions: int, samples: int, bonus: float | None
) -> tuple[Floats, Floats, Ints]:
    """Every node and action simulated: mean rewards [n·K], and the nodes that follow, with their chances [n·K, B].

    Where there is a bonus, leaving the box ends the episode with it.
    """
    pairs = len(nodes) * actions
    batch = max(1, (1 << 16) // samples)  # 65,536 simulator calls at a time bound the memory
    rewards = np.empty(pairs)
    parts = []
    for first in range(0, pairs, batch):
        entries = np.arange(first, min(first + batch, pairs))
        repeated = np.repeat(entries, samples)
        transition = oracle.sample(nodes[repeated // actions], repeated % actions)
        points = box.wrapped(np.ascontiguousarray(transition.next_states, dtype=np.float64))
        gains, ends = transition.rewards, transition.terminals
        if bonus is not None:
            left = ((points < box.low) | (points > box.high)).any(axis=1) & ~ends
            gains, ends = gains + bonus * left, ends | left
        rewards[entries] = gains.reshape(-1, samples).mean(axis=1)
        chances, successors, width = spread(grid, points, ends, samples)
        parts.append((chances[:, :width].copy(), successors[:, :width].copy()))
    width = max(chances.shape[1] for chances, _ in parts)
    together = np.zeros((pairs, width)), np.zeros((pairs, width), dtype=np.int64)
    for number, part in enumerate(parts):
        for target, column in zip(together, part, strict=True):
            target[number * batch : number * batch + len(column), : column.shape[1]] = column
    return rewards, *together
