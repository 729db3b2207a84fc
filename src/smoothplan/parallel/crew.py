"""Chunks of a run on several threads, handed back in order: the result does not depend on who ran what."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

AHEAD = 2
"""Tasks under way per worker: one running, one waiting."""


def in_order(
    run: Callable[[Task], Outcome], tasks: Iterable[Task], workers: int
) -> Generator[tuple[Task, Outcome], None, None]:
    """Runs tasks, a few at a time, and yields each with its outcome in the order of the tasks.

    Closing the generator abandons what has not started; what is running finishes and is forgotten.
    """
    if workers == 1:
        for task in tasks:
            yield task, run(task)
        return
    waiting: deque[tuple[Task, Future[Outcome]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for task in tasks:
            waiting.append((task, pool.submit(run, task)))
            if len(waiting) >= AHEAD * workers:
                task, future = waiting.popleft()
                yield task, future.result()
        while waiting:
            task, future = waiting.popleft()
            yield task, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
