"""Environments as states: the whole content of a Gymnasium environment in a fixed number of bytes, and back.

A state must be a value that planners can batch, compare, hash and save, in any process. A number of a copy that is kept
somewhere would mean nothing in another process, so a state holds the content itself: the attributes of the environment
and its wrappers that differ from those after the first reset, as JSON text in `uint8 [bytes]`, padded with zeros. Equal
bytes are equal content, since the content can be rebuilt from them; there is nothing that could collide. Equal content
has equal bytes: sets are sorted, and immutable objects are written by value, however often they are shared. Lists,
arrays and objects that are shared stay shared.

Random generators are not part of a state: an environment that is rebuilt draws from the generator of the call. Nothing
in a state is evaluated: it can only name classes and functions that the environment itself was made of.
"""

import base64
import copy
import copyreg
import json
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.models.calls import ModelError

Fragments = dict[str, str]
"""The content of an environment: "layer.attribute" to JSON, in the order in which it is rebuilt."""

UNWRAPPED = frozenset(
    [
        *("HumanRendering", "OrderEnforcing", "PassiveEnvChecker", "TimeLimit"),
        *("RecordEpisodeStatistics", "RecordVideo", "RenderCollection"),
    ]
)
"""Gymnasium's wrappers that change nothing. A time limit is dropped: the value is that of the endless problem."""

OBSERVING = frozenset(["DelayObservation", "FrameStackObservation", "NormalizeObservation", "TimeAwareObservation"])
"""Its wrappers with a step of their own that change observations only."""

APART = frozenset(["_np_random", "_np_random_seed", "_cached_spec", "spec", "render_mode", "env"])
"""Attributes of an environment that are no content: its randomness, how it was made and drawn, and the wrapped one."""

LARGE, OFTEN = 4_000, 20
"""Characters of an attribute that is shared if it seems constant. One of n · LARGE is checked every n · OFTEN calls."""

RANDOM = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
KINDS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64", "RandomState", "Random")
"""Random generators: their classes, and the names of those that can be made anew."""

ATOMS = frozenset([type(None), bool, int, float, str])
"""What JSON can say."""

VALUES = (tuple, frozenset, str, bytes, int, float, complex, range, slice, np.dtype, Enum)
"""What cannot be told apart from an equal one, and is written by value wherever it occurs."""


class CannotCopyError(ValueError):
    """Something in an environment cannot be copied; the message says what and where."""


class ChangedError(CannotCopyError):
    """A shared attribute has changed."""

    def __init__(self, place: str) -> None:
        super().__init__(f"its attribute {place.split('.', 1)[1]} changed, which never did in random play")
        self.place = place


def layers(environment: Any) -> list[Any]:
    """An environment and its wrappers, from outside to inside, without those that do not matter to rewards and ends.

    A wrapper that changes observations matters to one outside of it, which may compute rewards from them.
    """
    found: list[Any] = []
    while isinstance(environment, _gymnasium().Wrapper):
        if not (_is_of(environment, UNWRAPPED) or (not found and _changes_observations_only(environment))):
            found.append(environment)
        environment = environment.env
    return [*found, environment]


def _is_of(wrapper: Any, names: frozenset[str]) -> bool:
    kind = type(wrapper)
    return kind.__module__.startswith("gymnasium.wrappers.") and kind.__name__ in names


def _changes_observations_only(wrapper: Any) -> bool:
    observing = _gymnasium().ObservationWrapper
    # Its step is the library's own, which changes nothing but the observation.
    return _is_of(wrapper, OBSERVING) or (isinstance(wrapper, observing) and type(wrapper).step is observing.step)


