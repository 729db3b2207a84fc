"""Gymnasium environments as models: they step as the environments do, or they are refused."""

import functools
import pickle
import random
import re
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import smoothplan as sp
from smoothplan.models import from_gymnasium
from smoothplan.models import gymnasium as door
from smoothplan.models.gymnasium import Player, notes, state_of

TABLES: list[tuple[str, dict[str, Any]]] = [
    ("FrozenLake-v1", {"map_name": "4x4", "is_slippery": False}),
    ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": True}),
    ("Taxi-v4", {}),
    ("Taxi-v4", {"is_rainy": True}),
    ("CliffWalking-v1", {"is_slippery": True}),
]
CLASSIC = ["CartPole-v1", "MountainCar-v0", "Acrobot-v1"]


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


# --- Agreement ------------------------------------------------------------------------------------------------------


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
        monkeypatch.setattr(door, "_twin", lambda *_: None)
    model = from_gymnasium(name)
    error = door.TWIN_ERROR if isinstance(model, sp.JitModel) else 0.0
    assert isinstance(model, sp.JitModel) == compiled
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
        ("CartPole-v1", {}, "deterministic", (1.0, 1.0)),
        ("CartPole-v1", {"sutton_barto_reward": True}, "deterministic", (-1.0, 0.0)),
        ("Acrobot-v1", {}, "deterministic", (-1.0, 0.0)),
        ("FrozenLake-v1", {}, "transition", (0.0, 1.0)),
        ("CliffWalking-v1", {"is_slippery": True}, "bounded", (-100.0, -1.0)),
        ("FrozenLake-v1", {"is_slippery": False}, "deterministic", (0.0, 1.0)),
        ("Taxi-v4", {}, "deterministic", (-10.0, 20.0)),
    ],
)
def test_declarations_and_check(name: str, options: dict[str, Any], kind: str, range_: tuple[float, float]) -> None:
    model = from_gymnasium(name, **options)
    assert (model.reward_kind, model.reward_range, model.terminates) == (kind, range_, True)
    sp.check_model(model, rounds=20)


def test_stepping_into_the_end_again_pays_again() -> None:
    """CartPole itself pays 0 from the second step beyond the end; a generative model keeps no such account."""
    model = from_gymnasium("CartPole-v1")
    oracle = sp.Oracle(model, 0)
    for _ in range(3):
        transition = oracle.sample(np.tile([2.39, 3.0, 0.0, 0.0], (4, 1)), np.ones(4, dtype=np.int64))
        assert transition.rewards.tolist() == [1.0] * 4
        assert transition.terminals.all()
    assert oracle.calls == 12


