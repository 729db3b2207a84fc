"""The backups against their definitions, finite differences and enumeration, and their laws over wild ranges."""

import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.special import softmax

from smoothplan.base.arguments import Floats
from smoothplan.models import TabularModel, VectorModel, garnet
from smoothplan.theory.backups import (
    Backup,
    HardMax,
    LogSumExp,
    OptimalTransport,
    SoftmaxMixture,
    Tsallis,
    at_zero_range,
    depends_on_state,
    discrete_cost,
    is_mixture,
    line_cost,
    restricted,
    ring_cost,
)
from smoothplan.theory.curvature import Problem
from smoothplan.theory.softmaxes import CUMULANTS
from tests.naive import Mixture

Smooth = LogSumExp | OptimalTransport
Curved = Smooth | Tsallis


def random_transport(
    seed: int, actions: int, tau: float = 1.0, lam: float = 0.3, rows: tuple[int, ...] = ()
) -> OptimalTransport:
    rng = np.random.default_rng([seed, actions])
    prior = rng.dirichlet(np.ones(actions), size=rows or None)
    return OptimalTransport(cost=rng.normal(size=(actions, actions)), prior=prior, tau=tau, lam=lam)


def smooth_backups(actions: int) -> list[Smooth]:
    return [
        LogSumExp(0.1),
        LogSumExp(2.0),
        random_transport(0, actions),
        random_transport(1, actions, tau=0.2, lam=0.5),
        random_transport(2, actions, tau=3.0, lam=3.0),
    ]


SMOOTH = [(actions, backup) for actions in (1, 2, 3, 5) for backup in smooth_backups(actions)]


# The closed form and its definition


def definition(backup: OptimalTransport, q: Floats) -> float:
    """max over π of ⟨π, Q⟩ − τW_λ(π, μ), with POT's transport plans and a search over the simplex."""
    prior = backup.weights()

    def loss(logits: Floats) -> float:
        policy = softmax(np.append(logits, 0.0))
        precision = {"stopThr": 1e-12, "numItermax": 20_000}
        plan = ot.sinkhorn(policy, prior, backup.cost, backup.lam, method="sinkhorn_log", **precision)
        cost = (plan * backup.cost).sum() + backup.lam * (plan * (np.log(np.maximum(plan, 1e-300)) - 1.0)).sum()
        return float(backup.tau * cost - policy @ q)

    options = {"xatol": 1e-6, "fatol": 1e-10, "maxiter": 2000}
    return float(-minimize(loss, np.zeros(len(q) - 1), method="Nelder-Mead", options=options).fun)


@pytest.mark.parametrize(("tau", "lam"), [(1.0, 0.5), (0.4, 1.0), (2.0, 0.4)])
@pytest.mark.parametrize("actions", [2, 3])
def test_value_and_offset_are_the_definition(actions: int, tau: float, lam: float) -> None:
    backup = random_transport(7, actions, tau, lam)
    q = np.random.default_rng([1, actions]).normal(size=actions)
    assert float(backup.value(q)) + float(backup.offset) == pytest.approx(definition(backup, q), abs=1e-7)


@pytest.mark.parametrize(("actions", "backup"), SMOOTH)
def test_closed_form_by_hand(actions: int, backup: Smooth) -> None:
    q = (np.linspace(-1.0, 1.5, actions) ** 2).tolist()
    written_out = Mixture.at(backup, 0, actions)
    assert float(backup.value(q)) == pytest.approx(written_out.value(q), rel=1e-13, abs=1e-13)
    np.testing.assert_allclose(backup.policy(q), written_out.policy(q), atol=1e-13)


# Derivatives


@pytest.mark.parametrize(
    ("actions", "backup"),
    [*SMOOTH, *((actions, Tsallis(eta)) for actions in (1, 2, 3, 6) for eta in (0.05, 0.7, 10))],
)
def test_policy_and_hessian_are_the_derivatives(actions: int, backup: Curved) -> None:
    """Truncation: h²·|D³F|/6 < 1e-8·√3/108 < 1e-9, and none where sparsemax is quadratic; rounding: eps·|F|/h."""
    q = np.random.default_rng(5).normal(size=actions)
    steps = 1e-4 * backup.temperature * np.eye(actions)
    difference = (backup.value(q + steps) - backup.value(q - steps)) / (2e-4 * backup.temperature)
    np.testing.assert_allclose(backup.policy(q), difference, atol=2e-9)
    difference = (backup.policy(q + steps) - backup.policy(q - steps)) / (2e-4 * backup.temperature)
    np.testing.assert_allclose(backup.hessian(q), difference, atol=2e-8 / backup.temperature)


