"""The kernels of this package for whoever does not write kernels: arguments are checked, and may be arrays.

Functions of numbers broadcast their arguments, at compiled speed. Arrays in, an array out; numbers in, a number out.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from smoothplan import arguments
from smoothplan.arguments import Floats, Numbers
from smoothplan.compiling import broadcast
from smoothplan.confidence import betting, kl, thresholds

AGREEMENT = 1e-9
"""How far sums may contradict the extremes, relatively: rounding, not error."""


@broadcast
def _divergence(p: float, q: float) -> float:
    return kl.bernoulli_divergence(p, q)


@broadcast
def _upper(p: float, level: float) -> float:
    return kl.bernoulli_upper(p, level)


@broadcast
def _lower(p: float, level: float) -> float:
    return kl.bernoulli_lower(p, level)


@broadcast
def _share(index: int) -> float:
    return thresholds.share(index)


@broadcast
def _wager_regret(count: int) -> float:
    return thresholds.wager_regret(count)


@broadcast
def _mean_lower(count: int, total: float, squares: float, least: float, most: float, log_odds: float) -> float:
    return betting.mean_lower(count, total, squares, least, most, log_odds)


@broadcast
def _mean_upper(count: int, total: float, squares: float, least: float, most: float, log_odds: float) -> float:
    return betting.mean_upper(count, total, squares, least, most, log_odds)


def bernoulli_divergence(p: ArrayLike, q: ArrayLike) -> Numbers:
    """KL(Bernoulli(p), Bernoulli(q)) to full relative accuracy, also where p and q are tiny or close to each other."""
    return _divergence(_checked("p", p, most=1.0), _checked("q", q, most=1.0))


def bernoulli_upper(p: ArrayLike, level: ArrayLike) -> Numbers:
    """The largest q with KL(p, q) ≤ level.

    >>> bernoulli_upper([0.0, 0.5, 1.0], 0.1).round(6).tolist()
    [0.095163, 0.712879, 1.0]
    """
    return _upper(_checked("p", p, most=1.0), _checked("level", level))


def bernoulli_lower(p: ArrayLike, level: ArrayLike) -> Numbers:
    """The smallest q with KL(p, q) ≤ level."""
    return _lower(_checked("p", p, most=1.0), _checked("level", level))


def ball_maximum(shares: ArrayLike, values: ArrayLike, unseen: float, level: float) -> float:
    """The largest expectation of `values` over distributions q with KL(shares, q) ≤ level.

    Args:
        shares: the empirical distribution, [m]. Where one is zero, q may be more.
        values: [m].
        unseen: the largest value of what is not among them but may exist; −inf where nothing else can exist.
        level: the radius of the ball.
    """
    worth = _vector("values", arguments.array("values", values))
    seen = _vector("shares", arguments.distributions("shares", shares, len(worth)))
    if math.isnan(unseen) or unseen == math.inf:
        raise ValueError(f"unseen must be a number, or infinite where nothing else can exist, got {unseen!r}")
    return kl.ball_maximum(seen, worth, float(unseen), float(_checked("level", level)))


def ball_minimum(shares: ArrayLike, values: ArrayLike, unseen: float, level: float) -> float:
    """The smallest expectation over the same ball; `unseen` is the smallest value of what else may exist, or +inf."""
    return -ball_maximum(shares, -arguments.array("values", values), -unseen, level)


def share(index: ArrayLike) -> Numbers:
    """The part of δ for the thing that was discovered as number `index`, from 0. The parts sum to one."""
    return _share(_whole("index", index))


def wager_regret(count: ArrayLike) -> Numbers:
    """How far, in logarithms, the universal portfolio of two assets may fall behind the best constant wager."""
    return _wager_regret(_whole("count", count))


def categorical_threshold(counts: ArrayLike, bound: int, log_odds: float) -> float:
    """β such that n·KL(p̂, p) ≤ β at all times, with probability 1 − δ, for draws from at most `bound` outcomes.

    Args:
        counts: how often each outcome was seen, [m]. Those that were not may be left out.
        bound: the largest number of different outcomes there can be.
        log_odds: log(1/δ).
    """
    seen = _vector("counts", _whole("counts", counts))
    bound = arguments.whole("bound", bound, least=max(1, int(np.count_nonzero(seen))))
    return thresholds.categorical_threshold(seen.astype(np.int64), bound, float(_checked("log_odds", log_odds)))


def mean_interval(
    count: ArrayLike, total: ArrayLike, squares: ArrayLike, least: ArrayLike, most: ArrayLike, log_odds: ArrayLike
) -> tuple[Numbers, Numbers]:
    """An interval that contains the mean at all times at once with probability 1 − δ.

    Args:
        count: n, the number of variables in [0, 1].
        total, squares: their sum and the sum of their squares.
        least, most: the smallest and the largest of them; where there are none, any numbers in [0, 1].
        log_odds: log(1/δ).
    """
    n, each = _whole("count", count), _checked("log_odds", log_odds) + thresholds.LOG_2
    highest = _checked("most", most, most=1.0)
    lowest = _checked("least", least, most=np.where(n > 0.0, highest, 1.0))
    spare = AGREEMENT * n
    first = _checked("total", total, least=np.maximum(n * lowest - spare, 0.0), most=n * highest + spare)
    second = _checked("squares", squares, most=first + spare)
    moments = (n, first, second, lowest, highest, each)
    return _mean_lower(*moments), _mean_upper(*moments)


def _checked(name: str, values: ArrayLike, least: Floats | float = 0.0, most: Floats | float = math.inf) -> Floats:
    """Numbers from `least` to `most`."""
    result = arguments.numbers(name, values)
    fine = (result >= least) & (result <= most)
    if not np.all(fine):
        where = tuple(np.argwhere(~fine)[0])
        got, low, high = (np.broadcast_to(a, fine.shape)[where] for a in (result, least, most))
        limits = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        place = f" at index {tuple(int(i) for i in where)}" if where else ""
        raise ValueError(f"{name} must be {limits}, got {got:.12g}{place}")
    return result


def _whole(name: str, values: ArrayLike) -> Floats:
    """Whole numbers from 0 on."""
    result = _checked(name, values)
    fractional = result != np.floor(result)
    if np.any(fractional):
        raise ValueError(f"{name} must be whole, got {result[fractional].flat[0]:.12g}")
    return result


def _vector(name: str, values: Floats) -> Floats:
    """An array with one axis."""
    if values.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {values.shape}")
    return values
