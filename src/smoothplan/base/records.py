"""Records, which `smoothplan.report` prints and draws when asked, and named arrays, which checkpoints keep."""

import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
