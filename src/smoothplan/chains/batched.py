"""Chains around a reference Q̂(s, ·) that is given everywhere: no recursion, no branching.

With π(s) = ∇F_s(Q̂(s)), a chain of order 1 from s with horizon H is a sample of the value of π at s,

    Y(s) = Σ_{t<H} γ^t [R_t + F(Q̂(s_t)) − Q̂(s_t, A_t)] + γ^H·tail,    A_t ~ π(s_t),

cut short at the end of the episode. The return of an action is X_a(s) = R + γY(Z), H simulator calls in all. A
correction of second order at s stands for Σ_{t<H} γ^t ½ D²F[e, e](s_t), e = E X − Q̂, along the chain: one step T is
drawn with P(T = t) ∝ γ^t, and at s_T the U-statistic of n pairs of returns.

`BatchedChains` is for any simulator and any reference, `TableChains` for tables, `JittedChains` for compiled simulators
with a reference on a grid.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.run.chunks import Sums, added, categorical, pieces, repeated
from smoothplan.theory.backups import Backup, NoCurvatureError, SoftmaxMixture, is_mixture, required_mixture
from smoothplan.theory.softmaxes import Softmaxes, choose, choose_pairs, draw_stops, paired_sums, stop_weight

NO_ACTION = -1
"""In place of a first action: chains begin with an action of the policy."""

QFunction = Callable[[States], ArrayLike]
"""Q̂: states [n, ...] to action values [n, K]."""

LIMIT = 1 << 13
"""Chains that advance together: enough to hide Python's overhead, small enough for the processor's cache."""


class Chains(Protocol):
    """Samples around one reference for one model and one backup, with horizons of at least 1. Nothing is kept."""

    @property
    def compiled(self) -> bool:
        """Whether threads can run it in parallel; a simulator in Python needs processes."""

    @property
    def chunk_calls(self) -> int:
        """Simulator calls of a good chunk: they take a fraction of a second."""

    def values(self, oracle: Oracle, state: Any, count: int, horizon: int) -> Sums:
        """Chains of order 1 from a state, Y."""

    def returns(self, oracle: Oracle, state: Any, action: int, count: int, horizon: int) -> Sums:
        """Returns of an action, X."""

    def corrections(self, oracle: Oracle, state: Any, count: int, pairs: int, horizon: int) -> Sums:
        """Corrections of second order, of n = `pairs` ≥ 2 pairs each, for a smooth mixture of softmaxes."""


@dataclass(frozen=True, eq=False)
class BatchedChains:
    """See `Chains`. For any model, with references of many states at a time.

    At most `LIMIT` chains advance together, so that memory grows neither with the horizon nor with the count.

    Args:
        model: the simulator; calls go through the oracle.
        backup: F.
        reference: Q̂, a function of states [n, ...] to [n, K].
        tail: stands for the value behind the horizon.
    """

    model: GenerativeModel
    backup: Backup
    reference: QFunction
    tail: float = 0.0

    compiled: ClassVar[bool] = False
    chunk_calls: ClassVar[int] = 1 << 19

    def values(self, oracle: Oracle, state: Any, count: int, horizon: int) -> Sums:
        """Chains of order 1 from a state."""
        return added(count, (self._chains(oracle, repeated(state, piece), horizon) for piece in pieces(count, LIMIT)))

    def returns(self, oracle: Oracle, state: Any, action: int, count: int, horizon: int) -> Sums:
        """Returns of an action."""
        sizes = pieces(count, LIMIT)
        batches = (self._returns(oracle, repeated(state, size), np.full(size, action), horizon) for size in sizes)
        return added(count, batches)

    def corrections(self, oracle: Oracle, state: Any, count: int, pairs: int, horizon: int) -> Sums:
        """Corrections of second order from a state."""
        backup = require_curvature(self.backup)
        discount = self.model.discount
        scale = stop_weight(discount, horizon) / (4.0 * backup.temperature)
        sums, differing = np.zeros(3), 0
        for piece in pieces(count, LIMIT):
            stops = draw_stops(piece, discount, horizon, oracle.stream)
            states = self._walked(oracle, repeated(state, piece), stops)
            if len(states) == 0:
                continue
            q = self._references(states)
            first, second = choose_pairs(q, self._softmaxes(backup, states), oracle.stream)
            differ = np.flatnonzero(first != second)
            differing += len(differ)
            q, first, second = q[differ], first[differ], second[differ]
            rows = np.arange(len(differ))
            gaps = q[rows, first] - q[rows, second]
            sums += paired_sums(*self._pairs(oracle, states[differ], first, second, gaps, pairs, horizon), pairs, scale)
        return Sums(count, float(sums[0]), float(sums[1]), (differing, float(sums[2])))

    def _pairs(
        self, oracle: Oracle, states: States, first: Ints, second: Ints, gaps: Floats, pairs: int, horizon: int
    ) -> tuple[Floats, Floats]:
        """Σx and Σx² of the differences of paired returns at states [m] with two actions each, [m] and [m].

        The references of the two actions are `gaps` apart, [m].
        """
        count = len(states)
        totals, squares = np.zeros(count), np.zeros(count)
        for start in range(0, count * pairs, LIMIT // 2):
            owners = np.arange(start, min(start + LIMIT // 2, count * pairs)) // pairs
            both = np.concatenate([owners, owners])
            actions = np.concatenate([first[owners], second[owners]])
            one, two = np.split(self._returns(oracle, states[both], actions, horizon), 2)
            differences = one - two - gaps[owners]
            totals += np.bincount(owners, differences, minlength=count)
            squares += np.bincount(owners, differences**2, minlength=count)
        return totals, squares

    def _returns(self, oracle: Oracle, states: States, actions: Ints, horizon: int) -> Floats:
        """R + γ·Y(Z), [n]; R alone where the episode ends."""
        next_states, rewards, terminals = oracle.sample(states, actions)
        going_on = np.flatnonzero(~terminals)
        results = rewards.copy()
        results[going_on] += self.model.discount * self._chains(oracle, next_states[going_on], horizon - 1)
        return results

    def _chains(self, oracle: Oracle, states: States, horizon: int) -> Floats:
        """One chain of order 1 from each state, [n]."""
        results = np.zeros(len(states))
        going_on, scale = np.arange(len(states)), 1.0
        for _ in range(horizon):
            if len(going_on) == 0:
                break
            actions, advantages = self._choose(states, oracle)
            states, rewards, terminals = oracle.sample(states, actions)
            results[going_on] += scale * (rewards + advantages)
            scale *= self.model.discount
            if terminals.any():
                going_on, states = going_on[~terminals], states[~terminals]
        results[going_on] += scale * self.tail
        return results

    def _walked(self, oracle: Oracle, states: States, stops: Ints) -> States:
        """The states at which walks under π stop, after given numbers of steps [n]; without walks that end before."""
        stopped = []
        for step in range(int(stops.max(initial=0)) + 1):
            there = stops == step
            stopped.append(states[there])
            states, stops = states[~there], stops[~there]
            if len(states) == 0:
                break
            actions, _ = self._choose(states, oracle)
            states, _, terminals = oracle.sample(states, actions)
            states, stops = states[~terminals], stops[~terminals]
        return np.concatenate(stopped)

    def _choose(self, states: States, oracle: Oracle) -> tuple[Ints, Floats]:
        """Actions A ~ ∇F(Q̂) and their advantages F(Q̂) − Q̂(A), [n] each, at states [n, ...]."""
        q, backup = self._references(states), self._mixture
        if backup is not None:
            return choose(q, self._softmaxes(backup, states), oracle.stream)
        actions = categorical(self.backup.policy(q, states).T, len(states), oracle.rng)
        return actions, self.backup.value(q, states) - q[np.arange(len(states)), actions]

    @cached_property
    def _mixture(self) -> SoftmaxMixture | None:
        return self.backup if is_mixture(self.backup) else None

    @cached_property
    def _shifts(self) -> Floats:
        assert self._mixture is not None
        return np.asarray(frozen(self._mixture.shifts(self.model.actions).T))

    def _softmaxes(self, backup: SoftmaxMixture, states: States) -> Softmaxes:
        """The backup at states [n, ...], with weights [n, J] or [1, J]."""
        return Softmaxes(backup.temperature, self._shifts, frozen(np.atleast_2d(backup.weights(states))))

    def _references(self, states: States) -> Floats:
        """Q̂ at states [n, ...], [n, K]."""
        return values_of(self.reference, frozen(states), self.model.actions, "reference(states)")


def require_curvature(backup: Backup) -> SoftmaxMixture:
    """The backup, if it is a smooth mixture of softmaxes; an error otherwise."""
    if backup.temperature == 0.0:
        raise NoCurvatureError(
            f"{type(backup).__name__} has no curvature, and so no correction of second order: sample values or "
            "returns, or use LogSumExp or OptimalTransport"
        )
    return required_mixture(backup, "a correction of second order", "sample values or returns")


def values_of(reference: QFunction, states: States, actions: int, name: str = "reference.q(states)") -> Floats:
    """Q̂ at states [n, ...], [n, K], read-only, or an error that says what is wrong."""
    return checked_references(arguments.numbers(name, reference(states)), states, actions)


def checked_references(q: Floats, states: States, actions: int) -> Floats:
    """References [n, K], read-only, or an error that names the state and the number that is wrong."""
    if q.shape != (len(states), actions):
        raise ValueError(
            f"the reference of {len(states)} states must have shape {(len(states), actions)}, got {q.shape}"
        )
    if not np.isfinite(q).all():
        row, action = np.argwhere(~np.isfinite(q))[0]
        state = np.asarray(states[row]).tolist()
        raise ValueError(f"the reference must be finite, got {q[row, action]} (state {state}, action {action})")
    result: Floats = frozen(q)
    return result
