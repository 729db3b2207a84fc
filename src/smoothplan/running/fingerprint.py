"""Fingerprints of planners, models and whatever they are made of: a checkpoint tells by them whose it is.

A fingerprint is the same in every process, and another one where what an object does may be another: it covers numbers
and arrays bit for bit, and of functions the code, what they close over and the globals that they name. Code of
smoothplan, of installed libraries and of Python itself counts by its name and the library's version. Docstrings, line
numbers, the order of dictionaries and values of cached properties do not count.
"""

import copyreg
import dis
import enum
import functools
import hashlib
import importlib.metadata
import inspect
import io
import random
import re
import struct
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np

BYTES = 16
"""Of a fingerprint."""

DEEPEST = 64
"""Things in things in things: whatever is deeper counts by its type only."""

SHOWN = 200
"""Characters of a description, at most."""

BEHAVIOUR = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
"""The flags of code that matter to what it does."""

BOOKKEEPING = frozenset(
    name
    for names in (
        ("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__repr__", "__replace__"),
        ("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__type_params__"),
        ("__firstlineno__", "__static_attributes__", "__match_args__", "__parameters__", "__orig_bases__"),
        ("__dataclass_params__", "__dataclass_fields__", "__abstractmethods__", "_abc_impl", "_is_protocol"),
        ("__protocol_attrs__", "__non_callable_proto_members__"),
    )
    for name in names
)
"""Attributes of a class that do not matter to what its objects do."""

PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}
"""What makes a plain value of one that is of a type of its own."""

