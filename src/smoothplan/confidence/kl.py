"""Kullback–Leibler bounds on probabilities and expectations, and thresholds that hold at all times at once.

Bounds take a `level`: the largest divergence from the empirical distribution that is still believed, usually a
threshold divided by the number of observations. Rounding is towards the safe side: bounds are met from outside.
Divergences are sums of x − log(1+x), which is never negative, so that nothing cancels. With p and q summing to one,
KL(p, q) = Σ p·(x − log(1+x)) at x = q/p − 1.

A threshold is the logarithm of a mixture of likelihood ratios or wagers. A mixture is a martingale that starts at 1, so
by Ville's inequality it ever exceeds 1/δ with probability at most δ.

All of these are scalar kernels for compiled code, which check nothing.
"""

import math
from functools import partial

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled

STEPS = 100  # at most, of Newton's method, which needs fewer than ten; wherever it ends, the bound holds
ACCURATE = 1e-14  # relative change at which Newton's method has reached double precision
INFLATION = 4e-14  # upper bound on the relative error of a computed divergence: levels are inflated by it
ULP = 2.0**-52  # relative distance of neighbouring numbers
TINY = 1e-300  # probabilities below it count as zero
LOG_2 = math.log(2.0)


@partial(compiled, inner=True)
def excess(x: float, ratio: float) -> float:
    """x − log(1+x) ≥ 0 to full relative accuracy, where `ratio` is 1+x."""
    if abs(x) >= 0.1:  # below, the series has full accuracy
        return x - math.log(ratio)
    # log(1+x) = 2·artanh(r) with r = x/(2+x), and x − 2r = r·x.
    r = x / (2.0 + x)
    z = r * r
    return r * (x - 2.0 * z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z / 11.0)))))


@partial(compiled, inner=True)
def bernoulli_divergence(p: float, q: float) -> float:
    """KL(Bernoulli(p), Bernoulli(q)) to full relative accuracy, even if p and q are tiny or close to each other."""
    if p == q:
        return 0.0
    if (q <= 0.0 and p > 0.0) or (q >= 1.0 and p < 1.0):
        return math.inf
    success = q if p < TINY else p * excess((q - p) / p, q / p)
    failure = 1.0 - q if p >= 1.0 else (1.0 - p) * excess((p - q) / (1.0 - p), (1.0 - q) / (1.0 - p))
    return success + failure


@partial(compiled, inner=True)
def bernoulli_upper(p: float, level: float) -> float:
    """The largest q with KL(p, q) ≤ level. For 1 − (the smallest such q), take `bernoulli_upper(1 − p, level)`."""
    if p >= 1.0:
        return 1.0
    if level <= 0.0:
        return p
    level *= 1.0 + INFLATION
    if p < TINY:
        return min(1.0, max(-math.expm1(-level), p) * (1.0 + ULP))
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
    return min(1.0, max(q, p) * (1.0 + ULP))


@partial(compiled, inner=True)
def bernoulli_lower(p: float, level: float) -> float:
    """The smallest q with KL(p, q) ≤ level."""
    if p <= 0.0:
        return 0.0
    if level <= 0.0:
        return p
    level *= 1.0 + INFLATION
    if p >= 1.0:
        return math.exp(-level) * (1.0 - ULP)
    # As above with the ends exchanged: kl ≥ 2(p−q)², kl ≥ (p−q)²/(2p), kl ≥ −entropy(p) − p·log(q).
    entropy = -p * math.log(p) - (1.0 - p) * math.log1p(-p)
    q = max(p - math.sqrt(level / 2.0), p - math.sqrt(2.0 * p * level), math.exp(-(level + entropy) / p))
    for _ in range(STEPS):
        if q < 2.3e-308:  # subnormal numbers have too few digits to be rounded outwards
            return 0.0
        step = (bernoulli_divergence(p, q) - level) * q * (1.0 - q) / (p - q) if q < p else 0.0
        if step <= ACCURATE * q:
            break
        q += step
    return min(q, p) * (1.0 - ULP)


