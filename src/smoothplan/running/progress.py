"""How long work shows how far it is, on standard error: a live line for people, or JSON lines for machines."""

import json
import math
import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from smoothplan.arguments import amount

if TYPE_CHECKING:
    import rich.progress

Shown = bool | Literal["json"]
"""Whether and how progress is shown: not at all, live, or as JSON lines."""

Clock = Callable[[], float]
"""Seconds from some moment on."""

EVERY = 1.0
"""Seconds from one JSON line to the next, at least."""

FRAME = 0.1
"""Seconds from one picture of the live display to the next."""

WINDOW = 20.0
"""Seconds that the calls per second are measured over."""

SPACING = 0.25
"""Seconds between the moments that are kept of this window, and the least that a speed is measured over."""

SOON = 2.0
"""Seconds before which nothing is said of the time left."""

NARROW = 110
"""Columns of a terminal on which the live line says less, so that the numbers have room."""

NOW = 60
"""Characters of what the next run of an experiment is."""

ENDLESS = 10**18
"""Calls that nobody makes: a limit of so many is as good as none."""


@dataclass(frozen=True)
class Reading:
    """How far a run is."""

    seconds: float  # since the start
    calls: int  # resumed ones included
    calls_per_second: float | None  # lately
    interval: tuple[float, float] | None
    at_most_calls: int | None
    seconds_left: float | None  # an estimate


class Pace:
    """How fast a run is, and how much longer it may take.

    The speed is that of the last `WINDOW` seconds. Calls that are there at the first update do not count: they may come
    from an earlier run. Time left is the least of what is known: by the limits on calls and on time, and by the
    accuracy wanted, as if the interval shrank like 1/√calls.

    Args:
        epsilon: half the width of the interval that is wanted, where one is.
        max_calls: a limit on calls.
        max_seconds: a limit on time.
        clock: tells the time.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        max_calls: int | None = None,
        max_seconds: float | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._epsilon, self._max_seconds, self.clock = epsilon, max_seconds, clock
        self._started = clock()
        self._limit = max_calls
        self._calls = 0
        self._interval: tuple[float, float] | None = None
        self._recent: deque[tuple[float, int]] = deque()  # (time, calls), the oldest at the edge of the window

    def expect(self, calls: int) -> None:
        """Takes note of the calls that the run may make, at most; the smallest such number counts."""
        self._limit = calls if self._limit is None else min(calls, self._limit)

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Takes note of the calls made and of the interval."""
        self._calls, self._interval = int(calls), (float(interval[0]), float(interval[1]))
        now = self.clock()
        if not self._recent or now - self._recent[-1][0] >= SPACING:
            self._recent.append((now, calls))
        while len(self._recent) > 1 and now - self._recent[1][0] >= WINDOW:
            self._recent.popleft()

    def read(self) -> Reading:
        """How far the run is now."""
        now = self.clock()
        speed = self._speed(now)
        return Reading(
            seconds=now - self._started,
            calls=self._calls,
            calls_per_second=speed,
            interval=self._interval,
            at_most_calls=self._limit,
            seconds_left=self._left(now - self._started, speed),
        )

    def _speed(self, now: float) -> float | None:
        if not self._recent or now - self._recent[0][0] < SPACING:
            return None
        since, before = self._recent[0]
        return max(self._calls - before, 0) / (now - since)

    def _left(self, seconds: float, speed: float | None) -> float | None:
        if seconds < SOON:
            return None
        candidates = [] if self._max_seconds is None else [self._max_seconds - seconds]
        if speed is not None and speed > 0.0:
            candidates += [calls / speed for calls in (self._calls_to_limit(), self._calls_to_epsilon())]
        least = min(candidates, default=math.inf)
        return max(least, 0.0) if math.isfinite(least) else None

    def _calls_to_limit(self) -> float:
        return math.inf if self._limit is None or self._limit >= ENDLESS else self._limit - self._calls

    def _calls_to_epsilon(self) -> float:
        if self._interval is None or not self._epsilon:
            return math.inf
        ratio = (self._interval[1] - self._interval[0]) / (2.0 * self._epsilon)
        return self._calls * (ratio * ratio - 1.0) if math.isfinite(ratio) else math.inf


