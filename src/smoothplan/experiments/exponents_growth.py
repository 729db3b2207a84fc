"""What forecasts and runs show of how prices and errors change with ε, for one planner."""

from typing import NamedTuple

import numpy as np

from smoothplan.experiments.fits import Fit, exponent_beside_logs, power_law

FINE = 1e-3
"""Exponents are fitted to forecasts for ε from here down."""


class Growth(NamedTuple):
    """What the runs of one planner show."""

    epsilons: list[float]
    calls: list[list[float]]  # at each ε, of all runs
    errors: list[list[float]]
    prices: list[float]  # forecasts at the same ε; empty where there are none

    @property
    def inverse(self) -> list[float]:
        """1/ε."""
        return [1.0 / epsilon for epsilon in self.epsilons]

    @property
    def calls_slope(self) -> Fit:
        """Of the calls made against 1/ε."""
        return power_law(self.inverse, self.calls)

    @property
    def price_slope(self) -> float:
        """Of the forecasts against 1/ε, over the same range."""
        return power_law(self.inverse, [[price] for price in self.prices]).slope

    @property
    def error_slope(self) -> Fit:
        """Of the root mean squares of the errors against ε."""
        return power_law(self.epsilons, self.errors, "square")

    @property
    def leverage(self) -> float:
        """√Σ(x − x̄)² over all runs, x = log ε: a slope has √n times the deviation of a mean of n, divided by this."""
        x = np.repeat(np.log(self.epsilons), [len(errors) for errors in self.errors])
        return float(np.sqrt(((x - x.mean()) ** 2).sum()))

    @property
    def within(self) -> float:
        """The share of runs whose error is at most ε."""
        pairs = zip(self.epsilons, self.errors, strict=True)
        return float(np.mean([error <= epsilon for epsilon, errors in pairs for error in errors]))

    @property
    def runs(self) -> int:
        """How many there are."""
        return sum(map(len, self.errors))


class Prices(NamedTuple):
    """The forecasts of one planner."""

    epsilons: list[float]
    logs: list[float]  # of the prices

    @property
    def fine(self) -> tuple[list[float], list[float]]:
        """1/ε, and the logarithms of the prices, at the fine end."""
        pairs = [(1.0 / e, log) for e, log in zip(self.epsilons, self.logs, strict=True) if e <= FINE * 1.001]
        return [x for x, _ in pairs], [log for _, log in pairs]

    @property
    def exponent(self) -> float:
        """p of ε^−p·log(1/ε)^q, the form that hides in the theory's Õ(ε^−p)."""
        return exponent_beside_logs(*self.fine)

    @property
    def curvature(self) -> float:
        """q of log price = a + p·x + q·x²/2 with x = log 1/ε: 0 for every power, and for powers with logarithms."""
        x, logs = self.fine
        return float(2.0 * np.polyfit(np.log(x), logs, 2)[0])

    @property
    def local(self) -> tuple[list[float], list[float]]:
        """1/ε between neighbours, and the slopes there."""
        x = -np.log(self.epsilons)
        slopes = np.diff(self.logs) / np.diff(x)
        return np.exp((x[1:] + x[:-1]) / 2.0).tolist(), slopes.tolist()
