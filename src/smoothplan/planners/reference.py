"""ReferenceCruiser: long horizons, by chains around a reference Q̂ that does not recurse.

Order-1 chains follow the policy ∇F(Q̂) and evaluate exactly that policy, so that they bound the optimal value from below
whatever Q̂ is. Order 2 adds the quadratic term of the Taylor model, estimated from pairs of such chains at one random
step; what remains is cubic in the reference's error. There is no branching, so the discount may be 0.99 and beyond.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from smoothplan import arguments, curvature, parallel
from smoothplan.arguments import Floats
from smoothplan.backups import Backup
from smoothplan.confidence import ConfidenceSequence
from smoothplan.engines.base import Sums
from smoothplan.engines.chains import BatchedChains, Chains, PairSums
from smoothplan.models.base import Oracle, States
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.recursion import ROUNDING, action_values
from smoothplan.references import GridReference, Reference, default_reference
from smoothplan.run import Budget, Diagnosis, Display, Lesson, Root, Status
from smoothplan.schedules.level import Problem

TRUNCATION_SHARE = 0.05
"""The part of ε that may be lost where chains are cut off, by default."""

VALUE_SHARE, CORRECTION_SHARE, ACTION_SHARE = 0.6, 0.3, 0.1
"""The parts of δ for chains of the value, for its quadratic corrections, and for returns of the root's actions."""

DECISION_SHARE = 0.3
"""The part of the simulator calls that goes to returns of the root's actions."""

PILOT, PILOT_PAIRS = 64, 32
"""Samples of each part, and pairs in each correction, before the rest is planned."""

PAIRS = np.unique(np.round(2.0 ** np.arange(1.0, 12.01, 0.5)).astype(np.int64))
"""Numbers of pairs that are tried."""

REFERENCE_CALLS, REFERENCE_SHARE = 100_000, 0.5
"""Simulator calls for a reference that nobody gave, or for improving one, at most; and the part of all calls."""

IMPROVEMENTS = 5
"""Steps in which a reference is improved, each twice as long as the one before."""

LOOKS = 4
"""A round adds this fraction of the calls that were made,"""

ROUND_CHUNKS = 8
"""and no more than so many chunks."""

FEWEST = 256
"""Samples of a part before its variance is trusted."""

Part = Literal["value", "correction", "action"]


@runtime_checkable
class Improvable(Reference, Protocol):
    """A reference that more simulator calls make better."""

    @property
    def calls(self) -> int:
        """Simulator calls made for it so far."""

    def improve(self, calls: int) -> None:
        """Makes about so many more."""


