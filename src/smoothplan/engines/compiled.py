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
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, frozen
from smoothplan.backups import Backup
from smoothplan.engines.base import Sums
from smoothplan.models.base import Oracle
from smoothplan.models.tabular import OUTCOME, Tables, TabularModel, draw, first_outcome, select
from smoothplan.schedules.schedule import Schedule
from smoothplan.streams import CALLS, Stream, advance, compiled, uniform

CONSTANT, PLUG_IN, FIRST, SECOND = range(4)
KINDS = {"constant": CONSTANT, "plug-in": PLUG_IN, "order-1": FIRST, "order-2": SECOND}

ZERO_FRAME, GIVEN_FRAME, FIRST_FRAME = range(3)
"""Frames of the constant reference and of the root's reference, and the first of those that samples fill."""

GIVEN = -1
"""In place of the number of samples: the reference is there before the level is sampled."""

LEVEL = np.dtype(
    [
        ("kind", np.int64),
        ("samples", np.int64),
        ("reference", np.int64),  # −1 where there is none, and so below
        ("linear", np.int64),
        ("quadratic", np.int64),
        ("pairs", np.int64),
        ("by_policy", np.int64),  # whether the linear term is centred by ⟨π, Q̂⟩
        ("clipped", np.int64),
        ("shift", np.float64),  # the constant itself, for the constant level
        ("low", np.float64),
        ("high", np.float64),
    ],
    align=True,
)
"""A level as compiled code sees it."""


class Softmaxes(NamedTuple):
    """A backup as a mixture of softmaxes over columns; see `transport.Columns`."""

    temperature: float  # 0 for the hard maximum
    shifts: Floats  # [J, K]
    weights: Floats  # [S, J], or [1, J] where they do not depend on the state


def softmaxes(backup: Backup, model: TabularModel) -> Softmaxes:
    """A backup in the form that compiled code reads."""
    weights = np.atleast_2d(backup.weights(np.arange(model.states)))
    return Softmaxes(backup.temperature, frozen(backup.shifts(model.actions).T), frozen(weights))


def level_table(schedule: Schedule) -> NDArray[np.void]:
    """A schedule in the form that compiled code reads, [L] of `LEVEL`."""
    table = np.zeros(len(schedule.levels), dtype=LEVEL)
    for row, level in enumerate(schedule.levels):
        entry = table[row]
        entry["kind"] = KINDS[level.kind]
        entry["samples"] = level.samples if row < len(table) - 1 else GIVEN
        for name in ("reference", "linear", "quadratic"):
            child = getattr(level, name)
            entry[name] = -1 if child is None else child
        entry["pairs"] = level.pairs
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


@compiled
def _fill(frames: Floats, frame: int, soft: Softmaxes) -> None:
    """The softmaxes at the reference in a frame [1 + J, K + 1].

    Row 0 holds Q̂. Row 1 + j receives the running sums of the odds exp((Q̂_i − shift_ij − top)/η) over actions i, and
    behind them the soft maximum η log Σ_i exp((Q̂_i − shift_ij)/η).
    """
    columns, actions = soft.shifts.shape
    for j in range(columns):
        top = frames[frame, 0, 0] - soft.shifts[j, 0]
        for i in range(1, actions):
            top = max(top, frames[frame, 0, i] - soft.shifts[j, i])
        maximum = top
        if soft.temperature > 0.0:
            scale = 1.0 / soft.temperature
            total = 0.0
            for i in range(actions):
                total += math.exp((frames[frame, 0, i] - soft.shifts[j, i] - top) * scale)
                frames[frame, 1 + j, i] = total
            maximum += soft.temperature * math.log(total)
        frames[frame, 1 + j, actions] = maximum


@compiled
def _value(frames: Floats, frame: int, state: int, soft: Softmaxes) -> float:
    """F(Q̂) at the reference of a frame."""
    row = state if len(soft.weights) > 1 else 0
    columns, actions = soft.shifts.shape
    value = 0.0
    for j in range(columns):
        value += soft.weights[row, j] * frames[frame, 1 + j, actions]
    return value


@compiled
def _column(state: int, soft: Softmaxes, stream: Stream) -> int:
    """A column J ~ μ_s."""
    columns = len(soft.shifts)
    if columns == 1:
        return 0
    row = state if len(soft.weights) > 1 else 0
    level = uniform(stream)
    j = 0
    while j < columns - 1 and level >= soft.weights[row, j]:
        level -= soft.weights[row, j]
        j += 1
    return j


@compiled
def _action(frames: Floats, frame: int, column: int, stream: Stream) -> int:
    """An action A ~ p_·J at the reference of a frame."""
    last = frames.shape[2] - 2
    level = uniform(stream) * frames[frame, 1 + column, last]
    action = 0
    for i in range(last):
        action += level >= frames[frame, 1 + column, i]
    return action


@compiled
def _policy_mean(frames: Floats, frame: int, state: int, soft: Softmaxes) -> float:
    """⟨π, Q̂⟩ at the reference of a frame."""
    row = state if len(soft.weights) > 1 else 0
    columns, actions = soft.shifts.shape
    mean = 0.0
    for j in range(columns):
        before, inner = 0.0, 0.0
        for i in range(actions):
            inner += (frames[frame, 1 + j, i] - before) * frames[frame, 0, i]
            before = frames[frame, 1 + j, i]
        mean += soft.weights[row, j] * inner / before
    return mean


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
            _fill(frames, depth, soft)
        value = level.shift + _value(frames, frame, state, soft)

        if level.quadratic >= 0:
            column = _column(state, soft, stream)
            first, second = _action(frames, frame, column, stream), _action(frames, frame, column, stream)
            if first != second:
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
        action = _action(frames, frame, _column(state, soft, stream), stream)
        if level.by_policy == 0:
            value -= frames[frame, 0, action]
        else:
            value -= _policy_mean(frames, frame, state, soft)
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
    _fill(frames, ZERO_FRAME, soft)
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
    _fill(frames, ZERO_FRAME, soft)
    _fill(frames, GIVEN_FRAME, soft)
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

    @property
    def chunk_calls(self) -> int:
        """Simulator calls that take it a fraction of a second."""
        return 1 << 21

    @cached_property
    def _tables(self) -> tuple[float, NDArray[np.void], Tables, Softmaxes]:
        return self.model.discount, level_table(self.schedule), self.model.tables, softmaxes(self.backup, self.model)

    def _frames(self) -> Floats:
        """Scratch space, [frames, 1 + J, K + 1]: see `_fill`."""
        columns, actions = self._tables[3].shifts.shape
        return np.zeros((FIRST_FRAME + len(self.schedule.levels), 1 + columns, actions + 1))

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
