"""Bellman backups: the aggregators F_s that turn action values Q_s into the value of a state, V(s) = F_s(Q_s).

`HardMax` is the ordinary maximum, `LogSumExp` the entropy-regularised backup of SmoothCruiser, `OptimalTransport` the
backup of the paper (section 5), whose cost matrix says which actions are alike, and `Tsallis` one whose policies leave
bad actions out. Each is convex, monotone, translation-equivariant and 1-Lipschitz in the sup norm, and satisfies

    value(Q) = max over policies π of ⟨π, Q⟩ − regulariser(π),    attained at policy(Q) = ∇F(Q).

Planners need only the methods of `Backup`. The first three are also a `SoftmaxMixture`, which compiled code and
corrections of second order need. Methods take action values `q` [..., K] and broadcast over the leading axes. `states`
aligns with those axes and matters only to an `OptimalTransport` whose prior depends on the state.

An illegal action has the value −∞: no policy chooses it, and F is the backup of the other actions. Transport is then to
the prior restricted to them; `restricted` is that backup for a model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.models.model import GenerativeModel, ModelError, action_names, legal_actions, masked
from smoothplan.theory.softmaxes import Softmaxes, conjugate, cumulant_bounds, entropy, exponentials, hessian

Prior = Callable[[Any], ArrayLike]
"""A distribution over actions that depends on the state: states [n, ...] to probability vectors [n, K]."""


class Backup(Protocol):
    """The declarations of a backup, which `check_backup` tests."""

    @property
    def temperature(self) -> float:
        """η > 0, the scale on which F is smooth, in the unit of action values; 0 if F is not smooth."""

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """Infimum and supremum over states of F_s(0), for a model with this number of actions."""

    def derivatives(self, actions: int) -> tuple[float, ...]:
        """Bounds of |D^k F_s(q)[e₁, ..., e_k]| over all s, q and all directions e_i with max e_i − min e_i = 1.

        One for each k = 2, 3, ..., as many as F has; () if F is not smooth. The last derivative may jump: it is enough
        that the one before is Lipschitz, with this constant.
        """

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        """F_s(q), [...]."""

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇F_s(q), a distribution over actions, [..., K]."""

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """The convex conjugate of F_s at a policy [..., K]: value(q) = max_π ⟨π, q⟩ − regulariser(π).

        Without states, the supremum over states.
        """


