"""Entropic optimal transport between distributions over actions: the local softmaxes and the cost W_λ."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats

_SKEW = math.sqrt((15.0 - math.sqrt(105.0)) / 30.0)
"""1 − 2p of the Bernoulli variable with the largest |κ₅|, a zero of the derivative of u(1 − u²)(2 − 3u²)/4."""

CUMULANTS = {
    2: 1.0 / 4.0,
    3: math.sqrt(3.0) / 18.0,
    4: 1.0 / 8.0,
    5: _SKEW * (1.0 - _SKEW**2) * (2.0 - 3.0 * _SKEW**2) / 4.0,
    6: 1.0 / 4.0,
}
"""The largest |κ_k| of a variable of range 1, and for k = 5 of an indicator: derivatives of a soft maximum are means of
cumulants. Bernoulli variables attain them: p = 1/2 for even k, where the signs are +, −, +, and p = (1 ∓ 1/√3)/2 for
k = 3. docs/proofs/backups.md has the proofs.
"""


def cumulant_bounds(temperature: float) -> tuple[float, ...]:
    """Bounds of the derivatives of order 2 to 6 of a mixture of softmaxes, in directions of range 1.

    The k-th is a mean of joint cumulants over η^(k−1). They are proved for equal directions, for k = 3 if two are
    equal, and for k = 5 if three are the same indicator and the others equal: certificates need no more. For other
    directions no larger ones were found among laws on {0, 1}^k; at k = 3 the largest is that of three coins, of which
    any two are independent and decide the third.
    """
    joint = CUMULANTS | {3: 1.0 / 8.0}
    return tuple(bound / temperature ** (order - 1) for order, bound in joint.items())


@dataclass(frozen=True, eq=False)
class Columns:
    """The local softmaxes at some q: a mixture over columns j of LogSumExp backups (Proposition 5.3 of the paper)."""

    odds: Floats  # exp((q_i − shift_ij − top_j)/η), [..., K, J]
    total: Floats  # Σ_i odds_ij, [..., 1, J]
    top: Floats  # max_i (q_i − shift_ij), [..., 1, J]
    weights: Floats  # μ_j, [..., J]
    temperature: float

    @classmethod
    def at(cls, q: Floats, shifts: Floats, weights: Floats, temperature: float) -> "Columns":
        """The softmaxes of q [..., K] less shifts [K, J], column by column, in the log domain."""
        scores = q[..., :, None] - shifts
        top = scores.max(axis=-2, keepdims=True)
        with np.errstate(under="ignore"):
            odds = np.exp((scores - top) / temperature)
        return cls(odds, odds.sum(axis=-2, keepdims=True), top, weights, temperature)

    @property
    def log_sums(self) -> Floats:
        """η log Σ_i exp((q_i − shift_ij)/η), [..., J]."""
        return np.asarray((self.top + self.temperature * np.log(self.total))[..., 0, :])

    @property
    def local(self) -> Floats:
        """The local softmaxes p_ij, [..., K, J]."""
        return self.odds / self.total

    def value(self) -> Floats:
        """F(q), [...]."""
        return np.asarray((self.weights * self.log_sums).sum(axis=-1))

    def policy(self) -> Floats:
        """∇F(q), [..., K]."""
        return np.asarray(self.coupling().sum(axis=-1))

    def coupling(self) -> Floats:
        """Γ_ij = μ_j·p_ij, [..., K, J]."""
        with np.errstate(under="ignore"):
            return self.local * self.weights[..., None, :]

    def hessian(self) -> Floats:
        """∇²F(q) = (diag(π) − Σ_j μ_j p_·j p_·jᵀ)/η, [..., K, K]."""
        with np.errstate(under="ignore"):
            local = self.local
            coupling = local * self.weights[..., None, :]
            outer = np.einsum("...ij,...kj->...ik", coupling, local)
            diagonal = coupling.sum(axis=-1)[..., None] * np.eye(local.shape[-2])
        return np.asarray((diagonal - outer) / self.temperature)


def entropy(distribution: Floats) -> Floats:
    """The Shannon entropy −Σ p log p in nats along the last axis, [...]."""
    safe = np.where(distribution > 0.0, distribution, 1.0)
    return np.asarray(-(distribution * np.log(safe)).sum(axis=-1))


def square_cost(cost: ArrayLike) -> Floats:
    """A cost matrix between actions, [K, K]."""
    result = arguments.array("cost", cost)
    if result.ndim != 2 or result.shape[0] != result.shape[1] or result.size == 0:
        raise ValueError(f"cost must be a square matrix [K, K], got shape {result.shape}")
    return result


def transport_cost(policy: ArrayLike, prior: ArrayLike, cost: ArrayLike, lam: float) -> Floats:
    """The entropic transport cost of the paper (section 5.1), [...]:

        W_λ(π, μ) = min over couplings Γ of π and μ of ⟨Γ, C⟩ + λ Σ_ij Γ_ij (log Γ_ij − 1).

    It is computed from its dual, max over Q of ⟨π, Q⟩ − λ Σ_j μ_j log Σ_i exp((Q_i − C_ij)/λ) − λ(1 + entropy(μ)), by
    Newton's method safeguarded with Sinkhorn steps, from a high temperature down to λ. Sinkhorn steps alone take more
    than 20,000 iterations for λ ≤ 0.001.

    Args:
        policy: π, [..., K].
        prior: μ, [..., K].
        cost: C, [K, K].
        lam: λ > 0.
    """
    cost = square_cost(cost)
    lam = arguments.positive("lam", lam)
    policy = arguments.distributions("policy", policy, len(cost))
    prior = arguments.distributions("prior", prior, len(cost))
    try:
        policy, prior = np.broadcast_arrays(policy, prior)
    except ValueError:
        raise ValueError(f"policy of shape {policy.shape} does not align with prior of shape {prior.shape}") from None
    shape = policy.shape[:-1]
    policy, prior = policy.reshape(-1, len(cost)), prior.reshape(-1, len(cost))

    potentials = np.where(policy > 0.0, 0.0, -np.inf)
    halvings = max(0, math.ceil(math.log2(max(float(np.ptp(cost)), lam) / lam)))
    # The higher temperatures only provide a start: a rough maximum is enough there.
    for power in range(halvings, 0, -1):
        potentials, _, _ = _maximise_dual(potentials, policy, prior, cost, lam * 2.0**power, 1e-2)
    # By concavity the error of the cost is at most the ℓ₁ error of the marginal π times the range of the missing
    # potentials, which is of the order of the costs. In units of λ the rounding of potentials may exceed 1e-12.
    tolerance = max(1e-12, 64.0 * np.finfo(float).eps * float(np.ptp(cost)) / lam)
    potentials, dual, residual = _maximise_dual(potentials, policy, prior, cost, lam, tolerance)
    if residual > tolerance:
        raise ArithmeticError(
            f"the transport cost did not converge for lam={lam!r} (marginals wrong by {residual:.1e})"
        )
    return np.asarray(dual - lam * (1.0 + entropy(prior))).reshape(shape)


def _maximise_dual(
    potentials: Floats, policy: Floats, prior: Floats, cost: Floats, temperature: float, tolerance: float
) -> tuple[Floats, Floats, float]:
    """Potentials Q [n, K] that maximise ⟨π, Q⟩ − F(Q), that maximum [n], and the remaining ℓ₁ error of the marginal π.

    Q is −∞ where π is 0.
    """
    support = policy > 0.0
    log_policy = np.log(np.where(support, policy, 1.0))
    # Coordinates scaled by √π keep the Hessian well conditioned however small a probability is.
    scale = np.sqrt(np.where(support, policy, 1.0))
    # Lengths, in temperatures, to which a Newton step is cut. All are tried: the full step is far too long if the
    # coupling nearly decomposes into blocks, which makes the Hessian nearly singular.
    lengths = np.array([1.0, 4.0, 16.0, 64.0, 256.0, math.inf])[:, None, None]

    def assess(candidates: Floats) -> tuple[Columns, Floats, Floats]:
        """The local softmaxes of candidates [..., n, K], their duals and the ℓ₁ errors of their marginals, [..., n]."""
        columns = Columns.at(candidates, cost, prior, temperature)
        linear = (policy * np.where(support, candidates, 0.0)).sum(axis=-1)
        return columns, linear - columns.value(), np.abs(policy - columns.policy()).sum(axis=-1)

    columns, dual, error = assess(potentials)
    for _ in range(500):  # a dozen is usual: Newton steps double the digits
        if error.max(initial=0.0) <= tolerance:
            break
        marginal = columns.policy()
        slope = np.where(support, policy - marginal, 0.0) / scale
        # The pseudoinverse leaves out the constants, which change nothing, and actions without probability.
        curvature = columns.hessian() / (scale[:, :, None] * scale[:, None, :])
        inverse = np.linalg.pinv(curvature, rcond=1e-14, hermitian=True)
        newton = np.where(support, (inverse @ slope[..., None])[..., 0] / scale, 0.0)
        size = np.abs(newton).max(axis=-1, keepdims=True) / temperature
        # A Sinkhorn step never lowers the dual. A marginal that underflows keeps a finite logarithm.
        present = np.where(support, np.maximum(marginal, np.finfo(np.float64).tiny), 1.0)
        sinkhorn = temperature * (log_policy - np.log(present))
        candidates = potentials + np.concatenate([sinkhorn[None], newton / np.maximum(size / lengths, 1.0)])
        _, duals, errors = assess(candidates)
        # Relative differences of the dual below 1e-14 are rounding: the better marginal decides.
        best = duals.max(axis=0)
        chosen = np.where(duals >= best - 1e-14 * (1.0 + np.abs(best)), errors, np.inf).argmin(axis=0)
        potentials = candidates[chosen, np.arange(len(policy))]
        columns, dual, error = assess(potentials)
    return potentials, dual, float(error.max(initial=0.0))
