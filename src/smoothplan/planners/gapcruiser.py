"""OT-GapCruiser: the best action at the root, by UGapE over returns through certified levels.

A return X = R + γ·Y(Z) through a level of bias b has a mean within γ·b of the action's value. So an interval for the
mean, widened by that, is one for the value; it cannot become narrower than the bias, and as it shrinks the level is
refined. A ladder of levels is made in advance, each rung the cheapest way to a radius.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from smoothplan import arguments
from smoothplan.arguments import Floats, amount, scientific
from smoothplan.backups import Backup
from smoothplan.confidence import ConfidenceSequence
from smoothplan.engines.base import Engine
from smoothplan.models.base import GenerativeModel
from smoothplan.recursion import HEADROOM, REFUSED_CALLS, ROUNDING, SMALL, HopelessError, action_values, engine_for
from smoothplan.running.run import Display, History, Identification, Root, Status
from smoothplan.running.work import Chunk, Outcome, Work
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Level, Problem, Return
from smoothplan.schedules.optimise import Rung, ladder
from smoothplan.schedules.schedule import Schedule, trimmed
from smoothplan.search.ugape import ugape

LOOKS = 64
"""A batch is no less than this fraction of the samples that a rung may need,"""

GROWTH = 16
"""and no less than this fraction of the samples that the action has there."""

PIECES = 8
"""Chunks of a batch, unless they would be too small."""

FASTEST = 10**9
"""Simulator calls per second that no engine makes: what a limit on time can pay for, at most."""


@dataclass(frozen=True)
class OTGapCruiser:
    """The best action at the root: UGapE over returns through levels that are refined as the intervals shrink.

    A run ends when no other action's upper bound exceeds the best lower bound by more than ε, so that its price follows
    the gaps between the actions.

    Args:
        backup: F.
        epsilon: how far from optimal the action may be; 0 for a run until the best action is proved or a limit reached.
        delta: the probability that any interval fails.
        order: the highest order of levels that is allowed; for a hard maximum only order 0 exists.
        rewards: "declared", or "bounded" to use nothing but the range of the rewards.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    order: int = 2
    rewards: Literal["declared", "bounded"] = "declared"

    no_forecast: ClassVar[str] = "its price depends on the gaps between the actions, which only the run reveals"

    def __post_init__(self) -> None:
        arguments.number("epsilon", self.epsilon, least=0.0)
        arguments.failure(self.delta)
        arguments.whole("order", self.order, least=0, most=2)
        if self.rewards not in ("declared", "bounded"):
            raise ValueError(f"rewards must be 'declared' or 'bounded', got {self.rewards!r}")

    def begin(self, root: Root) -> "CruiserRun":
        """A run that has not made any simulator call yet.

        Raises:
            HopelessError: the run may need more than `REFUSED_CALLS`, and neither calls nor time are limited.
        """
        problem = self._problem(root.model)
        # One action is the best one, whatever it is worth.
        budget = _budget(root) if problem.actions > 1 else 0
        if budget is None:
            if self.epsilon == 0.0:
                raise ValueError(
                    "epsilon must be greater than 0 where neither max_calls nor max_seconds is given, got 0"
                )
            levels, rungs = self._ladder(problem, REFUSED_CALLS / (2.0 * problem.actions))
            if rungs[-1].radius > self.epsilon / 2.0 * (1.0 + ROUNDING):
                raise HopelessError(_refusal(problem, rungs))
        else:
            levels, rungs = self._ladder(problem, HEADROOM * budget)
        return CruiserRun(self, root, problem, [Stage.of(rung, self, root, problem, levels) for rung in rungs])

    def _problem(self, model: GenerativeModel) -> Problem:
        problem = Problem.of(model, self.backup)
        if self.rewards == "bounded":
            return replace(problem, reward_noise=problem.reward_range[1] - problem.reward_range[0])
        return problem

    def _ladder(self, problem: Problem, budget: float) -> tuple[list[Level], list[Rung]]:
        # Intervals of radius ε/2 leave no gap above ε.
        return ladder(problem, self.epsilon / 2.0, self.delta / problem.actions, self.order, budget)


def _budget(root: Root) -> int | None:
    """The simulator calls that the limits of a run allow."""
    limits = [] if root.max_calls is None else [root.max_calls]
    limits += [] if root.max_seconds is None else [int(FASTEST * root.max_seconds)]
    return min(limits, default=None)


def _refusal(problem: Problem, rungs: list[Rung]) -> str:
    """Why a run is not started, with the accuracy at which it would be."""
    price = problem.actions * sum(rung.price for rung in rungs)
    message = (
        f"this plan may need more than {scientific(REFUSED_CALLS)} simulator calls where actions are alike. "
        "Recursion is for short horizons: a smaller discount, a larger epsilon or a higher temperature would help"
    )
    if price <= REFUSED_CALLS:
        message += f" (at epsilon={2.0 * rungs[-1].radius:.3g} it is {amount(int(price))})"
    return message + "; max_calls=N plans as accurately as N calls allow"


class Stage(NamedTuple):
    """A rung that is ready to run."""

    rung: Rung
    through: Return
    calls: int  # simulator calls of one return, at most
    engine: Engine
    schedule: Schedule

    @classmethod
    def of(cls, rung: Rung, planner: OTGapCruiser, root: Root, problem: Problem, levels: list[Level]) -> "Stage":
        """The rung of a ladder over these levels, as a schedule whose root draws returns through the rung's level."""
        top = Level("plug-in", samples=1, reference=rung.level)
        schedule = Schedule(problem, trimmed([*levels[: rung.level + 1], top]), 1, planner.epsilon, planner.delta)
        calls = schedule.reference_calls // problem.actions
        engine = engine_for(root.engine, schedule, planner.backup, root.model)
        return cls(rung, schedule.action_return, calls, engine, schedule)


