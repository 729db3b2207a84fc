"""Chains on tables of transitions, compiled.

Under a fixed policy one step of a chain is one draw: of an action, an outcome, and the gain of both. All possible steps
of a state are in one row of Walker's aliases, so that a step takes one random word and one read from memory. What is
left is waiting for that read. So chains advance together in lanes, with the random state in registers.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.compiling import compiled
from smoothplan.base.streams import CALLS, Stream, advance
from smoothplan.models.model import ModelError, Oracle, total_weight
from smoothplan.models.tabular import LAST, Tables, TabularModel, draw
from smoothplan.run.chunks import Sums
from smoothplan.theory.backups import Backup, HardMax, is_mixture, required_mixture, softmaxes
from smoothplan.theory.softmaxes import Softmaxes, draw_action, draw_column, draw_stop, framed, paired, sums_of

NO_ACTION = -1
"""In place of a first action: chains begin with an action of the policy."""

LANES = 64
"""Chains that advance together, an even number: one alone is three times slower, twenty times on a large table."""

ENTRY = np.dtype(
    [
        ("limit", np.float64),  # column + the probability of keeping it
        ("gain", np.float64),  # R + F(Q̂) − Q̂(A), of the column itself
        ("other_gain", np.float64),  # and of its alias
        ("row", np.uint32),  # the first entry of the next state
        ("other_row", np.uint32),
    ],
    align=True,
)
"""A column of a row of aliases. A uniform number on [0, width) keeps the column that it falls into, or leaves it."""


class Sampler(NamedTuple):
    """A tabular model under the policy ∇F(Q̂), and the lanes: chains that advance together, [LANES] each, ended last.

    Ended chains stay in the last row of entries.
    """

    entries: NDArray[np.void]  # [(S + 1)·width] of ENTRY, read-only
    width: int
    end: int  # the first entry of the last row
    discount: float
    tail: float
    tables: Tables
    q: Floats  # [S, K]
    soft: Softmaxes
    rows: NDArray[np.uint64]  # the first entry of each chain's state
    owners: Ints  # of the chains
    sums: Floats  # of the chains, and before that the rewards of first steps, by owner
    stream: Stream


@partial(compiled, allocates=True)
def _fill(policy: Floats, advantages: Floats, tables: Tables, terminal: Any, width: int, entries: Any) -> None:
    """The rows of all states, for a policy [S, K] and its advantages F(Q̂) − Q̂, [S, K]: aliases by Vose's method."""
    states, actions = policy.shape
    chances, gains, rows = np.empty(width), np.empty(width), np.empty(width, dtype=np.uint32)
    stack = np.empty(width, dtype=np.int64)
    for state in range(states + 1):
        size, total = 0, 0.0
        if state < states and not terminal[state]:
            for action in range(actions):
                before = 0.0
                for outcome in tables.outcomes[(state * actions + action) * tables.width :][: tables.width]:
                    passed = (float(outcome.threshold) + 1.0) * 2.0**-64
                    chance = policy[state, action] * (passed - before)
                    before = passed
                    if chance > 0.0:
                        chances[size] = chance
                        gains[size] = outcome.reward + advantages[state, action]
                        rows[size] = (outcome.successor if outcome.successor >= 0 else states) * width
                        size, total = size + 1, total + chance
        # If nothing can be drawn, the chain has ended: it stays and gains nothing.
        for column in range(size, width):
            gains[column], rows[column] = 0.0, states * width
        if size == 0:
            chances[0], size, total = 1.0, 1, 1.0
        # Chances in units of 1/width. `stack` holds the columns that have less than one unit from its start, and those
        # that have more from its end. Every column keeps itself, until it is told otherwise.
        poor, rich, row = 0, width, state * width
        for column in range(width):
            chances[column] = chances[column] * width / total if column < size else 0.0
            if chances[column] < 1.0:
                stack[poor] = column
                poor += 1
            else:
                rich -= 1
                stack[rich] = column
            entry = entries[row + column]
            entry.limit, entry.gain, entry.row = column + 1.0, gains[column], rows[column]
            entry.other_gain, entry.other_row = gains[column], rows[column]
        # A poor column is filled up by a rich one, which may become poor.
        while poor > 0 and rich < width:
            poor -= 1
            column, giver = stack[poor], stack[rich]
            entry = entries[row + column]
            entry.limit, entry.other_gain, entry.other_row = column + chances[column], gains[giver], rows[giver]
            chances[giver] -= 1.0 - chances[column]
            if chances[giver] < 1.0:
                rich += 1
                stack[poor] = giver
                poor += 1


