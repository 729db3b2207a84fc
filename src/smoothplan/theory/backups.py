"""Bellman backups: the aggregators F_s that turn action values Q_s into the value of a state, V(s) = F_s(Q_s).

`HardMax` is the ordinary maximum, `LogSumExp` the entropy-regularised backup of SmoothCruiser, `OptimalTransport` the
backup of the paper (section 5), which knows through a cost matrix C which actions are alike, and `Tsallis` one whose
policies leave bad actions out. Each is convex, monotone, translation-equivariant and 1-Lipschitz in the sup norm, and
satisfies

    value(Q) = max over policies π of ⟨π, Q⟩ − regulariser(π),    attained at policy(Q) = ∇F(Q).

Planners ask no more of a backup than `Backup` says. `SoftmaxMixture` says what else the first three have in common:
compiled code reads it, and corrections of second order need it.

Every method takes action values `q` of shape [..., K] and broadcasts over the leading axes. `states` aligns with those
axes and matters only to an `OptimalTransport` whose reference distribution depends on the state.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.theory.softmaxes import Columns, Softmaxes, cumulant_bounds, entropy, square_cost, transport_cost

Prior = Callable[[Any], ArrayLike]
"""A distribution over actions that depends on the state: states [n, ...] to probability vectors [n, K]."""


class Backup(Protocol):
    """What every backup declares; `check_backup` tests whether it is true."""

    @property
    def temperature(self) -> float:
        """η > 0, the scale on which F is smooth, in the unit of action values; 0 for one that is not smooth."""

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """Infimum and supremum over states of F_s(0), for a model with this number of actions."""

    def derivatives(self, actions: int) -> tuple[float, ...]:
        """Bounds of |D^k F_s(q)[e₁, ..., e_k]| over all s, q and all directions e_i with max e_i − min e_i = 1.

        One for each k = 2, 3, ..., as many as F has; () for one that is not smooth. The last derivative may jump: it is
        enough that the one before is Lipschitz, with this constant.
        """

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        """F_s(q), [...]."""

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇F_s(q), a distribution over actions, [..., K]."""

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """The convex conjugate of F_s at a policy [..., K]: value(q) = max_π ⟨π, q⟩ − regulariser(π).

        Where no states are given, the supremum over states.
        """


