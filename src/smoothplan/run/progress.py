"""The progress display on standard error: a live line for people, or JSON lines for machines. Rich does the timing."""

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import IO, Any, Literal, NamedTuple, cast

import numpy as np

from smoothplan.base.arguments import amount, scientific
from smoothplan.base.compiling import announcing, paused_clock, working_time
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
    name: str  # of the action

    def __str__(self) -> str:
        return f"state {np.asarray(self.state).tolist()} action {self.name} ({self.share:.0%})"


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
        title, unit: of the work, and of the count.
        epsilon: half the width of the interval wanted, if any.
        max_calls: the limit on calls, or the number of things to do.
        max_seconds: the limit on time.
        clock: the time in seconds; by default one that stands still while code is compiled.

    Attributes:
        shown: whether there is anything to see; otherwise updates have no effect.
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
        self.shown, self._json = progress is not False, progress == "json"
        self._unit, self._epsilon, self._max_seconds, self._clock = unit, epsilon, max_seconds, clock
        self._open = ExitStack()
        self._limit: int | None = None
        if max_calls is not None:
            self.expect(max_calls)
        self._calls, self._next, self._detail, self._status = 0, -math.inf, "", ""
        self._interval: tuple[float, float] | None = None
        self._gap: GapProgress | None = None
        if not self.shown:
            return
        with paused_clock():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        self._file = _StandardError()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(10),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=cast(IO[str], self._file)),
            transient=True,
            get_time=clock,
            disable=self._json,
        )
        self._bar.add_task(title, total=None, text="")
        (self._task,) = self._bar.tasks

    def __enter__(self) -> "Display":
        if self.shown:
            self._open.enter_context(announcing(lambda: self.note("compiling (once)")))  # the next run finds the code
            self._open.enter_context(self._bar)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._open.close()
        if self._json:
            ending = "interrupted" if isinstance(error, KeyboardInterrupt) else "ended" if error is None else "failed"
            self._write(self._status or ending)

    def expect(self, calls: int) -> None:
        """Lowers the limit on calls; a higher one has no effect, nor has one that no run reaches."""
        if calls < 10**18:
            self._limit = calls if self._limit is None else min(calls, self._limit)

    def update(self, calls: int, interval: tuple[float, float] | None = None, gap: GapProgress | None = None) -> None:
        """Shows the calls made, the interval, and the progress towards an action that is good enough, if any."""
        self._calls, self._interval, self._gap = int(calls), interval, gap
        if self.shown and self._clock() >= self._next:
            self._next = self._clock() + (LINE_SECONDS if self._json else 0.1)
            self._refresh()
            if self._json:
                self._write("running")

    def show(self, text: str) -> None:
        """Shows a text beside the count."""
        self._detail = text
        self._refresh()

    def note(self, text: str) -> None:
        """Prints a line that stays, or an object with this text only."""
        if self._json:
            self._print({"note": text})
        elif self.shown:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self, status: str) -> None:
        """Records why the run stopped, for the last JSON line."""
        self._status = status
        self._refresh()

    @contextmanager
    def polling(self, calls: Callable[[], int]) -> Iterator[None]:
        """Shows the calls of work that does not update the display itself, twice per second."""
        if not self.shown:
            yield
            return
        over = threading.Event()

        def show() -> None:
            while not over.wait(0.5):
                self.update(calls())

        poller = threading.Thread(target=show, daemon=True)
        poller.start()
        try:
            yield
        finally:
            over.set()
            poller.join()

    def _refresh(self) -> None:
        if not self.shown:
            return
        task, text = self._task, amount(self._calls)
        self._bar.update(task.id, completed=float(self._calls))
        speed = task.speed  # recent, without calls of an earlier, resumed run
        ends: list[float | None] = [self._limit]  # calls in all, estimated
        if self._max_seconds is not None and speed:
            ends.append(self._calls + speed * (self._max_seconds - (task.elapsed or 0.0)))
        if self._limit is not None:
            text += f" of{' at most' * (self._unit == 'calls')} {amount(self._limit)}"
        text += f" {self._unit}" + (f", {amount(round(speed))}/s" if speed and self._unit == "calls" else "")
        if self._gap is not None:
            ends.append(self._gap.price)
            text += f", gap {self._gap.gap:.4g}, {self._gap.fraction:.2%} of the range"
        elif self._interval is not None:
            low, high = self._interval
            text += f", value in [{low:.4f}, {high:.4f}]"
            if self._epsilon and math.isfinite(high - low):
                # As if the width of the interval were proportional to 1/√calls.
                ratio = max((high - low) / (2.0 * self._epsilon), 1.0)
                ends.append(self._calls * ratio * ratio)
        known = [end for end in ends if end is not None and end < math.inf]
        task.total = max(min(known), self._calls) if known else None
        task.finished_time = None  # for Rich: an estimate that is reached may grow again
        task.fields["text"] = f"{text} {self._detail}".rstrip()

    def _write(self, status: str) -> None:
        fields: dict[str, Any] = {
            "seconds": round(self._task.elapsed or 0.0, 3),
            "calls": self._calls,
            "calls_per_second": None if self._task.speed is None else round(self._task.speed, 1),
            "interval": self._interval,
            "at_most_calls": self._limit,
            "seconds_left": self._task.time_remaining,
            "status": status,
        }
        if (gap := self._gap) is not None:
            fields |= {"gap": gap.gap, "gap_fraction": gap.fraction, "estimated_calls": gap.price}
            fields["bottlenecks"] = gap.bottlenecks
        self._print(fields)

    def _print(self, fields: dict[str, Any]) -> None:
        self._file.write(f"{json.dumps(plain(fields), allow_nan=False)}\n")
        self._file.flush()


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
