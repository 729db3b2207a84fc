"""Gymnasium environments as generative models by copies: for those without a table and without an assignable state.

A state must be a value that planners batch, compare, hash and save, in any process. So it holds the content of an
environment, not the number of a live copy: the attributes of the environment and its wrappers that differ from those
after the first reset, pickled, as `uint8 [bytes]` padded with zeros. Equal content has equal bytes: immutable values
are written wherever they occur, and sets are sorted. Lists, arrays and objects that are shared stay shared.

Random generators are no part of a state: a copy draws from the generator of the call. Classes and functions are
constants, which a pickle refers to by number. So reading a state imports nothing, and calls only what the environment
itself was made of.
"""

import copyreg
import io
import math
import operator
import pickle
import random
import sys
import threading
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Ints
from smoothplan.models.calls import ModelError
from smoothplan.models.model import RewardKind, States
from smoothplan.models.vector import VectorModel, one_by_one

LARGE = 2_000
"""Bytes of an attribute that copies share if random play does not change it."""

PART = 1 << 32
"""Numbers from here on stand for parts of shared attributes, smaller ones for constants."""

Fragments = dict[str, bytes]
"""Pickled attributes, by layer and name ("000.state"). Empty bytes: the attribute was deleted."""


class CannotCopyError(ValueError):
    """Something in an environment cannot be copied; the message names it."""


class ChangedError(CannotCopyError):
    """A shared attribute has changed."""

    def __init__(self, place: str) -> None:
        super().__init__(f"its attribute {place[4:]} changed, which never did in random play")
        self.place = place


def library() -> Any:
    """Gymnasium, which is imported when an environment is used."""
    try:
        import gymnasium
    except ImportError:
        raise ImportError('from_gymnasium needs Gymnasium: pip install "smoothplan[gym]"') from None
    return gymnasium


def layers(environment: Any) -> list[Any]:
    """An environment and its wrappers, from outside to inside, without those that do not affect rewards and ends.

    A time limit is left out: the value is that of the endless problem. A wrapper that changes observations matters to
    one outside of it, which may compute rewards from them.
    """
    irrelevant = {"HumanRendering", "OrderEnforcing", "PassiveEnvChecker", "TimeLimit"}
    irrelevant |= {"RecordEpisodeStatistics", "RecordVideo", "RenderCollection"}
    observing = {"DelayObservation", "FrameStackObservation", "NormalizeObservation", "TimeAwareObservation"}
    found: list[Any] = []
    while isinstance(environment, library().Wrapper):
        kind, base = type(environment), library().ObservationWrapper
        name = kind.__name__ if kind.__module__.startswith("gymnasium.wrappers.") else ""
        # A step that is inherited from ObservationWrapper changes nothing but the observation.
        observes = name in observing or (isinstance(environment, base) and kind.step is base.step)
        if name not in irrelevant and (found or not observes):
            found.append(environment)
        environment = environment.env
    return [*found, environment]


# --- Content as bytes -----------------------------------------------------------------------------------------------


def _array(dtype: str, shape: tuple[int, ...], writeable: bool, data: bytes) -> NDArray[Any]:
    array = np.frombuffer(data, dtype=dtype).reshape(shape).copy()
    array.flags.writeable = writeable
    return array


def _scalar(dtype: str, data: bytes) -> Any:
    return np.frombuffer(data, dtype=dtype)[0]


def _method(owner: Any, name: str) -> Any:
    """A bound method. Modules and special names would give a state access to more than the environment."""
    if name.startswith("__") or isinstance(owner, types.ModuleType):
        raise ModelError(f"a state of an environment cannot refer to the method {name}")
    return getattr(owner, name)


def _fresh(rng: np.random.Generator, kind: Any, bits: Any = None) -> Any:
    """A random generator of a class, seeded by a draw; `bits` is the class of its bit generator, if it has one."""
    seed = int(rng.integers(2**63))
    return kind(seed) if bits is None else kind(bits(seed))


