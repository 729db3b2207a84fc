"""A reference with a memory: estimates of every state that was discovered, shared by all paths that lead to it."""

import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.hinges import in_one_thread
from smoothplan.chains.reference import FiniteModel, iterate, numbered, reason, start_of
from smoothplan.graph.explorer import Explorer, Key, pooled
from smoothplan.graph.graph import BY_OUTCOME, VARYING, rules_of
from smoothplan.models.derived import split_stages
from smoothplan.models.model import (
    GenerativeModel,
    Oracle,
    SimulatorError,
    States,
    declares_rewards,
    horizon_of,
    legal_actions,
    total_weight,
)
from smoothplan.models.tabular import TabularModel
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, is_mixture, restricted

MOST_STATES = 1_000
"""States of an empirical model whose standard errors are computed: the time grows with their cube."""

LEAST_SAMPLES = 100
"""Of the pairs that matter, on average, for standard errors: with 20 to 60, those of an epidemic were too small."""


class Claims(NamedTuple):
    """Action values at a state by an empirical model, with standard errors."""

    q: Floats  # [K]
    errors: Floats  # [K]
    apart: Floats  # of the difference between two actions, [K, K]
    missed: Floats  # the part of these that outcomes account for which were never seen, [K, K]


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
        assumed: taken to be the range of rewards where the model declares none, and no bound holds. If a reward is
            outside, the reference starts anew with a wider one.

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
        assumed: tuple[float, float] | None = None,
    ) -> None:
        self._given = model, backup, root, arguments.failure(delta), key
        oracle = Oracle(model, seed, role="reference") if oracle is None else oracle
        assumed = None if assumed is None else arguments.interval("assumed", assumed)
        self._begin(None if declares_rewards(model) else assumed, oracle)

    def _begin(self, assumed: tuple[float, float] | None, oracle: Oracle) -> None:
        """Begins without any samples."""
        model, backup, root, self.delta, key = self._given
        self.assumed = assumed
        if assumed is not None:
            model = _assuming(model, assumed)
        curvature.require_rewards(model, "a SharedReference")
        self.model, self._backup, self._actions = model, restricted(backup, model), model.actions
        self._scale, self._compiled = curvature.value_scale(model, backup), is_mixture(backup)
        start = start_of(model, root)
        self._dtype = start.dtype  # without an initial state, the root says what states are made of
        if model.initial_state is not None and start.dtype.kind == np.asarray(model.initial_state).dtype.kind:
            self._dtype = np.asarray(model.initial_state).dtype
        start = self._known(start[None], may_end=False)
        # Of a model that was cut off, the steps left are stages: samples count at all of them, if possible.
        base: Any = pooled(model, backup, key)
        self._staged, steps = base is not None, horizon_of(model)
        if base is None:
            base, rules = model, rules_of(model, backup, self.delta)
        else:
            start, (left,) = split_stages(model, start)
            rules = rules_of(base, backup, self.delta, None, steps, "zero", model.discount)
            rules = rules._replace(first=rules.stages - int(left))
        table = base if isinstance(base, TabularModel) and key is None else None
        self.explorer = Explorer(rules, oracle.of_model(base), backup, start[0], table, key)
        # What is left of the values at each stage, about.
        ahead = [total_weight(model.discount, left) for left in range(rules.stages, 0, -1)]
        self._left = np.array(ahead) / ahead[0]
        low, high = curvature.value_interval(model, backup)  # of the values, and here of the action values
        self._low = rules.reward_low + model.discount * low
        self._high = rules.reward_low + rules.reward_width + model.discount * high
        self._guess = (self._low + self._high) / 2.0
        # Values of the first discovered states, where value iterations start again, stage by stage; and action values
        # of the last one, [N·H, K].
        self._optimistic = self._values = np.zeros(0)
        self._q = np.zeros((0, self._actions))
        self._estimated, self._tightened = -1, -1  # the calls made by then; −1 for never

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self.explorer.oracle.calls

    @property
    def states(self) -> int:
        """States discovered, without the steps left of a model that was cut off."""
        return int(self.explorer.graph.totals[0]["states"])

    def improve(self, calls: int, state: Any = None) -> None:
        """Makes that many more simulator calls, from a state or the root on; fewer if all is known for certain."""
        until = self.calls + arguments.whole("calls", calls)
        while self.calls < until:
            try:
                self._survey(until, state)
                return
            except SimulatorError as error:
                if self.assumed is None or error.reward is None:
                    raise
                (low, high), reward = self.assumed, error.reward
                more = max(high - low, low - reward, reward - high)  # the range at least doubles
                try:
                    self._begin((min(low, reward - more), max(high, reward + more)), self.explorer.oracle)
                except ValueError:  # no such values can be computed
                    raise error from None

    def _survey(self, until: int, state: Any) -> None:
        """Learns from walks until a number of calls was made."""
        start = self.explorer.rules.first
        if state is not None:
            states, stages = self._split(self._known(np.asarray(state)[None], may_end=False))
            start = self.explorer.number(states[0]) * len(self._left) + int(stages[0])
        while (before := self.calls) < until:
            # The estimates that walks follow need not be accurate: they are renewed when the calls grow by a tenth.
            self._optimistic, q = self._iterated(self._optimistic, self._high, 1e-3, optimistic=True)
            self.explorer.survey(q, start, min(until, int(1.1 * before) + 20))
            if self.calls == before:
                return

    def q(self, states: States) -> Floats:
        """Estimates, [n, K]; the same guess for every action of a state that was never discovered."""
        nodes, stages = self._nodes(states)
        if self._estimated != self.calls or len(self._q) != self.states * len(self._left):
            self._estimate()
        graph, columns = self.explorer.graph, nodes[:, None] * self._actions + np.arange(self._actions)
        known = self._q[nodes]
        if declares_rewards(self.explorer.oracle.model):
            known = np.clip(known, graph.q_low[columns], graph.q_high[columns])
        return np.where(nodes[:, None] >= 0, known, (self._guess * self._left[stages])[:, None])

    def error_range(self, states: States) -> Floats:
        """Bounds on range(Q̂ − Q) = max_a − min_a at states, [n]. All hold at once, with probability 1 − δ."""
        if self._tightened != self.calls:
            self.explorer.order()  # raises if an episode was seen to be longer than the horizon
            self._tightened, before = self.calls, self._intervals()
            for _ in range(1000):  # they are valid after any number of sweeps, and this many bound the time
                self.explorer.sweep()
                after = self._intervals()
                moved = np.subtract(after, before, where=np.isfinite(after), out=np.zeros_like(after))
                narrowed, before = np.abs(moved).max(), after
                if narrowed <= 1e-4 * (self._high - self._low):
                    break
        (nodes, _), legal = self._nodes(states), legal_actions(self.model, np.asarray(states))
        anything = np.repeat([[[self._low]], [[self._high]]], self._actions, axis=2)  # [2, 1, K]
        low, high = np.concatenate([self._intervals(), anything], axis=1)[:, nodes]
        return _largest_range(self.q(states), low, high, legal)

    @in_one_thread
    def claims(self, state: Any) -> "Claims | None":
        """Action values at a state with standard errors, if all pairs that matter there have many samples.

        A pair p with n samples errs by the noise of its outcomes, and by an outcome of probability 1/n that it may have
        missed. To first order an action value errs by the sum of these, each weighted by the discounted visits of p
        under the best actions of Q̂. None if that order may not suffice: the harmonic mean of samples, over visits, is
        below `LEAST_SAMPLES`; or if there are more than `MOST_STATES` states.
        """
        (states, (stage,)), steps = self._split(self._known(np.asarray(state)[None], may_end=False)), len(self._left)
        (root,) = self.explorer.numbers(states)
        actions, count = self._actions, self.states * steps
        if root < 0 or count > MOST_STATES or self.calls < LEAST_SAMPLES * actions:
            return None
        q, illegal, root = self.q(np.asarray(state)[None])[0], self._illegal(), root + stage * self.states
        model, (variances, widths) = self._empirical(self._guess), (np.tile(x, steps) for x in self._reward_noise())
        discount, samples = model.discount, np.tile(self.explorer.graph.pairs["count"][: len(illegal) * actions], steps)
        best = np.swapaxes(self._q.reshape(-1, steps, actions), 0, 1).reshape(count, actions).argmax(axis=1)
        # Discounted visits of all pairs, after each action at the state.
        following, first = np.zeros((count, count)), np.zeros((actions, count))
        taken, own = np.arange(count) * actions + best, root * actions + np.arange(actions)
        np.add.at(following, (np.arange(count)[:, None], model.successors[taken]), model.chances[taken])
        np.add.at(first, (np.arange(actions)[:, None], model.successors[own]), model.chances[own])
        visits = np.zeros((actions, count * actions))
        visits[:, taken] = np.linalg.solve((np.eye(count) - discount * following).T, discount * first.T).T
        visits[np.arange(actions), own] += 1.0
        visits[illegal[root % self.states]] = 0.0
        many = np.maximum(samples, 1)
        if visits.sum() < LEAST_SAMPLES * (visits / many).sum():
            return None
        ahead = self._values[model.successors]
        mean = (model.chances * ahead).sum(axis=1)
        spread = np.sqrt(np.maximum((model.chances * ahead**2).sum(axis=1) - mean**2, 0.0))
        # An outcome that was missed may be as far from the mean as any that was seen, of whatever pair.
        surprise = widths + discount * np.abs(ahead - mean[:, None]).max(axis=1, where=model.chances > 0.0, initial=0.0)
        range_of_q = np.ptp(self._q[self._q > -np.inf])
        missed = np.where(samples > 0, surprise.max() / many, range_of_q)
        noise = (np.sqrt(variances) + discount * spread) / np.sqrt(many)
        # Covariances, [K, K]. At several stages a pair errs by the same samples, in the same direction at worst.
        pooled = ((visits * part).reshape(actions, steps, -1).sum(axis=1) for part in (noise, missed))
        sampled, unseen = (part @ part.T for part in pooled)
        shared = sampled + unseen
        return Claims(q, np.sqrt(np.diag(shared)), _of_differences(shared), _of_differences(unseen))

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`."""
        own: dict[str, Any] = {"optimistic": self._optimistic, "values": self._values, "q": self._q}
        own |= {"guess": [self._guess], "up_to_date": [self._estimated, self._tightened]}
        own |= {} if self.assumed is None else {"assumed": self.assumed}
        return self.explorer.saved() | {name: np.array(each) for name, each in own.items()}

    def restore(self, arrays: Readable) -> None:
        """Takes on the state of a reference that was made with the same arguments, whatever it knew before."""
        if "assumed" in arrays:
            self._begin(tuple(arrays["assumed"].tolist()), self.explorer.oracle)
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

    def _split(self, states: States) -> tuple[States, Ints]:
        """States [n, ...] that the graph tells apart, and their stages, [n]."""
        if not self._staged:
            return states, np.zeros(len(states), dtype=np.int64)
        inner, left = split_stages(self.model, states)
        return inner, len(self._left) - left

    def _nodes(self, states: States) -> tuple[Ints, Ints]:
        """The entries of states at their stages, −1 for a state that was not discovered; and these stages, [n] each."""
        inner, stages = self._split(self._known(states))
        numbers, steps = self.explorer.numbers(inner), len(self._left)
        stages = np.minimum(stages, steps - 1)
        return np.where(numbers >= 0, numbers * steps + stages, -1), stages

    def _intervals(self) -> Floats:
        """The lower and upper ends of the action values of all discovered states and stages, [2, N·H, K]."""
        graph, count = self.explorer.graph, self.states * len(self._left) * self._actions
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
            each = self._q.reshape(len(sampled), -1, self._actions) / self._left[:, None]
            before, self._guess = self._guess, float(np.swapaxes(each, 1, 2)[sampled > 0].mean())
            if (sampled | self._illegal()).all() or abs(self._guess - before) <= accuracy * (self._high - self._low):
                return
        self._values, self._q = self._iterated(self._values, self._guess, accuracy)

    def _illegal(self) -> NDArray[np.bool_]:
        """Which actions are illegal at the discovered states, [N, K]."""
        legal = legal_actions(self.explorer.oracle.model, np.asarray(self.explorer.states))
        return np.zeros((self.states, self._actions), dtype=np.bool_) if legal is None else ~legal

    def _empirical(self, unsampled: float, optimistic: bool = False) -> FiniteModel:
        """The empirical model, in which pairs that were never sampled have the given value, less towards the end.

        States are numbered stage by stage, [H·N]. If optimistic, outcomes that a pair with n samples may still have
        weigh 1/(1 + n²).
        """
        graph, rules, states = self.explorer.graph, self.explorer.rules, self.states
        pairs, places, outcomes = self._outcomes()
        samples = np.maximum(pairs["count"], 1)
        incomplete = (pairs["seen"] < rules.bound) & (pairs["count"] > 0) & optimistic
        doubt = np.where(incomplete, 1.0 / (1.0 + samples**2.0), 0.0)
        successors, hits = np.full(places.shape, -1, dtype=np.int64), np.zeros(places.shape)
        successors[places], hits[places] = graph.successors[outcomes], graph.hits[outcomes]
        values = unsampled * self._left[:, None]  # of pairs that were never sampled, [H, 1]
        means = (1.0 - doubt) * self._reward_means() + doubt * values
        rewards = np.where(self._illegal().reshape(-1), -np.inf, np.where(pairs["count"] > 0, means, values))
        # The end of an episode, or an empty place, has a negative number.
        chances = np.where(successors >= 0, hits * ((1.0 - doubt) / samples)[:, None], 0.0)
        steps, targets = len(self._left), np.maximum(successors, 0)
        if self._staged:
            chances, last = np.tile(chances, (steps, 1)), len(chances) * (steps - 1)
            chances[last:] = 0.0
            later = np.minimum(np.arange(steps) + 1, steps - 1)[:, None, None] * states
            targets = (targets + later).reshape(len(chances), -1)
        rows = np.tile(graph.keys[:states], steps)
        return FiniteModel(rewards.reshape(-1), chances, targets, rows, rules.discount, rules.soft)

    def _outcomes(self) -> tuple[NDArray[np.void], NDArray[np.bool_], Ints]:
        """The statistics of all pairs [P], the places [P, B] that their outcomes fill, and the entries of these."""
        pairs = self.explorer.graph.pairs[: self.states * self._actions]
        columns = np.arange(max(int(pairs["seen"].max(initial=1)), 1))
        places = columns < pairs["seen"][:, None]  # outcomes fill the first places of a row
        return pairs, places, (pairs["start"][:, None] + columns)[places]

    def _reward_means(self) -> Floats:
        """Mean rewards of all pairs, [P]."""
        graph, rules = self.explorer.graph, self.explorer.rules
        pairs, _, outcomes = self._outcomes()
        samples = np.maximum(pairs["count"], 1)
        if rules.kind == VARYING:
            return np.asarray(rules.reward_low + rules.reward_width * pairs["total"] / samples)
        if rules.kind == BY_OUTCOME:
            owners, rewards = np.repeat(np.arange(len(pairs)), pairs["seen"]), graph.rewards[outcomes]
            return np.asarray(np.bincount(owners, rewards * graph.hits[outcomes], len(pairs)) / samples)
        return np.asarray(pairs["reward_low"])

    def _reward_noise(self) -> tuple[Floats, Floats]:
        """Variances of the rewards of all pairs, and the widths of what was seen, [P] each."""
        graph, rules = self.explorer.graph, self.explorer.rules
        pairs, _, outcomes = self._outcomes()
        samples, sampled = np.maximum(pairs["count"], 1), pairs["count"] > 0
        if rules.kind == VARYING:
            variances = pairs["squares"] / samples - (pairs["total"] / samples) ** 2
            widths = np.where(sampled, pairs["most"] - pairs["least"], 0.0)
            return np.maximum(variances, 0.0) * rules.reward_width**2, rules.reward_width * widths
        variances, ends = np.zeros(len(pairs)), np.zeros((2, len(pairs)))
        if rules.kind == BY_OUTCOME:
            owners, rewards = np.repeat(np.arange(len(pairs)), pairs["seen"]), graph.rewards[outcomes]
            ends[:, sampled] = [[np.inf], [-np.inf]]
            np.minimum.at(ends[0], owners, rewards)
            np.maximum.at(ends[1], owners, rewards)
            apart = (rewards - self._reward_means()[owners]) ** 2 * graph.hits[outcomes]
            variances = np.bincount(owners, apart, len(pairs)) / samples
        return variances, ends[1] - ends[0]

    def _iterated(
        self, start: Floats, unsampled: float, accuracy: float, optimistic: bool = False
    ) -> tuple[Floats, Floats]:
        """Values [H·N] and action values [N·H, K] of the empirical model; see there."""
        model, states, steps = self._empirical(unsampled, optimistic), self.states, len(self._left)
        values, q = np.full(states * steps, unsampled), np.empty((states * steps, self._actions))
        if not self._staged:
            values[: len(start)] = start
        known = None if self._compiled else np.concatenate([np.asarray(self.explorer.states)] * steps)
        backup = None if self._compiled else lambda q: self._backup.value(q, known)
        iterate(model, q, values, accuracy * self._scale, backup, horizon_of(self.model))
        q = np.swapaxes(q.reshape(steps, states, -1), 0, 1).reshape(steps * states, -1)
        q.flags.writeable = False
        return values, q

    def __repr__(self) -> str:
        return f"SharedReference(states={self.states}, calls={self.calls}{reason(self.why)})"


def _assuming(model: GenerativeModel, rewards: tuple[float, float]) -> GenerativeModel:
    """A model that declares a range of rewards."""
    model, before = copy.copy(model), getattr(model, "stationary", None)
    vars(model)["reward_range"] = rewards
    if before is not None:
        vars(model)["stationary"] = _assuming(before, rewards)
    return model


def _of_differences(covariances: Floats) -> Floats:
    """Standard errors of the differences of numbers with covariances [K, K], [K, K]."""
    own = np.diag(covariances)
    return np.asarray(np.sqrt(np.maximum(own[:, None] + own - 2.0 * covariances, 0.0)))


def _largest_range(q: Floats, low: Floats, high: Floats, legal: NDArray[np.bool_] | None = None) -> Floats:
    """The largest max_a e − min_a e of errors e = Q̂ − Q with Q in [low, high], for arrays [n, K]: [n]."""
    if legal is not None:
        q, low, high = (np.where(legal, values, other) for values, other in ((q, 0.0), (low, np.inf), (high, -np.inf)))
    # Of two different actions: one with the largest error, another with the smallest.
    apart = (q - low)[:, :, None] - (q - high)[:, None, :]
    apart[:, np.arange(q.shape[1]), np.arange(q.shape[1])] = 0.0
    return np.asarray(apart.max(axis=(1, 2)))
