"""Progress displays on standard error: a live line for people, or JSON lines for machines."""

import json
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import numpy as np

from smoothplan.arguments import amount
from smoothplan.compiling import standstill, working_time

if TYPE_CHECKING:
    import rich.progress

Shown = bool | Literal["json"]
"""How progress is shown: not at all, as a live line, or as JSON lines."""

COMPILING = "compiling (once)"
"""What a display notes while code is compiled: the next run finds it in the cache."""

EVERY = 1.0
"""The least time between two JSON lines, in seconds."""

ENDLESS = 10**18
"""More calls than any run makes: a limit above this counts as none."""


class Pace:
    """Calls, speed, interval and time left of a run.

    Args:
        epsilon: half the width of the interval wanted, if any.
        max_calls: the limit on calls.
        max_seconds: the limit on time.
        clock: the time in seconds; by default one that stands still while code is compiled.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        max_calls: int | None = None,
        max_seconds: float | None = None,
        clock: Callable[[], float] = working_time,
    ) -> None:
        self._epsilon, self._max_seconds, self.clock = epsilon, max_seconds, clock
        self._started = clock()
        self._recent: deque[tuple[float, int]] = deque()  # (time, calls), the oldest first
        self.calls = 0  # those of an earlier, resumed run included
        self.interval: tuple[float, float] | None = None
        self.standing: Any = None
        self.at_most_calls = max_calls

    def expect(self, calls: int) -> None:
        """Lowers the limit on calls; a higher one has no effect."""
        self.at_most_calls = calls if self.at_most_calls is None else min(calls, self.at_most_calls)

    def update(self, calls: int, interval: tuple[float, float] | None, standing: Any = None) -> None:
        """Records the calls made, the interval, if any, and a `run.Standing` where an action is identified."""
        window, spacing = 20.0, 0.25  # seconds: what the speed is measured over, and between the moments kept of it
        self.calls = int(calls)
        self.interval = None if interval is None else (float(interval[0]), float(interval[1]))
        self.standing = standing
        now = self.clock()
        if not self._recent or now - self._recent[-1][0] >= spacing:
            self._recent.append((now, self.calls))
        while len(self._recent) > 1 and now - self._recent[1][0] >= window:
            self._recent.popleft()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return self.clock() - self._started

    @property
    def calls_per_second(self) -> float | None:
        """The recent speed. Calls present at the first update do not count: they may come from an earlier run."""
        if not self._recent:
            return None
        since, before = self._recent[0]
        elapsed = self.clock() - since
        return max(self.calls - before, 0) / elapsed if elapsed >= 0.25 else None  # a shorter time says too little

    @property
    def seconds_left(self) -> float | None:
        """An estimate: the least of what the limits and the accuracy wanted imply; None in the first two seconds."""
        seconds, speed = self.seconds, self.calls_per_second
        if seconds < 2.0:
            return None
        candidates = [] if self._max_seconds is None else [self._max_seconds - seconds]
        if speed:
            candidates += [calls / speed for calls in (self._calls_to_limit(), self._calls_to_epsilon())]
        least = min(candidates, default=math.inf)
        return max(least, 0.0) if math.isfinite(least) else None

    def _calls_to_limit(self) -> float:
        limit = self.at_most_calls
        return math.inf if limit is None or limit >= ENDLESS else limit - self.calls

    def _calls_to_epsilon(self) -> float:
        """What is estimated for an action; else as if the width of the interval were proportional to 1/√calls."""
        if self.standing is not None:
            return math.inf if self.standing.price is None else self.standing.price - self.calls
        if self.interval is None or not self._epsilon:
            return math.inf
        ratio = (self.interval[1] - self.interval[0]) / (2.0 * self._epsilon)
        return self.calls * (ratio * ratio - 1.0) if math.isfinite(ratio) else math.inf


class Silent(AbstractContextManager["Silent"]):
    """A display that shows nothing."""

    def __exit__(self, *_: object) -> None:
        pass

    def expect(self, calls: int) -> None:
        """Does nothing."""

    def update(self, calls: int, interval: tuple[float, float] | None, standing: Any = None) -> None:
        """Does nothing."""

    def note(self, text: str) -> None:
        """Does nothing."""

    def end(self, status: str) -> None:
        """Does nothing."""


class Live(AbstractContextManager["Live"]):
    """A bar, the calls, their speed, the shrinking interval and the time, in one line that vanishes at the end."""

    def __init__(self, pace: Pace, title: str) -> None:
        self._pace, self._next = pace, -math.inf
        self._bar, self._wide = live_bar("{task.fields[calls]}", "{task.fields[interval]}", "{task.fields[left]}")
        self._task = self._bar.add_task(title if self._wide else "", total=None, calls="", interval="", left="")

    def __enter__(self) -> "Live":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def expect(self, calls: int) -> None:
        """Shows a limit on calls."""
        self._pace.expect(calls)
        self._show()

    def update(self, calls: int, interval: tuple[float, float] | None, standing: Any = None) -> None:
        """Shows the calls made and the interval, at most ten times per second."""
        self._pace.update(calls, interval, standing)
        if self._pace.clock() >= self._next:
            self._next = self._pace.clock() + 0.1
            self._show()

    def note(self, text: str) -> None:
        """Prints a line above the bar, which stays."""
        note(self._bar, text)

    def end(self, status: str) -> None:
        """Does nothing: the line vanishes."""

    def _show(self) -> None:
        pace = self._pace
        limit, speed, left = pace.at_most_calls, pace.calls_per_second, pace.seconds_left
        of = f" of at most {amount(limit)}" if limit is not None and self._wide else ""
        per_second = "" if speed is None else f", {amount(round(speed))}/s"
        interval = "" if pace.interval is None else f"[{pace.interval[0]:.4f}, {pace.interval[1]:.4f}]"
        shown = f"value in {interval}" if interval and self._wide else interval
        if pace.standing is not None:
            shown = f"gap {pace.standing.gap:.4g}, {pace.standing.fraction:.2%} of the range"
            if pace.standing.price is not None and self._wide:
                shown += f", about {amount(round(pace.standing.price))} calls in all"
        self._bar.update(
            self._task,
            total=None if limit is None else float(min(limit, ENDLESS)),
            completed=float(pace.calls),
            calls=f"{amount(pace.calls)}{of} calls{per_second}",
            interval=shown,
            left="" if left is None else f"{duration(left)} left",
        )


class Lines(AbstractContextManager["Lines"]):
    """One JSON object per line: at the first update, then at most once per second, and always one at the end."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._next = pace, -math.inf
        self._status: str | None = None
        self._file = _StandardError()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        interrupted = isinstance(error, KeyboardInterrupt)
        self._show(self._status or ("ended" if error is None else "interrupted" if interrupted else "failed"))

    def expect(self, calls: int) -> None:
        """Records a limit on calls."""
        self._pace.expect(calls)

    def update(self, calls: int, interval: tuple[float, float] | None, standing: Any = None) -> None:
        """Writes the calls made and the interval, unless the last line is more recent than `EVERY`."""
        self._pace.update(calls, interval, standing)
        if self._pace.clock() >= self._next:
            self._next = self._pace.clock() + EVERY
            self._show("running")

    def note(self, text: str) -> None:
        """Writes an object with this text only."""
        self._write({"note": text})

    def end(self, status: str) -> None:
        """Records why the run stopped, for the last line."""
        self._status = status

    def _show(self, status: str) -> None:
        pace = self._pace
        limit, speed, left = pace.at_most_calls, pace.calls_per_second, pace.seconds_left
        ends = None if pace.interval is None else [end if math.isfinite(end) else None for end in pace.interval]
        self._write(
            {
                "seconds": round(pace.seconds, 3),
                "calls": pace.calls,
                "calls_per_second": None if speed is None else round(speed, 1),
                "interval": ends,
                "at_most_calls": None if limit is None or limit >= ENDLESS else limit,
                "seconds_left": None if left is None else round(left, 1),
                "status": status,
                **({} if pace.standing is None else _plain(pace.standing)),
            }
        )

    def _write(self, fields: dict[str, Any]) -> None:
        self._file.write(f"{json.dumps(fields, allow_nan=False)}\n")
        self._file.flush()


