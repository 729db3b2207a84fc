"""Environments that save their state and take it back: they step as the environment does, or are refused."""

import pickle
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import smoothplan as sp
from smoothplan.models import from_gymnasium
from smoothplan.models.copies import Copies
from smoothplan.models.gymnasium import Player, notes, state_of, store_of


class Machine(gymnasium.Env[Any, Any]):
    """A walk whose place and speed are kept by an engine that can be neither copied nor pickled."""

    observation_space, action_space = spaces.Discrete(1), spaces.Discrete(3, start=-1)

    def __init__(self) -> None:
        self.engine: dict[str, Any] = {"lock": threading.Lock(), "place": 0.0, "speed": 0, "turns": 0}

    def __deepcopy__(self, memory: Any) -> Any:
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), ()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.engine |= {"place": float(self.np_random.integers(3)), "speed": 0}
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        engine = self.engine
        engine["speed"] += action
        engine["place"] += engine["speed"] + self.np_random.standard_normal()
        engine["turns"] += 1
        return 0, float(np.exp(-abs(engine["place"]))), abs(engine["place"]) > 50, False, {}


def saved_numbers(environment: Any) -> Any:
    engine = environment.unwrapped.engine
    return np.array([engine["place"], engine["speed"]])


def restore_numbers(environment: Any, saved: Any) -> None:
    environment.unwrapped.engine |= {"place": float(saved[0]), "speed": int(saved[1])}


def saved_bytes(environment: Any) -> bytes:
    """Their number varies, and they may end in zeros."""
    numbers = saved_numbers(environment)
    return (numbers.tobytes() if numbers[1] > 0 else repr(numbers.tolist()).encode()) + bytes(int(abs(numbers[1])))


def restore_bytes(environment: Any, saved: bytes) -> None:
    zeros = len(saved) - len(saved.rstrip(b"\0"))
    text = saved[: len(saved) - zeros] if saved.startswith(b"[") else saved[:16]
    restore_numbers(environment, eval(text) if saved.startswith(b"[") else np.frombuffer(text))
    assert len(saved) == len(saved_bytes(environment))


WAYS: list[dict[str, Any]] = [
    {"snapshot": saved_numbers, "restore": restore_numbers},
    {"snapshot": saved_bytes, "restore": restore_bytes},
]


def trajectory(real: Any, model: sp.GenerativeModel, steps: int, actions: Any) -> None:
    """The model steps as an environment does that draws from the same generator, to the last bit."""
    store: Any = store_of(model)
    for step in range(steps):
        state, action = state_of(model, real), actions(step)
        store.reseed(real, np.random.default_rng(step))
        before = real.action_space.start if hasattr(real.action_space, "start") else 0
        _, reward, terminated, truncated, _ = real.step(action + before if before else action)
        for _ in range(2):
            found = model.step(state[None], np.array([action]), np.random.default_rng(step))
            assert (found[1][0], found[2][0]) == (reward, terminated or truncated)
            np.testing.assert_array_equal(found[0][0], state_of(model, real))
        if terminated or truncated:
            real.reset(seed=step)


@pytest.mark.parametrize("ways", WAYS, ids=["numbers", "bytes"])
def test_an_environment_is_simulated_by_what_it_saves(ways: dict[str, Any]) -> None:
    given = Machine()
    given.engine["place"] = 7.5
    model = from_gymnasium(given, **ways)
    assert given.engine["place"] == 7.5
    assert notes(model)[0].startswith("Machine is simulated by snapshots of the environment")
    assert not isinstance(store_of(model), Copies)
    real = Machine()
    real.reset(seed=5)
    trajectory(real, model, 300, lambda step: step * 7 % 3)
    sp.check_model(pickle.loads(pickle.dumps(model)), rounds=5)
    states = np.repeat(np.asarray(model.initial_state)[None], 50, axis=0)
    found = sp.Oracle(model, 0).sample(states, np.zeros(50, dtype=np.int64))
    assert len(np.unique(found.rewards)) == 50  # each call draws its own future
    limited = from_gymnasium(Machine(), horizon=300, **ways)
    player = Player(Machine(), limited)
    player.reset(0)
    oracle = sp.Oracle(limited, 0)
    assert not oracle.sample(player.state[None], [0]).terminals[0]
    player._moves = 299
    assert oracle.sample(player.state[None], [0]).terminals[0]


def forgets(environment: Any) -> Any:
    return saved_numbers(environment)[:1]


def sets_place(environment: Any, saved: Any) -> None:
    environment.unwrapped.engine["place"] = float(saved[0])


def grows(environment: Any) -> Any:
    return np.zeros(1 + environment.unwrapped.engine["turns"] % 3)


