"""A schedule: a table of levels, and the sampling at the root. Its forecast tells the price before a run.

At the root, order-1 and order-2 levels draw one reference Q̂, shared by all samples, and then m samples of the value
around it. The failure probability δ is spent on two things: the error of the shared reference, and the noise of the
mean. A plug-in root is F(Q̂) itself, with an interval for every action.
"""

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from smoothplan import confidence
from smoothplan.base.arguments import Floats, Numbers
from smoothplan.base.records import Record, renderer
from smoothplan.models.model import GenerativeModel, required_model
from smoothplan.recursive.level import (
    Bounds,
    Level,
    ReferenceMoments,
    certify,
    corrected,
    exact_reference,
    one_step,
)
from smoothplan.run.records import LONG_HORIZONS, REFUSED_CALLS, Planner, required_planner
from smoothplan.theory.curvature import Problem

# Parts of δ. Most goes to the interval that adapts to the variance found, with which most runs stop early.
REFERENCE_SHARE = 0.05  # the shared reference, whose error hardly matters
CERTAIN_SHARE = 0.25  # the bound that needs nothing but the certified variance, and so fixes the price in advance
ACTIONS_SHARE = 0.05  # intervals of the action values, which serve a run that is stopped early
ADAPTIVE_SHARE = 1.0 - REFERENCE_SHARE - CERTAIN_SHARE - ACTIONS_SHARE


def shared_reference(problem: Problem, through: Bounds, samples: Numbers, delta: float) -> ReferenceMoments:
    """The root's reference: N returns per action, with range(Q̂ − Q) bounded with probability 1 − REFERENCE_SHARE·δ."""
    each = REFERENCE_SHARE * delta / problem.actions
    error = 2.0 * (confidence.bernstein_radius(through.variance, through.width, samples, each) + through.bias)
    # The gap between entries of Q̂ matters at the root. It is at most the gap between those of Q, plus the error.
    width = np.minimum(through.width, problem.action_gap + error)
    return exact_reference(error / 2.0, width, problem.actions * samples * through.calls)


@dataclass(frozen=True)
class Schedule:
    """A planner as data.

    The last level is the root's. `repeats` is m, the number of samples of it around one shared reference; 1 if the root
    is a plug-in level.
    """

    problem: Problem
    levels: tuple[Level, ...]
    repeats: int
    epsilon: float
    delta: float
    early_stopping: bool = True  # whether a run ends as soon as its interval is within ε

    @property
    def root(self) -> Level:
        """The last level."""
        return self.levels[-1]

    @cached_property
    def certificates(self) -> list[Bounds]:
        """The certificate of each level; of the last one as if its reference were drawn anew for every sample."""
        return certify(self.problem, self.levels)

    @cached_property
    def costs(self) -> list[int]:
        """Simulator calls of one sample of each level, at most: exact whole numbers, however large."""
        costs: list[int] = []
        for level in self.levels:
            costs.append(sum(self._parts(level, costs)))
        return costs

    def _parts(self, level: Level, costs: list[int]) -> tuple[int, int]:
        """Calls for the reference of one sample of a level, and for the rest of it."""

        def calls(child: int | None, returns: int) -> int:
            return 0 if child is None else returns * (self.levels[child].rewards + costs[child])

        rest = calls(level.linear, 1) + calls(level.quadratic, 2 * level.pairs)
        return calls(level.reference, self.problem.actions * level.samples), rest

    @property
    def reference_calls(self) -> int:
        """Calls for the root's reference, at most."""
        return self._parts(self.root, self.costs)[0]

    @property
    def sample_calls(self) -> int:
        """Calls for one sample around it, at most; 0 for a plug-in root."""
        return self._parts(self.root, self.costs)[1]

    @property
    def calls(self) -> int:
        """Calls of the whole run, at most."""
        return self.reference_calls + self.repeats * self.sample_calls

    @cached_property
    def sample(self) -> Bounds:
        """The certificate of a root sample given the shared reference, with probability 1 − REFERENCE_SHARE·δ.

        For a plug-in root, of one return of one action.
        """
        root, problem = self.root, self.problem
        if root.kind == "constant":
            return self.certificates[-1]
        if root.kind == "plug-in":
            return self.action_return
        around = shared_reference(problem, self.action_return, root.samples, self.delta)
        return corrected(problem, root, around, [self._return(row) for row in range(len(self.levels) - 1)])

    def sample_support(self, reference: Floats, value: float) -> tuple[float, float]:
        """Bounds of a root sample around a known reference [K], given F there.

        They are often far narrower than certified if the sample is F(Q̂) + X_A − Q̂(A).
        """
        root, low, high = self.root, float(self.sample.low), float(self.sample.high)
        if root.kind == "order-1" and not root.printed and root.clip is None:
            assert root.linear is not None
            linear = self._return(root.linear)
            low = max(low, float(value - reference.max() + linear.low + root.shift))
            high = min(high, float(value - reference.min() + linear.high + root.shift))
        return low, high

    @cached_property
    def action_return(self) -> Bounds:
        """The certificate of one return of one action at the root, from which the reference is averaged."""
        assert self.root.reference is not None
        return self._return(self.root.reference)

    def _return(self, row: int) -> Bounds:
        """The certificate of a return through a level."""
        return one_step(self.problem, self.certificates[row], self.levels[row].rewards)

    @property
    def bias(self) -> float:
        """The part of the error that no repetition removes."""
        return float(self.sample.bias)

    @property
    def noise(self) -> float:
        """The certified radius of the mean after all samples."""
        if self.root.kind == "constant":
            return 0.0
        count, share = self.repeats, CERTAIN_SHARE * self.delta
        if self.root.kind == "plug-in":
            count, share = self.root.samples, share / self.problem.actions
        return float(confidence.bernstein_radius(self.sample.variance, self.sample.width, count, share))