def _plain(standing: Any) -> dict[str, Any]:
    """A `run.Standing` in JSON."""
    held = [{**pair._asdict(), "state": np.asarray(pair.state).tolist()} for pair in standing.holding]
    return {
        "gap": standing.gap if math.isfinite(standing.gap) else None,
        "gap_fraction": standing.fraction if math.isfinite(standing.fraction) else None,
        "estimated_calls": standing.price,
        "holding": held,
    }


class Count(AbstractContextManager["Count"]):
    """How many of a number of things are done, and what is under way, in one line that vanishes at the end.

    Args:
        title: what is being done.
        total: how many things there are.
        things: what they are called.
    """

    def __init__(self, title: str, total: int, things: str) -> None:
        self._bar, _ = live_bar(f"{{task.completed:.0f}} of {{task.total:.0f}} {things}", "{task.fields[now]}")
        self._task = self._bar.add_task(title, total=total, now="")

    def __enter__(self) -> "Count":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        """Prints a line above the bar, which stays."""
        note(self._bar, text)

    def show(self, text: str) -> None:
        """Says what is under way."""
        self._bar.update(self._task, now=text)

    def over(self) -> None:
        """Counts one more thing that is done."""
        self._bar.update(self._task, advance=1)


def display_for(
    progress: Shown,
    *,
    title: str = "planning",
    epsilon: float | None = None,
    max_calls: int | None = None,
    max_seconds: float | None = None,
    clock: Callable[[], float] = working_time,
) -> Silent | Live | Lines:
    """The display that `progress` asks for. Its time starts now.

    A display is a context manager. It never fails, even if standard error is closed.

    Args:
        progress: False for none, True for a live line, "json" for JSON lines.
        title: what the live line says is being done.
        epsilon, max_calls, max_seconds, clock: see `Pace`.
    """
    if not isinstance(progress, bool) and not (isinstance(progress, str) and progress == "json"):
        raise ValueError(f'progress must be True, False or "json", got {progress!r}')
    if progress is False:
        return Silent()
    pace = Pace(epsilon=epsilon, max_calls=max_calls, max_seconds=max_seconds, clock=clock)
    return Lines(pace) if progress == "json" else Live(pace, title)


