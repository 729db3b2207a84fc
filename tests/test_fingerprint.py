"""Fingerprints: the same in every process, another one wherever something else may happen."""

import enum
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smoothplan as sp
from smoothplan.running.fingerprint import DEEPEST, describe, fingerprint


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    one: Any
    two: Any


class Couple(NamedTuple):
    one: Any
    two: Any


@dataclass(frozen=True)
class Gain:
    gain: float
    label: str = "a"

    @cached_property
    def double(self) -> float:
        return 2.0 * self.gain

    def __call__(self, x: float) -> float:
        return self.gain * x


class Undecorated(Gain):
    """A subclass that is no dataclass itself, with more to it."""

    def __init__(self, gain: float, more: int) -> None:
        super().__init__(gain)
        object.__setattr__(self, "more", more)


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value

    @cached_property
    def derived(self) -> Any:
        return [self.value]


class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self, hidden: Any, shown: Any = None) -> None:
        self.__hidden = hidden
        if shown is not None:
            self.shown = shown


class Chosen:
    """Says what its state is."""

    def __init__(self, value: Any) -> None:
        self.value, self.lock, self.cache = value, threading.Lock(), object()

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value}


class Reluctant:
    """Cannot say what its state is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getstate__(self) -> Any:
        raise RuntimeError("no")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("no")


class Word(str):
    __slots__ = ()


class Words(list[Any]):
    pass


def closure(gain: Any) -> Callable[[float], float]:
    def inner(x: float) -> float:
        return gain * x  # type: ignore[no-any-return]

    return inner


def generator(draws: int) -> np.random.Generator:
    rng = np.random.default_rng(3)
    rng.random(draws)
    return rng


def nested(depth: int, inside: Any = 0) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


def loop(value: int) -> list[Any]:
    result: list[Any] = [value]
    result.append({"again": result})
    return result


def record(gap: int) -> Any:
    kind = np.dtype([("a", np.int8), ("b", np.float64)], align=True)
    array = np.full(2 * kind.itemsize, gap, dtype=np.uint8).view(kind)
    array["a"], array["b"] = 1, 0.5
    return array


# Each of these does something else than any other. They are made anew every time, in case identity matters.
DIFFERENT: list[Callable[[], Any]] = [
    lambda: None,
    lambda: ...,
    lambda: True,
    lambda: False,
    lambda: 1,
    lambda: 0,
    lambda: -1,
    lambda: 10**5000,
    lambda: 1.0,
    lambda: 0.0,
    lambda: -0.0,
    lambda: float("nan"),
    lambda: 1j,
    lambda: complex(0.0, -0.0),
    lambda: "1",
    lambda: b"1",
    lambda: "\ud800",
    lambda: "",
    lambda: Word("1"),
    lambda: Path("1"),
    lambda: (),
    list,
    dict,
    set,
    lambda: (1,),
    lambda: [1],
    lambda: [[1]],
    lambda: Words([1]),
    lambda: [1, 2],
    lambda: [2, 1],
    lambda: {1, 2},
    lambda: {1, 3},
    lambda: {1: 2},
    lambda: {2: 1},
    lambda: {"1": 2},
    lambda: OrderedDict({1: 2}),
    lambda: deque([1, 2]),
    lambda: deque([1, 2], maxlen=2),
    lambda: range(3),
    lambda: slice(3),
    lambda: Fraction(1, 3),
    lambda: Fraction(1, 4),
    lambda: re.compile("a"),
    lambda: re.compile("b"),
    lambda: np.float64(1.0),
    lambda: np.float32(1.0),
    lambda: np.int64(1),
    lambda: np.bool_(True),
    lambda: np.dtype(np.int64),
    lambda: np.dtype([("a", np.int64)]),
    lambda: np.array(1.0),
    lambda: np.array([1.0]),
    lambda: np.array([[1.0]]),
    lambda: np.array([1], dtype=np.int64),
    lambda: np.array([1], dtype=np.int32),
    lambda: np.array([1.0, 2.0]),
    lambda: np.array([2.0, 1.0]),
    lambda: np.zeros((0, 2)),
    lambda: np.zeros((2, 0)),
    lambda: np.arange(6).reshape(2, 3),
    lambda: np.arange(6).reshape(2, 3).T,
    lambda: np.array(["a", "b"]),
    lambda: np.array(["a", "b"], dtype=object),
    lambda: np.array([{"x": 1}, None], dtype=object),
    lambda: np.array(["2020"], dtype="M8[Y]"),
    lambda: record(0),
    lambda: record(0)[0],
    lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
    lambda: np.ma.array([1.0, 2.0], mask=[False, True]),
    lambda: Colour.RED,
    lambda: Colour.BLUE,
    lambda: Level.LOW,
    lambda: Colour,
    lambda: Pair(1, 2),
    lambda: Pair(2, 1),
    lambda: Couple(1, 2),
    lambda: (1, 2),
    lambda: Gain(1.0),
    lambda: Gain(2.0),
    lambda: Gain(1.0, "b"),
    lambda: Undecorated(1.0, 1),
    lambda: Undecorated(1.0, 2),
    lambda: Plain(1),
    lambda: Plain(2),
    lambda: Plain(Plain(1)),
    lambda: Plain(None),
    lambda: Slotted(1),
    lambda: Slotted(2),
    lambda: Slotted(1, 2),
    lambda: Chosen(1),
    lambda: Chosen(2),
    lambda: Reluctant(1),
    lambda: Reluctant(2),
    lambda: Gain,
    lambda: Plain,
    lambda: int,
    lambda: np.ndarray,
    lambda: len,
    lambda: max,
    lambda: [1].append,
    lambda: [2].append,
    lambda: np.exp,
    lambda: np.log,
    lambda: np.linalg.norm,
    lambda: np,
    lambda: os,
    lambda: json.dumps,
    lambda: Gain(1.0).__call__,
    lambda: Gain(2.0).__call__,
    lambda: Gain.__call__,
    lambda: closure(1.0),
    lambda: closure(2.0),
    lambda: closure(closure(1.0)),
    lambda: partial(closure, 1.0),
    lambda: partial(closure, 2.0),
    lambda: partial(closure, gain=1.0),
    lambda: functools.lru_cache(closure),
    lambda: generator(0),
    lambda: generator(1),
    lambda: generator(0).random,
    lambda: generator(0).bit_generator,
    lambda: np.random.RandomState(0),
    lambda: np.random.RandomState(1),
    lambda: np.random.SeedSequence(1),
    lambda: np.random.SeedSequence(2),
    lambda: threading.Lock(),
    lambda: threading.local(),
    lambda: object(),
    lambda: (letter for letter in ""),
    lambda: loop(1),
    lambda: loop(2),
    lambda: nested(DEEPEST // 2),
    lambda: nested(DEEPEST // 2, 1),
    lambda: nested(DEEPEST // 2 + 1),
]


def test_different_things_differ_and_the_same_do_not() -> None:
    first, second = ([fingerprint(make()) for make in DIFFERENT] for _ in range(2))
    assert first == second
    assert all(re.fullmatch("[0-9a-f]{32}", entry) for entry in first)
    assert len(set(first)) == len(first), [k for k, entry in enumerate(first) if first.index(entry) != k]


def test_what_does_not_matter() -> None:
    used = Plain(1)
    assert used.derived == [1]
    assert fingerprint(used) == fingerprint(Plain(1))
    gained = Gain(1.0)
    assert gained.double == 2.0
    assert fingerprint(gained) == fingerprint(Gain(1.0))
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(record(0)) == fingerprint(record(255))
    assert fingerprint(record(0)[1]) == fingerprint(record(255)[1])
    shared = [1]
    assert fingerprint([shared, shared]) == fingerprint([[1], [1]])
    assert fingerprint(np.arange(12)[::2]) == fingerprint(np.arange(0, 12, 2))
    assert fingerprint(np.asfortranarray(np.eye(3) + 1)) == fingerprint(np.eye(3) + 1)
    assert fingerprint({frozenset({"a", "b"}), "c"}) == fingerprint({"c", frozenset({"b", "a"})})


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_values_differ_as_their_texts_do(value: Any) -> None:
    assert fingerprint(value) == fingerprint(value)
    assert fingerprint(value) != fingerprint([value])
    assert fingerprint((value, 0)) != fingerprint((0, value)) or repr(value) == "0"


def test_it_comes_to_an_end() -> None:
    assert fingerprint(nested(DEEPEST - 1)) == fingerprint(nested(DEEPEST - 1))
    for depth in (DEEPEST + 1, 100_000):
        with pytest.raises(ValueError, match="cannot be fingerprinted: it is nested 150 deep"):
            fingerprint(nested(depth))
    # Everyone knows everyone: as many paths as there are orders.
    crowd = [Plain(None) for _ in range(10)]
    for person in crowd:
        person.value = list(crowd)
    started = time.perf_counter()
    assert fingerprint(crowd[0]) == fingerprint(crowd[0])
    assert time.perf_counter() - started < 5.0


WORKSHOP = '''
"""Things of a user."""

import enum
import functools
import math
from dataclasses import dataclass

import helpers
import numba
import numpy as np
import pack.inner
from pack import inner

SCALE = 0.1
TABLE = {"wide": {"x", "y", "z"}, "narrow": ["a"]}


def reward(states):
    """Says something."""
    return np.exp(-np.abs(states[:, 0]) * SCALE)


def step(states, actions, rng):
    """A walk."""
    moved = states + np.where(actions == 1, 0.1, -0.1)[:, None]
    kinds = [kind for kind in TABLE if kind in {"wide", "broad"}]
    return moved, reward(moved), np.abs(moved[:, 0]) > helpers.limit() + inner.BONUS + pack.inner.MORE


@numba.njit
def compiled_reward(state):
    return math.exp(-state) * SCALE


@numba.njit
def compiled_step(states, actions, rng):
    rewards = np.empty(len(states))
    for row in range(len(states)):
        rewards[row] = compiled_reward(abs(states[row, 0]))
    return states + 0.1, rewards, np.zeros(len(states), np.bool_)


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


class Base:
    RATE = 0.5

    def decay(self, x):
        return self.RATE * x

    @property
    def name(self):
        return self.kind.name

    @staticmethod
    def other():
        return Mine


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Mine(Base):
    """A model of its own."""

    kind = Kind.ONE

    def __init__(self, gain=1.0):
        super().__init__()
        self.gain = gain
        self.memory = {"b", "a", "c"}
        self.friends = {Mine: self}

    def __call__(self, states, actions, rng):
        return states, self.decay(self.gain * actions), actions > 7


@dataclass
class Setting:
    width: float = 0.5

    def grown(self):
        return self.width * 2


@functools.lru_cache
def cached(x):
    return x + SCALE


def classy():
    class Local:
        """Of its own."""
        def go(self):
            return 1
    return Local


own = {
    "step": step,
    "compiled": compiled_step,
    "even": even,
    "mine": Mine(),
    "setting": Setting(),
    "cached": cached,
    "lambda": lambda x, /, y=1, *args, z=2, **kw: x + SCALE,
    "local": classy(),
    "set": {"a", "b", ("c", frozenset({"d", "e"})), 3.0, None, Kind.ONE},
}
'''

SHOP = """
import gymnasium
import smoothplan as sp
from smoothplan.models.gymnasium import _AssignedState
from workshop import Mine, compiled_step, own, reward, step

