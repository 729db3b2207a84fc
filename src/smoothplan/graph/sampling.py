"""Samples of many pairs at once, in chunks: from a table, or from any simulator."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.models.model import Oracle, States
from smoothplan.models.tabular import Tables


class Sampled(NamedTuple):
    """Next states and rewards of n simulator calls, with m different next states of the same pair and end."""

    states: States  # [m, ...]
    groups: Ints  # [n], which of these
    rewards: Floats  # [n]
    terminals: NDArray[np.bool_]  # [m]

    def outcomes(self, entries: Ints, numbers: Ints) -> tuple[Ints, Ints, Floats, Ints]:
        """Entries of pairs, successors, rewards, and how often each was met: equal ones together, if they can.

        Args:
            entries: of the pairs that were sampled, [n].
            numbers: of the next states, [m].
        """
        first = np.zeros(len(numbers), dtype=np.int64)
        first[self.groups[::-1]] = np.arange(len(self.groups))[::-1]
        rewards = self.rewards[first]
        if np.array_equal(rewards[self.groups], self.rewards):
            return entries[first], numbers, rewards, np.bincount(self.groups, minlength=len(numbers))
        return entries, numbers[self.groups], self.rewards, np.ones(len(entries), dtype=np.int64)


Batch = tuple[int, States, Ints, Ints]
"""The number of a chunk, and its pairs: states [p, ...], actions [p], and the number of samples of each."""

Draw = Callable[[Iterable[Batch]], Iterator[tuple[Batch, Sampled]]]
"""Calls a simulator for chunks, and returns the outcomes in the order of the chunks."""


class PairSampler:
    """Calls a simulator at many pairs: one call of `step` for all of them."""

    compiled: ClassVar[bool] = False

    def pairs(self, oracle: Oracle, _: Any, states: States, actions: Ints, counts: Ints) -> Sampled:
        """So many calls at each of the pairs, given by states [p, ...], actions [p] and counts [p]."""
        rows = np.repeat(np.arange(len(counts)), counts)
        found = oracle.sample(states[rows], actions[rows])
        groups, first = _grouped(_words(found.next_states), rows, found.terminals)
        return Sampled(found.next_states[first], groups, found.rewards, found.terminals[first])


def chunked(counts: Ints, calls: int) -> Iterator[tuple[slice, Ints]]:
    """Cuts a round into chunks: consecutive pairs, and how often each is sampled.

    Sizes depend on the calls made before and nothing else, so that the samples do not depend on who draws them. The
    first chunks of a slow simulator are small; no chunk returns more outcomes than fit into memory easily.
    """
    most = min(max(64, calls // 16), 1 << 17)
    ends = np.cumsum(counts)
    for start in range(0, int(ends[-1]), most):
        stop = min(start + most, int(ends[-1]))
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        part = counts[first : last + 1].copy()
        part[0] = min(int(ends[first]), stop) - start
        if last > first:
            part[-1] = stop - int(ends[last - 1])
        yield slice(int(first), int(last) + 1), part


def drawn(tables: Tables, rows: Ints, counts: Ints, rng: np.random.Generator) -> tuple[Ints, Floats, Ints]:
    """Draws from a table: successors [p, B′], negative where the episode ends, rewards, and how often each was drawn.

    Args:
        tables: the table.
        rows: pairs, by state·K + action, [p].
        counts: how often each is sampled, [p].
        rng: draws how often each successor is met.
    """
    outcomes = tables.outcomes.reshape(-1, tables.width)[rows]
    levels = (outcomes["threshold"].astype(np.float64) + 1.0) / 2.0**64
    chances = np.diff(levels, axis=1, prepend=0.0)
    times = rng.multinomial(counts, chances)
    # What rounding leaves over goes to the last place. Where that only pads, it belongs to the last possible outcome.
    last, end = np.argmax(levels == 1.0, axis=1), tables.width - 1
    left = np.where(last < end, times[:, end], 0)
    times[:, end] -= left
    times[np.arange(len(rows)), last] += left
    return outcomes["successor"], outcomes["reward"], times


def _words(states: States) -> NDArray[np.uint64]:
    """The bytes of states [n, ...] as words, [n, w]; the two zeros are one."""
    flat = np.ascontiguousarray(states.reshape(len(states), -1))
    if flat.dtype.kind == "f":
        flat = flat + 0.0
    data = flat.view(np.uint8).reshape(len(flat), -1)
    short = -data.shape[1] % 8
    if short:
        data = np.concatenate([data, np.zeros((len(data), short), dtype=np.uint8)], axis=1)
    return np.ascontiguousarray(data).view(np.uint64)


@partial(compiled, allocates=True)
def _grouped(words: NDArray[np.uint64], pairs: Ints, ends: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Which rows are alike in words [n, w], pair and end: numbers of groups [n], and the first row of each group."""
    count, width = words.shape
    size = 16
    while size < 2 * count:
        size *= 2
    slots = np.full(size, -1)
    groups, first, found = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64), 0
    for row in range(count):
        word = np.uint64(pairs[row]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(ends[row])
        for column in range(width):
            word = (word ^ words[row, column]) * np.uint64(0xD6E8FEB86659FD93)
            word ^= word >> np.uint64(32)
        slot = np.int64(word & np.uint64(size - 1))
        while slots[slot] >= 0:
            other = first[slots[slot]]
            same = pairs[other] == pairs[row] and ends[other] == ends[row]
            column = 0
            while same and column < width:
                same = words[other, column] == words[row, column]
                column += 1
            if same:
                break
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot], first[found] = found, row
            found += 1
        groups[row] = slots[slot]
    return groups, first[:found]
