"""Environments simulated by copies: a copy is all of the environment, draws its own future, or is refused."""

import pickle
import random
import re
import threading
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import smoothplan as sp
from smoothplan.models import from_gymnasium
from smoothplan.models.gymnasium import notes, state_of, store_of
from tests.models.test_gymnasium import InPlace, Line, doubled

CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}


class Place(NamedTuple):
    x: int
    y: int


class Monster:
    """Knows the map and draws from the generator of the environment."""

    __slots__ = ("friend", "map", "place", "random")

    def __init__(self, map_: Any, random_: Any) -> None:
        self.map, self.place, self.random = map_, Place(2, 2), random_
        self.friend = self

    def move(self) -> None:
        self.place = Place(int(self.random.integers(5)), self.place.y)
        self.map[self.place.x, self.place.y] += 1


class Dungeon(gymnasium.Env[Any, Any]):
    """Many attributes, shared parts, and randomness by several ways."""

    observation_space = spaces.Discrete(5)

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(3, start=4)
        self.weather = spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.doors: dict[str, Any] = {f"door {n}": [n, {"open": False}] for n in range(100)}
        self.place = self.start = Place(1, 1)
        self.map = np.zeros((5, 5), dtype=np.int8)
        self.monsters = [Monster(self.map, self.np_random), Monster(self.map, self.np_random)]
        self.first, second = self.monsters
        self.first.friend, second.friend = second, self.first
        self.near, self.dealt = self.doors["door 3"], [self.doors["door 4"], self.deal, self.np_random.integers]
        self.keys, self.last = {"gold"}, deque([1.5, -0.0], maxlen=3)
        self.count, self.self, self.größe = np.int64(0), self, "klein"
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for monster in self.monsters:
            monster.move()
        self.place = Place((self.place.x + action) % 5, self.action_space.sample() - 4)
        self.keys ^= {["gold", "iron", "wood"][self.dealt[2](3)]}
        self.last.append(float(self.map[self.place]))
        self.größe += "é"[int(self.count) % 2 :]
        self.doors[f"door {int(self.count)}"][1]["open"] = self.weather.sample()[0] == 1
        self.count += 1
        assert self.first is self.monsters[0] is self.first.friend.friend
        assert self.near is self.doors["door 3"]
        assert self.dealt[1] == self.deal
        assert self.dealt[2].__self__ is self.np_random
        assert all(monster.map is self.map for monster in self.monsters)
        return 0, float(self.map.max() / (1 + self.map.sum())), bool(self.count == 100), False, {}

    def deal(self) -> None:
        """A method, which `dealt` holds."""


@pytest.fixture(scope="module")
def dungeon() -> sp.GenerativeModel:
    real = Dungeon()
    model = from_gymnasium(real, reward_range=(0, 1))
    assert not vars(real).keys() & {"map", "place"}  # it was not touched
    return model


def test_a_copy_is_all_of_the_environment(dungeon: sp.GenerativeModel) -> None:
    """Its construction has compared it with the real environment, step by step; here is what that would not notice."""
    real, model, copies = Dungeon(), dungeon, store_of(dungeon)
    assert copies is not None
    assert "copies of Dungeon, states of" in repr(model)
    real.reset(seed=1)
    states = [state_of(model, real)]
    for action in (4, 5, 6, 4):
        real.step(action)
        states.append(state_of(model, real))
    assert len({state.tobytes() for state in states}) == 5
    for state in states:
        copied = copies.at(state, np.random.default_rng(0))
        np.testing.assert_array_equal(state_of(model, copied), state)
        assert copied.self is copied
        assert copied.first.map is copied.map
        assert copied.first.random is copied.np_random
    assert len(states[0]) < 2_000  # what has not changed since the reset hardly counts
    again = Dungeon()
    again.reset(seed=7)
    real.reset(seed=8)
    np.testing.assert_array_equal(state_of(model, again), state_of(model, real))  # randomness is no part of it
    sp.check_model(model, rounds=5)


def test_equal_content_has_equal_bytes(dungeon: sp.GenerativeModel) -> None:
    """Whatever is shared, and in whichever order sets were filled; the initial state recurs."""
    model, one, two = dungeon, Dungeon(), Dungeon()
    for real, keys in ((one, [0, 8]), (two, [8, 0])):  # their hashes collide, so a set is in the order of insertion
        real.reset(seed=0)
        real.doors["sets"] = set(keys)
    assert list(one.doors["sets"]) != list(two.doors["sets"])
    two.place = Place(*(int(text) for text in "11"))
    assert two.place is not two.start
    np.testing.assert_array_equal(state_of(model, one), state_of(model, two))
    two.last = deque([1.5, 0.0], maxlen=3)  # −0.0 is another number, 1 / x says
    assert (state_of(model, one) != state_of(model, two)).any()


