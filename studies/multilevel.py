"""RandomizedMultilevel, a rival that certifies nothing: randomised multilevel Monte Carlo for nested smooth backups.

The value at depth h is V_h(s) = F_s(Q_h(s)), Q_h(s, a) = E[R + γ·V_{h−1}(Z)], with V_0 the middle of the value
interval and terminal states worth 0. A sample Y_h(s) draws a level L and, for each action, n₀·2^L independent returns
X = R + γ·Y_{h−1}(Z). With B_l the average of F(mean of a block) over the disjoint blocks of n₀·2^l returns,

    Y_h = B_0 + Σ_{l=1..L} (B_l − B_{l−1}) / P(L ≥ l),      P(L ≥ l) = 2^−l·(l+1)^−a,  a > 1.

The differences are antithetic: a block of twice the size against its two halves. They telescope, so that
E Y_h = lim E F(mean of n₀·2^l returns) = F(Q_h). All moments of Y_h are finite, and so is its expected cost; the
variance of its cost is not. See docs/baselines.md for the argument.

Levels are drawn from streams of their own, one for each depth. So the cost of a chunk is known before its first
simulator call: `planned_calls`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from smoothplan.base import arguments, streams
from smoothplan.base.arguments import Floats, Ints, amount, scientific
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.run.chunks import CALLS_AT_ONCE, Chunk, Sums, Work, chunk_size, pieces, repeated
from smoothplan.run.progress import Display
from smoothplan.run.records import (
    LONG_HORIZONS,
    REFUSED_CALLS,
    Root,
    Run,
    Snapshot,
    Status,
    Support,
    TooExpensiveError,
    refuse_compiled,
    within,
)
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import Backup, depends_on_state, required_backup
from smoothplan.theory.curvature import Problem

MOST_NESTED = 200
"""The largest depth H. A depth takes three nested function calls, of which Python allows 1,000; and more would be
affordable only where one action leads to one state."""

FEWEST = 256
"""Samples before their standard error is trusted: they have all moments, but large ones."""

HIGHEST = 40
"""The largest level: uniform numbers are multiples of 2⁻⁵³, and cannot tell higher ones apart. The sample is unbiased
for F of a mean of n₀·2⁴⁰ returns."""


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
    """

    backup: Backup
    problem: Problem
    depth: int  # H
    base: int  # n₀, the returns per action of the smallest blocks
    law: LevelLaw

    compiled: ClassVar[bool] = False
    chunk_calls: ClassVar[int] = 1 << 18

    @cached_property
    def certain(self) -> int:
        """Up to this depth the return of an action does not vary: one of each is drawn, and no level."""
        if self.problem.reward_noise > 0.0:
            return 0
        # With one next state nothing varies. Otherwise returns onto V_0 do not, unless that state may be worth 0.
        return self.depth if self.problem.single_successor else int(not self.problem.terminates)

    def roots(self, oracle: Oracle, state: Any, count: int) -> Sums:
        """Samples of the root's value less V_0, which loses fewer digits than the samples themselves.

        More: the number of returns of each action, and the sum of the returns of each action.
        """
        draws = _Draws(self, oracle)
        samples = draws.samples(self.depth, repeated(state, count)) - self.problem.middle
        more = draws.returns, *draws.totals.tolist()
        return Sums(count, float(samples.sum()), float(samples @ samples), more)

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
                rows += self.problem.actions * int(self.sizes(depth, self.levels(depth, rng, piece)).sum())
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
            calls = self.problem.actions * size * (1.0 + calls)
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
        self.totals = np.zeros(engine.problem.actions)

    def samples(self, depth: int, states: States) -> Floats:
        """One sample of V_depth at each state [n, ...], [n]."""
        engine = self._engine
        levels = engine.levels(depth, self._levels[depth - 1], len(states))
        order = np.argsort(levels, kind="stable")
        result = np.empty(len(states))
        start = 0
        for stop in _cuts(np.cumsum(engine.sizes(depth, levels[order])), CALLS_AT_ONCE // engine.problem.actions):
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
            drawn = returns[:, start : start + size * count].reshape(engine.problem.actions, -1, blocks, count)
            result[group] = self._sum(self._averages(drawn.mean(axis=1), states[group])[0])
            start += size * count
        return result

    def _one(self, depth: int, state: States, levels: Ints) -> Floats:
        """The sample at one state [1, ...] with a level [1]; its returns may be too many to be drawn at once, [1]."""
        engine, level = self._engine, int(levels[0])
        base = int(engine.sizes(depth, levels)[0]) >> level
        room = max(CALLS_AT_ONCE // (engine.problem.actions * base), 1)
        drawn = min(level, room.bit_length() - 1)  # blocks of this level are drawn at once
        sums = np.zeros((level + 1, 1))
        # Means of blocks that wait for their other half, in descending levels: a binary counter.
        waiting: list[tuple[int, Floats]] = []
        for _ in range(1 << (level - drawn)):
            returns = self._returns(depth, np.repeat(state, base << drawn, axis=0))
            averages, mean = self._averages(returns.reshape(engine.problem.actions, base, -1, 1).mean(axis=1), state)
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
        tiled = np.broadcast_to(states, (engine.problem.actions, *states.shape)).reshape(-1, *states.shape[1:])
        next_states, rewards, ended = self._oracle.sample(tiled, np.repeat(np.arange(engine.problem.actions), count))
        if depth == 1:
            future: Floats = np.where(ended, 0.0, engine.problem.middle)
        elif not ended.any():
            future = self.samples(depth - 1, next_states)
        else:
            future = np.zeros(len(ended))
            going_on = np.flatnonzero(~ended)
            future[going_on] = self.samples(depth - 1, next_states[going_on])
        result = (rewards + engine.problem.discount * future).reshape(engine.problem.actions, count)
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


@dataclass(frozen=True)
class Estimate:
    """Details of `RandomizedMultilevel`: its value is an estimate of the value at a finite depth."""

    standard_error: float | None  # around the value at that depth; None for too few samples
    depth: int
    bias: float  # the largest distance between the value at that depth and the value

    @property
    def support(self) -> Support:
        """The interval follows from the model's declarations."""
        return "declared"

    def summary(self) -> str:
        """The estimate in words."""
        noise = "" if self.standard_error is None else f"± {self.standard_error:.2g} (one standard error), "
        return f"{noise}truncated at depth {self.depth}: bias at most {self.bias:.2g}"


@dataclass(frozen=True)
class RandomizedMultilevel:
    """Unbiased samples of the value at a finite depth, by multilevel differences at random levels: an estimate.

    A sample is unbounded and no theorem with usable constants bounds its mean, so nothing is certified: the interval
    is what the model declares, and `result.details` has the standard error of the value. Samples are drawn until the
    bias of the depth, at most γ^H·W/2, and the noise, z_{1−δ/2} standard errors, are within ε together; or the noise
    alone within ε/2, where a depth of your own has a larger bias than that.

    A sample's cost has a finite mean, which grows exponentially with the depth, and an infinite variance. Under
    `max_calls` chunks of samples are drawn in order up to the first that does not fit; docs/baselines.md says what that
    does to the estimate. Where no depth is given, the limit may lower it.

    Args:
        backup: F, smooth.
        epsilon: the accuracy wanted.
        delta: how often the estimate may be further away, if its error were normal.
        depth: H; by default the least with a bias of at most ε/2.
        base: n₀, the returns per action at the lowest level.
        decay: a > 1 in P(L ≥ l) = 2^−l·(l+1)^−a, the law of the levels. The defaults of n₀ and a are near the least
            cost × variance on models with discounts of 0.2 to 0.9 and temperatures of 0.1 and 0.5; a smaller n₀ or a
            larger a is cheaper where returns vary little, and far dearer elsewhere. See docs/baselines.md.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    depth: int | None = None
    base: int = 4
    decay: float = 2.0

    no_forecast: ClassVar[str] = "its price depends on the variance of its samples, which only the run reveals"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.accuracy(self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        if self.backup.temperature == 0.0:
            raise ValueError(f"RandomizedMultilevel needs a smooth backup, got {self.backup!r}: use SparseSampling")
        if self.depth is not None:
            object.__setattr__(self, "depth", arguments.whole("depth", self.depth, most=MOST_NESTED))
        object.__setattr__(self, "base", arguments.whole("base", self.base, most=1 << 16))
        object.__setattr__(self, "decay", arguments.number("decay", self.decay, above=1.0, below=16.0))

    def depth_for(self, model: GenerativeModel) -> int:
        """The depth: as given, or the least at which what lies beyond is worth ε/2 at most; 200 if that is less."""
        return min(self._wanted(model), MOST_NESTED)

    def _wanted(self, model: GenerativeModel) -> int:
        """The depth that ε asks for, which may be more than there is."""
        if self.depth is not None:
            return self.depth
        problem = Problem.of(model, self.backup)
        if problem.discount * problem.width / 2.0 <= self.epsilon / 2.0:
            return 1
        # A sum of logarithms: the quotient may be too small for a float.
        logarithm = math.log(self.epsilon) - math.log(problem.width)
        return math.ceil(logarithm / math.log(problem.discount) * (1.0 - 1e-9))  # up to rounding

    def engine(self, model: GenerativeModel, depth: int) -> MultilevelEngine:
        """Draws samples of a depth."""
        return MultilevelEngine(self.backup, Problem.of(model, self.backup), depth, self.base, LevelLaw(self.decay))

    def expected_calls(self, model: GenerativeModel) -> float:
        """Simulator calls of one sample at the root on average, if no state is terminal; fewer if some are."""
        return self.engine(model, self.depth_for(model)).expected_calls

    def start(self, root: Root) -> Run:
        """A run that has not made any simulator call yet.

        Raises:
            TooExpensiveError: the fewest samples may need more than `REFUSED_CALLS`, or ε a depth of more than
                `MOST_NESTED`, and there is no limit on calls.
        """
        refuse_compiled(root.engine, "a planner with compiled kernels", self)
        depth = self._wanted(root.model)
        engine = self.engine(root.model, min(depth, MOST_NESTED))
        if root.max_calls is None and FEWEST * engine.expected_calls > REFUSED_CALLS:
            calls = engine.expected_calls
            price = "more than 1e300" if calls > 1e300 else amount(math.ceil(calls))
            raise TooExpensiveError(
                f"a sample of depth {engine.depth} needs {price} simulator calls on average, and {FEWEST:,} samples "
                f"more than {scientific(REFUSED_CALLS)}. The price is exponential in the depth: a smaller discount, a "
                f"larger epsilon than {self.epsilon:g} or a depth of your own would help; max_calls=N plans as deep as "
                f"N calls allow; {LONG_HORIZONS}"
            )
        if root.max_calls is None and depth > MOST_NESTED:
            raise TooExpensiveError(
                f"epsilon must be larger, got {self.epsilon:g}: it needs a depth of {depth:,}, and {MOST_NESTED} is "
                "the most there is; or give the depth that you want, or max_calls, which may lower it"
            )
        if root.max_calls is not None and self.depth is None:
            # A limit on calls must pay for 64 samples on average, or the depth is lowered.
            while engine.depth > 1 and 64 * engine.expected_calls > root.max_calls:
                engine = self.engine(root.model, engine.depth - 1)
        return MultilevelRun(self, root, engine, lowered=engine.depth < depth)


class MultilevelRun:
    """A run: sums of samples of the root's value, and of its returns."""

    def __init__(self, planner: RandomizedMultilevel, root: Root, engine: MultilevelEngine, lowered: bool) -> None:
        self._planner, self._root, self._engine, self._lowered = planner, root, engine, lowered
        self._problem = Problem.of(root.model, planner.backup)
        self._bias = self._problem.discount**engine.depth * self._problem.width / 2.0
        self._sums = Sums(more=(0,) * (1 + self._problem.actions))  # see `MultilevelEngine.roots`
        self._calls = 0
        self._chunks = 0  # made, which is the number of the next

    def run(self, workers: Workers, display: Display) -> Status:
        """Draws samples until bias and noise are within ε, or the next ones may exceed the limit on calls."""
        work = Work(self._engine, self._root.model, self._root.state, self._root.seed)
        look = FEWEST
        while True:
            before = self._chunks
            for _, outcome in workers.in_order(work, self._tasks(look, workers.stop_signal.check)):
                self._calls += outcome.calls
                self._sums += outcome.sums
                display.update(self._calls, self._problem.values)
            if self._sums.samples >= look:
                if self._precise():
                    return "max_calls" if self._lowered else "completed"
                # Few looks, so that few runs end because the variance happened to look small.
                look = math.ceil(1.2 * self._sums.samples)
            elif self._chunks == before:
                return "max_calls"

    def result(self) -> Snapshot:
        """The means of the samples and of the returns. The interval is what the model declares."""
        (samples, total, _), (returns, *totals) = self._sums.moments, self._sums.more
        low, high = self._problem.values
        mean = float(self._problem.middle + total / max(samples, 1))
        q = np.full(self._problem.actions, sum(self._problem.action_values) / 2.0)
        if returns > 0:
            q = np.array(totals) / returns
        return Snapshot(
            value=min(max(mean, low), high),
            interval=(low, high),
            action=int(q.argmax()),
            q=q,
            calls=self._calls,
            samples=samples,
            epsilon=self._planner.epsilon,
            delta=self._planner.delta,
            details=Estimate(self._standard_error(), self._engine.depth, self._bias),
        )

    def _tasks(self, samples: int, check: Callable[[], object]) -> Iterator[Chunk[Sums]]:
        """Chunks up to a number of samples; what fits into the limit on calls for certain, by what is booked now."""
        limit, each = self._root.max_calls, self._engine.expected_calls
        drawn = self._sums.samples
        left = None if limit is None else limit - self._calls
        while drawn < samples:
            # Under a limit on calls all chunks are alike, so that none is preferred by what it costs.
            planned = int(drawn * each) if limit is None else None
            count = chunk_size(self._engine.chunk_calls, each, planned=planned, max_calls=limit)
            if left is not None:
                calls = self._engine.planned_calls(self._root.seed, self._chunks, count, left, check)
                if calls > left:
                    return
                left -= calls
            yield Chunk(self._chunks, MultilevelEngine.roots, (count,), count)
            self._chunks += 1
            drawn += count

    def _precise(self) -> bool:
        """Whether noise and bias are within ε; or the noise within ε/2, where the depth is the user's choice."""
        epsilon, error = self._planner.epsilon, self._standard_error()
        allowed = max(epsilon - self._bias, epsilon / 2.0)
        factor = -NormalDist().inv_cdf(self._planner.delta / 2.0)  # at 1 − δ/2 a small δ would be lost
        return error is not None and within(factor * error, allowed)

    def _standard_error(self) -> float | None:
        """That of the mean of the samples; None where there are fewer than two."""
        samples, total, squares = self._sums.moments
        if samples < 2:
            return None
        return math.sqrt(max(0.0, squares - total**2 / samples) / (samples - 1) / samples)
