"""Backups as a user may write them, with no more than the protocol asks for; and a sample of those of the library."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from smoothplan.base.arguments import Floats
from smoothplan.theory.backups import Backup, HardMax, LogSumExp, OptimalTransport, Tsallis, discrete_cost, line_cost


def transports(actions: int, states: int) -> list[OptimalTransport]:
    """With a uniform prior, a skewed one and costs of either sign, one prior per state, and a function of the state."""
    rng = np.random.default_rng([actions, states])
    signed = rng.normal(size=(actions, actions))
    table = rng.dirichlet(np.ones(actions), size=states)
    one_hot = np.eye(actions)
    return [
        OptimalTransport(cost=line_cost(actions), tau=1.0, lam=0.25),
        OptimalTransport(cost=signed, tau=0.5, lam=2.0, prior=rng.dirichlet(np.ones(actions))),
        OptimalTransport(cost=signed, tau=0.7, lam=0.1, prior=table),
        OptimalTransport(
            cost=discrete_cost(actions), tau=0.5, lam=0.5, prior=lambda s: one_hot[np.asarray(s) % actions]
        ),
    ]


def library_backups(actions: int, states: int) -> list[Backup]:
    """One of every kind, for a table of that size."""
    return [HardMax(), LogSumExp(0.05), LogSumExp(2.0), Tsallis(0.7), *transports(actions, states)]


@dataclass(frozen=True)
class TwoTemperatures:
    """The mean of two LogSumExp: smooth to all orders, and no mixture of softmaxes at one temperature."""

    cold: LogSumExp = field(default_factory=lambda: LogSumExp(0.3))
    warm: LogSumExp = field(default_factory=lambda: LogSumExp(1.5))

    @property
    def temperature(self) -> float:
        return self.cold.temperature

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        value = (self.cold.at_zero_range(actions)[0] + self.warm.at_zero_range(actions)[0]) / 2.0
        return value, value

    def derivatives(self, actions: int) -> tuple[float, ...]:
        both = zip(self.cold.derivatives(actions), self.warm.derivatives(actions), strict=True)
        return tuple((cold + warm) / 2.0 for cold, warm in both)

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        return (self.cold.value(q) + self.warm.value(q)) / 2.0

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        return (self.cold.policy(q) + self.warm.policy(q)) / 2.0

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """By definition, the largest ⟨π, q⟩ − F(q); exact at vertices, where only a limit attains it."""
        rows = np.asarray(policy, dtype=np.float64)
        found = [0.0 if row.max() == 1.0 else self._conjugate(row) for row in rows.reshape(-1, rows.shape[-1])]
        return np.reshape(found, rows.shape[:-1])

    def _conjugate(self, policy: Floats) -> float:
        def loss(q: Floats) -> tuple[float, Floats]:
            return float(self.value(q) - policy @ q), self.policy(q) - policy

        start = self.warm.temperature * np.log(np.maximum(policy, 1e-12))
        return float(-minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-10}).fun)


@dataclass(frozen=True, eq=False)
class Called:
    """Another backup, of which nothing but the protocol shows; `broken_after` calls of `value` it fails."""

    inner: Backup
    error: BaseException | float | None = None
    broken_after: int = 10**9
    calls: list[int] = field(default_factory=lambda: [0])

    @property
    def temperature(self) -> float:
        return self.inner.temperature

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        return self.inner.at_zero_range(actions)

    def derivatives(self, actions: int) -> tuple[float, ...]:
        return self.inner.derivatives(actions)

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        self.calls[0] += 1
        if self.calls[0] > self.broken_after:
            if isinstance(self.error, BaseException):
                raise self.error
            return np.full(np.shape(q)[:-1], self.error)
        return self.inner.value(q, states)

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        return self.inner.policy(q, states)

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        return self.inner.regulariser(policy, states)

    def __repr__(self) -> str:
        return f"Called({self.inner!r})"
