"""A reference fitted to transitions at visited states: for vectors that are too long for a grid."""

import copy
from collections.abc import Sequence
from contextlib import ContextDecorator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.reference import reason, start_of
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup

WALKERS = 128  # walks at a time, at most
LEAST_KEPT = 2_000  # visited states, of which a fit uses all
# Transitions that are kept and states on which a policy is evaluated, so that a fit takes a bounded time.
MOST_TRANSITIONS, MOST_EVALUATED = 1_000_000, 40_000

Features = NDArray[np.float32]
"""[n, p]; single precision halves the time, and its rounding is far below the noise of simulated targets."""

# The number of threads would decide how sums are rounded. And on a busy machine threads wait for each other: two took
# up to ten times as long as one.
in_one_thread: ContextDecorator = ThreadpoolController().wrap(limits=1, user_api="blas")


class HingeRidge:
    """Functions that are linear but for hinges max(0, ⟨u, x⟩ − t), fitted by least squares with a ridge penalty.

    Points are standardised, and clipped to the box of those of the fit: it never extrapolates. A third of the
    directions u are axes, a third lie in planes of two axes, the others are arbitrary; a hinge passes through one of
    the points. A hinge that few points reach has a small norm, so the penalty keeps its weight small.

    Args:
        points: the points of the fit, [n, d].
        seed: of the hinges.
    """

    @in_one_thread
    def __init__(self, points: Floats, seed: int) -> None:
        rng, (count, dimensions) = np.random.default_rng(seed), points.shape
        spread = points.std(axis=0)
        self._mean, self._scale = points.mean(axis=0), np.where(spread > 0.0, spread, 1.0)
        self._low, self._high = (end(points, axis=0) for end in (np.min, np.max))
        hinges = min(300, count // 8)
        directions = rng.standard_normal((hinges, dimensions))
        # The number of coordinates that a direction has, the same ones as in a random order.
        sizes = np.array([1, 2, dimensions])[np.arange(hinges) % 3]
        order = rng.random((hinges, dimensions)).argsort(axis=1).argsort(axis=1)
        directions[order >= sizes[:, None]] = 0.0
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        through = self._standardised(points[rng.integers(count, size=hinges)])
        self._directions = np.ascontiguousarray(directions.T, dtype=np.float32)  # [d, p]
        self._knots = (through * self._directions.T).sum(axis=1)
        self._fitted = self.features(points)
        gram = (self._fitted.T @ self._fitted).astype(np.float64)
        penalty = np.full(len(gram), 30.0)  # on squared weights, in units of one point's squared error
        penalty[0] = 1e-6  # the constant is free
        self._inverse = np.linalg.inv(gram + np.diag(penalty))

    def _standardised(self, points: Floats) -> Features:
        return np.asarray((np.clip(points, self._low, self._high) - self._mean) / self._scale, dtype=np.float32)

    @in_one_thread
    def features(self, points: Floats) -> Features:
        """One, the standardised coordinates, and the hinges, [n, 1 + d + p]."""
        count, dimensions = points.shape
        features = np.empty((count, 1 + dimensions + len(self._knots)), dtype=np.float32)
        features[:, 0] = 1.0
        features[:, 1 : 1 + dimensions] = standardised = self._standardised(points)
        hinges = features[:, 1 + dimensions :]
        np.matmul(standardised, self._directions, out=hinges)
        hinges -= self._knots
        np.maximum(hinges, 0.0, out=hinges)
        return features

    @in_one_thread
    def fit(self, targets: Floats) -> Features:
        """The weights [1 + d + p, k] that fit targets [n, k] at the points."""
        mean = targets.mean(axis=0)
        weights = self._inverse @ (self._fitted.T @ (targets - mean).astype(np.float32)).astype(np.float64)
        weights[0] += mean
        return np.asarray(weights, dtype=np.float32)

    @in_one_thread
    def predict(self, features: Features, weights: Features) -> Floats:
        """The fitted functions at the features of other points, [n, k]."""
        return (features @ weights).astype(np.float64)


class _Copies:
    """A user's regressor with the methods of `HingeRidge`: one fresh copy for every column of targets."""

    def __init__(self, regressor: Any, points: Floats) -> None:
        self._regressor, self._points = regressor, points
        spread = points.std(axis=0)
        self._mean, self._scale = points.mean(axis=0), np.where(spread > 0.0, spread, 1.0)

    def features(self, points: Floats) -> Floats:
        return np.asarray((points - self._mean) / self._scale)

    def fit(self, targets: Floats) -> list[Any]:
        points, copies = self.features(self._points), [copy.deepcopy(self._regressor) for _ in targets.T]
        for one, column in zip(copies, targets.T, strict=True):
            one.fit(points, column.copy())
        return copies

    def predict(self, features: Floats, fitted: Sequence[Any]) -> Floats:
        columns = [np.asarray(one.predict(features), dtype=np.float64) for one in fitted]
        for column in columns:
            if column.shape != (len(features),) or not np.isfinite(column).all():
                raise ValueError(
                    f"the regressor must predict {len(features)} finite numbers, got shape {column.shape}: {column!r}"
                )
        return np.stack(columns, axis=1)


class _Data(NamedTuple):
    """Transitions of every action at n states, all of which the simulator had reached."""

    states: States  # [n, ...]
    next_states: States  # [n, K, ...]
    rewards: Floats  # [n, K]
    terminals: NDArray[np.bool_]  # [n, K]


class FittedReference:
    """Q̂ by fitted policy iteration, for vectors of any length; it asks only for states that the simulator reached.

    Walks follow the policy of Q̂, with random actions in between. At every visited state each action is simulated once,
    with the same random numbers for all of them: differences between actions then have far less noise than their
    values. When the states have grown by half, values V of the policy and then Q̂ = r + γV are fitted to the newest
    three quarters, twice. Q̂ is an estimate, without a bound on its error. The reference is mutable: `improve` changes
    it. The constructor makes no call.

    Args:
        model: a simulator of numbers, whole or not, in any shape.
        backup: F.
        regressor: an object with `fit(X, y)` and `predict(X)`, such as scikit-learn's, of which copies are fitted to
            standardised states. Give it a fixed `random_state`, or the seed does not decide everything. By default
            ridge regression on random hinges.
        root: where walks start; the model's initial state by default.
        seed: of the simulator calls.
        oracle: makes the simulator calls, and so counts them even if an error ends them; by default one of `seed`.

    Attributes:
        why: how a default reference was chosen; empty for any other.
        states: the number of states at which all actions were simulated.
    """

    why = ""

    def __init__(
        self,
        model: GenerativeModel,
        backup: Backup,
        *,
        regressor: Any = None,
        root: Any = None,
        seed: int = 0,
        oracle: Oracle | None = None,
    ) -> None:
        methods = [getattr(regressor, name, None) for name in ("fit", "predict")]
        if regressor is not None and (isinstance(regressor, type) or not all(map(callable, methods))):
            raise TypeError(f"regressor must be an object with the methods fit and predict, got {regressor!r}")
        self._root = start_of(model, root)
        if self._root.dtype.kind not in "iuf" or self._root.size == 0:
            raise ValueError(
                f"a fit needs states of numbers, got dtype {self._root.dtype} and shape {self._root.shape}"
            )
        self._model, self._backup, self._regressor = model, backup, copy.deepcopy(regressor)
        self._span = curvature.value_interval(model, backup)
        self._oracle = Oracle(model, seed, role="reference") if oracle is None else oracle
        actions, none = model.actions, self._root[None][:0]
        blank = np.zeros((0, actions))
        self._data = _Data(none, np.repeat(none[:, None], actions, axis=1), blank, blank.astype(np.bool_))
        self._walkers = np.repeat(self._root[None], WALKERS, axis=0)
        self._last = np.arange(WALKERS) % actions  # the walkers' last actions
        self.states = self._fitted_at = 0  # also those that are no longer kept
        self._targets, self._hinges = blank, 0  # of the last fit, and the seed of its hinges
        self._regression: Any = None
        self._solution: Any = None

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self._oracle.calls

    @property
    def is_blank(self) -> bool:
        """Whether there was no fit yet: too few states were visited, or all rewards were alike."""
        return self._regression is None

    def q(self, states: States) -> Floats:
        """Estimates, [n, K]; the middle of what is possible before the first fit."""
        points = self._points(np.asarray(states))
        if self._regression is None:
            return np.full((len(points), self._model.actions), sum(self._span) / 2.0)
        return self._predicted(self._regression, points, self._solution)

    def improve(self, calls: int, state: Any = None) -> None:
        """Makes at most that many more simulator calls, a multiple of K.

        There is a fit at once if the states have grown by a quarter since the last one, else later.

        Args:
            calls: how many.
            state: the start of walks; by default they continue, and start again at the root.
        """
        actions = self._model.actions
        until = self.states + arguments.whole("calls", calls) // actions
        start = self._root if state is None else np.asarray(state)
        if start.shape != self._root.shape or not np.can_cast(start.dtype, self._root.dtype, "same_kind"):
            raise ValueError(
                f"state must have shape {self._root.shape} and dtype {self._root.dtype}, as the root has, got {state!r}"
            )
        if state is not None:
            self._walkers[:] = start
        walkers = int(np.clip((until - self.states) // 20, 16, WALKERS))  # twenty steps each, at least
        while self.states < until:
            goal = max(256, int(1.5 * (self._fitted_at or self.states)))  # states at the next fit
            # A fit that the next one makes superfluous at once is left out.
            goal = until if until <= 1.25 * goal else goal
            self._visit(goal, walkers, start)
            if self.states >= 1.25 * self._fitted_at:
                # Of the visited states the newest three quarters. What poor policies reach is far from what matters,
                # and costs much: a few hundred such states spoil a fit of thousands.
                kept = min(max(int(0.75 * self.states), LEAST_KEPT), MOST_TRANSITIONS // actions + 1)
                self._data = _Data._make(column[-kept:] for column in self._data)
                # If all rewards were alike and nothing ended, there is nothing to fit: walks continue at random.
                if self._data.terminals.any() or np.ptp(self._data.rewards) > 0.0:
                    self._fit()

    def _visit(self, goal: int, walkers: int, start: States) -> None:
        """Walks on, until that many states were visited."""
        parts, rng, actions = [self._data], self._oracle.rng, self._model.actions
        rates = np.geomspace(0.02, 0.5, 8)  # of random actions, in one walk of eight each: some stay near the policy
        try:
            while self.states < goal:
                count = min(walkers, goal - self.states)
                states = self._walkers[:count].copy()
                usual = self._last[:count] if self._regression is None else self.q(states).argmax(axis=1)
                explores = rng.random(count) < np.resize(rates, count)
                chosen = np.where(explores, rng.integers(actions, size=count), usual)
                restarts = rng.random(count) < (1.0 - self._model.discount) / 3.0
                # All actions with the same random numbers.
                common, after = np.random.SFC64(int(rng.integers(1 << 62))).state, rng.bit_generator.state
                answers = self._oracle.sample_alike(((states, np.full(count, one)) for one in range(actions)), common)
                rng.bit_generator.state = after
                found = _Data(states, *(np.stack(column, axis=1) for column in zip(*answers, strict=True)))
                parts.append(found)
                rows = np.arange(count)
                restarts |= found.terminals[rows, chosen]
                self._walkers[:count] = found.next_states[rows, chosen]
                self._walkers[:count][restarts] = start
                self._last[:count] = chosen
                self.states += count
        finally:  # transitions are kept even if an error or a stop ends the walks
            self._data = _Data._make(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def _fit(self) -> None:
        """Fits Q̂ to the transitions."""
        data, discount, actions = self._data, self._model.discount, self._model.actions
        points = self._points(data.states)
        self._hinges = int(self._oracle.rng.integers(1 << 62))
        regression = self._regression_on(points)
        step = -(-len(points) // MOST_EVALUATED)
        evaluation = regression if step == 1 else self._regression_on(points[::step])
        evaluated = _Data._make(column[::step] for column in data)
        q = None if self._regression is None else self.q(evaluated.states)
        for _ in range(2):  # improvements of the policy
            values = self._evaluated(evaluation, evaluated, q)
            targets = np.empty((len(points), actions))
            for action in range(actions):  # one action at a time bounds the memory
                found = self._predicted(evaluation, self._points(data.next_states[:, action]), values)[:, 0]
                # Values are clipped, but Q̂ is not: actions that are both clipped would be alike.
                future = np.clip(found, *self._span)
                targets[:, action] = data.rewards[:, action] + discount * future * ~data.terminals[:, action]
            self._regression, self._solution, self._targets = regression, regression.fit(targets), targets
            q = self.q(evaluated.states)
        self._fitted_at = self.states

    def _regression_on(self, points: Floats) -> Any:
        return HingeRidge(points, self._hinges) if self._regressor is None else _Copies(self._regressor, points)

    def _predicted(self, regression: Any, points: Floats, solution: Any) -> Floats:
        """Predictions [n, k]; 20,000 points at a time bound the memory."""
        parts = (points[first : first + 20_000] for first in range(0, max(len(points), 1), 20_000))
        return np.concatenate([regression.predict(regression.features(part), solution) for part in parts])

    def _evaluated(self, regression: Any, data: _Data, q: Floats | None) -> Any:
        """Values of the policy of action values, uniform without any, as a solution with one column."""
        rng, actions, discount = self._oracle.rng, self._model.actions, self._model.discount
        rows = np.arange(len(data.states))
        if q is None:
            chosen, charges = rng.integers(actions, size=len(rows)), np.zeros(len(rows))
        else:
            policy = self._backup.policy(q, data.states)
            drawn = (rng.random(len(q))[:, None] > np.cumsum(policy, axis=1)).sum(axis=1)
            chosen, charges = np.minimum(drawn, actions - 1), self._backup.regulariser(policy, data.states)
        nexts, alive = data.next_states[rows, chosen], ~data.terminals[rows, chosen]
        gains, features = data.rewards[rows, chosen] - charges, regression.features(self._points(nexts))
        future = np.full(len(rows), data.rewards.mean() / (1.0 - discount))
        if q is not None:
            future[alive] = self._backup.value(self.q(nexts[alive]), nexts[alive])
        for _ in range(10):  # more sweeps amplify the noise of few samples
            future = np.clip(future, *self._span) * alive
            solution = regression.fit((gains + discount * future)[:, None])
            future = regression.predict(features, solution)[:, 0]
        return solution

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`. Regressors are not saved, but the targets of their fit."""
        own = {"walkers": self._walkers, "last": self._last, "targets": self._targets}
        numbers = np.array([self.states, self._fitted_at, self._hinges])
        kept = {name: array.copy() for name, array in (self._data._asdict() | own).items()}
        return self._oracle.saved() | kept | {"numbers": numbers}

    def restore(self, arrays: Readable) -> None:
        """Takes on the state of a reference that was made with the same arguments, by a fit to the same targets."""
        self._oracle.restore(arrays)
        self._data = _Data._make(arrays[name].copy() for name in _Data._fields)
        self._walkers, self._last, self._targets = (arrays[name].copy() for name in ("walkers", "last", "targets"))
        self.states, self._fitted_at, self._hinges = arrays["numbers"].tolist()
        self._regression = self._solution = None
        if len(self._targets):
            self._regression = self._regression_on(self._points(self._data.states[: len(self._targets)]))
            self._solution = self._regression.fit(self._targets)

    def _points(self, states: States) -> Floats:
        """States [n, ...] as vectors [n, d]."""
        axes = self._root.ndim + 1
        if states.ndim != axes:
            raise ValueError(f"states must have {axes} axes, the first of which counts them, got {states.shape}")
        return states.reshape(len(states), int(np.prod(states.shape[1:]))).astype(np.float64)

    def __repr__(self) -> str:
        regressor = "" if self._regressor is None else f", regressor={self._regressor!r}"
        return f"FittedReference(states={self.states}, calls={self.calls}{regressor}{reason(self.why)})"