@pytest.mark.parametrize(("actions", "backup"), SMOOTH)
def test_quadratic_term_is_a_variance_and_a_paired_difference(actions: int, backup: Smooth) -> None:
    """Lemma 6.1 and equation (6)."""
    q, delta = np.random.default_rng(8).normal(size=(2, actions))
    quadratic = float(delta @ backup.hessian(q) @ delta)
    local, coupling, weights = backup.local_policies(q), backup.coupling(q), backup.weights()
    np.testing.assert_allclose(coupling.sum(axis=0), weights, atol=1e-15)
    np.testing.assert_allclose(coupling, local * weights, atol=1e-16)
    variances = delta**2 @ local - (delta @ local) ** 2
    assert quadratic == pytest.approx(float(weights @ variances) / backup.temperature, abs=1e-12)
    # J ~ μ, and A, A′ independent given J.
    pairs = np.einsum("j,aj,bj,ab->", weights, local, local, (delta[:, None] - delta) ** 2)
    assert quadratic / 2.0 == pytest.approx(pairs / (4.0 * backup.temperature), abs=1e-12)


# Laws, over wild ranges


class Case(NamedTuple):
    """A backup and action values; `size` bounds everything that is added up inside."""

    backup: Backup
    q: Floats
    other: Floats
    size: float

    @property
    def rounding(self) -> float:
        """A bound on the rounding of two values and their arguments.

        Forming scores, their maximum and the K-term sums loses at most about K + 8 units of the largest intermediate
        number in each value, since log-sum-exp passes errors of scores on with weights that sum to one.
        """
        return 2.0 * (len(self.q) + 8) * float(np.finfo(float).eps) * self.size


def numbers(bound: float) -> st.SearchStrategy[float]:
    return st.floats(-bound, bound, allow_subnormal=False)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    actions = draw(st.integers(1, 8))
    q = draw(arrays(np.float64, actions, elements=numbers(1e3)))
    other = draw(arrays(np.float64, actions, elements=numbers(1e3)))
    eta = draw(powers(-4, 3))
    size = float(np.abs([q, other]).max()) + eta * (1.0 + math.log(actions))
    kind = draw(st.sampled_from([HardMax, LogSumExp, Tsallis, OptimalTransport]))
    if kind is not OptimalTransport:
        return Case(HardMax() if kind is HardMax else kind(eta), q, other, size)
    tau = draw(powers(-2, 2))
    cost = draw(arrays(np.float64, (actions, actions), elements=numbers(1e3)))
    weights = draw(arrays(np.float64, actions, elements=st.floats(0.0, 1.0, allow_subnormal=False)))
    prior = (weights + 1e-6) / (weights + 1e-6).sum()
    backup = OptimalTransport(cost=cost, tau=tau, lam=eta / tau, prior=prior)
    return Case(backup, q, other, size + tau * float(np.abs(cost).max()))


wild = settings(max_examples=200, deadline=None)


@wild
@given(cases())
def test_nothing_overflows_policies_sum_to_one_and_hessians_ignore_constants(case: Case) -> None:
    methods = [case.backup.value, case.backup.policy]
    if isinstance(case.backup, Curved):
        methods += [case.backup.hessian]
    if isinstance(case.backup, Smooth):
        methods += [case.backup.local_policies, case.backup.coupling]
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for method in methods:
            assert np.isfinite(method(case.q)).all()
    policy = case.backup.policy(case.q)
    assert (policy >= 0.0).all()
    # K columns of K entries, each normalised by its own rounded sum, under weights that sum to one as nearly.
    unit = 4 * len(policy) * np.finfo(float).eps
    assert abs(policy.sum() - 1.0) <= unit
    if isinstance(case.backup, Curved):
        hessian, unit = case.backup.hessian(case.q), unit / case.backup.temperature
        np.testing.assert_allclose(hessian, hessian.T, atol=unit)
        np.testing.assert_allclose(hessian.sum(axis=0), 0.0, atol=unit)
        assert np.linalg.eigvalsh(hessian).min() >= -unit


