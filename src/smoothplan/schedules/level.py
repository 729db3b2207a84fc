"""Levels and schedules: every recursive planner is a table of levels, and this arithmetic certifies the table.

A level is a recipe for a random variable Y(s), which estimates the value V(s) of any state s:

    constant   the middle of the value interval
    plug-in    F(Q̂), with Q̂ the mean of N returns per action (Sparse Sampling)
    order-1    F(Q̂) + X_A − Q̂(A), with A ~ ∇F(Q̂) (SmoothCruiser)
    order-2    order-1 plus an unbiased estimate of ½ΔᵀHΔ from n pairs of returns (SecondOrderSmoothCruiser)

A return X = R + γ·Y(Z) goes through a coarser level at the next state Z; where Z is terminal, X = R. For each level
four numbers are certified, at every state: |E Y − V| ≤ bias, Var Y ≤ variance, low ≤ Y ≤ high, and its cost in
simulator calls. No simulator is called to find them, and no probability of failure is spent: inside the recursion only
moments of range(Q̂ − Q) matter. The formulas accept arrays, so that a search evaluates many candidates at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from smoothplan import curvature
from smoothplan.arguments import Numbers
from smoothplan.backups import Backup
from smoothplan.models.base import GenerativeModel

Kind = Literal["constant", "plug-in", "order-1", "order-2"]
Centring = Literal["action", "policy"]
"""What the linear term subtracts: Q̂(A), which drops the variance between actions, or as printed ⟨π, Q̂⟩."""


@dataclass(frozen=True)
class Problem:
    """What the arithmetic knows of a model and a backup."""

    actions: int  # K
    discount: float  # γ
    temperature: float  # η; 0 for the hard maximum
    reward_range: tuple[float, float]
    reward_noise: float  # width of the rewards possible at one (s, a): 0 where they are deterministic
    single_successor: bool  # whether the next state is known given (s, a)
    at_zero: tuple[float, float]  # infimum and supremum of F_s(0)
    values: tuple[float, float]  # an interval that contains every value
    terminates: bool
    derivatives: tuple[float, ...]  # bounds of the second, third, ... derivative of F in directions of range 1

    @classmethod
    def of(cls, model: GenerativeModel, backup: Backup) -> "Problem":
        """The problem of planning on a model with a backup."""
        low, high = model.reward_range
        return cls(
            actions=model.actions,
            discount=model.discount,
            temperature=backup.temperature,
            reward_range=(low, high),
            reward_noise=0.0 if model.reward_kind == "deterministic" else high - low,
            single_successor=model.max_successors == 1,
            at_zero=backup.at_zero_range(model.actions),
            values=curvature.value_interval(model, backup),
            terminates=model.terminates,
            derivatives=backup.derivatives(model.actions),
        )

    @property
    def middle(self) -> float:
        """The best constant guess of a value."""
        return (self.values[0] + self.values[1]) / 2.0

    @property
    def width(self) -> float:
        """W, the width of the value interval."""
        return self.values[1] - self.values[0]

    @property
    def action_values(self) -> tuple[float, float]:
        """An interval that contains every action value."""
        low, high = self.reward_range
        return low + self.discount * self.values[0], high + self.discount * self.values[1]

    @property
    def differing(self) -> float:
        """The largest probability that two actions drawn from one distribution differ, 1 − 1/K."""
        return 1.0 - 1.0 / self.actions

    @property
    def action_gap(self) -> float:
        """A bound on range(Q_s): the error of a constant reference."""
        low, high = self.reward_range
        return high - low + self.discount * self.width


class Certificate(NamedTuple):
    """What is proved of a level's variable Y(s), at every state s that is not terminal."""

    bias: Numbers  # |E Y − V| ≤ bias
    variance: Numbers  # Var Y ≤ variance
    low: Numbers  # low ≤ Y ≤ high
    high: Numbers
    calls: Numbers  # simulator calls of one sample, at most
    shift: Numbers = 0.0  # what the level adds to centre an error of known sign


class Return(NamedTuple):
    """What is proved of the return X = R + γ·Y(Z) through a level, at every (s, a)."""

    bias: Numbers  # |E X − Q(a)| ≤ bias
    variance: Numbers
    low: Numbers
    high: Numbers
    calls: Numbers

    @property
    def width(self) -> Numbers:
        """D, a bound on |X − E X|."""
        return self.high - self.low