class Token:
    """Plain, as long as it holds numbers and words only."""

    def __init__(self, worth: Any) -> None:
        self.colour, self.worth = "red", worth


class Bag(gymnasium.Env[Any, Any]):
    """Holds plain objects, some of them alike, one of them twice."""

    observation_space, action_space = spaces.Discrete(1), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.tokens = [Token(worth) for worth in (1, 1, True, 1.0, "1", None, -0.0, (1, 2), 10**30)]
        self.tokens.append(self.tokens[0])
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.tokens[1].worth = int(self.np_random.integers(5_000))
        return 0, 0.0, False, False, {}


def test_plain_objects_that_are_alike_stay_apart() -> None:
    """Those that recur are written by number, by the values and types of all that they hold."""
    model, real = from_gymnasium(Bag()), Bag()
    copies = store_of(pickle.loads(pickle.dumps(model)))
    assert copies is not None
    real.reset(seed=1)
    real.tokens[3].worth, real.tokens[5].colour = 1.5, "a colour not seen before"
    copy = copies.at(state_of(model, real), np.random.default_rng(0))
    assert repr([vars(token) for token in copy.tokens]) == repr([vars(token) for token in real.tokens])
    assert copy.tokens[0] is copy.tokens[-1]
    copy.tokens[0].worth = 7
    assert [token.worth for token in copy.tokens[:3]] == [7, 1, True]
    again = copies.at(state_of(model, real), np.random.default_rng(0))
    assert again.tokens[0].worth == 1
    states = [state_of(model, real)]
    for worth in (1, True, 1.0, "1"):
        real.tokens[1].worth = worth
        states.append(state_of(model, real))
    assert len(np.unique(states, axis=0)) == 4  # the first was 1, too


def test_reading_a_state_imports_nothing(dungeon: sp.GenerativeModel) -> None:
    """States are pickles, and may come from a file."""
    text = zlib.compress(pickle.dumps(exec), wbits=-15).ljust(len(dungeon.initial_state), b"\0")
    with pytest.raises(sp.ModelError, match=r"a state of an environment cannot refer to builtins\.exec"):
        sp.Oracle(dungeon, 0).sample(np.frombuffer(text, dtype=np.uint8)[None], [0])


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
    assert (sum(numbers.values()), len(numbers)) == (n, 10)
    neighbours = (found.next_states[1:] == found.next_states[:-1]).all(axis=1).mean()
    p = sum(p * p for p in CARDS.values())
    assert abs(neighbours - p) < 5.5 * np.sqrt(p / n)


def test_wrappers(blackjack: sp.GenerativeModel) -> None:
    """Those of observations do not matter. Others are copied, with what they keep."""
    lake, cards, pole = (gymnasium.make(name) for name in ("FrozenLake-v1", "Blackjack-v1", "CartPole-v1"))
    observed = gymnasium.wrappers.TransformObservation(lake, lambda seen: seen, lake.observation_space)
    assert isinstance(from_gymnasium(observed), sp.TabularModel)
    assert isinstance(from_gymnasium(gymnasium.wrappers.FrameStackObservation(pole, 4)), sp.JitModel)
    pendulum = gymnasium.wrappers.DiscretizeAction(gymnasium.make("Pendulum-v1"), 3)
    for wrapped, range_ in ((doubled("CartPole-v1"), (2, 2)), (pendulum, (-17, 0))):
        model = from_gymnasium(wrapped, reward_range=range_)
        assert (model.initial_state.dtype, not notes(model)) == (np.float64, True)
    flat, dear = gymnasium.wrappers.FlattenObservation(cards), doubled("Blackjack-v1")
    flat.reset(seed=3)
    np.testing.assert_array_equal(state_of(blackjack, flat), state_of(blackjack, cards))
    model = from_gymnasium(gymnasium.wrappers.FlattenObservation(dear), reward_range=(-2, 2), discount=0.9)
    dear.reset(seed=3)
    one, two = (
        sp.Oracle(m, 0).sample(np.repeat(state[None], 20, axis=0), np.zeros(20, dtype=np.int64))
        for m, state in ((model, state_of(model, dear)), (blackjack, state_of(blackjack, cards)))
    )
    np.testing.assert_array_equal(one.rewards, 2 * two.rewards)
    for size in (None, 256):  # its table is no part of a state
        taxi = from_gymnasium(doubled("Taxi-v4"), reward_range=(-20, 40), state_bytes=size)
        assert len(taxi.initial_state) == 256
    sp.check_model(taxi, rounds=3)


