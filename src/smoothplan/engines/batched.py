"""The batched engine: interprets a schedule with NumPy, many states at a time, for any simulator.

A level maps a batch of states [n, ...] to samples [n]. A batch that would need more than `LIMIT` simulator calls at
once is cut into pieces, at every level anew, so that memory is bounded by the depth of the schedule, not by its cost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup
from smoothplan.engines.base import Sums
from smoothplan.models.base import Oracle, States
from smoothplan.schedules.level import Level
from smoothplan.schedules.schedule import Schedule

LIMIT = 1 << 15
"""Simulator calls at a time: enough to hide Python's overhead, small enough for the processor's cache."""


@dataclass(frozen=True, eq=False)
class BatchedEngine:
    """See `Engine`."""

    schedule: Schedule
    backup: Backup

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""
        level = self.schedule.root.reference
        assert level is not None
        total = squares = 0.0
        for piece in _pieces(count, LIMIT):
            samples = self._returns(oracle, _repeated(state, piece), np.full(piece, action), level)
            total, squares = total + float(samples.sum()), squares + float(samples @ samples)
        return Sums(count, total, squares)

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""
        total = squares = 0.0
        for piece in _pieces(count, LIMIT // max(1, 2 * self.schedule.root.pairs)):
            around = np.broadcast_to(reference, (piece, len(reference)))
            samples = self._around(oracle, self.schedule.root, _repeated(state, piece), around)
            total, squares = total + float(samples.sum()), squares + float(samples @ samples)
        return Sums(count, total, squares)

    def _sample(self, oracle: Oracle, row: int, states: States) -> Floats:
        """One sample of a level at each state, [n]."""
        level = self.schedule.levels[row]
        if level.kind == "constant":
            return np.full(len(states), self.schedule.problem.middle + level.shift)
        fan_out = max(self.schedule.problem.actions * level.samples, 2 * level.pairs, 1)
        results = np.empty(len(states))
        start = 0
        for piece in _pieces(len(states), max(1, LIMIT // fan_out)):
            here = states[start : start + piece]
            around = self._reference(oracle, level, here)
            results[start : start + piece] = self._around(oracle, level, here, around)
            start += piece
        return results

    def _reference(self, oracle: Oracle, level: Level, states: States) -> Floats:
        """Q̂ at each state, [n, K]: the mean of N returns per action."""
        count, actions = len(states), self.schedule.problem.actions
        totals = np.zeros((count, actions))
        if level.samples == 0:
            return totals
        assert level.reference is not None
        for piece in _pieces(level.samples, max(1, LIMIT // (count * actions))):
            pairs = np.tile(np.repeat(np.arange(actions), piece), count)
            samples = self._returns(oracle, np.repeat(states, actions * piece, axis=0), pairs, level.reference)
            totals += samples.reshape(count, actions, piece).sum(axis=-1)
        means = totals / level.samples
        return means if level.clip is None else np.clip(means, *level.clip)

    def _returns(self, oracle: Oracle, states: States, actions: Ints, row: int) -> Floats:
        """R + γ·Y(Z) through a level, [n]; R alone where Z is terminal."""
        next_states, rewards, terminals = oracle.sample(states, actions)
        discount = self.schedule.problem.discount
        if not terminals.any():
            return rewards + discount * self._sample(oracle, row, next_states)
        going_on = np.flatnonzero(~terminals)
        result = rewards.copy()
        result[going_on] += discount * self._sample(oracle, row, next_states[going_on])
        return result

    def _around(self, oracle: Oracle, level: Level, states: States, around: Floats) -> Floats:
        """One sample of a level at each state [n] around given references [n, K]."""
        result = self.backup.value(around, states) + level.shift
        if level.linear is not None:
            local = self.backup.local_policies(around, states)
            columns = self.backup.coupling(around, states).sum(axis=-2)
            actions = _draw(local, _column(columns, oracle.rng), oracle.rng)
            result += self._returns(oracle, states, actions, level.linear)
            if level.centring == "action":
                result -= np.take_along_axis(around, actions[:, None], axis=1)[:, 0]
            else:
                result -= (self.backup.policy(around, states) * around).sum(axis=-1)
            if level.quadratic is not None:
                column = _column(columns, oracle.rng)
                first, second = _draw(local, column, oracle.rng), _draw(local, column, oracle.rng)
                differ = np.flatnonzero(first != second)
                result[differ] += self._quadratic(
                    oracle, level, states[differ], around[differ], first[differ], second[differ]
                )
        return result if level.clip is None else np.clip(result, *level.clip)

    def _quadratic(
        self, oracle: Oracle, level: Level, states: States, around: Floats, first: Ints, second: Ints
    ) -> Floats:
        """The U-statistic of n paired differences, over 4η, at states [m] with different actions, [m]."""
        if len(states) == 0:
            return np.zeros(0)
        assert level.quadratic is not None
        count, pairs = len(states), level.pairs
        actions = np.repeat(np.stack([first, second], axis=1), pairs, axis=1)
        samples = self._returns(oracle, np.repeat(states, 2 * pairs, axis=0), actions.ravel(), level.quadratic)
        one, two = np.moveaxis(samples.reshape(count, 2, pairs), 1, 0)
        rows = np.arange(count)
        differences = one - two - (around[rows, first] - around[rows, second])[:, None]
        unbiased = differences.sum(axis=1) ** 2 - (differences**2).sum(axis=1)
        return np.asarray(unbiased / (pairs * (pairs - 1) * 4.0 * self.schedule.problem.temperature))


def _pieces(count: int, largest: int) -> Iterator[int]:
    """Sizes, at most `largest` each, that add up to a count."""
    for start in range(0, count, largest):
        yield min(largest, count - start)


def _repeated(state: Any, count: int) -> States:
    return np.repeat(np.asarray(state)[None], count, axis=0)


def _column(weights: Floats, rng: np.random.Generator) -> Ints:
    """A column J ~ μ for each row of weights [n, J], [n]."""
    if weights.shape[1] == 1:
        return np.zeros(len(weights), dtype=np.int64)
    return _categorical(weights, rng)


def _draw(local: Floats, column: Ints, rng: np.random.Generator) -> Ints:
    """An action A ~ p_·J for each row of local softmaxes [n, K, J] and its column [n], [n]."""
    return _categorical(local[np.arange(len(column)), :, column], rng)


def _categorical(probabilities: Floats, rng: np.random.Generator) -> Ints:
    """One draw per row of distributions [n, m], by inversion, [n]. Rounding falls to the last entry."""
    levels = rng.random(len(probabilities))
    drawn = (levels[:, None] >= np.cumsum(probabilities, axis=1)).sum(axis=1)
    return np.asarray(np.minimum(drawn, probabilities.shape[1] - 1))