OPAQUE = (threading.local, io.IOBase)
"""What counts by its type, whatever its attributes."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


def fingerprint(thing: Any) -> str:
    """A digest of 32 hexadecimal digits of what a thing is and does."""
    walk = _Walk()
    return _hash(walk.digest(thing), *walk.definitions()).hex()


def describe(thing: Any) -> str:
    """A thing in at most 200 characters, for people. No address of memory is in it."""
    if isinstance(thing, np.ndarray):
        text = f"array of shape {thing.shape} and dtype {thing.dtype}"
    else:
        try:
            text = _ADDRESS.sub("", " ".join(repr(thing).split()))
        except Exception:  # whatever someone's __repr__ does
            text = _name(type(thing))
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


class _Walk:
    """One walk over everything that a thing is made of.

    A digest is made of those of the parts. Code may refer to itself in any way, so functions and classes are referred
    to by name, and what they do is told once each, in `definitions`.
    """

    def __init__(self) -> None:
        # By id, with the thing itself, so that no other gets its id.
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._partly: dict[int, tuple[Any, bytes]] = {}  # parts of cycles: their digests depend on where one came from
        self._codes: dict[int, tuple[Any, bytes]] = {}
        self._path: dict[int, int] = {}  # from what is being walked over to its depth
        self._back = 0  # how far up a cycle led back, at most; its own depth if nowhere
        self._defined: dict[tuple[int, int], Any] = {}
        self._pending: list[tuple[Any, Mapping[str, Any] | None]] = []

    def digest(self, thing: Any) -> bytes:
        """The digest of a thing."""
        atom = _atom(thing)
        if atom is not None:
            return atom
        key, depth = id(thing), len(self._path)
        if key in self._known:
            return self._known[key][1]
        if key in self._partly:
            self._back = -1
            return self._partly[key][1]
        if key in self._path:
            self._back = min(self._back, self._path[key])
            return _hash("cycle", depth - self._path[key])
        if depth >= DEEPEST:
            self._back = -1
            return _hash("deep", _name(type(thing)))
        before, self._back, self._path[key] = self._back, depth, depth
        try:
            result = _hash(*self._parts(thing))
        finally:
            del self._path[key]
        (self._partly if self._back < depth else self._known)[key] = thing, result
        self._back = min(before, self._back)
        return result

    def definitions(self) -> list[bytes]:
        """What all functions and classes do that were met, in an order that depends on nothing else."""
        found = set()
        while self._pending:
            thing, names = self._pending.pop()
            with self._alone():
                found.add(self._class(thing) if names is None else self._globals(thing, names))
        return sorted(found)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within, the digests of cycles do not depend on what else was met before."""
        before, self._partly = self._partly, {}
        try:
            yield
        finally:
            self._partly = before

    def _define(self, thing: Any, names: Mapping[str, Any] | None = None) -> None:
        key = id(thing), id(names)
        if key not in self._defined:
            self._defined[key] = thing, names
            self._pending.append((thing, names))

    def _parts(self, thing: Any) -> Iterable[Any]:
        """What a digest is made of: words, numbers, bytes and digests."""
        match thing:
            case type():
                return "class", self._type(thing)
            case enum.Enum():
                return "enum", self._type(type(thing)), thing.name, self.digest(thing.value)
            case CodeType():
                return ("code", self._code(thing))
            case FunctionType():
                return self._function(thing)
            case MethodType():
                return "method", self.digest(thing.__func__), self.digest(thing.__self__)
            case BuiltinFunctionType() | MethodWrapperType():
                owner = thing.__self__
                return "builtin", _name(thing), b"" if isinstance(owner, ModuleType) else self.digest(owner)
            case staticmethod() | classmethod():
                return type(thing).__name__, self.digest(thing.__func__)
            case property():
                return "property", *map(self.digest, (thing.fget, thing.fset, thing.fdel))
            case functools.cached_property():
                return "cached", self.digest(thing.func)
            case functools.partial():
                bound = (thing.func, thing.args, thing.keywords)
                return "partial", self._type(type(thing)), *map(self.digest, bound), *self._attributes(thing)
            case functools._lru_cache_wrapper():
                return "cache", self.digest(thing.__wrapped__), self.digest(thing.cache_parameters())
            case np.ndarray():
                return "array", *self._array(np.asarray(thing)), *self._extra(thing, np.ndarray)
            case np.generic():  # a record
                return "record", *self._array(np.asarray(thing))
            case np.random.Generator():
                return "generator", self.digest(thing.bit_generator.state)
            case np.random.BitGenerator():
                return "bits", self.digest(thing.state)
            case np.random.RandomState():
                return "generator", self.digest(thing.get_state(legacy=False))
            case random.Random():
                return "random", self._type(type(thing)), self.digest(thing.getstate())
        found = self._container(thing)
        return self._object(thing) if found is None else found

    def _container(self, thing: Any) -> tuple[Any, ...] | None:
        """The parts of a container or of a number that is of a type of its own, else None."""
        match thing:
            case tuple():
                return "tuple", *map(self.digest, thing), *self._extra(thing, tuple)
            case list():
                return "list", *map(self.digest, thing), *self._extra(thing, list)
            case set() | frozenset():
                return "set", *sorted(map(self._key, thing)), *self._extra(thing, set, frozenset)
            case dict() | MappingProxyType():
                entries = sorted(((self._key(key), value) for key, value in thing.items()), key=lambda entry: entry[0])
                parts = (part for key, value in entries for part in (key, self.digest(value)))
                return "dict", *parts, *self._extra(thing, dict, MappingProxyType)
            case bytearray() | memoryview():
                return "bytes", bytes(thing)
            case int() | float() | complex() | str() | bytes():
                plain = next(convert(thing) for kind, convert in PLAIN.items() if isinstance(thing, kind))
                return "value", _atom(plain), *self._extra(thing)
        return None

    def _key(self, thing: Any) -> bytes:
        """The digest of something in no order."""
        with self._alone():
            return self.digest(thing)

    def _extra(self, thing: Any, *usual: type) -> tuple[Any, ...]:
        """What distinguishes an object of a type of its own from the usual ones."""
        return () if type(thing) in usual else ("of", self._type(type(thing)), *self._attributes(thing))

    def _array(self, array: np.ndarray[Any, Any]) -> Iterator[Any]:
        yield from (str(array.shape), _dtype(array.dtype))
        if array.dtype.names is not None:  # what lies between the fields does not matter
            for name in array.dtype.names:
                yield self.digest(np.asarray(array[name]))
        elif array.dtype.kind in "OT":
            yield from map(self.digest, array.ravel().tolist())
        else:
            yield array.tobytes()

    def _function(self, function: FunctionType) -> Iterator[Any]:
        yield from ("function", _name(function))
        if not _installed(_module(function)):
            yield self._code(function.__code__)
            self._define(function.__code__, function.__globals__)
        for cell in function.__closure__ or ():
            try:
                yield self.digest(cell.cell_contents)
            except ValueError:  # it is empty so far
                yield "empty"
        yield from map(self.digest, (function.__defaults__, function.__kwdefaults__, vars(function)))

    def _code(self, code: CodeType) -> bytes:
        """The digest of what code says, without what its names stand for."""
        if id(code) not in self._codes:
            arguments = code.co_argcount + code.co_kwonlyargcount
            counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & BEHAVIOUR)
            names = (*code.co_names, "", *code.co_varnames[:arguments], "", *code.co_freevars, "", *code.co_cellvars)
            parts = [*counts, *names, code.co_exceptiontable]
            for instruction, after in pairwise([*dis.get_instructions(code), None]):
                assert instruction is not None
                if instruction.opcode in dis.hasconst:
                    # By its value, for the place among the constants depends on the docstring.
                    kept = after is None or after.opname != "STORE_NAME" or after.argval not in BOOKKEEPING
                    parts += [instruction.opname, self._constant(instruction.argval) if kept else ""]
                elif instruction.opcode != dis.EXTENDED_ARG:
                    parts += [instruction.opname, -1 if instruction.arg is None else instruction.arg]
            self._codes[id(code)] = code, _hash("code", *parts)
        return self._codes[id(code)][1]

    def _constant(self, value: Any) -> bytes:
        return self._code(value) if isinstance(value, CodeType) else self.digest(value)

    def _globals(self, code: CodeType, names: Mapping[str, Any]) -> bytes:
        """The digest of what the globals that code names stand for."""
        parts = [self._code(code)]
        named, mentioned = _names(code)
        for name in sorted(named & names.keys()):
            parts += [_hash(name), self._value(names[name], mentioned)]
        return _hash("globals", *parts)

    def _value(self, value: Any, mentioned: frozenset[str]) -> bytes:
        """The digest of a global; of a module of one's own, what the code mentions of it."""
        if not isinstance(value, ModuleType) or _installed(value.__name__):
            return self.digest(value)
        parts = [self.digest(value)]
        for name in sorted(mentioned & vars(value).keys()):
            inside = vars(value)[name]
            below = isinstance(inside, ModuleType) and inside.__name__.startswith(value.__name__ + ".")
            parts += [_hash(name), self._value(inside, mentioned) if below else self.digest(inside)]
        return _hash("module", *parts)

    def _type(self, kind: type) -> str:
        """The name of a type, of which more is told in its definition."""
        if not _installed(_module(kind)):
            self._define(kind)
        return _name(kind)

    def _class(self, kind: type) -> bytes:
        """The digest of what a class of one's own does."""
        parts: list[Any] = [_name(kind), *map(self._type, kind.__bases__), self._type(type(kind))]
        for name, value in sorted(vars(kind).items()):
            if name not in BOOKKEEPING and not isinstance(value, MemberDescriptorType | GetSetDescriptorType):
                parts += [name, self.digest(value)]
        return _hash("definition", *parts)

    def _object(self, thing: Any) -> Iterable[Any]:
        kind: Any = type(thing)
        parts = ["object", self._type(kind)]
        compiled = inspect.getattr_static(thing, "py_func", None)
        if isinstance(compiled, FunctionType):  # Numba's
            return *parts, self.digest(compiled), self.digest(inspect.getattr_static(thing, "targetoptions", None))
        if isinstance(thing, OPAQUE):
            return parts
        if is_dataclass(thing):
            present = [field.name for field in fields(thing) if hasattr(thing, field.name)]
            rest = () if "__dataclass_fields__" in vars(kind) else self._attributes(thing, without=present)
            return *parts, *(part for n in present for part in (n, self.digest(getattr(thing, n)))), *rest
        if kind.__getstate__ is not object.__getstate__:
            state = _state(thing)
            if state is not None:
                return *parts, self.digest(state)
        reduces = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__
        if not reduces and (hasattr(thing, "__dict__") or any("__slots__" in vars(base) for base in kind.__mro__)):
            return *parts, *self._attributes(thing)
        reduced = _reduced(thing)
        return (*parts, *self._attributes(thing)) if reduced is None else (*parts, *map(self.digest, reduced))

    def _attributes(self, thing: Any, without: Iterable[str] = ()) -> Iterator[Any]:
        """Names and digests of attributes, without cached properties."""
        kind = type(thing)
        attributes = dict(getattr(thing, "__dict__", None) or {})
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else tuple(slots):
                name = f"_{base.__name__.lstrip('_')}{slot}" if slot.startswith("__") and slot[-2:] != "__" else slot
                if name not in BOOKKEEPING and hasattr(thing, name):
                    attributes[name] = getattr(thing, name)
        for name in sorted(attributes.keys() - set(without), key=str):
            if not isinstance(inspect.getattr_static(kind, name, None), functools.cached_property):
                yield from (name, self.digest(attributes[name]))


