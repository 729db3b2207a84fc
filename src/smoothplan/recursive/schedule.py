"""A schedule: a table of levels, and the sampling at the root. Its forecast tells its price; its run samples it.

At the root, order-1 and order-2 levels draw one reference Q̂, shared by all samples, and then m samples of the value
around it. The failure probability δ is spent on two things: the error of the shared reference, and the noise of the
mean. A plug-in root is F(Q̂) itself, with an interval for every action.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from smoothplan import confidence
from smoothplan.base.arguments import Floats, Numbers
from smoothplan.base.records import Record, renderer
from smoothplan.confidence import ConfidenceSequence
from smoothplan.models.model import GenerativeModel, required_model
from smoothplan.recursive.level import Bounds, Level, ReferenceMoments, certify, certify_level, one_step
from smoothplan.run.chunks import Chunk, Sums, Work, chunk_size
from smoothplan.run.progress import Display
from smoothplan.run.records import LONG_HORIZONS, Planner, Root, Snapshot, Status, required_planner, within
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import Backup
from smoothplan.theory.curvature import Problem, require_possible

# Parts of δ. Most goes to the interval that adapts to the variance found, with which most runs stop early.
REFERENCE_SHARE = 0.05  # the shared reference, whose error hardly matters
CERTAIN_SHARE = 0.25  # the bound that needs nothing but the certified variance, and so fixes the price in advance
ACTIONS_SHARE = 0.05  # intervals of the action values, which serve a run that is stopped early
ADAPTIVE_SHARE = 1.0 - REFERENCE_SHARE - CERTAIN_SHARE - ACTIONS_SHARE


def shared_reference(problem: Problem, through: Bounds, samples: Numbers, delta: float) -> ReferenceMoments:
    """The root's reference: N returns per action, with range(Q̂ − Q) bounded with probability 1 − REFERENCE_SHARE·δ."""
    each = REFERENCE_SHARE * delta / problem.actions
    error = 2.0 * (confidence.bernstein_radius(through.variance, through.width, samples, each) + through.bias)
    # The gap between entries of Q̂ matters at the root. It is at most the gap between those of Q, plus the error.
    width = np.minimum(through.width, problem.action_gap + error)
    return ReferenceMoments(error / 2.0, width, problem.actions * samples * through.calls)


@dataclass(frozen=True)
class Schedule:
    """A planner as data.

    The last level is the root's. `repeats` is m, the number of samples of it around one shared reference; 1 if the root
    is a plug-in level.
    """

    problem: Problem
    levels: tuple[Level, ...]
    repeats: int
    epsilon: float
    delta: float
    early_stopping: bool = True  # whether a run ends as soon as its interval is within ε

    @property
    def root(self) -> Level:
        """The last level."""
        return self.levels[-1]

    @cached_property
    def certificates(self) -> list[Bounds]:
        """The certificate of each level; of the last one as if its reference were drawn anew for every sample."""
        return certify(self.problem, self.levels)

    @cached_property
    def _prices(self) -> list[tuple[int, int]]:
        """Calls for the reference of one sample of each level, and for the rest of it: exact, however large."""
        prices: list[tuple[int, int]] = []

        def calls(child: int | None, returns: int) -> int:
            return 0 if child is None else returns * (self.levels[child].rewards + sum(prices[child]))

        for level in self.levels:
            rest = calls(level.linear, 1) + calls(level.quadratic, 2 * level.pairs)
            prices.append((calls(level.reference, self.problem.actions * level.samples), rest))
        return prices

    @property
    def costs(self) -> list[int]:
        """Simulator calls of one sample of each level, at most."""
        return [sum(parts) for parts in self._prices]

    @property
    def reference_calls(self) -> int:
        """Calls for the root's reference, at most."""
        return self._prices[-1][0]

    @property
    def sample_calls(self) -> int:
        """Calls for one sample around it, at most; 0 for a plug-in root."""
        return self._prices[-1][1]

    @property
    def calls(self) -> int:
        """Calls of the whole run, at most."""
        return self.reference_calls + self.repeats * self.sample_calls

    @cached_property
    def returns(self) -> list[Bounds]:
        """The certificate of a return through each level but the last."""
        rows = zip(self.certificates[:-1], self.levels[:-1], strict=True)
        return [one_step(self.problem.at(level.left), proved, level.rewards) for proved, level in rows]

    def guess(self, level: Level) -> float:
        """The value of a constant level: the middle of what is possible there, shifted."""
        return self.problem.at(level.left).middle + level.shift

    @property
    def action_return(self) -> Bounds:
        """The certificate of one return of one action at the root, from which the reference is averaged."""
        assert self.root.reference is not None
        return self.returns[self.root.reference]

    @cached_property
    def sample(self) -> Bounds:
        """The certificate of a root sample given the shared reference, with probability 1 − REFERENCE_SHARE·δ.

        For a plug-in root, of one return of one action.
        """
        root, problem = self.root, self.problem
        if root.kind == "constant":
            return self.certificates[-1]
        if root.kind == "plug-in":
            return self.action_return
        around = shared_reference(problem, self.action_return, root.samples, self.delta)
        return certify_level(problem, root, self.returns, around)

    def sample_support(self, reference: Floats, value: float) -> tuple[float, float]:
        """Bounds of a root sample around a known reference [K], given F there.

        They are often far narrower than certified if the sample is F(Q̂) + X_A − Q̂(A).
        """
        root, low, high = self.root, float(self.sample.low), float(self.sample.high)
        if root.kind == "order-1" and not root.printed and root.clip is None:
            assert root.linear is not None
            linear = self.returns[root.linear]
            low = max(low, float(value - reference.max() + linear.low + root.shift))
            high = min(high, float(value - reference.min() + linear.high + root.shift))
        return low, high

    @property
    def bias(self) -> float:
        """The part of the error that no repetition removes."""
        return float(self.sample.bias)

    @property
    def noise(self) -> float:
        """The certified radius of the mean after all samples."""
        if self.root.kind == "constant":
            return 0.0
        count, share = self.repeats, CERTAIN_SHARE * self.delta
        if self.root.kind == "plug-in":
            count, share = self.root.samples, share / self.problem.actions
        return float(confidence.bernstein_radius(self.sample.variance, self.sample.width, count, share))


