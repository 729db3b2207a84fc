"""The compiled engine: interprets a schedule with Numba, one state at a time, on tables of transitions.

One self-recursive function reads the table of levels. Its signature is explicit, no argument of a recursive call is a
literal, and it allocates nothing: each depth has a frame of its own. Three things make it fast:

- returns that go no further than the constant level are summed in a loop that keeps the random state in registers;
- the linear term of a level is its last, so that it is followed in a loop and not by recursion;
- a reference that is there before the level is sampled, constant or given, has its softmaxes ready in a frame.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, frozen
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
from smoothplan.models.base import Oracle
from smoothplan.models.tabular import OUTCOME, Tables, TabularModel, draw, first_outcome, select
from smoothplan.schedules.schedule import Schedule
from smoothplan.streams import CALLS, Stream, advance, compiled


@partial(compiled, inlined=True)
def _constant_returns(tables: Tables, state: int, action: int, count: int, tail: float, stream: Stream) -> float:
    """The sum of `count` returns R + tail, or R where the episode ends: the innermost loop."""
    s0, s1, s2, s3 = stream[0], stream[1], stream[2], stream[3]
    start = first_outcome(tables, state, action)
    total, going_on = 0.0, 0
    for _ in range(count):
        word, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
        outcome = tables.outcomes[select(tables.outcomes, start, tables.width, word)]
        total += outcome.reward
        going_on += outcome.successor >= 0
    stream[0], stream[1], stream[2], stream[3] = s0, s1, s2, s3
    stream[CALLS] += np.uint64(count)
    return total + going_on * tail


def _signature() -> Any:
    """The types of `_sample`, read off a smallest instance of each argument."""
    levels, outcomes = frozen(np.zeros(1, dtype=LEVEL)), frozen(np.zeros(1, dtype=OUTCOME))
    floats = frozen(np.zeros((1, 1)))
    soft = Softmaxes(1.0, floats, floats)
    arguments = (0, 0, 0, 0.5, levels, Tables(outcomes, 1, 1), soft, np.zeros((1, 1, 1)), np.zeros(5, np.uint64))
    return numba.float64(*(numba.typeof(argument) for argument in arguments))


@partial(compiled, signature=_signature())
def _sample(
    row: int,
    state: int,
    depth: int,
    discount: float,
    levels: NDArray[np.void],
    tables: Tables,
    soft: Softmaxes,
    frames: Floats,
    stream: Stream,
) -> float:
    """One sample of a level at a state.

    What a chain of linear terms adds up to is in `result`; the level that it has led to counts with the weight `scale`.

    No argument of a recursive call may be a literal: Numba would compile a second version and crash on loading it.
    """
    result, scale = 0.0, 1.0
    while True:
        level = levels[row]
        if level.kind == CONSTANT:
            return float(result + scale * level.shift)
        frame = ZERO_FRAME
        if level.samples == GIVEN:
            frame = GIVEN_FRAME
        elif level.samples > 0:
            frame = depth
            child = levels[level.reference]
            for action in range(tables.actions):
                total = 0.0
                if child.kind == CONSTANT:
                    total = _constant_returns(tables, state, action, level.samples, discount * child.shift, stream)
                else:
                    for _ in range(level.samples):
                        successor, reward, end = draw(tables, state, action, stream)
                        total += reward
                        if not end:
                            total += discount * _sample(
                                level.reference, successor, depth + 1, discount, levels, tables, soft, frames, stream
                            )
                frames[depth, 0, action] = min(max(total / level.samples, level.low), level.high)
            fill_frame(frames, depth, soft)
        value = level.shift + frame_value(frames, frame, state, soft)

        if level.quadratic >= 0:
            column = draw_column(state, soft, stream)
            first, second = draw_action(frames, frame, column, stream), draw_action(frames, frame, column, stream)
            if first != second or level.equal_pairs == 1:
                child = levels[level.quadratic]
                gap = frames[frame, 0, first] - frames[frame, 0, second]
                total, squares = 0.0, 0.0
                for _ in range(level.pairs):
                    difference, sign, action = -gap, 1.0, first
                    for _ in range(2):
                        successor, reward, end = draw(tables, state, action, stream)
                        difference += sign * reward
                        if not end:
                            future = child.shift
                            if child.kind != CONSTANT:
                                future = _sample(
                                    level.quadratic,
                                    successor,
                                    depth + 1,
                                    discount,
                                    levels,
                                    tables,
                                    soft,
                                    frames,
                                    stream,
                                )
                            difference += sign * discount * future
                        sign, action = -1.0, second
                    total += difference
                    squares += difference * difference
                value += (total * total - squares) / (level.pairs * (level.pairs - 1) * 4.0 * soft.temperature)

        if level.linear < 0:
            return float(result + scale * min(max(value, level.low), level.high))
        action = draw_action(frames, frame, draw_column(state, soft, stream), stream)
        if level.by_policy == 0:
            value -= frames[frame, 0, action]
        else:
            value -= policy_mean(frames, frame, state, soft)
        successor, reward, end = draw(tables, state, action, stream)
        value += reward
        if level.clipped == 0 and not end:
            result += scale * value
            scale *= discount
            row, state = level.linear, successor
            continue
        if not end:
            value += discount * _sample(
                level.linear, successor, depth + 1, discount, levels, tables, soft, frames, stream
            )
        return float(result + scale * min(max(value, level.low), level.high))


@compiled
def _sum_returns(
    state: int,
    action: int,
    count: int,
    discount: float,
    levels: NDArray[np.void],
    tables: Tables,
    soft: Softmaxes,
    frames: Floats,
    stream: Stream,
) -> tuple[float, float]:
    """Sum and sum of squares of returns through the level of the root's reference."""
    child = levels[len(levels) - 1].reference
    fill_frame(frames, ZERO_FRAME, soft)
    total, squares = 0.0, 0.0
    for _ in range(count):
        successor, value, end = draw(tables, state, action, stream)
        if not end:
            value += discount * _sample(child, successor, FIRST_FRAME, discount, levels, tables, soft, frames, stream)
        total += value
        squares += value * value
    return total, squares


