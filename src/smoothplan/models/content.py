"""What environments are made of, as JSON and back: the parts of a snapshot.

Numbers, words and None stand for themselves. Everything else is a list that begins with its kind. Lists, arrays and
objects are numbered in the order of writing, and a second mention refers to the number, so that what is shared stays
shared. Immutable values are written wherever they occur, and sets are sorted: equal content is equal text.

Classes, functions and spaces are constants, which content refers to by number. So reading calls nothing but what the
environment itself was made of.
"""

import base64
import copy
import copyreg
import json
import random
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.models.calls import ModelError

RANDOM = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
KINDS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64", "RandomState", "Random")
"""Random generators: their classes, and the names of those that can be made anew."""

MOST_KNOWN = 10_000
"""Equals of constants that are remembered, at most."""

ATOMS = frozenset([type(None), bool, int, float, str])
"""What JSON can say."""

VALUES = (tuple, frozenset, str, bytes, int, float, complex, range, slice, np.dtype, Enum)
"""What cannot be told apart from an equal one, and is written by value wherever it occurs."""


class CannotCopyError(ValueError):
    """Something in an environment cannot be copied; the message says what and where."""


class Known:
    """The numbers of classes, functions and other things that are the same in all copies."""

    def __init__(self, *constants: list[Any]) -> None:
        self._items = constants[0]
        self._numbers = {id(item): (number, item) for items in constants for number, item in enumerate(items)}

    def find(self, item: Any) -> int | None:
        """The number of a thing, or of its equal where it is a space, a spec or a function."""
        if (found := self._numbers.get(id(item))) is not None:
            return found[0]
        for number, other in enumerate(self._items):
            if type(other) is type(item) and _same(item, other):
                if len(self._numbers) < MOST_KNOWN:  # a step may make a new one every time
                    self.add(item, number)
                return number
        return None

    def add(self, item: Any, number: int) -> None:
        """Remembers a thing, which is kept, so that no other gets its id."""
        self._numbers[id(item)] = number, item


class Writer:
    """Writes values of attributes as JSON, one after the other.

    Args:
        constants: what is the same in all copies; a value refers to it by number.
        known: their numbers.
        chain: an environment and its wrappers, which values may refer to.
        learning: whether new constants may be added.
    """

    def __init__(self, constants: list[Any], known: "Known", chain: list[Any], learning: bool = False) -> None:
        self._constants, self._known, self._chain, self._learning = constants, known, chain, learning
        self.numbers: dict[int, int] = {}  # of what may be shared, by id
        self.outside: list[dict[int, Any]] = []  # the same of what is written elsewhere
        self._named: dict[int, int] = {id(layer): -2 - number for number, layer in enumerate(chain)}
        if chain and (own := vars(chain[-1]).get("_np_random")) is not None:
            self._named[id(own)] = -1
        self._kept: list[Any] = []  # so that no id is used twice
        self._bases: set[int] = set()
        self.generators: list[Any] = []  # other than the environment's own
        self.spaces: list[Any] = []

    def write(self, name: str, value: Any) -> str:
        """The value of an attribute of this name, as JSON."""
        try:
            return _dumped(self._plain(value))
        except CannotCopyError as error:
            raise CannotCopyError(f"its attribute {name} {error}") from None
        except RecursionError:
            raise CannotCopyError(f"its attribute {name} is nested too deeply") from None

    def _plain(self, thing: Any) -> Any:
        """A thing as JSON can say it: numbers, words, None; everything else is a list that begins with its kind."""
        kind = type(thing)
        if kind in ATOMS:
            return thing
        if kind is tuple:
            return ["tuple", *map(self._plain, thing)]
        if kind is frozenset:
            return ["frozenset", *map(self._plain, self._sorted(thing))]
        if kind is bytes:
            return ["bytes", _text(thing)]
        if isinstance(thing, np.generic) and _is_simple(thing.dtype):
            return ["scalar", thing.dtype.str, _text(thing.tobytes())]
        for numbers in (self.numbers, self._named, *self.outside):
            if id(thing) in numbers:
                return ["same", numbers[id(thing)]]
        if kind not in (list, dict, set, np.ndarray):
            if isinstance(thing, VALUES):
                return self._object(thing, counted=False)
            if _is_constant(thing):
                return ["constant", self._constant(thing)]
        if kind.__module__.partition(".")[0] == "pygame":
            return None  # pictures and windows: copies draw nothing
        self.numbers[id(thing)] = len(self._kept)
        self._kept.append(thing)
        if kind is list:
            return ["list", *map(self._plain, thing)]
        if kind is dict:
            return ["dict", *(self._plain(part) for entry in thing.items() for part in entry)]
        if kind is set:
            return ["set", *map(self._plain, self._sorted(thing))]
        if kind is np.ndarray and _is_simple(thing.dtype):
            self._refuse_views(thing)
            return ["array", thing.dtype.str, list(thing.shape), thing.flags.writeable, _text(thing.tobytes())]
        if isinstance(thing, RANDOM):
            self.generators.append(thing)
            return ["random", _random_kind(thing)]
        return self._object(thing, counted=True)

    def _refuse_views(self, array: NDArray[Any]) -> None:
        """Two arrays of the same memory would become two that do not change together."""
        base: Any = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        if id(base) in self._bases:
            raise CannotCopyError("shares its memory with another array of the environment")
        self._bases.add(id(base))

    def _sorted(self, members: Any) -> list[Any]:
        """The members of a set, in an order that does not depend on hashes."""

        def alone(member: Any) -> str:
            return _dumped(Writer(self._constants, self._known, [], self._learning)._plain(member))

        return sorted(members, key=alone)

    def _constant(self, thing: Any) -> int:
        if is_space(thing):
            self.spaces.append(thing)
        number = self._known.find(thing)
        if number is None:
            if not self._learning:
                raise CannotCopyError(f"holds {thing!r}, which was not there when the environment was examined")
            if _remembers_environment(thing):
                raise CannotCopyError(f"holds the function {thing!r}, which refers to the environment it was made for")
            number = len(self._constants)
            self._constants.append(_pristine(thing))
            self._known.add(thing, number)
        return number

    def _object(self, thing: Any, counted: bool) -> Any:
        """An object of any other class, taken apart as copy and pickle do."""
        function, arguments, state, items, entries = _taken_apart(thing)
        return [
            "object",
            counted,
            self._constant(function),
            self._plain(arguments),
            None if items is None else [self._plain(item) for item in items],
            None if entries is None else [self._plain(part) for entry in entries for part in entry],
            self._plain(state),
        ]