def renumbered(level: Level, new: Callable[[int], int]) -> Level:
    """A level whose children have other rows."""
    children = {name: getattr(level, name) for name in ("reference", "linear", "quadratic")}
    changes: dict[str, Any] = {name: new(row) for name, row in children.items() if row is not None}
    return replace(level, **changes)


def trimmed(levels: list[Level]) -> tuple[Level, ...]:
    """The levels that the last one needs, renumbered."""
    needed = {len(levels) - 1}
    for row in range(len(levels) - 1, -1, -1):
        if row in needed:
            needed.update(levels[row].children)
    kept = {row: place for place, row in enumerate(sorted(needed))}
    return tuple(renumbered(levels[row], kept.__getitem__) for row in kept)


def require_depth(problem: Problem, steps: float, most: int) -> None:
    """Refuses a schedule that needs more levels, from coarse to fine, than can be handled."""
    if steps > most:
        levels = "levels without end" if math.isinf(steps) else f"{steps:.2g} levels, more than {most:,}"
        raise ValueError(
            f"discount must be smaller for recursion, got {problem.discount!r}: it would take {levels}. A smaller "
            f"discount or a larger epsilon would help; {LONG_HORIZONS}"
        )


@runtime_checkable
class Scheduled(Planner, Protocol):
    """A planner whose price is known in advance: it runs a schedule."""

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""

    def with_epsilon(self, epsilon: float) -> "Scheduled":
        """The same planner for another accuracy."""


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Record):
    """The largest price of a planner, and its parts. No simulator call is made for it."""

    planner: Scheduled
    model: GenerativeModel
    schedule: Schedule

    def __repr__(self) -> str:
        return f"Forecast({self.summary()})"

    @property
    def calls(self) -> int:
        """The most simulator calls that the run may make; it stops earlier if its interval is within ε."""
        return self.schedule.calls

    @cached_property
    def exponent(self) -> float:
        """Growth of the price: log₂ of the forecast at ε/2 over that at ε; at ε over 2ε if ε/2 has no schedule."""

        def calls(epsilon: float) -> int:
            return self.planner.with_epsilon(epsilon).schedule(self.model).calls

        try:
            fine, coarse = calls(self.schedule.epsilon / 2.0), self.calls
        except ValueError:
            fine, coarse = self.calls, calls(self.schedule.epsilon * 2.0)
        return math.log2(fine) - math.log2(max(coarse, 1)) if fine > 0 else 0.0

    def table(self) -> str:
        """The levels as a table for people: from the root down, each with its children and its certificate.

        The root's row is about one sample around the shared reference.
        """
        return str(renderer().table(self))

    def to_dict(self) -> dict[str, Any]:
        """The price, its parts, and every level."""
        schedule = self.schedule
        levels = [
            asdict(level) | {"bias": float(proved.bias), "variance": float(proved.variance), "calls": calls}
            for level, proved, calls in zip(schedule.levels, schedule.certificates, schedule.costs, strict=True)
        ]
        names = ("calls", "reference_calls", "repeats", "sample_calls", "epsilon", "delta", "bias", "noise")
        fields = {name: getattr(schedule, name) for name in names}
        return fields | {"exponent": self.exponent, "levels": levels}