@partial(compiled, inner=True)
def ball_extreme(shares: Floats, values: Floats, unseen: float, level: float, guess: float) -> tuple[float, float]:
    """The largest expectation of `values` over distributions q with KL(shares, q) ≤ level, and the ν that attains it.

    For every ν above all values, E_q[values] ≤ ν − exp(−level)·Π(ν − value)^share: that is Jensen's inequality. The
    minimum over ν, a convex problem in one variable, attains it; whatever ν the search ends with, the bound holds.

    Args:
        shares: the empirical distribution, [m]. If one is zero, q may be more.
        values: [m].
        unseen: the value of an outcome that was not seen but may exist; −inf if no other can exist.
        level: the radius of the ball.
        guess: how far ν is above the best value, if that is nearly known; else 0.

    It is attained by share·(ν − bound)/(ν − value) of each value, and the rest at the best one. The derivative of the
    bound with respect to the level is ν − bound.
    """
    mean, size, highest, best = 0.0, 0.0, -math.inf, unseen
    for i in range(len(values)):
        best = max(best, values[i])
        if shares[i] > 0.0:
            mean += shares[i] * values[i]
            size += shares[i] * abs(values[i])
            highest = max(highest, values[i])
    if highest == -math.inf:
        return best, best
    if level <= 0.0:
        return mean, mean
    reach = best - mean
    if reach <= 0.0:
        return best, best
    # ν = best + t. If the best was not seen, and the level is large enough, the smallest bound is that of t = 0.
    t = 0.0
    divergence = math.inf
    if highest < best:
        divergence = _dual(shares, values, mean, best, t)[1]
    if divergence > level:
        t = _multiplier(shares, values, mean, best, level, guess)
    within = level + _dual(shares, values, mean, best, t)[0]
    gain = -(t + reach) * math.expm1(-within)
    # Sums of m terms, for the mean and for the divergence, are off by m/2 units in the last place at most.
    summing = len(values) * ULP
    gain *= 1.0 + max(INFLATION, summing)
    return min(best, mean + gain + max(4.0 * ULP, summing) * size), best + t


@partial(compiled, inner=True)
def _dual(shares: Floats, values: Floats, mean: float, best: float, t: float) -> tuple[float, float, float]:
    """For ν = best + t: log(ν − mean) − Σ share·log(ν − value), and KL(shares, q) with its derivative in −log(t).

    Here q is proportional to share/(ν − value), which is in the ball where the bound is smallest.
    """
    scale = t + (best - mean)
    inverse = 1.0 / scale
    jensen = first = second = 0.0
    for i in range(len(values)):
        if shares[i] > 0.0:
            x, ratio = (mean - values[i]) * inverse, (t + (best - values[i])) * inverse
            weight = x / ratio
            jensen += shares[i] * excess(x, ratio)
            first += shares[i] * x * weight
            second += shares[i] * weight * weight
    return jensen, math.log1p(first) - jensen, t / scale * (second - first * first) / (1.0 + first)


@partial(compiled, inner=True)
def _multiplier(shares: Floats, values: Floats, mean: float, best: float, level: float, guess: float) -> float:
    """t at which the divergence of `_dual`, which falls in t, is `level`: Newton's method in log(t), bracketed."""
    reach = best - mean
    spread = 0.0
    for i in range(len(values)):
        if shares[i] > 0.0:
            spread += shares[i] * ((values[i] - mean) / reach) ** 2
    # Far away the divergence is about spread/2 over the square of the distance; and at most four times that.
    far = math.sqrt(spread / (2.0 * level))
    low, high = -100.0, math.log(2.0 * max(far, 1.0))  # exp(−100) is as good as 0
    x = min(max(math.log(guess / reach if guess > 0.0 else max(far - 1.0, 0.1 * far)), low), high)
    for _ in range(STEPS):
        _, divergence, slope = _dual(shares, values, mean, best, reach * math.exp(x))
        if divergence > level:
            low = x
        else:
            high = x
        # A small divergence is a power of t, a large one linear in its logarithm.
        step = (divergence - level) / slope
        if 0.0 < divergence < 1.0:
            step = math.log(divergence / level) * divergence / slope
        following = x + step
        if not low < following < high:
            following = 0.5 * (low + high)
        step, x = following - x, following
        # The error left is of the order of its square; that of the bound, stationary in ν, of its fourth power.
        if abs(step) <= 3e-4:
            break
    return reach * math.exp(x)


# Thresholds


@partial(compiled, inner=True, merged=True)
def share(index: int) -> float:
    """The part of δ for discovery number `index`, from 0: 1/log₂(i+2) − 1/log₂(i+3). All parts sum to one."""
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
    weight, total, result = 1.0 / bound, 0, log_odds
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
    return 0.5 * math.log(math.pi) + _log_gamma(count, 1.0) - _log_gamma(count, 0.5)


@partial(compiled, inner=True)
def _log_gamma(count: float, weight: float) -> float:
    """logΓ(n + w) − n·log(n) + n, of the order of log(n) and as accurate; logΓ alone is of the order of n·log(n)."""
    if count <= 0.0:
        return math.lgamma(weight)
    if count < 1000.0:  # above, three terms of Stirling's series are exact in double precision
        return math.lgamma(count + weight) - count * math.log(count) + count
    x = count + weight
    tail = 1.0 / (12.0 * x) - 1.0 / (360.0 * x * x * x)
    main = count * math.log1p(weight / count) + (weight - 0.5) * math.log(x) - weight
    return main + 0.5 * math.log(2.0 * math.pi) + tail
