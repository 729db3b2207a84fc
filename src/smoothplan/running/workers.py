"""A workers does the tasks of a run, in any order, and hands the outcomes back in the order of the tasks.

A run decides by outcomes, one after the other, so what it finds does not depend on who did which task, or when: chunk c
draws from stream c, tasks are made before their outcomes are known, and an outcome may come from a checkpoint. Tasks
are sent in parcels that take long enough to be worth sending, by the pace of those before.
"""

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Protocol

from smoothplan import brake
from smoothplan.brake import PATIENCE, Brake, Stopped
from smoothplan.running.checkpoint import CheckpointError, Journal
from smoothplan.running.records import Fact
from smoothplan.running.work import SUMS, Chunk, Delivery, Method, Outcome, Work
from smoothplan.search.saved import Arrays, Readable

AHEAD = 2
"""Parcels under way per worker: one running, one waiting."""

BEHIND = 16
"""Parcels per worker that may be done before their turn, while one that is slow holds them up."""

STEADY = 0.5
"""The weight of the latest parcel in the pace."""


class ClusterError(RuntimeError):
    """The cluster is gone.

    Attributes:
        partial: the valid result of the run so far, where a run was under way.
    """

    partial: Any = None


class Pool(Protocol):
    """Those who do tasks."""

    @property
    def note(self) -> str | None:
        """What the user may want to know of them."""

    @property
    def workers(self) -> int:
        """How many tasks are done at a time."""

    @property
    def parcel_seconds(self) -> float:
        """How long a parcel should take: much longer than it takes to send it."""

    def submit(self, work: Work, tasks: Sequence[Chunk]) -> "Future[Delivery]":
        """Does tasks, some time."""

    def close(self) -> None:
        """Abandons what is not done. Nobody is left behind."""


class ThreadPool:
    """Threads: for compiled engines, which run side by side."""

    parcel_seconds = 0.05
    note = None

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._brake = Brake()
        self._threads = ThreadPoolExecutor(workers)

    def submit(self, work: Work, tasks: Sequence[Chunk]) -> "Future[Delivery]":
        """Does tasks in one of the threads, unless the pool is closed first."""
        context = copy_context()
        context.run(brake.current.set, self._brake)
        return self._threads.submit(context.run, work.each, tasks)

    def close(self) -> None:
        """Waits for compiled chunks, which are short; other simulators are stopped at their next call."""
        self._brake.pull()
        self._threads.shutdown(wait=True, cancel_futures=True)


@dataclass(eq=False)
class _Parcel:
    """Tasks that travel together, and what became of them."""

    work: Work
    tasks: list[Chunk]
    future: "Future[Delivery] | None" = None
    delivery: Delivery | None = None


