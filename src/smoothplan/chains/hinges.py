"""Piecewise linear functions of states, and of states and actions together: what references are fitted with."""

import threading
from contextlib import ContextDecorator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import OpenBLASController, ThreadpoolController

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled

Features = NDArray[np.float32]
"""[n, p]; single precision halves the time, and its rounding is far below the noise of simulated targets."""


class _OneThread(ContextDecorator):
    """Limits linear algebra to one thread, as long as any thread of this process is within it.

    The number of threads would decide how sums are rounded. And on a busy machine threads wait for each other: two took
    up to ten times as long as one.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._libraries: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
        self._usual: list[int] = []

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._usual = [library.num_threads for library in self._libraries]
                self._set([1] * len(self._libraries))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._set(self._usual)

    def _set(self, numbers: list[int]) -> None:
        """Sets numbers of threads, even if another thread, such as one of Dask, had set them before."""
        clear: Any = getattr(OpenBLASController, "clear_controlling_thread", lambda **_: None)
        clear(force=True)
        for library, number in zip(self._libraries, numbers, strict=True):
            library.set_num_threads(number)
        clear(force=True)


in_one_thread = _OneThread()


class Hinges(NamedTuple):
    """Functions that are linear but for hinges max(0, ⟨u, x⟩ − t).

    Points are standardised, and clipped to the box of those of the fit: it never extrapolates.
    """

    mean: Floats  # [d]
    scale: Floats  # [d]
    low: Floats  # [d], a corner of the box
    high: Floats  # [d], the opposite corner
    directions: Features  # u, [d, p]
    knots: Features  # t, [p]

    @staticmethod
    @in_one_thread
    def drawn(points: Floats, rng: np.random.Generator, most: int) -> "Hinges":
        """At most so many hinges for points [n, d], each through one of them, and one for every eight points at most.

        A third of the directions are axes, a third lie in planes of two axes, the others are arbitrary. A hinge that
        few points reach has a small norm, so that a penalty keeps its weight small.
        """
        count, dimensions = points.shape
        spread = points.std(axis=0)
        hinges = min(most, count // 8)
        directions = rng.standard_normal((hinges, dimensions))
        # The number of coordinates that a direction has, the same ones as in a random order.
        sizes = np.array([1, 2, dimensions])[np.arange(hinges) % 3]
        order = rng.random((hinges, dimensions)).argsort(axis=1).argsort(axis=1)
        directions[order >= sizes[:, None]] = 0.0
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        box = Hinges(
            mean=points.mean(axis=0),
            scale=np.where(spread > 0.0, spread, 1.0),
            low=points.min(axis=0),
            high=points.max(axis=0),
            directions=np.ascontiguousarray(directions.T, dtype=np.float32),
            knots=np.zeros(hinges, dtype=np.float32),
        )
        through = box.standardised(points[rng.integers(count, size=hinges)])
        return box._replace(knots=(through * box.directions.T).sum(axis=1))

    @in_one_thread
    def features(self, points: Floats) -> Features:
        """One, the standardised coordinates, and the hinges, [n, 1 + d + p]."""
        dimensions, hinges = self.directions.shape
        # One product for all of them, because the matrix is much longer than a cache.
        weights = np.eye(1 + dimensions, 1 + dimensions + hinges, dtype=np.float32)
        weights[0, 1 + dimensions :], weights[1:, 1 + dimensions :] = -self.knots, self.directions
        floors = np.repeat(np.array([-np.inf, 0.0], dtype=np.float32), [1 + dimensions, hinges])
        extended = np.ones((len(points), 1 + dimensions), dtype=np.float32)
        extended[:, 1:] = self.standardised(points)
        features = extended @ weights
        np.maximum(features, floors, out=features)
        return features

    def standardised(self, points: Floats) -> Features:
        """Points in the box, less the mean, in units of the scale, [n, d]."""
        return np.asarray((np.clip(points, self.low, self.high) - self.mean) / self.scale, dtype=np.float32)

    @in_one_thread
    def predict(self, features: Features, weights: Features) -> Floats:
        """The functions of some weights [1 + d + p, k] at the features of points, [n, k]."""
        return (features @ weights).astype(np.float64)


class ActionHinges(NamedTuple):
    """Functions of a state and an action: hinges, and a constant for each action.

    Hinges are in both, the action being a further coordinate: neighbouring actions learn from each other, as suits
    orders and prices. Or each is in the state alone, and counts for one of the actions, as suits names.
    """

    hinges: Hinges  # of d + 1 coordinates, the last of which is the action
    counts: NDArray[np.bool_]  # whether a hinge counts for an action, [K, p]

    @staticmethod
    def drawn(points: Floats, chosen: Ints, actions: int, rng: np.random.Generator, most: int) -> "list[ActionHinges]":
        """Hinges of both kinds for points [n, d] with an action each [n]."""
        joint = Hinges.drawn(np.column_stack([points, chosen]), rng, most)
        alone = Hinges.drawn(points, rng, most)
        widened = joint._replace(
            directions=np.concatenate([alone.directions, np.zeros((1, len(alone.knots)), np.float32)]),
            knots=alone.knots,
        )
        owners = chosen[rng.integers(len(chosen), size=len(alone.knots))]
        return [
            ActionHinges(joint, np.ones((actions, len(joint.knots)), dtype=np.bool_)),
            ActionHinges(widened, np.arange(actions)[:, None] == owners),
        ]

    def features(self, points: Floats, chosen: Ints) -> Features:
        """The features of points [n, d] with an action each [n], [n, 1 + d + 1 + p + K]."""
        found = self.hinges.features(np.column_stack([points, chosen]))
        found[:, points.shape[1] + 2 :] *= self.counts[chosen]
        return np.concatenate([found, np.eye(len(self.counts), dtype=np.float32)[chosen]], axis=1)

    @in_one_thread
    def q(self, points: Floats, weights: Features) -> Floats:
        """The function of some weights [1 + d + 1 + p + K] at points [n, d] with every action, [n, K]."""
        hinges, counts, actions, dimensions = self.hinges, self.counts, len(self.counts), points.shape[1]
        first = hinges.standardised(np.column_stack([points, np.zeros(len(points))]))[:, :dimensions]
        slopes, folds = weights[1 : dimensions + 2], weights[dimensions + 2 : -actions]
        places = hinges.standardised(np.arange(actions, dtype=np.float64)[:, None] * np.eye(dimensions + 1)[-1])[:, -1]
        # Of what is linear and of the hinges, all but the part of the action.
        level = weights[0] + first @ slopes[:dimensions]
        found = np.ascontiguousarray((places * slopes[-1] + weights[-actions:])[:, None] + level)
        inner = np.column_stack([hinges.directions[:dimensions].T, -hinges.knots]) @ np.vstack(
            [first.T, np.ones(len(points), dtype=np.float32)]
        )
        _add_hinges(found, inner, np.outer(places, hinges.directions[-1]), counts * folds)
        return np.ascontiguousarray(found.T, dtype=np.float64)


@compiled
def _add_hinges(found: Features, inner: Features, moved: Features, folds: Features) -> None:
    """Adds Σ_h folds[a, h]·max(0, inner[h, i] + moved[a, h]) to found[a, i]; points in blocks, which stay in caches.

    Rows of a block are arrays of their own: LLVM uses vector instructions for these, five times as fast.
    """
    actions, hinges = folds.shape
    for start in range(0, found.shape[1], 512):
        for action in range(actions):
            row = found[action, start : start + 512]
            for hinge in range(hinges):
                fold, shift, part = folds[action, hinge], moved[action, hinge], inner[hinge, start : start + 512]
                if fold != 0.0:
                    for place in range(len(row)):
                        row[place] += fold * max(part[place] + shift, np.float32(0.0))
