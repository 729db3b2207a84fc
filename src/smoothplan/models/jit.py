"""Models given by a simulator that Numba compiles: usable from Python and from compiled engines alike."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothplan import arguments
from smoothplan.compiling import Compiled, load_numba
from smoothplan.models.base import Declarations
from smoothplan.models.calls import ModelError
from smoothplan.models.vector import Step
from smoothplan.streams import generator


@dataclass(frozen=True, eq=False)
class JitModel(Declarations):
    """A compiled simulator of n calls at a time.

    Args:
        step: a Numba function, or a Python function that Numba can compile, with the arguments of `VectorModel`'s step
            and always three results: (next_states [n, ...], rewards [n] float64, terminals [n] bool). It sees the
            states read-only; Numba refuses to compile a step that changes them.
        **declarations: see `Declarations`. With an `initial_state` the step is compiled at once, so that a mistake
            shows here and not in the middle of a run.
    """

    step: Step

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.step):
            raise TypeError(f"step must be a function of (states, actions, rng), got {self.step!r}")
        if isinstance(self.step, Compiled):
            object.__setattr__(self, "step", self.step.dispatcher)
        elif not hasattr(self.step, "py_func"):
            object.__setattr__(self, "step", load_numba().njit(nogil=True)(self.step))
        if self.initial_state is not None:
            self._compile(self.initial_state)

    def _compile(self, state: Any) -> None:
        numba = load_numba()
        from numba.core.errors import NumbaError

        example = (arguments.frozen(state[None]), arguments.frozen(np.zeros(1, dtype=np.int64)), generator(0))
        types = tuple(numba.typeof(value) for value in example)
        step: Any = self.step
        try:
            step.compile(types)
        except NumbaError as error:
            raise ModelError(f"Numba cannot compile step for states of type {types[0]}: {error}") from error
        found = step.overloads[types].signature.return_type
        flags = numba.types.Array(numba.types.boolean, 1, "C")
        wanted = numba.types.Tuple((types[0].copy(readonly=False), numba.types.float64[::1], flags))
        if tuple(getattr(found, "types", ())) != tuple(wanted.types):
            raise ModelError(f"step must return (next_states, rewards, terminals) of type {wanted}, got {found}")
