"""ReferenceCruiser: long horizons, by chains around a reference, an estimate Q̂ of the action values at any state.

Order-1 chains follow the policy ∇F(Q̂) and evaluate exactly that policy, so they bound the optimal value from below for
any Q̂. Order 2 adds the quadratic term of the Taylor model, estimated from pairs of such chains at one random step; the
remaining bias is cubic in the reference's error. Chains do not branch: their price grows only linearly with the
horizon, but their variance grows too.
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
from smoothplan.chains.sampling import SAMPLING, Sampling, Setting, Truncation, bias
from smoothplan.chains.shared import SharedReference
from smoothplan.run.progress import Display
from smoothplan.run.records import LearningPoint, ReferenceDetails, Root, Run, Snapshot, Status, within
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import Backup, required_backup, required_mixture
from smoothplan.theory.curvature import Problem, require_resolvable

LONGEST_CHAIN = 10**8
"""Steps of a chain, at most: they take the fastest engine seconds."""


@dataclass(frozen=True, eq=False)
class ReferenceCruiser:
    """Plans around a reference, along chains that do not branch.

    Proved for any reference: the lower end of the interval bounds the optimal regularised value from below, and
    `result.details.policy_interval` contains the value of the policy ∇F(Q̂), regulariser included. With `error_range`
    the interval bounds the optimal value from both sides; without it the value at order 2 is an estimate.

    With `error_range`, a run has converged if the interval is within ε of the value. Without it, the policy's interval
    (order 1) or the noise of the estimate at the level δ (order 2) must be within ε. If a short horizon or a large
    error range puts ε out of reach, the run is completed when the noise alone is within ε.

    Args:
        backup: F, smooth.
        reference: Q̂: an object with a method q(states [n, ...]) → [n, K]; see `smoothplan.references`. By default it is
            made from the simulator, and the calls for it count. Actions that are together less likely than 1e-12 are
            raised to that likelihood. Impossible distances between actions are cut only if the reference is made.
        order: 1 or 2.
        epsilon: the accuracy wanted.
        delta: the probability that an interval fails.
        horizon: steps of a chain; by default so many that the rest matters little. The rest is valued at the middle of
            the value interval, and the intervals include the largest possible error of that.
        pairs: pairs of chains in a correction; chosen from a pilot by default.
        error_range: a bound on range(Q̂_s − Q_s) = max_a − min_a at every state, if one is known; of the improved
            reference, if it is improved. Actions of Q̂ that it rules out are raised, so a false bound may change the
            policy. If chains refute it, the result is as if it had not been given, and `details.certified` is False. A
            range that a `SharedReference` bounds holds with a probability of its own, 1 − δ_ref; the result's delta is
            then δ + δ_ref.
        improve: whether a part of the calls improves the reference first, which changes it.
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
        change = partial(object.__setattr__, self)  # people write 1e3 for a count
        change("epsilon", arguments.accuracy(self.epsilon))
        change("delta", arguments.failure(self.delta))
        if self.backup.temperature == 0.0:
            raise ValueError(f"ReferenceCruiser needs a smooth backup, got {self.backup!r}")
        if self.reference is not None and not callable(getattr(self.reference, "q", None)):
            raise TypeError(f"reference must have a method q(states), got {self.reference!r}: see CriticReference")
        if arguments.flag("improve", self.improve) and not isinstance(self.reference, Improvable | None):
            raise TypeError(f"improve=True needs a reference with a method improve(calls), got {self.reference!r}")
        if self.error_range is not None:
            change("error_range", arguments.bounded("error_range", self.error_range))
        change("order", arguments.whole("order", self.order, least=1, most=2))
        if self.order == 2:
            required_mixture(self.backup, "ReferenceCruiser of order 2", "use order=1")
        if self.horizon is not None:
            change("horizon", arguments.whole("horizon", self.horizon, most=LONGEST_CHAIN))
        if self.pairs is not None:
            change("pairs", arguments.whole("pairs", self.pairs, least=2, most=10**6))

    def start(self, root: Root) -> Run:
        """A run that has not made any simulator call yet."""
        problem = Problem.of(root.model, self.backup)
        require_resolvable(self.epsilon, problem.values, problem.reward_range)
        return ReferenceRun(self, self.setting(root, problem))

    def setting(self, root: Root, problem: Problem) -> Setting:
        """The configuration at a root, with its horizon."""
        if self.horizon is not None:
            truncation = Truncation.at(problem, self.horizon)
        else:
            truncation = Truncation.for_accuracy(problem, self.epsilon, self.order, self.error_range)
        if truncation.horizon > LONGEST_CHAIN:
            raise ValueError(
                f"discount must be smaller if no horizon is given, got {problem.discount!r}: for epsilon="
                f"{self.epsilon:g} chains would have {truncation.horizon:.2g} steps, more than {LONGEST_CHAIN:,}"
            )
        return Setting(
            root=root,
            backup=self.backup,
            order=self.order,
            epsilon=self.epsilon,
            delta=self.delta,
            pairs=self.pairs,
            error_range=self.error_range,
            made=self.reference is None,
            problem=problem,
            truncation=truncation,
        )