def _state(thing: Any) -> Any:
    """What an object's own method gives as its state, or None."""
    try:
        return thing.__getstate__()
    except Exception:  # whatever someone's method does
        return None


def _reduced(thing: Any) -> list[Any] | None:
    """What pickle would take an object apart into; None for a lock, a generator and others that it cannot."""
    try:
        reduce = copyreg.dispatch_table.get(type(thing))
        found = thing.__reduce_ex__(4) if reduce is None else reduce(thing)
        if isinstance(found, str):
            return [found]
        function, arguments, state, items, entries = (*found, None, None, None)[:5]
        return [function, arguments, state, None if items is None else list(items), dict(entries or ())]
    except Exception:  # whatever someone's method does
        return None


def _hash(*parts: Any) -> bytes:
    """A digest of parts of which each is told from the next."""
    result = hashlib.blake2b(digest_size=BYTES)
    for part in parts:
        data = part if isinstance(part, bytes | memoryview) else str(part).encode("utf-8", "surrogatepass")
        result.update(struct.pack("<q", len(data)))
        result.update(data)
    return result.digest()


def _atom(thing: Any) -> bytes | None:
    """The digest of what has no parts, else None."""
    kind = type(thing)
    if thing is None or thing is ... or thing is NotImplemented:
        return _hash("constant", repr(thing))
    if kind is bool or kind is str or kind is bytes:
        return _hash(kind.__name__, thing)
    if kind is int:
        return _hash("int", hex(thing))
    if kind is float or kind is complex:
        return _hash(kind.__name__, struct.pack("<2d", thing.real, thing.imag))
    if isinstance(thing, np.generic) and thing.dtype.kind not in "OVT":
        return _hash("scalar", _dtype(thing.dtype), thing.tobytes())
    if isinstance(thing, np.dtype):
        return _hash("dtype", _dtype(thing))
    if isinstance(thing, PurePath):
        return _hash("path", str(thing))
    if isinstance(thing, ModuleType):
        return _hash("module", _library(thing.__name__))
    return None


