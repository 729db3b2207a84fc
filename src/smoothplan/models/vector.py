"""Models given by a simulator of n calls at a time, in Python or compiled by Numba."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np

from smoothplan.base import arguments, stopping
from smoothplan.base.compiling import Compiled, load_numba
from smoothplan.base.streams import generator
from smoothplan.models.model import ROW, Actions, Box, Declarations, ModelError, States, _killed, watcher

Step = Callable[[States, Actions, np.random.Generator], tuple[Any, ...]]
"""step(states [n, ...], actions [n], rng) → (next_states, rewards, terminals)."""

ScalarStep = Callable[[Any, Any, np.random.Generator], tuple[Any, ...]]
"""step(state, action, rng), see `VectorModel.from_scalar`. An action is an int; of a `Box`, a float or a vector [d]."""


@dataclass(frozen=True, eq=False)
class VectorModel(Declarations):
    """A simulator of n calls at a time.

    Args:
        step: step(states [n, ...], actions [n], rng) returns (next_states [n, ...], rewards [n], terminals [n]); the
            last may be omitted if nothing is terminal. It draws from `rng` only.
        **declarations: see `Declarations`.

    >>> def drift(states, actions, rng):
    ...     moved = states + 0.1 * (2 * actions[:, None] - 1) + 0.01 * rng.standard_normal(states.shape)
    ...     return moved, np.exp(-moved[:, 0] ** 2)
    >>> model = VectorModel(drift, actions=2, discount=0.9, reward_range=(0, 1), terminates=False, initial_state=[0.0])
    """

    step: Step

    @classmethod
    def from_scalar(cls, step: ScalarStep, **declarations: Any) -> "VectorModel":
        """A model from a simulator of one call at a time, run in a loop: step(state, action, rng).

        It returns (next_state, reward, terminal); the last may be omitted if nothing is terminal. A fourth result is
        the discount of the step, at most the declared one.
        """
        return cls(_Loop(step), **declarations)


@dataclass(frozen=True)
class _Loop:
    """A scalar simulator applied to every row of a batch; an error names the row that fails, see `ROW`."""

    scalar: ScalarStep
    one_at_a_time: ClassVar[bool] = True

    def __call__(self, states: States, actions: Actions, rng: np.random.Generator) -> tuple[Any, ...]:
        watching, running, answers = watcher.get(), stopping.current.get(), []
        given = actions if actions.ndim > 1 else actions.tolist()  # Python's own numbers
        for row, (state, action) in enumerate(zip(states, given, strict=True)):
            if watching is not None:
                watching.row(row)
            if running is not None:  # a batch of a slow simulator may take longer than a limit on time allows
                running.check(len(states) - row)
            try:
                answer = self.scalar(state, action, rng)
                if not isinstance(answer, tuple) or len(answer) not in (2, 3, 4):
                    form = "(next_state, reward, terminal, discount), or the first two or three"
                    raise ModelError(f"step must return {form}, got {arguments.shown(answer)}")
            except stopping.Stopped as stopped:  # a signal came
                stopped.unmade = len(states) - row - 1
                raise
            except (Exception, SystemExit) as error:
                vars(error)[ROW] = row
                raise
            answers.append(answer)
        next_states, rewards = (np.asarray([answer[part] for answer in answers]) for part in (0, 1))
        # Python's numbers take the precision of the states; a fraction is never rounded to a whole number.
        if np.can_cast(next_states.dtype, states.dtype, "same_kind"):
            next_states = next_states.astype(states.dtype, copy=False)
        terminals = np.asarray([len(answer) > 2 and answer[2] for answer in answers])
        if max(map(len, answers)) < 4:
            return next_states, rewards, terminals
        return next_states, rewards, terminals, np.asarray([(*answer, np.nan, np.nan)[3] for answer in answers])


@dataclass(frozen=True, eq=False)
class JitModel(Declarations):
    """A compiled simulator of n calls at a time.

    Args:
        step: a Numba function, or a Python function that Numba can compile, with the arguments of `VectorModel`'s step
            and always three results: (next_states [n, ...], rewards [n] float64, terminals [n] bool), or four with
            discounts [n] float64. It sees the states read-only; Numba refuses to compile a step that changes them.
        **declarations: see `Declarations`. With an `initial_state` the step is compiled at once, so that a mistake
            shows here and not in the middle of a run.
    """

    step: Step

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.step, Compiled):
            vars(self).update(step=self.step.dispatcher)
        elif not hasattr(self.step, "py_func"):
            vars(self).update(step=load_numba().njit(nogil=True)(self.step))
        if self.initial_state is None:
            return
        numba, step = load_numba(), vars(self)["step"]
        some = self.actions.low[None] if isinstance(self.actions, Box) else np.zeros(1, dtype=np.int64)
        states, actions = arguments.frozen(self.initial_state[None]), arguments.frozen(some)
        types = tuple(numba.typeof(value) for value in (states, actions, generator(0)))
        try:
            step.compile(types)
        except Exception as error:  # Numba's own error, or any other: it fails at some steps that change their states
            raise ModelError(f"Numba cannot compile step for states of type {types[0]}: {error}") from error
        found = step.overloads[types].signature.return_type
        numbers, flags = numba.types.float64[::1], numba.types.boolean[::1]
        wanted = numba.types.Tuple((types[0].copy(readonly=False), numbers, flags))
        if (parts := tuple(getattr(found, "types", ()))) not in (wanted.types, (*wanted.types, numbers)):
            raise ModelError(f"step must return (next_states, rewards, terminals) of type {wanted}, got {found}")
        vars(self)["_discounts"] = len(parts) == 4

    @cached_property
    def ending_step(self) -> Step:
        """The step with three results, if there is an initial state: a discount below γ ends the episode at random."""
        if not vars(self)["_discounts"]:
            return self.step
        step, most = cast(Any, self.step), self.discount
        killed = load_numba().njit(nogil=True)(_killed)

        def ending(states: States, actions: Actions, rng: np.random.Generator) -> Any:
            next_states, rewards, terminals, discounts = step(states, actions, rng)
            if not ((discounts >= 0.0) & (discounts <= most)).all():
                raise ValueError("a discount is not between 0 and the declared one")
            return next_states, rewards, terminals | killed(discounts, most, rng)

        return cast(Step, load_numba().njit(nogil=True)(ending))
