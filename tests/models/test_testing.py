"""`check_model`: every broken promise is found and named, and nothing is found in a correct simulator."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Ints

Rng = np.random.Generator
Answer = tuple[Any, ...]
DECLARED: dict[str, Any] = {"actions": 2, "discount": 0.9, "reward_range": (0, 1), "initial_state": np.zeros(2)}


def walk(states: Any, actions: Ints, rng: Rng) -> Answer:
    """A correct simulator: a random walk in the plane."""
    moved = states + (2 * actions[:, None] - 1) + rng.standard_normal(states.shape)
    return moved, np.exp(-(moved[:, 0] ** 2)), moved[:, 1] > 5


def test_a_correct_simulator_passes_and_is_described() -> None:
    rows = 0

    def counted(states: Any, actions: Ints, rng: Rng) -> Answer:
        nonlocal rows
        rows += len(actions)
        return walk(states, actions, rng)

    model = sp.VectorModel(counted, **DECLARED)
    report = sp.check_model(model)
    assert (report.calls, report.states > 100, report.successors) == (rows, True, 32)
    assert 0 <= report.rewards[0] < 0.1 < 0.9 < report.rewards[1] <= 1
    assert 0 < report.terminal < 0.2
    assert sp.check_model(model) == report != sp.check_model(model, seed=2)


def test_states_may_be_given_or_must_be() -> None:
    model = sp.VectorModel(walk, actions=2, discount=0.9, reward_range=(0, 1))
    assert sp.check_model(model, [[0.0, 0.0], [1.0, 1.0]], rounds=5).states > 2
    with pytest.raises(ValueError, match="states must be given: this model declares no initial_state"):
        sp.check_model(model)
    with pytest.raises(ValueError, match=re.escape("must be a batch [n, ...] of at least one state, got shape (0, 2)")):
        sp.check_model(model, np.zeros((0, 2)))


def altered(change: Callable[[Any, Any, Any], Answer]) -> Any:
    """The walk with its answer changed."""
    return lambda states, actions, rng: change(*walk(states, actions, rng))


def _in_place_by_force(states: Any, actions: Ints, rng: Rng) -> Answer:
    states.flags.writeable = True
    states += 1.0
    return states, np.zeros(len(actions))


class Weather:
    """Keeps its own weather while it stays where it is, so that a repeated call shows nothing."""

    def __init__(self) -> None:
        self.rng, self.place, self.weather = np.random.default_rng(0), np.zeros(0), 0.0

    def __call__(self, states: Any, actions: Ints, rng: Rng) -> Answer:
        if not np.array_equal(self.place, states):
            self.place, self.weather = states.copy(), self.rng.random()
        return states + rng.random(states.shape), np.full(len(actions), self.weather)


def _lies_about_one_action(states: Any, actions: Ints, rng: Rng) -> Answer:
    return states, np.where(actions == 36, 2.0, 0.0)


def _sometimes_ends(states: Any, actions: Ints, rng: Rng) -> Answer:
    """Planners take max_successors=1 for a known next step, so that an end that is drawn makes two."""
    return states, np.zeros(len(actions)), rng.random(len(actions)) < 0.5


def coin(noise: float) -> Any:
    """A coin that is worth what it shows, more if the episode ends there, and some noise."""

    def step(states: Any, actions: Ints, rng: Rng) -> Answer:
        heads, ends = (rng.random((2, len(actions))) < 0.5).astype(float)
        rewards = 0.2 + 0.5 * heads + 0.2 * ends + noise * rng.random(len(actions))
        return np.stack([heads, actions], axis=1), rewards, ends > 0

    return step


CORNERS = altered(lambda s, r, t: (np.sign(s), np.full_like(r, 1.0), t))


@pytest.mark.parametrize(
    ("step", "declared", "message"),
    [
        (altered(lambda s, r, t: (s, r - (s[:, 0] > 4), t)), {}, r"is outside the declared range \[0, 1\] \(state \["),
        (_lies_about_one_action, {"actions": 37}, r"reward 2.0 is outside the declared range \[0, 1\] \(state \["),
        (walk, {"terminates": False}, r"declared with terminates=False \(state \["),
        (_in_place_by_force, {}, r"the simulator changed a state in place: \[\[0.0, 0.0\]"),
        (Weather(), {}, "gave two different results: the simulator keeps a hidden state, or draws"),
        (walk, {"reward_kind": "deterministic"}, "rewards declared deterministic took"),
        (CORNERS, {"max_successors": 3}, "4 different next states, more than max_successors=3"),
        (_sometimes_ends, {"max_successors": 1}, "2 different next states, more than max_successors=1"),
        (coin(1e-9), {"reward_kind": "transition"}, r"declared fixed by the transition took values \S+ and \S+ at "),
    ],
)
def test_a_broken_simulator_is_caught(step: Any, declared: dict[str, Any], message: str) -> None:
    with pytest.raises(sp.ModelError, match=message):
        sp.check_model(sp.VectorModel(step, **DECLARED | declared))


def test_legal_actions_depend_on_nothing_but_the_state() -> None:
    calls = iter(range(10**6))

    def legal(states: Any) -> Any:
        return np.tile((np.arange(2) + next(calls)) % 2 > 0, (len(states), 1))

    with pytest.raises(sp.ModelError, match="legal must give the same answer for the same state, got "):
        sp.check_model(sp.VectorModel(walk, **DECLARED, legal=legal))


def test_the_limits_of_the_declarations_are_allowed() -> None:
    """The walk on corners and the coin have four successors. A lottery is worth −0.09 on average, but may pay 90."""
    for step, kind in ((CORNERS, "deterministic"), (coin(0.0), "transition")):
        model = sp.VectorModel(step, **DECLARED, reward_kind=kind, max_successors=4)  # type: ignore[arg-type]
        assert sp.check_model(model).successors == 4

    def lottery(states: Any, actions: Ints, rng: Rng) -> Answer:
        prizes = np.where(rng.random(len(actions)) < 0.01, 90.0, -1.0)
        return states, np.where(actions == 1, prizes, 0.0), np.ones(len(actions), dtype=bool)

    for seed in range(20):
        declared = {**DECLARED, "reward_range": (-1, 90), "value_range": (0.0, 0.0)}
        assert sp.check_model(sp.VectorModel(lottery, **declared), seed=seed, rounds=5).rewards[0] < 0.0


@pytest.mark.parametrize(("discount", "ends"), [(0.0, False), (0.99, False), (0.9, True)])
def test_a_value_range_that_random_actions_exceed_is_refuted(discount: float, ends: bool) -> None:
    """Each of two actions pays 1 with a chance of one half, so that even random ones are worth 0.5/(1 − γ)."""

    def step(states: Any, actions: Ints, rng: Rng) -> Answer:
        terminals = (states[:, 0] + 1 >= 50) if ends else np.zeros(len(actions), dtype=bool)
        return states + 1, (rng.random(len(actions)) < 0.5).astype(float), terminals

    declared = {**DECLARED, "discount": discount, "terminates": ends}
    worth = 0.5 / (1.0 - discount)
    undeclared, right, wrong = (
        sp.VectorModel(step, **declared, value_range=value_range)
        for value_range in (None, (0.0, 1.01 * worth), (0.0, 0.3 * worth))
    )
    calls = [sp.check_model(model).calls for model in (undeclared, right)]
    assert 0 < calls[1] - calls[0] < 40_000
    with pytest.raises(sp.ModelError, match=r"value_range=\(0.0, \S+\) is too low: random actions earn \S+ on av"):
        sp.check_model(wrong)