@wild
@given(cases(), numbers(1e3))
def test_gradient_inequality(case: Case, shift: float) -> None:
    """F(q′) ≥ F(q) + ⟨∇F(q), q′ − q⟩, which ties the policy to the value where differences cannot.

    As a policy is a distribution, F is monotone; and with q′ = q + c and the other way round, F(q + c) = F(q) + c.
    """
    rounding = 3.0 * case._replace(size=case.size + abs(shift)).rounding
    for one, two in ((case.q, case.other), (case.q, case.q + shift), (case.q + shift, case.q)):
        below = float(case.backup.value(one) + case.backup.policy(one) @ (two - one))
        assert float(case.backup.value(two)) >= below - rounding


# Batches


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (2, 1, 3), (0,)])
@pytest.mark.parametrize("name", ["value", "policy", "hessian", "local_policies", "coupling"])
def test_a_batch_is_the_same_as_one_by_one(name: str, shape: tuple[int, ...]) -> None:
    q = np.random.default_rng(11).normal(size=(*shape, 3))
    states = np.random.default_rng(12).integers(5, size=shape)
    mixtures = [LogSumExp(0.4), random_transport(3, 3), random_transport(3, 3, rows=(5,))]
    plain: list[Any] = [HardMax(), Tsallis(0.8)]
    others = {"value": plain, "policy": plain, "hessian": plain[1:]}
    for backup in (*mixtures, *others.get(name, [])):
        method = getattr(backup, name)
        batch = method(q, states)
        assert batch.shape[: len(shape)] == shape
        for index in np.ndindex(shape):
            np.testing.assert_allclose(batch[index], method(q[index], states[index]), rtol=1e-14, atol=1e-15)


# Priors

COST = line_cost(3)
GOOD: dict[str, Any] = {"cost": COST, "tau": 1.0, "lam": 0.3}
TABLE = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.1, 0.8, 0.1]])


def by_function(states: Any) -> Floats:
    return np.asarray(TABLE[np.asarray(states)])


@pytest.mark.parametrize("prior", [TABLE[0], TABLE, by_function])
def test_a_prior_is_mixed_with_the_uniform_distribution(prior: Any) -> None:
    backup = pickle.loads(pickle.dumps(OptimalTransport.from_prior(prior, 0.3, **GOOD)))
    states = np.array([0, 2, 1])
    rows = TABLE[[0, 0, 0]] if np.ndim(prior) == 1 else TABLE[states]
    np.testing.assert_allclose(np.broadcast_to(backup.weights(states), (3, 3)), 0.7 * rows + 0.1, atol=1e-15)


@pytest.mark.parametrize("prior", [TABLE, by_function])
def test_each_state_uses_its_own_prior(prior: Any) -> None:
    backup, states = OptimalTransport(**GOOD, prior=prior), np.array([2, 0, 1, 2])
    np.testing.assert_array_equal(backup.weights(states), TABLE[states])
    rng = np.random.default_rng(15)
    q, policies = rng.normal(size=(4, 3)), rng.dirichlet(np.ones(3), size=4)
    for row, state in enumerate(states):
        alone = OptimalTransport(**GOOD, prior=TABLE[state])
        for name in ("value", "policy", "hessian", "coupling", "local_policies"):
            together, apart = getattr(backup, name)(q, states)[row], getattr(alone, name)(q[row])
            np.testing.assert_allclose(together, apart, rtol=1e-14, atol=1e-15)
        together, apart = backup.regulariser(policies, states)[row], alone.regulariser(policies[row])
        assert float(together) == pytest.approx(float(apart), abs=1e-11)


def test_a_prior_that_nearly_sums_to_one_is_normalised() -> None:
    """Otherwise F(Q + c) is not F(Q) + c, and values are wrong by as much, over 1 − γ."""
    row = np.array([0.2, 0.3, 0.5 + 9e-10])
    priors: list[Any] = [row, row[None], lambda states: row[None].repeat(len(states), axis=0)]
    for prior in priors:
        backup = OptimalTransport(**GOOD, prior=prior)
        q, states = np.array([[0.0, 1.0, 0.5]]), np.zeros(1, dtype=int)
        moved = float((backup.value(q + 1e3, states) - backup.value(q, states))[0])
        assert moved == pytest.approx(1e3, rel=1e-14)


def test_a_backup_keeps_its_own_read_only_arrays() -> None:
    cost, prior = COST.copy(), TABLE[0].copy()
    backup = OptimalTransport(cost=cost, tau=1.0, lam=0.3, prior=prior)
    before = float(backup.value(np.zeros(3)))
    cost[:] = prior[:] = 9.0
    assert float(backup.value(np.zeros(3))) == before
    with pytest.raises(ValueError, match="read-only"):
        backup.cost[0, 0] = 1.0


