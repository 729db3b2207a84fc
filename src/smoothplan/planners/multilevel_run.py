"""The run of RandomizedMultilevel: samples at the root until their standard error is small."""

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist

import numpy as np

from smoothplan.arguments import Floats
from smoothplan.engines.multilevel import MultilevelEngine, RootSums
from smoothplan.recursion import ROUNDING, action_values
from smoothplan.running.run import Display, Planner, Root, Status, Truncation
from smoothplan.running.work import Chunk, Outcome, Work
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Problem

TRUNCATION_SHARE = 0.5
"""The part of ε that may be lost by the depth, by default."""

FEWEST = 256
"""Samples before their standard error is trusted: they have all moments, but large ones."""

LOOK_RATIO = 1.2
"""From the samples of one look at the standard error to those of the next: few looks, so that few runs end because
the variance happened to look small."""

LOOKS = 64
"""Under a limit on calls a chunk is this fraction of it: so much may be left over."""

FIRST, RAMP = 6, 8
"""Without one, the first chunk is 2⁻⁶ of a full one, and every other at most an eighth of what was drawn before."""


class MultilevelRun:
    """The state of a run: sums of samples of the root's value, and of its returns."""

    identification = None
    diagnosis = None
    q_intervals = None

    def __init__(self, planner: Planner, root: Root, engine: MultilevelEngine, lowered: bool) -> None:
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

    def go(self, workers: Workers, display: Display) -> None:
        """Draws samples until bias and noise are within ε, or the next ones may exceed the limit on calls."""
        work = Work(self._engine, self._root.model, self._root.state, self._root.seed, "samples at the root")
        look = FEWEST
        while True:
            before = self._chunks
            for _, outcome in workers.in_order(work, self._tasks(look, workers.brake.check)):
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

    def _tasks(self, samples: int, check: Callable[[], object]) -> Iterator[Chunk]:
        """Chunks up to a number of samples; what fits into the limit on calls for certain, by what is booked now."""
        limit = self._root.max_calls
        planned = self.samples
        left = None if limit is None else limit - self.calls
        while planned < samples:
            count = self._size(planned)
            if left is not None:
                calls = self._engine.planned_calls(self._root.seed, self._chunks, count, left, check)
                if calls > left:
                    return
                left -= calls
            yield Chunk(self._chunks, "roots", (count,), count)
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
        factor = -NormalDist().inv_cdf(self.delta / 2.0)  # at 1 − δ/2 a small δ would be lost
        return error is not None and factor * error <= allowed * (1.0 + ROUNDING)

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
