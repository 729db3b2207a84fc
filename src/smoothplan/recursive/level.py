"""Levels and schedules: every recursive planner is a table of levels, and this arithmetic certifies the table.

A level is a recipe for a random variable Y(s), which estimates the value V(s) of any state s:

    constant   the middle of the value interval
    plug-in    F(Q̂), with Q̂ the mean of N returns per action (Sparse Sampling)
    order-1    F(Q̂) + X_A − Q̂(A), with A ~ ∇F(Q̂) (SmoothCruiser)
    order-2    order-1 plus an unbiased estimate of ½ΔᵀHΔ from n pairs of returns (SecondOrderSmoothCruiser)

Plug-in and order-1 levels may be debiased (DebiasedCruiser): F(Q̂) is replaced by a weighted sum of F at means of the
same returns over blocks, which cancels the first terms of the bias that the noise of Q̂ causes, see `debias`.

A level may be for the states of a stage: those with at most so many steps left. Its children are for a step less, and a
schedule of stages ends with episodes: no bias is left below the last step.

A return X = R + γ·Y(Z) goes through a coarser level at the next state Z; if Z is terminal, X = R. Rewards are cheap
beside samples of a level, so R may be the mean of M rewards of the same action, the first of which leads to Z. Bounds
are proved for each level at every state: bias, variance, support, and cost in simulator calls. This takes no simulator
call and spends no probability of failure: inside the recursion only moments of range(Q̂ − Q) matter. The formulas
accept arrays, so that a search evaluates many candidates at once.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

import numpy as np

from smoothplan.base.arguments import Numbers
from smoothplan.recursive import debias as debiasing
from smoothplan.theory import curvature
from smoothplan.theory.curvature import Problem

Kind = Literal["constant", "plug-in", "order-1", "order-2"]


@dataclass(frozen=True)
class Level:
    """A row of a schedule: a recipe for a sample of V(s). Children are rows further up in the table."""

    kind: Kind
    _: KW_ONLY
    samples: int = 0  # N, returns per action in the reference; 0: all actions alike
    reference: int | None = None  # the level that these returns go through
    debias: int = 0  # terms of the bias by the reference's noise that are cancelled: N^−1, or N^−1 and N^−2
    rewards: int = 1  # M, rewards averaged in every return *through* this level
    linear: int | None = None  # the level of the return X_A
    quadratic: int | None = None  # the level of the paired returns
    pairs: int = 0  # n
    shift: float = 0.0  # added to the sample
    left: int | None = None  # the level is for states with at most that many steps left; for all states if None
    # Published algorithms only:
    printed: bool = False  # X_A is centred by ⟨π, Q̂⟩ instead of Q̂(A), and pairs of one action are drawn too
    clip: tuple[float, float] | None = None  # of every entry of Q̂ and of the sample

    def __post_init__(self) -> None:
        blocks = 2**self.debias
        if self.debias > 0 and (self.samples < blocks or self.samples % blocks > 0):
            raise ValueError(f"samples must be a multiple of {blocks} for debias={self.debias}, got {self.samples}")
        if self.debias > 0 and (self.kind not in ("plug-in", "order-1") or self.clip is not None):
            raise ValueError(f"debias must be 0 for a level of kind {self.kind!r} with clip={self.clip}")

    @property
    def children(self) -> tuple[int, ...]:
        """The levels that this one refers to."""
        return tuple(child for child in (self.reference, self.linear, self.quadratic) if child is not None)


class Bounds(NamedTuple):
    """A certificate: of a sample Y of a level, at every state that is not terminal; or of a return X, at every pair."""

    bias: Numbers  # |E Y − V(s)| ≤ bias, |E X − Q(s, a)| ≤ bias
    variance: Numbers
    low: Numbers  # low ≤ Y ≤ high
    high: Numbers
    calls: Numbers  # simulator calls of one sample, at most
    shift: Numbers = 0.0  # added by a level to centre an error of known sign

    @property
    def width(self) -> Numbers:
        """D, a bound on |Y − E Y|."""
        return self.high - self.low


class ReferenceMoments(NamedTuple):
    """The certificate of a reference Q̂: bounds on its bias E Q̂ − Q, and on moments of its noise e = Q̂ − E Q̂."""

    bias: Numbers  # t: every entry of E Q̂ is within t of Q
    width: Numbers  # width of an interval that contains every entry of Q̂
    calls: Numbers
    deviation: Numbers = 0.0  # s, the standard deviation of one entry of e
    noise_second: Numbers = 0.0  # ‖range(e)‖ in L²
    noise_fourth: Numbers = 0.0  # the same in L⁴
    samples: Numbers = 0.0  # N, returns per action

    @property
    def second(self) -> Numbers:
        """r₂ = ‖range(Q̂ − Q)‖ in L²."""
        return self.noise_second + 2.0 * self.bias

    @property
    def fourth(self) -> Numbers:
        """r₄, the same in L⁴."""
        return self.noise_fourth + 2.0 * self.bias

    @property
    def averaged(self) -> tuple[Numbers, Numbers, Numbers]:
        """Variance and width of one return, and the number of returns per action."""
        return self.deviation**2 * self.samples, self.width, self.samples


def one_step(problem: Problem, level: Bounds, rewards: Numbers = 1) -> Bounds:
    """The return through a level, with the mean of M rewards, of which M − 1 are independent of Z."""
    low, high, alone, future = _next(problem, level)
    return Bounds(
        bias=problem.discount * level.bias,
        variance=future + (alone - future) / rewards,
        low=problem.reward_range[0] + problem.discount * low,
        high=problem.reward_range[1] + problem.discount * high,
        calls=rewards + level.calls,
    )


def _next(problem: Problem, level: Bounds) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Bounds of Y(Z), which is 0 if Z is terminal, of Var(R + γ·Y(Z)) with one reward, and of Var(γ·Y(Z))."""
    low, high = level.low, level.high
    if problem.terminates:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    # The variance of the mean given (R, Z), at most a quarter of the squared width (Popoviciu), plus γ² times the
    # level's. That mean moves by no more than the values ± bias do, and by no more than the level's support.
    spread = 0.0 if problem.single_successor else np.minimum(problem.width + 2.0 * level.bias, high - low)
    own = problem.discount**2 * level.variance
    half = problem.discount * spread / 2.0
    return low, high, (problem.reward_noise / 2.0 + half) ** 2 + own, half**2 + own


