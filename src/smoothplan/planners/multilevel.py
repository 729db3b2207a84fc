"""RandomizedMultilevel: a baseline without bias at a finite depth, by randomised multilevel Monte Carlo."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from smoothplan import arguments
from smoothplan.arguments import Floats
from smoothplan.backups import Backup
from smoothplan.engines.multilevel import LevelLaw, MultilevelEngine, RootSums
from smoothplan.forecast import amount, scientific
from smoothplan.models.base import GenerativeModel
from smoothplan.parallel.crew import Crew
from smoothplan.parallel.work import Outcome, Task, Work
from smoothplan.recursion import REFUSED_CALLS, ROUNDING, HopelessError, action_values
from smoothplan.run import Display, Root, Status, Truncation
from smoothplan.schedules.level import Problem

BASE, DECAY = 4, 2.0
"""n₀ and a: near the least cost × variance on models with discounts of 0.2 to 0.9 and temperatures of 0.1 and 0.5; a
smaller n₀ or a larger a is cheaper where returns vary little, and far dearer elsewhere. See docs/baselines.md."""

MOST_BASE, MOST_DECAY, MOST_DEPTH = 1 << 16, 16.0, 1000
"""Of n₀, a and H: more than anyone can pay for."""

TRUNCATION_SHARE = 0.5
"""The part of ε that may be lost by the depth, by default."""

FEWEST = 256
"""Samples before their standard error is trusted: they have all moments, but large ones."""

AFFORDED = 64
"""Samples that a limit on calls must pay for on average, or the depth is lowered."""

LOOK_RATIO = 1.2
"""From the samples of one look at the standard error to those of the next: few looks, so that few runs end because
the variance happened to look small."""

LOOKS = 64
"""Under a limit on calls a chunk is this fraction of it: so much may be left over."""

FIRST, RAMP = 6, 8
"""Without one, the first chunk is 2⁻⁶ of a full one, and every other at most an eighth of what was drawn before."""


@dataclass(frozen=True)
class RandomizedMultilevel:
    """Unbiased samples of the value at a finite depth, by multilevel differences at random levels: an estimate.

    A sample is unbounded and no theorem with usable constants bounds its mean, so nothing is certified: the interval
    is what the model declares, and `result.standard_error` is that of the value. Samples are drawn until the bias of
    the depth, at most γ^H·W/2, and the noise, z_{1−δ/2} standard errors, are within ε together; or the noise alone
    within ε/2, where a depth of your own has a larger bias than that.

    A sample's cost has a finite mean, which grows exponentially with the depth, and an infinite variance. Under
    `max_calls` chunks of samples are drawn in order up to the first that does not fit; docs/baselines.md says what that
    does to the estimate. Where no depth is given, the limit may lower it.

    Args:
        backup: F, smooth.
        epsilon: the accuracy wanted.
        delta: how often the estimate may be further away, if its error were normal.
        depth: H; by default the least with a bias of at most ε/2.
        base: n₀, the returns per action at the lowest level.
        decay: a > 1 in P(L ≥ l) = 2^−l·(l+1)^−a, the law of the levels.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    depth: int | None = None
    base: int = BASE
    decay: float = DECAY

    no_forecast: ClassVar[str] = "its price depends on the variance of its samples, which only the run reveals"

    def __post_init__(self) -> None:
        arguments.accuracy(self.epsilon)
        arguments.failure(self.delta)
        if self.backup.temperature == 0.0:
            raise ValueError(f"RandomizedMultilevel needs a smooth backup, got {self.backup!r}: use SparseSampling")
        if self.depth is not None:
            object.__setattr__(self, "depth", arguments.whole("depth", self.depth, most=MOST_DEPTH))
        object.__setattr__(self, "base", arguments.whole("base", self.base, most=MOST_BASE))
        object.__setattr__(self, "decay", arguments.number("decay", self.decay, above=1.0, below=MOST_DECAY))

    def depth_for(self, model: GenerativeModel) -> int:
        """The depth: as given, or the least at which what lies beyond is worth ε/2 at most."""
        if self.depth is not None:
            return self.depth
        problem = Problem.of(model, self.backup)
        tolerated = TRUNCATION_SHARE * self.epsilon
        if problem.discount * problem.width / 2.0 <= tolerated:
            return 1
        depth = math.ceil(math.log(2.0 * tolerated / problem.width) / math.log(problem.discount) * (1.0 - ROUNDING))
        return min(depth, MOST_DEPTH)

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

    def begin(self, root: Root) -> "MultilevelRun":
        """A run that has not made any simulator call yet.

        Raises:
            HopelessError: the fewest samples may need more than `REFUSED_CALLS` and there is no limit on calls.
        """
        if root.engine == "compiled":
            raise ValueError("engine must be 'auto' or 'batched' for RandomizedMultilevel, got 'compiled'")
        depth = self.depth_for(root.model)
        engine = self.engine(root.model, depth)
        if root.max_calls is None and FEWEST * engine.expected_calls > REFUSED_CALLS:
            raise HopelessError(_refusal(self, engine))
        if root.max_calls is not None and self.depth is None:
            while engine.depth > 1 and AFFORDED * engine.expected_calls > root.max_calls:
                engine = self.engine(root.model, engine.depth - 1)
        return MultilevelRun(self, root, engine, lowered=engine.depth < depth)


