"""Gymnasium environments as models: they step as the environments do, or they are refused."""

import re
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import smoothplan as sp
from smoothplan.models import from_gymnasium
from smoothplan.models import gymnasium as door
from smoothplan.models.copies import Copies
from smoothplan.models.derived import split_stages
from smoothplan.models.gymnasium import Player, notes, state_of, store_of
from smoothplan.models.model import legal_actions

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
    model = from_gymnasium(name, discount=0.9, legal=False, **options)
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
        ("Taxi-v4", {"legal": False}, "deterministic", (-10.0, 20.0)),
        ("Taxi-v4", {}, "deterministic", (-1.0, 20.0)),  # what costs 10 is not legal
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
    monkeypatch.setattr(door, "_agrees", lambda model, *_: not isinstance(model, sp.JitModel))  # a twin that errs
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

    def __init__(self, actions: Any = None) -> None:
        self.action_space = self.action_space if actions is None else actions

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
        (
            Line(spaces.MultiDiscrete([2, 2])),
            {},
            ValueError,
            "its actions are MultiDiscrete([2 2]), and a planner need",
        ),
        (
            Line(spaces.Box(-np.inf, 1.0, (2,))),
            {},
            ValueError,
            "low must be finite, so that actions can be compared, g",
        ),
        (Line(spaces.Box(0, 9, (2,), np.int64)), {}, ValueError, "its actions are Box(0, 9, (2,), int64), and a plann"),
        ("CartPole-v1", {"wheels": 3}, ValueError, "gymnasium cannot make 'CartPole-v1' with {'wheels': 3}: "),
        (
            "CartPole-v1",
            {"restore": setattr},
            ValueError,
            "snapshot and restore must be two functions, or neither, got Non",
        ),
        ("CartPole-v1", {"legal": 3}, TypeError, "legal must be true or false, got 3"),
        ("CartPole-v1", {"horizon": 0}, ValueError, "horizon must be at least 1, got 0"),
        (Line(), {"discount": 1.0}, ValueError, "horizon must be given with discount=1: Line has no time limit of its"),
        ("FrozenLake-v1", {"reward_range": (0, 0.5)}, ValueError, "reward 1 of state 14, action "),
        (Line(), {"noise": 1, "size": 2}, TypeError, "options ['noise', 'size'] go with an id, not with an environm"),
        (3, {}, TypeError, "environment must be an id or a gymnasium.Env, got 3"),
    ],
)
def test_an_environment_that_is_no_generative_model_is_refused(
    environment: Any, arguments: dict[str, Any], error: Any, message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        from_gymnasium(environment, **arguments)


def test_unknown_rewards_are_not_asked_for_but_observed() -> None:
    """A wrapper hides what CartPole pays."""
    for model in (from_gymnasium(Line()), from_gymnasium(doubled("CartPole-v1"))):
        assert model.reward_range == (-np.inf, np.inf)
        report = sp.check_model(model, rounds=5)
        low, high = report.rewards
        assert report.note.endswith(f"all rewards seen lie in ({low:g}, {high:g}): an observation, no promise")
    assert (low, high) == (2.0, 2.0)
    assert sp.check_model(from_gymnasium("CartPole-v1"), rounds=2).note == ""


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_actions_of_a_box_reach_the_environment_as_its_own(name: str) -> None:
    """By the model, by a player, and by chosen ones; next state and reward to the last bit."""
    model = from_gymnasium(name)
    chosen, _ = sp.models.discretise(model, 5)
    real: Any = gymnasium.make(name)
    player, numbered = Player(name, model), Player(name, chosen)
    for environment in (player, numbered):
        environment.reset(7)
    real.reset(seed=7)
    box: Any = model.actions
    assert isinstance(box, sp.Box)
    assert box.low.shape == (1,)
    for step in range(100):
        number = step * 3 % 5
        action = np.linspace(box.low, box.high, 5)[number]
        np.testing.assert_array_equal(player.state, state_of(model, real))
        found = sp.Oracle(model, 0).sample(player.state[None], action[None])
        same = sp.Oracle(chosen, 0).sample(player.state[None], [number])
        _, reward, terminated, truncated, _ = real.step(action.astype(np.float32))
        assert player.move(action) == numbered.move(number) == (reward, terminated, truncated)
        assert found.rewards[0] == same.rewards[0] == reward
        np.testing.assert_array_equal(found.next_states[0], player.state)
        np.testing.assert_array_equal(same.next_states[0], player.state)
        low, high = model.reward_range
        assert low <= reward <= high
    sp.check_model(model, rounds=5)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("CartPole-v1", ("left", "right")),
        ("FrozenLake-v1", ("left", "down", "right", "up")),
        ("Blackjack-v1", ("stick", "hit")),
        (doubled("CartPole-v1"), ("left", "right")),
        (gymnasium.wrappers.DiscretizeAction(gymnasium.make("Pendulum-v1"), 3), None),
        (Line(), None),
    ],
)
def test_actions_have_the_names_of_the_environment(name: Any, names: Any) -> None:
    assert from_gymnasium(name).action_names == names  # type: ignore[attr-defined]


