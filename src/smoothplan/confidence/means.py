"""How far a mean of bounded variables may be from its expectation, and the best action by intervals of means."""

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Numbers
from smoothplan.base.compiling import compiled
from smoothplan.confidence.kl import LOG_2, bernoulli_lower, wager_regret


def bernstein_radius(variance: Numbers, width: Numbers, count: Numbers, delta: float) -> Numbers:
    """r with P(|mean − expectation| > r) ≤ δ for `count` independent variables of that variance and width at most.

    Bernstein's inequality with the variance known: r solves n·r² = 2·log(2/δ)·(v + w·r/3).
    """
    log = math.log(2.0 / delta)
    linear = np.where(variance > 0.0, width * log / (3.0 * count), 0.0)  # without variance there is no error
    return linear + np.sqrt(linear**2 + 2.0 * variance * log / count)


def bernstein_count(variance: Numbers, width: Numbers, radius: Numbers, delta: float) -> Numbers:
    """The number of variables at which `bernstein_radius` is at most `radius`, not rounded."""
    count = 2.0 * math.log(2.0 / delta) * (variance + width * radius / 3.0) / radius**2
    return np.where(variance > 0.0, count, 1.0)


@dataclass
class ConfidenceSequence:
    """A confidence interval for the mean of bounded variables that holds at all times at once.

    Batches of independent variables X in [low, high], of width w, arrive as (count, sum, sum of squares). With a tilt
    0 ≤ λ < 1 and a centre c in [low, high] fixed before a batch, exp(λ(X − μ)/w − ψ(λ)(X − c)²/w²) has mean at most 1,
    where ψ(λ) = −log(1−λ) − λ (Fan, Grama and Liu, 2015; Howard et al., 2021; Waudby-Smith and Ramdas, 2024). The
    product over all variables is a supermartingale, which by Ville's inequality ever exceeds 2/δ with probability at
    most δ/2; the same holds for −X. So one may look after every batch, and the width adapts to the variance.

    Args:
        low, high: the support.
        delta: the probability that the interval ever fails.
        target: the radius at which one intends to stop; λ is tuned to be best there.
    """

    low: float
    high: float
    delta: float
    target: float
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    interval: tuple[float, float] = field(init=False)
    _tilts: float = 0.0  # Σ λ over variables
    _tilted: float = 0.0  # Σ λ·(X − low)/w
    _penalty: float = 0.0  # Σ ψ(λ)·(X − c)²/w²

    def __post_init__(self) -> None:
        arguments.positive("target", self.target)
        self.interval = (self.low, self.high)

    @property
    def mean(self) -> float:
        """The mean of all batches; the middle of the support before the first."""
        return self.total / self.count if self.count else (self.low + self.high) / 2.0

    @property
    def variance(self) -> float:
        """The variance of all batches, with one prior variable at the edge of the support."""
        spread = self._deviation(self.count, self.total, self.squares, self.mean)
        return (spread + (self.high - self.low) ** 2 / 4.0) / (self.count + 1)

    def update(self, count: int, total: float, squares: float) -> None:
        """Takes a batch of variables into account: their number, sum, and sum of squares."""
        width, centre = self.high - self.low, self.mean
        if count > 0 and width > 0.0:
            # λ = x/(1 + x), x = r·w/v: for the radius r it needs the fewest variables, log(2/δ)/(λr/w − ψ(λ)v/w²).
            odds = self.target * width / self.variance
            tilt = min(odds / (1.0 + odds), 1.0 - 2.0**-52)
            self._tilts += tilt * count
            self._tilted += tilt * (total - count * self.low) / width
            deviation = self._deviation(count, total, squares, centre)
            self._penalty += (-math.log1p(-tilt) - tilt) * deviation / width**2
            radius = (math.log(2.0 / self.delta) + self._penalty) / self._tilts
            middle = self._tilted / self._tilts
            low, high = self.low + width * (middle - radius), self.low + width * (middle + radius)
            self.interval = (max(self.interval[0], low), min(self.interval[1], high))
        self.count, self.total, self.squares = self.count + count, self.total + total, self.squares + squares

    def _deviation(self, count: int, total: float, squares: float, centre: float) -> float:
        """Σ(X − c)², from above: if the support is far from 0, rounding must not make it too small."""
        rounding = 1e-12  # relative error of a sum of squares of a million terms in double precision
        largest = max(abs(self.low), abs(self.high))
        return max(0.0, squares - 2.0 * centre * total + count * centre**2) + rounding * count * largest**2


