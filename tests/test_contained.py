"""Worker processes: the bits of this process, whatever simulators do to theirs, and nothing left behind."""

import ctypes
import importlib
import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numba
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.engines.base import Sums
from smoothplan.engines.chains import BatchedChains
from smoothplan.models.base import reproduce
from smoothplan.models.calls import Call
from smoothplan.planners.engines import engine_for
from smoothplan.running import contained
from smoothplan.running import worker as process
from smoothplan.running.contained import ContainedWorker
from smoothplan.running.packing import PackingError, pack, unpack
from smoothplan.running.processes import ProcessPool, default_memory
from smoothplan.running.work import Chunk, Delivery, Outcome, Work
from smoothplan.running.worker import Note, Where
from smoothplan.streams import generator, generator_words

from .common import ending

LONG = 120.0
"""Seconds to wait for what must happen, on a machine with other things to do."""

TIMEOUT = 0.5
MEGABYTES = 1 << 20
RARE = 0.0005
"""The probability of a draw at which a simulator does something bad."""

DECLARED: dict[str, Any] = {
    "actions": 2,
    "discount": 0.5,
    "reward_range": (0, 1),
    "terminates": False,
    "initial_state": [0.0, 1.0],
}


def drift(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
    moved = states + 0.1 * (2 * actions[:, None] - 1) + 0.01 * rng.standard_normal(states.shape)
    return moved, np.exp(-(moved[:, 0] ** 2))


def scalar_drift(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    moved = state + 0.1 * (2 * action - 1) + 0.01 * rng.standard_normal(state.shape)
    return moved, float(np.exp(-(moved[0] ** 2))), False


def work_of(model: Any, seed: int = 5) -> Work:
    planner = sp.SmoothCruiser(sp.LogSumExp(0.1), epsilon=0.3, delta=0.1)
    engine = engine_for("auto", planner.schedule(model), planner.backup, model)
    return Work(engine, model, model.initial_state, seed)


def vector_work(step: Any) -> Work:
    return work_of(sp.VectorModel(step, **DECLARED))


def chunks(count: int, samples: int = 3) -> list[Chunk]:
    """Returns of both actions and samples of the value, in turn."""
    kinds = [("returns", (0, samples), 0), ("returns", (1, samples), 1), ("values", (np.array([0.4, 0.6]), samples), 0)]
    return [Chunk(chunk, *kinds[chunk % 3][:2], samples, kinds[chunk % 3][2]) for chunk in range(count)]  # type: ignore[arg-type]


def bits(outcomes: Sequence[Outcome]) -> list[Any]:
    """Everything but the time."""
    return [(outcome.sums, outcome.calls) for outcome in outcomes]


def gone(pid: int) -> bool:
    """Whether a process has ended, if need be after a while."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def number_in(file: Path) -> int:
    """The number that someone writes to a file, with a line end."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        if file.exists() and file.read_text().endswith("\n"):
            return int(file.read_text().split()[-1])
        time.sleep(0.02)
    raise AssertionError(f"nobody wrote {file}")


@pytest.fixture(scope="module")
def worker() -> Iterator[ContainedWorker]:
    """One for all that do no harm."""
    found = ContainedWorker(timeout=LONG)
    yield found
    found.close()


# The same bits.


@pytest.mark.parametrize("kind", ["function", "closure", "lambda", "script", "partial", "scalar", "table"])
def test_a_process_gives_the_bits_of_this_one(worker: ContainedWorker, kind: str) -> None:
    scale = np.array(0.9)

    def closure(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        moved, rewards = drift(states, actions, rng)
        return moved, scale * rewards

    script: dict[str, Any] = {"__name__": "__main__", "drift": drift}
    exec("def step(states, actions, rng):\n    return drift(states, actions, rng)", script)
    steps: dict[str, Any] = {
        "function": drift,
        "closure": closure,
        "lambda": lambda *call: drift(*call),
        "script": script["step"],
        "partial": partial(_partial, drift),
    }
    if kind == "scalar":
        work = work_of(sp.VectorModel.from_scalar(scalar_drift, **DECLARED))
    elif kind == "table":
        work = work_of(ending(2, 0.3, 1))
        assert work.compiled
    else:
        work = vector_work(steps[kind])
    tasks = chunks(12)
    here, there = work.each(tasks), worker.run(work.packed, tasks)
    assert there.error is None
    assert bits(there.outcomes) == bits(here.outcomes)
    assert len({outcome.sums for outcome in here.outcomes}) > 6


def _partial(function: Any, *call: Any) -> Any:
    return function(*call)


def test_works_that_were_dropped_are_sent_again(worker: ContainedWorker) -> None:
    works = [work_of(sp.VectorModel(drift, **DECLARED), seed) for seed in range(6)]
    tasks = chunks(2)
    wanted = [bits(work.each(tasks).outcomes) for work in works]
    before = worker.starts
    for _ in range(2):
        assert [bits(worker.run(work.packed, tasks).outcomes) for work in works] == wanted
    assert worker.starts <= max(before, 1)


def test_a_pool_uses_as_many_processes_as_it_needs() -> None:
    work = vector_work(drift)
    tasks = chunks(12)
    pool = ProcessPool(2)
    try:
        assert pool.pids == []
        assert bits(pool.submit(work, tasks[:1]).result(LONG).outcomes) == bits(work.each(tasks[:1]).outcomes)
        assert len(pool.pids) == 1
        futures = [pool.submit(work, tasks[start : start + 3]) for start in range(0, 12, 3)]
        found = [outcome for future in futures for outcome in future.result(LONG).outcomes]
        assert bits(found) == bits(work.each(tasks).outcomes)
    finally:
        pids = pool.pids
        pool.close()
        pool.close()
    assert 1 <= len(pids) <= 2
    assert all(gone(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(work, tasks)


# Errors.


class OwnError(Exception):
    """Of a simulator's author."""


class OddError(Exception):
    """Cannot be copied."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


class Raising:
    """An engine that only raises."""

    compiled: ClassVar[bool] = False

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def returns(self, oracle: Any, state: Any, action: int, count: int) -> Any:
        if self.error is None:
            raise OddError(1, 2)
        raise self.error


def failure(worker: ContainedWorker, error: BaseException | None) -> BaseException:
    work = Work(Raising(error), sp.VectorModel(drift, **DECLARED), np.zeros(2), 0)
    delivery = worker.run(work.packed, chunks(2))
    assert delivery.outcomes == []
    assert delivery.error is not None
    return delivery.error


def test_errors_arrive_as_they_are(worker: ContainedWorker) -> None:
    """A class of the user's own is even the same class again."""
    found = failure(worker, OwnError("mine"))
    assert type(found) is OwnError
    assert str(found) == "mine"
    (note,) = found.__notes__
    assert note.startswith("in a worker process:\nTraceback")
    assert "raise self.error" in note


@pytest.mark.parametrize(("error", "text"), [(None, "OddError('odd')"), (KeyboardInterrupt(), "KeyboardInterrupt()")])
def test_errors_that_cannot_be_sent_are_described(
    worker: ContainedWorker, error: BaseException | None, text: str
) -> None:
    found = failure(worker, error)
    assert type(found) is RuntimeError
    assert str(found) == text


def raising(kind: str, state: Any, action: int, rng: np.random.Generator) -> Any:
    answer = scalar_drift(state, action, rng)
    if rng.random() < RARE:
        if kind == "exit":
            sys.exit("no more")
        raise OwnError("no more")
    return answer


@pytest.mark.parametrize("kind", ["error", "exit"])
def test_a_simulator_that_raises_gives_the_error_of_this_process(worker: ContainedWorker, kind: str) -> None:
    work = work_of(sp.VectorModel.from_scalar(partial(raising, kind), **DECLARED))
    tasks = chunks(60)
    here, there = work.each(tasks), worker.run(work.packed, tasks)
    assert isinstance(here.error, sp.SimulatorError)
    assert isinstance(there.error, sp.SimulatorError)
    assert str(there.error) == str(here.error)
    assert there.error.call.to_json() == here.error.call.to_json()
    assert 0 < len(there.outcomes) < len(tasks)
    assert bits(there.outcomes) == bits(here.outcomes)
    assert "scalar_drift" not in str(there.error)
    assert any("no more" in note for note in there.error.__notes__)
    with pytest.raises(sp.SimulatorError, match="no more"):
        reproduce(work.model, there.error.call)


def test_work_that_cannot_be_set_up_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module looks installed, so it is imported on the other side, where that fails."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "fragile_simulator.py").write_text(
        "import os\nif os.environ.get('FRAGILE'):\n    raise ImportError('no such device')\n"
        "def step(states, actions, rng):\n    return states, 0.0 * actions\n"
    )
    monkeypatch.syspath_prepend(folder)
    work = vector_work(importlib.import_module("fragile_simulator").step)
    monkeypatch.setenv("FRAGILE", "1")
    worker = ContainedWorker()
    try:
        delivery = worker.run(work.packed, chunks(2))
        assert delivery.outcomes == []
        assert isinstance(delivery.error, RuntimeError)
        assert "cannot be set up in another process: ImportError: no such device" in str(delivery.error)
        # The process goes on, and so do others' simulators.
        assert worker.run(vector_work(drift).packed, chunks(1)).error is None
        assert worker.starts == 1
    finally:
        worker.close()


def test_a_process_that_cannot_be_started_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no_python"))
    worker = ContainedWorker()
    delivery = worker.run(vector_work(drift).packed, chunks(1))
    assert isinstance(delivery.error, RuntimeError)
    assert "no_python" in str(delivery.error)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    delivery = worker.run(vector_work(drift).packed, chunks(1))
    assert isinstance(delivery.error, RuntimeError)
    assert "a worker process exited with status 1 before it could begin" in str(delivery.error)
    worker.close()


# Simulators that take their process with them.


def fork_and_exit(file: str) -> None:
    """Leaves a child behind that holds whatever the process had open."""
    child = os.fork()
    if child == 0:
        time.sleep(10 * LONG)
    with Path(file).open("a") as stream:
        stream.write(f"{child}\n")
    os._exit(3)


def hang_in_python() -> None:
    while True:
        time.sleep(1)


def hang_in_c() -> None:
    """Without letting go of the interpreter lock."""
    ctypes.PyDLL(None).sleep(int(10 * LONG))


def die(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(LONG)


def bad_at_a_rare_draw(deed: Callable[[], None], states: Any, actions: Any, rng: np.random.Generator) -> Any:
    """A simulator that does something bad at a rare draw, but neither at the first call of a chunk nor in chunk 0."""
    answer = drift(states, actions, rng)
    if abs(states[0, 0]) > 0 and (rng.random(len(actions)) < RARE).any():
        deed()
    return answer


DEEDS: dict[str, tuple[Callable[[], None], str]] = {
    "segfault": (partial(die, signal.SIGSEGV), "the simulator killed its process (signal SIGSEGV)"),
    "kill": (partial(die, signal.SIGKILL), "the simulator killed its process (signal SIGKILL)"),
    "exit": (partial(fork_and_exit, ""), "the simulator exited with status 3"),
    "hang": (hang_in_python, "the simulator took longer than simulator_timeout=0.5 s"),
    "hang in C": (hang_in_c, "the simulator took longer than simulator_timeout=0.5 s"),
}


@pytest.fixture(scope="module")
def deliveries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Future[Delivery], Path]]]:
    """What became of bad simulators, all at the same time."""
    pool = ProcessPool(3, timeout=TIMEOUT)
    found = {}
    for name, (deed, _) in DEEDS.items():
        file = tmp_path_factory.mktemp("children") / "pids"
        deed = partial(fork_and_exit, str(file)) if name == "exit" else deed
        found[name] = pool.submit(vector_work(partial(bad_at_a_rare_draw, deed)), chunks(200)), file
    leisurely = Work(Leisurely(), sp.VectorModel(drift, **DECLARED), np.zeros(2), 5)
    found["leisurely"] = pool.submit(leisurely, chunks(1)), Path()
    yield found
    pool.close()


@pytest.mark.full
@pytest.mark.parametrize("name", DEEDS)
def test_a_simulator_that_ends_its_process_is_named(
    deliveries: dict[str, tuple[Future[Delivery], Path]], name: str
) -> None:
    future, file = deliveries[name]
    outcomes, error = future.result(LONG)
    assert isinstance(error, sp.SimulatorError)
    assert str(error).startswith(f"{DEEDS[name][1]} (")
    assert f"seed 5, chunk {len(outcomes)})" in str(error)

    class CaughtError(Exception):
        pass

    def deed() -> None:
        raise CaughtError

    # In this process, the same simulator fails at the same place, if that can be told from the draws.
    work = vector_work(partial(bad_at_a_rare_draw, deed))
    here = work.each(chunks(200))
    assert len(outcomes) > 0
    assert bits(outcomes) == bits(here.outcomes)
    assert isinstance(here.error, sp.SimulatorError)
    assert error.call.to_json() == here.error.call.to_json()
    with pytest.raises(sp.SimulatorError, match="CaughtError"):
        reproduce(work.model, error.call)
    if name == "exit":
        children = [int(line) for line in file.read_text().split()]
        assert len(children) == 3
        assert all(gone(child) for child in children)


class Leisurely:
    """An engine that takes its time between simulator calls."""

    compiled: ClassVar[bool] = False

    def returns(self, oracle: sp.Oracle, state: Any, action: int, count: int) -> Sums:
        for _ in range(2):
            oracle.sample(state[None], np.array([action]))
            time.sleep(3 * TIMEOUT)
        return Sums(count, 0.0, 0.0)


@pytest.mark.full
def test_only_simulator_calls_are_timed(deliveries: dict[str, tuple[Future[Delivery], Path]]) -> None:
    future, _ = deliveries["leisurely"]
    assert future.result(LONG).error is None


def judged(status: int, where: Where | None, numbers: Sequence[int]) -> list[str]:
    """What is said after processes that died at calls of these numbers; "" where another is tried."""
    deaths = contained._Deaths(timeout=2.0)
    call = Call(np.zeros((1, 1)), np.zeros(1, dtype=np.int64), generator_words(generator(0)), 0, 7)
    notes = [where and Note(number, where, call) for number in numbers]
    found = [deaths.verdict(status, None, careful=False), *(deaths.verdict(status, note, True) for note in notes)]
    return ["" if error is None else str(error) for error in found]


def test_the_verdict_on_deaths() -> None:
    *tried, last = judged(-signal.SIGABRT, "call", [4, 5, 4, 4])
    assert (tried, last) == (
        [""] * 4,
        "the simulator killed its process (signal SIGABRT) (state [0.0], action 0, seed 0, chunk 7)",
    )
    *tried, last = judged(1, "between", [0, 0, 0, 0])
    assert tried == [""] * 4
    assert last.startswith("the process of the simulator exited with status 1, outside of its calls, after state")
    assert judged(-9, "compiled", [0, 0, 0]) == [""] * 4
    assert judged(-9, "compiled", [0] * 4)[-1].startswith(
        "the compiled simulator killed its process (signal SIGKILL) in a chunk that starts with state"
    )
    assert judged(-signal.SIGALRM, "compiled", [0] * 4)[-1].startswith("the compiled simulator took longer than 600 s")
    assert judged(-64, None, [0] * 4)[-1].startswith("a worker process was killed (signal SIGRTMAX) before")
    assert judged(-9, "call", range(19))[-2:] == [
        "",
        "the simulator killed its process (signal SIGKILL) (state [0.0], action 0, seed 0, chunk 7)",
    ]


def dying_elsewhere(file: str, times: int, states: Any, actions: Any, rng: np.random.Generator) -> Any:
    """Dies at the k-th row of the k-th process, so many times: as if killed from outside."""
    path = Path(file)
    if not hasattr(dying_elsewhere, "process"):
        path.write_text(path.read_text() + "x")
        dying_elsewhere.process, dying_elsewhere.calls = len(path.read_text()), 0  # type: ignore[attr-defined]
    dying_elsewhere.calls += 1  # type: ignore[attr-defined]
    process: int = dying_elsewhere.process  # type: ignore[attr-defined]
    if process <= times and dying_elsewhere.calls == process:  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)
    return scalar_drift(states, actions, rng)


@pytest.mark.full
def test_deaths_at_different_calls_are_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "processes"
    file.write_text("")
    honest = work_of(sp.VectorModel.from_scalar(scalar_drift, **DECLARED))
    work = work_of(sp.VectorModel.from_scalar(partial(dying_elsewhere, str(file), 2), **DECLARED))
    tasks = chunks(6)
    worker = ContainedWorker()
    try:
        delivery = worker.run(work.packed, tasks)
        assert worker.starts == 3
    finally:
        worker.close()
    assert delivery.error is None
    assert bits(delivery.outcomes) == bits(honest.each(tasks).outcomes)

    monkeypatch.setattr(contained, "ATTEMPTS", 2)
    file.write_text("")
    worker = ContainedWorker()
    try:
        delivery = worker.run(work.packed, tasks)
    finally:
        worker.close()
    assert isinstance(delivery.error, sp.SimulatorError)
    assert "signal SIGKILL" in str(delivery.error)
    assert delivery.error.__notes__ == ["2 processes died at this task, and not always at this call"]


@pytest.mark.full
def test_kills_from_outside_leave_the_bits_as_they_are() -> None:
    """A process is killed at a random moment, and another that has got somewhere, and so on."""
    work = work_of(sp.VectorModel.from_scalar(scalar_drift, **DECLARED))
    tasks = chunks(30, samples=40)
    wanted = bits(work.each(tasks).outcomes)
    worker = ContainedWorker()
    assert worker.run(work.packed, tasks[:1]).error is None
    moments = random.Random(0)
    killed = 0
    try:
        for _ in range(3):
            pid = worker.pid
            assert pid is not None
            delay = moments.uniform(0.0, 0.03)
            killer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
            killer.start()
            while worker.pid == pid:  # until it was noticed
                delivery = worker.run(work.packed, tasks)
                assert delivery.error is None
                assert bits(delivery.outcomes) == wanted
            killer.join()
            killed += 1
    finally:
        worker.close()
    assert worker.starts == killed + 1


# Memory.


def greedy(size: int, kept: list[Any], states: Any, actions: Any, rng: np.random.Generator) -> Any:
    """Keeps so many bytes more at every call."""
    kept.append(np.ones(size // 8))
    return drift(states, actions, rng)


def greedy_row(size: int, kept: list[Any], state: Any, action: int, rng: np.random.Generator) -> Any:
    kept.append(np.ones(size // 8))
    return scalar_drift(state, action, rng)


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory work on Linux")
def test_a_simulator_that_wants_too_much_memory_is_named() -> None:
    """All at once, and row by row; what comes after it is as if it had not been."""
    works = [
        vector_work(partial(greedy, 80 * MEGABYTES, [])),
        work_of(sp.VectorModel.from_scalar(partial(greedy_row, 40 * MEGABYTES, []), **DECLARED)),
    ]
    worker = ContainedWorker(memory=200 * MEGABYTES)
    try:
        for work in works:
            delivery = worker.run(work.packed, chunks(6))
            assert delivery.outcomes == []
            assert isinstance(delivery.error, sp.SimulatorError)
            assert "MemoryError: Unable to allocate" in str(delivery.error)
            assert "seed 5, chunk 0)" in str(delivery.error)
            assert worker.pid is None
    finally:
        worker.close()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory work on Linux")
@pytest.mark.parametrize(("leak", "memory", "count"), [(5, 150, 15), (40, 200, 2)])
def test_a_leak_is_survived(leak: int, memory: int, count: int) -> None:
    """A slow one before it does harm; of a fast one, a task that has failed is done again in a fresh process."""
    work = vector_work(partial(greedy, leak * MEGABYTES, []))
    tasks = chunks(count)
    worker = ContainedWorker(memory=memory * MEGABYTES)
    try:
        delivery = worker.run(work.packed, tasks)
        assert delivery.error is None
        assert bits(delivery.outcomes) == bits(vector_work(drift).each(tasks).outcomes)
        assert worker.starts > 1
    finally:
        worker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory work on Linux")
def test_a_process_is_replaced_half_way_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half way from its size after the first task, which may need much by rights."""
    memory = process._Memory(100)
    memory._start = 500
    for resident, grown in ((550, False), (575, False), (576, True), (560, False)):
        monkeypatch.setattr(process, "_sizes", partial(tuple, (resident, 0)))
        assert memory.grown() == grown


def test_the_default_memory_is_a_share_of_the_machine() -> None:
    one, four = default_memory(1), default_memory(4)
    assert one is not None
    assert four is not None
    assert abs(one - 4 * four) < 8
    assert 0 < one < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# What comes out of a process, and what is left of it.


def talkative(states: Any, actions: Any, rng: np.random.Generator) -> Any:
    print("a simulator says something")
    os.write(1, b"and more\n")
    return drift(states, actions, rng)


def test_what_a_simulator_prints_does_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    work = vector_work(talkative)
    worker = ContainedWorker()
    try:
        delivery = worker.run(work.packed, chunks(3))
    finally:
        worker.close()
    assert bits(delivery.outcomes) == bits(vector_work(drift).each(chunks(3)).outcomes)
    out, err = capfd.readouterr()
    assert out == ""
    assert "a simulator says something\n" in err
    assert "and more\n" in err


def parent_of_a_sleeper(file: str, states: Any, actions: Any, rng: np.random.Generator) -> Any:
    """Starts a process and hangs."""
    sleeper = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({10 * LONG})"])
    Path(file).write_text(f"{sleeper.pid}\n")
    ctypes.PyDLL(None).sleep(int(10 * LONG))
    return drift(states, actions, rng)


def test_closing_kills_everything_at_once(tmp_path: Path) -> None:
    """A simulator hangs with a child of its own, and others wait: all of it ends, and nothing is left open."""
    files, threads = set(Path("/proc/self/fd").iterdir()), threading.active_count()
    pool = ProcessPool(1)
    running = pool.submit(vector_work(partial(parent_of_a_sleeper, str(tmp_path / "pid"))), chunks(2))
    waiting = [pool.submit(vector_work(drift), chunks(2)) for _ in range(3)]
    sleeper = number_in(tmp_path / "pid")
    (pid,) = pool.pids
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < LONG / 4  # usually some milliseconds
    with pytest.raises(CancelledError):
        running.result(0)
    assert all(future.cancelled() for future in waiting)
    assert gone(pid)
    assert gone(sleeper)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    assert set(Path("/proc/self/fd").iterdir()) == files
    assert threading.active_count() == threads


def test_a_waiting_future_can_be_cancelled(tmp_path: Path) -> None:
    pool = ProcessPool(1)
    running = pool.submit(vector_work(partial(parent_of_a_sleeper, str(tmp_path / "pid"))), chunks(1))
    waiting = pool.submit(vector_work(drift), chunks(1))
    number_in(tmp_path / "pid")
    assert waiting.cancel()
    assert not running.cancel()
    pool.close()
    assert running.done()


PARENT = """
import json, sys
from pathlib import Path
from smoothplan.running.packing import unpack
from smoothplan.running.processes import ProcessPool
from tests.test_contained import chunks

if __name__ == "__main__":
    pool = ProcessPool(1)
    future = pool.submit(unpack(Path(sys.argv[1]).read_bytes()), chunks(1))
    while not Path(sys.argv[2]).exists():
        pass
    print(json.dumps(pool.pids), flush=True)
    MODE
"""


@pytest.mark.parametrize("mode", ["killed", "over"])
def test_workers_die_with_their_parent(tmp_path: Path, mode: str) -> None:
    """However it ends, and though the simulator holds the interpreter lock."""
    packed = vector_work(partial(parent_of_a_sleeper, str(tmp_path / "pid"))).packed
    (tmp_path / "work").write_bytes(packed.data)
    (tmp_path / "parent.py").write_text(PARENT.replace("MODE", "future.result()" if mode == "killed" else ""))
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "work"), str(tmp_path / "pid")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        (pid,) = json.loads(parent.stdout.readline())
        sleeper = number_in(tmp_path / "pid")
        if mode == "killed":
            parent.kill()
        assert parent.wait(LONG) == (-signal.SIGKILL if mode == "killed" else 0)
    assert gone(pid)
    assert gone(sleeper)


# Packing.


def _generator() -> Iterator[int]:
    yield 1


UNSENDABLE: dict[str, Callable[[], Any]] = {
    "_thread.lock": threading.Lock,
    "_thread.RLock": threading.RLock,
    "generator": _generator,
    "socket": lambda: socket.socketpair()[0],
    "open file": Path(__file__).open,
    "_thread": threading.Thread,
    "_thread._local": threading.local,
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_cannot_be_sent_is_named(name: str) -> None:
    thing = UNSENDABLE[name]()
    pool = ProcessPool(1)
    try:
        with pytest.raises(
            PackingError, match=r"cannot be sent to other processes: cannot pickle .*workers=1"
        ) as caught:
            pool.submit(vector_work(lambda *call: (thing, drift(*call))[1]), chunks(1))
        assert name in str(caught.value)
        assert pool.pids == []
    finally:
        pool.close()
        if hasattr(thing, "close"):
            thing.close()


def test_what_is_derived_stays_here() -> None:
    """The caches of engines and models are left out: they are large, and made again."""
    work = work_of(ending(2, 0.3, 1))
    before = len(pack(work).data)
    wanted = bits(work.each(chunks(3)).outcomes)
    vars(work.engine)["_tables"] = threading.Lock()
    packed = pack(work)
    assert len(packed.data) == before
    assert packed.digest == pack(work).digest
    assert bits(unpack(packed.data).each(chunks(3)).outcomes) == wanted


def test_read_only_arrays_stay_read_only() -> None:
    """Numba would compile its functions anew for others."""
    table: Any = unpack(pack(work_of(ending(2, 0.3, 1))).data).model
    assert not table.probabilities.flags.writeable


def test_compiled_functions_of_packages_go_by_name() -> None:
    """What Numba has in its cache need not be compiled again."""
    model: Any = sp.models.cart_pole(0.5)
    data = pack(work_of(model)).data
    assert b"custom_rebuild" not in data  # by which Numba makes functions anew
    assert b"custom_rebuild" in pack(vector_work(numba.njit(drift))).data
    assert unpack(data).model.step is model.step


def test_only_work_is_unpacked() -> None:
    with pytest.raises(TypeError, match="packed work, got a dict"):
        unpack(pickle.dumps({}))


ELSEWHERE = """
import pickle, sys
from smoothplan.running.packing import unpack
data, tasks = pickle.load(sys.stdin.buffer)
outcomes = [work.each(tasks).outcomes for work in map(unpack, data)]
assert not {"user_simulator", "user_helpers", "user_package"} & set(sys.modules), "imported"
pickle.dump([[(outcome.sums, outcome.calls) for outcome in each] for each in outcomes], sys.stdout.buffer)
"""


def test_modules_that_are_not_installed_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that they import in turn, and as they are: even with a constant that was changed since."""
    (tmp_path / "user_helpers.py").write_text("SPEED = 0.5\ndef move(states, actions):\n    return states + SPEED\n")
    (tmp_path / "user_package").mkdir()
    (tmp_path / "user_package" / "__init__.py").write_text("")
    (tmp_path / "user_package" / "prices.py").write_text("def price(states):\n    return 0.5 + 0.0 * states[:, 0]\n")
    (tmp_path / "user_simulator.py").write_text(
        "import numpy as np\nimport user_helpers\nfrom user_package.prices import price\n"
        "def step(states, actions, rng):\n"
        "    moved = user_helpers.move(states, actions) + rng.standard_normal(states.shape)\n"
        "    return moved, price(moved) * (moved[:, 0] > 1)\n"
        "class Simulator:\n"
        "    def method(self, states, actions, rng):\n        return step(states, actions, rng)\n"
        "    __call__ = method\n"
        "def compilable(states, actions, rng):\n"
        "    return states + rng.standard_normal(), np.exp(-states[:, 0] ** 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("user_simulator")
    module.user_helpers.SPEED = 0.25
    works = [
        vector_work(step)
        for step in (
            module.step,
            module.Simulator(),
            module.Simulator().method,
            partial(module.step),
            numba.njit(module.compilable),
        )
    ]
    works.append(work_of(sp.VectorModel.from_scalar(partial(_one, module.step), **DECLARED)))
    tasks = chunks(3)
    message = pickle.dumps(([pack(work).data for work in works], tasks))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-P", "-c", ELSEWHERE],
        input=message,
        stdout=subprocess.PIPE,
        cwd=tmp_path.parent,
        env=environment,
        check=True,
    )
    assert pickle.loads(found.stdout) == [bits(work.each(tasks).outcomes) for work in works]
    import cloudpickle

    assert cloudpickle.list_registry_pickle_by_value() == set()


def _one(step: Any, state: Any, action: int, rng: np.random.Generator) -> Any:
    moved, rewards = step(state[None], np.array([action]), rng)
    return moved[0], rewards[0], False


@pytest.mark.parametrize("kind", ["critic", "grid", "shared"])
def test_references_travel(kind: str) -> None:
    """Though some hold an oracle, with the brake of the run that they were made in."""

    def sure(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        moved = np.round(states + 0.5 * (2 * actions[:, None] - 1), 1)
        return moved, np.exp(-(moved[:, 0] ** 2))

    model = sp.VectorModel(sure, **(DECLARED | {"max_successors": 1}))
    backup = sp.LogSumExp(0.1)
    reference: Any
    if kind == "critic":
        reference = sp.CriticReference(lambda states: np.zeros((len(states), 2)))
    elif kind == "grid":
        reference = sp.GridReference.build(model, backup, low=[-2.0, -2.0], high=[2.0, 2.0], cells=3)
    else:
        reference = sp.SharedReference(model, backup)
        reference.improve(50)
    work = Work(BatchedChains(model, backup, reference.q), model, model.initial_state, 1)
    tasks = [Chunk(chunk, "values", (10, 5), 10) for chunk in range(3)]
    assert bits(unpack(pack(work).data).each(tasks).outcomes) == bits(work.each(tasks).outcomes)
