"""A reference for those who have none."""

import numpy as np

from smoothplan import arguments
from smoothplan.backups import Backup
from smoothplan.engines.grids import MOST_DIMENSIONS
from smoothplan.models.base import GenerativeModel
from smoothplan.references.grid import GridReference
from smoothplan.references.shared import SharedReference

CALLS = 100_000
"""Simulator calls for a shared reference, at most."""


def default_reference(
    model: GenerativeModel, backup: Backup, *, calls: int = CALLS, seed: int = 0
) -> SharedReference | GridReference:
    """A reference made from what the model is, by about so many simulator calls.

    States that are whole numbers, in any shape, get a `SharedReference`; vectors of up to six floats a `GridReference`
    over what walks from the initial state visit.

    Args:
        model: a simulator with an initial state.
        backup: F.
        calls: simulator calls; a grid makes as many as it needs, and is then improved by what is left.
        seed: of the simulator calls.

    Raises:
        ValueError: neither suits the model; the message says what would help.
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
        shared = SharedReference(model, backup, seed=seed)
        shared.improve(arguments.whole("calls", calls))
        return shared
    if start.dtype.kind == "f" and start.ndim == 1 and len(start) <= MOST_DIMENSIONS:
        grid = GridReference.build(model, backup, seed=seed)
        if grid.calls < arguments.whole("calls", calls):
            grid.improve(calls - grid.calls)
        return grid
    raise ValueError(
        f"no reference can be made for states of dtype {start.dtype} and shape {start.shape}: a table needs whole "
        f"numbers, a grid vectors of at most {MOST_DIMENSIONS} floats. Give a critic: CriticReference(function)"
    )
