"""What a run hands out: work, which is an engine at a root, and tasks, which are chunks of it."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np

from smoothplan.engines.base import Sums
from smoothplan.engines.chains import PairSums
from smoothplan.engines.multilevel import RootSums
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.running.fingerprint import fingerprint

Method = Literal["values", "returns", "corrections", "roots"]

SUMS: dict[Method, type[Sums] | type[PairSums] | type[RootSums]] = {
    "values": Sums,
    "returns": Sums,
    "corrections": PairSums,
    "roots": RootSums,
}
"""What the methods of engines return."""


class Chunk(NamedTuple):
    """A chunk of samples: what an engine is asked for."""

    number: int  # of its stream
    method: Method
    arguments: tuple[Any, ...]  # of the method, after oracle and state: numbers, and arrays of numbers
    samples: int
    action: int = 0  # for returns of an action


class Outcome(NamedTuple):
    """What became of a task."""

    sums: Sums | PairSums | RootSums
    calls: int  # simulator calls
    seconds: float  # that it took


class Delivery(NamedTuple):
    """What became of a few tasks: outcomes up to the first that failed, and why it did."""

    outcomes: list[Outcome]
    error: BaseException | None = None


class Packed(NamedTuple):
    """Work in bytes, to be sent to another process."""

    digest: str
    data: bytes


@dataclass(frozen=True, eq=False)
class Work:
    """An engine at a root. What a task gives depends on nothing else, whoever does it.

    Args:
        engine: an `Engine`, or `Chains`.
        model: the simulator.
        state: the root.
        seed: of the run.
        about: tells it from other work of the same run, and from what another run did under the same numbers.
    """

    engine: Any
    model: GenerativeModel
    state: Any
    seed: int
    about: Any = None

    def __call__(self, task: Chunk) -> Outcome:
        """Does a task."""
        started = time.perf_counter()
        oracle = Oracle(self.model, self.seed, task.number)
        found = getattr(self.engine, task.method)(oracle, self.state, *task.arguments)
        sums = SUMS[task.method](*(value.item() if isinstance(value, np.generic) else value for value in found))
        return Outcome(sums, oracle.calls, time.perf_counter() - started)

    def asked(self, task: Chunk) -> str:
        """A digest of what is asked for, the same in every process."""
        plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in task.arguments]
        return blake2b(json.dumps([self._about, task.method, plain]).encode(), digest_size=8).hexdigest()

    @cached_property
    def _about(self) -> str:
        return fingerprint(self.about)  # which takes a while, and only checkpoints need it

    def each(self, tasks: Sequence[Chunk]) -> Delivery:
        """Does tasks one after the other, up to the first that fails."""
        outcomes = []
        for task in tasks:
            try:
                outcomes.append(self(task))
            except Exception as error:
                return Delivery(outcomes, error)
        return Delivery(outcomes)

    @property
    def compiled(self) -> bool:
        """Whether threads can share it: compiled code runs side by side, a simulator in Python does not."""
        return bool(self.engine.compiled)

    @cached_property
    def packed(self) -> Packed:
        """This work in bytes, with whatever the simulator needs that was not imported from an installed package.

        Raises:
            PackingError: it cannot be sent anywhere.
        """
        from smoothplan.running.packing import pack  # which needs this module

        return pack(self)
