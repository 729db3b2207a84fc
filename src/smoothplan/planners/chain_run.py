"""The run of a ReferenceCruiser: a pilot, then rounds of chains, corrections and returns, and what they prove."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smoothplan import curvature
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup
from smoothplan.confidence import ConfidenceSequence
from smoothplan.engines.chains import PairSums
from smoothplan.models.base import States
from smoothplan.models.jit import JitModel
from smoothplan.planners.chains import chains_for, conditioned, likely_gap, support, weight
from smoothplan.recursion import ROUNDING, action_values
from smoothplan.references import (
    GridReference,
    Improvable,
    Reference,
    Savable,
    SharedReference,
    TooFewCallsError,
    default_reference,
)
from smoothplan.references.default import CALLS, COMPILED_CALLS
from smoothplan.running.run import Budget, Diagnosis, Display, Lesson, Root, Status
from smoothplan.running.work import Chunk, Method, Outcome, Work
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Problem
from smoothplan.search.saved import Readable

if TYPE_CHECKING:
    from smoothplan.planners.reference import ReferenceCruiser

TRUNCATION_SHARE = 0.05
"""The part of ε that may be lost where chains are cut off, by default."""

VALUE_SHARE, CORRECTION_SHARE, ACTION_SHARE = 0.6, 0.3, 0.1
"""The parts of δ for chains of the value, for its quadratic corrections, and for returns of the root's actions."""

PILOT_SHARE = 0.25
"""The part of the corrections' δ for those of the pilot, where others follow that have another number of pairs."""

DECISION_SHARE = 0.3
"""The part of the simulator calls that goes to returns of the root's actions."""

LEAST_SHARE = 0.05
"""The least part of what is left for the value and for its corrections, however little they vary in the pilot."""

PILOT, PILOT_PAIRS = 64, 32
"""Samples of each part, and pairs in each correction, before the rest is planned."""

PAIRS = np.unique(np.round(2.0 ** np.arange(1.0, 12.01, 0.5)).astype(np.int64))
"""Numbers of pairs that are tried."""

REFERENCE_SHARE = 0.5
"""The part of all calls for a reference that nobody gave, or for improving one, at most."""

IMPROVEMENTS = 5
"""Steps in which a reference is improved, each twice as long as the one before."""

LOOKS = 4
"""A round adds this fraction of the calls that were made,"""

ROUND_CHUNKS, LONG_LOOKS = 8, 16
"""and no more than so many chunks, or this fraction, if that is more: work for many, and seldom too much of it."""

FEWEST = 256
"""Samples of a part before its variance is trusted."""


class Cut(NamedTuple):
    """What is left out where chains are cut off, after so many steps."""

    horizon: int
    below: float  # by how much the value of any policy may be lower,
    above: float  # by how much it may be higher,
    optimal: float  # and how far the optimal value may be, either way

    @classmethod
    def at(cls, problem: Problem, backup: Backup, horizon: int) -> "Cut":
        """The cut at a horizon."""
        low, high = problem.values
        # A policy may be worth less than the value interval allows: it need not have the regulariser's bonus.
        gain = min(curvature.gap_to_hard_max(backup, problem.actions)[0], problem.at_zero[0])
        worst = (problem.reward_range[0] + gain) / (1.0 - problem.discount)
        worst = min(worst, low, 0.0) if problem.terminates else min(worst, low)
        left = problem.discount**horizon
        return cls(horizon, left * (problem.middle - worst), left * (high - problem.middle), left * problem.width / 2.0)


def _cut(planner: "ReferenceCruiser", problem: Problem) -> Cut:
    """The cut at the planner's horizon; by default where it costs only a small part of ε."""
    cut, tolerated = Cut.at(problem, planner.backup, planner.horizon or 1), TRUNCATION_SHARE * planner.epsilon
    if planner.horizon is not None or problem.discount == 0.0:
        return cut
    octave = -math.log(2.0) / math.log(problem.discount)  # steps that halve what is left

    def costs(cut: Cut) -> float:
        if planner.error_range is None:
            return cut.optimal if planner.order == 2 else max(cut.below, cut.above)
        if planner.order == 1:
            return cut.optimal
        # What the tail does to pairs is multiplied by the error range.
        ends = [_bias(2, planner.error_range, problem, tail) for tail in (0.0, cut.below + cut.above)]
        return cut.optimal + (ends[1][1] - ends[1][0] - ends[0][1] + ends[0][0]) / 2.0

    while costs(cut) > tolerated:
        excess = min(math.log2(costs(cut) / tolerated), 1.0)
        cut = Cut.at(problem, planner.backup, cut.horizon + max(1, math.floor(octave * excess)))
    return cut


