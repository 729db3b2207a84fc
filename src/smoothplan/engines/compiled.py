"""The compiled engine: interprets a schedule with Numba, one state at a time, on tables of transitions.

One self-recursive function reads the table of levels. Its signature is explicit, no argument of a recursive call is a
literal, and it allocates nothing: each depth has a frame of its own. Three things make it fast:

- returns that go no further than the constant level are summed in a loop that keeps the random state in registers;
- the linear term of a level is its last, so that it is followed in a loop and not by recursion;
- a reference that is there before the level is sampled, constant or given, has its softmaxes ready in a frame.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, frozen
from smoothplan.backups import SoftmaxMixture
from smoothplan.compiling import compiled
from smoothplan.engines.base import Sums
from smoothplan.engines.kernels import (
    Softmaxes,
    draw_action,
    draw_column,
    fill_frame,
    frame_value,
    policy_mean,
    softmaxes,
)
from smoothplan.models.base import Oracle
from smoothplan.models.tabular import OUTCOME, Tables, TabularModel, draw, first_outcome, select
from smoothplan.schedules.schedule import Schedule
from smoothplan.streams import CALLS, Stream, advance

ZERO_FRAME, GIVEN_FRAME, FIRST_FRAME = range(3)
"""Frames of the constant reference and of the root's reference, and the first of those that samples fill."""

GIVEN = -1
"""In place of the number of samples: the reference is there before the level is sampled."""

LEVEL = np.dtype(
    [
        ("constant", np.int64),  # whether it is the constant level, whose value is `shift`
        ("samples", np.int64),
        ("reference", np.int64),  # −1 where there is none, and so below
        ("linear", np.int64),
        ("quadratic", np.int64),
        ("pairs", np.int64),
        ("equal_pairs", np.int64),  # whether pairs of one action are drawn too
        ("by_policy", np.int64),  # whether the linear term is centred by ⟨π, Q̂⟩
        ("clipped", np.int64),
        ("shift", np.float64),
        ("low", np.float64),
        ("high", np.float64),
    ],
    align=True,
)
"""A level as compiled code reads it."""


class Recursion(NamedTuple):
    """What the recursion reads, and the arrays that it writes to."""

    discount: float
    levels: NDArray[np.void]  # [L] of LEVEL
    tables: Tables
    soft: Softmaxes
    frames: Floats  # [FIRST_FRAME + L, 1 + J, K + 1], one for each depth
    stream: Stream


def _level_table(schedule: Schedule) -> NDArray[np.void]:
    """A schedule as compiled code reads it, [L] of `LEVEL`."""
    table = np.zeros(len(schedule.levels), dtype=LEVEL)
    for row, level in enumerate(schedule.levels):
        entry = table[row]
        entry["constant"] = level.kind == "constant"
        entry["samples"] = level.samples if row < len(table) - 1 else GIVEN
        for name in ("reference", "linear", "quadratic"):
            child = getattr(level, name)
            entry[name] = -1 if child is None else child
        entry["pairs"] = level.pairs
        entry["equal_pairs"] = level.equal_pairs
        entry["by_policy"] = level.centring == "policy"
        entry["clipped"] = level.clip is not None
        entry["shift"] = level.shift + (schedule.problem.middle if level.kind == "constant" else 0.0)
        entry["low"], entry["high"] = level.clip or (-math.inf, math.inf)
    result: NDArray[np.void] = frozen(table)
    return result


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
    import numba

    floats = frozen(np.zeros((1, 1)))
    run = Recursion(
        0.5,
        frozen(np.zeros(1, dtype=LEVEL)),
        Tables(frozen(np.zeros(1, dtype=OUTCOME)), 1, 1),
        Softmaxes(1.0, floats, floats),
        np.zeros((1, 1, 1)),
        np.zeros(5, np.uint64),
    )
    return numba.float64(numba.int64, numba.int64, numba.int64, numba.typeof(run))


