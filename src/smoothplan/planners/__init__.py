"""Planners: frozen configurations that `plan` runs and, where the price is known in advance, `forecast` prices."""

from smoothplan.planners.gapcruiser import OTGapCruiser
from smoothplan.planners.recursive import SecondOrderSmoothCruiser, SmoothCruiser, SparseSampling

__all__ = ["OTGapCruiser", "SecondOrderSmoothCruiser", "SmoothCruiser", "SparseSampling"]