def _refusal(planner: RandomizedMultilevel, engine: MultilevelEngine) -> str:
    """Why a run is not started."""
    calls = engine.expected_calls
    price = "more than 1e300" if calls > 1e300 else amount(math.ceil(calls))
    return (
        f"a sample of depth {engine.depth} needs {price} simulator calls on average, and {FEWEST:,} samples more than "
        f"{scientific(REFUSED_CALLS)}. The price is exponential in the depth: a smaller discount, a larger epsilon "
        f"than {planner.epsilon:g} or a depth of your own would help; max_calls=N plans as deep as N calls allow"
    )


class MultilevelRun:
    """The state of a run: sums of samples of the root's value, and of its returns."""

    identification = None
    diagnosis = None
    q_intervals = None

    def __init__(self, planner: RandomizedMultilevel, root: Root, engine: MultilevelEngine, lowered: bool) -> None:
        problem = Problem.of(root.model, planner.backup)
        self.status: Status = "completed"
        self.epsilon, self.delta = planner.epsilon, planner.delta
        self.interval = problem.values
        self.calls = 0
        self.truncation = Truncation(engine.depth, problem.discount**engine.depth * problem.width / 2.0)
        self._root, self._engine, self._lowered = root, engine, lowered
        self._middle, self._guess = problem.middle, sum(action_values(problem)) / 2.0
        self._sums = np.zeros(4 + problem.actions)  # as in RootSums
        self._chunks = 0
        size = engine.chunk_calls if root.max_calls is None else min(engine.chunk_calls, root.max_calls // LOOKS)
        self._full = max(1, int(size / engine.expected_calls))  # samples of a chunk

    def go(self, crew: Crew, display: Display) -> None:
        """Draws samples until bias and noise are within ε, or the next ones may exceed the limit on calls."""
        work = Work(self._engine, self._root.model, self._root.state, self._root.seed, "samples at the root")
        look = FEWEST
        while True:
            before = self._chunks
            for _, outcome in crew.in_order(work, self._tasks(look)):
                self._book(outcome)
                display.update(self.calls, self.interval)
            if self.samples >= look:
                if self._precise():
                    self.status = "max_calls" if self._lowered else "completed"
                    return
                look = math.ceil(LOOK_RATIO * self.samples)
            elif self._chunks == before:
                self.status = "max_calls"
                return

    def _tasks(self, samples: int) -> Iterator[Task]:
        """Chunks up to a number of samples; what fits into the limit on calls for certain, by what is booked now."""
        limit = self._root.max_calls
        planned = self.samples
        left = None if limit is None else limit - self.calls
        while planned < samples:
            count = self._size(planned)
            if left is not None:
                calls = self._engine.planned_calls(self._root.seed, self._chunks, count, left)
                if calls > left:
                    return
                left -= calls
            yield Task(self._chunks, "roots", (count,), count)
            self._chunks += 1
            planned += count

    def _size(self, planned: int) -> int:
        """Samples of the next chunk: all alike under a limit on calls, so that none is preferred by what it costs."""
        if self._root.max_calls is not None:
            return self._full
        return min(self._full, max(planned // RAMP, self._full >> FIRST, 1))

    def _book(self, outcome: Outcome) -> None:
        self.calls += outcome.calls
        self._sums += np.array(outcome.sums)

    @property
    def _found(self) -> RootSums:
        return RootSums(*self._sums.tolist())

    def _precise(self) -> bool:
        """Whether noise and bias are within ε; or the noise within ε/2, where the depth is someone's choice."""
        allowed = max(self.epsilon - self.truncation.bias, (1.0 - TRUNCATION_SHARE) * self.epsilon)
        error = self.standard_error
        return error is not None and NormalDist().inv_cdf(1.0 - self.delta / 2.0) * error <= allowed * (1.0 + ROUNDING)

    @property
    def samples(self) -> int:
        """Samples drawn."""
        return self._found.samples

    @property
    def standard_error(self) -> float | None:
        """That of the mean of the samples; None where there are fewer than two."""
        found = self._found
        if found.samples < 2:
            return None
        variance = max(0.0, found.squares - found.total**2 / found.samples) / (found.samples - 1)
        return math.sqrt(variance / found.samples)

    @property
    def value(self) -> float:
        """The mean of the samples, moved into the interval where it is outside."""
        low, high = self.interval
        found = self._found
        return min(max(self._middle + found.total / max(found.samples, 1), low), high)

    @property
    def q(self) -> Floats:
        """The mean of the returns of each action, [K]: estimates."""
        found = self._found
        if found.returns == 0:
            return np.full(len(found.action_totals), self._guess)
        return np.array(found.action_totals) / found.returns

    @property
    def action(self) -> int:
        """The action with the largest estimate."""
        return int(self.q.argmax())
