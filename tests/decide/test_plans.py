"""Plans: sequences of actions where nothing is random."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.decide.plans import Plans
from smoothplan.models.model import Oracle, States
from tests.common import Counter

LENGTH = 12


def corridor(states: States, actions: Any, rng: np.random.Generator) -> Any:
    """A long corridor: steps to the left are free, those to the right cost, and its right end pays."""
    place = np.clip(states[:, 0] + 2.0 * actions - 1.0, 0.0, LENGTH)
    over = place == LENGTH
    return np.stack([place, states[:, 1] + 0.1], axis=1), np.where(over, 10.0, -0.01 * actions), over


def pole(states: States, actions: Floats, rng: np.random.Generator) -> Any:
    """A pole that falls ever faster, and is pushed by a number."""
    angle, speed = states[:, 0], states[:, 1]
    speed = speed + 0.1 * (3.0 * angle + actions)
    angle = angle + 0.1 * speed
    return np.stack([angle, speed], axis=1), np.ones(len(states)), np.abs(angle) > 0.5


def simulator(step: Any = corridor, **changes: Any) -> sp.VectorModel:
    declared: dict[str, Any] = {"actions": ["left", "right"], "discount": 0.99, "initial_state": [0.0, 0.0]}
    return sp.VectorModel(step, **declared | changes)


def balanced(**changes: Any) -> sp.VectorModel:
    return simulator(pole, actions=sp.Box(-1.0, 1.0), initial_state=[0.05, 0.0], **changes)


CODE = np.random.default_rng(0).integers(2, size=100)


def dial(states: States, actions: Any, rng: np.random.Generator) -> Any:
    """A place goes on by its own action alone, and pays."""
    place = states[:, 0].astype(int)
    right = CODE[place] == actions
    return np.stack([place + right, states[:, 1] + 0.1], axis=1), np.where(right, 1.0, 0.0), states[:, 1] >= 4.95


def nothing(states: States) -> Floats:
    return np.zeros(len(states))


def earned(model: sp.VectorModel, start: Any, actions: Any) -> float:
    """What actions earn, one at a time."""
    oracle, state, total = Oracle(model, 5), np.array(start), 0.0
    for step, action in enumerate(actions):
        found = oracle.sample(state[None], np.array([action]))
        total += model.discount**step * found.rewards[0]
        if found.terminals[0]:
            break
        state = found.next_states[0]
    return total


@pytest.mark.parametrize("model", [simulator(), balanced()], ids=["numbered", "box"])
def test_a_plan_earns_what_it_says_and_never_less_as_calls_grow(model: sp.VectorModel) -> None:
    plans, worth = Plans(Oracle(model, 0)), -math.inf
    box = isinstance(model.actions, sp.Box)
    start, first = model.initial_state, -1.0 if box else 0
    assert plans.start(start, lambda states: np.full(len(states), first), nothing, 40, 4_000)
    while plans.improve(4_000 - plans._oracle.calls, first):
        assert plans.best is not None
        assert plans.best.value >= worth
        worth = plans.best.value
        assert worth == pytest.approx(earned(model, start, plans.best.actions), rel=1e-12)
    assert plans._oracle.calls <= 4_000
    assert plans.leads
    assert plans.base is not None
    base = earned(model, start, [first] * 40)
    assert plans.base.value == pytest.approx(base, rel=1e-12)
    assert worth > base + 1.0


def test_what_is_left_of_a_plan_goes_on_in_the_next_state() -> None:
    model, worth, reward = simulator(dial), 0.0, 0.0
    plans, state, oracle = Plans(Oracle(model, 0)), np.asarray(model.initial_state), Oracle(model, 1)
    for step in range(10):
        assert plans.start(state, lambda states: np.zeros(len(states), dtype=np.int64), nothing, 30, 900)
        assert plans.best is not None
        assert step == 0 or plans.best.value >= (worth - reward) / model.discount - 1e-9
        while plans.improve(900 * (step + 1) - plans._oracle.calls, 0):
            pass
        worth = plans.best.value
        found = oracle.sample(state[None], plans.best.actions[:1])
        state, reward = found.next_states[0], float(found.rewards[0])
    assert state[0] >= 5.0


def test_a_decision_follows_a_plan_and_says_so() -> None:
    right = 0
    for seed in range(3):
        decision = sp.decide(simulator(dial), calls=20_000, seed=seed)
        right += decision.action == CODE[0]
        assert "nothing random was seen, and a plan of" in decision.method
        assert decision.q.argmax() == decision.action
        other = 1 - decision.action
        apart = decision.q[other] - decision.q[decision.action]
        assert decision.differences[other] == pytest.approx(apart, rel=0.1)
        assert decision.differences[other] < 0.0
        assert decision.calls <= 20_000
    assert right >= 2


def test_a_plan_balances_what_no_coarse_action_does() -> None:
    model = balanced()
    decision = sp.decide(model, calls=4_000, seed=0)
    assert decision.actions is not None
    assert decision.actions[decision.place] == decision.action  # it takes part, even if no return began with it
    assert len(decision.q) == len(decision.actions) == len(decision.names) == decision.returns.shape[0]
    json.loads(decision.to_json())
    assert decision.figure() is not None
    assert sp.Agent(model, calls=1_000, seed=0).play(max_steps=60).steps == 60


@pytest.mark.parametrize("calls", [1, 4, 5, 6, 9, 17, 50, 100, 333])
def test_plans_keep_small_limits_on_calls(calls: int) -> None:
    for model in (simulator(dial), balanced(), simulator(slipping)):
        assert sp.decide(model, calls=calls, seed=calls).calls <= calls


def test_decisions_by_plans_repeat_for_any_number_of_workers() -> None:
    texts = []
    for workers in (1, "threads:2"):
        fields = json.loads(sp.decide(balanced(), calls=3_000, seed=1, workers=workers).to_json())
        texts.append({name: value for name, value in fields.items() if name not in ("seconds", "reference")})
    assert texts[0] == texts[1]


def slipping(states: States, actions: Any, rng: np.random.Generator) -> Any:
    moved, rewards, over = corridor(states, actions, rng)
    moved[:, 1] = rng.random(len(states))  # the only random number, and no reward tells it
    return moved, rewards, over


def late(states: States, actions: Any, rng: np.random.Generator) -> Any:
    moved, rewards, over = corridor(states, actions, rng)
    return moved, rewards + (moved[:, 0] >= 5.0) * rng.random(len(states)), over


@pytest.mark.parametrize(("step", "most"), [(slipping, 24), (late, 5_000)], ids=["at once", "far away"])
def test_there_are_no_plans_where_something_is_random(step: Any, most: int) -> None:
    counter = Counter(simulator(step))
    model = simulator(counter)
    plans = Plans(Oracle(model, 0))
    going = plans.start(model.initial_state, lambda states: np.zeros(len(states), dtype=np.int64), nothing, 100, 5_000)
    while going and plans.improve(5_000 - counter.calls, 0):
        pass
    assert plans.random
    assert not plans.leads
    assert counter.calls <= most
    decision = sp.decide(model, calls=6_000, seed=0)
    assert "plan of" not in decision.method


def test_plans_take_legal_actions_alone_and_an_illegal_one_changes_no_bit() -> None:
    seen = []

    def wide(states: States, actions: Any, rng: np.random.Generator) -> Any:
        seen.append(actions.max())
        return dial(states, actions, rng)

    def legal(states: States) -> Any:
        return np.stack([np.ones(len(states)), np.ones(len(states)), np.zeros(len(states))], axis=1).astype(np.bool_)

    found = []
    for model in (simulator(dial), simulator(wide, actions=["left", "right", "none"], legal=legal)):
        plans = Plans(Oracle(model, 4))
        plans.start(model.initial_state, lambda states: np.zeros(len(states), dtype=np.int64), nothing, 40, 4_000)
        while plans.improve(4_000 - plans._oracle.calls, 0):
            pass
        assert plans.best is not None
        found.append((plans.best.value, plans.best.actions.tolist(), plans._oracle.calls))
    assert found[0] == found[1]
    assert max(seen) == 1
    # Where moves to the right are illegal at times, a plan waits.
    model = simulator(legal=lambda states: np.stack([states[:, 0] >= 0.0, states[:, 1] * 10 % 3 < 2], axis=1))
    assert sp.Agent(model, calls=2_000, seed=0).play(max_steps=60).end == "terminated"


def test_a_saved_agent_goes_on_with_its_plan(tmp_path: Path) -> None:
    agent = sp.Agent(simulator(dial), calls=1_000, seed=0)
    state = np.asarray(agent.model.initial_state)
    agent.act(state)
    agent.save(tmp_path / "agent.npz")
    again = sp.Agent.load(tmp_path / "agent.npz", agent.model, calls=1_000)
    found, same = agent.decide(state), again.decide(state)
    assert agent._policies.has_plan
    assert (found.action, found.calls, found.q.tolist()) == (same.action, same.calls, same.q.tolist())


def test_a_table_needs_no_plans() -> None:
    assert "plan of" not in sp.decide(sp.models.chain(states=8), calls=3_000, seed=0).method


def test_a_rare_loss_ends_plans() -> None:
    def seldom(states: States, actions: Any, rng: np.random.Generator) -> Any:
        lost = (actions == 1) & (rng.random(len(states)) < 1.0 / 300.0)
        return 0.9 * states + 0.1 * actions[:, None], np.where(actions == 1, 1.1, 1.0) - 1_000.0 * lost

    model = simulator(seldom, discount=0.9, initial_state=[0.3, 0.5, 0.1], reward_range=(-1_000, 1.1), terminates=False)
    for seed in range(3):  # of 15 seeds one decision was wrong, with a warning
        decision = sp.decide(model, calls=100_000, seed=seed)
        assert (decision.action, "a plan of" in decision.method) == (0, False)


def test_values_by_plans_are_those_of_the_courses() -> None:
    model = simulator(dial, horizon=60, discount=1.0)
    decision = sp.decide(model, calls=10_000, seed=1)
    assert "a plan of" in decision.method
    plan = float(decision.method.rpartition("earns ")[2])
    assert decision.q.max() == pytest.approx(plan, rel=1e-3)
    assert plan <= 50.0
    assert (decision.difference_errors[np.arange(2) != decision.action] > 0.0).all()


def test_an_offset_of_all_rewards_hides_no_plan() -> None:
    def offset(states: States, actions: Any, rng: np.random.Generator) -> Any:
        moved = np.stack([states[:, 0] + np.where(states[:, 1] == 0, actions, 0), states[:, 1] + 1.0], axis=1)
        over = moved[:, 1] >= 12
        return moved, 1e5 + 50.0 * (over & (moved[:, 0] == 1)), over

    model = simulator(offset, discount=1.0, horizon=12)
    assert sp.Agent(model, calls=3_000, reference_calls=50).decide([0.0, 0.0]).action == 1


def test_agents_know_the_speed_of_the_decision_before() -> None:
    """Without it a limit in seconds would allow no plan before the first call."""
    agent = sp.Agent(balanced(), calls=500)
    assert agent._policies.speed == 0.0
    for _ in range(2):
        agent.act(agent.model.initial_state)
        assert agent._policies.speed > 0.0
        agent._policies.speed = 0.0


def test_a_plan_out_of_a_box_needs_no_returns() -> None:
    def chase(states: States, actions: Floats, rng: np.random.Generator) -> Any:
        moved = np.stack([states[:, 0] + actions, states[:, 1] + 1.0], axis=1)
        return moved, -np.abs(moved[:, 0] - 0.3137 * moved[:, 1]), moved[:, 1] >= 12

    model = simulator(chase, actions=sp.Box(-1.0, 1.0), discount=0.95, reward_range=(-30, 0))
    decision = sp.decide(model, calls=20_000, seed=0)
    assert not any("returns of every action" in warning for warning in decision.warnings)
    assert math.isfinite(decision.regret)
    assert (decision.q <= 0.0).all()
    assert decision.action == pytest.approx(0.3137, abs=0.15)