class SoftmaxMixture:
    """A backup that is a mixture of soft maxima at one temperature, F(q) = Σ_j μ_s(j)·η log Σ_i exp((q_i − c_ij)/η).

    Its second derivative is a mean of variances, which pairs of returns estimate. A subclass has a `temperature` η and
    `shifts` c; `weights` μ too, if it has more than one column. Everything else follows.
    """

    temperature: float  # η > 0; 0 for the hard maximum
    actions: int | None = None  # K, if it is fixed

    def shifts(self, actions: int) -> Floats:
        """c: column j subtracts c_ij from the value of action i, [K, J]. By default one column subtracts nothing."""
        return np.zeros((self.actions or actions, 1))

    def weights(self, states: Any = None) -> Floats:
        """μ_s, the weights of the columns at the given states, [..., J]; [J] if they do not depend on the state."""
        return np.ones(1)

    def weights_on(self, weights: Floats, legal: NDArray[np.bool_]) -> Floats:
        """The weights [..., J] if only some actions are legal, [..., K]; the same unless columns stand for actions."""
        return weights

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """Infimum and supremum of F_s(0) over all weights; F is linear in them, so they are those of single columns."""
        _, _, maxima = exponentials(np.zeros(actions), self.shifts(actions), self.temperature)
        return float(maxima.min()), float(maxima.max())

    def derivatives(self, actions: int) -> tuple[float, ...]:
        """1/(4η), 1/(8η²), 1/(8η³), ...; see `softmaxes.cumulant_bounds`."""
        return cumulant_bounds(self.temperature)

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        """F_s(q), [...]: the normalised closed form (Proposition 5.3 of the paper)."""
        (_, _, maxima), weights = self._columns(q, states)
        return np.asarray((weights * maxima).sum(axis=-1))

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇F_s(q) = π(q), a distribution over actions, [..., K] (Proposition 5.4 of the paper)."""
        return np.asarray(self.coupling(q, states).sum(axis=-1))

    def hessian(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇²F_s(q) = (diag(π) − Σ_j μ_j p_·j p_·jᵀ)/η, [..., K, K] (Proposition 5.4 of the paper)."""
        return hessian(self.local_policies(q, states), self.coupling(q, states), self.temperature)

    def local_policies(self, q: ArrayLike, states: Any = None) -> Floats:
        """The local softmaxes p_ij(q), [..., K, J]: column j is a distribution over actions i."""
        (odds, total, _), _ = self._columns(q, states)
        return odds / total

    def coupling(self, q: ArrayLike, states: Any = None) -> Floats:
        """The optimal coupling Γ_ij = μ_s(j)·p_ij, [..., K, J], with row sums π(q) and column sums μ_s."""
        (odds, total, _), weights = self._columns(q, states)
        with np.errstate(under="ignore"):
            return np.asarray(odds / total * weights[..., None, :])

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """max over q of ⟨π, q⟩ − F_s(q), [...], by iteration."""
        rows, shifts, weights = self._aligned("policy", policy, states)
        shape = np.broadcast_shapes(rows.shape[:-1], weights.shape[:-1])
        rows, weights = (
            np.broadcast_to(part, (*shape, part.shape[-1])).reshape(-1, part.shape[-1]) for part in (rows, weights)
        )
        return conjugate(rows, shifts, weights, self.temperature).reshape(shape)

    def _columns(self, q: ArrayLike, states: Any) -> tuple[tuple[Floats, Floats, Floats], Floats]:
        """The exponentials of all columns, see `softmaxes.exponentials`, and their weights."""
        if self.temperature == 0.0:
            raise TypeError(
                f"{type(self).__name__} has no Hessian, local softmaxes or coupling: the maximum is piecewise linear. "
                "Use LogSumExp or OptimalTransport with a small temperature; curvature.gap_to_hard_max bounds the "
                "difference"
            )
        values, shifts, weights = self._aligned("q", q, states)
        return exponentials(values, shifts, self.temperature), weights

    def _aligned(self, name: Literal["q", "policy"], values: ArrayLike, states: Any) -> tuple[Floats, Floats, Floats]:
        """Rows [..., K], the shifts, and the weights at states that align with the rows."""
        rows = _rows(name, values)
        shifts, weights = self.shifts(rows.shape[-1]), self.weights(states)
        if len(shifts) != rows.shape[-1]:
            raise ValueError(f"{name} must have {len(shifts)} actions along its last axis, got shape {rows.shape}")
        try:
            np.broadcast_shapes(rows.shape[:-1], weights.shape[:-1])
        except ValueError:
            raise ValueError(f"states {weights.shape[:-1]} do not align with {name} of shape {rows.shape}") from None
        legal = np.asarray(rows > -np.inf)
        if not legal.all():
            weights = self.weights_on(weights, legal)
        return rows, shifts, weights


def required_backup(backup: Backup) -> Backup:
    """The backup, if it is an object with everything that `Backup` asks for; TypeError otherwise."""
    if isinstance(backup, type):
        example = "()" if backup is HardMax else "(...)"
        raise TypeError(f"backup must be an object, such as {backup.__name__}{example}, got the class itself")
    for name in ("temperature", "at_zero_range", "derivatives", "value", "policy", "regulariser"):
        if not hasattr(backup, name):
            raise TypeError(
                f"backup must be one, such as HardMax() or LogSumExp(temperature), got {arguments.shown(backup)}, "
                f"which has no {name}"
            )
    return backup


def is_mixture(backup: Backup) -> TypeGuard[SoftmaxMixture]:
    """Whether a backup is a mixture of softmaxes.

    At temperature 0 only `HardMax` itself is: compiled code takes it to subtract nothing.
    """
    return isinstance(backup, SoftmaxMixture) and (backup.temperature > 0.0 or type(backup) is HardMax)


def required_mixture(backup: Backup, for_what: str, instead: str) -> SoftmaxMixture:
    """The backup, if it is a mixture of softmaxes; otherwise an error that says what to use `instead`."""
    if not is_mixture(backup):
        raise ValueError(
            f"{for_what} needs a mixture of softmaxes, such as LogSumExp or OptimalTransport, got {backup!r}: {instead}"
        )
    return backup


