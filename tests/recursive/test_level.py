"""Levels: bias, variance and support are what is certified, by listing all outcomes. See also tests/attack."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.recursive.level import Bounds, Level, ReferenceMoments, certify, first_order, second_order
from smoothplan.theory.backups import HardMax, LogSumExp, SoftmaxMixture
from smoothplan.theory.curvature import Problem, taylor
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


@pytest.mark.parametrize(
    ("actions", "pairs"),
    [(2, 2), (2, 3), (3, 2), *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((3, 3), (4, 2)))],
)
def test_order_2_is_unbiased_for_the_taylor_polynomial(actions: int, pairs: int) -> None:
    """Given Q̂, with children without bias, the mean is T₂(Q; Q̂), to rounding; order 1's is T₁(Q; Q̂)."""
    model = random_model(actions, actions=actions, discount=0.5, branching=2, kind="successor", low=-1.0, terminal=1.0)
    reference = np.random.default_rng(pairs).normal(size=actions)
    q = model.expected_rewards[0]
    backups: tuple[SoftmaxMixture, ...] = (LogSumExp(0.4), transport(model, "table"))
    for backup, printed in itertools.product(backups, (False, True)):
        problem = Problem.of(model, backup)
        second = Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=pairs, printed=printed)
        levels = (Level("constant"), second, replace(second, kind="order-1", quadratic=None, pairs=0))
        exact = Exact(problem, levels, backup, model)
        for row, order in ((1, 2), (2, 1)):
            found = exact.around(row, 0, reference.tolist()).mean
            polynomial = taylor(backup, q, reference, order, 0)
            assert found == pytest.approx(polynomial, abs=1e-10)


@pytest.mark.parametrize("pairs", [2, 3, 4])
@pytest.mark.parametrize(("gap", "noise"), [(1.0, 1.0), (1.0, 0.3), (0.2, 0.7), (20.0, 1.0)])
def test_the_variance_of_the_quadratic_term_is_attained(gap: float, noise: float, pairs: int) -> None:
    """By all outcomes at K = 2 with p = ½ around Q̂ = 0: a search for large ratios hardly ever meets such a case."""
    coins = [[(0.5, 0, mean + noise, True), (0.5, 0, mean - noise, True)] for mean in (gap, 0.0)]
    model, backup = sp.TabularModel.from_outcomes([coins], discount=0.5), LogSumExp(1.0)
    problem = Problem.of(model, backup)
    levels = (Level("constant"), Level("order-1", linear=0), Level("order-2", linear=0, quadratic=0, pairs=pairs))
    exact = Exact(problem, levels, backup, model)
    first, second = (exact.around(row, 0, [0.0, 0.0]).variance for row in (1, 2))
    around, through = ReferenceMoments(gap / 2.0, 0.0, 0.0), Bounds(0.0, noise**2, -noise, gap + noise, 1.0)
    proved = second_order(problem, around, through, through, pairs).variance
    proved -= first_order(problem, around, through).variance
    # Both parts are independent, so that variances add. The bound has the second moment, and the error of T₂ once more,
    # which exceeds the range if the gap is large.
    mean = gap**2 / 8.0
    assert second - first + mean**2 == pytest.approx(proved - mean**2, rel=1e-9)


@pytest.mark.parametrize("samples", [0, 1, 3, 6])
def test_levels_that_make_no_sense_are_refused(samples: int) -> None:
    with pytest.raises(ValueError, match=f"samples must be a multiple of 4 for debias=2, got {samples}"):
        Level("order-1", samples=samples, reference=0, linear=0, debias=2)
    with pytest.raises(ValueError, match="debias must be 0 for a level of kind 'order-2'"):
        Level("order-2", samples=4, reference=0, linear=0, quadratic=0, pairs=2, debias=1)
    for hard in (entropy_problem(temperature=0.0), replace(entropy_problem(), derivatives=(0.25,))):
        with pytest.raises(
            ValueError, match=r"debias must be at most 0 for a backup with \d bounded derivatives, got 1"
        ):
            certify(hard, [Level("constant"), Level("plug-in", samples=2, reference=0, debias=1)])
    for child in (1, 2, -1):
        with pytest.raises(ValueError, match="level 1 refers to levels"):
            certify(entropy_problem(), [Level("constant"), Level("plug-in", samples=2, reference=child)])
