"""Schedules as data: their arithmetic, the optimiser, the published constants, and what they all promise to cost."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smoothplan as sp
from smoothplan.backups import HardMax, LogSumExp
from smoothplan.schedules import optimise, published
from smoothplan.schedules.level import Level, Problem, certify
from smoothplan.schedules.optimise import Kinds, optimised
from smoothplan.schedules.schedule import Schedule, trimmed
from tests.naive import random_model


def entropy_problem(
    actions: int = 2,
    discount: float = 0.2,
    temperature: float = 1.0,
    rewards: tuple[float, float] = (0.0, 1.0),
    noise: float | None = None,
    single_successor: bool = False,
    terminates: bool = False,
) -> Problem:
    """A problem with a LogSumExp backup, or with the hard maximum at temperature 0."""
    at_zero = temperature * math.log(actions)
    low, high = ((reward + at_zero) / (1.0 - discount) for reward in rewards)
    if terminates:
        low, high = min(low, 0.0), max(high, 0.0)
    return Problem(
        actions=actions,
        discount=discount,
        temperature=temperature,
        reward_range=rewards,
        reward_noise=rewards[1] - rewards[0] if noise is None else noise,
        single_successor=single_successor,
        at_zero=(at_zero, at_zero),
        values=(low, high),
        terminates=terminates,
        derivatives=LogSumExp(temperature).derivatives(actions) if temperature > 0.0 else (),
        above_max=0.0,
        pairs=True,
    )


def bernoulli_problem(discount: float = 0.2, temperature: float = 1.0) -> Problem:
    """The problem of the tables of complexities, read off a model: K = 2, Bernoulli rewards."""
    model = sp.models.garnet(states=20, actions=2, branching=4, discount=discount, seed=1, reward_kind="bernoulli")
    return Problem.of(model, LogSumExp(temperature))


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

allowed_kinds = st.sampled_from([Kinds(0), Kinds(1), Kinds(2), Kinds(1, 1), Kinds(2, 2)])


def slope(problem: Problem, kinds: Kinds, epsilons: Sequence[float]) -> float:
    """How fast the optimised forecast grows as ε falls: a fitted exponent."""
    calls = [math.log(optimised(problem, epsilon, 0.1, *kinds).calls) for epsilon in epsilons]
    return float(-np.polyfit(np.log(epsilons), calls, 1)[0])


# --- The table of complexities --------------------------------------------------------------------------------------


def test_the_problem_is_what_the_model_and_the_backup_say() -> None:
    assert bernoulli_problem() == entropy_problem()
    model = random_model(1, actions=3, discount=0.5, branching=1, low=-1.0, terminal=0.4)
    assert Problem.of(model, HardMax()) == entropy_problem(3, 0.5, 0.0, (-1.0, 1.0), 0.0, True, True)


@pytest.mark.parametrize(
    ("kind", "successors", "noise"),
    [("deterministic", 2, 0.0), ("transition", 1, 0.0), ("transition", 2, 1.0), ("bounded", 1, 1.0)],
)
def test_rewards_are_noisy_unless_the_pair_fixes_them(kind: Any, successors: int, noise: float) -> None:
    model = sp.VectorModel(
        lambda *_: (), actions=2, discount=0.5, reward_range=(0, 1), reward_kind=kind, max_successors=successors
    )
    assert Problem.of(model, HardMax()).reward_noise == noise


@pytest.mark.parametrize(
    ("kinds", "discount", "epsilon", "most"),
    [
        (Kinds(0), 0.2, 0.01, 1.25e6),
        (Kinds(1), 0.2, 0.01, 7.5e5),
        (Kinds(2), 0.2, 0.002, 5.6e7),
        (Kinds(2, 2), 0.2, 0.01, 5.2e5),
        (Kinds(2, 2), 0.5, 0.01, 5.6e8),
        (Kinds(2, 2), 0.7, 0.1, 4.0e10),
    ],
)
def test_certified_calls_do_not_grow(kinds: Kinds, discount: float, epsilon: float, most: float) -> None:
    """K = 2, η = 1, δ = 0.1, Bernoulli rewards: no more calls than when this was written."""
    assert optimised(bernoulli_problem(discount), epsilon, 0.1, *kinds).calls <= most


def test_exponents_of_the_optimised_schedules() -> None:
    """Order 2 grows like ε⁻³, order 1 rises towards ε⁻⁴, plug-in levels beyond every power.

    Debiased levels grow like ε⁻³ where one term is cancelled, and like ε^(−2⅔) where two are.
    """
    problem = bernoulli_problem()
    coarse, fine = np.geomspace(0.002, 0.01, 5).tolist(), np.geomspace(1e-6, 1e-5, 3).tolist()
    plug_in, first, second, once, twice = (
        (slope(problem, kinds, coarse), slope(problem, kinds, fine))
        for kinds in (Kinds(0), Kinds(1), Kinds(2), Kinds(1, 1), Kinds(1, 2))
    )
    assert plug_in[0] > 3.0
    assert plug_in[1] > plug_in[0] + 3.0
    assert first[0] + 0.5 < first[1] < 4.0
    assert second[1] <= 3.0
    assert once[1] <= 3.0
    assert twice[1] <= 2.0 + 2.0 / 3.0
    for kinds in (first, second, once, twice):
        assert kinds[0] < plug_in[0]


@pytest.mark.parametrize(
    ("discount", "most"), [(0.2, 3.05), (0.5, 3.25), pytest.param(0.7, 3.6, marks=pytest.mark.full)]
)
def test_debiased_levels_have_their_exponent_at_every_discount(discount: float, most: float) -> None:
    assert slope(bernoulli_problem(discount), Kinds(2, 2), [1e-5, 1e-6]) <= most


@pytest.mark.parametrize("discount", [0.0, 0.2, 0.5, pytest.param(0.7, marks=pytest.mark.full)])
def test_more_kinds_are_never_dearer(discount: float) -> None:
    """Exactly: fewer kinds are searched, too."""
    problem = bernoulli_problem(discount)
    for epsilon in np.geomspace(1e-3, 0.3, 5).tolist():
        calls = {
            kinds: optimised(problem, epsilon, 0.1, *kinds).calls
            for kinds in (Kinds(0), Kinds(1), Kinds(2), Kinds(0, 2), Kinds(1, 1), Kinds(1, 2), Kinds(2, 2))
        }
        for kinds, price in calls.items():
            fewer = [
                other for some, other in calls.items() if some.order <= kinds.order and some.debias <= kinds.debias
            ]
            assert price == min(fewer)


@pytest.mark.parametrize("discount", [0.5, 0.7])
def test_wide_supports_do_not_spoil_the_price(discount: float) -> None:
    """A quadratic term squares the support of its child, and nested references widen it by a factor each."""
    problem = entropy_problem(discount=discount)
    for epsilon in (1e-3, 1e-5):
        first, second, debiased = (
            optimised(problem, epsilon, 0.1, *kinds) for kinds in (Kinds(1), Kinds(2), Kinds(1, 2))
        )
        assert debiased.calls <= first.calls
        assert second.calls <= first.calls
        assert debiased.bias + debiased.noise <= epsilon * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("discount", "printed_least", "ours_most"), [(0.04, 3.2, 2.8), (0.2, 4.0, 3.1), (0.5, 6.3, 3.8), (0.9, 30.0, 13.0)]
)
def test_the_printed_children_cost_the_exponent(discount: float, printed_least: float, ours_most: float) -> None:
    """Five children at ε/√γ make the printed algorithm grow like ε^(−2·ln 5/ln(1/γ)) once γ > 1/25; ours does not."""
    problem, epsilons = bernoulli_problem(discount), [1e-2, 1e-3, 1e-4] if discount < 0.9 else [1e-1, 1e-2, 1e-3]
    printed = [math.log(published.second_order_smooth_cruiser(problem, epsilon, 0.1).calls) for epsilon in epsilons]
    steepness = -np.polyfit(np.log(epsilons), printed, 1)[0]
    ours = slope(problem, Kinds(2), epsilons)
    assert steepness >= printed_least
    assert steepness >= 2.0 * math.log(5.0) / math.log(1.0 / discount) - 0.3
    assert ours <= ours_most
    assert ours < steepness - 0.5


# --- Arithmetic of schedules ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(problems, fractions, allowed_kinds, st.floats(0.001, 0.5))
def test_optimised_schedules_promise_what_was_asked(
    problem: Problem, fraction: float, kinds: Kinds, delta: float
) -> None:
    """Bias and noise add up to no more than ε; children stand above parents; every level is needed; costs are whole."""
    epsilon = fraction * problem.width / 2.0
    schedule = optimised(problem, epsilon, delta, *kinds)
    assert schedule.bias + schedule.noise <= epsilon * (1.0 + 1e-9)
    assert (schedule.epsilon, schedule.delta, schedule.early_stopping) == (epsilon, delta, True)
    assert (schedule.root.kind == "constant") == (epsilon >= problem.width / 2.0)
    assert (schedule.calls == 0) == (schedule.root.kind == "constant")
    highest, terms = kinds if problem.temperature > 0.0 else Kinds(0)
    allowed = ["constant", "plug-in", "order-1", "order-2"][: highest + 2]
    assert all(level.kind in allowed and level.debias <= terms for level in schedule.levels)
    for row, level in enumerate(schedule.levels):
        assert all(0 <= child < row for child in level.children)
    assert trimmed(list(schedule.levels)) == schedule.levels
    assert all(type(cost) is int for cost in (*schedule.costs, schedule.calls))
    assert schedule.calls == schedule.reference_calls + schedule.repeats * schedule.sample_calls


@settings(max_examples=40, deadline=None)
@given(problems, fractions, allowed_kinds)
def test_the_optimiser_s_certificates_are_those_of_certify(problem: Problem, fraction: float, kinds: Kinds) -> None:
    """One level at a time and as columns, the same arithmetic; float costs are the exact ones."""
    epsilon = fraction * problem.width / 2.0
    levels, used = optimise._Table(problem, kinds if problem.temperature else Kinds(0)).down_to(epsilon)
    for searched, certified in zip(used, certify(problem, levels), strict=True):
        assert searched == pytest.approx(certified, rel=1e-9, abs=1e-12)
    costs = Schedule(problem, tuple(levels), 1, epsilon, 0.1).costs
    assert [float(proved.calls) for proved in used] == pytest.approx([float(cost) for cost in costs], rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(problems, allowed_kinds, st.lists(fractions, min_size=2, max_size=6))
def test_finer_never_costs_less(problem: Problem, kinds: Kinds, some: list[float]) -> None:
    calls = [
        optimised(problem, fraction * problem.width / 2.0, 0.1, *kinds).calls for fraction in sorted(some, reverse=True)
    ]
    assert calls == sorted(calls)


def forget() -> None:
    """Drops what was searched before."""
    optimise._table.cache_clear()
    optimise.optimised.cache_clear()


@settings(max_examples=25, deadline=None)
@given(problems, allowed_kinds, st.lists(fractions, min_size=1, max_size=4), fractions)
def test_the_optimiser_does_not_depend_on_what_was_asked_before(
    problem: Problem, kinds: Kinds, before: list[float], fraction: float
) -> None:
    epsilon = fraction * problem.width / 2.0
    forget()
    fresh = optimised(problem, epsilon, 0.1, *kinds)
    forget()
    for other in before:
        optimised(problem, other * problem.width / 2.0, 0.1, *kinds)
    assert optimised(problem, epsilon, 0.1, *kinds) == fresh
    assert optimised(problem, epsilon, 0.1, *kinds) == fresh


@pytest.mark.parametrize("kinds", [Kinds(0), Kinds(2, 2)])
@pytest.mark.parametrize("discount", [0.8, pytest.param(0.95, marks=pytest.mark.full), 0.99])
def test_hopeless_discounts_have_a_price(discount: float, kinds: Kinds) -> None:
    """A whole number, however long, that grows as ε falls, without a warning; and the bias is below ε."""
    problem = entropy_problem(discount=discount)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedules = [optimised(problem, epsilon, 0.1, *kinds) for epsilon in (0.1, 0.05)]
        assert schedules[1].calls > schedules[0].calls > 10**20
        assert all(schedule.bias < schedule.epsilon for schedule in schedules)


PUBLISHED = (published.sparse_sampling, published.smooth_cruiser, published.second_order_smooth_cruiser)


@pytest.mark.parametrize("printed", PUBLISHED)
def test_published_schedules_have_a_price_at_any_discount(
    printed: Callable[[Problem, float, float], Schedule],
) -> None:
    """Also where δ divided by the number of calls is no longer a float."""
    for discount in (0.5, 0.9, 0.95):
        problem = entropy_problem(discount=discount)
        calls = [printed(problem, epsilon, 0.1).calls for epsilon in (1.0, 0.1, 0.01)]
        assert 0 < calls[0] < calls[1] < calls[2]


def test_published_schedules_refuse_what_their_constants_do_not_cover() -> None:
    for printed in PUBLISHED:
        with pytest.raises(ValueError, match="reward_range"):
            printed(entropy_problem(rewards=(-1.0, 1.0)), 0.1, 0.1)
        with pytest.raises(ValueError, match="discount"):
            printed(entropy_problem(discount=0.0), 0.1, 0.1)


def test_the_printed_table_is_the_printed_algorithm() -> None:
    """Children at ε/√γ, references at ρ(ε)/√γ, two pairs, clipping to [0, B], the answer 0 from ε ≥ B on."""
    problem, epsilon = entropy_problem(discount=0.2), 0.1
    schedule = published.second_order_smooth_cruiser(problem, epsilon, 0.1)
    bound = 1.0 / (1.0 - 0.2)
    fine = [level for level in schedule.levels if level.kind == "order-2"]
    assert fine
    for level in fine:
        assert (level.pairs, level.centring, level.shift) == (2, "policy", 0.0)
        assert level.linear == level.quadratic
    for level in schedule.levels[:-1]:
        if level.kind == "constant":
            assert problem.middle + level.shift == pytest.approx(0.0)
        else:
            assert level.clip == pytest.approx((0.0, bound))
    assert schedule.root.kind == "plug-in"
    assert (schedule.repeats, schedule.early_stopping) == (1, False)
    # Halving ε multiplies the root's N by about four: it is proportional to ε⁻² up to a logarithm.
    finer = published.second_order_smooth_cruiser(problem, epsilon / 2.0, 0.1)
    assert 4.0 <= finer.root.samples / schedule.root.samples <= 5.5


# --- Tables by hand -------------------------------------------------------------------------------------------------


def some_levels() -> list[Level]:
    return [
        Level("constant"),
        Level("plug-in", samples=5, reference=0),
        Level("order-1", samples=3, reference=0, linear=1),
        Level("order-1", linear=0),
        Level("order-2", samples=4, reference=1, linear=2, quadratic=1, pairs=3),
    ]


def test_costs_by_hand() -> None:
    schedule = Schedule(entropy_problem(actions=3), tuple(some_levels()), 10, 0.1, 0.1)
    plug_in = 3 * 5
    first = 3 * 3 + 1 + plug_in
    second = 3 * 4 * (1 + plug_in), 1 + first + 6 * (1 + plug_in)
    assert schedule.costs == [0, plug_in, first, 1, sum(second)]
    assert (schedule.reference_calls, schedule.sample_calls) == second
    assert schedule.calls == second[0] + 10 * second[1]
    assert [float(proved.calls) for proved in schedule.certificates] == schedule.costs


def test_trimmed_keeps_what_is_needed_in_order() -> None:
    levels = some_levels()
    assert trimmed(levels) == (*levels[:3], levels[4])
    assert trimmed(levels[:4]) == (levels[0], replace(levels[3], linear=0))
    assert trimmed(levels[:1]) == (levels[0],)
    problem = entropy_problem()
    for count in range(1, len(levels) + 1):
        kept = trimmed(levels[:count])
        assert certify(problem, kept)[-1] == certify(problem, levels[:count])[-1]


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
