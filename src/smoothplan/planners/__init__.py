"""Planners: frozen configurations that `plan` runs and `forecast` prices."""

from smoothplan.planners.recursive import SecondOrderSmoothCruiser, SmoothCruiser, SparseSampling

__all__ = ["SecondOrderSmoothCruiser", "SmoothCruiser", "SparseSampling"]
