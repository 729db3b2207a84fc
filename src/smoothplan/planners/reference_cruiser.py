"""ReferenceCruiser: long horizons, by chains around a reference, an estimate Q̂ of the action values at any state.

Order-1 chains follow the policy ∇F(Q̂) and evaluate exactly that policy, so that they bound the optimal value from below
whatever Q̂ is. Order 2 adds the quadratic term of the Taylor model, estimated from pairs of such chains at one random
step; what remains is cubic in the reference's error. There is no branching, so the discount may be 0.99 and beyond.
"""

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np

from smoothplan import arguments, curvature
from smoothplan.arguments import Floats
from smoothplan.backups import Backup
from smoothplan.planners.preparing import Preparation
from smoothplan.planners.sampling import Cut, Sampling, bias
from smoothplan.references import Improvable, Reference, SharedReference
from smoothplan.running.run import Diagnosis, Display, Found, Root, Run, Status, within
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Problem

LONGEST_CHAIN, MOST_PAIRS = 10**8, 10**6
"""Steps of a chain, which take the fastest engine seconds; and pairs of chains in a correction."""


@dataclass(frozen=True, eq=False)
class ReferenceCruiser:
    """Plans around a reference, along chains that do not branch.

    What is proved: the lower end of the interval bounds the optimal regularised value from below, for any reference
    whatever, and the policy's interval in `result.details` contains the value of the policy ∇F(Q̂). With `error_range`
    the interval bounds the optimal value from both sides. Without it, the value at order 2 is an estimate.

    A run has converged where the interval is within ε of the value, if `error_range` is given; else, where the policy's
    interval is (order 1), or where the noise of the estimate is, at the level δ (order 2). Where a short horizon or a
    large error range puts ε out of reach, it is completed when the noise alone is within ε.

    Args:
        backup: F, smooth.
        reference: Q̂: an object with a method q(states [n, ...]) → [n, K]; see `smoothplan.references`. By default it is
            made from the simulator, and the calls for it count. An action that is further below the best than any
            action can be, or than matters to a probability of 1e-12, is taken to be just so far below.
        order: 1 or 2.
        epsilon: the accuracy wanted.
        delta: the probability that an interval fails.
        horizon: steps of a chain; by default what lies beyond matters little. The rest is valued at the middle of the
            value interval, and what that may be wrong is booked.
        pairs: pairs of chains in a correction; chosen from a pilot by default.
        error_range: a bound on range(Q̂_s − Q_s) = max_a − min_a at every state, where one is known; of the improved
            reference, if it is improved. Where chains refute it, the result is as if it had not been given, and
            `details.certified` is False. A range that a `SharedReference` bounds holds with a probability of its own,
            1 − δ_ref; the result's delta is then δ + δ_ref.
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
        object.__setattr__(self, "epsilon", arguments.accuracy(self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        if self.backup.temperature == 0.0:
            raise ValueError(f"ReferenceCruiser needs a smooth backup, got {self.backup!r}")
        if self.reference is not None and not callable(getattr(self.reference, "q", None)):
            raise TypeError(f"reference must have a method q(states), got {self.reference!r}: see CriticReference")
        if arguments.flag("improve", self.improve) and not isinstance(self.reference, Improvable | None):
            raise TypeError(f"improve=True needs a reference with a method improve(calls), got {self.reference!r}")
        if self.error_range is not None:
            object.__setattr__(self, "error_range", arguments.bounded("error_range", self.error_range))
        # People write 1e3 for a count.
        object.__setattr__(self, "order", arguments.whole("order", self.order, least=1, most=2))
        if self.horizon is not None:
            object.__setattr__(self, "horizon", arguments.whole("horizon", self.horizon, most=LONGEST_CHAIN))
        if self.pairs is not None:
            object.__setattr__(self, "pairs", arguments.whole("pairs", self.pairs, least=2, most=MOST_PAIRS))

    def begin(self, root: Root) -> Run:
        """A run that has not made any simulator call yet."""
        problem = Problem.of(root.model, self.backup)
        curvature.resolvable(self.epsilon, problem.values)
        cut = Cut.of(self, problem)
        if cut.horizon > LONGEST_CHAIN:
            raise ValueError(
                f"discount must be smaller where no horizon is given, got {problem.discount!r}: for "
                f"epsilon={self.epsilon:g} chains would have {cut.horizon:.2g} steps, more than {LONGEST_CHAIN:,}"
            )
        return ReferenceRun(self, root, problem, cut)


class Proof(NamedTuple):
    """What is proved at the root."""

    interval: tuple[float, float]  # of the optimal value: from below by the chains, from above by the error range
    q_intervals: Floats  # of the action values, [K, 2]
    certified: bool  # whether it rests on the error range


class ReferenceRun:
    """A run around a reference: it is prepared, samples are drawn around it, and they prove something."""

    def __init__(self, planner: ReferenceCruiser, root: Root, problem: Problem, cut: Cut) -> None:
        self._planner, self._root, self._problem, self._cut = planner, root, problem, cut
        self.preparation = Preparation(root, planner.backup, planner.reference, planner.improve)
        # Chunk 0 is for references: what a chain draws must not depend on what made its reference.
        self.sampling = Sampling(planner, root, problem, cut, self.preparation.reference, first=1)

    def go(self, workers: Workers, display: Display) -> Status:
        """Samples until the interval or the standard error is within ε, or a limit is reached."""

        def around(reference: Reference) -> Sampling:
            """Begins to sample around another reference, or around one that has changed."""
            first = self.sampling.next_chunk
            self.sampling = Sampling(self._planner, self._root, self._problem, self._cut, reference, first)
            display.update(self.preparation.calls, self._proof().interval)
            return self.sampling

        self.preparation.make(workers)
        if self._planner.reference is None:
            around(self.preparation.reference)
        self.preparation.improve(workers, around)
        workers.brake.check()
        spent = self.preparation.calls
        while chunks := self.sampling.next(spent):
            for chunk, outcome in workers.in_order(self.sampling.work, chunks):
                self.sampling.book(chunk, outcome)
                display.update(spent + self.sampling.calls, self._proof().interval)
            if not self.sampling.budgets:
                self.sampling.split(spent)
            elif (status := self._reached()) is not None:
                return status
        return "max_calls"

    def found(self) -> Found:
        """What the samples prove so far."""
        interval, q_intervals, certified = self._proof()
        q = np.array([mean.estimate for mean in self.sampling.actions])
        # A bound by a shared reference on its own error fails with a probability of its own.
        reference, reference_delta = self.preparation.reference, 0.0
        if self._planner.error_range is not None and isinstance(reference, SharedReference):
            reference_delta = reference.delta
        return Found(
            value=self._value(interval, certified),
            interval=interval,
            action=int(q.argmax()),  # one step better than the reference's policy
            q=q,
            q_intervals=q_intervals,
            calls=self.preparation.calls + self.sampling.calls,
            samples=self.sampling.samples,
            epsilon=self._planner.epsilon,
            delta=min(1.0, self._planner.delta + reference_delta),
            details=self._diagnosis(certified, reference_delta),
        )

    def _proof(self) -> Proof:
        """The intervals of the value and of the action values."""
        least, most = self._problem.values
        q_least, q_most = self._problem.action_values
        returns = np.array([mean.sequence.interval for mean in self.sampling.actions])
        q_low = np.clip(returns[:, 0] - self._cut.optimal, q_least, q_most)
        low = max(least, self.sampling.value.sequence.interval[0] - self._cut.optimal, self._backed_up(q_low))
        if self._planner.error_range is not None:
            above = self._problem.discount * self._bias(1)[1]
            q_high = np.clip(returns[:, 1] + self._cut.optimal + above, q_least, q_most)
            inside = self._within_error_range()
            both = max(low, inside[0]), min(most, inside[1], self._backed_up(q_high))
            if both[0] <= both[1] and (q_low <= q_high).all():
                return Proof(both, np.stack([q_low, q_high], axis=-1), True)
        return Proof((min(low, most), most), np.stack([q_low, np.full_like(q_low, q_most)], axis=-1), False)

    def _within_error_range(self) -> tuple[float, float]:
        """What the chains and the error range say of the optimal value."""
        low, high = self.sampling.value.sequence.interval
        low, high = low - self._cut.optimal, high + self._cut.optimal
        first = low, high + self._bias(1)[1]
        if self.sampling.correction is None:
            return first
        added, second = self.sampling.correction.sequence.interval, self._bias(2)
        # The quadratic term is never negative.
        return max(first[0], low + max(added[0], 0.0) + second[0]), min(first[1], high + added[1] + second[1])

    def _backed_up(self, q: Floats) -> float:
        return float(self._root.backed_up(self._planner.backup, q[None])[0])

    def _bias(self, order: int) -> tuple[float, float]:
        """Bounds of what the order leaves out, for the error range that was given."""
        assert self._planner.error_range is not None
        return bias(order, self._planner.error_range, self._problem, self._cut.below + self._cut.above)

    def _estimate(self) -> tuple[float, float]:
        """The value at the planner's order and its standard error."""
        value, correction = self.sampling.value, self.sampling.correction
        if correction is None:
            return value.estimate, value.error
        # A run must not stop because its corrections happen to vary less than those of the pilot.
        variance = self.sampling.budgets["corrections"].variance if self.sampling.budgets else 0.0
        error = math.sqrt(max(correction.variance, variance) / max(correction.count, 1))
        return value.estimate + correction.estimate, math.hypot(value.error, error)

    def _reached(self) -> Status | None:
        """Whether what was asked for is reached, or all that can be."""
        (low, high), _, certified = self._proof()
        epsilon, value, correction, cut = (
            self._planner.epsilon,
            self.sampling.value,
            self.sampling.correction,
            self._cut,
        )
        if certified:
            if within((high - low) / 2.0, epsilon):
                return "converged"
            noise, left = value.radius, cut.optimal + self._bias(1)[1] / 2.0
            if correction is not None:
                second = cut.optimal + (self._bias(2)[1] - self._bias(2)[0]) / 2.0
                if second < left:
                    noise, left = noise + correction.radius, second
        elif correction is None:
            noise, left = value.radius, (cut.below + cut.above) / 2.0
        else:
            if min(value.count, correction.count) < 256:  # too few for their variances to be trusted
                return None
            noise, left = -NormalDist().inv_cdf(self._planner.delta / 2.0) * self._estimate()[1], cut.optimal
        if not certified and within(noise + left, epsilon):
            return "converged"
        return "completed" if within(noise, epsilon) and left >= epsilon else None

    def _value(self, interval: tuple[float, float], certified: bool) -> float:
        """The estimate, within the interval; within ε of both ends where that can be."""
        (low, high), value = interval, self._estimate()[0]
        if certified:
            if self.sampling.correction is None:
                value += self._bias(1)[1] / 2.0
            room = max(self._planner.epsilon, (high - low) / 2.0)
            value = min(max(value, high - room), low + room)
        return min(max(value, low), high)

    def _diagnosis(self, certified: bool, reference_delta: float) -> Diagnosis:
        samples, cut, problem = self.sampling, self._cut, self._problem
        value, corrected = samples.value, samples.correction is not None
        low, high = value.sequence.interval
        order_2, error = self._estimate()
        # By what order 2 adds to order 1.
        least = math.sqrt(8.0 * problem.temperature * (1.0 - problem.discount) * max(order_2 - value.estimate, 0.0))
        return Diagnosis(
            reference=samples.claim,
            order_1=value.estimate,
            order_1_error=value.error,
            policy_interval=(low - cut.below, min(high + cut.above, problem.values[1])),
            order_2=order_2 if corrected else None,
            order_2_error=error if corrected else None,
            certified=certified,
            horizon=cut.horizon,
            truncation=max(cut.below, cut.above),
            pairs=samples.pairs if corrected else None,
            budgets={str(part): budget for part, budget in samples.budgets.items()},
            learning=tuple(self.preparation.lessons),
            least_error_range=least if corrected else None,
            reference_delta=reference_delta,
            warnings=tuple(self.preparation.warnings),
        )
