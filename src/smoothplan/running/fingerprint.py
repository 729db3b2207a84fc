"""Fingerprints of planners, models and whatever they are made of: checkpoints and studies recognise a run by them.

A fingerprint is the same in every process, and another one where what an object does may be another: it covers numbers
and arrays bit for bit, and of functions the code, what they close over and the globals that they name. Code of
smoothplan, of installed libraries and of Python itself counts by its name and the library's version. Comments,
docstrings, line numbers, the order of dictionaries and values of cached properties do not count.
"""

import copyreg
import dis
import functools
import hashlib
import importlib.metadata
import inspect
import re
import struct
import sys
import sysconfig
import threading
import types
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

DEEPEST = 150
"""Things in things in things, at most."""

BEHAVIOUR = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""The flags of code that matter to what it does."""

BOOKKEEPING = frozenset(
    [
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__slotnames__", "__repr__"),
        *("__replace__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        *("__type_params__", "__firstlineno__", "__static_attributes__", "__match_args__", "__parameters__"),
        *("__orig_bases__", "__dataclass_params__", "__dataclass_fields__", "__abstractmethods__", "_abc_impl"),
        *("_is_protocol", "__protocol_attrs__", "__non_callable_proto_members__"),
    ]
)
"""Attributes of a class that do not matter to what its objects do."""

WRAPPERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    functools._lru_cache_wrapper: ("__wrapped__",),
    types.MethodType: ("__func__", "__self__"),
}
"""What wraps functions, and the attributes that hold them."""


def fingerprint(thing: Any) -> str:
    """A digest of 32 hexadecimal digits of what a thing is and does."""
    return _Walk().digest(thing).hex()


def describe(thing: Any) -> str:
    """A thing in at most 200 characters, for people. No address of memory is in it."""
    if isinstance(thing, np.ndarray):
        text = f"array of shape {thing.shape} and dtype {thing.dtype}"
    else:
        try:
            text = re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(thing).split()))
        except Exception:  # whatever someone's __repr__ does
            text = _name(type(thing))
    return text if len(text) <= 200 else text[:199] + "…"


class _Walk:
    """One walk over everything that a thing is made of. The digest of a thing is made of those of its parts."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}  # by id, with the thing itself, so that no other gets its id
        self._path: dict[int, int] = {}  # from what is being walked over to its depth

    def digest(self, thing: Any) -> bytes:
        """The digest of a thing."""
        atom = _atom(thing)
        if atom is not None:
            return atom
        key, depth = id(thing), len(self._path)
        if key in self._known:
            return self._known[key][1]
        if key in self._path:  # a part refers to the whole
            return _hash("cycle", depth - self._path[key])
        if depth >= DEEPEST:
            raise ValueError(f"{describe(thing)} cannot be fingerprinted: it is nested {DEEPEST} deep")
        self._path[key] = depth
        try:
            result = _hash(*self._parts(thing))
        finally:
            del self._path[key]
        self._known[key] = thing, result
        return result

    def _parts(self, thing: Any) -> Iterable[Any]:
        """What a digest is made of: words, numbers, bytes and digests."""
        kind = type(thing)
        if isinstance(thing, type):
            return self._class(thing)
        if kind is tuple or kind is list:
            return kind.__name__, *map(self.digest, thing)
        if kind is set or kind is frozenset:
            return "set", *sorted(map(self.digest, thing))
        if kind is dict or kind is types.MappingProxyType:
            entries = sorted(((self.digest(key), value) for key, value in thing.items()), key=lambda entry: entry[0])
            return "dict", *(part for key, value in entries for part in (key, self.digest(value)))
        if isinstance(thing, types.FunctionType):
            return self._function(thing)
        if isinstance(thing, types.CodeType):
            return self._code(thing)
        if isinstance(thing, types.BuiltinFunctionType):
            owner = thing.__self__
            return "builtin", _name(thing), b"" if isinstance(owner, types.ModuleType) else self.digest(owner)
        if kind in WRAPPERS:
            return kind.__name__, *(self.digest(getattr(thing, name)) for name in WRAPPERS[kind])
        if kind is np.ndarray or isinstance(thing, np.generic):
            return self._array("array" if kind is np.ndarray else "scalar", np.asarray(thing))
        return self._object(thing)

    def _array(self, what: str, array: np.ndarray[Any, Any]) -> Iterator[Any]:
        yield from (what, str(array.shape), _dtype(array.dtype))
        if array.dtype.names is not None:  # what lies between the fields does not matter
            yield from (self.digest(np.asarray(array[name])) for name in array.dtype.names)
        elif array.dtype.kind in "OT":
            yield from map(self.digest, array.ravel().tolist())
        else:
            yield array.tobytes()

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        yield from ("function", _name(function))
        if is_installed(_module(function)):
            if _is_importable(function):  # the name and the version say it all; a closure may be a cache
                return
        else:
            yield self.digest(function.__code__)
            named, mentioned = _names(function.__code__)
            for name in sorted(named & function.__globals__.keys()):
                yield from (name, self._global(function.__globals__[name], mentioned))
        for cell in function.__closure__ or ():
            try:
                yield self.digest(cell.cell_contents)
            except ValueError:  # it is empty so far
                yield "empty"
        yield from map(self.digest, (function.__defaults__, function.__kwdefaults__, vars(function)))

    def _global(self, value: Any, mentioned: frozenset[str]) -> bytes:
        """The digest of a global; of a module of one's own, what the code mentions of it."""
        if not isinstance(value, types.ModuleType) or is_installed(value.__name__):
            return self.digest(value)
        parts: list[Any] = ["module", value.__name__]
        for name in sorted(mentioned & vars(value).keys()):
            inside = vars(value)[name]
            below = isinstance(inside, types.ModuleType) and inside.__name__.startswith(value.__name__ + ".")
            parts += [name, self._global(inside, mentioned) if below else self.digest(inside)]
        return _hash(*parts)

    def _code(self, code: types.CodeType) -> Iterator[Any]:
        """What code says, without what its names stand for."""
        arguments = code.co_argcount + code.co_kwonlyargcount
        yield from ("code", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        yield from (code.co_flags & BEHAVIOUR, code.co_exceptiontable)
        yield from (*code.co_names, "", *code.co_varnames[:arguments], "", *code.co_freevars, "", *code.co_cellvars)
        for instruction, after in pairwise([*dis.get_instructions(code), None]):
            assert instruction is not None
            if instruction.opcode in dis.hasconst:
                # By its value, for its place among the constants depends on the docstring.
                kept = after is None or after.opname != "STORE_NAME" or after.argval not in BOOKKEEPING
                yield from (instruction.opname, self.digest(instruction.argval) if kept else "")
            elif instruction.opcode != dis.EXTENDED_ARG:
                yield from (instruction.opname, -1 if instruction.arg is None else instruction.arg)

    def _class(self, kind: type) -> Iterator[Any]:
        """A class: its name, and what it does if it is one's own."""
        yield from ("class", _name(kind))
        if not is_installed(_module(kind)):
            yield from map(self.digest, (*kind.__bases__, type(kind)))
            for name, value in sorted(vars(kind).items()):
                if name not in BOOKKEEPING and not isinstance(
                    value, types.MemberDescriptorType | types.GetSetDescriptorType
                ):
                    yield from (name, self.digest(value))

    def _object(self, thing: Any) -> Iterator[Any]:
        """An object of any other class: its class and its state."""
        kind: Any = type(thing)
        yield from ("object", self.digest(kind))
        compiled = inspect.getattr_static(thing, "py_func", None)
        if isinstance(compiled, types.FunctionType):  # Numba's
            yield from map(self.digest, (compiled, inspect.getattr_static(thing, "targetoptions", None)))
        elif is_dataclass(thing) and "__dataclass_fields__" in vars(kind):
            for field in fields(thing):
                if hasattr(thing, field.name):
                    yield from (field.name, self.digest(getattr(thing, field.name)))
        elif _is_plain(kind) or kind is threading.local:
            yield from self._attributes(thing)
        else:
            state = _reduced(thing)
            yield from self._attributes(thing) if state is None else map(self.digest, state)

    def _attributes(self, thing: Any) -> Iterator[Any]:
        """Names and digests of attributes, without cached properties."""
        kind = type(thing)
        attributes = {} if kind is threading.local else dict(getattr(thing, "__dict__", None) or {})
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else tuple(slots):
                name = f"_{base.__name__.lstrip('_')}{slot}" if slot.startswith("__") and slot[-2:] != "__" else slot
                if name not in BOOKKEEPING and hasattr(thing, name):
                    attributes[name] = getattr(thing, name)
        for name in sorted(attributes):
            if not isinstance(inspect.getattr_static(kind, name, None), functools.cached_property):
                yield from (name, self.digest(attributes[name]))


def _is_plain(kind: type) -> bool:
    """Whether the attributes of an object are all there is to it, as pickle sees it too."""
    ours = any("__slots__" in vars(base) or "__dict__" in vars(base) for base in kind.__mro__)
    usual = all(getattr(kind, n) is getattr(object, n) for n in ("__reduce__", "__reduce_ex__", "__getstate__"))
    return ours and usual and all(base is object or base.__module__ != "builtins" for base in kind.__mro__)


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
    """A digest of parts, each distinguished from the next."""
    result = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        result.update(struct.pack("<q", len(data)))
        result.update(data)
    return result.digest()


def _atom(thing: Any) -> bytes | None:
    """The digest of what has no parts, else None."""
    kind = type(thing)
    if thing is None or thing is ... or thing is NotImplemented:
        return _hash("constant", repr(thing))
    if kind is bool or kind is str or kind is bytes or kind is bytearray:
        return _hash(kind.__name__, bytes(thing) if kind is bytearray else thing)
    if kind is int:
        return _hash("int", hex(thing))
    if kind is float or kind is complex:
        return _hash(kind.__name__, struct.pack("<2d", thing.real, thing.imag))
    if isinstance(thing, np.dtype):
        return _hash("dtype", _dtype(thing))
    if isinstance(thing, types.ModuleType):
        return _hash("module", _library(thing.__name__))
    return None


def _dtype(dtype: np.dtype[Any]) -> str:
    return repr(dtype) if dtype.names is not None or dtype.kind == "T" else dtype.str


def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that code names, and all names that it mentions."""
    named, mentioned = set(), set(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_NAME" or "GLOBAL" in instruction.opname:
            named.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inside = _names(constant)
            named |= inside[0]
            mentioned |= inside[1]
    return frozenset(named), frozenset(mentioned)


def _name(thing: Any) -> str:
    """The qualified name of a function or class, and the version of its library."""
    return f"{_library(_module(thing))}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _is_importable(function: types.FunctionType) -> bool:
    """Whether a function is what its module has under its name."""
    found: Any = sys.modules.get(_module(function))
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _module(thing: Any) -> str:
    """The name of the module of a function or class; some that are written in C have none."""
    found = getattr(thing, "__module__", None)
    return found if isinstance(found, str) else ""


def _library(module: str) -> str:
    """The name of a module, with the version of its library if it is installed."""
    return f"{module} {_version(module.partition('.')[0])}" if is_installed(module) else module


@functools.cache
def _version(top: str) -> str:
    found = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return importlib.metadata.version(top) if top not in sys.stdlib_module_names else ""
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


def is_installed(module: str) -> bool:
    """Whether a module is smoothplan's, Python's or an installed library's, and not the user's own."""
    top = module.partition(".")[0]
    if top == __name__.partition(".")[0] or top in sys.builtin_module_names:
        return True
    files = [vars(sys.modules[name]).get("__file__") for name in (module, top) if name in sys.modules]
    if not any(files):
        return top in sys.stdlib_module_names
    return top != "__main__" and _installed_file(next(filter(None, files)))


@functools.cache
def _installed_file(file: str) -> bool:
    """Whether a file is in a folder of Python's own modules, or of installed packages."""
    path = Path(file).resolve()
    python = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or any(map(path.is_relative_to, python))
