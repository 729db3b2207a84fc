"""OT-GapCruiser: intervals of all root actions that hold at once, whatever stops a run; calls that follow the gaps."""

import time
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.recursive.compiled import CompiledEngine
from smoothplan.recursive.gap_cruiser import GapCruiserRun
from smoothplan.recursive.optimise import PRICE_GROWTH, ladder
from smoothplan.run.progress import Display
from smoothplan.run.records import Root
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import Backup
from smoothplan.theory.curvature import Problem
from tests.common import ending, holds, identified

SMOOTH = sp.LogSumExp(1.0)
SURE = 1e-7
"""A δ at which no interval of a few hundred fails."""


def garnet(actions: int = 3, discount: float = 0.2) -> sp.TabularModel:
    return sp.models.garnet(states=20, actions=actions, branching=4, discount=discount, seed=0, reward_kind="bernoulli")


def twins(gap: float) -> sp.TabularModel:
    """State 0: both actions do the same, except that their rewards differ on average by the gap."""
    rng = np.random.default_rng(1)
    probabilities, successors = rng.dirichlet(np.ones(4), size=(20, 2)), rng.integers(1, 20, size=(20, 2, 4))
    rewards = rng.random((20, 2))
    probabilities[0, 1], successors[0, 1] = probabilities[0, 0], successors[0, 0]
    rewards[0] = 0.5 + gap / 2.0, 0.5 - gap / 2.0
    return sp.TabularModel(probabilities, successors, rewards, discount=0.2, reward_kind="bernoulli")


def started(
    planner: sp.OTGapCruiser, model: sp.GenerativeModel, max_calls: int | None = None, max_seconds: float | None = None
) -> GapCruiserRun:
    return cast(GapCruiserRun, planner.start(Root(model, 0, 0, max_calls, max_seconds, "auto", time.perf_counter())))


# Coverage: see also tests/run/test_plan.py


@pytest.mark.parametrize("end", [0, 1], ids=["smallest", "largest"])
@pytest.mark.parametrize("backup", [SMOOTH, sp.HardMax()], ids=["entropy", "hard maximum"])
def test_the_bias_of_the_levels_is_needed(backup: Backup, end: int) -> None:
    """Where every reward is at an end of its range, returns through coarse levels are as far off as is proved.

    The intervals hold with δ = 1e-7; without what is added for the bias they do not.
    """
    model = sp.TabularModel(
        np.full((1, 2, 2), 0.5),
        np.zeros((1, 2, 2), int),
        np.full((1, 2, 2), float(end)),
        discount=0.4,
        reward_kind="bounded",
        reward_range=(0.0, 1.0),
    )
    solution = sp.exact.solve(model, backup, 1e-10)
    assert solution.values[0] == pytest.approx(sp.curvature.value_interval(model, backup)[end])
    planner = sp.OTGapCruiser(backup, epsilon=0.2, delta=SURE)
    honest, careless = started(planner, model), started(planner, model)
    careless.rungs = [rung._replace(through=rung.through._replace(bias=0.0)) for rung in careless.rungs]
    for run in (honest, careless):
        assert run.run(Workers(), Display()) == "converged"
    low, high = np.array([action.interval for action in honest.actions]).T
    assert (low <= solution.q[0] + 1e-9).all()
    assert (solution.q[0] <= high + 1e-9).all()
    wrong = np.array([action.interval[end] for action in careless.actions])
    assert ((solution.q[0] - wrong) * (1 if end else -1) > 0.01).all()


# Why a run stops


def test_a_hopeless_run_is_refused_with_numbers() -> None:
    with pytest.raises(sp.TooExpensiveError, match=r"may need more than 1\.0e11 simulator calls") as refusal:
        sp.plan(sp.OTGapCruiser(SMOOTH, 0.1), garnet(2, 0.9), 0)
    assert "max_calls=N" in str(refusal.value)
    epsilon = float(str(refusal.value).split("epsilon=")[1].split(" ")[0])
    assert started(sp.OTGapCruiser(SMOOTH, 1.01 * epsilon), garnet(2, 0.9)).rungs
    with pytest.raises(sp.TooExpensiveError):
        started(sp.OTGapCruiser(SMOOTH, 0.9 * epsilon), garnet(2, 0.9))


# Special cases


@pytest.mark.parametrize(("branching", "discount", "epsilon", "most"), [(4, 0.0, 0.05, 3), (1, 0.2, 1e-6, 10_000)])
def test_what_has_no_variance_is_known_after_one_sample(
    branching: int, discount: float, epsilon: float, most: int
) -> None:
    """Known rewards without a future, or deterministic all through: the price is that of the depth, however fine ε."""
    model = sp.models.garnet(states=20, actions=3, branching=branching, discount=discount, seed=0)
    result = sp.plan(sp.OTGapCruiser(sp.HardMax(), epsilon, SURE), model, 0)
    assert result.status == "converged"
    assert result.calls <= most
    assert holds(result, model, sp.HardMax())