class Progress(AbstractContextManager["Progress"]):
    """A display of a run, from entering to leaving it. It never fails, whatever becomes of standard error."""

    @abstractmethod
    def expect(self, calls: int) -> None:
        """Takes note of the calls that the run may make, at most; the smallest such number counts."""

    @abstractmethod
    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Shows the calls made, resumed ones included, and the interval."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Shows a line that stays."""

    @abstractmethod
    def end(self, status: str) -> None:
        """Takes note of why the run stopped."""


class Silent(Progress):
    """Shows nothing."""

    def __exit__(self, *_: object) -> None:
        pass

    def expect(self, calls: int) -> None:
        """Nothing."""

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def end(self, status: str) -> None:
        """Nothing."""


class Live(Progress):
    """A bar, the calls, their speed, the shrinking interval and the time: one line that vanishes in the end."""

    def __init__(self, pace: Pace, title: str) -> None:
        self._pace, self._next = pace, -math.inf
        self._bar = live_bar("{task.fields[calls]}", "{task.fields[interval]}", after="{task.fields[left]}")
        self._narrow = self._bar.console.width < NARROW
        described = "" if self._narrow else title
        self._task = self._bar.add_task(described, total=None, calls="", interval="", left="")

    def __enter__(self) -> "Live":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def expect(self, calls: int) -> None:
        """Takes note of the calls that the run may make, at most."""
        self._pace.expect(calls)
        self._show()

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Shows the calls made and the interval."""
        self._pace.update(calls, interval)
        if self._pace.clock() >= self._next:
            self._next = self._pace.clock() + FRAME
            self._show()

    def note(self, text: str) -> None:
        """Shows a line that stays, above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self, status: str) -> None:
        """Nothing: the line vanishes."""

    def _show(self) -> None:
        now = self._pace.read()
        limit = "" if now.at_most_calls is None or self._narrow else f" of at most {amount(now.at_most_calls)}"
        speed = "" if now.calls_per_second is None else f", {amount(round(now.calls_per_second))}/s"
        interval = "" if now.interval is None else f"[{now.interval[0]:.4f}, {now.interval[1]:.4f}]"
        self._bar.update(
            self._task,
            total=None if now.at_most_calls is None else float(min(now.at_most_calls, ENDLESS)),
            completed=float(now.calls),
            calls=f"{amount(now.calls)}{limit} calls{speed}",
            interval=interval if self._narrow or not interval else f"value in {interval}",
            left="" if now.seconds_left is None else f"{duration(now.seconds_left)} left",
        )


class Lines(Progress):
    """One JSON object per line: the first update, then at most one per second, and a last one whatever happens."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._next = pace, -math.inf
        self._status: str | None = None
        self._file = _StandardError()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is None:
            interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
            self._status = "ended" if kind is None else "interrupted" if interrupted else "failed"
        self._show(self._status)

    def expect(self, calls: int) -> None:
        """Takes note of the calls that the run may make, at most."""
        self._pace.expect(calls)

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Writes the calls made and the interval, unless the line before is too recent."""
        self._pace.update(calls, interval)
        if self._pace.clock() >= self._next:
            self._next = self._pace.clock() + EVERY
            self._show("running")

    def note(self, text: str) -> None:
        """Writes an object that holds just this text."""
        self._write({"note": text})

    def end(self, status: str) -> None:
        """Takes note of why the run stopped, for the last line."""
        self._status = status

    def _show(self, status: str) -> None:
        now = self._pace.read()
        limit = now.at_most_calls
        self._write(
            {
                "seconds": round(now.seconds, 3),
                "calls": now.calls,
                "calls_per_second": None if now.calls_per_second is None else round(now.calls_per_second, 1),
                "interval": None if now.interval is None else [_finite(end) for end in now.interval],
                "at_most_calls": None if limit is None or limit >= ENDLESS else limit,
                "seconds_left": None if now.seconds_left is None else round(now.seconds_left, 1),
                "status": status,
            }
        )

    def _write(self, fields: dict[str, Any]) -> None:
        self._file.write(f"{json.dumps(fields, allow_nan=False)}\n")
        self._file.flush()


