"""A reference for those who have none."""

from typing import Any

import numpy as np

from smoothplan import arguments
from smoothplan.backups import Backup
from smoothplan.engines.grids import MOST_DIMENSIONS
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.references.base import TooFewCallsError
from smoothplan.references.grid import GridReference, default_price
from smoothplan.references.shared import SharedReference
from smoothplan.search.saved import Readable

CALLS, COMPILED_CALLS = 100_000, 400_000
"""Simulator calls for a reference, about, and where the simulator is compiled."""


def default_reference(
    model: GenerativeModel,
    backup: Backup,
    *,
    state: Any = None,
    calls: int = CALLS,
    seed: int = 0,
    saved: Readable | None = None,
    oracle: Oracle | None = None,
) -> SharedReference | GridReference:
    """A reference made from what the model is, by at most a number of simulator calls.

    States that are whole numbers, in any shape, get a `SharedReference`; vectors of up to six floats a `GridReference`
    over what walks from the initial state visit.

    Args:
        model: a simulator with an initial state.
        backup: F.
        state: what a shared reference starts from; the initial state by default.
        calls: simulator calls, at most; a grid is improved by what it leaves over.
        seed: of the simulator calls.
        saved: what the method `saved` gave, of a reference that was made with the same arguments and perhaps improved
            since; this is it again, without any simulator call.
        oracle: counts the calls, also where an error or a signal ends this; by default one of the seed.

    Raises:
        ValueError: neither suits the model, or what was saved does not; the message says what would help.
        TooFewCallsError: a grid may take more calls.
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
        shared = SharedReference(model, backup, root=state, seed=seed, oracle=oracle)
        if saved is not None:
            shared.restore(saved)
            return shared
        shared.improve(arguments.whole("calls", calls))
        return shared
    if start.dtype.kind == "f" and start.ndim == 1 and len(start) <= MOST_DIMENSIONS:
        if saved is not None:
            return GridReference.build(model, backup, seed=seed, saved=saved, oracle=oracle)
        if default_price(model) > calls:
            raise TooFewCallsError(
                f"a grid may take {default_price(model)} simulator calls, more than calls={calls}: build a "
                "GridReference with fewer cells"
            )
        grid = GridReference.build(model, backup, seed=seed, oracle=oracle)
        if grid.calls < arguments.whole("calls", calls):
            grid.improve(calls - grid.calls)
        return grid
    raise ValueError(
        f"no reference can be made for states of dtype {start.dtype} and shape {start.shape}: a table needs whole "
        f"numbers, a grid vectors of at most {MOST_DIMENSIONS} floats. Give a critic: CriticReference(function)"
    )
