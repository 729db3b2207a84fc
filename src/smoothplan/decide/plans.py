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
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.returns import Values
from smoothplan.models.model import Actions, Box, Oracle, States, horizon_of, is_deterministic, legal_actions, too_long

Course = Callable[[States], Actions]
"""A policy, from states [n, ...] to actions: numbers [n]; of a box, [n] or [n, d]."""

LONG = 50  # the length of plans if calls are few
FEWEST = 8  # plans that the calls of a decision suffice for, and of a batch
ALIKE = 1e-4  # plans that differ by a smaller share of V̂ are alike: a table solves for it to 1e-5
REPEATED = 0.05  # of the calls repeat a plan, at first and again at the end, unless all is declared deterministic
PROBE = 8  # steps that tell most simulators with something random
HALVINGS = 6.0  # of the side of a box: the smallest change of an action
FRESH = 0.1  # of the plans of numbered actions have nothing in common with the best one
EDITS = 0.3  # 1/EDITS stretches of such a plan change, on average


class Plan(NamedTuple):
    """A sequence of actions from a state."""

    actions: Actions  # [H]; of a box [H] or [H, d]
    value: float  # what they earn, discounted, and V̂ of the state that they reach
    tail: float  # the part of V̂
    end: States  # the state that they reach

    def repeats(self, other: "Plan") -> bool:
        """Whether the same actions have earned the same, V̂ apart, and led to the same state; but for rounding."""
        apart = abs((self.value - self.tail) - (other.value - other.tail))
        numbers = self.end.dtype.kind in "fc"
        same = np.allclose(self.end, other.end, rtol=1e-9, atol=1e-9) if numbers else np.all(self.end == other.end)
        return bool(same) and apart <= 1e-9 * abs(self.value)


