"""A reference on a regular grid of continuous states: soft value iteration at its nodes, interpolated between them."""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.compiling import compiled
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.reference import FiniteModel, TooFewCallsError, iterate, reason
from smoothplan.models.model import (
    GenerativeModel,
    Oracle,
    States,
    declares_rewards,
    effective_horizon,
    horizon_of,
    summed,
)
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, is_mixture
from smoothplan.theory.softmaxes import Softmaxes

MOST_DIMENSIONS = 6
"""A lookup visits all 2^d corners of a cell."""

WALKS = 32
"""Walks that advance together: simulator calls of one step."""

COARSE_GRIDS = 5
"""Solved to find the box, at most."""


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
        """Q̂ at states [n, d], [n, K]; outside the box, at its nearest point."""
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


@partial(compiled, allocates=True)
def interpolate(grid: Grid, states: Floats, gap: float, out: Floats) -> None:
    """Q̂ at states [n, d] into [n, K], no action further than a gap below the best; see `Grid.at`.

    Unsigned numbers spare Numba the test for negative indices.
    """
    dimensions, values = len(grid.low), grid.table.reshape(-1)
    # From a node to the next one along each axis, in values; cells per unit of length; the last node, in cells.
    strides, scales, ends = np.empty(dimensions, dtype=np.uint64), np.empty(dimensions), np.empty(dimensions)
    stride = grid.table.shape[1]
    for axis in range(dimensions - 1, -1, -1):
        strides[axis] = stride
        scales[axis] = (grid.shape[axis] - 1) / (grid.high[axis] - grid.low[axis])
        ends[axis] = grid.shape[axis] - 1
        stride *= grid.shape[axis]
    inside = np.nextafter(ends, 0.0)
    # From the first corner of a cell to the half of its 2^d corners that do not differ in the last axis.
    corners = np.zeros(1 << (dimensions - 1), dtype=np.uint64)
    for axis in range(dimensions - 1):
        for corner in range(1 << axis):
            corners[(1 << axis) + corner] = corners[corner] + strides[axis]
    weights = np.empty(1 << (dimensions - 1))
    actions, last = np.uint64(out.shape[1]), np.uint64(dimensions - 1)
    for row in range(np.uint64(len(states))):
        weights[0] = 1.0
        first, known, along = np.uint64(0), np.uint64(1), 0.0
        for axis in range(np.uint64(dimensions)):
            place = min(max((states[row, axis] - grid.low[axis]) * scales[axis], 0.0), ends[axis])
            cell = np.int64(min(place, inside[axis]))
            first += np.uint64(cell) * strides[axis]
            along = place - cell
            if axis < last:  # each axis doubles the corners and splits their weights
                for corner in range(known):
                    beyond = weights[corner] * along
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