def test_names_of_actions_say_what_they_do() -> None:
    """As the dynamics show: on solid ice, and in the taxi's grid."""
    lake: Any = from_gymnasium("FrozenLake-v1", is_slippery=False)
    moves = dict(zip(lake.action_names, lake.successors[0, :, 0], strict=True))
    assert moves == {"left": 0, "up": 0, "right": 1, "down": 4}
    taxi: Any = from_gymnasium("Taxi-v4", legal=False)
    moves = dict(zip(taxi.action_names, taxi.successors[244, :, 0], strict=True))  # row 2, column 2
    assert moves == {"south": 344, "north": 144, "east": 264, "west": 224, "pick up": 244, "drop off": 244}
    cliff: Any = from_gymnasium("CliffWalking-v1")
    moves = dict(zip(cliff.action_names, cliff.successors[14, :, 0], strict=True))  # 12 columns
    assert moves == {"up": 2, "right": 15, "down": 26, "left": 13}


# Horizons


def test_with_a_discount_of_one_the_time_limit_is_part_of_the_problem() -> None:
    """The best policy with the steps left wins as often as the exact solution says: 400 games, false alarms 4e-8."""
    model: Any = from_gymnasium("FrozenLake-v1", discount=1.0, value_range=(0, 1))
    assert (model.horizon, model.discount, model.states) == (100, 1.0, 1616)
    assert notes(model) == (
        "Planning knows the steps left of 100, by the environment's time limit or as horizon= says",
    )
    solved = sp.exact.solve(model, sp.HardMax())
    player, wins = Player("FrozenLake-v1", model), 0.0
    for game in range(400):
        player.reset(game)
        over = False
        while not over:
            reward, terminated, truncated = player.move(int(solved.q[player.state].argmax()))
            wins += reward
            over = terminated or truncated
    value = solved.values[0]
    assert abs(wins / 400 - value) < 5.5 * np.sqrt(value * (1 - value) / 400)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CartPole-v1", "Acrobot-v1", "Blackjack-v1"])
def test_a_state_has_the_steps_left(name: str) -> None:
    """Of a table, a compiled model, an assigned state and copies, whose bytes do not hold 300 by themselves."""
    model, steps = from_gymnasium(name, horizon=300), 3
    before: Any = cast(Any, model).stationary
    real, plain = gymnasium.make(name, max_episode_steps=400), from_gymnasium(name)
    for environment in (real, player := Player(real, model)):
        environment.reset(seed=3)
    states = [player.state]
    for _ in range(steps):
        real.step(0)
        states.append(state_of(model, real))
    inner, left = split_stages(model, np.array(states))
    assert left.tolist() == [300, 299, 298, 297]
    np.testing.assert_array_equal(inner[-1], state_of(plain, real))
    np.testing.assert_array_equal(inner[-1], state_of(before, real))
    np.testing.assert_array_equal(state_of(model, real, 297), states[-1])
    assert sp.Oracle(model, 0).sample(np.array([states[0], state_of(model, real, 1)]), [0, 0]).terminals[1]
    with pytest.raises(ValueError, match="steps_left must be at least 0, got -1"):
        state_of(model, real, -1)
    with pytest.raises(ValueError, match="steps_left must be given for an environment without a TimeLimit wrapper"):
        state_of(model, real.unwrapped)


