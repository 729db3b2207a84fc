"""Functions that Numba compiles on first use, so that importing this package does not load Numba.

Compiling takes seconds the first time and loading from the cache tenths of a second, which no limit on time may count:
`working_time` is a clock that stands still meanwhile.
"""

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, update_wrapper
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


class _Clock:
    """A clock that stands still while any thread has paused it, however nested."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses: Counter[int] = Counter()  # by thread
        self._time = self._seen = time.perf_counter()

    def pause(self, change: int) -> None:
        with self._lock:
            self._advance()
            self._pauses[threading.get_ident()] += change
            self._pauses = +self._pauses  # those that are not over

    def now(self) -> float:
        with self._lock:
            self._advance()
            # A thread that asks for the time is not compiling, even if an interrupt kept Numba from reporting the end.
            del self._pauses[threading.get_ident()]
            return self._time

    def _advance(self) -> None:
        now = time.perf_counter()
        self._time += 0.0 if self._pauses else now - self._seen
        self._seen = now


_clock = _Clock()
_listeners: list[Callable[[], None]] = []  # to be called when something is compiled


def working_time() -> float:
    """Seconds on a clock that stands still while this process compiles, or loads compiled code or libraries."""
    return _clock.now()


@contextmanager
def paused_clock() -> Iterator[None]:
    """A time that `working_time` leaves out."""
    _clock.pause(+1)
    try:
        yield
    finally:
        _clock.pause(-1)


@contextmanager
def announcing(tell: Callable[[], None]) -> Iterator[None]:
    """Calls a function once, in any thread, if Numba compiles something; loading from the cache is not compiling."""
    if "numba" in sys.modules:  # a simulator may use it without us
        _listen()
    _listeners.append(tell)
    try:
        yield
    finally:
        with suppress(ValueError):  # it was called
            _listeners.remove(tell)


@cache
def _listen() -> None:
    """Watches Numba from here on."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, found: Any) -> None:
            if found.kind == "numba:compiler_lock":  # held while Numba compiles, and while it loads from the cache
                _clock.pause(+1)
                return
            while _listeners:
                _listeners.pop()()

        def on_end(self, found: Any) -> None:
            if found.kind == "numba:compiler_lock":
                _clock.pause(-1)

    for kind in ("numba:compiler_lock", "numba:compile"):
        event.register(kind, Listener())


def load_numba() -> Any:
    """Numba, whose import and compilations `working_time` leaves out."""
    with paused_clock():
        import numba

        _listen()
    return numba


def compiled(function: Function, **options: Any) -> Function:
    """The function compiled by Numba on first use, releasing the interpreter lock; options are those of `Compiled`."""
    return cast(Function, Compiled(function, **options))


