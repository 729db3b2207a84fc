"""The reference that is made where none is given."""

from dataclasses import replace
from typing import Any

import numpy as np

from smoothplan import arguments
from smoothplan.backups import Backup
from smoothplan.engines.grids import MOST_DIMENSIONS
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.models.calls import SimulatorError
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.references.base import Improvable, Reference, TooFewCallsError
from smoothplan.references.fitted import FittedReference
from smoothplan.references.grid import GridReference
from smoothplan.references.shared import SharedReference
from smoothplan.search.saved import Readable

TRIAL, TRIAL_CALLS = 0.1, 2_000
"""The part of the calls after which it is known whether states recur; and the least number of them, if half suffice."""

RECURRING = 4.0
"""Calls for each discovered state from which on states are said to recur."""


def usual_calls(model: GenerativeModel) -> int:
    """Simulator calls for a reference, if no other number is given: more where the simulator is compiled."""
    return 400_000 if isinstance(model, JitModel) else 100_000


def default_reference(
    model: GenerativeModel,
    backup: Backup,
    *,
    state: Any = None,
    calls: int = 100_000,
    seed: int = 0,
    saved: Readable | None = None,
    oracle: Oracle | None = None,
) -> SharedReference | GridReference | FittedReference:
    """A reference made from what the model is, by at most `calls` simulator calls.

    States that are whole numbers, in any shape, get a `SharedReference` if they recur. Vectors of up to six floats get
    a `GridReference` if the simulator is compiled. All others get a `FittedReference`. What was made and why stands in
    the reference's `why`, and so in its `repr`.

    Args:
        model: a simulator.
        backup: F.
        state: where it starts from; the initial state by default.
        calls: simulator calls, at most.
        seed: of the simulator calls.
        saved: what the method `saved` gave, of a reference that was made with the same arguments and perhaps improved
            since; this is it again, without any simulator call.
        oracle: makes the calls, and so counts them even if an error ends them; by default one of `seed`.

    Raises:
        ValueError: none suits the model, or what was saved does not; the message says what would help.
    """
    calls = arguments.whole("calls", calls)
    oracle = Oracle(model, seed) if oracle is None else oracle
    if state is None and model.initial_state is None:
        raise ValueError("state must be given, for this model declares no initial_state")
    start = np.asarray(model.initial_state if state is None else state)
    until, doubt = oracle.calls + calls, ""
    if start.dtype.kind in "iub" and (saved is None or "hopes" in saved):
        shared = SharedReference(model, backup, root=start, oracle=oracle)
        if saved is not None:
            shared.restore(saved)
        else:
            shared.improve(trial_calls(calls))
            if not recurs(shared):
                doubt = f"{shared.states} of {shared.calls} calls discovered a new state, and "
            elif oracle.calls < until:
                shared.improve(until - oracle.calls)
        if not doubt:
            shared.why = f"states of whole numbers recur, {calls} simulator calls at most"
            return shared
    elif _suits_grid(model, start) and (saved is None or "table" in saved):
        centred: Any = replace(model, initial_state=start) if isinstance(model, JitModel) else model
        try:
            grid = GridReference.build(centred, backup, max_calls=calls, oracle=oracle, saved=saved)
            if saved is None and oracle.calls < until:
                grid.improve(until - oracle.calls)
            grid.why = f"the simulator is compiled, {calls} simulator calls at most"
            return grid
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
    fitted.why = f"{doubt}states are vectors of {start.size} numbers, {calls} simulator calls at most"
    if saved is not None:
        fitted.restore(saved)
    elif oracle.calls < until:
        fitted.improve(until - oracle.calls)
    return fitted


def made_or_improved(
    reference: Reference | None, model: GenerativeModel, backup: Backup, state: Any, calls: int, oracle: Oracle
) -> Reference:
    """The reference, better by at most that many calls; the default one where there is none yet."""
    if reference is None:
        return default_reference(model, backup, state=state, calls=calls, oracle=oracle)
    if isinstance(reference, Improvable):
        reference.improve(calls)
    return reference


def trial_calls(calls: int) -> int:
    """Simulator calls, of a number of them, after which it is known whether states recur."""
    return max(1, min(calls // 2, max(TRIAL_CALLS, int(TRIAL * calls))))


def walks_recur(model: GenerativeModel, oracle: Oracle, start: Any, calls: int) -> bool:
    """Whether random walks from a state meet the same states again, by at most that many calls."""
    walks, seen = 16, set[bytes]()
    states = np.repeat(np.asarray(start)[None], walks, axis=0)
    steps = calls // walks
    for _ in range(steps):
        found = oracle.sample(states, oracle.rng.integers(model.actions, size=walks))
        seen.update(state.tobytes() for state in found.next_states)
        states = found.next_states.copy()
        states[found.terminals] = start
    return steps > 0 and steps * walks >= RECURRING * len(seen)


def recurs(reference: SharedReference) -> bool:
    """Whether states recur, as far as a shared reference can tell, or nothing else will do.

    Only vectors of numbers have neighbours that a fit can learn from: a single whole number, or bytes, may be a label.
    """
    example = np.asarray(reference.explorer.state(0))
    kind = example.dtype.kind
    label = isinstance(reference.model, TabularModel) or (kind != "f" and example.ndim == 0) or kind not in "if"
    return label or reference.calls >= RECURRING * reference.states


def _suits_grid(model: GenerativeModel, start: Any) -> bool:
    return isinstance(model, JitModel) and start.dtype.kind == "f" and start.ndim == 1 and len(start) <= MOST_DIMENSIONS
