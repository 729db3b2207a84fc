"""Whether a backup keeps its declarations: `check_backup` tests it at random and at awkward action values.

Nothing is lost to truncation. A convex F is nowhere below its tangents; with policies as gradients it is then monotone,
too. A difference of order k − 1 of the slopes along a line, over the k − 1-st power of its step, is a weighted mean of
the k-th derivative. So a difference above a declared bound refutes it, up to rounding.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments, streams
from smoothplan.base.arguments import Floats
from smoothplan.models.model import ROUNDING
from smoothplan.theory.backups import Backup, OptimalTransport, required_backup


class BackupError(ValueError):
    """A backup breaks its declarations."""


class BackupReport(NamedTuple):
    """The numbers that `check_backup` saw of a backup that passed."""

    points: int  # action values at which it was tested
    at_zero: tuple[float, float]  # smallest and largest F_s(0)
    derivatives: tuple[float, ...]  # the largest seen of each that is declared


def check_backup(
    backup: Backup, actions: int, states: ArrayLike | None = None, *, seed: int = 0, points: int = 400
) -> BackupReport:
    """Tests the declarations of a backup. A pass is evidence, not proof.

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
    actions, count = arguments.whole("actions", actions), arguments.whole("points", points)
    temperature, declared = required_backup(backup).temperature, backup.derivatives(actions)
    if temperature < 0.0 or (temperature > 0.0) != bool(declared) or not all(0 <= d < math.inf for d in declared):
        raise BackupError(
            f"{backup!r}: temperature is {temperature!r} and derivatives({actions}) is {declared!r}: a smooth backup "
            "has a temperature above 0 and finite bounds of its derivatives, any other has temperature 0 and none"
        )
    at = None
    if states is not None:
        at = np.asarray(states)
        if at.ndim == 0 or len(at) == 0:
            raise ValueError(f"states must be a batch [n, ...] of at least one state, got shape {at.shape}")
        at = at[np.arange(count) % len(at)]
    test = _Examination(backup, actions, at, count, temperature or 1.0, streams.generator(seed))
    test.gradient()
    at_zero = test.at_zero()
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
    scale: float
    rng: np.random.Generator

    def points(self, largest: float) -> Floats:
        """Action values [n, K] up to a number of temperatures: random ones, ties, all alike."""
        q = self.rng.normal(size=(self.count, self.actions))
        q *= self.scale * np.geomspace(0.1, largest, self.count)[:, None]
        q[::3] = self.scale * np.round(q[::3] / self.scale)
        q[::10] = q[::10, :1]
        return np.asarray(q)

    def directions(self) -> Floats:
        """Directions [n, K] of range 1, if there are two actions: between two sets of actions, and random ones."""
        e = self.rng.random((self.count, self.actions))
        e[::2] = e[::2] < 0.5
        rows, first = np.arange(self.count), self.rng.integers(self.actions, size=self.count)
        second = (first + self.rng.integers(1, max(self.actions, 2), size=self.count)) % self.actions
        e[rows, first], e[rows, second] = 0.0, 1.0
        return e

    def require(self, good: Any, q: Floats, what: str, *numbers: Floats) -> None:
        """Raises an error about the first row that is not good; its numbers fill the gaps in `what`."""
        for row in np.flatnonzero(~np.asarray(good)):
            said = what.format(*(array[row].tolist() for array in numbers))
            state = "" if self.states is None else f" and state {np.asarray(self.states[row]).tolist()}"
            raise BackupError(f"{self.backup!r}: {said}, at q = {q[row].tolist()}{state}")

    def answer(self, name: str, given: Floats) -> Floats:
        """The value [n], policy [n, K] or regulariser [n] at rows [n, K]."""
        try:
            found = arguments.numbers(name, getattr(self.backup, name)(given, self.states))
        except TypeError as error:
            raise BackupError(f"{self.backup!r}: {error}") from error
        wanted, got = [self.count, self.actions][: 1 + (name == "policy")], list(found.shape)
        if got != wanted:
            raise BackupError(f"{self.backup!r}: {name} of {list(given.shape)} must have shape {wanted}, got {got}")
        if name == "value":
            self.require(np.isfinite(found), given, "value is {}", found)
        if name == "policy":
            good = (found >= 0.0).all(axis=1) & (np.abs(found.sum(axis=1) - 1.0) <= ROUNDING)
            self.require(good, given, "policy is no distribution, {}", found)
        return found

    def slack(self, *arrays: Floats) -> Floats:
        """The rounding error of values at points [n, K], [n]."""
        return np.asarray(ROUNDING * (self.scale + np.max([np.abs(array).max(axis=1) for array in arrays], axis=0)))

    def gradient(self) -> None:
        """Values against tangents at other points: all entries moved alike, near points, and far ones."""
        q, far, e = self.points(100.0), self.rng.permutation(self.points(100.0)), self.directions()
        constant = self.scale * self.rng.normal(size=(self.count, 1)) * np.geomspace(0.1, 100.0, self.count)[:, None]
        near, step = self.points(10.0), self.scale * e
        what = "value is {} at {}, but its tangent at q is {} there"
        for law, one, two in (
            ("value is not translation-equivariant", q, q + constant),
            ("policy is not the gradient of a convex value", near - 0.01 * step, near + 0.01 * step),
            ("policy is not the gradient of a convex value", near - step, near + step),
            ("policy is not the gradient of a convex value", q, far),
        ):
            for at, other in ((one, two), (two, one)):
                value = self.answer("value", other)
                tangent = self.answer("value", at) + (self.answer("policy", at) * (other - at)).sum(axis=1)
                self.require(value >= tangent - self.slack(one, two), at, f"{law}: {what}", value, other, tangent)

    def at_zero(self) -> tuple[float, float]:
        zero, slack = np.zeros((self.count, self.actions)), ROUNDING * self.scale
        value, (low, high) = self.answer("value", zero), self.backup.at_zero_range(self.actions)
        good = (low - slack <= value) & (value <= high + slack)
        self.require(good, zero, f"value is {{}}, outside of at_zero_range, {(low, high)}", value)
        return float(value.min()), float(value.max())

    def conjugacy(self) -> None:
        """F(q) = max over π of ⟨π, q⟩ − regulariser(π), attained at the policy."""
        q = self.points(3.0)
        value, slack = self.answer("value", q), 100.0 * self.slack(q)  # a regulariser may be the result of an iteration
        own, vertices = self.answer("policy", q), np.eye(self.actions)[self.rng.integers(self.actions, size=self.count)]
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
                total = np.zeros(self.count)  # a difference of slopes at k places that are a step apart
                for place in range(order):
                    policy = self.answer("policy", tried + (place - (order - 1) / 2.0) * step * e)
                    total += (-1) ** place * math.comb(order - 1, place) * (policy * e).sum(axis=1)
                found = np.abs(total) / step ** (order - 1)
                slack = 2.0 ** (order - 1) * rounding / step ** (order - 1)
                self.require(found <= bound * (1.0 + ROUNDING) + slack, tried, what, found, e)
                q, best = np.where((found > best)[:, None], tried, q), np.maximum(found, best)
            if self.states is None:  # the worse half begins again where the better half is
                kept = np.argsort(-best)[np.arange(self.count) // 2]
                q, e, best = q[kept], e[kept], best[kept]
        return float(best.max())
