"""The formulas of the curvature theory: each against enumeration, an adversary, or exact values of models."""

import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from smoothplan import models
from smoothplan.base.arguments import Floats
from smoothplan.models import ModelError, TabularModel
from smoothplan.theory import curvature, exact
from smoothplan.theory.backups import Backup, HardMax, LogSumExp, OptimalTransport, Tsallis, line_cost
from smoothplan.theory.curvature import Problem
from tests.common import TABLES, declaring, ordinary_values
from tests.own_backups import Called, TwoTemperatures, library_backups, transports

MODELS = {name: build for name, build in TABLES.items() if build().actions > 1}


# Exponents and constants


def test_constants_by_hand() -> None:
    assert [curvature.total_exponent(beta) for beta in (2, 3, 5)] == [4.0, 3.0, 2.5]
    assert curvature.hessian_lipschitz(0.5) == 6.0
    assert curvature.remainder_constant(2, 0.25, "euclidean") == 2.0
    assert curvature.remainder_constant(3, 0.5, "euclidean") == 1.0
    assert curvature.remainder_constant(2, 0.25) == 0.5
    assert curvature.remainder_constant(3, 0.5) == pytest.approx(math.sqrt(3) / 27)


def test_the_bias_of_chains_by_hand() -> None:
    """Theorem 6.13 at numbers for which its parts are simple: half of any of them would be noticed."""
    assert curvature.reference_bias(1, 2.0, 0.5, 0.75) == (0.0, 4.0)  # b
    cubic, root = math.sqrt(3.0) * 8.0 / (108.0 * 0.25 * 0.25), math.sqrt(3.0)
    low, high = curvature.reference_bias(2, 2.0, 0.5, 0.75)  # o = 2 and u = 2·√γ
    assert low == pytest.approx(-cubic - root * (4.0 + root))
    assert high == 4.0  # b, which is less than the other bound
    low, high = curvature.reference_bias(2, 2.0, 0.5, 0.75, tail=1.0)  # which adds 1 to u
    assert low == pytest.approx(-cubic - (1.0 + root) * (5.0 + root))
    # With a short horizon 1/(1−γ), Popoviciu's bound is the smaller one: u = b/2·√(γ²/(1−γ)), b = r²/6.
    for size, tail in ((0.01, 0.0), (0.01, 1e-3), (0.01, 0.1)):
        cubic = math.sqrt(3.0) * size**3 / (108.0 * 0.75)
        own, missed = size / math.sqrt(3.0), size**2 / 12.0 * 0.25 / math.sqrt(0.75) + tail / math.sqrt(3.0)
        low, high = curvature.reference_bias(2, size, 1.0, 0.25, tail)
        assert low == pytest.approx(-cubic - missed * (own + missed / 2.0))
        useful = min(own, missed)
        assert high == pytest.approx(min(cubic + useful * (own - useful / 2.0), size**2 / 6.0))


@pytest.mark.parametrize("norm", get_args(curvature.Norm))
@pytest.mark.parametrize("beta", [2, 3])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 40.0])
@pytest.mark.parametrize("temperature", [1e-3, 1.0, 50.0])
def test_tolerance_inverts_remainder(temperature: float, epsilon: float, beta: int, norm: curvature.Norm) -> None:
    error = curvature.tolerance(epsilon, beta, temperature, norm)
    assert curvature.remainder(error, beta, temperature, norm) == pytest.approx(epsilon, rel=1e-12)


def test_taylor_polynomials() -> None:
    backup = transports(3, 4)[2]
    rng = np.random.default_rng(0)
    q, around, states = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.arange(4)
    for row in range(4):
        delta = q[row] - around[row]
        terms = [
            float(backup.value(around[row], row)),
            float(backup.policy(around[row], row) @ delta),
            float(delta @ backup.hessian(around[row], row) @ delta) / 2,
        ]
        for order in (0, 1, 2):
            value = curvature.taylor(backup, q, around, order, states)[row]
            assert float(value) == pytest.approx(sum(terms[: order + 1]), abs=1e-14)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("backup", [LogSumExp(0.5), *transports(3, 1)[:2]])
def test_remainder_rates(backup: LogSumExp | OptimalTransport, order: int) -> None:
    around, direction = np.random.default_rng(2).normal(size=(2, 3))
    steps = np.geomspace(1e-3, 1e-2, 8) * backup.temperature
    points = around + steps[:, None] * direction
    remainders = np.abs(backup.value(points) - curvature.taylor(backup, points, around, order))
    slope = np.polyfit(np.log(steps), np.log(remainders), 1)[0]
    assert slope == pytest.approx(order + 1, abs=0.05)


# Value intervals


