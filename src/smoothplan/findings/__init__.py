"""Findings: what an experiment shows, as data: figures, tables, and claims with their verdicts."""

from smoothplan.findings.data import Axis, Claim, Evidence, Figure, Findings, Series, Table

__all__ = ["Axis", "Claim", "Evidence", "Figure", "Findings", "Series", "Table"]
