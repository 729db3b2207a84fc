"""An interval for the mean of bounded variables that adapts to their variance, from five numbers per mean.

Whoever bets a fraction b of his fortune that variables in [0, 1] have a mean above m multiplies it by 1 + b(X/m − 1)
each time: if the mean is m, a martingale. Half of the first fortune is staked whole (b = 1) and the other half spread
over all b as in Cover's universal portfolio; what makes either rich is not the mean. So the interval holds at all times
at once. A reward that never varies leaves a width of about log(4/δ)/n; one that is 0 or 1, the Bernoulli interval.

The history is not kept. Given their number, mean, variance and least value a, the product of 1 + b(X/m − 1) is smallest
when the variables take two values only, a and one above the mean: log(1 + b(x/m − 1)) lies above the parabola that
touches it there and meets it at a. So the fortune is bounded from below by that of the two values.
"""

import math

from smoothplan.confidence.thresholds import LOG_2, wager_regret
from smoothplan.streams import compiled

STEPS = 60
"""Newton's method needs fewer than ten."""

ACCURATE = 1e-13
"""Relative change at which it ends."""

ROUNDING = 1e-14
"""The variance is taken larger by this, relative to its terms: a larger one is safe."""


@compiled
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
    if count == 0:
        return 0.0, 1.0
    log_odds += LOG_2  # one half for each end
    mean = min(max(total / count, least), most)
    variance = max(0.0, squares / count - mean * mean) + ROUNDING * squares / count
    low = _lowest_mean(count, mean, variance, least, most, log_odds)
    high = 1.0 - _lowest_mean(count, 1.0 - mean, variance, 1.0 - most, 1.0 - least, log_odds)
    return min(low, mean), max(high, mean)


@compiled
def _lowest_mean(count: int, mean: float, variance: float, least: float, most: float, log_odds: float) -> float:
    """The smallest mean that no wager on a larger one has refuted."""
    if mean <= 0.0:
        return 0.0
    level = (log_odds + LOG_2) / count
    if least >= most:
        return mean * math.exp(-level)
    # Two values with this mean and variance, the lower one being the least that was seen.
    below = mean - least
    above = min(variance / below, most - mean)
    upper = mean + above
    share = above / (above + below)  # of the lower one
    # Everything staked: the product of x/m.
    staked = 0.0
    if least > 0.0:
        staked = math.exp(share * math.log(least) + (1.0 - share) * math.log(upper) - level)
    # The best constant wager in hindsight, less what the portfolio may fall behind it.
    level += wager_regret(count) / count
    m = _start(mean, above * below, level)
    for _ in range(STEPS):
        gain, slope = _best_wager(share, least, upper, mean, m)
        # The gain is convex and falls in m: from the left Newton's method never passes the root.
        step = (gain - level) / -slope if slope < 0.0 else 0.0
        if abs(step) <= ACCURATE * m:
            break
        m = min(max(m + step, 0.5 * m), mean)
    return max(staked, min(m, mean))


@compiled
def _start(mean: float, variance: float, level: float) -> float:
    """A mean near the one sought, where the gain is about (mean − m)²/(2·variance)."""
    return max(mean - math.sqrt(2.0 * variance * level), mean * math.exp(-level / mean), 1e-300)


@compiled
def _best_wager(share: float, lower: float, upper: float, mean: float, m: float) -> tuple[float, float]:
    """The largest mean logarithm of 1 + b(x/m − 1) over b in [0, 1], and its derivative in m."""
    loss, win = lower / m - 1.0, upper / m - 1.0
    drift = mean / m - 1.0
    wager = 1.0 if loss >= 0.0 else min(1.0, max(0.0, -drift / (loss * win)))
    first, second = 1.0 + wager * loss, 1.0 + wager * win
    if first <= 0.0:
        return math.inf, -math.inf
    gain = share * math.log(first) + (1.0 - share) * math.log(second)
    slope = -wager / (m * m) * (share * lower / first + (1.0 - share) * upper / second)
    return gain, slope
