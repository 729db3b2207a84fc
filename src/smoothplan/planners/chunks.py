"""How work is cut: samples into chunks for the workers, and a search into slices."""

import math
import time
from typing import Protocol

from smoothplan.running.run import Display, Standing
from smoothplan.running.workers import Workers
from smoothplan.search.saved import Arrays, Readable

SLICE_CALLS = 20_000
"""Simulator calls, and rounds, after which a search looks at the clock, at most."""

KEEP_SECONDS, KEEP_SHARE = 1.0, 0.05
"""Seconds between two writes of a search's checkpoint, at least; and the share of the time that they may take."""


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
            eighth of what was planned before, so that a chunk of a slow simulator is never much of a run.
        max_calls: the run's limit. A chunk takes no more than 1/64 of it, for a chunk that does not fit is left out.
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


class Sliced(Protocol):
    """A search whose rounds build on each other, so that one worker makes them all."""

    @property
    def calls(self) -> int:
        """Simulator calls made."""

    @property
    def interval(self) -> tuple[float, float]:
        """Of the root's value."""

    @property
    def standing(self) -> Standing | None:
        """How far the identification of an action is, where there is one."""

    def explore(self, until: int, limit: int) -> bool:
        """Searches until a number of calls is made, without exceeding a limit; whether the search is over."""

    def saved(self) -> Arrays:
        """The search as arrays, for a checkpoint."""

    def restore(self, arrays: Readable) -> None:
        """Takes on the search that was saved."""


def in_slices(search: Sliced, max_calls: int | None, workers: Workers, display: Display) -> bool:
    """Searches until the search is over, or has made all the calls that it may; returns whether it is over.

    Between slices the checkpoint is written, where there is one, and the brake is checked.
    """
    limit = 2**62 if max_calls is None else min(max_calls, 2**62)  # more calls than any run makes
    if not workers.recall("search", search.restore):
        workers.keep("search", search.saved)  # what cannot be saved is refused before the work, not after
    next_keep = time.perf_counter() + KEEP_SECONDS
    while True:
        # A slice is a tenth of the calls made, so that a slow simulator is soon looked after.
        size = min(SLICE_CALLS, 1 + int(0.1 * search.calls))
        over = search.explore(min(search.calls + size, limit), limit)
        display.update(search.calls, search.interval, search.standing)
        ended = over or search.calls >= limit
        # Only between slices can a search be saved and resumed with the same result.
        if ended or workers.brake.is_pulled or time.perf_counter() >= next_keep:
            started = time.perf_counter()
            workers.keep("search", search.saved)
            next_keep = started + max(KEEP_SECONDS, (time.perf_counter() - started) / KEEP_SHARE)
        if ended:
            return over
        workers.brake.check()
