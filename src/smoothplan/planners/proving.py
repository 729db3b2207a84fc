"""Proving: what samples around a reference say of the optimal value, and when they say enough."""

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smoothplan.arguments import Floats
from smoothplan.planners.preparing import Preparation
from smoothplan.planners.sampling import Cut, Sampling, bias
from smoothplan.references import SharedReference
from smoothplan.running.run import Diagnosis, Found, Root, Status, within
from smoothplan.schedules.level import Problem

if TYPE_CHECKING:
    from smoothplan.planners.reference_cruiser import ReferenceCruiser


class Proof(NamedTuple):
    """What is proved at the root."""

    interval: tuple[float, float]  # of the optimal value: from below by the chains, from above by the error range
    q_intervals: Floats  # of the action values, [K, 2]
    certified: bool  # whether it rests on the error range


class Prover:
    """Turns samples into intervals.

    Args:
        planner: the configuration.
        root: where the samples are from.
        problem: of the planner at the root.
        cut: where chains end.
    """

    def __init__(self, planner: "ReferenceCruiser", root: Root, problem: Problem, cut: Cut) -> None:
        self._planner, self._root, self._problem, self._cut = planner, root, problem, cut

    def proof(self, samples: Sampling) -> Proof:
        """The intervals of the value and of the action values."""
        least, most = self._problem.values
        q_least, q_most = self._problem.action_values
        returns = np.array([mean.sequence.interval for mean in samples.actions])
        q_low = np.clip(returns[:, 0] - self._cut.optimal, q_least, q_most)
        low = max(least, samples.value.sequence.interval[0] - self._cut.optimal, self._backed_up(q_low))
        self._root.require_possible(self._planner.backup, (low, math.inf))
        if self._planner.error_range is not None:
            above = self._problem.discount * self._bias(1)[1]
            q_high = np.clip(returns[:, 1] + self._cut.optimal + above, q_least, q_most)
            inside = self._within_error_range(samples)
            both = max(low, inside[0]), min(most, inside[1], self._backed_up(q_high))
            if both[0] <= both[1] and (q_low <= q_high).all():
                return Proof(both, np.stack([q_low, q_high], axis=-1), True)
        return Proof((min(low, most), most), np.stack([q_low, np.full_like(q_low, q_most)], axis=-1), False)

    def _within_error_range(self, samples: Sampling) -> tuple[float, float]:
        """What the chains and the error range say of the optimal value."""
        low, high = samples.value.sequence.interval
        low, high = low - self._cut.optimal, high + self._cut.optimal
        first = low, high + self._bias(1)[1]
        if samples.correction is None:
            return first
        added, second = samples.correction.sequence.interval, self._bias(2)
        # The quadratic term is never negative.
        return max(first[0], low + max(added[0], 0.0) + second[0]), min(first[1], high + added[1] + second[1])

    def _backed_up(self, q: Floats) -> float:
        return float(self._root.backed_up(self._planner.backup, q[None])[0])

    def _bias(self, order: int) -> tuple[float, float]:
        """Bounds of what the order leaves out, for the error range that was given."""
        assert self._planner.error_range is not None
        return bias(order, self._planner.error_range, self._problem, self._cut.below + self._cut.above)

    def estimate(self, samples: Sampling) -> tuple[float, float]:
        """The value at the planner's order and its standard error."""
        value, correction = samples.value, samples.correction
        if correction is None:
            return value.estimate, value.error
        # A run must not stop because its corrections happen to vary less than those of the pilot.
        variance = samples.budgets["corrections"].variance if samples.budgets else 0.0
        error = math.sqrt(max(correction.variance, variance) / max(correction.count, 1))
        return value.estimate + correction.estimate, math.hypot(value.error, error)

    def reached(self, samples: Sampling) -> Status | None:
        """Whether what was asked for is reached, or all that can be."""
        (low, high), _, certified = self.proof(samples)
        epsilon, value, correction, cut = self._planner.epsilon, samples.value, samples.correction, self._cut
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
            noise, left = -NormalDist().inv_cdf(self._planner.delta / 2.0) * self.estimate(samples)[1], cut.optimal
        if not certified and within(noise + left, epsilon):
            return "converged"
        return "completed" if within(noise, epsilon) and left >= epsilon else None

    def found(self, samples: Sampling, preparation: Preparation) -> Found:
        """The record of the run."""
        interval, q_intervals, certified = self.proof(samples)
        q = np.array([mean.estimate for mean in samples.actions])
        # A bound by a shared reference on its own error fails with a probability of its own.
        reference, reference_delta = preparation.reference, 0.0
        if self._planner.error_range is not None and isinstance(reference, SharedReference):
            reference_delta = reference.delta
        return Found(
            value=self._value(samples, interval, certified),
            interval=interval,
            action=int(q.argmax()),  # one step better than the reference's policy
            q=q,
            q_intervals=q_intervals,
            calls=preparation.calls + samples.calls,
            samples=samples.samples,
            epsilon=self._planner.epsilon,
            delta=min(1.0, self._planner.delta + reference_delta),
            details=self._diagnosis(samples, preparation, certified, reference_delta),
        )

    def _value(self, samples: Sampling, interval: tuple[float, float], certified: bool) -> float:
        """The estimate, within the interval; within ε of both ends where that can be."""
        (low, high), value = interval, self.estimate(samples)[0]
        if certified:
            if samples.correction is None:
                value += self._bias(1)[1] / 2.0
            room = max(self._planner.epsilon, (high - low) / 2.0)
            value = min(max(value, high - room), low + room)
        return min(max(value, low), high)

    def _diagnosis(
        self, samples: Sampling, preparation: Preparation, certified: bool, reference_delta: float
    ) -> Diagnosis:
        value, correction, cut, problem = samples.value, samples.correction, self._cut, self._problem
        low, high = value.sequence.interval
        order_2, error = self.estimate(samples)
        # By what order 2 adds to order 1.
        least = math.sqrt(8.0 * problem.temperature * (1.0 - problem.discount) * max(order_2 - value.estimate, 0.0))
        return Diagnosis(
            reference=samples.claim,
            order_1=value.estimate,
            order_1_error=value.error,
            policy_interval=(low - cut.below, min(high + cut.above, problem.values[1])),
            order_2=None if correction is None else order_2,
            order_2_error=None if correction is None else error,
            certified=certified,
            horizon=cut.horizon,
            truncation=max(cut.below, cut.above),
            pairs=None if correction is None else samples.pairs,
            budgets={str(part): budget for part, budget in samples.budgets.items()},
            learning=tuple(preparation.lessons),
            least_error_range=None if correction is None else least,
            reference_delta=reference_delta,
            warnings=tuple(preparation.warnings),
        )
