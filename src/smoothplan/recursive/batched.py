"""The batched engine: interprets a schedule with NumPy, many states at a time, for any simulator.

A level maps a batch of states [n, ...] to samples [n]. A batch that would need more than `CALLS_AT_ONCE` simulator
calls is cut into pieces, at every level anew: memory is bounded by the depth of the schedule, not by its cost.
Actions come first and states last in every array, [K, n], because NumPy is slow along a short last axis. A reference
that is the same for the whole batch is [K, 1], and so are its softmaxes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import Oracle, States, legal_actions, too_long
from smoothplan.recursive.debias import DEBIASING, Debiased
from smoothplan.recursive.level import Level
from smoothplan.recursive.schedule import Schedule
from smoothplan.run.chunks import CALLS_AT_ONCE, Sums, added, categorical, pieces, repeated
from smoothplan.theory.backups import Backup, is_mixture, required_mixture


class Mixture(NamedTuple):
    """A backup at references [K, n] or [K, 1], as a mixture of softmaxes over columns; see `backups.SoftmaxMixture`.

    Of another backup only the policy is known, as if it were the softmax of a single column.
    """

    value: Floats  # F(Q̂), [n]
    local: Floats  # p_ij, [J, K, n]; empty for the hard maximum, and if no policy is needed
    weights: Floats  # μ_j, [J, n] or [J, 1]

    @property
    def policy(self) -> Floats:
        """∇F(Q̂), [K, n]."""
        if len(self.local) == 1:
            return np.asarray(self.local[0])
        return np.asarray((self.local * self.weights[:, None]).sum(axis=0))


@dataclass(frozen=True, eq=False)
class BatchedEngine:
    """An interpreter of a schedule, for any model and backup; `chunk_calls` calls take it a fraction of a second."""

    schedule: Schedule
    backup: Backup

    compiled: ClassVar[bool] = False
    chunk_calls: ClassVar[int] = 1 << 16

    def __post_init__(self) -> None:
        if any(level.quadratic is not None for level in self.schedule.levels):
            required_mixture(self.backup, "a level of order 2", "use levels of order 1")

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""
        row, sizes = cast(int, self.schedule.root.reference), pieces(count, CALLS_AT_ONCE)
        return added(
            count, (self._returns(oracle, repeated(state, size), np.full(size, action), row) for size in sizes)
        )

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""
        root = self.schedule.root
        sizes = pieces(count, CALLS_AT_ONCE // max(1, 2 * root.pairs))
        return added(count, (self._around(oracle, root, repeated(state, size), reference[:, None]) for size in sizes))

    def _sample(self, oracle: Oracle, row: int, states: States) -> Floats:
        """One sample of a level at each state, [n]; a single number for the constant level."""
        level = self.schedule.levels[row]
        if level.kind == "constant":
            if level.left == 0 and len(states):
                raise too_long(oracle.model, self.schedule.problem.horizon or 0, states[0])
            return np.asarray(self.schedule.guess(level))
        fan_out = max(self.schedule.problem.actions * level.samples, 2 * level.pairs, 1)
        results = np.empty(len(states))
        start = 0
        for piece in pieces(len(states), max(1, CALLS_AT_ONCE // fan_out)):
            here = states[start : start + piece]
            blocks = self._reference(oracle, level, here)
            results[start : start + piece] = self._around(oracle, level, here, *blocks)
            start += piece
        return results

    def _reference(self, oracle: Oracle, level: Level, states: States) -> list[Floats]:
        """Q̂ at each state, [K, n]: the mean of N returns per action, or zeros [K, 1]. It is −∞ for illegal actions.

        For a debiased level the means over halves and over quarters of the returns follow, [K, 2, n] and [K, 4, n].
        """
        count, actions = len(states), self.schedule.problem.actions
        mask = legal_actions(oracle.model, states)
        legal = np.ones((actions, 1), dtype=np.bool_) if mask is None else mask.T
        if level.samples == 0:
            return [np.where(legal, 0.0, -np.inf)]
        assert level.reference is not None
        blocks = 2**level.debias
        totals = np.zeros((actions, blocks, count))
        for block in range(blocks):
            for piece in pieces(level.samples // blocks, max(1, CALLS_AT_ONCE // (count * actions))):
                pairs, here = np.repeat(np.arange(actions), piece * count), _tiled(states, actions * piece)
                samples = np.full(len(pairs), -np.inf)
                kept = np.broadcast_to(legal[:, None], (actions, piece, count)).reshape(-1)
                samples[kept] = self._returns(oracle, here[kept], pairs[kept], level.reference)
                totals[:, block] += samples.reshape(actions, piece, count).sum(axis=1)
        means = [
            totals.reshape(actions, 2**power, -1, count).sum(axis=2) / (level.samples / 2**power)
            for power in range(level.debias + 1)
        ]
        whole = means[0][:, 0]
        return [whole if level.clip is None else np.where(legal, np.clip(whole, *level.clip), -np.inf), *means[1:]]

    def _returns(self, oracle: Oracle, states: States, actions: Ints, row: int) -> Floats:
        """R + γ·Y(Z) through a level, [n]; R alone if Z is terminal. R is the mean of M rewards."""
        next_states, rewards, terminals = oracle.sample(states, actions)
        level, discount = self.schedule.levels[row], self.schedule.problem.discount
        if level.rewards > 1:
            total = rewards.copy()
            for piece in pieces(level.rewards - 1, max(1, CALLS_AT_ONCE // len(states))):
                further = oracle.sample(_tiled(states, piece), _tiled(actions, piece)).rewards
                total += further.reshape(piece, len(states)).sum(axis=0)
            rewards = total / level.rewards
        going_on, result = np.flatnonzero(~terminals), rewards.copy()
        result[going_on] += discount * self._sample(oracle, row, next_states[going_on])
        return result

    def _around(self, oracle: Oracle, level: Level, states: States, around: Floats, *blocks: Floats) -> Floats:
        """One sample of a level at each state [n] around given references, [K, n] or [K, 1].

        A debiased level also has the means over halves and quarters of its returns, [K, 2^k, n].
        """
        soft = self._backed_up(around, states, with_policy=level.linear is not None)
        value = soft.value if level.debias == 0 else self._debiased(level, soft.value, blocks, states)
        result = value + level.shift
        if level.linear is not None:
            policy = soft.policy
            actions = categorical(policy, len(states), oracle.rng)
            result = result + self._returns(oracle, states, actions, level.linear)
            if level.printed:
                result -= (policy * np.where(policy > 0.0, around, 0.0)).sum(axis=0)
            else:
                result -= _entries(around, actions)
            if level.quadratic is not None:
                # Two actions of one column J ~ μ, whose local softmaxes are p_·J, [K, n] or [K, 1].
                local = soft.local[0]
                if len(soft.local) > 1:
                    columns = categorical(soft.weights, len(states), oracle.rng)
                    local = soft.local[columns, :, 0 if soft.local.shape[2] == 1 else np.arange(len(states))].T
                first, second = (categorical(local, len(states), oracle.rng) for _ in range(2))
                differ = np.flatnonzero((first != second) | level.printed)
                if len(differ):
                    here = around if around.shape[1] == 1 else around[:, differ]
                    result[differ] += self._quadratic(
                        oracle, level, states[differ], first[differ], second[differ], here
                    )
        return result if level.clip is None else np.clip(result, *level.clip)

    def _debiased(self, level: Level, whole: Floats, blocks: Sequence[Floats], states: States) -> Floats:
        """The weighted sum in place of F(Q̂), [n], from F(Q̂) and the means over blocks, [K, 2^k, n]."""
        weights = DEBIASING[cast(Debiased, level.kind), level.debias]
        result = weights.values[0] * whole
        for q, weight, slope in zip(blocks, weights.values[1:], weights.slopes[1:], strict=True):
            count = q.shape[1]
            soft = self._backed_up(q.reshape(len(q), -1), _tiled(states, count), with_policy=slope != 0.0)
            result = result + weight * soft.value.reshape(count, -1).mean(axis=0)
            if slope != 0.0:
                known = np.where(q > -np.inf, q, 0.0)
                apart = known - known[:, np.arange(count) ^ 1]  # from the other half of the same block
                result += slope * (soft.policy.reshape(q.shape) * apart).sum(axis=0).mean(axis=0)
        return result

    def _quadratic(
        self, oracle: Oracle, level: Level, states: States, first: Ints, second: Ints, around: Floats
    ) -> Floats:
        """The U-statistic of paired differences, over 4η, at states [m] with two actions each, [m]."""
        pairs, row = level.pairs, cast(int, level.quadratic)
        actions = np.concatenate([_tiled(first, pairs), _tiled(second, pairs)])
        samples = self._returns(oracle, _tiled(states, 2 * pairs), actions, row)
        one, two = samples.reshape(2, pairs, len(states))
        gaps = _entries(around, first) - _entries(around, second)
        differences = one - two - gaps
        unbiased = differences.sum(axis=0) ** 2 - (differences**2).sum(axis=0)
        return np.asarray(unbiased / (pairs * (pairs - 1) * 4.0 * self.schedule.problem.temperature))

    def _backed_up(self, around: Floats, states: States, with_policy: bool) -> Mixture:
        """The backup at references [K, n] or [K, 1] and states [n, ...]."""
        backup, temperature = self.backup, self.schedule.problem.temperature
        if not is_mixture(backup):
            q = np.broadcast_to(around.T, (len(states), len(around)))
            policy = backup.policy(q, states).T[None] if with_policy else np.zeros((0, *around.shape))
            return Mixture(backup.value(q, states), policy, np.ones((1, 1)))
        shifts = backup.shifts(self.schedule.problem.actions).T  # that column j subtracts from Q̂_i, [J, K]
        columns, weights = len(shifts), np.atleast_2d(backup.weights(states)).T
        if temperature == 0.0:
            return Mixture(around.max(axis=0), np.zeros((0, *around.shape)), weights)
        local = np.empty((columns, *around.shape))
        maxima = np.empty((columns, around.shape[1]))
        for j in range(columns):
            odds = np.subtract(around, shifts[j, :, None], out=local[j])
            top = odds.max(axis=0)
            odds -= top
            odds *= 1.0 / temperature
            with np.errstate(under="ignore"):
                np.exp(odds, out=odds)
                total = odds.sum(axis=0)
                odds /= total
            maxima[j] = top + temperature * np.log(total)
        return Mixture((weights * maxima).sum(axis=0), local, weights)


def _tiled(rows: States, times: int) -> States:
    """A batch [n, ...] repeated as a whole, [times·n, ...]."""
    return np.broadcast_to(rows, (times, *rows.shape)).reshape(-1, *rows.shape[1:])


def _entries(table: Floats, rows: Ints) -> Floats:
    """One entry of each column of a table [K, n] or [K, 1], [n]."""
    return np.asarray(table[rows, 0 if table.shape[1] == 1 else np.arange(len(rows))])
