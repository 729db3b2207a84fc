"""Stopping a run before its end: a limit on time, Ctrl-C or SIGTERM. Simulator calls and waits look at it.

A run must never be torn apart in the middle of its bookkeeping. So a signal only sets a flag, and is raised when
nothing is half done: inside a simulator call, before the next one, or while waiting for others.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Literal

from smoothplan.base.compiling import working_time

Reason = Literal["max_seconds", "interrupted"]

ALARM = getattr(signal, "SIGALRM", 0)
"""The signal of the interval timer; 0 on a system without one."""

USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Signals that stop a run, with their usual handlers."""
if ALARM:
    USUAL[ALARM] = signal.SIG_DFL


class Stopped(BaseException):
    """The run is over, and its result so far is valid. A simulator that catches every `Exception` lets it pass."""

    def __init__(self, reason: Reason, unmade: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.unmade = reason, unmade  # calls of a batch that were counted and not made


class StopSignal:
    """Stops a run.

    Args:
        deadline: when, on the clock of `working_time`, which compiling does not advance; None for never.
        call_seconds: seconds that one simulator call in this thread may take, within `on_signals`. A `TimeoutError`
            then interrupts it, unless it holds the interpreter lock.
    """

    def __init__(self, deadline: float | None = None, call_seconds: float | None = None) -> None:
        self.deadline, self.call_seconds = deadline, call_seconds
        self._timed = False  # whether calls can be interrupted
        self._pulled = False  # a plain flag: a lock could deadlock with a signal handler that interrupts its holder
        self.in_simulator = False  # whether a signal may raise at once in the main thread

    def pull(self) -> None:
        """Stops the run, wherever it looks next. Any thread may call this."""
        self._pulled = True

    @property
    def is_pulled(self) -> bool:
        """Whether the run is over."""
        return self._pulled or (self.deadline is not None and working_time() > self.deadline)

    def check(self, unmade: int = 0) -> None:
        """Raises `Stopped` if the run is over, with the number of calls that were counted and not made."""
        if self.is_pulled:
            raise Stopped("interrupted" if self._pulled else "max_seconds", unmade)

    def enter_simulator(self) -> bool:
        """Begins a simulator call, which a signal may end at once: nothing depends on it yet.

        Returns:
            Whether the caller must reset `in_simulator` and the timer, if there is one, after the call.
        """
        self.check()
        if self.call_seconds is not None and not self._timed:
            raise ValueError(
                "chunk_seconds cannot limit simulator calls of this planner here: they are made in a thread other than "
                "the main one, or SIGALRM is in use"
            )
        if threading.current_thread() is not threading.main_thread():
            return False
        self.in_simulator = True
        if self.call_seconds is not None:  # again and again, because a simulator may catch the first one
            signal.setitimer(signal.ITIMER_REAL, self.call_seconds, self.call_seconds)
        return True

    @contextmanager
    def on_signals(self) -> Iterator["StopSignal"]:
        """Signals stop the run, and simulator calls of this thread look at this stop signal.

        Handlers that the user has set stay, and so do those of a program that plans in another thread. A second signal
        has its usual effect.
        """
        ours = []
        if threading.current_thread() is threading.main_thread():
            ours = [number for number, handler in USUAL.items() if signal.getsignal(number) == handler]
        for number in ours:
            signal.signal(number, self._on_alarm if number == ALARM else self._on_signal)
        self._timed = ALARM in ours
        before = current.set(self)
        try:
            yield self
        finally:
            current.reset(before)
            for number in ours:
                signal.signal(number, USUAL[number])

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if self.in_simulator:
            raise TimeoutError(f"a call took longer than chunk_seconds={self.call_seconds:g} s")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pulled:
            signal.signal(number, USUAL[number])
            signal.raise_signal(number)
        self.pull()
        if self.in_simulator:
            raise Stopped("interrupted")

    def __reduce__(self) -> tuple[Any, ...]:
        return StopSignal, ()  # in another process it stops nothing


current: ContextVar[StopSignal | None] = ContextVar("stop_signal", default=None)
"""The stop signal of the run in this thread."""
