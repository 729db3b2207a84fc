"""Where a reference Q̂ comes from when it is not recursion: a critic, a table, a grid, a fit, a memory of estimates."""

from smoothplan.references.base import (
    CriticReference,
    Improvable,
    Reference,
    Savable,
    TabularReference,
    TooFewCallsError,
)
from smoothplan.references.default import default_reference
from smoothplan.references.fitted import FittedReference
from smoothplan.references.grid import GridReference
from smoothplan.references.shared import SharedReference

__all__ = [
    "CriticReference",
    "FittedReference",
    "GridReference",
    "Improvable",
    "Reference",
    "Savable",
    "SharedReference",
    "TabularReference",
    "TooFewCallsError",
    "default_reference",
]
