"""The compiled engine: interprets a schedule with Numba, one state at a time, on tables of transitions.

One self-recursive function reads the table of levels; its arguments are whole numbers and arrays only, its signature is
explicit, and it allocates nothing: each depth has rows of its own in a scratch array. A return that goes no further
than the constant level is summed in a loop that keeps the random words in registers.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numba
import numpy as np

from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.backups import Backup, OptimalTransport
from smoothplan.engines.base import Sums
from smoothplan.models.base import Oracle
from smoothplan.models.tabular import Tables, TabularModel, draw
from smoothplan.schedules.schedule import Schedule
from smoothplan.streams import CALLS, Stream, advance, compiled, uniform

CONSTANT, PLUG_IN, FIRST, SECOND = range(4)
GIVEN = -1
KINDS = {"constant": CONSTANT, "plug-in": PLUG_IN, "order-1": FIRST, "order-2": SECOND}


class Rows(NamedTuple):
    """The levels of a schedule as columns."""

    kind: Ints  # [L]
    samples: Ints  # GIVEN where the reference is there before the level is sampled
    reference: Ints  # −1 where there is none, and so below
    linear: Ints
    quadratic: Ints
    pairs: Ints
    shift: Floats  # the constant itself, for the constant level
    by_policy: Ints  # whether the linear term is centred by ⟨π, Q̂⟩
    clip: Floats  # [L, 2]


class Softmaxes(NamedTuple):
    """A backup as a mixture of softmaxes over columns; see `transport.Columns`."""

    temperature: float  # 0 for the hard maximum
    shifts: Floats  # [K, J]
    weights: Floats  # [S, J], or [1, J] where they do not depend on the state


def softmaxes(backup: Backup, model: TabularModel) -> Softmaxes:
    """A backup in the form that compiled code reads."""
    if isinstance(backup, OptimalTransport):
        reference = backup.reference
        states = np.arange(model.states)
        table = backup.reference_at(states) if callable(reference) or reference.ndim == 2 else reference[None]
        return Softmaxes(backup.temperature, frozen(backup.tau * backup.cost), frozen(table))
    return Softmaxes(backup.temperature, frozen(np.zeros((model.actions, 1))), frozen(np.ones((1, 1))))


def rows(schedule: Schedule) -> Rows:
    """A schedule in the form that compiled code reads."""
    levels = schedule.levels

    def column(values: list[Any], dtype: Any = np.int64) -> Any:
        return frozen(np.array([-1 if value is None else value for value in values], dtype=dtype))

    middle = schedule.problem.middle
    return Rows(
        kind=column([KINDS[level.kind] for level in levels]),
        samples=column([level.samples for level in levels[:-1]] + [GIVEN]),
        reference=column([level.reference for level in levels]),
        linear=column([level.linear for level in levels]),
        quadratic=column([level.quadratic for level in levels]),
        pairs=column([level.pairs for level in levels]),
        shift=column([level.shift + (middle if level.kind == "constant" else 0.0) for level in levels], np.float64),
        by_policy=column([level.centring == "policy" for level in levels]),
        clip=column([level.clip or (-math.inf, math.inf) for level in levels], np.float64),
    )


@compiled
def _constant_returns(tables: Tables, state: int, action: int, count: int, tail: float, stream: Stream) -> float:
    """The sum of `count` returns R + tail, or R where the episode ends: the innermost loop."""
    s0, s1, s2, s3 = stream[0], stream[1], stream[2], stream[3]
    cumulative = tables.cumulative[state, action]
    rewards = tables.rewards[state, action]
    ends = tables.ends[state, action]
    total = 0.0
    for _ in range(count):
        level, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
        branch = 0
        while level >= cumulative[branch]:
            branch += 1
        reward = rewards[branch]
        if tables.bernoulli:
            level, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
            reward = 1.0 if level < reward else 0.0
        total += reward if ends[branch] else reward + tail
    stream[0], stream[1], stream[2], stream[3] = s0, s1, s2, s3
    stream[CALLS] += np.uint64(count)
    return float(total)


@compiled
def _backup(q: Floats, state: int, soft: Softmaxes, local: Floats) -> float:
    """F(q), with the local softmaxes left in `local` [K, J]."""
    actions, columns = soft.shifts.shape
    value = 0.0
    if soft.temperature == 0.0:
        value = q[0]
        for i in range(1, actions):
            value = max(value, q[i])
        return float(value)
    weights = soft.weights[state if len(soft.weights) > 1 else 0]
    for j in range(columns):
        top = q[0] - soft.shifts[0, j]
        for i in range(1, actions):
            top = max(top, q[i] - soft.shifts[i, j])
        total = 0.0
        for i in range(actions):
            odds = math.exp((q[i] - soft.shifts[i, j] - top) / soft.temperature)
            local[i, j] = odds
            total += odds
        for i in range(actions):
            local[i, j] /= total
        value += weights[j] * (top + soft.temperature * math.log(total))
    return float(value)


@compiled
def _column(state: int, soft: Softmaxes, stream: Stream) -> int:
    """A column J ~ μ_s."""
    columns = soft.shifts.shape[1]
    if columns == 1:
        return 0
    weights = soft.weights[state if len(soft.weights) > 1 else 0]
    level = uniform(stream)
    j = 0
    while j < columns - 1 and level >= weights[j]:
        level -= weights[j]
        j += 1
    return j


@compiled
def _action(local: Floats, column: int, stream: Stream) -> int:
    """An action A ~ p_·J."""
    level = uniform(stream)
    i = 0
    while i < len(local) - 1 and level >= local[i, column]:
        level -= local[i, column]
        i += 1
    return i


def _signature() -> Any:
    """The types of `_sample`, read off a smallest instance of each argument."""
    flags = frozen(np.zeros((1, 1, 1), dtype=np.bool_))
    floats = frozen(np.zeros((1, 1, 1)))
    whole = frozen(np.zeros(1, dtype=np.int64))
    table = Tables(floats, frozen(np.zeros((1, 1, 1), dtype=np.int64)), floats, False, flags)
    levels = Rows(whole, whole, whole, whole, whole, whole, floats[0, 0], whole, floats[0])
    soft = Softmaxes(1.0, floats[0], floats[0])
    arguments = (0, 0, 0, levels, table, soft, 0.5, np.zeros((1, 1)), np.zeros((1, 1, 1)), np.zeros(5, np.uint64))
    return numba.float64(*(numba.typeof(argument) for argument in arguments))


@partial(compiled, signature=_signature())
def _sample(
    row: int,
    state: int,
    depth: int,
    levels: Rows,
    tables: Tables,
    soft: Softmaxes,
    discount: float,
    q: Floats,
    local: Floats,
    stream: Stream,
) -> float:
    """One sample of a level at a state.

    No argument of a recursive call may be a literal: Numba would compile a second version and crash on loading it.
    """
    if levels.kind[row] == CONSTANT:
        return float(levels.shift[row])
    around = q[depth]
    actions = len(around)
    child, samples = levels.reference[row], levels.samples[row]
    low, high = levels.clip[row, 0], levels.clip[row, 1]
    if samples == 0:
        around[:] = 0.0
    elif samples > 0:
        for action in range(actions):
            total = 0.0
            if levels.kind[child] == CONSTANT:
                tail = discount * levels.shift[child]
                total = _constant_returns(tables, state, action, samples, tail, stream)
            else:
                for _ in range(samples):
                    successor, reward, end = draw(tables, state, action, stream)
                    total += reward
                    if not end:
                        total += discount * _sample(
                            child, successor, depth + 1, levels, tables, soft, discount, q, local, stream
                        )
            around[action] = min(max(total / samples, low), high)
    result = _backup(around, state, soft, local[depth]) + levels.shift[row]

    child = levels.linear[row]
    if child >= 0:
        action = _action(local[depth], _column(state, soft, stream), stream)
        successor, reward, end = draw(tables, state, action, stream)
        result += reward
        if not end:
            result += discount * _sample(child, successor, depth + 1, levels, tables, soft, discount, q, local, stream)
        if levels.by_policy[row] == 0:
            result -= around[action]
        else:
            weights = soft.weights[state if len(soft.weights) > 1 else 0]
            for i in range(actions):
                for j in range(len(weights)):
                    result -= weights[j] * local[depth, i, j] * around[i]

    child = levels.quadratic[row]
    if child >= 0:
        column = _column(state, soft, stream)
        first, second = _action(local[depth], column, stream), _action(local[depth], column, stream)
        if first != second:
            gap = around[first] - around[second]
            pairs = levels.pairs[row]
            total, squares = 0.0, 0.0
            for _ in range(pairs):
                successor, reward, end = draw(tables, state, first, stream)
                difference = reward - gap
                if not end:
                    difference += discount * _sample(
                        child, successor, depth + 1, levels, tables, soft, discount, q, local, stream
                    )
                successor, reward, end = draw(tables, state, second, stream)
                difference -= reward
                if not end:
                    difference -= discount * _sample(
                        child, successor, depth + 1, levels, tables, soft, discount, q, local, stream
                    )
                total += difference
                squares += difference * difference
            result += (total * total - squares) / (pairs * (pairs - 1) * 4.0 * soft.temperature)
    return float(min(max(result, low), high))


@compiled
def _sum_returns(
    state: int,
    action: int,
    count: int,
    levels: Rows,
    tables: Tables,
    soft: Softmaxes,
    discount: float,
    q: Floats,
    local: Floats,
    stream: Stream,
) -> tuple[float, float]:
    """Sum and sum of squares of returns through the level of the root's reference."""
    child = levels.reference[-1]
    total, squares = 0.0, 0.0
    for _ in range(count):
        successor, value, end = draw(tables, state, action, stream)
        if not end:
            value += discount * _sample(child, successor, 0, levels, tables, soft, discount, q, local, stream)
        total += value
        squares += value * value
    return total, squares


