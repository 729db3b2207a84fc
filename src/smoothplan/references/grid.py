"""A reference from an aggregation of continuous states: soft value iteration on a regular grid over a box."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan import arguments, curvature
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup
from smoothplan.engines.grids import MOST_DIMENSIONS, Grid, grid_nodes, make_grid
from smoothplan.engines.kernels import Softmaxes
from smoothplan.models.base import GenerativeModel, Oracle, States
from smoothplan.references.iteration import Chances, iterate
from smoothplan.search.saved import (
    Arrays,
    Readable,
    finite,
    oracle_arrays,
    piece,
    read_streams,
    require,
    set_streams,
)
from smoothplan.streams import CALLS, Stream, compiled

NODES = 10_000
"""Nodes of a grid, about, where nobody says how many cells there are."""

SAMPLES = 8
"""Simulator calls at each node and action, where successors are random."""

ACCURACY = 1e-4
"""The accuracy of value iteration, as a fraction of the width of the value interval. The grid itself is coarser."""

BATCH = 1 << 16
"""Simulator calls at a time."""

WALKS = 32
"""Walks that look for the box, at once."""

WALK_HORIZONS = 3.0
"""Their length, in units of the effective horizon 1/(1−γ), ..."""

LONGEST_WALK = 300
"""... but not longer than this."""

ROUNDS = 5
"""Times that walks by the policy of a coarse grid, to which everything outside its box looks good, may enlarge it."""

COARSE_NODES = 2_000
"""Nodes of those grids, about."""

FLAT = 1e-3
"""The width, relative to its place, that an axis gets along which nothing moves, so that there is a grid."""

GROWN = 0.05
"""A box has grown if one of its sides has, by more than this fraction of its width."""

CURIOSITY = 0.1
"""How often a walk by a policy takes a random action instead."""

IMPROVEMENT = 0.1
"""The part of the calls of an improvement that goes into walks."""


class GridReference:
    """Q̂ on a regular grid, between whose nodes it is multilinear.

    Every node and action is simulated, once where there is one successor. What comes of it is spread over the corners
    of its cell, by the weights of multilinear interpolation, and the finite model that this makes is solved. Outside
    the box, Q̂ is that of the nearest point of the box. It is a state: `improve` changes it.

    Use `GridReference.build`.
    """

    def __init__(
        self, model: GenerativeModel, backup: Backup, oracle: Oracle, box: "_Box", samples: int, grid: Grid
    ) -> None:
        self._model, self._backup, self._oracle, self._box = model, backup, oracle, box
        self.samples = samples
        self.grid = grid

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
            cells: of the grid, along each axis or [d]; by default about 10,000 nodes in all.
            samples: simulator calls at each node and action; one where there is one successor, else eight by default.
            periodic: axes that close on themselves, such as angles. Their ends in `low` and `high` are the same place;
                what reads `grid` directly must bring states between them, as most simulators do.
            seed: of the simulator calls.
            max_calls: an error, before the calls are made, if the grid would take more.
            saved: what `saved` gave, of a reference that was built with the same arguments. It takes no simulator call.
            oracle: makes and counts the simulator calls; by default one of the seed.
        """
        box = _Box.given(model, low, high, periodic)
        dimensions = box.dimensions
        counts = _cells(cells, dimensions)
        if samples is None:
            samples = 1 if model.max_successors == 1 else SAMPLES
        samples = arguments.whole("samples", samples)
        oracle = oracle or Oracle(model, seed)
        _check_price(counts, model.actions * samples, max_calls)
        if saved is not None:
            state = _read(saved, box, model)
            set_streams(oracle, state.streams)
            return cls(model, backup, oracle, state.box, state.samples, state.grid)
        if not box.closed:
            box = box.found(model, backup, oracle, samples)
        grid = _solved(model, backup, oracle, box, counts, samples)
        reference = cls(model, backup, oracle, box, samples, grid)
        if not box.closed and reference._look_around(_walk_length(model)):
            reference._solve(counts, samples)
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
    def low(self) -> Floats:
        """The lower corner of the box, [d]."""
        return self.grid.low

    @property
    def high(self) -> Floats:
        """The upper corner of the box, [d]."""
        return self.grid.high

    @property
    def periodic(self) -> tuple[int, ...]:
        """The axes that close on themselves: `q` knows, `grid` does not."""
        return self._box.periodic

    def q(self, states: States) -> Floats:
        """Interpolated estimates, [n, K]."""
        return self.grid.at(self._box.wrapped(np.asarray(states)))

    def improve(self, calls: int, max_nodes: int = 200_000) -> None:
        """Makes the grid finer, by at most a number of simulator calls; by none if they are too few to help.

        It does so twice, with half of the calls each. Where the box was found by walks, walks by the policy of Q̂ come
        first, and may enlarge it. Where successors are random, half of the growth goes into samples.

        Args:
            calls: more simulator calls.
            max_nodes: a limit on the size of the grid.
        """
        share = arguments.whole("calls", calls) / 2.0
        for _ in range(2):
            walks = 0 if self._box.closed else max(1, int(IMPROVEMENT * share / WALKS))
            rest = share - walks * WALKS
            if rest < self.nodes * self._model.actions * self.samples:
                return
            self._look_around(walks)
            self._refine(rest, max_nodes)

    def _look_around(self, steps: int) -> bool:
        """Walks by the policy of Q̂, which may enlarge the box; whether they did."""
        before = self._box
        self._box = before.enlarged(_by_policy(self._model, self._oracle, self.grid, steps))
        return self._box.exceeds(before)

    def _refine(self, calls: float, max_nodes: int) -> None:
        """Solves a grid that takes so many calls, if that tells anything new."""
        before, samples = self.grid, self.samples
        growth = max(1.0, calls / (self.nodes * self._model.actions * samples))
        if self._model.max_successors != 1:
            samples = int(samples * math.sqrt(growth))
        nodes = min(calls / (self._model.actions * samples), float(max_nodes))
        finer = max(1.0, nodes / self.nodes) ** (1.0 / len(before.shape))
        # Where the middle of the box was a node, it stays one.
        added = ((before.shape * finer).astype(np.int64) - before.shape) // 2 * 2
        larger = (self._box.low != before.low).any() or (self._box.high != before.high).any()
        if larger or added.any() or samples > self.samples:
            self._solve(before.shape - 1 + added, samples)

    def _solve(self, cells: Ints, samples: int) -> None:
        self.grid = _solved(self._model, self._backup, self._oracle, self._box, cells, samples, self.grid)
        self.samples = samples

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`."""
        box, grid = self._box, self.grid
        return oracle_arrays(self._oracle) | {
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
        state = _read(arrays, self._box, self._model)
        self._box, self.samples, self.grid = state.box, state.samples, state.grid
        set_streams(self._oracle, state.streams)

    def __repr__(self) -> str:
        shape = "×".join(str(nodes) for nodes in self.grid.shape)
        return f"GridReference({shape} nodes, samples={self.samples}, calls={self.calls})"


class _Box:
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
    ) -> "_Box":
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

    def enlarged(self, visited: Floats) -> "_Box":
        """The smallest box that also contains the box [2, d] of visited states, where its ends are not given.

        There is no margin: beyond what was visited there may be walls, and states that a simulator does not know.
        """
        low = np.where(self._fixed[0], self.low, np.minimum(self.low, visited[0]))
        high = np.where(self._fixed[1], self.high, np.maximum(self.high, visited[1]))
        flat = (low == high) * FLAT * np.maximum(1.0, np.abs(low)) / 2.0
        low, high = np.where(self._fixed[0], low, low - flat), np.where(self._fixed[1], high, high + flat)
        return _Box(low, high, self._fixed, (), self.dtype)

    def found(self, model: GenerativeModel, backup: Backup, oracle: Oracle, samples: int) -> "_Box":
        """What walks from the initial state visit: random ones, then some by the policies of coarse grids."""
        steps = _walk_length(model)
        box = self.enlarged(_at_random(model, oracle, steps))
        cells = _cells(None, box.dimensions, COARSE_NODES)
        for _ in range(ROUNDS):
            coarse = _solved(model, backup, oracle, box, cells, samples, hopeful=True)
            before, box = box, box.enlarged(_by_policy(model, oracle, coarse, steps))
            if not box.exceeds(before):
                break
        return box

    def moved(self, low: Floats, high: Floats) -> "_Box":
        """The same box with other ends, where they are not given; those that are must be the same."""
        require((low < high).all(), "the lower corner of a box must be below the upper one")
        with np.errstate(over="ignore"):
            width = high - low
            usual = np.isfinite(width) & np.isfinite(np.iinfo(np.int64).max / width)  # for any number of cells
        require(usual.all(), "the width of a box must not be out of all proportion")
        given = np.where(self._fixed, [self.low, self.high], [low, high])
        require((given == [low, high]).all(), "the corners of a box must be those that were given")
        return _Box(low, high, self._fixed, self.periodic, self.dtype)

    def exceeds(self, other: "_Box") -> bool:
        """Whether it is larger than another box by more than a little."""
        little = GROWN * (other.high - other.low)
        return bool(((other.low - self.low > little) | (self.high - other.high > little)).any())


class _State(NamedTuple):
    """What a grid reference becomes and gives from here on depends on this, and on what it was built with."""

    streams: tuple[np.random.Generator, Stream]
    box: _Box
    samples: int
    grid: Grid


def _read(arrays: Readable, box: _Box, model: GenerativeModel) -> _State:
    """The state of a reference that was built for a model, with the ends of this box that are given."""
    streams = read_streams(arrays)
    corners, ends = (finite(arrays, name, 2, box.dimensions).copy() for name in ("box", "grid"))
    shape = piece(arrays, "shape", np.int64, box.dimensions)
    require((shape >= 2).all(), "'shape' must be 2 at least")
    nodes = math.prod(shape.tolist())
    table = finite(arrays, "table", nodes, model.actions)
    samples = int(piece(arrays, "samples", np.int64, 1)[0])
    made = int(streams[1][CALLS])
    require(1 <= samples <= made // (nodes * model.actions), f"'samples' must be those of {made} calls, got {samples}")
    box.moved(ends[0], ends[1])
    inside = (corners[0] <= ends[0]) & (ends[1] <= corners[1])
    require(inside.all(), "'grid' must be inside the box")
    return _State(streams, box.moved(corners[0], corners[1]), samples, make_grid(ends[0], ends[1], shape, table))


def default_price(model: GenerativeModel) -> int:
    """Simulator calls of `GridReference.build` with nothing but a model, at most."""
    dimensions = len(np.asarray(model.initial_state))
    fine, coarse = (int(np.prod(_cells(None, dimensions, nodes) + 1)) for nodes in (NODES, COARSE_NODES))
    samples = 1 if model.max_successors == 1 else SAMPLES
    walks = (2 + ROUNDS) * WALKS * _walk_length(model)
    return walks + model.actions * samples * (2 * fine + ROUNDS * coarse)


def _walk_length(model: GenerativeModel) -> int:
    return min(LONGEST_WALK, math.ceil(WALK_HORIZONS / (1.0 - model.discount)))


def _cells(cells: int | Sequence[int] | None, dimensions: int, nodes: int = NODES) -> Ints:
    """Cells along each axis, [d]; an even number by default, so that the middle of the box is a node."""
    if cells is None:
        return np.full(dimensions, 2 * max(1, math.ceil((nodes ** (1.0 / dimensions) - 1.0) / 2.0)))
    counts = np.broadcast_to(np.asarray(cells), (dimensions,)) if np.ndim(cells) == 0 else np.asarray(cells)
    if counts.shape != (dimensions,):
        raise ValueError(f"cells must be a whole number or {dimensions} of them, got {cells!r}")
    return np.array([arguments.whole("cells", count) for count in counts.tolist()])


def _check_price(cells: Ints, each: int, max_calls: int) -> None:
    price = math.prod((cells + 1).tolist()) * each
    if price > arguments.whole("max_calls", max_calls):
        raise ValueError(
            f"a grid of {cells.tolist()} cells takes {price} simulator calls, more than max_calls={max_calls}: "
            "give fewer cells or samples, or a larger max_calls"
        )


def _visits(start: Any, oracle: Oracle, steps: int, choose: Any) -> Floats:
    """The box of what walks visit that start again where they end, [2, d]; `choose` gives actions at states."""
    states = np.repeat(start[None], WALKS, axis=0)
    box = np.array([start, start], dtype=np.float64)
    for _ in range(steps):
        transition = oracle.sample(states, choose(states))
        alive = ~transition.terminals
        if alive.any():
            reached = transition.next_states[alive]
            box = np.array([np.minimum(box[0], reached.min(axis=0)), np.maximum(box[1], reached.max(axis=0))])
        states = np.where(alive[:, None], transition.next_states, start)
    return box


def _at_random(model: GenerativeModel, oracle: Oracle, steps: int) -> Floats:
    """Random walks, some of which keep to an action for long: those get further."""
    changes = np.geomspace(1.0, min(1.0, 4.0 / steps), WALKS)
    actions = oracle.rng.integers(model.actions, size=WALKS)

    def choose(states: States) -> Ints:
        nonlocal actions
        changed = oracle.rng.random(WALKS) < changes
        actions = np.where(changed, oracle.rng.integers(model.actions, size=WALKS), actions)
        return actions

    return _visits(np.asarray(model.initial_state), oracle, steps, choose)


def _by_policy(model: GenerativeModel, oracle: Oracle, grid: Grid, steps: int) -> Floats:
    """Walks by the greedy policy of a grid, with some random actions."""

    def choose(states: States) -> Ints:
        curious = oracle.rng.random(WALKS) < CURIOSITY
        random = oracle.rng.integers(model.actions, size=WALKS)
        return np.where(curious, random, grid.at(states).argmax(axis=1))

    return _visits(np.asarray(model.initial_state), oracle, steps, choose)


def _solved(
    model: GenerativeModel,
    backup: Backup,
    oracle: Oracle,
    box: _Box,
    cells: Ints,
    samples: int,
    before: Grid | None = None,
    hopeful: bool = False,
) -> Grid:
    """The grid of a box, simulated and solved.

    A grid from before says where to begin. A state outside the box has the value of the nearest one in the box; or, to
    the hopeful, the largest value that there is.
    """
    actions = model.actions
    shape = cells + 1
    nodes = grid_nodes(box.low, box.high, shape).astype(box.dtype)
    start = _start(model, backup, nodes, before)
    q = np.repeat(start[:, None], actions, axis=1)
    grid = Grid(*(arguments.frozen(part) for part in (box.low, box.high, shape, q)))
    weights = np.atleast_2d(backup.weights(nodes))
    soft = Softmaxes(backup.temperature, arguments.frozen(backup.shifts(actions).T), arguments.frozen(weights))
    low, high = curvature.value_interval(model, backup)
    bonus = model.discount * high if hopeful else None
    rewards, chances, successors = _simulated(oracle, box, grid, nodes, actions, samples, bonus)
    chain = Chances(rewards, chances, successors, np.arange(len(nodes)), model.discount, soft)
    iterate(chain, q, start, ACCURACY * max(high - low, np.finfo(np.float64).tiny))
    return grid


def _start(model: GenerativeModel, backup: Backup, nodes: States, before: Grid | None) -> Floats:
    """Values to begin with, [n]."""
    if before is not None:
        return backup.value(before.at(nodes), nodes)
    return np.full(len(nodes), np.mean(curvature.value_interval(model, backup)))


def _simulated(
    oracle: Oracle, box: _Box, grid: Grid, nodes: States, actions: int, samples: int, bonus: float | None
) -> tuple[Floats, Floats, Ints]:
    """Every node and action simulated: mean rewards [n·K], and the nodes that follow, with their chances [n·K, B].

    Where there is a bonus, leaving the box ends the episode with it.
    """
    pairs = len(nodes) * actions
    batch = max(1, BATCH // samples)
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
        chances, successors, width = _spread(grid, points, ends, samples)
        parts.append((chances[:, :width].copy(), successors[:, :width].copy()))
    width = max(chances.shape[1] for chances, _ in parts)
    together = np.zeros((pairs, width)), np.zeros((pairs, width), dtype=np.int64)
    for number, part in enumerate(parts):
        for target, column in zip(together, part, strict=True):
            target[number * batch : number * batch + len(column), : column.shape[1]] = column
    return rewards, *together


@compiled
def _locate(grid: Grid, point: Floats, bases: Ints, fractions: Floats) -> None:
    """The cell of a point [d], brought into the box: its lowest corner, and where in the cell the point is, [d]."""
    for axis in range(len(point)):
        cells = grid.shape[axis] - 1
        place = (point[axis] - grid.low[axis]) / (grid.high[axis] - grid.low[axis]) * cells
        place = min(max(place, 0.0), float(cells))
        bases[axis] = min(int(place), cells - 1)
        fractions[axis] = place - bases[axis]


@compiled
def _corner(grid: Grid, corner: int, bases: Ints, fractions: Floats) -> tuple[int, float]:
    """A corner of a cell, numbered by bits, as a node, and its weight."""
    node, weight = 0, 1.0
    for axis in range(len(bases)):
        upper = (corner >> axis) & 1
        node = node * grid.shape[axis] + bases[axis] + upper
        weight *= fractions[axis] if upper else 1.0 - fractions[axis]
    return node, weight


@partial(compiled, allocates=True)
def _spread(grid: Grid, points: Floats, ends: NDArray[np.bool_], samples: int) -> tuple[Floats, Ints, int]:
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
            _locate(grid, points[row], bases, fractions)
            for corner in range(1 << dimensions):
                node, weight = _corner(grid, corner, bases, fractions)
                if weight > 0.0:
                    place = 0
                    while place < width and nodes[pair, place] != node:
                        place += 1
                    width = max(width, place + 1)
                    nodes[pair, place] = node
                    chances[pair, place] += weight / samples
        widest = max(widest, width)
    return chances, nodes, widest
