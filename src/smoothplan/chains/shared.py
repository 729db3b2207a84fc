"""A reference with a memory: estimates of every state that was discovered, shared by all paths that lead to it."""

from typing import Any

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.streams import CALLS
from smoothplan.chains.reference import FiniteModel, iterate, numbered, reason, start_of
from smoothplan.graph.explorer import Explorer, Key
from smoothplan.graph.graph import BY_OUTCOME, VARYING, rules_of
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.models.tabular import TabularModel
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, is_mixture


class SharedReference:
    """Memoised estimates for states that can be told apart, refined on demand.

    Walks on the empirical model, by optimistic estimates, lead to the pair that was sampled least, and the outcomes of
    every pair are counted. The estimates are the action values of the empirical model, in which a pair that was never
    sampled counts as an average one, clipped to their confidence intervals. The intervals also bound the error:
    `error_range`. The reference is mutable: `improve` changes it.

    Args:
        model: a tabular model, or any simulator.
        backup: F.
        root: the start of walks; the model's initial state by default.
        delta: the probability that any bound on the error fails, ever, at any state.
        seed: of the simulator calls.
        key: identifies a state, a function from a state to something hashable; by default the state itself. States
            with the same key must behave alike, or no bound holds.
        oracle: makes the simulator calls, and so counts them even if an error ends them; by default one of `seed`.

    `why` says how a default reference was chosen; it is empty for any other.

    >>> from smoothplan import HardMax, models
    >>> reference = SharedReference(models.chain(states=3), HardMax(), seed=1)
    >>> reference.improve(1000)
    >>> reference.calls, reference.q(np.array([0])).shape
    (1000, (1, 2))
    """

    why = ""

    def __init__(
        self,
        model: GenerativeModel,
        backup: Backup,
        *,
        root: Any = None,
        delta: float = 0.05,
        seed: int = 0,
        key: Key | None = None,
        oracle: Oracle | None = None,
    ) -> None:
        self.model, self._backup, self._actions = model, backup, model.actions
        self._scale, self._compiled = curvature.value_scale(model, backup), is_mixture(backup)
        self.delta = arguments.failure(delta)
        rules = rules_of(model, backup, self.delta)
        start = start_of(model, root)
        self._dtype = start.dtype  # without an initial state, the root says what states are made of
        if model.initial_state is not None and start.dtype.kind == np.asarray(model.initial_state).dtype.kind:
            self._dtype = np.asarray(model.initial_state).dtype
        start = self._known(start[None], may_end=False)[0]
        oracle = Oracle(model, seed, role="reference") if oracle is None else oracle
        table = model if isinstance(model, TabularModel) and key is None else None
        self.explorer = Explorer(rules, oracle, backup, start, table, key)
        low, high = curvature.value_interval(model, backup)  # of the values, and here of the action values
        self._low = rules.reward_low + model.discount * low
        self._high = rules.reward_low + rules.reward_width + model.discount * high
        self._guess = (self._low + self._high) / 2.0
        # Values of the first discovered states, where value iterations start again; and action values of the last one.
        self._optimistic = self._values = np.zeros(0)
        self._q = np.zeros((0, self._actions))
        self._estimated, self._tightened = -1, -1  # the calls made by then; −1 for never

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return int(self.explorer.oracle.stream[CALLS])

    @property
    def states(self) -> int:
        """States discovered."""
        return int(self.explorer.graph.totals[0]["states"])

    def improve(self, calls: int, state: Any = None) -> None:
        """Makes that many more simulator calls; fewer if all that can be learnt for certain is known.

        Args:
            calls: how many.
            state: the start of walks; the root by default.
        """
        until, start = self.calls + arguments.whole("calls", calls), 0
        if state is not None:
            start = self.explorer.number(self._known(np.asarray(state)[None], may_end=False)[0])
        while (before := self.calls) < until:
            # The estimates that walks follow need not be accurate: they are renewed when the calls grow by a tenth.
            self._optimistic, q = self._iterated(self._optimistic, self._high, 1e-3, optimistic=True)
            self.explorer.survey(q, start, min(until, int(1.1 * before) + 20))
            if self.calls == before:
                return

    def q(self, states: States) -> Floats:
        """Estimates, [n, K]; the same guess for every action of a state that was never discovered."""
        numbers = self.explorer.numbers(self._known(states))
        if self._estimated != self.calls or len(self._q) != self.states:
            self._estimate()
        graph, columns = self.explorer.graph, numbers[:, None] * self._actions + np.arange(self._actions)
        known = np.clip(self._q[numbers], graph.q_low[columns], graph.q_high[columns])
        return np.where(numbers[:, None] >= 0, known, self._guess)

    def error_range(self, states: States) -> Floats:
        """Bounds on range(Q̂ − Q) = max_a − min_a at states, [n]. All hold at once, with probability 1 − δ."""
        if self._tightened != self.calls:
            self._tightened, before = self.calls, self._intervals()
            for _ in range(1000):  # they are valid after any number of sweeps, and this many bound the time
                self.explorer.sweep()
                after = self._intervals()
                narrowed, before = np.abs(after - before).max(), after
                if narrowed <= 1e-4 * (self._high - self._low):
                    break
        numbers = self.explorer.numbers(self._known(states))
        anything = np.repeat([[[self._low]], [[self._high]]], self._actions, axis=2)  # [2, 1, K]
        low, high = np.concatenate([self._intervals(), anything], axis=1)[:, numbers]
        return _largest_range(self.q(states), low, high)

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`."""
        return self.explorer.saved() | {
            "optimistic": self._optimistic.copy(),
            "values": self._values.copy(),
            "q": self._q.copy(),
            "guess": np.array([self._guess]),
            "up_to_date": np.array([self._estimated, self._tightened]),
        }

    def restore(self, arrays: Readable) -> None:
        """Takes on the state of a reference that was made with the same arguments, whatever it knew before."""
        self.explorer.restore(arrays)
        self._optimistic, self._values, self._q = (arrays[name].copy() for name in ("optimistic", "values", "q"))
        self._guess = float(arrays["guess"][0])
        self._estimated, self._tightened = arrays["up_to_date"].tolist()

    def _known(self, states: States, may_end: bool = True) -> States:
        """States that the model may know, or an error."""
        states = np.asarray(states)
        if not isinstance(self.model, TabularModel):
            return states.astype(self._dtype, copy=False)
        states = numbered(states, self.model.states)
        if not may_end and self.model.terminal[states].any():
            raise ValueError(f"state {states[self.model.terminal[states]][0]} is terminal: nothing can be learnt there")
        return states

    def _intervals(self) -> Floats:
        """The lower and upper ends of the action values of all discovered states, [2, N, K]."""
        graph, count = self.explorer.graph, self.states * self._actions
        return np.stack([graph.q_low[:count], graph.q_high[:count]]).reshape(2, -1, self._actions)

    def _estimate(self) -> None:
        """Brings the estimates up to date."""
        self._estimated = self.calls
        accuracy = 1e-5  # as a fraction of the width of the value interval
        sampled = self.explorer.graph.pairs["count"][: self.states * self._actions].reshape(-1, self._actions)
        # The guess for unsampled pairs is the average of the sampled ones, to which it contributes; 100 rounds bound
        # the time.
        for _ in range(100 if sampled.any() else 0):
            self._values, self._q = self._iterated(self._values, self._guess, accuracy)
            before, self._guess = self._guess, float(self._q[sampled > 0].mean())
            if sampled.all() or abs(self._guess - before) <= accuracy * (self._high - self._low):
                return
        self._values, self._q = self._iterated(self._values, self._guess, accuracy)

    def _iterated(
        self, start: Floats, unsampled: float, accuracy: float, optimistic: bool = False
    ) -> tuple[Floats, Floats]:
        """Values [N] and action values [N, K] of the empirical model; pairs never sampled have the given value.

        If optimistic, outcomes that a pair with n samples may still have weigh 1/(1 + n²).
        """
        graph, rules, states = self.explorer.graph, self.explorer.rules, self.states
        pairs = graph.pairs[: states * self._actions]
        samples, seen = np.maximum(pairs["count"], 1), pairs["seen"]
        columns = np.arange(max(int(seen.max(initial=1)), 1))
        places = columns < seen[:, None]  # outcomes fill the first places of a row
        outcomes = (pairs["start"][:, None] + columns)[places]
        means = pairs["reward_low"]
        if rules.kind == VARYING:
            means = rules.reward_low + rules.reward_width * pairs["total"] / samples
        elif rules.kind == BY_OUTCOME:
            rewards = graph.rewards[outcomes] * graph.hits[outcomes]
            means = np.bincount(np.repeat(np.arange(len(pairs)), seen), rewards, len(pairs)) / samples
        incomplete = (seen < rules.bound) & (pairs["count"] > 0) & optimistic
        doubt = np.where(incomplete, 1.0 / (1.0 + samples**2.0), 0.0)
        successors, hits = np.full(places.shape, -1, dtype=np.int64), np.zeros(places.shape)
        successors[places], hits[places] = graph.successors[outcomes], graph.hits[outcomes]
        model = FiniteModel(
            rewards=np.where(pairs["count"] > 0, (1.0 - doubt) * means + doubt * unsampled, unsampled),
            # The end of an episode, or an empty place, has a negative number.
            chances=np.where(successors >= 0, hits * ((1.0 - doubt) / samples)[:, None], 0.0),
            successors=np.maximum(successors, 0),
            rows=graph.keys[:states].copy(),
            discount=rules.discount,
            soft=rules.soft,
        )
        values, q = np.full(states, unsampled), np.empty((states, self._actions))
        values[: len(start)] = start
        known = None if self._compiled else np.asarray(self.explorer.states)
        backup = None if self._compiled else lambda q: self._backup.value(q, known)
        iterate(model, q, values, accuracy * self._scale, backup)
        q.flags.writeable = False
        return values, q

    def __repr__(self) -> str:
        return f"SharedReference(states={self.states}, calls={self.calls}{reason(self.why)})"


def _largest_range(q: Floats, low: Floats, high: Floats) -> Floats:
    """The largest max_a e − min_a e of errors e = Q̂ − Q with Q in [low, high], for arrays [n, K]: [n]."""
    # Of two different actions: one with the largest error, another with the smallest.
    apart = (q - low)[:, :, None] - (q - high)[:, None, :]
    apart[:, np.arange(q.shape[1]), np.arange(q.shape[1])] = 0.0
    return np.asarray(apart.max(axis=(1, 2)))