@compiled
def _sum_values(
    state: int,
    reference: Floats,
    count: int,
    levels: Rows,
    tables: Tables,
    soft: Softmaxes,
    discount: float,
    q: Floats,
    local: Floats,
    stream: Stream,
) -> tuple[float, float]:
    """Sum and sum of squares of root samples around a reference."""
    root = len(levels.kind) - 1
    q[0] = reference
    total, squares = 0.0, 0.0
    for _ in range(count):
        value = _sample(root, state, 0, levels, tables, soft, discount, q, local, stream)
        total += value
        squares += value * value
    return total, squares


@dataclass(frozen=True, eq=False)
class CompiledEngine:
    """See `Engine`. For tabular models."""

    schedule: Schedule
    backup: Backup
    model: TabularModel

    @cached_property
    def _tables(self) -> tuple[Rows, Tables, Softmaxes, float]:
        return rows(self.schedule), self.model.tables, softmaxes(self.backup, self.model), self.model.discount

    def _scratch(self) -> tuple[Floats, Floats]:
        """A row for each depth: references [L, K] and local softmaxes [L, K, J]."""
        depth, shape = len(self.schedule.levels), self._tables[2].shifts.shape
        return np.zeros((depth, shape[0])), np.zeros((depth, *shape))

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""
        sums = _sum_returns(int(state), action, count, *self._tables, *self._scratch(), oracle.stream)
        return Sums(count, *sums)

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""
        sums = _sum_values(int(state), reference, count, *self._tables, *self._scratch(), oracle.stream)
        return Sums(count, *sums)