@pytest.mark.parametrize(
    ("snapshot", "restore", "message"),
    [
        (
            forgets,
            sets_place,
            "an environment that takes back a snapshot does not repeat its steps: a snapshot must hold",
        ),
        (
            grows,
            sets_place,
            r"snapshot must return bytes or numbers, here numbers of shape \(1,\) and dtype float64, got",
        ),
        (lambda environment: None, sets_place, "snapshot must return bytes or numbers, here .* got None"),
        (saved_numbers, lambda environment, saved: 1 / 0, "it raised ZeroDivisionError in random play"),
    ],
)
def test_a_snapshot_that_is_not_the_whole_state_is_refused(snapshot: Any, restore: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"Machine cannot be made a generative model: {message}"):
        from_gymnasium(Machine(), snapshot=snapshot, restore=restore)


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "Ant-v5", "Hopper-v5"])
def test_a_simulation_by_mujoco_goes_on_from_its_state(name: str) -> None:
    """Bodies' positions before a step are part of the reward of Ant, and warm starts of all."""
    pytest.importorskip("mujoco")
    model, real = from_gymnasium(name), gymnasium.make(name).unwrapped
    assert isinstance(model.actions, sp.Box)
    real.reset(seed=5)
    box, rng = model.actions, np.random.default_rng(0)
    actions = rng.uniform(box.low, box.high, (100, *box.low.shape)).astype(np.float32)
    trajectory(real, model, 100, lambda step: actions[step])
    clipped = from_gymnasium(gymnasium.wrappers.ClipReward(gymnasium.make(name), 0, 0.5), reward_range=(0, 0.5))
    states = np.repeat(np.asarray(model.initial_state)[None], 100, axis=0)
    one, two = (sp.Oracle(each, 0).sample(states, actions) for each in (model, clipped))
    np.testing.assert_array_equal(np.clip(one.rewards, 0, 0.5), two.rewards)


class Sluggish(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps something."""

    def step(self, action: Any) -> Any:
        return super().step(action)


def test_a_simulation_by_mujoco_whose_constants_were_changed_is_refused() -> None:
    """A copy would have the usual gravity."""
    pytest.importorskip("mujoco")
    moon: Any = gymnasium.make("InvertedPendulum-v5")
    moon.unwrapped.model.opt.gravity[2] = -1.62
    with pytest.raises(ValueError, match="its constants were changed after it was made, and a copy is made by its arg"):
        from_gymnasium(moon)


def test_what_a_wrapper_keeps_is_no_part_of_a_known_snapshot() -> None:
    pytest.importorskip("mujoco")
    with pytest.raises(ValueError, match="a snapshot lacks what its wrappers keep, Sluggish: give from_gymnasium snap"):
        from_gymnasium(Sluggish(gymnasium.make("InvertedPendulum-v5")))


def test_an_atari_game_goes_on_from_its_state() -> None:
    """Sticky actions draw from the generator of the call: with probability 1/4 a frame repeats the last action."""
    pytest.importorskip("ale_py")
    model: Any = from_gymnasium("ale_py:ALE/Freeway-v5", frameskip=1)
    assert model.action_names == ("noop", "up", "down")
    assert "may repeat none" in notes(model)[1]
    states = np.repeat(np.asarray(model.initial_state)[None], 800, axis=0)
    oracle = sp.Oracle(model, 0)
    found = oracle.sample(oracle.sample(states, np.full(800, 1)).next_states, np.full(800, 2)).next_states
    _, counts = np.unique(found, axis=0, return_counts=True)
    # The game does not move yet: the last action is down, up, or none. 5.5 standard deviations: false alarms 4e-8 each.
    for share, count in zip((1 / 16, 3 / 16, 12 / 16), sorted(counts), strict=True):
        assert abs(count - 800 * share) < 5.5 * np.sqrt(800 * share * (1 - share))


def test_minigrids_are_copied_and_name_their_actions() -> None:
    pytest.importorskip("minigrid")
    model: Any = from_gymnasium("MiniGrid-DoorKey-5x5-v0")
    assert model.action_names == ("left", "right", "forward", "pickup", "drop", "toggle", "done")
    assert model.reward_range == (0.0, 1.0)
    real = gymnasium.make("MiniGrid-DoorKey-5x5-v0").unwrapped
    real.reset(seed=1)
    trajectory(real, model, 300, lambda step: step * 5 % 7)


@pytest.mark.parametrize("name", ["LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3"])
def test_a_simulation_by_box2d_is_refused_with_the_reason(name: str) -> None:
    pytest.importorskip("Box2D")
    with pytest.raises(
        ValueError, match=f"{name} cannot be made .* by Box2D, whose contacts and impulses .* snapshot="
    ):
        from_gymnasium(name)
