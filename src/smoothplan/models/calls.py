"""A simulator call that went wrong, written down so that it can be made again."""

import json
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments, streams
from smoothplan.base.arguments import Ints


class ModelError(ValueError):
    """A simulator or a table contradicts its declarations."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a model's step: for a batch of states, with the random generator as it was before."""

    states: NDArray[Any]  # [n, ...]
    actions: Ints  # [n]
    generator: NDArray[np.uint64]  # see `streams.generator_words`
    seed: int | None = None
    chunk: int | None = None
    row: int | None = None  # the row of the batch that is to blame, if known

    @property
    def rng(self) -> np.random.Generator:
        """A generator in the state before the call."""
        return streams.generator_from(self.generator)

    def place(self) -> str:
        """State, action and stream, in words."""
        if self.row is None and len(self.actions) > 1:  # the row is unknown: naming one would blame it
            return f"in a batch of {len(self.actions):,} states{self.origin()}"
        row = self.row or 0
        state = str(self.states[row].tolist())
        state = state if len(state) <= 200 else f"{state[:200]}…"
        return f"state {state}, action {self.actions[row]}{self.origin()}"

    def origin(self) -> str:
        """The stream that it draws from, in words."""
        return "" if self.seed is None else f", seed {self.seed}, chunk {self.chunk}"

    def to_json(self) -> str:
        """One JSON object."""
        arrays = {name: getattr(self, name).tolist() for name in ("states", "actions", "generator")}
        numbers = {name: getattr(self, name) for name in ("seed", "chunk", "row")}
        return json.dumps(arrays | {"dtype": self.states.dtype.str} | numbers)

    @classmethod
    def from_json(cls, text: str) -> "Call":
        """The call that an object describes. Nothing in it is evaluated."""
        try:
            if len(text) > 1 << 24:  # no simulator call is this long
                raise ValueError(f"it has {len(text)} characters")
            fields = json.loads(text)
            dtype = np.dtype(str(fields["dtype"]))
            if dtype.kind not in "biuf":
                raise ValueError(f"states of dtype {dtype}")
            states = np.array(fields["states"], dtype=dtype)
            actions = np.array(fields["actions"], dtype=np.int64)
            if actions.ndim != 1 or len(actions) == 0 or states.shape[:1] != actions.shape:
                raise ValueError(f"states of shape {states.shape}, actions of shape {actions.shape}")
            words = np.array(fields["generator"], dtype=np.uint64)
            streams.generator_from(words)
            limits = {"seed": np.inf, "chunk": np.inf, "row": len(actions) - 1}
            given = {name: most for name, most in limits.items() if fields[name] is not None}
            numbers = {name: arguments.whole(name, fields[name], least=0, most=most) for name, most in given.items()}
            return cls(states, actions, words, **numbers)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"call must be one that an error of a simulator has written down: {error}") from error

    def narrowed(self, model: Any) -> "Call":
        """The call of the row to blame, if the simulator makes one call at a time; otherwise the whole batch."""
        if self.row is None or len(self.actions) == 1 or not getattr(model.step, "one_at_a_time", False):
            return self
        rng = self.rng
        if self.row > 0:
            try:
                model.step(self.states[: self.row], self.actions[: self.row], rng)
            except Exception:  # it does not repeat itself: the generator's state at the row is unknown
                return self
        return replace(self._part(self.row, self.row + 1), generator=streams.generator_words(rng), row=0)

    def isolated(self, model: Any, kind: type[BaseException]) -> "Call":
        """The smallest part of the batch that is found to raise the same kind of error by itself: one row, if possible.

        Halves are stepped with the same generator for as long as one of them fails, together about twice the rows of
        the batch at most. A run does not count these calls.
        """
        part = self
        while (count := len(part.actions)) > 1:
            halves = part._part(0, count // 2), part._part(count // 2, count)
            failing = next((half for half in halves if half._fails(model, kind)), None)
            if failing is None:
                return part
            part = failing
        return replace(part, row=0)

    def _part(self, first: int, last: int) -> "Call":
        return replace(self, states=self.states[first:last], actions=self.actions[first:last])

    def _fails(self, model: Any, kind: type[BaseException]) -> bool:
        try:
            model.step(arguments.frozen(self.states), arguments.frozen(self.actions), self.rng)
        except (Exception, SystemExit) as error:
            return isinstance(error, kind)
        return False


class SimulatorError(ModelError):
    """A simulator failed in the middle of a run, or contradicts its declarations.

    Attributes:
        call: the call that went wrong: `reproduce(model, error.call)` makes it again.
        partial: the result so far of the run, if there was one. It is certified only if the simulator's declarations
            are true, which the failure may refute.
    """

    def __init__(self, message: str, call: Call) -> None:
        super().__init__(message)
        self.call = call
        self.partial: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.call), {"__notes__": getattr(self, "__notes__", [])}


class RowError(Exception):
    """A simulator that makes one call at a time failed at a row of a batch; its own error is the cause."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Watcher(Protocol):
    """Is told of every call before it is made."""

    def __call__(self, states: NDArray[Any], actions: Ints, rng: np.random.Generator) -> None:
        """A batch is about to be stepped."""

    def row(self, row: int) -> None:
        """A row of that batch is about to be stepped."""


watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
"""Watches the simulator calls of this thread."""