class Episodes(AbstractContextManager["Episodes"]):
    """How the episodes of an environment go: one line that vanishes in the end."""

    def __init__(self, name: str, episodes: int) -> None:
        self._bar = live_bar("{task.completed:.0f} of {task.total:.0f} episodes", "{task.fields[now]}")
        self._task = self._bar.add_task(f"playing {name}", total=episodes, now="")

    def __enter__(self) -> "Episodes":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, score: float, steps: int) -> None:
        """Shows where an episode is."""
        self._bar.update(self._task, now=f"score {score:g} after {steps} steps")

    def over(self) -> None:
        """One more episode is over."""
        self._bar.update(self._task, advance=1)


class Runs(AbstractContextManager["Runs"]):
    """How the runs of an experiment go: one line on a terminal, which vanishes in the end."""

    def __init__(self, name: str) -> None:
        self._bar = live_bar("{task.completed:.0f} of {task.total:.0f} runs", "{task.fields[now]}")
        self._task = self._bar.add_task(f"experiment {name}", total=1, now="")

    def __enter__(self) -> "Runs":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, done: int, total: int, settings: Mapping[str, Any]) -> None:
        """Shows how many runs are done and what the next one is."""
        now = ", ".join(f"{name} {value}" for name, value in settings.items())
        self._bar.update(self._task, completed=done, total=total, now=now if len(now) <= NOW else f"{now[:NOW]}…")


def display_for(
    progress: Shown,
    *,
    title: str = "planning",
    epsilon: float | None = None,
    max_calls: int | None = None,
    max_seconds: float | None = None,
    clock: Clock = time.perf_counter,
) -> Progress:
    """The display that `progress` asks for. Time starts now.

    Args:
        progress: False for none, True for a live line, "json" for JSON lines.
        title: what the live line says is being done.
        epsilon: half the width of the interval that is wanted, where one is: for the time left.
        max_calls: a limit on calls.
        max_seconds: a limit on time.
        clock: tells the time.
    """
    if not isinstance(progress, bool) and not (isinstance(progress, str) and progress == "json"):
        raise ValueError(f'progress must be True, False or "json", got {progress!r}')
    if progress is False:
        return Silent()
    pace = Pace(epsilon=epsilon, max_calls=max_calls, max_seconds=max_seconds, clock=clock)
    return Lines(pace) if progress == "json" else Live(pace, title)


def live_bar(*texts: str, after: str = "") -> "rich.progress.Progress":
    """A live line on standard error that vanishes in the end: what is done, a bar, texts, the time, another text.

    What is done is the description of the Rich task; texts are formats of the task.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=cast(IO[str], _StandardError()))
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10 if console.width < NARROW else 20),
        *[TextColumn(text, markup=False) for text in texts],
        TimeElapsedColumn(),
        *([TextColumn(after, markup=False)] if after else []),
        console=console,
        transient=True,
    )


def duration(seconds: float) -> str:
    """A time, short enough to read.

    >>> duration(40.2), duration(600), duration(9000), duration(1e6)
    ('40 s', '10 min', '2.5 h', '12 days')
    """
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


class _StandardError:
    """Standard error as it is now. It may be missing, or go away: what cannot be written is dropped."""

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
            with suppress(OSError, ValueError):  # closed, or nobody reads it any more
                self._file.write(text)
        return len(text)

    def flush(self) -> None:
        if self._file is not None:
            with suppress(OSError, ValueError):
                self._file.flush()
