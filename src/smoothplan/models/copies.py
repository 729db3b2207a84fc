"""Gymnasium environments as generative models by copies: for those without a table and without an assignable state.

A state must be a value that planners batch, compare, hash and save, in any process. So it holds the content of an
environment, not the number of a live copy: the attributes of the environment and its wrappers, pickled, and compressed
by reference to those after a reset, as `uint8 [bytes]` padded with zeros. Equal content has equal bytes: immutable
values are written at every mention, and sets are sorted. Lists, arrays and objects that are shared stay shared.

The random generator is not part of a state: a copy draws from the generator of the call, and so do its spaces. Spaces,
classes and functions are constants, which a pickle refers to by number, so reading a state imports nothing.
"""

import copy
import copyreg
import io
import math
import pickle
import random
import threading
import types
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.models.model import Box, ModelError


class CannotCopyError(ModelError):
    """Something in an environment cannot be copied; the message names it."""


def library() -> Any:
    """Gymnasium, which is imported when an environment is used."""
    try:
        import gymnasium
    except ImportError:
        raise ImportError('from_gymnasium needs Gymnasium: pip install "smoothplan[gym]"') from None
    return gymnasium


def layers(environment: Any) -> list[Any]:
    """An environment and its wrappers, from outside to inside, without those that do not affect rewards and ends.

    A time limit is left out: the model is of the endless problem. Wrappers outside may use changed observations.
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


def actions_of(space: Any) -> int | Box:
    """The actions of a model of an environment with these."""
    kind = type(space).__name__
    if kind == "Discrete":
        return int(space.n)
    if kind != "Box" or not np.issubdtype(space.dtype, np.floating) or len(space.shape) > 1:
        raise CannotCopyError(
            f"its actions are {space}, and a planner needs finitely many, Discrete, or a Box of numbers or vectors: "
            "gymnasium.wrappers.TransformAction(env, function, space) translates such actions"
        )
    try:
        return Box(*(np.broadcast_to(np.asarray(end, np.float64), space.shape) for end in (space.low, space.high)))
    except ValueError as error:
        way = "gymnasium.wrappers.TransformAction(env, lambda action: action, Box(low, high)) gives others"
        raise CannotCopyError(f"the ends of its actions: {error}; {way}") from None


class Store:
    """Has an environment in any state."""

    has_clock = True  # whether a state knows when an environment truncates itself, which ends the episode then
    means = ""  # what a model simulates by and what a state knows, for a user to read; "" if it is as expected
    lock = threading.RLock()  # one for all stores: environments share their spaces

    def __init__(self, name: str) -> None:
        self.name = name

    def at(self, state: Any, rng: np.random.Generator) -> Any:
        """An environment in a state. It draws from `rng`."""
        raise NotImplementedError

    def state_of(self, environment: Any) -> NDArray[Any]:
        """The state of an environment of this kind."""
        raise NotImplementedError

    def reseed(self, environment: Any, rng: np.random.Generator) -> None:
        """Gives an environment the draws of one by `at` with `rng`."""
        for layer in layers(environment):
            held = [name for name, value in vars(layer).items() if isinstance(value, np.random.Generator)]
            vars(layer).update(dict.fromkeys(held, rng))
        vars(environment.unwrapped)["_np_random"] = rng


class Packing:
    """Writes content as bytes of one number, `size`: compressed by reference to that of a start, and padded with zeros.

    Until `settle`, it learns the size, if 0 is given.
    """

    def __init__(self, name: str, size: int, start: bytes = b"") -> None:
        self.name, self._start = name, start
        # Bytes: as asked for, of a state, and of the largest one so far.
        self._given, self.size, self._longest = size, size or 1 << 18, 0

    def settle(self) -> None:
        """Ends the learning: a state has the bytes given, or twice those of the largest one so far, at least 256."""
        self.size = self._given or max(256, 64 * math.ceil(2 * self._longest / 64))

    def pack(self, content: bytes) -> NDArray[np.uint8]:
        """A state, [bytes]."""
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS, zdict=self._start)
        text = packer.compress(content) + packer.flush()
        self._longest = max(self._longest, len(text))
        if len(text) > self.size:
            raise ModelError(
                f"a state of {self.name} takes {len(text)} bytes, more than the {self.size} of this model: give "
                "from_gymnasium a larger state_bytes, or keep constant parts in the class of the environment"
            )
        return np.frombuffer(text.ljust(self.size, b"\0"), dtype=np.uint8)

    def unpack(self, state: Any) -> bytes:
        """The content of a state."""
        return zlib.decompressobj(-zlib.MAX_WBITS, self._start).decompress(state)


class _Members(list[Any]):
    """The members of a set, which is written as they are."""


_MOST = 1_000
"""The most strings, and the most plain objects, that have a number."""

_EXACT = frozenset({str, int, bool, type(None)})
"""Types of values that are the same if they and their types are equal."""


@lru_cache(maxsize=_MOST)
def _is_plain(kind: Any) -> bool:
    """Whether pickle writes no more of an object than its class and its attributes."""
    usual = ("__reduce_ex__", "__reduce__", "__getstate__", "__new__")
    special = any(hasattr(kind, name) for name in ("__setstate__", "__getnewargs__", "__getnewargs_ex__"))
    slots = any("__slots__" in vars(base) for base in kind.__mro__)
    own = any(getattr(kind, name, None) is not getattr(object, name, None) for name in usual)
    other = issubclass(kind, (library().Env, library().Space)) or kind.__module__.partition(".")[0] == "pygame"
    bare = kind.__dictoffset__ == 0
    return not (special or slots or own or other or bare or kind in copyreg.dispatch_table)


class _Writer(pickle.Pickler):
    """Pickles the content of an environment. Constants, and objects with a number by id, are not written themselves.

    A persistent id is an int for a number, as strings have that were there at first; for values, bytes for any other
    string, a bytearray for bytes, a list for a tuple, a tuple (function, *arguments) for any other immutable one. These
    are new objects at each mention: pickle writes one that it has seen as a reference, and equal values must be equal
    bytes, shared or not. A plain object is (number of its content), then (this, number of the object), so that it stays
    shared. A set is the same `_Members` at each mention, sorted, since pickle writes it in the order of its hashes.
    """

    def __init__(self, copies: "Copies", own: dict[int, int]) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=5)
        self._copies, self._own, self._numbers = copies, own, copies.numbers
        self._sets: dict[int, _Members] = {}
        self._mentioned: dict[int, tuple[int, int, Any]] = {}  # plain objects, which a freed one's id must not confuse
        self._memory: dict[int, int] = {}  # the array that each piece of memory belongs to

    def write(self, value: Any) -> bytes:
        """The pickled value, after those before it."""
        self.dump(value)
        return self._file.getvalue()

    def persistent_id(self, thing: Any) -> Any:
        """A description of a value that is immutable or the same in all copies; None if pickle takes it apart."""
        kind = type(thing)
        if kind is int or kind is float or kind is bool or thing is None:
            return None
        if kind is str:
            word = self._copies.number_of_string(thing)  # bytes of length 1 are never new
            return b"_" + thing.encode(errors="surrogatepass") if word is None else word
        if kind is tuple:
            return list(thing)
        if kind is bytes:
            return bytearray(thing)
        key = id(thing)
        number = self._own.get(key)
        if number is not None or (number := self._numbers.get(key)) is not None:
            return number
        if kind is list or kind is dict:
            return None
        if _is_plain(kind):  # type: ignore[arg-type]
            if (seen := self._mentioned.get(key)) is not None:
                return seen[:2]
            if (number := self._copies.number_of_plain(thing)) is not None:
                self._mentioned[key] = number, len(self._mentioned), thing
            return None if number is None else (number,)
        if isinstance(thing, np.random.Generator):
            return -1  # all of them draw from the generator of the call
        if kind is frozenset:
            return frozenset, sorted(thing, key=repr)
        if kind is set:
            return self._sets.setdefault(key, _Members(sorted(thing, key=repr)))
        if isinstance(thing, np.dtype) and thing.names is None:
            return np.dtype, thing.str
        if isinstance(thing, tuple | str | bytes | int | float | complex | range | slice | np.generic):
            found: Any = thing.__reduce_ex__(4)
            if all(part is None for part in found[2:]):
                return found[0], *found[1]
        constants = (
            type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType | np.ufunc | library().Space
        )
        # A builtin method of an object, such as a generator's, is not the same in all copies.
        if isinstance(thing, constants) and isinstance(getattr(thing, "__self__", None) or types, types.ModuleType):
            return self._copies.number(thing)
        # Pictures and windows become None: copies draw nothing.
        return () if kind.__module__.partition(".")[0] == "pygame" else None

    def reducer_override(self, thing: Any) -> Any:
        """How to take a set apart. Refuses objects whose copy would not be independent."""
        if type(thing) is _Members:
            return set, (list(thing),)
        if isinstance(thing, np.random.RandomState | np.random.BitGenerator | random.Random):
            raise CannotCopyError(f"holds a {type(thing).__name__}: draw from self.np_random")
        if isinstance(thing, library().Env):
            raise CannotCopyError(f"holds another environment, {type(thing).__name__}")
        if isinstance(thing, np.ndarray):
            base: Any = thing
            while isinstance(base.base, np.ndarray):
                base = base.base
            if self._memory.setdefault(id(base), id(thing)) != id(thing):
                raise CannotCopyError("shares its memory with another array of the environment")
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Rebuilds the content of an environment: the number n stands for `constants[n]`, and −n for `own[n]`."""

    def __init__(self, text: bytes, constants: list[Any], own: list[Any]) -> None:
        super().__init__(io.BytesIO(text))
        self._constants, self._own, self._plain = constants, own, list[Any]()

    def persistent_load(self, pid: Any) -> Any:
        kind = type(pid)
        if kind is int:
            return self._constants[pid] if pid >= 0 else self._own[-pid]
        if kind is bytes:
            return pid[1:].decode(errors="surrogatepass")
        if kind is tuple:
            return None if not pid else self._object(*pid) if type(pid[0]) is int else pid[0](*pid[1:])
        return pid if kind is set else tuple(pid) if kind is list else bytes(pid)

    def _object(self, number: int, mentioned: int | None = None) -> Any:
        """A plain object: a new one, or the one with this number."""
        if mentioned is not None:
            return self._plain[mentioned]
        kind, attributes = self._constants[number]
        made = object.__new__(kind)
        vars(made).update(attributes)
        self._plain.append(made)
        return made

    def find_class(self, module: str, name: str) -> Any:
        """Refuses: every constituent of an environment has a number."""
        raise ModelError(f"a state of an environment cannot refer to {module}.{name}")