def best_rewards(problem: Problem, level: Bounds) -> Numbers:
    """M, the number of rewards in a return through a level that makes the mean of many returns cheapest."""
    # Cost times variance, (M + T)·(future + rest/M), is least at M = √(T·rest/future). More than T rewards are never
    # worth it: they would more than double the cost.
    alone, future = map(np.asarray, _next(problem, level)[2:])
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.sqrt(level.calls) * np.sqrt((alone - future) / future)
    # Without noise in the future or in the rewards it is ∞ or not a number. No run draws 1e9 rewards at once.
    best = np.where(alone > future, np.minimum(best, np.minimum(level.calls, 1e9)), 1.0)
    return np.maximum(np.round(best), 1.0)


def constant_reference(problem: Problem) -> ReferenceMoments:
    """A reference that costs nothing: all actions alike."""
    return ReferenceMoments(problem.action_gap / 2.0, 0.0, 0.0)


def reference(problem: Problem, through: Bounds, samples: Numbers) -> ReferenceMoments:
    """The mean of N returns per action."""
    noise = debiasing.noise(problem.actions, through.variance, through.width, samples)
    return ReferenceMoments(
        bias=through.bias,
        deviation=np.sqrt(through.variance / samples),
        noise_second=noise.second,
        noise_fourth=noise.fourth,
        width=through.width,
        calls=problem.actions * samples * through.calls,
        samples=samples,
    )


def _first_remainder(problem: Problem, by_range: Numbers, by_square: Numbers) -> Numbers:
    """min(range, d₂/2·range²): the largest F − T₁, from norms of the range; the hard maximum has the first only."""
    if not problem.derivatives:
        return by_range
    return np.minimum(by_range, problem.derivatives[0] / 2.0 * by_square**2)


