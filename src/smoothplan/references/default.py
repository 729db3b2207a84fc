"""A reference for those who have none."""

from typing import Any

import numpy as np

from smoothplan import arguments
from smoothplan.backups import Backup
from smoothplan.engines.grids import MOST_DIMENSIONS
from smoothplan.models.base import GenerativeModel
from smoothplan.references.grid import GridReference, default_price
from smoothplan.references.shared import SharedReference
from smoothplan.search.saved import Readable

CALLS, COMPILED_CALLS = 100_000, 400_000
"""Simulator calls for a reference, about, and where the simulator is compiled."""


class TooFewCallsError(ValueError):
    """A reference would take more simulator calls than there may be."""


def default_reference(
    model: GenerativeModel,
    backup: Backup,
    *,
    state: Any = None,
    calls: int = CALLS,
    max_calls: int | None = None,
    seed: int = 0,
    saved: Readable | None = None,
) -> SharedReference | GridReference:
    """A reference made from what the model is, by about so many simulator calls.

    States that are whole numbers, in any shape, get a `SharedReference`; vectors of up to six floats a `GridReference`
    over what walks from the initial state visit.

    Args:
        model: a simulator with an initial state.
        backup: F.
        state: what a shared reference starts from; the initial state by default.
        calls: simulator calls; a grid makes as many as it needs, and is then improved by what is left.
        max_calls: a limit, no smaller than `calls`, that is kept in any case.
        seed: of the simulator calls.
        saved: what the method `saved` gave, of a reference that was made with the same arguments and perhaps improved
            since; this is it again, without any simulator call.

    Raises:
        ValueError: neither suits the model, or what was saved does not; the message says what would help.
        TooFewCallsError: a grid may take more than `max_calls`.
    """
    if model.initial_state is None:
        raise ValueError(
            "this model declares no initial_state: build a SharedReference with a root, or a GridReference"
        )
    start = np.asarray(model.initial_state)
    if start.dtype.kind in "iub":
        if model.max_successors is None:
            raise ValueError(
                "this model declares no max_successors, without which a shared reference cannot bound its error: "
                "declare it, build a SharedReference with successors=..., or give a critic"
            )
        shared = SharedReference(model, backup, root=state, seed=seed)
        if saved is not None:
            shared.restore(saved)
            return shared
        shared.improve(arguments.whole("calls", calls))
        return shared
    if start.dtype.kind == "f" and start.ndim == 1 and len(start) <= MOST_DIMENSIONS:
        if saved is not None:
            return GridReference.build(model, backup, seed=seed, saved=saved)
        if max_calls is not None and default_price(model) > max_calls:
            raise TooFewCallsError(
                f"a grid may take {default_price(model)} simulator calls, more than max_calls={max_calls}: build a "
                "GridReference with fewer cells"
            )
        grid = GridReference.build(model, backup, seed=seed)
        if grid.calls < arguments.whole("calls", calls):
            grid.improve(calls - grid.calls)
        return grid
    raise ValueError(
        f"no reference can be made for states of dtype {start.dtype} and shape {start.shape}: a table needs whole "
        f"numbers, a grid vectors of at most {MOST_DIMENSIONS} floats. Give a critic: CriticReference(function)"
    )
