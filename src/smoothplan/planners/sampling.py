"""Sampling around a reference: chains of the value, their quadratic corrections, and returns of the root's actions.

A pilot of each measures what a sample costs and how much it varies. Then every round adds a fraction of the calls made
so far, each part catching up with the share of the calls at which cost × variance is smallest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smoothplan import curvature
from smoothplan.arguments import Floats, Ints
from smoothplan.confidence import ConfidenceSequence
from smoothplan.engines.chains import PairSums
from smoothplan.models.base import States
from smoothplan.planners.chunks import chunk_size
from smoothplan.planners.engines import chains_for, conditioned
from smoothplan.references import Reference
from smoothplan.running.run import Budget, Root
from smoothplan.running.work import Chunk, Method, Outcome, Work
from smoothplan.schedules.level import Problem

if TYPE_CHECKING:
    from smoothplan.planners.reference_cruiser import ReferenceCruiser

CUT_SHARE = 0.05
"""The part of ε that may be lost where chains are cut off, by default."""

VALUE_SHARE, CORRECTION_SHARE, ACTION_SHARE = 0.6, 0.3, 0.1
"""The parts of δ for chains of the value, for its quadratic corrections, and for returns of the root's actions."""

PILOT, PILOT_PAIRS = 64, 32
"""Samples of each part, and pairs in each correction, before the rest is planned."""

PILOT_SHARE = 0.25
"""The part of the corrections' δ for those of the pilot, where others follow that have another number of pairs."""

DECISION_SHARE = 0.3
"""The part of the simulator calls that goes to returns of the root's actions."""


class Cut(NamedTuple):
    """What is left out where chains are cut off at a horizon."""

    horizon: int
    below: float  # by how much the value of any policy may be lower,
    above: float  # by how much it may be higher,
    optimal: float  # and how far the optimal value may be, either way

    @classmethod
    def at(cls, problem: Problem, horizon: int) -> "Cut":
        """The cut at a horizon, where a chain goes on with the middle of the optimal values."""
        (worst, best), left = problem.policy_values, problem.discount**horizon
        return cls(horizon, left * (problem.middle - worst), left * (best - problem.middle), left * problem.width / 2.0)

    @classmethod
    def of(cls, planner: "ReferenceCruiser", problem: Problem) -> "Cut":
        """The cut at the planner's horizon; by default where it costs only a small part of ε."""
        cut, tolerated = cls.at(problem, planner.horizon or 1), CUT_SHARE * planner.epsilon
        if planner.horizon is not None or problem.discount == 0.0:
            return cut
        octave = -math.log(2.0) / math.log(problem.discount)  # steps that halve what is left
        while (costs := cut._costs(planner, problem)) > tolerated:
            excess = min(math.log2(costs / tolerated), 1.0)
            cut = cls.at(problem, cut.horizon + max(1, math.floor(octave * excess)))
        return cut

    def _costs(self, planner: "ReferenceCruiser", problem: Problem) -> float:
        """By how much the cut widens the result."""
        if planner.error_range is None:
            return self.optimal if planner.order == 2 else max(self.below, self.above)
        if planner.order == 1:
            return self.optimal
        # What the tail does to pairs is multiplied by the error range.
        with_tail, without = (bias(2, planner.error_range, problem, tail) for tail in (self.below + self.above, 0.0))
        return self.optimal + (with_tail[1] - with_tail[0] - without[1] + without[0]) / 2.0


def bias(order: int, error_range: float, problem: Problem, tail: float) -> tuple[float, float]:
    """Bounds of what an order leaves out, where the chains of a pair may differ by a tail."""
    # A backup of one action has no curvature at all.
    temperature = problem.temperature if problem.pairs else 1.0 / max(4.0 * problem.derivatives[0], curvature.SMALLEST)
    return curvature.reference_bias(order, error_range, temperature, problem.discount, tail)


def support(problem: Problem, advantages: tuple[float, float], horizon: int) -> tuple[float, float]:
    """Bounds of a chain with a horizon, and of a return, whose first step has no advantage."""
    steps, tail = weight(problem.discount, horizon), problem.discount**horizon * problem.middle
    low, high = (steps * (end + advantage) for end, advantage in zip(problem.reward_range, advantages, strict=True))
    if problem.terminates:
        return min(low, 0.0) + min(tail, 0.0), max(high, 0.0) + max(tail, 0.0)
    return low + tail, high + tail


def weight(discount: float, horizon: int) -> float:
    """Σ γ^t over the steps of a chain."""
    return (1.0 - discount**horizon) / (1.0 - discount)


class AllAlike:
    """The reference where nothing is known: all actions are worth the same."""

    def __init__(self, actions: int) -> None:
        self._actions = actions

    def q(self, states: States) -> Floats:
        """Zeros, [n, K]."""
        return np.zeros((len(states), self._actions))


@dataclass
class Mean:
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


