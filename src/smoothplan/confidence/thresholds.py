"""Thresholds that hold at all times at once, and the shares of δ for things that are discovered one after another.

Each is the logarithm of a mixture of likelihood ratios or wagers. A mixture is a martingale that starts at 1, so that
by Ville's inequality it ever exceeds 1/δ with probability at most δ.

These are scalar kernels for compiled code, which check nothing.
"""

import math
from functools import partial

from smoothplan.base.arguments import Ints
from smoothplan.base.compiling import compiled

LOG_2 = math.log(2.0)
HALF_LOG_PI = 0.5 * math.log(math.pi)
HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


@partial(compiled, inner=True, merged=True)
def share(index: int) -> float:
    """The part of δ for the thing that was discovered as number `index`, from 0: 1/log₂(i+2) − 1/log₂(i+3).

    The parts sum to one, however many there will be, and fall hardly faster than 1/i.
    """
    here, there = math.log(index + 2.0), math.log(index + 3.0)
    return LOG_2 * math.log1p(1.0 / (index + 2.0)) / (here * there)


@partial(compiled, inner=True)
def categorical_threshold(counts: Ints, bound: int, log_odds: float) -> float:
    """β such that n·KL(p̂, p) ≤ β at all times, with probability 1 − δ, for draws from at most `bound` outcomes.

    The mixture of likelihood ratios is over a Dirichlet distribution with weight 1/bound for each outcome; which they
    are need not be known before they are seen.

    Args:
        counts: how often each outcome was seen, [m] with m ≤ bound.
        bound: the largest number of different outcomes there can be.
        log_odds: log(1/δ).
    """
    weight = 1.0 / bound
    total = 0
    result = log_odds
    for i in range(len(counts)):
        if counts[i] > 0:
            total += counts[i]
            result += math.lgamma(weight) - _log_gamma(counts[i], weight)
    return result + _log_gamma(int(total), 1.0)


@partial(compiled, inner=True)
def wager_regret(count: int) -> float:
    """How far, in logarithms, the universal portfolio may fall behind the best constant wager: log(√π·Γ(n+1)/Γ(n+½)).

    Its two assets are mixed with the Dirichlet(½, ½) distribution (Cover and Ordentlich, 1996).
    """
    return HALF_LOG_PI + _log_gamma(count, 1.0) - _log_gamma(count, 0.5)


@partial(compiled, inner=True)
def _log_gamma(count: float, weight: float) -> float:
    """logΓ(n + w) − n·log(n) + n: of the order of log(n), and as accurate, where logΓ alone is of that of n·log(n)."""
    if count <= 0.0:
        return math.lgamma(weight)
    if count < 1000.0:  # above, three terms of Stirling's series are exact in double precision
        return math.lgamma(count + weight) - count * math.log(count) + count
    x = count + weight
    tail = 1.0 / (12.0 * x) - 1.0 / (360.0 * x * x * x)
    return count * math.log1p(weight / count) + (weight - 0.5) * math.log(x) - weight + HALF_LOG_2_PI + tail