def depends_on_state(backup: Backup) -> bool:
    """Whether F_s may differ from state to state. Of backups of one's own, only mixtures say that it does not."""
    if isinstance(backup, _Tempered):
        return False
    try:
        return not is_mixture(backup) or backup.weights(None).ndim > 1
    except ValueError:  # it must be told the state
        return True


def restricted(backup: Backup, model: GenerativeModel) -> Backup:
    """The backup with the legal actions of each state of a model: illegal ones have no weight in a prior.

    Any other backup is the same, because an illegal action has the value −∞.
    """
    legal: Any = getattr(model, "legal", None)
    if legal is None or not isinstance(backup, OptimalTransport):
        return backup
    backup.at_zero_range(model.actions)  # refuses a cost matrix of another size
    prior: Any = partial(_legal_prior, backup, model)
    if isinstance(legal, np.ndarray):
        prior = prior(np.arange(len(legal)))
    return OptimalTransport(cost=backup.cost, tau=backup.tau, lam=backup.lam, prior=prior)


def _legal_prior(backup: "OptimalTransport", model: GenerativeModel, states: Any) -> Floats:
    """The prior restricted to legal actions at states [n, ...], [n, K]; as it is at terminal states of a table."""
    legal = legal_actions(model, states)
    assert legal is not None
    weights, some = np.broadcast_to(backup.weights(states), legal.shape), np.any(legal, axis=1)
    missing = some & ~((weights > 0.0) & legal).any(axis=1)
    if missing.any():
        row = int(np.argmax(missing))
        names = [name for name, allowed in zip(action_names(model), legal[row], strict=True) if allowed]
        raise ModelError(
            f"prior gives no weight to any of the legal actions {names} at state {np.asarray(states[row]).tolist()}"
        )
    return backup.weights_on(weights, legal | ~some[:, None])


def at_zero_range(backup: Backup, model: GenerativeModel) -> tuple[float, float]:
    """Infimum and supremum of F_s(0) over the states of a model, with the legal actions of each.

    For legal actions that a function tells, over all sets of actions.
    """
    legal: Any = getattr(model, "legal", None)
    actions, usual = model.actions, backup.at_zero_range(model.actions)
    if legal is None:
        return usual
    if isinstance(legal, np.ndarray):  # a table's
        states = np.flatnonzero(legal.any(axis=1))
        values = backup.value(masked(np.zeros((len(states), actions)), legal[states]), states)
        return float(values.min()), float(values.max())
    if isinstance(backup, OptimalTransport):  # a column is least if its own action alone is legal
        return -backup.tau * float(np.diag(backup.cost).max()), SoftmaxMixture.at_zero_range(backup, actions)[1]
    # F increases with every action; if one alone is legal, F(0) is the cost of its policy.
    return 0.0 - float(np.max(backup.regulariser(np.eye(actions)))), backup.at_zero_range(actions)[1]


def softmaxes(backup: SoftmaxMixture, actions: int, states: int | None) -> Softmaxes:
    """A backup in the form that compiled code reads; `states` is the number of states of a table."""
    weights = np.atleast_2d(backup.weights(None if states is None else np.arange(states)))
    return Softmaxes(backup.temperature, arguments.frozen(backup.shifts(actions).T), arguments.frozen(weights))


def _rows(name: Literal["q", "policy"], values: ArrayLike, actions: int | None = None) -> Floats:
    """Action values, of which some may be −∞ but not all, or policies, [..., K]."""
    result = arguments.numbers(name, values) if name == "q" else arguments.array(name, values)
    if name == "q" and not np.isfinite(result).all():
        impossible = (result == -np.inf) & (result > -np.inf).any(axis=-1, keepdims=True) if result.ndim else False
        arguments.array(name, np.where(impossible, 0.0, result))
    if result.ndim == 0 or result.shape[-1] == 0:
        raise ValueError(f"{name} must have one entry per action along its last axis, got shape {result.shape}")
    if actions not in (None, result.shape[-1]):
        raise ValueError(f"{name} must have {actions} actions along its last axis, got shape {result.shape}")
    return arguments.distributions(name, result, result.shape[-1]) if name == "policy" else result


