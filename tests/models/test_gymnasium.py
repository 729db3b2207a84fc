"""Gymnasium environments as models: they step as the environments do, or they are refused."""

import re
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import smoothplan as sp
from smoothplan.models import from_gymnasium
from smoothplan.models import gymnasium as door
from smoothplan.models.gymnasium import Player

TABLES: list[tuple[str, dict[str, Any]]] = [
    ("FrozenLake-v1", {"map_name": "4x4", "is_slippery": False}),
    ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": True}),
    ("Taxi-v4", {"is_rainy": True}),
    ("CliffWalking-v1", {"is_slippery": True}),
]
CLASSIC = ["CartPole-v1", "MountainCar-v0", "Acrobot-v1"]


def doubled(name: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(gymnasium.make(name), lambda reward: 2 * float(reward))


def step_from(real: Any, state: Any, action: int, seed: int) -> tuple[Any, float, bool]:
    """The real environment's own step, drawing from the generator of `seed`."""
    real.np_random = np.random.default_rng(seed)
    if hasattr(real, "P"):
        real.s = state
    _, reward, terminated, _, _ = real.step(action)
    return (real.s if hasattr(real, "P") else np.asarray(real.state)), reward, terminated


def model_step(model: sp.GenerativeModel, state: Any, action: int, seed: int) -> tuple[Any, float, bool]:
    """The model's step, drawing from the same generator."""
    answer = model.step(np.array([state]), np.array([action]), np.random.default_rng(seed))
    return answer[0][0], answer[1][0], answer[2][0]


@pytest.mark.parametrize(("name", "options"), TABLES)
def test_a_table_steps_as_the_environment_does(name: str, options: dict[str, Any]) -> None:
    """Every state that is not terminal, every action, several draws."""
    model = from_gymnasium(name, discount=0.9, **options)
    assert isinstance(model, sp.TabularModel)
    real: Any = gymnasium.make(name, **options).unwrapped
    real.reset(seed=0)
    seed = 0
    for state in np.flatnonzero(~model.terminal):
        for action in range(model.actions):
            for _ in range(1 if model.max_successors == 1 else 4):
                seed += 1
                assert model_step(model, state, action, seed) == step_from(real, int(state), action, seed)
    assert model.discount == 0.9
    assert model.states == real.observation_space.n


@pytest.mark.parametrize("compiled", [True, False], ids=["as given", "assigned"])
@pytest.mark.parametrize("name", CLASSIC)
def test_classic_control_steps_as_the_environment_does(
    name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along random trajectories that end several times: same reward, end and next state, to the last bit.

    A compiled twin computes the same in another order, so that the last digits of its states may differ.
    """
    if not compiled:
        monkeypatch.setattr(door, "_twin", lambda _: None)
    model = from_gymnasium(name)
    error = 1e-12 if isinstance(model, sp.JitModel) else 0.0
    assert isinstance(model, sp.JitModel) == (compiled and name != "Acrobot-v1")
    real: Any = gymnasium.make(name).unwrapped
    rng = np.random.default_rng(1)
    ends = 0
    for episode in range(20):
        real.reset(seed=100 + episode)
        push = episode % model.actions
        for seed in range(200):
            # Mostly one action, so that some episodes of every environment end; where the speed is high, follow it.
            action = int(rng.integers(model.actions)) if rng.random() < 0.3 else push
            if name != "CartPole-v1" and episode % 2:
                action = 2 if real.state[-1] > 0 else 0
            state = np.array(real.state, dtype=np.float64)
            reached, *outcome = step_from(real, None, action, seed)
            found, *answer = model_step(model, state, action, seed)
            np.testing.assert_allclose(found, reached, rtol=0, atol=error)
            assert answer == outcome
            if outcome[1]:
                ends += 1
                break
    assert ends >= 5


@pytest.mark.parametrize(
    ("name", "options", "kind", "range_"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}, "deterministic", (-1.0, 0.0)),
        ("FrozenLake-v1", {}, "transition", (0.0, 1.0)),
        ("CliffWalking-v1", {"is_slippery": True}, "bounded", (-100.0, -1.0)),
        ("Taxi-v4", {}, "deterministic", (-10.0, 20.0)),
        ("Taxi-v4", {"fickle_passenger": True}, "bounded", (-10.0, 20.0)),
        ("Blackjack-v1", {"natural": True}, "transition", (-1.0, 1.0)),  # the rules of Sutton and Barto are the default
        ("Blackjack-v1", {"natural": True, "sab": False}, "transition", (-1.0, 1.5)),
    ],
)
def test_declarations_and_check(name: str, options: dict[str, Any], kind: str, range_: tuple[float, float]) -> None:
    model = from_gymnasium(name, **options)
    assert (model.reward_kind, model.reward_range, model.terminates) == (kind, range_, True)
    sp.check_model(model, rounds=20)


def test_stepping_into_the_end_again_pays_again() -> None:
    """CartPole itself pays 0 from the second step beyond the end; a generative model keeps no such account."""
    oracle = sp.Oracle(from_gymnasium(doubled("CartPole-v1"), reward_range=(0, 2)), 0)
    transition = oracle.sample(np.tile([2.39, 3.0, 0.0, 0.0], (4, 1)), np.ones(4, dtype=np.int64))
    assert transition.rewards.tolist() == [2.0] * 4
    assert transition.terminals.all()


def test_the_users_environment_is_not_touched() -> None:
    mine, twin = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    for environment in (mine, twin):
        environment.reset(seed=3)
        environment.step(1)
    model = from_gymnasium(mine)
    sp.Oracle(model, 0).sample(np.zeros((10, 4)), np.zeros(10, dtype=np.int64))
    np.testing.assert_array_equal(mine.unwrapped.state, twin.unwrapped.state)  # type: ignore[attr-defined]
    assert mine.np_random.bit_generator.state == twin.np_random.bit_generator.state
    np.testing.assert_equal(mine.step(0), twin.step(0))


def test_a_changed_environment_has_no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where playing side by side would hardly show it."""
    changed: Any = gymnasium.make("CartPole-v1")
    changed.unwrapped.x_threshold = 5.0
    assert isinstance(from_gymnasium(changed), sp.VectorModel)
    assert isinstance(from_gymnasium("CartPole-v1", sutton_barto_reward=True), sp.VectorModel)
    monkeypatch.setattr(door, "_agrees", lambda model, real: not isinstance(model, sp.JitModel))  # a twin that errs
    assert isinstance(from_gymnasium("CartPole-v1"), sp.VectorModel)


def test_a_player_plays_the_environment_itself() -> None:
    """Its actions are numbered from 0, those of the environment from −1."""
    played, real = Line(), Line()
    player = Player(played, from_gymnasium(played, reward_range=(0, 1)))
    player.reset(7)
    real.reset(seed=7)
    terminated, step = False, 0
    while not terminated:
        np.testing.assert_array_equal(player.state, real.state)
        reward, terminated, truncated = player.move(step % 3)
        assert real.step(step % 3 - 1)[1:4] == (reward, terminated, truncated)
        step += 1


class Line(gymnasium.Env[Any, Any]):
    """A noisy walk on the line, whose actions are −1, 0 and 1. It counts its steps where no instance can forget it."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(3, start=-1)
    steps: ClassVar[int] = 0

    start: Any = (0.0,)
    state: Any

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.array(self.start)
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Line.steps += 1
        self.move(action)
        return self.state, self.reward(), bool(abs(self.state[0]) > 3), False, {}

    def move(self, action: Any) -> None:
        self.state = self.state + action + 0.5 * self.np_random.standard_normal(1)

    def reward(self) -> float:
        return float(self.np_random.random() < 0.5)


class Drawn(Line):
    """Its pictures are of numbers from 0 to 1."""

    render_mode = "rgb_array"

    def render(self) -> Any:
        return np.zeros((2, 4, 3))


def test_pictures_that_an_animation_cannot_show_are_refused() -> None:
    model = from_gymnasium(Drawn(), reward_range=(0, 1))
    with pytest.raises(
        ValueError, match=r"record needs pictures of Drawn, .* of uint8, got float64 of shape \(2, 4, 3\)"
    ):
        Player(Drawn(), model, look=lambda *_: None)


class InPlace(Line):
    """Changes its state in place."""

    def move(self, action: Any) -> None:
        self.state += action + 0.5 * self.np_random.standard_normal(1)


class Careless(Line):
    """Starts at the whole number 0 and continues with fractions."""

    start = (0,)


@pytest.mark.parametrize("kind", [Line, InPlace, Careless])
def test_an_environment_with_noise_agrees_draw_by_draw(kind: type[Line]) -> None:
    model = from_gymnasium(kind(), reward_range=(0, 1))
    assert (model.reward_kind, model.reward_range, model.max_successors) == ("bounded", (0.0, 1.0), None)
    real = kind()
    real.reset(seed=0)
    for seed in range(200):
        state = np.array(real.state, dtype=model.initial_state.dtype)
        reached, *outcome = step_from(real, None, seed % 3 - 1, seed)
        found, *answer = model_step(model, state, seed % 3, seed)
        np.testing.assert_array_equal(found, reached)
        assert answer == outcome
    sp.check_model(model, rounds=10)


@pytest.mark.parametrize(
    ("environment", "arguments", "error", "message"),
    [
        ("Pendulum-v1", {}, ValueError, "Pendulum-v1 cannot be made a generative model: its actions are a Box"),
        ("CartPole-v1", {"wheels": 3}, ValueError, "gymnasium cannot make 'CartPole-v1' with {'wheels': 3}: "),
        ("FrozenLake-v1", {"reward_range": (0, 0.5)}, ValueError, "reward 1 of state 14, action "),
        (Line(), {}, ValueError, "reward_range must be given: the rewards of Line are not known to smoothplan"),
        (Line(), {"noise": 1, "size": 2}, TypeError, "options ['noise', 'size'] go with an id, not with an environm"),
        (doubled("CartPole-v1"), {}, ValueError, "are given by reward_range=(low, high), on the command line CartPole"),
        (3, {}, TypeError, "environment must be an id or a gymnasium.Env, got 3"),
    ],
)
def test_an_environment_that_is_no_generative_model_is_refused(
    environment: Any, arguments: dict[str, Any], error: Any, message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        from_gymnasium(environment, **arguments)
