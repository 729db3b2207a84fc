"""A pool of worker processes of our own."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from smoothplan import arguments
from smoothplan.running.contained import ContainedWorker
from smoothplan.running.work import Chunk, Delivery, Packed, Work

MEMORY_SHARE = 0.8
"""Of the machine's memory: what all workers together may grow by."""

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says how much memory a container may have: a number, or a word for no limit."""


class _Job(NamedTuple):
    packed: Packed
    tasks: Sequence[Chunk]
    future: Future[Delivery]


class ProcessPool:
    """Does tasks in several processes, which contain whatever a simulator does.

    Processes are started when there is something to do for them.

    Args:
        workers: how many processes.
        timeout: seconds that one simulator call may take; see `ContainedWorker`.
        memory: bytes by which a process may grow; by default its share of most of the machine's memory.
    """

    parcel_seconds = 0.5
    note = None

    def __init__(self, workers: int, timeout: float | None = None, memory: int | None = None) -> None:
        self.workers = arguments.whole("workers", workers)
        if memory is None:
            memory = default_memory(self.workers)
        self._contained = [ContainedWorker(timeout, memory) for _ in range(self.workers)]
        self._threads: list[threading.Thread] = []
        self._jobs: deque[_Job] = deque()
        self._idle = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [worker.pid for worker in self._contained if worker.pid is not None]

    def submit(self, work: Work, tasks: Sequence[Chunk]) -> Future[Delivery]:
        """Hands out tasks of a work, to be done by one process.

        Raises:
            PackingError: the work cannot be sent to a process.
        """
        job = _Job(work.packed, tasks, Future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._jobs.append(job)
            if len(self._jobs) > self._idle and len(self._threads) < self.workers:
                worker = self._contained[len(self._threads)]
                # A program that ends does not wait for them; their processes end with it.
                thread = threading.Thread(target=self._serve, args=(worker,), name="smoothplan-worker", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Abandons what is waiting, kills what is running; no process is left. Their futures are cancelled."""
        with self._changed:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in waiting:
            job.future.cancel()
        for worker in self._contained:
            worker.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _serve(self, worker: ContainedWorker) -> None:
        while (job := self._next()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                delivery = worker.run(job.packed, job.tasks)
            except BaseException as error:
                job.future.set_exception(error)
            else:
                job.future.set_result(delivery)

    def _next(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._closed)
            self._idle -= 1
            return self._jobs.popleft() if self._jobs else None


def default_memory(workers: int) -> int | None:
    """Bytes for each of so many processes; None where nobody knows how much there is."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    with suppress(OSError, ValueError):
        machine = min(machine, int(CONTAINER_LIMIT.read_text()))
    return int(MEMORY_SHARE * machine / workers)
