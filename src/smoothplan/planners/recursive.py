"""The recursive planners: which levels they allow, and how they are printed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from smoothplan import arguments
from smoothplan.backups import Backup
from smoothplan.models.base import GenerativeModel
from smoothplan.schedules import published
from smoothplan.schedules.level import Problem
from smoothplan.schedules.optimise import optimised
from smoothplan.schedules.schedule import Schedule

Variant = Literal["certified", "paper"]
"""The optimised schedule of certified levels, or the algorithm and the constants as published."""


def _check(epsilon: float, delta: float, variant: str) -> None:
    arguments.positive("epsilon", epsilon)
    if not 0.0 < arguments.number("delta", delta) < 1.0:
        raise ValueError(f"delta must be strictly between 0 and 1, got {delta!r}")
    if variant not in ("certified", "paper"):
        raise ValueError(f"variant must be 'certified' or 'paper', got {variant!r}")


def _smooth(backup: Backup, name: str) -> None:
    if backup.temperature == 0.0:
        raise ValueError(f"{name} needs a smooth backup, got {backup!r}: use SparseSampling for the hard maximum")


def _schedule(
    planner: "SparseSampling | SmoothCruiser | SecondOrderSmoothCruiser",
    model: GenerativeModel,
    order: int,
    printed: Callable[[Problem, float, float], Schedule],
) -> Schedule:
    problem = Problem.of(model, planner.backup)
    if planner.variant == "paper":
        return printed(problem, planner.epsilon, planner.delta)
    return optimised(problem, planner.epsilon, planner.delta, order)


@dataclass(frozen=True)
class SparseSampling:
    """Plug-in levels only (Kearns, Mansour and Ng, 2002): F of averaged returns, all the way down. For any backup.

    Args:
        backup: F.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for the published depth and width.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    variant: Variant = "certified"

    def __post_init__(self) -> None:
        _check(self.epsilon, self.delta, self.variant)

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""
        return _schedule(self, model, 0, published.sparse_sampling)

    def with_epsilon(self, epsilon: float) -> "SparseSampling":
        """The same planner for another accuracy."""
        return replace(self, epsilon=epsilon)


@dataclass(frozen=True)
class SmoothCruiser:
    """Levels up to order 1 (Grill et al., 2019): samples corrected along the gradient of a smooth backup.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for the published constants.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    variant: Variant = "certified"

    def __post_init__(self) -> None:
        _check(self.epsilon, self.delta, self.variant)
        _smooth(self.backup, "SmoothCruiser")

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""
        return _schedule(self, model, 1, published.smooth_cruiser)

    def with_epsilon(self, epsilon: float) -> "SmoothCruiser":
        """The same planner for another accuracy."""
        return replace(self, epsilon=epsilon)


@dataclass(frozen=True)
class SecondOrderSmoothCruiser:
    """Levels up to order 2 (the paper): samples corrected along gradient and Hessian of a smooth backup.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for Algorithms 1 to 3 as printed.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    variant: Variant = "certified"

    def __post_init__(self) -> None:
        _check(self.epsilon, self.delta, self.variant)
        _smooth(self.backup, "SecondOrderSmoothCruiser")

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""
        return _schedule(self, model, 2, published.second_order_smooth_cruiser)

    def with_epsilon(self, epsilon: float) -> "SecondOrderSmoothCruiser":
        """The same planner for another accuracy."""
        return replace(self, epsilon=epsilon)