class Reader:
    """Rebuilds values, in the order in which they were written.

    Args:
        constants: the same, or equal ones.
        chain: the environment and its wrappers, to be.
        rng: its generator.
        inside: what was written elsewhere, by (place, number).
    """

    def __init__(
        self, constants: list[Any], chain: list[Any], rng: np.random.Generator, inside: dict[Any, Any]
    ) -> None:
        self._constants, self._rng, self._inside = constants, rng, inside
        self.things: dict[int, Any] = {-2 - number: layer for number, layer in enumerate(chain)} | {-1: rng}
        self._count = 0

    def read(self, part: Any) -> Any:
        """The thing that a part of a state describes."""
        if type(part) is not list:
            return part
        match part:
            case ["tuple", *members]:
                return tuple([self.read(member) for member in members])
            case ["frozenset", *members]:
                return frozenset([self.read(member) for member in members])
            case ["bytes", text]:
                return base64.b64decode(text)
            case ["scalar", dtype, text]:
                return np.frombuffer(base64.b64decode(text), dtype=dtype)[0]
            case ["same", number]:
                return self.things[number] if type(number) is int else self._inside[tuple(number)]
            case ["constant", number]:
                return self._constants[number]
            case ["object", False, *pieces]:
                return self._object(None, *pieces)
        number, self._count = self._count, self._count + 1
        match part:
            case ["list", *members]:
                self.things[number] = items = []
                items.extend([self.read(member) for member in members])
            case ["dict", *members]:
                self.things[number] = {}
                self.things[number].update(self._pairs(members))
            case ["set", *members]:
                self.things[number] = {self.read(member) for member in members}
            case ["array", dtype, shape, writeable, text]:
                self.things[number] = array = np.frombuffer(base64.b64decode(text), dtype=dtype).reshape(shape).copy()
                array.flags.writeable = writeable
            case ["random", kind]:
                self.things[number] = _generator(kind, int(self._rng.integers(2**63)))
            case ["object", True, *pieces]:
                self._object(number, *pieces)
            case _:
                raise ModelError(f"a state of an environment has no part like {str(part)[:60]}")
        return self.things[number]

    def _pairs(self, members: list[Any]) -> Iterator[tuple[Any, Any]]:
        for place in range(0, len(members), 2):
            key = self.read(members[place])
            yield key, self.read(members[place + 1])

    def _object(self, number: int | None, function: int, arguments: Any, items: Any, entries: Any, state: Any) -> Any:
        thing = self._constants[function](*self.read(arguments))
        if number is not None:
            self.things[number] = thing
        for item in items or ():
            thing.append(self.read(item))
        for key, value in self._pairs(entries or []):
            thing[key] = value
        found = self.read(state)
        if found is None:
            return thing
        if hasattr(thing, "__setstate__"):
            thing.__setstate__(found)
            return thing
        attributes, slots = found if isinstance(found, tuple) else (found, None)
        if attributes:
            vars(thing).update(attributes)
        for name, value in (slots or {}).items():
            setattr(thing, name, value)
        return thing