@pytest.mark.parametrize("name", MODELS)
def test_value_interval_contains_every_value(name: str) -> None:
    model = MODELS[name]()
    for backup in library_backups(model.actions, model.states):
        low, high = curvature.value_interval(model, backup)
        values = exact.solve(model, backup, 1e-9).values
        assert low - 1e-8 <= values.min()
        assert values.max() <= high + 1e-8


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_value_interval_is_attained(reward: float) -> None:
    """By a single state whose actions are all worth the smallest, or the largest, reward.

    A policy without the bonus of a regulariser may be worth less, and an action more if every policy is charged.
    """
    model = TabularModel(
        np.ones((1, 3, 1)), np.zeros((1, 3, 1), dtype=int), [[reward] * 3], discount=0.8, reward_range=(0, 1)
    )
    dear = OptimalTransport(cost=np.full((3, 3), 3.0), tau=1.0, lam=0.1)
    candidates: list[Backup] = [HardMax(), LogSumExp(0.5), Tsallis(0.5), *transports(3, 1)[:3], dear]
    for backup in candidates:
        solution, problem = exact.solve(model, backup), Problem.of(model, backup)
        assert curvature.value_interval(model, backup)[int(reward)] == pytest.approx(solution.values[0], abs=1e-8)
        first = exact.evaluate(model, [[1.0, 0.0, 0.0]], backup).values
        for (low, high), found in ((problem.action_values, solution.q), (problem.policy_values, first)):
            assert low - 1e-7 <= found.min() <= found.max() <= high + 1e-7


def test_value_interval_includes_the_worth_of_terminal_states() -> None:
    sailing = models.sailing(size=3)
    assert curvature.value_interval(sailing, HardMax()) == pytest.approx((-5.0 / 0.05, 0.0))
    lake = models.frozen_lake()
    dear = OptimalTransport(cost=np.full((4, 4), 3.0), tau=1.0, lam=0.1)
    low, high = curvature.value_interval(lake, dear)
    assert low == pytest.approx((0.1 * math.log(4) - 3.0) / 0.05)
    assert high == 0.0


@pytest.mark.parametrize("name", MODELS)
def test_a_declared_value_range_narrows_the_interval_and_is_kept(name: str) -> None:
    """The narrowest range of ordinary values, and what the regulariser may add, contain every regularised value."""
    model = MODELS[name]()
    declared = declaring(model, value_range=ordinary_values(model))
    for backup in library_backups(model.actions, model.states):
        (low, high), (least, most) = (curvature.value_interval(some, backup) for some in (declared, model))
        values = exact.solve(declared, backup, 1e-9).values
        assert low - 1e-8 <= values.min() <= values.max() <= high + 1e-8
        assert least <= low <= high <= most
        assert (low <= 0.0 <= high) or not model.terminates
    low, high = curvature.value_interval(declared, HardMax())
    values = exact.solve(model, HardMax(), 1e-9).values
    values = np.append(values, 0.0) if model.terminates else values
    assert (low, high) == pytest.approx((values.min(), values.max()), abs=1e-8)


class Bonus(LogSumExp):
    """A log-sum-exp that pays 1 more at every step, so that F − max is at least 1."""

    def at_zero_range(self, actions: int) -> tuple[float, float]:
        low, high = super().at_zero_range(actions)
        return low + 1.0, high + 1.0

    def value(self, q: Any, states: Any = None) -> Floats:
        return super().value(q, states) + 1.0

    def regulariser(self, policy: Any, states: Any = None) -> Floats:
        return super().regulariser(policy, states) - 1.0


@pytest.mark.parametrize("ends", [False, True])
def test_a_bonus_of_the_regulariser_is_added_once_for_each_step_that_is_certain(ends: bool) -> None:
    """Where the episode is over after one step, a bonus at every step is paid once, not 1/(1 − γ) times."""
    model = TabularModel.from_outcomes(
        [[[(1.0, 0, 0.5, ends)]] * 2], discount=0.5, reward_range=(0, 1), value_range=(0.5, 0.5) if ends else (1.0, 1.0)
    )
    backup = Bonus(0.1)
    (value,) = exact.solve(model, backup).values
    low, high = curvature.value_interval(model, backup)
    assert low - 1e-8 <= value <= high + 1e-8
    assert curvature.gap_to_hard_max(backup, 2)[0] == 1.0
    if not ends:
        assert low == pytest.approx(1.0 + 2.0)


def test_the_exact_solver_refutes_a_wrong_value_range() -> None:
    model = models.frozen_lake()
    low, high = ordinary_values(model)
    for wrong, found in (((low, 0.9 * high), "at least 0.7"), ((low + 0.01, 1.0), "at most 0.1")):
        message = rf"value_range=\(.*\) is refuted at state \d+: the optimal value there is {found}"
        with pytest.raises(ModelError, match=message):
            exact.solve(declaring(model, value_range=wrong), HardMax())
    # The declaration is about ordinary values, whatever is solved; only the policy's value may be lower.
    poor = np.tile([0.0, 0.0, 0.0, 1.0], (model.states, 1))
    declared = declaring(model, value_range=(low, high))
    assert exact.evaluate(declared, poor).values[~model.terminal].min() < low