class Snapshots:
    """The way from environments of one kind to states and back. Each thread rebuilds with spaces of its own.

    Args:
        environment: after a reset. It is not changed. What later ones are made of must occur in it, in the module of a
            class of it, or in `learn`.
        shared: "layer.attribute" of what never changes: not copied, and no part of a state. One that does change is
            an error, sooner or later.
    """

    def __init__(self, environment: Any, shared: tuple[str, ...] = ()) -> None:
        self._constants: list[Any] = [copyreg.__newobj__]  # type: ignore[attr-defined]
        self._local = threading.local()
        chain = layers(environment)
        for layer in chain:
            self._constants += _own_classes(type(layer).__module__)
        # What is apart from the content is the same in every copy. Nothing is drawn on a screen.
        self._layers = [(type(layer), _apart(layer)) for layer in chain]
        known = _Known(self._constants)
        self._shared = {name: _Writer(self._constants, known, learning=True).alone(chain, name)[0] for name in shared}
        self._start: Fragments = {}
        self._start = self._learnt(environment)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._local = threading.local()

    def shareable(self, states: Iterable[bytes]) -> tuple[str, ...]:
        """Large attributes that are as at the start in all these states, and can be shared."""
        changed = {line.partition(b" ")[0].decode() for state in states for line in state.splitlines()}
        large = {name: text for name, text in self._start.items() if len(text) > LARGE and name not in changed}
        return tuple(name for name, text in large.items() if '["random"' not in text and '["same",-' not in text)

    def learn(self, environment: Any) -> bytes:
        """The same as `changed`. Classes, functions and spaces in the environment that are new become known."""
        return self._difference(self._learnt(environment))

    def _learnt(self, environment: Any) -> Fragments:
        before = len(self._constants)
        found = self._writer(learning=True).content(environment, {})
        if len(self._constants) > before:
            self._local = threading.local()
        return found

    def changed(self, environment: Any) -> bytes:
        """What is different in an environment from the start, as text."""
        try:
            return self._difference(self._writer().content(environment, self._own().fixed))
        except ChangedError:
            self._local = threading.local()  # with what is shared as it was
            raise

    def reseed(self, environment: Any, rng: np.random.Generator) -> None:
        """Has all generators of an environment draw what a copy that is rebuilt with `rng` draws.

        They are changed in place, so that parts that share one go on sharing it.
        """
        writer = self._writer()
        writer.content(environment, {})
        for generator in writer.generators:
            _reseed(generator, int(rng.integers(2**63)))
        own = environment.unwrapped.np_random
        own.bit_generator.state = rng.bit_generator.state
        for space in writer.spaces:
            for part in _spaces_in(space):
                part._np_random = own

    def check_shared(self, environment: Any) -> None:
        """Raises `ChangedError` where an attribute that is shared has changed."""
        _Unchanged(self._shared).numbers(layers(environment), lambda: self._writer(learning=True))

    def rebuilt(self, state: NDArray[np.uint8], rng: np.random.Generator) -> Any:
        """A new environment with the content of a state, [bytes]. It draws from `rng`."""
        own = self._own()
        for space in own.spaces:
            space._np_random = rng
        chain: list[Any] = [object.__new__(kind) for kind, _ in self._layers]
        for layer, attributes, inner in zip(chain, own.attributes, [*chain[1:], None], strict=True):
            vars(layer).update(attributes)
            if inner is not None:
                layer.env = inner
        vars(chain[-1])["_np_random"] = rng
        parts = own.varying.copy()
        for line in state.tobytes().rstrip(b"\0").decode("ascii").splitlines():
            place, text = line.split(" ", 1)
            parts[place] = json.loads(text)
        if len(parts) > len(own.varying):
            parts = {place: parts[place] for place in sorted(parts, key=_order)}
        reader = _Reader(own.constants, chain, rng, own.inside)
        for place, part in parts.items():
            number, name = place.split(".", 1)
            if part == GONE:
                vars(chain[int(number)]).pop(name, None)
            else:
                vars(chain[int(number)])[name] = reader.read(part)
        return chain[0]

    def _difference(self, content: Fragments) -> bytes:
        start = self._start
        lines = [f"{name} {text}" for name, text in content.items() if start.get(name) != text]
        if not start.keys() <= content.keys():
            lines += [f"{name} {_dumped(GONE)}" for name in start if name not in content]
        return "\n".join(lines).encode("ascii")

    def _writer(self, learning: bool = False) -> "_Writer":
        own = self._own()
        return _Writer(self._constants, own.known, own.unchanged, learning)

    def _own(self) -> "_Own":
        """What belongs to this thread."""
        if not hasattr(self._local, "own"):
            self._local.own = _Own(self._constants, self._shared, self._layers, self._start)
        own: _Own = self._local.own
        return own


