"""Levels: bias, variance and support are what is certified, by listing all outcomes. See also tests/attack."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.level import Bounds, Level, certify
from smoothplan.theory import curvature
from smoothplan.theory.backups import HardMax, LogSumExp, SoftmaxMixture
from smoothplan.theory.curvature import Problem
from tests.common import declaring, ordinary_values
from tests.naive import Distribution, Exact, random_model, transport, with_own_shifts
from tests.recursive.common import entropy_problem

ROUNDING = 1e-9


# --- Exactly: all outcomes of small tables --------------------------------------------------------------------------


def small_levels(problem: Problem) -> tuple[Level, ...]:
    """Levels whose outcomes can be listed; with their own shifts, with none, with wrong ones, and clipped."""
    tight = (problem.middle - 0.1, problem.middle + 0.2)
    wide = (problem.values[0] - 1.0, problem.values[1] + 1.0)
    smooth = problem.temperature > 0.0
    levels = [
        Level("constant"),
        Level("plug-in", samples=1, reference=0),
        Level("plug-in", samples=2, reference=0),
        Level("plug-in", samples=1, reference=1, shift=-0.3),
        Level("plug-in", samples=1, reference=0, clip=tight),
        Level("plug-in", samples=2, reference=0, clip=wide),
    ]
    if smooth:
        levels += [
            Level("order-1", samples=0, linear=0),
            Level("order-1", samples=1, reference=0, linear=1),
            Level("order-1", samples=2, reference=0, linear=0, printed=True),
            Level("order-1", samples=1, reference=1, linear=0, clip=tight),
            Level("order-1", samples=2, reference=0, linear=2, shift=-0.2),
            Level("order-2", samples=0, linear=0, quadratic=0, pairs=2),
            Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=2, printed=True),
            Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=3, clip=wide),
            Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=2, printed=True, clip=tight),
            Level("order-2", samples=0, linear=1, quadratic=1, pairs=2, shift=0.05),
            Level("plug-in", samples=2, reference=0, debias=1, rewards=2),
            Level("order-1", samples=2, reference=0, linear=0, debias=1),
            Level("order-1", samples=2, reference=0, linear=16, debias=1, shift=0.1),
            Level("plug-in", samples=4, reference=0, debias=2),
            Level("order-1", samples=4, reference=0, linear=0, debias=2),
        ]
    levels.append(Level("constant", shift=9.0))
    return with_own_shifts(problem, levels)


SMALL: dict[str, Callable[[int], tuple[sp.TabularModel, SoftmaxMixture]]] = {
    "deterministic": lambda seed: (_small(seed, branching=2), LogSumExp(0.5)),
    "nearly hard": lambda seed: (_small(seed, branching=2, discount=0.5), LogSumExp(0.02)),
    "bernoulli": lambda seed: (_small(seed, branching=1, kind="bernoulli"), LogSumExp(0.2)),
    "successor": lambda seed: (_small(seed, branching=2, kind="successor", low=-2.0, high=-0.5), LogSumExp(0.3)),
    "ends": lambda seed: (_small(seed, branching=2, terminal=0.3, low=-0.5, discount=0.5), LogSumExp(1.0)),
    "ends, one successor": lambda seed: (_small(seed, branching=1, terminal=0.3, low=0.5), LogSumExp(0.1)),
    "myopic": lambda seed: (_small(seed, branching=2, kind="successor", discount=0.0), LogSumExp(0.1)),
    "transport": lambda seed: _transported(_small(seed, branching=2), 0.5),
    "hard": lambda seed: (_small(seed, branching=2, discount=0.4, kind="successor"), HardMax()),
}


def _small(seed: int, **settings: Any) -> sp.TabularModel:
    return random_model(seed, **{"actions": 2, "states": 3, "discount": 0.3, **settings})


def _transported(model: sp.TabularModel, lam: float) -> tuple[sp.TabularModel, SoftmaxMixture]:
    return model, replace(transport(model, "table"), lam=lam)


def holds(proved: Bounds, found: Distribution, value: float) -> None:
    assert abs(found.mean - value) <= proved.bias + ROUNDING
    assert found.variance <= proved.variance + ROUNDING
    assert proved.low - ROUNDING <= found.values[0]
    assert found.values[-1] <= proved.high + ROUNDING


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in ("successor", "myopic") else ()) for name in SMALL]
)
def test_certificates_hold_exactly(name: str, seed: int) -> None:
    """Every level, at two states, by listing all outcomes: no statistics."""
    model, backup = SMALL[name](seed)
    problem = Problem.of(model, backup)
    values = sp.exact.solve(model, backup, tolerance=1e-10).values
    levels = small_levels(problem)
    exact = Exact(problem, levels, backup, model)
    for row, proved in enumerate(certify(problem, levels)):
        for state in range(1 if levels[row].kind == "order-2" else 2):
            holds(proved, exact.level(row, state), float(values[state]))


def lottery(ends: bool) -> sp.TabularModel:
    """Tickets that pay ±2, or ±1, with equal odds: every optimal value is 0, and all that is paid is far from it."""
    tickets = [[(0.5, 0, prize, False), (0.5, 1, -prize, ends)] for prize in (2.0, 1.0)]
    return sp.TabularModel.from_outcomes([tickets, tickets], discount=0.3, value_range=(0.0, 0.0))


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("backup", [LogSumExp(0.3), HardMax()])
def test_certificates_hold_exactly_with_declared_values(backup: SoftmaxMixture, ends: bool) -> None:
    """A support that was taken from the declared values would be wrong by far."""
    model = lottery(ends)
    problem = Problem.of(model, backup)
    assert problem.width < 0.3
    values = sp.exact.solve(model, backup, tolerance=1e-10).values
    levels = small_levels(problem)[:12]
    exact = Exact(problem, levels, backup, model)
    for row, proved in enumerate(certify(problem, levels)):
        found = exact.level(row, 0)
        holds(proved, found, float(values[0]))
        if levels[row].kind != "constant" and levels[row].clip is None:
            assert found.values[0] < problem.values[0] - 0.5
            assert found.values[-1] > problem.values[1] + 0.5


def test_action_values_are_bounded_by_what_they_lead_to() -> None:
    """No ordinary action value exceeds the largest optimal value, and a poor one may be below the smallest."""
    for name, (model, backup) in ((name, SMALL[name](1)) for name in SMALL):
        declared = declaring(model, value_range=ordinary_values(model))
        problem = Problem.of(declared, backup)
        q = sp.exact.solve(declared, backup, tolerance=1e-10).q[~model.terminal]
        low, high = problem.action_values
        assert low - ROUNDING <= q.min() <= q.max() <= high + ROUNDING, name
        assert np.ptp(q, axis=1).max() <= problem.action_gap + ROUNDING
        if backup.temperature == 0.0:
            assert high <= problem.values[1] < declared.reward_range[1] + declared.discount * problem.values[1]


def test_certificates_of_clipping_hold_for_any_interval() -> None:
    """Intervals that cut nothing, a little, everything, or lie beside all values."""
    model, backup = SMALL["successor"](1)
    problem = Problem.of(model, backup)
    value = float(sp.exact.solve(model, backup, tolerance=1e-10).values[0])
    ends = np.linspace(problem.values[0] - 1.0, problem.values[1] + 1.0, 6)
    for low, high in itertools.combinations(ends.tolist(), 2):
        levels = (
            Level("constant"),
            Level("plug-in", samples=2, reference=0, clip=(low, high)),
            Level("order-1", samples=1, reference=0, linear=0, clip=(low, high)),
            Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=2, clip=(low, high)),
        )
        exact = Exact(problem, levels, backup, model)
        for row, proved in enumerate(certify(problem, levels)):
            holds(proved, exact.level(row, 0), value)


# --- Terms that are attained -----------------------------------------------------------------------------------------


def one_step(rewards: Any, probabilities: Any = None, **declared: Any) -> sp.TabularModel:
    """Rewards [K, B] of state 0, equally likely by default, and then the end: a return is its reward."""
    rewards = np.stack([np.asarray(rewards), np.zeros_like(rewards)])
    chances = np.full(rewards.shape, 1.0 / rewards.shape[2])
    if probabilities is not None:
        chances[0] = probabilities
    ends = np.array([False, True])
    return sp.TabularModel(chances, np.ones(rewards.shape, int), rewards, terminal=ends, **{"discount": 0.5} | declared)


def order_2(pairs: int, printed: bool) -> tuple[Level, Level]:
    return (
        Level("constant"),
        Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=pairs, printed=printed),
    )


@pytest.mark.parametrize(
    ("actions", "pairs"),
    [(2, 2), (2, 3), (3, 2), *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((3, 3), (4, 2)))],
)
def test_order_2_is_unbiased_for_the_taylor_polynomial(actions: int, pairs: int) -> None:
    """Given Q̂, with children without bias, the mean is T₂(Q; Q̂), to rounding; order 1's is T₁(Q; Q̂)."""
    rng = np.random.default_rng(actions)
    model = one_step(rng.uniform(-1.0, 1.0, size=(actions, 2)), rng.dirichlet(np.ones(2), size=actions))
    reference = np.random.default_rng(pairs).normal(size=actions)
    q = model.expected_rewards[0]
    backups: tuple[SoftmaxMixture, ...] = (LogSumExp(0.4), transport(model, "table"))
    for backup, printed in itertools.product(backups, (False, True)):
        problem = Problem.of(model, backup)
        second = order_2(pairs, printed)
        levels = (*second, replace(second[1], kind="order-1", quadratic=None, pairs=0))
        exact = Exact(problem, levels, backup, model)
        for row, order in ((1, 2), (2, 1)):
            found = exact.around(row, 0, reference.tolist()).mean
            taylor = curvature.taylor(backup, q[None], reference[None], order, np.array([0]))[0]
            assert found == pytest.approx(taylor, abs=1e-10)


