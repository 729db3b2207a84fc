"""A reference from an aggregation of continuous states: soft value iteration on a regular grid over a box."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from smoothplan import arguments, curvature
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup, HardMax, is_mixture
from smoothplan.engines.grids import Grid, grid_nodes, make_grid
from smoothplan.engines.kernels import Softmaxes
from smoothplan.models.base import GenerativeModel, Oracle, States
from smoothplan.references.base import TooFewCallsError, reason
from smoothplan.references.box import WALKS, Box, visited
from smoothplan.references.iteration import Chances, iterate, spread
from smoothplan.search.saved import Arrays, Readable, finite, oracle_arrays, piece, read_streams, require, set_streams
from smoothplan.streams import CALLS

NODES = 10_000
"""Nodes of a grid, about, if the number of cells is not given and the calls suffice."""


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
        oracle = Oracle(model, seed) if oracle is None else oracle
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
        self._box, self.samples, self.grid = _read(arrays, self._box, self._model, self._oracle)

    def __repr__(self) -> str:
        shape = "×".join(str(nodes) for nodes in self.grid.shape)
        return f"GridReference({shape} nodes, samples={self.samples}, calls={self.calls}{reason(self.why)})"


def _read(arrays: Readable, box: Box, model: GenerativeModel, oracle: Oracle) -> tuple[Box, int, Grid]:
    """Box, samples and grid of a reference that was built with the given ends of this box; sets the oracle."""
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
    moved = box.moved(corners[0], corners[1])
    set_streams(oracle, streams)
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
    for halvings in range(NODES.bit_length() + 1):
        nodes, size = NODES >> halvings, given or max(1, most >> halvings // 2)
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
        coarse = _solved(model, backup, oracle, box, effort.coarse, effort.samples, hopeful=True)
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
    hopeful: bool = False,
) -> Grid:
    """The grid of a box, simulated and solved.

    A grid from before says where to begin. A state outside the box has the value of the nearest one in the box; or, to
    the hopeful, the largest value that there is.
    """
    actions = model.actions
    shape = cells + 1
    nodes = grid_nodes(box.low, box.high, shape).astype(box.dtype)
    low, high = curvature.value_interval(model, backup)
    start = np.full(len(nodes), np.mean([low, high])) if before is None else backup.value(before.at(nodes), nodes)
    q = np.repeat(start[:, None], actions, axis=1)
    grid = Grid(*(arguments.frozen(part) for part in (box.low, box.high, shape, q)))
    mixture = backup if is_mixture(backup) else HardMax()  # which stands in for a backup that is called
    weights = np.atleast_2d(mixture.weights(nodes))
    soft = Softmaxes(mixture.temperature, arguments.frozen(mixture.shifts(actions).T), arguments.frozen(weights))
    bonus = model.discount * high if hopeful else None
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
