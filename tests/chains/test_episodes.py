"""Chains around a reference where episodes end after a known number of steps, and where actions are illegal."""

from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.chains.reference import TabularReference
from smoothplan.models import finite_horizon
from smoothplan.theory import exact
from smoothplan.theory.curvature import Problem, reference_bias
from tests.common import vectorised
from tests.models.test_derived import BACKUPS, masked_garnet

SMOOTH = [backup for backup in BACKUPS if backup.temperature > 0.0]


def season() -> sp.TabularModel:
    """A table with illegal actions, undiscounted, cut off after some steps."""
    model: Any = finite_horizon(masked_garnet(), 5, discount=1.0)
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("backup", SMOOTH, ids=lambda backup: type(backup).__name__)
@pytest.mark.parametrize("model", [season(), masked_garnet(0.7)], ids=["season", "endless"])
@pytest.mark.parametrize("simulator", [False, True])
def test_intervals_hold_around_a_reference(backup: Any, model: sp.TabularModel, simulator: bool) -> None:
    """With an error range, from both sides; each run fails with a probability of 1e-4 at most."""
    solution, rng, error = exact.solve(model, backup, 1e-9), np.random.default_rng(1), 0.3
    noise = rng.uniform(-error / 2.0, error / 2.0, size=solution.q.shape)
    reference = TabularReference(np.where(solution.q > -np.inf, solution.q, 0.0) + noise)
    order = 1 if isinstance(backup, sp.Tsallis) else 2
    planner = sp.ReferenceCruiser(backup, reference, order=order, epsilon=0.05, delta=1e-4, error_range=error)
    given: Any = vectorised(model) if simulator else model
    result = sp.plan(planner, given, 0, max_calls=400_000, seed=2)
    details: Any = result.details
    assert details.certified
    assert result.interval[0] <= solution.values[0] <= result.interval[1]
    assert result.interval[1] - result.interval[0] < 0.8  # of 3 or more without a call
    assert result.q_intervals is not None
    low, high = result.q_intervals.T
    assert ((low <= solution.q[0]) & (solution.q[0] <= high)).all()
    illegal = solution.q[0] == -np.inf
    assert illegal.any()
    assert (result.q[illegal] == -np.inf).all()
    if model.horizon is not None:
        assert details.horizon == model.horizon
        assert details.truncation == 0.0


def test_a_reference_is_made_of_a_season() -> None:
    model, backup = season(), sp.LogSumExp(0.3)
    result = sp.plan(sp.ReferenceCruiser(backup, epsilon=0.05), model, 0, max_calls=100_000, seed=1)
    assert result.value == pytest.approx(exact.solve(model, backup).values[0], abs=0.1)


def test_the_bias_of_chains_of_a_season_is_within_its_bounds() -> None:
    """Exact means of chains of order 1, whose error is the loss of their policy."""
    model, backup, rng = season(), sp.LogSumExp(0.3), np.random.default_rng(3)
    solution = exact.solve(model, backup)
    bounds = reference_bias(1, 0.4, 0.3, 1.0, horizon=5)
    assert bounds[0] == 0.0
    assert bounds[1] == pytest.approx(5 * 0.4**2 / (8.0 * 0.3))
    found = []
    for _ in range(50):
        q = solution.q + 0.4 * rng.integers(0, 2, size=solution.q.shape)
        policy = np.where(model.terminal[:, None], 1 / 3, backup.policy(q))
        found.append((solution.values - exact.evaluate(model, policy, backup).values).max())
    assert 0.2 * bounds[1] < max(found) <= bounds[1]
    assert min(found) >= -1e-9


def test_a_horizon_makes_no_bound_of_the_bias_wider() -> None:
    for order in (1, 2):
        for discount in (0.5, 0.9, 0.99):
            low, high = reference_bias(order, 0.3, 0.5, discount, 0.1)
            for horizon in (1, 10, 1_000):
                narrow = reference_bias(order, 0.3, 0.5, discount, 0.1, horizon)
                assert low <= narrow[0] <= narrow[1] <= high
    assert reference_bias(2, 0.3, 0.5, 0.9, 0.1, 1)[1] < 0.5 * high


def test_a_simulator_that_outlives_its_horizon_is_refused() -> None:
    def step(states: Any, actions: Any, rng: np.random.Generator) -> Any:
        return states + 1.0, np.ones(len(states)), np.zeros(len(states), dtype=np.bool_)

    declared: dict[str, Any] = {"actions": 2, "discount": 1.0, "reward_range": (1, 1), "initial_state": [0.0]}
    for model in (sp.VectorModel(step, **declared, horizon=7), sp.JitModel(step, **declared, horizon=7)):
        planner = sp.ReferenceCruiser(
            sp.LogSumExp(0.3), sp.CriticReference(lambda states: np.zeros((len(states), 2))), epsilon=0.1
        )
        with pytest.raises(sp.ModelError, match=r"horizon=7 is exceeded: an episode has not ended after 7 steps"):
            sp.plan(planner, model, max_calls=10_000)
        assert Problem.of(model, planner.backup).values[1] == pytest.approx(7.0 * (1.0 + 0.3 * np.log(2.0)))


@pytest.mark.parametrize("kind", ["table", "simulator"])
def test_a_table_of_a_season_pools_its_samples(kind: str) -> None:
    """Estimates at all stages near the truth, after as many samples as the model without stages needs."""
    base: Any = masked_garnet()
    model: Any = finite_horizon(base if kind == "table" else vectorised(base), 6, discount=1.0)
    staged: Any = finite_horizon(base, 6, discount=1.0)
    truth = exact.solve(staged, sp.HardMax()).q
    reference = sp.SharedReference(model, sp.HardMax(), seed=1)
    reference.improve(20_000)
    assert reference.states == 7
    states = np.arange(42)
    asked = states if kind == "table" else np.stack([states % 7, 6 - states // 7], axis=1)
    found, legal = reference.q(asked), truth[:42] > -np.inf
    assert (found[~legal] == -np.inf).all()
    assert np.abs(found[legal] - truth[:42][legal]).max() < 0.15
    apart = reference.error_range(asked)
    for state in range(42):
        errors = found[state, legal[state]] - truth[state, legal[state]]
        assert np.ptp(errors) <= apart[state] + 1e-9
    copied = sp.SharedReference(model, sp.HardMax(), seed=1)
    copied.restore(reference.saved())
    assert (copied.q(asked) == found).all()


def test_the_standard_errors_of_a_season_are_those_of_its_estimates() -> None:
    """Over 60 tables: errors are conservative, by 2 at most; a false alarm has a probability below 1e-6."""
    base = sp.models.garnet(states=6, actions=3, branching=4, discount=0.9, seed=5, reward_kind="bernoulli")
    model: Any = finite_horizon(base, 4, discount=1.0)
    truth, ratios = exact.solve(model, sp.HardMax()).q[2], []
    for seed in range(60):
        reference = sp.SharedReference(model, sp.HardMax(), root=2, seed=seed)
        reference.improve(6_000)
        claims = reference.claims(2)
        assert claims is not None
        ratios.append((claims.q - truth) / claims.errors)
    spread = np.sqrt(np.square(ratios).mean())
    assert 0.4 < spread < 1.6