def _swing(problem: Problem, around: ReferenceMoments, kind: debiasing.Debiased, debias: int) -> Numbers:
    """A bound of the L² norm of the weighted sum in place of F(Q̂), less the linear part of F(Q̂)."""
    # A sum of positive parts less a sum of negative parts. F(Q̂) is above its linear part; F(Q̂) − ⟨∇F(Q̂), e⟩ is below
    # F(E Q̂).
    sides = [_first_remainder(problem, around.noise_second, around.noise_fourth), 0.0]
    above, below = debiasing.swings(kind, debias)
    with_own, against = (above, below) if kind == "plug-in" else (below, above)
    variance, width, samples = around.averaged
    for split in range(debias):
        block = debiasing.noise(problem.actions, variance, width, samples / 2**split)
        most = _first_remainder(problem, block.second, block.fourth)
        sides = [sides[0] + with_own[split] * most, sides[1] + against[split] * most]
    return np.hypot(*sides)


def plug_in(problem: Problem, through: Bounds, around: ReferenceMoments, debias: int = 0) -> Bounds:
    """F(Q̂), or the weighted sum in its place.

    By convexity the mean of F(Q̂) exceeds F(E Q̂). Half of that is taken off, unless it is cancelled.
    """
    others, actions = problem.actions - 1, problem.actions
    deviation, shift = around.deviation, 0.0
    spread = np.sqrt(actions) * deviation  # Efron and Stein
    if debias == 0:
        # E max e ≤ (K−1)s/√K: the largest of e_a − ē is at most √((K−1)/K) of their norm.
        noise = _first_remainder(problem, others / math.sqrt(actions) * deviation, around.noise_second) / 2.0
        shift = -noise
    else:
        noise = debiasing.left_over("plug-in", debias, problem.actions, problem.derivatives, *around.averaged)
    if problem.derivatives:
        # The linear part has a deviation of at most s.
        curved = deviation + _swing(problem, around, "plug-in", debias)
        spread = np.minimum(spread, curved) if debias == 0 else curved
    above, below = debiasing.swings("plug-in", debias)
    split = _first_remainder(problem, around.width, around.width)  # added by a split, at most
    return Bounds(
        bias=through.bias + noise,
        variance=spread**2,
        low=through.low + problem.at_zero[0] - sum(below) * split + shift,
        high=through.high + problem.at_zero[1] + sum(above) * split + shift,
        calls=around.calls,
        shift=shift,
    )


def first_order(
    problem: Problem, around: ReferenceMoments, linear: Bounds, debias: int = 0, printed: bool = False
) -> Bounds:
    """F(Q̂) + X_A − Q̂(A). The Taylor remainder is never negative: half of its bound is added.

    The bias t of Q̂ and its noise are expanded one after the other: F at E Q̂ with its gradient there is too low by the
    first remainder of the bias. Noise changes that gradient by d₃/2·range(e)², which multiplies a difference of biases.
    """
    by_bias = _first_remainder(problem, 2.0 * around.bias, 2.0 * around.bias)
    apart = around.bias + linear.bias  # half of the range of E X − E Q̂
    cross = math.inf if len(problem.derivatives) < 2 else problem.derivatives[1] * around.noise_second**2 * apart
    cross = np.where(around.noise_second == 0.0, 0.0, cross)
    if debias == 0:
        by_noise = _first_remainder(problem, around.noise_second, around.noise_second)
        apart_half, at_once = (by_bias + by_noise) / 2.0, _first_remainder(problem, around.second, around.second) / 2.0
        better = apart_half + cross < at_once
        shift = np.where(better, apart_half, at_once)
        remainder = shift + np.where(better, cross, 0.0)
    else:
        shift = by_bias / 2.0
        left = debiasing.left_over("order-1", debias, problem.actions, problem.derivatives, *around.averaged)
        remainder = shift + cross + left
    between = 2.0 * linear.bias + (problem.action_gap if printed else around.second)
    # How the mean given Q̂ varies with its noise: through F, and through the policy that weighs differences of biases.
    steepness = np.minimum(2.0, 2.0 * problem.derivatives[0] * around.noise_second)
    drift = _swing(problem, around, "order-1", debias) + steepness * apart
    least, most = _advantage(problem, around, debias)
    return Bounds(
        bias=remainder + linear.bias,
        variance=linear.variance + between**2 / 4.0 + drift**2,
        low=least + linear.low + shift,
        high=most + linear.high + shift,
        calls=around.calls + linear.calls,
        shift=shift,
    )