def trimmed(levels: list[Level]) -> tuple[Level, ...]:
    """The levels that the last one needs, renumbered."""
    needed = {len(levels) - 1}
    for row in range(len(levels) - 1, -1, -1):
        if row in needed:
            needed.update(levels[row].children)
    kept = sorted(needed)
    new: dict[int | None, int | None] = {None: None} | {row: place for place, row in enumerate(kept)}
    return tuple(
        replace(level, reference=new[level.reference], linear=new[level.linear], quadratic=new[level.quadratic])
        for level in (levels[row] for row in kept)
    )


def require_depth(problem: Problem, steps: float, most: int) -> None:
    """Refuses a schedule that needs more levels, from coarse to fine, than can be handled."""
    if steps > most:
        raise ValueError(
            f"discount must be smaller for recursion, got {problem.discount!r}: it would take {steps:.2g} levels, more "
            f"than {most:,}. A smaller discount or a larger epsilon would help; {LONG_HORIZONS}"
        )


@runtime_checkable
class Scheduled(Planner, Protocol):
    """A planner whose price is known in advance: it runs a schedule."""

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""

    def with_epsilon(self, epsilon: float) -> "Scheduled":
        """The same planner for another accuracy."""


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Record):
    """The largest price of a planner, and its parts. No simulator call is made for it."""

    planner: Scheduled
    model: GenerativeModel

    def __repr__(self) -> str:
        try:
            return f"Forecast({self.summary()})"
        except ValueError as error:  # ε is out of reach
            return f"Forecast({error})"

    @cached_property
    def schedule(self) -> Schedule:
        """The table of levels."""
        return self.planner.schedule(self.model)

    @property
    def calls(self) -> int:
        """The most simulator calls that the run may make; it stops earlier if its interval is within ε."""
        return self.schedule.calls

    @cached_property
    def exponent(self) -> float:
        """Growth of the price: log₂ of the forecast at ε/2 over that at ε; at ε over 2ε if ε/2 has no schedule."""
        try:
            fine, coarse = self._calls_at(self.schedule.epsilon / 2.0), self.calls
        except ValueError:
            fine, coarse = self.calls, self._calls_at(self.schedule.epsilon * 2.0)
        return math.log2(fine) - math.log2(max(coarse, 1)) if fine > 0 else 0.0

    @cached_property
    def prices(self) -> tuple[tuple[float, int], ...]:
        """(ε, calls) around the present ε, the largest ε first: the points of a figure.

        Up to six larger ε, until a price is one that `plan` would start; up to three smaller ones, while it is. Prices
        that no float can hold are left out.
        """
        epsilon = self.schedule.epsilon
        larger, smaller = [(epsilon, self.calls)], [(epsilon, self.calls)]
        try:
            while len(larger) <= 2 or (len(larger) <= 6 and larger[-1][1] > REFUSED_CALLS):
                larger.append((larger[-1][0] * 2.0, self._calls_at(larger[-1][0] * 2.0)))
            while len(smaller) <= 3 and smaller[-1][1] <= REFUSED_CALLS:
                smaller.append((smaller[-1][0] / 2.0, self._calls_at(smaller[-1][0] / 2.0)))
        except ValueError:  # there is no schedule for that ε
            pass
        return tuple(point for point in (*larger[:0:-1], *smaller) if point[1] < 10**300)

    def _calls_at(self, epsilon: float) -> int:
        return self.planner.with_epsilon(epsilon).schedule(self.model).calls

    def table(self) -> str:
        """The levels as a table for people: from the root down, each with its children and its certificate.

        The root's row is about one sample around the shared reference.
        """
        return str(renderer().table(self))

    def to_dict(self) -> dict[str, Any]:
        """The price, its parts, and every level."""
        schedule = self.schedule
        levels = [
            asdict(level) | {"bias": float(proved.bias), "variance": float(proved.variance), "calls": calls}
            for level, proved, calls in zip(schedule.levels, schedule.certificates, schedule.costs, strict=True)
        ]
        names = ("calls", "reference_calls", "repeats", "sample_calls", "epsilon", "delta", "bias", "noise")
        fields = {name: getattr(schedule, name) for name in names}
        return fields | {"exponent": self.exponent, "levels": levels}


def forecast(planner: Planner, model: GenerativeModel) -> Forecast:
    """The largest price of a planner on a model, without a single simulator call.

    >>> import smoothplan as sp
    >>> model = sp.models.garnet(states=50, actions=2, branching=4, discount=0.2, seed=1)
    >>> sp.forecast(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1, delta=0.1), model).calls < 10_000
    True

    Raises:
        TypeError: the planner has no schedule; it says why in its attribute `no_forecast`.
    """
    required_planner(planner)
    required_model(model)
    if not isinstance(planner, Scheduled):
        reason = getattr(planner, "no_forecast", "it has no schedule")
        raise TypeError(f"{type(planner).__name__} has no forecast: {reason}; limit it with max_calls")
    return Forecast(planner, model)