class ReferenceMoments(NamedTuple):
    """What is proved of a reference Q̂: moments of its noise e = Q̂ − E Q̂, and of range(Q̂ − Q)."""

    deviation: Numbers  # standard deviation s of one entry of e
    noise_fourth: Numbers  # ‖range(e)‖ in L⁴
    second: Numbers  # r₂ = ‖range(Q̂ − Q)‖ in L²
    fourth: Numbers  # r₄, the same in L⁴
    width: Numbers  # width of an interval that contains every entry of Q̂
    calls: Numbers


def constant(problem: Problem) -> Certificate:
    """The middle of the value interval, whatever the state."""
    return Certificate(problem.width / 2.0, 0.0, problem.middle, problem.middle, 0.0)


def one_step(problem: Problem, level: Certificate) -> Return:
    """The return through a level.

    Its variance is that of its mean given (R, Z), at most a quarter of the squared width (Popoviciu), plus γ² times
    the level's. That mean moves by no more than the values ± bias do, and by no more than the level's support.
    """
    gamma = problem.discount
    low, high = level.low, level.high
    if problem.terminates:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    spread = 0.0 if problem.single_successor else np.minimum(problem.width + 2.0 * level.bias, high - low)
    return Return(
        bias=gamma * level.bias,
        variance=((problem.reward_noise + gamma * spread) / 2.0) ** 2 + gamma**2 * level.variance,
        low=problem.reward_range[0] + gamma * low,
        high=problem.reward_range[1] + gamma * high,
        calls=1.0 + level.calls,
    )


def constant_reference(problem: Problem) -> ReferenceMoments:
    """A reference that costs nothing: all actions alike."""
    gap = problem.action_gap
    return ReferenceMoments(deviation=0.0, noise_fourth=0.0, second=gap, fourth=gap, width=0.0, calls=0.0)


def reference(problem: Problem, through: Return, samples: Numbers) -> ReferenceMoments:
    """The mean of N returns per action.

    range(e)² ≤ 2Σ(e_a − ē)², whose mean is 2(K−1)s² and whose mean square follows from the fourth moment of a mean of
    N independent terms bounded by D: at most κ·s⁴ with κ = 3(N−1)/N + D²/(Nσ²).
    """
    others = problem.actions - 1
    deviation = np.sqrt(through.variance / samples)
    # κ·s⁴, written so that a variance of zero is no division by zero.
    kurtosis = 3.0 * (samples - 1) / samples * deviation**4 + (through.width * deviation / samples) ** 2
    fourth = (4.0 * (others**2 * kurtosis + (others**3 + 2 * others) * deviation**4) / problem.actions) ** 0.25
    return ReferenceMoments(
        deviation=deviation,
        noise_fourth=fourth,
        second=np.sqrt(2.0 * others) * deviation + 2.0 * through.bias,
        fourth=fourth + 2.0 * through.bias,
        width=through.width,
        calls=problem.actions * samples * through.calls,
    )


def _first_remainder(problem: Problem, by_range: Numbers, by_square: Numbers) -> Numbers:
    """min(range, d₂·range²/2): the largest F − T₁, from norms of the range; a kinked F has the first only."""
    if not problem.derivatives:
        return by_range
    return np.minimum(by_range, problem.derivatives[0] / 2.0 * by_square**2)


def plug_in(problem: Problem, through: Return, around: ReferenceMoments) -> Certificate:
    """F(Q̂). By convexity its mean exceeds F(E Q̂), by at most J: half of J is taken off."""
    others, actions = problem.actions - 1, problem.actions
    deviation = around.deviation
    # E max e ≤ (K−1)s/√K, for the largest of e_a − ē is at most √((K−1)/K) of their norm.
    excess = _first_remainder(problem, others / math.sqrt(actions) * deviation, math.sqrt(2.0 * others) * deviation)
    # Efron and Stein; or the linear part, of deviation at most s, plus the remainder.
    spread = np.sqrt(actions) * deviation
    if problem.derivatives:
        remainder = problem.derivatives[0] / 2.0 * around.noise_fourth**2
        spread = np.minimum(spread, deviation + remainder)
    return Certificate(
        bias=through.bias + excess / 2.0,
        variance=spread**2,
        low=through.low + problem.at_zero[0] - excess / 2.0,
        high=through.high + problem.at_zero[1] - excess / 2.0,
        calls=around.calls,
        shift=-excess / 2.0,
    )