class _Own:
    """What one thread rebuilds environments with.

    Args:
        constants: with spaces, of which a thread has its own.
        shared: large attributes that all copies of the thread share, "layer.attribute" to JSON.
        kinds: the class of each layer, and the attributes of it that are no content.
        start: the content at the start.
    """

    def __init__(
        self, constants: list[Any], shared: Fragments, kinds: list[tuple[type, dict[str, Any]]], start: Fragments
    ) -> None:
        self.constants = [copy.deepcopy(item) if _is_space(item) else item for item in constants]
        self.spaces = [space for item in self.constants if _is_space(item) for space in _spaces_in(item)]
        self.known = _Known(constants, self.constants)
        self.unchanged = _Unchanged(shared)
        self.attributes = [dict(apart) for _, apart in kinds]  # what a copy begins with
        self.inside: dict[Any, Any] = {}  # the parts of shared attributes, by their numbers
        self.fixed: dict[str, tuple[Any, str]] = {}  # immutable at the start, with their JSON
        self.varying: dict[str, Any] = {}  # the others, parsed
        for index, (place, text) in enumerate(shared.items()):
            reader = self._begin(place, json.loads(text))
            self.inside |= {(index, number): thing for number, thing in reader.things.items() if number >= 0}
        for place, text in start.items():
            part = json.loads(text)
            if _is_immutable(part):
                self._begin(place, part)
                number, name = place.split(".", 1)
                self.fixed[place] = self.attributes[int(number)][name], text
            else:
                self.varying[place] = part

    def _begin(self, place: str, part: Any) -> "_Reader":
        number, name = place.split(".", 1)
        reader = _Reader(self.constants, [], np.random.default_rng(0), {})
        self.attributes[int(number)][name] = reader.read(part)
        return reader


def _is_immutable(part: Any) -> bool:
    if type(part) is not list:
        return True
    return part[0] in ("constant", "scalar", "bytes") or (part[0] == "tuple" and all(map(_is_immutable, part[1:])))


def _order(place: str) -> tuple[int, str]:
    """By layer and name, as content is written."""
    number, name = place.split(".", 1)
    return int(number), name


class _Unchanged:
    """Sees to it that shared attributes do not change: each object once, and again from time to time."""

    def __init__(self, texts: Fragments) -> None:
        self._texts, self.names = texts, frozenset(texts)
        self._seen: dict[tuple[str, int], tuple[Any, dict[int, Any]]] = {}
        self._left: dict[tuple[str, int], int] = {}

    def numbers(self, chain: list[Any], writer: Callable[[], "_Writer"]) -> list[dict[int, Any]]:
        """What each shared attribute of an environment consists of: ids to (attribute, number).

        Raises:
            ChangedError: one of them has changed.
        """
        found = []
        for place, (name, text) in enumerate(self._texts.items()):
            value = _get(chain, name)
            key = name, id(value)
            if self._left.get(key, 0) == 0:
                now, numbers = writer().alone(chain, name)
                if now != text:
                    raise ChangedError(name)
                if len(self._seen) >= 4 * len(self._texts):  # objects of environments long gone
                    self._seen.clear()
                    self._left.clear()
                self._seen[key] = value, {number: (place, part) for number, part in numbers.items()}
                self._left[key] = len(text) // LARGE * OFTEN
            self._left[key] -= 1
            found.append(self._seen[key][1])
        return found


GONE = ["gone"]
"""In the place of an attribute that was deleted."""


class _Known:
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
                self.add(item, number)
                return number
        return None

    def add(self, item: Any, number: int) -> None:
        """Remembers a thing, which is kept, so that no other gets its id."""
        self._numbers[id(item)] = number, item


