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
from smoothplan.theory.backups import Backup, OptimalTransport, what_lacks

ROUNDING = 1e-9
"""What rounding may do to a value, relative to the largest number it is computed from."""

SLOPE_ROUNDING = 1e-11
"""What rounding may do to a slope ⟨π, e⟩ within a few temperatures of 0."""


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
    """Tests what a backup declares, and raises `BackupError` at the first thing that is not true.

    Args:
        backup: F.
        actions: K.
        states: states [n, ...] at which to test a backup that depends on the state.
        seed: of the action values and directions that are tried.
        points: how many.

    Returns:
        What was seen. A pass is evidence, not proof.

    >>> from smoothplan import LogSumExp
    >>> check_backup(LogSumExp(0.5), actions=3).at_zero == LogSumExp(0.5).at_zero_range(3)
    True
    """
    lacking = what_lacks(backup)
    if lacking is not None:
        raise BackupError(lacking)
    rng, actions = streams.generator(seed), arguments.whole("actions", actions)
    rows = None if states is None else np.asarray(states)
    if rows is not None and (rows.ndim == 0 or len(rows) == 0):
        raise ValueError(f"states must be a batch [n, ...] of at least one state, got shape {rows.shape}")
    count = arguments.whole("points", points)
    at = None if rows is None else rows[np.arange(count) % len(rows)]
    return _Examination(backup, actions, at, count, rng).run()


def _rows(wrong: Any) -> list[int]:
    """The rows where something is wrong."""
    return [int(row) for row in np.flatnonzero(wrong)]


