"""The box of states that a grid covers: given, or found by walks from the initial state."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan import arguments
from smoothplan.arguments import Floats
from smoothplan.engines.grids import MOST_DIMENSIONS, Grid
from smoothplan.models.base import GenerativeModel, Oracle, States
from smoothplan.search.saved import require

WALKS = 32
"""Walks that advance together: simulator calls of one step."""


class Box:
    """A box of states, some ends of which may still have to be found."""

    def __init__(
        self, low: Floats, high: Floats, fixed: NDArray[np.bool_], periodic: tuple[int, ...], dtype: Any
    ) -> None:
        self.low, self.high = low, high  # [d]
        self._fixed = fixed  # [2, d], which ends the user has given
        self.periodic = periodic
        self.dtype = dtype

    @classmethod
    def given(
        cls, model: GenerativeModel, low: ArrayLike | None, high: ArrayLike | None, periodic: Sequence[int]
    ) -> "Box":
        """A box with the ends that are given; the others are at the initial state."""
        start = model.initial_state
        if start is None:
            if low is None or high is None:
                raise ValueError("low and high must be given, for this model declares no initial_state to start from")
            start = arguments.array("low", low)
        start = np.asarray(start)
        if start.ndim != 1 or start.dtype.kind != "f":
            raise ValueError(
                f"a grid needs states that are vectors of floats, got dtype {start.dtype} and shape {start.shape}"
            )
        dimensions = len(start)
        ends = [start if end is None else arguments.array(name, end) for name, end in (("low", low), ("high", high))]
        for name, end in zip(("low", "high"), ends, strict=True):
            if end.shape != (dimensions,):
                raise ValueError(f"{name} must have shape ({dimensions},), got {end.shape}")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"a grid needs states of 1 to {MOST_DIMENSIONS} numbers, got {dimensions}")
        below, above = np.array(ends, dtype=np.float64)
        fixed = np.repeat([[low is not None], [high is not None]], dimensions, axis=1)
        wrong = below >= above if fixed.all() else below > above
        if wrong.any():
            axis = int(np.argmax(wrong))
            raise ValueError(f"low must be below high, got {below[axis]:g} and {above[axis]:g} along axis {axis}")
        axes = tuple(arguments.whole("periodic", axis, least=0, most=dimensions - 1) for axis in periodic)
        if axes and not fixed.all():
            raise ValueError("low and high must be given where axes are periodic: their ends are the same place")
        return cls(below, above, fixed, axes, start.dtype)

    @property
    def dimensions(self) -> int:
        """d."""
        return len(self.low)

    @property
    def closed(self) -> bool:
        """Whether all ends are given."""
        return bool(self._fixed.all())

    def wrapped(self, points: States) -> States:
        """Points [n, d], those along periodic axes brought into the box."""
        if not self.periodic or points.ndim != 2:
            return points
        axes, points = list(self.periodic), points.copy()
        low = self.low[axes]
        points[:, axes] = low + (points[:, axes] - low) % (self.high[axes] - low)
        return points

    def enlarged(self, visited: Floats) -> "Box":
        """The smallest box that also contains the box [2, d] of visited states, where its ends are not given.

        There is no margin: beyond what was visited there may be walls, and states that a simulator does not know. An
        axis along which nothing moves gets a width of a thousandth of its place, so that there is a grid.
        """
        low = np.where(self._fixed[0], self.low, np.minimum(self.low, visited[0]))
        high = np.where(self._fixed[1], self.high, np.maximum(self.high, visited[1]))
        flat = (low == high) * 1e-3 * np.maximum(1.0, np.abs(low)) / 2.0
        low, high = np.where(self._fixed[0], low, low - flat), np.where(self._fixed[1], high, high + flat)
        return Box(low, high, self._fixed, (), self.dtype)

    def moved(self, low: Floats, high: Floats) -> "Box":
        """The same box with other ends, where they are not given; those that are must be the same."""
        require((low < high).all(), "the lower corner of a box must be below the upper one")
        with np.errstate(over="ignore"):
            width = high - low
            usual = np.isfinite(width) & np.isfinite(np.iinfo(np.int64).max / width)  # for any number of cells
        require(usual.all(), "the width of a box must not be out of all proportion")
        given = np.where(self._fixed, [self.low, self.high], [low, high])
        require((given == [low, high]).all(), "the corners of a box must be those that were given")
        return Box(low, high, self._fixed, self.periodic, self.dtype)

    def exceeds(self, other: "Box") -> bool:
        """Whether one of its sides is further out than that of another box, by more than 5 % of the width."""
        little = 0.05 * (other.high - other.low)
        return bool(((other.low - self.low > little) | (self.high - other.high > little)).any())


def visited(model: GenerativeModel, oracle: Oracle, steps: int, grid: Grid | None = None) -> Floats:
    """The box [2, d] of what walks from the initial state visit; they start again where they end.

    They follow the greedy policy of a grid, with a tenth of random actions. Without a grid all actions are random, and
    some walks keep to an action for long: those get further.
    """
    rng, start = oracle.rng, np.asarray(model.initial_state)
    states = np.repeat(start[None], WALKS, axis=0)
    box = np.array([start, start], dtype=np.float64)
    if grid is None:
        changes, actions = np.geomspace(1.0, min(1.0, 4.0 / steps), WALKS), rng.integers(model.actions, size=WALKS)
    for _ in range(steps):
        changed = rng.random(WALKS) < (0.1 if grid is not None else changes)
        random = rng.integers(model.actions, size=WALKS)
        actions = np.where(changed, random, actions if grid is None else grid.at(states).argmax(axis=1))
        transition = oracle.sample(states, actions)
        alive = ~transition.terminals
        if alive.any():
            reached = transition.next_states[alive]
            box = np.array([np.minimum(box[0], reached.min(axis=0)), np.maximum(box[1], reached.max(axis=0))])
        states = np.where(alive[:, None], transition.next_states, start)
    return box
