"""Workers: outcomes in the order of the chunks, chunks pulled lazily, abandoned on closing, stopped by a brake."""

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base import stopping as brake
from smoothplan.base.compiling import working_time
from smoothplan.base.stopping import Stopped, StopSignal
from smoothplan.run.chunks import Batch, Chunk, Outcome, Sums, Work
from smoothplan.run.workers import AHEAD, BEHIND, ThreadPool, Workers

MODEL = sp.models.chain(states=3)

any_number = pytest.mark.parametrize("count", [1, 2, 3, 8])


class Engine:
    """Does to a number what it is told to."""

    compiled = True

    def __init__(self, run: Callable[[int], Any]) -> None:
        self._run = run

    def values(self, oracle: Any, state: Any, number: int) -> Sums:
        """The square of a number, after something."""
        self._run(number)
        return Sums(number, float(number * number), 0.0)


def work(run: Callable[[int], Any] = lambda number: None) -> Work:
    return Work(Engine(run), MODEL, 0, 0)


def chunks(numbers: Iterable[int]) -> Iterator[Chunk[Sums]]:
    return (Chunk(number, Engine.values, (number,), 1) for number in numbers)


def numbers(outcomes: Iterable[tuple[Chunk[Sums], Outcome[Sums]]]) -> list[int]:
    """The numbers in the order in which they came, each checked against its square."""
    found = []
    for chunk, outcome in outcomes:
        assert outcome.sums == Sums(chunk.number, float(chunk.number**2))
        found.append(chunk.number)
    return found


@any_number
@pytest.mark.parametrize("length", [0, 1, 2, 50])
def test_outcomes_come_in_the_order_of_the_chunks(count: int, length: int) -> None:
    with Workers(count) as workers:
        assert numbers(workers.in_order(work(), chunks(range(length)))) == list(range(length))
        assert numbers(workers.in_order(work(), chunks(range(length)))) == list(range(length))


def test_a_late_chunk_does_not_overtake() -> None:
    """The first chunk waits for the second to be done; still it is handed back first."""
    done = threading.Event()

    def run(number: int) -> None:
        if number == 0:
            assert done.wait(60)
        if number == 1:
            done.set()

    with Workers(2) as workers:
        assert numbers(workers.in_order(work(run), chunks(range(5)))) == [0, 1, 2, 3, 4]


def counted(pulled: list[int]) -> Iterator[int]:
    """Whole numbers for ever, with a note of each that was asked for."""
    number = 0
    while True:
        pulled.append(number)
        yield number
        number += 1


class OneByOne(ThreadPool):
    """Batches of one chunk each, however fast they are."""

    batch_seconds = 0.0


def served_by(pool: ThreadPool) -> Workers:
    workers = Workers(2)
    workers._pool, workers._started = pool, True
    return workers


@any_number
def test_chunks_are_pulled_no_further_ahead_than_needed(count: int) -> None:
    pulled: list[int] = []
    with served_by(OneByOne(count)) as workers:
        for received, _ in enumerate(workers.in_order(work(), chunks(counted(pulled)))):
            assert len(pulled) - received <= BEHIND * count + 1
            if received == 30:
                break


@any_number
def test_no_more_is_under_way_than_workers_need(count: int) -> None:
    """While the first chunks are held up, no more than a few others are begun."""
    release, begun = threading.Event(), []

    def run(number: int) -> None:
        begun.append(number)
        if number < count:
            assert release.wait(60)

    pulled: list[int] = []
    threading.Timer(0.2, release.set).start()
    with served_by(OneByOne(count)) as workers:
        next(iter(workers.in_order(work(run), chunks(counted(pulled)))))
        assert len(begun) <= len(pulled) <= BEHIND * count + AHEAD * count + 1


@pytest.mark.parametrize(("seconds", "length", "together"), [(0.0, 3_000, True), (0.15, 5, False)])
def test_fast_chunks_are_sent_together_and_slow_ones_alone(seconds: float, length: int, together: bool) -> None:
    sizes: list[int] = []

    class Noting(ThreadPool):
        batch_seconds = 0.1

        def send(self, batch: Batch) -> None:
            sizes.append(len(batch.chunks))
            super().send(batch)

    with served_by(Noting(1)) as workers:
        found = workers.in_order(work(lambda _: time.sleep(seconds)), chunks(range(length)))
        assert len(numbers(found)) == length
    assert sizes[0] == 1
    assert (max(sizes) > 10) == together


@pytest.mark.parametrize("count", [2, 3, 8])
def test_closing_leaves_no_thread_and_starts_nothing_more(count: int) -> None:
    ran: list[int] = []
    before = threading.active_count()
    with served_by(OneByOne(count)) as workers:
        outcomes = workers.in_order(work(ran.append), chunks(counted([])))
        for _ in range(3):
            next(outcomes)
    finished = len(ran)
    assert threading.active_count() == before
    time.sleep(0.05)
    assert len(ran) == finished