class Copies(Store):
    """Has an environment in any state: a copy with this content, which draws from the generator of the call.

    The environment given is not changed. Until `settle`, it learns the constants of the environment, and the bytes of a
    state, if their number `size` is 0.
    """

    means = "copies of the environment. A copy knows all that the environment holds"

    def __init__(self, environment: Any, name: str, size: int) -> None:
        super().__init__(name)
        self._learning, self.packing = True, Packing(name, max(size, 1 << 18))  # content takes more without a start
        chain = layers(environment)
        self._kinds = [type(layer) for layer in chain]
        # All copies share the specification and the transition table of the environment, if it has them.
        self._shared = {key: vars(chain[-1])[key] for key in ("spec", "P") if key in vars(chain[-1])}
        # NumPy's ways to write scalars, contiguous arrays and others; then classes that may first occur late.
        values = (np.float64(0.0), np.zeros(4), np.zeros(4)[::2])
        self._constants: list[Any] = [value.__reduce_ex__(5)[0] for value in values]
        self._constants += [np.ndarray, np.dtype, set, frozenset, deque, OrderedDict, defaultdict, Counter]
        self._constants += [vars(copyreg)["__newobj__"], complex, range, slice, bytearray]
        self.numbers = {id(constant): number for number, constant in enumerate(self._constants)}
        self._spaces: list[Any] = []
        self.strings: dict[str, int] = {}
        self._plain: dict[tuple[Any, ...], int] = {}
        real = self.at(self.state_of(environment), np.random.default_rng(0))
        real.reset(seed=0)
        self.packing = Packing(name, size, self._written(real))
        self.initial = self.state_of(real)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.numbers = {id(constant): number for number, constant in enumerate(self._constants)}

    def __repr__(self) -> str:
        return f"copies of {self.name}, states of {self.packing.size} bytes"

    def number(self, constant: Any) -> int:
        """The number of a constant that is not known by its id: every environment may make its own."""
        code, closure = (getattr(constant, name, None) for name in ("__code__", "__closure__"))
        for number, other in enumerate(self._constants):
            alike = type(other) is type(constant)
            if alike and (other == constant or (code and (other.__code__, other.__closure__) == (code, closure))):
                return number
        if any(isinstance(cell.cell_contents, library().Env) for cell in closure or ()):
            raise CannotCopyError(f"holds {constant!r}, which refers to the environment it was made for")
        if not self._learning:
            raise CannotCopyError(f"holds {constant!r}, which was not there when the environment was examined")
        if isinstance(constant, library().Space):
            constant = copy.deepcopy(constant)
            parts = getattr(constant, "spaces", ())
            self._spaces += [constant, *(parts.values() if isinstance(parts, dict) else parts)]
        self.numbers[id(constant)] = len(self._constants)
        self._constants.append(constant)
        return len(self._constants) - 1

    def number_of_string(self, text: str) -> int | None:
        """The number of a short string, which it gets the first time that it is met; None if it has none."""
        number = self.strings.get(text)
        if number is None and self._learning and len(text) <= 64 and len(self.strings) < _MOST:
            number = self.strings[text] = len(self._constants)
            self._constants.append(text)
        return number

    def number_of_plain(self, thing: Any) -> int | None:
        """The number of what a plain object holds, which it gets the first time that it is met; None if it has none."""
        held, values = vars(thing), vars(thing).values()
        kinds = tuple(map(type, values))
        if not _EXACT.issuperset(kinds):
            return None
        number = self._plain.get(key := (type(thing), *held, *values, *kinds))
        if number is None and self._learning and len(self._plain) < _MOST:
            number = self._plain[key] = len(self._constants)
            self._constants.append((type(thing), dict(held)))
        return number

    def settle(self) -> None:
        """Ends the learning."""
        self._learning = False
        self.packing.settle()
        self.initial = self.initial[: self.packing.size]

    def state_of(self, environment: Any) -> NDArray[np.uint8]:
        """The state of an environment of this kind, [bytes]: its content without shared attributes."""
        with self.lock:
            return self.packing.pack(self._written(environment))

    def at(self, state: Any, rng: np.random.Generator) -> Any:
        """A new environment in a state. It draws from `rng`."""
        text = self.packing.unpack(state)
        chain: list[Any] = [object.__new__(kind) for kind in self._kinds]
        own = [None, rng, *chain]  # as numbered in `_written`
        for layer, attributes in zip(chain, _Reader(text, self._constants, own).load(), strict=True):
            vars(layer).update(attributes)
        for outer, inner in pairwise(chain):
            outer.env = inner
        vars(chain[-1]).update(self._shared)
        vars(chain[-1])["_np_random"] = rng
        for space in self._spaces:
            space._np_random = rng
        return chain[0]

    def reseed(self, environment: Any, rng: np.random.Generator) -> None:
        """See `Store`. A builtin method of its generator may be part of an environment, so it keeps this generator."""
        own = environment.unwrapped.np_random
        own.bit_generator.state = rng.bit_generator.state
        super().reseed(environment, own)
        for space in self._spaces:
            space._np_random = own

    def _written(self, environment: Any) -> bytes:
        chain = layers(environment)
        apart = {"_np_random", "_np_random_seed", "_cached_spec", "render_mode", "env", "spec", *self._shared}
        content = [{name: vars(layer)[name] for name in sorted(vars(layer).keys() - apart)} for layer in chain]
        own = {id(vars(chain[-1]).get("_np_random")): -1} | {id(layer): -2 - n for n, layer in enumerate(chain)}
        try:
            return _Writer(self, own).write(content)
        except Exception:  # whatever an object's own methods do
            writer = _Writer(self, own)
            for name, value in (item for attributes in content for item in attributes.items()):
                try:
                    writer.write(value)
                except Exception as error:  # as above
                    reason = error if isinstance(error, CannotCopyError) else f"cannot be copied: {error}"
                    raise CannotCopyError(f"its attribute {name} {reason}") from None
            raise
