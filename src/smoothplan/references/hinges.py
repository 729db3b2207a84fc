"""Ridge regression on random hinges: the small regressor that a fitted reference has built in."""

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from smoothplan.arguments import Floats

Features = NDArray[np.float32]
"""[n, p]; single precision halves the time, and its rounding is far below the noise of simulated targets."""

HINGES = 300
"""Hinges at most. There are no more than an eighth of the points."""

RIDGE = 30.0
"""The penalty on squared weights, in units of one point's squared error."""


P = ParamSpec("P")
R = TypeVar("R")


@cache
def _libraries() -> ThreadpoolController:
    """NumPy's linear algebra; looking for it takes a millisecond."""
    return ThreadpoolController()


def in_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """The function with linear algebra in one thread.

    How many there are, by default one for each core, would decide how sums are rounded. And on a busy machine threads
    wait for each other: two took up to ten times as long as one.
    """

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return alone


class HingeRidge:
    """Functions that are linear but for hinges max(0, ⟨u, x⟩ − t), fitted by least squares with a ridge penalty.

    Points are standardised, and brought into the box of those it is fitted on: it never extrapolates. A third of the
    directions u are axes, a third lie in planes of two axes, the others are arbitrary; a hinge passes through one of
    the points. A hinge that few points reach has a small norm, so that the penalty keeps its weight small.

    Args:
        points: what it is fitted on, [n, d].
        seed: of the hinges.
    """

    @in_one_thread
    def __init__(self, points: Floats, seed: int) -> None:
        rng, (count, dimensions) = np.random.default_rng(seed), points.shape
        spread = points.std(axis=0)
        self._mean, self._scale = points.mean(axis=0), np.where(spread > 0.0, spread, 1.0)
        self._low, self._high = (end(points, axis=0) for end in (np.min, np.max))
        hinges = min(HINGES, count // 8)
        directions = rng.standard_normal((hinges, dimensions))
        # The number of coordinates that a direction has, the same ones as in a random order.
        sizes = np.array([1, 2, dimensions])[np.arange(hinges) % 3]
        order = rng.random((hinges, dimensions)).argsort(axis=1).argsort(axis=1)
        directions[order >= sizes[:, None]] = 0.0
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        through = self._standardised(points[rng.integers(count, size=hinges)])
        self._directions = np.ascontiguousarray(directions.T, dtype=np.float32)  # [d, p]
        self._knots = (through * self._directions.T).sum(axis=1)
        self._fitted = self.features(points)
        gram = (self._fitted.T @ self._fitted).astype(np.float64)
        penalty = np.full(len(gram), RIDGE)
        penalty[0] = 1e-6  # the constant is free
        self._inverse = np.linalg.inv(gram + np.diag(penalty))

    def _standardised(self, points: Floats) -> Features:
        return np.asarray((np.clip(points, self._low, self._high) - self._mean) / self._scale, dtype=np.float32)

    @in_one_thread
    def features(self, points: Floats) -> Features:
        """One, the standardised coordinates, and the hinges, [n, 1 + d + p]."""
        count, dimensions = points.shape
        features = np.empty((count, 1 + dimensions + len(self._knots)), dtype=np.float32)
        features[:, 0] = 1.0
        features[:, 1 : 1 + dimensions] = standardised = self._standardised(points)
        hinges = features[:, 1 + dimensions :]
        np.matmul(standardised, self._directions, out=hinges)
        hinges -= self._knots
        np.maximum(hinges, 0.0, out=hinges)
        return features

    @in_one_thread
    def fit(self, targets: Floats) -> Features:
        """The weights [1 + d + p, k] that fit targets [n, k] at the points."""
        mean = targets.mean(axis=0)
        weights = self._inverse @ (self._fitted.T @ (targets - mean).astype(np.float32)).astype(np.float64)
        weights[0] += mean
        return np.asarray(weights, dtype=np.float32)

    @in_one_thread
    def predict(self, features: Features, weights: Features) -> Floats:
        """The fitted functions at the features of other points, [n, k]."""
        return (features @ weights).astype(np.float64)