def _advantage(problem: Problem, around: ReferenceMoments, debias: int = 0) -> tuple[Numbers, Numbers]:
    """Bounds of F(Q̂) − Q̂(A), or with the weighted sum in place of F(Q̂); see `debias.swings`."""
    # An entry of Q̂, over any block, is in an interval of the reference's width D. So F at blocks is at most F(0) + D
    # above Q̂(A); a negative weight adds as much as it takes off a positive one, up to D; and a slope is at most D. F is
    # above max Q̂ less the cost of the regulariser, and so above Q̂(A) and ⟨π, Q̂⟩.
    weights = debiasing.DEBIASING["order-1", debias]
    above, below = debiasing.swings("order-1", debias)
    split = _first_remainder(problem, around.width, around.width)
    excess = sum(-value for value in weights.values if value < 0.0) + sum(weights.slopes)
    least = np.maximum(problem.at_zero[0] - around.width, problem.above_max) - sum(below) * split
    return least, problem.at_zero[1] + around.width + np.minimum(sum(above) * split, excess * around.width)


def second_order(
    problem: Problem,
    around: ReferenceMoments,
    linear: Bounds,
    quadratic: Bounds,
    pairs: Numbers,
    printed: bool = False,
) -> Bounds:
    """Order 1 plus the U-statistic of n ≥ 2 paired differences, over 4η.

    Given Q̂ the linear and the quadratic part are independent, so their variances add. With d the mean of a paired
    difference, a U-statistic has variance 4d²σ²/n + 2σ⁴/(n(n−1)) with σ² = 2·Var X, and |d| ≤ range + 2·bias.
    """
    eta = problem.temperature
    remainder = np.minimum(
        curvature.remainder_constant(3, eta) * around.second * around.fourth**2,
        curvature.remainder_constant(2, eta) * around.second**2,
    )
    # (1/2η)(2·Cov(Δ, β) + Var β), where the range of the pairs' bias β is at most twice that of a return.
    pair_bias = quadratic.bias / (2.0 * eta) * (around.second + quadratic.bias)
    between = (problem.action_gap if printed else around.second) + 2.0 * linear.bias
    spread = (
        8.0 * quadratic.variance * (around.second + 2.0 * quadratic.bias) ** 2 / pairs
        + 8.0 * quadratic.variance**2 / (pairs * (pairs - 1))
        + (around.fourth + 2.0 * quadratic.bias) ** 4
    )
    # Unlike F − T₁, F − T₂ may exceed the range: far from Q̂ the quadratic term overshoots.
    drawn = 1.0 if printed else problem.differing
    drift = curvature.remainder_constant(2, eta) * around.fourth**2 + linear.bias + pair_bias
    largest = (quadratic.width + around.width) ** 2 / (4.0 * eta)
    least, most = _advantage(problem, around)
    return Bounds(
        bias=remainder + linear.bias + pair_bias,
        variance=linear.variance + between**2 / 4.0 + drawn * spread / (16.0 * eta**2) + drift**2,
        low=least + linear.low - largest / (pairs - 1),
        high=most + linear.high + largest,
        calls=around.calls + linear.calls + 2.0 * pairs * quadratic.calls,
    )


