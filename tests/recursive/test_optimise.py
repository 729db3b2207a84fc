"""The search for a schedule: what it promises, what it costs, and how the price grows."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smoothplan as sp
from smoothplan.recursive import optimise
from smoothplan.recursive.level import certify
from smoothplan.recursive.optimise import optimised
from smoothplan.recursive.schedule import Schedule, trimmed
from smoothplan.theory.backups import HardMax, LogSumExp
from smoothplan.theory.curvature import Problem
from tests.naive import random_model
from tests.recursive.common import entropy_problem, priced, slope

problems = st.builds(
    entropy_problem,
    actions=st.integers(2, 5),
    discount=st.sampled_from([0.0, 0.04, 0.1, 0.2, 0.35, 0.5, 0.7]),
    temperature=st.sampled_from([0.0, 0.05, 0.3, 1.0, 4.0]),
    rewards=st.sampled_from([(0.0, 1.0), (-2.0, 0.5), (1.0, 1.5), (-3.0, -1.0)]),
    noise=st.sampled_from([None, 0.0]),
    single_successor=st.booleans(),
    terminates=st.booleans(),
)
fractions = st.floats(0.01, 1.2)
"""Of half the width of the value interval, the error of the best constant."""

allowed_kinds = st.sampled_from([(0, 0), (1, 0), (2, 0), (1, 1), (2, 2)])


def test_the_problem_is_what_the_model_and_the_backup_say() -> None:
    model = sp.models.garnet(states=20, actions=2, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")
    assert Problem.of(model, LogSumExp(1.0)) == entropy_problem()
    model = random_model(1, actions=3, discount=0.5, branching=1, low=-1.0, terminal=0.4)
    assert Problem.of(model, HardMax()) == entropy_problem(0.5, 0.0, 3, (-1.0, 1.0), 0.0, True, True)


@pytest.mark.parametrize(
    ("kind", "successors", "noise"),
    [("deterministic", 2, 0.0), ("transition", 1, 0.0), ("transition", 2, 1.0), ("bounded", 1, 1.0)],
)
def test_rewards_are_noisy_unless_the_pair_fixes_them(kind: Any, successors: int, noise: float) -> None:
    model = priced(reward_kind=kind, max_successors=successors)
    assert Problem.of(model, HardMax()).reward_noise == noise


@pytest.mark.parametrize(
    ("kinds", "discount", "epsilon", "most"),
    [
        ((0, 0), 0.2, 0.01, 1.25e6),
        ((1, 0), 0.2, 0.01, 7.5e5),
        ((2, 0), 0.2, 0.002, 5.6e7),
        ((2, 2), 0.2, 0.01, 5.2e5),
        ((2, 2), 0.5, 0.01, 5.6e8),
        ((2, 2), 0.7, 0.1, 4.0e10),
    ],
)
def test_certified_calls_do_not_grow(kinds: tuple[int, int], discount: float, epsilon: float, most: float) -> None:
    """K = 2, η = 1, δ = 0.1, Bernoulli rewards: no more calls than when this was written."""
    assert optimised(entropy_problem(discount), epsilon, 0.1, *kinds).calls <= most


def test_exponents_of_the_optimised_schedules() -> None:
    """Order 2 grows like ε⁻³, order 1 rises towards ε⁻⁴, plug-in levels beyond every power.

    Debiased levels grow like ε⁻³ where one term is cancelled, and like ε^(−2⅔) where two are.
    """
    problem = entropy_problem()
    coarse, fine = np.geomspace(0.002, 0.01, 5).tolist(), np.geomspace(1e-6, 1e-5, 3).tolist()
    plug_in, first, second, once, twice = (
        (slope(problem, kinds, coarse), slope(problem, kinds, fine))
        for kinds in ((0, 0), (1, 0), (2, 0), (1, 1), (1, 2))
    )
    assert plug_in[0] > 3.0
    assert plug_in[1] > plug_in[0] + 3.0
    assert first[0] + 0.5 < first[1] < 4.0
    assert second[1] <= 3.0
    assert once[1] <= 3.0
    assert twice[1] <= 2.0 + 2.0 / 3.0
    for kinds in (first, second, once, twice):
        assert kinds[0] < plug_in[0]


@pytest.mark.parametrize("discount", [0.0, 0.2, 0.5, pytest.param(0.7, marks=pytest.mark.full)])
def test_more_kinds_are_never_dearer(discount: float) -> None:
    """Exactly: fewer kinds are searched, too."""
    problem = entropy_problem(discount)
    for epsilon in np.geomspace(1e-3, 0.3, 5).tolist():
        calls = {
            kinds: optimised(problem, epsilon, 0.1, *kinds).calls
            for kinds in ((0, 0), (1, 0), (2, 0), (0, 2), (1, 1), (1, 2), (2, 2))
        }
        for kinds, price in calls.items():
            fewer = [other for some, other in calls.items() if some[0] <= kinds[0] and some[1] <= kinds[1]]
            assert price == min(fewer)


@settings(max_examples=60, deadline=None)
@given(problems, fractions, allowed_kinds, st.floats(0.001, 0.5))
def test_optimised_schedules_promise_what_was_asked(
    problem: Problem, fraction: float, kinds: tuple[int, int], delta: float
) -> None:
    """Bias and noise add up to no more than ε; children stand above parents; every level is needed; costs are whole."""
    epsilon = fraction * problem.width / 2.0
    schedule = optimised(problem, epsilon, delta, *kinds)
    assert schedule.bias + schedule.noise <= epsilon * (1.0 + 1e-9)
    assert (schedule.epsilon, schedule.delta, schedule.early_stopping) == (epsilon, delta, True)
    assert (schedule.root.kind == "constant") == (epsilon >= problem.width / 2.0)
    assert (schedule.calls == 0) == (schedule.root.kind == "constant")
    highest, terms = kinds if problem.temperature > 0.0 else (0, 0)
    allowed = ["constant", "plug-in", "order-1", "order-2"][: highest + 2]
    assert all(level.kind in allowed and level.debias <= terms for level in schedule.levels)
    for row, level in enumerate(schedule.levels):
        assert all(0 <= child < row for child in level.children)
    assert trimmed(list(schedule.levels)) == schedule.levels
    assert all(type(cost) is int for cost in (*schedule.costs, schedule.calls))
    assert schedule.calls == schedule.reference_calls + schedule.repeats * schedule.sample_calls


@settings(max_examples=40, deadline=None)
@given(problems, fractions, allowed_kinds, st.integers(0, 3))
def test_the_optimiser_s_certificates_are_those_of_certify(
    problem: Problem, fraction: float, kinds: tuple[int, int], steps: int
) -> None:
    """One level at a time and as columns, the same arithmetic; float costs are the exact ones."""
    epsilon = fraction * problem.width / 2.0
    problem = replace(problem, horizon=steps, terminates=True) if steps else problem
    search = optimise.LevelSearch(problem, optimise.Search(*(kinds if problem.temperature else (0, 0)), steps > 0))
    levels, first, _ = search.down_to(epsilon)
    used = search.certificates
    for searched, certified in zip(used, certify(problem, levels)[first:], strict=True):
        assert searched == pytest.approx(certified, rel=1e-9, abs=1e-12)
    costs = Schedule(problem, tuple(levels), 1, epsilon, 0.1).costs[first:]
    assert [float(proved.calls) for proved in used] == pytest.approx([float(cost) for cost in costs], rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(problems, allowed_kinds, st.lists(fractions, min_size=2, max_size=6))
def test_finer_never_costs_less(problem: Problem, kinds: tuple[int, int], some: list[float]) -> None:
    calls = [
        optimised(problem, fraction * problem.width / 2.0, 0.1, *kinds).calls for fraction in sorted(some, reverse=True)
    ]
    assert calls == sorted(calls)


@settings(max_examples=25, deadline=None)
@given(problems, allowed_kinds, st.lists(fractions, min_size=1, max_size=4), fractions)
def test_the_optimiser_does_not_depend_on_what_was_asked_before(
    problem: Problem, kinds: tuple[int, int], before: list[float], fraction: float
) -> None:
    found = []
    for fractions in ([fraction], [*before, fraction]):
        optimise.level_search.cache_clear()
        optimise.optimised.cache_clear()
        found.append([optimised(problem, some * problem.width / 2.0, 0.1, *kinds) for some in fractions][-1])
    assert found[0] == found[1]


@pytest.mark.parametrize("kinds", [(0, 0), (2, 2)])
@pytest.mark.parametrize("discount", [0.8, pytest.param(0.95, marks=pytest.mark.full), 0.99])
def test_hopeless_discounts_have_a_price(discount: float, kinds: tuple[int, int]) -> None:
    """A whole number, however long, that grows as ε falls, without a warning; and the bias is below ε."""
    problem = entropy_problem(discount=discount)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedules = [optimised(problem, epsilon, 0.1, *kinds) for epsilon in (0.1, 0.05)]
        assert schedules[1].calls > schedules[0].calls > 10**20
        assert all(schedule.bias < schedule.epsilon for schedule in schedules)
