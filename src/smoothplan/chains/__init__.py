"""References Q̂, estimates of action values that do not come from recursion: critic, table, grid, fit, shared memory."""

from smoothplan.chains.fitted import FittedReference
from smoothplan.chains.grid import GridReference
from smoothplan.chains.least_squares import LeastSquaresReference
from smoothplan.chains.maker import default_reference
from smoothplan.chains.reference import CriticReference, Improvable, Reference, TabularReference, TooFewCallsError
from smoothplan.chains.shared import SharedReference

__all__ = [
    "CriticReference",
    "FittedReference",
    "GridReference",
    "Improvable",
    "LeastSquaresReference",
    "Reference",
    "SharedReference",
    "TabularReference",
    "TooFewCallsError",
    "default_reference",
]
