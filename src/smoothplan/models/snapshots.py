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

import copy
import copyreg
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.models.content import (
    CannotCopyError,
    Known,
    Reader,
    Writer,
    is_space,
    library,
    own_classes,
    reseed,
    spaces_in,
)

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

GONE = ["gone"]
"""In the place of an attribute that was deleted."""


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
    while isinstance(environment, library().Wrapper):
        if not (_is_of(environment, UNWRAPPED) or (not found and _changes_observations_only(environment))):
            found.append(environment)
        environment = environment.env
    return [*found, environment]


def _is_of(wrapper: Any, names: frozenset[str]) -> bool:
    kind = type(wrapper)
    return kind.__module__.startswith("gymnasium.wrappers.") and kind.__name__ in names


def _changes_observations_only(wrapper: Any) -> bool:
    observing = library().ObservationWrapper
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
            self._constants += own_classes(type(layer).__module__)
        # What is apart from the content is the same in every copy. Nothing is drawn on a screen.
        self._layers = [(type(layer), _apart(layer)) for layer in chain]
        known = Known(self._constants)
        self._shared = {
            place: Writer(self._constants, known, chain, learning=True).write(place, _get(chain, place))
            for place in shared
        }
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
        found, _ = self._content(environment, {}, learning=True)
        if len(self._constants) > before:
            self._local = threading.local()
        return found

    def changed(self, environment: Any) -> bytes:
        """What is different in an environment from the start, as text."""
        try:
            return self._difference(self._content(environment, self._own().fixed)[0])
        except ChangedError:
            self._local = threading.local()  # with what is shared as it was
            raise

    def reseed(self, environment: Any, rng: np.random.Generator) -> None:
        """Has all generators of an environment draw what a copy that is rebuilt with `rng` draws.

        They are changed in place, so that parts that share one go on sharing it.
        """
        _, writer = self._content(environment, {})
        for generator in writer.generators:
            reseed(generator, int(rng.integers(2**63)))
        own = environment.unwrapped.np_random
        own.bit_generator.state = rng.bit_generator.state
        for space in writer.spaces:
            for part in spaces_in(space):
                part._np_random = own

    def check_shared(self, environment: Any) -> None:
        """Raises `ChangedError` where an attribute that is shared has changed."""
        chain = layers(environment)
        _Unchanged(self._shared).numbers(chain, lambda: Writer(self._constants, self._own().known, chain))

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
        for line in state.tobytes().rstrip(b"\0").decode().splitlines():
            place, text = line.split(" ", 1)
            parts[place] = json.loads(text)
        if len(parts) > len(own.varying):
            parts = {place: parts[place] for place in sorted(parts, key=_order)}
        reader = Reader(own.constants, chain, rng, own.inside)
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
            lines += [f"{name} {json.dumps(GONE)}" for name in start if name not in content]
        return "\n".join(lines).encode()

    def _content(
        self, environment: Any, fixed: dict[str, tuple[Any, str]], learning: bool = False
    ) -> tuple[Fragments, Writer]:
        """All attributes of all layers, and what has written them. Those that are fixed need not be looked into."""
        own, chain, shared = self._own(), layers(environment), self._shared

        def new() -> Writer:
            return Writer(self._constants, own.known, chain, learning)

        writer = new()
        if shared:
            writer.outside = own.unchanged.numbers(chain, new)
        found = {}
        for number, layer in enumerate(chain):
            attributes = vars(layer)
            for name in sorted(attributes.keys() - APART):
                place, value = f"{number}.{name}", attributes[name]
                if place in fixed and fixed[place][0] is value:
                    found[place] = fixed[place][1]
                elif place not in shared:
                    found[place] = writer.write(name, value)
        return found, writer

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
        self.constants = [copy.deepcopy(item) if is_space(item) else item for item in constants]
        self.spaces = [space for item in self.constants if is_space(item) for space in spaces_in(item)]
        self.known = Known(constants, self.constants)
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

    def _begin(self, place: str, part: Any) -> Reader:
        number, name = place.split(".", 1)
        reader = Reader(self.constants, [], np.random.default_rng(0), {})
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
        self._texts = texts
        self._seen: dict[tuple[str, int], tuple[Any, dict[int, Any]]] = {}
        self._left: dict[tuple[str, int], int] = {}

    def numbers(self, chain: list[Any], writer: Callable[[], Writer]) -> list[dict[int, Any]]:
        """What each shared attribute of an environment consists of: ids to (attribute, number).

        Raises:
            ChangedError: one of them has changed.
        """
        found = []
        for index, (place, text) in enumerate(self._texts.items()):
            value = _get(chain, place)
            key = place, id(value)
            if self._left.get(key, 0) == 0:
                fresh = writer()
                if fresh.write(place, value) != text:
                    raise ChangedError(place)
                if len(self._seen) >= 4 * len(self._texts):  # objects of environments long gone
                    self._seen.clear()
                    self._left.clear()
                self._seen[key] = value, {part: (index, number) for part, number in fresh.numbers.items()}
                self._left[key] = len(text) // LARGE * OFTEN
            self._left[key] -= 1
            found.append(self._seen[key][1])
        return found


def _get(chain: list[Any], place: str) -> Any:
    """The value of "layer.attribute", which is shared."""
    number, name = place.split(".", 1)
    attributes = vars(chain[int(number)])
    if name not in attributes:
        raise ChangedError(place)
    return attributes[name]


def _apart(layer: Any) -> dict[str, Any]:
    found = {name: value for name, value in vars(layer).items() if name in ("spec", "render_mode")}
    return found | ({"render_mode": None} if "render_mode" in found else {})
