"""Fingerprints: the same in every process, another one wherever something else may happen."""

import importlib.resources
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.running.fingerprint import DEEPEST, describe, fingerprint


@dataclass(frozen=True)
class Gain:
    gain: float
    label: str = "a"

    @cached_property
    def double(self) -> float:
        return 2.0 * self.gain

    def __call__(self, x: float) -> float:
        return self.gain * x


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value

    @cached_property
    def derived(self) -> Any:
        return [self.value]


class Chosen:
    """Says what its state is."""

    def __init__(self, value: Any) -> None:
        self.value, self.lock, self.cache = value, threading.Lock(), object()

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value}


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


def different() -> list[Any]:
    """Things of which each does something different, made anew in case identity matters."""
    pair = np.dtype([("a", np.int8), ("b", np.float64)])
    return [
        *(None, True, 1, 1.0, 0.0, -0.0, float("nan"), "1", b"1", Path("1"), range(3)),
        *((1,), [1], [[1]], [1, 2], [2, 1], {1, 2}, {1: 2}, {2: 1}, {"1": 2}),
        *(np.float64(1.0), np.float32(1.0), np.dtype(np.int64), np.array(1.0), np.array([1.0]), np.array([[1.0]])),
        *(np.array([1], dtype=kind) for kind in (np.int64, np.int32, object)),
        *(np.array([1.0, 2.0]), np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3).T),
        *(np.array(["a", "b"]), np.array(["a", "b"], dtype=object), np.array([(1, 0.5)], dtype=pair)),
        *(Gain(1.0), Gain(2.0), Gain(1.0, "b"), Plain(1), Plain(2), Plain(Plain(1)), Chosen(1), Chosen(2)),
        *(Gain, Plain, len, np.exp, np.log, np.linalg.norm, np),
        *(Gain(1.0).__call__, Gain(2.0).__call__, closure(1.0), closure(2.0), closure(closure(1.0))),
        *(partial(closure, 1.0), partial(closure, 2.0), partial(closure, gain=1.0)),
        *(numba.njit(closure(1.0)), numba.njit(closure(2.0))),
        *(generator(0), generator(1), generator(0).random, threading.Lock()),
        *(loop(1), loop(2), nested(DEEPEST // 2), nested(DEEPEST // 2 + 1)),
    ]


def test_different_things_differ_and_the_same_do_not() -> None:
    first, second = ([fingerprint(thing) for thing in different()] for _ in range(2))
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
    shared = [1]
    assert fingerprint([shared, shared]) == fingerprint([[1], [1]])
    assert fingerprint(np.arange(12)[::2]) == fingerprint(np.arange(0, 12, 2))
    assert fingerprint(np.asfortranarray(np.eye(3) + 1)) == fingerprint(np.eye(3) + 1)
    assert fingerprint({frozenset({"a", "b"}), "c"}) == fingerprint({"c", frozenset({"b", "a"})})


def test_what_a_library_s_function_has_cached_does_not_matter() -> None:
    """`functools.singledispatch` keeps the types that it has met in a closure."""
    importlib.resources.as_file._clear_cache()  # type: ignore[attr-defined]
    before = fingerprint(importlib.resources.as_file)
    with importlib.resources.as_file(Path(__file__)):
        assert fingerprint(importlib.resources.as_file) == before


def test_it_comes_to_an_end() -> None:
    assert fingerprint(nested(DEEPEST - 1)) == fingerprint(nested(DEEPEST - 1))
    for depth in (DEEPEST + 1, 100_000):
        with pytest.raises(ValueError, match="cannot be fingerprinted: it is nested 150 deep"):
            fingerprint(nested(depth))


WORKSHOP = '''
"""Things of a user."""

import math
from dataclasses import dataclass

import helpers
import numba
import numpy as np

SCALE = 0.1
TABLE = {"wide": {"x", "y", "z"}, "narrow": ["a"]}


def reward(states):
    """Says something."""
    return np.exp(-np.abs(states[:, 0]) * SCALE)


def step(states, actions, rng):
    """A walk."""
    moved = states + np.where(actions == 1, 0.1, -0.1)[:, None]
    kinds = [kind for kind in TABLE if kind in {"wide", "broad"}]
    return moved, reward(moved), np.abs(moved[:, 0]) > helpers.limit()


@numba.njit
def compiled_reward(state):
    return math.exp(-state) * SCALE


@numba.njit
def compiled_step(states, actions, rng):
    rewards = np.empty(len(states))
    for row in range(len(states)):
        rewards[row] = compiled_reward(abs(states[row, 0]))
    return states + 0.1, rewards, np.zeros(len(states), np.bool_)


class Base:
    RATE = 0.5

    def decay(self, x):
        return self.RATE * x


class Mine(Base):
    """A model of its own."""

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


own = {
    "step": step,
    "compiled": compiled_step,
    "mine": Mine(),
    "method": Mine(3.0).decay,
    "setting": Setting(),
}
'''

SHOP = """
import smoothplan as sp
from workshop import Mine, compiled_step, own, reward, step

options = dict(actions=2, discount=0.3, reward_range=(0, 1))
chain = sp.models.chain(states=4)
backup = sp.LogSumExp(1.0)

things = own | {
    "vector": sp.VectorModel(step, **options),
    "scalar": sp.VectorModel.from_scalar(lambda state, action, rng: (state, 0.5, False), **options),
    "jit": sp.JitModel(compiled_step, **options),
    "mine_vector": sp.VectorModel(Mine(2.0), **options),
    "critic": sp.CriticReference(reward),
    "transport": sp.OptimalTransport(cost=sp.backups.line_cost(2), tau=0.2, lam=0.5, reference=reward),
    "chain": chain,
    "shared": sp.SharedReference(chain, backup, seed=1),
    "keyed": sp.SharedReference(chain, backup, seed=1, key=lambda state: int(state)),
    "second": sp.SecondOrderSmoothCruiser(backup, epsilon=0.1),
    "gape": sp.OTGapE(sp.HardMax(), epsilon=0.5, delta=0.1),
    "cruiser": sp.ReferenceCruiser(backup, sp.CriticReference(reward), epsilon=0.1),
}
"""

HELPERS = """
BOUND = 2.0
UNUSED = 1.0

def limit():
    return BOUND
"""

SAY = """
import json
from shop import things
from smoothplan.running.fingerprint import fingerprint
print(json.dumps({name: fingerprint(thing) for name, thing in things.items()}))
"""


def build(folder: Path, changes: dict[str, str] | None = None) -> Path:
    """A folder with the modules of a user, in which some text is replaced."""
    folder.mkdir()
    texts = {"workshop.py": WORKSHOP, "helpers.py": HELPERS}
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
    harmless = {
        '"""Says something."""': '"""Says it otherwise,\n\n    in more lines."""',
        '"""A walk."""': "",
        '"""A model of its own."""': '"""Another text."""',
        "    rewards = np.empty": "    # One for each row.\n    rewards = np.empty",
        "UNUSED = 1.0": "UNUSED = 2.0",
    }
    one = other_process(build(tmp_path / "one"), 1)
    two = other_process(build(tmp_path / "two", harmless), 2)
    assert {name for name in one if one[name] != two[name]} == set()
    assert len(set(one.values())) == len(one)


def own(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """The fingerprints of what is in a workshop, in this process."""
    with patch.context() as here:
        here.syspath_prepend(folder)
        importlib.invalidate_caches()
        try:
            made = importlib.import_module("workshop").own
            return {name: fingerprint(thing) for name, thing in made.items()}
        finally:
            for name in ("workshop", "helpers"):
                sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("old", "new", "concerned"),
    [
        ("SCALE = 0.1", "SCALE = 0.2", "step compiled"),
        ('"x", "y", "z"', '"x", "y", "w"', "step"),
        ('{"wide", "broad"}', '{"wide", "large"}', "step"),
        ("np.exp(", "np.cos(", "step"),
        (" > helpers", " >= helpers", "step"),
        ("BOUND = 2.0", "BOUND = 3.0", "step"),
        ("return BOUND", "return -BOUND", "step"),
        ("math.exp(-state)", "math.exp(state)", "compiled"),
        ("@numba.njit\ndef compiled_step", "@numba.njit(fastmath=True)\ndef compiled_step", "compiled"),
        ("RATE = 0.5", "RATE = 0.25", "mine method"),
        ("gain=1.0", "gain=1.5", "mine method"),
        ("Mine(3.0)", "Mine(4.0)", "method"),
        ("self.width * 2", "self.width * 3", "setting"),
        ("width: float = 0.5", "width: float = 0.25", "setting"),
    ],
)
def test_a_change_concerns_whatever_it_concerns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, concerned: str
) -> None:
    before = own(build(tmp_path / "before"), monkeypatch)
    after = own(build(tmp_path / "after", {old: new}), monkeypatch)
    assert {name for name in before if before[name] != after[name]} == set(concerned.split())


def test_every_parameter_of_a_model_matters_and_its_use_does_not() -> None:
    options: dict[str, Any] = {"states": 20, "actions": 2, "branching": 3, "discount": 0.5, "seed": 1}
    model = sp.models.garnet(**options)
    plain = fingerprint(model)
    model.step(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64), generator(0))
    assert fingerprint(model) == plain
    others: list[dict[str, Any]] = [{"discount": 0.6}, {"seed": 2}, {"reward_kind": "bernoulli"}]
    assert len({plain, *(fingerprint(sp.models.garnet(**options | other)) for other in others)}) == 4


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


def test_descriptions_are_short_and_have_no_addresses() -> None:
    for thing, again in zip(different(), different(), strict=True):
        text = describe(thing)
        assert 0 < len(text) <= 200
        assert "0x" not in text
        assert text == describe(again)
    assert describe(sp.LogSumExp(1.0)) == repr(sp.LogSumExp(1.0))
    assert describe(np.zeros((1000, 3))) == "array of shape (1000, 3) and dtype float64"
    assert describe("x" * 1000) == "'" + "x" * 198 + "…"
    assert describe(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1)).startswith("SmoothCruiser(")
    assert "function closure.<locals>.inner" in describe(closure(1.0))
