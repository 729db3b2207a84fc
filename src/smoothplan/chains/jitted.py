"""Chains through simulators that Numba compiles, around a reference on a grid.

Policies and values are those of the *interpolated* reference: F is not linear, so that nothing can be had from its
values at the nodes. Chains advance together in blocks, one call of the step for each step of a block. Simulator calls
from compiled code go through a `JitModel`'s step, a first-class function, so that nothing is compiled anew for another
model. They are counted, and checked against what the model declares. States are vectors of float64.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.compiling import compiled
from smoothplan.base.streams import CALLS, Stream, generator, generator_words
from smoothplan.chains.batched import require_curvature
from smoothplan.chains.grid import Grid, GridReference, interpolate, make_grid
from smoothplan.models.calls import Call, SimulatorError
from smoothplan.models.model import Oracle
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

NO_ACTION = -1
"""In place of a first action: chains begin with an action of the policy."""


# Simulator calls


class CompiledOracle(NamedTuple):
    """What compiled code needs besides a step to call it: an `Oracle` as compiled code reads it."""

    rng: np.random.Generator
    limits: Floats  # smallest and largest reward, and 1 where states may be terminal
    fault: Floats  # [3 + 2d], a call that broke the declarations: (1, action, reward, state, next state)
    stream: Stream


@partial(compiled, merged=True)
def _blame(
    states: Floats,
    actions: Ints,
    next_states: Floats,
    rewards: Floats,
    terminals: NDArray[np.bool_],
    oracle: CompiledOracle,
) -> None:
    """Writes down the first call that broke the declarations."""
    limits, fault, size = oracle.limits, oracle.fault, states.shape[1]
    for row in range(len(actions)):
        fine = limits[0] <= rewards[row] <= limits[1] and (limits[2] == 1.0 or not terminals[row])
        for axis in range(size):
            fine = fine and abs(next_states[row, axis]) < np.inf
        if not fine:
            fault[0], fault[1], fault[2] = 1.0, actions[row], rewards[row]
            for axis in range(size):
                fault[3 + axis], fault[3 + size + axis] = states[row, axis], next_states[row, axis]
            return


@partial(compiled, allocates=True, inner=True)
def simulated(
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
    if not sound:
        _blame(states, actions, next_states, rewards, terminals, oracle)
        raise ValueError("the simulator broke its declarations")
    return next_states, rewards, terminals


def step_type() -> Any:
    """The type of a step: what `JitModel` compiles for states that are vectors of float64."""
    import numba
    from numba.core.types import FunctionType

    states = numba.types.Array(numba.float64, 2, "C", readonly=True)
    actions = numba.types.Array(numba.int64, 1, "C", readonly=True)
    flags = numba.types.Array(numba.boolean, 1, "C")
    result = numba.types.Tuple((numba.float64[:, ::1], numba.float64[::1], flags))
    return FunctionType(result(states, actions, numba.typeof(generator(0))))


@contextmanager
def compiled_oracle(model: JitModel, oracle: Oracle, size: int) -> Iterator[CompiledOracle]:
    """An oracle of a model with states [size]; on the way out, a call that broke the model's declarations is named."""
    low, high = model.reward_range
    fault = np.zeros(3 + 2 * size)
    try:
        limits = np.array([low, high, float(model.terminates)])
        yield CompiledOracle(oracle.rng, limits, fault, oracle.stream)
    except ValueError as error:
        if fault[0] == 0.0:
            raise
        here, there = np.split(fault[3:], 2)
        # The call is one of a batch, of which nothing else is left: made again, it may draw other numbers.
        call = Call(here[None], np.array([int(fault[1])]), generator_words(oracle.rng), oracle.seed, oracle.chunk, 0)
        raise SimulatorError(
            f"a simulator call broke what the model declares, rewards in [{low:g}, {high:g}], finite states and "
            f"terminates={model.terminates} (state {here.tolist()}, action {int(fault[1])}, reward "
            f"{fault[2]}, next state {there.tolist()}{call.origin()})",
            call,
        ) from error


# Chains


class World(NamedTuple):
    """What the chains have in common."""

    discount: float
    tail: float
    soft: Softmaxes
    grid: Grid
    gap: float
    oracle: CompiledOracle


