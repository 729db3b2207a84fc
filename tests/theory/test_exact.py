"""The exact solver against closed forms and independent linear algebra."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from smoothplan import models
from smoothplan.base.arguments import Floats
from smoothplan.models import TabularModel
from smoothplan.theory import exact
from smoothplan.theory.backups import Backup, HardMax, LogSumExp, OptimalTransport, SoftmaxMixture
from tests.common import TABLES, dense
from tests.naive import Mixture
from tests.own_backups import library_backups, transports


def continuing(model: TabularModel) -> tuple[Floats, Floats]:
    """Probabilities of continuing [S, K, S] and expected rewards [S, K]; nothing at terminal states."""
    probabilities, rewards, ends = dense(model)
    alive = ~model.terminal[:, None, None]
    return (probabilities - ends) * alive, (rewards * alive).sum(axis=-1)


def policy_values(model: TabularModel, policy: Floats, backup: Backup) -> Floats:
    """The solution of (I − γP_π)V = r_π − Ω(π)."""
    matrix, rewards = continuing(model)
    charge = np.where(model.terminal, 0.0, backup.regulariser(policy, np.arange(model.states)))
    transitions = np.einsum("sk,skt->st", policy, matrix)
    gains = (policy * rewards).sum(axis=1) - charge
    return np.asarray(np.linalg.solve(np.eye(model.states) - model.discount * transitions, gains))


# Closed forms


@pytest.mark.parametrize("discount", [0.0, 0.3, 0.9])
@pytest.mark.parametrize(
    "backup",
    [
        HardMax(),
        LogSumExp(0.7),
        OptimalTransport(cost=[[0.0, 1.0], [2.0, 0.5]], tau=0.8, lam=0.5, reference=[0.3, 0.7]),
    ],
)
def test_two_states_that_alternate_by_hand(backup: SoftmaxMixture, discount: float) -> None:
    """Both actions lead to the other state, so V(s) = f_s + γV(1−s) with f_s = F(r_s)."""
    rewards = [[0.2, 0.9], [-1.0, 0.4]]
    model = TabularModel(np.ones((2, 2, 1)), [[[1], [1]], [[0], [0]]], rewards, discount=discount)
    first, second = (Mixture.at(backup, 0, 2).value(row) for row in rewards)
    expected = np.array([first + discount * second, second + discount * first]) / (1.0 - discount**2)
    solution = exact.solve(model, backup, 1e-9)
    np.testing.assert_allclose(solution.values, expected, atol=1e-9)
    np.testing.assert_allclose(solution.q, np.array(rewards) + discount * expected[::-1, None], atol=1e-9)
    np.testing.assert_allclose(solution.policy, backup.policy(rewards), atol=1e-8)


# Linear algebra


@pytest.mark.parametrize("name", TABLES)
def test_values_solve_the_bellman_equation(name: str) -> None:
    model = TABLES[name]()
    matrix, rewards = continuing(model)
    states = np.arange(model.states)
    for backup in library_backups(model.actions, model.states):
        solution = exact.solve(model, backup, 1e-9)
        q = rewards + model.discount * matrix @ solution.values
        expected = np.where(model.terminal, 0.0, backup.value(q, states))
        np.testing.assert_allclose(solution.q, q, atol=1e-11)
        np.testing.assert_allclose(solution.values, expected, atol=2e-9, rtol=0)
        np.testing.assert_allclose(solution.policy, backup.policy(solution.q, states), atol=1e-15)


@pytest.mark.parametrize("name", TABLES)
def test_evaluation_is_linear_algebra(name: str) -> None:
    model = TABLES[name]()
    policy = np.random.default_rng(7).dirichlet(np.ones(model.actions), size=model.states)
    for backup in library_backups(model.actions, model.states):
        charged = exact.evaluate(model, policy, backup, 1e-9)
        np.testing.assert_allclose(charged.values, policy_values(model, policy, backup), atol=2e-9, rtol=0)
        assert (charged.values <= exact.solve(model, backup, 1e-9).values + 1e-8).all()


# The error bound


@pytest.mark.parametrize("tolerance", [30.0, 1e-2])
@pytest.mark.parametrize("name", TABLES)
def test_the_error_is_within_its_bound(name: str, tolerance: float) -> None:
    model = TABLES[name]()
    policy = np.random.default_rng(10).dirichlet(np.ones(model.actions), size=model.states)
    for backup in library_backups(model.actions, model.states):
        for solve in (partial(exact.solve, model, backup), partial(exact.evaluate, model, policy, backup)):
            rough, fine = solve(tolerance=tolerance), solve(tolerance=1e-9)
            assert np.abs(rough.values - fine.values).max() <= rough.error + fine.error
            assert rough.error <= tolerance
            assert rough.iterations <= fine.iterations
            np.testing.assert_array_equal(rough.values[model.terminal], 0.0)


@pytest.mark.parametrize("discount", [0.5, 0.99, 0.999])
def test_rounding_is_part_of_the_error(discount: float) -> None:
    """At the finest tolerance that is accepted, the error still bounds the distance to extended precision."""
    model = models.garnet(states=20, actions=3, branching=3, discount=discount, seed=1)
    solution = next(result for power in range(15, 5, -1) if (result := attempt(model, 10.0**-power)) is not None)
    values, probabilities, rewards, gamma = (
        np.asarray(part, dtype=np.longdouble)
        for part in (solution.values, model.probabilities, model.rewards, discount)
    )
    for _ in range(math.ceil(40.0 / (1.0 - discount))):
        values = (rewards + gamma * (probabilities * values[model.successors]).sum(axis=-1)).max(axis=1)
    assert float(np.abs(values - solution.values).max()) <= solution.error
    # One state, whose value is right at once but for rounding.
    single = exact.solve(TabularModel([[[1.0]]], [[[0]]], [[0.1]], discount=discount), HardMax())
    truth = Fraction(0.1) / (1 - Fraction(discount))
    assert abs(Fraction(float(single.values[0])) - truth) <= single.error


def attempt(model: TabularModel, tolerance: float) -> exact.Solution | None:
    """The solution, or None if the tolerance is out of reach."""
    try:
        return exact.solve(model, HardMax(), tolerance)
    except ArithmeticError:
        return None


@pytest.mark.parametrize(("discount", "tolerance"), [(0.5, 1e-16), (0.99, 1e-14), (0.999, 1e-12), (0.9, 1e-300)])
def test_an_unattainable_tolerance_raises(discount: float, tolerance: float) -> None:
    model = models.garnet(states=20, actions=3, branching=3, discount=discount, seed=1)
    for backup in library_backups(3, 20):
        with pytest.raises(ArithmeticError, match=f"tolerance {tolerance:g} is finer than double precision can reach"):
            exact.solve(model, backup, tolerance)
    with pytest.raises(ArithmeticError, match=f"tolerance {tolerance:g} is finer"):
        exact.evaluate(model, np.full((20, 3), 1 / 3), tolerance=tolerance)


# Errors

MODEL = models.chain()
UNIFORM = np.full((5, 2), 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact.solve(MODEL, HardMax(), 0.0), r"tolerance must be greater than 0, got 0\.0"),
        (lambda: exact.solve(MODEL, transports(3, 5)[0]), "actions is 2 but this backup's cost matrix has 3 actions"),
        (lambda: exact.solve(MODEL, transports(2, 4)[2]), r"states must be in 0\.\.3, got 4"),
        (lambda: exact.solve(MODEL, LogSumExp(1.0, actions=3)), r"q must have 3 actions .* got shape \(5, 2\)"),
        (lambda: exact.evaluate(models.sysadmin(3), UNIFORM), "model must be a table of states, a TabularModel, got V"),  # type: ignore[arg-type]
        (lambda: exact.evaluate(MODEL, UNIFORM[:4]), r"policy must have shape \(5, 2\), got \(4, 2\)"),
        (lambda: exact.evaluate(MODEL, np.ones((5, 3)) / 3), "policy must have 2 entries along its last axis"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
