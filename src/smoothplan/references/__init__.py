"""Where a reference Q̂ comes from when it is not recursion: a critic, a table, a grid, a shared memory of estimates."""

from smoothplan.references.base import CriticReference, Reference, TabularReference
from smoothplan.references.grid import GridReference

__all__ = ["CriticReference", "GridReference", "Reference", "TabularReference"]
