"""The progress display on standard error: a live line for people, or JSON lines for machines. Rich does the timing."""

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import IO, Any, Literal, NamedTuple, cast

import numpy as np

from smoothplan.base.arguments import amount, scientific
from smoothplan.base.compiling import paused_clock, working_time
from smoothplan.base.records import plain

Shown = bool | Literal["json"]
"""How progress is shown: not at all, as a live line, or as JSON lines."""

LINE_SECONDS = 1.0
"""The least time between two JSON lines."""


class Bottleneck(NamedTuple):
    """A pair whose own uncertainty keeps the gap at the root wide."""

    state: Any
    action: int
    share: float  # of the gap, estimated

    def __str__(self) -> str:
        return f"state {np.asarray(self.state).tolist()} action {self.action} ({self.share:.0%})"


class GapProgress(NamedTuple):
    """Progress of the identification of an action."""

    gap: float
    fraction: float  # the gap, as a fraction of the width of the interval of all values
    price: float | None  # calls in all that ε will take, estimated; None if ε is reached, or there is no estimate
    relative: bool = False  # whether relative bounds prove the gap, and not the intervals of the action values
    bottlenecks: tuple[Bottleneck, ...] = ()  # if known

    def sentences(self) -> list[str]:
        """The same in words."""
        lines = [f"the gap is {max(self.fraction, 0.0):.2%} of the range of values"]
        if self.relative:
            lines.append("it is a difference, known better than the values themselves")
        if self.price is not None:
            lines.append(f"about {scientific(round(self.price))} calls in all at this rate (estimate)")
        if self.bottlenecks:
            lines.append(f"held up by {', '.join(map(str, self.bottlenecks))} (estimate)")
        return lines