@any_number
def test_an_error_arrives_at_its_turn(count: int) -> None:
    def run(number: int) -> None:
        if number == 5:
            raise ValueError("chunk 5")

    with Workers(count) as workers:
        outcomes = workers.in_order(work(run), chunks(range(1000)))
        assert [next(outcomes)[0].number for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ValueError, match="chunk 5"):
            next(outcomes)


@any_number
def test_an_interrupt_in_a_simulator_stops_the_run(count: int) -> None:
    def run(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    with Workers(count) as workers, pytest.raises(Stopped) as stopped:
        numbers(workers.in_order(work(run), chunks(range(1000))))
    assert stopped.value.reason == "interrupted"


@any_number
def test_an_error_in_making_chunks_arrives(count: int) -> None:
    def some() -> Iterator[Chunk[Sums]]:
        yield from chunks([0])
        raise RuntimeError("no more chunks")

    with Workers(count) as workers, pytest.raises(RuntimeError, match="no more chunks"):
        numbers(workers.in_order(work(), some()))


@any_number
def test_a_brake_stops_between_chunks_and_while_waiting(count: int) -> None:
    pulled = StopSignal()
    with Workers(count, stop_signal=pulled) as workers:
        outcomes = workers.in_order(work(), chunks(counted([])))
        assert [next(outcomes)[0].number for _ in range(8)] == list(range(8))
        pulled.pull()
        with pytest.raises(Stopped):
            next(outcomes)


def test_time_is_up_while_everyone_waits() -> None:
    release = threading.Event()

    def run(number: int) -> None:
        assert release.wait(60)

    late = StopSignal(working_time() + 0.1)
    with Workers(2, stop_signal=late) as workers:
        with pytest.raises(Stopped) as stopped:
            numbers(workers.in_order(work(run), chunks(range(10))))
        assert stopped.value.reason == "max_seconds"
        release.set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be"),
        ({"workers": 1.5}, "workers must be"),
        ({"chunk_seconds": 0}, "chunk_seconds must be"),
        ({"worker_memory": 0}, "worker_memory must be"),
        ({"workers": "tcp://127.0.0.1:1", "worker_memory": 10**9}, "give `dask worker` its --memory-limit"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Workers(**arguments)


def simulator(run: Callable[[], None]) -> sp.VectorModel:
    def step(states: Any, actions: Any, rng: Any) -> tuple[Any, Any]:
        run()
        return states, states[:, 0]

    return sp.VectorModel(step, actions=1, discount=0.5, reward_range=(0, 1), initial_state=[0.5])


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Signals do what they usually do: a shell that starts a job in the background has it ignore interrupts."""
    before = {number: signal.signal(number, handler) for number, handler in brake.USUAL.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_simulator_call_at_once(number: signal.Signals) -> None:
    """Python code is left where it is; what the signal did before is restored."""
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
            sp.Oracle(simulator(run), 0).sample(np.array([[0.5]]), [0])
    assert reached == []
    assert signal.getsignal(number) == before


@pytest.mark.usefixtures("usual_signals")
def test_a_signal_waits_for_bookkeeping() -> None:
    """Between simulator calls a signal is noted, and raised where the run looks next."""
    with StopSignal().on_signals() as pulled:
        oracle = sp.Oracle(simulator(lambda: None), 0)
        oracle.sample(np.array([[0.5]]), [0])
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # bookkeeping goes on
            pass
        with pytest.raises(Stopped):
            oracle.sample(np.array([[0.5]]), [0])
        assert oracle.calls == 1
        with pytest.raises(Stopped):
            pulled.check()


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
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        assert noted == ["mine"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_oracles_of_other_threads_know_no_brake_of_this_one() -> None:
    with StopSignal().on_signals() as pulled:
        pulled.pull()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(brake.current.get()))
        thread.start()
        thread.join()
    assert found == [None]
    assert brake.current.get() is None


@pytest.mark.usefixtures("usual_signals")
def test_a_call_that_takes_too_long_is_interrupted() -> None:
    """Even where a simulator catches what it can; a call in time is not, and neither is what comes after it."""

    def stubborn() -> None:
        for _ in range(3):
            try:
                time.sleep(60)
            except TimeoutError:
                continue
        raise TimeoutError("at last")

    states = np.array([[0.5]])
    with StopSignal(call_seconds=0.1).on_signals():
        sp.Oracle(simulator(lambda: None), 0).sample(states, [0])
        with pytest.raises(sp.SimulatorError, match=r"a call took longer than chunk_seconds=0.1 s \(state \[0.5\]"):
            sp.Oracle(simulator(lambda: time.sleep(60)), 0).sample(states, [0])
        with pytest.raises(sp.SimulatorError, match="at last"):
            sp.Oracle(simulator(stubborn), 0).sample(states, [0])
        time.sleep(0.2)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    """In another thread no signal arrives."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            with StopSignal(call_seconds=0.1).on_signals():
                sp.Oracle(simulator(lambda: None), 0).sample(np.array([[0.5]]), [0])
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "chunk_seconds cannot limit simulator calls of this planner here" in str(errors[0])


def test_a_brake_stops_nothing_in_another_process() -> None:
    pulled = StopSignal()
    pulled.pull()
    pickle.loads(pickle.dumps(pulled)).check()


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