_dumped = json.JSONEncoder(separators=(",", ":")).encode


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _is_simple(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufcSUmM"


def library() -> Any:
    """Gymnasium, which is imported where an environment is."""
    import gymnasium

    return gymnasium


def is_space(thing: Any) -> bool:
    """Whether a thing is a space of Gymnasium's."""
    return isinstance(thing, library().Space)


def spaces_in(space: Any) -> list[Any]:
    """A space and those that it is made of."""
    found = [space]
    for value in vars(space).values():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        found += [part for member in inside if is_space(member) for part in spaces_in(member)]
    return found


def _pristine(thing: Any) -> Any:
    """A constant as it is kept: a space without its generator."""
    if not is_space(thing):
        return thing
    thing = copy.deepcopy(thing)
    for space in spaces_in(thing):
        space._np_random = None
    return thing


def _is_constant(thing: Any) -> bool:
    """Whether a thing is no content, but the same in all copies: a class, a function, a module, a space."""
    if isinstance(thing, type | types.FunctionType | types.ModuleType | np.ufunc) or thing is ...:
        return True
    if isinstance(thing, types.BuiltinFunctionType):
        return thing.__self__ is None or isinstance(thing.__self__, types.ModuleType)
    return is_space(thing) or (type(thing).__module__.startswith("numba.") and hasattr(thing, "py_func"))


def _same(one: Any, two: Any) -> bool:
    """Whether two constants of one type are the same to all that use them."""
    if is_space(one):
        return bool(one == two)
    if not isinstance(one, types.FunctionType) or one.__code__ != two.__code__:
        return False
    cells = _remembered(one), _remembered(two)
    return len(cells[0]) == len(cells[1]) and all(
        a is b or (type(a) is type(b) and type(a) in ATOMS and a == b) for a, b in zip(*cells, strict=True)
    )


def _remembered(function: types.FunctionType) -> list[Any]:
    """What a function closes over."""
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty so far
            found.append(cell.cell_contents)
    return found


def _remembers_environment(thing: Any) -> bool:
    return isinstance(thing, types.FunctionType) and any(isinstance(o, library().Env) for o in _remembered(thing))


def own_classes(module: str) -> list[type]:
    """The classes that a module of the user's defines: one that occurs late in an episode is known then."""
    if module.partition(".")[0] == "gymnasium" or module not in sys.modules:
        return []
    defined = vars(sys.modules[module]).items()
    return [
        kind for name, kind in defined if isinstance(kind, type) and (kind.__module__, kind.__name__) == (module, name)
    ]


def _taken_apart(thing: Any) -> tuple[Any, ...]:
    """(function, arguments, state, items, entries), from which an object can be made again."""
    newobj = copyreg.__newobj__  # type: ignore[attr-defined]
    if isinstance(thing, library().Env):  # some have themselves copied without their state
        inside = {name: value for name, value in vars(thing).items() if name not in ("_np_random_seed", "_cached_spec")}
        return newobj, (type(thing),), inside, None, None
    reduce = copyreg.dispatch_table.get(type(thing))
    try:
        found: Any = thing.__reduce_ex__(4) if reduce is None else reduce(thing)
    except Exception as error:  # whatever someone's method does
        raise CannotCopyError(f"holds a {type(thing).__qualname__}, which cannot be copied ({error})") from None
    if isinstance(found, str) or not _is_constant(found[0]):
        raise CannotCopyError(f"holds a {type(thing).__qualname__}, which cannot be copied")
    return (*found, None, None, None)[:5]


def _random_kind(generator: Any) -> str:
    bits = generator if isinstance(generator, np.random.BitGenerator) else getattr(generator, "bit_generator", None)
    name = type(generator).__name__ if bits is None or generator is bits else f"Generator {type(bits).__name__}"
    if isinstance(generator, np.random.RandomState):
        name = "RandomState"
    if name.split()[-1] not in KINDS:
        raise CannotCopyError(f"holds a random generator that cannot be reseeded, a {name}")
    return name


def _generator(kind: str, seed: int) -> Any:
    """A random generator of a kind and a seed."""
    name = kind.split()[-1]
    if name not in KINDS:
        raise ModelError(f"a state of an environment has an unknown random generator, {kind[:60]}")
    if name == "Random":
        return random.Random(seed)
    if name == "RandomState":
        return np.random.RandomState(np.random.MT19937(seed))
    bits = getattr(np.random, name)(seed)
    return np.random.Generator(bits) if kind.startswith("Generator") else bits


def reseed(generator: Any, seed: int) -> None:
    """Puts a random generator into the state of a new one of its kind and this seed."""
    new = _generator(_random_kind(generator), seed)
    if isinstance(generator, random.Random):
        generator.setstate(new.getstate())
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(new.get_state())
    else:
        bits = getattr(generator, "bit_generator", generator)
        bits.state = getattr(new, "bit_generator", new).state