def test_reference_is_another_name_of_the_prior() -> None:
    backup = OptimalTransport(**GOOD, reference=TABLE[0])
    np.testing.assert_array_equal(backup.weights(), TABLE[0])
    with pytest.raises(ValueError, match="prior and reference are two names of one argument"):
        OptimalTransport(**GOOD, prior=TABLE[0], reference=TABLE[0])


# Constants


def test_constants_of_the_hard_maximum_and_of_log_sum_exp() -> None:
    assert (HardMax().temperature, HardMax().offset, HardMax().at_zero) == (0.0, 0.0, 0.0)
    backup = LogSumExp(0.5, actions=4)
    assert (backup.temperature, backup.offset) == (0.5, 0.0)
    assert backup.at_zero_range(4) == (backup.at_zero, backup.at_zero) == pytest.approx([0.5 * math.log(4)] * 2)


def test_constants_of_priors() -> None:
    np.testing.assert_array_equal(OptimalTransport(**GOOD).weights(), [1 / 3] * 3)
    backup = OptimalTransport(cost=COST, tau=2.0, lam=0.25, prior=TABLE)
    assert (backup.temperature, backup.actions) == (0.5, 3)
    entropies = [-sum(p * math.log(p) for p in row if p > 0) for row in TABLE]
    np.testing.assert_allclose(backup.offset, 0.5 * (1.0 + np.array(entropies)))
    values = backup.value(np.zeros((3, 3)), np.arange(3))
    np.testing.assert_allclose(backup.at_zero, values)
    assert backup.at_zero_range(3) == pytest.approx((values.min(), values.max()))
    for row, offset, value in zip(TABLE, np.asarray(backup.offset), values, strict=True):
        single = OptimalTransport(cost=COST, tau=2.0, lam=0.25, prior=row)
        assert (single.offset, single.at_zero, *single.at_zero_range(3)) == pytest.approx((offset, value, value, value))


# Tsallis


@pytest.mark.parametrize("actions", [1, 2, 3, 6])
@pytest.mark.parametrize("eta", [0.05, 0.7, 10.0])
def test_sparsemax_is_the_projection_onto_the_simplex(eta: float, actions: int) -> None:
    """The optimum of max ⟨π, Q⟩ − (η/2)‖π‖²: all actions of the support gain the same by more mass, others less."""
    random = np.random.default_rng([21, actions]).normal(size=(8, actions))
    for q in (*random, np.zeros(actions), np.arange(actions) * eta, np.eye(actions)[0]):  # ties, and some left out
        policy = Tsallis(eta).policy(q)
        assert policy.sum() == pytest.approx(1.0, abs=1e-14)
        gains = q - eta * policy
        inside = gains[policy > 0.0]
        np.testing.assert_allclose(inside, inside[0], atol=1e-13 * max(1.0, eta))
        assert (gains[policy == 0.0] <= inside[0] + 1e-12).all()


def test_sparsemax_by_hand() -> None:
    backup = Tsallis(2.0)
    np.testing.assert_allclose(backup.policy([1.0, 0.0, -5.0]), [0.75, 0.25, 0.0])
    # ⟨π, Q⟩ = 3/4 and 1 − ‖π‖² = 6/16.
    assert float(backup.value([1.0, 0.0, -5.0])) == pytest.approx(0.75 + 0.375)
    np.testing.assert_allclose(backup.hessian([1.0, 0.0, -5.0]), [[0.25, -0.25, 0.0], [-0.25, 0.25, 0.0], [0.0] * 3])
    assert float(backup.regulariser([0.5, 0.5, 0.0])) == pytest.approx(-0.5)
    assert float(backup.regulariser([0.0, 1.0, 0.0])) == 0.0
    assert backup.at_zero_range(4) == (0.75, 0.75)
    assert (Tsallis(2.0, actions=4).at_zero, backup.offset) == (0.75, 0.0)


def test_declared_derivatives() -> None:
    assert HardMax().derivatives(3) == ()
    mixture = (0.5, 0.5, 1.0, 16 * CUMULANTS[5], 8.0)
    assert LogSumExp(0.5).derivatives(3) == pytest.approx(mixture)
    assert OptimalTransport(**GOOD | {"lam": 0.5}).derivatives(3) == pytest.approx(mixture)
    # ⌊K²/4⌋/K over η, for K = 1 to 5.
    found = np.array([Tsallis(0.5).derivatives(actions) for actions in range(1, 6)])
    np.testing.assert_allclose(found, [[0.0], [1.0], [4 / 3], [2.0], [2.4]])