class Compiled:
    """A function that becomes a Numba dispatcher when it is first called, from Python or by compiled code.

    A function is optimised again with each function that calls it: a deep chain of calls takes long the first time,
    unless they are `inner` or `merged`.

    Args:
        function: the function to compile.
        signature: makes its types. It is then compiled for these only, as a function that calls itself must be.
        allocates: whether it makes arrays, as simulators do. Otherwise Numba counts no references to arrays, which took
            up to a fifth of the time of a recursion, and a function that makes an array does not compile.
        inlined: whether LLVM must make it a part of its caller.
        inner: whether only compiled code calls it. It then has no wrapper for Python and no machine code of its own,
            which take most of the time to compile. A call from Python compiles it anew in every process.
        merged: whether it becomes a part of its caller before that is compiled: for a short function, or one called in
            one place, unless the caller is large, because types take longer to find the larger a function is. Its other
            options are for calls from Python.
        cached: whether compiled code is kept on disk.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        signature: Callable[[], Any] | None = None,
        allocates: bool = False,
        inlined: bool = False,
        inner: bool = False,
        merged: bool = False,
        cached: bool = True,
    ) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.targetoptions = {"inline": "always"} if merged else {}  # Numba looks here first
        own: dict[str, Any] = {"_nrt": allocates, "forceinline": inlined, "no_cfunc_wrapper": not allocates}
        self._options = own | {"nogil": True, "error_model": "numpy", "cache": cached and not inner}
        self._signature = signature
        # A call from Python would crash without a wrapper, so another version is made for it.
        self._for_python = Compiled(function, allocates=allocates, inlined=inlined, cached=False) if inner else None
        self._made: Any = None
        self._ready = False
        self._entry: Any = self._first_call

    @property
    def dispatcher(self) -> Any:
        """The function as Numba has made it."""
        if self._ready:
            return self._made
        numba, options = load_numba(), self._options
        _register_pointer_to()
        if self._for_python is not None:
            options = options | {"no_cpython_wrapper": True}
            if numba.version_info.short == (0, 68):  # any other version compiles as usual, for half as long again
                options |= {"pipeline_class": _part_compiler()}
        from numba.core.compiler_lock import global_compiler_lock
        from numba.core.types import unliteral

        # Numba's own lock: with another one, two threads that compile functions calling each other could deadlock.
        with global_compiler_lock:
            if self._made is not None:  # by another thread, or by this one, which compiles a function that calls itself
                return self._made
            try:
                self._made = numba.njit(**options)(self.py_func)
                # Compiled callers ask for plain types: f(x, 0) and f(x, 1) would each get a version of their own.
                template = self._made.get_call_template
                self._made.get_call_template = lambda args, kws: template(
                    [unliteral(kind) for kind in args], {name: unliteral(kind) for name, kind in kws.items()}
                )
                with suppress(AttributeError):  # it has no cache; Numba's own stamp forgets callees in other files
                    cache = self._made._cache._cache_file
                    stamp = _stamp(self.py_func.__code__.co_filename)
                    cache._source_stamp = stamp
                    # Numba compares this one before it reads the rest, which may refer to modules that have moved.
                    cache._version = f"{numba.__version__} {stamp}"
                if self._signature is not None:
                    self._made.compile(self._signature())
                    self._made.disable_compile()
                self._ready = True
            finally:
                if not self._ready:  # an error or Ctrl-C: the next call begins anew
                    self._made = None
            return self._made

    @property
    def _numba_type_(self) -> Any:  # how Numba types a global that it does not know
        return load_numba().typeof(self.dispatcher)

    __call__ = property(attrgetter("_entry"))  # no frame of Python is between a caller and the dispatcher

    def _first_call(self, *args: Any) -> Any:
        self._entry = self._for_python or self.dispatcher
        return self._entry(*args)

    def __reduce__(self) -> str:
        return self.__qualname__  # type: ignore[no-any-return, attr-defined]


@cache
def _stamp(file: str) -> str:
    """A digest of a source file and of all modules of this package that it imports, directly or through others."""
    root, texts, ahead = Path(__file__).parents[2], dict[Path, str](), [Path(file)]
    while ahead:
        path = ahead.pop()
        if path in texts or not path.is_file():
            continue
        texts[path] = path.read_text(encoding="utf-8")
        imports = r"(?m)(?:from|import) (smoothplan[.\w]*)(?: import ([^()]+?$|\([^)]+\)))?"
        for module, names in re.findall(imports, texts[path]):
            for name in (module, *(f"{module}.{part}" for part in re.findall(r"\w+", names))):
                place = root.joinpath(*name.split("."))
                ahead += [place.with_suffix(".py"), place / "__init__.py"]
    digest = blake2b(digest_size=16)
    for path in sorted(texts):
        digest.update(f"{path.name}\0{texts[path]}".encode())
    return digest.hexdigest()


@cache
def _part_compiler() -> Any:
    """Numba's compiler for functions that are parts of others: it leaves them to be optimised there, with the rest.

    Otherwise LLVM optimises a function once for each caller, and makes machine code of it that nobody runs: a third of
    the time that engines take to compile.
    """
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import Compiler

    class Part(JITCodeLibrary):
        @property
        def codegen(self) -> Any:
            return self

        def set_env(self, name: str, environment: Any) -> None:
            pass  # no machine code refers to Python objects

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalized = True

    class PartCompiler(Compiler):
        def compile_extra(self, func: Callable[..., Any]) -> Any:
            if self.state.library is None:
                library: Any = Part
                self.state.library = library(self.state.targetctx.codegen(), func.__qualname__)
            return super().compile_extra(func)  # type: ignore[no-untyped-call]

    return PartCompiler


def pointer_to(value: Any) -> Any:
    """In compiled code: a pointer to a value of the caller; `pointer[0]` is the value, until the caller returns.

    Numba passes a tuple of arrays as dozens of numbers, which took a recursion a fifth of its time; a pointer is one.
    """
    raise NotImplementedError("pointer_to can only be called by compiled code")


@cache
def _register_pointer_to() -> None:
    """Teaches Numba the type and the code of `pointer_to`."""
    from numba import types
    from numba.core import cgutils
    from numba.extending import lower_builtin, type_callable

    @type_callable(pointer_to)
    def typed(context: Any) -> Callable[[Any], Any]:
        return lambda value: types.CPointer(value)

    def lowered(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return cgutils.alloca_once_value(builder, values[0])

    lower_builtin(pointer_to, types.Any)(lowered)
