"""Walks through a simulator, of which references learn: near a policy, with random actions in between."""

from collections.abc import Callable
from typing import Any

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.reference import as_points, start_of
from smoothplan.models.model import (
    GenerativeModel,
    Oracle,
    States,
    Transition,
    horizon_of,
    legal_actions,
    random_actions,
    too_long,
    total_weight,
)
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup

Span = tuple[float, float]


class WalkedReference:
    """A reference that is fitted to what walks visit: states are numbers, and all calls go through its oracle."""

    def __init__(self, model: GenerativeModel, root: Any, seed: int, oracle: Oracle | None, most: int) -> None:
        start = self._root = start_of(model, root)
        if start.dtype.kind not in "iuf" or start.size == 0:
            raise ValueError(f"a fit needs states of numbers, got dtype {start.dtype} and shape {start.shape}")
        self._model, self._oracle = model, Oracle(model, seed, role="reference") if oracle is None else oracle
        self._walkers = Walkers(self._oracle, start, most)

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self._oracle.calls

    def _points(self, states: States) -> Floats:
        return as_points(states, self._root, self._model)


class Walkers:
    """Walks that start at a state, again and again, so many at a time at most, and what they tell of episodes.

    Attributes:
        states: where they are, [W, ...].
        longest: steps of the longest walk.
        ends: whether any episode ended.
    """

    def __init__(self, oracle: Oracle, start: States, most: int) -> None:
        self._oracle, self.start = oracle, start
        self.states = np.repeat(start[None], most, axis=0)
        self._last = np.arange(most) % oracle.model.actions  # their last actions
        self._horizon = horizon_of(oracle.model)
        self._ages, self._earned = np.zeros(most, dtype=np.int64), np.zeros(most)  # steps and rewards since the start
        self._returns = np.array([np.inf, -np.inf])  # the least and the largest return of an episode that ended
        self.longest, self.ends = 0, False
        # Of random actions, in one walk of eight each: some stay near the policy. And of new starts: some walks are
        # short, so that the neighbourhood of the start is known well.
        self._random = np.resize(np.geomspace(0.02, 0.5, 8), most)
        seldom = 1.0 - oracle.model.discount  # or the horizon, if that is shorter
        if self._horizon is not None:
            seldom = 1.0 / total_weight(oracle.model.discount, self._horizon)
        self._restarts = np.geomspace(seldom / 3.0, 0.1, 8)[5 * np.arange(most) % 8]

    def restart(self, state: Any) -> None:
        """Starts all walks at a state of the shape and kind of the root."""
        start, (shape, dtype) = np.asarray(state), (self.states.shape[1:], self.states.dtype)
        if start.shape != shape or not np.can_cast(start.dtype, dtype, "same_kind"):
            raise ValueError(f"state must have shape {shape} and dtype {dtype}, as the root has, got {state!r}")
        self.start, self.states[:], self._ages[:], self._earned[:] = start, start, 0, 0.0

    def chosen(self, count: int, q: Callable[[States], Floats] | None) -> Ints:
        """Actions of the first walkers: the best by q, or the last one without it, and random ones in between.

        Only legal ones; q is −∞ for the others.
        """
        rng, model, states = self._oracle.rng, self._oracle.model, self.states[:count]
        usual = self._last[:count] if q is None else q(states).argmax(axis=1)
        chance, random = rng.random(count), random_actions(model, states, rng)
        if (legal := legal_actions(model, states)) is not None:
            usual = np.where(legal[np.arange(count), usual], usual, random)
        return np.where(chance < self._random[:count], random, usual)

    def move(self, found: Transition, chosen: Ints) -> None:
        """Moves the first walkers on; after an end, and now and then, they start again."""
        count, discount = len(chosen), self._oracle.model.discount
        restarts = self._oracle.rng.random(count) < self._restarts[:count]
        restarts |= found.terminals
        self._earned[:count] += discount ** self._ages[:count] * found.rewards
        if found.terminals.any():
            ended = self._earned[:count][found.terminals]
            self._returns[:] = min(self._returns[0], ended.min()), max(self._returns[1], ended.max())
            self.ends = True
        self._ages[:count] += 1
        self.longest = max(self.longest, int(self._ages[:count].max()))
        if self._horizon is not None:
            endless = (self._ages[:count] >= self._horizon) & ~found.terminals
            if endless.any():
                raise too_long(self._oracle.model, self._horizon, found.next_states[int(np.argmax(endless))])
        self.states[:count], self._last[:count] = found.next_states, chosen
        self.states[:count][restarts] = self.start
        self._ages[:count][restarts], self._earned[:count][restarts] = 0, 0.0

    def possible(self, rewards: Floats, backup: Backup) -> Span:
        """Bounds of values, as far as walks tell: rewards seen, times the steps left; and twice the returns seen."""
        model: GenerativeModel = self._oracle.model
        steps = 2.0 * self.longest if self.ends else np.inf
        if self._horizon is None:
            total = (1.0 - model.discount**steps) / (1.0 - model.discount)
        else:
            total = total_weight(model.discount, min(steps, self._horizon))
        low, high = float(rewards.min()) * total, float(rewards.max()) * total
        if self.ends:
            low, high = min(low, 0.0), max(high, 0.0)
        if self._returns[0] <= self._returns[1]:
            # Better policies earn more than the walks so far, but these get better, too. A reward may be paid once.
            worst, best = (2.0 * float(end) for end in self._returns)
            low, high = max(low, min(worst, 0.0)), min(high, max(best, 0.0))
        least, most = curvature.value_interval(model, backup)
        added = curvature.gap_of_values(model, backup)[1]
        return max(low, least), min(high + added, most)

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`."""
        own = {"walkers": self.states, "last": self._last, "ages": self._ages, "earned": self._earned}
        own |= {"start": self.start, "returns": self._returns, "episodes": np.array([self.longest, self.ends])}
        return {name: array.copy() for name, array in own.items()}

    def restore(self, arrays: Readable) -> None:
        """Takes on a state that was saved."""
        self.states, self._last, self.start = (arrays[name].copy() for name in ("walkers", "last", "start"))
        self._ages, self._earned, self._returns = (arrays[name].copy() for name in ("ages", "earned", "returns"))
        self.longest, self.ends = int(arrays["episodes"][0]), bool(arrays["episodes"][1])