def _bits(generator: Any) -> Any:
    """The part of a random generator that has a state."""
    return getattr(generator, "_bit_generator", generator)


def _classes(generator: Any) -> tuple[type, ...]:
    """The arguments with which `_fresh` makes a random generator of the same kind."""
    return tuple(dict.fromkeys([type(generator), type(_bits(generator))]))


def _space_generator() -> None:
    """Stands for the generator that a space draws from: the one of the call."""


_new = copyreg.__newobj__  # type: ignore[attr-defined]


class _Writer(pickle.Pickler):
    """Pickles attributes one after the other. Things with a number, by id, are not written themselves.

    A persistent id is an int for a number, bytes for a string, a bytearray for bytes, a list for a tuple, and a tuple
    (function, *arguments) for any other immutable value. All but the ints are new objects at each mention: pickle
    writes an object that it has seen as a reference, and equal values must be equal bytes, shared or not.
    """

    def __init__(
        self, snapshots: "Snapshots", own: dict[int, int], parts: dict[int, int], learning: bool = False
    ) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=5)
        self._snapshots, self._learning = snapshots, learning  # its constants have numbers, and may become more
        self._own, self._parts = (
            own,
            parts,
        )  # numbers: only here, and of parts of shared attributes
        self.seen: dict[int, Any] = {}  # mutable objects by id, in the order of their first mention
        self.numbers: dict[int, int] = {}  # their numbers, if they are parts of shared attributes
        self._sets: dict[int, int] = {}  # numbers of those that are sets
        self._memory: dict[int, int] = {}  # the array that each piece of memory belongs to
        self.generators: list[Any] = []  # other than the environment's own
        self.spaces: list[Any] = []
        self.private = False  # whether the last value refers to something that only this environment has

    def write(self, name: str, value: Any) -> bytes:
        """The pickled value of an attribute of this name."""
        self.private = False
        self._file.seek(0)
        self._file.truncate()
        try:
            self.dump(value)
        except CannotCopyError as error:
            raise CannotCopyError(f"its attribute {name} {error}") from None
        except Exception as error:  # whatever an object's own methods do
            raise CannotCopyError(f"its attribute {name} cannot be copied: {error}") from None
        return self._file.getvalue()

    def persistent_id(self, thing: Any) -> Any:
        """A description of a value that is immutable or the same in all copies; None if pickle takes it apart."""
        kind = type(thing)
        if kind is int or kind is float or kind is bool or thing is None:
            return None
        if kind is str:
            return b"_" + thing.encode(errors="surrogatepass")  # bytes of length 1 are never new
        if kind is tuple:
            return list(thing)
        if kind is bytes:
            return bytearray(thing)
        key = id(thing)
        number = self._own.get(key, self._parts.get(key, self._snapshots.numbers.get(key)))
        if number is not None:
            self.private |= key in self._own
            return number
        if kind is not list and kind is not dict and (value := self._value(thing, kind)) is not None:
            return value
        self.seen[key] = thing
        return None

    def _value(self, thing: Any, kind: type) -> Any:
        """The persistent id of a constant, an immutable value or a set; None for another object."""
        if kind is set:
            if id(thing) in self.seen:
                return set, self._sets[id(thing)]
            self.seen[id(thing)] = thing
            number = self._sets[id(thing)] = len(self._sets)
            return set, number, self._sorted(thing)
        if kind is frozenset:
            return frozenset, self._sorted(thing)
        if isinstance(thing, np.generic) and thing.dtype.kind in "biufcSUmM":
            return _scalar, thing.dtype.str, thing.tobytes()
        if isinstance(thing, Enum):
            return kind, thing.value
        if isinstance(thing, tuple | str | bytes | int | float | complex | range | slice | np.generic):
            found: Any = thing.__reduce_ex__(4)
            return (found[0], *found[1]) if all(part is None for part in found[2:]) else None
        if _is_constant(thing):
            return self._snapshots.number(thing, self._learning)
        return () if kind.__module__.partition(".")[0] == "pygame" else None

    def _sorted(self, members: Iterable[Any]) -> list[Any]:
        """Members in an order that does not depend on hashes."""

        def alone(member: Any) -> bytes:
            return _Writer(self._snapshots, self._own, self._parts, self._learning).write("", member)

        return sorted(members, key=alone)

    def reducer_override(self, thing: Any) -> Any:
        """How to take apart an object that pickle does not know, or would take apart in another way."""
        if type(thing) is np.ndarray and thing.dtype.kind in "biufcSUmM":
            base: Any = thing
            while isinstance(base.base, np.ndarray):
                base = base.base
            if self._memory.setdefault(id(base), id(thing)) != id(thing):
                raise CannotCopyError("shares its memory with another array of the environment")
            return _array, (thing.dtype.str, thing.shape, thing.flags.writeable, thing.tobytes())
        if isinstance(thing, np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random):
            self.generators.append(thing)
            return _fresh, _classes(thing)
        if isinstance(thing, types.MethodType | types.BuiltinMethodType):
            return _method, (thing.__self__, thing.__name__)
        if isinstance(thing, library().Space):
            self.spaces.append(thing)
            return _new, (type(thing),), vars(thing) | {"_np_random": _space_generator}
        if isinstance(thing, library().Env):  # some have themselves copied without their state
            inside = {
                key: value for key, value in vars(thing).items() if key not in ("_np_random_seed", "_cached_spec")
            }
            return _new, (type(thing),), inside
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Rebuilds attributes in the order in which they were written: the numbers −1, −2, … stand for `own`."""

    def __init__(self, text: bytes, objects: dict[int, Any], own: list[Any]) -> None:
        super().__init__(io.BytesIO(text))
        self._objects, self._own = objects, own
        self._sets: dict[int, set[Any]] = {}

    def persistent_load(self, pid: Any) -> Any:
        """See `_Writer`."""
        kind = type(pid)
        if kind is int:
            return self._objects[pid] if pid >= 0 else self._own[-1 - pid]
        if kind is bytes:
            return pid[1:].decode(errors="surrogatepass")
        if kind is list:
            return tuple(pid)
        if kind is bytearray:
            return bytes(pid)
        if not pid:
            return None  # pictures and windows: copies draw nothing
        function, *values = pid
        if function is not set:
            return function(*values)
        number, *members = values
        return self._sets.setdefault(number, set(*members))

    def find_class(self, module: str, name: str) -> Any:
        """Refuses: whatever an environment is made of has a number."""
        raise ModelError(f"a state of an environment cannot refer to {module}.{name}")


def _is_constant(thing: Any) -> bool:
    """Whether a thing is the same in all copies: a class, a function, a module."""
    if isinstance(thing, types.BuiltinFunctionType):
        return thing.__self__ is None or isinstance(thing.__self__, types.ModuleType)
    compiled = type(thing).__module__.startswith("numba.") and hasattr(thing, "py_func")
    return compiled or thing is ... or isinstance(thing, type | types.FunctionType | types.ModuleType | np.ufunc)


def _own_classes(layer: Any) -> list[type]:
    """The classes that a user's module defines: one that occurs late in an episode is then known."""
    module = type(layer).__module__
    if module.startswith("gymnasium.") or module not in sys.modules:
        return []
    defined = vars(sys.modules[module]).values()
    return [kind for kind in defined if isinstance(kind, type) and kind.__module__ == module]


