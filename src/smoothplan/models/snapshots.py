"""Gymnasium environments as generative models by snapshots: for those that save their state and take it back.

MuJoCo's environments and Atari's are known here; for others the user gives two functions.
"""

import importlib
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from smoothplan.base import arguments
from smoothplan.models.copies import CannotCopyError, Packing, Store, layers

Snapshot = Callable[[Any], Any]
"""snapshot(environment) → its state, in bytes or in an array of numbers of fixed shape."""

Restore = Callable[[Any, Any], object]
"""restore(environment, saved) puts an environment into a saved state."""


class Ways(NamedTuple):
    """How to save and to restore the state of a kind of environment."""

    snapshot: Snapshot
    restore: Restore
    prepare: Callable[[Any], object] = id  # changes an environment of the model's own, before its first reset
    constants: Callable[[Any], object] | None = None  # what must be as in the environment given
    features: Callable[[Any], Any] | None = None  # of the saved states of an environment, see `Declarations`
    note: str = ""  # a sentence that a user must read


class Snapshots(Store):
    """Has an environment in any state: one environment of its own, which takes the state back."""

    means = "snapshots of the environment. A snapshot knows the whole state of the environment"

    def __init__(self, environment: Any, name: str, ways: Ways, size: int) -> None:
        super().__init__(name)
        self.ways, self._environment = ways, environment
        ways.prepare(environment)
        environment.reset(seed=0)
        saved = ways.snapshot(environment)
        self._packed, self._form = isinstance(saved, bytes), (np.shape(saved), np.asarray(saved).dtype)
        self._packing = Packing(name, size, saved if self._packed else b"")
        self.initial = self.state_of(environment)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.ways.prepare(self._environment)  # most environments are pickled as their arguments
        self._environment.reset(seed=0)

    def __repr__(self) -> str:
        return f"snapshots of {self.name}, states of shape {self.initial.shape}"

    def settle(self) -> None:
        """Ends the learning of the size of a state."""
        if self._packed:
            self._packing.settle()
            self.initial = self.initial[: self._packing.size]

    def at(self, state: Any, rng: np.random.Generator) -> Any:
        """See `Store`."""
        self.ways.restore(self._environment, self._packing.unpack(state) if self._packed else np.array(state))
        self.reseed(self._environment, rng)
        return self._environment

    def state_of(self, environment: Any) -> Any:
        """The state of an environment of this kind."""
        saved = self.ways.snapshot(environment)
        if self._packed and isinstance(saved, bytes):
            return self._packing.pack(saved)
        state, (shape, dtype) = np.array(saved), self._form
        if (state.shape, state.dtype) != (shape, dtype) or dtype.kind not in "biuf":
            form = "bytes" if self._packed else f"numbers of shape {shape} and dtype {dtype}"
            raise CannotCopyError(f"snapshot must return bytes or numbers, here {form}, got {arguments.shown(saved)}")
        return state


def known_ways(environment: Any, simple: bool) -> Ways | None:
    """How to save and to restore environments of MuJoCo and of Atari, whose wrappers are simple; None for any other."""
    bare = environment.unwrapped
    held = {name: type(value).__name__ for name, value in vars(bare).items() if name in ("ale", "data", "model")}
    ways = None
    if held.get("ale") == "ALEInterface":
        note = "its emulator does not tell the last action: the first frame after a real state may repeat none"
        sticky = bare.ale.getFloat(_STICKINESS) > 0.0
        ways = Ways(_atari_snapshot, _atari_restore, _Emulator, note=note if sticky else "")
    elif (held.get("model"), held.get("data")) == ("MjModel", "MjData"):
        ways = Ways(_mujoco_snapshot, _mujoco_restore, constants=_mujoco_constants, features=_mujoco_features)
    if ways is not None and not simple:
        names = ", ".join(type(layer).__name__ for layer in layers(environment)[:-1])
        raise CannotCopyError(
            f"a snapshot lacks what its wrappers keep, {names}: give from_gymnasium snapshot=, a function of the "
            "environment, and restore=, one of the environment and of what was saved"
        )
    return ways


# MuJoCo: the state that a step continues from, and positions of bodies that rewards compare with those after it.


def _mujoco_snapshot(environment: Any) -> Any:
    mujoco, bare = importlib.import_module("mujoco"), environment.unwrapped
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    saved = np.empty(mujoco.mj_stateSize(bare.model, kind))
    mujoco.mj_getState(bare.model, bare.data, saved, kind)
    return np.concatenate([saved, bare.data.xpos.reshape(-1), bare.data.xipos.reshape(-1)])


def _mujoco_restore(environment: Any, saved: Any) -> None:
    mujoco, bare = importlib.import_module("mujoco"), environment.unwrapped
    state, *places = np.split(saved, [len(saved) - 2 * bare.data.xpos.size, len(saved) - bare.data.xpos.size])
    mujoco.mj_setState(bare.model, bare.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    for held, place in zip((bare.data.xpos, bare.data.xipos), places, strict=True):
        held[:] = place.reshape(held.shape)


def _mujoco_features(environment: Any) -> Callable[[Any], Any]:
    """Positions and velocities, which follow the time in a saved state."""
    model = environment.unwrapped.model
    return itemgetter((slice(None), slice(1, 1 + model.nq + model.nv)))


def _mujoco_constants(environment: Any) -> bytes:
    mujoco, model = importlib.import_module("mujoco"), environment.unwrapped.model
    content = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, content)
    return content.tobytes()


# Atari: the state of the emulator without its random generator, and the last action, which a sticky one repeats.


_STICKINESS = "repeat_action_probability"


class _Emulator:
    """Takes the place of an environment's emulator: sticky actions draw from the generator of the environment."""

    def __init__(self, environment: Any) -> None:
        self._bare, self._ale = environment.unwrapped, environment.unwrapped.ale
        self._stickiness, self.last = self._ale.getFloat(_STICKINESS), importlib.import_module("ale_py").Action.NOOP
        self._ale.setFloat(_STICKINESS, 0.0)
        self._bare.ale = self

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_ale"], name)

    def act(self, action: Any, strength: float = 1.0) -> Any:
        if self._bare.np_random.random() >= self._stickiness:
            self.last = action
        return self._ale.act(self.last, strength)

    def reset_game(self) -> None:
        self.last = importlib.import_module("ale_py").Action.NOOP
        self._ale.reset_game()


def _atari_snapshot(environment: Any) -> bytes:
    ale = environment.unwrapped.ale
    last = ale.last.value if isinstance(ale, _Emulator) else 0
    state: bytes = ale.cloneState(include_rng=False).__getstate__()
    return bytes([last]) + state


def _atari_restore(environment: Any, saved: bytes) -> None:
    library, ale = importlib.import_module("ale_py"), environment.unwrapped.ale
    state = library.ALEState.__new__(library.ALEState)
    state.__setstate__(saved[1:])
    ale.restoreState(state)
    ale.last = library.Action(saved[0])
