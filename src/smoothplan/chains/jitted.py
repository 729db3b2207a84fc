"""Chains through simulators that Numba compiles, around action values on a regular grid of states.

Policies and values are those of the *interpolated* action values: F is not linear, so its values at the nodes are of no
use. Chains advance together in blocks, one call of the step for each step of a block. Simulator calls from compiled
code go through a `JitModel`'s step, a first-class function, so that nothing is compiled anew for another model. They
are counted, and checked against the model's declarations. States are vectors of float64.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.compiling import compiled
from smoothplan.base.streams import CALLS, Stream, generator, generator_words
from smoothplan.chains.batched import NO_ACTION, require_curvature
from smoothplan.models.model import Call, Oracle, SimulatorError, States
from smoothplan.models.vector import JitModel, Step
from smoothplan.run.chunks import Sums
from smoothplan.theory.backups import SoftmaxMixture, softmaxes
from smoothplan.theory.softmaxes import (
    Softmaxes,
    choose_pairs,
    draw_stops,
    fill_choices,
    paired_sums,
    stop_weight,
    sums_of,
)

TOGETHER = 256
"""Chains that advance together, an even number: one call of the step for each of their steps."""


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


# Chains


class CompiledOracle(NamedTuple):
    """An `Oracle` as compiled code reads it."""

    rng: np.random.Generator
    limits: Floats  # smallest and largest reward, and 1 if states may be terminal
    fault: Floats  # [3 + 2d], a call that broke the declarations: (1, action, reward, state, next state)
    stream: Stream


class World(NamedTuple):
    """What the chains have in common."""

    discount: float
    tail: float
    soft: Softmaxes
    grid: Grid
    gap: float
    oracle: CompiledOracle


def _signature() -> Any:
    """The types of a function of a state [d], three whole numbers, a step and a `World`; it returns four sums."""
    import numba
    from numba.core.types import FunctionType

    floats, row = frozen(np.zeros((1, 1))), frozen(np.zeros(1))
    grid = Grid(row, row, frozen(np.ones(1, dtype=np.int64)), floats)
    oracle = CompiledOracle(generator(0), np.zeros(3), np.zeros(5), np.zeros(5, np.uint64))
    world = World(0.5, 0.0, Softmaxes(1.0, floats, floats), grid, 1.0, oracle)
    # A step is compiled by `JitModel` for states that are vectors of float64.
    states = numba.types.Array(numba.float64, 2, "C", readonly=True)
    actions = numba.types.Array(numba.int64, 1, "C", readonly=True)
    flags = numba.types.Array(numba.boolean, 1, "C")
    answer = numba.types.Tuple((numba.float64[:, ::1], numba.float64[::1], flags))
    step = FunctionType(answer(states, actions, numba.typeof(oracle.rng)))
    sums = numba.types.Tuple((numba.float64, numba.float64, numba.int64, numba.float64))
    return sums(numba.float64[::1], numba.int64, numba.int64, numba.int64, step, numba.typeof(world))


@partial(compiled, allocates=True, inner=True)
def _simulated(
    states: Floats, actions: Ints, step: Step, oracle: CompiledOracle
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Simulator calls at states [n, d], one for each action [n], counted and checked."""
    oracle.stream[CALLS] += np.uint64(len(actions))
    next_states, rewards, terminals = step(states, actions, oracle.rng)
    low, high, ends = oracle.limits[0], oracle.limits[1], oracle.limits[2] == 1.0
    # No branches, so that the compiler takes several numbers at once; a NaN fails every comparison.
    sound = True
    for row in range(len(rewards)):
        sound &= (low <= rewards[row]) & (rewards[row] <= high) & (ends | (not terminals[row]))
    for number in next_states.reshape(-1):
        sound &= abs(number) < np.inf
    if sound:
        return next_states, rewards, terminals
    fault, size = oracle.fault, states.shape[1]
    for row in range(len(actions)):  # the first bad call is written down
        fine = low <= rewards[row] <= high and (ends or not terminals[row])
        for axis in range(size):
            fine = fine and abs(next_states[row, axis]) < np.inf
        if not fine and fault[0] == 0.0:
            fault[0], fault[1], fault[2] = 1.0, actions[row], rewards[row]
            for axis in range(size):
                fault[3 + axis], fault[3 + size + axis] = states[row, axis], next_states[row, axis]
    raise ValueError("the simulator broke its declarations")


