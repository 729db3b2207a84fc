"""A run at the root: what has been sampled, what it proves, and when it is over."""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from smoothplan import parallel
from smoothplan.arguments import Floats
from smoothplan.backups import Backup
from smoothplan.confidence import ConfidenceSequence
from smoothplan.engines.base import Engine, Sums
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.schedules.schedule import ACTIONS_SHARE, ADAPTIVE_SHARE, Schedule

LOOKS = 64
"""How often a run looks at its interval, at least: a chunk is no more than this fraction of the samples."""

Status = Literal["converged", "completed", "max_calls", "max_seconds", "interrupted", "terminal"]
"""Why a run stopped: within ε; at the end of a schedule that promises no ε; by a limit; at a state worth 0."""

TINY = 1e-12
"""Stands in for a target radius that is zero or negative, where a schedule promises no ε."""

ROUNDING = 1e-9
"""Relative slack when an interval is compared with ε."""


class Display(Protocol):
    """Where a run shows how far it is."""

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Shows the calls made and the interval."""


class Task(NamedTuple):
    """A chunk of root samples."""

    chunk: int
    action: int | None  # None: samples of the value
    samples: int


@dataclass
class Run:
    """The state of a run: what has been sampled at the root and what it proves."""

    schedule: Schedule
    backup: Backup
    model: GenerativeModel
    state: Any
    seed: int
    engine: Engine
    max_calls: int | None
    epsilon: float  # what was asked for; a limit on calls may have led to a coarser schedule
    started: float  # on the clock of time.perf_counter
    status: Status = "completed"
    calls: int = 0
    samples: int = 0
    interval: tuple[float, float] = field(init=False)
    actions: list[ConfidenceSequence] = field(default_factory=list)
    mean: ConfidenceSequence | None = None
    chunks: int = 0
    planned: int = 0

    def __post_init__(self) -> None:
        self.interval = self.schedule.problem.values
        root, delta, count = self.schedule.root, self.schedule.delta, self.schedule.problem.actions
        if root.kind == "constant":
            return
        through = self.schedule.action_return
        plug_in = root.kind == "plug-in"
        share = ADAPTIVE_SHARE if plug_in else ACTIONS_SHARE
        target = max(self.schedule.epsilon - self.schedule.bias, TINY) if plug_in else self._reference_radius()
        self.actions = [
            ConfidenceSequence(float(through.low), float(through.high), share * delta / count, target)
            for _ in range(count)
        ]

    def _reference_radius(self) -> float:
        """The deviation of a reference entry: what its interval is tuned to."""
        return max(math.sqrt(self.schedule.action_return.variance / self.schedule.root.samples), TINY)

    def go(self, workers: int, max_seconds: float | None, display: Display | None) -> None:
        """Samples until the interval is within ε, the schedule is done, or a limit is reached."""
        stages = [] if self.schedule.root.kind == "constant" else [self._action_tasks, self._value_tasks]
        try:
            for stage in stages[: 1 if self.schedule.root.kind == "plug-in" else 2]:
                with closing(parallel.in_order(self._sample, stage(), workers)) as outcomes:
                    for task, (sums, calls) in outcomes:
                        self._book(task, sums, calls)
                        if display is not None:
                            display.update(self.calls, self.interval)
                        if self.schedule.early_stopping and self._within(self.epsilon):
                            self.status = "converged"
                            return
                        if max_seconds is not None and time.perf_counter() - self.started > max_seconds:
                            self.status = "max_seconds"
                            return
                if self.status == "max_calls":
                    return
        except KeyboardInterrupt:
            self.status = "interrupted"
            return
        self._certain()
        if self._within(self.epsilon):
            self.status = "converged"
        elif self.schedule.epsilon > self.epsilon:
            self.status = "max_calls"

    def _action_tasks(self) -> Iterator[Task]:
        """Returns of all actions, a chunk of each in turn."""
        root, actions = self.schedule.root, self.schedule.problem.actions
        each = self.schedule.reference_calls // (actions * root.samples)
        for count in self._pieces(root.samples, each * actions):
            for action in range(actions):
                yield from self._admitted(action, count, each)

    def _value_tasks(self) -> Iterator[Task]:
        """Samples of the value around the reference, which is complete by now."""
        sample, bias = self.schedule.sample, self.schedule.bias
        target = max(self.schedule.epsilon - bias, TINY)
        delta = ADAPTIVE_SHARE * self.schedule.delta
        self.mean = ConfidenceSequence(float(sample.low), float(sample.high), delta, target)
        for count in self._pieces(self.schedule.repeats, self.schedule.sample_calls):
            yield from self._admitted(None, count, self.schedule.sample_calls)

    def _pieces(self, samples: int, calls: int) -> Iterator[int]:
        """Sizes of chunks: the same for every run of this schedule under the same limit."""
        budget = self.engine.chunk_calls
        if self.max_calls is not None:
            budget = min(budget, self.max_calls // LOOKS)
        size = max(1, min(math.ceil(samples / LOOKS), budget // max(calls, 1)))
        for start in range(0, samples, size):
            yield min(size, samples - start)

    def _admitted(self, action: int | None, count: int, calls: int) -> Iterator[Task]:
        """The task, if the calls that it may need are within the limit; otherwise the run is over."""
        if self.status == "max_calls":
            return
        self.planned += count * calls
        if self.max_calls is not None and self.planned > self.max_calls:
            self.status = "max_calls"
            return
        yield Task(self.chunks, action, count)
        self.chunks += 1

    def _sample(self, task: Task) -> tuple[Sums, int]:
        oracle = Oracle(self.model, self.seed, task.chunk)
        if task.action is None:
            sums = self.engine.values(oracle, self.state, self.q, task.samples)
        else:
            sums = self.engine.returns(oracle, self.state, task.action, task.samples)
        return sums, oracle.calls

    def _book(self, task: Task, sums: Sums, calls: int) -> None:
        """Takes a chunk into account and tightens the interval."""
        self.calls += calls
        self.samples += sums.samples
        if task.action is None:
            assert self.mean is not None
            self.mean.update(*sums)
            self._tighten(*self.mean.interval)
        else:
            self.actions[task.action].update(*sums)
            if task.action == len(self.actions) - 1:
                intervals = np.array([action.interval for action in self.actions])
                self._tighten_by_actions(intervals[:, 0], intervals[:, 1])

    def _certain(self) -> None:
        """The bound that was certified in advance, once all samples are in."""
        noise = self.schedule.noise
        if self.schedule.root.kind == "plug-in":
            self._tighten_by_actions(self.q - noise, self.q + noise)
        elif self.mean is not None:
            self._tighten(self.mean.mean - noise, self.mean.mean + noise)

    def _tighten_by_actions(self, low: Floats, high: Floats) -> None:
        """An interval for every action's mean return gives one for the value, for F is monotone."""
        bias = float(self.schedule.action_return.bias)
        ends = self.backed_up(np.stack([low - bias, high + bias]))
        self._intersect(float(ends[0]), float(ends[1]))

    def _tighten(self, low: float, high: float) -> None:
        self._intersect(low - self.schedule.bias, high + self.schedule.bias)

    def _intersect(self, low: float, high: float) -> None:
        self.interval = max(self.interval[0], low), min(self.interval[1], high)

    def backed_up(self, q: Floats, method: str = "value") -> Floats:
        """F or its policy at the root for a batch of action values [n, K]."""
        states = np.repeat(np.asarray(self.state)[None], len(q), axis=0)
        result: Floats = getattr(self.backup, method)(q, states)
        return result

    def _within(self, epsilon: float) -> bool:
        low, high = self.interval
        return max(high - self.value, self.value - low) <= epsilon * (1.0 + ROUNDING)

    @property
    def q(self) -> Floats:
        """The reference: the mean return of each action, [K]."""
        if not self.actions:
            low, high = self.schedule.problem.reward_range
            guess = (low + high) / 2.0 + self.schedule.problem.discount * self.schedule.problem.middle
            return np.full(self.schedule.problem.actions, guess)
        return np.array([action.mean for action in self.actions])

    @property
    def value(self) -> float:
        """The point estimate, within the interval."""
        low, high = self.interval
        if self.mean is not None and self.mean.count > 0:
            estimate = self.mean.mean
        elif self.actions and self.actions[-1].count > 0:
            estimate = float(self.backed_up(self.q[None])[0])
        else:
            estimate = (low + high) / 2.0
        return min(max(estimate, low), high)