@partial(compiled, inlined=True)
def _moved(entries: NDArray[np.void], row: Any, width: float, word: Any) -> tuple[Any, float]:
    """One step under the policy: the first entry of the next state, and the gain."""
    place = float(np.int64(word >> np.uint64(11))) * width  # `width` is in units of 2⁻⁵³
    entry = entries[row + np.uint64(np.int64(place))]
    keeps = place < entry.limit
    return np.uint64(entry.row if keeps else entry.other_row), entry.gain if keeps else entry.other_gain


@compiled
def _advance(count: int, scale: float, horizon: int, run: Sampler) -> None:
    """Adds chains of order 1 with the weight `scale`, in the first `count` lanes, to their owners' sums.

    Unsigned numbers spare Numba the test for negative indices.
    """
    stream, rows, owners, sums = run.stream, run.rows, run.owners, run.sums
    entries, end, width = run.entries, np.uint64(run.end), run.width * 2.0**-53
    s0, s1, s2, s3 = stream[0], stream[1], stream[2], stream[3]
    one = np.uint64(1)
    left, calls = np.uint64(count), np.uint64(0)
    for _ in range(horizon):
        if left == 0:
            break
        calls += left
        lane = np.uint64(0)
        while lane < left:
            word, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
            row, gain = _moved(entries, rows[lane], width, word)
            sums[np.uint64(owners[lane])] += scale * gain
            if row == end:
                # The last lane has not moved yet in this round; it takes the place.
                left -= one
                rows[lane], owners[lane] = rows[left], owners[left]
            else:
                rows[lane] = row
                lane += one
        scale *= run.discount
    stream[0], stream[1], stream[2], stream[3] = s0, s1, s2, s3
    stream[CALLS] += calls
    for place in range(left):
        sums[owners[place]] += scale * run.tail


@compiled
def _sample(state: int, even: int, odd: int, size: int, horizon: int, run: Sampler) -> None:
    """Returns of two actions in turn, `size` in all, into the sums of the lanes; chains for the action `NO_ACTION`."""
    going_on, scale = size, 1.0
    if even == NO_ACTION:
        for lane in range(size):
            run.rows[lane], run.owners[lane], run.sums[lane] = state * run.width, lane, 0.0
    else:
        going_on, scale, horizon = 0, run.discount, horizon - 1
        for lane in range(size):
            successor, run.sums[lane], end = draw(run.tables, state, odd if lane & 1 else even, run.stream)
            if not end:
                run.rows[going_on], run.owners[going_on] = successor * run.width, lane
                going_on += 1
    _advance(going_on, scale, horizon, run)


@compiled
def _sum_chains(state: int, action: int, count: int, horizon: int, run: Sampler) -> tuple[float, float]:
    """Sum and sum of squares of returns of an action at a state, or of chains for the action `NO_ACTION`."""
    total, squares = 0.0, 0.0
    for start in range(0, count, LANES):
        size = min(LANES, count - start)
        _sample(state, action, action, size, horizon, run)
        added, added_squares = sums_of(run.sums, size)
        total, squares = total + added, squares + added_squares
    return total, squares


@compiled
def walked(state: int, steps: int, run: Sampler) -> int:
    """The state after a number of steps under the policy, or −1 if the episode ends before."""
    stream = run.stream
    row, end, width = np.uint64(state * run.width), np.uint64(run.end), run.width * 2.0**-53
    s0, s1, s2, s3 = stream[0], stream[1], stream[2], stream[3]
    calls = 0
    while calls < steps and row != end:
        word, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
        row, _ = _moved(run.entries, row, width, word)
        calls += 1
    stream[0], stream[1], stream[2], stream[3] = s0, s1, s2, s3
    stream[CALLS] += np.uint64(calls)
    return -1 if row == end else int(row) // run.width


@compiled
def quadratic(state: int, pairs: int, horizon: int, frames: Floats, run: Sampler) -> tuple[bool, float, float]:
    """At one state: whether the two actions differ, the U-statistic over 4η, and the variance of a difference."""
    framed(run.q, state, run.soft, frames)
    column = draw_column(state, run.soft, run.stream)
    first, second = draw_action(frames, 0, column, run.stream), draw_action(frames, 0, column, run.stream)
    if first == second:
        return False, 0.0, 0.0
    # Paired returns, and the differences of their errors.
    gap = run.q[state, first] - run.q[state, second]
    total, squares = 0.0, 0.0
    for start in range(0, 2 * pairs, LANES):
        size = min(LANES, 2 * pairs - start)
        _sample(state, first, second, size, horizon, run)
        for lane in range(0, size, 2):
            difference = run.sums[lane] - run.sums[lane + 1] - gap
            total += difference
            squares += difference * difference
    square, noise = paired(total, squares, pairs)
    return True, square / (4.0 * run.soft.temperature), noise