def first_order(
    problem: Problem, around: ReferenceMoments, linear: Return, centring: Centring = "action"
) -> Certificate:
    """F(Q̂) + X_A − Q̂(A). The Taylor remainder is never negative: half of its bound is added."""
    remainder = _first_remainder(problem, around.second, around.second)
    between = around.second + 2.0 * linear.bias if centring == "action" else problem.action_gap + 2.0 * linear.bias
    drift = _first_remainder(problem, around.second, around.fourth) + linear.bias
    return Certificate(
        bias=remainder / 2.0 + linear.bias,
        variance=linear.variance + between**2 / 4.0 + drift**2,
        low=problem.at_zero[0] - around.width + linear.low + remainder / 2.0,
        high=problem.at_zero[1] + around.width + linear.high + remainder / 2.0,
        calls=around.calls + linear.calls,
        shift=remainder / 2.0,
    )


def second_order(
    problem: Problem,
    around: ReferenceMoments,
    linear: Return,
    quadratic: Return,
    pairs: Numbers,
    centring: Centring = "action",
    equal_pairs: bool = False,
) -> Certificate:
    """Order 1 plus the U-statistic of n ≥ 2 paired differences, over 4η.

    Given Q̂ the linear and the quadratic part are independent, so their variances add. With d the mean of a paired
    difference, a U-statistic has variance 4d²σ²/n + 2σ⁴/(n(n−1)) with σ² = 2·Var X, and |d| ≤ range + 2·bias.
    """
    eta, differing = problem.temperature, problem.differing
    remainder = np.minimum(
        curvature.remainder_constant(3, eta) * around.second * around.fourth**2,
        curvature.remainder_constant(2, eta) * around.second**2,
    )
    pair_bias = quadratic.bias / eta * (math.sqrt(differing / 2.0) * around.second + differing * quadratic.bias)
    between = around.second + 2.0 * linear.bias if centring == "action" else problem.action_gap + 2.0 * linear.bias
    spread = (
        8.0 * quadratic.variance * (around.second + 2.0 * quadratic.bias) ** 2 / pairs
        + 8.0 * quadratic.variance**2 / (pairs * (pairs - 1))
        + (around.fourth + 2.0 * quadratic.bias) ** 4
    )
    # Unlike F − T₁, F − T₂ may exceed the range: far from Q̂ the quadratic term overshoots.
    drawn = 1.0 if equal_pairs else differing
    drift = curvature.remainder_constant(2, eta) * around.fourth**2 + linear.bias + pair_bias
    largest = (quadratic.width + around.width) ** 2 / (4.0 * eta)
    return Certificate(
        bias=remainder + linear.bias + pair_bias,
        variance=linear.variance + between**2 / 4.0 + drawn * spread / (16.0 * eta**2) + drift**2,
        low=problem.at_zero[0] - around.width + linear.low - largest / (pairs - 1),
        high=problem.at_zero[1] + around.width + linear.high + largest,
        calls=around.calls + linear.calls + 2.0 * pairs * quadratic.calls,
    )


def _overshoot(variance: Numbers, room: Numbers) -> Numbers:
    """The most by which a variable exceeds a bound on average, when its mean is `room` below it: (√(v + d²) − d)/2."""
    return (np.sqrt(variance + room**2) - room) / 2.0


def clipped(problem: Problem, level: Certificate, low: float, high: float) -> Certificate:
    """A level whose samples are clipped to [low, high], with the bias that this causes."""
    above = _overshoot(level.variance, high - problem.values[1] - level.bias)
    below = _overshoot(level.variance, problem.values[0] - level.bias - low)
    return level._replace(
        bias=level.bias + np.maximum(above, below),
        low=np.clip(level.low, low, high),
        high=np.clip(level.high, low, high),
    )


def clipped_reference(problem: Problem, around: ReferenceMoments, low: float, high: float) -> ReferenceMoments:
    """A reference whose entries are clipped to [low, high].

    An entry moves away from Q only if Q is outside. The others come nearer, but not all by as much, so that the range
    of the errors may grow: range² ≤ 2Σe_a² without a mean taken off, which costs K/(K−1).
    """
    rewards, values = problem.reward_range, problem.values
    outside = max(
        0.0,
        rewards[1] + problem.discount * values[1] - high,
        low - rewards[0] - problem.discount * values[0],
    )
    uncentred = math.sqrt(problem.actions / max(problem.actions - 1, 1))
    return around._replace(
        second=uncentred * around.second + 2.0 * outside, fourth=uncentred * around.fourth + 2.0 * outside
    )