class _Writer:
    """Writes the content of one environment."""

    def __init__(
        self, constants: list[Any], known: "_Known", unchanged: "_Unchanged | None" = None, learning: bool = False
    ) -> None:
        self._constants, self._known, self._unchanged, self._learning = constants, known, unchanged, learning
        self._numbers: dict[int, Any] = {}  # of what may be shared, by id
        self._kept: list[Any] = []  # so that no id is used twice
        self._outside: list[dict[int, Any]] = []  # the numbers of what belongs to shared attributes
        self._bases: set[int] = set()
        self.generators: list[Any] = []  # other than the environment's own
        self.spaces: list[Any] = []

    def content(self, environment: Any, fixed: dict[str, tuple[Any, str]]) -> Fragments:
        """All attributes of all layers. Those that are one of the fixed objects need not be looked into."""
        chain = layers(environment)
        self._begin(chain)
        shared = frozenset() if self._unchanged is None else self._unchanged.names
        if self._unchanged is not None and shared:
            self._outside = self._unchanged.numbers(chain, self._another)
        found = {}
        for number, layer in enumerate(chain):
            attributes = vars(layer)
            for name in sorted(attributes.keys() - APART):
                place, value = f"{number}.{name}", attributes[name]
                if place in fixed and fixed[place][0] is value:
                    found[place] = fixed[place][1]
                elif place not in shared:
                    found[place] = self._written(name, value)
        return found

    def alone(self, chain: list[Any], place: str) -> tuple[str, dict[int, int]]:
        """One attribute, and the numbers of its parts by their ids."""
        self._begin(chain)
        before = set(self._numbers)
        text = self._written(place.split(".", 1)[1], _get(chain, place))
        return text, {key: number for key, number in self._numbers.items() if key not in before}

    def _begin(self, chain: list[Any]) -> None:
        self._numbers = {id(layer): -2 - number for number, layer in enumerate(chain)}
        own = vars(chain[-1]).get("_np_random")
        if own is not None:
            self._numbers[id(own)] = -1

    def _another(self) -> "_Writer":
        return _Writer(self._constants, self._known, learning=self._learning)

    def _written(self, name: str, value: Any) -> str:
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
        if (number := self._numbers.get(id(thing))) is not None:
            return ["same", number]
        for numbers in self._outside:
            if id(thing) in numbers:
                return ["same", numbers[id(thing)]]
        if kind not in (list, dict, set, np.ndarray):
            if isinstance(thing, VALUES):
                return self._object(thing, counted=False)
            if _is_constant(thing):
                return ["constant", self._constant(thing)]
        if kind.__module__.partition(".")[0] == "pygame":
            return None  # pictures and windows: copies draw nothing
        self._numbers[id(thing)] = len(self._kept)
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
            return _dumped(self._another()._plain(member))

        return sorted(members, key=alone)

    def _constant(self, thing: Any) -> int:
        if _is_space(thing):
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


class _Reader:
    """Rebuilds content, in the order in which it was written."""

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


def _get(chain: list[Any], place: str) -> Any:
    """The value of "layer.attribute"; nothing is like the class itself, where it was deleted."""
    number, name = place.split(".", 1)
    return vars(chain[int(number)]).get(name, _Unchanged)


def _apart(layer: Any) -> dict[str, Any]:
    found = {name: value for name, value in vars(layer).items() if name in ("spec", "render_mode")}
    return found | ({"render_mode": None} if "render_mode" in found else {})


_dumped = json.JSONEncoder(separators=(",", ":")).encode


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _is_simple(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufcSUmM"


def _gymnasium() -> Any:
    import gymnasium

    return gymnasium


def _is_space(thing: Any) -> bool:
    return isinstance(thing, _gymnasium().Space)


def _spaces_in(space: Any) -> list[Any]:
    """A space and those that it is made of."""
    found = [space]
    for value in vars(space).values():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        found += [part for member in inside if _is_space(member) for part in _spaces_in(member)]
    return found


def _pristine(thing: Any) -> Any:
    """A constant as it is kept: a space without its generator."""
    if not _is_space(thing):
        return thing
    thing = copy.deepcopy(thing)
    for space in _spaces_in(thing):
        space._np_random = None
    return thing


def _is_constant(thing: Any) -> bool:
    """Whether a thing is no content, but the same in all copies: a class, a function, a module, a space."""
    if isinstance(thing, type | types.FunctionType | types.ModuleType | np.ufunc) or thing is ...:
        return True
    if isinstance(thing, types.BuiltinFunctionType):
        return thing.__self__ is None or isinstance(thing.__self__, types.ModuleType)
    return _is_space(thing) or isinstance(getattr(thing, "py_func", None), types.FunctionType)  # the last is Numba's


def _same(one: Any, two: Any) -> bool:
    """Whether two constants of one type are the same to all that use them."""
    if _is_space(one):
        return bool(one == two)
    if not isinstance(one, types.FunctionType) or one.__code__ != two.__code__:
        return False
    cells = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (one, two)]
    return all(a is b or (type(a) is type(b) and type(a) in ATOMS and a == b) for a, b in zip(*cells, strict=True))


def _remembers_environment(thing: Any) -> bool:
    if not isinstance(thing, types.FunctionType):
        return False
    return any(isinstance(cell.cell_contents, _gymnasium().Env) for cell in thing.__closure__ or ())


def _own_classes(module: str) -> list[type]:
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
    if isinstance(thing, _gymnasium().Env):  # some have themselves copied without their state
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


def _reseed(generator: Any, seed: int) -> None:
    """Puts a random generator into the state of a new one of its kind and this seed."""
    new = _generator(_random_kind(generator), seed)
    if isinstance(generator, random.Random):
        generator.setstate(new.getstate())
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(new.get_state())
    else:
        bits = getattr(generator, "bit_generator", generator)
        bits.state = getattr(new, "bit_generator", new).state