def test_a_player_stops_at_the_horizon() -> None:
    model = from_gymnasium(Line(), horizon=2)
    player = Player(Line(), model)
    player.reset(0)
    assert [player.move(1)[2], player.move(1)[2]] == [False, True]
    assert split_stages(model, player.state[None])[1] == [0]


class Tired(Line):
    """Stops by itself after its third step. How tired it is may count in its rewards."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts, self.left = counts, [3]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.left = [3]
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left = [self.left[0] - 1]
        seen, reward, terminated, _, info = super().step(action)
        return seen, reward, terminated, self.left[0] == 0, info

    def reward(self) -> float:
        return float(self.left[0]) if self.counts else 1.0


@pytest.mark.parametrize("counts", [True, False])
def test_an_environment_that_truncates_itself_ends_there_if_its_state_knows_when(counts: bool) -> None:
    oracle = sp.Oracle(model := from_gymnasium(Tired(counts)), 0)
    assert isinstance(store_of(model), Copies) == counts
    states, ends = np.asarray(model.initial_state)[None], []
    for action in (1, 0, 2):
        states, _, terminal = oracle.sample(states, [action])
        ends.append(bool(terminal[0]))
    assert ends == [False, False, counts]


# Legal actions


class Careful(Line):
    """Moves to the left are legal on the right, and on the left the other way round; others are errors."""

    def action_masks(self) -> Any:
        return np.array([self.state[0] >= 0, True, self.state[0] < 0])

    def move(self, action: Any) -> None:
        assert self.action_masks()[action + 1], "illegal"
        super().move(action)


class Copied(Careful):
    """Cannot be had by its state."""

    def __init__(self) -> None:
        super().__init__()
        self.count = [0]

    def reward(self) -> float:
        self.count[0] += 1
        return float(self.count[0] % 3 == 0)


class Reporting(Careful):
    """Tells legal actions beside its observations only."""

    action_masks = None  # type: ignore[assignment]

    def told(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.state[0] >= 0, True, self.state[0] < 0], dtype=np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], self.told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], self.told()

    def move(self, action: Any) -> None:
        Line.move(self, action)


def whole(environment: Any) -> Any:
    """All but one."""
    return [1, 1, 0]


@pytest.mark.parametrize("kind", [Careful, Copied, Reporting])
def test_actions_that_an_environment_calls_legal_are_the_models(kind: type[Careful]) -> None:
    """By a method; what it only reports needs a function."""
    legal: Any = True
    if kind is Reporting:
        with pytest.raises(ValueError, match="give legal=, a function of the environment to booleans"):
            from_gymnasium(kind())
        legal = lambda environment: environment.unwrapped.told()["action_mask"]  # noqa: E731
    model, real = from_gymnasium(kind(), legal=legal, reward_range=(0, 1)), kind()
    assert (not isinstance(store_of(model), Copies)) == (kind is not Copied)
    states = []
    for seed in range(20):
        real.reset(seed=seed)
        real.step(0)
        real.step(seed % 2 - (real.state[0] >= 0))
        states.append(state_of(model, real))
        places = real.state[0]
        assert legal_actions(model, states[-1][None])[0].tolist() == [places >= 0, True, places < 0]  # type: ignore[index]
    assert len(np.unique(legal_actions(model, np.array(states)), axis=0)) == 2  # type: ignore[arg-type]
    sp.check_model(model, rounds=5)
    assert cast(Any, from_gymnasium(Reporting(), legal=False)).legal is None
    given = from_gymnasium(Reporting(), legal=whole, horizon=4)
    assert legal_actions(given, np.asarray(given.initial_state)[None]).tolist() == [[True, True, False]]  # type: ignore[union-attr]
    with pytest.raises(sp.ModelError, match=re.escape("legal must be a function of the environment to booleans [3], ")):
        from_gymnasium(kind(), legal=lambda environment: [1, 1])


def test_the_taxis_legal_actions_change_no_value() -> None:
    """The others do nothing, and cost no less."""
    masked, free = (from_gymnasium("Taxi-v4", discount=0.9, legal=legal) for legal in (True, False))
    assert cast(Any, masked).legal.sum() < 0.8 * cast(Any, masked).legal.size
    np.testing.assert_allclose(
        sp.exact.solve(cast(Any, masked), sp.HardMax()).values,
        sp.exact.solve(cast(Any, free), sp.HardMax()).values,
        atol=1e-9,
    )
