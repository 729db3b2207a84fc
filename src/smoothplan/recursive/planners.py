"""The recursive planners: the levels that each allows, and the run of a schedule.

A recursive planner estimates a value by sampling the values of successors, which it estimates in the same way down to
a fixed depth. The price of its schedule is known in advance, so a run that is too expensive is refused, and a limit on
calls chooses the most accurate schedule that it can pay for.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, amount, scientific
from smoothplan.confidence import ConfidenceSequence
from smoothplan.models.model import GenerativeModel
from smoothplan.models.tabular import TabularModel
from smoothplan.recursive import published
from smoothplan.recursive.batched import BatchedEngine
from smoothplan.recursive.compiled import CompiledEngine
from smoothplan.recursive.level import Level
from smoothplan.recursive.optimise import optimised
from smoothplan.recursive.schedule import ACTIONS_SHARE, ADAPTIVE_SHARE, Schedule
from smoothplan.run.chunks import Chunk, Engine, Sums, Work, chunk_size
from smoothplan.run.progress import Display
from smoothplan.run.records import (
    LONG_HORIZONS,
    REFUSED_CALLS,
    EngineName,
    Root,
    Run,
    Snapshot,
    Status,
    TooExpensiveError,
    refuse_compiled,
    within,
)
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import Backup, is_mixture, required_backup, required_mixture
from smoothplan.theory.curvature import Problem

HEADROOM = 4
"""How many times the limit on calls a schedule may cost and still be tried: most runs stop early."""


@dataclass(frozen=True)
class _Recursive:
    """A recursive planner. Subclasses differ in the levels that they allow, and in published constants."""

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

    def start(self, root: Root) -> Run:
        """A run of the schedule, or of a coarser one if the limit on calls is far below its price.

        Raises:
            TooExpensiveError: the forecast exceeds `REFUSED_CALLS` and there is no limit on calls.
        """
        schedule = self.schedule(root.model)
        if root.max_calls is None and schedule.calls > REFUSED_CALLS:
            # A tenth, because the message rounds ε.
            finest = self._finest(root.model, schedule, REFUSED_CALLS // 10)
            price = f"{scientific(schedule.calls)} simulator calls, more than {scientific(REFUSED_CALLS)}"
            raise too_expensive(price, finest.epsilon, finest.calls)
        if root.max_calls is not None and schedule.calls > HEADROOM * root.max_calls:
            schedule = self._finest(root.model, schedule, root.max_calls)
        engine = engine_for(root.engine, schedule, self.backup, root.model)
        return ScheduleRun(schedule, self.backup, root, engine, self.epsilon)

    def _finest(self, model: GenerativeModel, wanted: Schedule, max_calls: int) -> Schedule:
        """The most accurate schedule found within a number of calls, fewer than the planner's own would cost."""
        low, high = wanted.epsilon, wanted.problem.width / 2.0
        # The middle of the value interval costs nothing.
        best = Schedule(wanted.problem, (Level("constant"),), 1, high, wanted.delta)
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

    variant: Literal["certified", "paper"] = "certified"

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

    Its levels use a reference's own returns to cancel the first terms of the bias that its noise causes: see
    `smoothplan.recursive.debias`. They are not in the paper, and we have not found them elsewhere.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
    """

    order = 2
    debias = 2


def too_expensive(price: str, epsilon: float, calls: int) -> TooExpensiveError:
    """The refusal of a run, with an accuracy that would not be refused and its price, unless that price is 0."""
    message = (
        f"this plan may need {price}. Recursion is for short horizons: {LONG_HORIZONS}. A smaller discount, a larger "
        "epsilon or a higher temperature would help, too"
    )
    if calls > 0:
        message += f" (at epsilon={epsilon:.3g} it is {amount(calls)})"
    return TooExpensiveError(message + "; max_calls=N plans as accurately as N calls allow")


class ScheduleRun:
    """A run of a schedule: its samples at the root and the interval that they prove.

    Args:
        schedule: coarser than ε asks for, if a limit on calls demands it.
        backup: F.
        root: the model, the state and the limits.
        engine: interprets the schedule.
        epsilon: the accuracy requested.
    """

    def __init__(self, schedule: Schedule, backup: Backup, root: Root, engine: Engine, epsilon: float) -> None:
        self.schedule, self.engine = schedule, engine
        self._backup, self._root, self._epsilon = backup, root, epsilon
        self._calls = self._samples = 0
        self._chunks = 0  # drawn so far, and so the number of the next
        self._planned = 0  # simulator calls of these chunks, at most
        self._exhausted = False  # whether a chunk did not fit into the limit on calls
        self._interval = schedule.problem.values
        self._q_intervals: Floats = np.tile(schedule.problem.action_values, (schedule.problem.actions, 1))
        self._actions: list[ConfidenceSequence] = []  # returns of each action
        self._mean: ConfidenceSequence | None = None  # samples around the reference
        # The radius that the noise should reach. A published schedule may leave no room for noise.
        self._radius = max(schedule.epsilon - schedule.bias, 1e-12)
        if schedule.root.kind != "constant":
            through, count = schedule.action_return, schedule.problem.actions
            share, radius = ADAPTIVE_SHARE, self._radius
            if schedule.root.kind != "plug-in":
                # Tuned to the standard deviation of a reference entry.
                share, radius = ACTIONS_SHARE, max(math.sqrt(through.variance / schedule.root.samples), 1e-12)
            each = float(through.low), float(through.high), share * schedule.delta / count, radius
            self._actions = [ConfidenceSequence(*each) for _ in range(count)]

    def run(self, workers: Workers, display: Display) -> Status:
        """Samples until the interval is within ε, the schedule is done, or the limit on calls is reached."""
        display.expect(self.schedule.calls)
        returns, values = (self._action_chunks, self._add_return), (self._value_chunks, self._add_value)
        stages = {"constant": [], "plug-in": [returns]}.get(self.schedule.root.kind, [returns, values])
        work = Work(self.engine, self._root.model, self._root.state, self._root.seed)
        for chunks, add in stages:
            for chunk, outcome in workers.in_order(work, chunks()):
                self._calls += outcome.calls
                self._samples += outcome.sums.samples
                add(chunk, outcome.sums)
                display.update(self._calls, self._interval)
                if self.schedule.early_stopping and self._precise():
                    return "converged"
            if self._exhausted:
                return "max_calls"
        self._certain()
        if self._precise():
            return "converged"
        return "max_calls" if self.schedule.epsilon > self._epsilon else "completed"

    def result(self) -> Snapshot:
        """The value and the intervals that the samples prove so far."""
        return Snapshot(
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

    def _action_chunks(self) -> Iterator[Chunk[Sums]]:
        """Returns of all actions, a chunk of each in turn."""
        actions, left = self.schedule.problem.actions, self.schedule.root.samples
        each = self.schedule.reference_calls // (actions * left)
        while left > 0 and not self._exhausted:
            count = min(left, self._size(self.schedule.root.samples, each * actions))
            for action in range(actions):
                yield from self._admitted(type(self.engine).returns, (action, count), count, each, action)
            left -= count

    def _value_chunks(self) -> Iterator[Chunk[Sums]]:
        """Samples of the value around the reference, which is complete by now."""
        schedule, left = self.schedule, self.schedule.repeats
        reference = self._q()
        ends = schedule.sample_support(reference, self._backed_up(reference))
        self._mean = ConfidenceSequence(*ends, ADAPTIVE_SHARE * schedule.delta, self._radius)
        while left > 0 and not self._exhausted:
            count = min(left, self._size(schedule.repeats, schedule.sample_calls))
            yield from self._admitted(type(self.engine).values, (reference, count), count, schedule.sample_calls)
            left -= count

    def _size(self, samples: int, each: int) -> int:
        sizes = {"planned": self._planned, "max_calls": self._root.max_calls}
        # The fewest and the most chunks of a stage: the interval is updated after each.
        return chunk_size(self.engine.chunk_calls, each, samples=samples, pieces=(64, 256), **sizes)

    def _admitted(
        self, draw: Callable[..., Sums], call: tuple[object, ...], count: int, each: int, action: int = 0
    ) -> Iterator[Chunk[Sums]]:
        """The chunk, if the calls that it may need are within the limit; otherwise the run is over."""
        self._planned += count * each
        self._exhausted |= self._root.max_calls is not None and self._planned > self._root.max_calls
        if not self._exhausted:
            yield Chunk(self._chunks, draw, call, count, action)
            self._chunks += 1

    def _add_value(self, _: Chunk[Sums], sums: Sums) -> None:
        assert self._mean is not None
        self._mean.update(*sums.moments)
        self._tighten(*self._mean.interval)

    def _add_return(self, chunk: Chunk[Sums], sums: Sums) -> None:
        """Adds returns of an action and, once all actions have theirs, tightens the interval."""
        self._actions[chunk.action].update(*sums.moments)
        if chunk.action == len(self._actions) - 1:
            intervals = np.array([action.interval for action in self._actions])
            self._tighten_by_actions(intervals[:, 0], intervals[:, 1])

    def _certain(self) -> None:
        """Applies the bound that was certified in advance, once all samples are in."""
        noise = self.schedule.noise
        if self.schedule.root.kind == "plug-in":
            self._tighten_by_actions(self._q() - noise, self._q() + noise)
        elif self._mean is not None:
            self._tighten(self._mean.mean - noise, self._mean.mean + noise)

    def _tighten_by_actions(self, low: Floats, high: Floats) -> None:
        """Tightens by an interval for every action's mean return: F is monotone."""
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
        """The mean return of each action, [K], around which the value is sampled."""
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


def engine_for(name: EngineName, schedule: Schedule, backup: Backup, model: GenerativeModel) -> Engine:
    """The engine for a schedule."""
    if isinstance(model, TabularModel) and is_mixture(backup) and name != "batched":
        return CompiledEngine(schedule, backup, model)
    refuse_compiled(name, "a TabularModel and a mixture of softmaxes", model, backup)
    return BatchedEngine(schedule, backup)
