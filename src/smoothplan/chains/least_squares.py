"""A reference from few transitions, by least-squares policy iteration (Lagoudakis and Parr, 2003)."""

from typing import Any, NamedTuple

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.hinges import ActionHinges, Features, Hinges, in_one_thread
from smoothplan.chains.reference import values_of
from smoothplan.chains.walkers import Span, WalkedReference
from smoothplan.models.model import GenerativeModel, Oracle, States, horizon_of, legal_actions
from smoothplan.theory.backups import HardMax

LEAST_WALKERS, MOST_WALKERS = 8, 64  # walks at a time: a quarter of the root of the transitions, within these
FIRST_FIT, GROWTH = 120, 1.3  # transitions of the first fit, and their growth from one fit to the next
ITERATIONS = 3  # of policies in a fit
HINGES, PENALTY, FREE = 150, 10.0, 0.1  # hinges at most; penalties on the squared weights of hinges and of the others
MOST_TRANSITIONS = 8_000  # of a fit, so that it takes a bounded time


class _Data(NamedTuple):
    """Single transitions."""

    states: States  # [n, ...]
    chosen: Ints  # [n]
    rewards: Floats  # [n]
    next_states: States  # [n, ...]
    terminals: Any  # [n], booleans


class LeastSquaresReference(WalkedReference):
    """Q̂ of the hard maximum by least-squares policy iteration, for vectors of numbers and few simulator calls.

    Walks follow the policy of Q̂, with random actions in between; every simulator call is a step of a walk. Whenever the
    transitions have grown by a third, Q̂(s, a) = E[R + γQ̂(s′, π(s′))] is solved for weights of hinges in state and
    action, with π the best action of the Q̂ before, a few times. Neighbouring states and actions learn from each other,
    so that a thousand transitions suffice in a few dimensions. Q̂ is an estimate, without a bound on its error. The
    reference is mutable: `improve` changes it. The constructor makes no call.

    Args:
        model: a simulator of numbers, whole or not, in any shape.
        root: where walks start; the model's initial state by default.
        seed: of the simulator calls.
        oracle: makes the simulator calls, and so counts them even if an error ends them; by default one of `seed`.
    """

    def __init__(
        self, model: GenerativeModel, *, root: Any = None, seed: int = 0, oracle: Oracle | None = None
    ) -> None:
        super().__init__(model, root, seed, oracle, MOST_WALKERS)
        none = self._root[None][:0]
        self._data = _Data(none, np.zeros(0, np.int64), np.zeros(0), none, np.zeros(0, np.bool_))
        self._seen = self._fitted_at = 0  # transitions, also those that are no longer kept
        self._function: ActionHinges | None = None
        self._weights: Features = np.zeros(0, dtype=np.float32)

    @property
    def is_blank(self) -> bool:
        """Whether there was no fit yet: too few transitions were made, or all rewards were alike."""
        return self._function is None

    def q(self, states: States) -> Floats:
        """Estimates, [n, K]; 0 before the first fit."""
        points = self._points(states)
        if self._function is None:
            return np.zeros((len(points), self._model.actions))
        return self._function.q(points, self._weights)

    def _masked(self, states: States) -> Floats:
        """Estimates with −∞ for illegal actions; no state may be terminal."""
        return values_of(self.q, states, self._model)

    def improve(self, calls: int) -> None:
        """Makes that many more simulator calls.

        Walks continue, and start again at the root. There is no choice of a state: an agent that decides with few calls
        would fit anew to the last few walks, and lose a policy that has proved itself.
        """
        until = self.calls + arguments.whole("calls", calls)
        walkers = int(np.clip(np.sqrt(self._seen + calls) / 4.0, LEAST_WALKERS, MOST_WALKERS))
        while (left := until - self.calls) > 0:
            goal = max(FIRST_FIT, int(GROWTH * self._fitted_at)) - self._seen  # transitions until the next fit
            final = left <= 1.25 * goal
            self._walk(left if final else goal, walkers)
            if not final or self._seen >= 1.1 * self._fitted_at:
                self._fit()

    def _walk(self, calls: int, walkers: int) -> None:
        """Walks on by that many calls."""
        parts, until = [self._data], self.calls + calls
        try:
            while (count := min(walkers, until - self.calls)) > 0:
                chosen = self._walkers.chosen(count, None if self.is_blank else self._masked)
                states = self._walkers.states[:count].copy()
                found = self._oracle.sample(states, chosen)
                parts.append(_Data(states, chosen, found.rewards, found.next_states, found.terminals))
                self._walkers.move(found, chosen)
                self._seen += count
        finally:  # transitions are kept even if an error or a stop ends the walks
            self._data = _Data._make(
                np.concatenate(columns)[-MOST_TRANSITIONS:] for columns in zip(*parts, strict=True)
            )

    @in_one_thread
    def _fit(self) -> None:
        """Solves for Q̂, unless there is nothing to fit: then walks continue at random."""
        data = self._data
        self._fitted_at = self._seen
        if not data.terminals.any() and np.ptp(data.rewards) == 0.0:
            return
        points, following = self._points(data.states), self._points(data.next_states)
        span = self._walkers.possible(data.rewards, HardMax())
        # Before the first fit the next reward alone counts.
        discount = 0.0 if self.is_blank else self._model.discount
        legal, going = np.ones((len(points), self._model.actions), dtype=np.bool_), ~data.terminals
        if (mask := legal_actions(self._model, data.next_states[going])) is not None:
            legal[going] = mask
        values = np.clip(np.where(legal, self.q(data.next_states), -np.inf).max(axis=1), *span)
        targets = data.rewards + discount * going * values
        kinds = ActionHinges.drawn(points, data.chosen, self._model.actions, self._oracle.rng, HINGES)
        system = min((_System(kind, points, data.chosen) for kind in kinds), key=lambda one: one.error(targets))
        function, weights, policy = system.function, system.solved(targets), np.zeros(0, dtype=np.int64)
        for _ in range(ITERATIONS):
            before, policy = policy, np.where(legal, function.q(following, weights), -np.inf).argmax(axis=1)
            if np.array_equal(policy, before):
                break
            weights = system.evaluated(data, following, policy, self._model, span)
        self._function, self._weights = function, weights

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`."""
        own = {"numbers": np.array([self._seen, self._fitted_at]), **self._data._asdict(), **self._walkers.saved()}
        if self._function is not None:
            own |= self._function.hinges._asdict() | {"counts": self._function.counts, "weights": self._weights}
        return self._oracle.saved() | {name: array.copy() for name, array in own.items()}

    def restore(self, arrays: Readable) -> None:
        """Takes on the state of a reference that was made with the same arguments."""
        self._oracle.restore(arrays)
        self._walkers.restore(arrays)
        self._data = _Data._make(arrays[name].copy() for name in _Data._fields)
        self._seen, self._fitted_at = arrays["numbers"].tolist()
        self._function = None
        if "weights" in arrays:
            hinges = Hinges._make(arrays[name].copy() for name in Hinges._fields)
            self._function = ActionHinges(hinges, arrays["counts"].copy())
            self._weights = arrays["weights"].copy()

    def __repr__(self) -> str:
        return f"LeastSquaresReference(calls={self.calls})"


class _System:
    """The normal equations of a fit of functions to points [n, d] with an action each [n]."""

    def __init__(self, function: ActionHinges, points: Floats, chosen: Ints) -> None:
        self.function, self._features = function, function.features(points, chosen)
        penalties = np.full(self._features.shape[1], FREE)
        penalties[0], penalties[points.shape[1] + 2 : -len(function.counts)] = 1e-6, PENALTY
        self._gram = (self._features.T @ self._features).astype(np.float64) + np.diag(penalties)

    def error(self, targets: Floats) -> float:
        """The mean squared error of targets [n], each predicted by a fit to the others."""
        spread = np.linalg.inv(self._gram).astype(np.float32)
        leverage = np.einsum("np,np->n", self._features @ spread, self._features)
        residuals = targets - self._features @ self.solved(targets)
        return float(((residuals / np.maximum(1.0 - leverage, 1e-3)) ** 2).mean())

    def solved(self, targets: Floats) -> Features:
        """The weights that fit targets [n]."""
        mean = float(targets.mean())
        sums = (self._features.T @ (targets - mean).astype(np.float32)).astype(np.float64)
        weights = np.linalg.solve(self._gram, sums)
        weights[0] += mean
        return np.asarray(weights, dtype=np.float32)

    def evaluated(self, data: _Data, following: Floats, policy: Ints, model: GenerativeModel, span: Span) -> Features:
        """The weights of Q = R + γQ(s′, π(s′)), with the actions of a policy at the next states, [n].

        Values outside of the span come from a horizon that is too long for the data; half of it takes its place (Jiang
        and others, 2015, on shorter horizons for few data).
        """
        going, after = (~data.terminals).astype(np.float32), self.function.features(following, policy)
        discount, shortest = model.discount, 1.0 / (horizon_of(model) or np.inf)
        # The middle of the span, subtracted from all values, bounds rounding.
        middle, room = sum(span) / 2.0, 0.1 * (span[1] - span[0])
        while True:
            kept = np.float32(discount) * going
            matrix = self._gram - (self._features.T @ (kept[:, None] * after)).astype(np.float64)
            sums = self._features.T @ (data.rewards + (kept - 1.0) * middle).astype(np.float32)
            found = np.linalg.solve(matrix, sums.astype(np.float64))
            found[0] += middle
            weights = np.asarray(found, dtype=np.float32)
            values = self._features @ weights
            if discount <= 0.5 or (values.min() >= span[0] - room and values.max() <= span[1] + room):
                return weights
            discount = max(0.0, 1.0 - 2.0 * max(1.0 - discount, shortest))
