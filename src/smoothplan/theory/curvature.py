"""The curvature–complexity theory as formulas: exponents, remainders, tolerances, intervals of values, gaps of backups.

Nothing here samples. If a constant of the paper is loose, the sharp one is given too. docs/proofs has the proofs.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.models.model import (
    ROUNDING,
    GenerativeModel,
    ModelError,
    declared_values,
    declares_rewards,
    episodes,
    horizon_of,
    rewards_are_known,
    summed,
    total_weight,
)
from smoothplan.theory.backups import (
    Backup,
    OptimalTransport,
    SoftmaxMixture,
    at_zero_range,
    is_mixture,
    required_backup,
    required_mixture,
    restricted,
)
from smoothplan.theory.softmaxes import CUMULANTS

Interval = tuple[float, float]

Norm = Literal["range", "euclidean"]
"""How the error Δ of a reference is measured: by max Δ − min Δ, with sharp constants, or as in the paper by ‖Δ‖₂."""

RESOLUTION = 1e-12
"""The smallest difference of values that is certified, relative to the largest value; rounding is about 1e-16."""

SMALLEST = 1e-30
"""The largest value is 0 or at least this: the fourth power of a smaller one would underflow and prove nonsense."""


# Taylor models


def total_exponent(beta: float) -> float:
    """2 + α_β with α_β = 2/(β−1), by the paper (Theorem 4.3): planning to accuracy ε costs ε^−(2+α_β) calls.

    It is 4 at first order (β = 2) and 3 at second. docs/proofs/prices.md says which schedules have a proved price.
    """
    return 2.0 + 2.0 / (arguments.number("beta", beta, least=2.0) - 1.0)


def hessian_lipschitz(temperature: float) -> float:
    """M = 3/(2η²), the paper's Lipschitz constant of the Hessian (Lemma 5.6, appendix B)."""
    return 1.5 / arguments.positive("temperature", temperature) ** 2


def remainder_constant(beta: int, temperature: float, norm: Norm = "range") -> float:
    """c_β with |F(Q) − T_{β−1}(Q; Q̂)| ≤ c_β·‖Q − Q̂‖^β for a mixture of softmaxes F, β = 2 or 3.

    In the range norm these are sharp, 1/(8η) and √3/(108η²): the largest variance, and the largest third cumulant, of
    a variable of range 1 are 1/4 and √3/18. In the Euclidean norm they are the paper's L/2 = 1/(2η) and M/6.
    """
    order, eta = arguments.whole("beta", beta, least=2, most=3), arguments.positive("temperature", temperature)
    arguments.one_of("norm", norm, "range", "euclidean")
    if norm == "euclidean":
        return 1.0 / (2.0 * eta) if order == 2 else hessian_lipschitz(eta) / 6.0
    return CUMULANTS[order] / (math.factorial(order) * eta ** (order - 1))


def remainder(error: float, beta: int, temperature: float, norm: Norm = "range") -> float:
    """The largest Taylor remainder of order β when the reference is wrong by `error` in the given norm."""
    return remainder_constant(beta, temperature, norm) * float(arguments.number("error", error, least=0.0) ** beta)


def tolerance(epsilon: float, beta: int, temperature: float, norm: Norm = "range") -> float:
    """The error of the reference at which the Taylor remainder reaches ε (Proposition 4.2 of the paper).

    With β = 3 and the Euclidean norm this is the paper's ρ(ε) = (6ε/M)^(1/3).
    """
    return float((arguments.positive("epsilon", epsilon) / remainder_constant(beta, temperature, norm)) ** (1.0 / beta))