options = dict(actions=2, discount=0.3, reward_range=(0, 1))
chain = sp.models.chain(states=4)
backup = sp.LogSumExp(1.0)
improved = sp.SharedReference(chain, backup, seed=1)
improved.improve(200)

things = own | {
    "vector": sp.VectorModel(step, **options),
    "scalar": sp.VectorModel.from_scalar(lambda state, action, rng: (state, 0.5, False), **options),
    "jit": sp.JitModel(compiled_step, **options),
    "mine_vector": sp.VectorModel(Mine(2.0), **options),
    "critic": sp.CriticReference(reward),
    "transport": sp.OptimalTransport(cost=sp.backups.line_cost(2), tau=0.2, lam=0.5, reference=reward),
    "chain": chain,
    "garnet": sp.models.garnet(states=20, actions=2, branching=3, discount=0.5, seed=1),
    "lake": sp.models.from_gymnasium("FrozenLake-v1"),
    "assigned": _AssignedState(gymnasium.make("CartPole-v1").unwrapped),
    "fresh": sp.SharedReference(chain, backup, seed=1),
    "improved": improved,
    "keyed": sp.SharedReference(chain, backup, seed=1, key=lambda state: int(state)),
    "second": sp.SecondOrderSmoothCruiser(backup, epsilon=0.1),
    "first": sp.SmoothCruiser(backup, epsilon=0.1),
    "sparse": sp.SparseSampling(backup, epsilon=0.1),
    "gape": sp.OTGapE(sp.HardMax(), epsilon=0.5, delta=0.1),
    "mdp": sp.MDPGapE(sp.HardMax(), epsilon=0.5, delta=0.1),
    "cruiser": sp.ReferenceCruiser(backup, improved, epsilon=0.1),
}
"""

HELPERS = """
BOUND = 2.0
UNUSED = 1.0

