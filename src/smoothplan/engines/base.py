"""What an engine offers a planner at the root, and what engines share that run in NumPy."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.models.base import Oracle, States

CALLS_AT_ONCE = 1 << 15
"""Simulator calls of one batch: enough to hide Python's overhead, small enough for the processor's cache."""


class Sums(NamedTuple):
    """What is kept of a batch of samples."""

    samples: int
    total: float
    squares: float


class Engine(Protocol):
    """An interpreter of a schedule for one model and one backup. Engines keep nothing between calls."""

    @property
    def compiled(self) -> bool:
        """Whether it runs beside others in threads; a simulator in Python does not."""

    @property
    def chunk_calls(self) -> int:
        """Simulator calls that take it a fraction of a second: a good size of a chunk."""

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""


def pieces(count: int, largest: int) -> Iterator[int]:
    """Sizes, at most `largest` each, that add up to a count."""
    for start in range(0, count, largest):
        yield min(largest, count - start)


def repeated(state: Any, count: int) -> States:
    """A state as a batch [count, ...]."""
    return np.repeat(np.asarray(state)[None], count, axis=0)


def categorical(probabilities: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Draws from the columns of distributions [m, n] or [m, 1], by inversion, [n]. Rounding falls to the last entry."""
    levels = rng.random(count)
    drawn = np.zeros(count, dtype=np.int64)
    passed = np.zeros(probabilities.shape[1])
    for entry in probabilities[:-1]:
        passed = passed + entry
        drawn += levels >= passed
    return drawn


def added(count: int, batches: Iterable[Floats]) -> Sums:
    """The sums of a number of samples that come in batches."""
    total = squares = 0.0
    for samples in batches:
        total, squares = total + float(samples.sum()), squares + float(samples @ samples)
    return Sums(count, total, squares)
