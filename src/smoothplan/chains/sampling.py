"""Sampling around a reference: chains of the value, their quadratic corrections, and returns of the root's actions.

A pilot of each measures the cost and the variance of a sample. Then every round adds a fraction of the calls made so
far, each part catching up with the share of the calls at which cost × variance is smallest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains.batched import BatchedChains, Chains, values_of
from smoothplan.chains.grid import GridReference, compiles
from smoothplan.chains.jitted import JittedChains
from smoothplan.chains.reference import CriticReference, Reference
from smoothplan.chains.table import TableChains
from smoothplan.confidence import ConfidenceSequence
from smoothplan.models.model import States
from smoothplan.models.tabular import TabularModel
from smoothplan.run.chunks import Chunk, Outcome, Sums, Work
from smoothplan.run.records import Budget, Root, refuse_compiled
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, depends_on_state, is_mixture
from smoothplan.theory.curvature import Problem


class SamplingTuning(NamedTuple):
    """The numbers that tune a run."""

    truncation: float = 0.05  # share of ε, for the part of the value beyond the default horizon
    value_delta: float = 0.6  # shares of δ
    correction_delta: float = 0.3
    action_delta: float = 0.1
    pilot_delta: float = 0.25  # of the corrections' δ, for the pilot's if others with another number of pairs follow
    decision: float = 0.3  # share of the simulator calls, for returns of the root's actions
    pilot: int = 64  # samples of each part before the rest is planned,
    pilot_pairs: int = 32  # and pairs in each correction
    preparation: float = 0.5  # share of the limits on calls and on time for the reference, at most
    improvements: int = 5  # steps in which a reference is improved, each twice as long as the one before


SAMPLING = SamplingTuning()


class Truncation(NamedTuple):
    """The effect of cutting chains off at a horizon, where they continue with the middle of the optimal values."""

    horizon: int
    below: float  # the value of any policy may be lower by this much,
    above: float  # or higher by this much,
    optimal: float  # and the optimal value may differ by this much, either way

    @classmethod
    def at(cls, problem: Problem, horizon: int) -> "Truncation":
        """The truncation at a horizon."""
        (worst, best), middle, left = problem.policy_values, problem.middle, problem.discount**horizon
        return cls(horizon, left * (middle - worst), left * (best - middle), left * problem.width / 2.0)

    @classmethod
    def for_accuracy(cls, problem: Problem, epsilon: float, order: int, error_range: float | None) -> "Truncation":
        """The earliest one, about, that costs only a small part of ε."""
        whole, horizon, tolerated = cls.at(problem, 0), 1, SAMPLING.truncation * epsilon
        while True:
            left = problem.discount**horizon
            found = cls(horizon, left * whole.below, left * whole.above, left * whole.optimal)
            costs = found.optimal if order == 2 or error_range is not None else max(found.below, found.above)
            if order == 2 and error_range is not None:
                # The effect of the tail on pairs is multiplied by the error range.
                wide, narrow = (bias(2, error_range, problem, tail) for tail in (found.below + found.above, 0.0))
                costs += (wide[1] - wide[0] - narrow[1] + narrow[0]) / 2.0
            if costs <= tolerated or problem.discount == 0.0:
                return found
            octave = -math.log(2.0) / math.log(problem.discount)  # steps that halve what is left
            horizon += max(1, math.floor(octave * min(math.log2(costs / tolerated), 1.0)))


@dataclass(frozen=True, eq=False)
class Setting:
    """What all samples of a run have in common: a planner's configuration at a root."""

    root: Root
    backup: Backup
    order: int
    epsilon: float
    delta: float
    pairs: int | None  # of a correction, if it was given
    error_range: float | None  # of the reference, if it was given
    made: bool  # whether the run makes the reference
    problem: Problem
    truncation: Truncation


def bias(order: int, error_range: float, problem: Problem, tail: float) -> tuple[float, float]:
    """Bounds of the error that an order leaves, if the chains of a pair may differ by a tail."""
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