@dataclass
class Action:
    """What is known of the value of a root action."""

    interval: tuple[float, float]
    stage: int = 0
    calls: int = 0
    means: dict[int, ConfidenceSequence] = field(default_factory=dict)  # of returns, at each stage that was reached

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


@dataclass
class CruiserRun:
    """The state of a run: what is known of each root action."""

    planner: OTGapCruiser
    root: Root
    problem: Problem
    stages: list[Stage]
    status: Status = "converged"
    samples: int = 0
    rounds: int = 0
    chunks: int = 0
    actions: list[Action] = field(init=False)
    history: History = field(default_factory=History)
    diagnosis: None = None

    def __post_init__(self) -> None:
        self.actions = [Action(action_values(self.problem)) for _ in range(self.problem.actions)]
        at = self.root.model, self.root.state, self.root.seed
        self._work = [Work(stage.engine, *at, stage.schedule) for stage in self.stages]

    def go(self, workers: Workers, display: Display) -> None:
        """Samples the wider of the best action and its challenger, until the gap is within ε or a limit is reached."""
        while True:
            self.history.add(self.calls, self.q_intervals)
            best, challenger, gap = ugape(self.q_intervals)
            if challenger is None or gap <= self.epsilon * (1.0 + ROUNDING):
                self.status = "converged"
                return
            action = max(best, challenger, key=lambda a: self.actions[a].radius)
            tasks = list(self._tasks(action))
            if not tasks:
                self.status = "max_calls"
                return
            self.rounds += 1
            for task, outcome in workers.in_order(self._work[self.actions[action].stage], tasks):
                self._book(task, outcome)
                display.update(self.calls, self.interval)

    def _tasks(self, number: int) -> Iterator[Chunk]:
        """The next batch of returns of an action, in chunks; nothing where the limit does not allow one."""
        action = self.actions[number]
        while self._worth_refining(action):
            action.stage += 1
        stage = self.stages[action.stage]
        have = action.means[action.stage].count if action.stage in action.means else 0
        count = math.ceil(max(stage.rung.samples / LOOKS, have / GROWTH))
        if self.root.max_calls is not None:
            count = min(count, (self.root.max_calls - self.calls) // stage.calls)
        # Enough for a few workers, unless chunks would be too small to be worth it.
        most, least = stage.engine.chunk_calls // stage.calls, (stage.engine.chunk_calls >> SMALL) // stage.calls
        size = max(1, min(most, max(math.ceil(count / PIECES), least)))
        for start in range(0, count, size):
            samples = min(size, count - start)
            yield Chunk(self.chunks, "returns", (number, samples), samples, number)
            self.chunks += 1

    def _worth_refining(self, action: Action) -> bool:
        """Whether an action has got from its level what that is for, and can pay for the next."""
        if action.stage == len(self.stages) - 1:
            return False
        here, finer = self.stages[action.stage].rung, self.stages[action.stage + 1].rung
        remaining = math.inf if self.root.max_calls is None else self.root.max_calls - self.calls
        return action.radius <= here.radius and finer.price <= HEADROOM * remaining

    def _book(self, task: Chunk, outcome: Outcome) -> None:
        """Takes a chunk into account: the action's interval shrinks to what its returns allow, and never widens."""
        action = self.actions[task.action]
        rung, through, *_ = self.stages[action.stage]
        if action.stage not in action.means:
            delta = self.delta / (self.problem.actions * len(self.stages))
            action.means[action.stage] = ConfidenceSequence(
                float(through.low), float(through.high), delta, rung.radius - float(through.bias)
            )
        mean = action.means[action.stage]
        sums = outcome.sums
        mean.update(*sums)
        # Returns without variance are all alike.
        low, high = (mean.mean, mean.mean) if through.variance == 0.0 else mean.interval
        action.interval = (
            max(action.interval[0], low - float(through.bias)),
            min(action.interval[1], high + float(through.bias)),
        )
        action.calls += outcome.calls
        self.samples += sums.samples

    @property
    def epsilon(self) -> float:
        """How far from optimal the action may be."""
        return self.planner.epsilon

    @property
    def delta(self) -> float:
        """The probability that any interval fails."""
        return self.planner.delta

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return sum(action.calls for action in self.actions)

    @property
    def q(self) -> Floats:
        """Estimates of the action values, [K]."""
        return np.array([action.estimate for action in self.actions])

    @property
    def q_intervals(self) -> Floats:
        """Intervals of the action values, [K, 2]."""
        return np.array([action.interval for action in self.actions])

    @property
    def interval(self) -> tuple[float, float]:
        """F of the lower and of the upper bounds, for F is monotone."""
        low, high = self.root.backed_up(self.planner.backup, self.q_intervals.T)
        return max(float(low), self.problem.values[0]), min(float(high), self.problem.values[1])

    @property
    def value(self) -> float:
        """F of the estimates, within the interval."""
        low, high = self.interval
        return min(max(float(self.root.backed_up(self.planner.backup, self.q[None])[0]), low), high)

    @property
    def action(self) -> int:
        """The action with the largest lower bound."""
        return ugape(self.q_intervals)[0]

    @property
    def identification(self) -> Identification:
        """How the best action was found."""
        _, challenger, gap = ugape(self.q_intervals)
        return Identification(
            gap=gap,
            challenger=challenger,
            action_calls=np.array([action.calls for action in self.actions]),
            rounds=self.rounds,
            history=self.history.until(self.calls, self.q_intervals),
        )
