"""ReferenceCruiser: long horizons, by chains around a reference, an estimate Q̂ of the action values at any state.

Order-1 chains follow the policy ∇F(Q̂) and evaluate exactly that policy, so they bound the optimal value from below for
any Q̂. Order 2 adds the quadratic term of the Taylor model, estimated from pairs of such chains at one random step; the
remaining bias is cubic in the reference's error. Chains do not branch: their price grows only linearly with the
horizon, but their variance grows too.

A pilot of chains, corrections and returns of the root's actions measures the cost and the variance of a sample. Then
every round adds a fraction of the calls made so far, each part catching up with the share of the calls at which cost ×
variance is smallest.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains.batched import chains_for, conditioned, largest_gap
from smoothplan.chains.maker import ReferenceMaker
from smoothplan.chains.reference import CriticReference, Improvable, Reference, required_reference
from smoothplan.chains.shared import SharedReference
from smoothplan.confidence import ConfidenceSequence
from smoothplan.models.model import total_weight
from smoothplan.models.vector import JitModel
from smoothplan.run.chunks import Chunk, Outcome, Sums, Work
from smoothplan.run.progress import Display
from smoothplan.run.records import Budget, ReferenceDetails, Root, Run, Snapshot, Status, within
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, required_backup, required_mixture
from smoothplan.theory.curvature import Problem, require_resolvable

LONGEST_CHAIN = 10**8
"""Steps of a chain, at most: they take the fastest engine seconds."""

VALUE_DELTA, CORRECTION_DELTA, ACTION_DELTA = 0.6, 0.3, 0.1  # shares of δ
PILOT_DELTA = 0.25  # of the corrections' δ, for the pilot's if others with another number of pairs follow
PILOT = 64  # samples of each part before the rest is planned


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
    _: KW_ONLY
    order: int = 2
    epsilon: float
    delta: float = 0.1
    horizon: int | None = None
    pairs: int | None = None
    error_range: float | None = None
    improve: bool = False

    no_forecast: ClassVar[str] = "its price depends on the variance of the chains, which a pilot measures"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        change = partial(object.__setattr__, self)  # people write 1e3 for a count
        change("epsilon", arguments.accuracy(self.epsilon))
        change("delta", arguments.failure(self.delta))
        if self.backup.temperature == 0.0:
            raise ValueError(f"ReferenceCruiser needs a smooth backup, got {self.backup!r}")
        required_reference(self.reference)
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
        return ReferenceRun(self, root, problem, self.truncation(problem))

    def truncation(self, problem: Problem) -> "Truncation":
        """The truncation at the horizon that is given, or at the earliest one, about, that costs a small part of ε."""
        longest = problem.horizon or math.inf  # an episode leaves nothing behind its end
        if self.horizon is not None:
            return Truncation.at(problem, int(min(self.horizon, longest)))
        whole, horizon, tolerated = Truncation.at(problem, 0), 1, 0.05 * self.epsilon
        if problem.discount == 1.0:
            horizon = int(longest)
        while horizon <= LONGEST_CHAIN:
            if horizon >= longest:
                return Truncation.at(problem, int(longest))
            left = problem.discount**horizon
            found = Truncation(horizon, left * whole.below, left * whole.above, left * whole.optimal)
            both_sides = self.order == 2 or self.error_range is not None
            costs = found.optimal if both_sides else max(found.below, found.above)
            if self.order == 2 and self.error_range is not None:
                # The effect of the tail on pairs is multiplied by the error range.
                wide, narrow = (bias(2, self.error_range, problem, tail) for tail in (found.below + found.above, 0.0))
                costs += (wide[1] - wide[0] - narrow[1] + narrow[0]) / 2.0
            if costs <= tolerated or problem.discount == 0.0:
                return found
            octave = -math.log(2.0) / math.log(problem.discount)  # steps that halve what is left
            horizon += max(1, math.floor(octave * min(math.log2(costs / tolerated), 1.0)))
        raise ValueError(
            f"discount must be smaller if no horizon is given, got {problem.discount!r}: for epsilon={self.epsilon:g} "
            f"chains would have more than {LONGEST_CHAIN:,} steps"
        )


class Truncation(NamedTuple):
    """The effect of cutting chains off at a horizon, where they continue with the middle of the optimal values."""

    horizon: int
    below: float  # the value of any policy may be lower by this much,
    above: float  # or higher by this much,
    optimal: float  # and the optimal value may differ by this much, either way

    @classmethod
    def at(cls, problem: Problem, horizon: int) -> "Truncation":
        """The truncation at a horizon."""
        (worst, best), middle = problem.policy_values, problem.middle
        left = 0.0 if problem.horizon is not None and horizon >= problem.horizon else problem.discount**horizon
        return cls(horizon, left * (middle - worst), left * (best - middle), left * problem.width / 2.0)


def bias(order: int, error_range: float, problem: Problem, tail: float) -> tuple[float, float]:
    """Bounds of the error that an order leaves, if the chains of a pair may differ by a tail."""
    # A backup of one action has no curvature at all.
    temperature = problem.temperature if problem.pairs else 1.0 / max(4.0 * problem.derivatives[0], curvature.SMALLEST)
    return curvature.reference_bias(order, error_range, temperature, problem.discount, tail, problem.horizon)


def support(problem: Problem, advantages: tuple[float, float], horizon: int) -> tuple[float, float]:
    """Bounds of a chain with a horizon, and of a return, whose first step has no advantage."""
    steps, tail = total_weight(problem.discount, horizon), problem.discount**horizon * problem.middle
    low, high = (steps * (end + advantage) for end, advantage in zip(problem.reward_range, advantages, strict=True))
    if problem.terminates:
        return min(low, 0.0) + min(tail, 0.0), max(high, 0.0) + max(tail, 0.0)
    return low + tail, high + tail


@dataclass
class Mean:
    """The mean of one part's samples, and its interval."""

    sequence: ConfidenceSequence
    estimate: float  # the mean of the samples; a guess before there are any
    calls: int = 0

    def __post_init__(self) -> None:
        self.variance = (self.sequence.high - self.sequence.low) ** 2 / 4.0  # of the samples, or the largest possible

    @property
    def count(self) -> int:
        """The number of samples."""
        return self.sequence.count

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return math.sqrt(self.variance / max(self.count, 1))

    @property
    def work(self) -> int:
        """Simulator calls, at least one for each sample: a correction of actions that do not differ may take none."""
        return max(self.calls, self.count)

    @property
    def radius(self) -> float:
        """Half of the width of the interval."""
        low, high = self.sequence.interval
        return max(0.0, high - low) / 2.0

    def add(self, sums: Sums, calls: int) -> None:
        """Adds samples and their simulator calls."""
        self.sequence.update(*sums.moments)
        self.calls += calls
        count, total, squares = self.count, self.sequence.total, self.sequence.squares
        self.estimate = total / count if count else self.estimate
        if count > 1:
            self.variance = max(0.0, squares - total * total / count) / (count - 1)