def chains_for(
    root: Root,
    backup: Backup,
    reference: Reference,
    problem: Problem,
    error_range: float | None = None,
    made: bool = False,
) -> tuple[Chains, tuple[float, float]]:
    """The engine for chains around a reference, and bounds of F(Q̂) − Q̂(a), which contain 0.

    An action of the reference that is further than `largest_gap` below the best is raised to that.
    """
    model, tail, actions = root.model, problem.middle, problem.actions
    gap = largest_gap(backup, problem, error_range, made)
    if isinstance(model, TabularModel) and root.engine != "batched":
        states = np.flatnonzero(~model.terminal)
        table = np.zeros((len(model.terminal), actions))
        table[states], _ = conditioned(reference, states, gap, actions)
        advantages = backup.value(table[states], states)[:, None] - table[states]
        ends = float(advantages.min(initial=0.0)), float(advantages.max(initial=0.0))
        return TableChains(model, backup, table, tail), ends
    lowest = min(curvature.gap_to_hard_max(backup, actions)[0], 0.0)  # F(Q̂) − Q̂(a) ≥ F(Q̂) − max Q̂
    if (
        (root.engine != "batched" and isinstance(reference, GridReference) and compiles(model, reference))
        and is_mixture(backup)
        and not depends_on_state(backup)
    ):
        nodes = reference.grid.table
        table = nodes - nodes.max(axis=1, keepdims=True)
        # Interpolation does not widen a range.
        highest = max(problem.at_zero[1] + min(gap, -float(table.min())), 0.0)
        return JittedChains(model, backup, reference.grid._replace(table=table), tail, gap), (lowest, highest)
    refuse_compiled(
        root.engine,
        "a TabularModel, or a JitModel with vectors of float64 for states, a GridReference without periodic axes and "
        "a mixture of softmaxes that does not depend on the state",
        model,
        reference,
        backup,
    )
    engine = BatchedChains(model, backup, lambda states: conditioned(reference, states, gap, actions)[0], tail)
    return engine, (lowest, max(problem.at_zero[1] + gap, 0.0))


def largest_gap(backup: Backup, problem: Problem, error_range: float | None, made: bool = False) -> float:
    """A bound on the distance of an action of a reference from the best; the support of chains grows with it.

    Actions that are together less likely than 1e-12 need not be told apart: the policy is as good as the one given.
    This is known of mixtures of softmaxes. An error range does not grow if no action is raised that could be right,
    and a reference that keeps to it is not changed at all. In a reference that was made, and not given, no action is
    further from the best than actions can be.
    """
    possible = problem.action_gap
    spread = float(np.ptp(backup.shifts(problem.actions), axis=0).max()) if is_mixture(backup) else possible
    likely = spread + backup.temperature * math.log(problem.actions / 1e-12)
    if error_range is not None:
        return max(possible, min(likely, possible + error_range))
    return min(likely, possible) if made else likely


def conditioned(reference: Reference, states: States, gap: float, actions: int) -> tuple[Floats, Floats]:
    """A reference at n states: action values less the best one [n, K], none below −gap, and the best one [n].

    A policy depends on the differences alone, which are not rounded. If range(Q) ≤ gap, range(Q̂ − Q) does not grow.
    """
    values = values_of(reference.q, states, actions)
    top = values.max(axis=1)
    return np.maximum(values - top[:, None], -gap), top


@dataclass
class Mean:
    """The mean of one part's samples, and its interval."""

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
        return self.sequence.total / self.count if self.count else self.guess

    @property
    def variance(self) -> float:
        """The variance of the samples, or the largest possible one."""
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

    def add(self, sums: Sums, calls: int) -> None:
        """Adds samples and their simulator calls."""
        self.sequence.update(sums.samples, sums.total, sums.squares)
        self.calls += calls