def taylor(backup: Backup, q: ArrayLike, around: ArrayLike, order: int, states: Any = None) -> Floats:
    """The Taylor polynomial T_order(Q; Q̂) of a backup, [...], for Q and Q̂ [..., K]; order 2 needs softmaxes."""
    arguments.whole("order", order, least=0, most=2)
    point, target = arguments.array("around", around), arguments.array("q", q)
    if point.shape[-1:] != target.shape[-1:]:
        raise ValueError(f"q and around must have the same last axis, got shapes {target.shape} and {point.shape}")
    delta = target - point
    result = backup.value(point, states)
    if order >= 1:
        result = result + (backup.policy(point, states) * delta).sum(axis=-1)
    if order == 2:
        mixture = required_mixture(backup, "a Taylor polynomial of order 2", "use order 1")
        result = result + 0.5 * np.einsum("...i,...ij,...j->...", delta, mixture.hessian(point, states), delta)
    return result


def reference_bias(
    order: int,
    error_range: float,
    temperature: float,
    discount: float,
    tail: float = 0.0,
    horizon: int | None = None,
) -> Interval:
    """Bounds of V − E[Y] for chains around a reference with range(Q̂_s − Q_s) ≤ `error_range` at every state s.

    A chain around a reference Q̂ is a trajectory whose samples correct Q̂. Order 1 evaluates the policy ∇F(Q̂), so its
    error has one sign: at most r²/(8η) per step, b = r²/(8η(1−γ)) in total. Order 2 leaves a cubic error, and an error
    that the quadratic term inherits from the pairs' own chains of order 1 (Theorem 6.13, docs/proofs/references.md).

    Args:
        order: 1, or 2 for a mixture of softmaxes.
        error_range: r.
        temperature: η > 0; 1/(4d₂) for another backup, whose second derivatives d₂ bounds.
        discount: γ.
        tail: the most by which truncation may change the difference of a pair's chains. Truncation of the chain itself
            is not included.
        horizon: the most steps of an episode, if there is a bound: then Σγ^t over as many may take the place of
            1/(1−γ), and γ may be 1.
    """
    error_range = arguments.number("error_range", error_range, least=0.0)
    eta = arguments.positive("temperature", temperature)
    gamma = episodes(discount, horizon, True)["discount"]
    arguments.whole("order", order, least=1, most=2)
    tail = arguments.number("tail", tail, least=0.0)
    found = []
    for steps in [None] * (gamma < 1.0) + [horizon] * (horizon is not None):
        weight = total_weight(gamma, steps)
        first = error_range**2 / (8.0 * eta) * weight
        # Square roots of discounted sums of variances: of the reference's error, and of the loss of its policy.
        own = error_range / 2.0 * math.sqrt(weight)
        kept = gamma**2 * weight if steps is not None else min(gamma, gamma**2 * weight)
        missed = first / 2.0 * math.sqrt(kept) + tail / 2.0 * math.sqrt(weight)
        cubic = remainder_constant(3, eta) * error_range**3 * weight
        useful = min(own, missed)
        above = cubic + useful * (2.0 * own - useful) / (2.0 * eta)
        below = cubic + missed * (2.0 * own + missed) / (2.0 * eta)
        # The quadratic term is never negative.
        found.append((0.0, first) if order == 1 else (-below, min(above, first)))
    return max(low for low, _ in found), min(high for _, high in found)


# Intervals of values


