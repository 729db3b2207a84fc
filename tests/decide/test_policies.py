"""The policy that returns follow: candidates that compete, rules in use, budgets that are spent."""

from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Ints
from smoothplan.models.model import States
from studies.textbook import CHOSEN_ON, REPORTED_ON, pricing
from tests.decide.simulators import TABLE, plane


def test_the_dtype_of_states_decides_nothing() -> None:
    for name in ("lost sales", "machine"):
        problem = REPORTED_ON[name]()
        found = [sp.decide(problem.model(kind), calls=3_000, seed=1) for kind in (np.int64, np.float64)]
        assert found[0].action == found[1].action
        assert (found[0].q == found[1].q).all()
        assert found[0].method == found[1].method


@pytest.mark.parametrize("calls", [2_000, 20_000])
def test_short_episodes_near_a_discount_of_one_use_the_budget(calls: int) -> None:
    """Episodes of at most 30 steps, 15 actions, γ = 0.9999: with a good reference, and without."""
    problem = pricing("short", 15, 1.2, 0.8, 12, 30)
    truth = sp.CriticReference(lambda states: problem.q[problem.number(states)])
    for reference in (None, truth):
        found = sp.decide(problem.model(), calls=calls, reference=reference)
        assert 0.95 * calls <= found.calls <= calls
        assert found.returns.min() >= 8
        assert "did not suffice" not in " ".join(found.warnings)


def test_references_stay_within_the_possible() -> None:
    """An option pays at most its strike, although γ is near one and its reward may be paid at every step."""
    problem = CHOSEN_ON["put"]()
    for seed in range(3):
        reference = sp.FittedReference(problem.model(), sp.HardMax(), seed=seed)
        reference.improve(20_000)
        met = problem.met(20).astype(float)
        assert np.abs(reference.q(met)).max() <= 200.0


def better(states: States) -> Ints:
    """The best action of the plane: towards the centre."""
    return np.where(states.sum(axis=1) > 0.15, 0, np.where(states.sum(axis=1) < -0.15, 2, 1))


def worse(states: States) -> Ints:
    return np.full(len(states), 2)


def test_a_rule_is_followed_unless_something_better_is_found() -> None:
    state = np.array([1.0, 0.8])
    good = sp.decide(plane(), state, calls=4_000, policy=better)
    assert good.policy_action == good.action == 0
    assert any("given policy's own action" in note for note in good.notes)
    poor = sp.decide(plane(), state, calls=4_000, policy=worse)
    assert (poor.policy_action, poor.action) == (2, 0)
    (note,) = [note for note in poor.notes if "better than the given policy's action, 2" in note]
    assert f"{-poor.differences[2]:.3g}" in note
    assert note in poor.summary()
    both = sp.decide(
        plane(), state, calls=4_000, policy=better, reference=sp.CriticReference(lambda s: np.zeros((len(s), 3)))
    )
    assert both.action == 0


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (3, "policy must be a function"),
        (lambda states: np.full(len(states), 3), r"policy must return actions in 0..2, got 3 at state \\[1.0, -1.0\\]"),
        (lambda states: 0.5 * np.ones(len(states)), "policy must return whole-numbered actions"),
        (lambda states: np.zeros(1 + len(states), dtype=int), "policy must return whole-numbered actions"),
    ],
)
def test_a_wrong_rule_is_named(policy: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message.replace("\\\\", "\\")):
        sp.decide(plane(), calls=1_000, policy=policy)


def test_a_table_competes_with_a_fit_and_the_method_says_who_won() -> None:
    found = sp.decide(REPORTED_ON["dispatch"]().model(), calls=20_000)
    assert "earned most of 6 policies, " in found.method
    assert "± " in found.method or "as much as" in found.method
    accurate = sp.decide(REPORTED_ON["machine"]().model(), calls=20_000).method
    assert "a table of 21 states is accurate here" in accurate
    assert "earned most" not in sp.decide(TABLE, 0, calls=500).method  # too few calls to compare
