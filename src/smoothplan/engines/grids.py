"""Tables on regular grids, in the form that compiled code reads."""

from typing import NamedTuple

from smoothplan.arguments import Floats, Ints


class Grid(NamedTuple):
    """Action values at the nodes of a regular grid over a box."""

    low: Floats  # [d]
    high: Floats  # [d]
    shape: Ints  # [d], nodes along each axis
    table: Floats  # [nodes, K], row-major