def fair_coin(gap: float, noise: float) -> sp.TabularModel:
    """Two actions whose returns are ±noise with equal odds, the first one's moved up by a gap; then the end."""
    return one_step([[gap + noise, gap - noise], [noise, -noise]])


@pytest.mark.parametrize("pairs", [2, 3, 4])
@pytest.mark.parametrize(("gap", "noise"), [(1.0, 1.0), (1.0, 0.3), (0.2, 0.7)])
def test_the_variance_of_the_quadratic_term(gap: float, noise: float, pairs: int) -> None:
    """`second_order` against all outcomes at K = 2 with p = 1/2, where its bound on E Quad² is attained.

    There E[(Δ_A − Δ_A′)²] = r²/2, which is (1 − 1/K)·r²: the probability that the actions differ and the bound on the
    squared difference are not both to be halved. With (r/√2)² in place of r² the bound fails.
    """
    eta = 1.0
    model, backup = fair_coin(gap, noise), LogSumExp(eta)
    problem = Problem.of(model, backup)
    levels = (
        Level("constant"),
        Level("order-1", linear=0),
        Level("order-2", linear=0, quadratic=0, pairs=pairs),
    )
    exact = Exact(problem, levels, backup, model)
    # Around Q̂ = 0 linear and quadratic part are independent, so the variances subtract.
    quadratic = exact.around(2, 0, [0.0, 0.0]).variance - exact.around(1, 0, [0.0, 0.0]).variance
    around = arithmetic.exact_reference(gap / 2.0, 0.0, 0.0)
    through = Bounds(bias=0.0, variance=noise**2, low=-noise, high=gap + noise, calls=1.0)
    first = arithmetic.first_order(problem, around, through)
    second = arithmetic.second_order(problem, around, through, through, pairs)
    assert exact.around(2, 0, [0.0, 0.0]).variance <= second.variance + ROUNDING
    assert exact.around(1, 0, [0.0, 0.0]).variance <= first.variance + ROUNDING

    def bound(squared_difference: float) -> float:
        cross = 8.0 * noise**2 * squared_difference / pairs
        return 0.5 / (16.0 * eta**2) * (cross + 8.0 * noise**4 / (pairs * (pairs - 1)) + gap**4)

    mean = gap**2 / (8.0 * eta)
    assert quadratic + mean**2 == pytest.approx(bound(gap**2), rel=1e-9)  # E Quad² attains the bound
    # What the error of T₂ adds to the variance; at order 1 a reference without noise adds nothing.
    spread = second.variance - first.variance - (gap**2 / (8.0 * eta)) ** 2
    assert spread == pytest.approx(bound(gap**2), rel=1e-9)
    if noise**2 / pairs > gap**2 / 8.0:
        assert quadratic > bound(gap**2 / 2.0) + 1e-6