@partial(compiled, allocates=True)
def _sum_corrections(
    state: int, count: int, pairs: int, horizon: int, weight: float, run: Sampler
) -> tuple[float, float, int, float]:
    """The sums of corrections from a state, each with the weight of all steps."""
    columns, actions = run.soft.shifts.shape
    frames = np.empty((1, 1 + columns, actions + 1))
    total, squares, differing, noise = 0.0, 0.0, 0, 0.0
    for _ in range(count):
        there = walked(state, draw_stop(run.discount, horizon, run.stream), run)
        if there >= 0:
            differ, sample, spread = quadratic(there, pairs, horizon, frames, run)
            total += weight * sample
            squares += (weight * sample) ** 2
            differing += differ
            noise += spread
    return total, squares, differing, noise


@dataclass(frozen=True, eq=False)
class TableChains:
    """Samples around one reference for tabular models, see `BatchedChains`: references are tables."""

    model: TabularModel
    backup: Backup
    table: Floats  # Q̂, [S, K], −∞ for illegal actions; the rows of terminal states do not matter
    tail: float = 0.0

    compiled: ClassVar[bool] = True
    chunk_calls: ClassVar[int] = 1 << 22

    def values(self, oracle: Oracle, state: Any, count: int, horizon: int) -> Sums:
        """Chains of order 1 from a state."""
        return self.returns(oracle, state, NO_ACTION, count, horizon)

    def returns(self, oracle: Oracle, state: Any, action: int, count: int, horizon: int) -> Sums:
        """Returns of an action."""
        action = arguments.whole("action", action, least=NO_ACTION, most=self.table.shape[1] - 1)
        return Sums(count, *_sum_chains(self._known(state), action, count, horizon, self.sampler(oracle)))

    def corrections(self, oracle: Oracle, state: Any, count: int, pairs: int, horizon: int) -> Sums:
        """Corrections of second order from a state."""
        required_mixture(self.backup, "a correction of second order", "sample values or returns")
        weight, start, run = total_weight(self.model.discount, horizon), self._known(state), self.sampler(oracle)
        total, squares, *more = _sum_corrections(start, count, pairs, horizon, weight, run)
        return Sums(count, total, squares, tuple(more))

    def sampler(self, oracle: Oracle) -> Sampler:
        """The sampler of compiled code, for one call of an engine."""
        lanes = np.zeros(LANES, dtype=np.uint64), np.zeros(LANES, dtype=np.int64), np.zeros(LANES)
        return Sampler._make([*self._shared, *lanes, oracle.stream])

    def _known(self, state: Any) -> int:
        number = arguments.whole("state", state, least=0, most=len(self.table) - 1)
        if self.model.terminal[number]:
            raise ModelError(f"state {number} is terminal and cannot be stepped from")
        return number

    @cached_property
    def _shared(self) -> tuple[Any, ...]:
        """The fields that all samplers share: those before the lanes."""
        model, states = self.model, np.arange(self.model.states)
        table = np.where(model.terminal[:, None], 0.0, self.table)
        policy = self.backup.policy(table, states)
        advantages = self.backup.value(table, states)[:, None] - table
        possible = np.argmax(model.tables.outcomes["threshold"].reshape(*policy.shape, -1) == LAST, axis=-1) + 1
        width = int((possible * (policy > 0.0)).sum(axis=1).max())
        size = (model.states + 1) * width
        if size > 2**32:  # the first entry of a row is a number of 32 bits
            raise MemoryError(f"{size:,} possible steps under the policy are more than {2**32:,}")
        entries = np.zeros(size, dtype=ENTRY)
        _fill(frozen(policy), frozen(advantages), model.tables, model.terminal, width, entries)
        # Only corrections read the backup: the hard maximum stands in for one that has none.
        soft = softmaxes(self.backup if is_mixture(self.backup) else HardMax(), model.actions, model.states)
        end = model.states * width
        return frozen(entries), width, end, model.discount, self.tail, model.tables, frozen(table), soft
