"""RandomizedMultilevel, a baseline: its configuration, and its run. What it finds are estimates."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from smoothplan import arguments
from smoothplan.arguments import amount, scientific
from smoothplan.backups import Backup, required_backup
from smoothplan.engines.multilevel import LevelLaw, MultilevelEngine
from smoothplan.models.base import GenerativeModel
from smoothplan.planners.chunks import chunk_size
from smoothplan.planners.engines import refuse_compiled
from smoothplan.running.run import (
    LONG_HORIZONS,
    REFUSED_CALLS,
    Display,
    Estimate,
    Found,
    HopelessError,
    Root,
    Run,
    Status,
    within,
)
from smoothplan.running.work import Chunk, Work
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Problem

MOST_NESTED = 200
"""The largest depth H. A depth takes three nested function calls, of which Python allows 1,000; and more would be
affordable only where one action leads to one state."""

DEPTH_SHARE = 0.5
"""The part of ε that may be lost by the depth, by default."""

FEWEST = 256
"""Samples before their standard error is trusted: they have all moments, but large ones."""


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
        if problem.discount * problem.width / 2.0 <= DEPTH_SHARE * self.epsilon:
            return 1
        # A sum of logarithms: the quotient may be too small for a float.
        logarithm = math.log(2.0 * DEPTH_SHARE) + math.log(self.epsilon) - math.log(problem.width)
        return math.ceil(logarithm / math.log(problem.discount) * (1.0 - 1e-9))  # up to rounding

    def engine(self, model: GenerativeModel, depth: int) -> MultilevelEngine:
        """What draws samples of a depth."""
        problem = Problem.of(model, self.backup)
        certain = 0
        if problem.reward_noise == 0.0:
            # With one next state nothing varies. Otherwise returns onto V_0 do not, unless that state may be worth 0.
            certain = depth if problem.single_successor else int(not problem.terminates)
        return MultilevelEngine(
            backup=self.backup,
            actions=problem.actions,
            discount=problem.discount,
            middle=problem.middle,
            depth=depth,
            base=self.base,
            law=LevelLaw(self.decay),
            certain=certain,
        )

    def expected_calls(self, model: GenerativeModel) -> float:
        """Simulator calls of one sample at the root on average, if no state is terminal; fewer if some are."""
        return self.engine(model, self.depth_for(model)).expected_calls

    def begin(self, root: Root) -> Run:
        """A run that has not made any simulator call yet.

        Raises:
            HopelessError: the fewest samples may need more than `REFUSED_CALLS`, or ε a depth of more than
                `MOST_NESTED`, and there is no limit on calls.
        """
        refuse_compiled(root.engine, "a planner with compiled kernels", self)
        depth = self._wanted(root.model)
        engine = self.engine(root.model, min(depth, MOST_NESTED))
        if root.max_calls is None and FEWEST * engine.expected_calls > REFUSED_CALLS:
            calls = engine.expected_calls
            price = "more than 1e300" if calls > 1e300 else amount(math.ceil(calls))
            raise HopelessError(
                f"a sample of depth {engine.depth} needs {price} simulator calls on average, and {FEWEST:,} samples "
                f"more than {scientific(REFUSED_CALLS)}. The price is exponential in the depth: a smaller discount, a "
                f"larger epsilon than {self.epsilon:g} or a depth of your own would help; max_calls=N plans as deep as "
                f"N calls allow; {LONG_HORIZONS}"
            )
        if root.max_calls is None and depth > MOST_NESTED:
            raise HopelessError(
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
        self._sums = np.zeros(4 + self._problem.actions)  # as in RootSums
        self._calls = 0
        self._chunks = 0  # made, which is the number of the next

    def go(self, workers: Workers, display: Display) -> Status:
        """Draws samples until bias and noise are within ε, or the next ones may exceed the limit on calls."""
        work = Work(self._engine, self._root.model, self._root.state, self._root.seed, "samples at the root")
        look = FEWEST
        while True:
            before = self._chunks
            for _, outcome in workers.in_order(work, self._tasks(look, workers.brake.check)):
                self._calls += outcome.calls
                self._sums += np.array(outcome.sums)
                display.update(self._calls, self._problem.values)
            if self._sums[0] >= look:
                if self._precise():
                    return "max_calls" if self._lowered else "completed"
                # Few looks, so that few runs end because the variance happened to look small.
                look = math.ceil(1.2 * self._sums[0])
            elif self._chunks == before:
                return "max_calls"

    def found(self) -> Found:
        """The means of the samples and of the returns. The interval is what the model declares."""
        (samples, total, _, returns), (low, high) = self._sums[:4], self._problem.values
        mean = float(self._problem.middle + total / max(samples, 1))
        q = np.full(self._problem.actions, sum(self._problem.action_values) / 2.0)
        if returns > 0:
            q = self._sums[4:] / returns
        return Found(
            value=min(max(mean, low), high),
            interval=(low, high),
            action=int(q.argmax()),
            q=q,
            calls=self._calls,
            samples=int(samples),
            epsilon=self._planner.epsilon,
            delta=self._planner.delta,
            details=Estimate(self._standard_error(), self._engine.depth, self._bias),
        )

    def _tasks(self, samples: int, check: Callable[[], object]) -> Iterator[Chunk]:
        """Chunks up to a number of samples; what fits into the limit on calls for certain, by what is booked now."""
        limit, each = self._root.max_calls, self._engine.expected_calls
        drawn = int(self._sums[0])
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
            yield Chunk(self._chunks, "roots", (count,), count)
            self._chunks += 1
            drawn += count

    def _precise(self) -> bool:
        """Whether noise and bias are within ε; or the noise within ε/2, where the depth is the user's choice."""
        epsilon, error = self._planner.epsilon, self._standard_error()
        allowed = max(epsilon - self._bias, (1.0 - DEPTH_SHARE) * epsilon)
        factor = -NormalDist().inv_cdf(self._planner.delta / 2.0)  # at 1 − δ/2 a small δ would be lost
        return error is not None and within(factor * error, allowed)

    def _standard_error(self) -> float | None:
        """That of the mean of the samples; None where there are fewer than two."""
        samples, total, squares = self._sums[:3].tolist()
        if samples < 2:
            return None
        return math.sqrt(max(0.0, squares - total**2 / samples) / (samples - 1) / samples)