def test_the_users_environment_is_not_touched() -> None:
    mine, twin = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    for environment in (mine, twin):
        environment.reset(seed=3)
        environment.step(1)
    model = from_gymnasium(mine)
    sp.Oracle(model, 0).sample(np.zeros((10, 4)), np.zeros(10, dtype=np.int64))
    np.testing.assert_array_equal(mine.unwrapped.state, twin.unwrapped.state)  # type: ignore[attr-defined]
    assert mine.np_random.bit_generator.state == twin.np_random.bit_generator.state
    for _ in range(5):
        one, two = mine.step(0), twin.step(0)
        np.testing.assert_array_equal(one[0], two[0])
        assert one[1:] == two[1:]


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("CartPole-v1", "x_threshold", 5.0),
        ("MountainCar-v0", "force", 0.01),
        ("Acrobot-v1", "book_or_nips", "nips"),
    ],
)
def test_a_changed_environment_has_no_twin(
    name: str, attribute: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where playing side by side would hardly show it."""
    changed = gymnasium.make(name)
    setattr(changed.unwrapped, attribute, value)
    assert isinstance(from_gymnasium(changed), sp.VectorModel)
    assert isinstance(from_gymnasium(gymnasium.make(name)), sp.JitModel)
    assert isinstance(from_gymnasium("CartPole-v1", sutton_barto_reward=True), sp.VectorModel)
    monkeypatch.setattr(door, "TWIN_ERROR", -1.0)  # a twin that does not agree is not handed out
    assert isinstance(from_gymnasium(gymnasium.make(name)), sp.VectorModel)


def test_a_twin_has_the_same_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: dict[str, Any] = {"discount": 0.9, "reward_range": (0, 2), "value_range": (1, 10)}
    twin = from_gymnasium("CartPole-v1", **declared)
    monkeypatch.setattr(door, "_twin", lambda *_: None)
    model = from_gymnasium("CartPole-v1", **declared)
    for name in ("actions", "discount", "reward_range", "value_range", "reward_kind", "max_successors", "terminates"):
        assert getattr(twin, name) == getattr(model, name)
    np.testing.assert_array_equal(twin.initial_state, model.initial_state)
    assert twin.initial_state.dtype == model.initial_state.dtype


# --- Playing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CartPole-v1"])
def test_a_player_plays_the_environment_itself(name: str) -> None:
    player, real = Player(name, from_gymnasium(name)), gymnasium.make(name)
    player.reset(7)
    real.reset(seed=7)
    bare: Any = real.unwrapped
    for step in range(300):
        np.testing.assert_array_equal(player.state, bare.s if hasattr(bare, "s") else bare.state)
        move = player.move(step % player.actions)
        _, *outcome, _ = real.step(step % player.actions)
        assert list(move) == outcome
        if move.terminated or move.truncated:
            break
    assert move.terminated or move.truncated


def test_a_players_actions_are_numbered_from_0() -> None:
    line = Line()
    player = Player(line, from_gymnasium(line, reward_range=(0, 1)))
    player.reset(0)
    before = player.state
    player.move(0)
    assert player.state[0] < before[0] + 2.0
    assert player.actions == 3


# --- Environments of one's own --------------------------------------------------------------------------------------


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


class InPlace(Line):
    """Changes its state in place."""

    def move(self, action: Any) -> None:
        self.state += action + 0.5 * self.np_random.standard_normal(1)


class Single(Line):
    """Its state is single precision."""

    start = np.full(1, 0.3, dtype=np.float32)

    def move(self, action: Any) -> None:
        self.state = np.float32(0.7) * self.state + np.float32(action)


class Careless(Line):
    """Starts at the whole number 0 and continues with fractions."""

    start = (0,)


class Numbered(Line):
    """Its state is the number of a row of a table."""

    rows = ((1, 2, 0), (2, 0, 1), (0, 1, 2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = 0
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Line.steps += 1
        self.state = self.rows[self.state][action]
        return self.state, self.reward(), False, False, {}


@pytest.mark.parametrize("kind", [Line, InPlace, Single, Careless, Numbered])
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


def test_every_step_of_the_environment_is_counted() -> None:
    oracle = sp.Oracle(from_gymnasium(Line(), reward_range=(0, 1)), 0)
    Line.steps = 0
    for size in (1, 7, 20):
        oracle.sample(np.zeros((size, 1)), np.zeros(size, dtype=np.int64))
    assert oracle.calls == Line.steps == 28


@pytest.mark.parametrize("kind", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "Dungeon", "InPlace"])
def test_threads_and_pickled_copies_draw_alike(kind: str) -> None:
    source = kind if "-" in kind else globals()[kind]()
    model = from_gymnasium(source, reward_range=(0, 1) if source is not kind else None)
    size = 200 if kind not in ("Blackjack-v1", "Dungeon") else 12
    states = np.repeat(np.asarray(model.initial_state)[None], size, axis=0)
    actions = np.arange(size) % model.actions

    def run(chunk: int, model: sp.GenerativeModel = model) -> Any:
        oracle = sp.Oracle(model, 0, chunk)
        return [oracle.sample(states, actions) for _ in range(3)]

    expected = [run(chunk) for chunk in range(8)]
    copied = pickle.loads(pickle.dumps(model))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(8)))
    np.testing.assert_equal(found, expected)
    np.testing.assert_equal([run(chunk, copied) for chunk in range(8)], expected)


class Ageing(Line):
    """A hidden counter in a list, which no reset puts back."""

    def __init__(self) -> None:
        self.count = [0]

    def reward(self) -> float:
        self.count[0] += 1
        return float(self.count[0] % 3 == 0)


class Labelled(Line):
    """Its state is not numbers."""

    start = ("a",)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.state, 0.0, False, False, {}


# --- By copies ------------------------------------------------------------------------------------------------------

CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}


def doubled(name: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(gymnasium.make(name), lambda reward: 2 * float(reward))


def pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.DiscretizeAction(gymnasium.make("Pendulum-v1"), 3)


class Colour(Enum):
    RED = 1


class Place(NamedTuple):
    x: int
    y: int


class Monster:
    """Knows the map and draws from a generator of its own, which it once got from the environment."""

    __slots__ = ("map", "place", "random")

    def __init__(self, map_: Any, random_: Any) -> None:
        self.map, self.place, self.random = map_, Place(2, 2), random_

    def move(self) -> None:
        self.place = Place(int(self.random.integers(5)), self.place.y)
        self.map[self.place.x, self.place.y] += 1


class Dungeon(gymnasium.Env[Any, Any]):
    """Many attributes, shared parts, several sources of randomness, and a large table that never changes."""

    observation_space = spaces.Discrete(5)

    def __init__(self, opens: int = 1_000) -> None:
        self.opens = opens
        self.action_space = spaces.Discrete(3, start=4)
        self.dice, self.old = random.Random(0), np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.doors: dict[str, Any] = {f"door {n}": [n, {"open": False}] for n in range(100)}
        self.place = self.start = Place(1, 1)
        self.map = np.zeros((5, 5), dtype=np.int8)
        self.monsters = [Monster(self.map, self.np_random), Monster(self.map, self.old)]
        self.first = self.monsters[0]
        self.keys, self.last = {"gold"}, deque([1.5, -0.0], maxlen=3)
        self.colour, self.count, self.self, self.größe = Colour.RED, np.int64(0), self, "klein"
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for monster in self.monsters:
            monster.move()
        self.place = Place((self.place.x + action) % 5, self.action_space.sample() - 4)
        self.keys ^= {self.dice.choice(["gold", "iron", "wood"])}
        self.last.append(float(self.map[self.place]))
        self.größe += "é"[int(self.count) % 2 :]
        self.count += 1
        assert self.first is self.monsters[0]
        assert self.self is self
        assert all(monster.map is self.map for monster in self.monsters)
        if self.count > self.opens:
            self.doors["door 7"][1]["open"] = True
        return 0, float(self.map.max() / (1 + self.map.sum())), bool(self.count == 100), False, {}


@pytest.fixture(scope="module")
def dungeon() -> sp.GenerativeModel:
    real = Dungeon()
    model = from_gymnasium(real, reward_range=(0, 1))
    assert not vars(real).keys() & {"map", "place"}  # it was not touched
    return model


def test_a_copy_is_all_of_the_environment(dungeon: sp.GenerativeModel) -> None:
    """Its construction has compared it with the real environment, step by step; here is what that would not notice."""
    real, model = Dungeon(), dungeon
    assert "copies of Dungeon, states of" in repr(model)
    assert "µs per simulator call" in notes(model)[0]
    real.reset(seed=1)
    states = [state_of(model, real)]
    for action in (4, 5, 6, 4):
        real.step(action)
        states.append(state_of(model, real))
    assert len({state.tobytes() for state in states}) == 5
    snapshots = model.step._snapshots  # type: ignore[attr-defined]
    for state in states:
        copied = snapshots.rebuilt(state, np.random.default_rng(0))
        np.testing.assert_array_equal(state_of(model, copied), state)
        assert copied.self is copied
        assert copied.first.map is copied.map
        assert copied.colour is Colour.RED
        assert copied.first.random is copied.np_random
    assert b"door" not in states[1].tobytes()  # what never changed is no part of a state
    again = Dungeon()
    again.reset(seed=7)
    real.reset(seed=8)
    np.testing.assert_array_equal(state_of(model, again), state_of(model, real))  # randomness is no part of it, either
    sp.check_model(model, rounds=5)


def test_a_shared_attribute_that_changes_after_all_is_an_error(dungeon: sp.GenerativeModel) -> None:
    real = Dungeon()
    real.reset(seed=0)
    real.count = np.int64(1_000)  # random play did not see it: it opens a door
    oracle = sp.Oracle(dungeon, 0)
    states = np.repeat(state_of(dungeon, real)[None], 200, axis=0)
    with pytest.raises(sp.ModelError, match="its attribute doors changed, which never did in random play"):
        oracle.sample(states, np.zeros(200, dtype=np.int64))
    seen = from_gymnasium(Dungeon(opens=60), reward_range=(0, 1))  # late in the episodes of random play, but seen
    real.count, real.opens = np.int64(59), 60
    outcome = sp.Oracle(seen, 0).sample(state_of(seen, real)[None], [0])
    outcome = sp.Oracle(seen, 0).sample(outcome.next_states, [0])
    assert b"door" in outcome.next_states.tobytes()


def test_equal_content_has_equal_bytes(dungeon: sp.GenerativeModel) -> None:
    """Whatever is shared, and in whichever order sets were filled; the initial state recurs."""
    model, one, two = dungeon, Dungeon(), Dungeon()
    for real, keys in ((one, "ab"), (two, "ba")):
        real.reset(seed=0)
        real.keys = {f"{key}{8 * n}" for n in range(8) for key in keys}
    two.place = Place(*(int(text) for text in "11"))
    two.colour = Colour["RED"]
    assert two.place is not two.start
    np.testing.assert_array_equal(state_of(model, one), state_of(model, two))
    two.last = deque([1.5, 0.0], maxlen=3)  # −0.0 is another number, 1 / x says
    assert (state_of(model, one) != state_of(model, two)).any()


@pytest.fixture(scope="module")
def blackjack() -> sp.GenerativeModel:
    return from_gymnasium("Blackjack-v1", discount=0.9)


def hand(model: sp.GenerativeModel, player: list[int], dealer: list[int]) -> Any:
    real: Any = gymnasium.make("Blackjack-v1")
    real.reset(seed=0)
    real.unwrapped.player, real.unwrapped.dealer = player, dealer
    return state_of(model, real)


def test_copies_draw_cards_of_their_own(blackjack: sp.GenerativeModel) -> None:
    """Not all the same card, which copies that are not reseeded draw; and not by the generator of the real game.

    A card of probability p comes n·p ± 5.5·√(n·p·(1−p)) times of n, except with a probability of about 4e-8.
    """
    n = 3_000
    oracle = sp.Oracle(blackjack, 1)
    states = np.repeat(hand(blackjack, [2, 3], [10, 6])[None], n, axis=0)
    found = oracle.sample(states, np.ones(n, dtype=np.int64))
    kinds, counts = np.unique(found.next_states, axis=0, return_counts=True)
    numbers = {kind.tobytes(): int(count) for kind, count in zip(kinds, counts, strict=True)}
    for card, p in CARDS.items():
        count = numbers[hand(blackjack, [2, 3, card], [10, 6]).tobytes()]
        assert abs(count - n * p) < 5.5 * np.sqrt(n * p * (1 - p))
    assert sum(numbers.values()) == n
    assert len(numbers) == 10
    neighbours = (found.next_states[1:] == found.next_states[:-1]).all(axis=1).mean()
    p = sum(p * p for p in CARDS.values())
    assert abs(neighbours - p) < 5.5 * np.sqrt(p / n)


def total(cards: tuple[int, ...]) -> int:
    return sum(cards) + (10 if 1 in cards and sum(cards) + 10 <= 21 else 0)


@functools.cache
def stick(player: int, dealer: tuple[int, ...]) -> float:
    """The exact value of sticking: the dealer draws to 17."""
    theirs = total(dealer)
    if theirs < 17:
        return sum(p * stick(player, (*dealer, card)) for card, p in CARDS.items())
    return 1.0 if theirs > 21 else float(np.sign(player - theirs))


@functools.cache
def best(cards: tuple[int, ...], dealer: tuple[int, ...], discount: float) -> float:
    """The exact value of a hand, for a player who knows both cards of the dealer, as a copy does."""
    hit = sum(
        p * (-1.0 if sum(cards) + card > 21 else discount * best((*cards, card), dealer, discount))
        for card, p in CARDS.items()
    )
    return max(stick(total(cards), dealer), hit)


@pytest.mark.parametrize(("player", "dealer", "hits"), [([10, 6], [10, 7], True), ([10, 4], [10, 5], False)])
def test_a_hand_is_worth_what_a_calculation_says(
    player: list[int], dealer: list[int], hits: bool, blackjack: sp.GenerativeModel
) -> None:
    """The mean of n returns in [−1, 1] is off by more than √(2·log(2e6)/n) with a probability of 1e-6 (Hoeffding)."""
    n = 2_000
    theirs, discount = tuple(dealer), blackjack.discount
    exact = best(tuple(player), theirs, discount)
    assert (exact > stick(total(tuple(player)), theirs)) == hits
    oracle, returns, discounted = sp.Oracle(blackjack, 5), 0.0, 1.0
    states = np.repeat(hand(blackjack, player, dealer)[None], n, axis=0)
    while len(states):
        cards = [tuple(blackjack.step._snapshots.rebuilt(state, oracle.rng).player) for state in states]  # type: ignore[attr-defined]
        actions = [int(best(held, theirs, discount) > stick(total(held), theirs)) for held in cards]
        found = oracle.sample(states, np.array(actions))
        returns += discounted * found.rewards.sum()
        states, discounted = found.next_states[~found.terminals], discounted * discount
    assert abs(returns / n - exact) < np.sqrt(2 * np.log(2e6) / n)


@pytest.mark.parametrize(
    ("name", "options", "range_"),
    [
        ("Blackjack-v1", {"natural": True}, (-1.0, 1.0)),  # the rules of Sutton and Barto are the default
        ("Blackjack-v1", {"natural": True, "sab": False}, (-1.0, 1.5)),
        ("Taxi-v4", {"fickle_passenger": True}, (-10.0, 20.0)),
    ],
)
def test_known_rewards(name: str, options: dict[str, Any], range_: tuple[float, float]) -> None:
    known = door._known_rewards(gymnasium.make(name, **options).unwrapped)
    assert known is not None
    assert known.range == range_


def test_wrappers(blackjack: sp.GenerativeModel) -> None:
    """Those of observations do not matter. Others are copied, with what they keep."""
    lake, cards, pole = (gymnasium.make(name) for name in ("FrozenLake-v1", "Blackjack-v1", "CartPole-v1"))
    observed = gymnasium.wrappers.TransformObservation(lake, lambda seen: seen, lake.observation_space)
    assert isinstance(from_gymnasium(observed), sp.TabularModel)
    assert isinstance(from_gymnasium(gymnasium.wrappers.FrameStackObservation(pole, 4)), sp.JitModel)
    for wrapped, range_ in (
        (doubled("CartPole-v1"), (2, 2)),
        (pendulum(), (-17, 0)),
    ):
        model = from_gymnasium(wrapped, reward_range=range_)
        assert (model.initial_state.dtype, not notes(model)) == (np.float64, True)
        sp.check_model(model, rounds=3)
    flat = gymnasium.wrappers.FlattenObservation(cards)
    flat.reset(seed=3)
    np.testing.assert_array_equal(state_of(blackjack, flat), state_of(blackjack, cards))
    dear = doubled("Blackjack-v1")
    model = from_gymnasium(gymnasium.wrappers.FlattenObservation(dear), reward_range=(-2, 2), discount=0.9)
    dear.reset(seed=3)
    one, two = (
        sp.Oracle(m, 0).sample(np.repeat(state[None], 20, axis=0), np.zeros(20, dtype=np.int64))
        for m, state in ((model, state_of(model, dear)), (blackjack, state_of(blackjack, cards)))
    )
    np.testing.assert_array_equal(one.rewards, 2 * two.rewards)
    assert set(one.rewards) == {-2.0, 2.0} or len(set(one.rewards)) == 3


class Square(Line):
    """A whole number, without a table."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = 5
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = min(self.state + int(action) * int(self.np_random.integers(1, 3)), 9)
        return self.state, float(self.state == 9), self.state <= 0, False, {}


def test_environments_are_played_without_further_declarations() -> None:
    assert sp.act(Square(), reward_range=(0, 1), max_steps=12, calls=300, discount=0.9).mean > 5
    played = [sp.act("Blackjack-v1", calls=150, reference_calls=300, episodes=3, seed=2) for _ in range(2)]
    first, again = ([(e.score, e.steps, e.calls) for e in result.episodes] for result in played)
    assert first == again
    assert "A copy knows all that the environment holds" in played[0].warnings[0]
    assert sp.act(Labelled(), reward_range=(0, 1), calls=20, max_steps=2).episodes[0].steps == 2
    assert sp.act(Ageing(), reward_range=(0, 1), calls=20, max_steps=3).mean == 1.0


# --- Refusals -------------------------------------------------------------------------------------------------------


MEMORY = np.zeros(4)


class Outside(gymnasium.Env[Any, Any]):
    """Its steps depend on what no copy of it has, or it holds what cannot be copied."""

    observation_space, action_space = spaces.Discrete(1), spaces.Discrete(2)
    steps: ClassVar[int] = 0

    def __init__(self, global_draws: bool = False, held: Any = None, remembers: bool = False) -> None:
        self.global_draws, self.held, self.second = global_draws, held, MEMORY if isinstance(held, np.ndarray) else None
        if remembers:
            self.held = lambda: self.global_draws

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Outside.steps += 1
        return 0, random.random() if self.global_draws else float(Outside.steps % 3 == 0), False, False, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}