@pytest.mark.parametrize("pairs", [2, 3])
def test_the_variance_of_printed_levels_is_attained(pairs: int) -> None:
    """Two actions alike, whose pairs are drawn even where both are the same; two that differ, centred by the policy;
    one that is clipped. With two pairs the support is attained, too.
    """
    noise, eta, backup = 0.7, 0.5, LogSumExp(0.5)
    model = fair_coin(0.0, noise)
    around = arithmetic.exact_reference(0.0, 0.0, 0.0)
    through = Bounds(bias=0.0, variance=noise**2, low=-noise, high=noise, calls=1.0)
    problem = Problem.of(model, backup)
    levels = (Level("constant"), Level("order-2", linear=0, quadratic=0, pairs=pairs, printed=True))
    found = Exact(problem, levels, backup, model).around(1, 0, [0.0, 0.0])
    proved = arithmetic.second_order(problem, around, through, through, pairs, printed=True)
    centred = problem.action_gap**2 / 4.0  # what ⟨π, Q̂⟩ leaves of the variance between actions, here nothing
    assert found.variance == pytest.approx(float(proved.variance) - centred, rel=1e-9)
    assert found.variance == pytest.approx(noise**2 + noise**4 / (2.0 * eta**2 * pairs * (pairs - 1)), rel=1e-9)

    assert float(proved.high) == pytest.approx(found.values[-1])
    assert pairs > 2 or float(proved.low) == pytest.approx(found.values[0])

    single = random_model(0, actions=1, discount=0.0, kind="bernoulli")
    levels = (Level("constant"), Level("plug-in", samples=1, reference=0, clip=(0.0, 1.0 - 1e-9)))
    clipped = certify(Problem.of(single, HardMax()), levels)[1]
    assert clipped.variance == pytest.approx(0.25, rel=1e-6)  # that of a fair coin

    apart = one_step([[1.0], [0.0]], discount=1e-9)
    problem = Problem.of(apart, backup)
    levels = (Level("constant"), Level("order-1", linear=0, printed=True))
    assert Exact(problem, levels, backup, apart).level(1, 0).variance == pytest.approx(0.25, rel=1e-6)
    assert 0.25 <= certify(problem, levels)[1].variance * (1.0 + 1e-6) < 0.251