class Ageing(Line):
    """Counts its steps beside its state, in a list."""

    def __init__(self) -> None:
        self.count = [0]

    def reward(self) -> float:
        self.count[0] += 1
        return float(self.count[0] % 3 == 0)


def test_a_state_that_is_not_all_there_is_gives_way_to_copies() -> None:
    """Model and environment would count alike, but for a second call."""
    assert notes(from_gymnasium(Ageing(), reward_range=(0, 1)))


def test_an_environment_is_played_by_copies_and_the_result_says_so() -> None:
    played = [sp.act("Blackjack-v1", calls=150, reference_calls=300, episodes=3, seed=2) for _ in range(2)]
    first, again = ([(e.score, e.steps, e.calls) for e in result.episodes] for result in played)
    assert first == again
    assert played[0].warnings[0].startswith("Blackjack-v1 is simulated by copies of the environment. A copy knows")


@pytest.mark.parametrize("kind", ["CartPole-v1", "Blackjack-v1", Dungeon, InPlace])
def test_threads_and_pickled_copies_draw_alike(kind: Any) -> None:
    model = from_gymnasium(kind) if isinstance(kind, str) else from_gymnasium(kind(), reward_range=(0, 1))
    states, actions = np.repeat(np.asarray(model.initial_state)[None], 12, axis=0), np.arange(12) % model.actions

    def run(chunk: int, model: sp.GenerativeModel = model) -> Any:
        oracle = sp.Oracle(model, 0, chunk)
        return [oracle.sample(states, actions) for _ in range(3)]

    expected = [run(chunk) for chunk in range(8)]
    copied = pickle.loads(pickle.dumps(model))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(8)))
    np.testing.assert_equal(found, expected)
    np.testing.assert_equal([run(chunk, copied) for chunk in range(8)], expected)


class Dice(gymnasium.Env[Any, Any]):
    """Draws from a generator of its own, which a reset makes anew."""

    observation_space, action_space = spaces.Discrete(6), spaces.Discrete(2)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.eyes += int(self.rng.integers(6) + self.np_random.integers(2))
        return self.eyes % 6, float(self.eyes % 6 == 0), self.eyes > 30, False, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.rng, self.eyes = np.random.default_rng(seed), 0
        return 0, {}


def test_a_generator_of_the_environments_own_draws_from_the_call() -> None:
    """Calls differ by their draws, states by their content only, and the real environment is not disturbed."""
    real = Dice()
    model = from_gymnasium(real, reward_range=(0, 1))
    states = np.repeat(np.asarray(model.initial_state)[None], 1_000, axis=0)
    found = sp.Oracle(model, 0).sample(states, np.zeros(1_000, dtype=np.int64)).next_states
    copies = store_of(model)
    assert copies is not None
    eyes = [copies.at(state, np.random.default_rng(0)).eyes for state in np.unique(found, axis=0)]
    assert sorted(eyes) == list(range(7))
    assert real.rng.integers(2**62) == np.random.default_rng(0).integers(2**62)


MEMORY = np.zeros(4)


class Outside(gymnasium.Env[Any, Any]):
    """Its steps depend on what no copy of it has, or it holds what cannot be copied."""

    observation_space, action_space = spaces.Discrete(1), spaces.Discrete(2)
    steps: ClassVar[int] = 0

    def __init__(self, held: Any = None) -> None:
        self.held, self.second = held, MEMORY if isinstance(held, np.ndarray) else None
        if held is Outside:
            self.held = lambda: self.second

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Outside.steps += 1
        return 0, random.random() if isinstance(self.held, str) else float(Outside.steps % 3 == 0), False, False, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (Outside(), {}, "Outside cannot be made a generative model: a copy does not"),
    (Outside("draws"), {}, "draws from another generator than its own"),
    (Outside(threading.Lock()), {}, "its attribute held cannot be copied: cannot pickle"),
    (Outside([random.Random(0)]), {}, "its attribute held holds a Random: draw from self.np_random"),
    (Outside(MEMORY[:2]), {}, "its attribute second shares its memory with"),
    (Outside(Outside), {}, "which refers to the environment it was made f"),
    ("Blackjack-v1", {}, "must contain all rewards: action 1 paid -1, got (0"),
    ("Blackjack-v1", {"reward_range": None, "state_bytes": 8}, "the 8 of this model: give from_gymnasium a larger"),
]


@pytest.mark.parametrize(("environment", "arguments", "message"), REFUSED)
def test_an_environment_that_cannot_be_copied_is_refused(
    environment: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_gymnasium(environment, **{"reward_range": (0, 1)} | arguments)
