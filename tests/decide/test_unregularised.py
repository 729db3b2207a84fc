"""Unregularised values by smooth planning: the interval contains them, and accounts for the bias as derived."""

import json
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.decide.unregularised import choose_planner, is_long, smooth_backup, width
from smoothplan.theory import curvature, exact
from smoothplan.theory.backups import discrete_cost, line_cost, ring_cost
from smoothplan.theory.curvature import gap_of_values

DELTA = 1e-6
"""A test of an interval fails by chance this often, at most."""

COSTS: dict[str, Any] = {"lse": None, "ring": ring_cost(3), "line": line_cost(3), "discrete": discrete_cost(3)}


def short_planner(backup: sp.backups.Backup) -> sp.SecondOrderSmoothCruiser:
    return sp.SecondOrderSmoothCruiser(backup, epsilon=0.2, delta=DELTA)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("seed", range(3))
def test_recursive_plans_cover_the_ordinary_value(cost: str, seed: int) -> None:
    model = sp.models.garnet(states=15, actions=3, branching=3, discount=0.15, seed=seed, reward_kind="bernoulli")
    truth = exact.solve(model, sp.HardMax()).values
    for state in (0, 7):
        found = sp.plan_unregularised(model, state, bias=0.6, planner=short_planner, cost=COSTS[cost], seed=seed)
        low, high = found.interval
        assert low <= truth[state] <= high
        assert low <= found.value <= high
        # As derived: V_F in [a, b] and V_F − V in [l, h] give V in [a − h, b − l].
        assert found.regularised_interval is not None
        assert found.bonus is not None
        (a, b), (least, most) = found.regularised_interval, curvature.value_interval(model, sp.HardMax())
        assert (low, high) == pytest.approx((max(a - found.bonus[1], least), min(b - found.bonus[0], most)))
        assert found.chosen["backup"].startswith("lse:" if cost == "lse" else "ot:")


@pytest.mark.parametrize("cost", ["lse", "ring"])
@pytest.mark.parametrize("seed", range(3))
def test_chains_cover_the_ordinary_value_at_long_horizons(cost: str, seed: int) -> None:
    model = sp.models.garnet(states=15, actions=3, branching=3, discount=0.97, seed=seed)

    def planner(backup: sp.backups.Backup) -> sp.ReferenceCruiser:
        reference = sp.TabularReference(exact.solve(model, backup).q)
        return sp.ReferenceCruiser(backup, reference, order=1, epsilon=0.3, delta=DELTA, error_range=1e-6)

    truth = exact.solve(model, sp.HardMax()).values[0]
    found = sp.plan_unregularised(model, 0, bias=1.0, planner=planner, cost=COSTS[cost], seed=seed, max_calls=3_000_000)
    low, high = found.interval
    assert low <= truth <= high
    assert high - low <= 2 * 0.3 + 1.0 + 0.1


