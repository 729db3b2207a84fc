"""A reference fitted to transitions at visited states: for vectors that are too long for a grid."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.hinges import Features, Hinges, in_one_thread
from smoothplan.chains.reference import reason, values_of
from smoothplan.chains.returns import affordable, tournament
from smoothplan.chains.walkers import Span, WalkedReference
from smoothplan.models.model import (
    GenerativeModel,
    Oracle,
    States,
    Transition,
    effective_horizon,
    horizon_of,
    legal_actions,
    random_actions,
    summed,
)
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, restricted

WALKERS = 128  # walks at a time, at most
FIRST_FIT, GROWTH = 128, 1.5  # visited states of the first fit, and their growth from one fit to the next
SWEEPS = 10  # more amplify the noise of few samples
FEW_DIMENSIONS = 4  # up to which walks are few and long at first, and the equations for values are solved
NEAR = 6.0  # transitions for every step of the horizon over which values are evaluated
MOST_SCOUTED = 500  # steps of a walk that finds out how long episodes last
TRIAL_SHARE, LEAST_FITS = 0.2, 4  # of the calls, for comparing fits; and how many of these there must be
LEAST_KEPT = 2_000  # visited states, of which a fit uses all
# Transitions that are kept and states on which a policy is evaluated, so that a fit takes a bounded time.
MOST_TRANSITIONS, MOST_EVALUATED = 1_000_000, 8_000


class Variant(NamedTuple):
    """A way of fitting."""

    penalty: float  # on squared weights, in units of one point's squared error
    sweeps: bool = False  # whether a few sweeps from earlier values evaluate a policy, or equations that are solved


class HingeRidge:
    """Fits `Hinges`, so many at most, to points [n, d] by least squares with a ridge penalty."""

    variants: tuple[Variant, ...] = (Variant(30.0, True), *(Variant(penalty) for penalty in (10.0, 1.0, 100.0, 1000.0)))
    """Which one is best depends on the noise of rewards and on the shape of values, so all are tried."""

    @in_one_thread
    def __init__(self, points: Floats, seed: int, most: int = 300) -> None:
        self.function = Hinges.drawn(points, np.random.default_rng(seed), most)
        self._fitted = self.function.features(points)
        self._gram = (self._fitted.T @ self._fitted).astype(np.float64)
        self._parts: dict[bytes, HingeRidge] = {}

    def _penalised(self, penalty: float) -> Floats:
        """The normal equations' matrix; the constant is free, coordinates nearly so."""
        penalties = np.full(len(self._gram), penalty)
        penalties[0] = 1e-6
        penalties[1 : 1 + len(self.function.mean)] = min(penalty, 10.0)
        return np.asarray(self._gram + np.diag(penalties))

    @in_one_thread
    def fit(self, targets: Floats, variant: Variant) -> Features:
        """The weights [1 + d + p, k] that fit targets [n, k] at the points; NaN is no target."""
        if not (known := ~np.isnan(targets)).all():
            found = np.zeros((len(self._gram), targets.shape[1]), dtype=np.float32)
            for column in np.flatnonzero(known.any(axis=0)):
                rows = known[:, column]
                if (place := rows.tobytes()) not in self._parts:  # a fit to some of the points, for all variants
                    part = self._parts[place] = copy.copy(self)
                    part._fitted = self._fitted[rows]
                    part._gram = (part._fitted.T @ part._fitted).astype(np.float64)
                found[:, [column]] = self._parts[place].fit(targets[rows][:, [column]], variant)
            return found
        mean = targets.mean(axis=0)
        sums = (self._fitted.T @ (targets - mean).astype(np.float32)).astype(np.float64)
        weights = np.linalg.solve(self._penalised(variant.penalty), sums)
        weights[0] += mean
        return np.asarray(weights, dtype=np.float32)

    @in_one_thread
    def evaluate(
        self,
        gains: Floats,
        going: Floats,
        discount: float,
        following: Floats,
        guess: Floats,
        span: Span,
        reach: float = np.inf,
    ) -> list[Features]:
        """Weights [1 + d + p, 1] of V = gains + γ·going·V(following), at the points, for each of the variants.

        Sweeps start from a guess of V(following) and are clipped to the span of possible values: they have little
        noise, but look only a few steps further than the guess. Equations that are solved (least-squares temporal
        differences, Bradtke and Barto, 1996) look as far as the discount does. If that leaves the span, sweeps take
        their place. The effective horizon of episodes is `reach`.
        """
        features, middle, count = self.function.features(following), sum(span) / 2.0, len(gains)
        # Few transitions tell little of the far future: a shorter horizon errs less (Jiang and others, 2015).
        near = discount if NEAR * reach <= count else min(discount, 1.0 - NEAR / max(count, 2.0 * NEAR))
        transition = (self._fitted.T @ ((near * going).astype(np.float32)[:, None] * features)).astype(np.float64)
        # The middle of the span bounds rounding.
        sums = (self._fitted.T @ (gains + (near * going - 1.0) * middle).astype(np.float32)).astype(np.float64)
        room, found = 0.1 * (span[1] - span[0]), []
        for variant in self.variants:
            if not variant.sweeps:
                weights = np.linalg.solve(self._penalised(variant.penalty) - transition, sums)
                weights[0] += middle
                values = self._fitted @ weights.astype(np.float32)
                if values.min() >= span[0] - room and values.max() <= span[1] + room:
                    found.append(weights[:, None].astype(np.float32))
                    continue
            future, operator = guess, np.linalg.inv(self._penalised(variant.penalty))
            for _ in range(SWEEPS):
                targets = gains + discount * going * np.clip(future, *span)
                mean = targets.mean()
                swept = operator @ (self._fitted.T @ (targets - mean).astype(np.float32)).astype(np.float64)
                swept[0] += mean
                future = (features @ swept.astype(np.float32)).astype(np.float64)
            found.append(swept[:, None].astype(np.float32))
        return found


