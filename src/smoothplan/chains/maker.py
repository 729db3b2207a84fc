"""Makes a reference from the simulator if none is given, and improves it, within a hard budget of calls or seconds.

`plan` spends its budget for a reference through a `ReferenceMaker`; `decide` and `Agent` compare several, see
`decide.policies`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.compiling import working_time
from smoothplan.base.records import Arrays, Readable
from smoothplan.chains.fitted import FittedReference
from smoothplan.chains.grid import MOST_DIMENSIONS, GridReference
from smoothplan.chains.reference import Improvable, Reference, TooFewCallsError, start_of
from smoothplan.chains.shared import SharedReference
from smoothplan.models.model import GenerativeModel, Oracle, SimulatorError
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel
from smoothplan.theory.backups import Backup

Learnt = SharedReference | GridReference | FittedReference
"""A reference that is made from simulator calls."""

RECURRENCE = 4.0
"""States recur if there are at least so many simulator calls per discovered state."""


def spend(
    work: Callable[[int], object],
    made: Callable[[], int],
    *,
    calls: int | None = None,
    until: float | None = None,
    first: int = 16,
) -> None:
    """Works within a budget: with all of the calls at once, or until a time in portions that double.

    `work` makes at most the given number of simulator calls, and returns True if nothing is left to do; `made` tells
    the number so far. Calls or a time are given, or both. The time is on the clock of `working_time`: no portion starts
    that would end later, judged by the last one. The first is small: a slow simulator makes twenty calls in a second.
    """
    if until is None:
        assert calls is not None
        if calls > 0:
            work(calls)
        return
    end = math.inf if calls is None else made() + calls
    taken = 0.0
    while (started := working_time()) + 2.0 * taken < until:
        before = made()
        size = int(min(first, end - before))
        if size < 1 or work(size) is True or made() == before:
            return
        first, taken = 2 * first, working_time() - started


class ReferenceMaker:
    """A reference that is given, or else made from the simulator by an oracle, and the count of its calls."""

    def __init__(self, model: GenerativeModel, backup: Backup, reference: Reference | None = None, seed: int = 0):
        self._model, self._backup, self.reference = model, backup, reference
        self.oracle = Oracle(model, seed, role="reference")
        self._given, self._given_calls = reference is not None, 0

    @property
    def calls(self) -> int:
        """Simulator calls made here for the reference, exact even if an error or a stop has ended them."""
        return self.oracle.calls + self._given_calls

    def make(self, state: Any, *, calls: int | None = None, until: float | None = None) -> None:
        """Makes a reference from a state, if there is none, and improves it; see `spend` for the budget."""
        model, backup, oracle = self._model, self._backup, self.oracle

        def work(calls: int) -> None:
            if self.reference is None:
                self.reference = default_reference(model, backup, state=state, calls=calls, oracle=oracle)
            elif isinstance(self.reference, Improvable):
                self.reference.improve(calls)

        if not self._given:  # the first portion must suffice for a grid, if the simulator is compiled
            first = 1 << 14 if isinstance(model, JitModel) else 64
            spend(work, lambda: self.calls, calls=calls, until=until, first=first)

    def improve(self, *, calls: int | None = None, until: float | None = None) -> None:
        """Improves the reference, which has a method `improve`; see `spend` for the budget.

        Raises:
            ValueError: the reference made more calls than it was asked for.
        """
        reference: Any = self.reference
        before = reference.calls
        try:
            spend(reference.improve, lambda: reference.calls, calls=calls, until=until)
        finally:
            made = reference.calls - before
            self._given_calls += made if self._given else 0
        if calls is not None and made > calls:
            raise ValueError(
                f"reference.improve({calls}) must not make more than {calls} simulator calls, but {reference!r} "
                f"made {made}"
            )

    def saved(self) -> Arrays:
        """The state of the reference as named arrays, for `restore`; no arrays if it cannot be saved."""
        saved: Any = getattr(self.reference, "saved", dict)
        return dict(saved())

    def restore(self, state: Any, arrays: Readable) -> None:
        """Takes on a reference that was made from a state and saved, without any simulator call.

        Raises:
            ValueError: the arrays are not those of such a reference.
        """
        if self.reference is None:
            self.reference = default_reference(self._model, self._backup, state=state, saved=arrays, oracle=self.oracle)
        elif hasattr(self.reference, "restore"):
            before = getattr(self.reference, "calls", 0)
            self.reference.restore(arrays)
            self._given_calls += getattr(self.reference, "calls", 0) - before if self._given else 0


def default_reference(
    model: GenerativeModel,
    backup: Backup,
    *,
    state: Any = None,
    calls: int = 100_000,
    seed: int = 0,
    saved: Readable | None = None,
    oracle: Oracle | None = None,
) -> Learnt:
    """A reference that suits the model, by at most `calls` simulator calls.

    States that are whole numbers, in any shape, get a `SharedReference` if they recur. Vectors of up to six floats get
    a `GridReference` if the simulator is compiled. All others get a `FittedReference`. Its `why` gives the reason.

    Args:
        model: a simulator.
        backup: F.
        state: the start of its walks; the initial state by default.
        calls: simulator calls, at most.
        seed: of the simulator calls.
        saved: the arrays from the method `saved` of a reference that was made with the same arguments. It is
            restored, improvements included, without any simulator call.
        oracle: makes the calls, and so counts them even if an error ends them; by default one of `seed`.

    Raises:
        ValueError: no reference suits the model; the message says what would help.
    """
    calls = arguments.whole("calls", calls)
    oracle = Oracle(model, seed, role="reference") if oracle is None else oracle
    start = start_of(model, state, "state")
    until, doubt = oracle.calls + calls, ""

    def finished(reference: Learnt, why: str) -> Learnt:
        """The reference, restored or improved by the calls that are left."""
        if saved is not None:
            reference.restore(saved)
        elif oracle.calls < until:
            reference.improve(until - oracle.calls)
        reference.why = why
        return reference

    if start.dtype.kind in "iub" and (saved is None or "optimistic" in saved):
        shared = SharedReference(model, backup, root=start, oracle=oracle)
        if saved is None:
            # A tenth of the calls shows whether states recur; 2,000 do if half of them suffice.
            shared.improve(max(1, min(calls // 2, max(2_000, int(0.1 * calls)))))
        if saved is not None or recurs(shared):
            return finished(shared, "states of whole numbers recur")
        doubt = f"{shared.states} of {shared.calls} calls discovered a new state, and "
    elif suits_grid(model, start) and (saved is None or "table" in saved):
        assert isinstance(model, JitModel)
        centred = replace(model, initial_state=start)
        try:
            grid = GridReference.build(centred, backup, max_calls=calls, oracle=oracle, saved=saved)
            return finished(grid, "the simulator is compiled")
        except TooFewCallsError:
            doubt = f"{calls} calls are too few for a grid, and "
        except SimulatorError as error:
            doubt = f"a grid asks for states that the simulator does not know ({error}), and "
    if start.dtype.kind not in "iuf" or start.size == 0:
        raise ValueError(
            f"no reference can be made for states of dtype {start.dtype} and shape {start.shape}: a table needs whole "
            "numbers, a fit numbers. Give a critic: CriticReference(function)"
        )
    fitted = FittedReference(model, backup, root=start, oracle=oracle)
    return finished(fitted, f"{doubt}states are vectors of {start.size} numbers")


def suits_grid(model: GenerativeModel, start: Any) -> bool:
    """Whether a grid may be made: of few numbers, by a compiled simulator whose actions are legal everywhere."""
    numbers = start.dtype.kind == "f" and start.ndim == 1 and len(start) <= MOST_DIMENSIONS
    return isinstance(model, JitModel) and model.legal is None and numbers


def recurs(reference: SharedReference) -> bool:
    """Whether states recur, as far as a shared reference can tell, or no other reference will do.

    Only vectors of numbers have neighbours that a fit can learn from: a single whole number, or bytes, may be a label.
    """
    example = np.asarray(reference.explorer.state(0))
    label = example.dtype.kind != "f" and (example.dtype.kind != "i" or example.ndim == 0)
    return isinstance(reference.model, TabularModel) or label or reference.calls >= RECURRENCE * reference.states
