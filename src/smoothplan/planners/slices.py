"""A search whose rounds build on each other: one worker makes slices of it, with a look at the clock in between."""

import time
from collections.abc import Callable
from typing import Protocol

from smoothplan.running.run import Display
from smoothplan.running.workers import Workers
from smoothplan.search.saved import Arrays, Readable

SLICE_CALLS = 20_000
"""Simulator calls after which a run looks at the clock, at most; rounds too."""

SLICE_RATIO = 0.1
"""Before that, a slice is this fraction of the calls made."""

KEEP_SECONDS, KEEP_SHARE = 1.0, 0.05
"""A checkpoint is written after so many seconds, and takes no more than this part of the time."""

ENDLESS = 2**62
"""More calls than anybody makes."""


class Searching(Protocol):
    """A run that searches."""

    @property
    def calls(self) -> int:
        """Simulator calls made."""

    @property
    def interval(self) -> tuple[float, float]:
        """Of the root's value."""

    def saved(self) -> Arrays:
        """The search as arrays, for a checkpoint."""

    def restore(self, arrays: Readable) -> None:
        """Takes on the search that was saved."""


def in_slices(
    run: Searching, explore: Callable[[int, int], bool], max_calls: int | None, workers: Workers, display: Display
) -> bool:
    """Searches until the search says that it is over, or has made all calls that it may; returns which.

    Args:
        run: whose search it is.
        explore: searches until a number of calls is made, without exceeding a limit, and says whether it is over.
        max_calls: that limit; None for none.
        workers: knows of checkpoints, and when to stop.
        display: where to show how far it is.
    """
    limit = ENDLESS if max_calls is None else min(max_calls, ENDLESS)
    if not workers.recall("search", run.restore) and workers.checkpoint is not None:
        run.saved()  # what cannot be saved is refused before the work, not after
    next_keep = time.perf_counter() + KEEP_SECONDS
    while True:
        found = explore(min(run.calls + min(SLICE_CALLS, 1 + int(SLICE_RATIO * run.calls)), limit), limit)
        display.update(run.calls, run.interval)
        over = found or run.calls >= limit
        # Between slices, and only there, the search can be gone on with to the same end.
        if over or workers.brake.is_pulled or time.perf_counter() >= next_keep:
            started = time.perf_counter()
            workers.keep("search", run.saved)
            next_keep = started + max(KEEP_SECONDS, (time.perf_counter() - started) / KEEP_SHARE)
        if over:
            return found
        workers.brake.check()