class Sampling:
    """Samples around one reference. It keeps the run's limit on calls.

    The reference does not change any more. It is None if nothing is known: then all actions are worth the same.

    Attributes:
        claim: F(Q̂) at the root.
        value: the mean of chains.
        actions: the mean of the returns of each legal action.
        correction: the mean of corrections; None at order 1.
        pairs: of each correction.
        budgets: of "values", "returns" and "corrections"; empty until the pilot is done.
    """

    def __init__(
        self,
        planner: ReferenceCruiser,
        root: Root,
        problem: Problem,
        truncation: Truncation,
        reference: Reference | None,
    ) -> None:
        self.planner, self.root, self.problem, self.truncation = planner, root, problem, truncation
        self.horizon, self._next_chunk = truncation.horizon, 0
        actions, possible, backup = problem.actions, problem.action_values, planner.backup
        known = reference or CriticReference(lambda states: np.zeros((len(states), actions)))
        # Asked once before all threads, a reference may bring itself up to date; and its mistakes are found.
        shifted, top = conditioned(known.q, np.asarray(root.state)[None], math.inf, root.model)
        self.claim = float(root.backed_up(backup, shifted)[0]) + float(top[0])
        self._legal = root.legal.tolist()
        guesses = np.clip(shifted[0, self._legal] + top[0], *possible)
        if reference is None:
            guesses = np.full(len(self._legal), sum(possible) / 2.0)
        gap = largest_gap(backup, problem, planner.error_range, made=planner.reference is None)
        self.engine, self._advantages = chains_for(root, backup, known, problem, gap)
        # The improvement of a reference may depend on time, so a checkpoint tells chains around one from another.
        about = f"reference of {getattr(reference, 'calls', 0)} calls"
        self.work = Work(self.engine, root.model, root.state, root.seed, about)
        self.samples = self._dropped = 0  # dropped: simulator calls of pilot corrections that count no more
        self.budgets: dict[str, Budget] = {}
        self._corrected = Sums(more=(0, 0.0))  # of corrections; more: the pairs of actions that differ, their noise
        self._support = support(problem, self._advantages, self.horizon)
        self.pairs, self.correction, unused = 0, None, CORRECTION_DELTA
        if planner.order == 2:
            self.pairs, unused = planner.pairs or 32, 0.0  # 32 in the pilot, which then chooses their number
            share = CORRECTION_DELTA * (PILOT_DELTA if planner.pairs is None else 1.0)
            self.correction = self._mean(share, 0.0, self._correction_support(self.pairs))
        self.value = self._mean(VALUE_DELTA + unused, problem.middle)
        self.actions = [self._mean(ACTION_DELTA / actions, guess) for guess in guesses]

    def _mean(self, share: float, guess: float, support: tuple[float, float] | None = None) -> Mean:
        """A mean with a share of δ: of chains, unless it has another support."""
        delta, target = share * self.planner.delta, self.planner.epsilon / 2.0
        return Mean(ConfidenceSequence(*(support or self._support), delta, target), guess)

    def _correction_support(self, pairs: int) -> tuple[float, float]:
        """Bounds of a correction that has this many pairs."""
        # Q̂ varies over actions by no more than F(Q̂) − Q̂(a) does.
        reach = np.ptp(self._support) + np.ptp(self._advantages)
        most = total_weight(self.problem.discount, self.horizon) * float(reach) ** 2 / (4.0 * self.problem.temperature)
        return -most / (pairs - 1), most

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self._dropped + sum(mean.calls for some in self._means().values() for mean in some)

    def _means(self) -> dict[str, list[Mean]]:
        means: dict[str, list[Mean]] = {"values": [self.value], "returns": self.actions}
        return means if self.correction is None else {**means, "corrections": [self.correction]}

    def next(self, spent: int) -> list[Chunk[Sums]]:
        """The next chunks that the limit on calls allows: of the pilot, or once that is done of a round.

        The run has spent so many simulator calls besides those around this reference.
        """
        limit, means = self.root.max_calls, self._means()
        left = math.inf if limit is None else limit - spent - self.calls
        # Each part catches up with its share. A round adds a quarter of the calls made, but no more than 8 chunks, or a
        # sixteenth of the calls if that is more: so there is work for many workers, and seldom too much of it.
        work = spent + self._dropped + sum(mean.work for some in means.values() for mean in some)
        total = work + min(work / 4, max(8 * self.engine.chunk_calls, work / 16))
        chunks: list[Chunk[Sums]] = []
        for part in self.budgets or means:
            each = self.horizon * (1 + 2 * self.pairs if part == "corrections" else 1)  # calls of a sample, at most
            size, draw = max(1, self.engine.chunk_calls // each), getattr(type(self.engine), part)
            for action, mean in enumerate(means[part]):
                count = PILOT
                if self.budgets:
                    budget = self.budgets[part]
                    count = math.ceil((budget.share * total / len(means[part]) - mean.work) / budget.calls)
                # No more samples than the calls that are left are sure to allow.
                count = count if left == math.inf else min(count, int(left) // each)
                for start in range(0, count, size):
                    samples = min(size, count - start)
                    first = [self._legal[action]] if part == "returns" else []
                    asked = *first, samples, *([self.pairs] if part == "corrections" else []), self.horizon
                    self._next_chunk += 1
                    chunks.append(Chunk(self._next_chunk, draw, asked, samples, action, part))
                left -= max(count, 0) * each
        return chunks

    def add(self, chunk: Chunk[Sums], outcome: Outcome[Sums]) -> None:
        """Adds the outcome of a chunk."""
        self._means()[chunk.part][chunk.action].add(outcome.sums, outcome.calls)
        self.samples += outcome.sums.samples
        if chunk.part == "corrections":
            self._corrected += outcome.sums

    def allocate(self, spent: int) -> None:
        """Chooses the number of pairs and each part's share of the calls: cost × variance is smallest, by the pilot."""
        each = max(self.value.calls / max(self.value.count, 1), 1.0)
        returns = sum(mean.calls for mean in self.actions) / max(sum(mean.count for mean in self.actions), 1)
        parts: dict[str, tuple[float, float]] = {"values": (each, self.value.variance)}
        decision = 0.3  # share of the simulator calls, for returns of the root's actions
        rest = 1.0 - decision
        if self.correction is not None:
            tried = np.unique(np.round(2.0 ** np.arange(1.0, 12.01, 0.5)).astype(np.int64))
            pairs = np.append(tried, self.pairs)
            costs, variances = self._correction_prices(pairs, each)
            chosen, best = -1, int(np.argmin(costs * variances))
            # The pilot must have seen enough to judge by, and the limit must allow as many calls once more.
            limit = self.root.max_calls
            enough = self.correction.count >= PILOT and (
                limit is None or rest * (limit - spent - self.calls) >= 2.0 * self.correction.calls
            )
            if self.planner.pairs is None and pairs[best] != self.pairs and enough:
                # The pilot's corrections have another variance.
                chosen = best
                self._dropped += self.correction.calls
                share, self.pairs = CORRECTION_DELTA * (1.0 - PILOT_DELTA), int(pairs[best])
                self.correction = self._mean(share, 0.0, self._correction_support(self.pairs))
            parts["corrections"] = float(costs[chosen]), float(variances[chosen])
        weights = {}
        for part, (calls, variance) in parts.items():
            if self.planner.error_range is not None:
                # The interval must shrink, so the width of the support contributes (Bernstein).
                sequence = self._means()[part][0].sequence
                variance += (sequence.high - sequence.low) * sequence.target / 3.0
            weights[part] = math.sqrt(calls * variance)
        total = sum(weights.values())
        least = 0.05  # the part of the rest that each gets at least, however little it varies in the pilot
        for part, (calls, variance) in parts.items():
            relative = weights[part] / total if total > 0.0 else 1.0 / len(parts)
            share = rest * (least + (1.0 - least * len(parts)) * relative)
            self.budgets[part] = Budget(calls, variance, share)
        most = max(mean.variance for mean in self.actions)
        self.budgets["returns"] = Budget(max(returns, 1.0), most, decision)

    def _correction_prices(self, pairs: Ints, chain_calls: float) -> tuple[Floats, Floats]:
        """Calls and variance of a correction for numbers of pairs, extrapolated from the corrections so far.

        A pair's difference x has mean D and variance σ²; the U-statistic of n of them has mean D² and the variance
        4D²σ²/n + 2σ⁴/(n(n−1)), beside the variance of D² itself over states and actions.
        """
        assert self.correction is not None
        sums, steps = self._corrected, total_weight(self.problem.discount, self.horizon)
        differed, spread = sums.more
        scale = steps / (4.0 * self.problem.temperature)
        # If no two actions differed, the next ones may: with the variance of two chains.
        differing = max(differed, 1) / max(sums.samples, 1)
        noise = spread / differed if differed else 2.0 * self.value.variance
        # E[D²], counting equal actions as 0: the estimate plus its standard error, as too little would ask for too many
        # pairs. D² varies at least as much as it would if it took one value.
        square = (max(sums.total / max(sums.samples, 1), 0.0) + self.correction.error) / scale
        variance = 4.0 * square * noise / pairs + 2.0 * differing * noise**2 / (pairs * (pairs - 1.0))
        costs = steps + 2.0 * differing * chain_calls * pairs
        return np.asarray(costs), np.asarray(scale**2 * (variance + square**2 / differing))


class ReferenceRun:
    """A run around a reference: it is made or improved first, then samples are drawn around it."""

    def __init__(self, planner: ReferenceCruiser, root: Root, problem: Problem, truncation: Truncation) -> None:
        self._planner, self._root, self._warnings = planner, root, list[str]()
        # References draw from another role, because a chain must not depend on the samples that made its reference.
        self.maker = ReferenceMaker(root.model, planner.backup, planner.reference, root.seed)
        self._around = partial(Sampling, planner, root, problem, truncation)
        self.sampling = self._around(self.maker.reference)

    def run(self, workers: Workers, display: Display) -> Status:
        """Samples until the interval or the standard error is within ε, or a limit is reached."""
        if self._planner.reference is None or self._planner.improve:
            self._prepare(workers)
            self.sampling = self._around(self.maker.reference)
            display.update(self.maker.calls, proof(self.sampling).interval)
        workers.stop_signal.check()
        spent, interval = self.maker.calls, proof(self.sampling).interval
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
        planner, samples, reference, reference_delta = self._planner, self.sampling, self.maker.reference, 0.0
        if planner.error_range is not None and isinstance(reference, SharedReference):
            reference_delta = reference.delta  # its bound on its own error fails with a probability of its own
        interval, q_intervals, certified = proof(samples)
        value, correction, truncation, problem = samples.value, samples.correction, samples.truncation, samples.problem
        q = self._root.spread(np.array([mean.estimate for mean in samples.actions]))
        low, high = value.sequence.interval
        order_2, error = _estimate(samples)
        estimate, (lower, upper) = order_2, interval
        if certified:  # within ε of both ends if that is possible
            if correction is None:
                estimate += _bias(samples, 1)[1] / 2.0
            room = max(planner.epsilon, (upper - lower) / 2.0)
            estimate = min(max(estimate, upper - room), lower + room)
        # By the difference of the two orders.
        steps = total_weight(problem.discount, problem.horizon)
        least = math.sqrt(8.0 * problem.temperature / steps * max(order_2 - value.estimate, 0.0))
        details = ReferenceDetails(
            reference=samples.claim,
            made=planner.reference is None,
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
            reference_delta=reference_delta,
            warnings=tuple(self._warnings),
        )
        return Snapshot(
            value=min(max(estimate, lower), upper),
            interval=interval,
            action=int(q.argmax()),  # one step better than the reference's policy
            q=q,
            q_intervals=q_intervals,
            calls=self.maker.calls + samples.calls,
            samples=samples.samples,
            epsilon=planner.epsilon,
            delta=min(1.0, planner.delta + reference_delta),
            details=details,
        )

    def _prepare(self, workers: Workers) -> None:
        """Makes the reference if none was given, improves it if it can be, and warns if there is none after all."""
        root, maker = self._root, self.maker
        usual = 400_000 if isinstance(root.model, JitModel) else 100_000  # simulator calls, if the limits allow them
        # Of the limits on calls and on time, half at most.
        limit = math.inf if root.max_calls is None else root.max_calls // 2
        until = None if root.max_seconds is None else root.begun + root.max_seconds / 2.0
        steps: list[tuple[str, Callable[..., None]]] = []
        if self._planner.reference is None:
            steps.append(("reference", partial(maker.make, root.state)))
        if self._planner.improve:
            steps.append(("reference, improved", maker.improve))
        for name, work in steps:
            calls = int(min(usual, limit - maker.calls))
            if calls < 1 or not isinstance(maker.reference, Improvable | None):
                continue
            kept = maker.reference is None or hasattr(maker.reference, "restore")
            if not (kept and workers.recall(name, partial(maker.restore, root.state))):
                work(calls=calls, until=until)
                if hasattr(maker.reference, "saved"):
                    workers.keep(name, maker.saved)
        if self._planner.reference is None:
            missing = ""
            if limit < 1:
                missing = f"max_calls={root.max_calls} leaves no calls for it"
            elif maker.calls == 0:
                missing = f"max_seconds={root.max_seconds} leaves no time for it"
            elif getattr(maker.reference, "is_blank", False):
                missing = f"nothing can be learnt from {maker.calls:,} calls"
            if missing:
                self._warnings.append(f"no reference was made, so this is about a uniformly random policy: {missing}")


class Proof(NamedTuple):
    """The proof at the root."""

    interval: tuple[float, float]  # of the optimal value: from below by the chains, from above by the error range
    q_intervals: Floats  # of the action values, [K, 2]
    certified: bool  # whether it rests on the error range


def proof(samples: Sampling) -> Proof:
    """The intervals of the value and of the action values."""
    planner, root, problem, cut = samples.planner, samples.root, samples.problem, samples.truncation.optimal
    (least, most), (q_least, q_most) = problem.values, problem.action_values
    returns = np.array([mean.sequence.interval for mean in samples.actions])
    q_low = root.spread(np.clip(returns[:, 0] - cut, q_least, q_most))
    below, above = samples.value.sequence.interval[0] - cut, samples.value.sequence.interval[1] + cut
    low = max(least, below, float(root.backed_up(planner.backup, q_low[None])[0]))
    curvature.require_possible(root.model, planner.backup, (low, math.inf), root.state)
    if planner.error_range is not None:
        first = _bias(samples, 1)[1]
        q_high = root.spread(np.clip(returns[:, 1] + cut + problem.discount * first, q_least, q_most))
        high = min(most, above + first, float(root.backed_up(planner.backup, q_high[None])[0]))
        both = low, high
        if samples.correction is not None:
            added, second = samples.correction.sequence.interval, _bias(samples, 2)
            # The quadratic term is never negative.
            both = max(low, below + max(added[0], 0.0) + second[0]), min(high, above + added[1] + second[1])
        if both[0] <= both[1] and (q_low <= q_high).all():
            return Proof(both, np.stack([q_low, q_high], axis=-1), True)
    q_high = root.spread(np.full(len(returns), q_most))
    return Proof((min(low, most), most), np.stack([q_low, q_high], axis=-1), False)


def _bias(samples: Sampling, order: int) -> tuple[float, float]:
    """Bounds of the error that the order leaves, for the error range that was given."""
    error_range, truncation = samples.planner.error_range, samples.truncation
    assert error_range is not None
    return bias(order, error_range, samples.problem, truncation.below + truncation.above)


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
    planner, value, correction, truncation = samples.planner, samples.value, samples.correction, samples.truncation
    if proved.certified:
        if within((proved.interval[1] - proved.interval[0]) / 2.0, planner.epsilon):
            return "converged"
        noise, left = value.radius, truncation.optimal + _bias(samples, 1)[1] / 2.0
        if correction is not None:
            low, high = _bias(samples, 2)
            second = truncation.optimal + (high - low) / 2.0
            if second < left:
                noise, left = noise + correction.radius, second
    elif correction is None:
        noise, left = value.radius, (truncation.below + truncation.above) / 2.0
    else:
        if min(value.count, correction.count) < 256:  # too few for their variances to be trusted
            return None
        noise, left = -NormalDist().inv_cdf(planner.delta / 2.0) * _estimate(samples)[1], truncation.optimal
    if not proved.certified and within(noise + left, planner.epsilon):
        return "converged"
    return "completed" if within(noise, planner.epsilon) and left >= planner.epsilon else None
