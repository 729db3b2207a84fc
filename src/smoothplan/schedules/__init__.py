"""Schedules: recursive planners as tables of certified levels."""

from smoothplan.schedules.level import Certificate, Level, Problem, certify
from smoothplan.schedules.optimise import optimised
from smoothplan.schedules.schedule import Schedule

__all__ = ["Certificate", "Level", "Problem", "Schedule", "certify", "optimised"]