class Sampling:
    """Samples around one reference. It keeps the run's limit on calls.

    Args:
        planner: the configuration.
        root: where to sample.
        problem: of the planner at the root.
        cut: where chains end.
        reference: Q̂, which does not change any more.
        first: the number of the first chunk: no two chunks of a run draw from the same stream.
    """

    def __init__(
        self, planner: "ReferenceCruiser", root: Root, problem: Problem, cut: Cut, reference: Reference, first: int
    ) -> None:
        self._planner, self._root, self._problem, self.horizon = planner, root, problem, cut.horizon
        self.next_chunk = first
        # Asked once before all threads, a reference may bring itself up to date; and its mistakes are found.
        here = conditioned(reference, math.inf, problem.actions)(np.asarray(root.state)[None])
        self.claim = float(root.backed_up(planner.backup, here.shifted)[0]) + float(here.top[0])
        bounded = planner.error_range is not None
        self.engine, self._advantages = chains_for(root, planner.backup, reference, problem, bounded)
        # How far a reference was improved may depend on time, so a checkpoint tells chains around one from another.
        about = f"reference of {getattr(reference, 'calls', 0)} calls"
        self.work = Work(self.engine, root.model, root.state, root.seed, about)
        self._dropped = 0  # simulator calls of pilot corrections that count no more
        self.samples = 0
        self.budgets: dict[Method, Budget] = {}
        self._pair_sums = np.zeros(5)  # as in PairSums
        self.pairs, self.correction = 0, None
        if planner.order == 2:
            share = CORRECTION_SHARE * (PILOT_SHARE if planner.pairs is None else 1.0)
            self.pairs, self.correction = self._corrections(planner.pairs or PILOT_PAIRS, share)
        possible = problem.action_values
        guesses = np.clip(here.shifted[0] + here.top[0], *possible)
        if isinstance(reference, AllAlike):
            guesses = np.full(problem.actions, sum(possible) / 2.0)
        self.value = self._mean(VALUE_SHARE + (CORRECTION_SHARE if planner.order == 1 else 0.0), problem.middle)
        self.actions = [self._mean(ACTION_SHARE / problem.actions, guess) for guess in guesses]

    def _mean(self, share: float, guess: float) -> Mean:
        """A mean of chains, for which there is a share of δ."""
        ends = support(self._problem, self._advantages, self.horizon)
        return Mean(ConfidenceSequence(*ends, share * self._planner.delta, self._planner.epsilon / 2.0), guess)

    def _corrections(self, pairs: int, share: float) -> tuple[int, Mean | None]:
        """A mean of corrections that have this many pairs each."""
        low, high = support(self._problem, self._advantages, self.horizon)
        # Q̂ varies over actions by no more than F(Q̂) − Q̂(a) does.
        reach = high - low + self._advantages[1] - self._advantages[0]
        most = weight(self._problem.discount, self.horizon) * reach**2 / (4.0 * self._problem.temperature)
        delta, target = share * self._planner.delta, self._planner.epsilon / 2.0
        return pairs, Mean(ConfidenceSequence(-most / (pairs - 1), most, delta, target), 0.0)

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self._dropped + sum(mean.calls for mean in self._means())

    def _means(self) -> list[Mean]:
        return [self.value, *self.actions, *([] if self.correction is None else [self.correction])]

    def trial(self, count: int) -> tuple[list[Chunk], Mean]:
        """Chains of the value that go into no interval: their chunks, and a mean for them."""
        return list(self._chunks("values", 0, count, math.inf)), self._mean(0.5, 0.0)

    def next(self, spent: int) -> list[Chunk]:
        """The next chunks that the limit on calls allows: of the pilot, or once that is done of a round.

        Args:
            spent: simulator calls that the run has made besides those around this reference.
        """
        limit = self._root.max_calls
        left = math.inf if limit is None else limit - spent - self.calls
        chunks: list[Chunk] = []
        for part, action, count in self._round(spent) if self.budgets else self._pilot():
            added = list(self._chunks(part, action, count, left))
            left -= sum(chunk.samples for chunk in added) * self._most_calls(part)
            chunks += added
        return chunks

    def _pilot(self) -> Iterator[tuple[Method, int, int]]:
        """A few samples of each part."""
        yield "values", 0, PILOT
        for action in range(self._problem.actions):
            yield "returns", action, PILOT
        if self.correction is not None:
            yield "corrections", 0, PILOT

    def _round(self, spent: int) -> Iterator[tuple[Method, int, int]]:
        """Each part catches up with its share of the calls.

        A round adds a quarter of the calls made, but no more than 8 chunks, or a sixteenth of the calls if that is
        more: so there is work for many workers, and seldom too much of it.
        """
        work = spent + self._dropped + sum(mean.work for mean in self._means())
        total = work + min(work / 4, max(8 * self.engine.chunk_calls, work / 16))
        for part, budget in self.budgets.items():
            means = self.actions if part == "returns" else [self._part(part)]
            for number, mean in enumerate(means):
                behind = budget.share * total / len(means) - mean.work
                yield part, number, math.ceil(behind / budget.calls)

    def _chunks(self, part: Method, action: int, count: int, left: float) -> Iterator[Chunk]:
        """Samples in chunks, as many as the calls that are left are sure to allow."""
        each = self._most_calls(part)
        count = count if left == math.inf else min(count, int(left) // each)
        size = chunk_size(self.engine.chunk_calls, each)
        for start in range(0, count, size):
            samples = min(size, count - start)
            shape: dict[Method, tuple[int, ...]] = {
                "values": (samples, self.horizon),
                "returns": (action, samples, self.horizon),
                "corrections": (samples, self.pairs, self.horizon),
            }
            yield Chunk(self.next_chunk, part, shape[part], samples, action)
            self.next_chunk += 1

    def _most_calls(self, part: Method) -> int:
        """Simulator calls of one sample, at most."""
        return self.horizon * (1 + 2 * self.pairs) if part == "corrections" else self.horizon

    def _part(self, part: Method, action: int = 0) -> Mean:
        if part == "returns":
            return self.actions[action]
        if part == "values":
            return self.value
        assert self.correction is not None
        return self.correction

    def book(self, chunk: Chunk, outcome: Outcome) -> None:
        """Takes a chunk into account."""
        sums, mean = outcome.sums, self._part(chunk.method, chunk.action)
        mean.sequence.update(*sums[:3])
        mean.calls += outcome.calls
        self.samples += sums.samples
        if isinstance(sums, PairSums):
            self._pair_sums += np.array(sums)

    def split(self, spent: int) -> None:
        """How many pairs, and which part gets how many calls: what makes cost × variance smallest, by the pilot."""
        each = max(self.value.calls / max(self.value.count, 1), 1.0)
        returns = sum(mean.calls for mean in self.actions) / max(sum(mean.count for mean in self.actions), 1)
        parts: dict[Method, tuple[float, float]] = {"values": (each, self.value.variance)}
        if self.correction is not None:
            tried = np.unique(np.round(2.0 ** np.arange(1.0, 12.01, 0.5)).astype(np.int64))
            pairs = np.append(tried, self.pairs)
            costs, variances = self._correction_prices(pairs, each)
            chosen, best = -1, int(np.argmin(costs * variances))
            # The pilot must have seen enough to judge by, and the limit must allow as many calls once more.
            limit, rest = self._root.max_calls, 1.0 - DECISION_SHARE
            enough = self.correction.count >= PILOT and (
                limit is None or rest * (limit - spent - self.calls) >= 2.0 * self.correction.calls
            )
            if self._planner.pairs is None and pairs[best] != self.pairs and enough:
                # The pilot's corrections have another variance.
                chosen = best
                self._dropped += self.correction.calls
                share = CORRECTION_SHARE * (1.0 - PILOT_SHARE)
                self.pairs, self.correction = self._corrections(int(pairs[best]), share)
            parts["corrections"] = float(costs[chosen]), float(variances[chosen])
        weights = {
            part: math.sqrt(calls * self._effective(part, variance)) for part, (calls, variance) in parts.items()
        }
        total, rest = sum(weights.values()), 1.0 - DECISION_SHARE
        least = 0.05  # the part of the rest that each gets at least, however little it varies in the pilot
        for part, (calls, variance) in parts.items():
            relative = weights[part] / total if total > 0.0 else 1.0 / len(parts)
            share = rest * (least + (1.0 - least * len(parts)) * relative)
            self.budgets[part] = Budget(calls, variance, share)
        most = max(mean.variance for mean in self.actions)
        self.budgets["returns"] = Budget(max(returns, 1.0), most, DECISION_SHARE)

    def _effective(self, part: Method, variance: float) -> float:
        """A variance and, where the interval must shrink, what the width of the support adds to it (Bernstein)."""
        if self._planner.error_range is None:
            return variance
        sequence = self._part(part).sequence
        return variance + (sequence.high - sequence.low) * sequence.target / 3.0

    def _correction_prices(self, pairs: Ints, chain_calls: float) -> tuple[Floats, Floats]:
        """Calls and variance of a correction for numbers of pairs, extrapolated from the corrections so far.

        A pair's difference x has mean D and variance σ²; the U-statistic of n of them has mean D² and the variance
        4D²σ²/n + 2σ⁴/(n(n−1)), beside the variance of D² itself over states and actions.
        """
        assert self.correction is not None
        sums, steps = PairSums(*self._pair_sums), weight(self._problem.discount, self.horizon)
        scale = steps / (4.0 * self._problem.temperature)
        # Where no two actions differed, one of the next may: with the variance of two chains.
        differing = max(sums.differing, 1) / max(sums.samples, 1)
        noise = sums.noise / sums.differing if sums.differing else 2.0 * self.value.variance
        # E[D²], counting equal actions as 0: the estimate and its standard error, for too little would ask for too many
        # pairs. D² varies at least as much as it would if it took one value.
        square = (max(sums.total / max(sums.samples, 1), 0.0) + self.correction.error) / scale
        variance = 4.0 * square * noise / pairs + 2.0 * differing * noise**2 / (pairs * (pairs - 1.0))
        costs = steps + 2.0 * differing * chain_calls * pairs
        return np.asarray(costs), np.asarray(scale**2 * (variance + square**2 / differing))
