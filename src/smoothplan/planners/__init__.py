"""Planners: frozen configurations that `plan` runs and, where the price is known in advance, `forecast` prices."""

from smoothplan.planners.baselines import UCT, RandomizedMultilevel
from smoothplan.planners.gapcruiser import OTGapCruiser
from smoothplan.planners.gape import MDPGapE, OTGapE
from smoothplan.planners.recursive import SecondOrderSmoothCruiser, SmoothCruiser, SparseSampling
from smoothplan.planners.reference import ReferenceCruiser

__all__ = [
    "UCT",
    "MDPGapE",
    "OTGapCruiser",
    "OTGapE",
    "RandomizedMultilevel",
    "ReferenceCruiser",
    "SecondOrderSmoothCruiser",
    "SmoothCruiser",
    "SparseSampling",
]