def certify(problem: Problem, levels: Sequence[Level]) -> list[Bounds]:
    """The certificates of a table of levels, each from those of its children."""
    certificates: list[Bounds] = []
    returns: list[Bounds] = []
    for row, level in enumerate(levels):
        if any(not 0 <= child < row for child in level.children):
            raise ValueError(f"level {row} refers to levels {level.children}, which are not all above it")
        stages = [levels[child].left for child in level.children]
        steps = problem.horizon if level.left is None else level.left
        if any(left is not None and (steps is None or left < steps - 1) for left in stages):
            raise ValueError(
                f"level {row} for {steps} steps refers to levels for {stages}: its children need {steps} - 1"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            certificates.append(certify_level(problem.at(level.left), level, returns))
        returns.append(one_step(problem.at(level.left), certificates[-1], level.rewards))
    return certificates


def certify_level(
    problem: Problem, level: Level, returns: Sequence[Bounds], around: ReferenceMoments | None = None
) -> Bounds:
    """The certificate of a level, from those of returns through the levels above it; around a reference, if given."""
    most = debiasing.largest_debias(problem.derivatives)
    if level.debias > most:
        known = f"a backup with {len(problem.derivatives)} bounded derivatives"
        raise ValueError(f"debias must be at most {most} for {known}, got {level.debias}")
    if level.kind == "constant":
        # A shift away from the middle, such as the printed answer 0, adds to the bias.
        value = problem.middle + level.shift
        return Bounds(problem.width / 2.0 + abs(level.shift), 0.0, value, value, 0.0, level.shift)
    if around is None:
        around = constant_reference(problem)
        if level.samples > 0:
            assert level.reference is not None
            around = reference(problem, returns[level.reference], level.samples)
        if level.clip is not None and level.kind != "plug-in":
            around = clipped_reference(problem, around, *level.clip)
    if level.kind == "plug-in":
        assert level.reference is not None
        through = returns[level.reference]
        proved = plug_in(problem, through, around, level.debias)
        if level.clip and (room := min(level.clip[1] - through.high, through.low - level.clip[0])) < 0.0:
            # Clipping moves F by no more than an entry of Q̂, on average over all K. Efron and Stein still hold.
            proved = proved._replace(
                bias=proved.bias + problem.actions * _overshoot(around.deviation**2, room),
                variance=problem.actions * around.deviation**2,
                low=np.clip(through.low, *level.clip) + problem.at_zero[0] + proved.shift,
                high=np.clip(through.high, *level.clip) + problem.at_zero[1] + proved.shift,
            )
    else:
        assert level.linear is not None
        linear = returns[level.linear]
        if level.quadratic is None:
            proved = first_order(problem, around, linear, level.debias, level.printed)
        else:
            proved = second_order(problem, around, linear, returns[level.quadratic], level.pairs, level.printed)
    # The shift and the clipping that the level really has.
    missing = level.shift - proved.shift
    proved = proved._replace(
        bias=proved.bias + abs(missing), low=proved.low + missing, high=proved.high + missing, shift=level.shift
    )
    return proved if level.clip is None else clipped(problem, proved, *level.clip)


def _overshoot(variance: Numbers, room: Numbers) -> Numbers:
    """The largest mean excess of a variable over a bound that is `room` above its mean: (√(v + d²) − d)/2."""
    return (np.sqrt(variance + room**2) - room) / 2.0


def clipped(problem: Problem, level: Bounds, low: float, high: float) -> Bounds:
    """A level whose samples are clipped to [low, high], with the bias that this causes."""
    # If these bounds overflow, samples are still no further from the value than the ends of the interval.
    above = _overshoot(level.variance, high - problem.values[1] - level.bias)
    below = _overshoot(level.variance, problem.values[0] - level.bias - low)
    bias, furthest = level.bias + np.maximum(above, below), max(high - problem.values[0], problem.values[1] - low)
    return level._replace(
        bias=np.where(np.isfinite(bias), bias, furthest),
        variance=np.where(np.isfinite(level.variance), level.variance, (high - low) ** 2 / 4.0),
        low=np.clip(level.low, low, high),
        high=np.clip(level.high, low, high),
    )


def clipped_reference(problem: Problem, around: ReferenceMoments, low: float, high: float) -> ReferenceMoments:
    """A reference whose entries are clipped to [low, high]."""
    # An entry moves away from Q only if Q is outside. The others come nearer, but not all by as much, so that the range
    # of the errors may grow: range² ≤ 2Σe_a² without a mean taken off, which costs K/(K−1).
    least, most = problem.action_values
    outside = max(0.0, most - high, low - least)
    uncentred = math.sqrt(problem.actions / max(problem.actions - 1, 1))
    # All of Q̂ − Q counts as noise here: nothing is used of a mean that clipping has moved.
    return around._replace(
        bias=0.0,
        noise_second=uncentred * around.second + 2.0 * outside,
        noise_fourth=uncentred * around.fourth + 2.0 * outside,
    )
