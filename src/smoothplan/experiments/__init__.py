"""Experiments: each checks claims of the paper, or of ours, with one command."""

from typing import Any

from smoothplan.experiments import constants, critic, errata, exponents, gap, regret, smoothing, throughput
from smoothplan.experiments.base import Cell, Experiment, Row, Scale, run

EXPERIMENTS: dict[str, Experiment[Any]] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (exponents, errata, constants, smoothing, gap, regret, critic, throughput)
}
"""By name, in the order in which they are best read."""

__all__ = ["EXPERIMENTS", "Cell", "Experiment", "Row", "Scale", "run"]