class GridReference:
    """Q̂ on a regular grid, multilinear between its nodes.

    Every node and action is simulated, once if there is one successor. The next states are spread over the corners of
    their cells, by the weights of multilinear interpolation, and the resulting finite model is solved. Outside the box,
    Q̂ is that of the nearest point of the box. The reference is mutable: `improve` changes it.

    Use `GridReference.build`. `why` says how a default reference was chosen; it is empty for any other.
    """

    why = ""
    grid: Grid
    samples: int  # simulator calls at each node and action

    def __init__(
        self, model: GenerativeModel, backup: Backup, oracle: Oracle, low: ArrayLike | None, high: ArrayLike | None
    ) -> None:
        self._model, self._backup, self._oracle, self._given = model, backup, oracle, low is not None
        self._rewards = np.zeros(2)  # the least and the largest seen, and 0
        if getattr(model, "legal", None) is not None:
            raise ValueError("model must have the same actions everywhere for a grid, got one with legal=...")
        if self._given != (high is not None):
            raise ValueError(f"low and high must be given together, got {low!r} and {high!r}")
        if low is None and model.initial_state is None:
            raise ValueError("low and high must be given, because this model declares no initial_state")
        start = np.asarray(low, np.float64) if model.initial_state is None else np.asarray(model.initial_state)
        if start.ndim != 1 or start.dtype.kind != "f" or not 1 <= len(start) <= MOST_DIMENSIONS:
            raise ValueError(
                f"a grid needs states that are vectors of 1 to {MOST_DIMENSIONS} floats, got dtype {start.dtype} and "
                f"shape {start.shape}"
            )
        self._dtype, ends = start.dtype, [start, start]
        for place, (name, end) in enumerate((("low", low), ("high", high))):
            ends[place] = start if end is None else arguments.array(name, end)
            if ends[place].shape != start.shape:
                raise ValueError(f"{name} must have shape {start.shape}, got {ends[place].shape}")
        self._box = np.array(ends, dtype=np.float64)  # [2, d]
        wrong = self._given & (self._box[0] >= self._box[1])
        if wrong.any():
            axis = int(np.argmax(wrong))
            low, high = self._box[:, axis]
            raise ValueError(f"low must be below high, got {low:g} and {high:g} along axis {axis}")

    @classmethod
    def build(
        cls,
        model: GenerativeModel,
        backup: Backup,
        *,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        cells: int | None = None,
        samples: int | None = None,
        seed: int = 0,
        max_calls: int = 2_000_000,
        saved: Readable | None = None,
        oracle: Oracle | None = None,
    ) -> "GridReference":
        """A reference built from simulator calls.

        Args:
            model: a simulator whose states are vectors of at most six floats.
            backup: F.
            low, high: the box, [d] each; by default the states that walks from the initial state visit. The simulator
                is asked about all of the box: give one that it knows if it refuses some states.
            cells: of the grid, along each axis; by default about 10,000 nodes in all, or as many as `max_calls` allows.
            samples: simulator calls at each node and action; by default one if there is one successor, else eight, or
                as many as `max_calls` allows.
            seed: of the simulator calls.
            max_calls: simulator calls, at most, walks included.
            saved: the arrays of `saved`, of a reference that was built with the same arguments. They restore it without
                any simulator call.
            oracle: makes the calls, and so counts them even if an error ends the building; by default one of `seed`.

        Raises:
            TooFewCallsError: the grid takes more than `max_calls`; no call was made.
        """
        oracle = Oracle(model, seed, role="reference") if oracle is None else oracle
        reference = cls(model, backup, oracle, low, high)
        if saved is not None:
            reference.restore(saved)
            return reference
        fine, coarse, samples, steps = reference._sizes(cells, samples, arguments.whole("max_calls", max_calls))
        if low is None:
            # Walks at random, then by coarse grids, which take everything outside their box for good: their policies
            # enlarge the box if they can.
            reference._look_around(steps)
            for _ in range(COARSE_GRIDS):
                if not reference._look_around(steps, reference._solved(coarse, samples, optimistic=True)):
                    break
        reference.grid, reference.samples = reference._solved(fine, samples), samples
        if low is None and reference._look_around(steps, reference.grid):
            reference.grid = reference._solved(fine, samples, reference.grid)
        return reference

    @property
    def calls(self) -> int:
        """Simulator calls made, walks included."""
        return self._oracle.calls

    @property
    def nodes(self) -> int:
        """Nodes of the grid."""
        return len(self.grid.table)

    def q(self, states: States) -> Floats:
        """Interpolated estimates, [n, K]."""
        return self.grid.at(states)

    def improve(self, calls: int) -> None:
        """Makes the grid finer, by at most `calls` more simulator calls; by none if they are too few to help.

        It does so twice, with half of the calls each. If the box was found by walks, walks by the policy of Q̂ come
        first, on a tenth of the calls, and may enlarge it. If successors are random, half of the growth goes into
        samples. A grid has no more than 200,000 nodes.
        """
        share = arguments.whole("calls", calls) / 2.0
        for _ in range(2):
            steps = 0 if self._given else int(0.1 * share / WALKS)
            if steps > 0:
                self._look_around(steps, self.grid)
            left, before, samples, actions = share - steps * WALKS, self.grid, self.samples, self._model.actions
            growth = max(1.0, left / (self.nodes * actions * samples))
            if self._model.max_successors != 1:
                samples = int(samples * math.sqrt(growth))
            nodes = min(left / (actions * samples), 200_000.0)
            finer = max(1.0, nodes / self.nodes) ** (1.0 / len(before.shape))
            # If the middle of the box was a node, it stays one.
            added = ((before.shape * finer).astype(np.int64) - before.shape) // 2 * 2
            larger = (self._box != [before.low, before.high]).any()
            cells = before.shape - 1 + added
            if _nodes(cells) * actions * samples <= left and (larger or added.any() or samples > self.samples):
                self.grid, self.samples = self._solved(cells, samples, before), samples

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`."""
        grid = self.grid
        own: dict[str, Any] = {"grid": [grid.low, grid.high], "shape": grid.shape, "table": grid.table}
        # Walks may have enlarged the box since the grid was solved.
        own |= {"box": self._box, "samples": [self.samples], "rewards": self._rewards}
        return self._oracle.saved() | {name: np.array(each) for name, each in own.items()}

    def restore(self, arrays: Readable) -> None:
        """Takes on the state of a reference that was built with the same arguments, whatever it was before."""
        self._oracle.restore(arrays)
        self._box, self.samples = arrays["box"].copy(), int(arrays["samples"][0])
        self._rewards = arrays["rewards"].copy()
        self.grid = make_grid(arrays["grid"][0], arrays["grid"][1], arrays["shape"], arrays["table"])

    def __repr__(self) -> str:
        shape = "×".join(str(nodes) for nodes in self.grid.shape)
        return f"GridReference({shape} nodes, samples={self.samples}, calls={self.calls}{reason(self.why)})"

    def _sizes(self, cells: int | None, samples: int | None, limit: int) -> tuple[Ints, Ints, int, int]:
        """The grid that the calls pay for: cells of the grid and of coarse ones [d], samples, and steps of walks.

        Each try has half of the nodes and of the steps of the one before. If successors are random, their samples are
        halved every other time. Cells and samples that the user has given do not change.
        """
        model, dimensions = self._model, self._box.shape[1]
        samples = None if samples is None else arguments.whole("samples", samples)
        fixed = None if cells is None else np.full(dimensions, arguments.whole("cells", cells))
        # Three effective horizons, but not more than 300 steps.
        longest, horizon = min(300, math.ceil(summed(3.0, model.discount, horizon_of(model)))), horizon_of(model)
        walks = (2 + COARSE_GRIDS) * WALKS
        # Whole episodes, if half of the calls suffice: a box that lacks their end has values that never end.
        least = 1 if horizon is None else max(1, min(longest, horizon, limit // 2 // walks))
        for halvings in range(15):
            fine, coarse = (_even_cells((10_000 >> halvings) // part, dimensions) for part in (1, COARSE_GRIDS))
            fine, steps = fine if fixed is None else fixed, max(least, longest >> halvings)
            size = samples or max(1, (1 if model.max_successors == 1 else 8) >> halvings // 2)
            needed = _nodes(fine) * model.actions * size
            if not self._given:  # if walks with the grid enlarge the box, it is solved again
                rounds = COARSE_GRIDS * _nodes(coarse) * model.actions * size
                needed = 2 * needed + rounds + walks * steps
            if needed <= limit:
                return fine, coarse, size, steps
        raise TooFewCallsError(
            f"a grid of {fine.tolist()} cells may take {needed} simulator calls, more than the {limit} that are "
            "allowed: give fewer cells or samples, a box, or more calls"
        )

    def _look_around(self, steps: int, grid: Grid | None = None) -> bool:
        """Walks from the initial state, which may enlarge the box; whether it grew much. Ended walks start again.

        They follow the greedy policy of a grid, with a tenth of random actions. Without a grid all actions are random,
        and some walks repeat an action for long: those get further. The box has no margin: beyond what was visited
        there may be walls, and states that a simulator does not know. An axis along which nothing moves gets a width of
        a thousandth of its place, so that there is a grid.
        """
        rng, actions, start = self._oracle.rng, self._model.actions, np.asarray(self._model.initial_state)
        states = np.repeat(start[None], WALKS, axis=0)
        low, high = before = self._box
        if grid is None:
            changes, chosen = np.geomspace(1.0, min(1.0, 4.0 / steps), WALKS), rng.integers(actions, size=WALKS)
        for _ in range(steps):
            changed = rng.random(WALKS) < (0.1 if grid is not None else changes)
            random = rng.integers(actions, size=WALKS)
            chosen = np.where(changed, random, chosen if grid is None else grid.at(states).argmax(axis=1))
            next_states, rewards, ends = self._oracle.sample(states, chosen)
            states = np.where(ends[:, None], start, next_states)
            low, high = np.minimum(low, states.min(axis=0)), np.maximum(high, states.max(axis=0))
            self._note(rewards)
        flat = (low == high) * 1e-3 * np.maximum(1.0, np.abs(low)) / 2.0
        self._box = np.array([low - flat, high + flat])
        return bool((np.abs(self._box - before) > 0.05 * (before[1] - before[0])).any())

    def _note(self, rewards: Floats) -> None:
        """Takes notice of rewards."""
        self._rewards = np.array([min(self._rewards[0], rewards.min()), max(self._rewards[1], rewards.max())])

    @property
    def _span(self) -> tuple[float, float]:
        """The values that are possible; by the rewards seen so far, if their range is not declared."""
        if declares_rewards(self._model):
            return curvature.value_interval(self._model, self._backup)
        low, high = (self._rewards * effective_horizon(self._model)).tolist()
        return low, high + curvature.gap_of_values(self._model, self._backup)[1]

    def _solved(self, cells: Ints, samples: int, before: Grid | None = None, optimistic: bool = False) -> Grid:
        """The grid of the box, simulated and solved. An earlier grid is the start of the iteration.

        A state outside the box has the value of the nearest one in the box or, if optimistic, the largest possible.
        """
        model, backup, shape, (low, high) = self._model, self._backup, cells + 1, self._box
        nodes, values = grid_nodes(low, high, shape).astype(self._dtype), self._span
        start = np.full(len(nodes), np.mean(values)) if before is None else backup.value(before.at(nodes), nodes)
        q = np.repeat(start[:, None], model.actions, axis=1)
        grid = Grid(*(frozen(part) for part in (low, high, shape, q)))
        called = None if is_mixture(backup) else lambda q: backup.value(q, nodes)
        mixture = backup if is_mixture(backup) else HardMax()  # stands in for a backup that is called
        weights = np.atleast_2d(mixture.weights(nodes))
        soft = Softmaxes(mixture.temperature, frozen(mixture.shifts(model.actions).T), frozen(weights))
        outcomes = self._simulated(grid, nodes, samples, model.discount * values[1] if optimistic else None)
        finite = FiniteModel(*outcomes, np.arange(len(nodes)), model.discount, soft)
        # To a ten-thousandth of the width of the value interval: the grid itself is coarser.
        scale = curvature.value_scale(model, backup) if declares_rewards(model) else float(np.ptp(self._span)) or 1.0
        iterate(finite, q, start, 1e-4 * scale, called, horizon_of(model))
        return grid

    def _simulated(self, grid: Grid, nodes: States, samples: int, bonus: float | None) -> tuple[Floats, Floats, Ints]:
        """Every node and action simulated: mean rewards [n·K], and the next nodes with their chances [n·K, B].

        If there is a bonus, leaving the box ends the episode with it.
        """
        actions, pairs = self._model.actions, len(nodes) * self._model.actions
        batch = max(1, (1 << 16) // samples)  # 65,536 simulator calls at a time bound the memory
        rewards, parts = np.empty(pairs), []
        for first in range(0, pairs, batch):
            entries = np.arange(first, min(first + batch, pairs))
            repeated = np.repeat(entries, samples)
            next_states, gains, ends = self._oracle.sample(nodes[repeated // actions], repeated % actions)
            points = np.ascontiguousarray(next_states, dtype=np.float64)
            self._note(gains)
            if bonus is not None:
                left = ((points < grid.low) | (points > grid.high)).any(axis=1) & ~ends
                gains, ends = gains + bonus * left, ends | left
            rewards[entries] = gains.reshape(-1, samples).mean(axis=1)
            chances, successors, width = spread(grid, points, ends, samples)
            parts.append((chances[:, :width].copy(), successors[:, :width].copy()))
        widest = max(chances.shape[1] for chances, _ in parts)
        padded = [[np.pad(array, ((0, 0), (0, widest - array.shape[1]))) for array in part] for part in parts]
        chances, successors = (np.concatenate(column) for column in zip(*padded, strict=True))
        return rewards, chances, successors


def _nodes(cells: Ints) -> int:
    return math.prod((cells + 1).tolist())


def _even_cells(nodes: int, dimensions: int) -> Ints:
    """Cells along each axis for about that many nodes, [d]: even numbers, so that the middle of the box is a node."""
    return np.full(dimensions, 2 * max(1, math.ceil((nodes ** (1.0 / dimensions) - 1.0) / 2.0)))
