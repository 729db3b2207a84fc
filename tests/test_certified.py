"""Certified means certified: bias, variance and support of every level, exactly where all outcomes can be listed."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan import curvature
from smoothplan.backups import HardMax, LogSumExp, SoftmaxMixture
from smoothplan.engines.batched import BatchedEngine
from smoothplan.engines.compiled import CompiledEngine
from smoothplan.models.base import Oracle
from smoothplan.schedules import level as arithmetic
from smoothplan.schedules.debias import noise
from smoothplan.schedules.level import Certificate, Level, Problem, Return, certify
from smoothplan.schedules.optimise import optimised
from tests.common import declaring, ordinary_values
from tests.naive import Distribution, Exact, entrance, random_model, rooted, transport, with_own_shifts

FALSE_ALARM = 1e-6 / 4000
"""Of one statistical check; there are fewer than 4000 in this file, so 1e-6 for all of them."""

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
            Level("order-1", samples=2, reference=0, linear=0, centring="policy"),
            Level("order-1", samples=1, reference=1, linear=0, clip=tight),
            Level("order-1", samples=2, reference=0, linear=2, shift=-0.2),
            Level("order-2", samples=0, linear=0, quadratic=0, pairs=2),
            Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=2, equal_pairs=True),
            Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=3, clip=wide),
            Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=2, centring="policy", clip=tight),
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


def holds(proved: Certificate, found: Distribution, value: float) -> None:
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


# --- The moments of a reference -------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [2, 3, 4])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_moments_of_the_reference(actions: int, samples: int) -> None:
    """r₂, r₄ and the width against all outcomes of K·N Bernoulli returns, of several probabilities."""
    problem = Problem.of(random_model(0, actions=actions, discount=0.0, kind="bernoulli"), LogSumExp(1.0))
    for chance in (0.5, 0.2, 0.05):
        chances = [chance, *[0.5] * (actions - 1)] if chance != 0.5 else [0.5] * actions
        for same in (chances, [chance] * actions):
            variance = max(p * (1 - p) for p in same)
            bias = 0.07
            through = Return(bias=bias, variance=variance, low=0.0, high=1.0, calls=1.0)
            proved = arithmetic.reference(problem, through, samples)
            # The worst biases of the entries: as far apart as they may be.
            shifts = np.array([bias, *[-bias] * (actions - 1)])
            second = fourth = noise = 0.0
            for heads in itertools.product(range(samples + 1), repeat=actions):
                weight = math.prod(
                    math.comb(samples, k) * p**k * (1 - p) ** (samples - k) for k, p in zip(heads, same, strict=True)
                )
                errors = np.array(heads) / samples - np.array(same)
                noise += weight * float(np.ptp(errors)) ** 4
                second += weight * float(np.ptp(errors + shifts)) ** 2
                fourth += weight * float(np.ptp(errors + shifts)) ** 4
            assert noise**0.25 <= proved.noise_fourth + ROUNDING
            assert math.sqrt(second) <= proved.second + ROUNDING
            assert fourth**0.25 <= proved.fourth + ROUNDING
            if actions == 2 and chance == 0.5:
                # Here range(e)² = 2Σ(e_a − ē)², and only the bound on the fourth moment of one return is slack.
                assert noise**0.25 > 0.6 * proved.noise_fourth


@pytest.mark.parametrize("actions", [2, 3, 4, 7])
def test_moments_of_the_reference_approach_those_of_normal_variables(actions: int) -> None:
    """After many returns S·n/v is a chi-squared variable with K − 1 degrees of freedom: all coefficients at once."""
    count, variance = 1e9, 0.2
    found = noise(actions, variance, 1.0, count)
    moments = np.cumprod([actions - 1.0, actions + 1.0, actions + 3.0]) * (2.0 * variance / count) ** np.arange(1, 4)
    np.testing.assert_allclose([found.second**2, found.fourth**4, found.sixth**6], moments, rtol=1e-6)


# --- Order 2 around the Taylor polynomial ---------------------------------------------------------------------------


def one_step(rewards: Any, probabilities: Any = None, **declared: Any) -> sp.TabularModel:
    """Rewards [K, B] of state 0, equally likely by default, and then the end: a return is its reward."""
    rewards = np.stack([np.asarray(rewards), np.zeros_like(rewards)])
    chances = np.full(rewards.shape, 1.0 / rewards.shape[2])
    if probabilities is not None:
        chances[0] = probabilities
    ends = np.array([False, True])
    return sp.TabularModel(chances, np.ones(rewards.shape, int), rewards, terminal=ends, **{"discount": 0.5} | declared)


def order_2(pairs: int, centring: arithmetic.Centring = "action") -> tuple[Level, Level]:
    return (
        Level("constant"),
        Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=pairs, centring=centring),
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
    for backup, centring in itertools.product(backups, ("action", "policy")):
        problem = Problem.of(model, backup)
        second = order_2(pairs, centring)  # type: ignore[arg-type]
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
    through = Return(bias=0.0, variance=noise**2, low=-noise, high=gap + noise, calls=1.0)
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
    through = Return(bias=0.0, variance=noise**2, low=-noise, high=noise, calls=1.0)
    problem = Problem.of(model, backup)
    levels = (Level("constant"), Level("order-2", linear=0, quadratic=0, pairs=pairs, equal_pairs=True))
    found = Exact(problem, levels, backup, model).around(1, 0, [0.0, 0.0])
    proved = arithmetic.second_order(problem, around, through, through, pairs, equal_pairs=True)
    assert found.variance == pytest.approx(float(proved.variance), rel=1e-9)
    assert found.variance == pytest.approx(noise**2 + noise**4 / (2.0 * eta**2 * pairs * (pairs - 1)), rel=1e-9)

    assert float(proved.high) == pytest.approx(found.values[-1])
    assert pairs > 2 or float(proved.low) == pytest.approx(found.values[0])

    single = random_model(0, actions=1, discount=0.0, kind="bernoulli")
    levels = (Level("constant"), Level("plug-in", samples=1, reference=0, clip=(0.0, 1.0 - 1e-9)))
    clipped = certify(Problem.of(single, HardMax()), levels)[1]
    assert clipped.variance == pytest.approx(0.25, rel=1e-6)  # that of a fair coin

    apart = one_step([[1.0], [0.0]], discount=1e-9)
    problem = Problem.of(apart, backup)
    levels = (Level("constant"), Level("order-1", linear=0, centring="policy"))
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
    through = Return(bias=0.0, variance=0.0, low=0.0, high=gap, calls=1.0)
    problem = Problem.of(fair_coin(gap, 0.0), backup)
    proved = arithmetic.second_order(problem, around, through, through, 2)
    assert abs(error) <= proved.bias <= 1.1 * abs(error)
    squares = problem.differing * gap**4 / (16.0 * eta**2)
    assert proved.variance >= gap**2 / 4.0 + squares + error**2


# --- By sampling: every level of optimised schedules and of tables made by hand -------------------------------------


@dataclass(frozen=True)
class Instance:
    model: sp.TabularModel
    backup: SoftmaxMixture
    epsilon: float


INSTANCES: dict[str, Callable[[], Instance]] = {
    "entropy": lambda: Instance(_random(1, kind="bernoulli"), LogSumExp(1.0), 0.004),
    "sharp": lambda: Instance(_random(2, kind="bernoulli"), LogSumExp(0.1), 0.1),
    "negative": lambda: Instance(_random(3, actions=3, discount=0.3, kind="successor", low=-1.0), LogSumExp(0.5), 0.2),
    "ends": lambda: Instance(_random(4, actions=4, kind="bernoulli", terminal=0.3), LogSumExp(0.3), 0.1),
    "far": lambda: Instance(_random(5, discount=0.5), LogSumExp(0.5), 0.15),
    "one successor": lambda: Instance(_random(6, discount=0.4, branching=1, kind="bernoulli"), LogSumExp(0.6), 0.1),
    "transport": lambda: Instance(*_transported(_random(7, actions=3, kind="bernoulli"), 0.7), 0.05),
    "transport ends": lambda: Instance(
        *_transported(_random(8, discount=0.3, low=0.5, high=2.0, terminal=0.2), 0.3), 0.2
    ),
}


def _random(seed: int, **settings: Any) -> sp.TabularModel:
    return random_model(seed, **{"actions": 2, "discount": 0.2, **settings})


BUDGET = 2_000_000
"""Simulator calls for the samples of one level at one state, about."""


def measured(instance: Instance, levels: Sequence[Level], row: int, state: int, seed: int) -> tuple[int, float, float]:
    """Number, mean and variance of samples of a level at a state, each around a fresh reference."""
    model, problem = instance.model, Problem.of(instance.model, instance.backup)
    schedule = rooted(problem, levels, row)
    count = max(2_000, min(200_000, BUDGET // (1 + schedule.costs[row])))
    far = entrance(model)
    sums = CompiledEngine(schedule, instance.backup, model).returns(Oracle(model, seed, row), far, state, count)
    mean = sums.total / count
    variance = max(0.0, sums.squares / count - mean**2) * count / (count - 1)
    reward = float(model.rewards[far, state].flat[0])
    return count, (mean - reward) / model.discount, variance / model.discount**2


def check(instance: Instance, levels: Sequence[Level], row: int, proved: Certificate, seed: int) -> None:
    """Bias and variance by Maurer and Pontil's inequalities, which are not asymptotic; support by single samples."""
    log = math.log(2.0 / FALSE_ALARM)
    value = sp.exact.solve(instance.model, instance.backup, tolerance=1e-10).values
    width = float(proved.high - proved.low)
    for state in range(2):
        count, mean, variance = measured(instance, levels, row, state, seed)
        radius = math.sqrt(2.0 * variance * log / count) + 7.0 * width * log / (3.0 * (count - 1))
        assert abs(mean - value[state]) <= proved.bias + radius + ROUNDING
        slack = width * math.sqrt(2.0 * log / (count - 1))
        # A variance found from sums of squares is rounded.
        assert math.sqrt(max(0.0, variance - ROUNDING)) <= math.sqrt(proved.variance) + slack
    schedule = rooted(Problem.of(instance.model, instance.backup), levels, row)
    few = max(50, min(5_000, BUDGET // (1 + schedule.costs[row]) // 10))
    states = np.arange(few) % 2
    samples = BatchedEngine(schedule, instance.backup)._sample(Oracle(instance.model, seed, row), row, states)
    assert proved.low - ROUNDING <= samples.min()
    assert samples.max() <= proved.high + ROUNDING


def levels_by_hand(problem: Problem) -> tuple[Level, ...]:
    """Every kind of level around every other."""
    clip = (problem.values[0] - 0.3, problem.values[1] + 0.3)
    levels = (
        Level("constant"),
        Level("plug-in", samples=4, reference=0, rewards=2),
        Level("order-1", samples=6, reference=1, linear=1),
        Level("order-2", samples=6, reference=1, linear=2, quadratic=1, pairs=3),
        Level("order-1", samples=0, linear=3),
        Level("order-2", samples=9, reference=2, linear=3, quadratic=2, pairs=2, centring="policy", clip=clip),
        Level("plug-in", samples=7, reference=3, clip=clip),
        Level("plug-in", samples=4, reference=1, debias=1, rewards=3),
        Level("order-1", samples=4, reference=7, linear=2, debias=2, rewards=2),
        Level("order-1", samples=6, reference=8, linear=8, debias=1),
    )
    return with_own_shifts(problem, levels)


EVERY_DAY = ("entropy", "far", "transport ends")
"""Instances that every test run checks with levels by hand: these are around each other, and so the dearest."""


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        pytest.param(
            name, kinds, marks=() if kinds == (2, 2) or (kinds is None and name in EVERY_DAY) else pytest.mark.full
        )
        for name in INSTANCES
        for kinds in ((0, 0), (1, 0), (2, 2), None)
    ],
)
def test_sampled_levels_keep_their_certificates(name: str, kinds: tuple[int, int] | None) -> None:
    """Those of optimised schedules, and those made by hand. False-alarm rate 1e-6 for the whole file."""
    instance = INSTANCES[name]()
    problem = Problem.of(instance.model, instance.backup)
    levels = levels_by_hand(problem) if kinds is None else optimised(problem, instance.epsilon, 0.1, *kinds).levels[:-1]
    if name == "entropy" and kinds == (2, 2):
        assert any(level.debias > 0 for level in levels)
        assert any(level.rewards > 1 for level in levels)
    for row, proved in enumerate(certify(problem, levels)):
        if kinds is None or proved.calls <= BUDGET // 1_000:
            check(instance, levels, row, proved, seed=7 if kinds is None else sum(kinds))