@contextmanager
def polled(display: Silent | Live | Lines, calls: Callable[[], int]) -> Iterator[None]:
    """Shows the calls of work that does not say by itself how far it is, twice per second."""
    over = threading.Event()

    def show() -> None:
        while not over.wait(0.5):
            display.update(calls(), None)

    watcher = threading.Thread(target=show, daemon=True)
    if not isinstance(display, Silent):
        watcher.start()
    try:
        yield
    finally:
        over.set()
        if watcher.is_alive():
            watcher.join()


def live_bar(*texts: str) -> "tuple[rich.progress.Progress, bool]":
    """A Rich progress bar on standard error that vanishes at the end, and whether the terminal is wide.

    It shows the description of a task, a bar, the texts, which are formats of the task, and the time.
    """
    with standstill():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=cast(IO[str], _StandardError()))
    wide = console.width >= 110  # columns: enough for the title and every number
    columns = [TextColumn(text, markup=False) for text in texts]
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20 if wide else 10),
        *columns[:2],
        TimeElapsedColumn(),
        *columns[2:],
        console=console,
        transient=True,
    ), wide


def note(bar: "rich.progress.Progress", text: str) -> None:
    """Prints a line above a bar."""
    bar.console.print(text, markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A time in short.

    >>> duration(40.2), duration(600), duration(9000), duration(1e6)
    ('40 s', '10 min', '2.5 h', '12 days')
    """
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"


class _StandardError:
    """Standard error as it is now. It may be missing, or be closed later: then what is written is dropped."""

    def __init__(self) -> None:
        self._file = sys.stderr
        self.encoding = getattr(self._file, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        try:
            return self._file is not None and self._file.isatty()
        except ValueError:
            return False

    def write(self, text: str) -> int:
        if self._file is not None:
            with suppress(OSError, ValueError):  # closed, or a pipe without a reader
                self._file.write(text)
        return len(text)

    def flush(self) -> None:
        if self._file is not None:
            with suppress(OSError, ValueError):
                self._file.flush()
