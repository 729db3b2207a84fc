"""An adversary: random starts, and a climb uphill from each, towards the largest ratio of a truth to its bound."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from smoothplan.base.arguments import Floats

Option = TypeVar("Option")

ROUNDING = 1e-13
"""What floating point may add to a truth, in units of a return's width."""

TOLERANCE = 1e-9
"""A ratio is refuted where it exceeds 1 by more than this."""


class Draw:
    """What an adversary chooses: options, which a climb leaves alone, and coordinates, which it moves.

    A target asks for them one by one while it builds a case. What is asked for the first time is drawn at random; after
    that the same questions have the same answers. Intervals are clipped, so that their ends are often met.
    """

    def __init__(
        self, rng: np.random.Generator, options: Sequence[int] = (), coordinates: Sequence[float] = ()
    ) -> None:
        self._rng, self._options, self._coordinates = rng, list(options), list(coordinates)
        self._asked = [0, 0]
        self.said: dict[str, object] = {}  # what stands in the table: sizes and temperatures

    def pick(self, options: Sequence[Option], name: str = "") -> Option:
        """One of some options."""
        place = self._asked[0]
        self._asked[0] += 1
        if place == len(self._options):
            self._options.append(int(self._rng.integers(len(options))))
        return self._say(name, options[self._options[place]])

    def reals(self, count: int) -> Floats:
        """Any numbers, [n]: normal at the start."""
        start = self._asked[1]
        self._asked[1] += count
        missing = self._asked[1] - len(self._coordinates)
        self._coordinates += self._rng.normal(size=max(missing, 0)).tolist()
        return np.array(self._coordinates[start : start + count])

    def between(self, low: float, high: float, count: int) -> Floats:
        """Numbers in an interval, [n]."""
        return np.asarray(low + (high - low) * np.clip(0.5 + self.reals(count) / 2.0, 0.0, 1.0))

    def one(self, low: float, high: float, name: str = "") -> float:
        """A number in an interval."""
        return self._say(name, float(self.between(low, high, 1)[0]))

    def scale(self, low: float, high: float, name: str = "") -> float:
        """A positive number, uniform in its logarithm."""
        return self._say(name, float(math.exp(self.between(math.log(low), math.log(high), 1)[0])))

    def law(self, size: int) -> Floats:
        """Probabilities, [n]; some may be zero."""
        weights = np.maximum(self.reals(size) + 1.0, 0.0) ** 2
        return np.asarray(weights / weights.sum() if weights.sum() > 0.0 else np.full(size, 1.0 / size))

    def _say(self, name: str, answer: Option) -> Option:
        if name:
            self.said[name] = answer
        return answer

    def moved(self, size: float) -> "Draw":
        """The same options, and coordinates nearby: sometimes all of them differ, sometimes a few; the same for 0."""
        x = np.array(self._coordinates)
        chosen = self._rng.random(len(x)) < self._rng.choice([0.2, 0.5, 1.0])
        return Draw(self._rng, self._options, (x + size * chosen * self._rng.normal(size=len(x))).tolist())

    def __repr__(self) -> str:
        return f"Draw(rng, {self._options}, {self._coordinates})"

    def __str__(self) -> str:
        numbers = ((name, f"{said:.3g}" if isinstance(said, float) else said) for name, said in self.said.items())
        return ", ".join(f"{name} = {said}" for name, said in numbers)


Ratio = Callable[[Draw], float]
"""Builds a case and returns truth over bound; a bound that is nearly zero counts as kept."""


@dataclass(frozen=True)
class Target:
    """A bound under attack."""

    name: str
    attacked: str  # the dotted path of what computes the bound
    ratio: Ratio
    starts: int = 8  # of a quick search,
    steps: int = 35  # and of each climb in it


class Attack:
    """A search for the largest ratio of one target."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target, self.rng = target, np.random.default_rng([seed, *target.name.encode()])
        self.best, self.evaluations = -math.inf, 0
        self.summit: Draw | None = None  # the case with the largest ratio

    def quick(self, enough: float = math.inf, patience: int = 1) -> float:
        """The largest ratio of a few climbs, or of more until one is large enough."""
        for _ in range(patience * self.target.starts):
            if self.best < enough:
                self._climb(Draw(self.rng), self.target.steps)
        return self.best

    def run(self, seconds: float) -> Iterator[float]:
        """Climbs until time is up, now and then from the summit again; yields the largest ratio after each."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fresh = self.summit is None or self.rng.random() < 0.7
            start = max((Draw(self.rng) for _ in range(5)), key=self._ratio) if fresh else self.summit
            assert start is not None
            self._climb(start.moved(0.0), 200)
            yield self.best

    def _ratio(self, draw: Draw) -> float:
        self.evaluations += 1
        found = self.target.ratio(draw)
        if math.isnan(found):
            raise ArithmeticError(f"{self.target.name}: truth or bound is not a number at {draw!r}")
        if found > self.best:
            self.best, self.summit = found, draw
        return found

    def _climb(self, draw: Draw, steps: int) -> None:
        """Goes uphill in steps that grow after a success and shrink after a failure."""
        height, size = self._ratio(draw), 0.5
        for _ in range(steps):
            moved = draw.moved(size)
            found = self._ratio(moved)
            if found > height:
                height, draw, size = found, moved, min(1.6 * size, 2.0)
            else:
                size *= 0.9


def quotient(truth: float, bound: float) -> float:
    """Truth over bound, of numbers in units of a return's width; 0 where both are as small as rounding."""
    return (truth - ROUNDING) / bound if bound > 1e3 * ROUNDING else 0.0 if truth < 2e3 * ROUNDING else math.inf