class _Copies:
    """A user's regressor with the methods of `HingeRidge`: one fresh copy for every column of targets."""

    variants = (Variant(0.0, True),)

    def __init__(self, regressor: Any, points: Floats) -> None:
        self._regressor, self._points, self.function = regressor, points, self
        spread = points.std(axis=0)
        self._mean, self._scale = points.mean(axis=0), np.where(spread > 0.0, spread, 1.0)

    def features(self, points: Floats) -> Floats:
        return np.asarray((points - self._mean) / self._scale)

    def fit(self, targets: Floats, variant: Variant | None = None) -> list[Any]:
        points, copies = self.features(self._points), [copy.deepcopy(self._regressor) for _ in targets.T]
        for one, column in zip(copies, targets.T, strict=True):
            known = ~np.isnan(column)  # all, but for illegal actions
            rows = known if known.any() else ~known
            one.fit(points[rows], np.nan_to_num(column[rows]))
        return copies

    def evaluate(
        self, gains: Floats, going: Floats, discount: float, following: Floats, guess: Floats, span: Span, reach: float
    ) -> list[Any]:
        future, features = guess, self.features(following)
        for _ in range(SWEEPS):
            swept = self.fit((gains + discount * going * np.clip(future, *span))[:, None])
            future = self.predict(features, swept)[:, 0]
        return [swept]

    def predict(self, features: Floats, fitted: Sequence[Any]) -> Floats:
        columns = [np.asarray(one.predict(features), dtype=np.float64) for one in fitted]
        for column in columns:
            if column.shape != (len(features),) or not np.isfinite(column).all():
                raise ValueError(
                    f"the regressor must predict {len(features)} finite numbers, got shape {column.shape}: {column!r}"
                )
        return np.stack(columns, axis=1)


class Fit(NamedTuple):
    """A fitted function Q̂."""

    function: Any  # `Hinges` or a `_Copies`
    solution: Any  # its weights, or a user's regressors


class _Data(NamedTuple):
    """Transitions of every legal action at n states, all of which the simulator had reached."""

    states: States  # [n, ...]
    next_states: States  # [n, K, ...]; the state itself for illegal actions
    rewards: Floats  # [n, K]; NaN for illegal actions
    terminals: NDArray[np.bool_]  # [n, K]

    @property
    def legal(self) -> NDArray[np.bool_]:
        """Which actions are legal, [n, K]."""
        return ~np.isnan(self.rewards)


