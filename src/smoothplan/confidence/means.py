"""How far a mean of bounded variables may be from its expectation."""

import math
from dataclasses import dataclass, field

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Numbers


def bernstein_radius(variance: Numbers, width: Numbers, count: Numbers, delta: float) -> Numbers:
    """r with P(|mean − expectation| > r) ≤ δ for `count` independent variables of that variance and width at most.

    Bernstein's inequality with the variance known: r solves n·r² = 2·log(2/δ)·(v + w·r/3).
    """
    log = math.log(2.0 / delta)
    linear = np.where(variance > 0.0, width * log / (3.0 * count), 0.0)  # what has no variance has no error
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
        """The mean of what has arrived; the middle of the support before that."""
        return self.total / self.count if self.count else (self.low + self.high) / 2.0

    @property
    def variance(self) -> float:
        """The variance of what has arrived, with one prior variable at the edge of the support."""
        width = self.high - self.low
        spread = self._deviation(self.count, self.total, self.squares, self.mean)
        return (spread + width**2 / 4.0) / (self.count + 1)

    def update(self, count: int, total: float, squares: float) -> None:
        """Takes a batch of variables into account: their number, sum, and sum of squares."""
        width = self.high - self.low
        if count == 0 or width == 0.0:
            self.count, self.total, self.squares = self.count + count, self.total + total, self.squares + squares
            return
        tilt, centre = self._tilt(), self.mean
        self._tilts += tilt * count
        self._tilted += tilt * (total - count * self.low) / width
        deviation = self._deviation(count, total, squares, centre)
        self._penalty += (-math.log1p(-tilt) - tilt) * deviation / width**2
        self.count, self.total, self.squares = self.count + count, self.total + total, self.squares + squares
        radius = (math.log(2.0 / self.delta) + self._penalty) / self._tilts
        middle = self._tilted / self._tilts
        low, high = self.low + width * (middle - radius), self.low + width * (middle + radius)
        self.interval = (max(self.interval[0], low), min(self.interval[1], high))

    def _deviation(self, count: int, total: float, squares: float, centre: float) -> float:
        """Σ(X − c)², from above: where the support is far from 0, rounding must not make it too small."""
        rounding = 1e-12  # relative error of a sum of squares of a million terms in double precision
        largest = max(abs(self.low), abs(self.high))
        return max(0.0, squares - 2.0 * centre * total + count * centre**2) + rounding * count * largest**2

    def _tilt(self) -> float:
        """The best tilt for stopping at the target radius r: λ = x/(1 + x) with x = r·w/v.

        The radius is r after log(2/δ)/(λr/w − ψ(λ)v/w²) variables, which are fewest where r·w = ψ′(λ)·v.
        """
        odds = self.target * (self.high - self.low) / self.variance
        return min(odds / (1.0 + odds), 1.0 - 2.0**-52)