def test_the_bias_of_a_coarse_quadratic_child_is_attained() -> None:
    """Two actions alike, next states whose constant guesses are wrong by W/2 in opposite directions: γ²W²/(8η)."""
    discount, eta = 0.3, 0.7
    step = discount / (1.0 - discount)
    rewards = np.array([[0.2, 0.2 + step], [1.0, 1.0], [0.0, 0.0]])
    successors = np.array([[1, 2], [1, 1], [2, 2]])[..., None]
    model = sp.TabularModel(np.ones((3, 2, 1)), successors, rewards, discount=discount)
    backup = LogSumExp(eta)
    problem = Problem.of(model, backup)
    depth = 20
    levels = with_own_shifts(
        problem,
        (
            Level("constant"),
            *(Level("plug-in", samples=1, reference=row) for row in range(depth)),
            Level("order-2", samples=1, reference=depth, linear=depth, quadratic=0, pairs=2),
        ),
    )
    value = float(sp.exact.solve(model, backup, tolerance=1e-12).values[0])
    bias = Exact(problem, levels, backup, model).level(depth + 1, 0).mean - value
    assert bias == pytest.approx((discount * problem.width) ** 2 / (8.0 * eta), rel=1e-6)
    assert bias <= certify(problem, levels)[-1].bias <= bias * (1.0 + 1e-6)


def test_the_second_order_remainder_may_exceed_the_range() -> None:
    """|F − T₂| is bounded by range²/(8η), not by the range: the variance bound must not use the smaller of the two."""
    eta, gap = 0.01, 1.0
    backup = LogSumExp(eta)
    error = float(backup.value([gap, 0.0]) - curvature.taylor(backup, [gap, 0.0], [0.0, 0.0], 2))
    assert gap < abs(error) <= gap**2 / (8.0 * eta)
    around = arithmetic.exact_reference(gap / 2.0, 0.0, 0.0)
    through = Bounds(bias=0.0, variance=0.0, low=0.0, high=gap, calls=1.0)
    problem = Problem.of(fair_coin(gap, 0.0), backup)
    proved = arithmetic.second_order(problem, around, through, through, 2)
    assert abs(error) <= proved.bias <= 1.1 * abs(error)
    squares = problem.differing * gap**4 / (16.0 * eta**2)
    assert proved.variance >= gap**2 / 4.0 + squares + error**2


# --- Levels that make no sense


@pytest.mark.parametrize("samples", [0, 1, 3, 6])
def test_what_cannot_be_debiased_is_refused(samples: int) -> None:
    with pytest.raises(ValueError, match=f"samples must be a multiple of 4 for debias=2, got {samples}"):
        Level("order-1", samples=samples, reference=0, linear=0, debias=2)
    with pytest.raises(ValueError, match="rewards must be at least 1, got 0"):
        Level("constant", rewards=0)
    with pytest.raises(ValueError, match="debias must be 0 for a level of kind 'order-2'"):
        Level("order-2", samples=4, reference=0, linear=0, quadratic=0, pairs=2, debias=1)
    debiased = [Level("constant"), Level("plug-in", samples=2, reference=0, debias=1)]
    for hard in (entropy_problem(temperature=0.0), replace(entropy_problem(), derivatives=(0.25,))):
        with pytest.raises(ValueError, match=r"debias must be 0 for a backup with \d bounded derivatives, got 1"):
            certify(hard, debiased)


@pytest.mark.parametrize("child", [1, 2, -1])
def test_a_child_that_is_not_above_is_refused(child: int) -> None:
    with pytest.raises(ValueError, match="level 1 refers to levels"):
        certify(entropy_problem(), [Level("constant"), Level("plug-in", samples=2, reference=child)])