class Workers(AbstractContextManager["Workers"]):
    """Does the tasks of a run.

    Args:
        hire: from the first work to those who do it all; None for nobody else, in the thread that asks.
        journal: where outcomes are written down before they count, and looked up.
        brake: what stops the run.
        announce: shows what the user may want to know.
    """

    def __init__(
        self,
        hire: Callable[[Work], Pool | None] = lambda work: None,
        journal: Journal | None = None,
        brake: Brake | None = None,
        announce: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.journal = journal
        self.brake = brake or Brake()
        self._hire, self._announce = hire, announce
        self._hired = False
        self._pool: Pool | None = None
        self._arrivals: queue.SimpleQueue[_Parcel] = queue.SimpleQueue()
        self._under_way = 0  # parcels
        self._pace: dict[Method, float] = {}  # seconds of a task

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abandons what is under way; what is done by now is written down."""
        try:
            if self._pool is not None:
                self._pool.close()
            self._take_in()
        finally:
            if self.journal is not None:
                self.journal.close()

    def in_order(self, work: Work, tasks: Iterable[Chunk]) -> Generator[tuple[Chunk, Outcome], None, None]:
        """Does tasks and yields each with its outcome, in their order. Tasks are asked for as they are needed.

        Raises:
            Stopped: the brake was pulled, or time is up.
            SimulatorError: a simulator failed; the outcomes before its task have been yielded.
        """
        if not self._hired:
            self._pool, self._hired = self._hire(work), True
            if self._pool is not None and self._pool.note is not None:
                self._announce(self._pool.note)
        pool = self._pool
        for task, outcome in self._here(work, tasks) if pool is None else self._elsewhere(pool, work, tasks):
            yield task, outcome
            self.brake.check()

    def _here(self, work: Work, tasks: Iterable[Chunk]) -> Iterator[tuple[Chunk, Outcome]]:
        for task in tasks:
            outcome = self._known(work, task)
            if outcome is None:
                try:
                    outcome = work(task)
                except KeyboardInterrupt:
                    raise Stopped("interrupted") from None
                self._write_down(work, [task], [outcome])
            yield task, outcome

    def _elsewhere(self, pool: Pool, work: Work, tasks: Iterable[Chunk]) -> Iterator[tuple[Chunk, Outcome]]:
        parcels = self._parcels(pool, work, tasks)
        waiting: deque[_Parcel] = deque()
        more = True
        while True:
            while more and self._under_way < AHEAD * pool.workers and len(waiting) < BEHIND * pool.workers:
                parcel = next(parcels, None)
                more = parcel is not None
                if parcel is not None:
                    self._send(pool, parcel)
                    waiting.append(parcel)
            if not waiting:
                return
            first = waiting.popleft()
            while first.delivery is None:
                self.brake.check()
                self._take_in(PATIENCE)
            outcomes, error = first.delivery
            yield from zip(first.tasks, outcomes, strict=False)
            if isinstance(error, KeyboardInterrupt):
                raise Stopped("interrupted")
            if error is not None:
                raise error

    def _parcels(self, pool: Pool, work: Work, tasks: Iterable[Chunk]) -> Iterator[_Parcel]:
        """Tasks in parcels; those whose outcome is known make one of their own, which is done."""
        parcel: list[Chunk] = []
        expected = 0.0
        for task in tasks:
            outcome = self._known(work, task)
            if outcome is None:
                parcel.append(task)
                # The pace is not known before the first parcel is back.
                expected += self._pace.get(task.method, pool.parcel_seconds)
            if parcel and (outcome is not None or expected >= pool.parcel_seconds):
                yield _Parcel(work, parcel)
                parcel, expected = [], 0.0
            if outcome is not None:
                yield _Parcel(work, [task], delivery=Delivery([outcome]))
        if parcel:
            yield _Parcel(work, parcel)

    def _send(self, pool: Pool, parcel: _Parcel) -> None:
        if parcel.delivery is None:
            parcel.future = pool.submit(parcel.work, parcel.tasks)
            self._under_way += 1
            parcel.future.add_done_callback(lambda _: self._arrivals.put(parcel))

    def _take_in(self, patience: float = 0.0) -> None:
        """Writes down what has arrived, whoever's turn it is; waits a little for the first."""
        try:
            parcel = self._arrivals.get(timeout=patience) if patience else self._arrivals.get_nowait()
            while True:
                self._receive(parcel)
                parcel = self._arrivals.get_nowait()
        except queue.Empty:
            return

    def _receive(self, parcel: _Parcel) -> None:
        future = parcel.future
        assert future is not None
        self._under_way -= 1
        if future.cancelled():
            return  # abandoned
        error = future.exception()
        delivery = Delivery([], error) if error is not None else future.result()
        self._write_down(parcel.work, parcel.tasks, delivery.outcomes)
        for task, outcome in zip(parcel.tasks, delivery.outcomes, strict=False):
            before = self._pace.get(task.method, outcome.seconds)
            self._pace[task.method] = STEADY * outcome.seconds + (1.0 - STEADY) * before
        parcel.delivery = delivery

    def _known(self, work: Work, task: Chunk) -> Outcome | None:
        """The outcome of a task that was done before the run was resumed."""
        fact = None if self.journal is None else self.journal.find(task.number, work.asked(task))
        if fact is None:
            return None
        try:
            sums = SUMS[task.method](*fact.numbers)  # type: ignore[arg-type]
        except TypeError:
            raise CheckpointError(f"chunk {task.number} of the checkpoint has {len(fact.numbers)} numbers") from None
        return Outcome(sums, fact.calls, 0.0)

    def _write_down(self, work: Work, tasks: Sequence[Chunk], outcomes: Sequence[Outcome]) -> None:
        if self.journal is not None and outcomes:
            done = zip(tasks, outcomes, strict=False)
            self.journal.add((task.number, Fact(work.asked(task), tuple(o.sums), o.calls)) for task, o in done)

    def has(self, name: str) -> bool:
        """Whether something of that name was kept."""
        return self.journal is not None and self.journal.has(name)

    def recall(self, name: str, restore: Callable[[Readable], object]) -> bool:
        """Restores something from what was kept before the run was resumed; whether there was anything."""
        arrays = None if self.journal is None else self.journal.snapshot(name)
        if arrays is None:
            return False
        try:
            restore(arrays)
            return True
        except ValueError as error:
            raise CheckpointError(f"the checkpoint has a {name} that nobody can go on with: {error}") from error

    def keep(self, name: str, saved: Callable[[], Arrays]) -> None:
        """Writes arrays down, in the place of earlier ones of that name, if there is a journal."""
        if self.journal is not None:
            self.journal.keep(name, saved())
