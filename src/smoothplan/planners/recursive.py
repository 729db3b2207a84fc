"""The recursive planners: the levels that each allows, and the run of a schedule.

A recursive planner estimates a value by sampling the values of successors, which it estimates in the same way down to
a fixed depth. What its schedule costs is known in advance, so a run that would be hopeless is refused, and a limit on
calls chooses the most accurate schedule that it can pay for.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np

from smoothplan import arguments
from smoothplan.arguments import Floats, amount, scientific
from smoothplan.backups import Backup, required_backup, required_mixture
from smoothplan.confidence import ConfidenceSequence
from smoothplan.engines.base import Engine
from smoothplan.models.base import GenerativeModel
from smoothplan.planners.chunks import chunk_size
from smoothplan.planners.engines import engine_for
from smoothplan.running.run import (
    LONG_HORIZONS,
    REFUSED_CALLS,
    Display,
    Found,
    HopelessError,
    Root,
    Run,
    Status,
    within,
)
from smoothplan.running.work import Chunk, Outcome, Work
from smoothplan.running.workers import Workers
from smoothplan.schedules import published
from smoothplan.schedules.level import Level, Problem
from smoothplan.schedules.optimise import optimised
from smoothplan.schedules.schedule import ACTIONS_SHARE, ADAPTIVE_SHARE, Schedule

HEADROOM = 4
"""A schedule may cost this much more than the limit on calls and still be tried, for most runs stop early."""

LEAST_RADIUS = 1e-12
"""Stands in for a target radius that is zero or negative, where a schedule promises no ε."""

Variant = Literal["certified", "paper"]
"""The optimised schedule of certified levels, or the algorithm and the constants as published."""


@dataclass(frozen=True)
class _Recursive:
    """What the recursive planners have in common; they differ in the levels they allow."""

    backup: Backup
    epsilon: float
    delta: float = 0.1

    order: ClassVar[int]  # the highest order of levels
    debias: ClassVar[int] = 0  # the most terms that a level cancels

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.accuracy(self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        if self.order > 0 and self.backup.temperature == 0.0:
            name = type(self).__name__
            raise ValueError(f"{name} needs a smooth backup, got {self.backup!r}: use SparseSampling for the maximum")

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""
        return optimised(Problem.of(model, self.backup), self.epsilon, self.delta, self.order, self.debias)

    def with_epsilon(self, epsilon: float) -> Self:
        """The same planner for another accuracy."""
        return replace(self, epsilon=epsilon)

    def begin(self, root: Root) -> Run:
        """A run of the schedule, or of a coarser one where the limit on calls is far below its price.

        Raises:
            HopelessError: the forecast exceeds `REFUSED_CALLS` and there is no limit on calls.
        """
        schedule = self.schedule(root.model)
        if root.max_calls is None and schedule.calls > REFUSED_CALLS:
            # A tenth, for ε is rounded. A price of nothing is the middle of the value interval, and is left out.
            finest = self._finest(root.model, schedule, REFUSED_CALLS // 10)
            price = f"{scientific(schedule.calls)} simulator calls, more than {scientific(REFUSED_CALLS)}"
            raise hopeless(price, finest.epsilon, finest.calls)
        if root.max_calls is not None and schedule.calls > HEADROOM * root.max_calls:
            schedule = self._finest(root.model, schedule, root.max_calls)
        engine = engine_for(root.engine, schedule, self.backup, root.model)
        return ScheduleRun(schedule, self.backup, root, engine, self.epsilon)

    def _finest(self, model: GenerativeModel, dear: Schedule, max_calls: int) -> Schedule:
        """The most accurate schedule found within a number of calls, where that of the planner is not."""
        low, high = dear.epsilon, dear.problem.width / 2.0
        # The middle of the value interval is always within reach.
        best = Schedule(dear.problem, (Level("constant"),), 1, high, dear.delta)
        for _ in range(12 if low < high else 0):  # bisections of the range of log ε
            middle = math.sqrt(low * high)
            schedule = self.with_epsilon(middle).schedule(model)
            if schedule.calls <= max_calls:
                best, high = schedule, middle
            else:
                low = middle
        return best


@dataclass(frozen=True)
class _Published(_Recursive):
    """A recursive planner that was published with constants of its own."""

    variant: Variant = "certified"

    published: "ClassVar[staticmethod[[Problem, float, float], Schedule]]"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant not in ("certified", "paper"):
            raise ValueError(f"variant must be 'certified' or 'paper', got {self.variant!r}")
        if self.order > 1:
            required_mixture(self.backup, type(self).__name__, "use DebiasedCruiser")
        if self.order > 0 and self.variant == "paper":
            required_mixture(self.backup, f"the printed {type(self).__name__}", "use variant='certified'")

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""
        if self.variant == "paper":
            return self.published(Problem.of(model, self.backup), self.epsilon, self.delta)
        return super().schedule(model)


class SparseSampling(_Published):
    """Plug-in levels only (Kearns, Mansour and Ng, 2002): F of averaged returns, all the way down. For any backup.

    Args:
        backup: F.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for the published depth and width.
    """

    order = 0
    published = staticmethod(published.sparse_sampling)


class SmoothCruiser(_Published):
    """Levels up to order 1 (Grill et al., 2019): samples corrected along the gradient of a smooth backup.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for the published constants.
    """

    order = 1
    published = staticmethod(published.smooth_cruiser)


class SecondOrderSmoothCruiser(_Published):
    """Levels up to order 2 (the paper): samples corrected along gradient and Hessian of a smooth backup.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for Algorithms 1 to 3 as printed.
    """

    order = 2
    published = staticmethod(published.second_order_smooth_cruiser)


class DebiasedCruiser(_Recursive):
    """The cheapest certified schedule of all kinds of levels: for values at short horizons, the one to use.

    Its levels cancel the first terms of the bias that the noise of a reference causes, with the reference's own
    returns: see `smoothplan.schedules.debias`. They are not in the paper, and we have not found them elsewhere.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
    """

    order = 2
    debias = 2


def hopeless(price: str, epsilon: float, calls: int) -> HopelessError:
    """Why a run is not started, with an accuracy at which it would be and its price, if that is more than nothing."""
    message = (
        f"this plan may need {price}. Recursion is for short horizons: {LONG_HORIZONS}. A smaller discount, a larger "
        "epsilon or a higher temperature would help, too"
    )
    if calls > 0:
        message += f" (at epsilon={epsilon:.3g} it is {amount(calls)})"
    return HopelessError(message + "; max_calls=N plans as accurately as N calls allow")


class ScheduleRun:
    """A run of a schedule: its samples at the root and the interval that they prove.

    Args:
        schedule: what to run; a limit on calls may have led to a coarser one than ε asks for.
        backup: F.
        root: where to run it.
        engine: interprets the schedule.
        epsilon: what was asked for.
    """

    def __init__(self, schedule: Schedule, backup: Backup, root: Root, engine: Engine, epsilon: float) -> None:
        self.schedule, self.engine = schedule, engine
        self._backup, self._root, self._epsilon = backup, root, epsilon
        self._calls = self._samples = 0
        self._chunks = 0  # made, which is the number of the next
        self._planned = 0  # simulator calls of these chunks, at most
        self._exhausted = False  # whether a chunk did not fit into the limit on calls
        self._interval = schedule.problem.values
        self._q_intervals: Floats = np.tile(schedule.problem.action_values, (schedule.problem.actions, 1))
        self._actions: list[ConfidenceSequence] = []  # returns of each action
        self._mean: ConfidenceSequence | None = None  # samples around the reference
        if schedule.root.kind != "constant":
            through, count = schedule.action_return, schedule.problem.actions
            share, target = ADAPTIVE_SHARE, schedule.epsilon - schedule.bias
            if schedule.root.kind != "plug-in":
                # Tuned to the standard deviation of a reference entry.
                share, target = ACTIONS_SHARE, math.sqrt(through.variance / schedule.root.samples)
            each = float(through.low), float(through.high), share * schedule.delta / count, max(target, LEAST_RADIUS)
            self._actions = [ConfidenceSequence(*each) for _ in range(count)]

    def go(self, workers: Workers, display: Display) -> Status:
        """Samples until the interval is within ε, the schedule is done, or the limit on calls is reached."""
        display.expect(self.schedule.calls)
        stages = {"constant": [], "plug-in": [self._action_chunks]}.get(
            self.schedule.root.kind, [self._action_chunks, self._value_chunks]
        )
        work = Work(self.engine, self._root.model, self._root.state, self._root.seed, self.schedule)
        for stage in stages:
            for chunk, outcome in workers.in_order(work, stage()):
                self._book(chunk, outcome)
                display.update(self._calls, self._interval)
                if self.schedule.early_stopping and self._precise():
                    return "converged"
            if self._exhausted:
                return "max_calls"
        self._certain()
        if self._precise():
            return "converged"
        return "max_calls" if self.schedule.epsilon > self._epsilon else "completed"

    def found(self) -> Found:
        """What the samples prove so far."""
        return Found(
            value=self._value(),
            interval=self._interval,
            action=int(self._q().argmax()),
            q=self._q(),
            q_intervals=self._q_intervals if self._actions else None,
            calls=self._calls,
            samples=self._samples,
            epsilon=self._epsilon,
            delta=self.schedule.delta,
        )

    def _action_chunks(self) -> Iterator[Chunk]:
        """Returns of all actions, a chunk of each in turn."""
        actions, left = self.schedule.problem.actions, self.schedule.root.samples
        each = self.schedule.reference_calls // (actions * left)
        while left > 0 and not self._exhausted:
            count = min(left, self._size(self.schedule.root.samples, each * actions))
            for action in range(actions):
                yield from self._admitted("returns", (action, count), count, each, action)
            left -= count

    def _value_chunks(self) -> Iterator[Chunk]:
        """Samples of the value around the reference, which is complete by now."""
        schedule, left = self.schedule, self.schedule.repeats
        target = max(schedule.epsilon - schedule.bias, LEAST_RADIUS)
        reference = self._q()
        ends = schedule.sample_support(reference, self._backed_up(reference))
        self._mean = ConfidenceSequence(*ends, ADAPTIVE_SHARE * schedule.delta, target)
        while left > 0 and not self._exhausted:
            count = min(left, self._size(schedule.repeats, schedule.sample_calls))
            yield from self._admitted("values", (reference, count), count, schedule.sample_calls)
            left -= count

    def _size(self, samples: int, each: int) -> int:
        limit, planned = self._root.max_calls, self._planned
        pieces = 64, 256  # the fewest and the most chunks of a stage: the interval is looked at after each
        return chunk_size(
            self.engine.chunk_calls, each, samples=samples, pieces=pieces, planned=planned, max_calls=limit
        )

    def _admitted(
        self, method: Literal["returns", "values"], call: tuple[object, ...], count: int, each: int, action: int = 0
    ) -> Iterator[Chunk]:
        """The chunk, if the calls that it may need are within the limit; otherwise the run is over."""
        self._planned += count * each
        self._exhausted |= self._root.max_calls is not None and self._planned > self._root.max_calls
        if not self._exhausted:
            yield Chunk(self._chunks, method, call, count, action)
            self._chunks += 1

    def _book(self, chunk: Chunk, outcome: Outcome) -> None:
        """Takes a chunk into account and tightens the interval."""
        self._calls += outcome.calls
        self._samples += outcome.sums.samples
        if chunk.method == "values":
            assert self._mean is not None
            self._mean.update(*outcome.sums)
            self._tighten(*self._mean.interval)
        else:
            self._actions[chunk.action].update(*outcome.sums)
            if chunk.action == len(self._actions) - 1:
                intervals = np.array([action.interval for action in self._actions])
                self._tighten_by_actions(intervals[:, 0], intervals[:, 1])

    def _certain(self) -> None:
        """The bound that was certified in advance, once all samples are in."""
        noise = self.schedule.noise
        if self.schedule.root.kind == "plug-in":
            self._tighten_by_actions(self._q() - noise, self._q() + noise)
        elif self._mean is not None:
            self._tighten(self._mean.mean - noise, self._mean.mean + noise)

    def _tighten_by_actions(self, low: Floats, high: Floats) -> None:
        """An interval for every action's mean return gives one for the value, for F is monotone."""
        bias = float(self.schedule.action_return.bias)
        low, high = low - bias, high + bias
        known = self._q_intervals
        self._q_intervals = np.stack([np.maximum(known[:, 0], low), np.minimum(known[:, 1], high)], axis=1)
        ends = self._root.backed_up(self._backup, np.stack([low, high]))
        self._intersect(float(ends[0]), float(ends[1]))

    def _tighten(self, low: float, high: float) -> None:
        self._intersect(low - self.schedule.bias, high + self.schedule.bias)

    def _intersect(self, low: float, high: float) -> None:
        self._interval = max(self._interval[0], low), min(self._interval[1], high)
        self._root.require_possible(self._backup, self._interval)

    def _precise(self) -> bool:
        (low, high), value = self._interval, self._value()
        return within(max(high - value, value - low), self._epsilon)

    def _q(self) -> Floats:
        """The mean return of each action, [K]: the reference of the samples of the value."""
        if not self._actions:
            return np.full(self.schedule.problem.actions, sum(self.schedule.problem.action_values) / 2.0)
        return np.array([action.mean for action in self._actions])

    def _backed_up(self, q: Floats) -> float:
        """F of action values [K]."""
        return float(self._root.backed_up(self._backup, q[None])[0])

    def _value(self) -> float:
        """The point estimate, within the interval."""
        low, high = self._interval
        if self._mean is not None and self._mean.count > 0:
            estimate = self._mean.mean
        elif self._actions and self._actions[-1].count > 0:
            estimate = self._backed_up(self._q())
        else:
            estimate = (low + high) / 2.0
        return min(max(estimate, low), high)
