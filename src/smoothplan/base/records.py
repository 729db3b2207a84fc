"""Records, which `smoothplan.report` prints and draws when asked, and named arrays, which checkpoints keep."""

import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from smoothplan.base.arguments import Floats

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, none of them of Python objects."""

Readable = Mapping[str, NDArray[Any]]
"""Arrays by name, read from a file. Further names do not matter."""


class Record:
    """A frozen dataclass that holds a result.

    It knows its fields. The package that prints and draws it lies above all others, so it is imported on first use,
    and only here.
    """

    def summary(self) -> str:
        """The result in a few lines of text."""
        return str(renderer().summary(self))

    def figure(self) -> Any:
        """The result as a Plotly figure."""
        return renderer().figure(self)

    def _repr_html_(self) -> str:
        return str(renderer().html(self))

    def to_dict(self) -> dict[str, Any]:
        """The fields of the JSON object, see `plain`."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.repr}  # type: ignore[arg-type]

    def to_json(self) -> str:
        """One JSON object; numbers that are not finite are null."""
        return to_json(self)


def renderer() -> Any:
    """The module `smoothplan.report`."""
    return importlib.import_module("smoothplan.report")


def to_json(thing: Any) -> str:
    """A record, or a dictionary with records in it, as JSON."""
    return json.dumps(plain(thing), allow_nan=False)


def plain(thing: Any) -> Any:
    """A thing in the types of JSON.

    Dataclasses (without fields that have no repr) and named tuples become dictionaries, numbers that are not finite
    None.
    """
    if isinstance(thing, np.ndarray | np.generic):
        thing = thing.tolist()
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    if isinstance(thing, Record):
        thing = thing.to_dict()
    elif is_dataclass(thing) and not isinstance(thing, type):
        thing = {part.name: getattr(thing, part.name) for part in fields(thing) if part.repr}
    elif hasattr(thing, "_asdict"):
        thing = thing._asdict()
    if isinstance(thing, dict):
        return {name: plain(value) for name, value in thing.items()}
    return [plain(value) for value in thing] if isinstance(thing, list | tuple) else thing


def require(condition: Any, expected: str) -> None:
    """Refuses saved arrays unless a condition holds."""
    if not condition:
        raise ValueError(f"the saved arrays do not fit: {expected}")


def piece(arrays: Readable, name: str, dtype: DTypeLike, *shape: int | None) -> NDArray[Any]:
    """The array of that name, which must have this dtype and shape; None for any length."""
    array = arrays.get(name)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"the saved arrays do not fit: {name!r} is missing")
    fits = array.ndim == len(shape) and all(want in (None, have) for have, want in zip(array.shape, shape, strict=True))
    wanted = "[" + ", ".join("any" if length is None else str(length) for length in shape) + "]"
    require(fits, f"{name!r} must have shape {wanted}, got {list(array.shape)}")
    require(array.dtype == dtype, f"{name!r} must have dtype {np.dtype(dtype)}, got {array.dtype}")
    return array


def finite(arrays: Readable, name: str, *shape: int | None) -> Floats:
    """The array of that name, of finite numbers."""
    array = piece(arrays, name, np.float64, *shape)
    require(np.isfinite(array).all(), f"{name!r} must be finite")
    return array
