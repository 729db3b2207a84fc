"""Checks of what is saved and restored."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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


def put(name: str, index: Any, value: Any) -> Callable[[Arrays], None]:
    """Changes a number in an array."""

    def change(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def remade(name: str, function: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    """Replaces an array."""

    def change(arrays: Arrays) -> None:
        arrays[name] = function(arrays[name])

    return change


Damage = tuple[str, Callable[[Arrays], Any]]
"""What an error says, and what was done to the arrays."""


def refused(fresh: Any, good: Arrays, damages: list[Damage]) -> None:
    """Each damage is an error that names it, and leaves everything as it was."""
    before = fresh.saved()
    for complaint, damage in damages:
        arrays = dict(good)
        damage(arrays)
        with pytest.raises(ValueError, match=complaint):
            fresh.restore(arrays)
        assert equal(fresh.saved(), before)
