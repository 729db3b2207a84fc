"""Gymnasium environments as generative models by copies: for those without a table and without an assignable state.

A state must be a value that planners batch, compare, hash and save, in any process. So it holds the content of an
environment, not the number of a live copy: the attributes of the environment and its wrappers, pickled, and compressed
by reference to those after a reset, as `uint8 [bytes]` padded with zeros. Equal content has equal bytes: immutable
values are written at every mention, and sets are sorted. Lists, arrays and objects that are shared stay shared. Large
attributes that never change are not part of a state: all copies hold the same ones.

Random generators are not part of a state: a copy draws from the generator of the call. Classes and functions are
constants, which a pickle refers to by number. So reading a state imports nothing, and calls only the constituents of
the environment itself.
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
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial, reduce
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Ints
from smoothplan.models.calls import ModelError
from smoothplan.models.model import States
from smoothplan.models.vector import one_by_one

PART = 1 << 32
"""Numbers from here on stand for parts of shared attributes, smaller ones for constants, negative ones for the copy."""

Place = tuple[int, str]
"""An attribute: the number of its layer, and its name."""


class CannotCopyError(ModelError):
    """Something in an environment cannot be copied; the message names it."""


class ChangedError(CannotCopyError):
    """A shared attribute has changed: `place`."""

    def __init__(self, place: Place) -> None:
        super().__init__(f"its attribute {place[1]} changed, which never did in random play")
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

    A time limit is left out, because the model is of the endless problem. A wrapper that changes observations matters
    to one outside of it, which may compute rewards from them.
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


def _attributes(chain: list[Any]) -> list[dict[str, Any]]:
    """The attributes of each layer that are content, sorted by name."""
    apart = {"_np_random", "_np_random_seed", "_cached_spec", "spec", "render_mode", "env"}
    return [{name: vars(layer)[name] for name in sorted(vars(layer).keys() - apart)} for layer in chain]


# --- Content as bytes -----------------------------------------------------------------------------------------------


def _array(dtype: Any, shape: tuple[int, ...], writeable: bool, data: bytes) -> NDArray[Any]:
    array = np.frombuffer(data, dtype=dtype).reshape(shape).copy()
    array.flags.writeable = writeable
    return array


def _method(owner: Any, name: str) -> Any:
    """A bound method. Modules and special names would give a state access to more than the environment."""
    if name.startswith("__") or isinstance(owner, types.ModuleType):
        raise ModelError(f"a state of an environment cannot refer to the method {name}")
    return getattr(owner, name)


def _bits(generator: Any) -> Any:
    """The part of a random generator that has a state."""
    return getattr(generator, "_bit_generator", generator)


def _fresh(rng: np.random.Generator, *kinds: Any) -> Any:
    """A random generator, seeded by a draw, of a class and that of its bit generator, if it has one."""
    return reduce(lambda made, kind: kind(made), reversed(kinds), int(rng.integers(2**63)))


def _kinds(generator: Any) -> tuple[type, ...]:
    """The arguments with which `_fresh` makes a random generator of the same kind."""
    return tuple(dict.fromkeys([type(generator), type(_bits(generator))]))


_new = copyreg.__newobj__  # type: ignore[attr-defined]
_space_generator = object()  # stands for the generator that a space draws from: the one of the call


class _Members(list[Any]):
    """The members of a set, which is written as they are."""


class _Writer(pickle.Pickler):
    """Pickles the content of an environment. Things with a number, by id, are not written themselves.

    A persistent id is an int for a number, bytes for a string, a bytearray for bytes, a list for a tuple, and a tuple
    (function, *arguments) for any other immutable value. All but the ints are new objects at each mention: pickle
    writes an object that it has seen as a reference, and equal values must be equal bytes, shared or not. A set is an
    object, but pickle would write it in the order of its hashes: its id is the same `_Members` at each mention.
    """

    def __init__(self, copies: "Copies", own: dict[int, int], parts: dict[int, int]) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=5)
        self._copies = copies  # numbers constants
        self._own, self._parts = own, parts  # numbers of the copy's own objects, and of parts of shared attributes
        self.seen: dict[int, Any] = {}  # mutable objects by id, in the order of their first mention
        self._sets: dict[int, _Members] = {}
        self._memory: dict[int, int] = {}  # the array that each piece of memory belongs to
        self.generators: list[Any] = []  # other than the environment's own
        self.spaces: list[Any] = []
        self.private = False  # whether a value refers to the environment itself

    def write(self, value: Any) -> bytes:
        """The pickled value."""
        self._file.seek(0)
        self._file.truncate()
        self.dump(value)
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
        number = self._own.get(key, self._parts.get(key, self._copies.numbers.get(key)))
        if number is not None:
            self.private |= key in self._own
            return number
        if kind is not list and kind is not dict and (value := self._value(thing, kind)) is not None:
            return value
        self.seen[key] = thing
        return None

    def _value(self, thing: Any, kind: type) -> Any:
        """The persistent id of a constant, an immutable value or a set; None for another object."""
        if kind is set and id(thing) in self._sets:
            return self._sets[id(thing)]
        if kind is set or kind is frozenset:  # in an order that does not depend on hashes
            members = sorted(thing, key=lambda member: _Writer(self._copies, self._own, self._parts).write(member))
            if kind is frozenset:
                return frozenset, members
            self.seen[id(thing)] = thing
            self._sets[id(thing)] = _Members(members)
            return self._sets[id(thing)]
        if isinstance(thing, np.generic) and thing.dtype.kind in "biufU" and type(thing.item()) is not kind:
            return kind, thing.item()  # the way below is slower, and serves scalars that no Python number equals
        if isinstance(thing, np.dtype) and thing.names is None:
            return np.dtype, thing.str
        if isinstance(thing, tuple | str | bytes | int | float | complex | range | slice | np.generic):
            found: Any = thing.__reduce_ex__(4)
            return (found[0], *found[1]) if all(part is None for part in found[2:]) else None
        constant = isinstance(thing, type | types.FunctionType | types.ModuleType | np.ufunc) or thing is ...
        if isinstance(thing, types.BuiltinFunctionType):
            constant = thing.__self__ is None or isinstance(thing.__self__, types.ModuleType)
        if constant:
            return self._copies.number(thing)
        return () if kind.__module__.partition(".")[0] == "pygame" else None

    def reducer_override(self, thing: Any) -> Any:
        """How to take apart an object that pickle does not know, or would take apart in another way."""
        if type(thing) is _Members:
            return set, (list(thing),)
        if type(thing) is np.ndarray and thing.dtype.kind in "biufcSUmM":
            base: Any = thing
            while isinstance(base.base, np.ndarray):
                base = base.base
            if self._memory.setdefault(id(base), id(thing)) != id(thing):
                raise CannotCopyError("shares its memory with another array of the environment")
            return _array, (thing.dtype, thing.shape, thing.flags.writeable, thing.tobytes())
        if isinstance(thing, np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random):
            self.generators.append(thing)
            return _fresh, _kinds(thing)
        if isinstance(thing, types.MethodType | types.BuiltinMethodType):
            return _method, (thing.__self__, thing.__name__)
        if isinstance(thing, library().Space):
            self.spaces.append(thing)
            return _new, (type(thing),), vars(thing) | {"_np_random": _space_generator}
        if isinstance(thing, library().Env):  # some have themselves copied without their state
            apart = ("_np_random_seed", "_cached_spec")
            return _new, (type(thing),), {key: value for key, value in vars(thing).items() if key not in apart}
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Rebuilds the content of an environment: the number −k stands for `own[k]`."""

    def __init__(self, text: bytes, objects: dict[int, Any], own: list[Any]) -> None:
        super().__init__(io.BytesIO(text))
        self._objects, self._own = objects, own

    def persistent_load(self, pid: Any) -> Any:
        """See `_Writer`."""
        kind = type(pid)
        if kind is int:
            return self._objects[pid] if pid >= 0 else self._own[-pid]
        if kind is bytes:
            return pid[1:].decode(errors="surrogatepass")
        if kind is list:
            return tuple(pid)
        if kind is bytearray:
            return bytes(pid)
        if kind is set:
            return pid
        return pid[0](*pid[1:]) if pid else None  # None for pictures and windows: copies draw nothing

    def find_class(self, module: str, name: str) -> Any:
        """Refuses: every constituent of an environment has a number."""
        raise ModelError(f"a state of an environment cannot refer to {module}.{name}")