def value_interval(model: GenerativeModel, backup: Backup, steps: float | None = None) -> Interval:
    """An interval that contains every regularised optimal value of the model, and 0 if it may have terminal states.

    By the rewards it is [(r_lo + inf F(0))/(1−γ), (r_hi + sup F(0))/(1−γ)], with Σ γ^t over the steps of an episode in
    place of 1/(1−γ) if there is a horizon. (The paper's B is the width of this interval for rewards in [0, 1], not an
    upper bound.) A declared `value_range` narrows it, see `declared_interval`. It bounds optimal values only: samples
    may lie outside, and the values of poor policies may be lower. If the range of rewards is not known, it is (−∞, ∞).

    Args:
        model: the simulator.
        backup: F.
        steps: the steps that are left, for the values of states that have no more; the model's horizon by default.

    Raises:
        ValueError: values are too large or too small for floating point, or the temperature is, relative to rewards.
    """

    def require_size(name: str, given: Interval | None, values: Interval) -> None:
        largest = max(map(abs, values))
        if not (SMALLEST <= largest <= arguments.LARGEST or largest == 0.0):
            raise ValueError(
                f"{name} must lead to values whose size is 0 or from {SMALLEST:g} to {arguments.LARGEST:g}, got "
                f"{given}: with discount={model.discount:g} and a temperature of {temperature:g} it is {largest:.3g}"
            )

    (low, high), temperature = _by_rewards(model, backup, steps), backup.temperature
    if not declares_rewards(model):
        return low, high
    require_size("reward_range", model.reward_range, (low, high))
    coldest = RESOLUTION * max(map(abs, model.reward_range))
    if not (max(coldest, RESOLUTION * SMALLEST) <= temperature <= arguments.LARGEST or temperature == 0.0):
        raise ValueError(
            f"temperature must be 0, as for the hard maximum, or from {coldest:.3g}, {RESOLUTION:g} of the "
            f"largest reward, to {arguments.LARGEST:g}, got {temperature:g}"
        )
    declared = declared_interval(model, backup)
    if declared is None or steps == 0:
        return low, high
    least, most = with_the_end(model, *declared)
    # If rounding puts a declared range just outside the values that rewards allow, one end of those is left.
    values = min(max(least, low), high), min(max(most, low), high)
    require_size("value_range", declared_values(model), values)
    return values


def _by_rewards(model: GenerativeModel, backup: Backup, steps: float | None = None) -> Interval:
    """The interval of all optimal values by the rewards alone."""
    steps = horizon_of(model) if steps is None else steps
    if steps == 0:
        return 0.0, 0.0
    ends = zip(model.reward_range, at_zero_range(backup, model), strict=True)
    low, high = (summed(reward + at_zero, model.discount, steps) for reward, at_zero in ends)
    return with_the_end(model, low, high)


def require_rewards(model: GenerativeModel, what: str) -> None:
    """Refuses a model whose range of rewards is not known: nothing can be proved without it."""
    if not declares_rewards(model):
        raise ValueError(
            f"reward_range must be declared for {what}, got {model.reward_range}: "
            "check_model tells which rewards it saw; decide and Agent estimate without it"
        )


def with_the_end(model: GenerativeModel, low: float, high: float) -> Interval:
    """[low, high], with 0 in it if episodes may end."""
    return (min(low, 0.0), max(high, 0.0)) if model.terminates else (low, high)


def declared_interval(model: GenerativeModel, backup: Backup) -> Interval | None:
    """The regularised optimal values that a declared `value_range` allows for states that are not terminal, or None.

    By `gap_of_values` they differ from the unregularised ones, which are in [lo, hi], by a number in [g_lo, g_hi]: so
    they are in [lo + g_lo, hi + g_hi].
    """
    declared = declared_values(model)
    if declared is None:
        return None
    gap = gap_of_values(model, backup)
    return declared[0] + gap[0], declared[1] + gap[1]


def require_possible(model: GenerativeModel, backup: Backup, proved: Interval, state: Any) -> None:
    """Compares an interval that is proved of the optimal value of a state with the declared `value_range`.

    Raises:
        ModelError: they have no value in common.
    """
    allowed = declared_interval(model, backup)
    if allowed is None:
        return
    largest = max(map(abs, _by_rewards(model, backup))) if declares_rewards(model) else 0.0
    slack, (low, high) = ROUNDING * largest, allowed
    if low - slack <= proved[1] and proved[0] <= high + slack:
        return
    found = f"at least {proved[0]:.6g}" if proved[0] > high else f"at most {proved[1]:.6g}"
    raise ModelError(
        f"value_range={declared_values(model)} is refuted at state {np.asarray(state).tolist()}: the optimal value "
        f"there is {found}, and with this backup the range allows [{low:.6g}, {high:.6g}]"
    )


def value_scale(model: GenerativeModel, backup: Backup) -> float:
    """The width of the value interval, or of the rewards if that is larger: relative to it, estimates are accurate."""
    low, high = value_interval(model, backup)
    return max(high - low, model.reward_range[1] - model.reward_range[0], float(np.finfo(np.float64).tiny))


