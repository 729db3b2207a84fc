"""Thresholds that hold at all times at once, and how δ is spent on things that are discovered one after another.

Each is the logarithm of a mixture of likelihood ratios or wagers. A mixture is a martingale that starts at 1, so that
by Ville's inequality it ever exceeds 1/δ with probability at most δ.
"""

import math

from smoothplan.arguments import Ints
from smoothplan.streams import compiled

LOG_2 = math.log(2.0)
HALF_LOG_PI = 0.5 * math.log(math.pi)


@compiled
def share(index: int) -> float:
    """The part of δ for the thing that was discovered as number `index`, from 0: 1/log₂(i+2) − 1/log₂(i+3).

    The parts sum to one, however many there will be, and fall hardly faster than 1/i.
    """
    here, there = math.log(index + 2.0), math.log(index + 3.0)
    return LOG_2 * math.log1p(1.0 / (index + 2.0)) / (here * there)


@compiled
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
            result += counts[i] * math.log(counts[i]) - math.lgamma(counts[i] + weight) + math.lgamma(weight)
    if total > 0:
        result += math.lgamma(total + 1.0) - total * math.log(total)
    return result


@compiled
def wager_regret(count: int) -> float:
    """How far, in logarithms, the universal portfolio may fall behind the best constant wager: log(√π·Γ(n+1)/Γ(n+½)).

    Its two assets are mixed with the Dirichlet(½, ½) distribution (Cover and Ordentlich, 1996).
    """
    return HALF_LOG_PI + math.lgamma(count + 1.0) - math.lgamma(count + 0.5)
