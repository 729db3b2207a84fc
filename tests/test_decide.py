"""Decisions: what they hold, what they cost, and that what they say of actions is true."""

import importlib
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan.arguments import Floats, Ints
from smoothplan.compiling import standstill
from smoothplan.models.base import States
from smoothplan.planners import race
from smoothplan.planners.race import Race
from smoothplan.references import CriticReference, TabularReference
from studies.simulators import epidemic
from tests.common import Counter, dense, vectorised

TABLE = sp.models.garnet(states=12, actions=3, branching=3, discount=0.8, seed=3)
JITTED = sp.models.cart_pole(discount=0.9)


def walk(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    """Steps in the plane; it pays to be at its centre."""
    moved = states + 0.3 * (actions - 1)[:, None] + 0.1 * rng.standard_normal(states.shape)
    return np.clip(moved, -2.0, 2.0), np.exp(-(states**2).sum(axis=1))


def serve(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    """Three queues, of which one is served faster."""
    arrivals, served = rng.integers(0, 3, states.shape), 1 + 3 * (np.arange(3) == actions[:, None])
    return np.clip(states + arrivals - served, 0, 99), -states.sum(axis=1).astype(np.float64)


def drift(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float]:
    """A walk on a line, written for one state."""
    return state + 0.3 * (action - 1) + 0.1 * rng.standard_normal(), float(np.exp(-state * state))


class Alone:
    """A simulator of one state at a time that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float]:
        self.calls += 1
        return drift(state, action, rng)


DECLARED: dict[str, Any] = {"actions": 3, "discount": 0.8, "reward_range": (0, 1), "terminates": False}


def plane(step: Any = walk) -> sp.VectorModel:
    return sp.VectorModel(step, **DECLARED, initial_state=np.array([1.0, -1.0]))


def queues(step: Any = serve) -> sp.VectorModel:
    declared = DECLARED | {"reward_range": (-300, 0)}
    return sp.VectorModel(step, **declared, initial_state=np.array([5, 50, 20]))


def alone(step: Any = drift) -> sp.VectorModel:
    return sp.VectorModel.from_scalar(step, **DECLARED, initial_state=0.5)


MODELS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "floats": plane,
    "whole numbers": queues,
    "scalar": alone,
    "compiled": lambda: JITTED,
}


def counted(name: str) -> tuple[Any, Any]:
    """A model, and what counts its calls; a table is counted as a simulator of which no table is known."""
    match name:
        case "table":
            counter = Counter(TABLE)
            return vectorised(TABLE, counter), counter
        case "floats":
            counter = Counter(plane())
            return plane(counter), counter
        case "whole numbers":
            counter = Counter(queues())
            return queues(counter), counter
    single = Alone()
    return alone(single), single


def content(decision: sp.Decision) -> dict[str, Any]:
    """All that a decision says, but its time."""
    fields: dict[str, Any] = json.loads(decision.to_json())
    del fields["seconds"]
    return fields


def critic(*q: float) -> CriticReference:
    """The same estimates everywhere."""
    return CriticReference(lambda states: np.tile(q, (len(states), 1)))


# Fields, calls, seeds


@pytest.mark.parametrize("name", MODELS)
def test_fields_have_their_shapes(name: str) -> None:
    model = MODELS[name]()
    found = sp.decide(model, calls=2_000, delta=0.2, epsilon=0.3, seed=5)
    assert found.action in range(model.actions)
    for values in (found.q, found.q_errors, found.returns, found.differences, found.difference_errors):
        assert values.shape == (model.actions,)
    assert (found.q_errors >= 0.0).all()
    assert found.differences[found.action] == found.difference_errors[found.action] == 0.0
    assert found.returns.min() >= (1 if name == "compiled" else 8)  # which has no noise
    assert found.regret >= 0.0
    assert (found.epsilon, found.delta, found.seed) == (0.3, 0.2, 5)
    assert len(found.names) == model.actions
    assert found.certified == (found.gap <= 0.3)
    assert (found.q_intervals is None) == math.isinf(found.gap)
    if found.q_intervals is not None:
        assert found.q_intervals.shape == (model.actions, 2)
    assert found.reference is not None
    assert type(found.reference).__name__ in found.method
    assert f"{found.calls:,} simulator calls" in found.summary()
    assert repr(found).startswith(f"Decision(action={found.action}")
    assert len(repr(found)) < 200


@pytest.mark.parametrize("name", ["table", "floats", "whole numbers", "scalar"])
def test_calls_are_exact_and_within_the_limit(name: str) -> None:
    for limit in (1, 7, 100, 5_000):
        model, counter = counted(name)
        found = sp.decide(model, calls=limit)
        assert found.calls == counter.calls <= limit
    assert found.calls > 0.5 * limit


@pytest.mark.parametrize("name", ["table", "compiled"])
def test_limits_of_compiled_simulators_are_kept(name: str) -> None:
    for limit in (1, 7, 100, 5_000):
        found = sp.decide(MODELS[name](), calls=limit)
        assert found.calls <= limit
    assert found.calls > 0.1 * limit


@pytest.mark.parametrize("name", MODELS)
def test_one_seed_gives_one_decision(name: str) -> None:
    runs = [content(sp.decide(MODELS[name](), calls=1_000, seed=7)) for _ in range(6)]
    assert all(run == runs[0] for run in runs)
    if name != "compiled":  # where nothing is random
        assert content(sp.decide(MODELS[name](), calls=1_000, seed=8)) != runs[0] | {"seed": 8}


def test_json_has_null_for_what_is_infinite() -> None:
    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    for decision in (sp.decide(plane(), calls=1), sp.decide(TABLE, 0, calls=2_000)):
        fields = json.loads(decision.to_json(), parse_constant=refuse)
        assert (fields["gap"] is None) == math.isinf(decision.gap)
        for name in ("q_errors", "difference_errors"):
            values = getattr(decision, name)
            assert fields[name] == [value if math.isfinite(value) else None for value in values.tolist()]
        assert (fields["action"], fields["warnings"]) == (decision.action, list(decision.warnings))


# Time


def test_compiling_does_not_count_and_time_does() -> None:
    """A limit of 0.3 s, of which nothing would be left after the first call."""
    calls = 0

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        nonlocal calls
        calls += 1
        if calls == 1:
            with standstill():
                time.sleep(0.6)
        return walk(states, actions, rng)

    found = sp.decide(plane(step), seconds=0.3, reference=critic(0.0, 0.0, 0.0))
    assert found.returns.min() >= 2
    assert 0.6 <= found.seconds < 10.0
    assert found.status in ("max_seconds", "completed")


def test_a_slow_simulator_stops_in_time() -> None:
    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        time.sleep(0.005)
        return walk(states, actions, rng)

    counter = Counter(plane(step))
    found = sp.decide(plane(counter), seconds=0.2)
    assert found.calls == counter.calls > 0
    assert found.seconds < 10.0


# Warnings


def test_a_terminal_state_has_nothing_to_decide() -> None:
    found = sp.decide(sp.models.frozen_lake(), 15)
    assert (found.action, found.calls, found.status, found.certified, found.gap) == (None, 0, "terminal", True, 0.0)
    assert found.summary() == "the state is terminal: there is nothing to decide"


def test_a_single_action_needs_no_warning() -> None:
    model = sp.models.garnet(states=6, actions=1, branching=3, seed=6)
    for given in (model, vectorised(model)):
        found = sp.decide(given, 0, calls=500)
        assert (found.action, found.warnings, found.regret) == (0, (), 0.0)


@pytest.mark.parametrize("name", MODELS)
def test_a_tiny_budget_says_so_first(name: str) -> None:
    found = sp.decide(MODELS[name](), calls=1)
    assert re.match(r"1 call did not suffice", found.warnings[0])
    assert found.summary().splitlines()[0] == f"warning: {found.warnings[0]}"
    assert math.isinf(found.gap)
    assert math.isinf(found.regret)
    assert not found.certified


def test_a_reference_that_lies_is_found_out() -> None:
    lying = sp.decide(plane(), calls=5_000, reference=critic(4.0, 4.9, 4.5))
    assert any("the reference is poor: it claims 4.9" in warning for warning in lying.warnings)
    assert lying.summary().startswith("warning: ")
    truth = TabularReference(sp.exact.solve(TABLE, sp.HardMax()).q)
    assert not any("poor" in warning for warning in sp.decide(TABLE, 0, calls=5_000, reference=truth).warnings)


def test_equal_actions_cannot_be_told_apart() -> None:
    """Actions 0 and 1 do the same; the third is worse."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        draws = rng.random((2, len(states)))
        return states, np.where(actions == 2, 0.1, draws[np.minimum(actions, 1), np.arange(len(states))])

    found = sp.decide(plane(step), calls=5_000, reference=critic(0.0, 0.0, 0.0))
    (warning,) = [text for text in found.warnings if "told apart" in text]
    assert re.search(r"actions [01] and [01] cannot be told apart.* by .* ± .* \(estimate\)", warning)
    assert found.action in (0, 1)
    assert found.regret > 0.0


# The truth of what is said


def bounded_value(model: sp.TabularModel, reference: Floats, steps: int) -> Floats:
    """E[X_a] of returns at state 0, [K]: action a, then the reference's best ones, then what it says. By recursion."""
    probabilities, rewards, ends = dense(model)
    rows, chosen = np.arange(model.states), reference.argmax(axis=1)
    low, high = sp.curvature.value_interval(model, sp.HardMax())
    values = np.clip(reference.max(axis=1), low, high)
    for _ in range(steps):
        q = rewards.sum(axis=2) + model.discount * (probabilities - ends) @ values
        values = q[rows, chosen]
    return np.asarray(q[0])


@pytest.mark.parametrize("seed", range(3))
def test_estimates_are_those_of_the_policy_that_is_followed(seed: int) -> None:
    """18 estimates within five standard errors, each with probability 1 − 6e-7."""
    truth = sp.exact.solve(TABLE, sp.HardMax()).q
    wrong = truth + np.random.default_rng(seed).normal(scale=0.8, size=truth.shape)
    for model in (TABLE, vectorised(TABLE)):
        found = sp.decide(model, 0, calls=30_000, seed=seed, reference=TabularReference(wrong))
        horizon = re.search(r"returns of (\d+) steps", found.method)
        assert horizon is not None
        expected = bounded_value(TABLE, wrong, int(horizon[1]))
        assert (np.abs(found.q - expected) <= 5.0 * found.q_errors).all()
        assert (found.returns >= 30).all()
        differences = expected - expected[found.action]
        assert (np.abs(found.differences - differences) <= 5.0 * found.difference_errors + 1e-9).all()
        assert (np.abs(found.q - truth[0]) > 5.0 * found.q_errors).any()  # a negative control: the policy is poor


def test_what_is_proved_holds() -> None:
    """A false alarm, more failures than a binomial number of them has with probability 1e-6, is as rare.

    The worse action is worse by more than the gap that is asked for, so that what is certified is the best one.
    """
    runs, delta, epsilon = 25, 0.1, 0.6
    allowed = stats.binom.isf(1e-6, runs, delta)
    failures = certified = controls = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        model = sp.TabularModel(
            rng.dirichlet([1.0, 1.0], size=(4, 2)),
            rng.integers(4, size=(4, 2, 2)),
            rng.uniform([0.0, 0.9], [0.1, 1.0], size=(4, 2))[:, rng.permutation(2)],
            discount=0.4,
            reward_kind="bernoulli",
        )
        q = sp.exact.solve(model, sp.HardMax(), 1e-10).q[0]
        found = sp.decide(model, 0, calls=2_000, epsilon=epsilon, delta=delta, seed=seed)
        assert found.q_intervals is not None
        assert found.action is not None
        low, high = found.q_intervals.T
        inside = (low <= q + 1e-9).all() and (q <= high + 1e-9).all()
        failures += not (inside and q.max() - q[found.action] <= found.gap)
        certified += found.certified
        assert found.certified == (found.gap <= epsilon)
        controls += q.max() - q[1 - found.action] > found.gap
    assert failures <= allowed < runs / 2
    assert certified >= runs / 2
    assert controls > allowed  # of the other action the same is not true


@pytest.mark.parametrize("name", ["table", "simulator"])
def test_the_gap_is_that_of_the_action(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an action that only estimates favour, what is proved is what the intervals prove; whichever that is."""
    model: Any = TABLE if name == "table" else vectorised(TABLE)
    smaller = 0
    for forced in range(TABLE.actions):
        monkeypatch.setattr(Race, "choice", lambda race, action=forced: action)
        found = sp.decide(model, 0, calls=2_000, epsilon=1e-3)
        assert found.q_intervals is not None
        assert (found.action, found.certified) == (forced, False)
        low, high = found.q_intervals.T
        proved = np.delete(high, forced).max() - low[forced]
        assert found.gap <= proved
        smaller += found.gap < proved
    assert smaller <= 1  # relative bounds are about the action that the search has found


def test_common_random_numbers_make_differences_precise() -> None:
    def noisy(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        shared, own = rng.random(len(states)), rng.random(len(states))
        return states, 0.8 * shared + 0.1 * own * actions

    def apart(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        rng.random(int(actions[0]))  # so that actions draw different numbers
        return noisy(states, actions, rng)

    rivals: dict[Any, Floats] = {}
    for step in (noisy, apart):
        model = replace(plane(step), reward_range=(0.0, 1.0))
        found = sp.decide(model, calls=3_000, reference=critic(0.0, 0.1, 0.0))
        assert found.action == 2
        rivals[step] = (found.difference_errors / found.q_errors)[:2]
    assert (rivals[noisy] < 0.4).all()
    assert (rivals[apart] > 0.8).all()


def lottery(rng: np.random.Generator) -> sp.VectorModel:
    """Two stages: an action buys a ticket, a second one cashes it."""
    actions, kinds = int(rng.integers(2, 6)), 4
    means, spread = rng.random(actions), rng.random(actions) * rng.choice([0.01, 0.3])
    prizes, weights = rng.random((kinds, actions)), rng.dirichlet(np.ones(kinds), size=actions)

    def step(states: States, chosen: Ints, draws: np.random.Generator) -> tuple[Any, ...]:
        first, luck = states[:, 0] == 0.0, draws.random((3, len(states)))
        kind = (luck[0] > weights[chosen].cumsum(axis=1).T[:-1]).sum(axis=0)
        prize = prizes[states[:, 1].astype(int), chosen] * (luck[1] < 0.5)
        rewards = np.where(first, means[chosen] + spread[chosen] * (luck[2] - 0.5), prize)
        return np.stack([np.ones(len(states)), np.where(first, kind, states[:, 1])], axis=1), rewards, ~first

    return sp.VectorModel(
        step, actions=actions, discount=0.9, reward_range=(-1, 2), terminates=True, initial_state=[0.0, 0.0]
    )


def nonsense(weights: Floats, states: States) -> Floats:
    return np.cos(9.0 * states @ weights)


def test_no_dominated_action_is_chosen() -> None:
    """By three standard errors of the decision's own numbers, whatever the reference says."""
    rng = np.random.default_rng(1)
    for seed in range(80):
        model = lottery(rng)
        reference = CriticReference(partial(nonsense, rng.random((2, model.actions))))
        found = sp.decide(model, calls=int(rng.choice([60, 400, 3_000])), seed=seed, reference=reference)
        assert (found.differences <= 3.0 * found.difference_errors + 1e-9).all(), seed


# What is asked of the simulator


class Strict:
    """A simulator that knows only the states that it has led to."""

    def __init__(self, start: Any) -> None:
        self.reached = {np.asarray(start).tobytes()}

    def __call__(self, states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        if not {state.tobytes() for state in states} <= self.reached:
            raise LookupError("nobody ever got there")
        moved, rewards = walk(states, actions, rng)
        self.reached.update(state.tobytes() for state in moved)
        return moved, rewards


def test_no_state_is_asked_for_that_was_not_reached() -> None:
    model = plane()
    strict = Strict(model.initial_state)
    sp.decide(plane(strict), calls=3_000)
    agent = sp.Agent(plane(strict), calls=500, reference_calls=1_000)
    agent.act(model.initial_state)
    with pytest.raises(sp.SimulatorError, match="nobody ever got there"):
        sp.decide(plane(strict), [0.5, 0.5], calls=3_000)
    assert sp.decide(epidemic().model, calls=3_000).calls > 1_500


def test_what_ends_a_decision_leaves_what_is_known() -> None:
    """An interrupt returns it, and a simulator that fails has it with its error; in the reference and in the race."""
    for after in (500, 1_900):
        counter = Counter(plane(), interrupted_after=after)
        found = sp.decide(plane(counter), calls=3_000)
        assert (found.status, found.calls) == ("interrupted", counter.calls)
        failing = Counter(plane())

        def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
            if failing.calls >= after:  # noqa: B023
                raise LookupError("no such road")
            return failing(states, actions, rng)  # noqa: B023

        with pytest.raises(sp.SimulatorError, match="no such road") as caught:
            sp.decide(plane(step), calls=3_000)
        assert isinstance(caught.value.partial, sp.Decision)
        assert caught.value.partial.returns.any() == found.returns.any() == (after == 1_900)


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": 5, "seconds": 1.0}, "calls and seconds cannot both be given, got 5 and 1.0"),
        ({"calls": 0}, "calls must be at least 1, got 0"),
        ({"seconds": 0.0}, "seconds must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"seed": -1}, "seed must be"),
        ({"epsilon": -0.1}, "epsilon must be"),
        ({"state": 99}, "99"),
    ],
)
def test_misuse_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.decide(TABLE, **options)


def test_without_a_limit_there_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("smoothplan.decide"), "CALLS", 300)
    model, counter = counted("floats")
    assert sp.decide(model).calls == counter.calls <= 300


def test_chance_does_not_spoil_a_good_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference of 50,000 calls on a lake; by its exact action values, decisions around it lose next to nothing."""
    model = sp.models.frozen_lake(discount=0.99)
    reference = sp.SharedReference(model, sp.HardMax())
    reference.improve(50_000)
    q = sp.exact.solve(model, sp.HardMax(), 1e-9).q
    own = reference.q(np.arange(model.states)).argmax(axis=1)

    def lost() -> float:
        return sum(
            float(
                q[state, own[state]]
                - q[state, sp.decide(model, state, reference=reference, calls=4_000, seed=seed).action]
            )
            for seed in range(8)
            for state in np.flatnonzero(~model.terminal).tolist()
        )

    assert lost() <= 0.005
    monkeypatch.setattr(race, "COUNTED", 0.0)
    assert lost() > 0.05