class Display(AbstractContextManager["Display"]):
    """Shows the calls made, their speed, the shrinking interval and the time left. It never fails.

    Args:
        progress: False for nothing, True for a live line that vanishes at the end, "json" for a JSON object per line,
            about once a second and at the end.
        title: of the work.
        unit: of the count.
        epsilon: half the width of the interval wanted, if any.
        max_calls: the limit on calls, or the number of things to do.
        max_seconds: the limit on time.
        clock: the time in seconds; by default one that stands still while code is compiled.
    """

    def __init__(
        self,
        progress: Shown = False,
        *,
        title: str = "planning",
        unit: str = "calls",
        epsilon: float | None = None,
        max_calls: int | None = None,
        max_seconds: float | None = None,
        clock: Callable[[], float] = working_time,
    ) -> None:
        if not isinstance(progress, bool) and not (isinstance(progress, str) and progress == "json"):
            raise ValueError(f'progress must be True, False or "json", got {progress!r}')
        self._mode, self._unit, self._epsilon, self._clock = progress, unit, epsilon, clock
        self.shown = progress is not False  # without a display, updates have no effect
        self._limit: int | None = None  # also if it is more than any run makes
        if max_calls is not None:
            self.expect(max_calls)
        self._max_seconds = max_seconds
        self._calls, self._next, self._detail, self._status = 0, -math.inf, "", ""
        self._interval: tuple[float, float] | None = None
        self._gap: GapProgress | None = None
        if progress is False:
            return
        with paused_clock():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        self._file = _StandardError()
        console = Console(file=cast(IO[str], self._file))
        self._wide = console.width >= 110  # columns: enough for the title and every number
        self._bar = Progress(
            *([TextColumn("{task.description}", markup=False)] if self._wide else []),
            BarColumn(bar_width=20 if self._wide else 10),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            get_time=clock,
            disable=progress == "json",
        )
        self._bar.add_task(title, total=None, text="", left="")
        (self._task,) = self._bar.tasks

    def __enter__(self) -> "Display":
        if self._mode:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._mode:
            self._bar.stop()
        if self._mode == "json":
            ending = "interrupted" if isinstance(error, KeyboardInterrupt) else "ended" if error is None else "failed"
            self._write(self._status or ending)

    def expect(self, calls: int) -> None:
        """Lowers the limit on calls; a higher one has no effect."""
        if calls < 10**18:
            self._limit = calls if self._limit is None else min(calls, self._limit)

    def update(self, calls: int, interval: tuple[float, float] | None = None, gap: GapProgress | None = None) -> None:
        """Shows the calls made, the interval, and the progress towards an action that is good enough, if any."""
        self._calls, self._interval, self._gap = int(calls), interval, gap
        if self._mode and self._clock() >= self._next:
            self._next = self._clock() + (LINE_SECONDS if self._mode == "json" else 0.1)
            self._refresh()
            if self._mode == "json":
                self._write("running")

    def show(self, text: str) -> None:
        """Shows a text beside the count."""
        self._detail = text
        self._refresh()

    def note(self, text: str) -> None:
        """Prints a line that stays, or an object with this text only."""
        if self._mode == "json":
            self._print({"note": text})
        elif self._mode:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self, status: str) -> None:
        """Records why the run stopped, for the last JSON line."""
        self._status = status
        self._refresh()

    @contextmanager
    def polling(self, calls: Callable[[], int]) -> Iterator[None]:
        """Shows the calls of work that does not update the display itself, twice per second."""
        over = threading.Event()

        def show() -> None:
            while not over.wait(0.5):
                self.update(calls())

        watcher = threading.Thread(target=show, daemon=True)
        if self._mode:
            watcher.start()
        try:
            yield
        finally:
            over.set()
            if watcher.is_alive():
                watcher.join()

    def _refresh(self) -> None:
        if not self._mode:
            return
        limit, text = self._limit, amount(self._calls)
        self._bar.update(self._task.id, completed=float(self._calls), total=limit)
        speed, left = self._task.speed, self._left
        if limit is not None and self._wide:
            text += f" of{' at most' * (self._unit == 'calls')} {amount(limit)}"
        text += f" {self._unit}" + (f", {amount(round(speed))}/s" if speed and self._unit == "calls" else "")
        if self._gap is not None:
            text += f" gap {self._gap.gap:.4g}, {self._gap.fraction:.2%} of the range"
            if self._gap.price is not None and self._wide:
                text += f", about {amount(round(self._gap.price))} calls in all"
        elif self._interval is not None:
            text += "{} [{:.4f}, {:.4f}]".format(" value in" * self._wide, *self._interval)
        text += f" {self._detail}" if self._detail else ""
        self._bar.update(self._task.id, text=text, left="" if left is None else f"{duration(left)} left")

    @property
    def _left(self) -> float | None:
        """Seconds left, estimated; None in the first two seconds."""
        elapsed, speed = self._task.elapsed or 0.0, self._task.speed  # recent, without calls of an earlier, resumed run
        left = math.inf if self._max_seconds is None else self._max_seconds - elapsed
        if speed:
            calls = self._limit or math.inf
            if self._gap is not None:
                calls = min(calls, math.inf if self._gap.price is None else self._gap.price)
            elif self._interval is not None and self._epsilon:
                # As if the width of the interval were proportional to 1/√calls.
                ratio = (self._interval[1] - self._interval[0]) / (2.0 * self._epsilon)
                calls = min(calls, self._calls * max(ratio, 1.0) ** 2 if math.isfinite(ratio) else math.inf)
            left = min(left, (calls - self._calls) / speed)
        return max(left, 0.0) if math.isfinite(left) and elapsed >= 2.0 else None

    def _write(self, status: str) -> None:
        speed, left = self._task.speed, self._left
        fields: dict[str, Any] = {
            "seconds": round(self._task.elapsed or 0.0, 3),
            "calls": self._calls,
            "calls_per_second": None if speed is None else round(speed, 1),
            "interval": self._interval,
            "at_most_calls": self._limit,
            "seconds_left": None if left is None else round(left, 1),
            "status": status,
        }
        if (gap := self._gap) is not None:
            fields |= {"gap": gap.gap, "gap_fraction": gap.fraction, "estimated_calls": gap.price}
            fields["bottlenecks"] = gap.bottlenecks
        self._print(fields)

    def _print(self, fields: dict[str, Any]) -> None:
        self._file.write(f"{json.dumps(plain(fields), allow_nan=False)}\n")
        self._file.flush()


def duration(seconds: float) -> str:
    """A time in short.

    >>> duration(40.2), duration(600), duration(9000), duration(1e6)
    ('40 s', '10 min', '2.5 h', '12 days')
    """
    for limit, unit, text in ((120, 1, "{:.0f} s"), (7200, 60, "{:.0f} min"), (172_800, 3600, "{:.1f} h")):
        if seconds < limit:
            return text.format(seconds / unit)
    return f"{seconds / 86400:,.0f} days"


class _StandardError:
    """Standard error as it is now. If it is missing, closed, or a pipe without a reader, output is dropped."""

    def __init__(self) -> None:
        self._file = sys.stderr
        self.encoding = getattr(self._file, "encoding", None) or "utf-8"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in ("isatty", "write", "flush"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            with suppress(OSError, ValueError, AttributeError):
                return getattr(self._file, name)(*arguments)

        return call