class Growing(Line):
    """Whole numbers, until it has gone far."""

    start = (0,)

    def move(self, action: Any) -> None:
        self.state = self.state + action + (0.5 if self.state[0] > 1000 else 0)


@pytest.mark.parametrize(
    ("environment", "arguments", "error", "message"),
    [
        ("Pendulum-v1", {}, ValueError, "Pendulum-v1 cannot be made a generative model: its actions are a Box"),
        ("CartPole-v1", {"wheels": 3}, ValueError, "gymnasium cannot make 'CartPole-v1' with {'wheels': 3}: "),
        ("FrozenLake-v1", {"reward_range": (0, 0.5)}, ValueError, "the reward 1.0 of state 14, action "),
        (Line(), {}, ValueError, "reward_range must be given: the rewards of Line are not known to smoothplan"),
        (Line(), {"noise": 1, "size": 2}, TypeError, "options ['noise', 'size'] go with an id, not with an environm"),
        (doubled("CartPole-v1"), {}, ValueError, "are given by reward_range=(low, high), on the command line CartPole"),
        (Outside(), {"reward_range": (0, 1)}, ValueError, "Outside cannot be made a generative model: a copy does not"),
        (Outside(global_draws=True), {"reward_range": (0, 1)}, ValueError, "draws from another generator than its own"),
        (Outside(held=threading.Lock()), {"reward_range": (0, 1)}, ValueError, "its attribute held holds a lock"),
        (Outside(held=MEMORY[:2]), {"reward_range": (0, 1)}, ValueError, "its attribute second shares its memory with"),
        (
            Outside(remembers=True),
            {"reward_range": (0, 1)},
            ValueError,
            "which refers to the environment it was made f",
        ),
        (
            "Blackjack-v1",
            {"reward_range": (0, 1)},
            ValueError,
            "must contain all rewards: Blackjack-v1 paid -1, got (0",
        ),
        (
            "Blackjack-v1",
            {"state_bytes": 40},
            ValueError,
            "more than the 40 of this model: give from_gymnasium a larger",
        ),
        (3, {}, TypeError, "environment must be an id or a gymnasium.Env, got 3"),
    ],
)
def test_an_environment_that_is_no_generative_model_is_refused(
    environment: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        from_gymnasium(environment, **arguments)


def test_a_state_of_another_type_is_an_error_and_not_rounded() -> None:
    oracle = sp.Oracle(from_gymnasium(Growing(), reward_range=(0, 1)), 0)
    oracle.sample(np.array([[1000]]), [1])
    with pytest.raises(sp.ModelError, match=re.escape("the state [1001] became [1000.5], of another type, after act")):
        oracle.sample(np.array([[1001]]), [0])
