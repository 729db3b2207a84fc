"""Attacks on intervals: the probability of ever failing, by dynamic programming, over the one that was asked for.

And the betting interval path by path, against the fortune that the bettor really makes.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

from smoothplan.base.arguments import Floats, Ints, Numbers
from smoothplan.confidence import kl, means
from tests.attack.climbing import Draw, Target

Bools = NDArray[np.bool_]

DELTAS = (0.9, 0.5, 0.2, 0.05, 0.01)


def ever(outside: Callable[[int, Bools], Bools], chances: Floats, length: int) -> float:
    """The probability that the counts of some n ≤ `length` draws are in `outside`, for draws from [m] outcomes.

    `outside` is asked for n and where counts are possible, [n+1, …] over all outcomes but the last.
    """
    others = len(chances) - 1
    alive, failed = np.ones((1,) * others), 0.0
    for count in range(1, length + 1):
        following = np.zeros((count + 1,) * others)
        inner = (slice(0, count),) * others
        following[inner] = chances[-1] * alive
        for outcome in range(others):
            one_more = tuple(slice(1, count + 1) if axis == outcome else slice(0, count) for axis in range(others))
            following[one_more] += chances[outcome] * alive
        bad = outside(count, following > 1e-15)
        failed += float(following[bad].sum())
        alive = np.where(bad, 0.0, following)
    return failed


def by_counts(test: Callable[[Ints], Bools], count: int, possible: Bools) -> Bools:
    """Where a test of the counts of all outcomes [c, m] is true, among those that are possible."""
    places = np.argwhere(possible)
    result = np.zeros(possible.shape, dtype=bool)
    result[possible] = test(np.column_stack([places, count - places.sum(axis=1)]))
    return result


# --- The betting interval ---------------------------------------------------------------------------------------------


def wealth(samples: Floats, mean: Numbers, times: Floats | None = None) -> Floats:
    """The logarithm of the universal portfolio's fortune against each mean, exactly: [...].

    With b = sin²(θ), the Dirichlet(½, ½) distribution is uniform in θ and the fortune a trigonometric polynomial of
    degree n: n + 1 points give its integral. Each sample counts once, or so many `times`.
    """
    times = np.ones(len(samples)) if times is None else times
    size = int(times.sum()) + 1
    wager = np.sin((np.arange(size) + 0.5) * np.pi / (2 * size)) ** 2
    logs = np.log1p(wager[:, None] * (samples / np.asarray(mean)[..., None, None] - 1.0)) @ times
    return np.asarray(logsumexp(logs, axis=-1) - math.log(size))


def lowest_mean(samples: Floats, times: Floats, odds: float) -> float:
    """The smallest mean against which half of a fortune staked whole and half in the portfolio have not made `odds`."""
    low, high = 1e-12, float(samples @ times / times.sum())
    with np.errstate(divide="ignore"):
        for _ in range(60):
            mean = math.sqrt(low * high)
            staked = float(np.log(samples / mean) @ times)
            refuted = np.logaddexp(staked, wealth(samples, mean, times)) - math.log(2.0) >= odds
            low, high = (mean, high) if refuted else (low, mean)
    return high


def betting_path(draw: Draw) -> float:
    """What the interval excludes over what the bettor's fortune does, for variables of a few values in any numbers."""
    size, count = draw.pick([1, 2, 3, 5]), draw.pick([1, 3, 10, 40, 200], "n")
    spread, odds = draw.scale(1e-6, 1.0), -math.log(draw.pick(DELTAS, "δ"))
    values = np.clip(draw.one(0.0, 1.0) + spread * draw.between(-1.0, 1.0, size), 0.0, 1.0)
    times = np.floor(count * draw.law(size))
    times[0] += count - times.sum()
    values, times = values[times > 0.0], times[times > 0.0]
    total, squares = float(values @ times), float(values**2 @ times)
    low, high = means.mean_interval(count, total, squares, float(values.min()), float(values.max()), odds)
    if draw.pick([True, False]):
        low, values = 1.0 - high, 1.0 - values
    if low < 1e-9:
        return 0.0
    return low / lowest_mean(values, times, odds + math.log(2.0)) - 1e-9  # which rounding may take from the fortune


@cache
def betting_limits(function: Callable[..., tuple[float, float]], delta: float, count: int) -> Floats:
    """The betting interval for 0 to n ones among n variables that are 0 or 1, [n+1, 2]."""
    ends = [(float(ones == count), float(ones > 0)) for ones in range(count + 1)]
    return np.array([function(count, float(k), float(k), *ends[k], -math.log(delta)) for k in range(count + 1)])


