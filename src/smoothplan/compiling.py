"""Functions that Numba compiles on first use, so that importing this package does not load Numba."""

from collections.abc import Callable
from functools import cache, update_wrapper
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


class Compiled:
    """A function that becomes a Numba dispatcher when it is first called, from Python or by compiled code.

    Args:
        function: the Python function.
        decorator: makes the decorator that compiles it; called once.
        signature: makes the types of a function that is compiled for these only.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        decorator: Callable[[], Callable[..., Any]],
        signature: Callable[[], Any] | None = None,
    ) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._decorator, self._signature = decorator, signature
        self._made: Any = None
        self._ready = False

    @property
    def dispatcher(self) -> Any:
        """What Numba made of the function."""
        if not self._ready:
            self._make()
        return self._made

    def _make(self) -> None:
        from numba.core.compiler_lock import global_compiler_lock

        # Numba's own lock: with another one, two threads that compile functions calling each other could deadlock.
        with global_compiler_lock:
            if self._made is not None:
                return  # made by another thread, or by this one, which is compiling a function that calls itself
            try:
                self._made = self._decorator()(self.py_func)
                if self._signature is not None:
                    self._made.compile(self._signature())
                    self._made.disable_compile()
                self._ready = True
            finally:
                if not self._ready:  # an error or Ctrl-C: the next call begins anew
                    self._made = None

    @property
    def _numba_type_(self) -> Any:
        """How Numba types a global that it does not know: as the dispatcher."""
        import numba

        return numba.typeof(self.dispatcher)

    def __call__(self, *args: Any) -> Any:
        """What the compiled function returns."""
        return self._made(*args) if self._ready else self.dispatcher(*args)

    def __reduce__(self) -> str:
        return self.__qualname__  # type: ignore[no-any-return, attr-defined]


def compiled(
    function: Function,
    signature: Callable[[], Any] | None = None,
    allocates: bool = False,
    inlined: bool = False,
) -> Function:
    """The function compiled by Numba, releasing the interpreter lock, cached on disk.

    Args:
        function: what to compile.
        signature: makes its types. It is then compiled for these only, as a function that calls itself must be.
        allocates: whether it makes arrays. Unless it does, Numba keeps no count of references to arrays, which took up
            to a fifth of the time of a recursion; a function that makes one all the same does not compile.
        inlined: whether it becomes a part of its caller, where the compiler would not think so.
    """

    def decorator() -> Any:
        import numba

        _register_pointer_to()
        options: dict[str, Any] = {"_nrt": allocates, "forceinline": inlined}
        return numba.njit(cache=True, nogil=True, error_model="numpy", **options)

    return cast(Function, Compiled(function, decorator, signature))


def pointer_to(value: Any) -> Any:
    """In compiled code: where the caller keeps the value; `pointer[0]` is the value, until the caller returns.

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
