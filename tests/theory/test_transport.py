"""The entropic transport cost against POT, the unregularised cost, closed forms and its own definition."""

import math
from typing import Any

import numpy as np
import ot
import pytest

from smoothplan.base.arguments import Floats
from smoothplan.theory.softmaxes import entropy, transport_cost


def pot_cost(policy: Floats, reference: Floats, cost: Floats, lam: float) -> float:
    """⟨Γ, C⟩ + λ Σ Γ(log Γ − 1) for the plan that POT finds; rows without mass carry none."""
    rows, columns = policy > 0, reference > 0
    inner = np.ascontiguousarray(cost[np.ix_(rows, columns)])
    plan = ot.sinkhorn(
        policy[rows], reference[columns], inner, lam, method="sinkhorn_log", stopThr=1e-13, numItermax=100_000
    )
    with np.errstate(divide="ignore"):
        logs = np.where(plan > 0, np.log(plan), 0.0)
    return float((plan * inner).sum() + lam * (plan * (logs - 1.0)).sum())


def instance(seed: int, actions: int, zeros: int = 0) -> tuple[Floats, Floats, Floats]:
    """A policy with some zero entries, a reference and a cost matrix."""
    rng = np.random.default_rng([seed, actions, zeros])
    policy = rng.dirichlet(np.ones(actions))
    policy[rng.permutation(actions)[:zeros]] = 0.0
    return policy / policy.sum(), rng.dirichlet(np.ones(actions)), rng.normal(size=(actions, actions))


@pytest.mark.parametrize("lam", [0.1, 0.3, 1.0, 30.0])
@pytest.mark.parametrize(("actions", "zeros"), [(2, 0), (3, 0), (3, 1), (5, 2), (8, 0), (8, 5)])
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_pot(seed: int, actions: int, zeros: int, lam: float) -> None:
    policy, reference, cost = instance(seed, actions, zeros)
    expected = pot_cost(policy, reference, cost, lam)
    assert float(transport_cost(policy, reference, cost, lam)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("lam", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize(("actions", "zeros"), [(2, 0), (4, 0), (4, 2), (8, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_bracketed_by_the_unregularised_cost(seed: int, actions: int, zeros: int, lam: float) -> None:
    """A coupling has an entropy between 0 and 2 log K, so emd − λ(1 + 2 log K) ≤ W ≤ emd − λ."""
    policy, reference, cost = instance(seed, actions, zeros)
    unregularised = float(ot.emd2(policy, reference, cost))
    value = float(transport_cost(policy, reference, cost, lam))
    assert unregularised - lam * (1.0 + 2.0 * math.log(actions)) - 1e-9 <= value <= unregularised - lam + 1e-9


@pytest.mark.parametrize("lam", [1e-3, 0.2, 50.0])
@pytest.mark.parametrize("action", range(4))
def test_a_certain_action_has_one_coupling(action: int, lam: float) -> None:
    _, reference, cost = instance(0, 4)
    expected = (reference * cost[action] + lam * reference * (np.log(reference) - 1.0)).sum()
    assert float(transport_cost(np.eye(4)[action], reference, cost, lam)) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("lam", [1e-3, 0.2, 50.0])
def test_without_costs_the_product_coupling_is_best(lam: float) -> None:
    policy, reference, _ = instance(1, 5, 2)
    expected = -lam * (1.0 + entropy(policy) + entropy(reference))
    assert float(transport_cost(policy, reference, np.zeros((5, 5)), lam)) == pytest.approx(float(expected), abs=1e-11)


def test_a_reference_with_a_zero_is_the_limit_of_small_entries() -> None:
    policy, _, cost = instance(2, 3)
    limit = transport_cost(policy, [0.4, 0.6, 0.0], cost, 0.3)
    near = transport_cost(policy, [0.4, 0.6 - 1e-9, 1e-9], cost, 0.3)
    assert float(limit) == pytest.approx(pot_cost(policy, np.array([0.4, 0.6, 0.0]), cost, 0.3), abs=1e-9)
    assert float(near) == pytest.approx(float(limit), abs=1e-7)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (0,)])
def test_a_batch_is_the_same_as_one_by_one(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    policies, references = rng.dirichlet(np.ones(4), size=shape), rng.dirichlet(np.ones(4), size=shape)
    cost = rng.normal(size=(4, 4))
    batch = transport_cost(policies, references, cost, 0.05)
    assert batch.shape == shape
    for index in np.ndindex(shape):
        alone = transport_cost(policies[index], references[index], cost, 0.05)
        assert float(batch[index]) == pytest.approx(float(alone), abs=1e-11)


def test_entropy_of_known_distributions() -> None:
    values = entropy(np.array([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]]))
    np.testing.assert_allclose(values, [math.log(4), 0.0, math.log(2)], rtol=1e-15)


HALF, COST = [0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.5, 0.5], [0.4, 0.4]], HALF, COST, 1.0), r"policy must sum to one, got a sum of 0\.8 at index \(1,\)"),
        (([1.5, -0.5], HALF, COST, 1.0), r"policy must not be negative, got -0\.5 at index \(1,\)"),
        ((HALF, [1.0], COST, 1.0), r"reference must have 2 entries along its last axis, got shape \(1,\)"),
        ((HALF, HALF, COST, 0.0), r"lam must be greater than 0, got 0\.0"),
        (([HALF] * 3, [HALF] * 2, COST, 1.0), r"policy of shape \(3, 2\) does not align with reference .* \(2, 2\)"),
    ],
)
def test_bad_input_is_named(arguments: tuple[Any, Any, Any, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transport_cost(*arguments)