# Which backups are mixtures of softmaxes


class Handicap(HardMax):
    """A maximum that subtracts something."""

    def shifts(self, actions: int) -> Floats:
        return 0.5 + super().shifts(actions)


def test_mixtures_are_told_from_other_backups() -> None:
    mixtures: list[Backup] = [HardMax(), LogSumExp(1.0), OptimalTransport(**GOOD)]
    assert all(is_mixture(backup) for backup in mixtures)
    assert not is_mixture(Tsallis(1.0))
    assert not is_mixture(Handicap())  # compiled code takes a temperature of 0 to subtract nothing
    assert [depends_on_state(backup) for backup in (LogSumExp(1.0), Tsallis(1.0), Handicap())] == [False, False, True]


# The hard maximum


def test_hard_max_is_greedy_and_breaks_ties_by_order() -> None:
    q = [[1.0, 2.0, 0.0], [3.0, 3.0, 1.0], [-1.0, -2.0, -1.0], [5.0, 5.0, 5.0]]
    np.testing.assert_array_equal(HardMax().value(q), [2.0, 3.0, -1.0, 5.0])
    np.testing.assert_array_equal(HardMax().policy(q), np.eye(3)[[1, 0, 0, 0]])
    np.testing.assert_array_equal(HardMax().regulariser(np.eye(3)), np.zeros(3))


@pytest.mark.parametrize("name", ["hessian", "local_policies", "coupling"])
def test_hard_max_has_no_curvature(name: str) -> None:
    with pytest.raises(TypeError, match="HardMax has no Hessian, local softmaxes or coupling"):
        getattr(HardMax(), name)([0.0, 1.0])


# Action costs


def test_costs() -> None:
    np.testing.assert_allclose(line_cost(3), [[0, 0.5, 1], [0.5, 0, 0.5], [1, 0.5, 0]])
    np.testing.assert_allclose(ring_cost(4), [[0, 0.5, 1, 0.5], [0.5, 0, 0.5, 1], [1, 0.5, 0, 0.5], [0.5, 1, 0.5, 0]])
    np.testing.assert_allclose(discrete_cost(2), [[0, 1], [1, 0]])
    for cost in (line_cost, ring_cost, discrete_cost):
        np.testing.assert_array_equal(cost(1), [[0.0]])
        assert cost(7).max() == 1.0
        with pytest.raises(ValueError, match="actions must be at least 1, got 0"):
            cost(0)


# Errors

ALL: list[Backup] = [HardMax(), LogSumExp(1.0), OptimalTransport(**GOOD), Tsallis(1.0)]


def with_prior(prior: Any) -> OptimalTransport:
    return OptimalTransport(**GOOD, prior=prior)