def require_resolvable(epsilon: float, *intervals: Interval) -> None:
    """Refuses an accuracy ε that floating point cannot certify of numbers in these intervals."""
    least = RESOLUTION * max(SMALLEST, *(abs(end) for interval in intervals for end in interval))
    if epsilon < least:
        raise ValueError(
            f"epsilon must be at least {least:.3g}, {RESOLUTION:g} of the largest possible value, below "
            f"which floating point certifies nothing, got {epsilon:g}"
        )


# Gaps between backups


def transfer_to_entropy(backup: OptimalTransport) -> float:
    """The paper's bound on |F(Q) − LogSumExp_η(Q)| over all Q: τ·max|C| (Proposition 5.5)."""
    return backup.tau * float(np.abs(backup.cost).max())


def transfer_to_hard_max(backup: SoftmaxMixture, actions: int) -> float:
    """The paper's bound on |F(Q) − max Q| over all Q: τ·max|C| + η log K (Proposition 5.5)."""
    geometry = transfer_to_entropy(backup) if isinstance(backup, OptimalTransport) else 0.0
    return geometry + backup.temperature * math.log(arguments.whole("actions", actions))


def gap_to_entropy(backup: OptimalTransport) -> Interval:
    """An interval that contains F_s(Q) − LogSumExp_η(Q) for all Q and s: −τ times costs averaged over the prior.

    They are max over s, i of Σ_j μ_s(j)·C_ij and min over s of Σ_j μ_s(j)·min_i C_ij; over all μ if μ_s is a function.
    """
    worst, best = backup.cost.max(), backup.cost.min()
    if not callable(backup.prior):
        worst, best = (backup.prior @ backup.cost.T).max(), (backup.prior @ backup.cost.min(axis=0)).min()
    return -backup.tau * float(worst), -backup.tau * float(best)


def gap_to_hard_max(backup: Backup, actions: int) -> Interval:
    """The smallest interval that contains F_s(Q) − max Q for all Q and s: [−max_a regulariser_s(a), F_s(0)].

    The upper end is attained if all actions are equal, the lower one in the limit of an action that is far better than
    all others. If the prior of an `OptimalTransport` is a function, the interval is for all priors.
    """
    high = backup.at_zero_range(actions)[1]
    if isinstance(backup, OptimalTransport):
        return gap_to_entropy(backup)[0], high
    return 0.0 - float(np.max(backup.regulariser(np.eye(actions)))), high


def gap_of_values(model: GenerativeModel, backup: Backup) -> Interval:
    """Bounds of V_F − V_max at every state: [low, high]·Σγ^t from the gap of the backups at one step.

    Episodes may end after any number of steps if the model has terminal states: then 0 is between the bounds.
    """
    low, high = (summed(end, model.discount, horizon_of(model)) for end in _gap_to_hard_max(model, backup))
    return with_the_end(model, low, high)


def _gap_to_hard_max(model: GenerativeModel, backup: Backup) -> Interval:
    """The same interval for the legal actions of a model."""
    return gap_to_hard_max(restricted(backup, model), model.actions)[0], at_zero_range(backup, model)[1]


def smoothing_for_bias(
    bias: float, discount: float, actions: int, cost_max: float = 0.0, horizon: int | None = None
) -> tuple[float, float]:
    """(τ, λ) whose optimal value is within `bias` of the unregularised one: τ(C_max + λ log K) = bias/Σγ^t.

    Half of the bias goes to the costs, if there are any. Without costs λ is 1, and τ the temperature of `LogSumExp`.

    Args:
        bias: the tolerated difference of values.
        discount: γ.
        actions: K, at least 2.
        cost_max: max|C|; 0 for the entropy backup.
        horizon: the most steps of an episode, if there is a bound; Σγ^t is 1/(1−γ) without it.
    """
    gamma = episodes(discount, horizon, True)["discount"]
    bias = arguments.positive("bias", bias)
    budget = bias * (1.0 - gamma) if horizon is None else bias / total_weight(gamma, horizon)
    temperature = budget / math.log(arguments.whole("actions", actions, least=2))
    if arguments.number("cost_max", cost_max, least=0.0) == 0.0:
        return temperature, 1.0
    tau = budget / (2.0 * cost_max)
    return tau, temperature / (2.0 * tau)


