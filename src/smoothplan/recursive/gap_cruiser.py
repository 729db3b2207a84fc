"""OT-GapCruiser: the best action at the root, by UGapE over returns through certified levels.

A return X = R + γ·Y(Z) through a level of bias b has a mean within γ·b of the action's value. An interval for the mean,
widened by that, is an interval for the value. It cannot become narrower than the bias, so the level is refined as the
interval shrinks. A ladder of levels is made in advance: a rung is the cheapest level for one radius, and the number of
returns through it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, scientific
from smoothplan.confidence import ConfidenceSequence
from smoothplan.confidence.means import leaders
from smoothplan.recursive.debias import MOST
from smoothplan.recursive.level import Level
from smoothplan.recursive.optimise import Rung, ladder
from smoothplan.recursive.planners import HEADROOM, engine_for, too_expensive
from smoothplan.recursive.schedule import Schedule, trimmed
from smoothplan.run.chunks import Chunk, Outcome, Sums, Work, chunk_size
from smoothplan.run.progress import Display
from smoothplan.run.records import REFUSED_CALLS, GapDetails, History, Root, Run, Snapshot, Status, within
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import Backup, required_backup
from smoothplan.theory.curvature import Problem, require_possible


@dataclass(frozen=True)
class OTGapCruiser:
    """The best action at the root: UGapE over returns through levels that are refined as the intervals shrink.

    A run ends when no other action's upper bound exceeds the best lower bound by more than ε. The larger the gaps
    between the actions, the sooner it ends.

    Args:
        backup: F.
        epsilon: how far from optimal the action may be; 0 to run until the best action is proved or a limit is reached.
        delta: the probability that any interval fails.
        order: the highest order of levels that is allowed; for a hard maximum only order 0 exists, and order 2 only for
            mixtures of softmaxes.
        debias: the most terms of its bias that a level may cancel; a hard maximum has no debiased levels.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    order: int = 2
    debias: int = 2

    no_forecast: ClassVar[str] = "its price depends on the gaps between the actions, which only the run reveals"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.number("epsilon", self.epsilon, least=0.0))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        object.__setattr__(self, "order", arguments.whole("order", self.order, least=0, most=2))
        object.__setattr__(self, "debias", arguments.whole("debias", self.debias, least=0, most=MOST))

    def start(self, root: Root) -> Run:
        """A run that has not made any simulator call yet.

        Raises:
            TooExpensiveError: the run may need more than `REFUSED_CALLS`, and neither calls nor time are limited.
        """
        problem = Problem.of(root.model, self.backup)

        def rungs_within(price: float) -> tuple[list[Level], list[Rung]]:
            # Intervals of radius ε/2 leave no gap above ε.
            return ladder(problem, self.epsilon / 2.0, self.delta / problem.actions, self.order, self.debias, price)

        # One action is the best one, whatever it is worth.
        budget = root.max_calls if problem.actions > 1 else 0
        if budget is None and root.max_seconds is None:
            if self.epsilon == 0.0:
                raise ValueError("epsilon must be greater than 0 unless max_calls or max_seconds is given, got 0")
            _, rungs = rungs_within(REFUSED_CALLS / (2.0 * problem.actions))
            if not within(rungs[-1].radius, self.epsilon / 2.0):
                calls = int(problem.actions * sum(rung.price for rung in rungs))
                price = f"more than {scientific(REFUSED_CALLS)} simulator calls if actions are alike"
                raise too_expensive(price, 2.0 * rungs[-1].radius, calls if calls <= REFUSED_CALLS else 0)
        # The ladder is part of the proof, and a resumed run may have another limit on time: only the limit on calls
        # shapes it. Otherwise it ends at a price that no run pays in a week.
        levels, rungs = rungs_within(1e14 if budget is None else HEADROOM * budget)
        works = []
        for rung in rungs:
            # A schedule whose root draws returns through the rung's level.
            top = Level("plug-in", samples=1, reference=rung.level)
            schedule = Schedule(problem, trimmed([*levels[: rung.level + 1], top]), 1, self.epsilon, self.delta)
            engine = engine_for(root.engine, schedule, self.backup, root.model)
            works.append(Work(engine, root.model, root.state, root.seed))
        return GapCruiserRun(self, root, problem, rungs, works)


@dataclass
class RootAction:
    """Knowledge of the value of a root action."""

    interval: tuple[float, float]
    rung: int = 0  # the present one
    calls: int = 0
    means: dict[int, ConfidenceSequence] = field(default_factory=dict)  # of returns, at each rung that was reached

    @property
    def radius(self) -> float:
        """Half the width of the interval."""
        return (self.interval[1] - self.interval[0]) / 2.0

    @property
    def estimate(self) -> float:
        """The mean of the finest returns, within the interval."""
        low, high = self.interval
        mean = self.means[max(self.means)].mean if self.means else (low + high) / 2.0
        return min(max(mean, low), high)