def at_states(prior: Any, states: Any) -> Floats:
    return with_prior(prior).value(np.zeros((2, 3)), states)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OptimalTransport(**GOOD | {"cost": [[0.0, 1.0]]}), r"cost must be a square .*, got shape \(1, 2\)"),
        (lambda: OptimalTransport(**GOOD | {"tau": 0.0}), r"tau must be greater than 0, got 0\.0"),
        (lambda: with_prior([0.5, 0.5]), r"prior must have 3 entries .*, got shape \(2,\)"),
        (lambda: with_prior([[1.0, 0.0, 0.0], [0.5, 0.0, 0.0]]), r"prior must sum to one, .* 0\.5 at .*\(1,\)"),
        (lambda: with_prior([1.5, -0.5, 0.0]), r"prior must not be negative, got -0\.5 at .*\(1,\)"),
        (lambda: OptimalTransport.from_prior(TABLE[0], 0.0, **GOOD), "xi must be greater than 0 and at most 1, got 0"),
        (lambda: OptimalTransport.from_prior([0.5, 0.6, 0], 0.5, **GOOD), "prior must sum to one, got a sum of 1.1"),
        (lambda: with_prior([[[1.0, 0.0, 0.0]]]), r"prior must be a vector \[K\] or a table \[S, K\]"),
        (lambda: at_states(lambda _: [[0.5, 0.6, 0.0]] * 2, [0, 1]), r"prior\(states\) must sum to one, .* 1\.1"),
        (lambda: at_states(TABLE, None), r"the prior depends on the state \(\[S, K\]\): pass states="),
        (lambda: at_states(by_function, None), "the prior is a function of the state: pass states="),
        (lambda: at_states(TABLE, [0, 3]), r"states must be in 0\.\.2, got 3"),
        (lambda: at_states(TABLE, [0.0, 1.0]), r"states must be integers .* got dtype float64"),
        (lambda: at_states(TABLE, [0, 1, 2]), r"states \(3,\) do not align with q of shape \(2, 3\)"),
        (
            lambda: with_prior(TABLE).regulariser(np.eye(3), [0, 1]),
            r"states \(2,\) do not align with policy .*",
        ),
        (lambda: with_prior(by_function).at_zero, "at_zero has one value per state and the prior is a function"),
        (lambda: with_prior(by_function).offset, "offset has one value per state and the prior is a function"),
        (lambda: OptimalTransport(**GOOD).at_zero_range(2), "actions is 2 but this backup's cost matrix has 3 actions"),
        (lambda: OptimalTransport(**GOOD).value(np.zeros((5, 2))), r"q must have 3 actions .*, got shape \(5, 2\)"),
        (lambda: LogSumExp(1.0, actions=3).value(np.zeros((5, 2))), r"q must have 3 actions .*, got shape \(5, 2\)"),
        (lambda: LogSumExp(0), "temperature must be greater than 0, got 0"),
        (lambda: LogSumExp(None), "temperature must be a number, got None"),  # type: ignore[arg-type]
        (lambda: LogSumExp(1.0, actions=0), "actions must be at least 1, got 0"),
        (lambda: LogSumExp(1.0).at_zero_range(2.5), r"actions must be a whole number, got 2\.5"),  # type: ignore[arg-type]
        (lambda: LogSumExp(0.5).at_zero, "at_zero depends on K: give LogSumExp its actions=K"),
        (lambda: Tsallis(2.0).at_zero, "give Tsallis its actions=K"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize("backup", ALL)
def test_bad_action_values_and_policies_are_named(backup: Backup) -> None:
    bad: list[tuple[Any, str]] = [
        ([0.0, math.nan, 0.0], r"must be finite, got nan at index \(1,\)"),
        (np.zeros((2, 0)), r"must have one entry per action along its last axis, got shape \(2, 0\)"),
    ]
    for given_, message in bad:
        for name in ("value", "policy", "regulariser"):
            with pytest.raises(ValueError, match=("policy " if name == "regulariser" else "q ") + message):
                getattr(backup, name)(given_)
    with pytest.raises(ValueError, match=r"policy must sum to one, got a sum of 1\.5"):
        backup.regulariser([0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match=r"policy must not be negative, got -1.0 at index \(0,\)"):
        backup.regulariser([-1.0, 1.0, 1.0])


# Legal actions


class FromPrior(SoftmaxMixture):
    """A mixture of one's own: the entropy relative to a prior."""

    temperature = 0.5
    actions = 3

    def shifts(self, actions: int) -> Floats:
        return -0.5 * np.log([[0.7], [0.2], [0.1]])


MANY: list[Any] = [HardMax(), LogSumExp(0.5), Tsallis(0.5), FromPrior(), random_transport(1, 3)]


@pytest.mark.parametrize("backup", MANY, ids=lambda backup: type(backup).__name__)
@pytest.mark.parametrize("simulator", [False, True])
def test_the_values_at_zero_of_all_sets_of_actions_are_in_their_range(backup: Any, simulator: bool) -> None:
    """Those of a table's states to rounding; those of a function, of any set, are attained but for transport."""
    sets = np.array([row for row in itertools.product([False, True], repeat=3) if any(row)])
    model: Any = garnet(states=7, actions=3, branching=2, discount=0.5, seed=1)
    model = TabularModel(model.probabilities, model.successors, model.rewards, discount=0.5, legal=sets)
    q, states = np.where(sets, np.random.default_rng(1).normal(size=(7, 3)), -np.inf), np.arange(7)
    values = restricted(backup, model).value(np.where(sets, 0.0, -np.inf), states)
    gaps = restricted(backup, model).value(q, states) - q.max(axis=1)
    if simulator:
        model = VectorModel(model.step, actions=3, discount=0.5, reward_range=(0, 1), legal=lambda states: sets[states])
    low, high = at_zero_range(backup, model)
    assert low - 1e-12 <= values.min() <= values.max() <= high + 1e-12
    if not (simulator and isinstance(backup, OptimalTransport)):
        assert (low, high) == pytest.approx((values.min(), values.max()), abs=1e-9)
    assert Problem.of(model, backup).above_max - 1e-12 <= gaps.min() <= gaps.max() <= high + 1e-12