# The price


def test_the_gap_decides_the_price() -> None:
    """ε is the same; only the gap between the actions changes."""
    prices = [sp.plan(sp.OTGapCruiser(SMOOTH, 0.02), twins(gap), 0, seed=1).calls for gap in (0.0, 0.04, 0.16, 0.64)]
    assert all(later < earlier / 2 for earlier, later in pairwise(prices))


def test_calls_go_to_the_actions_that_are_hard_to_tell_apart() -> None:
    rewards = np.array([[0.9, 0.85, 0.1, 0.0]])
    stay = np.full((1, 4, 2), 0.5), np.zeros((1, 4, 2), int)
    model = sp.TabularModel(*stay, rewards, discount=0.2, reward_kind="bernoulli")
    calls = identified(sp.plan(sp.OTGapCruiser(SMOOTH, 0.02), model, 0)).action_calls
    assert calls[:2].min() > 5 * calls[2:].max() > 0


# Ladders


@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("discount", [0.0, 0.2, 0.8])
@pytest.mark.parametrize("backup", [SMOOTH, sp.HardMax()], ids=["entropy", "hard maximum"])
def test_a_ladder_leads_down_to_its_radius(order: int, discount: float, backup: Backup) -> None:
    problem = Problem.of(garnet(3, discount), backup)
    radius = 0.02 if discount < 0.5 else 1.0
    levels, rungs = ladder(problem, radius, 0.05, order)
    assert rungs[-1].radius == pytest.approx(radius)
    for coarse, fine in pairwise(rungs):
        assert coarse.radius > fine.radius
        assert PRICE_GROWTH * coarse.price <= fine.price
        assert coarse.level != fine.level
    for rung in rungs:
        assert 0.0 <= rung.through.bias < rung.radius
        allowed = ("constant", "plug-in", "order-1", "order-2")[: 2 + (order if backup.temperature > 0.0 else 0)]
        assert levels[rung.level].kind in allowed
    dear = rungs[-1].price
    shorter = ladder(problem, radius, 0.05, order, budget=dear / 10.0)[1]
    assert shorter[-1].price <= dear / 10.0 or len(shorter) == 1
    assert shorter[-1].radius >= radius


def test_what_is_proved_of_a_rung_is_what_is_proved_of_its_schedule() -> None:
    for model in (garnet(3, 0.3), ending(2, 0.4, 1)):
        run = started(sp.OTGapCruiser(SMOOTH, 0.1), model)
        for rung, work in zip(run.rungs, run.works, strict=True):
            assert isinstance(work.engine, CompiledEngine)
            schedule = work.engine.schedule
            np.testing.assert_allclose(schedule.action_return, rung.through, rtol=1e-9)
            assert schedule.reference_calls == model.actions * rung.through.calls


def test_what_actions_and_rungs_spend_adds_up_to_delta() -> None:
    """Every action may use every rung."""
    planner = sp.OTGapCruiser(SMOOTH, 0.1, delta=0.2)
    run = started(planner, garnet(3, 0.3))
    assert run.run(Workers(), Display()) == "converged"
    spent = [mean.delta for action in run.actions for mean in action.means.values()]
    assert len(run.rungs) > 1
    assert len(spent) > 3
    np.testing.assert_allclose(spent, 0.2 / (3 * len(run.rungs)), rtol=1e-12)


def test_a_limit_on_time_does_not_change_the_ladder() -> None:
    """Each rung spends its part of δ, and a run that is resumed may have another limit, chosen by what was seen."""
    for planner, model, limits in (
        (sp.OTGapCruiser(SMOOTH, 0.05), twins(0.0), (None, 1e-3, 10.0)),
        (sp.OTGapCruiser(SMOOTH, 0.0), garnet(2, 0.9), (1e-3, 10.0)),
    ):
        ladders = [started(planner, model, None, limit).rungs for limit in limits]
        assert all(ladder == ladders[0] for ladder in ladders)
        assert len(ladders[0]) > 3


# Configurations


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": 3}, ValueError, "order must be at most 2, got 3"),
        ({"order": 1.5}, TypeError, r"order must be a whole number, got 1\.5"),
        ({"debias": 3}, ValueError, "debias must be at most 2, got 3"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sp.OTGapCruiser(SMOOTH, 0.1, **options)
