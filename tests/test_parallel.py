"""Tasks on threads: handed back in order, pulled lazily, abandoned on closing."""

import threading
from collections.abc import Iterator

import pytest

from smoothplan.parallel import AHEAD, in_order

WORKERS = (1, 2, 3, 8)


def square(task: int) -> int:
    return task * task


@pytest.mark.parametrize("workers", WORKERS)
def test_outcomes_come_in_the_order_of_the_tasks(workers: int) -> None:
    assert list(in_order(square, range(50), workers)) == [(task, task * task) for task in range(50)]


def test_a_late_task_does_not_overtake() -> None:
    """The first task waits for the second to be done; still it is handed back first."""
    done = threading.Event()

    def run(task: int) -> int:
        if task == 0:
            assert done.wait(60)
        if task == 1:
            done.set()
        return task

    assert [task for task, _ in in_order(run, range(5), 2)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_tasks(workers: int, count: int) -> None:
    assert list(in_order(square, range(count), workers)) == [(task, task * task) for task in range(count)]


def counted(pulled: list[int]) -> Iterator[int]:
    """Whole numbers for ever, with a note of each that was asked for."""
    task = 0
    while True:
        pulled.append(task)
        yield task
        task += 1


@pytest.mark.parametrize("workers", WORKERS)
def test_tasks_are_pulled_no_further_ahead_than_needed(workers: int) -> None:
    pulled: list[int] = []
    outcomes = in_order(square, counted(pulled), workers)
    for received, _ in enumerate(outcomes):
        assert len(pulled) - received <= (1 if workers == 1 else AHEAD * workers)
        if received == 30:
            break
    outcomes.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_closing_abandons_the_rest(workers: int) -> None:
    pulled: list[int] = []
    ran: list[int] = []
    before = threading.active_count()
    outcomes = in_order(ran.append, counted(pulled), workers)
    for _ in range(3):
        next(outcomes)
    outcomes.close()
    finished = len(ran)
    assert 3 <= finished <= len(pulled) <= 3 + AHEAD * workers
    assert threading.active_count() == before
    with pytest.raises(StopIteration):
        next(outcomes)
    assert len(ran) == finished


def test_closing_does_not_start_what_is_waiting() -> None:
    """One task blocks the only thread that is free; those behind it are never run."""
    release = threading.Event()
    ran: list[int] = []

    def run(task: int) -> None:
        if task >= 1:
            assert release.wait(60)
        ran.append(task)

    outcomes = in_order(run, range(100), 2)
    next(outcomes)
    threading.Timer(0.05, release.set).start()
    outcomes.close()
    assert set(ran) <= {0, 1, 2, 3}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_arrives_at_its_turn(workers: int, error: type[BaseException]) -> None:
    def run(task: int) -> int:
        if task == 5:
            raise error("task 5")
        return task

    outcomes = in_order(run, range(1000), workers)
    assert [next(outcomes) for _ in range(5)] == [(task, task) for task in range(5)]
    with pytest.raises(error, match="task 5"):
        next(outcomes)
    with pytest.raises(StopIteration):
        next(outcomes)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_in_making_tasks_arrives(workers: int) -> None:
    def tasks() -> Iterator[int]:
        yield 0
        raise RuntimeError("no more tasks")

    with pytest.raises(RuntimeError, match="no more tasks"):
        list(in_order(square, tasks(), workers))
