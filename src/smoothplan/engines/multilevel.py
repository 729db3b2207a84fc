"""Randomised multilevel Monte Carlo for nested smooth backups: samples whose mean is the value at a finite depth.

The value at depth h is V_h(s) = F_s(Q_h(s)), Q_h(s, a) = E[R + γ·V_{h−1}(Z)], with V_0 the middle of the value
interval and terminal states worth 0. A sample Y_h(s) draws a level L and, for each action, n₀·2^L independent returns
X = R + γ·Y_{h−1}(Z). With B_l the average of F(mean of a block) over the disjoint blocks of n₀·2^l returns,

    Y_h = B_0 + Σ_{l=1..L} (B_l − B_{l−1}) / P(L ≥ l),      P(L ≥ l) = 2^−l·(l+1)^−a,  a > 1.

The differences are antithetic: a block of twice the size against its two halves. They telescope, so that
E Y_h = lim E F(mean of n₀·2^l returns) = F(Q_h). All moments of Y_h are finite, and so is its expected cost; the
variance of its cost is not. See docs/baselines.md for the argument.

Levels are drawn from streams of their own, one for each depth. So what a chunk will cost is known before its first
simulator call: `planned_calls`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np

from smoothplan import streams
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup, depends_on_state
from smoothplan.engines.base import CALLS_AT_ONCE, pieces, repeated
from smoothplan.models.base import Oracle, States

HIGHEST = 40
"""The largest level: uniform numbers are multiples of 2⁻⁵³, and cannot tell higher ones apart. The sample is unbiased
for F of a mean of n₀·2⁴⁰ returns."""


class RootSums(tuple[float, ...]):
    """What is kept of a batch of samples at the root, and of the returns there.

    The number of samples; the sum of their differences from V_0, which loses fewer digits than that of the samples, and
    of the squares of those; the number of returns of each action, and the sum of the returns of each action.
    """

    __slots__ = ()

    def __new__(cls, *numbers: float) -> Self:  # noqa: D102
        return super().__new__(cls, numbers)

    def __getnewargs__(self) -> tuple[float, ...]:
        return tuple(self)

    @property
    def samples(self) -> int:
        """Their number."""
        return int(self[0])


@dataclass(frozen=True)
class LevelLaw:
    """The law of a level, P(L ≥ l) = 2^−l·(l+1)^−decay for l = 0, 1, …, HIGHEST.

    Args:
        decay: a > 1.
    """

    decay: float

    @cached_property
    def tails(self) -> Floats:
        """P(L ≥ l), [HIGHEST + 1]: multiples of what uniform numbers are multiples of, so that draws are exact."""
        levels = np.arange(HIGHEST + 1)
        exact = np.exp2(-levels.astype(np.float64)) * (levels + 1.0) ** -self.decay
        return np.asarray(np.ldexp(np.ceil(np.ldexp(exact, 53)), -53))

    @cached_property
    def probabilities(self) -> Floats:
        """P(L = l), [HIGHEST + 1]."""
        return np.asarray(self.tails - np.append(self.tails[1:], 0.0))

    @property
    def mean_size(self) -> float:
        """E 2^L = 1 + ½ Σ_{l=1..HIGHEST} (l+1)^−a, up to the rounding of `tails`."""
        return float((np.exp2(np.arange(HIGHEST + 1)) * self.probabilities).sum())

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Levels [count], by inversion; one uniform number each."""
        uniform = rng.random(count)
        levels = np.zeros(count, dtype=np.int64)
        high = np.flatnonzero(uniform < self.tails[1])  # few
        levels[high] = HIGHEST - np.searchsorted(self.tails[:0:-1], uniform[high], side="right")
        return levels