# --- The bounds are not idle: wrong estimators are caught -----------------------------------------------------------

LARGE = 400_000
"""Samples, after which by Hoeffding's inequality the mean of variables of width one is known to within 0.006."""


def mean_of(model: sp.TabularModel, backup: SoftmaxMixture, levels: Sequence[Level], row: int, state: int) -> float:
    """The mean of many samples of a level at a state."""
    engine = CompiledEngine(rooted(Problem.of(model, backup), levels, row), backup, model)
    total = engine.returns(Oracle(model, 0, row), entrance(model), state, LARGE).total
    return (total / LARGE - float(model.rewards[entrance(model), state].flat[0])) / model.discount


def test_clipping_to_the_value_range_is_caught() -> None:
    """The paper's clipping, to [0, B] and even to the true value interval, costs more bias than is certified without.

    False-alarm rate 1e-6 for the whole file.
    """
    model, backup, state = random_model(4, actions=2, discount=0.02, kind="bernoulli"), LogSumExp(1.0), 1
    problem = Problem.of(model, backup)
    value = float(sp.exact.solve(model, backup).values[state])
    levels = with_own_shifts(
        problem,
        (
            Level("constant"),
            Level("order-1", samples=60, reference=0, linear=0),
            Level("order-2", samples=60, reference=0, linear=0, quadratic=0, pairs=2),
        ),
    )
    printed = (0.0, 1.0 / (1.0 - model.discount))
    radius = math.sqrt(math.log(2.0 / FALSE_ALARM) / (2.0 * LARGE))
    for row in (1, 2):
        certified = certify(problem, levels)[row].bias
        assert abs(mean_of(model, backup, levels, row, state) - value) < certified
        for clip, width in ((printed, printed[1]), (problem.values, problem.width)):
            wrong = (*levels[:row], replace(levels[row], clip=clip))
            bias = abs(mean_of(model, backup, wrong, row, state) - value)
            assert bias - radius * width > certified
            assert bias < certify(problem, wrong)[row].bias  # which is booked where the clipping is declared


