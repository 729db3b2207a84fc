"""A session: everything that a driver opens before its work and closes after it, and the loop of a search."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base.arguments import Ints
from smoothplan.base.compiling import announcing, working_time
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.stopping import Stopped, StopSignal
from smoothplan.models.model import GenerativeModel, SimulatorError, watcher
from smoothplan.models.testing import Examination, ModelReport
from smoothplan.run.checkpoint import Checkpoint
from smoothplan.run.chunks import ClusterError
from smoothplan.run.progress import Display, Shown
from smoothplan.run.records import Status
from smoothplan.run.workers import Workers

SLICE_CALLS = 20_000
"""Simulator calls, and rounds, after which a search looks at the clock, at most."""


@dataclass(frozen=True)
class Session:
    """The open parts of a session that a driver uses."""

    workers: Workers
    display: Display

    @property
    def stop_signal(self) -> StopSignal:
        """Stops the work."""
        return self.workers.stop_signal

    def drive(self, work: Callable[[], Status], partial: Callable[[], Any]) -> Status:
        """Works to the end, or until something stops the work; the reason why it ended.

        Args:
            work: returns its own reason.
            partial: the result so far, which an error of the simulator or of the cluster carries as `partial`.
        """
        try:
            return work()
        except Stopped as stopped:
            return stopped.reason
        except KeyboardInterrupt:
            return "interrupted"
        except (SimulatorError, ClusterError) as error:
            error.partial = partial()
            raise


@contextmanager
def session(
    *,
    title: str = "planning",
    unit: str = "calls",
    progress: Shown = False,
    epsilon: float | None = None,
    max_calls: int | None = None,
    max_seconds: float | None = None,
    begun: float | None = None,
    workers: Any = 1,
    chunk_seconds: float | None = None,
    worker_memory: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    identity: Mapping[str, str] | None = None,
    probe: Callable[[], Arrays] | None = None,
    signals: bool = True,
) -> Iterator[Session]:
    """Opens workers, stop signal, progress display, compile notice and checkpoint; closes them whatever happens.

    Args:
        title, unit: of the display.
        progress, workers, chunk_seconds, worker_memory, checkpoint: as for `plan`.
        epsilon, max_calls: the goal and the limit that the display measures progress by.
        max_seconds: stops the work; on the clock of `working_time`.
        begun: when that time began; now by default.
        identity: of the run, for its checkpoint.
        probe: see `Workers`.
        signals: whether Ctrl-C and SIGTERM stop the work with a valid result; otherwise they have their usual effect.
    """
    begun = working_time() if begun is None else begun
    display = Display(progress, title=title, unit=unit, epsilon=epsilon, max_calls=max_calls, max_seconds=max_seconds)
    stop_signal = StopSignal(None if max_seconds is None else begun + max_seconds, chunk_seconds)
    work_force = Workers(
        workers,
        chunk_seconds=chunk_seconds,
        worker_memory=worker_memory,
        stop_signal=stop_signal,
        announce=display.note,
        probe=probe,
    )
    if checkpoint is not None:  # opened last: no mistake in an argument leaves a file behind
        work_force.checkpoint = Checkpoint(checkpoint, identity or {})
    with (
        stop_signal.on_signals() if signals else nullcontext(),
        work_force,
        display,
        announcing(lambda: display.note("compiling (once)")),  # the next run finds the code in the cache
    ):
        if work_force.checkpoint is not None and not work_force.checkpoint.is_new:
            done = work_force.checkpoint.chunks
            display.note(f"resumed from {checkpoint}" + (f": {done} chunks are done" if done else ""))
        yield Session(work_force, display)


class Sliced(Protocol):
    """A search whose rounds build on each other, so that one worker makes them all."""

    @property
    def calls(self) -> int:
        """Simulator calls made."""

    def saved(self) -> Arrays:
        """The search as arrays, for a checkpoint."""

    def restore(self, arrays: Readable) -> None:
        """Takes on the search that was saved."""


def in_slices(search: Sliced, explore: Callable[[int, int], bool], max_calls: int | None, workers: Workers) -> bool:
    """Searches until the search is over or has made all the calls that it may; whether it is over.

    Between slices the checkpoint is written, if there is one, and the stop signal is checked.

    Args:
        search: has the state to save.
        explore: searches until a number of calls is made, without exceeding a limit; whether the search is over.
        max_calls: the limit of the run.
        workers: of the session.
    """
    limit = 2**62 if max_calls is None else min(max_calls, 2**62)  # more calls than any run makes
    over = False

    def keep() -> None:
        workers.keep("search", lambda: search.saved() | {"over": np.array([over])})

    def restore(arrays: Readable) -> None:
        nonlocal over
        search.restore(arrays)
        over = bool(arrays["over"][0])

    if not workers.recall("search", restore):
        keep()  # a search that cannot be saved is refused before the work, not after
    elif over or search.calls >= limit:
        return over  # one more slice would tighten its bounds: another result than that of the run that was saved
    calls, next_keep = search.calls, time.perf_counter() + 1.0
    while True:
        # A slice is a tenth of the calls made, so that the clock is soon looked at with a slow simulator.
        size = min(SLICE_CALLS, 1 + int(0.1 * calls))
        over = explore(min(calls + size, limit), limit)
        calls = search.calls
        ended = over or calls >= limit
        # Only between slices can a search be saved and resumed with the same result.
        stopped = workers.stop_signal.is_pulled
        if ended or stopped or time.perf_counter() >= next_keep:
            started = time.perf_counter()
            keep()
            # At most once per second, and a twentieth of the time.
            next_keep = started + max(1.0, (time.perf_counter() - started) / 0.05)
        if ended:
            return over
        if stopped:
            workers.stop_signal.check()


def check_model(
    model: GenerativeModel,
    states: ArrayLike | None = None,
    *,
    seed: int = 0,
    rounds: int = 50,
    progress: Shown = False,
) -> ModelReport:
    """Calls a simulator in ways that reveal broken promises, and raises `ModelError` at the first one.

    It checks shapes, dtypes, reward range and kind, non-finite numbers, terminal states and the bound on successors;
    that states are not changed in place; that the same generator gives the same result; and that no call depends on an
    earlier one. A `value_range` is refuted if random actions earn significantly more; for a table, `exact.solve` with
    `HardMax` checks it exactly.

    Args:
        model: the simulator.
        states: states to start from, [n, ...]; the model's initial state by default.
        seed: seed of the random walk that looks for more states.
        rounds: steps of that walk.
        progress: True to show the calls made on standard error, "json" for JSON lines.

    Returns:
        A report of the calls made. A pass is evidence, not proof.
    """
    examination = Examination(model, states, seed, rounds)
    with session(title="checking", progress=progress, max_calls=examination.most_calls, signals=False) as opened:
        before = watcher.set(_Counter(opened.display))
        try:
            report = examination.run()
        finally:
            watcher.reset(before)
        opened.display.update(report.calls)
        opened.display.end("completed")
    return report


class _Counter:
    """Shows the number of simulator calls before each one: a slow simulator may take long for a batch."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._before = self._batch = 0

    def __call__(self, states: NDArray[Any], actions: Ints, rng: np.random.Generator) -> None:
        self._before, self._batch = self._before + self._batch, len(actions)
        self._display.update(self._before)

    def row(self, row: int) -> None:
        self._display.update(self._before + row)
