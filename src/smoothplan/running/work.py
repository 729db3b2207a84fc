"""What a run hands out: work, which is an engine at a root, and chunks of it."""

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np

from smoothplan.brake import Stopped
from smoothplan.compiling import working_time
from smoothplan.engines.base import Sums
from smoothplan.engines.chains import PairSums
from smoothplan.engines.multilevel import RootSums
from smoothplan.engines.returns import Paired
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.running.fingerprint import fingerprint
from smoothplan.search.batches import Sampled

Method = Literal["values", "returns", "corrections", "roots", "pairs", "paired"]

SUMS: dict[Method, type[Sums] | type[PairSums] | type[RootSums] | type[Sampled] | type[Paired]] = {
    "values": Sums,
    "returns": Sums,
    "corrections": PairSums,
    "roots": RootSums,
    "pairs": Sampled,
    "paired": Paired,
}
"""What the methods of engines return."""


class Chunk(NamedTuple):
    """A number of samples at the root, drawn from one random stream: what an engine is asked for."""

    number: int  # of its stream
    method: Method
    arguments: tuple[Any, ...]  # of the method, after oracle and state: numbers, and arrays of numbers
    samples: int
    action: int = 0  # for returns of an action


class Outcome(NamedTuple):
    """What a chunk brought."""

    sums: Sums | PairSums | RootSums | Sampled | Paired
    calls: int  # simulator calls
    seconds: float  # that it took, without compiling


class Done(NamedTuple):
    """What became of a batch: the outcomes up to the first chunk that failed, and why that failed."""

    outcomes: list[Outcome]
    error: BaseException | None = None
    abandoned: int = 0  # simulator calls of the chunk that failed


@dataclass(frozen=True, eq=False)
class Work:
    """An engine at a root. The outcome of a chunk depends on nothing else, wherever it is computed.

    Args:
        engine: an `Engine`, or `Chains`.
        model: the simulator.
        state: the root.
        seed: of the run.
        about: distinguishes it from other work of the same run, and of other runs with the same chunk numbers.
        kept: whether outcomes are written to a checkpoint; those of a search are part of what it keeps itself.
    """

    engine: Any
    model: GenerativeModel
    state: Any
    seed: int
    about: Any = None
    kept: bool = True

    def _outcome(self, chunk: Chunk, oracle: Oracle) -> Outcome:
        started = working_time()
        found = getattr(self.engine, chunk.method)(oracle, self.state, *chunk.arguments)
        sums = SUMS[chunk.method](*(value.item() if isinstance(value, np.generic) else value for value in found))
        return Outcome(sums, oracle.calls, working_time() - started)

    def each(
        self, chunks: Iterable[Chunk], around: Callable[[Chunk], AbstractContextManager[Any]] = nullcontext
    ) -> Done:
        """Computes chunks one after the other, each within a context, up to the first that fails."""
        outcomes: list[Outcome] = []
        for chunk in chunks:
            oracle = Oracle(self.model, self.seed, chunk.number)
            try:
                with around(chunk):
                    outcomes.append(self._outcome(chunk, oracle))
            except (Exception, KeyboardInterrupt, Stopped) as error:
                return Done(outcomes, error, oracle.calls)
        return Done(outcomes)

    def asked(self, chunk: Chunk) -> str:
        """A digest of what is asked for, the same in every process."""
        plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in chunk.arguments]
        return blake2b(json.dumps([self._about, chunk.method, plain]).encode(), digest_size=8).hexdigest()

    @cached_property
    def _about(self) -> str:
        return fingerprint(self.about)  # which takes a while, and only checkpoints need it

    @property
    def compiled(self) -> bool:
        """Whether threads can share it: compiled code runs in parallel, a simulator in Python does not."""
        return bool(self.engine.compiled)


@dataclass(eq=False)
class Batch:
    """Chunks that are sent together, and what became of them."""

    work: Work
    chunks: list[Chunk]
    done: Done | None = None
    ticket: Any = None  # what the pool knows of it