def test_a_missing_quadratic_term_and_a_wrong_shift_are_caught() -> None:
    """By exact enumeration: the certified bias of the right level is below the bias of each wrong one.

    Deterministic rewards that differ, a constant reference: the Taylor remainder itself.
    """
    found: dict[str, bool] = {"no quadratic term": False, "no shift": False, "shift of the wrong sign": False}
    for gap in np.linspace(0.05, 1.0, 20):
        model, backup = one_step([[gap], [0.0]], discount=0.001), LogSumExp(0.3)
        problem = Problem.of(model, backup)
        value = float(sp.exact.solve(model, backup, tolerance=1e-10).values[0])
        levels = with_own_shifts(
            problem,
            (
                Level("constant"),
                Level("order-1", linear=0),
                Level("order-2", linear=0, quadratic=0, pairs=2),
                Level("plug-in", samples=1, reference=0),
            ),
        )
        proved = certify(problem, levels)
        exact = Exact(problem, levels, backup, model)
        bias = [abs(exact.level(row, 0).mean - value) for row in range(4)]
        assert all(bias[row] <= proved[row].bias + ROUNDING for row in range(4))
        shift = levels[1].shift
        bare = abs(exact.level(1, 0).mean - shift - value)
        found["no quadratic term"] |= bare > proved[2].bias + ROUNDING
        found["no shift"] |= bare > proved[1].bias + ROUNDING
        found["shift of the wrong sign"] |= bare + shift > proved[1].bias + ROUNDING
    assert all(found.values()), found


def test_a_wrong_shift_of_a_plug_in_level_is_caught() -> None:
    """Jensen's excess, taken off by half: neither left in nor added. By exact enumeration."""
    model, backup = one_step([[1.0, 0.0], [1.0, 0.0]], discount=0.001), LogSumExp(1.0)
    problem = Problem.of(model, backup)
    value = float(sp.exact.solve(model, backup, tolerance=1e-10).values[0])
    levels = with_own_shifts(problem, (Level("constant"), Level("plug-in", samples=1, reference=0)))
    proved = certify(problem, levels)[1]
    assert levels[1].shift < 0.0
    right = Exact(problem, levels, backup, model).level(1, 0).mean - value
    assert abs(right) <= proved.bias
    assert abs(right - levels[1].shift) > proved.bias
    assert abs(right - 2.0 * levels[1].shift) > proved.bias
