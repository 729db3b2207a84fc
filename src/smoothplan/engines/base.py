"""What an engine offers a planner at the root."""

from typing import Any, NamedTuple, Protocol

from smoothplan.arguments import Floats
from smoothplan.models.base import Oracle


class Sums(NamedTuple):
    """What is kept of a batch of samples."""

    samples: int
    total: float
    squares: float


class Engine(Protocol):
    """An interpreter of a schedule for one model and one backup. Engines keep nothing between calls."""

    @property
    def compiled(self) -> bool:
        """Whether it runs beside others in threads; a simulator in Python does not."""

    @property
    def chunk_calls(self) -> int:
        """Simulator calls that take it a fraction of a second: a good size of a chunk."""

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""
