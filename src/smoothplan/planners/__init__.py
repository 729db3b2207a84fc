"""Planners: one file each, with its frozen configuration and its run. `plan` runs them; `forecast` prices schedules."""

from smoothplan.planners.gapcruiser import OTGapCruiser
from smoothplan.planners.gape import MDPGapE, OTGapE
from smoothplan.planners.multilevel import RandomizedMultilevel
from smoothplan.planners.recursive import (
    DebiasedCruiser,
    SecondOrderSmoothCruiser,
    SmoothCruiser,
    SparseSampling,
)
from smoothplan.planners.reference_cruiser import ReferenceCruiser
from smoothplan.planners.uct import UCT

__all__ = [
    "UCT",
    "DebiasedCruiser",
    "MDPGapE",
    "OTGapCruiser",
    "OTGapE",
    "RandomizedMultilevel",
    "ReferenceCruiser",
    "SecondOrderSmoothCruiser",
    "SmoothCruiser",
    "SparseSampling",
]
