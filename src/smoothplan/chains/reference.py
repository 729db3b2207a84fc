"""References Q̂: their interface, functions and tables as references, and value iteration for references that learn."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.models.model import (
    GenerativeModel,
    ModelError,
    States,
    action_names,
    legal_actions,
    masked,
    total_weight,
)
from smoothplan.theory.softmaxes import Softmaxes, fill_frame, frame_value

QFunction = Callable[[States], ArrayLike]
"""Q̂, from states [n, ...] to [n, K]."""


class TooFewCallsError(ValueError):
    """A reference would take more simulator calls than there may be."""


class Reference(Protocol):
    """Estimates Q̂ of the action values at any state, however good: all that a planner needs and a user must write."""

    def q(self, states: States) -> Floats:
        """Estimates of the action values of states [n, ...], [n, K]."""


def required_reference(reference: Reference | None) -> Reference | None:
    """The reference, if it is one or there is none; otherwise an error with advice."""
    if reference is not None and (isinstance(reference, type) or not callable(getattr(reference, "q", None))):
        raise TypeError(f"reference must have a method q(states), got {reference!r}: see CriticReference")
    return reference


@runtime_checkable
class Improvable(Reference, Protocol):
    """A reference that more simulator calls improve.

    With two more methods, `saved()`, its state as named arrays, and `restore(arrays)`, a checkpoint keeps it: a
    restored reference continues with the same bits. `improve(calls, state)` lets an agent improve it where it is.
    """

    @property
    def calls(self) -> int:
        """Simulator calls made for it so far."""

    def improve(self, calls: int) -> None:
        """Improves the estimates by at most that many more calls."""


class CriticReference:
    """Any function from states to estimates: a network, a heuristic.

    Args:
        function: from states [n, ...] to estimates [n, K].

    >>> CriticReference(lambda states: -np.abs(states - [1.0, -1.0])).q(np.array([[0.5], [2.0]])).tolist()
    [[-0.5, -1.5], [-1.0, -3.0]]
    """

    def __init__(self, function: Callable[[States], ArrayLike]) -> None:
        if not callable(function):
            raise TypeError(f"function must be a function from states to action values, got {function!r}")
        self._function = function

    def q(self, states: States) -> Floats:
        """The function's answer, [n, K]. Planners check its shape and that it is finite."""
        return arguments.numbers("the critic's answer", self._function(np.asarray(states)))

    def __repr__(self) -> str:
        return f"CriticReference({getattr(self._function, '__name__', self._function)!s})"


class TabularReference:
    """A table of estimates, for a model whose states are numbered from 0.

    Args:
        q: estimates, [S, K], such as those of an exact solution.
    """

    def __init__(self, q: ArrayLike) -> None:
        table = arguments.array("q", q)
        if table.ndim != 2 or table.size == 0:
            raise ValueError(f"q must be a table [S, K], got shape {table.shape}")
        self.table: Floats = arguments.frozen(table.copy())

    def q(self, states: States) -> Floats:
        """Rows of the table, [n, K]."""
        return np.asarray(self.table[numbered(states, len(self.table))])

    def __repr__(self) -> str:
        return f"TabularReference(states={self.table.shape[0]}, actions={self.table.shape[1]})"


# For references that are learnt


def numbered(states: States, count: int) -> States:
    """States [n] that are numbers below a count, or an error."""
    states = np.asarray(states)
    if states.ndim != 1 or states.dtype.kind not in "iu":
        raise TypeError(f"states must be whole numbers [n], got dtype {states.dtype} and shape {states.shape}")
    unknown = (states < 0) | (states >= count)
    if unknown.any():
        raise ValueError(f"state {states[unknown][0]} is not one of the states 0..{count - 1}")
    return states


def start_of(model: GenerativeModel, state: Any, name: str = "root") -> States:
    """The state from which a reference is made: the model's initial state unless one is given."""
    if state is None and model.initial_state is None:
        raise ValueError(f"{name} must be given, because this model declares no initial_state")
    return np.asarray(model.initial_state if state is None else state)


