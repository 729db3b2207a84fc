"""The recursive planners: which levels they allow, and how they are printed."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from smoothplan import arguments, recursion
from smoothplan.backups import Backup
from smoothplan.models.base import GenerativeModel
from smoothplan.running.run import Root, Run
from smoothplan.schedules import published
from smoothplan.schedules.level import Problem
from smoothplan.schedules.optimise import optimised
from smoothplan.schedules.schedule import Schedule

Variant = Literal["certified", "paper"]
"""The optimised schedule of certified levels, or the algorithm and the constants as published."""


@dataclass(frozen=True)
class _Recursive:
    """What the recursive planners have in common; they differ in the levels they allow and in what was published."""

    backup: Backup
    epsilon: float
    delta: float = 0.1
    variant: Variant = "certified"

    order: ClassVar[int]
    published: "ClassVar[staticmethod[[Problem, float, float], Schedule]]"

    def __post_init__(self) -> None:
        arguments.accuracy(self.epsilon)
        arguments.failure(self.delta)
        if self.variant not in ("certified", "paper"):
            raise ValueError(f"variant must be 'certified' or 'paper', got {self.variant!r}")
        if self.order > 0 and self.backup.temperature == 0.0:
            name = type(self).__name__
            raise ValueError(f"{name} needs a smooth backup, got {self.backup!r}: use SparseSampling for the maximum")

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""
        problem = Problem.of(model, self.backup)
        if self.variant == "paper":
            return self.published(problem, self.epsilon, self.delta)
        return optimised(problem, self.epsilon, self.delta, self.order)

    def with_epsilon(self, epsilon: float) -> Self:
        """The same planner for another accuracy."""
        return replace(self, epsilon=epsilon)

    def begin(self, root: Root) -> Run:
        """A run of the schedule."""
        return recursion.begin(self, root)


class SparseSampling(_Recursive):
    """Plug-in levels only (Kearns, Mansour and Ng, 2002): F of averaged returns, all the way down. For any backup.

    Args:
        backup: F.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for the published depth and width.
    """

    order = 0
    published = staticmethod(published.sparse_sampling)


class SmoothCruiser(_Recursive):
    """Levels up to order 1 (Grill et al., 2019): samples corrected along the gradient of a smooth backup.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for the published constants.
    """

    order = 1
    published = staticmethod(published.smooth_cruiser)


class SecondOrderSmoothCruiser(_Recursive):
    """Levels up to order 2 (the paper): samples corrected along gradient and Hessian of a smooth backup.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for Algorithms 1 to 3 as printed.
    """

    order = 2
    published = staticmethod(published.second_order_smooth_cruiser)
