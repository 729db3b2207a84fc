"""Samples of many pairs at once, in chunks: from a table, or from any simulator."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.base.streams import CALLS
from smoothplan.graph.explorer import Explorer
from smoothplan.models.model import Oracle, States
from smoothplan.models.tabular import Tables


class Sampled(NamedTuple):
    """The outcomes of n simulator calls: m different ones, which differ in pair, next state or end."""

    states: States  # [m, ...]
    groups: Ints  # [n], the outcome of each call
    rewards: Floats  # [n]
    terminals: NDArray[np.bool_]  # [m]

    def outcomes(self, entries: Ints, keys: Ints) -> tuple[Ints, Ints, Floats, Ints]:
        """Entries of pairs, keys of next states, rewards, and counts: equal outcomes together if rewards agree.

        Args:
            entries: of the pairs that were sampled, [n].
            keys: of the next states, [m].
        """
        first = np.zeros(len(keys), dtype=np.int64)
        first[self.groups[::-1]] = np.arange(len(self.groups))[::-1]
        rewards = self.rewards[first]
        if np.array_equal(rewards[self.groups], self.rewards):
            return entries[first], keys, rewards, np.bincount(self.groups, minlength=len(keys))
        return entries, keys[self.groups], self.rewards, np.ones(len(entries), dtype=np.int64)


Batch = tuple[int, States, Ints, Ints]
"""The number of a chunk, and its pairs: states [p, ...], actions [p], and the number of samples of each."""

Draw = Callable[[Iterable[Batch]], Iterator[tuple[Batch, Sampled]]]
"""Calls a simulator for chunks, and returns the outcomes in the order of the chunks."""


class PairSampler:
    """Calls a simulator at many pairs: one call of `step` for all of them."""

    compiled: ClassVar[bool] = False

    def pairs(self, oracle: Oracle, _: Any, states: States, actions: Ints, counts: Ints) -> Sampled:
        """Calls the simulator `counts` [p] times at the pairs of states [p, ...] and actions [p]."""
        rows = np.repeat(np.arange(len(counts)), counts)
        found = oracle.sample(states[rows], actions[rows])
        groups, first = _grouped(_words(found.next_states), rows, found.terminals)
        return Sampled(found.next_states[first], groups, found.rewards, found.terminals[first])


def sample_pairs(explorer: Explorer, entries: Ints, counts: Ints, compared: tuple[int, int], draw: Draw) -> None:
    """Samples pairs [p] and updates their confidence sets. A table is drawn from here, a simulator by `draw`.

    Args:
        explorer: owns the graph.
        entries: the pairs, in ascending order.
        counts: the number of samples of each.
        compared: two actions of the root, each of which is charged half of the calls.
        draw: calls the simulator.

    Raises:
        ModelError: as `Explorer.explore`.
    """
    oracle, actions = explorer.oracle, explorer.rules.actions
    states, chosen, calls = entries // actions, entries % actions, int(oracle.stream[CALLS])

    def next_chunk() -> int:
        explorer.graph.totals[0]["chunks"] += 1
        return int(explorer.graph.totals[0]["chunks"])  # walks draw from chunk 0

    def charge(calls: int) -> None:
        """Counts calls that the oracle did not make itself."""
        oracle.stream[CALLS] += np.uint64(calls)
        explorer.graph.spent[compared[0]] += calls - calls // 2
        explorer.graph.spent[compared[1]] += calls // 2

    if explorer.table is not None:
        rows = explorer.graph.keys[states] * actions + chosen
        keys, rewards, times = drawn(explorer.table.tables, rows, counts, oracle.of_chunk(next_chunk()).rng)
        charge(int(counts.sum()))
        seen = np.nonzero(times)
        explorer.record(entries[seen[0]], keys[seen], rewards[seen], times[seen])
        return
    known, pieces = np.asarray(explorer.states), list[slice]()

    def batches() -> Iterator[Batch]:
        for rows, part in chunked(counts, calls):
            pieces.append(rows)
            yield next_chunk(), known[states[rows]], chosen[rows], part

    for number, ((*_, part), sampled) in enumerate(draw(batches())):
        charge(int(part.sum()))
        keys = explorer.keys(sampled.states, sampled.terminals)
        explorer.record(*sampled.outcomes(np.repeat(entries[pieces[number]], part), keys))


def chunked(counts: Ints, calls: int) -> Iterator[tuple[slice, Ints]]:
    """Cuts a round into chunks: consecutive pairs, and the number of samples of each.

    Sizes depend on the calls made before and nothing else, so the samples do not depend on who draws them. The first
    chunks of a slow simulator are small; no chunk returns more outcomes than fit into memory easily.
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
    """Draws from a table: successors [p, B′], negative at the end of an episode, rewards, and the count of each.

    Args:
        tables: the table.
        rows: pairs, by state·K + action, [p].
        counts: the number of samples of each, [p].
        rng: draws the counts.
    """
    outcomes = tables.outcomes.reshape(-1, tables.width)[rows]
    levels = (outcomes["threshold"].astype(np.float64) + 1.0) / 2.0**64
    chances = np.diff(levels, axis=1, prepend=0.0)
    times = rng.multinomial(counts, chances)
    # Rounding leaves a remainder to the last place. If that only pads, the last possible outcome gets it.
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
    return np.ascontiguousarray(np.pad(data, ((0, 0), (0, short)))).view(np.uint64)


@partial(compiled, allocates=True)
def _grouped(words: NDArray[np.uint64], pairs: Ints, ends: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Groups rows that agree in words [n, w], pair and end: numbers of groups [n], and the first row of each group."""
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