def limit():
    return BOUND
"""

INNER = "BONUS = 0.5\nMORE = 0.25\nUNUSED = 0.0\n"

SAY = """
import json
from shop import things
from smoothplan.running.fingerprint import fingerprint
print(json.dumps({name: fingerprint(thing) for name, thing in things.items()}))
"""


def build(folder: Path, changes: dict[str, str] | None = None) -> Path:
    """A folder with the modules of a user, in which some text is another."""
    (folder / "pack").mkdir(parents=True)
    texts = {"workshop.py": WORKSHOP, "helpers.py": HELPERS, "pack/inner.py": INNER, "pack/__init__.py": ""}
    for old, new in (changes or {}).items():
        assert sum(text.count(old) for text in texts.values()) == 1, old
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    for name, text in (texts | {"shop.py": SHOP}).items():
        (folder / name).write_text(text, "utf-8")
    return folder


def other_process(folder: Path, seed: int) -> dict[str, str]:
    """The fingerprints of everything in the shop, as another process sees them."""
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    answer = subprocess.run(
        [sys.executable, "-c", SAY], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(answer.stdout)  # type: ignore[no-any-return]


def test_the_same_in_every_process(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    harmless = {
        '"""Says something."""': '"""Says it otherwise,\n\n    in more lines."""',
        '"""A walk."""': "",
        '"""A model of its own."""': '"""Another text."""',
        '"""Of its own."""': '"""Oh."""',
        "UNUSED = 1.0": "UNUSED = 2.0",
        "UNUSED = 0.0": "UNUSED = 3.0",
    }
    one = other_process(build(tmp_path / "one"), 1)
    two = other_process(build(tmp_path / "two", harmless), 2)
    assert {name for name in one if one[name] != two[name]} == set()
    assert len(set(one.values())) == len(one)


def own(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """The fingerprints of what is in a workshop, in this process."""
    modules = ("workshop", "helpers", "pack", "pack.inner")
    with patch.context() as here:
        here.syspath_prepend(folder)
        importlib.invalidate_caches()
        try:
            made = importlib.import_module("workshop").own
            return {name: fingerprint(thing) for name, thing in made.items()}
        finally:
            for name in modules:
                sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("old", "new", "concerned"),
    [
        ("SCALE = 0.1", "SCALE = 0.2", "step compiled cached lambda"),
        ('"x", "y", "z"', '"x", "y", "w"', "step"),
        ('{"wide", "broad"}', '{"wide", "large"}', "step"),
        ("-np.abs(states", "np.abs(states", "step"),
        ("np.exp(", "np.cos(", "step"),
        (" > helpers", " >= helpers", "step"),
        ("BOUND = 2.0", "BOUND = 3.0", "step"),
        ("return BOUND", "return -BOUND", "step"),
        ("BONUS = 0.5", "BONUS = 0.75", "step"),
        ("MORE = 0.25", "MORE = 0.75", "step"),
        ("math.exp(-state)", "math.exp(state)", "compiled"),
        ("@numba.njit\ndef compiled_step", "@numba.njit(fastmath=True)\ndef compiled_step", "compiled"),
        ("return n != 0", "return n != 1", "even"),
        ("RATE = 0.5", "RATE = 0.25", "mine"),
        ("self.RATE * x", "self.RATE + x", "mine"),
        ("return self.kind.name", "return self.kind.value", "mine"),
        ("kind = Kind.ONE", "kind = Kind.TWO", "mine"),
        ("TWO = 2", "TWO = 3", "mine set"),
        ("gain=1.0", "gain=1.5", "mine"),
        ("actions > 7", "actions > 8", "mine"),
        ("self.width * 2", "self.width * 3", "setting"),
        ("width: float = 0.5", "width: float = 0.25", "setting"),
        ("return x + SCALE", "return x - SCALE", "cached"),
        ("y=1", "y=2", "lambda"),
        ("z=2", "z=3", "lambda"),
        ("x, /, y", "x, y", "lambda"),
        ("**kw", "**kws", ""),
        ("            return 1\n", "            return 2\n", "local"),
        ("def classy():", "Kind.LATER = 3\n\n\ndef classy():", "mine set"),
    ],
)
def test_a_change_concerns_whatever_it_concerns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, concerned: str
) -> None:
    before = own(build(tmp_path / "before"), monkeypatch)
    after = own(build(tmp_path / "after", {old: new}), monkeypatch)
    assert {name for name in before if before[name] != after[name]} == set(concerned.split())


def test_every_parameter_of_a_model_matters() -> None:
    model = sp.models.garnet(states=20, actions=2, branching=3, discount=0.5, seed=1)
    plain = fingerprint(model)
    assert model.tables is not None
    model.step(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64), generator(0))
    assert fingerprint(model) == plain
    options: dict[str, Any] = {"states": 20, "actions": 2, "branching": 3, "discount": 0.5, "seed": 1}
    others: list[dict[str, Any]] = [{"states": 21}, {"actions": 3}, {"branching": 2}, {"discount": 0.6}, {"seed": 2}]
    found = [fingerprint(sp.models.garnet(**options | other)) for other in others]
    assert len({plain, *found}) == 1 + len(others)


def test_every_parameter_of_a_planner_matters() -> None:
    backup, table = sp.LogSumExp(1.0), sp.TabularReference(np.zeros((3, 2)))
    cost = sp.backups.line_cost(2)
    planners = [
        *(kind(backup, epsilon=0.1) for kind in (sp.SparseSampling, sp.SmoothCruiser, sp.SecondOrderSmoothCruiser)),
        sp.SmoothCruiser(backup, epsilon=0.2),
        sp.SmoothCruiser(backup, epsilon=0.1, delta=0.2),
        sp.SmoothCruiser(backup, epsilon=0.1, variant="paper"),
        sp.SmoothCruiser(sp.LogSumExp(np.nextafter(1.0, 2.0)), epsilon=0.1),
        sp.SmoothCruiser(sp.OptimalTransport(cost=cost, tau=0.2, lam=0.5), epsilon=0.1),
        sp.SmoothCruiser(sp.OptimalTransport(cost=cost, tau=0.2, lam=0.6), epsilon=0.1),
        sp.SmoothCruiser(sp.OptimalTransport(cost=2 * cost, tau=0.2, lam=0.5), epsilon=0.1),
        sp.OTGapE(backup, epsilon=0.1, delta=0.1),
        sp.OTGapE(sp.HardMax(), epsilon=0.1, delta=0.1),
        sp.MDPGapE(sp.HardMax(), epsilon=0.1, delta=0.1),
        sp.ReferenceCruiser(backup, epsilon=0.1),
        sp.ReferenceCruiser(backup, table, epsilon=0.1),
        sp.ReferenceCruiser(backup, table, epsilon=0.1, order=1),
        sp.ReferenceCruiser(backup, sp.TabularReference(np.ones((3, 2))), epsilon=0.1),
    ]
    assert len({fingerprint(planner) for planner in planners}) == len(planners)


def test_a_reference_that_was_improved_is_another() -> None:
    model, backup = sp.models.chain(states=4), sp.LogSumExp(1.0)
    fresh, improved = (sp.SharedReference(model, backup, seed=1) for _ in range(2))
    assert fingerprint(fresh) == fingerprint(improved)
    improved.improve(50)
    once = fingerprint(improved)
    assert once != fingerprint(fresh)
    improved.improve(50)
    assert fingerprint(improved) not in (once, fingerprint(fresh))


def test_an_environment_with_another_parameter_is_another() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    environment = gymnasium.make("CartPole-v1").unwrapped
    environment.gravity = 9.0
    one = sp.models.from_gymnasium(environment)
    assert isinstance(one, sp.VectorModel)
    before = fingerprint(one)
    one.step(np.zeros((2, 4)), np.zeros(2, dtype=np.int64), generator(0))
    assert fingerprint(one) == before == fingerprint(sp.models.from_gymnasium(environment))
    environment.gravity = 8.0
    assert fingerprint(sp.models.from_gymnasium(environment)) != before


def test_a_large_model_takes_no_time() -> None:
    model = sp.models.garnet(states=100_000, actions=5, branching=2, discount=0.7, seed=1)
    started = time.perf_counter()
    fingerprint(model)
    assert time.perf_counter() - started < 0.5


def test_descriptions_are_short_and_have_no_addresses() -> None:
    for make in DIFFERENT:
        text = describe(make())
        assert 0 < len(text) <= 200
        assert "0x" not in text
        assert text == describe(make())
    assert describe(sp.LogSumExp(1.0)) == repr(sp.LogSumExp(1.0))
    assert describe(np.zeros((1000, 3))) == "array of shape (1000, 3) and dtype float64"
    assert describe("x" * 1000) == "'" + "x" * 198 + "…"
    assert describe(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1)).startswith("SmoothCruiser(")
    assert "function closure.<locals>.inner" in describe(closure(1.0))

    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert describe(Shy()).endswith("Shy")
