"""A reference on a regular grid of continuous states: soft value iteration at its nodes, interpolated between them."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.jitted import Grid, grid_nodes, make_grid, spread
from smoothplan.chains.reference import FiniteModel, TooFewCallsError, iterate, reason
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.models.vector import JitModel
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, is_mixture
from smoothplan.theory.softmaxes import Softmaxes

MOST_DIMENSIONS = 6
"""A lookup visits all 2^d corners of a cell."""

WALKS = 32
"""Walks that advance together: simulator calls of one step."""


class Box(NamedTuple):
    """A box of states, some ends of which may still have to be found."""

    low: Floats  # [d]
    high: Floats  # [d]
    fixed: NDArray[np.bool_]  # [2, d], which ends the user has given
    periodic: tuple[int, ...]
    dtype: Any

    @classmethod
    def given(
        cls, model: GenerativeModel, low: ArrayLike | None, high: ArrayLike | None, periodic: Sequence[int]
    ) -> "Box":
        """A box with the ends that are given; the others are at the initial state."""
        start = model.initial_state
        if start is None:
            if low is None or high is None:
                raise ValueError("low and high must be given, because this model declares no initial_state")
            start = arguments.array("low", low)
        start = np.asarray(start)
        if start.ndim != 1 or start.dtype.kind != "f":
            raise ValueError(
                f"a grid needs states that are vectors of floats, got dtype {start.dtype} and shape {start.shape}"
            )
        dimensions = len(start)
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"a grid needs states of 1 to {MOST_DIMENSIONS} numbers, got {dimensions}")
        ends = [start if end is None else arguments.array(name, end) for name, end in (("low", low), ("high", high))]
        for name, end in zip(("low", "high"), ends, strict=True):
            if end.shape != (dimensions,):
                raise ValueError(f"{name} must have shape ({dimensions},), got {end.shape}")
        below, above = np.array(ends, dtype=np.float64)
        fixed = np.repeat([[low is not None], [high is not None]], dimensions, axis=1)
        wrong = below >= above if fixed.all() else below > above
        if wrong.any():
            axis = int(np.argmax(wrong))
            raise ValueError(f"low must be below high, got {below[axis]:g} and {above[axis]:g} along axis {axis}")
        axes = tuple(arguments.whole("periodic", axis, least=0, most=dimensions - 1) for axis in periodic)
        if axes and not fixed.all():
            raise ValueError("low and high must be given if axes are periodic: their ends are the same place")
        return cls(below, above, fixed, axes, start.dtype)

    @property
    def closed(self) -> bool:
        """Whether all ends are given."""
        return bool(self.fixed.all())

    def wrapped(self, points: States) -> States:
        """Points [n, d], those along periodic axes brought into the box."""
        if not self.periodic or points.ndim != 2:
            return points
        axes, points = list(self.periodic), points.copy()
        low = self.low[axes]
        points[:, axes] = low + (points[:, axes] - low) % (self.high[axes] - low)
        return points

    def enlarged(self, visited: Floats) -> "Box":
        """The smallest box that also contains the box [2, d] of visited states, except at ends that are given.

        There is no margin: beyond what was visited there may be walls, and states that a simulator does not know. An
        axis along which nothing moves gets a width of a thousandth of its place, so that there is a grid.
        """
        low = np.where(self.fixed[0], self.low, np.minimum(self.low, visited[0]))
        high = np.where(self.fixed[1], self.high, np.maximum(self.high, visited[1]))
        flat = (low == high) * 1e-3 * np.maximum(1.0, np.abs(low)) / 2.0
        return self._replace(
            low=np.where(self.fixed[0], low, low - flat), high=np.where(self.fixed[1], high, high + flat)
        )


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

    def __init__(self, model: GenerativeModel, backup: Backup, oracle: Oracle, box: Box) -> None:
        self._model, self._backup, self._oracle, self._box = model, backup, oracle, box

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
            low, high: the box, [d] each; by default the states that walks from the initial state visit. The simulator
                is asked about all of the box: give one that it knows if it refuses some states.
            cells: of the grid, along each axis or [d]; by default about 10,000 nodes in all, or as many as `max_calls`
                allows.
            samples: simulator calls at each node and action; by default one if there is one successor, else eight, or
                as many as `max_calls` allows.
            periodic: axes that close on themselves, such as angles. Their ends in `low` and `high` are the same place;
                code that reads `grid` directly must bring states between them, as most simulators do.
            seed: of the simulator calls.
            max_calls: simulator calls, at most, walks included.
            saved: the arrays of `saved`, of a reference that was built with the same arguments. They restore it without
                any simulator call.
            oracle: makes the calls, and so counts them even if an error ends the building; by default one of `seed`.

        Raises:
            TooFewCallsError: the grid takes more than `max_calls`; no call was made.
        """
        box = Box.given(model, low, high, periodic)
        reference = cls(model, backup, Oracle(model, seed, role="reference") if oracle is None else oracle, box)
        if saved is not None:
            reference.restore(saved)
            return reference
        effort = _effort(model, box, cells, samples, arguments.whole("max_calls", max_calls))
        if not box.closed:
            # Walks at random, then by coarse grids, which take everything outside their box for good: their policies
            # enlarge the box if they can.
            reference._look_around(effort.steps)
            for _ in range(effort.rounds):
                coarse = reference._solved(effort.coarse, effort.samples, optimistic=True)
                if not reference._look_around(effort.steps, coarse):
                    break
        reference._solve(effort.cells, effort.samples)
        if not box.closed and reference._look_around(effort.steps, reference.grid):
            reference._solve(effort.cells, effort.samples, reference.grid)
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

        It does so twice, with half of the calls each. If the box was found by walks, walks by the policy of Q̂ come
        first, on a tenth of the calls, and may enlarge it. If successors are random, half of the growth goes into
        samples. A grid has no more than 200,000 nodes.
        """
        share = arguments.whole("calls", calls) / 2.0
        for _ in range(2):
            steps = 0 if self._box.closed else int(0.1 * share / WALKS)
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
            larger = (self._box.low != before.low).any() or (self._box.high != before.high).any()
            cells = before.shape - 1 + added
            if _nodes(cells) * actions * samples <= left and (larger or added.any() or samples > self.samples):
                self._solve(cells, samples, before)

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
        """Takes on the state of a reference that was built with the same arguments, whatever it was before."""
        (low, high), ends = arrays["box"], arrays["grid"]
        self._oracle.restore(arrays)
        self._box, self.samples = self._box._replace(low=low, high=high), int(arrays["samples"][0])
        self.grid = make_grid(ends[0], ends[1], arrays["shape"], arrays["table"])

    def __repr__(self) -> str:
        shape = "×".join(str(nodes) for nodes in self.grid.shape)
        return f"GridReference({shape} nodes, samples={self.samples}, calls={self.calls}{reason(self.why)})"

    def _look_around(self, steps: int, grid: Grid | None = None) -> bool:
        """Walks from the initial state, which may enlarge the box; whether it grew much. Ended walks start again.

        They follow the greedy policy of a grid, with a tenth of random actions. Without a grid all actions are random,
        and some walks repeat an action for long: those get further.
        """
        rng, actions, start = self._oracle.rng, self._model.actions, np.asarray(self._model.initial_state)
        states = np.repeat(start[None], WALKS, axis=0)
        visited = np.array([start, start], dtype=np.float64)
        if grid is None:
            changes, chosen = np.geomspace(1.0, min(1.0, 4.0 / steps), WALKS), rng.integers(actions, size=WALKS)
        for _ in range(steps):
            changed = rng.random(WALKS) < (0.1 if grid is not None else changes)
            random = rng.integers(actions, size=WALKS)
            chosen = np.where(changed, random, chosen if grid is None else grid.at(states).argmax(axis=1))
            transition = self._oracle.sample(states, chosen)
            alive = ~transition.terminals
            if alive.any():
                reached = transition.next_states[alive]
                least, most = np.minimum(visited[0], reached.min(axis=0)), np.maximum(visited[1], reached.max(axis=0))
                visited = np.array([least, most])
            states = np.where(alive[:, None], transition.next_states, start)
        before, self._box = self._box, self._box.enlarged(visited)
        grown = np.array([before.low - self._box.low, self._box.high - before.high])
        return bool((grown > 0.05 * (before.high - before.low)).any())

    def _solve(self, cells: Ints, samples: int, before: Grid | None = None) -> None:
        self.grid, self.samples = self._solved(cells, samples, before), samples

    def _solved(self, cells: Ints, samples: int, before: Grid | None = None, optimistic: bool = False) -> Grid:
        """The grid of the box, simulated and solved. An earlier grid is the start of the iteration.

        A state outside the box has the value of the nearest one in the box or, if optimistic, the largest possible.
        """
        model, backup, box = self._model, self._backup, self._box
        shape = cells + 1
        nodes = grid_nodes(box.low, box.high, shape).astype(box.dtype)
        low, high = curvature.value_interval(model, backup)
        start = np.full(len(nodes), np.mean([low, high])) if before is None else backup.value(before.at(nodes), nodes)
        q = np.repeat(start[:, None], model.actions, axis=1)
        grid = Grid(*(frozen(part) for part in (box.low, box.high, shape, q)))
        called = None if is_mixture(backup) else lambda q: backup.value(q, nodes)
        mixture = backup if is_mixture(backup) else HardMax()  # stands in for a backup that is called
        weights = np.atleast_2d(mixture.weights(nodes))
        soft = Softmaxes(mixture.temperature, frozen(mixture.shifts(model.actions).T), frozen(weights))
        outcomes = self._simulated(grid, nodes, samples, model.discount * high if optimistic else None)
        finite = FiniteModel(*outcomes, np.arange(len(nodes)), model.discount, soft)
        # To a ten-thousandth of the width of the value interval: the grid itself is coarser.
        iterate(finite, q, start, 1e-4 * curvature.value_scale(model, backup), called)
        return grid

    def _simulated(self, grid: Grid, nodes: States, samples: int, bonus: float | None) -> tuple[Floats, Floats, Ints]:
        """Every node and action simulated: mean rewards [n·K], and the next nodes with their chances [n·K, B].

        If there is a bonus, leaving the box ends the episode with it.
        """
        box, actions = self._box, self._model.actions
        pairs = len(nodes) * actions
        batch = max(1, (1 << 16) // samples)  # 65,536 simulator calls at a time bound the memory
        rewards = np.empty(pairs)
        parts = []
        for first in range(0, pairs, batch):
            entries = np.arange(first, min(first + batch, pairs))
            repeated = np.repeat(entries, samples)
            transition = self._oracle.sample(nodes[repeated // actions], repeated % actions)
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


def compiles(model: Any, reference: Any) -> TypeGuard[JitModel]:
    """Whether compiled chains can follow a reference: one on a grid, with states known to be float64 [d]."""
    if not (isinstance(model, JitModel) and isinstance(reference, GridReference) and not reference.periodic):
        return False
    example = model.initial_state
    return example is not None and example.ndim == 1 and example.dtype == np.float64


class _Effort(NamedTuple):
    """The sizes of all parts of building, so that its price is known before the first call."""

    cells: Ints  # of the grid, [d]
    samples: int  # simulator calls at each node and action
    steps: int  # of the walks that look for the box: at random, by coarse grids, by the grid
    rounds: int  # coarse grids, at most
    coarse: Ints  # their cells, [d]


def _effort(
    model: GenerativeModel, box: Box, cells: int | Sequence[int] | None, samples: int | None, limit: int
) -> _Effort:
    """The largest effort within the limit on calls; cells and samples that the user has given do not change.

    Each has half of the nodes and of the steps of the one before. If successors are random, their samples are halved
    every other time. The last ones look for the box by random walks only, with a grid of one or two cells.
    """
    dimensions = len(box.low)
    size = None if samples is None else arguments.whole("samples", samples)
    fixed = None
    if cells is not None:
        counts = np.full(dimensions, cells) if np.ndim(cells) == 0 else np.asarray(cells)
        if counts.shape != (dimensions,):
            raise ValueError(f"cells must be a whole number or {dimensions} of them, got {cells!r}")
        fixed = np.array([arguments.whole("cells", count) for count in counts.tolist()])
    most_samples = 1 if model.max_successors == 1 else 8
    # Three effective horizons 1/(1−γ), but not more than 300 steps.
    steps = min(300, math.ceil(3.0 / (1.0 - model.discount)))
    efforts = []
    for halvings in range(15):
        fine, coarse = (_even_cells((10_000 >> halvings) // part, dimensions) for part in (1, 5))
        efforts.append(_Effort(fine, max(1, most_samples >> halvings // 2), max(1, steps >> halvings), 5, coarse))
    efforts += [_Effort(np.full(dimensions, least), 1, 1, 0, np.full(dimensions, least)) for least in (2, 1)]
    for effort in efforts:
        effort = effort._replace(cells=effort.cells if fixed is None else fixed, samples=size or effort.samples)
        needed = _nodes(effort.cells) * model.actions * effort.samples
        if not box.closed:  # if walks with the grid enlarge the box, it is solved again
            rounds = effort.rounds * _nodes(effort.coarse) * model.actions * effort.samples
            needed = 2 * needed + rounds + (2 + effort.rounds) * WALKS * effort.steps
        if needed <= limit:
            return effort
    raise TooFewCallsError(
        f"a grid of {effort.cells.tolist()} cells may take {needed} simulator calls, more than the {limit} that are "
        "allowed: give fewer cells or samples, a box, or more calls"
    )


def _nodes(cells: Ints) -> int:
    return math.prod((cells + 1).tolist())


def _even_cells(nodes: int, dimensions: int) -> Ints:
    """Cells along each axis for about that many nodes, [d]: even numbers, so that the middle of the box is a node."""
    return np.full(dimensions, 2 * max(1, math.ceil((nodes ** (1.0 / dimensions) - 1.0) / 2.0)))