@dataclass
class _Examination:
    """Tests at n points, the i-th of which is at the i-th state."""

    backup: Backup
    actions: int
    states: Any  # [n, ...]
    count: int  # n
    rng: np.random.Generator

    def run(self) -> BackupReport:
        temperature, declared = self.backup.temperature, self.backup.derivatives(self.actions)
        if temperature < 0.0 or (temperature > 0.0) != bool(declared) or not all(0 <= d < math.inf for d in declared):
            raise self._wrong(
                f"temperature is {temperature!r} and derivatives({self.actions}) is {declared!r}: a smooth backup has "
                "a temperature above 0 and finite bounds of its derivatives, any other has temperature 0 and none"
            )
        self._laws()
        at_zero = self._at_zero()
        if self.actions > 1:
            self._gradient()
        self._conjugacy()
        orders = enumerate(declared, start=2) if self.actions > 1 else ()
        return BackupReport(self.count, at_zero, tuple(self._derivative(*each) for each in orders))

    # What is tried

    @property
    def _scale(self) -> float:
        return self.backup.temperature or 1.0

    def _points(self, largest: float) -> Floats:
        """Action values [n, K] up to a number of temperatures: random ones, ties, all alike."""
        q = self.rng.normal(size=(self.count, self.actions))
        q *= self._scale * np.geomspace(0.1, largest, self.count)[:, None]
        q[::3] = self._scale * np.round(q[::3] / self._scale)
        q[::10] = q[::10, :1]
        return np.asarray(q)

    def _directions(self) -> Floats:
        """Directions [n, K] of range 1: between two sets of actions, and random ones."""
        e = self.rng.random((self.count, self.actions))
        e[::2] = e[::2] < 0.5
        rows, first = np.arange(self.count), self.rng.integers(self.actions, size=self.count)
        second = (first + self.rng.integers(1, self.actions, size=self.count)) % self.actions
        e[rows, first], e[rows, second] = 0.0, 1.0
        return e

    # What it answers

    def _answer(self, name: str, given: Floats, *shape: int) -> Floats:
        try:
            found = arguments.numbers(name, getattr(self.backup, name)(given, self.states))
        except TypeError as error:
            raise self._wrong(str(error)) from error
        wanted = [self.count, *shape]
        if list(found.shape) != wanted:
            raise self._wrong(f"{name} of {list(given.shape)} must have shape {wanted}, got {list(found.shape)}")
        return found

    def _value(self, q: Floats) -> Floats:
        found = self._answer("value", q)
        for row in _rows(~np.isfinite(found)):
            raise self._wrong(f"value is {found[row]}", q, row)
        return found

    def _policy(self, q: Floats) -> Floats:
        found = self._answer("policy", q, self.actions)
        good = (found >= 0.0).all(axis=1) & (np.abs(found.sum(axis=1) - 1.0) <= ROUNDING)
        for row in _rows(~good):
            raise self._wrong(f"policy is no distribution, {found[row].tolist()}", q, row)
        return found

    def _slope(self, q: Floats, e: Floats) -> Floats:
        return np.asarray((self._policy(q) * e).sum(axis=1))

    def _slack(self, *arrays: Floats) -> Floats:
        """What rounding may do to values at points [n, K], [n]."""
        largest = np.max([np.abs(array).max(axis=1) for array in arrays], axis=0)
        return np.asarray(ROUNDING * (self._scale + largest))

    def _wrong(self, what: str, q: Floats | None = None, row: int = 0) -> BackupError:
        where = "" if q is None else f", at q = {q[row].tolist()}"
        if q is not None and self.states is not None:
            where += f" and state {np.asarray(self.states[row]).tolist()}"
        return BackupError(f"{self.backup!r}: {what}{where}")

    # What is tested

    def _laws(self) -> None:
        """Equivariant under translations, monotone, convex."""
        q, other = self._points(100.0), self.rng.permutation(self._points(100.0))
        shift = self._scale * self.rng.normal(size=(self.count, 1)) * np.geomspace(0.1, 100.0, self.count)[:, None]
        value, slack = self._value(q), self._slack(q, other, shift)

        moved = self._value(q + shift) - value
        for row in _rows(np.abs(moved - shift[:, 0]) > slack):
            what = f"value rises by {moved[row]}, not by {shift[row, 0]}, if all of q does: not translation-equivariant"
            raise self._wrong(what, q, row)

        larger = q + np.abs(other) * (self.rng.random(q.shape) < 0.5)
        risen = self._value(larger) - value
        for row in _rows(risen < -slack):
            what = f"not monotone, value changes by {risen[row]} from there to {larger[row].tolist()}"
            raise self._wrong(what, q, row)

        middle, mean = self._value((q + other) / 2.0), (value + self._value(other)) / 2.0
        for row in _rows(middle > mean + slack):
            what = f"not convex, value halfway to {other[row].tolist()} is {middle[row]}, the mean of both {mean[row]}"
            raise self._wrong(what, q, row)

    def _at_zero(self) -> tuple[float, float]:
        zero, slack = np.zeros((self.count, self.actions)), ROUNDING * self._scale
        value, (low, high) = self._value(zero), self.backup.at_zero_range(self.actions)
        for row in _rows(~((low - slack <= value) & (value <= high + slack))):
            raise self._wrong(f"value is {value[row]}, outside of at_zero_range, {(low, high)}", zero, row)
        return float(value.min()), float(value.max())

    def _conjugacy(self) -> None:
        """F(q) = max over π of ⟨π, q⟩ − regulariser(π), attained at the policy."""
        q = self._points(3.0)
        value, slack = self._value(q), 100.0 * self._slack(q)  # a regulariser may be the result of an iteration
        own, vertices = self._policy(q), np.eye(self.actions)[self.rng.integers(self.actions, size=self.count)]
        others = self.rng.dirichlet(np.ones(self.actions), size=self.count)
        for policy, attained in ((own, True), (vertices, False), (others, False)):
            gain = (policy * q).sum(axis=1) - self._answer("regulariser", policy)
            for row in _rows(~((gain <= value + slack) & ((gain >= value - slack) | (not attained)))):
                where = "policy(q)" if attained else str(policy[row].tolist())
                what = f"value is {value[row]}, but ⟨π, q⟩ − regulariser(π) is {gain[row]} at π = {where}"
                raise self._wrong(what, q, row)
        if self.states is None or isinstance(self.backup, OptimalTransport):
            return
        charged, most = self._answer("regulariser", vertices), np.asarray(self.backup.regulariser(vertices))
        for row in _rows(~(charged <= most + slack)):
            what = f"regulariser({vertices[row].tolist()}) is {charged[row]}, and without states less, {most[row]}"
            raise self._wrong(what, q, row)

    def _gradient(self) -> None:
        """The policy against slopes of the value, on both sides."""
        q, e = self._points(10.0), self._directions()
        for step in (0.01 * self._scale, self._scale):
            after, before = q + step * e, q - step * e
            slope, slack = (self._value(after) - self._value(before)) / (2.0 * step), self._slack(q, after) / step
            low, high = self._slope(before, e), self._slope(after, e)
            for row in _rows((slope < low - slack) | (slope > high + slack)):
                raise self._wrong(
                    f"policy is not the gradient of value, which rises by {slope[row]} per unit in the direction "
                    f"{e[row].tolist()}, not by {low[row]} to {high[row]}",
                    q,
                    row,
                )

    def _derivative(self, order: int, bound: float) -> float:
        """The largest k-th derivative seen. Points are moved a little, and stay where it is larger."""
        q, e, best = self._points(3.0), self._directions(), np.zeros(self.count)
        # The shortest step is where rounding makes up a thousandth of the bound: a jump is found by short ones.
        size = max(bound, self._scale ** (1 - order))
        shortest = 2.0 * (1e3 * SLOPE_ROUNDING / size) ** (1.0 / (order - 1))
        for radius in (0.0, 0.3, 0.3, 0.1, 0.1, 0.03):
            for step in (shortest, 0.1 * self._scale, 0.5 * self._scale):
                tried = q + radius * self._scale * self.rng.normal(size=q.shape)
                found = np.abs(self._difference(order, tried, e, step))
                slack = 2.0 ** (order - 1) * SLOPE_ROUNDING / step ** (order - 1)
                for row in _rows(found > bound * (1.0 + ROUNDING) + slack):
                    raise self._wrong(
                        f"derivatives({self.actions}) declares {bound} for the derivative of order {order}, but around "
                        f"there it is {found[row]} on average in the direction {e[row].tolist()}",
                        tried,
                        row,
                    )
                better = found > best
                q, best = np.where(better[:, None], tried, q), np.maximum(found, best)
            if self.states is None:  # the worse half begins again where the better half is
                kept = np.argsort(-best)[np.arange(self.count) // 2]
                q, e, best = q[kept], e[kept], best[kept]
        return float(best.max())

    def _difference(self, order: int, q: Floats, e: Floats, step: float) -> Floats:
        """A mean of D^k F[e, ..., e] around q, by slopes at k places that are a step apart, [n]."""
        total = np.zeros(self.count)
        for place in range(order):
            slope = self._slope(q + (place - (order - 1) / 2.0) * step * e, e)
            total += (-1) ** (order - 1 - place) * math.comb(order - 1, place) * slope
        return np.asarray(total / step ** (order - 1))