@dataclass(frozen=True, eq=False)
class MultilevelEngine:
    """Samples of the value of a state at a finite depth, with NumPy, for any simulator.

    Memory is bounded whatever levels are drawn: at each depth at most `CALLS_AT_ONCE` returns (or K·n₀) are drawn at a
    time. Of the returns of one sample only means of blocks are kept.

    Args:
        backup: F, smooth.
        actions: K.
        discount: γ.
        middle: V_0.
        depth: H.
        base: n₀, the returns per action of the smallest blocks.
        law: of the levels.
        certain: up to this depth the return of an action does not vary: one of each is drawn, and no level.
    """

    backup: Backup
    actions: int
    discount: float
    middle: float
    depth: int
    base: int
    law: LevelLaw
    certain: int = 0

    compiled: ClassVar[bool] = False
    chunk_calls: ClassVar[int] = 1 << 18

    def roots(self, oracle: Oracle, state: Any, count: int) -> RootSums:
        """Samples of the value of the root, and its returns."""
        draws = _Draws(self, oracle)
        samples = draws.samples(self.depth, repeated(state, count)) - self.middle
        return RootSums(count, float(samples.sum()), float(samples @ samples), draws.returns, *draws.totals.tolist())

    def planned_calls(
        self, seed: int, chunk: int, count: int, most: int, check: Callable[[], object] | None = None
    ) -> int:
        """Simulator calls of a chunk of samples if no state is terminal, and no fewer than it makes if some are.

        What is more than `most` is not counted to the end. Where that is much, counting takes long: so now and then it
        calls `check`, which raises to end it.
        """
        nodes, calls = count, 0
        for depth, rng in reversed(list(enumerate(streams.generator(seed, chunk).spawn(self.depth), start=1))):
            rows = 0
            for piece in pieces(nodes, CALLS_AT_ONCE):
                if check is not None:
                    check()
                rows += self.actions * int(self.sizes(depth, self.levels(depth, rng, piece)).sum())
                if calls + rows > most:
                    return calls + rows
            nodes, calls = rows, calls + rows
        return calls

    @property
    def expected_calls(self) -> float:
        """Simulator calls of one sample on average, T_h = K·n₀·E2^L·(1 + T_{h−1}), if no state is terminal."""
        calls, mean = 0.0, self.base * self.law.mean_size
        for depth in range(1, self.depth + 1):
            size = 1.0 if depth <= self.certain else mean
            calls = self.actions * size * (1.0 + calls)
        return calls

    def levels(self, depth: int, rng: np.random.Generator, count: int) -> Ints:
        """The levels of samples at a depth, [count]."""
        return np.zeros(count, dtype=np.int64) if depth <= self.certain else self.law.draw(rng, count)

    def sizes(self, depth: int, levels: Ints) -> Ints:
        """The returns per action of samples with given levels at a depth, n₀·2^L."""
        return (1 if depth <= self.certain else self.base) << levels