def _places(chain: list[Any]) -> dict[str, Any]:
    """The attributes of all layers that are content, in order."""
    apart = {"_np_random", "_np_random_seed", "_cached_spec", "spec", "render_mode", "env"}
    return {
        f"{number:03}.{name}": vars(layer)[name]
        for number, layer in enumerate(chain)
        for name in sorted(vars(layer).keys() - apart)
    }


def _parsed(state: bytes) -> Fragments:
    """The attributes in a state."""
    found, start = {}, 0
    while start < len(state):
        end = state.index(b"\n", start) + 1
        place, _, size = state[start : end - 1].decode().rpartition(" ")
        start = end + int(size)
        found[place] = state[end:start]
    return found


class Snapshots:
    """The way from environments of one kind to states and back.

    Args:
        environment: after a reset. It is not changed. The classes and functions of later ones must occur in it, in the
            module of one of its classes, or in an environment that is written with `learning`.
        shared: attributes that never change: copies share them, and they are no part of a state. One that does change
            is an error, sooner or later.
    """

    def __init__(self, environment: Any, shared: Iterable[str] = ()) -> None:
        chain = layers(environment)
        places = _places(chain)
        common = [_array, _method, _new, _scalar, np.dtype, set, frozenset, complex, range, slice, bytearray]
        common += [deque, OrderedDict, defaultdict, Counter]
        self._constants: list[Any] = [*common, *(kind for layer in chain for kind in _own_classes(layer))]
        # How an environment was made is the same in every copy. Nothing is drawn on a screen.
        made = [{key: vars(layer)[key] for key in ("spec", "render_mode") if key in vars(layer)} for layer in chain]
        self._layers = [
            (type(layer), how | dict.fromkeys(how.keys() - {"spec"})) for layer, how in zip(chain, made, strict=True)
        ]
        self._shared: Fragments = {}
        self._start: Fragments = {}
        atoms = (int, float, bool, str, bytes, types.NoneType)  # a look tells whether they are as at the start
        self._atoms = {place: value for place, value in places.items() if type(value) in atoms}
        self._prepare()
        writer = _Writer(self, {}, {}, learning=True)
        self._shared = {place: writer.write(place[4:], places[place]) for place in sorted(shared)}
        self._prepare()
        self._start = self._written(environment, learning=True)[0]

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("_constants", "_layers", "_shared", "_start", "_atoms")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def _prepare(self) -> None:
        """Builds the objects that all copies share."""
        self._lock = vars(self).get("_lock") or threading.RLock()
        self._objects = dict(enumerate(self._constants))
        self.numbers = {id(constant): number for number, constant in self._objects.items()} | {id(_space_generator): -1}
        self._attributes = [dict(given) for _, given in self._layers]  # that a copy begins with
        reader = _Reader(b"".join(self._shared.values()), self._objects, [None])
        held = {place: reader.load() for place in self._shared}
        for place, value in (self._atoms | held).items():
            self._attributes[int(place[:3])][place[4:]] = value
        self._walks: list[tuple[list[Any], _Writer]] = []  # shared attributes, and the writer that went through them
        self._left = 0
        walk = self._walked(held)
        self._spaces = walk.spaces
        self._objects |= dict(enumerate(walk.seen.values(), PART))

    def number(self, constant: Any, learning: bool) -> int:
        """The number of a constant that is not known by its id."""
        if isinstance(constant, types.FunctionType):  # every environment may make its own
            alike = constant.__code__, constant.__closure__
            for number, other in enumerate(self._constants):
                if isinstance(other, types.FunctionType) and (other.__code__, other.__closure__) == alike:
                    return number
            if any(isinstance(cell.cell_contents, library().Env) for cell in constant.__closure__ or ()):
                raise CannotCopyError(f"holds {constant!r}, which refers to the environment it was made for")
        if not learning:
            raise CannotCopyError(f"holds {constant!r}, which was not there when the environment was examined")
        number = self.numbers[id(constant)] = len(self._constants)
        self._constants.append(constant)
        self._objects[number] = constant
        return number

    def _walked(self, places: dict[str, Any]) -> _Writer:
        """A writer that went through shared attributes. Raises `ChangedError` if it found one that has changed.

        A walk through large attributes takes longer than a step, and so it is kept for a number of calls.
        """
        if self._left == 0:
            self._walks, self._left = [], 100 + sum(map(len, self._shared.values())) // 100
        self._left -= 1
        values = [places.get(place) for place in self._shared]
        for known, writer in self._walks:
            if all(map(operator.is_, known, values)):
                return writer
        writer = _Writer(self, {}, {})
        for (place, text), value in zip(self._shared.items(), values, strict=True):
            if writer.write(place[4:], value) != text:
                raise ChangedError(place)
        writer.numbers = {key: number for number, key in enumerate(writer.seen, PART)}
        self._walks = [*self._walks[-7:], (values, writer)]
        return writer

    def check_shared(self, environment: Any) -> None:
        """Raises `ChangedError` if a shared attribute has changed."""
        self._left = 0
        self._walked(_places(layers(environment)))

    def shareable(self, environment: Any, states: Iterable[bytes]) -> set[str]:
        """Attributes that are as at the start in all these states, and are large or spaces."""
        changed = {place for state in states for place in _parsed(state)}
        chain, found = layers(environment), set()
        for place, value in _places(chain).items():
            writer = _Writer(self, self._own(chain), {})
            text = writer.write(place[4:], value)
            if (len(text) > LARGE or isinstance(value, library().Space)) and not writer.private:
                found.add(place)
        return found - changed - self._atoms.keys()

    def state(self, environment: Any, learning: bool = False) -> bytes:
        """The attributes of an environment that differ from those at the start. It is not changed."""
        with self._lock:
            try:
                found, _ = self._written(environment, learning)
            except ChangedError:
                self._prepare()
                raise
        gone = (self._start.keys() | self._atoms.keys()) - found.keys() - _places(layers(environment)).keys()
        parts = found | dict.fromkeys(gone, b"")
        return b"".join(
            b"%s %d\n%s" % (place.encode(), len(text), text)
            for place, text in sorted(parts.items())
            if self._start.get(place) != text
        )

    def reseed(self, environment: Any, rng: np.random.Generator) -> None:
        """Gives an environment the draws of a copy that is rebuilt with `rng`. Shared generators stay shared."""
        _, writer = self._written(environment)
        for generator in writer.generators:
            new = _fresh(rng, *_classes(generator))
            if isinstance(generator, random.Random):
                generator.setstate(new.getstate())
            else:
                _bits(generator).state = _bits(new).state
        own = environment.unwrapped.np_random
        own.bit_generator.state = rng.bit_generator.state
        for space in writer.spaces:
            space._np_random = own

    def step(self, state: bytes, action: int, rng: np.random.Generator) -> "Outcome":
        """Steps a copy of the environment that has this state, with the draws of `rng`."""
        with self._lock:  # copies share their spaces, which draw from the generator of one of them
            environment = self.rebuilt(state, rng)
            _, reward, terminated, _, _ = environment.step(int(environment.action_space.start) + action)
            return Outcome(float(reward), bool(terminated), self.state(environment))

    def rebuilt(self, state: bytes, rng: np.random.Generator) -> Any:
        """A new environment with the content of a state. It draws from `rng`."""
        for space in self._spaces:
            space._np_random = rng
        chain: list[Any] = [object.__new__(kind) for kind, _ in self._layers]
        for layer, attributes, inner in zip(chain, self._attributes, [*chain[1:], None], strict=True):
            vars(layer).update(attributes)
            if inner is not None:
                layer.env = inner
        vars(chain[-1])["_np_random"] = rng
        parts = sorted((self._start | _parsed(state)).items())
        own = [rng, rng, partial(_fresh, rng), *chain]  # see `_own`
        reader = _Reader(b"".join([text for _, text in parts]), self._objects, own)
        for place, text in parts:
            attributes = vars(chain[int(place[:3])])
            if text:
                attributes[place[4:]] = reader.load()
            else:
                attributes.pop(place[4:], None)
        return chain[0]

    def _own(self, chain: list[Any]) -> dict[int, int]:
        """The numbers of the parts of one copy: its generator, further ones, and its layers. Spaces draw from −1."""
        numbers = {id(vars(chain[-1]).get("_np_random")): -2, id(_fresh): -3}
        return numbers | {id(layer): -4 - number for number, layer in enumerate(chain)}

    def _written(self, environment: Any, learning: bool = False) -> tuple[Fragments, _Writer]:
        """The attributes that are neither shared nor atoms as at the start, and their writer."""
        chain = layers(environment)
        places = _places(chain)
        walk = self._walked(places)
        writer = _Writer(self, self._own(chain), walk.numbers, learning)
        found = {}
        for place, value in places.items():
            atom = self._atoms.get(place, self)
            same = value is atom or (type(value) is type(atom) and repr(value) == repr(atom))
            if place not in self._shared and not same:
                found[place] = writer.write(place[4:], value)
        writer.spaces += walk.spaces
        return found, writer


