"""Decisions: their fields, their cost, and the truth of their proofs and warnings."""

import json
import math
import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import paused_clock
from smoothplan.decide.race import Race
from smoothplan.models.model import States
from studies.simulators import epidemic
from tests.common import Counter, vectorised
from tests.decide.simulators import MODELS, TABLE, counted, critic, plane, walk


def content(decision: sp.Decision) -> dict[str, Any]:
    """Everything but the time."""
    fields: dict[str, Any] = json.loads(decision.to_json())
    del fields["seconds"]
    return fields


# Fields, calls, seeds


@pytest.mark.parametrize("name", MODELS)
def test_fields_have_their_shapes_and_the_seed_decides(name: str) -> None:
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
    assert found.certified == (found.gap <= 0.3)
    assert (found.q_intervals is None) == math.isinf(found.gap)
    if found.q_intervals is not None:
        assert found.q_intervals.shape == (model.actions, 2)
    assert found.reference is not None
    assert type(found.reference).__name__ in found.method
    assert f"{found.calls:,} simulator calls" in found.summary()
    first, again, other = (content(sp.decide(MODELS[name](), calls=1_000, seed=seed)) for seed in (7, 7, 8))
    assert first == again
    assert name == "compiled" or other != first | {"seed": 8}  # nothing is random in the compiled one


@pytest.mark.parametrize("name", MODELS)
def test_calls_are_exact_and_within_the_limit(name: str) -> None:
    for limit in (1, 7, 100, 5_000):
        for model, counter in [(MODELS[name](), None), *([] if name == "compiled" else [counted(name)])]:
            found = sp.decide(model, calls=limit)
            assert found.calls <= limit
            assert counter is None or found.calls == counter.calls
    assert found.calls > 0.1 * limit


def test_json_has_null_for_what_is_infinite() -> None:
    for decision in (sp.decide(plane(), calls=1), sp.decide(TABLE, 0, calls=2_000)):
        fields = json.loads(decision.to_json(), parse_constant=pytest.fail)
        assert (fields["gap"] is None) == math.isinf(decision.gap)
        for name in ("q_errors", "difference_errors"):
            assert fields[name] == [x if math.isfinite(x) else None for x in getattr(decision, name).tolist()]
        assert (fields["action"], fields["warnings"]) == (decision.action, list(decision.warnings))


# Time


def test_compiling_does_not_count_and_time_does() -> None:
    """A limit of 0.3 s, which would be over after the first call."""
    calls = 0

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        nonlocal calls
        calls += 1
        if calls == 1:
            with paused_clock():
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


def test_a_limit_in_seconds_does_not_shorten_returns_for_its_first_calls() -> None:
    """The first portion of a race is small, because a simulator may be slow."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        return np.clip(states + 0.1 * (actions - 1)[:, None], -2.0, 2.0), np.exp(-(states**2).sum(axis=1))

    model = replace(plane(step), discount=0.95, max_successors=1, reward_kind="deterministic")
    found = sp.decide(model, seconds=0.5, reference=critic(0.0, 1.0, 0.0))
    (steps,) = map(int, re.findall(r"returns of (\d+) steps", found.method))
    assert steps >= 32  # 77 if the machine is idle; the first portion of 48 calls would allow 16


# Warnings


def test_a_terminal_state_and_a_single_action_leave_nothing_to_decide() -> None:
    found = sp.decide(sp.models.frozen_lake(), 15)
    assert (found.action, found.calls, found.status, found.certified, found.gap) == (None, 0, "terminal", True, 0.0)
    assert found.summary() == "the state is terminal: there is nothing to decide"
    single = sp.models.garnet(states=6, actions=1, branching=3, seed=6)
    for given in (single, vectorised(single)):
        found = sp.decide(given, 0, calls=500)
        assert (found.action, found.warnings, found.regret) == (0, (), 0.0)


@pytest.mark.parametrize("name", MODELS)
def test_a_tiny_budget_says_so_first(name: str) -> None:
    found = sp.decide(MODELS[name](), calls=1)
    assert re.match(r"1 call did not suffice", found.warnings[0])
    assert found.summary().splitlines()[0] == f"warning: {found.warnings[0]}"
    assert (found.regret, found.certified) == (math.inf, False)


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_an_end_that_no_walk_has_met_is_warned_of(kind: Any) -> None:
    def corridor(length: int) -> sp.VectorModel:
        def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats, Any]:
            place = states[:, 0]
            moved = np.where(actions == place % 7 % 3, place + 1, 0)  # a step that is wrong leads back
            return moved[:, None], np.full(len(states), -1.0), moved == length

        start = np.zeros(1, dtype=kind)
        return sp.VectorModel(step, actions=3, discount=0.95, reward_range=(-1, 0), initial_state=start)

    for calls in (2_000, 20_000):
        (far,) = sp.decide(corridor(60), calls=calls).warnings
        assert re.search("has learnt nothing|all returns are alike, -20|they may be equally good", far)
    near = sp.decide(corridor(4), calls=20_000)
    assert (near.action, near.warnings) == (0, ())


def test_a_reference_that_lies_is_found_out() -> None:
    lying = sp.decide(plane(), calls=5_000, reference=critic(4.0, 4.9, 4.5))
    assert any("the reference is poor: it claims 4.9" in note for note in lying.notes)
    truth = sp.TabularReference(sp.exact.solve(TABLE, sp.HardMax()).q)
    assert not any("poor" in note for note in sp.decide(TABLE, 0, calls=5_000, reference=truth).notes)


# Proofs


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


@pytest.mark.parametrize("model", [TABLE, vectorised(TABLE)], ids=["table", "simulator"])
def test_the_gap_is_that_of_the_action(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an action that only estimates favour, the intervals prove what is proved."""
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


# Simulators


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
    sp.Agent(plane(strict), calls=500, reference_calls=1_000).act(model.initial_state)
    with pytest.raises(sp.SimulatorError, match="nobody ever got there"):
        sp.decide(plane(strict), [0.5, 0.5], calls=3_000)
    assert sp.decide(epidemic().model, calls=3_000).calls > 1_500


@pytest.mark.parametrize("after", [500, 1_900], ids=["in the reference", "in the race"])
def test_what_ends_a_decision_leaves_what_is_known(after: int) -> None:
    """An interrupt returns it, and the error of a simulator that fails carries it."""
    counter = Counter(plane(), interrupted_after=after)
    found = sp.decide(plane(counter), calls=3_000)
    assert (found.status, found.calls) == ("interrupted", counter.calls)
    failing = Counter(plane())

    def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
        if failing.calls >= after:
            raise LookupError("no such road")
        return failing(states, actions, rng)

    with pytest.raises(sp.SimulatorError, match="no such road") as caught:
        sp.decide(plane(step), calls=3_000)
    assert isinstance(caught.value.partial, sp.Decision)
    assert caught.value.partial.returns.any() == found.returns.any() == (after == 1_900)


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


def test_a_function_in_place_of_a_reference_and_whole_numbers_in_place_of_floats_are_named() -> None:
    with pytest.raises(TypeError, match=r"reference must have a method q\(states\), got <function"):
        sp.decide(TABLE, reference=lambda states: np.zeros((len(states), 3)))  # type: ignore[arg-type]
    with pytest.raises(sp.SimulatorError, match=r"int64, got float64; write the first state .* as \[1.0, -1.0\]"):
        sp.decide(replace(plane(), initial_state=np.array([1, -1])))
