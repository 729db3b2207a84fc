"""The entropic transport cost against POT, the unregularised cost and closed forms; the constants of cumulants."""

import math

import numpy as np
import ot
import pytest

from smoothplan.base.arguments import Floats
from smoothplan.theory.backups import OptimalTransport, line_cost
from smoothplan.theory.softmaxes import CUMULANTS, entropy

# The transport cost


def transport_cost(policy: Floats, prior: Floats, cost: Floats, lam: float) -> float:
    """W_λ(π, μ) = min over couplings Γ of π and μ of ⟨Γ, C⟩ + λ Σ_ij Γ_ij (log Γ_ij − 1) (section 5.1 of the paper)."""
    backup = OptimalTransport(cost=cost, prior=prior, tau=0.7, lam=lam)
    return float(backup.regulariser(policy) - backup.offset) / 0.7


def pot_cost(policy: Floats, prior: Floats, cost: Floats, lam: float) -> float:
    """⟨Γ, C⟩ + λ Σ Γ(log Γ − 1) for the plan that POT finds; rows without mass carry none."""
    rows, columns = policy > 0, prior > 0
    inner = np.ascontiguousarray(cost[np.ix_(rows, columns)])
    plan = ot.sinkhorn(
        policy[rows], prior[columns], inner, lam, method="sinkhorn_log", stopThr=1e-13, numItermax=100_000
    )
    with np.errstate(divide="ignore"):
        logs = np.where(plan > 0, np.log(plan), 0.0)
    return float((plan * inner).sum() + lam * (plan * (logs - 1.0)).sum())


def instance(seed: int, actions: int, zeros: int = 0) -> tuple[Floats, Floats, Floats]:
    """A policy with some zero entries, a prior and a cost matrix."""
    rng = np.random.default_rng([seed, actions, zeros])
    policy = rng.dirichlet(np.ones(actions))
    policy[rng.permutation(actions)[:zeros]] = 0.0
    return policy / policy.sum(), rng.dirichlet(np.ones(actions)), rng.normal(size=(actions, actions))


@pytest.mark.parametrize("lam", [0.1, 0.3, 1.0, 30.0])
@pytest.mark.parametrize(("actions", "zeros"), [(2, 0), (3, 1), (5, 2), (8, 0), (8, 5)])
def test_agrees_with_pot(actions: int, zeros: int, lam: float) -> None:
    policy, prior, cost = instance(0, actions, zeros)
    expected = pot_cost(policy, prior, cost, lam)
    assert transport_cost(policy, prior, cost, lam) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    prior[0] = 0.0
    prior /= prior.sum()
    expected = pot_cost(policy, prior, cost, lam)
    assert transport_cost(policy, prior, cost, lam) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("lam", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize(("actions", "zeros"), [(2, 0), (4, 2), (8, 1)])
@pytest.mark.parametrize("sharpness", [1.0, 0.02])
def test_bracketed_by_the_unregularised_cost(sharpness: float, actions: int, zeros: int, lam: float) -> None:
    """A coupling has an entropy between 0 and 2 log K, so emd − λ(1 + 2 log K) ≤ W ≤ emd − λ.

    Policies and priors of a small sharpness have probabilities down to 1e-100.
    """
    for seed in range(5):
        _, _, cost = instance(seed, actions, zeros)
        policy, prior = np.random.default_rng(seed).dirichlet(np.full(actions, sharpness), size=2)
        unregularised = float(ot.emd2(policy / policy.sum(), prior / prior.sum(), cost))
        value = transport_cost(policy, prior, cost, lam)
        assert unregularised - lam * (1.0 + 2.0 * math.log(actions)) - 1e-9 <= value <= unregularised - lam + 1e-9


@pytest.mark.parametrize("lam", [1e-3, 0.2, 50.0])
def test_couplings_that_are_known(lam: float) -> None:
    policy, prior, cost = instance(1, 5, 2)
    for action in range(5):  # only one coupling has a certain action
        expected = (prior * cost[action] + lam * prior * (np.log(prior) - 1.0)).sum()
        assert transport_cost(np.eye(5)[action], prior, cost, lam) == pytest.approx(expected, abs=1e-11)
    expected = -lam * (1.0 + entropy(policy) + entropy(prior))  # of the product, the best one without costs
    assert transport_cost(policy, prior, np.zeros((5, 5)), lam) == pytest.approx(float(expected), abs=1e-11)


@pytest.mark.parametrize("lam", [0.05, 0.01, 1e-3, 1e-4])
@pytest.mark.parametrize("actions", [2, 3, 8])
def test_the_regulariser_converges_at_every_policy_of_the_backup(actions: int, lam: float) -> None:
    """It is ⟨π, q⟩ − F(q) at π = ∇F(q). Couplings of small λ nearly decompose into blocks."""
    backup = OptimalTransport(cost=line_cost(actions), tau=1.0, lam=lam)
    q = np.random.default_rng(actions).normal(size=(200, actions))
    policy = backup.policy(q)
    np.testing.assert_allclose(backup.regulariser(policy), (policy * q).sum(axis=1) - backup.value(q), atol=1e-11)


# Cumulants


def cumulants(points: Floats, weights: Floats) -> Floats:
    """κ₂ to κ₆ of laws with points [n, m] and weights [n, m], [5, n]."""
    centred = points - (weights * points).sum(axis=1, keepdims=True)
    two, three, four, five, six = ((weights * centred**power).sum(axis=1) for power in range(2, 7))
    return np.array(
        [two, three, four - 3 * two**2, five - 10 * three * two, six - 15 * four * two - 10 * three**2 + 30 * two**3]
    )


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_no_law_of_range_one_has_larger_cumulants(size: int) -> None:
    rng = np.random.default_rng(size)
    count, best = 20_000, np.zeros(5)
    for sharpness in (0.1, 0.3, 1.0, 3.0):
        points = rng.beta(sharpness, sharpness, size=(count, size))
        points[:, 0], points[:, 1] = 0.0, 1.0
        found = np.abs(cumulants(points, rng.dirichlet(np.full(size, sharpness), size=count)))
        best = np.maximum(best, found.max(axis=1))
    bounds = np.array(list(CUMULANTS.values()))
    assert (best <= bounds + 1e-12).all()
    assert (best >= 0.97 * bounds).all()


def test_cumulant_constants_are_those_of_bernoulli_variables() -> None:
    chances = np.linspace(0.0, 1.0, 100_001)
    points = np.tile([0.0, 1.0], (len(chances), 1))
    largest = np.abs(cumulants(points, np.stack([1.0 - chances, chances], axis=1))).max(axis=1)
    np.testing.assert_allclose(largest, list(CUMULANTS.values()), rtol=1e-8)