@partial(compiled, allocates=True, inner=True)
def _advance(
    states: Floats,
    actions: Ints,
    given: bool,
    stops: Ints,
    stopped: Floats,
    sums: Floats,
    horizon: int,
    step: Step,
    world: World,
) -> int:
    """Advances chains of order 1 together, each to its end, to the horizon or to a step of its own.

    It is one function for chains, returns and walks, because it is compiled again with every caller.

    Args:
        states: the start of each chain, [n, d]; overwritten.
        actions: [n], the first actions, if they are given; overwritten.
        given: whether the first actions are given. They have no advantage: the chains are returns.
        stops: the step before which each chain stops, [n]; or [0], and none does. Overwritten.
        stopped: receives the states of chains that have stopped, [n, d]; or [0, d].
        sums: the sums of the chains are added here, [n].
        horizon: steps.
        step: the simulator.
        world: what the chains have in common.

    Returns:
        The number of chains that have stopped.
    """
    count, dimensions = states.shape
    columns = world.grid.table.shape[1]
    q, room, advantages = np.empty((count, columns)), np.empty(columns), np.zeros(count)
    owners, ended = np.empty(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    for row in range(count):  # loops compile faster than functions of NumPy
        owners[row] = row
    scale, found = 1.0, 0
    for moment in range(horizon):
        # Chains that have ended are dropped, those that stop here are set aside, the others move up.
        going_on = 0
        for row in range(count):
            if ended[row]:
                continue
            if len(stops) > 0 and stops[row] == moment:
                for axis in range(dimensions):
                    stopped[found, axis] = states[row, axis]
                found += 1
                continue
            if going_on < row:
                for axis in range(dimensions):
                    states[going_on, axis] = states[row, axis]
                owners[going_on] = owners[row]
                if len(stops) > 0:
                    stops[going_on] = stops[row]
            going_on += 1
        count = going_on
        if count == 0:
            break
        states, here = states[:count], actions[:count]
        if moment > 0 or not given:
            interpolate(world.grid, states, world.gap, q[:count])
            fill_choices(q[:count], world.soft, world.oracle.stream, room, here, advantages)
        states, rewards, ended = _simulated(states, here, step, world.oracle)
        for row in range(count):
            sums[owners[row]] += scale * (rewards[row] + advantages[row])
        scale *= world.discount
    for row in range(count):
        if not ended[row]:
            sums[owners[row]] += scale * world.tail
    return found


@partial(compiled, signature=_signature, allocates=True)
def _sum_chains(
    state: Floats, action: int, count: int, horizon: int, step: Step, world: World
) -> tuple[float, float, int, float]:
    """Sum and sum of squares of returns of an action at a state [d], or of chains for the action `NO_ACTION`."""
    total, squares = 0.0, 0.0
    no_stops, stopped = np.empty(0, dtype=np.int64), np.empty((0, len(state)))
    for start in range(0, count, TOGETHER):
        size = min(TOGETHER, count - start)
        states, actions, sums = np.empty((size, len(state))), np.empty(size, dtype=np.int64), np.zeros(size)
        for row in range(size):
            actions[row] = action
            for axis in range(len(state)):
                states[row, axis] = state[axis]
        _advance(states, actions, action != NO_ACTION, no_stops, stopped, sums, horizon, step, world)
        added, added_squares = sums_of(sums, size)
        total, squares = total + added, squares + added_squares
    return total, squares, 0, 0.0


@partial(compiled, signature=_signature, allocates=True)
def _sum_corrections(
    state: Floats, count: int, pairs: int, horizon: int, step: Step, world: World
) -> tuple[float, float, int, float]:
    """The sums of corrections from a state [d]."""
    dimensions = len(state)
    scale = stop_weight(world.discount, horizon) / (4.0 * world.soft.temperature)
    no_stops, nowhere = np.empty(0, dtype=np.int64), np.empty((0, dimensions))
    total, square_sum, differing, noise = 0.0, 0.0, 0, 0.0
    for start in range(0, count, TOGETHER):
        # Walks under the policy, each to a step drawn for it; those that end before are dropped.
        size = min(TOGETHER, count - start)
        where, stopped = np.empty((size, dimensions)), np.empty((size, dimensions))
        for row in range(size):
            for axis in range(dimensions):
                where[row, axis] = state[axis]
        stops = draw_stops(size, world.discount, horizon, world.oracle.stream)
        actions = np.empty(size, dtype=np.int64)
        found = _advance(where, actions, False, stops, stopped, np.zeros(size), horizon, step, world)
        states = stopped[:found]
        # Two actions at each state at which a walk has stopped.
        q = np.empty((found, world.grid.table.shape[1]))
        interpolate(world.grid, states, world.gap, q)
        first, second = choose_pairs(q, world.soft, world.oracle.stream)
        differ, owners = np.empty(found, dtype=np.int64), 0
        for row in range(found):
            if first[row] != second[row]:
                differ[owners] = row
                owners += 1
        # Paired returns of the states at which they differ, a block of pairs at a time.
        totals, squares = np.zeros(owners), np.zeros(owners)
        for begin in range(0, owners * pairs, TOGETHER // 2):
            size = min(TOGETHER // 2, owners * pairs - begin)
            where, actions = np.empty((2 * size, dimensions)), np.empty(2 * size, dtype=np.int64)
            for place in range(2 * size):
                row = differ[(begin + place // 2) // pairs]
                actions[place] = first[row] if place % 2 == 0 else second[row]
                for axis in range(dimensions):
                    where[place, axis] = states[row, axis]
            samples = np.zeros(2 * size)
            _advance(where, actions, True, no_stops, nowhere, samples, horizon, step, world)
            for pair in range(size):
                owner = (begin + pair) // pairs
                row = differ[owner]
                difference = samples[2 * pair] - samples[2 * pair + 1] - (q[row, first[row]] - q[row, second[row]])
                totals[owner] += difference
                squares[owner] += difference * difference
        sums = paired_sums(totals, squares, pairs, scale)
        total, square_sum, noise = total + sums[0], square_sum + sums[1], noise + sums[2]
        differing += owners
    return total, square_sum, differing, noise


@dataclass(frozen=True, eq=False)
class JittedChains:
    """See `Chains`. For `JitModel`s whose states are vectors of float64, with backups that do not depend on states.

    Args:
        model: the simulator, with an `initial_state`.
        backup: F.
        grid: Q̂ at the nodes of a grid.
        tail: stands for the value behind the horizon.
        gap: the most that an action of Q̂ may be below the best; one that is further below is raised.
    """

    model: JitModel
    backup: SoftmaxMixture
    grid: Grid
    tail: float = 0.0
    gap: float = math.inf

    compiled: ClassVar[bool] = True
    chunk_calls: ClassVar[int] = 1 << 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", make_grid(*self.grid))
        wanted = (len(self.model.initial_state), self.model.actions)
        found = (len(self.grid.low), self.grid.table.shape[1])
        if found != wanted:
            raise ValueError(
                f"the model has states [{wanted[0]}] and {wanted[1]} actions, the grid states [{found[0]}] and "
                f"{found[1]} actions"
            )

    def values(self, oracle: Oracle, state: Any, count: int, horizon: int) -> Sums:
        """Chains of order 1 from a state."""
        return Sums(count, *self._run(_sum_chains, oracle, state, NO_ACTION, count, horizon)[:2])

    def returns(self, oracle: Oracle, state: Any, action: int, count: int, horizon: int) -> Sums:
        """Returns of an action."""
        action = arguments.whole("action", action, least=0, most=self.model.actions - 1)
        return Sums(count, *self._run(_sum_chains, oracle, state, action, count, horizon)[:2])

    def corrections(self, oracle: Oracle, state: Any, count: int, pairs: int, horizon: int) -> Sums:
        """Corrections of second order from a state."""
        require_curvature(self.backup)
        total, squares, *more = self._run(_sum_corrections, oracle, state, count, pairs, horizon)
        return Sums(count, total, squares, tuple(more))

    @cached_property
    def _soft(self) -> Softmaxes:
        return softmaxes(self.backup, self.model.actions, None)

    def _run(self, function: Any, oracle: Oracle, state: Any, *numbers: int) -> tuple[Any, ...]:
        """Runs compiled code at a state; a call that broke the model's declarations is named."""
        model, here = self.model, arguments.array("state", state)
        if here.shape != self.grid.low.shape:
            raise ValueError(f"state must have shape {self.grid.low.shape}, got {here.shape}")
        low, high = model.reward_range
        fault = np.zeros(3 + 2 * len(here))
        checked = CompiledOracle(oracle.rng, np.array([low, high, float(model.terminates)]), fault, oracle.stream)
        world = World(model.discount, self.tail, self._soft, self.grid, self.gap, checked)
        try:
            result: tuple[Any, ...] = function(here.copy(), *numbers, model.step, world)
            return result
        except ValueError as error:
            if fault[0] == 0.0:
                raise
            action, (before, after) = int(fault[1]), np.split(fault[3:], 2)
            # The call is one of a batch, of which nothing else is left: made again, it may draw other numbers.
            call = Call(before[None], np.array([action]), generator_words(oracle.rng), oracle.seed, oracle.chunk, 0)
            place = call.place(f", reward {fault[2]}, next state {after.tolist()}")
            raise SimulatorError(
                f"a simulator call broke what the model declares, rewards in [{low:g}, {high:g}], finite states and "
                f"terminates={model.terminates} ({place})",
                call,
            ) from error