@dataclass(frozen=True, eq=False)
class ReferenceCruiser:
    """Plans around a reference, along chains that do not branch.

    What is proved: the lower end of the interval bounds the optimal regularised value from below, for any reference
    whatever, and the policy's interval in the diagnosis contains the value of the policy ∇F(Q̂). With `error_range` the
    interval bounds the optimal value from both sides. Without it, the value at order 2 is an estimate.

    Args:
        backup: F, smooth.
        reference: Q̂: an object with a method q(states [n, ...]) → [n, K]; see `smoothplan.references`. By default it is
            made from the simulator, and the calls for it count.
        order: 1 or 2.
        epsilon: the accuracy wanted.
        delta: the probability that an interval fails.
        horizon: steps of a chain; by default what lies beyond matters little. The rest is valued at the middle of the
            value interval, and what that may be wrong is booked.
        pairs: pairs of chains in a correction; chosen from a pilot by default.
        error_range: a bound on range(Q̂_s − Q_s) = max_a − min_a at every state, where one is known.
        improve: whether a part of the calls goes into improving the reference first, which changes it.
    """

    backup: Backup
    reference: Reference | None = None
    order: int = field(default=2, kw_only=True)
    epsilon: float = field(kw_only=True)
    delta: float = field(default=0.1, kw_only=True)
    horizon: int | None = field(default=None, kw_only=True)
    pairs: int | None = field(default=None, kw_only=True)
    error_range: float | None = field(default=None, kw_only=True)
    improve: bool = field(default=False, kw_only=True)

    no_forecast: ClassVar[str] = "its price depends on the variance of the chains, which a pilot measures"

    def __post_init__(self) -> None:
        arguments.positive("epsilon", self.epsilon)
        arguments.fraction("delta", self.delta)
        arguments.whole("order", self.order, least=1, most=2)
        if self.backup.temperature == 0.0:
            raise ValueError(f"ReferenceCruiser needs a smooth backup, got {self.backup!r}")
        if self.reference is not None and not callable(getattr(self.reference, "q", None)):
            raise TypeError(f"reference must have a method q(states), got {self.reference!r}: see CriticReference")
        if arguments.flag("improve", self.improve) and not isinstance(self.reference, Improvable | None):
            raise TypeError(f"improve=True needs a reference with a method improve(calls), got {self.reference!r}")
        if self.horizon is not None:
            arguments.whole("horizon", self.horizon)
        if self.pairs is not None:
            arguments.whole("pairs", self.pairs, least=2)
        if self.error_range is not None:
            arguments.number("error_range", self.error_range, least=0.0)

    def begin(self, root: Root) -> "ChainRun":
        """A run that has not made any simulator call yet."""
        problem = Problem.of(root.model, self.backup)
        horizon = self.horizon or _horizon(problem, TRUNCATION_SHARE * self.epsilon)
        reference, calls = self.reference, 0
        if reference is None:
            most = REFERENCE_CALLS if root.max_calls is None else int(REFERENCE_SHARE * root.max_calls)
            reference = default_reference(root.model, self.backup, calls=min(most, REFERENCE_CALLS), seed=root.seed)
            calls = reference.calls
        return ChainRun(self, root, problem, horizon, reference, calls)


def _horizon(problem: Problem, tolerated: float) -> int:
    """The steps after which at most so much of the value is left."""
    if problem.discount == 0.0 or problem.width / 2.0 <= tolerated:
        return 1
    return max(1, math.ceil(math.log(2.0 * tolerated / problem.width) / math.log(problem.discount)))


class Task(NamedTuple):
    """A chunk of samples of one part."""

    chunk: int
    part: Part
    action: int  # for returns of an action
    samples: int


@dataclass
class _Mean:
    """What is known of the mean of one part."""

    sequence: ConfidenceSequence
    calls: int = 0

    @property
    def estimate(self) -> float:
        """The mean of the samples, or the middle of their support."""
        return self.sequence.mean

    @property
    def variance(self) -> float:
        """The variance of the samples."""
        count, total, squares = self.sequence.count, self.sequence.total, self.sequence.squares
        return max(0.0, squares - total * total / count) / (count - 1) if count > 1 else math.inf

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return math.sqrt(self.variance / max(self.sequence.count, 1))