# --- Copies ---------------------------------------------------------------------------------------------------------


class Copies:
    """Steps an environment from any state: a copy with this content, which draws from the generator of the call.

    It learns the classes and functions that environments consist of, and the bytes of a state, until `settle`.

    Args:
        environment: after a reset. It is not changed.
        name: for messages.
        changing: large attributes that are part of a state. Other large attributes and spaces are shared by all
            copies; if one of them does change, that is an error, sooner or later.
        size: bytes of a state; 0 to learn them.
    """

    one_at_a_time = True
    _last: list[Any]  # shared attributes that `_walk` went through
    _walk: _Writer

    def __init__(self, environment: Any, name: str, changing: set[Place], size: int) -> None:
        self.name, self._learning = name, True
        self._given, self.size, self._longest = size, size or 1 << 16, 0  # bytes: the last of the largest state so far
        self._seconds: list[tuple[float, float]] = []  # of calls, and of the environment's own steps in them
        chain = layers(environment)
        self._kinds, self._spec = [type(layer) for layer in chain], vars(chain[-1]).get("spec")
        self._constants: list[Any] = [_array, _method, _new, np.dtype, set, frozenset, complex, range, slice, bytearray]
        self._constants += [deque, OrderedDict, defaultdict, Counter]
        # The classes of a user's module: one may first occur late in an episode.
        for module in dict.fromkeys(kind.__module__ for kind in self._kinds):
            if not module.startswith("gymnasium.") and module in sys.modules:
                found = (thing for thing in vars(sys.modules[module]).values() if isinstance(thing, type))
                self._constants += [kind for kind in found if kind.__module__ == module]
        self._shared: dict[Place, bytes] = {}
        self._prepare()
        self._written(environment)
        shared, large = _Writer(self, {}, {}), 2_000  # bytes: copying fewer takes less than a step
        for number, attributes in enumerate(_attributes(chain)):
            for attribute, value in attributes.items():
                alone = _Writer(self, _own(chain), {})
                is_large = len(alone.write(value)) > large or isinstance(value, library().Space)
                if is_large and not alone.private and (number, attribute) not in changing:
                    self._shared[number, attribute] = shared.write(value)
        self._prepare()
        self._start = self._written(environment)[0]

    def __getstate__(self) -> dict[str, Any]:
        """Without the objects that all copies share: they are built again."""
        built = {"_lock", "_objects", "numbers", "_held", "_left", "_last", "_walk", "_parts", "_spaces"}
        return {name: value for name, value in vars(self).items() if name not in built}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def __repr__(self) -> str:
        return f"copies of {self.name}, states of {self.size} bytes"

    @property
    def note(self) -> str:
        """Sentences that a user must read."""
        call, own = (f"{1e6 * median(seconds):.0f} µs" for seconds in zip(*self._seconds, strict=True))
        return (
            f"{self.name} is simulated by copies of the environment: {call} per simulator call, {own} of them its own "
            "step. A copy knows all that the environment holds, even if observations hide it"
        )

    def settle(self) -> None:
        """Ends the learning. By default a state has twice the bytes of the largest one so far, and at least 256."""
        self._learning, self.size = False, self._given or max(256, 64 * math.ceil(2 * self._longest / 64))

    def __call__(self, states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        """See `GenerativeModel.step`."""
        next_states, rewards, terminals = zip(*one_by_one(self._step, states, actions, rng), strict=True)
        return np.array(next_states), np.array(rewards), np.array(terminals)

    def _step(self, state: Any, action: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], float, bool]:
        with self._lock:  # copies share their spaces, which draw from the generator of one of them
            started = time.perf_counter()
            environment = self.rebuilt(state, rng)
            rebuilt = time.perf_counter()
            try:
                _, reward, terminated, _, _ = environment.step(int(environment.action_space.start) + action)
            except Exception as error:  # any error of an environment; the bytes of the state would say nothing
                before = self.rebuilt(state, rng).unwrapped
                error.add_note(f"{self.name} was in the state {arguments.shown(vars(before))}")
                raise
            own = time.perf_counter() - rebuilt
            found = self.state_of(environment), float(reward), bool(terminated)
            if self._learning:
                self._seconds.append((time.perf_counter() - started, own))
            return found

    def state_of(self, environment: Any) -> NDArray[np.uint8]:
        """The state of an environment of this kind, [bytes]: its content without shared attributes."""
        with self._lock:
            text, _ = self._written(environment)
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS, zdict=self._start)
        content = packer.compress(text) + packer.flush()
        self._longest = max(self._longest, len(content))
        if len(content) > self.size:
            raise ModelError(
                f"a state of {self.name} takes {len(content)} bytes, more than the {self.size} of this model: give "
                f"from_gymnasium a larger state_bytes"
            )
        return np.frombuffer(content.ljust(self.size, b"\0"), dtype=np.uint8)

    def rebuilt(self, state: Any, rng: np.random.Generator) -> Any:
        """A new environment in a state. It draws from `rng`."""
        longest = 1 << 26  # bytes: a state from a file may be hostile
        text = zlib.decompressobj(-zlib.MAX_WBITS, self._start).decompress(state, longest)
        for space in self._spaces:
            space._np_random = rng
        chain: list[Any] = [object.__new__(kind) for kind in self._kinds]
        own = [None, rng, partial(_fresh, rng), *chain]  # see `_own`
        for layer, attributes in zip(chain, _Reader(text, self._objects, own).load(), strict=True):
            vars(layer).update(attributes)
        for (number, name), value in zip(self._shared, self._held, strict=True):
            vars(chain[number])[name] = value
        for outer, inner in pairwise(chain):
            outer.env = inner
        vars(chain[-1])["_np_random"] = rng
        vars(chain[-1])["spec"] = self._spec
        return chain[0]

    def reseed(self, environment: Any, rng: np.random.Generator) -> None:
        """Gives an environment the draws of a copy that is rebuilt with `rng`. Shared generators stay shared."""
        _, writer = self._written(environment)
        for generator in writer.generators:
            new = _fresh(rng, *_kinds(generator))
            if isinstance(generator, random.Random):
                generator.setstate(new.getstate())
            else:
                _bits(generator).state = _bits(new).state
        own = environment.unwrapped.np_random
        own.bit_generator.state = rng.bit_generator.state
        for space in writer.spaces + self._walk.spaces:
            space._np_random = own

    def check_shared(self, environment: Any) -> None:
        """Raises `ChangedError` if a shared attribute has changed."""
        self._left = 0
        self.state_of(environment)

    def number(self, constant: Any) -> int:
        """The number of a constant that is not known by its id."""
        if isinstance(constant, types.FunctionType):  # every environment may make its own
            alike = constant.__code__, constant.__closure__
            for number, other in enumerate(self._constants):
                if isinstance(other, types.FunctionType) and (other.__code__, other.__closure__) == alike:
                    return number
            if any(isinstance(cell.cell_contents, library().Env) for cell in constant.__closure__ or ()):
                raise CannotCopyError(f"holds {constant!r}, which refers to the environment it was made for")
        if not self._learning:
            raise CannotCopyError(f"holds {constant!r}, which was not there when the environment was examined")
        number = self.numbers[id(constant)] = len(self._constants)
        self._constants.append(constant)
        self._objects[number] = constant
        return number

    def _prepare(self) -> None:
        """Builds the objects that all copies share."""
        self._lock = vars(self).get("_lock") or threading.RLock()
        self._objects = dict(enumerate(self._constants))
        self.numbers = {id(constant): number for number, constant in self._objects.items()} | {id(_space_generator): -1}
        reader = _Reader(b"".join(self._shared.values()), self._objects, [None, None])
        self._held = [reader.load() for _ in self._shared]
        self._left = 0  # calls until the next walk
        self._go_through(self._held)
        self._spaces = self._walk.spaces
        self._objects |= dict(enumerate(self._walk.seen.values(), PART))

    def _go_through(self, values: list[Any]) -> None:
        """Numbers the parts of shared attributes. Raises `ChangedError`.

        A walk through large attributes takes longer than a step, so the last one is kept for a number of calls.
        """
        if self._left == 0 or not all(map(operator.is_, values, self._last)):
            writer = _Writer(self, {}, {})
            for (place, text), value in zip(self._shared.items(), values, strict=True):
                if writer.write(value) != text:
                    self._prepare()
                    raise ChangedError(place)
            self._parts = {part: number for number, part in enumerate(writer.seen, PART)}
            self._last, self._walk, self._left = values, writer, 100 + sum(map(len, self._shared.values())) // 100
        self._left -= 1

    def _written(self, environment: Any) -> tuple[bytes, _Writer]:
        """The content of an environment, and its writer."""
        chain = layers(environment)
        content = _attributes(chain)
        self._go_through([content[number].pop(name, None) for number, name in self._shared])
        writer = _Writer(self, _own(chain), self._parts)
        try:
            return writer.write(content), writer
        except Exception:  # whatever an object's own methods do
            writer = _Writer(self, _own(chain), self._parts)
            for name, value in (item for attributes in content for item in attributes.items()):
                try:
                    writer.write(value)
                except Exception as error:  # as above
                    reason = error if isinstance(error, CannotCopyError) else f"cannot be copied: {error}"
                    raise CannotCopyError(f"its attribute {name} {reason}") from None
            raise


def _own(chain: list[Any]) -> dict[int, int]:
    """The numbers of the objects of one copy: its generator, which spaces draw from too, others, and its layers."""
    numbers = {id(vars(chain[-1]).get("_np_random")): -1, id(_fresh): -2}
    return numbers | {id(layer): -3 - number for number, layer in enumerate(chain)}
