"""Stop signals: a signal ends a simulator call at once, waits for bookkeeping, and never deadlocks."""

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base import stopping
from smoothplan.base.stopping import Stopped, StopSignal

STATES = np.array([[0.5]])


def oracle(run: Callable[[], Any] = lambda: None) -> sp.Oracle:
    """Of a simulator that does something in every call."""

    def step(states: Any, actions: Any, rng: Any) -> tuple[Any, Any]:
        run()
        return states, states[:, 0]

    return sp.Oracle(sp.VectorModel(step, actions=1, discount=0.5, reward_range=(0, 1), initial_state=[0.5]), 0)


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Signals do what they usually do: a shell that starts a job in the background has it ignore interrupts."""
    before = {number: signal.signal(number, handler) for number, handler in stopping.USUAL.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_simulator_call_at_once(number: signal.Signals) -> None:
    """Python code is left at once; the handler from before is restored."""
    before = signal.getsignal(number)
    reached = []

    def run() -> None:
        os.kill(os.getpid(), number)
        for _ in range(1000):
            time.sleep(0.01)
        reached.append("the end")

    with StopSignal().on_signals():
        assert signal.getsignal(number) != before
        with pytest.raises(Stopped):
            oracle(run).sample(STATES, [0])
    assert reached == []
    assert signal.getsignal(number) == before


@pytest.mark.usefixtures("usual_signals")
def test_a_signal_waits_for_bookkeeping() -> None:
    """Between simulator calls a signal is noted, and raised where the run looks next."""
    with StopSignal().on_signals() as stop:
        calls = oracle()
        calls.sample(STATES, [0])
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # bookkeeping goes on
            pass
        with pytest.raises(Stopped):
            calls.sample(STATES, [0])
        assert calls.calls == 1
        with pytest.raises(Stopped):
            stop.check()


@pytest.mark.usefixtures("usual_signals")
def test_a_second_signal_does_what_it_always_did() -> None:
    with StopSignal().on_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_of_the_user_stay() -> None:
    noted = []
    before = signal.signal(signal.SIGTERM, lambda *_: noted.append("mine"))
    try:
        with StopSignal().on_signals():
            signal.raise_signal(signal.SIGTERM)
        assert noted == ["mine"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_no_other_thread_or_process_is_stopped() -> None:
    with StopSignal().on_signals() as stop:
        stop.pull()
        with ThreadPoolExecutor(1) as other:
            assert other.submit(stopping.current.get).result() is None
    assert stopping.current.get() is None
    pickle.loads(pickle.dumps(stop)).check()


@pytest.mark.usefixtures("usual_signals")
def test_a_call_that_takes_too_long_is_interrupted() -> None:
    """Even if a simulator catches what it can; a call in time is not, and neither is what comes after it."""

    def stubborn() -> None:
        for _ in range(3):
            try:
                time.sleep(60)
            except TimeoutError:
                continue
        raise TimeoutError("at last")

    with StopSignal(call_seconds=0.1).on_signals():
        oracle().sample(STATES, [0])
        with pytest.raises(sp.SimulatorError, match=r"a call took longer than chunk_seconds=0.1 s \(state \[0.5\]"):
            oracle(lambda: time.sleep(60)).sample(STATES, [0])
        with pytest.raises(sp.SimulatorError, match="at last"):
            oracle(stubborn).sample(STATES, [0])
        time.sleep(0.2)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    """In another thread no signal arrives."""

    def run() -> None:
        with StopSignal(call_seconds=0.1).on_signals():
            oracle().sample(STATES, [0])

    with ThreadPoolExecutor(1) as other, pytest.raises(ValueError, match="chunk_seconds cannot limit simulator calls"):
        other.submit(run).result()


def test_a_signal_within_a_signal_does_not_deadlock() -> None:
    """A second signal may come at any line of what the first one does, even with a lock held."""
    stop = StopSignal()
    inside: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and len(inside) < 100:
            inside.append(frame.f_code.co_name)
            stop.pull()
        return trace

    def run() -> None:
        sys.settrace(trace)
        stop.pull()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert inside
    assert stop.is_pulled