def _bias(order: int, error_range: float, problem: Problem, tail: float) -> tuple[float, float]:
    """Bounds of what an order leaves out, where the chains of a pair may differ by a tail."""
    return curvature.reference_bias(order, error_range, problem.temperature, problem.discount, tail)


class _Alike:
    """The reference of those who know nothing."""

    def __init__(self, actions: int) -> None:
        self._actions = actions

    def q(self, states: States) -> Floats:
        """All actions are worth the same, [n, K]."""
        return np.zeros((len(states), self._actions))


@dataclass
class _Mean:
    """What is known of the mean of one part."""

    sequence: ConfidenceSequence
    guess: float  # before there are samples
    calls: int = 0

    @property
    def count(self) -> int:
        """The number of samples."""
        return self.sequence.count

    @property
    def estimate(self) -> float:
        """The mean of the samples."""
        return self.sequence.mean if self.count else self.guess

    @property
    def variance(self) -> float:
        """The variance of the samples, or the largest that there can be."""
        count, total, squares = self.count, self.sequence.total, self.sequence.squares
        if count < 2:
            return (self.sequence.high - self.sequence.low) ** 2 / 4.0
        return max(0.0, squares - total * total / count) / (count - 1)

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


class ChainRun:
    """The state of a run: chains of the value, their corrections, and returns of the root's actions."""

    identification = None

    def __init__(self, planner: "ReferenceCruiser", root: Root, problem: Problem) -> None:
        self.status: Status = "completed"
        self.epsilon, self.delta = planner.epsilon, planner.delta
        self.pairs = planner.pairs or PILOT_PAIRS
        self.samples = 0
        self._planner, self._root, self._problem = planner, root, problem
        self._cut = _cut(planner, problem)
        self.horizon = self._cut.horizon
        # A bound on range(Q_s) does no harm to an error range; a smaller one may.
        self._gap = problem.action_gap if planner.error_range is not None else likely_gap(planner.backup, problem)
        self._reference: Reference = _Alike(problem.actions) if planner.reference is None else planner.reference
        self._spent = 0  # on the reference and on pilots
        self._chunks = 1  # chunk 0 is for references: what a chain draws must not depend on what made its reference
        self._promised = 0
        self._lessons: list[Lesson] = []
        self._start()

    def _start(self) -> None:
        """Nothing is sampled yet around this reference."""
        backup, problem = self._planner.backup, self._problem
        # Asked once before all threads, a reference may bring itself up to date; and its mistakes are found.
        here = conditioned(self._reference, math.inf, problem.actions)(np.asarray(self._root.state)[None])
        self._claim = float(self._root.backed_up(backup, here.shifted)[0]) + float(here.top[0])
        self._chains, self._advantages = chains_for(self._root, backup, self._reference, problem, self._gap)
        # How far a reference was improved may depend on time, so a checkpoint tells chains around one from another.
        about = f"reference of {getattr(self._reference, 'calls', 0)} calls"
        self._work = Work(self._chains, self._root.model, self._root.state, self._root.seed, about)
        self._pair_sums = np.zeros(5)  # as in PairSums
        self._budgets: dict[Method, Budget] = {}
        ends = support(problem, self._advantages, self.horizon)
        target, share = self.epsilon / 2.0, VALUE_SHARE
        self._correction: _Mean | None = None
        if self._planner.order == 1:
            share += CORRECTION_SHARE
        else:
            self._pairs_from(self.pairs, CORRECTION_SHARE * (PILOT_SHARE if self._planner.pairs is None else 1.0))
        self._value = _Mean(ConfidenceSequence(*ends, share * self.delta, target), problem.middle)
        share, possible = ACTION_SHARE / problem.actions, action_values(problem)
        guesses = np.clip(here.shifted[0] + here.top[0], *possible)
        if isinstance(self._reference, _Alike):
            guesses = np.full(problem.actions, sum(possible) / 2.0)
        self._actions = [_Mean(ConfidenceSequence(*ends, share * self.delta, target), guess) for guess in guesses]

    def _pairs_from(self, pairs: int, share: float) -> None:
        """Begins a mean of corrections of so many pairs each."""
        low, high = support(self._problem, self._advantages, self.horizon)
        # Q̂ varies over actions by no more than F(Q̂) − Q̂(a) does.
        reach = high - low + self._advantages[1] - self._advantages[0]
        most = weight(self._problem.discount, self.horizon) * reach**2 / (4.0 * self._problem.temperature)
        self.pairs = pairs
        self._correction = _Mean(
            ConfidenceSequence(-most / (pairs - 1), most, share * self.delta, self.epsilon / 2.0), 0.0
        )

    def go(self, workers: Workers, display: Display) -> None:
        """Samples until the interval or the standard error is within ε, or a limit is reached."""
        self._prepare(workers, display)
        workers.brake.check()
        tasks = list(self._pilot())
        while tasks:
            for task, outcome in workers.in_order(self._work, tasks):
                self._book(task, outcome)
                display.update(self.calls, self.interval)
            if not self._budgets:
                self._split()
            else:
                status = self._reached()
                if status is not None:
                    self.status = status
                    return
            tasks = list(self._round())
        self.status = "max_calls"

    def _prepare(self, workers: Workers, display: Display) -> None:
        """Makes a reference where there is none, and improves it, with a part of the calls and of the time."""
        most = COMPILED_CALLS if isinstance(self._root.model, JitModel) else CALLS
        if self._root.max_calls is not None:
            most = min(most, int(REFERENCE_SHARE * self._root.max_calls))
        if self._planner.reference is None:
            made = partial(_made_reference, self._root, self._planner.backup, most)
            if not workers.recall("reference", lambda arrays: self._plan_around(made(arrays))):
                self._plan_around(reference := made())
                if reference is not None:
                    workers.keep("reference", reference.saved)
        if not (self._planner.improve and isinstance(self._reference, Improvable)):
            return
        if self._root.max_calls is not None:
            most = min(most, int(REFERENCE_SHARE * self._root.max_calls) - self._spent)
        saved = 0
        for step in range(IMPROVEMENTS):
            done, enough = f"reference, improved {step}", f"reference, not improved {step}"
            # A run that is resumed goes the way that it went before, whatever the time is now.
            if workers.has(enough) or (self._root.late(REFERENCE_SHARE) and not workers.has(done)):
                workers.keep(enough, dict)
                return
            saved += most * 2**step // (2**IMPROVEMENTS - 1)
            if saved >= _least_calls(self._reference, self._problem.actions):
                self._improve(self._reference, saved, workers, done)
                saved = 0
                display.update(self.calls, self.interval)

    def _plan_around(self, reference: SharedReference | GridReference | None) -> None:
        """Takes a reference that was made for this run, if one could be."""
        if reference is not None:
            self._reference, self._spent = reference, reference.calls
            self._start()

    def _improve(self, reference: Improvable, calls: int, workers: Workers, name: str) -> None:
        """Improves the reference, and finds out by a few chains what its policy is worth now."""
        before = reference.calls
        try:
            if not (isinstance(reference, Savable) and workers.recall(name, reference.restore)):
                reference.improve(calls)
                workers.keep(name, reference.saved if isinstance(reference, Savable) else dict)
        finally:
            self._spent += reference.calls - before
        self._start()
        # What these chains find goes into no interval, so that nobody can choose between intervals of several of them.
        found = _Mean(ConfidenceSequence(*support(self._problem, self._advantages, self.horizon), 0.5, 1.0), 0.0)
        for task, outcome in workers.in_order(self._work, list(self._admitted("values", 0, PILOT))):
            self._promised -= task.samples * self._most_calls("values")
            self._spent += outcome.calls
            found.sequence.update(*outcome.sums[:3])
        if found.count:
            self._lessons.append(Lesson(self.calls, found.estimate, found.error))

    def _pilot(self) -> Iterator[Chunk]:
        """A few samples of each part."""
        yield from self._admitted("values", 0, PILOT)
        for action in range(self._problem.actions):
            yield from self._admitted("returns", action, PILOT)
        if self._correction is not None:
            yield from self._admitted("corrections", 0, PILOT)

    def _round(self) -> Iterator[Chunk]:
        """The next samples: each part catches up with its share of the calls, which grow by a fraction."""
        work = self._spent + sum(mean.work for mean in self._means)
        total = work + min(work / LOOKS, max(ROUND_CHUNKS * self._chains.chunk_calls, work / LONG_LOOKS))
        for part, budget in self._budgets.items():
            means = self._actions if part == "returns" else [self._mean(part)]
            for number, mean in enumerate(means):
                behind = budget.share * total / len(means) - mean.work
                yield from self._admitted(part, number, math.ceil(behind / budget.calls))

    def _admitted(self, part: Method, action: int, count: int) -> Iterator[Chunk]:
        """So many samples in chunks, or as many as the limit on calls is sure to allow."""
        each = self._most_calls(part)
        if self._root.max_calls is not None:
            count = min(count, (self._root.max_calls - self.calls - self._promised) // each)
        size = max(1, self._chains.chunk_calls // each)
        for start in range(0, count, size):
            samples = min(size, count - start)
            self._promised += samples * each
            shape: dict[Method, tuple[int, ...]] = {
                "values": (samples, self.horizon),
                "returns": (action, samples, self.horizon),
                "corrections": (samples, self.pairs, self.horizon),
            }
            yield Chunk(self._chunks, part, shape[part], samples, action)
            self._chunks += 1

    def _most_calls(self, part: Method) -> int:
        """Simulator calls of one sample, at most."""
        if part == "corrections":
            return self.horizon * (1 + 2 * self.pairs)
        return self.horizon

    def _mean(self, part: Method, action: int = 0) -> _Mean:
        if part == "returns":
            return self._actions[action]
        if part == "values":
            return self._value
        assert self._correction is not None
        return self._correction

    def _book(self, task: Chunk, outcome: Outcome) -> None:
        """Takes a chunk into account."""
        sums = outcome.sums
        self._promised -= task.samples * self._most_calls(task.method)
        mean = self._mean(task.method, task.action)
        mean.sequence.update(sums.samples, sums.total, sums.squares)
        mean.calls += outcome.calls
        self.samples += sums.samples
        if isinstance(sums, PairSums):
            self._pair_sums += np.array(sums)

    def _split(self) -> None:
        """How many pairs, and which part gets how many calls: what makes cost × variance smallest, by the pilot."""
        each = max(self._value.calls / max(self._value.count, 1), 1.0)
        returns = sum(mean.calls for mean in self._actions) / max(sum(mean.count for mean in self._actions), 1)
        parts: dict[Method, tuple[float, float]] = {"values": (each, self._value.variance)}
        if self._correction is not None:
            pairs = np.append(PAIRS, self.pairs)
            costs, variances = self._correction_prices(pairs, each)
            chosen, best = -1, int(np.argmin(costs * variances))
            if self._planner.pairs is None and pairs[best] != self.pairs and self._affords_another():
                # The pilot's corrections have another variance.
                chosen = best
                self._spent += self._correction.calls
                self._pairs_from(int(pairs[best]), CORRECTION_SHARE * (1.0 - PILOT_SHARE))
            parts["corrections"] = float(costs[chosen]), float(variances[chosen])
        weights = {
            part: math.sqrt(calls * self._effective(part, variance)) for part, (calls, variance) in parts.items()
        }
        total, rest = sum(weights.values()), 1.0 - DECISION_SHARE
        for part, (calls, variance) in parts.items():
            weight = weights[part] / total if total > 0.0 else 1.0 / len(parts)
            share = rest * (LEAST_SHARE + (1.0 - LEAST_SHARE * len(parts)) * weight)
            self._budgets[part] = Budget(calls, variance, share)
        most = max(mean.variance for mean in self._actions)
        self._budgets["returns"] = Budget(max(returns, 1.0), most, DECISION_SHARE)

    def _affords_another(self) -> bool:
        """Whether the pilot saw enough corrections to judge by, and the limit on calls allows for as many calls."""
        assert self._correction is not None
        if self._correction.count < PILOT:
            return False
        limit = self._root.max_calls
        return limit is None or (1.0 - DECISION_SHARE) * (limit - self.calls) >= 2.0 * self._correction.calls

    def _effective(self, part: Method, variance: float) -> float:
        """A variance and, where the interval must shrink, what the width of the support adds to it (Bernstein)."""
        if self._planner.error_range is None:
            return variance
        sequence = self._mean(part).sequence
        return variance + (sequence.high - sequence.low) * sequence.target / 3.0

    def _correction_prices(self, pairs: Ints, chain_calls: float) -> tuple[Floats, Floats]:
        """Calls and variance of a correction for numbers of pairs, extrapolated from the corrections so far.

        A pair's difference x has mean D and variance σ²; the U-statistic of n of them has mean D² and the variance
        4D²σ²/n + 2σ⁴/(n(n−1)), beside the variance of D² itself over states and actions.
        """
        assert self._correction is not None
        sums, discount = PairSums(*self._pair_sums), self._problem.discount
        scale = weight(discount, self.horizon) / (4.0 * self._problem.temperature)
        # Where no two actions differed, one of the next may: with the variance of two chains.
        differing = max(sums.differing, 1) / max(sums.samples, 1)
        noise = sums.noise / sums.differing if sums.differing else 2.0 * self._value.variance
        # E[D²], counting equal actions as 0: the estimate and its standard error, for too little would ask for too many
        # pairs. D² varies at least as much as it would if it took one value.
        square = (max(sums.total / max(sums.samples, 1), 0.0) + self._correction.error) / scale
        variance = 4.0 * square * noise / pairs + 2.0 * differing * noise**2 / (pairs * (pairs - 1.0))
        costs = weight(discount, self.horizon) + 2.0 * differing * chain_calls * pairs
        return np.asarray(costs), np.asarray(scale**2 * (variance + square**2 / differing))

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self._spent + sum(mean.calls for mean in self._means)

    @property
    def _means(self) -> list[_Mean]:
        return [self._value, *self._actions, *([] if self._correction is None else [self._correction])]

    def _estimate(self) -> tuple[float, float]:
        """The value at the planner's order and its standard error."""
        if self._correction is None:
            return self._value.estimate, self._value.error
        # A run must not stop because its corrections happen to vary less than those of the pilot.
        variance = self._budgets["corrections"].variance if self._budgets else 0.0
        error = math.sqrt(max(self._correction.variance, variance) / max(self._correction.count, 1))
        return self._value.estimate + self._correction.estimate, math.hypot(self._value.error, error)

    @property
    def policy_interval(self) -> tuple[float, float]:
        """Contains the value of the policy ∇F(Q̂) with probability at least 1 − δ."""
        low, high = self._value.sequence.interval
        return low - self._cut.below, min(high + self._cut.above, self._problem.values[1])

    @property
    def interval(self) -> tuple[float, float]:
        """Contains the optimal value: from below by the chains, from above where the error range is known."""
        return self._proved()[0]

    def _proved(self) -> tuple[tuple[float, float], Floats, bool]:
        """The intervals of the value and of the action values, and whether they rest on the error range."""
        least, most = self._problem.values
        returns = np.array([mean.sequence.interval for mean in self._actions])
        q_least, q_most = action_values(self._problem)
        q_low = np.clip(returns[:, 0] - self._cut.optimal, q_least, q_most)
        low = max(least, self._value.sequence.interval[0] - self._cut.optimal, self._backed_up(q_low))
        if self._planner.error_range is not None:
            bias = self._problem.discount * self._bias(1)[1]
            q_high = np.clip(returns[:, 1] + self._cut.optimal + bias, q_least, q_most)
            within = self._within_error_range()
            both = max(low, within[0]), min(most, within[1], self._backed_up(q_high))
            if both[0] <= both[1] and (q_low <= q_high).all():
                return both, np.stack([q_low, q_high], axis=-1), True
        return (min(low, most), most), np.stack([q_low, np.full_like(q_low, q_most)], axis=-1), False

    def _within_error_range(self) -> tuple[float, float]:
        """What the chains and the error range say of the optimal value."""
        low, high = self._value.sequence.interval
        low, high = low - self._cut.optimal, high + self._cut.optimal
        first = low, high + self._bias(1)[1]
        if self._correction is None:
            return first
        added, bias = self._correction.sequence.interval, self._bias(2)
        # The quadratic term is never negative.
        return max(first[0], low + max(added[0], 0.0) + bias[0]), min(first[1], high + added[1] + bias[1])

    def _backed_up(self, q: Floats) -> float:
        return float(self._root.backed_up(self._planner.backup, q[None])[0])

    def _bias(self, order: int) -> tuple[float, float]:
        """Bounds of what the order leaves out, for the error range that was given."""
        assert self._planner.error_range is not None
        return _bias(order, self._planner.error_range, self._problem, self._cut.below + self._cut.above)

    @property
    def q_intervals(self) -> Floats:
        """Intervals of the root's action values, [K, 2]: from below by the chains, from above by what is known."""
        return self._proved()[1]

    @property
    def q(self) -> Floats:
        """Estimates of the root's action values under the policy ∇F(Q̂), [K]; Q̂ itself before there are samples."""
        return np.array([mean.estimate for mean in self._actions])

    @property
    def action(self) -> int:
        """The action with the largest estimate: one step better than the reference's policy."""
        return int(self.q.argmax())

    @property
    def value(self) -> float:
        """The estimate, within the interval; within ε of both ends where that can be."""
        (low, high), _, certified = self._proved()
        value = self._estimate()[0]
        if certified:
            if self._correction is None:
                value += self._bias(1)[1] / 2.0
            room = max(self.epsilon, (high - low) / 2.0)
            value = min(max(value, high - room), low + room)
        return min(max(value, low), high)

    def _reached(self) -> Status | None:
        """Whether what was asked for is reached, or what can be."""
        (low, high), _, certified = self._proved()
        epsilon = self.epsilon * (1.0 + ROUNDING)
        if certified:
            if (high - low) / 2.0 <= epsilon:
                return "converged"
            noise, left = self._value.radius, self._cut.optimal + self._bias(1)[1] / 2.0
            if self._correction is not None:
                second = self._cut.optimal + (self._bias(2)[1] - self._bias(2)[0]) / 2.0
                if second < left:
                    noise, left = noise + self._correction.radius, second
        elif self._correction is None:
            noise, left = self._value.radius, (self._cut.below + self._cut.above) / 2.0
        else:
            if min(self._value.count, self._correction.count) < FEWEST:
                return None
            noise, left = -NormalDist().inv_cdf(self.delta / 2.0) * self._estimate()[1], self._cut.optimal
        if noise + left <= epsilon and not certified:
            return "converged"
        return "completed" if noise <= epsilon and left >= self.epsilon else None

    @property
    def diagnosis(self) -> Diagnosis:
        """What the chains say of the reference."""
        second = self._correction
        return Diagnosis(
            reference=self._claim,
            order_1=self._value.estimate,
            order_1_error=self._value.error,
            policy_interval=self.policy_interval,
            order_2=None if second is None else self._estimate()[0],
            order_2_error=None if second is None else self._estimate()[1],
            certified=self._proved()[2],
            horizon=self.horizon,
            truncation=max(self._cut.below, self._cut.above),
            pairs=None if second is None else self.pairs,
            budgets={str(part): budget for part, budget in self._budgets.items()},
            learning=tuple(self._lessons),
            _scale=math.sqrt(8.0 * self._problem.temperature * (1.0 - self._problem.discount)),
        )


def _made_reference(
    root: Root, backup: Backup, calls: int, saved: Readable | None = None
) -> SharedReference | GridReference | None:
    """A reference made from the simulator by about so many calls, or from what was saved of it.

    There is none where there are too few calls.
    """
    if calls < 1:
        return None
    try:
        return default_reference(root.model, backup, state=root.state, calls=calls, seed=root.seed, saved=saved)
    except TooFewCallsError:
        return None


def _least_calls(reference: Improvable, actions: int) -> int:
    """With fewer calls a reference would not get better, or would take more of them."""
    return 2 * reference.nodes * actions * reference.samples if isinstance(reference, GridReference) else 1