class ReferenceRun:
    """A run around a reference: it is made or improved first, then samples are drawn around it."""

    def __init__(self, planner: ReferenceCruiser, setting: Setting) -> None:
        self._setting, self._root, self._improves = setting, setting.root, planner.improve
        self.maker = ReferenceMaker(self._root.model, planner.backup, planner.reference, self._root.seed)
        self._makes = planner.reference is None
        limit, self._until = self._root.max_seconds, None  # the time at which the preparation ends, if any
        if limit is not None:
            self._until = self._root.begun + SAMPLING.preparation * limit
        self._learning: list[LearningPoint] = []
        self._learning_calls, self._warnings = 0, list[str]()
        # References draw from another role, because a chain must not depend on the samples that made its reference.
        self.sampling = Sampling(setting, self.maker.reference, first=1)

    @property
    def _spent(self) -> int:
        """Simulator calls for the reference, previews of its policy included."""
        return self.maker.calls + self._learning_calls

    def run(self, workers: Workers, display: Display) -> Status:
        """Samples until the interval or the standard error is within ε, or a limit is reached."""
        if self._makes:
            self._make(workers)
            self._start_again(display)
        if self._improves and isinstance(self.maker.reference, Improvable):
            self._improve(workers, display)
        workers.stop_signal.check()
        spent, interval = self._spent, proof(self.sampling).interval
        while chunks := self.sampling.next(spent):
            for chunk, outcome in workers.in_order(self.sampling.work, chunks):
                self.sampling.add(chunk, outcome)
                display.update(spent + self.sampling.calls, interval)
            if not self.sampling.budgets:
                self.sampling.allocate(spent)
                continue
            proved = proof(self.sampling)
            interval = proved.interval
            if (status := _status(self.sampling, proved)) is not None:
                return status
        return "max_calls"

    def result(self) -> Snapshot:
        """The intervals and estimates so far."""
        reference, reference_delta = self.maker.reference, 0.0
        if self._setting.error_range is not None and isinstance(reference, SharedReference):
            reference_delta = reference.delta  # its bound on its own error fails with a probability of its own
        samples, setting = self.sampling, self._setting
        interval, q_intervals, certified = proof(samples)
        value, correction, truncation, problem = samples.value, samples.correction, setting.truncation, setting.problem
        q = np.array([mean.estimate for mean in samples.actions])
        low, high = value.sequence.interval
        order_2, error = _estimate(samples)
        estimate, (lower, upper) = order_2, interval
        if certified:  # within ε of both ends if that is possible
            if correction is None:
                estimate += _bias(setting, 1)[1] / 2.0
            room = max(setting.epsilon, (upper - lower) / 2.0)
            estimate = min(max(estimate, upper - room), lower + room)
        # By the difference of the two orders.
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
            budgets=dict(samples.budgets),
            least_error_range=None if correction is None else least,
            learning=tuple(self._learning),
            reference_delta=reference_delta,
            warnings=tuple(self._warnings),
        )
        return Snapshot(
            value=min(max(estimate, lower), upper),
            interval=interval,
            action=int(q.argmax()),  # one step better than the reference's policy
            q=q,
            q_intervals=q_intervals,
            calls=self._spent + samples.calls,
            samples=samples.samples,
            epsilon=setting.epsilon,
            delta=min(1.0, setting.delta + reference_delta),
            details=details,
        )

    def _start_again(self, display: Display) -> None:
        """Starts to sample around a reference that has changed."""
        self.sampling = Sampling(self._setting, self.maker.reference, first=self.sampling.next_chunk)
        display.update(self._spent, proof(self.sampling).interval)

    def _calls_left(self) -> int | None:
        """Simulator calls that the preparation may still make; None for no limit."""
        limit = self._root.max_calls
        return None if limit is None else int(SAMPLING.preparation * limit) - self._spent

    def _make(self, workers: Workers) -> None:
        """Makes the reference, or warns if there is nothing to make it from."""
        root, maker, left = self._root, self.maker, self._calls_left()
        calls = usual_calls(root.model) if left is None else min(usual_calls(root.model), left)
        missing = f"max_calls={root.max_calls} leaves no calls for it" if calls < 1 else ""
        if not missing:
            if not workers.recall("reference", partial(maker.restore, root.state)):
                maker.make(root.state, calls=calls, until=self._until)
                if maker.reference is not None:
                    workers.keep("reference", maker.saved)
            if maker.calls == 0:
                missing = f"max_seconds={root.max_seconds} leaves no time for it"
            elif getattr(maker.reference, "is_blank", False):
                missing = f"nothing can be learnt from {maker.calls:,} calls"
        if missing:
            self._warnings.append(f"no reference was made, so this is about a uniformly random policy: {missing}")

    def _improve(self, workers: Workers, display: Display) -> None:
        """Improves the reference step by step. After each, a few chains preview the value of its policy."""
        most, left, unspent = usual_calls(self._root.model), self._calls_left(), 0
        preview = None
        if left is not None:
            preview = int(0.2 * left / SAMPLING.improvements)  # a fifth of the calls is for these chains
            most = min(most, left - SAMPLING.improvements * preview)
        for step in range(SAMPLING.improvements):
            done, skipped = f"reference, improved {step}", f"reference, not improved {step}"
            # A resumed run repeats the decisions of the first one, whatever the time is now.
            if workers.has(skipped) or (self._root.late(SAMPLING.preparation) and not workers.has(done)):
                workers.keep(skipped, dict)
                return
            unspent += most * 2**step // (2**SAMPLING.improvements - 1)
            if unspent < 1:
                continue
            before = self.maker.calls
            restore = partial(self.maker.restore, self._root.state)
            if not (isinstance(self.maker.reference, Savable) and workers.recall(done, restore)):
                self.maker.improve(calls=unspent, until=self._until)
                workers.keep(done, self.maker.saved)
            if (made := self.maker.calls - before) > 0:
                unspent = max(0, unspent - made)
                self._start_again(display)
                self._preview(preview, workers)

    def _preview(self, calls: int | None, workers: Workers) -> None:
        """Samples a few chains. They enter no interval: no choice is made between those of several references."""
        count = SAMPLING.pilot if calls is None else min(SAMPLING.pilot, calls // self.sampling.horizon)
        if count < 2:
            return
        chunks, mean = self.sampling.preview(count)
        for _, outcome in workers.in_order(self.sampling.work, chunks):
            self._learning_calls += outcome.calls
            mean.add(outcome.sums, outcome.calls)
        self._learning.append(LearningPoint(self._spent, mean.estimate, mean.error))


class Proof(NamedTuple):
    """What is proved at the root."""

    interval: tuple[float, float]  # of the optimal value: from below by the chains, from above by the error range
    q_intervals: Floats  # of the action values, [K, 2]
    certified: bool  # whether it rests on the error range


def proof(samples: Sampling) -> Proof:
    """The intervals of the value and of the action values."""
    setting, problem, cut = samples.setting, samples.setting.problem, samples.setting.truncation.optimal
    (least, most), (q_least, q_most) = problem.values, problem.action_values
    returns = np.array([mean.sequence.interval for mean in samples.actions])
    q_low = np.clip(returns[:, 0] - cut, q_least, q_most)
    low = max(least, samples.value.sequence.interval[0] - cut, _backed_up(setting, q_low))
    setting.root.require_possible(setting.backup, (low, math.inf))
    if setting.error_range is not None:
        above = problem.discount * _bias(setting, 1)[1]
        q_high = np.clip(returns[:, 1] + cut + above, q_least, q_most)
        inside = _within_error_range(samples)
        both = max(low, inside[0]), min(most, inside[1], _backed_up(setting, q_high))
        if both[0] <= both[1] and (q_low <= q_high).all():
            return Proof(both, np.stack([q_low, q_high], axis=-1), True)
    return Proof((min(low, most), most), np.stack([q_low, np.full_like(q_low, q_most)], axis=-1), False)


def _within_error_range(samples: Sampling) -> tuple[float, float]:
    """The interval of the optimal value by the chains and the error range."""
    cut, (low, high) = samples.setting.truncation.optimal, samples.value.sequence.interval
    low, high = low - cut, high + cut
    first = low, high + _bias(samples.setting, 1)[1]
    if samples.correction is None:
        return first
    added, second = samples.correction.sequence.interval, _bias(samples.setting, 2)
    # The quadratic term is never negative.
    return max(first[0], low + max(added[0], 0.0) + second[0]), min(first[1], high + added[1] + second[1])


def _backed_up(setting: Setting, q: Floats) -> float:
    return float(setting.root.backed_up(setting.backup, q[None])[0])


def _bias(setting: Setting, order: int) -> tuple[float, float]:
    """Bounds of the error that the order leaves, for the error range that was given."""
    assert setting.error_range is not None
    return bias(order, setting.error_range, setting.problem, setting.truncation.below + setting.truncation.above)


def _estimate(samples: Sampling) -> tuple[float, float]:
    """The value at the planner's order and its standard error."""
    value, correction = samples.value, samples.correction
    if correction is None:
        return value.estimate, value.error
    # A run must not stop because its corrections happen to vary less than those of the pilot.
    variance = samples.budgets["corrections"].variance if samples.budgets else 0.0
    error = math.sqrt(max(correction.variance, variance) / max(correction.count, 1))
    return value.estimate + correction.estimate, math.hypot(value.error, error)


def _status(samples: Sampling, proved: Proof) -> Status | None:
    """Whether the accuracy is reached, or all that is possible; None if neither."""
    setting, value, correction = samples.setting, samples.value, samples.correction
    truncation = setting.truncation
    if proved.certified:
        if within((proved.interval[1] - proved.interval[0]) / 2.0, setting.epsilon):
            return "converged"
        noise, left = value.radius, truncation.optimal + _bias(setting, 1)[1] / 2.0
        if correction is not None:
            low, high = _bias(setting, 2)
            second = truncation.optimal + (high - low) / 2.0
            if second < left:
                noise, left = noise + correction.radius, second
    elif correction is None:
        noise, left = value.radius, (truncation.below + truncation.above) / 2.0
    else:
        if min(value.count, correction.count) < 256:  # too few for their variances to be trusted
            return None
        noise, left = -NormalDist().inv_cdf(setting.delta / 2.0) * _estimate(samples)[1], truncation.optimal
    if not proved.certified and within(noise + left, setting.epsilon):
        return "converged"
    return "completed" if within(noise, setting.epsilon) and left >= setting.epsilon else None