class GapCruiserRun:
    """A run of OT-GapCruiser: the knowledge of each root action. Each rung has its own work."""

    def __init__(
        self, planner: OTGapCruiser, root: Root, problem: Problem, rungs: list[Rung], works: list[Work]
    ) -> None:
        self._planner, self._root, self._problem, self.rungs, self.works = planner, root, problem, rungs, works
        intervals = root.spread(np.tile(problem.action_values, (len(root.legal), 1)))
        self.actions = [RootAction((low, high)) for low, high in intervals.tolist()]
        self._rounds = self._samples = 0
        self._chunks = 0  # drawn so far, and so the number of the next
        self._history = History()

    def run(self, workers: Workers, display: Display) -> Status:
        """Samples the wider of the best action and its challenger, until the gap is within ε or a limit is reached."""
        while True:
            intervals = self._intervals()
            self._history.add(self._calls(), intervals)
            best, challenger, gap = leaders(*intervals.T)
            if within(gap, self._planner.epsilon):
                return "converged"
            number = max(best, challenger, key=lambda action: self.actions[action].radius)
            chunks = list(self._batch(number))
            if not chunks:
                return "max_calls"
            self._rounds += 1
            for chunk, outcome in workers.in_order(self.works[self.actions[number].rung], chunks):
                self._add(chunk, outcome)
                interval = self._interval()
                require_possible(self._root.model, self._planner.backup, interval, self._root.state)
                display.update(self._calls(), interval)

    def result(self) -> Snapshot:
        """F of the estimates, and the action with the largest lower bound."""
        intervals, (low, high) = self._intervals(), self._interval()
        best, challenger, gap = leaders(*intervals.T)
        q = np.array([action.estimate for action in self.actions])
        value = float(self._root.backed_up(self._planner.backup, q[None])[0])
        return Snapshot(
            value=min(max(value, low), high),
            interval=(low, high),
            action=best,
            q=q,
            q_intervals=intervals,
            calls=self._calls(),
            samples=self._samples,
            epsilon=self._planner.epsilon,
            delta=self._planner.delta,
            details=GapDetails(
                gap=float(gap),
                challenger=challenger if len(q) > 1 else None,
                action_calls=np.array([action.calls for action in self.actions]),
                rounds=self._rounds,
                history=self._history.until(self._calls(), intervals),
            ),
        )

    def _calls(self) -> int:
        return sum(action.calls for action in self.actions)

    def _intervals(self) -> Floats:
        """Of the action values, [K, 2]."""
        return np.array([action.interval for action in self.actions])

    def _interval(self) -> tuple[float, float]:
        """F of the lower and of the upper bounds: F is monotone."""
        low, high = self._root.backed_up(self._planner.backup, self._intervals().T)
        return max(float(low), self._problem.values[0]), min(float(high), self._problem.values[1])

    def _batch(self, number: int) -> Iterator[Chunk[Sums]]:
        """The next batch of returns of an action, in chunks; none if the limit does not allow one."""
        action, limit = self.actions[number], self._root.max_calls
        left = math.inf if limit is None else limit - self._calls()
        # An action goes on to the next rung once its radius is reached, if the limit on calls allows it.
        while action.rung < len(self.rungs) - 1:
            finer = self.rungs[action.rung + 1]
            if action.radius > self.rungs[action.rung].radius or finer.price > HEADROOM * left:
                break
            action.rung += 1
        rung, engine = self.rungs[action.rung], self.works[action.rung].engine
        have = action.means[action.rung].count if action.rung in action.means else 0
        # Large enough that updating the intervals takes no time, small enough that few samples are wasted.
        count = math.ceil(max(rung.samples / 64, have / 16))
        if limit is not None:
            count = min(count, (limit - self._calls()) // int(rung.through.calls))
        size = chunk_size(engine.chunk_calls, int(rung.through.calls), samples=count)
        for start in range(0, count, size):
            samples = min(size, count - start)
            yield Chunk(self._chunks, type(engine).returns, (number, samples), samples, number)
            self._chunks += 1

    def _add(self, chunk: Chunk[Sums], outcome: Outcome[Sums]) -> None:
        """Adds a chunk. The interval of its action never widens."""
        action = self.actions[chunk.action]
        rung = self.rungs[action.rung]
        through, bias = rung.through, float(rung.through.bias)
        if action.rung not in action.means:
            delta = self._planner.delta / (self._problem.actions * len(self.rungs))
            ends = float(through.low), float(through.high)
            action.means[action.rung] = ConfidenceSequence(*ends, delta, rung.radius - bias)
        mean = action.means[action.rung]
        mean.update(*outcome.sums.moments)
        # Returns without variance are all equal.
        low, high = (mean.mean, mean.mean) if through.variance == 0.0 else mean.interval
        action.interval = max(action.interval[0], low - bias), min(action.interval[1], high + bias)
        action.calls += outcome.calls
        self._samples += outcome.sums.samples