def forecast(planner: Planner, model: GenerativeModel) -> Forecast:
    """The largest price of a planner on a model, without a single simulator call.

    >>> import smoothplan as sp
    >>> model = sp.models.garnet(states=50, actions=2, branching=4, discount=0.2, seed=1)
    >>> sp.forecast(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1, delta=0.1), model).calls < 10_000
    True

    Raises:
        TypeError: the planner has no schedule; it says why in its attribute `no_forecast`.
        ValueError: no schedule reaches ε.
    """
    required_planner(planner)
    required_model(model)
    if not isinstance(planner, Scheduled):
        reason = getattr(planner, "no_forecast", "it has no schedule")
        raise TypeError(f"{type(planner).__name__} has no forecast: {reason}; limit it with max_calls")
    return Forecast(planner, model, planner.schedule(model))


class ScheduleRun:
    """A run of a schedule, which is coarser than ε asks for if a limit on calls demands it: samples and their proof."""

    def __init__(self, schedule: Schedule, backup: Backup, root: Root, engine: Any, epsilon: float) -> None:
        self.schedule, self.engine = schedule, engine
        self._backup, self._root, self._epsilon = backup, root, epsilon
        self._calls = self._samples = 0
        self._chunks = 0  # drawn so far, and so the number of the next
        self._planned = 0  # simulator calls of these chunks, at most
        self._interval = schedule.problem.values
        actions, self._legal = schedule.problem.actions, root.legal
        self._q_intervals = root.spread(np.tile(schedule.problem.action_values, (len(self._legal), 1)))
        self._mean: ConfidenceSequence | None = None  # samples around the reference
        # The radius that the noise should reach. A published schedule may leave no room for noise.
        self._radius = max(schedule.epsilon - schedule.bias, 1e-12)
        support, share, radius = schedule.problem.action_values, ADAPTIVE_SHARE, self._radius
        if schedule.root.kind != "constant":
            through = schedule.action_return
            support = float(through.low), float(through.high)
            if schedule.root.kind != "plug-in":
                # Tuned to the standard deviation of a reference entry.
                share, radius = ACTIONS_SHARE, max(math.sqrt(through.variance / schedule.root.samples), 1e-12)
        each = *support, share * schedule.delta / actions, radius
        self._actions = [ConfidenceSequence(*each) for _ in self._legal]  # returns of each legal action

    def run(self, workers: Workers, display: Display) -> Status:
        """Samples until the interval is within ε, the schedule is done, or the limit on calls is reached."""
        schedule = self.schedule
        display.expect(schedule.calls)
        work = Work(self.engine, self._root.model, self._root.state, self._root.seed)
        for stage in self._stages():
            for chunk, outcome in workers.in_order(work, stage):
                self._calls += outcome.calls
                self._samples += outcome.sums.samples
                self._add(chunk.action, outcome.sums)
                display.update(self._calls, self._interval)
                if schedule.early_stopping and self._precise():
                    return "converged"
            if self._exhausted():
                return "max_calls"
        # All samples are in: the bound that was certified in advance applies.
        if schedule.root.kind == "plug-in":
            self._tighten_by_actions(self._q() - schedule.noise, self._q() + schedule.noise)
        elif self._mean is not None:
            self._tighten(self._mean.mean - schedule.noise, self._mean.mean + schedule.noise)
        if self._precise():
            return "converged"
        return "max_calls" if schedule.epsilon > self._epsilon else "completed"

    def result(self) -> Snapshot:
        """The value and the intervals that the samples prove so far."""
        return Snapshot(
            value=self._value(),
            interval=self._interval,
            action=int(self._q().argmax()),
            q=self._q(),
            q_intervals=None if self.schedule.root.kind == "constant" else self._q_intervals,
            calls=self._calls,
            samples=self._samples,
            epsilon=self._epsilon,
            delta=self.schedule.delta,
        )

    def _stages(self) -> Iterator[Iterator[Chunk[Sums]]]:
        """Returns of all actions, a chunk of each in turn; then samples of the value around the reference."""
        schedule, engine = self.schedule, type(self.engine)
        if schedule.root.kind == "constant":
            return
        samples = schedule.root.samples
        each = schedule.reference_calls // (schedule.problem.actions * samples)
        yield self._cut(samples, each, engine.returns, self._legal.tolist())
        if schedule.root.kind == "plug-in":
            return
        reference = self._q()  # complete by now
        ends = schedule.sample_support(reference[self._legal], self._backed_up(reference))
        self._mean = ConfidenceSequence(*ends, ADAPTIVE_SHARE * schedule.delta, self._radius)
        yield self._cut(schedule.repeats, schedule.sample_calls, engine.values, [reference])

    def _cut(
        self, samples: int, each: int, draw: Callable[..., Sums], arguments: Sequence[int | Floats]
    ) -> Iterator[Chunk[Sums]]:
        """Chunks of so many samples for each argument, in turn, until one might exceed the limit on calls."""
        left, limit = samples, self._root.max_calls
        while left > 0:
            # The fewest and the most chunks of a stage: the interval is updated after each.
            sizes = {"samples": samples, "planned": self._planned, "max_calls": limit}
            size = chunk_size(self.engine.chunk_calls, each * len(arguments), pieces=(64, 256), **sizes)
            count = min(left, size)
            for place, argument in enumerate(arguments):
                self._planned += count * each
                if self._exhausted():
                    return
                yield Chunk(self._chunks, draw, (argument, count), count, place)
                self._chunks += 1
            left -= count

    def _exhausted(self) -> bool:
        """Whether a chunk did not fit into the limit on calls."""
        return self._root.max_calls is not None and self._planned > self._root.max_calls

    def _add(self, action: int, sums: Sums) -> None:
        """Adds samples of the value, or returns of an action; the last action's tighten the interval."""
        if self._mean is not None:
            self._mean.update(*sums.moments)
            self._tighten(*self._mean.interval)
            return
        self._actions[action].update(*sums.moments)
        if action == len(self._actions) - 1:
            self._tighten_by_actions(*self._root.spread(np.array([known.interval for known in self._actions])).T)

    def _tighten_by_actions(self, low: Floats, high: Floats) -> None:
        """Tightens by an interval for every action's mean return: F is monotone."""
        bias, known = float(self.schedule.action_return.bias), self._q_intervals
        low, high = low - bias, high + bias
        self._q_intervals = np.stack([np.maximum(known[:, 0], low), np.minimum(known[:, 1], high)], axis=1)
        ends = self._root.backed_up(self._backup, np.stack([low, high]))
        self._intersect(float(ends[0]), float(ends[1]))

    def _tighten(self, low: float, high: float) -> None:
        self._intersect(low - self.schedule.bias, high + self.schedule.bias)

    def _intersect(self, low: float, high: float) -> None:
        self._interval = max(self._interval[0], low), min(self._interval[1], high)
        require_possible(self._root.model, self._backup, self._interval, self._root.state)

    def _precise(self) -> bool:
        (low, high), value = self._interval, self._value()
        return within(max(high - value, value - low), self._epsilon)

    def _q(self) -> Floats:
        """The mean return of each action, [K], around which the value is sampled; −∞ for illegal ones."""
        return self._root.spread(np.array([action.mean for action in self._actions]))

    def _backed_up(self, q: Floats) -> float:
        """F of action values [K]."""
        return float(self._root.backed_up(self._backup, q[None])[0])

    def _value(self) -> float:
        """The point estimate, within the interval."""
        low, high = self._interval
        if self._mean is not None and self._mean.count > 0:
            estimate = self._mean.mean
        elif self._actions[-1].count > 0:
            estimate = self._backed_up(self._q())
        else:
            estimate = (low + high) / 2.0
        return min(max(estimate, low), high)
