"""ReferenceCruiser: long horizons, by chains around a reference, an estimate Q̂ of the action values at any state.

Order-1 chains follow the policy ∇F(Q̂) and evaluate exactly that policy, so that they bound the optimal value from below
whatever Q̂ is. Order 2 adds the quadratic term of the Taylor model, estimated from pairs of such chains at one random
step; what remains is cubic in the reference's error. There is no branching: the price of a chain grows only linearly
with the horizon, but its variance grows, too.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.chains.maker import ReferenceMaker, usual_calls
from smoothplan.chains.reference import Improvable, Reference, Savable
from smoothplan.chains.sampling import PILOT, Sampling, Setting, Truncation, ZeroReference, bias
from smoothplan.chains.shared import SharedReference
from smoothplan.run.progress import Display
from smoothplan.run.records import LearningPoint, ReferenceDetails, Root, Run, Snapshot, Status, within
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import Backup, required_backup, required_mixture
from smoothplan.theory.curvature import Problem

LONGEST_CHAIN = 10**8
"""Steps of a chain, at most: they take the fastest engine seconds."""

PREPARATION_SHARE = 0.5
"""The part of the limit on calls, and of that on time, for making and improving a reference, at most."""

IMPROVEMENTS = 5
"""Steps in which a reference is improved, each twice as long as the one before."""


@dataclass(frozen=True, eq=False)
class ReferenceCruiser:
    """Plans around a reference, along chains that do not branch.

    Proved for any reference whatever: the lower end of the interval bounds the optimal regularised value from below,
    and the policy's interval in `result.details` contains the value of the policy ∇F(Q̂), regulariser included. With
    `error_range` the interval bounds the optimal value from both sides; without it the value at order 2 is an estimate.

    A run has converged if the interval is within ε of the value, with `error_range`; without it, if the policy's
    interval is (order 1), or the noise of the estimate at the level δ (order 2). If a short horizon or a large error
    range puts ε out of reach, the run is completed when the noise alone is within ε.

    Args:
        backup: F, smooth.
        reference: Q̂: an object with a method q(states [n, ...]) → [n, K]; see `smoothplan.references`. By default it is
            made from the simulator, and the calls for it count. Actions so far below the best that they are together
            less likely than 1e-12 are taken to be just so far below.
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
        required_backup(self.backup)
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
        if self.order == 2:
            required_mixture(self.backup, "ReferenceCruiser of order 2", "use order=1")
        if self.horizon is not None:
            object.__setattr__(self, "horizon", arguments.whole("horizon", self.horizon, most=LONGEST_CHAIN))
        if self.pairs is not None:
            object.__setattr__(self, "pairs", arguments.whole("pairs", self.pairs, least=2, most=10**6))

    def start(self, root: Root) -> Run:
        """A run that has not made any simulator call yet."""
        problem = Problem.of(root.model, self.backup)
        problem.resolvable(self.epsilon)
        return ReferenceRun(self, self.setting(root, problem))

    def setting(self, root: Root, problem: Problem) -> Setting:
        """The configuration at a root, where the default horizon is known."""
        if self.horizon is not None:
            truncation = Truncation.at(problem, self.horizon)
        else:
            truncation = Truncation.for_accuracy(problem, self.epsilon, self.order, self.error_range)
        if truncation.horizon > LONGEST_CHAIN:
            raise ValueError(
                f"discount must be smaller where no horizon is given, got {problem.discount!r}: for "
                f"epsilon={self.epsilon:g} chains would have {truncation.horizon:.2g} steps, more than "
                f"{LONGEST_CHAIN:,}"
            )
        return Setting(
            root=root,
            backup=self.backup,
            order=self.order,
            epsilon=self.epsilon,
            delta=self.delta,
            pairs=self.pairs,
            error_range=self.error_range,
            problem=problem,
            truncation=truncation,
        )


