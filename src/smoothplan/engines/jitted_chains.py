"""Chains through simulators that Numba compiles, around a reference on a grid.

Policies and values are those of the *interpolated* reference: F is not linear, so that nothing can be had from its
values at the nodes. Chains advance together in blocks, one call of the step for each step of a block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from smoothplan import arguments
from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.backups import SoftmaxMixture
from smoothplan.compiling import compiled
from smoothplan.engines.base import Sums
from smoothplan.engines.chains import PairSums, require_curvature
from smoothplan.engines.grids import Grid, interpolate, make_grid
from smoothplan.engines.kernels import (
    Softmaxes,
    choose,
    choose_pairs,
    draw_stops,
    paired_sums,
    softmaxes,
    stop_weight,
)
from smoothplan.engines.steps import CompiledOracle, compiled_oracle, simulated, step_type
from smoothplan.models.base import Oracle
from smoothplan.models.jit import JitModel
from smoothplan.models.vector import Step
from smoothplan.streams import generator

TOGETHER = 256
"""Chains that advance together, an even number: one call of the step for each of their steps."""


class World(NamedTuple):
    """What the chains have in common."""

    discount: float
    tail: float
    soft: Softmaxes
    grid: Grid
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
        world = World(0.5, 0.0, Softmaxes(1.0, floats, floats), grid, oracle)
        found = numba.types.Tuple([numba.float64 if result == "f" else numba.int64 for result in results])
        return found(numba.float64[::1], *[numba.int64] * sizes, step_type(), numba.typeof(world))

    return made


@partial(compiled, allocates=True)
def _repeated(state: Floats, count: int) -> Floats:
    states = np.empty((count, len(state)))
    states[:] = state
    return states


@partial(compiled, allocates=True)
def _interpolated(states: Floats, world: World) -> Floats:
    q = np.empty((len(states), world.grid.table.shape[1]))
    interpolate(world.grid, states, q)
    return q


@partial(compiled, allocates=True)
def _add_chains(
    states: Floats, owners: Ints, sums: Floats, scale: float, horizon: int, step: Step, world: World
) -> None:
    """Adds one chain of order 1 from each state [n, d], with the weight `scale`, to the sums of their owners [n]."""
    count = len(states)
    for _ in range(horizon):
        if count == 0:
            break
        actions, advantages = choose(_interpolated(states, world), world.soft, world.oracle.stream)
        next_states, rewards, terminals = simulated(states, actions, step, world.oracle)
        # Chains that go on move up to the front.
        going_on = 0
        for row in range(count):
            sums[owners[row]] += scale * (rewards[row] + advantages[row])
            if not terminals[row]:
                if going_on < row:
                    next_states[going_on] = next_states[row]
                    owners[going_on] = owners[row]
                going_on += 1
        count = going_on
        states = next_states[:count]
        scale *= world.discount
    for row in range(count):
        sums[owners[row]] += scale * world.tail


@partial(compiled, allocates=True)
def _returns(states: Floats, actions: Ints, horizon: int, step: Step, world: World) -> Floats:
    """Returns of actions [n] at states [n, d]."""
    next_states, rewards, terminals = simulated(states, actions, step, world.oracle)
    owners = np.flatnonzero(~terminals)
    _add_chains(next_states[owners], owners, rewards, world.discount, horizon - 1, step, world)
    return rewards


@partial(compiled, signature=_signature(2, "ff"), allocates=True)
def _sum_values(state: Floats, count: int, horizon: int, step: Step, world: World) -> tuple[float, float]:
    """Sum and sum of squares of chains from a state [d]."""
    total, squares = 0.0, 0.0
    for start in range(0, count, TOGETHER):
        size = min(TOGETHER, count - start)
        sums = np.zeros(size)
        _add_chains(_repeated(state, size), np.arange(size), sums, 1.0, horizon, step, world)
        total += sums.sum()
        squares += (sums * sums).sum()
    return total, squares


@partial(compiled, signature=_signature(3, "ff"), allocates=True)
def _sum_returns(state: Floats, action: int, count: int, horizon: int, step: Step, world: World) -> tuple[float, float]:
    """Sum and sum of squares of returns of an action at a state [d]."""
    total, squares = 0.0, 0.0
    for start in range(0, count, TOGETHER):
        size = min(TOGETHER, count - start)
        sums = _returns(_repeated(state, size), np.full(size, action), horizon, step, world)
        total += sums.sum()
        squares += (sums * sums).sum()
    return total, squares


@partial(compiled, allocates=True)
def _walked(state: Floats, count: int, horizon: int, step: Step, world: World) -> Floats:
    """Where walks under the policy from a state [d] stop, at steps drawn for each, [m, d]; without those that end."""
    stopped = np.empty((count, len(state)))
    stops = draw_stops(count, world.discount, horizon, world.oracle.stream)
    states = _repeated(state, count)
    terminals = np.zeros(count, dtype=np.bool_)
    found = 0
    for moment in range(horizon):
        # Walks that stop here are set aside; those that have ended are dropped; the others move up and on.
        going_on = 0
        for row in range(count):
            if terminals[row]:
                continue
            if stops[row] == moment:
                stopped[found] = states[row]
                found += 1
            else:
                states[going_on] = states[row]
                stops[going_on] = stops[row]
                going_on += 1
        count = going_on
        if count == 0:
            break
        here = states[:count]
        actions, _ = choose(_interpolated(here, world), world.soft, world.oracle.stream)
        states, _, terminals = simulated(here, actions, step, world.oracle)
    return stopped[:found]


@partial(compiled, signature=_signature(3, "ffif"), allocates=True)
def _sum_corrections(
    state: Floats, count: int, pairs: int, horizon: int, step: Step, world: World
) -> tuple[float, float, int, float]:
    """What `PairSums` keeps of corrections from a state [d]."""
    scale = stop_weight(world.discount, horizon) / (4.0 * world.soft.temperature)
    total, square_sum, differing, noise = 0.0, 0.0, 0, 0.0
    for start in range(0, count, TOGETHER):
        states = _walked(state, min(TOGETHER, count - start), horizon, step, world)
        # Two actions at each state where a walk has stopped.
        q = _interpolated(states, world)
        first, second = choose_pairs(q, world.soft, world.oracle.stream)
        differ = np.flatnonzero(first != second)
        # Paired returns of the states where they differ, a block of pairs at a time.
        totals, squares = np.zeros(len(differ)), np.zeros(len(differ))
        for begin in range(0, len(differ) * pairs, TOGETHER // 2):
            size = min(TOGETHER // 2, len(differ) * pairs - begin)
            where, actions = np.empty((2 * size, states.shape[1])), np.empty(2 * size, dtype=np.int64)
            for pair in range(size):
                row = differ[(begin + pair) // pairs]
                where[2 * pair], where[2 * pair + 1] = states[row], states[row]
                actions[2 * pair], actions[2 * pair + 1] = first[row], second[row]
            samples = _returns(where, actions, horizon, step, world)
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
        differing += len(differ)
    return total, square_sum, differing, noise


@dataclass(frozen=True, eq=False)
class JittedChains:
    """See `Chains`. For `JitModel`s whose states are vectors of float64, with backups that do not depend on states.

    Args:
        model: the simulator, with an `initial_state`.
        backup: F.
        grid: Q̂ at the nodes of a grid.
        tail: what stands for the value behind the horizon.
    """

    model: JitModel
    backup: SoftmaxMixture
    grid: Grid
    tail: float = 0.0

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
        return Sums(count, *self._run(_sum_values, oracle, state, count, horizon))

    def returns(self, oracle: Oracle, state: Any, action: int, count: int, horizon: int) -> Sums:
        """Returns of an action."""
        action = arguments.whole("action", action, least=0, most=self.model.actions - 1)
        return Sums(count, *self._run(_sum_returns, oracle, state, action, count, horizon))

    def corrections(self, oracle: Oracle, state: Any, count: int, pairs: int, horizon: int) -> PairSums:
        """Corrections of second order from a state."""
        require_curvature(self.backup)
        return PairSums(count, *self._run(_sum_corrections, oracle, state, count, pairs, horizon))

    @cached_property
    def _soft(self) -> Softmaxes:
        return softmaxes(self.backup, self.model.actions, None)

    def _run(self, function: Any, oracle: Oracle, state: Any, *numbers: int) -> tuple[Any, ...]:
        here = arguments.array("state", state)
        if here.shape != self.grid.low.shape:
            raise ValueError(f"state must have shape {self.grid.low.shape}, got {here.shape}")
        with compiled_oracle(self.model, oracle, len(here)) as checked:
            world = World(self.model.discount, self.tail, self._soft, self.grid, checked)
            result: tuple[Any, ...] = function(here.copy(), *numbers, self.model.step, world)
            return result