@cache
def categorical_limits(function: Callable[..., float], delta: float, count: int) -> Floats:
    """The interval of a probability for 0 to n of the first of two outcomes, [n+1, 2]."""
    rows = []
    for first in range(count + 1):
        seen = np.array([hits for hits in (first, count - first) if hits > 0])
        level = function(seen, 2, -math.log(delta)) / count
        rows.append((kl.bernoulli_lower(first / count, level), kl.bernoulli_upper(first / count, level)))
    return np.array(rows)


def coin(betting: bool, draw: Draw) -> float:
    """The probability that the interval of a coin ever fails, whose mean or whose probability it is."""
    delta, length = draw.pick(DELTAS, "δ"), draw.pick([20, 100, 300], "n")
    chance = draw.scale(1e-3, 1.0, "p") if betting else draw.scale(1e-4, 0.5, "p")

    def outside(count: int, _: Bools) -> Bools:
        if betting:
            limits = betting_limits(means.mean_interval, delta, count)
        else:
            limits = categorical_limits(kl.categorical_threshold, delta, count)
        return np.asarray((chance < limits[:, 0]) | (chance > limits[:, 1]))

    return ever(outside, np.array([chance, 1.0 - chance]), length) / delta


def betting_law(draw: Draw) -> float:
    """The probability that the interval ever fails, for variables of three values."""
    delta, length = draw.pick(DELTAS, "δ"), draw.pick([10, 25, 60], "n")
    values, chances = np.sort(draw.between(0.0, 1.0, 3)), draw.law(3)
    mean, odds = float(values @ chances), -math.log(delta)

    def outside(counts: Ints) -> Bools:
        ends = np.where(counts > 0, values, np.inf).min(axis=1), np.where(counts > 0, values, -np.inf).max(axis=1)
        moments = counts.sum(axis=1), counts @ values, counts @ values**2, *ends, np.full(len(counts), odds)
        rows = zip(*(moment.tolist() for moment in moments), strict=True)
        limits = np.array([means.mean_interval(*row) for row in rows])
        return np.asarray((mean < limits[:, 0] - 1e-12) | (mean > limits[:, 1] + 1e-12))

    return ever(partial(by_counts, outside), chances, length) / delta


# --- Transitions ------------------------------------------------------------------------------------------------------


def three_outcomes(draw: Draw) -> float:
    """The probability that the ball ever misses the distribution of three outcomes, of at most `bound`."""
    delta, length, bound = draw.pick(DELTAS, "δ"), draw.pick([10, 25, 60], "n"), draw.pick([3, 3, 5], "bound")
    chances = draw.law(3)
    logs = np.log(np.maximum(chances, 1e-300))

    def outside(counts: Ints) -> Bools:
        shares = counts / counts.sum(axis=1, keepdims=True)
        divergences = (counts * (np.log(np.maximum(shares, 1e-300)) - logs)).sum(axis=1)
        radii = [kl.categorical_threshold(row[row > 0], bound, -math.log(delta)) for row in counts]
        return np.asarray(divergences > np.array(radii) + 1e-12)

    return ever(partial(by_counts, outside), chances, length) / delta


def one_function(draw: Draw) -> float:
    """The probability that the ball ever misses the expectation of one function of two or three outcomes."""
    delta, outcomes = draw.pick(DELTAS, "δ"), draw.pick([2, 3], "outcomes")
    length = draw.pick([20, 100, 200] if outcomes == 2 else [10, 25, 60], "n")
    chances = draw.law(outcomes)
    values = np.array([0.0, 1.0]) if outcomes == 2 else np.array([0.0, draw.one(0.0, 1.0), 1.0])
    mean = float(chances @ values)

    def outside(counts: Ints) -> Bools:
        count = int(counts[0].sum())
        level = (-math.log(delta) + kl.wager_regret(count)) / count
        most = [kl.ball_extreme(shares, values, -math.inf, level, 0.0)[0] for shares in counts / count]
        return np.asarray(mean > np.array(most) + 1e-12)

    return ever(partial(by_counts, outside), chances, length) / delta


