"""What a reference is, and the two that need no simulator: a function, and a table."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.base.records import Arrays, Readable
from smoothplan.models.model import States
from smoothplan.theory.exact import Solution


class TooFewCallsError(ValueError):
    """A reference would take more simulator calls than there may be."""


class Reference(Protocol):
    """Estimates Q̂ of the action values, at any state. This is all that a planner needs and all that a user must write.

    Nothing is promised of their quality: a planner may be told of it, and must not take it for granted.
    """

    def q(self, states: States) -> Floats:
        """Estimates of the action values of states [n, ...], [n, K]."""


@runtime_checkable
class Improvable(Reference, Protocol):
    """A reference that more simulator calls make better."""

    @property
    def calls(self) -> int:
        """Simulator calls made for it so far."""

    def improve(self, calls: int) -> None:
        """Makes better what it can by at most that many more."""


@runtime_checkable
class Savable(Reference, Protocol):
    """A reference whose state can be kept in a file. One that is restored goes on with the same bits."""

    def saved(self) -> Arrays:
        """Its state as named arrays."""

    def restore(self, arrays: Readable) -> None:
        """Takes on the state of a reference that was made with the same arguments; ValueError if it cannot be one."""


class CriticReference:
    """Any function from states to estimates: a network, a heuristic.

    Args:
        function: from states [n, ...] to estimates [n, K].

    >>> reference = CriticReference(lambda states: -np.abs(states - [1.0, -1.0]))
    >>> reference.q(np.array([[0.5], [2.0]])).tolist()
    [[-0.5, -1.5], [-1.0, -3.0]]
    """

    def __init__(self, function: Callable[[States], ArrayLike]) -> None:
        if not callable(function):
            raise TypeError(f"function must be a function from states to action values, got {function!r}")
        self._function = function

    def q(self, states: States) -> Floats:
        """What the function says, [n, K]. Planners check its shape and that it is finite."""
        return arguments.numbers("the critic's answer", self._function(np.asarray(states)))

    def __repr__(self) -> str:
        return f"CriticReference({getattr(self._function, '__name__', self._function)!s})"


class TabularReference:
    """A table of estimates, for a model whose states are numbered from 0.

    Args:
        q: estimates, [S, K].
    """

    def __init__(self, q: ArrayLike) -> None:
        table = arguments.array("q", q)
        if table.ndim != 2 or table.size == 0:
            raise ValueError(f"q must be a table [S, K], got shape {table.shape}")
        self.table: Floats = arguments.frozen(table.copy())

    @classmethod
    def from_solution(cls, solution: Solution) -> "TabularReference":
        """The action values of an exact solution, perhaps of another model or another backup."""
        return cls(solution.q)

    def q(self, states: States) -> Floats:
        """Rows of the table, [n, K]."""
        return np.asarray(self.table[numbered(states, len(self.table))])

    def __repr__(self) -> str:
        return f"TabularReference(states={self.table.shape[0]}, actions={self.table.shape[1]})"


def numbered(states: States, count: int) -> States:
    """States [n] that are numbers below a count, or an error."""
    states = np.asarray(states)
    if states.ndim != 1 or states.dtype.kind not in "iu":
        raise TypeError(f"states must be whole numbers [n], got dtype {states.dtype} and shape {states.shape}")
    unknown = (states < 0) | (states >= count)
    if unknown.any():
        raise ValueError(f"state {states[unknown][0]} is not one of the states 0..{count - 1}")
    return states


def reason(why: str) -> str:
    """The part of a reference's `repr` that says why it was chosen."""
    return f", why={why!r}" if why else ""