def test_sizes_that_floats_do_not_certify_are_refused_of_a_value_range() -> None:
    tiny = declaring(models.chain(), value_range=(0.0, 1e-40))
    with pytest.raises(ValueError, match="value_range must lead to values whose size is 0 or from 1e-30 to 1e"):
        curvature.value_interval(tiny, HardMax())
    problem = Problem.of(declaring(models.chain(), value_range=(0.0, 0.0)), HardMax())
    with pytest.raises(ValueError, match="epsilon must be at least 1e-11, 1e-12 of the largest"):
        curvature.require_resolvable(1e-12, problem.values, problem.reward_range)


# Gaps between backups


@pytest.mark.parametrize("actions", [1, 2, 5])
@pytest.mark.parametrize("which", range(3))
def test_transfer_at_the_backup_level(which: int, actions: int) -> None:
    backup, rng, states = transports(actions, 2000)[which], np.random.default_rng(actions), np.arange(2000)
    q = rng.normal(size=(2000, actions)) * np.geomspace(1e-2, 1e2, 2000)[:, None]
    to_entropy = backup.value(q, states) - LogSumExp(backup.temperature).value(q)
    to_maximum = backup.value(q, states) - HardMax().value(q)
    assert np.abs(to_entropy).max() <= curvature.transfer_to_entropy(backup) + 1e-12
    assert np.abs(to_maximum).max() <= curvature.transfer_to_hard_max(backup, actions) + 1e-12
    gaps = {curvature.gap_to_entropy(backup): to_entropy, curvature.gap_to_hard_max(backup, actions): to_maximum}
    for (low, high), gap in gaps.items():
        assert low - 1e-12 <= gap.min() <= gap.max() <= high + 1e-12


@pytest.mark.parametrize("actions", [1, 2, 5])
def test_gap_to_hard_max_is_sharp(actions: int) -> None:
    """Over all priors, if the prior is a function."""
    table = transports(actions, 30)
    called = Called(OptimalTransport(cost=np.diag(np.arange(1.0, actions + 1.0)), tau=0.5, lam=0.2))
    alike: list[Backup] = [HardMax(), LogSumExp(0.3), Tsallis(0.3), *table[:2], TwoTemperatures(), called]
    for backup, states in (*((each, 1) for each in alike), (table[2], 30), (table[3], actions)):
        low, high = curvature.gap_to_hard_max(backup, actions)
        peaks = 1e3 * np.eye(actions)
        gaps = [
            float(backup.value(q, state)) - float(q.max())
            for state in range(states)
            for q in (np.zeros(actions), *peaks)
        ]
        assert min(gaps) == pytest.approx(low, abs=1e-6)
        assert max(gaps) == pytest.approx(high, abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bias", [0.5, 0.05])
def test_smoothing_keeps_its_promise(name: str, bias: float) -> None:
    model = MODELS[name]()
    hard, cost = exact.solve(model, HardMax(), 1e-9).values, 3.0 * line_cost(model.actions)
    for cost_max in (0.0, 3.0):
        tau, lam = curvature.smoothing_for_bias(bias, model.discount, model.actions, cost_max)
        assert tau * (cost_max + lam * math.log(model.actions)) == pytest.approx((1 - model.discount) * bias)
        backup = OptimalTransport(cost=cost, tau=tau, lam=lam) if cost_max else LogSumExp(tau)
        assert np.abs(exact.solve(model, backup, 1e-9).values - hard).max() <= bias + 1e-8


# Errors

OT = OptimalTransport(cost=line_cost(2), tau=1.0, lam=0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: curvature.total_exponent(1.5), r"beta must be at least 2, got 1\.5"),
        (lambda: curvature.remainder_constant(4, 1.0), "beta must be at most 3, got 4"),
        (lambda: curvature.tolerance(0.0, 2, 1.0), r"epsilon must be greater than 0, got 0\.0"),
        (lambda: curvature.taylor(OT, [0, 0], [0, 0], 3), "order must be at most 2, got 3"),
        (lambda: curvature.taylor(OT, [0], [0, 0], 1), r"q and around .* got shapes \(1,\) and \(2,\)"),
        (lambda: curvature.smoothing_for_bias(1, 0.9, 1), "actions must be at least 2, got 1"),
        (lambda: curvature.value_interval(models.chain(), transports(3, 1)[0]), "actions is 2 but .* has 3 actions"),
        (lambda: curvature.gap_to_hard_max(OT, 3), "actions is 3 but .* has 2 actions"),
        (lambda: curvature.reference_bias(3, 0.1, 0.3, 0.9), "order must be at most 2, got 3"),
        (lambda: curvature.reference_bias(2, -0.1, 0.3, 0.9), r"error_range must be at least 0, got -0\.1"),
        (lambda: curvature.reference_bias(2, 0.1, 0.0, 0.9), r"temperature must be greater than 0, got 0\.0"),
        (lambda: curvature.reference_bias(2, 0.1, 0.3, 0.9, -1.0), r"tail must be at least 0, got -1\.0"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