@dataclass(frozen=True)
class Level:
    """A row of a schedule: a recipe for a sample of V(s). Children are rows further up in the table."""

    kind: Kind
    samples: int = 0  # N, returns per action in the reference; 0: all actions alike
    reference: int | None = None  # the level that these returns go through
    linear: int | None = None  # the level of the return X_A
    quadratic: int | None = None  # the level of the paired returns
    pairs: int = 0  # n
    equal_pairs: bool = False  # whether pairs are drawn, as printed, even where both actions are the same
    shift: float = 0.0  # added to the sample
    centring: Centring = "action"
    clip: tuple[float, float] | None = None  # the printed clipping, of every entry of Q̂ and of the sample

    @property
    def children(self) -> tuple[int, ...]:
        """The levels that this one refers to."""
        return tuple(child for child in (self.reference, self.linear, self.quadratic) if child is not None)


def certify(problem: Problem, levels: Sequence[Level]) -> list[Certificate]:
    """The certificates of a table of levels, each from those of its children."""
    certificates: list[Certificate] = []
    returns: list[Return] = []
    for row, level in enumerate(levels):
        if any(not 0 <= child < row for child in level.children):
            raise ValueError(f"level {row} refers to levels {level.children}, which are not all above it")
        certificate = _certify(problem, level, returns)
        certificates.append(certificate)
        returns.append(one_step(problem, certificate))
    return certificates


def _certify(problem: Problem, level: Level, returns: Sequence[Return]) -> Certificate:
    if level.kind == "constant":
        # A shift away from the middle, such as the printed answer 0, adds to the bias.
        middle = constant(problem)
        value = middle.low + level.shift
        return Certificate(middle.bias + abs(level.shift), 0.0, value, value, 0.0, level.shift)
    around = constant_reference(problem)
    if level.samples > 0:
        assert level.reference is not None
        around = reference(problem, returns[level.reference], level.samples)
    if level.kind == "plug-in":
        assert level.reference is not None
        proved = plug_in(problem, returns[level.reference], around)
        if level.clip is not None:
            proved = _clipped_entries(problem, proved, returns[level.reference], around, level.clip)
        return _adjusted(problem, level, proved)
    if level.clip is not None:
        around = clipped_reference(problem, around, *level.clip)
    return corrected(problem, level, around, returns)


def corrected(problem: Problem, level: Level, around: ReferenceMoments, returns: Sequence[Return]) -> Certificate:
    """The certificate of a level of order 1 or 2 around a reference."""
    assert level.linear is not None
    linear = returns[level.linear]
    if level.quadratic is None:
        return _adjusted(problem, level, first_order(problem, around, linear, level.centring))
    quadratic, centring = returns[level.quadratic], level.centring
    proved = second_order(problem, around, linear, quadratic, level.pairs, centring, level.equal_pairs)
    return _adjusted(problem, level, proved)


def _adjusted(problem: Problem, level: Level, proved: Certificate) -> Certificate:
    """The certificate of a level with the shift and the clipping that it really has."""
    missing = level.shift - proved.shift
    proved = proved._replace(
        bias=proved.bias + abs(missing), low=proved.low + missing, high=proved.high + missing, shift=level.shift
    )
    return proved if level.clip is None else clipped(problem, proved, *level.clip)


def _clipped_entries(
    problem: Problem, proved: Certificate, through: Return, around: ReferenceMoments, clip: tuple[float, float]
) -> Certificate:
    """A plug-in level whose reference has its entries clipped, where that can happen at all."""
    room = min(clip[1] - through.high, through.low - clip[0])
    if room >= 0.0:
        return proved
    # F moves by no more than an entry of Q̂ does, on average over all K of them. Efron and Stein still hold.
    low, high = np.clip(through.low, *clip), np.clip(through.high, *clip)
    return proved._replace(
        bias=proved.bias + problem.actions * _overshoot(around.deviation**2, room),
        variance=problem.actions * around.deviation**2,
        low=low + problem.at_zero[0] + proved.shift,
        high=high + problem.at_zero[1] + proved.shift,
    )