@dataclass(frozen=True)
class HardMax(SoftmaxMixture):
    """The ordinary maximum, F(Q) = max_a Q(a). It has no curvature: no Hessian, no softmaxes, no Taylor model.

    >>> float(HardMax().value([0.0, 1.0]))
    1.0
    """

    temperature = 0.0  # the limit η → 0
    offset = 0.0  # the backup equals its definition
    at_zero = 0.0

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """F(0) = 0, for any number of actions."""
        return 0.0, 0.0

    def derivatives(self, actions: int) -> tuple[float, ...]:
        """None: the maximum has kinks."""
        return ()

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        """max_a q(a), [...]."""
        return np.asarray(_rows("q", q).max(axis=-1))

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        """The greedy policy, [..., K]: all mass on the first of the best actions."""
        q = _rows("q", q)
        return np.asarray(np.arange(q.shape[-1]) == q.argmax(axis=-1)[..., None], dtype=np.float64)

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """Zero for every policy, [...]."""
        return np.zeros(_rows("policy", policy).shape[:-1])


@dataclass(frozen=True)
class _Tempered(ABC):
    """A backup that depends on a temperature only, not on the state."""

    temperature: float
    actions: int | None = None
    offset = 0.0  # the backup equals its definition

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", arguments.positive("temperature", self.temperature))
        if self.actions is not None:
            object.__setattr__(self, "actions", arguments.whole("actions", self.actions))

    @abstractmethod
    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """F(0), twice: it is the same at every state."""

    @property
    def at_zero(self) -> float:
        """F(0), which depends on the number of actions."""
        if self.actions is None:
            name = type(self).__name__
            raise ValueError(f"at_zero depends on K: give {name} its actions=K, or call at_zero_range(K)")
        return self.at_zero_range(self.actions)[0]


@dataclass(frozen=True)
class LogSumExp(_Tempered, SoftmaxMixture):
    """The entropy-regularised backup, F(Q) = η log Σ_a exp(Q(a)/η) = max_π ⟨π, Q⟩ + η·entropy(π).

    It is the optimal-transport backup with C ≡ 0, so its columns are all alike and it keeps one: J = 1.

    Args:
        temperature: η > 0.
        actions: K, needed only by `at_zero`.

    >>> float(LogSumExp(temperature=0.5).value([1.0, 1.0])) == 1.0 + 0.5 * math.log(2)
    True
    """

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """F(0) = η log K at every state."""
        value = self.temperature * math.log(arguments.whole("actions", actions))
        return value, value

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """−η·entropy(π), [...]."""
        return np.asarray(-self.temperature * entropy(_rows("policy", policy, self.actions)))