@partial(compiled, signature=_signature)
def _sample(row: int, state: int, depth: int, run: Recursion) -> float:
    """One sample of a level at a state.

    What a chain of linear terms adds up to is in `result`; the level that it has led to counts with the weight `scale`.

    No argument of a recursive call may be a literal: Numba would compile a second version and crash on loading it.
    """
    discount, levels, tables, soft, frames, stream = run
    result, scale = 0.0, 1.0
    while True:
        level = levels[row]
        if level.constant == 1:
            return float(result + scale * level.shift)

        # The reference Q̂: zeros, the root's, or the mean of N returns per action, in the frame of this depth.
        frame = ZERO_FRAME
        if level.samples == GIVEN:
            frame = GIVEN_FRAME
        elif level.samples > 0:
            frame = depth
            child = levels[level.reference]
            for action in range(tables.actions):
                total = 0.0
                if child.constant == 1:
                    total = _constant_returns(tables, state, action, level.samples, discount * child.shift, stream)
                else:
                    for _ in range(level.samples):
                        successor, reward, end = draw(tables, state, action, stream)
                        total += reward
                        if not end:
                            total += discount * _sample(level.reference, successor, depth + 1, run)
                frames[depth, 0, action] = min(max(total / level.samples, level.low), level.high)
            fill_frame(frames, depth, soft)
        value = level.shift + frame_value(frames, frame, state, soft)

        # The quadratic term: two actions of one column, and the U-statistic of n paired differences of their returns.
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
                            if child.constant == 0:
                                future = _sample(level.quadratic, successor, depth + 1, run)
                            difference += sign * discount * future
                        sign, action = -1.0, second
                    total += difference
                    squares += difference * difference
                value += (total * total - squares) / (level.pairs * (level.pairs - 1) * 4.0 * soft.temperature)

        # The linear term: an action of the policy, centred. Unless this level clips, its return continues the loop.
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
            value += discount * _sample(level.linear, successor, depth + 1, run)
        return float(result + scale * min(max(value, level.low), level.high))


@compiled
def _sum_returns(state: int, action: int, count: int, run: Recursion) -> tuple[float, float]:
    """Sum and sum of squares of returns through the level of the root's reference."""
    child = run.levels[len(run.levels) - 1].reference
    fill_frame(run.frames, ZERO_FRAME, run.soft)
    total, squares = 0.0, 0.0
    for _ in range(count):
        successor, value, end = draw(run.tables, state, action, run.stream)
        if not end:
            value += run.discount * _sample(child, successor, FIRST_FRAME, run)
        total += value
        squares += value * value
    return total, squares


@compiled
def _sum_values(state: int, count: int, run: Recursion) -> tuple[float, float]:
    """Sum and sum of squares of root samples around the reference in its frame."""
    root = len(run.levels) - 1
    fill_frame(run.frames, ZERO_FRAME, run.soft)
    fill_frame(run.frames, GIVEN_FRAME, run.soft)
    total, squares = 0.0, 0.0
    for _ in range(count):
        value = _sample(root, state, FIRST_FRAME, run)
        total += value
        squares += value * value
    return total, squares


@dataclass(frozen=True, eq=False)
class CompiledEngine:
    """See `Engine`. For tabular models."""

    schedule: Schedule
    backup: SoftmaxMixture
    model: TabularModel

    compiled: ClassVar[bool] = True
    chunk_calls: ClassVar[int] = 1 << 21

    @cached_property
    def _tables(self) -> tuple[float, NDArray[np.void], Tables, Softmaxes]:
        soft = softmaxes(self.backup, self.model.actions, self.model.states)
        return self.model.discount, _level_table(self.schedule), self.model.tables, soft

    def _run(self, stream: Stream) -> Recursion:
        """Where a recursion starts."""
        columns, actions = self._tables[3].shifts.shape
        frames = np.zeros((FIRST_FRAME + len(self.schedule.levels), 1 + columns, actions + 1))
        return Recursion(*self._tables, frames, stream)

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""
        return Sums(count, *_sum_returns(int(state), action, count, self._run(oracle.stream)))

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""
        run = self._run(oracle.stream)
        run.frames[GIVEN_FRAME, 0, :-1] = reference
        return Sums(count, *_sum_values(int(state), count, run))
