"""Checks of what is saved and restored."""

import numpy as np

from smoothplan.base.records import Arrays


def copied(arrays: Arrays) -> Arrays:
    """What comes back from a file: the same bytes elsewhere, read-only."""
    assert all(array.dtype.kind in "biufV" and not array.dtype.hasobject for array in arrays.values())
    return {
        name: np.frombuffer(array.tobytes(), dtype=array.dtype).reshape(array.shape) for name, array in arrays.items()
    }


def equal(one: Arrays, two: Arrays) -> bool:
    """Whether all arrays agree to the last bit."""
    return one.keys() == two.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes())
        == (two[name].dtype, two[name].shape, two[name].tobytes())
        for name in one
    )