@dataclass(frozen=True)
class Problem:
    """The facts about a model and a backup that certificates use."""

    actions: int  # K
    discount: float  # γ
    temperature: float  # η; 0 for the hard maximum
    reward_range: Interval
    reward_noise: float  # width of the rewards possible at one (s, a): 0 if they are known
    single_successor: bool  # whether the next state is known given (s, a)
    at_zero: Interval  # infimum and supremum of F_s(0)
    values: Interval  # contains every optimal value, but not every return: see `policy_values`
    terminates: bool
    derivatives: tuple[float, ...]  # bounds of the second, third, … derivatives of F, see `Backup.derivatives`
    horizon: int | None  # the most steps that an episode may have, if there is a bound
    above_max: float  # the infimum of F_s(Q) − max Q
    pairs: bool  # whether F is a mixture of softmaxes, whose quadratic term pairs of returns estimate

    @classmethod
    def of(cls, model: GenerativeModel, backup: Backup) -> "Problem":
        """The problem of planning on a model with a backup.

        Raises:
            TypeError: the backup lacks a method of `Backup`.
            ValueError: the range of rewards is not known.
        """
        require_rewards(model, "this planner")
        low, high = model.reward_range
        return cls(
            actions=model.actions,
            discount=model.discount,
            temperature=required_backup(backup).temperature,
            reward_range=(low, high),
            reward_noise=0.0 if rewards_are_known(model) else high - low,
            single_successor=model.max_successors == 1,
            at_zero=at_zero_range(backup, model),
            values=value_interval(model, backup),
            terminates=model.terminates,
            derivatives=backup.derivatives(model.actions),
            horizon=horizon_of(model),
            above_max=_gap_to_hard_max(model, backup)[0],
            pairs=is_mixture(backup),
        )

    def at(self, steps: int | None) -> "Problem":
        """The problem at states with at most that many steps left; at all states if None."""
        if steps is None or steps == self.horizon:
            return self
        if steps == 0:
            return replace(self, values=(0.0, 0.0), horizon=0)
        ends = zip(self.reward_range, self.at_zero, strict=True)
        low, high = (summed(reward + zero, self.discount, steps) for reward, zero in ends)
        least, most = self.values  # with 0 between them, as below
        return replace(self, values=(max(least, min(low, 0.0)), min(most, max(high, 0.0))), horizon=steps)

    @property
    def middle(self) -> float:
        """The best constant guess of a value."""
        return (self.values[0] + self.values[1]) / 2.0

    @property
    def width(self) -> float:
        """W, the width of the value interval."""
        return self.values[1] - self.values[0]

    @property
    def policy_values(self) -> Interval:
        """An interval that contains the value of every policy, regulariser included.

        A policy may be worth less than `values` allow, because there are better ones at every state, and need not have
        the regulariser's bonus. So only the rewards bound it from below.
        """
        worst = summed(self.reward_range[0] + min(self.above_max, self.at_zero[0]), self.discount, self.horizon)
        return min(worst, 0.0) if self.terminates else worst, self.values[1]

    @property
    def action_values(self) -> Interval:
        """An interval that contains every optimal action value, as no F(Q) − max Q is below `above_max`."""
        (low, high), (least, most) = self.reward_range, self.values
        return low + self.discount * least, min(high + self.discount * most, most - self.above_max)

    @property
    def differing(self) -> float:
        """The largest probability that two actions drawn from one distribution differ, 1 − 1/K."""
        return 1.0 - 1.0 / self.actions

    @property
    def action_gap(self) -> float:
        """A bound on range(Q_s): the error of a constant reference."""
        low, high = self.action_values
        return high - low