@dataclass(frozen=True, eq=False, kw_only=True)
class OptimalTransport(SoftmaxMixture):
    """The optimal-transport backup of the paper, normalised:

        F_s(Q) = η Σ_j μ_s(j) log Σ_i exp((Q_i − τC_ij)/η),    η = τλ.

    `value(q) + offset` equals its definition, max over π of ⟨π, Q⟩ − τ·W_λ(π, μ_s) (Proposition 5.3 of the paper).

    Args:
        cost: the action-cost matrix C, [K, K].
        tau: the weight τ of the transport cost.
        lam: the entropy λ inside the transport cost.
        prior: the distribution μ to which transport is measured, uniform by default: a vector [K]; one vector per
            state of a tabular model, [S, K]; or a function from states [n, ...] to vectors [n, K].
        reference: another name of `prior`.

    >>> backup = OptimalTransport(cost=[[0, 1], [1, 0]], tau=1.0, lam=0.25)
    >>> backup.policy([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """

    cost: Floats
    tau: float
    lam: float
    prior: Floats | Prior

    def __init__(
        self,
        *,
        cost: ArrayLike,
        tau: float,
        lam: float,
        prior: ArrayLike | Prior | None = None,
        reference: ArrayLike | Prior | None = None,
    ) -> None:
        if prior is not None and reference is not None:
            raise ValueError("prior and reference are two names of one argument: give prior only")
        cost, prior = arguments.array("cost", cost), reference if prior is None else prior
        if cost.ndim != 2 or cost.shape[0] != cost.shape[1] or cost.size == 0:
            raise ValueError(f"cost must be a square matrix [K, K], got shape {cost.shape}")
        if prior is None:
            prior = np.full(len(cost), 1.0 / len(cost))
        if not callable(prior):
            prior = _normalised("prior", prior, len(cost))
            if prior.ndim > 2:
                raise ValueError(f"prior must be a vector [K] or a table [S, K], got shape {prior.shape}")
            prior = arguments.frozen(prior)
        object.__setattr__(self, "cost", arguments.frozen(cost.copy()))
        object.__setattr__(self, "tau", arguments.positive("tau", tau))
        object.__setattr__(self, "lam", arguments.positive("lam", lam))
        object.__setattr__(self, "prior", prior)

    @classmethod
    def from_prior(
        cls, prior: ArrayLike | Prior, xi: float, *, cost: ArrayLike, tau: float, lam: float
    ) -> "OptimalTransport":
        """The backup with the robust prior (1−ξ)·prior + ξ·uniform, 0 < ξ ≤ 1, so that μ_s(a) ≥ ξ/K everywhere."""
        given, share = cls(cost=cost, tau=tau, lam=lam, prior=prior), arguments.number("xi", xi, above=0.0, most=1.0)
        mixed = partial(_mixed, given.prior, share, given.actions)
        return cls(cost=cost, tau=tau, lam=lam, prior=mixed if callable(given.prior) else mixed())

    @property
    def actions(self) -> int:  # type: ignore[override]
        """K."""
        return len(self.cost)

    @property
    def temperature(self) -> float:  # type: ignore[override]
        """η = τλ."""
        return self.tau * self.lam

    @property
    def offset(self) -> float | Floats:
        """τλ(1 + entropy(μ)), a number, or one per state [S] for a table of priors."""
        return self._at_priors("offset", lambda priors: self.temperature * (1.0 + entropy(priors)))

    @property
    def at_zero(self) -> float | Floats:
        """F(0), a number, or one per state [S] for a table of priors."""
        _, _, maxima = exponentials(np.zeros(self.actions), self.shifts(self.actions), self.temperature)
        return self._at_priors("at_zero", lambda priors: np.asarray(priors @ maxima))

    def _at_priors(self, name: str, function: Callable[[Floats], Floats]) -> float | Floats:
        if callable(self.prior):
            raise ValueError(f"{name} has one value per state and the prior is a function: use weights(states)")
        result = function(self.prior)
        return float(result) if result.ndim == 0 else result

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """Infimum and supremum of F_s(0) over states; over all priors if μ_s is a function of the state."""
        if arguments.whole("actions", actions) != self.actions:
            raise ValueError(f"actions is {actions} but this backup's cost matrix has {self.actions} actions")
        if callable(self.prior):
            return super().at_zero_range(actions)
        values = np.asarray(self.at_zero)
        return float(values.min()), float(values.max())

    def shifts(self, actions: int) -> Floats:
        """τC, [K, K]."""
        return np.asarray(self.tau * self.cost)

    def weights(self, states: Any = None) -> Floats:
        """μ_s at the given states, [..., K]; [K] if it does not depend on the state."""
        if callable(self.prior):
            if states is None:
                raise ValueError("the prior is a function of the state: pass states=")
            return _normalised("prior(states)", self.prior(states), self.actions)
        if self.prior.ndim == 1:
            return self.prior
        if states is None:
            raise ValueError("the prior depends on the state ([S, K]): pass states=")
        states = np.asarray(states)
        if states.dtype.kind not in "iu":
            raise TypeError(f"states must be integers to index the prior [S, K], got dtype {states.dtype}")
        unknown = (states < 0) | (states >= len(self.prior))
        if unknown.any():
            raise ValueError(f"states must be in 0..{len(self.prior) - 1}, got {states[unknown].flat[0]}")
        return np.asarray(self.prior[states])

    def weights_on(self, weights: Floats, legal: NDArray[np.bool_]) -> Floats:
        """The prior restricted to legal actions, [..., K]."""
        kept = weights * legal
        total = kept.sum(axis=-1, keepdims=True)
        if not (total > 0.0).all():
            allowed = np.broadcast_to(legal, kept.shape)[total[..., 0] <= 0.0][0]
            raise ModelError(f"prior gives no weight to any of the legal actions {np.flatnonzero(allowed).tolist()}")
        return np.asarray(kept / total)