@runtime_checkable
class SoftmaxMixture(Backup, Protocol):
    """A backup that is a mixture of soft maxima at one temperature, F(q) = Σ_j μ_s(j)·η log Σ_i exp((q_i − c_ij)/η).

    Its second derivative is a mean of variances, which pairs of returns estimate. The hard maximum is one with η = 0.
    """

    def shifts(self, actions: int) -> Floats:
        """c, what column j subtracts from the value of action i, [K, J]."""

    def weights(self, states: Any = None) -> Floats:
        """μ, the weights of the columns at the given states, [..., J]; [J] where they do not depend on the state."""

    def hessian(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇²F_s(q), [..., K, K]."""

    def local_policies(self, q: ArrayLike, states: Any = None) -> Floats:
        """The local softmaxes p_ij, [..., K, J]: column j is a distribution over actions i."""

    def coupling(self, q: ArrayLike, states: Any = None) -> Floats:
        """The weighted softmaxes Γ_ij = μ_s(j)·p_ij, [..., K, J]."""


def what_lacks(backup: Backup) -> str | None:
    """What is missing of a backup that a user has written, in a sentence; None where nothing is."""
    declared = ("temperature", "at_zero_range", "derivatives", "value", "policy", "regulariser")
    missing = [name for name in declared if not hasattr(backup, name)]
    return (
        f"{backup!r}: a backup must have {', '.join(declared)}, and this one has no {missing[0]}" if missing else None
    )


def required_backup(backup: Backup) -> Backup:
    """The backup, if it is an object and not the class of one; an error that says what to write otherwise."""
    if isinstance(backup, type):
        example = "()" if backup is HardMax else "(...)"
        raise TypeError(f"backup must be an object, such as {backup.__name__}{example}, got the class itself")
    if not (hasattr(backup, "value") or hasattr(backup, "temperature")):
        raise TypeError(
            f"backup must be one, such as HardMax() or LogSumExp(temperature), got {arguments.shown(backup)}"
        )
    return backup


def is_mixture(backup: Backup) -> TypeGuard[SoftmaxMixture]:
    """Whether a backup is a mixture of softmaxes.

    At temperature 0 only `HardMax` itself is: compiled code takes it to subtract nothing.
    """
    return isinstance(backup, SoftmaxMixture) and (backup.temperature > 0.0 or type(backup) is HardMax)


def required_mixture(backup: Backup, for_what: str, instead: str) -> SoftmaxMixture:
    """The backup, if it is a mixture of softmaxes; an error that names it otherwise, and says what serves it."""
    if not is_mixture(backup):
        raise ValueError(
            f"{for_what} needs a mixture of softmaxes, such as LogSumExp or OptimalTransport, got {backup!r}: {instead}"
        )
    return backup


def depends_on_state(backup: Backup) -> bool:
    """Whether F_s may differ from state to state. Only a mixture of softmaxes says that it does not."""
    if not is_mixture(backup):
        return True
    try:
        return backup.weights(None).ndim > 1
    except ValueError:  # it must be told the state
        return True


def softmaxes(backup: SoftmaxMixture, actions: int, states: int | None) -> Softmaxes:
    """A backup in the form that compiled code reads; `states` is the number of states of a table."""
    weights = backup.weights(None if states is None else np.arange(states))
    frozen = arguments.frozen
    return Softmaxes(backup.temperature, frozen(backup.shifts(actions).T), frozen(np.atleast_2d(weights)))


class NoCurvatureError(TypeError):
    """A quantity that needs a smooth backup was requested from one that is not."""


def _action_values(q: ArrayLike, actions: int | None = None) -> Floats:
    result = arguments.array("q", q)
    if result.ndim == 0 or result.shape[-1] == 0:
        raise ValueError(f"q must have one entry per action along its last axis, got shape {result.shape}")
    if actions is not None and result.shape[-1] != actions:
        raise ValueError(f"q must have {actions} actions along its last axis, got shape {result.shape}")
    return result


@dataclass(frozen=True)
class HardMax:
    """The ordinary maximum, F(Q) = max_a Q(a). It has no curvature: no Hessian, no softmaxes, no Taylor model.

    >>> float(HardMax().value([0.0, 1.0]))
    1.0
    """

    @property
    def temperature(self) -> float:
        """The hard maximum is the limit η → 0."""
        return 0.0

    @property
    def offset(self) -> float:
        """0: the backup equals its definition."""
        return 0.0

    @property
    def at_zero(self) -> float:
        """F(0)."""
        return 0.0

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """F(0) = 0, whatever the number of actions."""
        return 0.0, 0.0

    def derivatives(self, actions: int) -> tuple[float, ...]:
        """None: the maximum has kinks."""
        return ()

    def shifts(self, actions: int) -> Floats:
        """One column that subtracts nothing, [K, 1]."""
        return np.zeros((actions, 1))

    def weights(self, states: Any = None) -> Floats:
        """The weight of that column, [1]."""
        return np.ones(1)

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        """max_a q(a), [...]."""
        return np.asarray(_action_values(q).max(axis=-1))

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        """The greedy policy, [..., K]: all mass on a maximising action, the first one where several tie."""
        q = _action_values(q)
        return np.asarray(np.arange(q.shape[-1]) == q.argmax(axis=-1)[..., None], dtype=np.float64)

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """Zero for every policy, [...]."""
        policy = _action_values(policy)
        return np.zeros(arguments.distributions("policy", policy, policy.shape[-1]).shape[:-1])

    def hessian(self, q: ArrayLike, states: Any = None) -> Floats:
        """Raises: the maximum is not differentiable."""
        raise NoCurvatureError(
            "HardMax has no Hessian: the maximum is piecewise linear. Use LogSumExp or OptimalTransport with a small "
            "temperature; curvature.gap_to_hard_max bounds the difference"
        )

    def local_policies(self, q: ArrayLike, states: Any = None) -> Floats:
        """Raises: there are no local softmaxes."""
        raise NoCurvatureError("HardMax has no local softmaxes: use policy for its greedy action")

    def coupling(self, q: ArrayLike, states: Any = None) -> Floats:
        """Raises: there is no transport plan."""
        raise NoCurvatureError("HardMax has no coupling: use policy for its greedy action")


class _Smooth(ABC):
    """What the smooth backups share: everything follows from the local softmaxes at q."""

    @abstractmethod
    def _columns(self, q: ArrayLike, states: Any) -> Columns:
        """The local softmaxes at action values [..., K]."""

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        """F_s(q), [...]: the normalised closed form."""
        return self._columns(q, states).value()

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇F_s(q) = π(q), a distribution over actions, [..., K] (Proposition 5.4 of the paper)."""
        return self._columns(q, states).policy()

    def hessian(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇²F_s(q), [..., K, K] (Proposition 5.4 of the paper)."""
        return self._columns(q, states).hessian()

    def local_policies(self, q: ArrayLike, states: Any = None) -> Floats:
        """The local softmaxes p_ij(q), [..., K, J]: column j is a distribution over actions i."""
        return self._columns(q, states).local

    def coupling(self, q: ArrayLike, states: Any = None) -> Floats:
        """The optimal coupling Γ_ij = μ_s(j)·p_ij, [..., K, J], with row sums π(q) and column sums μ_s."""
        return self._columns(q, states).coupling()


@dataclass(frozen=True)
class _Tempered(ABC):
    """What backups share that depend on a temperature only, and not on the state."""

    temperature: float
    actions: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", arguments.positive("temperature", self.temperature))
        if self.actions is not None:
            object.__setattr__(self, "actions", arguments.whole("actions", self.actions))

    @abstractmethod
    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """F(0), twice: it is the same at every state."""

    @property
    def offset(self) -> float:
        """0: the backup equals its definition."""
        return 0.0

    @property
    def at_zero(self) -> float:
        """F(0), which depends on the number of actions."""
        if self.actions is None:
            name = type(self).__name__
            raise ValueError(f"at_zero depends on K: give {name} its actions=K, or call at_zero_range(K)")
        return self.at_zero_range(self.actions)[0]


@dataclass(frozen=True)
class LogSumExp(_Tempered, _Smooth):
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

    def derivatives(self, actions: int) -> tuple[float, ...]:
        """1/(4η), 1/(8η²), 1/(8η³), ...; see `softmaxes.cumulant_bounds`."""
        return cumulant_bounds(self.temperature)

    def shifts(self, actions: int) -> Floats:
        """One column that subtracts nothing, [K, 1]."""
        return np.zeros((actions, 1))

    def weights(self, states: Any = None) -> Floats:
        """The weight of that column, [1]."""
        return np.ones(1)

    def _columns(self, q: ArrayLike, states: Any) -> Columns:
        return Columns.at(_action_values(q, self.actions), np.zeros(1), np.ones(1), self.temperature)

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """−η·entropy(π), [...]."""
        policy = _action_values(policy, self.actions)
        return np.asarray(-self.temperature * entropy(arguments.distributions("policy", policy, policy.shape[-1])))


def _weights(name: str, values: ArrayLike, size: int) -> Floats:
    """Weights of columns [..., size] that sum to one as nearly as rounding allows: F(Q + c) = F(Q) + c rests on it."""
    weights = arguments.distributions(name, values, size)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class _Mixture:
    """The reference (1−ξ)·prior(s) + ξ·uniform, for a prior that is a function of the state."""

    prior: Prior
    xi: float
    actions: int

    def __call__(self, states: Any) -> Floats:
        # Checked before mixing, which would hide the errors of a prior.
        prior = arguments.distributions("prior(states)", self.prior(states), self.actions)
        return np.asarray((1.0 - self.xi) * prior + self.xi / self.actions)


@dataclass(frozen=True, eq=False, kw_only=True)
class OptimalTransport(_Smooth):
    """The optimal-transport backup of the paper, normalised:

        F_s(Q) = η Σ_j μ_s(j) log Σ_i exp((Q_i − τC_ij)/η),    η = τλ.

    `value(q) + offset` equals its definition, max over π of ⟨π, Q⟩ − τ·W_λ(π, μ_s) (Proposition 5.3 of the paper).

    Args:
        cost: the action-cost matrix C, [K, K].
        tau: the weight τ of the transport cost.
        lam: the entropy λ inside the transport cost.
        reference: the distribution μ to which transport is measured, uniform by default: a vector [K]; one vector per
            state of a tabular model, [S, K]; or a function from states [n, ...] to vectors [n, K].

    >>> backup = OptimalTransport(cost=[[0, 1], [1, 0]], tau=1.0, lam=0.25)
    >>> backup.policy([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """

    cost: Floats
    tau: float
    lam: float
    reference: Floats | Prior

    def __init__(self, *, cost: ArrayLike, tau: float, lam: float, reference: ArrayLike | Prior | None = None) -> None:
        cost = square_cost(cost)
        actions = len(cost)
        if reference is None:
            reference = np.full(actions, 1.0 / actions)
        if not callable(reference):
            reference = _weights("reference", reference, actions)
            if reference.ndim > 2:
                raise ValueError(f"reference must be a vector [K] or a table [S, K], got shape {reference.shape}")
            reference = arguments.frozen(reference)
        object.__setattr__(self, "cost", arguments.frozen(cost.copy()))
        object.__setattr__(self, "tau", arguments.positive("tau", tau))
        object.__setattr__(self, "lam", arguments.positive("lam", lam))
        object.__setattr__(self, "reference", reference)

    @classmethod
    def from_prior(
        cls, prior: ArrayLike | Prior, xi: float, *, cost: ArrayLike, tau: float, lam: float
    ) -> "OptimalTransport":
        """The backup with the robust reference (1−ξ)·prior + ξ·uniform, so that μ_s(a) ≥ ξ/K everywhere.

        Args:
            prior: a vector [K], a table [S, K], or a function from states [n, ...] to [n, K].
            xi: ξ in (0, 1].
            cost, tau, lam: as for `OptimalTransport`.
        """
        if arguments.probability("xi", xi) == 0.0:
            raise ValueError(f"xi must be greater than 0, got {xi!r}")
        actions = len(square_cost(cost))
        if callable(prior):
            return cls(cost=cost, tau=tau, lam=lam, reference=_Mixture(prior, float(xi), actions))
        prior = arguments.distributions("prior", prior, actions)
        return cls(cost=cost, tau=tau, lam=lam, reference=(1.0 - xi) * prior + xi / actions)

    @property
    def actions(self) -> int:
        """K."""
        return len(self.cost)

    @property
    def temperature(self) -> float:
        """η = τλ."""
        return self.tau * self.lam

    @property
    def offset(self) -> float | Floats:
        """τλ(1 + entropy(μ)), a number, or one per state [S] for a table of references."""
        result = self.temperature * (1.0 + entropy(self._table("offset")))
        return float(result) if result.ndim == 0 else result

    @property
    def at_zero(self) -> float | Floats:
        """F(0), a number, or one per state [S] for a table of references."""
        result = self._table("at_zero") @ self._columns_at_zero()
        return float(result) if np.ndim(result) == 0 else result

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        """Infimum and supremum of F_s(0) over states; over all references where μ_s is a function of the state."""
        if arguments.whole("actions", actions) != self.actions:
            raise ValueError(f"actions is {actions} but this backup's cost matrix has {self.actions} actions")
        # F_s(0) is linear in μ_s, so over all references it is extreme at a single column.
        values = self._columns_at_zero() if callable(self.reference) else np.asarray(self.at_zero)
        return float(values.min()), float(values.max())

    def derivatives(self, actions: int) -> tuple[float, ...]:
        """1/(4η), 1/(8η²), 1/(8η³), ...; see `softmaxes.cumulant_bounds`."""
        return cumulant_bounds(self.temperature)

    def shifts(self, actions: int) -> Floats:
        """τC, [K, K]."""
        return np.asarray(self.tau * self.cost)

    def weights(self, states: Any = None) -> Floats:
        """μ_s, [..., K]: see `reference_at`."""
        return self.reference_at(states)

    def _columns_at_zero(self) -> Floats:
        zero, uniform = np.zeros(self.actions), np.full(self.actions, 1.0 / self.actions)
        return Columns.at(zero, self.tau * self.cost, uniform, self.temperature).log_sums

    def _table(self, name: str) -> Floats:
        if callable(self.reference):
            raise ValueError(
                f"{name} has one value per state and the reference is a function: use reference_at(states)"
            )
        return self.reference

    def reference_at(self, states: Any = None) -> Floats:
        """μ_s at the given states, [..., K]; [K] where it does not depend on the state."""
        if callable(self.reference):
            if states is None:
                raise ValueError("the reference is a function of the state: pass states=")
            return _weights("reference(states)", self.reference(states), self.actions)
        if self.reference.ndim == 1:
            return self.reference
        if states is None:
            raise ValueError("the reference depends on the state ([S, K]): pass states=")
        states = np.asarray(states)
        if states.dtype.kind not in "iu":
            raise TypeError(f"states must be integers to index the reference [S, K], got dtype {states.dtype}")
        unknown = (states < 0) | (states >= len(self.reference))
        if unknown.any():
            raise ValueError(f"states must be in 0..{len(self.reference) - 1}, got {states[unknown].flat[0]}")
        return np.asarray(self.reference[states])

    def _columns(self, q: ArrayLike, states: Any) -> Columns:
        values, reference = _action_values(q, self.actions), self.reference_at(states)
        try:
            np.broadcast_shapes(values.shape, reference.shape)
        except ValueError:
            raise ValueError(f"states {reference.shape[:-1]} do not align with q of shape {values.shape}") from None
        return Columns.at(values, self.tau * self.cost, reference, self.temperature)

    def transport_cost(self, policy: ArrayLike, states: Any = None) -> Floats:
        """The entropic transport cost W_λ(π, μ_s) of the paper, [...]."""
        return transport_cost(policy, self.reference_at(states), self.cost, self.lam)

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """τ·W_λ(π, μ_s) plus the offset, [...]."""
        reference = self.reference_at(states)
        offset = self.temperature * (1.0 + entropy(reference))
        return np.asarray(self.tau * transport_cost(policy, reference, self.cost, self.lam) + offset)


@dataclass(frozen=True)
class Tsallis(_Tempered):
    """The backup of sparsemax, F(Q) = max_π ⟨π, Q⟩ + (η/2)(1 − ‖π‖²), regularised by the Tsallis entropy of index 2.

    Its policy is the projection of Q/η onto the simplex, π = max(Q/η − θ, 0) with θ such that it sums to one: an action
    that is worse than the best by η or more has probability 0.

    With S the support of the policy and m actions in it, D²F[e, e] = Σ_{i∈S} (e_i − ē_S)²/η. For a direction of range 1
    this is largest where half of S is at either end, ⌊m²/4⌋/(mη). That is m/4 for even and m/4 − 1/(4m) for odd m, so
    it grows with m, and the largest is that of m = K, attained at Q = 0. Where S changes the second derivative jumps,
    while the policy is continuous: there is no third one.

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
        """⌊K²/4⌋/(Kη), for the second derivative; it jumps, so there is no other."""
        return (arguments.whole("actions", actions) ** 2 // 4 / (actions * self.temperature),)

    def value(self, q: ArrayLike, states: Any = None) -> Floats:
        """F(q), [...]."""
        values = _action_values(q, self.actions)
        policy, top = self.policy(values), values.max(axis=-1)
        gain = (policy * (values - top[..., None])).sum(axis=-1)  # less the best value, so that nothing cancels
        return np.asarray(top + gain + self.temperature / 2.0 * (1.0 - (policy**2).sum(axis=-1)))

    def policy(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇F(q), [..., K]: the projection of q/η onto the simplex."""
        values = _action_values(q, self.actions)
        # What is below the best by 1 or more has no probability, however far it is.
        scores = np.maximum((values - values.max(axis=-1, keepdims=True)) / self.temperature, -1.0)
        ordered = -np.sort(-scores, axis=-1)
        sizes = np.arange(1, ordered.shape[-1] + 1)
        excess = (np.cumsum(ordered, axis=-1) - 1.0) / sizes  # θ, if the support were the first m
        support = (ordered > excess).sum(axis=-1, keepdims=True)
        return np.asarray(np.maximum(scores - np.take_along_axis(excess, support - 1, axis=-1), 0.0))

    def hessian(self, q: ArrayLike, states: Any = None) -> Floats:
        """∇²F(q), [..., K, K], the one inside of the policy's support where that is about to change."""
        support = (self.policy(q) > 0.0).astype(np.float64)
        outer = support[..., :, None] * support[..., None, :] / support.sum(axis=-1)[..., None, None]
        return np.asarray((support[..., None] * np.eye(support.shape[-1]) - outer) / self.temperature)

    def regulariser(self, policy: ArrayLike, states: Any = None) -> Floats:
        """−(η/2)(1 − ‖π‖²), [...]."""
        policy = _action_values(policy, self.actions)
        policy = arguments.distributions("policy", policy, policy.shape[-1])
        return np.asarray(self.temperature / 2.0 * ((policy**2).sum(axis=-1) - 1.0))


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
