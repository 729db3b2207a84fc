"""Reports: the findings of experiments as one self-contained page."""

from smoothplan.report.page import write

__all__ = ["write"]
