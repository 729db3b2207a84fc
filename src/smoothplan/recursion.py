"""The run of a recursive planner: a schedule is interpreted at the root until its interval is within ε.

What a schedule costs is known in advance, so a run that would be hopeless is refused, and a limit on calls chooses the
most accurate schedule that it can pay for.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from smoothplan.arguments import Floats
from smoothplan.backups import Backup
from smoothplan.confidence import ConfidenceSequence
from smoothplan.engines.base import Engine
from smoothplan.engines.batched import BatchedEngine
from smoothplan.engines.compiled import CompiledEngine
from smoothplan.forecast import Scheduled, amount, scientific
from smoothplan.models.base import GenerativeModel
from smoothplan.models.tabular import TabularModel
from smoothplan.running.run import Display, EngineName, Root, Status
from smoothplan.running.work import Chunk, Outcome, Work
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Level, Problem
from smoothplan.schedules.schedule import ACTIONS_SHARE, ADAPTIVE_SHARE, Schedule

REFUSED_CALLS = 10**11
"""A run that may need more simulator calls than this is not started unless the user says how many are acceptable."""

HEADROOM = 4
"""A schedule may cost this much more than the limit on calls and still be tried, for most runs stop early."""

BISECTIONS = 12
"""Of the range of log ε, in search of a schedule that a number of calls can pay for."""

LOOKS = 64
"""How often a run looks at its interval, at least: a chunk is no more than this fraction of the samples,"""

PIECES = 256
"""and of so many workers all have something to do,"""

SMALL = 5
"""unless chunks would be smaller than 2⁻⁵ of what takes an engine a fraction of a second."""

FIRST, RAMP = 9, 8
"""The first chunk is 2⁻⁹ of that, and every other at most an eighth of what was planned before."""

TINY = 1e-12
"""Stands in for a target radius that is zero or negative, where a schedule promises no ε."""

ROUNDING = 1e-9
"""Relative slack when an interval is compared with ε."""


class HopelessError(ValueError):
    """The forecast is beyond what anyone would want to pay."""


def begin(planner: Scheduled, root: Root) -> "ScheduleRun":
    """A run of the planner's schedule, or of a coarser one where the limit on calls leaves that no chance.

    Raises:
        HopelessError: the forecast exceeds `REFUSED_CALLS` and there is no limit on calls.
    """
    schedule = planner.schedule(root.model)
    if root.max_calls is not None:
        schedule = _affordable(planner, root.model, schedule, root.max_calls)
    elif schedule.calls > REFUSED_CALLS:
        raise HopelessError(_refusal(planner, root.model, schedule))
    engine = engine_for(root.engine, schedule, planner.backup, root.model)
    return ScheduleRun(schedule, planner.backup, root, engine, planner.epsilon)


def engine_for(name: EngineName, schedule: Schedule, backup: Backup, model: GenerativeModel) -> Engine:
    """The engine of that name for a schedule; for "auto" the compiled one where there is a table."""
    if isinstance(model, TabularModel) and name != "batched":
        return CompiledEngine(schedule, backup, model)
    if name == "compiled":
        raise ValueError(f"engine 'compiled' needs a TabularModel here, got {type(model).__name__}: use 'batched'")
    return BatchedEngine(schedule, backup)


def action_values(problem: Problem) -> tuple[float, float]:
    """An interval that contains every action value."""
    (low, high), values = problem.reward_range, problem.values
    return low + problem.discount * values[0], high + problem.discount * values[1]


@dataclass
class ScheduleRun:
    """The state of a run of a schedule: what has been sampled at the root and what it proves."""

    schedule: Schedule
    backup: Backup
    root: Root
    engine: Engine
    epsilon: float  # what was asked for; a limit on calls may have led to a coarser schedule
    status: Status = "completed"
    calls: int = 0
    samples: int = 0
    interval: tuple[float, float] = field(init=False)
    actions: list[ConfidenceSequence] = field(default_factory=list)
    mean: ConfidenceSequence | None = None
    chunks: int = 0
    planned: int = 0
    identification: None = None
    diagnosis: None = None
    _q_intervals: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.interval = self.schedule.problem.values
        root, count = self.schedule.root, self.schedule.problem.actions
        self._q_intervals = np.tile(action_values(self.schedule.problem), (count, 1))
        if root.kind == "constant":
            return
        through = self.schedule.action_return
        plug_in = root.kind == "plug-in"
        share = ADAPTIVE_SHARE if plug_in else ACTIONS_SHARE
        target = max(self.schedule.epsilon - self.schedule.bias, TINY) if plug_in else self._reference_radius()
        self.actions = [
            ConfidenceSequence(float(through.low), float(through.high), share * self.delta / count, target)
            for _ in range(count)
        ]

    @property
    def delta(self) -> float:
        """The probability that an interval fails."""
        return self.schedule.delta

    def _reference_radius(self) -> float:
        """The deviation of a reference entry: what its interval is tuned to."""
        return max(math.sqrt(self.schedule.action_return.variance / self.schedule.root.samples), TINY)

    def go(self, workers: Workers, display: Display) -> None:
        """Samples until the interval is within ε, the schedule is done, or a limit is reached."""
        display.expect(self.schedule.calls)
        stages = [] if self.schedule.root.kind == "constant" else [self._action_tasks, self._value_tasks]
        work = Work(self.engine, self.root.model, self.root.state, self.root.seed, self.schedule)
        for stage in stages[: 1 if self.schedule.root.kind == "plug-in" else 2]:
            for task, outcome in workers.in_order(work, stage()):
                self._book(task, outcome)
                display.update(self.calls, self.interval)
                if self.schedule.early_stopping and self._within(self.epsilon):
                    self.status = "converged"
                    return
            if self.status == "max_calls":
                return
        self._certain()
        if self._within(self.epsilon):
            self.status = "converged"
        elif self.schedule.epsilon > self.epsilon:
            self.status = "max_calls"

    def _action_tasks(self) -> Iterator[Chunk]:
        """Returns of all actions, a chunk of each in turn."""
        root, actions = self.schedule.root, self.schedule.problem.actions
        each = self.schedule.reference_calls // (actions * root.samples)
        for count in self._pieces(root.samples, each * actions):
            for action in range(actions):
                yield from self._admitted(action, count, each)

    def _value_tasks(self) -> Iterator[Chunk]:
        """Samples of the value around the reference, which is complete by now."""
        sample, bias = self.schedule.sample, self.schedule.bias
        target = max(self.schedule.epsilon - bias, TINY)
        delta = ADAPTIVE_SHARE * self.delta
        self.mean = ConfidenceSequence(float(sample.low), float(sample.high), delta, target)
        for count in self._pieces(self.schedule.repeats, self.schedule.sample_calls):
            yield from self._admitted(None, count, self.schedule.sample_calls)

    def _pieces(self, samples: int, calls: int) -> Iterator[int]:
        """Sizes of chunks: the same for every run of this schedule under the same limit.

        They grow with what was planned before, so that a chunk of a slow simulator is never much of a run.
        """
        limit = self.engine.chunk_calls
        if self.root.max_calls is not None:
            limit = min(limit, self.root.max_calls // LOOKS)
        most = min(math.ceil(samples / LOOKS), limit // max(calls, 1))
        most = min(most, max(math.ceil(samples / PIECES), (self.engine.chunk_calls >> SMALL) // max(calls, 1)))
        left = samples
        while left > 0:
            ramp = max(self.planned // RAMP, self.engine.chunk_calls >> FIRST)
            size = min(left, max(1, min(most, ramp // max(calls, 1))))
            yield size
            left -= size

    def _admitted(self, action: int | None, count: int, calls: int) -> Iterator[Chunk]:
        """The task, if the calls that it may need are within the limit; otherwise the run is over."""
        if self.status == "max_calls":
            return
        self.planned += count * calls
        if self.root.max_calls is not None and self.planned > self.root.max_calls:
            self.status = "max_calls"
            return
        if action is None:
            yield Chunk(self.chunks, "values", (self.q, count), count)
        else:
            yield Chunk(self.chunks, "returns", (action, count), count, action)
        self.chunks += 1

    def _book(self, task: Chunk, outcome: Outcome) -> None:
        """Takes a chunk into account and tightens the interval."""
        sums = outcome.sums
        self.calls += outcome.calls
        self.samples += sums.samples
        if task.method == "values":
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
        low, high = low - bias, high + bias
        known = self._q_intervals
        self._q_intervals = np.stack([np.maximum(known[:, 0], low), np.minimum(known[:, 1], high)], axis=1)
        ends = self.root.backed_up(self.backup, np.stack([low, high]))
        self._intersect(float(ends[0]), float(ends[1]))

    def _tighten(self, low: float, high: float) -> None:
        self._intersect(low - self.schedule.bias, high + self.schedule.bias)

    def _intersect(self, low: float, high: float) -> None:
        self.interval = max(self.interval[0], low), min(self.interval[1], high)

    def _within(self, epsilon: float) -> bool:
        low, high = self.interval
        return max(high - self.value, self.value - low) <= epsilon * (1.0 + ROUNDING)

    @property
    def q(self) -> Floats:
        """The reference: the mean return of each action, [K]."""
        if not self.actions:
            return np.full(self.schedule.problem.actions, sum(action_values(self.schedule.problem)) / 2.0)
        return np.array([action.mean for action in self.actions])

    @property
    def q_intervals(self) -> Floats | None:
        """Intervals of the action values, [K, 2]; none where no return is drawn."""
        return self._q_intervals if self.actions else None

    @property
    def action(self) -> int:
        """The action with the largest estimate."""
        return int(self.q.argmax())

    @property
    def value(self) -> float:
        """The point estimate, within the interval."""
        low, high = self.interval
        if self.mean is not None and self.mean.count > 0:
            estimate = self.mean.mean
        elif self.actions and self.actions[-1].count > 0:
            estimate = float(self.root.backed_up(self.backup, self.q[None])[0])
        else:
            estimate = (low + high) / 2.0
        return min(max(estimate, low), high)


def _affordable(planner: Scheduled, model: GenerativeModel, schedule: Schedule, max_calls: int) -> Schedule:
    """The schedule, or where the limit leaves it no chance, the most accurate one found that fits the limit."""
    if schedule.calls <= HEADROOM * max_calls:
        return schedule
    return _finest(planner, model, schedule, max_calls)


def _finest(planner: Scheduled, model: GenerativeModel, dear: Schedule, max_calls: int) -> Schedule:
    """The most accurate schedule found within a number of calls, where that of the planner is not."""
    low, high = dear.epsilon, dear.problem.width / 2.0
    # The middle of the value interval is always within reach.
    best = Schedule(dear.problem, (Level("constant"),), 1, high, dear.delta)
    for _ in range(BISECTIONS if low < high else 0):
        middle = math.sqrt(low * high)
        schedule = planner.with_epsilon(middle).schedule(model)
        if schedule.calls <= max_calls:
            best, high = schedule, middle
        else:
            low = middle
    return best


def _refusal(planner: Scheduled, model: GenerativeModel, schedule: Schedule) -> str:
    """Why a run is not started, with the accuracy at which it would be."""
    message = (
        f"this plan may need {scientific(schedule.calls)} simulator calls, more than {scientific(REFUSED_CALLS)}. "
        "Recursion is for short horizons: a smaller discount, a larger epsilon or a higher temperature would help"
    )
    # A tenth, for ε is rounded. A price of nothing is the middle of the value interval: no help to anyone.
    finest = _finest(planner, model, schedule, REFUSED_CALLS // 10)
    if finest.calls > 0:
        message += f" (at epsilon={finest.epsilon:.3g} it is {amount(finest.calls)})"
    return message + "; max_calls=N plans as accurately as N calls allow"
