"""References: where Q̂ comes from if not from recursion. A critic, a table, a grid, a fit, a shared memory."""

from smoothplan.chains.fitted import FittedReference
from smoothplan.chains.grid import GridReference
from smoothplan.chains.maker import default_reference
from smoothplan.chains.reference import (
    CriticReference,
    Improvable,
    Reference,
    Savable,
    TabularReference,
    TooFewCallsError,
)
from smoothplan.chains.shared import SharedReference

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
