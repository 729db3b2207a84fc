"""Computes the work of a run: chunks in any order, outcomes in the order of the chunks; and searches, in slices.

Chunk c draws from stream c, and chunks are made before their outcomes are known. So the result of a run does not depend
on where or when a chunk was computed, and an outcome may also come from a checkpoint. Other threads and processes get
chunks in batches that take long enough to be worth sending, by the measured seconds per chunk.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from contextvars import copy_context
from typing import Any

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.compiling import paused_clock
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.stopping import Stopped, StopSignal, current
from smoothplan.run.checkpoint import Checkpoint, ChunkRow
from smoothplan.run.chunks import Batch, Chunk, ClusterError, Done, Outcome, Sums, T, Work
from smoothplan.run.cluster import DaskPool

AHEAD = 2
"""Batches sent per worker: one running, one waiting."""

BEHIND = 16
"""Batches per worker that may be done before their turn, while they wait for a slow one."""

SLICE_CALLS = 20_000
"""Simulator calls, and rounds, after which a search looks at the clock, at most."""


class ThreadPool:
    """Threads: for compiled engines and other simulators that release the interpreter lock."""

    batch_seconds = 0.05  # how long a batch should take: much longer than it takes to send it

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.under_way: list[Batch] = []
        self._stop_signal = StopSignal()
        self._threads = ThreadPoolExecutor(workers)

    def send(self, batch: Batch) -> None:
        """Computes a batch in one of the threads, unless the pool is closed first."""
        context = copy_context()
        context.run(current.set, self._stop_signal)
        batch.ticket = self._threads.submit(context.run, batch.work.each, batch.chunks)
        self.under_way.append(batch)

    def receive(self, seconds: float) -> list[Batch]:
        """Waits until a batch is done, but no longer than that; all that are done."""
        wait([batch.ticket for batch in self.under_way], seconds, FIRST_COMPLETED)
        arrived = [batch for batch in self.under_way if batch.ticket.done()]
        for batch in arrived:
            batch.done = batch.ticket.result()
            self.under_way.remove(batch)
        return arrived

    def discard(self) -> None:
        """Stops the batches under way: simulators at their next call, compiled code at the end of a chunk."""
        self._stop_signal.pull()
        self._stop_signal = StopSignal()

    def close(self) -> None:
        """Discards the batches under way, and waits for the threads to end."""
        self.discard()
        self._threads.shutdown(wait=True, cancel_futures=True)


class Workers(AbstractContextManager["Workers"]):
    """Computes the chunks of a run.

    Args:
        workers: a number of threads or processes on this machine, 1 for this thread; "threads:4" for threads with any
            simulator; the address of a Dask scheduler; or a Dask client.
        chunk_seconds: seconds that one chunk may take. Chunks are then computed in processes, which can be ended.
        worker_memory: bytes that a process on this machine may use; a fair share of the machine's memory by default.
        stop_signal: stops the run.

    Attributes:
        checkpoint: outcomes are written there before they count, and looked up, if it is set.
        abandoned: simulator calls of the chunk that failed or, in this thread, was stopped. No outcome includes them.
    """

    def __init__(
        self,
        workers: Any = 1,
        *,
        chunk_seconds: float | None = None,
        worker_memory: int | None = None,
        stop_signal: StopSignal | None = None,
    ) -> None:
        # Dask tells a client from other objects, when work begins.
        self._wanted = arguments.whole("workers", workers) if isinstance(workers, int | float) else workers
        self._threaded = isinstance(workers, str) and workers.partition(":")[0] in ("thread", "threads")
        if self._threaded:
            if re.fullmatch(r"threads:[1-9][0-9]*", workers) is None:
                raise ValueError(f'workers must be a number of threads like "threads:4", got {workers!r}')
            if chunk_seconds is not None or worker_memory is not None:
                raise ValueError(
                    f"chunk_seconds and worker_memory limit processes, not threads, got workers={workers!r}"
                )
            self._wanted = int(workers.removeprefix("threads:"))
        self._seconds = None if chunk_seconds is None else arguments.positive("chunk_seconds", chunk_seconds)
        self._memory = None if worker_memory is None else arguments.whole("worker_memory", worker_memory)
        if worker_memory is not None and not isinstance(self._wanted, int):
            raise ValueError("worker_memory is for processes on this machine: give `dask worker` its --memory-limit")
        self.checkpoint: Checkpoint | None = None
        self.stop_signal = stop_signal or StopSignal()
        self.abandoned = 0
        self._verified: set[str] = set()  # kinds of chunks of which one was computed again, and compared
        self._pool: ThreadPool | DaskPool | None = None
        self._pace: dict[str, float] = {}  # seconds of a chunk

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Discards work in progress; outcomes that have arrived are written to the checkpoint."""
        with ExitStack() as last:
            if self.checkpoint is not None:
                last.callback(self.checkpoint.close)
            if self._pool is not None:
                last.callback(self._pool.close)
                with suppress(ClusterError):  # whatever ended the run comes first
                    self._receive(0.0)

    def in_order(self, work: Work, chunks: Iterable[Chunk[T]]) -> Generator[tuple[Chunk[T], Outcome[T]], None, None]:
        """Computes chunks and yields each with its outcome, in their order. Chunks are asked for as they are needed.

        Raises:
            Stopped: a signal came, or time is up.
            SimulatorError: a simulator failed; the outcomes before its chunk have been yielded.
            ClusterError: the cluster is gone.
        """
        if self._pool is None:
            with paused_clock():  # starting workers does not count against a limit on time
                self._pool = self._pool_for(work)
        try:
            for chunk, outcome in self._here(work, chunks) if self._pool is None else self._elsewhere(work, chunks):
                yield chunk, outcome
                self.stop_signal.check()
        except Stopped:
            if isinstance(self._pool, ThreadPool):
                self._pool.discard()  # an agent's next decision must not wait for it
            raise

    def _pool_for(self, work: Work) -> ThreadPool | DaskPool | None:
        """Threads or processes for this work and all later work; None for this thread alone."""
        if isinstance(self._wanted, int) and self._seconds is None and self._memory is None:
            if self._wanted == 1:
                return None
            if self._threaded or work.engine.compiled:
                return ThreadPool(self._wanted)
        return DaskPool(self._wanted, work, self._seconds, self._memory)

    def _here(self, work: Work, chunks: Iterable[Chunk[T]]) -> Iterator[tuple[Chunk[T], Outcome[T]]]:
        for chunk in chunks:
            outcome = self._known(work, chunk)
            if outcome is None:
                done = work.each([chunk])
                self._raise(done)
                (outcome,) = done.outcomes
                self._write(work, [chunk], [outcome])
            yield chunk, outcome

    def _elsewhere(self, work: Work, chunks: Iterable[Chunk[T]]) -> Iterator[tuple[Chunk[T], Outcome[T]]]:
        pool = self._pool
        assert pool is not None
        batches = self._batches(pool, work, chunks)
        waiting: deque[Batch] = deque()  # in their order, done or not
        while True:
            while len(pool.under_way) < AHEAD * pool.workers and len(waiting) < BEHIND * pool.workers:
                batch = next(batches, None)
                if batch is None:
                    break
                waiting.append(batch)
                if batch.done is None:
                    pool.send(batch)
            if not waiting:
                return
            first = waiting.popleft()
            while first.done is None:
                self.stop_signal.check()
                self._receive(0.05)
            yield from zip(first.chunks, first.done.outcomes, strict=False)
            self._raise(first.done)

    def _raise(self, done: Done) -> None:
        """Raises the error that ended a batch, if any."""
        self.abandoned += done.abandoned
        if isinstance(done.error, KeyboardInterrupt):
            raise Stopped("interrupted")
        if done.error is not None:
            raise done.error

    def _batches(self, pool: ThreadPool | DaskPool, work: Work, chunks: Iterable[Chunk[Any]]) -> Iterator[Batch]:
        """Chunks in batches; a chunk with a known outcome makes a batch of its own, which is done."""
        batch: list[Chunk[Any]] = []
        expected = 0.0
        for chunk in chunks:
            outcome = self._known(work, chunk)
            if outcome is None:
                batch.append(chunk)
                # The first batches have one chunk each, until the first one is back.
                expected += self._pace.get(chunk.draw.__qualname__, pool.batch_seconds)
            if batch and (outcome is not None or expected >= pool.batch_seconds):
                yield Batch(work, batch)
                batch, expected = [], 0.0
            if outcome is not None:
                yield Batch(work, [chunk], Done([outcome]))
        if batch:
            yield Batch(work, batch)

    def _receive(self, seconds: float) -> None:
        """Waits a little, and receives the batches that are done, in any order."""
        for batch in () if self._pool is None else self._pool.receive(seconds):
            assert batch.done is not None
            self._write(batch.work, batch.chunks, batch.done.outcomes)
            for chunk, outcome in zip(batch.chunks, batch.done.outcomes, strict=False):
                kind = chunk.draw.__qualname__
                # Follows a change within a few chunks.
                self._pace[kind] = 0.5 * (outcome.seconds + self._pace.get(kind, outcome.seconds))

    def _known(self, work: Work, chunk: Chunk[Any]) -> Outcome[Any] | None:
        """The outcome of a chunk from before the run was resumed. The first of each kind is made again, to compare."""
        row = None
        if self.checkpoint is not None and work.kept:
            row = self.checkpoint.find(chunk.number, work.asked(chunk))
        if row is None or chunk.draw.__qualname__ not in self._verified:
            self._verified.add(chunk.draw.__qualname__)
            return None
        return Outcome(Sums.read(row.numbers), row.calls, 0.0)

    def _write(self, work: Work, chunks: Sequence[Chunk[Any]], outcomes: Sequence[Outcome[Sums]]) -> None:
        """Writes outcomes to the checkpoint; one that is there already must be the same, bit for bit."""
        if self.checkpoint is None or not work.kept:
            return
        new = []
        for chunk, outcome in zip(chunks, outcomes, strict=False):
            row = ChunkRow(work.asked(chunk), outcome.sums.write(), outcome.calls)
            before = self.checkpoint.find(chunk.number, row.asked)
            if before is None:
                new.append((chunk.number, row))
            elif before != row:
                raise self.checkpoint.refuse_simulator(f"chunk {chunk.number}")
        if new:
            self.checkpoint.add(new)

    @property
    def threads(self) -> int:
        """Threads that compiled work in this process may use."""
        return self._wanted if isinstance(self._wanted, int) else 1

    def recall(self, name: str, restore: Callable[[Readable], object]) -> bool:
        """Restores a snapshot from before the run was resumed; whether there was any."""
        if self.checkpoint is None or (arrays := self.checkpoint.snapshot(name)) is None:
            return False
        restore(arrays)
        return True

    def keep(self, name: str, saved: Callable[[], Arrays]) -> None:
        """Writes arrays to the checkpoint, if there is one, in place of earlier ones of that name."""
        if self.checkpoint is not None:
            self.checkpoint.keep(name, saved())

    def in_slices(self, search: Any, explore: Callable[[int, int], tuple[int, bool]], max_calls: int | None) -> bool:
        """Searches until the search is over or has made all the calls that it may; whether it is over.

        The rounds of such a search build on each other, so this thread makes them. Between slices the checkpoint is
        written, if there is one, and the stop signal is checked.

        Args:
            search: has `calls`, and `saved` and `restore` for a checkpoint.
            explore: searches until a number of calls is made, without exceeding a limit; returns the calls made so far
                and whether the search is over.
            max_calls: the limit of the run.
        """
        limit = 2**62 if max_calls is None else min(max_calls, 2**62)  # more calls than any run makes
        over = False

        def keep() -> None:
            self.keep("search", lambda: search.saved() | {"over": np.array([over])})

        def restore(arrays: Readable) -> None:
            nonlocal over
            search.restore(arrays)
            over = bool(arrays["over"][0])

        if not self.recall("search", restore):
            keep()  # a search that cannot be saved is refused before the work, not after
        elif over or search.calls >= limit:
            return over  # one more slice would tighten its bounds: another result than that of the run that was saved
        calls, next_keep = search.calls, time.perf_counter() + 1.0
        while True:
            # A slice is a tenth of the calls made, so that the clock is soon looked at with a slow simulator.
            calls, over = explore(min(calls + min(SLICE_CALLS, 1 + int(0.1 * calls)), limit), limit)
            ended = over or calls >= limit
            # Only between slices can a search be saved and resumed with the same result.
            stopped, started = self.stop_signal.is_pulled, time.perf_counter()
            if ended or stopped or started >= next_keep:
                keep()
                # At most once per second, and a twentieth of the time.
                next_keep = started + max(1.0, (time.perf_counter() - started) / 0.05)
            if ended:
                return over
            if stopped:
                self.stop_signal.check()