class Outcome(NamedTuple):
    """The result of a step."""

    reward: float
    terminated: bool
    state: bytes


# --- Models ---------------------------------------------------------------------------------------------------------


class Copies:
    """Steps an environment from any state: a copy with this state, which draws from the generator of the call.

    `size` is the bytes of a state, `seconds` those of a call and of the environment's own step, as measured here.
    """

    one_at_a_time = True

    def __init__(self, name: str, snapshots: Snapshots, size: int, seconds: tuple[float, float]) -> None:
        self.name, self.size, self._snapshots = name, size, snapshots
        self._price = f"{1e6 * seconds[0]:.0f} µs per simulator call, {1e6 * seconds[1]:.0f} µs of them its own step"

    def __repr__(self) -> str:
        return f"copies of {self.name}, states of {self.size} bytes"

    @property
    def note(self) -> str:
        """Sentences that a user must read."""
        return (
            f"{self.name} is simulated by copies of the environment: {self._price}. A copy knows all that the "
            "environment holds, even if observations hide it"
        )

    def __call__(self, states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        """See `GenerativeModel.step`."""
        next_states, rewards, terminals = zip(*one_by_one(self._step, states, actions, rng), strict=True)
        return np.array(next_states), np.array(rewards), np.array(terminals)

    def _step(self, state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
        text = state.tobytes().rstrip(b"\0")
        try:
            outcome = self._snapshots.step(text, action, rng)
        except CannotCopyError as error:
            raise ModelError(f"{self.name} cannot be copied any more: {error}") from None
        except Exception as error:  # any error of an environment; the bytes of the state would say nothing
            error.add_note(f"{self.name} differed from its start in {_names(text)}")
            raise
        return self.padded(outcome.state), outcome.reward, outcome.terminated

    def state_of(self, environment: Any) -> NDArray[np.uint8]:
        """The state of an environment of this kind, [bytes]. It is not changed."""
        try:
            return self.padded(self._snapshots.state(environment))
        except CannotCopyError as error:
            raise ModelError(f"{self.name} cannot be copied any more: {error}") from None

    def padded(self, text: bytes) -> NDArray[np.uint8]:
        """A state, [bytes]."""
        if len(text) > self.size:
            raise ModelError(
                f"a state of {self.name} takes {len(text)} bytes, more than the {self.size} of this model: give "
                f"from_gymnasium a larger state_bytes"
            )
        return np.frombuffer(text.ljust(self.size, b"\0"), dtype=np.uint8)


def copied_model(
    environment: Any,
    name: str,
    *,
    reward_range: tuple[float, float],
    reward_kind: RewardKind,
    state_bytes: int | None = None,
    **declarations: Any,
) -> VectorModel:
    """A model that steps copies of an environment, wrappers included; see `from_gymnasium` for its arguments.

    Raises:
        CannotCopyError: something in the environment cannot be copied, or a copy does not repeat its steps.
    """
    low, high = arguments.interval("reward_range", reward_range)
    real = Snapshots(environment).rebuilt(b"", np.random.default_rng(0))
    snapshots, played = _examined(real)
    for outcome, _, _ in played:
        if not low <= outcome.reward <= high:
            raise ModelError(f"reward_range must contain all rewards: {name} paid {outcome.reward:g}, got {low, high}")
    longest = max((outcome.state for outcome, _, _ in played), key=len)
    size = 64 * math.ceil(max(1, 2 * len(longest)) / 64)
    size = size if state_bytes is None else arguments.whole("state_bytes", state_bytes)
    seconds = median(copied for _, copied, _ in played), median(own for _, _, own in played)
    copies = Copies(name, snapshots, size, seconds)
    copies.padded(longest)
    real.reset(seed=0)
    return VectorModel(
        copies,
        actions=int(real.action_space.n),
        reward_range=(low, high),
        reward_kind=reward_kind,
        initial_state=copies.state_of(real),
        **declarations,
    )


Played = tuple[Outcome, float, float]
"""A step of the real environment: its outcome, and the seconds that it took a copy and the environment itself."""


def _examined(real: Any) -> tuple[Snapshots, list[Played]]:
    """The snapshots of an environment, which share large attributes that random play does not change."""
    real.reset(seed=0)
    snapshots = Snapshots(real)
    shared = snapshots.shareable(real, [outcome.state for outcome, *_ in _played(real, snapshots, 30)])
    while True:
        real.reset(seed=0)
        snapshots = Snapshots(real, shared)
        try:
            return snapshots, list(_played(real, snapshots, 300))
        except ChangedError as error:  # late in an episode
            shared.discard(error.place)


def _played(real: Any, snapshots: Snapshots, most: int) -> Iterator[Played]:
    """Steps of random play, in 50 episodes of 100 steps at most, each with draws of its own seed."""
    choices = np.random.default_rng(0)
    first, count = int(real.action_space.start), int(real.action_space.n)
    for episode in range(50):
        real.reset(seed=episode)
        before = snapshots.state(real, learning=True)
        for _ in range(100):
            action, seed = int(choices.integers(count)), int(choices.integers(2**32))
            snapshots.reseed(real, _generator(seed))
            started = time.perf_counter()
            try:
                _, reward, terminated, truncated, _ = real.step(first + action)
            except Exception as error:  # whatever an environment does
                raise CannotCopyError(
                    f"action {action} raised {type(error).__name__} in random play: {error}"
                ) from error
            taken = time.perf_counter() - started
            outcome = Outcome(float(reward), bool(terminated), snapshots.state(real, learning=True))
            yield outcome, _repeated(snapshots, before, action, seed, outcome), taken
            most, before = most - 1, outcome.state
            if terminated or truncated or most == 0:
                break
        snapshots.check_shared(real)
        if most == 0:
            return


def _repeated(snapshots: Snapshots, state: bytes, action: int, seed: int, outcome: Outcome) -> float:
    """Has a copy repeat a step of the real environment, twice: a hidden state would have changed in between.

    Returns the seconds that it takes.
    """
    taken = math.inf
    for _ in range(2):
        rng, started = _generator(seed), time.perf_counter()
        try:
            found = snapshots.step(state, action, rng)
        except CannotCopyError:
            raise
        except Exception as error:  # whatever a copy does
            raise CannotCopyError(f"a copy of it raised {type(error).__name__}: {error}") from error
        taken = min(taken, time.perf_counter() - started)
        if found != outcome:
            raise CannotCopyError(
                f"a copy does not repeat its step with action {action}, from a state that differs from its start in "
                f"{_names(state)}: it keeps state outside of the object, in a global or an attribute of its class, or "
                "draws from another generator than its own self.np_random"
            )
    return taken


def _generator(seed: int) -> np.random.Generator:
    """With the bits that Gymnasium's own generators have: a real environment gets the same state."""
    return np.random.Generator(np.random.PCG64(seed))


def _names(state: bytes) -> str:
    """The attributes that a state consists of, in words."""
    return ", ".join(place[4:] for place in _parsed(state)) or "nothing"