def _mixed(prior: Floats | Prior, xi: float, actions: int, states: Any = None) -> Floats:
    """A prior mixed with the uniform distribution. It is checked first: mixing would hide its errors."""
    rows = _normalised("prior(states)", prior(states), actions) if callable(prior) else prior
    return np.asarray((1.0 - xi) * rows + xi / actions)


def _normalised(name: str, values: ArrayLike, size: int) -> Floats:
    """Distributions that sum to one as nearly as rounding allows: F(Q + c) = F(Q) + c rests on it."""
    weights = arguments.distributions(name, values, size)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Tsallis(_Tempered):
    """The backup of sparsemax, F(Q) = max_π ⟨π, Q⟩ + (η/2)(1 − ‖π‖²), regularised by the Tsallis entropy of index 2.

    Its policy is the projection of Q/η onto the simplex, π = max(Q/η − θ, 0) with θ such that it sums to one: an action
    that is worse than the best by η or more has probability 0. Lemma 1.8 (docs/proofs/backups.md) bounds its second
    derivative, which jumps if the support of the policy changes: there is no third one.

    Args:
        temperature: η > 0.
        actions: K, needed only by `at_zero`.

    >>> Tsallis(temperature=1.0).policy([0.0, 0.5, -1.0]).tolist()
    [0.25, 0.75, 0.0]
    """

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """F(0) = (η/2)(1 − 1/K) at every state."""
        value = self.temperature / 2.0 * (1.0 - 1.0 / arguments.whole("actions", actions))
        return value, value

    def derivatives(self, actions: int) -> tuple[float, ...]:
        """⌊K²/4⌋/(Kη), for the second derivative."""
        return (arguments.whole("actions", actions) ** 2 // 4 / (actions * self.temperature),)

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        """F(q), [...]."""
        values = _rows("q", q, self.actions)
        policy, top = self.policy(values), values.max(axis=-1)
        # Less the best value, so that nothing cancels.
        gain = (policy * np.where(policy > 0.0, values - top[..., None], 0.0)).sum(axis=-1)
        return np.asarray(top + gain + self.temperature / 2.0 * (1.0 - (policy**2).sum(axis=-1)))

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇F(q), [..., K]: the projection of q/η onto the simplex."""
        values = _rows("q", q, self.actions)
        # Actions below the best by 1 or more have no probability, however far they are.
        scores = np.maximum((values - values.max(axis=-1, keepdims=True)) / self.temperature, -1.0)
        ordered = -np.sort(-scores, axis=-1)
        sizes = np.arange(1, ordered.shape[-1] + 1)
        excess = (np.cumsum(ordered, axis=-1) - 1.0) / sizes  # θ, if the support were the first m
        support = (ordered > excess).sum(axis=-1, keepdims=True)
        return np.asarray(np.maximum(scores - np.take_along_axis(excess, support - 1, axis=-1), 0.0))

    def hessian(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇²F(q), [..., K, K]; at the edge of a support, the one inside."""
        support = (self.policy(q) > 0.0).astype(np.float64)
        outer = support[..., :, None] * support[..., None, :] / support.sum(axis=-1)[..., None, None]
        return np.asarray((support[..., None] * np.eye(support.shape[-1]) - outer) / self.temperature)

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """−(η/2)(1 − ‖π‖²), [...]."""
        return np.asarray(self.temperature / 2.0 * ((_rows("policy", policy, self.actions) ** 2).sum(axis=-1) - 1.0))


def line_cost(actions: int) -> Floats:
    """C_ij = |i − j|/(K − 1): actions in order, such as speeds or order quantities. [K, K]."""
    index = np.arange(arguments.whole("actions", actions))
    return np.asarray(np.abs(index[:, None] - index) / max(actions - 1, 1))


def ring_cost(actions: int) -> Floats:
    """Distance around a ring, scaled to at most 1: actions such as headings. [K, K]."""
    index = np.arange(arguments.whole("actions", actions))
    apart = np.abs(index[:, None] - index)
    return np.asarray(np.minimum(apart, actions - apart) / max(actions // 2, 1))


def discrete_cost(actions: int) -> Floats:
    """C_ij = 1 for i ≠ j: every other action is equally far. [K, K]."""
    return 1.0 - np.eye(arguments.whole("actions", actions))
