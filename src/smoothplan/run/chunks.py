"""Chunks: independent samples drawn from one random stream, the sums that an engine returns, and sizes of chunks.

An engine at a root is a `Work`. A `Chunk` names a method of that engine and its arguments, so its outcome is the same
wherever it is computed.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import working_time
from smoothplan.base.stopping import Stopped, current
from smoothplan.base.streams import Role
from smoothplan.models.model import GenerativeModel, Oracle, States

CALLS_AT_ONCE = 1 << 15
"""Simulator calls of one NumPy batch: enough to hide Python's overhead, small enough for the processor's cache."""

T = TypeVar("T")


class ClusterError(RuntimeError):
    """The cluster is gone."""

    partial: Any = None  # the result of the run so far, if there was one


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over independent samples."""

    samples: int = 0  # their number
    total: float = 0.0
    squares: float = 0.0  # the sum of their squares
    more: tuple[float, ...] = ()  # further sums, which only the engine and its planner know

    def __add__(self, other: "Sums") -> "Sums":
        more = tuple(one + two for one, two in zip_longest(self.more, other.more, fillvalue=0))
        return Sums(self.samples + other.samples, self.total + other.total, self.squares + other.squares, more)

    @property
    def moments(self) -> tuple[int, float, float]:
        """The number of samples, their sum and the sum of their squares."""
        return self.samples, self.total, self.squares

    def write(self) -> list[float]:
        """The sums as a list of numbers, for a checkpoint."""
        return [np.asarray(number).item() for number in (*self.moments, *self.more)]

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Self:
        """The sums that `write` gave."""
        return cls(int(numbers[0]), numbers[1], numbers[2], tuple(numbers[3:]))


class Chunk(NamedTuple, Generic[T]):
    """Samples at the root that are drawn from one random stream."""

    number: int  # of its stream
    draw: Callable[..., T]  # a method of the engine's class: draw(engine, oracle, state, *arguments)
    arguments: tuple[Any, ...]  # numbers, and arrays of numbers
    samples: int
    action: int = 0  # for returns of an action
    part: str = ""  # the planner's own label


class Outcome(NamedTuple, Generic[T]):
    """The result of a chunk."""

    sums: T  # from `draw`: `Sums` if the outcome is kept in checkpoints
    calls: int  # simulator calls
    seconds: float  # without compiling


class Done(NamedTuple):
    """The result of a batch: the outcomes up to the first chunk that failed, and its error."""

    outcomes: list[Outcome[Any]]
    error: BaseException | None = None
    abandoned: int = 0  # simulator calls of the chunk that failed


@dataclass(frozen=True, eq=False)
class Work:
    """An engine at a root. The outcome of a chunk depends on nothing else, wherever it is computed."""

    engine: Any  # has the methods that chunks name; `compiled` if threads can run it, while Python needs processes
    model: GenerativeModel
    state: Any  # the root
    seed: int  # of the run
    about: str = ""  # distinguishes it from other work of the same run, and of other runs with the same chunk numbers
    kept: bool = True  # whether outcomes are written to a checkpoint; a search keeps its own as part of its state
    role: Role = "samples"  # of the streams that chunks draw from

    def each(
        self, chunks: Iterable[Chunk[Any]], around: Callable[[Chunk[Any]], AbstractContextManager[Any]] = nullcontext
    ) -> Done:
        """Computes chunks one after the other, each within a context, up to the first that fails."""
        outcomes: list[Outcome[Any]] = []
        running = current.get()
        for chunk in chunks:
            oracle = Oracle(self.model, self.seed, chunk.number, self.role)
            try:
                if running is not None:
                    running.check()
                with around(chunk):
                    started = working_time()
                    found = chunk.draw(self.engine, oracle, self.state, *chunk.arguments)
                    outcomes.append(Outcome(found, oracle.calls, working_time() - started))
            except (Exception, KeyboardInterrupt, Stopped) as error:
                return Done(outcomes, error, oracle.calls)
        return Done(outcomes)

    def asked(self, chunk: Chunk[Any]) -> str:
        """A digest of the work of a chunk, the same in every process."""
        plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in chunk.arguments]
        text = json.dumps([self.about, chunk.draw.__qualname__, plain])
        return blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(eq=False)
class Batch:
    """Chunks that are sent together, and their outcomes."""

    work: Work
    chunks: list[Chunk[Any]]
    done: Done | None = None
    ticket: Any = None  # the future of its pool, if it is on its way
    deaths: int = 0  # of processes that computed it; after the first one it is computed in a child


def chunk_size(
    chunk_calls: int,
    each: float,
    *,
    samples: int | None = None,
    pieces: tuple[int, int] = (1, 8),
    planned: int | None = None,
    max_calls: int | None = None,
) -> int:
    """Samples of the next chunk. It depends on nothing that a worker or the clock decides.

    Args:
        chunk_calls: simulator calls that take the engine a fraction of a second: a chunk needs no more.
        each: simulator calls of one sample.
        samples: the size of the batch to be cut.
        pieces: the fewest and the most chunks of the batch: the most, unless chunks would be smaller than 2⁻⁵ of
            `chunk_calls`. By default enough for a few workers.
        planned: simulator calls planned before. The first chunk is 2⁻⁹ of `chunk_calls`, and no other is more than an
            eighth of the calls planned before, so that a chunk of a slow simulator is never much of a run.
        max_calls: the run's limit. A chunk takes no more than 1/64 of it, because one that does not fit is left out.
    """
    each = max(each, 1.0)
    largest = chunk_calls if max_calls is None else min(chunk_calls, max_calls // 64)
    size = largest // each
    if samples is not None:
        fewest, most = (math.ceil(samples / count) for count in pieces)
        size = min(size, fewest, max(most, (chunk_calls >> 5) // each))
    if planned is not None:
        size = min(size, max(planned // 8, chunk_calls >> 9) // each)
    return max(1, int(size))


# For engines that run in NumPy


def pieces(count: int, largest: int) -> Iterator[int]:
    """Sizes, at most `largest` each, that add up to a count."""
    for start in range(0, count, largest):
        yield min(largest, count - start)


def repeated(state: Any, count: int) -> States:
    """A state as a batch [count, ...]."""
    return np.repeat(np.asarray(state)[None], count, axis=0)


def categorical(probabilities: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Draws from the columns of distributions [m, n] or [m, 1], by inversion, [n].

    Rounding falls to the last entry whose probability is not 0.
    """
    levels = rng.random(count)
    drawn = np.zeros(count, dtype=np.int64)
    passed = np.zeros(probabilities.shape[1])
    for entry in probabilities[:-1]:
        passed = passed + entry
        drawn += levels >= passed
    if not probabilities[-1].all():
        drawn = np.minimum(drawn, len(probabilities) - 1 - (probabilities[::-1] > 0.0).argmax(axis=0))
    return drawn


def added(count: int, batches: Iterable[Floats]) -> Sums:
    """The sums of a number of samples that come in batches."""
    total = squares = 0.0
    for samples in batches:
        total, squares = total + float(samples.sum()), squares + float(samples @ samples)
    return Sums(count, total, squares)
