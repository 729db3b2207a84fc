"""Workers: outcomes in the order of the chunks, chunks pulled lazily, discarded on closing, stopped by a signal."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.compiling import working_time
from smoothplan.base.stopping import Stopped, StopSignal
from smoothplan.run.chunks import Batch, Chunk, Outcome, Sums, Work, chunk_size
from smoothplan.run.workers import BEHIND, ThreadPool, Workers

MODEL = sp.models.chain(states=3)

any_number = pytest.mark.parametrize("count", [1, 2, 8])


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


def test_a_late_chunk_is_not_overtaken() -> None:
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
    workers._pool = pool
    return workers


@any_number
def test_chunks_are_pulled_no_further_ahead_than_needed(count: int) -> None:
    pulled: list[int] = []
    with served_by(OneByOne(count)) as workers:
        for received, _ in enumerate(workers.in_order(work(), chunks(counted(pulled)))):
            assert len(pulled) - received <= BEHIND * count + 1
            if received == 30:
                break


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


@any_number
@pytest.mark.parametrize(
    ("error", "arrives"), [(ValueError("chunk 5"), ValueError), (KeyboardInterrupt(), Stopped)], ids=["error", "Ctrl-C"]
)
def test_an_error_arrives_at_its_turn(count: int, error: BaseException, arrives: type[BaseException]) -> None:
    """An interrupt within a simulator stops the run."""

    def run(number: int) -> None:
        if number == 5:
            raise error

    with Workers(count) as workers:
        outcomes = workers.in_order(work(run), chunks(range(1000)))
        assert [next(outcomes)[0].number for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(arrives, match=r"chunk 5|interrupted"):
            next(outcomes)


@any_number
def test_a_stop_signal_stops_between_chunks(count: int) -> None:
    stop = StopSignal()
    with Workers(count, stop_signal=stop) as workers:
        outcomes = workers.in_order(work(), chunks(counted([])))
        assert [next(outcomes)[0].number for _ in range(8)] == list(range(8))
        stop.pull()
        with pytest.raises(Stopped):
            next(outcomes)


def test_time_is_up_while_everyone_waits() -> None:
    release = threading.Event()

    def run(number: int) -> None:
        assert release.wait(60)

    late = StopSignal(working_time() + 0.1)
    with Workers(2, stop_signal=late) as workers:
        with pytest.raises(Stopped, match="max_seconds"):
            numbers(workers.in_order(work(run), chunks(range(10))))
        release.set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"workers": 1.5}, "workers must be a whole number, got 1.5"),
        *(
            ({"workers": text}, f'workers must be a number of threads like "threads:4", got {text!r}')
            for text in ("threads", "threads:", "threads:0", "threads:-1", "threads:1.5", "threads:two", "thread:2")
        ),
        ({"workers": "threads:2", "chunk_seconds": 1}, "limit processes, not threads, got workers='threads:2'"),
        ({"workers": "threads:2", "worker_memory": 10**9}, "limit processes, not threads, got workers='threads:2'"),
        ({"chunk_seconds": 0}, "chunk_seconds must be"),
        ({"worker_memory": 0}, "worker_memory must be"),
        ({"workers": "tcp://127.0.0.1:1", "worker_memory": 10**9}, "give `dask worker` its --memory-limit"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Workers(**arguments)


class Waiting:
    """A simulator in Python that waits, in threads of workers, until two calls have met."""

    def __init__(self) -> None:
        self._lock, self._inside, self.met = threading.Lock(), 0, threading.Event()

    def __call__(self, state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float]:
        with self._lock:
            self._inside += 1
            if self._inside == 2:
                self.met.set()
        if threading.current_thread() is not threading.main_thread():
            self.met.wait(0.005)  # hundreds of calls can meet; those of a single chunk have nobody to wait for
        with self._lock:
            self._inside -= 1
        place = np.clip(state + (0.3 if action else -0.3) + 0.1 * rng.standard_normal(), -1.0, 1.0)
        return place, float(0.5 * (1.0 + place))


def _planned(model: Any, workers: Any) -> Any:
    found = sp.plan(sp.SmoothCruiser(sp.LogSumExp(0.5), epsilon=0.4), model, workers=workers)
    return found.value, found.interval, found.calls


def _decided(model: Any, workers: Any) -> Any:
    found = sp.decide(model, calls=600, workers=workers)
    return found.action, found.q.tolist(), found.calls


def _acted(model: Any, workers: Any) -> Any:
    with sp.Agent(model, calls=400, reference_calls=200, workers=workers) as agent:
        decisions = [agent.decide(place) for place in (0.2, -0.5)]
    return [(found.action, found.q.tolist(), found.calls) for found in decisions]


@pytest.mark.parametrize("drive", [_planned, _decided, _acted])
def test_threads_run_a_simulator_in_python_with_the_bits_of_one(drive: Callable[[Any, Any], Any]) -> None:
    declared: Any = {"actions": 2, "discount": 0.3, "reward_range": (0, 1), "terminates": False, "initial_state": 0.2}
    found = {}
    for workers in (1, "threads:1", "threads:3"):
        step = Waiting()
        found[workers] = drive(sp.VectorModel.from_scalar(step, **declared), workers)
        assert step.met.is_set() == (workers == "threads:3")
    assert found[1] == found["threads:1"] == found["threads:3"]


@pytest.mark.parametrize("each", [1.0, 7.0, 1e6, math.inf])
def test_chunks_are_neither_too_large_nor_too_many(each: float) -> None:
    full, samples = 1 << 16, 10_000
    most = max(1.0, full // each)
    assert chunk_size(full, each) == most
    assert chunk_size(full, each, max_calls=640) == max(1.0, 10 // each)
    size = chunk_size(full, each, samples=samples, pieces=(4, 16))
    assert 1 <= size <= min(most, samples / 4)
    assert size == most or math.ceil(samples / size) <= 16 or size >= (full >> 5) // each
    # A run starts with small chunks, and grows by an eighth at a time.
    assert chunk_size(full, each, planned=0) == max(1.0, (full >> 9) // each)
    assert chunk_size(full, each, planned=8_000) == max(1.0, 1_000 // each)
