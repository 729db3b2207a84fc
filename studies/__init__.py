"""Studies: evidence about smoothplan, beside the library. Each checks claims of the paper, or of ours."""

from importlib import import_module
from typing import Any

from studies.base import Study

NAMES = (
    "exponents",
    "errata",
    "constants",
    "smoothing",
    "gap",
    "regret",
    "decisions",
    "peers",
    "critic",
    "prism",
    "throughput",
)
"""In the order in which they are best read."""


def load(name: str) -> Study[Any]:
    """The study of that name."""
    study: Study[Any] = import_module(f"studies.{name}").STUDY
    return study
