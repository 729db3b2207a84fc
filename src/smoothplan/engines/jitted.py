"""The compiled engine for simulators that Numba compiles: the same interpretation, with a `step` in place of a table.

All returns of a reference, and all pairs, are drawn in one call of the step each.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.backups import Backup
from smoothplan.engines.base import Sums
from smoothplan.engines.kernels import (
    CONSTANT,
    FIRST_FRAME,
    GIVEN,
    GIVEN_FRAME,
    LEVEL,
    ZERO_FRAME,
    Softmaxes,
    draw_action,
    draw_column,
    fill_frame,
    frame_value,
    level_table,
    new_frames,
    policy_mean,
    softmaxes,
)
from smoothplan.engines.steps import Door, example_door, opened, serves, simulated, step_type
from smoothplan.models.base import Oracle
from smoothplan.models.jit import JitModel
from smoothplan.models.vector import Step
from smoothplan.schedules.schedule import Schedule
from smoothplan.streams import compiled


class World(NamedTuple):
    """What a run does not change as it goes, and the arrays in which it leaves its traces."""

    discount: float
    levels: NDArray[np.void]  # [L] of LEVEL
    soft: Softmaxes
    frames: Floats
    door: Door


@partial(compiled, allocates=True)
def _draws(state: Floats, actions: Ints, step: Step, world: World) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Simulator calls at one state, one for each action [n]."""
    states = np.empty((len(actions), len(state)))
    states[:] = state
    return simulated(states, actions, step, world.door)


def _signature(*before: Any) -> tuple[Any, ...]:
    """The types of the given examples, of a step and of a `World`."""
    floats = frozen(np.zeros((1, 1)))
    soft = Softmaxes(1.0, floats, floats)
    world = World(0.5, frozen(np.zeros(1, dtype=LEVEL)), soft, np.zeros((1, 1, 1)), example_door())
    return (*map(numba.typeof, before), step_type(), numba.typeof(world))


@partial(compiled, signature=numba.float64(*_signature(0, np.zeros(1), 0)), allocates=True)
def _sample(
    row: int,
    state: Floats,
    depth: int,
    step: Step,
    world: World,
) -> float:
    """One sample of a level at a state [d]. No argument of a recursive call may be a literal."""
    discount, levels, soft, frames, stream = world.discount, world.levels, world.soft, world.frames, world.door.stream
    level = levels[row]
    if level.kind == CONSTANT:
        return float(level.shift)
    actions = soft.shifts.shape[1]
    frame = ZERO_FRAME
    if level.samples == GIVEN:
        frame = GIVEN_FRAME
    elif level.samples > 0:
        frame = depth
        asked = np.empty(actions * level.samples, dtype=np.int64)
        for entry in range(len(asked)):
            asked[entry] = entry // level.samples
        next_states, rewards, terminals = _draws(state, asked, step, world)
        for action in range(actions):
            total = 0.0
            for entry in range(action * level.samples, (action + 1) * level.samples):
                total += rewards[entry]
                if levels[level.reference].kind == CONSTANT:
                    total += 0.0 if terminals[entry] else discount * levels[level.reference].shift
                elif not terminals[entry]:
                    total += discount * _sample(level.reference, next_states[entry], depth + 1, step, world)
            frames[depth, 0, action] = min(max(total / level.samples, level.low), level.high)
        fill_frame(frames, depth, soft)
    value = level.shift + frame_value(frames, frame, 0, soft)

    if level.quadratic >= 0:
        column = draw_column(0, soft, stream)
        first, second = draw_action(frames, frame, column, stream), draw_action(frames, frame, column, stream)
        if first != second or level.equal_pairs == 1:
            gap = frames[frame, 0, first] - frames[frame, 0, second]
            asked = np.empty(2 * level.pairs, dtype=np.int64)
            asked[::2], asked[1::2] = first, second
            next_states, rewards, terminals = _draws(state, asked, step, world)
            total, squares = 0.0, 0.0
            for pair in range(level.pairs):
                difference, sign = -gap, 1.0
                for entry in range(2 * pair, 2 * pair + 2):
                    difference += sign * rewards[entry]
                    if not terminals[entry]:
                        difference += (
                            sign * discount * _sample(level.quadratic, next_states[entry], depth + 1, step, world)
                        )
                    sign = -1.0
                total += difference
                squares += difference * difference
            value += (total * total - squares) / (level.pairs * (level.pairs - 1) * 4.0 * soft.temperature)

    if level.linear >= 0:
        asked = np.empty(1, dtype=np.int64)
        asked[0] = draw_action(frames, frame, draw_column(0, soft, stream), stream)
        if level.by_policy == 0:
            value -= frames[frame, 0, asked[0]]
        else:
            value -= policy_mean(frames, frame, 0, soft)
        next_states, rewards, terminals = _draws(state, asked, step, world)
        value += rewards[0]
        if not terminals[0]:
            value += discount * _sample(level.linear, next_states[0], depth + 1, step, world)
    return float(min(max(value, level.low), level.high))