class FittedReference(WalkedReference):
    """Q̂ by fitted policy iteration, for vectors of any length; it asks only for states that the simulator reached.

    Walks follow the policy of Q̂, with random actions in between. At every visited state each action is simulated once,
    with the same random numbers for all of them: differences between actions then have far less noise than their
    values. When the states have grown by half, values V of the policy and then Q̂ = r + γV are fitted to the newest
    three quarters, in several ways; a part of the calls finds out which policy earns most. Q̂ is an estimate, without a
    bound on its error. The reference is mutable: `improve` changes it. The constructor makes no call.

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
        super().__init__(model, root, seed, oracle, WALKERS)
        self._backup, self._regressor = restricted(backup, model), copy.deepcopy(regressor)
        self._span = curvature.value_interval(model, backup)
        actions, none = model.actions, self._root[None][:0]
        blank = np.zeros((0, actions))
        self._data = _Data(none, np.repeat(none[:, None], actions, axis=1), blank, blank.astype(np.bool_))
        self.states = self._fitted_at = self._tried_at = 0  # also those that are no longer kept
        self._targets = blank  # of the last fit of a user's regressor
        self._fit: Fit | None = None
        # In few dimensions few walks at first, so that some get to the end of their episodes; in many dimensions most
        # states are new anyway, and those near the start matter. The kind of fit that won the last trial: at first
        # equations that are solved, or sweeps, which have little noise. With too few calls for a trial it stays so.
        few = self._points(self._root[None]).shape[1] <= FEW_DIMENSIONS
        self._least_walkers, self._walk_steps = (10, 40) if few else (16, 20)
        self._moves = actions // 8 if few else 0  # steps of a walk between two states at which all actions are tried
        self._usual = 1 if few else 0
        self._fits: list[Fit] = []  # the latest ones, and those that won a trial

    @property
    def is_blank(self) -> bool:
        """Whether there was no fit yet: too few states were visited, or all rewards were alike."""
        return self._fit is None

    def q(self, states: States) -> Floats:
        """Estimates, [n, K]; the middle of what is possible before the first fit, or 0."""
        return self._q(self._fit, np.asarray(states))

    def _masked(self, fit: Fit | None, states: States) -> Floats:
        """Estimates with −∞ for illegal actions; no state may be terminal."""
        return values_of(partial(self._q, fit), states, self._model)

    @in_one_thread
    def _q(self, fit: Fit | None, states: States) -> Floats:
        points, middle = self._points(states), sum(self._span) / 2.0
        if fit is None:
            return np.full((len(points), self._model.actions), middle if np.isfinite(middle) else 0.0)
        return _predicted(fit.function, points, fit.solution)

    def improve(self, calls: int, state: Any = None) -> None:
        """Makes at most that many more simulator calls, on walks from a state.

        Without a state walks continue, and start again at the root. There is a fit at once if the states have grown by
        a quarter since the last one, else later.
        """
        until = self.calls + arguments.whole("calls", calls)
        if state is None:
            self._walkers.start = self._root
        else:
            self._walkers.restart(state)
        least = self._model.actions
        if self.states == 0:
            self._scout(calls)
        price, refits = least + self._moves, False
        trial = int(TRIAL_SHARE * calls)
        later = until - (trial if affordable(trial, self._horizon) >= LEAST_FITS else 0)  # then the last fits compete
        while (left := later - self.calls) >= least:
            goal = max(FIRST_FIT, int(GROWTH * self._fitted_at)) - self.states  # states until the next fit
            last = int(left / price)
            final = last <= 1.25 * goal  # a fit that the next one makes superfluous at once is left out
            self._visit(max(1, last if final else goal), later)
            if self.states >= 1.25 * self._fitted_at:
                refits = True
                if not final:
                    self._refit()
                    trial = int(TRIAL_SHARE * price * (self.states - self._tried_at))
                    self._try(min(trial, later - self.calls))
        if refits:
            self._refit()
            self._try(until - self.calls)
        if until - self.calls >= least:
            self._visit(until, until)
        self._fits = [] if self._fit is None else [self._fit]

    def _scout(self, calls: int) -> None:
        """Finds out how long episodes last, by a tenth of the calls, and how far walks must go between two visits.

        Few visits are then spread over whole episodes: values near the end are the ones that others follow from.
        """
        scouts, rng, model, walkers = 2, self._oracle.rng, self._model, self._walkers
        start = walkers.start
        states, ages = np.repeat(start[None].astype(self._root.dtype), scouts, axis=0), np.zeros(scouts, dtype=np.int64)
        chosen = random_actions(model, states, rng)
        ended = np.zeros(scouts, dtype=np.bool_)
        for _ in range(min(calls // (10 * scouts), MOST_SCOUTED)):
            changed, random = rng.random(scouts) < 0.5, random_actions(model, states, rng)
            if (legal := legal_actions(model, states)) is not None:
                changed |= ~legal[np.arange(scouts), chosen]
            chosen = np.where(changed, random, chosen)
            found = self._oracle.sample(states, chosen)
            ages, states = ages + 1, found.next_states.copy()
            walkers.longest, ended = max(walkers.longest, int(ages.max())), ended | found.terminals
            if ended.all():
                break
            states[found.terminals], ages[found.terminals] = start, 0
        walkers.ends = bool(ended.any())
        visits = max(1, int(0.7 * calls / model.actions) // self._least_walkers)  # of a walker
        if walkers.ends:
            self._moves = max(self._moves, min(model.actions, walkers.longest // visits))

    def _visit(self, more: int, until: int) -> None:
        """Walks on, until that many more states were visited or a number of calls was made."""
        parts, rng, actions = [self._data], self._oracle.rng, self._model.actions
        goal = self.states + more
        most, walkers = int(np.clip(goal // self._walk_steps, self._least_walkers, WALKERS)), self._walkers
        q = None if self._fit is None else partial(self._masked, self._fit)
        try:
            while (count := min(most, goal - self.states, (until - self.calls) // actions)) > 0:
                for _ in range(self._moves):
                    if self.calls + count * (actions + 1) <= until:
                        chosen = walkers.chosen(count, q)
                        walkers.move(self._oracle.sample(walkers.states[:count].copy(), chosen), chosen)
                states, chosen = walkers.states[:count].copy(), walkers.chosen(count, q)
                # All actions with the same random numbers.
                common, after = np.random.SFC64(int(rng.integers(1 << 62))).state, rng.bit_generator.state
                found = self._all_actions(states, common)
                rng.bit_generator.state = after
                parts.append(found)
                pairs = np.arange(count), chosen
                walkers.move(Transition(found.next_states[pairs], found.rewards[pairs], found.terminals[pairs]), chosen)
                walkers.ends |= bool(found.terminals.any())
                self.states += count
        finally:  # transitions are kept even if an error or a stop ends the walks
            self._data = _Data._make(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def _all_actions(self, states: States, common: Any) -> _Data:
        """Transitions of the legal actions of states [n, ...], with the same random numbers for the actions of one."""
        count, actions, oracle = len(states), self._model.actions, self._oracle
        if (legal := legal_actions(self._model, states)) is None:
            answers = oracle.sample_alike(((states, np.full(count, one)) for one in range(actions)), common)
            return _Data(states, *(np.stack(column, axis=1) for column in zip(*answers, strict=True)))
        found = _Data(
            states,
            np.repeat(states[:, None], actions, axis=1),
            np.full((count, actions), np.nan),
            np.zeros((count, actions), dtype=np.bool_),
        )
        for mask in np.unique(legal, axis=0):  # states of one mask together, so that their rows see the same numbers
            rows, own = np.flatnonzero((legal == mask).all(axis=1)), np.flatnonzero(mask)
            answers = oracle.sample_alike(((states[rows], np.full(len(rows), one)) for one in own), common)
            common = oracle.rng.bit_generator.state
            for action, answer in zip(own, answers, strict=True):
                for column, part in zip(found[1:], answer, strict=True):
                    column[rows, action] = part
        return found

    @in_one_thread
    def _refit(self) -> None:
        """Fits Q̂ to the transitions in several ways, unless there is nothing to fit: then walks continue at random."""
        # Of the visited states the newest three quarters. What poor policies reach is far from what matters, and costs
        # much: a few hundred such states spoil a fit of thousands.
        kept = min(max(int(0.75 * self.states), LEAST_KEPT), MOST_TRANSITIONS // self._model.actions + 1)
        data = self._data = _Data._make(column[-kept:] for column in self._data)
        if not data.terminals.any() and np.nanmin(data.rewards) == np.nanmax(data.rewards):
            return
        points = self._points(data.states)
        self._span = self._walkers.possible(data.rewards[data.legal], self._backup)
        hinges = int(self._oracle.rng.integers(1 << 62))
        regression = self._regression_on(points, hinges)
        step = -(-len(points) // MOST_EVALUATED)
        evaluation = regression if step == 1 else self._regression_on(points[::step], hinges)
        evaluated = _Data._make(column[::step] for column in data)
        before: Fit | int = self._best_constant(evaluation, evaluated) if self._fit is None else self._fit
        fits = self._improved(regression, evaluation, evaluated, before)
        if self._fit is None:
            fits = self._improved(regression, evaluation, evaluated, fits[0])
        self._fits = [*fits, *self._fits[: len(fits) + 1]] if self._regressor is None else fits
        self._fit, self._fitted_at = fits[0], self.states

    def _best_constant(self, evaluation: Any, evaluated: _Data) -> int:
        """The action that is worth most, on average over the states, if it is always taken."""
        worth = []
        for action in range(self._model.actions):
            solutions = self._evaluated(evaluation, evaluated, action)
            solution = solutions[min(1, len(solutions) - 1)]
            values = _predicted(evaluation.function, self._points(evaluated.states), solution)
            worth.append(float(np.clip(values[:, 0], *self._span).mean()))
        return int(np.argmax(worth))

    def _improved(self, regression: Any, evaluation: Any, evaluated: _Data, policy: Fit | int) -> list[Fit]:
        """Fits to r + γV with the values V of a policy, the usual one first: variants, and their mean."""
        data, discount, actions = self._data, self._model.discount, self._model.actions
        values = self._evaluated(evaluation, evaluated, policy)
        targets = np.empty((len(values), len(data.states), actions))
        columns = values[0] if self._regressor is not None else np.concatenate(values, axis=1)
        for action in range(actions):  # one action at a time bounds the memory
            following, going = self._points(data.next_states[:, action]), ~data.terminals[:, action]
            # Values are clipped, but Q̂ is not: actions that are both clipped would be alike.
            future = np.clip(_predicted(evaluation.function, following, columns), *self._span)
            targets[:, :, action] = data.rewards[:, action] + discount * future.T * going
        self._targets = targets[0] if self._regressor is not None else self._targets
        fitted = [regression.fit(target, variant) for target, variant in zip(targets, regression.variants, strict=True)]
        fits = [Fit(regression.function, solution) for solution in fitted]
        if self._regressor is None:
            fits.append(Fit(regression.function, np.mean(fitted, axis=0)))
            fits.insert(0, fits.pop(self._usual))  # the kind that won last
        return fits

    def _try(self, calls: int) -> None:
        """Takes whichever of the latest fits earns most from the start of walks and from visited states.

        With too few calls for that, nothing changes.
        """
        fits = self._fits[: affordable(calls, self._horizon)]
        if len(fits) < min(LEAST_FITS, len(self._fits)):
            return

        def starts(rows: int) -> States:
            found = np.repeat(self._walkers.start[None].astype(self._root.dtype), rows, axis=0)
            found[: rows // 2] = self._data.states[self._oracle.rng.integers(len(self._data.states), size=rows // 2)]
            return found

        policies, value = [partial(self._action, fit) for fit in fits], partial(self._mean_value, fits)
        outcome = tournament(self._oracle, starts, policies, value, self._horizon, calls)
        if outcome is not None:
            self._tried_at, self._fit = self.states, fits[outcome.winner]
            self._fits, kinds = [self._fit], range(len(HingeRidge.variants) + 1)
            if outcome.winner in kinds:  # an earlier fit has no kind
                self._usual = [self._usual, *(kind for kind in kinds if kind != self._usual)][outcome.winner]

    @property
    def _horizon(self) -> int:
        """Steps of a return in a trial, if there are enough calls."""
        model, horizon = self._model, horizon_of(self._model)
        effective = min(np.ceil(summed(1.5, model.discount, horizon)), horizon or np.inf)
        return int(min(effective, 2 * self._walkers.longest if self._walkers.ends else np.inf))

    def _action(self, fit: Fit, states: States) -> Ints:
        return np.asarray(self._masked(fit, states).argmax(axis=1))

    def _mean_value(self, fits: Sequence[Fit], states: States) -> Floats:
        found = np.mean([self._masked(fit, states).max(axis=1) for fit in fits], axis=0)
        return np.asarray(np.clip(found, *self._span))

    def _regression_on(self, points: Floats, hinges: int) -> Any:
        return HingeRidge(points, hinges) if self._regressor is None else _Copies(self._regressor, points)

    def _evaluated(self, regression: Any, data: _Data, policy: Fit | int) -> list[Any]:
        """Values of the policy of a fit, or of an action that is always taken, as solutions with one column."""
        rng, model, discount = self._oracle.rng, self._model, self._model.discount
        rows, last = np.arange(len(data.states)), model.actions - 1 - data.legal[:, ::-1].argmax(axis=1)
        if isinstance(policy, int):
            chosen = np.where(data.legal[:, policy], policy, data.legal.argmax(axis=1))
            charges = np.zeros(len(rows))
        else:
            chances = self._backup.policy(self._masked(policy, data.states), data.states)
            drawn = (rng.random(len(rows))[:, None] > np.cumsum(chances, axis=1)).sum(axis=1)
            chosen, charges = np.minimum(drawn, last), self._backup.regulariser(chances, data.states)
        nexts, going = data.next_states[rows, chosen], ~data.terminals[rows, chosen]
        gains = data.rewards[rows, chosen] - charges
        guess = np.full(len(rows), summed(gains.mean(), discount * float(going.mean()), horizon_of(model)))
        if not isinstance(policy, int):
            guess[going] = self._backup.value(self._masked(policy, nexts[going]), nexts[going])
        reach = np.inf if horizon_of(model) is None else effective_horizon(model)
        following = self._points(nexts)
        return list(regression.evaluate(gains, going * 1.0, discount, following, guess, self._span, reach))

    def saved(self) -> Arrays:
        """Its state as named arrays, for `restore`. A user's regressors are not saved, but the targets of their fit."""
        own = self._walkers.saved() | {"targets": self._targets, "span": np.array(self._span)}
        own["numbers"] = np.array([self.states, self._fitted_at, self._tried_at, self._moves, self._usual])
        if self._fit is not None and self._regressor is None:
            own |= self._fit.function._asdict() | {"weights": self._fit.solution}
        return self._oracle.saved() | {name: array.copy() for name, array in (self._data._asdict() | own).items()}

    def restore(self, arrays: Readable) -> None:
        """Takes on the state of a reference that was made with the same arguments."""
        self._oracle.restore(arrays)
        self._data = _Data._make(arrays[name].copy() for name in _Data._fields)
        self._walkers.restore(arrays)
        self.states, self._fitted_at, self._tried_at, self._moves, self._usual = arrays["numbers"].tolist()
        low, high = arrays["span"].tolist()
        self._targets, self._span, self._fit = arrays["targets"].copy(), (low, high), None
        if "weights" in arrays:
            hinges = Hinges._make(arrays[name].copy() for name in Hinges._fields)
            self._fit = Fit(hinges, arrays["weights"].copy())
            self._fits = [self._fit]
        elif len(self._targets):
            regression = _Copies(self._regressor, self._points(self._data.states[: len(self._targets)]))
            self._fit = Fit(regression, regression.fit(self._targets))

    def __repr__(self) -> str:
        regressor = "" if self._regressor is None else f", regressor={self._regressor!r}"
        return f"FittedReference(states={self.states}, calls={self.calls}{regressor}{reason(self.why)})"


def _predicted(function: Any, points: Floats, solution: Any) -> Floats:
    """Predictions [n, k]; 20,000 points at a time bound the memory."""
    parts = (points[first : first + 20_000] for first in range(0, max(len(points), 1), 20_000))
    return np.concatenate([function.predict(function.features(part), solution) for part in parts])