class Plans:
    """The best plan so far, from one state to the next.

    Args:
        oracle: of the simulator.

    Attributes:
        best: the best plan from the latest state; None before there is any.
        base: the course that plans are compared with; None before it was taken.
        firsts: of numbered actions: the first course that begins with each, and the best one so far.
        repeated: steps that courses from the latest state have repeated, all with the same outcome.
        random: whether the same actions have earned different returns: then there are no plans.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle, self._actions = oracle, oracle.model.actions
        self.best: Plan | None = None
        self.base: Plan | None = None
        self.firsts: dict[int, tuple[Plan, Plan]] = {}
        self.random = False
        self._repeats, self.repeated = 1, 0

    @property
    def leads(self) -> bool:
        """Whether the best plan earns more than the course that plans are compared with."""
        if self.best is None or self.base is None:
            return False
        accuracy = ALIKE * max(abs(self.best.tail), abs(self.base.tail)) + 1e-9 * abs(self.best.value)
        return self.best.value - self.base.value > accuracy

    def start(self, state: Any, policy: Course, value: Values, steps: int, calls: int) -> bool:
        """Begins at a state with what is left of the last plan, or with the policy's course; whether there are plans.

        Args:
            state: where plans start.
            policy: goes on where a plan ends.
            value: V̂, of states [n, ...].
            steps: the length of a plan, at most.
            calls: that plans may take here.
        """
        self._state, self._policy, self._value, self.base = np.asarray(state), policy, value, None
        # The more calls, the longer and the more plans.
        steps, before = min(steps, max(math.isqrt(max(calls, 0)), min(LONG, calls // FEWEST))), self.best
        self.best = None
        if self.random or steps == 0 or 3 * (min(PROBE, steps) + steps) > calls:  # what it takes to begin
            return False
        self._roots: list[int] = []  # the numbered actions that the state has
        if not isinstance(self._actions, Box):
            mask = legal_actions(self._oracle.model, self._state[None])
            self._roots = list(range(self._actions)) if mask is None else np.flatnonzero(mask[0]).tolist()
        self._tried, self.repeated = 0, 0
        plans = np.stack([self._nothing(steps)] * 3)
        left: Actions = plans[0, :0] if before is None else before.actions[1 : steps + 1]
        plans[1:, : len(left)] = left
        for length in (min(PROBE, steps), steps) if before is None else (steps,):
            self.firsts = {}
            course, other, again = self._courses(plans[:, :length], np.array([0, len(left), len(left)]))
            if not again.repeats(other):
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
        if self.base is None and calls >= 3 * steps:
            others = self._roots if FEWEST * len(self._roots) * steps <= calls else []
            courses = np.stack([self._nothing(steps)] * (1 + len(others)))
            courses[:, 0] = [first, *others]
            found = self._courses(courses, np.ones(len(courses), dtype=np.int64))
            self.base = found[0]
            self._repeats = 1 if is_deterministic(self._oracle.model) else max(1, int(REPEATED * calls / steps))
            self._take(found)
            self._confirm(self.base, self._repeats)
        left = (until - self._oracle.calls) // steps
        if self.best is None or left <= self._repeats:
            if self.leads and left > 0:
                self._confirm(self.best, left)
            return False
        left -= self._repeats
        rng, count = self._oracle.rng, min(left, max(FEWEST, left // FEWEST))
        ends = np.where(rng.random(count) < 0.5, steps, rng.integers(1, steps + 1, size=count))
        self._take(self._courses(self._changed(self.best.actions, count), ends))
        return not self.random

    def _take(self, courses: list[Plan]) -> None:
        """Takes the best course if it earns more than the best plan, and earns the same again."""
        ahead = max(courses, key=lambda plan: plan.value)
        if self.best is None or ahead.value <= self.best.value:
            return
        self.best, self._tried = ahead, 0
        self._confirm(ahead, 1)

    def _confirm(self, plan: Plan, times: int) -> None:
        """Gives up if a plan does not earn the same a number of times again: something is random."""
        courses = self._courses(np.stack([plan.actions] * times), np.full(times, len(plan.actions)))
        self.repeated += times * len(plan.actions)
        if not all(course.repeats(plan) for course in courses):
            self.random, self.best = True, None

    def saved(self) -> Arrays:
        """What goes on in the next state, as named arrays, for `restore`."""
        actions = {} if self.best is None else {"actions": self.best.actions}
        return self._oracle.saved() | {"random": np.array(self.random), **actions}

    def restore(self, arrays: Readable) -> None:
        """Takes on the plans of the same simulator that were saved."""
        self._oracle.restore(arrays)
        self.random = bool(arrays["random"])
        if "actions" in arrays:
            self.best = Plan(arrays["actions"], math.nan, 0.0, np.zeros(0))

    def _nothing(self, steps: int) -> Actions:
        """A plan of no particular actions."""
        box = self._actions
        return np.stack([box.low] * steps) if isinstance(box, Box) else np.zeros(steps, dtype=np.int64)

    def _changed(self, plan: Actions, count: int) -> Actions:
        """Random changes of a plan, [n, H] or [n, H, d]."""
        rng, steps, box = self._oracle.rng, len(plan), self._actions
        if not isinstance(box, Box):
            found = self._first_steps(plan)[self._tried : self._tried + count // 2]
            self._tried += len(found)
            return np.stack([*found, *(self._edited(plan) for _ in range(count - len(found)))])
        # Autoregressive sequences of many scales.
        each = (count, *[1] * box.low.ndim)
        kept = np.exp(-(2.0 ** -rng.uniform(0.0, math.log2(steps), size=each)))
        noise = rng.standard_normal((count, *plan.shape))
        for step in range(1, steps):
            noise[:, step] = kept * noise[:, step - 1] + np.sqrt(1.0 - kept**2) * noise[:, step]
        size = 2.0 ** -rng.uniform(0.0, HALVINGS, size=each) * (box.high - box.low)
        return np.clip(plan + noise * size[:, None], box.low, box.high)

    def _first_steps(self, plan: Ints) -> list[Ints]:
        """The plan without its first step, and with every action in the place of that or before it."""
        changed = [np.append(plan[1:], self._any(1))]
        for action in self._roots:
            changed += [np.append(action, plan[1:]), np.append(action, plan[:-1])]
        return changed

    def _edited(self, plan: Ints) -> Ints:
        """The plan with some stretches replaced, inserted or left out; the stretches are of one action or of many."""
        rng, steps = self._oracle.rng, len(plan)
        if rng.random() < FRESH:
            plan = self._any(steps)
        for _ in range(rng.geometric(EDITS)):
            start, length = (int(2.0**size) for size in rng.uniform(0.0, math.log2(steps), size=2))
            start -= 1  # the first steps change most often: they are taken first
            drawn = self._any(length)
            fresh = drawn if rng.random() < 0.5 else np.repeat(drawn[:1], length)
            kind = rng.integers(3)
            rest = plan[start:] if kind == 1 else plan[start + length :]
            plan = np.concatenate([plan[:start], fresh if kind < 2 else fresh[:0], rest])
            plan = np.concatenate([plan, self._any(max(steps - len(plan), 0))])[:steps]
        return plan

    def _legal(self, states: States, actions: Actions) -> Actions:
        """Numbered actions at states [n, ...]: any legal one for a negative number, the policy's for an illegal one."""
        if isinstance(self._actions, Box):
            return actions
        mask = legal_actions(self._oracle.model, states)
        if mask is None:
            return np.where(actions < 0, (-1 - actions) % self._actions, actions)
        order, rows = np.argsort(~mask, axis=1, kind="stable"), np.arange(len(actions))
        actions = np.where(actions < 0, order[rows, (-1 - actions) % mask.sum(axis=1)], actions)
        illegal = ~mask[rows, actions]
        if illegal.any():
            actions[illegal] = self._policy(states[illegal])
        return actions

    def _any(self, count: int) -> Ints:
        """Numbers that stand for any legal action; see `_legal`."""
        return -1 - self._oracle.rng.integers(1 << 30, size=count)

    def _courses(self, plans: Actions, ends: Ints) -> list[Plan]:
        """What plans [n, H, ...] earn; the policy takes over after the first steps of each, [n]."""
        oracle, count, steps = self._oracle, len(plans), plans.shape[1]
        plans, ended, going = plans.copy(), np.stack([self._state] * count), np.arange(count)
        values, tails, scale, states = np.zeros(count), np.zeros(count), 1.0, ended
        for step in range(steps):
            over: NDArray[np.bool_] = ends[going] <= step
            if over.any():
                plans[going[over], step] = self._policy(states[over])
            plans[going, step] = self._legal(states, plans[going, step])
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
        courses = [Plan(*one) for one in zip(plans, (values + tails).tolist(), tails.tolist(), ended, strict=True)]
        for course in courses if self._roots else []:
            first = int(course.actions[0])
            before, best = self.firsts.get(first, (course, course))
            self.firsts[first] = before, max(course, best, key=lambda plan: plan.value)
        return courses
