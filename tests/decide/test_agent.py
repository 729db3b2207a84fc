"""Agents: an own loop, exact calls, a reference that learns, episodes, and what ends them."""

import os
import signal
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.stopping import StopSignal
from smoothplan.chains.fitted import FittedReference
from smoothplan.decide.agent import FIRST_STEPS, SLOW_STEP_CALLS, STEP_CALLS, Simulated
from smoothplan.models.gymnasium import Move
from tests.common import Counter, vectorised
from tests.decide.simulators import JITTED, MODELS, TABLE, counted, critic, line, plane

LIMIT, FIRST_CALLS = 300, 2_000


@pytest.mark.parametrize("name", ["table", "floats", "whole numbers", "scalar"])
def test_an_own_loop_counts_every_call_and_keeps_to_its_limits(name: str) -> None:
    model, counter = counted(name)
    agent, state = sp.Agent(model, calls=LIMIT, reference_calls=FIRST_CALLS, seed=3), model.initial_state
    world = Simulated(MODELS[name]())  # whose calls are not the agent's
    world.reset(1)
    for step in range(1, 6):
        before = agent.calls
        action = agent.act(state)
        assert action in range(model.actions)
        if step == 1:
            reference = agent.reference
            assert before == 0 < agent.reference_calls <= FIRST_CALLS
            before = agent.reference_calls
        assert agent.calls == counter.calls
        assert 0 < agent.calls - before <= LIMIT
        world.move(action)
        state = world.state
    assert agent.reference is reference
    assert (agent.steps, agent.decision is not None) == (5, True)
    assert agent.reference_calls < getattr(reference, "calls", 0) < agent.calls  # it learnt on the way


@pytest.mark.parametrize("limit", [1, 7])
def test_few_calls_are_enough_for_an_action(limit: int) -> None:
    for name in ("table", "floats", "scalar"):
        model, counter = counted(name)
        agent = sp.Agent(model, calls=limit, reference_calls=limit)
        for _ in range(3):
            agent.act(model.initial_state)
        assert agent.calls == counter.calls <= 4 * limit


@pytest.mark.parametrize("name", MODELS)
def test_one_seed_gives_one_way(name: str) -> None:
    def played(seed: int) -> list[Any]:
        agent = sp.Agent(MODELS[name](), calls=LIMIT, reference_calls=FIRST_CALLS, seed=seed)
        episode = agent.play(max_steps=4)
        assert agent.decision is not None
        return [episode.actions.tolist(), agent.calls, agent.decision.q.tolist()]

    assert played(1) == played(1)
    if name != "compiled":
        assert played(1)[-1] != played(2)[-1]


def test_the_usual_limits_know_what_a_call_costs() -> None:
    for model, usual in ((plane(), STEP_CALLS), (line(), SLOW_STEP_CALLS)):
        agent = sp.Agent(model)
        assert (agent._limit, agent._first) == (usual, FIRST_STEPS * usual)


# The reference


def test_no_calls_take_the_references_best_action() -> None:
    table = np.random.default_rng(0).random((TABLE.states, TABLE.actions))
    agent = sp.Agent(TABLE, calls=0, reference=sp.TabularReference(table))
    assert [agent.act(state) for state in range(8)] == table[:8].argmax(axis=1).tolist()
    assert (agent.calls, agent.deviations, agent.steps) == (0, 0, 8)
    made = sp.Agent(TABLE, calls=0, reference_calls=500)
    made.act(0)
    assert made.calls == made.reference_calls == 500


def test_a_wrong_reference_is_overruled() -> None:
    """It prefers the worst action at the root and is right everywhere else."""
    truth = sp.exact.solve(TABLE, sp.HardMax()).q
    table = truth.copy()
    table[0] = -truth[0]
    agent = sp.Agent(TABLE, calls=50_000, reference=sp.TabularReference(table))
    assert agent.act(0) == truth[0].argmax() != table[0].argmax()
    assert agent.deviations == 1


def test_a_reference_that_is_given_learns_and_its_calls_count() -> None:
    counter = Counter(TABLE)
    model = vectorised(TABLE, counter)
    reference = sp.SharedReference(model, sp.HardMax())
    reference.improve(1_000)
    agent = sp.Agent(model, calls=400, reference=reference)
    for state in (0, 3, 7):
        agent.act(state)
    assert agent.reference is reference
    assert agent.reference_calls == 0
    assert agent.calls == counter.calls - 1_000 <= 1_200
    assert reference.calls == 1_300  # a quarter of the calls of each step


