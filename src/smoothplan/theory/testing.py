"""Whether a backup is what it declares to be: `check_backup` tests it at random and at awkward action values.

Nothing is lost to truncation. By convexity the slope of F between two points lies between those of its tangents there;
and a difference of order k − 1 of the slopes along a line, over the k − 1-st power of its step, is a weighted mean of
the k-th derivative. So a difference above a declared bound refutes it, up to rounding.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments, streams
from smoothplan.base.arguments import Floats
from smoothplan.theory.backups import Backup, OptimalTransport, required_backup

ROUNDING = 1e-9
"""The rounding error of a value, relative to the largest number it is computed from."""


class BackupError(ValueError):
    """A backup is not what it declares to be."""


class BackupReport(NamedTuple):
    """What `check_backup` saw of a backup that passed."""

    points: int  # action values at which it was tested
    at_zero: tuple[float, float]  # smallest and largest F_s(0)
    derivatives: tuple[float, ...]  # the largest seen of each that is declared


def check_backup(
    backup: Backup, actions: int, states: ArrayLike | None = None, *, seed: int = 0, points: int = 400
) -> BackupReport:
    """Tests what a backup declares. A pass is evidence, not proof.

    Args:
        backup: F.
        actions: K.
        states: states [n, ...] at which to test a backup that depends on the state.
        seed: of the action values and directions that are tried.
        points: how many.

    Raises:
        BackupError: a declaration is not true.
        TypeError: a method is missing.

    >>> from smoothplan import LogSumExp
    >>> check_backup(LogSumExp(0.5), actions=3).at_zero == LogSumExp(0.5).at_zero_range(3)
    True
    """
    rows = None if states is None else np.asarray(states)
    if rows is not None and (rows.ndim == 0 or len(rows) == 0):
        raise ValueError(f"states must be a batch [n, ...] of at least one state, got shape {rows.shape}")
    actions, count = arguments.whole("actions", actions), arguments.whole("points", points)
    at = None if rows is None else rows[np.arange(count) % len(rows)]
    test = _Examination(required_backup(backup), actions, at, count, streams.generator(seed))
    temperature, declared = backup.temperature, backup.derivatives(actions)
    if temperature < 0.0 or (temperature > 0.0) != bool(declared) or not all(0 <= d < math.inf for d in declared):
        raise BackupError(
            f"{backup!r}: temperature is {temperature!r} and derivatives({actions}) is {declared!r}: a smooth backup "
            "has a temperature above 0 and finite bounds of its derivatives, any other has temperature 0 and none"
        )
    test.laws()
    at_zero = test.at_zero()
    if actions > 1:
        test.gradient()
    test.conjugacy()
    orders = enumerate(declared, start=2) if actions > 1 else ()
    return BackupReport(count, at_zero, tuple(test.derivative(*each) for each in orders))


@dataclass
class _Examination:
    """Tests at n points, the i-th of which is at the i-th state."""

    backup: Backup
    actions: int
    states: Any  # [n, ...]
    count: int  # n
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.scale = self.backup.temperature or 1.0

    def points(self, largest: float) -> Floats:
        """Action values [n, K] up to a number of temperatures: random ones, ties, all alike."""
        q = self.rng.normal(size=(self.count, self.actions))
        q *= self.scale * np.geomspace(0.1, largest, self.count)[:, None]
        q[::3] = self.scale * np.round(q[::3] / self.scale)
        q[::10] = q[::10, :1]
        return np.asarray(q)

    def directions(self) -> Floats:
        """Directions [n, K] of range 1: between two sets of actions, and random ones."""
        e = self.rng.random((self.count, self.actions))
        e[::2] = e[::2] < 0.5
        rows, first = np.arange(self.count), self.rng.integers(self.actions, size=self.count)
        second = (first + self.rng.integers(1, self.actions, size=self.count)) % self.actions
        e[rows, first], e[rows, second] = 0.0, 1.0
        return e

    def require(self, good: Any, q: Floats, what: str, *numbers: Floats) -> None:
        """Raises an error about the first row that is not good; its numbers fill the gaps in `what`."""
        for row in np.flatnonzero(~np.asarray(good)):
            said = what.format(*(array[row].tolist() for array in numbers))
            state = "" if self.states is None else f" and state {np.asarray(self.states[row]).tolist()}"
            raise BackupError(f"{self.backup!r}: {said}, at q = {q[row].tolist()}{state}")

    def answer(self, name: str, given: Floats, *shape: int) -> Floats:
        try:
            found = arguments.numbers(name, getattr(self.backup, name)(given, self.states))
        except TypeError as error:
            raise BackupError(f"{self.backup!r}: {error}") from error
        wanted, got = [self.count, *shape], list(found.shape)
        if got != wanted:
            raise BackupError(f"{self.backup!r}: {name} of {list(given.shape)} must have shape {wanted}, got {got}")
        return found

    def value(self, q: Floats) -> Floats:
        found = self.answer("value", q)
        self.require(np.isfinite(found), q, "value is {}", found)
        return found

    def policy(self, q: Floats) -> Floats:
        found = self.answer("policy", q, self.actions)
        good = (found >= 0.0).all(axis=1) & (np.abs(found.sum(axis=1) - 1.0) <= ROUNDING)
        self.require(good, q, "policy is no distribution, {}", found)
        return found

    def slope(self, q: Floats, e: Floats) -> Floats:
        return np.asarray((self.policy(q) * e).sum(axis=1))

    def slack(self, *arrays: Floats) -> Floats:
        """The rounding error of values at points [n, K], [n]."""
        return np.asarray(ROUNDING * (self.scale + np.max([np.abs(array).max(axis=1) for array in arrays], axis=0)))

    def laws(self) -> None:
        q, other = self.points(100.0), self.rng.permutation(self.points(100.0))
        shift = self.scale * self.rng.normal(size=(self.count, 1)) * np.geomspace(0.1, 100.0, self.count)[:, None]
        value, slack = self.value(q), self.slack(q, other, shift)
        moved = self.value(q + shift) - value
        what = "not translation-equivariant, value rises by {} if all of q does by {}"
        self.require(np.abs(moved - shift[:, 0]) <= slack, q, what, moved, shift[:, 0])

        larger = q + np.abs(other) * (self.rng.random(q.shape) < 0.5)
        risen = self.value(larger) - value
        self.require(risen >= -slack, q, "not monotone, value changes by {} from there to {}", risen, larger)

        middle, mean = self.value((q + other) / 2.0), (value + self.value(other)) / 2.0
        what = "not convex, value halfway to {} is {}, the mean of both {}"
        self.require(middle <= mean + slack, q, what, other, middle, mean)

    def at_zero(self) -> tuple[float, float]:
        zero, slack = np.zeros((self.count, self.actions)), ROUNDING * self.scale
        value, (low, high) = self.value(zero), self.backup.at_zero_range(self.actions)
        good = (low - slack <= value) & (value <= high + slack)
        self.require(good, zero, f"value is {{}}, outside of at_zero_range, {(low, high)}", value)
        return float(value.min()), float(value.max())

    def conjugacy(self) -> None:
        """F(q) = max over π of ⟨π, q⟩ − regulariser(π), attained at the policy."""
        q = self.points(3.0)
        value, slack = self.value(q), 100.0 * self.slack(q)  # a regulariser may be the result of an iteration
        own, vertices = self.policy(q), np.eye(self.actions)[self.rng.integers(self.actions, size=self.count)]
        others = self.rng.dirichlet(np.ones(self.actions), size=self.count)
        what = "value is {}, but ⟨π, q⟩ − regulariser(π) is {} at π = {}"
        for policy in (own, vertices, others):
            gain = (policy * q).sum(axis=1) - self.answer("regulariser", policy)
            good = (gain <= value + slack) & ((gain >= value - slack) | (policy is not own))
            self.require(good, q, what + " = policy(q)" * (policy is own), value, gain, policy)
        if self.states is None or isinstance(self.backup, OptimalTransport):
            return
        charged, most = self.answer("regulariser", vertices), np.asarray(self.backup.regulariser(vertices))
        what = "regulariser({}) is {}, and without states less, {}"
        self.require(charged <= most + slack, q, what, vertices, charged, most)

    def gradient(self) -> None:
        """The policy against slopes of the value, on both sides."""
        q, e = self.points(10.0), self.directions()
        what = "policy is not the gradient of value, which rises by {} per unit in the direction {}, not by {} to {}"
        for step in (0.01 * self.scale, self.scale):
            after, before = q + step * e, q - step * e
            slope, slack = (self.value(after) - self.value(before)) / (2.0 * step), self.slack(q, after) / step
            low, high = self.slope(before, e), self.slope(after, e)
            good = (slope >= low - slack) & (slope <= high + slack)
            self.require(good, q, what, slope, e, low, high)

    def derivative(self, order: int, bound: float) -> float:
        """The largest k-th derivative seen. Points are moved a little, and stay where it is larger."""
        q, e, best = self.points(3.0), self.directions(), np.zeros(self.count)
        rounding = 1e-11  # of a slope ⟨π, e⟩ within a few temperatures of 0
        # The shortest step is where rounding makes up a thousandth of the bound: a jump is found by short ones.
        shortest = 2.0 * (1e3 * rounding / max(bound, self.scale ** (1 - order))) ** (1.0 / (order - 1))
        what = (
            f"derivatives({self.actions}) declares {bound} for the derivative of order {order}, but around there it is "
            "{} on average in the direction {}"
        )
        for radius in (0.0, 0.3, 0.3, 0.1, 0.1, 0.03):
            for step in (shortest, 0.1 * self.scale, 0.5 * self.scale):
                tried = q + radius * self.scale * self.rng.normal(size=q.shape)
                found = np.abs(self.difference(order, tried, e, step))
                slack = 2.0 ** (order - 1) * rounding / step ** (order - 1)
                self.require(found <= bound * (1.0 + ROUNDING) + slack, tried, what, found, e)
                q, best = np.where((found > best)[:, None], tried, q), np.maximum(found, best)
            if self.states is None:  # the worse half begins again where the better half is
                kept = np.argsort(-best)[np.arange(self.count) // 2]
                q, e, best = q[kept], e[kept], best[kept]
        return float(best.max())

    def difference(self, order: int, q: Floats, e: Floats, step: float) -> Floats:
        """A mean of D^k F[e, ..., e] around q, by slopes at k places that are a step apart, [n]."""
        total = np.zeros(self.count)
        for place in range(order):
            slope = self.slope(q + (place - (order - 1) / 2.0) * step * e, e)
            total += (-1) ** (order - 1 - place) * math.comb(order - 1, place) * slope
        return np.asarray(total / step ** (order - 1))