class ReferenceRun:
    """A run around a reference: it is made or improved first, then samples are drawn around it."""

    def __init__(self, planner: ReferenceCruiser, setting: Setting) -> None:
        self._setting, self._root, self._improves = setting, setting.root, planner.improve
        self._prover = Prover(setting)
        self.maker = ReferenceMaker(self._root.model, planner.backup, planner.reference, self._root.seed)
        self._makes = planner.reference is None
        self._learning: list[LearningPoint] = []
        self._learning_calls = 0
        self._warnings: list[str] = []
        # References draw from another role, because a chain must not depend on the samples that made its reference.
        self.sampling = self._sampling(first=1)

    def _sampling(self, first: int) -> Sampling:
        """Samples around the reference as it is now."""
        return Sampling(self._setting, self.maker.reference or ZeroReference(self._root.model.actions), first)

    @property
    def _spent(self) -> int:
        """Simulator calls for the reference, and to see what its policy is worth."""
        return self.maker.calls + self._learning_calls

    def run(self, workers: Workers, display: Display) -> Status:
        """Samples until the interval or the standard error is within ε, or a limit is reached."""
        if self._makes:
            self._make(workers)
            self._start_again(display)
        if self._improves and isinstance(self.maker.reference, Improvable):
            self._improve(workers, display)
        workers.stop_signal.check()
        spent = self._spent
        while chunks := self.sampling.next(spent):
            for chunk, outcome in workers.in_order(self.sampling.work, chunks):
                self.sampling.add(chunk, outcome)
                display.update(spent + self.sampling.calls, self._prover.proof(self.sampling).interval)
            if not self.sampling.budgets:
                self.sampling.allocate(spent)
            elif (status := self._prover.status(self.sampling)) is not None:
                return status
        return "max_calls"

    def result(self) -> Snapshot:
        """What the samples prove so far."""
        reference, reference_delta = self.maker.reference, 0.0
        if self._setting.error_range is not None and isinstance(reference, SharedReference):
            reference_delta = reference.delta  # its bound on its own error fails with a probability of its own
        return self._prover.snapshot(
            self.sampling,
            spent=self._spent,
            reference_delta=reference_delta,
            learning=tuple(self._learning),
            warnings=tuple(self._warnings),
        )

    def _start_again(self, display: Display) -> None:
        """Starts to sample around a reference that has changed."""
        self.sampling = self._sampling(first=self.sampling.next_chunk)
        display.update(self._spent, self._prover.proof(self.sampling).interval)

    # The reference

    def _calls_left(self) -> int | None:
        """Simulator calls that the preparation may still make; None for no limit."""
        limit = self._root.max_calls
        return None if limit is None else int(PREPARATION_SHARE * limit) - self._spent

    def _until(self) -> float | None:
        """The time at which the preparation ends; None for no limit."""
        limit = self._root.max_seconds
        return None if limit is None else self._root.begun + PREPARATION_SHARE * limit

    def _make(self, workers: Workers) -> None:
        """Makes the reference. If there is nothing to make it from, there is a warning."""
        root, left = self._root, self._calls_left()
        calls = usual_calls(root.model) if left is None else min(usual_calls(root.model), left)
        if calls < 1:
            self._warn(f"max_calls={root.max_calls} leaves no calls for it")
            return
        if not workers.recall("reference", partial(self.maker.restore, root.state)):
            self.maker.make(root.state, calls=calls, until=self._until())
            if self.maker.reference is not None:
                workers.keep("reference", self.maker.saved)
        if self.maker.calls == 0:
            self._warn(f"max_seconds={root.max_seconds} leaves no time for it")
        elif getattr(self.maker.reference, "is_blank", False):
            self._warn(f"nothing can be learnt from {self.maker.calls:,} calls")

    def _warn(self, reason: str) -> None:
        self._warnings.append(f"no reference was made, so that this is about a uniformly random policy: {reason}")

    def _improve(self, workers: Workers, display: Display) -> None:
        """Improves the reference step by step. After each, a few chains show what its policy is worth."""
        most, left, unspent = usual_calls(self._root.model), self._calls_left(), 0
        preview = None
        if left is not None:
            preview = int(0.2 * left / IMPROVEMENTS)  # a fifth of the calls is for these chains
            most = min(most, left - IMPROVEMENTS * preview)
        for step in range(IMPROVEMENTS):
            done, skipped = f"reference, improved {step}", f"reference, not improved {step}"
            # A run that is resumed goes the way that it went before, whatever the time is now.
            if workers.has(skipped) or (self._root.late(PREPARATION_SHARE) and not workers.has(done)):
                workers.keep(skipped, dict)
                return
            unspent += most * 2**step // (2**IMPROVEMENTS - 1)
            if unspent > 0 and (made := self._improve_once(unspent, workers, done)) > 0:
                unspent = max(0, unspent - made)
                self._start_again(display)
                self._preview(preview, workers)

    def _improve_once(self, calls: int, workers: Workers, name: str) -> int:
        """Improves the reference by a number of calls, at most; the calls that it made."""
        before = self.maker.calls
        restore = partial(self.maker.restore, self._root.state)
        if not (isinstance(self.maker.reference, Savable) and workers.recall(name, restore)):
            self.maker.improve(calls=calls, until=self._until())
            workers.keep(name, self.maker.saved)
        return self.maker.calls - before

    def _preview(self, calls: int | None, workers: Workers) -> None:
        """Samples a few chains to see what the policy of the reference is worth now.

        They enter no interval, so that no choice is made between the intervals of several references.
        """
        count = PILOT if calls is None else min(PILOT, calls // self.sampling.horizon)
        if count < 2:
            return
        chunks, mean = self.sampling.preview(count)
        for _, outcome in workers.in_order(self.sampling.work, chunks):
            self._learning_calls += outcome.calls
            mean.sequence.update(*outcome.sums.moments)
        self._learning.append(LearningPoint(self._spent, mean.estimate, mean.error))


class Proof(NamedTuple):
    """What is proved at the root."""

    interval: tuple[float, float]  # of the optimal value: from below by the chains, from above by the error range
    q_intervals: Floats  # of the action values, [K, 2]
    certified: bool  # whether it rests on the error range


class Prover:
    """Turns samples into intervals.

    Args:
        setting: of the run.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting, self._root = setting, setting.root
        self._problem, self._truncation = setting.problem, setting.truncation

    def proof(self, samples: Sampling) -> Proof:
        """The intervals of the value and of the action values."""
        least, most = self._problem.values
        q_least, q_most = self._problem.action_values
        returns = np.array([mean.sequence.interval for mean in samples.actions])
        q_low = np.clip(returns[:, 0] - self._truncation.optimal, q_least, q_most)
        low = max(least, samples.value.sequence.interval[0] - self._truncation.optimal, self._backed_up(q_low))
        self._root.require_possible(self._setting.backup, (low, math.inf))
        if self._setting.error_range is not None:
            above = self._problem.discount * self._bias(1)[1]
            q_high = np.clip(returns[:, 1] + self._truncation.optimal + above, q_least, q_most)
            inside = self._within_error_range(samples)
            both = max(low, inside[0]), min(most, inside[1], self._backed_up(q_high))
            if both[0] <= both[1] and (q_low <= q_high).all():
                return Proof(both, np.stack([q_low, q_high], axis=-1), True)
        return Proof((min(low, most), most), np.stack([q_low, np.full_like(q_low, q_most)], axis=-1), False)

    def _within_error_range(self, samples: Sampling) -> tuple[float, float]:
        """What the chains and the error range say of the optimal value."""
        low, high = samples.value.sequence.interval
        low, high = low - self._truncation.optimal, high + self._truncation.optimal
        first = low, high + self._bias(1)[1]
        if samples.correction is None:
            return first
        added, second = samples.correction.sequence.interval, self._bias(2)
        # The quadratic term is never negative.
        return max(first[0], low + max(added[0], 0.0) + second[0]), min(first[1], high + added[1] + second[1])

    def _backed_up(self, q: Floats) -> float:
        return float(self._root.backed_up(self._setting.backup, q[None])[0])

    def _bias(self, order: int) -> tuple[float, float]:
        """Bounds of what the order leaves out, for the error range that was given."""
        assert self._setting.error_range is not None
        return bias(order, self._setting.error_range, self._problem, self._truncation.below + self._truncation.above)

    def estimate(self, samples: Sampling) -> tuple[float, float]:
        """The value at the planner's order and its standard error."""
        value, correction = samples.value, samples.correction
        if correction is None:
            return value.estimate, value.error
        # A run must not stop because its corrections happen to vary less than those of the pilot.
        variance = samples.budgets["corrections"].variance if samples.budgets else 0.0
        error = math.sqrt(max(correction.variance, variance) / max(correction.count, 1))
        return value.estimate + correction.estimate, math.hypot(value.error, error)

    def status(self, samples: Sampling) -> Status | None:
        """Whether the accuracy is reached, or all that can be; None if neither."""
        (low, high), _, certified = self.proof(samples)
        epsilon, value, correction, truncation = (
            self._setting.epsilon,
            samples.value,
            samples.correction,
            self._truncation,
        )
        if certified:
            if within((high - low) / 2.0, epsilon):
                return "converged"
            noise, left = value.radius, truncation.optimal + self._bias(1)[1] / 2.0
            if correction is not None:
                second = truncation.optimal + (self._bias(2)[1] - self._bias(2)[0]) / 2.0
                if second < left:
                    noise, left = noise + correction.radius, second
        elif correction is None:
            noise, left = value.radius, (truncation.below + truncation.above) / 2.0
        else:
            if min(value.count, correction.count) < 256:  # too few for their variances to be trusted
                return None
            noise, left = (
                -NormalDist().inv_cdf(self._setting.delta / 2.0) * self.estimate(samples)[1],
                truncation.optimal,
            )
        if not certified and within(noise + left, epsilon):
            return "converged"
        return "completed" if within(noise, epsilon) and left >= epsilon else None

    def snapshot(
        self,
        samples: Sampling,
        *,
        spent: int,
        reference_delta: float,
        learning: tuple[LearningPoint, ...],
        warnings: tuple[str, ...],
    ) -> Snapshot:
        """The record of the run.

        Args:
            samples: around the reference.
            spent: simulator calls besides those.
            reference_delta: the probability that the error range fails, if the reference bounds it itself.
            learning: how the reference was improved.
            warnings: about the reference.
        """
        interval, q_intervals, certified = self.proof(samples)
        q = np.array([mean.estimate for mean in samples.actions])
        value, correction = samples.value, samples.correction
        truncation, problem = self._truncation, self._problem
        low, high = value.sequence.interval
        order_2, error = self.estimate(samples)
        # By what order 2 adds to order 1.
        least = math.sqrt(8.0 * problem.temperature * (1.0 - problem.discount) * max(order_2 - value.estimate, 0.0))
        details = ReferenceDetails(
            reference=samples.claim,
            order_1=value.estimate,
            order_1_error=value.error,
            policy_interval=(low - truncation.below, min(high + truncation.above, problem.values[1])),
            order_2=None if correction is None else order_2,
            order_2_error=None if correction is None else error,
            certified=certified,
            horizon=truncation.horizon,
            truncation=max(truncation.below, truncation.above),
            pairs=None if correction is None else samples.pairs,
            budgets={str(part): budget for part, budget in samples.budgets.items()},
            learning=learning,
            least_error_range=None if correction is None else least,
            reference_delta=reference_delta,
            warnings=warnings,
        )
        return Snapshot(
            value=self._value(samples, interval, certified),
            interval=interval,
            action=int(q.argmax()),  # one step better than the reference's policy
            q=q,
            q_intervals=q_intervals,
            calls=spent + samples.calls,
            samples=samples.samples,
            epsilon=self._setting.epsilon,
            delta=min(1.0, self._setting.delta + reference_delta),
            details=details,
        )

    def _value(self, samples: Sampling, interval: tuple[float, float], certified: bool) -> float:
        """The estimate, within the interval; within ε of both ends where that can be."""
        (low, high), value = interval, self.estimate(samples)[0]
        if certified:
            if samples.correction is None:
                value += self._bias(1)[1] / 2.0
            room = max(self._setting.epsilon, (high - low) / 2.0)
            value = min(max(value, high - room), low + room)
        return min(max(value, low), high)