def ball(draw: Draw) -> float:
    """How much more than the mean some distribution of the ball expects, over what `ball_extreme` says."""
    size, level = draw.pick([2, 3, 5], "outcomes"), draw.scale(1e-3, 5.0, "level")
    shares, values, other = draw.law(size), draw.between(0.0, 1.0, size), draw.law(size)
    unseen = -math.inf
    if draw.pick([False, True]):  # one more, which was not seen
        unseen, other = draw.one(0.0, 1.0), draw.law(size + 1)
        shares, values = np.append(shares, 0.0), np.append(values, unseen)
    mean, possible = float(shares @ values), shares > 0.0
    low, high = 0.0, 1.0
    for _ in range(50):  # the farthest in the direction of another distribution
        step = (low + high) / 2.0
        with np.errstate(divide="ignore"):
            mixed = np.log((1.0 - step) * shares[possible] + step * other[possible])
        inside = float(shares[possible] @ (np.log(shares[possible]) - mixed)) <= level
        low, high = (step, high) if inside else (low, step)
    found = low * float((other - shares) @ values)
    most = kl.ball_extreme(shares[:size], values[:size], unseen, level, 0.0)[0] - mean
    return (found - 1e-13) / most if most > 1e-6 else 0.0


# --- Means ------------------------------------------------------------------------------------------------------------


def confidence_sequence(draw: Draw) -> float:
    """The probability that the interval ever fails, for coins in batches, by all ways in which batches may turn out."""
    delta, batches = draw.pick(DELTAS, "δ"), draw.pick([(300, 1), (30, 2), (12, 3), (1, 11)], "batch, batches")
    count, looks = batches
    chance = draw.one(1e-3, 1.0 - 1e-3, "p")
    target = draw.scale(0.1, 10.0) * math.sqrt(chance * (1.0 - chance) * math.log(2.0 / delta) / (count * looks))
    odds = binom.pmf(np.arange(count + 1), count, chance)

    def failed(sequence: means.ConfidenceSequence, weight: float, left: int) -> float:
        if not sequence.interval[0] - 1e-12 <= chance <= sequence.interval[1] + 1e-12:
            return weight
        if left == 0:
            return 0.0
        total = 0.0
        for ones in np.flatnonzero(weight * odds > 1e-7 * delta).tolist():
            following = replace(sequence)
            following.interval = sequence.interval
            following.update(count, ones, ones)
            total += failed(following, weight * float(odds[ones]), left - 1)
        return total

    return failed(means.ConfidenceSequence(0.0, 1.0, delta, target), 1.0, looks) / delta


def bernstein(by_count: bool, draw: Draw) -> float:
    """The probability that the mean of coins is farther from its expectation than a radius, of so many or so large."""
    delta, chance = draw.pick(DELTAS, "δ"), draw.scale(1e-4, 0.5, "p")
    variance = chance * (1.0 - chance)
    if by_count:
        radius = draw.scale(1e-2, 1.0, "radius")
        count = math.ceil(means.bernstein_count(variance, 1.0, radius, delta))
    else:
        draw.said["n"] = count = round(draw.scale(1.0, 1e4))
        radius = float(means.bernstein_radius(variance, 1.0, count, delta))
    below = binom.cdf(math.ceil(count * (chance - radius) - 1e-9) - 1, count, chance)
    return float(below + binom.sf(math.floor(count * (chance + radius) + 1e-9), count, chance)) / delta


# --- The table --------------------------------------------------------------------------------------------------------

BETTING = "smoothplan.confidence.means.mean_interval"
CATEGORICAL = "smoothplan.confidence.kl.categorical_threshold"
BALL = "smoothplan.confidence.kl.ball_extreme"

TARGETS = [
    Target("betting interval: path by path", BETTING, betting_path, starts=5, steps=12),
    Target("betting interval: coins, ever", BETTING, partial(coin, True), starts=4, steps=10),
    Target("betting interval: three values, ever", BETTING, betting_law, starts=4, steps=5),
    Target("two outcomes: the probability, ever", CATEGORICAL, partial(coin, False), 4, 10),
    Target("three outcomes: all probabilities, ever", CATEGORICAL, three_outcomes, starts=4, steps=5),
    Target("outcomes: one function, ever", "smoothplan.confidence.kl.wager_regret", one_function, 3, 5),
    Target("outcomes: the ball", BALL, ball),
    Target("confidence sequence: ever", "smoothplan.confidence.means.ConfidenceSequence", confidence_sequence, 6, 10),
    Target("Bernstein's radius", "smoothplan.confidence.means.bernstein_radius", partial(bernstein, False)),
    Target("Bernstein's count", "smoothplan.confidence.means.bernstein_count", partial(bernstein, True)),
]