def costly(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Costs that a user declares in [-1, 0]."""
    return np.clip(states + 0.1 * rng.standard_normal(states.shape), -1.0, 1.0), -np.abs(states[:, 0])


@pytest.mark.parametrize("discount", [0.3, 0.97])
def test_costs_never_have_an_ordinary_value_above_what_is_declared(discount: float) -> None:
    declared: dict[str, Any] = {"actions": 3, "reward_range": (-1, 0), "terminates": False, "initial_state": [0.0]}
    model = sp.VectorModel(costly, discount=discount, **declared)
    least = -1.0 / (1.0 - discount) * (1.0 + 1e-12)  # intervals are rounded outward
    assert curvature.value_interval(model, sp.LogSumExp(1.0))[1] > 0.0  # which an entropy bonus may bring
    runs = [sp.plan_unregularised(model, bias=0.5, max_calls=3_000)]
    runs += [sp.plan(planner, model, max_calls=300) for planner in (sp.OTGapE(sp.HardMax(), epsilon=0.1), sp.UCT())]
    for run in runs:
        assert least <= run.interval[0] <= run.value <= run.interval[1] <= 0.0
    assert runs[1].q_intervals is not None
    assert runs[1].q_intervals.max() <= 0.0


def test_a_terminal_state_is_worth_nothing_for_certain() -> None:
    found = sp.plan_unregularised(sp.models.frozen_lake(discount=0.2), 5, bias=0.1, planner=short_planner)
    assert (found.value, found.interval, found.action) == (0.0, (0.0, 0.0), None)
    assert "unregularised" in found.summary()


# The gap between the values


MODELS = {
    "garnet": lambda seed: sp.models.garnet(states=12, actions=3, discount=0.8, seed=seed),
    "ends": lambda seed: sp.models.frozen_lake(discount=0.9),
    "two rooms": lambda seed: sp.models.two_room(size=2, discount=0.9),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_costs_of_either_sign_move_no_value_further_than_the_bias(name: str, seed: int) -> None:
    """And the gap contains the difference of exact values, under any backup."""
    model, rng, bias = MODELS[name](seed), np.random.default_rng(seed), 0.5
    costs = rng.uniform(-0.5, 1.0, (model.actions, model.actions))  # or the least may have the larger size
    given = (None, costs, 0.2 * costs - 0.1, 0.0 * costs, ring_cost(model.actions))
    kept = [smooth_backup(model, bias, cost) for cost in given]
    others: list[Any] = [
        sp.LogSumExp(0.2, model.actions),
        sp.OptimalTransport(cost=costs, tau=0.3, lam=0.4),
        sp.OptimalTransport(cost=np.abs(costs), tau=0.5, lam=0.1, reference=rng.dirichlet(np.ones(model.actions))),
        sp.OptimalTransport(cost=np.abs(costs) + 1.0, tau=0.5, lam=0.01),
    ]
    hard = exact.solve(model, sp.HardMax(), 1e-10).values
    for number, backup in enumerate([*kept, *others]):
        moved = exact.solve(model, backup, 1e-10).values - hard
        low, high = gap_of_values(model, backup)
        assert low - 1e-8 <= moved.min() <= moved.max() <= high + 1e-8
        if number < len(kept):
            assert -bias * (1.0 + 1e-9) <= low <= high <= bias * (1.0 + 1e-9)


def test_the_gap_is_attained_where_actions_are_alike() -> None:
    model = sp.TabularModel(np.ones((1, 4, 1)), np.zeros((1, 4, 1), dtype=int), np.zeros((1, 4)), discount=0.9)
    backup = smooth_backup(model, 0.7)
    assert gap_of_values(model, backup) == pytest.approx((0.0, 0.7))
    assert exact.solve(model, backup).values[0] == pytest.approx(0.7)


# Planners that are refused, and estimates


def test_misuse_is_named() -> None:
    model = sp.models.river_swim()
    for bias in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="bias"):
            sp.plan_unregularised(model, bias=bias)
    own = sp.SecondOrderSmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1)
    with pytest.raises(ValueError, match="planner must plan with the backup that it is given"):
        sp.plan_unregularised(model, bias=0.1, planner=lambda _: own)
    # The first three steps of this swim are worth 0.28 at most, and the value is 4.7.
    with pytest.raises(ValueError, match="planner must plan for the discounted value, got tail='zero'"):
        sp.plan_unregularised(
            model, bias=0.1, planner=lambda F: sp.OTGapE(F, 0.0, horizon=3, tail="zero"), max_calls=10_000
        )
    found = sp.plan_unregularised(model, bias=0.1, planner=lambda F: sp.OTGapE(F, 0.0, horizon=3), max_calls=10_000)
    assert found.support == "proved"
    assert found.interval[0] <= exact.solve(model, sp.HardMax()).values[model.initial_state] <= found.interval[1]


def test_a_plan_for_a_random_policy_says_so_first() -> None:
    declared: dict[str, Any] = {"reward_range": (-1, 0), "terminates": False, "initial_state": [0.0] * 6}
    found = sp.plan_unregularised(sp.VectorModel(costly, actions=2, discount=0.95, **declared), bias=0.5, max_calls=1)
    first, second, *_ = found.summary().splitlines()
    assert first.startswith("warning no reference was made, so this is about a uniformly random policy")
    assert second.startswith("value")
    assert json.loads(found.to_json())["details"]["warnings"] == list(found.warnings)
    assert not sp.plan_unregularised(sp.models.chain(), bias=0.5, max_calls=100_000).warnings


# Defaults


def test_without_a_planner_one_is_chosen_and_ends() -> None:
    model = sp.models.chain(discount=0.95)
    found = sp.plan_unregularised(model, bias=0.5)
    assert found.calls <= (choose_planner(model)[1] or 0)
    assert found.interval[0] <= exact.solve(model, sp.HardMax()).values[0] <= found.interval[1]
    few = sp.plan_unregularised(model, bias=0.5, max_calls=5000)
    assert few.calls <= 5000
    assert set(found.chosen) == {"backup", "planner", "limit"} > set(few.chosen)
    assert all(f"{reason} (chosen)" in few.summary() for reason in few.chosen.values())
    fields = json.loads(few.to_json())
    assert fields["interval"] == list(few.interval)
    assert fields["regularised_interval"] == list(few.regularised_interval or ())
    assert fields["chosen"] == few.chosen


def test_horizons_are_long_where_recursion_refuses() -> None:
    assert not is_long(sp.models.garnet(discount=0.2))
    assert is_long(sp.models.chain(discount=0.95))
    with pytest.raises(sp.TooExpensiveError):
        sp.plan(sp.SecondOrderSmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1), sp.models.chain(discount=0.95))
    assert is_long(sp.models.cart_pole(discount=0.999))


def test_the_default_backup_hardly_biases() -> None:
    for model in (sp.models.chain(), sp.models.cart_pole(), sp.models.sysadmin(machines=4)):
        assert gap_of_values(model, smooth_backup(model))[1] <= 1e-3 * width(model) * (1 + 1e-9)
    nothing = sp.VectorModel(lambda s, a, rng: (s, np.zeros(len(a))), actions=1, discount=0.9, reward_range=(0, 0))
    assert width(nothing) == 1.0
    assert smooth_backup(nothing).temperature > 0.0


def test_no_clock_decides_the_limit_on_calls() -> None:
    def never(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        raise AssertionError("a choice must not call the simulator")

    model = sp.VectorModel(never, actions=2, discount=0.99, reward_range=(0, 1), initial_state=[0.0])
    _, limit, reasons = choose_planner(model)
    assert limit == 200_000
    assert reasons["limit"].startswith("200,000 simulator calls, for a simulator in Python; max_calls=N")
    assert choose_planner(sp.models.chain())[1] == 2_000_000