def _dtype(dtype: np.dtype[Any]) -> str:
    return repr(dtype) if dtype.names is not None or dtype.kind == "T" else dtype.str


def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that code names, and all names that it mentions."""
    named, mentioned = set(), set(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_NAME" or "GLOBAL" in instruction.opname:
            named.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inside = _names(constant)
            named |= inside[0]
            mentioned |= inside[1]
    return frozenset(named), frozenset(mentioned)


def _name(thing: Any) -> str:
    """The qualified name of a function or class, and the version of its library."""
    return f"{_library(_module(thing))}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _module(thing: Any) -> str:
    """The name of the module of a function or class; some that are written in C have none."""
    found = getattr(thing, "__module__", None)
    return found if isinstance(found, str) else ""


def _library(module: str) -> str:
    """The name of a module, with the version of its library if it is installed."""
    return f"{module} {_version(module.partition('.')[0])}" if _installed(module) else module


@functools.cache
def _version(top: str) -> str:
    found = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return importlib.metadata.version(top) if top not in sys.stdlib_module_names else ""
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


def _installed(module: str) -> bool:
    """Whether a module is smoothplan's, Python's or an installed library's, and not the user's own."""
    top = module.partition(".")[0]
    if top == __name__.partition(".")[0] or top in sys.builtin_module_names:
        return True
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module, top)]
    if files == [None, None]:
        return top in sys.stdlib_module_names
    return top != "__main__" and _installed_file(files[0] or files[1])


@functools.cache
def _installed_file(file: str) -> bool:
    path = Path(file).resolve()
    return not _LIBRARIES.isdisjoint(path.parts) or any(path.is_relative_to(folder) for folder in _python())


@functools.cache
def _python() -> tuple[Path, ...]:
    """Where Python's own modules are."""
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