class Sampling:
    """Samples around one reference. It keeps the run's limit on calls.

    Args:
        setting: of the run.
        reference: Q̂, which does not change any more; None if nothing is known, so that all actions are worth the same.
        first: the number of the first chunk: no two chunks of a run draw from the same stream.

    Attributes:
        claim: F(Q̂) at the root.
        value: the mean of chains.
        actions: the mean of the returns of each action, [K].
        correction: the mean of corrections; None at order 1.
        pairs: of each correction.
        budgets: of "values", "returns" and "corrections"; empty until the pilot is done.
    """

    def __init__(self, setting: Setting, reference: Reference | None, first: int) -> None:
        self.setting, self._root, self._problem = setting, setting.root, setting.problem
        self._discount, self.horizon, self.next_chunk = setting.problem.discount, setting.truncation.horizon, first
        actions, possible = self._problem.actions, self._problem.action_values
        known = reference or CriticReference(lambda states: np.zeros((len(states), actions)))
        # Asked once before all threads, a reference may bring itself up to date; and its mistakes are found.
        shifted, top = conditioned(known, np.asarray(self._root.state)[None], math.inf, actions)
        self.claim = float(self._root.backed_up(setting.backup, shifted)[0]) + float(top[0])
        guesses = np.clip(shifted[0] + top[0], *possible)
        if reference is None:
            guesses = np.full(actions, sum(possible) / 2.0)
        self.engine, self._advantages = chains_for(
            self._root, setting.backup, known, self._problem, setting.error_range, setting.made
        )
        # The improvement of a reference may depend on time, so a checkpoint tells chains around one from another.
        about = f"reference of {getattr(reference, 'calls', 0)} calls"
        self.work = Work(self.engine, self._root.model, self._root.state, self._root.seed, about)
        self.samples = self._dropped = 0  # dropped: simulator calls of pilot corrections that count no more
        self.budgets: dict[str, Budget] = {}
        self._corrected = Sums(more=(0, 0.0))  # of corrections; more: the pairs of actions that differ, their noise
        self._support = support(self._problem, self._advantages, self.horizon)
        self.pairs, self.correction = 0, None
        if setting.order == 2:
            share = SAMPLING.correction_delta * (SAMPLING.pilot_delta if setting.pairs is None else 1.0)
            self.pairs, self.correction = self._corrections(setting.pairs or SAMPLING.pilot_pairs, share)
        unused = SAMPLING.correction_delta if setting.order == 1 else 0.0
        self.value = self._mean(SAMPLING.value_delta + unused, self._problem.middle)
        self.actions = [self._mean(SAMPLING.action_delta / actions, guess) for guess in guesses]

    def _mean(self, share: float, guess: float) -> Mean:
        """A mean of chains, with a share of δ."""
        delta, target = share * self.setting.delta, self.setting.epsilon / 2.0
        return Mean(ConfidenceSequence(*self._support, delta, target), guess)

    def _corrections(self, pairs: int, share: float) -> tuple[int, Mean | None]:
        """A mean of corrections that have this many pairs each."""
        low, high = self._support
        # Q̂ varies over actions by no more than F(Q̂) − Q̂(a) does.
        reach = high - low + self._advantages[1] - self._advantages[0]
        most = weight(self._discount, self.horizon) * reach**2 / (4.0 * self._problem.temperature)
        delta, target = share * self.setting.delta, self.setting.epsilon / 2.0
        return pairs, Mean(ConfidenceSequence(-most / (pairs - 1), most, delta, target), 0.0)

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self._dropped + sum(mean.calls for some in self._means().values() for mean in some)

    def _means(self) -> dict[str, list[Mean]]:
        means: dict[str, list[Mean]] = {"values": [self.value], "returns": self.actions}
        return means if self.correction is None else {**means, "corrections": [self.correction]}

    def preview(self, count: int) -> tuple[list[Chunk[Sums]], Mean]:
        """Chains of the value that enter no interval: their chunks, and a mean for them."""
        return list(self._chunks("values", 0, count, math.inf)), self._mean(0.5, 0.0)

    def next(self, spent: int) -> list[Chunk[Sums]]:
        """The next chunks that the limit on calls allows: of the pilot, or once that is done of a round.

        Args:
            spent: simulator calls that the run has made besides those around this reference.
        """
        limit, means = self._root.max_calls, self._means()
        left = math.inf if limit is None else limit - spent - self.calls
        # Each part catches up with its share. A round adds a quarter of the calls made, but no more than 8 chunks, or a
        # sixteenth of the calls if that is more: so there is work for many workers, and seldom too much of it.
        work = spent + self._dropped + sum(mean.work for some in means.values() for mean in some)
        total = work + min(work / 4, max(8 * self.engine.chunk_calls, work / 16))
        chunks: list[Chunk[Sums]] = []
        for part in self.budgets or means:
            for number, mean in enumerate(means[part]):
                count = SAMPLING.pilot
                if self.budgets:
                    budget = self.budgets[part]
                    count = math.ceil((budget.share * total / len(means[part]) - mean.work) / budget.calls)
                added = list(self._chunks(part, number, count, left))
                left -= sum(chunk.samples for chunk in added) * self._most_calls(part)
                chunks += added
        return chunks

    def _chunks(self, part: str, action: int, count: int, left: float) -> Iterator[Chunk[Sums]]:
        """Samples in chunks, as many as the calls that are left are sure to allow."""
        each = self._most_calls(part)
        count = count if left == math.inf else min(count, int(left) // each)
        size = max(1, self.engine.chunk_calls // each)
        for start in range(0, count, size):
            samples = min(size, count - start)
            asked: tuple[int, ...] = (samples, self.pairs, self.horizon)
            if part != "corrections":
                asked = (samples, self.horizon) if part == "values" else (action, samples, self.horizon)
            yield Chunk(self.next_chunk, getattr(type(self.engine), part), asked, samples, action, part)
            self.next_chunk += 1

    def _most_calls(self, part: str) -> int:
        """Simulator calls of one sample, at most."""
        return self.horizon * (1 + 2 * self.pairs) if part == "corrections" else self.horizon

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
        rest = 1.0 - SAMPLING.decision
        if self.correction is not None:
            tried = np.unique(np.round(2.0 ** np.arange(1.0, 12.01, 0.5)).astype(np.int64))
            pairs = np.append(tried, self.pairs)
            costs, variances = self._correction_prices(pairs, each)
            chosen, best = -1, int(np.argmin(costs * variances))
            # The pilot must have seen enough to judge by, and the limit must allow as many calls once more.
            limit = self._root.max_calls
            enough = self.correction.count >= SAMPLING.pilot and (
                limit is None or rest * (limit - spent - self.calls) >= 2.0 * self.correction.calls
            )
            if self.setting.pairs is None and pairs[best] != self.pairs and enough:
                # The pilot's corrections have another variance.
                chosen = best
                self._dropped += self.correction.calls
                share = SAMPLING.correction_delta * (1.0 - SAMPLING.pilot_delta)
                self.pairs, self.correction = self._corrections(int(pairs[best]), share)
            parts["corrections"] = float(costs[chosen]), float(variances[chosen])
        weights = {}
        for part, (calls, variance) in parts.items():
            if self.setting.error_range is not None:
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
        self.budgets["returns"] = Budget(max(returns, 1.0), most, SAMPLING.decision)

    def _correction_prices(self, pairs: Ints, chain_calls: float) -> tuple[Floats, Floats]:
        """Calls and variance of a correction for numbers of pairs, extrapolated from the corrections so far.

        A pair's difference x has mean D and variance σ²; the U-statistic of n of them has mean D² and the variance
        4D²σ²/n + 2σ⁴/(n(n−1)), beside the variance of D² itself over states and actions.
        """
        assert self.correction is not None
        sums, steps = self._corrected, weight(self._discount, self.horizon)
        differed, spread = sums.more
        scale = steps / (4.0 * self._problem.temperature)
        # If no two actions differed, the next ones may: with the variance of two chains.
        differing = max(differed, 1) / max(sums.samples, 1)
        noise = spread / differed if differed else 2.0 * self.value.variance
        # E[D²], counting equal actions as 0: the estimate plus its standard error, as too little would ask for too many
        # pairs. D² varies at least as much as it would if it took one value.
        square = (max(sums.total / max(sums.samples, 1), 0.0) + self.correction.error) / scale
        variance = 4.0 * square * noise / pairs + 2.0 * differing * noise**2 / (pairs * (pairs - 1.0))
        costs = steps + 2.0 * differing * chain_calls * pairs
        return np.asarray(costs), np.asarray(scale**2 * (variance + square**2 / differing))