# Betting, as scalar kernels for compiled code, which check nothing


@partial(compiled, inner=True)
def mean_interval(
    count: int, total: float, squares: float, least: float, most: float, log_odds: float
) -> tuple[float, float]:
    """An interval that contains the mean at all times at once with probability 1 − δ, and adapts to the variance.

    A bettor who stakes a fraction b of a fortune on variables in [0, 1] having a mean above m multiplies it by
    1 + b(X/m − 1) each time. If the mean is m, the fortune is a martingale. Half of the first fortune is staked whole
    (b = 1), the other half spread over all b as in Cover's universal portfolio; an m against which either grows large
    is not the mean. The history is not kept: given their number, mean, variance and least value a, the fortune is
    smallest if the variables take two values only, a and one above the mean (Lemma 5.12, docs/proofs/bounds.md).

    Args:
        count: n, the number of variables in [0, 1].
        total, squares: their sum and the sum of their squares.
        least, most: the smallest and the largest of them.
        log_odds: log(1/δ).
    """
    if count == 0:
        return 0.0, 1.0
    each = log_odds + LOG_2
    half_ulp = 2.0**-53  # relative error of one addition: n times as large for n positive terms added one by one
    rounding = half_ulp * (count + 8.0)
    mean = min(max(total / count * (1.0 - rounding), least), most)
    # Squares that underflow count as zero: 1e-300 is more than they can be.
    variance = max(0.0, squares / count - mean * mean) + 2.0 * rounding * squares / count + 1e-300
    low = _lowest_mean(count, mean, variance, least, most, each)
    # The upper end is the lower one of 1 − X. An error of the mean moves the mean square of 1 − X by twice as much.
    mean = total / count
    variance = max(0.0, squares / count - mean * mean) + 8.0 * rounding * mean
    mean = min(max(mean * (1.0 + rounding), least), most)
    high = 1.0 - _lowest_mean(count, 1.0 - mean, variance, 1.0 - most, 1.0 - least, each)
    return low, min(1.0, high + 2.0 * half_ulp)


@partial(compiled, inner=True)
def _lowest_mean(count: int, mean: float, variance: float, least: float, most: float, log_odds: float) -> float:
    """The smallest mean that no wager on a larger one has refuted."""
    level = (log_odds + LOG_2) / count
    outwards = 1e-13  # relatively: limits are moved by more than rounding can have moved them inwards
    # Two values with this mean and variance, the lower one being the least that was seen.
    below = mean - least
    if below <= 0.0:
        return least * math.exp(-level) * (1.0 - outwards)
    above = min(variance / below, most - mean)
    likely = below / (below + above)  # the share of the upper one
    # The best constant wager in hindsight, less the regret of the portfolio.
    limit = least + (below + above) * bernoulli_lower(likely, level + wager_regret(count) / count)
    if least > 0.0:
        # Below the harmonic mean it is to stake everything, which the other half of the fortune has done.
        staked = mean * math.exp((1.0 - likely) * math.log(least / mean) + likely * math.log1p(above / mean) - level)
        harmonic = least * ((mean + above) / (least + above))
        # The comparison must not be decided by rounding, as it would be if all variables are nearly the same.
        limit = max(limit, staked) if limit * (1.0 - outwards) >= harmonic else staked
    return min(limit, mean) * (1.0 - outwards)


def leaders(low: Floats, high: Floats) -> tuple[int, int, float]:
    """The best action, its challenger, and the gap U(challenger) − L(best), from bounds [K] each (the paper's UGapE).

    The best action has the largest lower bound; among equals the larger upper bound decides, then the order. A single
    action is its own challenger, without a gap; illegal actions have bounds of −∞.
    """
    best = 0
    for action in range(1, len(low)):
        if low[action] > low[best] or (low[action] == low[best] and high[action] > high[best]):
            best = action
    if len(low) == 1:
        return 0, 0, 0.0
    challenger = 1 if best == 0 else 0
    for action in range(len(low)):
        if action != best and high[action] > high[challenger]:
            challenger = action
    if high[challenger] == -np.inf:
        return best, best, 0.0
    return best, challenger, high[challenger] - low[best]


compiled_leaders = compiled(leaders, inner=True, merged=True)
