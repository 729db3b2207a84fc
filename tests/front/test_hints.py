"""What newcomers write by mistake, and what they are told."""

import json
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import smoothplan as sp
from smoothplan import specs
from smoothplan.base.arguments import Ints

TABLE = sp.models.garnet(states=20, actions=2, discount=0.2, seed=1)
FAR = sp.models.river_swim(discount=0.95)
DECLARED: dict[str, Any] = {
    "actions": 2,
    "discount": 0.5,
    "reward_range": (-9, 9),
    "terminates": False,
    "initial_state": [0.0],
}
loose: Any = sp  # whatever a type checker would say


def one_state(state: Any, action: Any, rng: np.random.Generator) -> Any:
    """A step written for one state at a time."""
    moved = state[0] + 0.1 * rng.standard_normal()
    return np.array([moved]), 1.0 if action == 1 else 0.0


def flat(state: Any, action: Any, rng: np.random.Generator) -> Any:
    """The same, without a branch that NumPy would refuse."""
    return np.array([state[0]]), float(np.max(state))


def vector(step: Any, **declared: Any) -> sp.VectorModel:
    return sp.VectorModel(step, **DECLARED | declared)


def sampled(model: sp.VectorModel) -> sp.Transition:
    return sp.Oracle(model, 0).sample(np.zeros((4, 1)), [0, 1, 0, 1])


FROM_SCALAR = "if step is written for one state at a time, use VectorModel.from_scalar(step, ...)"
SWAPPED = "are planner and model swapped?"

MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: loose.plan(TABLE, sp.UCT()), f"got the model TabularModel: {SWAPPED}"),
    (lambda: loose.forecast(TABLE, sp.DebiasedCruiser(sp.LogSumExp(1), 0.1)), SWAPPED),
    (lambda: loose.plan(sp.UCT(), sp.UCT()), f"got the planner UCT: {SWAPPED}"),
    (lambda: loose.plan(sp.UCT, TABLE), "planner must be an object, such as UCT(...), got the class UCT itself"),
    (lambda: loose.forecast(sp.DebiasedCruiser, TABLE), "such as DebiasedCruiser(...), got the class"),
    (lambda: loose.plan("uct", TABLE), "planner must be one, such as OTGapE(HardMax(), epsilon=0.1), got 'uct'"),
    (lambda: loose.plan(sp.UCT(), sp.VectorModel), "model must be an object, such as VectorModel(...), got the class"),
    (lambda: loose.plan_unregularised(sp.VectorModel, bias=0.1), "model must be an object, such as VectorModel(...)"),
    (lambda: loose.check_model(sp.VectorModel), "model must be an object, such as VectorModel(...)"),
    (lambda: loose.plan(sp.UCT(), "CartPole-v1"), "use sp.models.from_gymnasium('CartPole-v1')"),
    (lambda: loose.check_model("CartPole-v1"), "use sp.models.from_gymnasium('CartPole-v1')"),
    (lambda: loose.plan(sp.UCT(), gymnasium.make("CartPole-v1")), "use sp.models.from_gymnasium(env)"),
    (lambda: loose.plan(sp.UCT(), one_state), "got the function one_state: wrap a step, VectorModel(one_state, ...)"),
    (lambda: loose.plan(sp.UCT(), 7), "model must have actions, discount, reward_range"),
    (lambda: loose.exact.solve(sp.models.cart_pole(), sp.HardMax()), "model must be a table of states"),
    (lambda: loose.exact.solve(TABLE, sp.HardMax), "such as HardMax(), got the class itself"),
    *(
        (
            lambda planner=planner: planner(sp.LogSumExp, epsilon=0.1),
            "backup must be an object, such as LogSumExp(...), got the class itself",
        )
        for planner in specs.PLANNERS.values()
    ),
    (lambda: loose.DebiasedCruiser("lse", 0.1), "such as HardMax() or LogSumExp(temperature), got 'lse'"),
    (lambda: sampled(vector(one_state)), f"ambiguous. Use a.any() or a.all(); {FROM_SCALAR}"),
    (lambda: sampled(vector(flat)), f"next_states must have the shape of states, (4, 1), got (1, 1); {FROM_SCALAR}"),
    (lambda: sampled(vector(lambda s, a, rng: (s, 0.0))), f"rewards must have shape (4,), got (); {FROM_SCALAR}"),
    (lambda: sampled(sp.VectorModel.from_scalar(lambda s, a, rng: s, **DECLARED)), "step must return (next_state, rew"),
    (lambda: sp.plan(sp.DebiasedCruiser(sp.LogSumExp(1), 0.1), FAR), "use decide, which finds an action; Ref"),
]


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES, ids=[hint[:60] for _, hint in MISTAKES])
def test_a_mistake_has_a_hint(mistake: Callable[[], Any], hint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(hint)):
        mistake()


def test_a_hopeless_forecast_names_what_would_do() -> None:
    planner = sp.DebiasedCruiser(sp.LogSumExp(1.0), epsilon=0.1)
    assert "hopeless: for a long horizon use decide" in sp.forecast(planner, FAR).summary()
    assert "hopeless" not in sp.forecast(planner, TABLE).summary()


# A batch that fails


def failing(states: Any, actions: Ints, rng: np.random.Generator) -> Any:
    """Raises if a state is 7, or if there are many."""
    if (states == 7.0).any() or len(states) > 10_000:
        raise LookupError("no such road")
    return states, np.zeros(len(states))


@pytest.mark.parametrize("guilty", [0, 5_000, 8_463])
def test_the_guilty_state_of_a_batch_is_named(guilty: int) -> None:
    states, model = np.zeros((8_464, 1)), vector(failing)
    states[guilty] = 7.0
    oracle = sp.Oracle(model, 3)
    with pytest.raises(sp.SimulatorError, match=re.escape("no such road (state [7.0], action 1, seed 3")) as caught:
        oracle.sample(states, np.ones(len(states), dtype=np.int64))
    assert oracle.calls == len(states)  # what was called again to find out is no call of a run
    assert caught.value.call.states.tolist() == [[7.0]]
    with pytest.raises(sp.SimulatorError, match=r"state \[7\.0\]"):
        sp.reproduce(model, caught.value.call)


def test_no_innocent_state_is_blamed() -> None:
    model = vector(failing)
    with pytest.raises(sp.SimulatorError) as caught:
        sp.Oracle(model, 3).sample(np.zeros((80_000, 1)), np.zeros(80_000, dtype=np.int64))
    assert str(caught.value).endswith("no such road (in a batch of 20,000 states, seed 3, chunk 0)")
    with pytest.raises(sp.SimulatorError, match="no such road"):
        sp.reproduce(model, caught.value.call)


# Progress


def test_a_check_shows_its_calls(capsys: pytest.CaptureFixture[str]) -> None:
    model = sp.VectorModel.from_scalar(one_state, **DECLARED, value_range=(-18.0, 18.0))
    report = sp.check_model(model, rounds=3, progress="json")
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert last["calls"] == report.calls <= last["at_most_calls"]
    assert last["status"] == "completed"
