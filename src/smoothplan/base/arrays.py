"""Named arrays for checkpoints: what is written, and checks of what is read back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from smoothplan.base.arguments import Floats

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, none of them of Python objects."""


Readable = Mapping[str, NDArray[Any]]
"""The same, from a file. Other names than those that are looked for do not matter."""


def require(condition: Any, what: str) -> None:
    """Refuses saved arrays of which something is not true."""
    if not condition:
        raise ValueError(f"the saved arrays do not fit: {what}")


def piece(arrays: Readable, name: str, dtype: DTypeLike, *shape: int | None) -> NDArray[Any]:
    """The array of that name, which must have this dtype and shape; None for any length."""
    array = arrays.get(name)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"the saved arrays do not fit: {name!r} is missing")
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    wanted = "[" + ", ".join("any" if length is None else str(length) for length in shape) + "]"
    require(fits, f"{name!r} must have shape {wanted}, got {list(array.shape)}")
    require(array.dtype == dtype, f"{name!r} must have dtype {np.dtype(dtype)}, got {array.dtype}")
    return array


def finite(arrays: Readable, name: str, *shape: int | None) -> Floats:
    """The array of that name, of finite numbers."""
    array = piece(arrays, name, np.float64, *shape)
    require(np.isfinite(array).all(), f"{name!r} must be finite")
    return array
