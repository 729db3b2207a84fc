"""Work in bytes: what a simulator needs travels with it, unless an installed package has it."""

import importlib
import io
import pickle
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numba.cloudpickle
from numba.core.dispatcher import Dispatcher

from smoothplan.brake import Brake
from smoothplan.running.work import Packed, Work

PACKAGE = __name__.partition(".")[0]

INSTALLERS = {"site-packages", "dist-packages"}
"""Folders in which installed packages are."""

PICKLERS: tuple[Any, ...] = (cloudpickle, numba.cloudpickle)
"""Numba has a copy of its own, for the functions that it compiles."""

IN_MEMORY = (io.BytesIO, io.StringIO)

_packing = threading.Lock()  # which modules travel is a global setting of the picklers


class PackingError(TypeError):
    """A simulator holds something that cannot be sent to another process."""


def pack(work: Work) -> Packed:
    """Work in bytes.

    Functions and classes from scripts, notebooks and modules that are not installed travel by value, with the globals
    that they use, as these are now; everything from installed packages is imported on the other side.

    Raises:
        PackingError: something in it cannot be copied, such as a lock or an open file.
    """
    stream = io.BytesIO()
    try:
        with _packing, _local_modules_by_value():
            _Pickler(stream).dump(work)
    except Exception as error:  # objects of users may refuse in any way
        raise PackingError(
            f"this simulator cannot be sent to other processes: {error}; keep what cannot be copied out of it, create "
            "it on first use, or use workers=1"
        ) from error
    data = stream.getvalue()
    return Packed(blake2b(data, digest_size=16).hexdigest(), data)


def unpack(data: bytes) -> Work:
    """The work that was packed. Only what this program has packed itself may be unpacked: it can run any code."""
    work = pickle.loads(data)
    if not isinstance(work, Work):
        raise TypeError(f"data must be packed work, got a {type(work).__name__}")
    return work


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves out what our own classes derive from the rest; refuses open files; knows compiled functions by name."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, io.IOBase) and not (isinstance(value, IN_MEMORY) or value in (sys.stdout, sys.stderr)):
            raise TypeError(f"cannot pickle the open file {getattr(value, 'name', value)!r}")
        if isinstance(value, Brake):  # references may hold one: it stops a run here, not there
            return Brake, ()
        if isinstance(value, Dispatcher) and (place := _place(value)) is not None:
            return _imported, place
        kind: Any = type(value)
        derived = _derived(kind) if kind.__module__.partition(".")[0] == PACKAGE else ()
        if derived and kind.__getstate__ is object.__getstate__:
            return _new, (kind,), {name: item for name, item in vars(value).items() if name not in derived}
        return super().reducer_override(value)


def _place(function: Any) -> tuple[str, str] | None:
    """The module and the name by which a compiled function can be had, perhaps with its code in a cache."""
    module, name = sys.modules.get(function.__module__), function.__qualname__
    if module is None or module.__name__ == "__main__" or _local(module):
        return None
    return (module.__name__, name) if getattr(module, name, None) is function else None


def _imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


@cache
def _derived(kind: Any) -> frozenset[str]:
    """The cached properties of a class."""
    return frozenset(n for base in kind.__mro__ for n, v in vars(base).items() if isinstance(v, cached_property))


@contextmanager
def _local_modules_by_value() -> Iterator[None]:
    """Has the picklers copy what is from modules that are not installed, in place of its name."""
    modules = [module for module in list(sys.modules.values()) if _local(module)]
    registered = [
        (pickler, module)
        for pickler in PICKLERS
        for module in modules
        if module.__name__ not in pickler.list_registry_pickle_by_value()
    ]
    for pickler, module in registered:
        pickler.register_pickle_by_value(module)
    try:
        yield
    finally:
        for pickler, module in registered:
            pickler.unregister_pickle_by_value(module)


def _local(module: Any) -> bool:
    """Whether a module is Python source that another process may not find."""
    if not isinstance(module, ModuleType):
        return False
    names: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")  # even where others import lazily
    name, file = names.get("__name__"), names.get("__file__")
    if not isinstance(name, str) or not isinstance(file, str) or sys.modules.get(name) is not module:
        return False
    return name != "__main__" and name.partition(".")[0] != PACKAGE and file.endswith(".py") and not _installed(file)


@cache
def _installed(file: str) -> bool:
    path = Path(file).resolve()
    standard = (Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return bool(INSTALLERS.intersection(path.parts)) or any(path.is_relative_to(folder) for folder in standard)
