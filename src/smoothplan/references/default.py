"""The reference that is made where none is given."""

from typing import Any

import numpy as np

from smoothplan import arguments
from smoothplan.backups import Backup
from smoothplan.engines.grids import MOST_DIMENSIONS
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.models.jit import JitModel
from smoothplan.references.grid import NODES, GridReference
from smoothplan.references.shared import SharedReference
from smoothplan.search.saved import Readable


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
) -> SharedReference | GridReference:
    """A reference made from what the model is, by at most `calls` simulator calls.

    States that are whole numbers, in any shape, get a `SharedReference`; vectors of up to six floats a `GridReference`
    over what walks from the initial state visit, coarser where there are few calls. What was made and why stands in the
    reference's `why`, and so in its `repr`.

    Args:
        model: a simulator with an initial state.
        backup: F.
        state: what a shared reference starts from; the initial state by default.
        calls: simulator calls, at most.
        seed: of the simulator calls.
        saved: what the method `saved` gave, of a reference that was made with the same arguments and perhaps improved
            since; this is it again, without any simulator call.
        oracle: makes the calls, and so counts them even if an error ends them; by default one of `seed`.

    Raises:
        ValueError: neither suits the model, or what was saved does not; the message says what would help.
        TooFewCallsError: even the coarsest grid takes more than `calls`.
    """
    calls = arguments.whole("calls", calls)
    oracle = Oracle(model, seed) if oracle is None else oracle
    if model.initial_state is None:
        raise ValueError(
            "this model declares no initial_state: build a SharedReference with a root, or a GridReference"
        )
    start = np.asarray(model.initial_state)
    if start.dtype.kind in "iub":
        shared = SharedReference(model, backup, root=state, oracle=oracle)
        shared.why = f"states of whole numbers can be told apart, {calls} simulator calls at most"
        if saved is None:
            shared.improve(calls)
        else:
            shared.restore(saved)
        return shared
    if start.dtype.kind == "f" and start.ndim == 1 and len(start) <= MOST_DIMENSIONS:
        until = oracle.calls + calls
        grid = GridReference.build(model, backup, max_calls=calls, oracle=oracle, saved=saved)
        if saved is None and oracle.calls < until:
            grid.improve(until - oracle.calls)
        grid.why = f"states are vectors of {len(start)} floats, {calls} simulator calls at most"
        if grid.nodes < NODES:
            grid.why += f", and so fewer than {NODES} nodes"
        return grid
    raise ValueError(
        f"no reference can be made for states of dtype {start.dtype} and shape {start.shape}: a table needs whole "
        f"numbers, a grid vectors of at most {MOST_DIMENSIONS} floats. Give a critic: CriticReference(function)"
    )
