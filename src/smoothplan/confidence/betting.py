"""An interval for the mean of bounded variables that adapts to their variance, from five numbers per mean.

A bettor who stakes a fraction b of a fortune on variables in [0, 1] having a mean above m multiplies it by
1 + b(X/m − 1) each time. If the mean is m, the fortune is a martingale. Half of the first fortune is staked whole
(b = 1) and the other half spread over all b as in Cover's universal portfolio; an m against which either grows large is
not the mean. So the interval holds at all times at once. For a reward that never varies its width is about log(4/δ)/n;
for one that is 0 or 1 it is nearly the Bernoulli interval.

The history is not kept. Given their number, mean, variance and least value a, the product of 1 + b(X/m − 1) is smallest
when the variables take two values only, a and one above the mean: log(1 + b(x/m − 1)) lies above the parabola that
touches it there and meets it at a. So the fortune is bounded from below by that of the two values, for which the best
wager is known: its mean logarithm is a Bernoulli divergence. More variance, or a smaller mean, only lowers the bound.

These are scalar kernels for compiled code, which check nothing.
"""

import math
from functools import partial

from smoothplan.base.compiling import compiled
from smoothplan.confidence.kl import bernoulli_lower
from smoothplan.confidence.thresholds import LOG_2, wager_regret

HALF_ULP = 2.0**-53
"""Relative error of one addition: that of a sum of n positive terms added up one by one is at most n times as large."""

OUTWARDS = 1e-13
"""The limits are moved outwards by this, relatively: more than rounding can have moved them inwards."""


@partial(compiled, inner=True)
def mean_interval(
    count: int, total: float, squares: float, least: float, most: float, log_odds: float
) -> tuple[float, float]:
    """An interval that contains the mean at all times at once with probability 1 − δ.

    Args:
        count: n, the number of variables in [0, 1].
        total, squares: their sum and the sum of their squares.
        least, most: the smallest and the largest of them.
        log_odds: log(1/δ).
    """
    each = log_odds + LOG_2
    low = mean_lower(count, total, squares, least, most, each)
    return low, mean_upper(count, total, squares, least, most, each)


@partial(compiled, inner=True, merged=True)
def mean_lower(count: int, total: float, squares: float, least: float, most: float, log_odds: float) -> float:
    """The lower end of such an interval; it alone fails with probability δ at most."""
    if count == 0:
        return 0.0
    rounding = HALF_ULP * (count + 8.0)
    mean = min(max(total / count * (1.0 - rounding), least), most)
    # Squares that underflow count as zero: 1e-300 is more than they can be.
    variance = max(0.0, squares / count - mean * mean) + 2.0 * rounding * squares / count + 1e-300
    return _lowest_mean(count, mean, variance, least, most, log_odds)


@partial(compiled, inner=True, merged=True)
def mean_upper(count: int, total: float, squares: float, least: float, most: float, log_odds: float) -> float:
    """The upper end: the lower one of 1 − X."""
    if count == 0:
        return 1.0
    rounding = HALF_ULP * (count + 8.0)
    mean = total / count
    # An error of the mean moves the mean square of 1 − X by twice as much.
    variance = max(0.0, squares / count - mean * mean) + 8.0 * rounding * mean
    mean = min(max(mean * (1.0 + rounding), least), most)
    low = _lowest_mean(count, 1.0 - mean, variance, 1.0 - most, 1.0 - least, log_odds)
    return min(1.0, 1.0 - low + 2.0 * HALF_ULP)


@partial(compiled, inner=True)
def _lowest_mean(count: int, mean: float, variance: float, least: float, most: float, log_odds: float) -> float:
    """The smallest mean that no wager on a larger one has refuted."""
    level = (log_odds + LOG_2) / count
    # Two values with this mean and variance, the lower one being the least that was seen.
    below = mean - least
    if below <= 0.0:
        return least * math.exp(-level) * (1.0 - OUTWARDS)
    above = min(variance / below, most - mean)
    likely = below / (below + above)  # the share of the upper one
    # The best constant wager in hindsight, less what the portfolio may fall behind it.
    limit = least + (below + above) * bernoulli_lower(likely, level + wager_regret(count) / count)
    if least > 0.0:
        # Below the harmonic mean it is to stake everything, which the other half of the fortune has done.
        staked = mean * math.exp((1.0 - likely) * math.log(least / mean) + likely * math.log1p(above / mean) - level)
        harmonic = least * ((mean + above) / (least + above))
        # The comparison must not be decided by rounding, as it would be where all that was seen is nearly the same.
        limit = max(limit, staked) if limit * (1.0 - OUTWARDS) >= harmonic else staked
    return min(limit, mean) * (1.0 - OUTWARDS)