class _Draws:
    """What one chunk draws."""

    def __init__(self, engine: MultilevelEngine, oracle: Oracle) -> None:
        self._engine, self._oracle = engine, oracle
        self._levels = oracle.rng.spawn(engine.depth)  # the streams of the levels at depths 1, 2, …, H
        self._by_state = depends_on_state(engine.backup)
        self._weights = 1.0 / engine.law.tails
        self.returns = 0
        self.totals = np.zeros(engine.actions)

    def samples(self, depth: int, states: States) -> Floats:
        """One sample of V_depth at each state [n, ...], [n]."""
        engine = self._engine
        levels = engine.levels(depth, self._levels[depth - 1], len(states))
        order = np.argsort(levels, kind="stable")
        result = np.empty(len(states))
        start = 0
        for stop in _cuts(np.cumsum(engine.sizes(depth, levels[order])), CALLS_AT_ONCE // engine.actions):
            here = order[start:stop]
            draw = self._one if stop == start + 1 else self._many
            result[here] = draw(depth, states[here], levels[here])
            start = stop
        return result

    def _many(self, depth: int, states: States, levels: Ints) -> Floats:
        """Samples at states [n, ...] with levels [n] in ascending order, whose returns are drawn together, [n]."""
        engine = self._engine
        bounds = np.flatnonzero(np.diff(levels, prepend=-1, append=HIGHEST + 1)).tolist()
        groups = [slice(*ends) for ends in pairwise(bounds)]  # of equal levels
        sizes = [int(size) for size in engine.sizes(depth, levels[bounds[:-1]])]
        rows = np.arange(len(states))
        rows = np.concatenate([np.tile(rows[group], size) for group, size in zip(groups, sizes, strict=True)])
        returns = self._returns(depth, states[rows])
        result, start = np.empty(len(states)), 0
        for group, size in zip(groups, sizes, strict=True):
            blocks, count = 1 << int(levels[group.start]), group.stop - group.start
            drawn = returns[:, start : start + size * count].reshape(engine.actions, -1, blocks, count)
            result[group] = self._sum(self._averages(drawn.mean(axis=1), states[group])[0])
            start += size * count
        return result

    def _one(self, depth: int, state: States, levels: Ints) -> Floats:
        """The sample at one state [1, ...] with a level [1]; its returns may be too many to be drawn at once, [1]."""
        engine, level = self._engine, int(levels[0])
        base = int(engine.sizes(depth, levels)[0]) >> level
        room = max(CALLS_AT_ONCE // (engine.actions * base), 1)
        drawn = min(level, room.bit_length() - 1)  # blocks of this level are drawn at once
        sums = np.zeros((level + 1, 1))
        # Means of blocks that wait for their other half, in descending levels: a binary counter.
        waiting: list[tuple[int, Floats]] = []
        for _ in range(1 << (level - drawn)):
            returns = self._returns(depth, np.repeat(state, base << drawn, axis=0))
            averages, mean = self._averages(returns.reshape(engine.actions, base, -1, 1).mean(axis=1), state)
            sums[: drawn + 1] += averages
            height = drawn
            while waiting and waiting[-1][0] == height:
                mean, height = (waiting.pop()[1] + mean) / 2.0, height + 1
                sums[height] += self._backed_up(mean, state)
            waiting.append((height, mean))
        counts = np.exp2(level - np.maximum(np.arange(level + 1), drawn))
        return self._sum(sums / counts[:, None])

    def _returns(self, depth: int, states: States) -> Floats:
        """R + γ·Y(Z) for every action at each state [n, ...], [K, n]; R alone where Z is terminal."""
        engine, count = self._engine, len(states)
        tiled = np.broadcast_to(states, (engine.actions, *states.shape)).reshape(-1, *states.shape[1:])
        next_states, rewards, ended = self._oracle.sample(tiled, np.repeat(np.arange(engine.actions), count))
        if depth == 1:
            future: Floats = np.where(ended, 0.0, engine.middle)
        elif not ended.any():
            future = self.samples(depth - 1, next_states)
        else:
            future = np.zeros(len(ended))
            going_on = np.flatnonzero(~ended)
            future[going_on] = self.samples(depth - 1, next_states[going_on])
        result = (rewards + engine.discount * future).reshape(engine.actions, count)
        if depth == engine.depth:
            self.returns += count
            self.totals += result.sum(axis=1)
        return result

    def _averages(self, means: Floats, states: States) -> tuple[Floats, Floats]:
        """From means of blocks [K, 2^m, n] at states [n, ...]: B_0, …, B_m [m + 1, n], and the mean of all [K, n]."""
        averages = []
        while True:
            averages.append(self._backed_up(means, states).mean(axis=0))
            half = means.shape[1] // 2
            if half == 0:
                return np.array(averages), means[:, 0]
            means = (means[:, :half] + means[:, half:]) / 2.0

    def _backed_up(self, means: Floats, states: States) -> Floats:
        """F at action values [K, ..., n] of states [n, ...], [..., n]."""
        shape = means.shape[1:]
        at = np.broadcast_to(states, (*shape[:-1], *states.shape)).reshape(-1, *states.shape[1:])
        q = np.moveaxis(means, 0, -1).reshape(-1, len(means))
        return self._engine.backup.value(q, at if self._by_state else None).reshape(shape)

    def _sum(self, averages: Floats) -> Floats:
        """B_0 + Σ_l (B_l − B_{l−1})/P(L ≥ l), from B [L + 1, n], [n]."""
        return np.asarray(averages[0] + self._weights[1 : len(averages)] @ np.diff(averages, axis=0))


def _cuts(ends: Ints, room: int) -> Iterator[int]:
    """Where to cut rows so that pieces have no more than `room`, or are one row; `ends` are running sums of sizes."""
    start, before = 0, 0
    while start < len(ends):
        start = max(start + 1, int(np.searchsorted(ends, before + room, side="right")))
        yield start
        before = int(ends[start - 1])
