"""Plans: sequences of actions that are improved by what they earn, if nothing is random.

Then one return tells what a sequence earns, and what is left of the best one is a plan for the next state. Random
changes improve it, and after some of them the policy of a reference takes over. The policy's own course takes part,
so the best plan earns no less than that, as far as returns of so many steps tell.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base.arguments import Ints
from smoothplan.chains.returns import Values
from smoothplan.models.model import Actions, Box, Oracle, States, horizon_of, too_long

Course = Callable[[States], Actions]
"""A policy, from states [n, ...] to actions: numbers [n]; of a box, [n] or [n, d]."""

LONG = 50  # the length of plans if calls are few
FEWEST = 8  # plans that the calls of a decision suffice for, and of a batch
PROBE = 8  # steps that tell most simulators with something random
HALVINGS = 6.0  # of the side of a box: the smallest change of an action
FRESH = 0.1  # of the plans of numbered actions have nothing in common with the best one
EDITS = 0.3  # 1/EDITS stretches of such a plan change, on average


class Plan(NamedTuple):
    """A sequence of actions from a state."""

    actions: Actions  # [H]; of a box [H] or [H, d]
    value: float  # what they earn, discounted, and V̂ of the state that they reach
    tail: float  # the part of V̂
    end: Any  # the state that they reach

    def repeats(self, other: "Plan") -> bool:
        """Whether the same actions have earned the same, V̂ apart, and led to the same state; but for rounding."""
        apart = abs((self.value - self.tail) - (other.value - other.tail))
        return apart <= 1e-9 * abs(self.value) and np.allclose(self.end, other.end, rtol=1e-9, atol=1e-9)


class Gain(NamedTuple):
    """How much more a plan earns than the course that plans are compared with, and how far V̂ may be off."""

    plan: Plan
    mean: float
    error: float


class Plans:
    """The best plan so far, from one state to the next.

    Args:
        oracle: of the simulator. All actions must be legal everywhere.

    Attributes:
        best: the best plan from the latest state; None before there is any.
        random: whether the same actions have earned different returns: then there are no plans.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle, self._actions = oracle, oracle.model.actions
        self.best: Plan | None = None
        self._base: Plan | None = None  # the course that plans are compared with
        self.random = False

    @property
    def gain(self) -> Gain | None:
        """What the best plan is worth; None if it is worth nothing. Half of the part of V̂ may be wrong."""
        if self.best is None or self._base is None:
            return None
        mean, error = self.best.value - self._base.value, abs(self.best.tail - self._base.tail) / 2.0
        return Gain(self.best, mean, error) if mean > 1e-9 * abs(self.best.value) else None

    def start(self, state: Any, policy: Course, value: Values, steps: int, calls: int) -> bool:
        """Begins at a state with what is left of the last plan, or with the policy's course; whether there are plans.

        Args:
            state: where plans start.
            policy: goes on where a plan ends.
            value: V̂, of states [n, ...].
            steps: the length of a plan, at most.
            calls: that plans may take here.
        """
        self._state, self._policy, self._value, self._base = np.asarray(state), policy, value, None
        # The more calls, the longer and the more plans.
        steps, before = min(steps, max(math.isqrt(max(calls, 0)), min(LONG, calls // FEWEST))), self.best
        self.best = None
        if self.random or steps == 0:
            return False
        plans = np.stack([self._nothing(steps)] * 2)
        left: Actions = plans[0, :0] if before is None else before.actions[1 : steps + 1]
        plans[1, : len(left)] = left
        # The same course twice if there is no plan: whether nothing is random is not known yet.
        for length in (min(PROBE, steps), steps) if before is None else (steps,):
            course, other = self._courses(plans[:, :length], np.array([0, len(left)]))
            if before is None and not other.repeats(course):
                self.random = True
                return False
        self.best = other if other.value > course.value else course
        return True

    def improve(self, calls: int, first: Any) -> bool:
        """Improves the plan by at most that many calls; whether there are calls left for a plan.

        Args:
            calls: simulator calls, at most.
            first: plans are compared with the course of this action and the policy after it.

        Raises:
            Stopped: time is up; the best plan so far stays.
        """
        assert self.best is not None
        steps, until = len(self.best.actions), self._oracle.calls + calls
        if self._base is None and calls >= steps:
            course = self._nothing(steps)
            course[0] = first
            (self._base,) = self._courses(course[None], np.ones(1, dtype=np.int64))
            self.best = max(self._base, self.best, key=lambda plan: plan.value)
        left = (until - self._oracle.calls) // steps - 1  # the last one tells whether it earns the same again
        if left < 1:
            return False
        rng, count = self._oracle.rng, min(left, max(FEWEST, left // FEWEST))
        ends = np.where(rng.random(count) < 0.5, steps, rng.integers(1, steps + 1, size=count))
        ahead = max(self._courses(self._changed(self.best.actions, count), ends), key=lambda plan: plan.value)
        if ahead.value > self.best.value:
            (again,) = self._courses(ahead.actions[None], np.array([steps]))
            self.random = not again.repeats(ahead)
            self.best = None if self.random else ahead
        return not self.random

    def _nothing(self, steps: int) -> Actions:
        """A plan of no particular actions."""
        box = self._actions
        return np.stack([box.low] * steps) if isinstance(box, Box) else np.zeros(steps, dtype=np.int64)

    def _changed(self, plan: Actions, count: int) -> Actions:
        """Random changes of a plan, [n, H] or [n, H, d]."""
        rng, steps, box = self._oracle.rng, len(plan), self._actions
        if not isinstance(box, Box):
            return np.stack([self._edited(plan) for _ in range(count)])
        # Autoregressive sequences of many scales.
        each = (count, *[1] * box.low.ndim)
        kept = np.exp(-(2.0 ** -rng.uniform(0.0, math.log2(steps), size=each)))
        noise = rng.standard_normal((count, *plan.shape))
        for step in range(1, steps):
            noise[:, step] = kept * noise[:, step - 1] + np.sqrt(1.0 - kept**2) * noise[:, step]
        size = 2.0 ** -rng.uniform(0.0, HALVINGS, size=each) * (box.high - box.low)
        return np.clip(plan + noise * size[:, None], box.low, box.high)

    def _edited(self, plan: Ints) -> Ints:
        """The plan with some stretches replaced, inserted or left out; the stretches are of one action or of many."""
        rng, steps = self._oracle.rng, len(plan)
        if rng.random() < FRESH:
            plan = rng.integers(self._actions, size=steps)
        for _ in range(rng.geometric(EDITS)):
            start, length = (int(2.0**size) for size in rng.uniform(0.0, math.log2(steps), size=2))
            start -= 1  # the first steps change most often: they are taken first
            drawn = rng.integers(self._actions, size=length)
            fresh = drawn if rng.random() < 0.5 else np.repeat(drawn[:1], length)
            kind = rng.integers(3)
            rest = plan[start:] if kind == 1 else plan[start + length :]
            plan = np.concatenate([plan[:start], fresh if kind < 2 else fresh[:0], rest])
            more = rng.integers(self._actions, size=max(steps - len(plan), 0))
            plan = np.concatenate([plan, more])[:steps]
        return plan

    def _courses(self, plans: Actions, ends: Ints) -> list[Plan]:
        """What plans [n, H, ...] earn; the policy takes over after the first steps of each, [n]."""
        oracle, count, steps = self._oracle, len(plans), plans.shape[1]
        plans, ended, going = plans.copy(), np.stack([self._state] * count), np.arange(count)
        values, tails, scale, states = np.zeros(count), np.zeros(count), 1.0, ended
        for step in range(steps):
            over: NDArray[np.bool_] = ends[going] <= step
            if over.any():
                plans[going[over], step] = self._policy(states[over])
            found = oracle.sample(states, plans[going, step])
            values[going] += scale * found.rewards
            ended[going] = found.next_states
            scale *= oracle.model.discount
            going, states = going[~found.terminals], found.next_states[~found.terminals]
            if len(going) == 0:
                break
            if step + 1 == horizon_of(oracle.model):
                raise too_long(oracle.model, step + 1, states[0])
        if len(going):
            tails[going] = scale * self._value(states)
        courses = zip(plans, (values + tails).tolist(), tails.tolist(), ended, strict=True)
        return [Plan(*course) for course in courses]
