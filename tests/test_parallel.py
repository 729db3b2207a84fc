"""A crew: outcomes in the order of the tasks, tasks pulled lazily, abandoned on closing, stopped by a brake."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan import brake
from smoothplan.brake import Brake, Stopped
from smoothplan.engines.base import Sums
from smoothplan.running.hiring import Terms
from smoothplan.running.work import Chunk, Outcome, Work
from smoothplan.running.workers import AHEAD, BEHIND, Pool, ThreadPool, Workers

WORKERS = (1, 2, 3, 8)

MODEL = sp.models.chain(states=3)


class Engine:
    """Does to a number what it is told to."""

    compiled = True

    def __init__(self, run: Callable[[int], Any]) -> None:
        self._run = run

    def values(self, oracle: Any, state: Any, number: int) -> Sums:
        """The square of a number, after something."""
        self._run(number)
        return Sums(number, float(number * number), 0.0)


def nothing(number: int) -> None:
    pass


def work(run: Callable[[int], Any] = nothing) -> Work:
    return Work(Engine(run), MODEL, 0, 0)


def tasks(numbers: Iterable[int]) -> Iterator[Chunk]:
    return (Chunk(number, "values", (number,), 1) for number in numbers)


def hire(crew: int) -> Callable[[Work], Pool | None]:
    return Terms(crew).hire


def numbers(outcomes: Iterable[tuple[Chunk, Outcome]]) -> list[int]:
    """The numbers in the order in which they came, each checked against its square."""
    found = []
    for task, outcome in outcomes:
        assert outcome.sums == (task.number, float(task.number**2), 0.0)
        found.append(task.number)
    return found


@pytest.mark.parametrize("crew", WORKERS)
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_outcomes_come_in_the_order_of_the_tasks(crew: int, count: int) -> None:
    with Workers(hire(crew)) as crew:
        assert numbers(crew.in_order(work(), tasks(range(count)))) == list(range(count))
        assert numbers(crew.in_order(work(), tasks(range(count)))) == list(range(count))


def test_a_late_task_does_not_overtake() -> None:
    """The first task waits for the second to be done; still it is handed back first."""
    done = threading.Event()

    def run(number: int) -> None:
        if number == 0:
            assert done.wait(60)
        if number == 1:
            done.set()

    with Workers(hire(2)) as crew:
        assert numbers(crew.in_order(work(run), tasks(range(5)))) == [0, 1, 2, 3, 4]


def counted(pulled: list[int]) -> Iterator[int]:
    """Whole numbers for ever, with a note of each that was asked for."""
    number = 0
    while True:
        pulled.append(number)
        yield number
        number += 1


class OneByOne(ThreadPool):
    """Parcels of one task each, however fast they are."""

    parcel_seconds = 0.0


@pytest.mark.parametrize("crew", WORKERS)
def test_tasks_are_pulled_no_further_ahead_than_needed(crew: int) -> None:
    pulled: list[int] = []
    with Workers(lambda _: OneByOne(crew)) as crew:
        for received, _ in enumerate(crew.in_order(work(), tasks(counted(pulled)))):
            assert len(pulled) - received <= BEHIND * crew
            if received == 30:
                break


@pytest.mark.parametrize("crew", WORKERS)
def test_no_more_is_under_way_than_workers_need(crew: int) -> None:
    """While the first task is held up, no more than a few others are begun."""
    release, begun = threading.Event(), []

    def run(number: int) -> None:
        begun.append(number)
        if number < crew:
            assert release.wait(60)

    pulled: list[int] = []
    threading.Timer(0.2, release.set).start()
    with Workers(lambda _: OneByOne(crew)) as crew:
        next(iter(crew.in_order(work(run), tasks(counted(pulled)))))
        assert len(begun) <= len(pulled) <= BEHIND * crew + AHEAD * crew + 1


@pytest.mark.parametrize(("seconds", "count", "together"), [(0.0, 3_000, True), (0.15, 5, False)])
def test_fast_tasks_travel_together_and_slow_ones_alone(seconds: float, count: int, together: bool) -> None:
    sizes: list[int] = []

    class Noting(ThreadPool):
        parcel_seconds = 0.1

        def submit(self, work: Work, tasks: Any) -> Any:
            sizes.append(len(tasks))
            return super().submit(work, tasks)

    with Workers(lambda _: Noting(1)) as crew:
        assert len(numbers(crew.in_order(work(lambda _: time.sleep(seconds)), tasks(range(count))))) == count
    assert sizes[0] == 1
    assert (max(sizes) > 10) == together


@pytest.mark.parametrize("crew", [2, 3, 8])
def test_closing_leaves_no_thread_and_starts_nothing_more(crew: int) -> None:
    ran: list[int] = []
    before = threading.active_count()
    with Workers(lambda _: OneByOne(crew)) as crew:
        outcomes = crew.in_order(work(ran.append), tasks(counted([])))
        for _ in range(3):
            next(outcomes)
    finished = len(ran)
    assert threading.active_count() == before
    time.sleep(0.05)
    assert len(ran) == finished


@pytest.mark.parametrize("crew", WORKERS)
def test_an_error_arrives_at_its_turn(crew: int) -> None:
    def run(number: int) -> None:
        if number == 5:
            raise ValueError("task 5")

    with Workers(hire(crew)) as crew:
        outcomes = crew.in_order(work(run), tasks(range(1000)))
        assert [next(outcomes)[0].chunk for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ValueError, match="task 5"):
            next(outcomes)


@pytest.mark.parametrize("crew", WORKERS)
def test_an_interrupt_in_a_simulator_stops_the_run(crew: int) -> None:
    def run(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    with Workers(hire(crew)) as crew, pytest.raises(Stopped) as stopped:
        numbers(crew.in_order(work(run), tasks(range(1000))))
    assert stopped.value.reason == "interrupted"


@pytest.mark.parametrize("crew", WORKERS)
def test_an_error_in_making_tasks_arrives(crew: int) -> None:
    def some() -> Iterator[Chunk]:
        yield from tasks([0])
        raise RuntimeError("no more tasks")

    with Workers(hire(crew)) as crew, pytest.raises(RuntimeError, match="no more tasks"):
        numbers(crew.in_order(work(), some()))


@pytest.mark.parametrize("crew", WORKERS)
def test_a_brake_stops_between_tasks_and_while_waiting(crew: int) -> None:
    pulled = Brake()
    with Workers(hire(crew), brake=pulled) as crew:
        outcomes = crew.in_order(work(), tasks(counted([])))
        assert [next(outcomes)[0].chunk for _ in range(8)] == list(range(8))
        pulled.pull()
        with pytest.raises(Stopped):
            next(outcomes)


def test_time_is_up_while_everyone_waits() -> None:
    release = threading.Event()

    def run(number: int) -> None:
        assert release.wait(60)

    late = Brake(time.perf_counter() + 0.1)
    with Workers(hire(2), brake=late) as crew:
        with pytest.raises(Stopped) as stopped:
            numbers(crew.in_order(work(run), tasks(range(10))))
        assert stopped.value.reason == "max_seconds"
        release.set()


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

    with Brake().on_signals():
        assert signal.getsignal(number) != before
        with pytest.raises(Stopped):
            sp.Oracle(simulator(run), 0).sample(np.array([[0.5]]), [0])
    assert reached == []
    assert signal.getsignal(number) == before


@pytest.mark.usefixtures("usual_signals")
def test_a_signal_waits_for_bookkeeping() -> None:
    """Between simulator calls a signal is noted, and raised where the run looks next."""
    with Brake().on_signals() as pulled:
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
    with Brake().on_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_of_the_user_stay() -> None:
    noted = []
    before = signal.signal(signal.SIGTERM, lambda *_: noted.append("mine"))
    try:
        with Brake().on_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        assert noted == ["mine"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_oracles_of_other_threads_know_no_brake_of_this_one() -> None:
    with Brake().on_signals() as pulled:
        pulled.pull()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(brake.current.get()))
        thread.start()
        thread.join()
    assert found == [None]
    assert brake.current.get() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"crew": 0}, "crew must be"),
        ({"pool": "fork"}, "pool must be auto, threads or processes, got 'fork'"),
        ({"simulator_timeout": 0}, "simulator_timeout"),
        ({"simulator_timeout": 1, "pool": "threads"}, "simulator_timeout needs pool='processes'"),
        ({"worker_memory": 0}, "worker_memory"),
    ],
)
def test_terms_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Terms(**arguments)