def test_a_critic_does_not_learn_and_leaves_all_calls_to_the_race() -> None:
    model, counter = counted("floats")
    agent = sp.Agent(model, calls=600, reference=critic(0.0, 0.0, 0.0))
    decision = agent.decide(model.initial_state)
    assert decision.calls == agent.calls == counter.calls
    assert 400 < agent.calls <= 600
    assert (agent.decide(model.initial_state).q != decision.q).any()  # by new random numbers


def test_time_limits_a_step() -> None:
    agent = sp.Agent(plane(), seconds=0.05, reference_calls=500)
    for _ in range(3):
        agent.act([0.5, 0.5])
    assert isinstance(agent.reference, FittedReference)
    assert agent.reference.calls > agent.reference_calls
    assert agent.decision is not None
    assert agent.decision.seconds < 5.0
    assert agent.calls > agent.reference_calls


# Episodes


@pytest.mark.parametrize(
    "model", [TABLE, plane(), sp.models.frozen_lake(), JITTED], ids=["table", "plane", "lake", "pole"]
)
def test_an_episode_is_what_was_played(model: Any) -> None:
    agent = sp.Agent(model, calls=50, reference_calls=500)
    told: list[tuple[float, int]] = []
    episode = agent.play(max_steps=12, seed=4, on_step=lambda score, steps: told.append((score, steps)))
    assert 0 < episode.steps <= 12
    shape = np.asarray(model.initial_state).shape
    assert episode.states.shape == (episode.steps, *shape)
    assert episode.actions.shape == episode.rewards.shape == (episode.steps,)
    np.testing.assert_array_equal(episode.states[0], model.initial_state)
    assert episode.score == pytest.approx(episode.rewards.sum())
    discounted = sum(model.discount**step * reward for step, reward in enumerate(episode.rewards))
    assert episode.discounted == pytest.approx(discounted)
    assert [steps for _, steps in told] == list(range(1, episode.steps + 1))
    assert told[-1][0] == pytest.approx(episode.score)
    assert episode.end == "max_steps" if episode.steps == 12 else "terminated"
    assert episode.calls == agent.calls
    world = Simulated(model)  # the same seed and actions lead the same way
    world.reset(4)
    for state, action, reward in zip(episode.states, episode.actions, episode.rewards, strict=True):
        np.testing.assert_array_equal(world.state, state)
        assert world.move(int(action)).reward == reward


class Ending(Simulated):
    """A world that sends a signal at the third step, or raises an interrupt."""

    def __init__(self, model: Any, number: signal.Signals | None) -> None:
        super().__init__(model)
        self.number, self.moves = number, 0

    def move(self, action: int) -> Move:
        self.moves += 1
        if self.moves == 3:
            if self.number is None:
                raise KeyboardInterrupt
            os.kill(os.getpid(), self.number)
        return super().move(action)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None])
def test_what_ends_an_episode_keeps_what_was_played(number: signal.Signals | None, interruptible: None) -> None:
    with StopSignal().on_signals() as stop_signal:
        agent = sp.Agent(plane(), calls=50, reference_calls=100, stop_signal=stop_signal)
        episode = agent.play(Ending(plane(), number))
    assert (episode.steps, episode.end) == (2, "interrupted")  # the third move was stopped
    assert episode.states.shape == (2, 2)
    assert episode.calls == agent.calls > 0


@pytest.mark.parametrize("after", [30, 110, 400], ids=["in the reference", "in the first race", "later"])
def test_calls_are_exact_where_the_simulator_is_interrupted(after: int) -> None:
    counter = Counter(plane(), interrupted_after=after)
    agent = sp.Agent(plane(counter), calls=100, reference_calls=90)
    episode = agent.play(Simulated(plane()))
    assert episode.end == "interrupted"
    assert agent.calls == counter.calls > after


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": 5, "seconds": 1.0}, "calls and seconds cannot both be given, got 5 and 1.0"),
        ({"calls": -1}, "calls must be at least 0, got -1"),
        ({"seconds": 0.0}, "seconds must be"),
        ({"reference_calls": 0}, "reference_calls must be at least 1, got 0"),
        ({"delta": 0.0}, "delta must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_misuse_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.Agent(TABLE, **options)


def test_states_that_cannot_be_are_named() -> None:
    agent = sp.Agent(sp.models.frozen_lake(), calls=50, reference_calls=100)
    for state, message in ((15, "terminal"), (99, "99")):
        with pytest.raises(ValueError, match=message):
            agent.act(state)
    loose: Any = sp.Agent
    with pytest.raises(TypeError, match="model must be an object, such as VectorModel"):
        loose(sp.VectorModel)