def _signature(sizes: int, results: str) -> Callable[[], Any]:
    """Makes the types of a function of a state [d], whole numbers, a step and a `World`.

    Args:
        sizes: how many whole numbers.
        results: what the function returns, "f" for a float and "i" for a whole number.
    """

    def made() -> Any:
        import numba

        floats, row = frozen(np.zeros((1, 1))), frozen(np.zeros(1))
        grid = Grid(row, row, frozen(np.ones(1, dtype=np.int64)), floats)
        oracle = CompiledOracle(generator(0), np.zeros(3), np.zeros(5), np.zeros(5, np.uint64))
        world = World(0.5, 0.0, Softmaxes(1.0, floats, floats), grid, 1.0, oracle)
        found = numba.types.Tuple([numba.float64 if result == "f" else numba.int64 for result in results])
        return found(numba.float64[::1], *[numba.int64] * sizes, step_type(), numba.typeof(world))

    return made


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

    It is one function for chains, returns and walks, for all of it is compiled again wherever it is called.

    Args:
        states: where they begin, [n, d]; overwritten.
        actions: [n], the first actions, if they are given; overwritten.
        given: whether the first actions are given. They have no advantage: the chains are returns.
        stops: the step before which each chain stops, [n]; or [0], and none does. Overwritten.
        stopped: where chains have stopped, [n, d]; or [0, d].
        sums: what the chains add up to is added here, [n].
        horizon: steps.
        step: the simulator.
        world: what the chains have in common.

    Returns:
        How many have stopped.
    """
    count, dimensions = states.shape
    columns = world.grid.table.shape[1]
    q, room, advantages = np.empty((count, columns)), np.empty(columns), np.zeros(count)
    owners = np.empty(count, dtype=np.int64)
    for row in range(count):
        owners[row] = row
    walking = len(stops) > 0
    scale, found = 1.0, 0
    for moment in range(horizon):
        if walking:
            # Chains that stop here are set aside, the others move up.
            going_on = 0
            for row in range(count):
                if stops[row] == moment:
                    for axis in range(dimensions):
                        stopped[found, axis] = states[row, axis]
                    found += 1
                else:
                    for axis in range(dimensions):
                        states[going_on, axis] = states[row, axis]
                    stops[going_on] = stops[row]
                    owners[going_on] = owners[row]
                    going_on += 1
            count = going_on
            states = states[:count]
        if count == 0:
            break
        here = actions[:count]
        if moment > 0 or not given:
            interpolate(world.grid, states, world.gap, q[:count])
            fill_choices(q[:count], world.soft, world.oracle.stream, room, here, advantages)
        next_states, rewards, terminals = simulated(states, here, step, world.oracle)
        # Chains that go on move up to the front.
        going_on = 0
        for row in range(count):
            sums[owners[row]] += scale * (rewards[row] + advantages[row])
            if not terminals[row]:
                if going_on < row:
                    for axis in range(dimensions):
                        next_states[going_on, axis] = next_states[row, axis]
                    owners[going_on] = owners[row]
                    if walking:
                        stops[going_on] = stops[row]
                going_on += 1
        count = going_on
        states = next_states[:count]
        scale *= world.discount
    for row in range(count):
        sums[owners[row]] += scale * world.tail
    return found


@partial(compiled, signature=_signature(3, "ff"), allocates=True)
def _sum_chains(state: Floats, action: int, count: int, horizon: int, step: Step, world: World) -> tuple[float, float]:
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
    return total, squares


@partial(compiled, signature=_signature(3, "ffif"), allocates=True)
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
        # Two actions at each state where a walk has stopped.
        q = np.empty((found, world.grid.table.shape[1]))
        interpolate(world.grid, states, world.gap, q)
        first, second = choose_pairs(q, world.soft, world.oracle.stream)
        differ, owners = np.empty(found, dtype=np.int64), 0
        for row in range(found):
            if first[row] != second[row]:
                differ[owners] = row
                owners += 1
        # Paired returns of the states where they differ, a block of pairs at a time.
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
        total += sums[0]
        square_sum += sums[1]
        noise += sums[2]
        differing += owners
    return total, square_sum, differing, noise


@dataclass(frozen=True, eq=False)
class JittedChains:
    """See `Chains`. For `JitModel`s whose states are vectors of float64, with backups that do not depend on states.

    Args:
        model: the simulator, with an `initial_state`.
        backup: F.
        grid: Q̂ at the nodes of a grid.
        tail: what stands for the value behind the horizon.
        gap: no action of Q̂ is further below the best; one that is further below is raised.
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
        return Sums(count, *self._run(_sum_chains, oracle, state, NO_ACTION, count, horizon))

    def returns(self, oracle: Oracle, state: Any, action: int, count: int, horizon: int) -> Sums:
        """Returns of an action."""
        action = arguments.whole("action", action, least=0, most=self.model.actions - 1)
        return Sums(count, *self._run(_sum_chains, oracle, state, action, count, horizon))

    def corrections(self, oracle: Oracle, state: Any, count: int, pairs: int, horizon: int) -> Sums:
        """Corrections of second order from a state."""
        require_curvature(self.backup)
        total, squares, *more = self._run(_sum_corrections, oracle, state, count, pairs, horizon)
        return Sums(count, total, squares, tuple(more))

    @cached_property
    def _soft(self) -> Softmaxes:
        return softmaxes(self.backup, self.model.actions, None)

    def _run(self, function: Any, oracle: Oracle, state: Any, *numbers: int) -> tuple[Any, ...]:
        here = arguments.array("state", state)
        if here.shape != self.grid.low.shape:
            raise ValueError(f"state must have shape {self.grid.low.shape}, got {here.shape}")
        with compiled_oracle(self.model, oracle, len(here)) as checked:
            world = World(self.model.discount, self.tail, self._soft, self.grid, self.gap, checked)
            result: tuple[Any, ...] = function(here.copy(), *numbers, self.model.step, world)
            return result


def compiles(model: Any, reference: Any) -> TypeGuard[JitModel]:
    """Whether chains of compiled simulator calls are possible: around a grid, with states known to be float64 [d]."""
    if not (isinstance(model, JitModel) and isinstance(reference, GridReference) and not reference.periodic):
        return False
    example = model.initial_state
    return example is not None and example.ndim == 1 and example.dtype == np.float64
