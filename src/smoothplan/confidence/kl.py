"""Kullback–Leibler bounds: which probabilities, and which expectations, are compatible with what was seen.

All of them take a `level`: the largest divergence from the empirical distribution that is still believed, usually a
threshold divided by the number of observations. Rounding is towards the safe side: bounds are met from outside.
"""

import math

from smoothplan.arguments import Floats
from smoothplan.streams import compiled

STEPS = 100
"""Newton's method needs fewer than ten; this ends it in any case."""

ACCURATE = 1e-14
"""Relative change at which Newton's method has done what double precision can."""


@compiled
def bernoulli_divergence(p: float, q: float) -> float:
    """KL(Bernoulli(p), Bernoulli(q)), accurate also where p and q are tiny or close to each other."""
    if p == q:
        return 0.0
    if (q <= 0.0 and p > 0.0) or (q >= 1.0 and p < 1.0):
        return math.inf
    success = 0.0 if p <= 0.0 else -p * math.log1p((q - p) / p)
    failure = 0.0 if p >= 1.0 else -(1.0 - p) * math.log1p((p - q) / (1.0 - p))
    return max(0.0, success + failure)


@compiled
def bernoulli_upper(p: float, level: float) -> float:
    """The largest q with KL(p, q) ≤ level. For 1 − (the smallest such q), take `bernoulli_upper(1 − p, level)`."""
    if p >= 1.0:
        return 1.0
    if level <= 0.0:
        return p
    if p <= 0.0:
        return -math.expm1(-level)
    # Three bounds that are never too small: kl ≥ 2(q−p)², kl ≥ (q−p)²/(2q), kl ≥ −entropy(p) − (1−p)·log(1−q).
    entropy = -p * math.log(p) - (1.0 - p) * math.log1p(-p)
    q = p + math.sqrt(level / 2.0)
    q = min(q, p + level + math.sqrt(level * level + 2.0 * p * level))
    q = min(q, -math.expm1(-(level + entropy) / (1.0 - p)))
    # KL is convex in q, so that Newton's method comes down to the root from above and never passes it.
    for _ in range(STEPS):
        if q >= 1.0:
            return 1.0
        step = (bernoulli_divergence(p, q) - level) * q * (1.0 - q) / (q - p) if q > p else 0.0
        if step <= ACCURATE * q:
            break
        q -= step
    return max(q, p)


@compiled
def bernoulli_lower(p: float, level: float) -> float:
    """The smallest q with KL(p, q) ≤ level."""
    if p <= 0.0:
        return 0.0
    if level <= 0.0:
        return p
    if p >= 1.0:
        return math.exp(-level)
    # As above with the ends exchanged: kl ≥ 2(p−q)², kl ≥ (p−q)²/(2p), kl ≥ −entropy(p) − p·log(q).
    entropy = -p * math.log(p) - (1.0 - p) * math.log1p(-p)
    q = max(p - math.sqrt(level / 2.0), p - math.sqrt(2.0 * p * level), math.exp(-(level + entropy) / p))
    for _ in range(STEPS):
        if q <= 0.0:
            return 0.0
        step = (bernoulli_divergence(p, q) - level) * q * (1.0 - q) / (p - q) if q < p else 0.0
        if step <= ACCURATE * q:
            break
        q += step
    return min(q, p)


@compiled
def ball_maximum(shares: Floats, values: Floats, unseen: float, level: float) -> float:
    """The largest expectation of `values` over distributions q with KL(shares, q) ≤ level.

    For every ν above all values, E_q[values] ≤ ν − exp(−level)·Π(ν − value)^share: that is Jensen's inequality. The
    minimum over ν, a convex problem in one variable, attains it; whatever ν the search ends with, the bound holds.

    Args:
        shares: the empirical distribution, [m].
        values: [m].
        unseen: the value of what was never seen but may exist; −inf where nothing else can exist.
        level: the radius of the ball.
    """
    highest, lowest = -math.inf, math.inf
    for i in range(len(values)):
        if shares[i] > 0.0:
            highest, lowest = max(highest, values[i]), min(lowest, values[i])
    floor = max(highest, unseen)
    spread = floor - lowest
    if level <= 0.0:
        total = 0.0
        for i in range(len(values)):
            total += shares[i] * values[i]
        return total
    if spread <= 0.0:
        return floor
    # ν = floor + t. Where the derivative at t = 0 is not negative (possible only with something unseen), stay there.
    best = floor - math.exp(_log_mean(shares, values, floor) - level) if unseen > highest else floor
    if unseen > highest and _slope(shares, values, floor, level) >= 0.0:
        return best
    low, high = math.log(spread) - 745.0, math.log(spread) + 1.0
    while _slope(shares, values, floor + math.exp(high), level) < 0.0 and high < 700.0:
        high += 2.0
    x = high - 1.0
    for _ in range(STEPS):
        nu = floor + math.exp(x)
        slope = _slope(shares, values, nu, level)
        if slope < 0.0:
            low = x
        else:
            high = x
        bend = _bend(shares, values, nu) * math.exp(x)
        step = slope / bend if bend > 0.0 else math.inf
        following = x - step
        if not low < following < high:
            following = 0.5 * (low + high)
        done = abs(following - x) <= 1e-10
        x = following
        if done:
            break
    nu = floor + math.exp(x)
    return min(best, nu - math.exp(_log_mean(shares, values, nu) - level), floor)


@compiled
def ball_minimum(shares: Floats, values: Floats, unseen: float, level: float, room: Floats) -> float:
    """The smallest expectation over the ball; `unseen` is +inf where nothing else can exist. `room` [m] is overwritten."""
    for i in range(len(values)):
        room[i] = -values[i]
    return -ball_maximum(shares, room[: len(values)], -unseen, level)


@compiled
def _log_mean(shares: Floats, values: Floats, nu: float) -> float:
    """Σ share·log(ν − value)."""
    total = 0.0
    for i in range(len(values)):
        if shares[i] > 0.0:
            total += shares[i] * math.log(max(nu - values[i], 5e-324))
    return total


@compiled
def _slope(shares: Floats, values: Floats, nu: float, level: float) -> float:
    """−log of 1 minus the derivative of the bound: negative below the best ν, positive above."""
    inverse = 0.0
    for i in range(len(values)):
        if shares[i] > 0.0:
            inverse += shares[i] / max(nu - values[i], 5e-324)
    return level - _log_mean(shares, values, nu) - math.log(inverse)


@compiled
def _bend(shares: Floats, values: Floats, nu: float) -> float:
    """The derivative of the slope in ν."""
    first = second = 0.0
    for i in range(len(values)):
        if shares[i] > 0.0:
            inverse = 1.0 / max(nu - values[i], 5e-324)
            first += shares[i] * inverse
            second += shares[i] * inverse * inverse
    return second / first - first