class ChainRun:
    """The state of a run: chains of the value, their corrections, and returns of the root's actions."""

    identification = None

    def __init__(
        self,
        planner: ReferenceCruiser,
        root: Root,
        problem: Problem,
        horizon: int,
        reference: Reference,
        reference_calls: int,
    ) -> None:
        self.status: Status = "completed"
        self.epsilon, self.delta = planner.epsilon, planner.delta
        self.horizon, self.pairs = horizon, planner.pairs or PILOT_PAIRS
        self.samples = 0
        self._planner, self._root, self._problem = planner, root, problem
        self._truncation = problem.discount**horizon * problem.width / 2.0
        self._reference = reference
        self._spent = reference_calls  # on the reference and on pilots
        self._chunks = 1  # chunk 0 is for references: what a chain draws must not depend on what made its reference
        self._promised = 0
        self._lessons: list[Lesson] = []
        self._start()

    def _start(self) -> None:
        """Nothing is sampled yet around this reference."""
        self._chains, advantages = chains_for(self._root, self._planner.backup, self._reference, self._problem)
        self._pair_sums = np.zeros(5)  # as in PairSums
        self._budgets: dict[Part, Budget] = {}
        support = _support(self._problem, advantages, self.horizon)
        actions, target = self._problem.actions, self.epsilon / 2.0
        self._value = _Mean(ConfidenceSequence(*support, VALUE_SHARE * self.delta, target))
        self._actions = [
            _Mean(ConfidenceSequence(*support, ACTION_SHARE * self.delta / actions, target)) for _ in range(actions)
        ]
        self._correction = self._fresh_correction()

    def _fresh_correction(self) -> _Mean | None:
        """A mean of corrections that has no samples yet."""
        if self._planner.order == 1:
            return None
        low, high = self._value.sequence.low, self._value.sequence.high
        reach = high - low + self._problem.action_gap
        most = _weight(self._problem.discount, self.horizon) * reach**2 / (4.0 * self._problem.temperature)
        return _Mean(ConfidenceSequence(-most, most, CORRECTION_SHARE * self.delta, self.epsilon / 2.0))

    def go(self, workers: int, max_seconds: float | None, display: Display | None) -> None:
        """Samples until the interval or the standard error is within ε, or a limit is reached."""
        try:
            self.status = self._until(workers, max_seconds, display)
        except KeyboardInterrupt:
            self.status = "interrupted"

    def _until(self, workers: int, max_seconds: float | None, display: Display | None) -> Status:
        for calls in self._improvements():
            self._improve(calls)
            if display is not None:
                display.update(self.calls, self.interval)
            if self._late(max_seconds):
                return "max_seconds"
        tasks = list(self._pilot())
        while tasks:
            with closing(parallel.in_order(self._sample, tasks, min(workers, len(tasks)))) as outcomes:
                for task, (sums, calls) in outcomes:
                    self._book(task, sums, calls)
                    if display is not None:
                        display.update(self.calls, self.interval)
                    if self._late(max_seconds):
                        return "max_seconds"
            if not self._budgets:
                self._budgets = self._split()
                if self._correction is not None:
                    self._spent += self._correction.calls
                    self._correction = self._fresh_correction()  # the pilot's have other pairs and another variance
            elif self._within():
                return "converged"
            tasks = list(self._round())
        return "max_calls"

    def _late(self, max_seconds: float | None) -> bool:
        return max_seconds is not None and time.perf_counter() - self._root.started > max_seconds

    def _improvements(self) -> Iterator[int]:
        """Simulator calls for each step of improving the reference."""
        if not self._planner.improve:
            return
        most = REFERENCE_CALLS
        if self._root.max_calls is not None:
            most = min(most, int(REFERENCE_SHARE * self._root.max_calls) - self._spent)
        for step in range(IMPROVEMENTS):
            calls = most * 2**step // (2**IMPROVEMENTS - 1)
            if calls > 0:
                yield calls

    def _improve(self, calls: int) -> None:
        """Improves the reference, and finds out by a few chains what its policy is worth now."""
        assert isinstance(self._reference, Improvable)
        before = self._reference.calls
        self._reference.improve(calls)
        self._spent += self._reference.calls - before
        self._start()
        for task in self._admitted("value", 0, PILOT):
            self._book(task, *self._sample(task))
        self._lessons.append(Lesson(self.calls, self._value.estimate, self._value.error))
        # The next chains are around another reference; the last ones would serve, but their share of δ is spent.
        self._spent += self._value.calls
        self._start()

    def _pilot(self) -> Iterator[Task]:
        """A few samples of each part."""
        yield from self._admitted("value", 0, PILOT)
        for action in range(self._problem.actions):
            yield from self._admitted("action", action, PILOT)
        if self._correction is not None:
            yield from self._admitted("correction", 0, PILOT)

    def _round(self) -> Iterator[Task]:
        """The next samples: each part catches up with its share of the calls, which grow by a fraction."""
        most = ROUND_CHUNKS * self._chains.chunk_calls
        total = self.calls + min(most, self.calls / LOOKS)
        for part, budget in self._budgets.items():
            means = self._actions if part == "action" else [self._mean(part)]
            for number, mean in enumerate(means):
                behind = budget.share * total / len(means) - mean.calls
                yield from self._admitted(part, number, math.ceil(behind / budget.calls))

    def _admitted(self, part: Part, action: int, count: int) -> Iterator[Task]:
        """So many samples in chunks, or as many as the limit on calls is sure to allow."""
        each = self._most_calls(part)
        if self._root.max_calls is not None:
            count = min(count, (self._root.max_calls - self.calls - self._promised) // each)
        size = max(1, self._chains.chunk_calls // each)
        for start in range(0, count, size):
            samples = min(size, count - start)
            self._promised += samples * each
            yield Task(self._chunks, part, action, samples)
            self._chunks += 1

    def _most_calls(self, part: Part) -> int:
        """Simulator calls of one sample, at most."""
        if part == "correction":
            return self.horizon * (1 + 2 * self.pairs)
        return self.horizon

    def _mean(self, part: Part, action: int = 0) -> _Mean:
        if part == "action":
            return self._actions[action]
        if part == "value":
            return self._value
        assert self._correction is not None
        return self._correction

    def _sample(self, task: Task) -> tuple[Sums | PairSums, int]:
        oracle = Oracle(self._root.model, self._root.seed, task.chunk)
        state, count, horizon = self._root.state, task.samples, self.horizon
        sums: Sums | PairSums
        if task.part == "value":
            sums = self._chains.values(oracle, state, count, horizon)
        elif task.part == "action":
            sums = self._chains.returns(oracle, state, task.action, count, horizon)
        else:
            sums = self._chains.corrections(oracle, state, count, self.pairs, horizon)
        return sums, oracle.calls

    def _book(self, task: Task, sums: Sums | PairSums, calls: int) -> None:
        """Takes a chunk into account."""
        self._promised -= task.samples * self._most_calls(task.part)
        mean = self._mean(task.part, task.action)
        mean.sequence.update(sums.samples, sums.total, sums.squares)
        mean.calls += calls
        self.samples += sums.samples
        if isinstance(sums, PairSums):
            self._pair_sums += np.array(sums)

    def _split(self) -> dict[Part, Budget]:
        """How many pairs, and which part gets how many calls: what makes cost × variance smallest, by the pilot."""
        value = self._value
        each = max(value.calls / max(value.sequence.count, 1), 1.0)
        returns = sum(mean.calls for mean in self._actions) / max(sum(m.sequence.count for m in self._actions), 1)
        parts: dict[Part, tuple[float, float]] = {"value": (each, value.variance)}
        if self._correction is not None:
            costs, variances = self._correction_prices(each)
            best = int(np.argmin(costs * variances))
            if self._planner.pairs is None:
                self.pairs = int(PAIRS[best])
            else:
                best = int(np.argmin(np.abs(PAIRS - self.pairs)))
            parts["correction"] = float(costs[best]), float(variances[best])
        weights = {part: math.sqrt(calls * variance) for part, (calls, variance) in parts.items()}
        total = sum(weights.values()) or 1.0
        budgets: dict[Part, Budget] = {
            part: Budget(calls, variance, (1.0 - DECISION_SHARE) * weights[part] / total if total else 1.0)
            for part, (calls, variance) in parts.items()
        }
        budgets["action"] = Budget(max(returns, 1.0), max(m.variance for m in self._actions), DECISION_SHARE)
        return budgets

    def _correction_prices(self, chain_calls: float) -> tuple[Floats, Floats]:
        """Calls and variance of a correction for each number of `PAIRS`, extrapolated from the corrections so far.

        A pair's difference x has mean D and variance σ²; the U-statistic of n of them has mean D² and the variance
        4D²σ²/n + 2σ⁴/(n(n−1)), beside the variance of D² itself over states and actions.
        """
        assert self._correction is not None
        sums, discount = PairSums(*self._pair_sums), self._problem.discount
        scale = _weight(discount, self.horizon) / (4.0 * self._problem.temperature)
        differing = max(sums.differing, 1) / max(sums.samples, 1)
        noise = sums.noise / max(sums.differing, 1)
        # E[D²], counting equal actions as 0: the estimate and its standard error, for too little would ask for too many
        # pairs. D² varies at least as much as it would if it took one value.
        square = (max(sums.total / max(sums.samples, 1), 0.0) + self._correction.error) / scale

        def variance(pairs: Any) -> Any:
            return 4.0 * square * noise / pairs + 2.0 * differing * noise**2 / (pairs * (pairs - 1.0))

        spread = square**2 / differing
        costs = _weight(discount, self.horizon) + 2.0 * differing * chain_calls * PAIRS
        return np.asarray(costs, dtype=np.float64), np.asarray(scale**2 * (variance(PAIRS) + spread))

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        means = [self._value, *self._actions] + ([] if self._correction is None else [self._correction])
        return self._spent + sum(mean.calls for mean in means)

    def _estimate(self) -> tuple[float, float]:
        """The value at the planner's order and its standard error."""
        if self._correction is None:
            return self._value.estimate, self._value.error
        # A run must not stop because its corrections happen to vary less than those of the pilot.
        variance = self._budgets["correction"].variance if self._budgets else 0.0
        error = math.sqrt(max(self._correction.variance, variance) / max(self._correction.sequence.count, 1))
        return self._value.estimate + self._correction.estimate, math.hypot(self._value.error, error)

    @property
    def policy_interval(self) -> tuple[float, float]:
        """Contains the value of the policy ∇F(Q̂) with probability at least 1 − δ."""
        low, high = self._value.sequence.interval
        bounds = self._problem.values
        return max(low - self._truncation, bounds[0]), min(high + self._truncation, bounds[1])

    @property
    def interval(self) -> tuple[float, float]:
        """Contains the optimal value: from below by the chains, from above where the error range is known."""
        intervals = self.q_intervals
        low, high = (float(end) for end in self._root.backed_up(self._planner.backup, intervals.T))
        low = max(low, self.policy_interval[0], self._problem.values[0])
        high = min(high, self._problem.values[1])
        if self._planner.error_range is not None:
            linear = self._value.sequence.interval
            high = min(high, linear[1] + self._truncation + self._bias(1)[1])
            if self._correction is not None:
                added = self._correction.sequence.interval
                low = max(low, linear[0] + added[0] - self._truncation + self._bias(2)[0])
                high = min(high, linear[1] + added[1] + self._truncation + self._bias(2)[1])
        return low, high

    def _bias(self, order: int) -> tuple[float, float]:
        """Bounds of what the order leaves out, for the error range that was given."""
        assert self._planner.error_range is not None
        problem = self._problem
        return curvature.reference_bias(
            order, self._planner.error_range, problem.temperature, problem.discount, 2.0 * self._truncation
        )

    @property
    def q_intervals(self) -> Floats:
        """Intervals of the root's action values, [K, 2]: from below by the chains, from above by what is known."""
        low, high = action_values(self._problem)
        over = math.inf
        if self._planner.error_range is not None:
            over = self._problem.discount * self._bias(1)[1]
        rows = []
        for mean in self._actions:
            ends = mean.sequence.interval
            rows.append((max(low, ends[0] - self._truncation), min(high, ends[1] + self._truncation + over)))
        return np.array(rows)

    @property
    def q(self) -> Floats:
        """Estimates of the root's action values under the policy ∇F(Q̂), [K]."""
        return np.array([mean.estimate for mean in self._actions])

    @property
    def action(self) -> int:
        """The action with the largest estimate: one step better than the reference's policy."""
        return int(self.q.argmax())

    @property
    def value(self) -> float:
        """The estimate, within the interval."""
        low, high = self.interval
        shift = 0.0
        if self._planner.error_range is not None and self._correction is None:
            shift = self._bias(1)[1] / 2.0
        return min(max(self._estimate()[0] + shift, low), high)

    def _within(self) -> bool:
        """Whether what was asked for is reached: the certified interval, or the noise of the estimate, within ε."""
        low, high = self.interval
        epsilon = self.epsilon * (1.0 + ROUNDING)
        if self._planner.error_range is not None:
            return max(high - self.value, self.value - low) <= epsilon
        if self._correction is None:
            low, high = self.policy_interval
            return (high - low) / 2.0 <= epsilon
        enough = min(self._value.sequence.count, self._correction.sequence.count) >= FEWEST
        return (
            enough and NormalDist().inv_cdf(1.0 - self.delta / 2.0) * self._estimate()[1] + self._truncation <= epsilon
        )

    @property
    def diagnosis(self) -> Diagnosis:
        """What the chains say of the reference."""
        reference = conditioned(self._reference, self._problem)(np.asarray(self._root.state)[None])
        second = self._correction
        return Diagnosis(
            reference=float(self._root.backed_up(self._planner.backup, reference)[0]),
            order_1=self._value.estimate,
            order_1_error=self._value.error,
            policy_interval=self.policy_interval,
            order_2=None if second is None else self._estimate()[0],
            order_2_error=None if second is None else self._estimate()[1],
            certified=self._planner.error_range is not None,
            horizon=self.horizon,
            truncation=self._truncation,
            pairs=None if second is None else self.pairs,
            budgets={str(part): budget for part, budget in self._budgets.items()},
            learning=tuple(self._lessons),
            _scale=math.sqrt(8.0 * self._problem.temperature * (1.0 - self._problem.discount)),
        )


def conditioned(reference: Reference, problem: Problem) -> Callable[[States], Floats]:
    """The reference without what cannot be: no action is worse than the best by more than any action value can be."""

    def q(states: States) -> Floats:
        values = reference.q(states)
        return np.asarray(np.maximum(values, values.max(axis=-1, keepdims=True) - problem.action_gap))

    return q


def chains_for(
    root: Root, backup: Backup, reference: Reference, problem: Problem
) -> tuple[Chains, tuple[float, float]]:
    """The engine for chains around a reference, and bounds of F(Q̂) − Q̂(a), of 0 too."""
    model, tail, q = root.model, problem.middle, conditioned(reference, problem)
    # The compiled engines are imported here, for they compile on first use.
    if isinstance(model, TabularModel) and root.engine != "batched":
        from smoothplan.engines.compiled_chains import TableChains

        states = np.arange(model.states)
        table = q(states)
        advantages = (backup.value(table, states)[:, None] - table)[~model.terminal]
        bounds = min(float(advantages.min(initial=0.0)), 0.0), max(float(advantages.max(initial=0.0)), 0.0)
        return TableChains(model, backup, table, tail), bounds
    gap = problem.action_gap
    if isinstance(model, JitModel) and isinstance(reference, GridReference) and root.engine != "batched":
        from smoothplan.engines.jitted_chains import JittedChains

        nodes = reference.grid.table
        table = np.maximum(nodes, nodes.max(axis=1, keepdims=True) - gap)
        gap = float(np.ptp(table, axis=1).max())  # interpolation does not widen a range
        bounds = min(problem.at_zero[0] - gap, 0.0), max(problem.at_zero[1] + gap, 0.0)
        return JittedChains(model, backup, reference.grid._replace(table=table), tail), bounds
    bounds = min(problem.at_zero[0] - gap, 0.0), max(problem.at_zero[1] + gap, 0.0)
    if root.engine == "compiled":
        raise ValueError(
            "engine 'compiled' needs a TabularModel, or a JitModel and a GridReference, got "
            f"{type(model).__name__} and {type(reference).__name__}: use 'batched'"
        )
    return BatchedChains(model, backup, q, tail), bounds


def _support(problem: Problem, advantages: tuple[float, float], horizon: int) -> tuple[float, float]:
    """Bounds of a chain of that many steps, and of a return, whose first step has no advantage."""
    steps, tail = _weight(problem.discount, horizon), problem.discount**horizon * problem.middle
    low, high = (steps * (end + advantage) for end, advantage in zip(problem.reward_range, advantages, strict=True))
    if problem.terminates:
        return min(low, 0.0) + min(tail, 0.0), max(high, 0.0) + max(tail, 0.0)
    return low + tail, high + tail


def _weight(discount: float, horizon: int) -> float:
    """Σ γ^t over the steps of a chain."""
    return (1.0 - discount**horizon) / (1.0 - discount)