@compiled
def _sum_values(
    state: int,
    count: int,
    discount: float,
    levels: NDArray[np.void],
    tables: Tables,
    soft: Softmaxes,
    frames: Floats,
    stream: Stream,
) -> tuple[float, float]:
    """Sum and sum of squares of root samples around the reference in its frame."""
    root = len(levels) - 1
    fill_frame(frames, ZERO_FRAME, soft)
    fill_frame(frames, GIVEN_FRAME, soft)
    total, squares = 0.0, 0.0
    for _ in range(count):
        value = _sample(root, state, FIRST_FRAME, discount, levels, tables, soft, frames, stream)
        total += value
        squares += value * value
    return total, squares


@dataclass(frozen=True, eq=False)
class CompiledEngine:
    """See `Engine`. For tabular models."""

    schedule: Schedule
    backup: Backup
    model: TabularModel

    compiled: ClassVar[bool] = True

    @property
    def chunk_calls(self) -> int:
        """Simulator calls that take it a fraction of a second."""
        return 1 << 21

    @cached_property
    def _tables(self) -> tuple[float, NDArray[np.void], Tables, Softmaxes]:
        soft = softmaxes(self.backup, self.model.actions, self.model.states)
        return self.model.discount, level_table(self.schedule), self.model.tables, soft

    def _frames(self) -> Floats:
        return new_frames(self.schedule, self._tables[3])

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""
        sums = _sum_returns(int(state), action, count, *self._tables, self._frames(), oracle.stream)
        return Sums(count, *sums)

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""
        frames = self._frames()
        frames[GIVEN_FRAME, 0, :-1] = reference
        sums = _sum_values(int(state), count, *self._tables, frames, oracle.stream)
        return Sums(count, *sums)
