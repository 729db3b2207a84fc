"""A schedule: a table of levels and what happens at the root. Its price is known before anything is run.

At the root, order-1 and order-2 levels draw one reference Q̂, shared by all samples, and then m samples of the value
around it. The error of the shared reference is bounded with high probability; that, and the noise of the mean, is all
that the failure probability δ is spent on. A plug-in root is F(Q̂) itself, with an interval for every action.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from smoothplan import confidence
from smoothplan.arguments import Floats, Numbers
from smoothplan.schedules.level import (
    Certificate,
    Level,
    Problem,
    ReferenceMoments,
    Return,
    certify,
    corrected,
    exact_reference,
    one_step,
)

REFERENCE_SHARE = 0.05
"""The part of δ that the shared reference may use up; its error hardly matters, so little will do."""

CERTAIN_SHARE = 0.25
"""The part of δ for the bound that needs nothing but the certified variance, and so fixes the price in advance. Most of
δ goes to the interval that adapts to the variance found, with which most runs stop earlier."""

ACTIONS_SHARE = 0.05
"""The part of δ for intervals of the action values themselves, which serve a run that is stopped early."""

ADAPTIVE_SHARE = 1.0 - REFERENCE_SHARE - CERTAIN_SHARE - ACTIONS_SHARE


def shared_reference(problem: Problem, through: Return, samples: Numbers, delta: float) -> ReferenceMoments:
    """The root's reference: N returns per action, with range(Q̂ − Q) bounded with probability 1 − REFERENCE_SHARE·δ."""
    each = REFERENCE_SHARE * delta / problem.actions
    error = 2.0 * (confidence.bernstein_radius(through.variance, through.width, samples, each) + through.bias)
    # What is between the entries of Q̂ matters at the root, and it is no more than between those of Q plus the error.
    width = np.minimum(through.width, problem.action_gap + error)
    return exact_reference(error / 2.0, width, problem.actions * samples * through.calls)


@dataclass(frozen=True)
class Schedule:
    """A planner as data.

    The last level is the root's. `repeats` is m, the number of samples of it around one shared reference; 1 where the
    root is a plug-in level.
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
    def certificates(self) -> list[Certificate]:
        """What is proved of each level; of the last one as if its reference were drawn anew for every sample."""
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

        def return_calls(child: int) -> int:
            return self.levels[child].rewards + costs[child]

        around = 0 if level.reference is None else self.problem.actions * level.samples * return_calls(level.reference)
        rest = 0 if level.linear is None else return_calls(level.linear)
        rest += 0 if level.quadratic is None else 2 * level.pairs * return_calls(level.quadratic)
        return around, rest

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
    def sample(self) -> Certificate:
        """What is proved of a root sample given the shared reference, with probability 1 − REFERENCE_SHARE·δ.

        Of one return of one action, for a plug-in root.
        """
        root, problem = self.root, self.problem
        if root.kind == "constant":
            return self.certificates[-1]
        if root.kind == "plug-in":
            return Certificate(*self.action_return)
        around = shared_reference(problem, self.action_return, root.samples, self.delta)
        return corrected(problem, root, around, [self._return(row) for row in range(len(self.levels) - 1)])

    def sample_support(self, reference: Floats, value: float) -> tuple[float, float]:
        """Bounds of a root sample around a reference [K] that is known, and F there: often far narrower than certified.

        Only of F(Q̂) + X_A − Q̂(A); the certified ones for other roots.
        """
        root, proved = self.root, self.sample
        low, high = float(proved.low), float(proved.high)
        if root.kind == "order-1" and root.centring == "action" and root.clip is None:
            assert root.linear is not None
            linear = self._return(root.linear)
            low = max(low, float(value - reference.max() + linear.low + root.shift))
            high = min(high, float(value - reference.min() + linear.high + root.shift))
        return low, high

    @cached_property
    def action_return(self) -> Return:
        """What is proved of one return of one action at the root, from which the reference is averaged."""
        assert self.root.reference is not None
        return self._return(self.root.reference)

    def _return(self, row: int) -> Return:
        """What is proved of a return through a level."""
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
        return float(
            confidence.bernstein_radius(self.sample.variance, self.sample.high - self.sample.low, count, share)
        )


def trimmed(levels: list[Level]) -> tuple[Level, ...]:
    """The levels that the last one needs, renumbered."""
    needed = {len(levels) - 1}
    for row in range(len(levels) - 1, -1, -1):
        if row in needed:
            needed.update(levels[row].children)
    number: dict[int | None, int | None] = {None: None} | {row: place for place, row in enumerate(sorted(needed))}
    return tuple(
        replace(
            levels[row],
            reference=number[levels[row].reference],
            linear=number[levels[row].linear],
            quadratic=number[levels[row].quadratic],
        )
        for row in sorted(needed)
    )