@partial(
    compiled,
    signature=numba.types.UniTuple(numba.float64, 2)(*_signature(np.zeros(1), 0, 0)),
    allocates=True,
)
def _sum_returns(
    state: Floats,
    action: int,
    count: int,
    step: Step,
    world: World,
) -> tuple[float, float]:
    """Sum and sum of squares of returns through the level of the root's reference."""
    child = world.levels[len(world.levels) - 1].reference
    fill_frame(world.frames, ZERO_FRAME, world.soft)
    total, squares = 0.0, 0.0
    next_states, rewards, terminals = _draws(state, np.full(count, action), step, world)
    for entry in range(count):
        value = rewards[entry]
        if not terminals[entry]:
            value += world.discount * _sample(child, next_states[entry], FIRST_FRAME, step, world)
        total += value
        squares += value * value
    return total, squares


@partial(compiled, signature=numba.types.UniTuple(numba.float64, 2)(*_signature(np.zeros(1), 0)), allocates=True)
def _sum_values(
    state: Floats,
    count: int,
    step: Step,
    world: World,
) -> tuple[float, float]:
    """Sum and sum of squares of root samples around the reference in its frame."""
    root = len(world.levels) - 1
    fill_frame(world.frames, ZERO_FRAME, world.soft)
    fill_frame(world.frames, GIVEN_FRAME, world.soft)
    total, squares = 0.0, 0.0
    for _ in range(count):
        value = _sample(root, state, FIRST_FRAME, step, world)
        total += value
        squares += value * value
    return total, squares


def calls_per_step(schedule: Schedule) -> float:
    """How many simulator calls one call of the step makes, on average over a run."""
    actions = schedule.problem.actions
    steps: list[int] = []
    for level in schedule.levels:
        own = 0 if level.reference is None else 1 + actions * level.samples * steps[level.reference]
        own += 0 if level.linear is None else 1 + steps[level.linear]
        own += 0 if level.quadratic is None else 1 + 2 * level.pairs * steps[level.quadratic]
        steps.append(own)
    child = schedule.root.reference if schedule.root.linear is None else schedule.root.linear
    return 1.0 if child is None or steps[child] == 0 else schedule.costs[child] / steps[child]


@dataclass(frozen=True, eq=False)
class JittedEngine:
    """See `Engine`. For `JitModel`s whose states are vectors of float64, with backups that do not depend on states."""

    schedule: Schedule
    backup: Backup
    model: JitModel

    compiled: ClassVar[bool] = True

    @staticmethod
    def serves(model: JitModel) -> bool:
        """Whether this engine can run the model: its states must be known to be vectors of float64."""
        return serves(model)

    @property
    def chunk_calls(self) -> int:
        """Simulator calls that take it a fraction of a second."""
        return 1 << 20

    @cached_property
    def _tables(self) -> tuple[float, NDArray[np.void], Softmaxes]:
        return self.model.discount, level_table(self.schedule), softmaxes(self.backup, self.model.actions, None)

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""
        frames = new_frames(self.schedule, self._tables[2])
        return self._checked(_sum_returns, oracle, state, (action, count), count, frames)

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""
        frames = new_frames(self.schedule, self._tables[2])
        frames[GIVEN_FRAME, 0, :-1] = reference
        return self._checked(_sum_values, oracle, state, (count,), count, frames)

    def _checked(
        self, function: Any, oracle: Oracle, state: Floats, sizes: tuple[int, ...], count: int, frames: Floats
    ) -> Sums:
        with opened(self.model, oracle, len(state)) as door:
            world = World(*self._tables, frames, door)
            return Sums(count, *function(np.array(state), *sizes, self.model.step, world))