def as_points(states: States, root: States, model: GenerativeModel) -> Floats:
    """What a fit sees of states [n, ...] of the shape of the root: the model's `features`, or all numbers, [n, d]."""
    states, axes = np.asarray(states), root.ndim + 1
    if states.ndim != axes:
        raise ValueError(f"states must have {axes} axes, the first of which counts them, got {states.shape}")
    features = getattr(model, "features", None)
    if features is None:
        return states.reshape(len(states), int(np.prod(states.shape[1:]))).astype(np.float64)
    given = states if len(states) else root[None]
    try:
        found = arguments.numbers("features(states)", features(arguments.frozen(given)))
    except Exception as error:
        text = f"features raised {type(error).__name__}: {error} (for {len(given)} states, the first of them "
        raise ModelError(f"{text}{given[0].tolist()})") from error
    if found.ndim != 2 or len(found) != len(given) or found.shape[1] == 0:
        raise ValueError(f"features must return vectors [n, d] for {len(given)} states, got shape {found.shape}")
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found).all(axis=1)))
        raise ValueError(f"features must be finite, got {found[row].tolist()} at state {given[row].tolist()}")
    return found[: len(states)]


def reason(why: str) -> str:
    """The part of a reference's `repr` that says why it was chosen."""
    return f", why={why!r}" if why else ""


def values_of(reference: QFunction, states: States, model: GenerativeModel) -> Floats:
    """Q̂ at states that are not terminal, [n, K], read-only, with −∞ for illegal actions.

    Raises:
        ValueError: its shape or a number is wrong; the error names the state. Nothing is asked of illegal actions.
    """
    shape, mask = (len(states), model.actions), legal_actions(model, states)
    q = arguments.numbers("reference.q(states)", reference(arguments.frozen(states)))
    if q.shape != shape:
        raise ValueError(f"the reference of {len(states)} states must have shape {shape}, got {q.shape}")
    wrong = ~np.isfinite(q) if mask is None else ~np.isfinite(q) & mask
    if wrong.any():
        row, action = np.argwhere(wrong)[0]
        place = f"state {np.asarray(states[row]).tolist()}, action {action_names(model)[action]}"
        raise ValueError(f"the reference must be finite, got {q[row, action]} ({place})")
    result: Floats = arguments.frozen(masked(q, mask))
    return result


class FiniteModel(NamedTuple):
    """A model with S states, K actions and at most B successors: Q(s, a) = rewards + γ Σ chances·V(successors)."""

    rewards: Floats  # [S·K], means
    chances: Floats  # [S·K, B]; 0 if there is no transition, or it ends the episode
    successors: Ints  # [S·K, B]
    rows: Ints  # [S], the row of a state's weights in `soft.weights`
    discount: float
    soft: Softmaxes


def iterate(
    model: FiniteModel,
    q: Floats,
    values: Floats,
    tolerance: float,
    backup: Callable[[Floats], Floats] | None = None,
    horizon: int | None = None,
) -> None:
    """Value iteration from values [S] to q [S, K], both overwritten, until every value is within the tolerance.

    If F is not a mixture of softmaxes, `backup` is F at all states, from [S, K] to [S]. There are at most 100,000
    sweeps, more than any discount below 0.9999 needs. With a horizon as many sweeps as steps are exact.
    """
    columns, actions = model.soft.shifts.shape
    # If a sweep changes values by at most d, they are within dγ/(1−γ) of the fixed point.
    enough, most = tolerance * (1.0 - model.discount) / max(model.discount, tolerance), 100_000
    if horizon is not None:
        enough, most = tolerance / total_weight(model.discount, horizon), min(horizon, most)
    if backup is None:
        _iterate(model, q.reshape(-1), values, enough, most, np.zeros((1, 1 + columns, actions + 1)))
        return
    for _ in range(most):
        future = (model.chances * values[model.successors]).sum(axis=1)
        q[:] = (model.rewards + model.discount * future).reshape(q.shape)
        before, values[:] = values.copy(), backup(q)
        if np.abs(values - before).max(initial=0.0) <= enough:
            return


@compiled
def _iterate(model: FiniteModel, q: Floats, values: Floats, enough: float, most: int, frames: Floats) -> None:
    """Sweeps over all states, in descending and ascending order in turn, until no value changes by more than enough."""
    count, actions = len(values), model.soft.shifts.shape[1]
    for sweep in range(most):
        change = 0.0
        for place in range(count):
            state = count - 1 - place if sweep % 2 == 0 else place
            for action in range(actions):
                pair = state * actions + action
                future = 0.0
                for branch in range(model.chances.shape[1]):
                    future += model.chances[pair, branch] * values[model.successors[pair, branch]]
                q[pair] = frames[0, 0, action] = model.rewards[pair] + model.discount * future
            fill_frame(frames, 0, model.soft)
            value = frame_value(frames, 0, model.rows[state], model.soft)
            change = max(change, abs(value - values[state]))
            values[state] = value
        if change <= enough:
            return
