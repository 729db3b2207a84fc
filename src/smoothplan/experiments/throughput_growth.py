"""What the experiment `throughput` measures beside the contest: workers, sizes of a model, and memory."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smoothplan.backups import LogSumExp
from smoothplan.experiments.throughput_contest import (
    Contestant,
    calibrated,
    engine_contestant,
    plug_in_case,
)
from smoothplan.forecast import forecast
from smoothplan.models.base import GenerativeModel
from smoothplan.models.vector import VectorModel
from smoothplan.models.zoo import garnet
from smoothplan.plan import plan
from smoothplan.planners import SecondOrderSmoothCruiser, SmoothCruiser
from smoothplan.recursion import engine_for
from smoothplan.running.work import Chunk, Work
from smoothplan.running.workers import Workers

# Workers

CHUNK_SECONDS = 0.05
DIGESTED = bytes(30_000_000)
"""What a digest of takes about as long as a chunk."""

BARE_SECONDS = 0.4
"""How long one thread takes for all digests."""

WARM_CHUNKS = 4
"""Before time is taken, so that every worker has started and compiled what it needs."""


def walk(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    """A simulator in plain Python, a few microseconds a call."""
    place = min(max(float(state[0]) + (0.3 if action else -0.3) + 0.1 * rng.standard_normal(), -1.0), 1.0)
    return np.array([place]), 0.5 * (1.0 + place), False


class Shared(NamedTuple):
    """What workers share."""

    model: GenerativeModel
    state: Any
    pool: str


def shared_case(name: str) -> Shared:
    """A compiled engine on threads, or a simulator in Python in processes."""
    if name == "threads":
        table = garnet(states=1000, actions=5, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")
        return Shared(table, 0, "threads")
    declared: dict[str, Any] = {"actions": 5, "discount": 0.2, "reward_range": (0, 1), "terminates": False}
    python = VectorModel.from_scalar(walk, **declared, initial_state=[0.2])
    return Shared(python, np.array([0.2]), "processes")


class Job:
    """Equal chunks of a case."""

    def __init__(self, case: Shared) -> None:
        planner = SmoothCruiser(LogSumExp(1.0), epsilon=0.02)
        schedule = planner.schedule(case.model)
        self.work = Work(engine_for("auto", schedule, planner.backup, case.model), case.model, case.state, 0)
        self.samples = 1
        seconds = 0.0
        while seconds < CHUNK_SECONDS:
            self.samples *= 2
            self.work(self._task(0))
            seconds = self.work(self._task(0)).seconds
        self._each = seconds / self.samples

    def _task(self, chunk: int) -> Chunk:
        return Chunk(chunk, "returns", (0, self.samples), self.samples)

    def tasks(self, total: float, each: float) -> list[Chunk]:
        """Chunks of so many seconds each that take so long in all, by one worker."""
        self.samples = max(1, round(each / self._each))
        return [self._task(chunk) for chunk in range(max(4, round(total / each)))]


class SpeedUp(NamedTuple):
    """By how much several workers were faster than one, and several bare threads: what the machine had to give."""

    workers: float
    bare: float


def speed_ups(pool: str, workers: int, repeats: int, seconds: float) -> list[SpeedUp]:
    """Repeats, one after the other; starting the workers does not count."""
    case = shared_case(pool)
    job = Job(case)
    tasks = job.tasks(seconds, CHUNK_SECONDS)
    with ExitStack() as stack:
        alone, together = (stack.enter_context(Workers(count)) for count in (1, workers))
        for workers in (alone, together):
            list(workers.in_order(job.work, tasks[: WARM_CHUNKS * workers]))

        def seconds_of(workers: Workers) -> float:
            return _timed(lambda: list(workers.in_order(job.work, tasks)))

        return [
            SpeedUp(seconds_of(alone) / seconds_of(together), bare_seconds(1) / bare_seconds(workers))
            for _ in range(repeats)
        ]


def bare_seconds(workers: int) -> float:
    """How long threads take for digests, which need no lock and no memory."""
    count = max(workers, round(BARE_SECONDS / CHUNK_SECONDS))
    with ThreadPoolExecutor(workers) as threads:
        return _timed(lambda: list(threads.map(lambda data: hashlib.blake2b(data).digest(), [DIGESTED] * count)))


def _timed(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Sizes of a model

SIZED: dict[str, int] = {"states": 1000, "actions": 2, "branching": 16, "samples": 8, "depth": 3}
"""Within three steps of the root there are up to 16,000 states, so that large tables are really used."""


@cache
def _sized(what: str, size: int, seconds: float) -> tuple[Contestant, int]:
    sizes = SIZED | {what: size}
    case = plug_in_case(**sizes | {"branching": min(sizes["branching"], sizes["states"])})  # type: ignore[arg-type]
    contestant = engine_contestant(case, engine_for("compiled", case.schedule, case.backup, case.model), case.model)
    return contestant, calibrated(contestant, seconds)


def seconds_per_call(what: str, size: int, seconds: float, seed: int) -> float:
    """Of the compiled engine, where a model has so many states or actions; others as in `SIZED`."""
    contestant, chunks = _sized(what, size, seconds)
    found = contestant(chunks, seed)
    return found.seconds / found.calls


# Memory

PLANNED: dict[str, Any] = {
    "states": 50, "actions": 2, "branching": 4, "discount": 0.2, "seed": 1, "reward_kind": "bernoulli"
}  # fmt: skip


def peak_megabytes() -> float:
    """The most memory that this process has had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts what the parent had when it started this process
        peaks = [line.split()[1] for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM")]
        if peaks:
            return int(peaks[0]) * 1024 / 1e6
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def planned(epsilon: float, max_calls: int) -> dict[str, Any]:
    """Plans to an accuracy in a process of its own: calls, time, and the peak of its memory."""
    program = f"import json; from {__name__} import planned_here as p; print(json.dumps(p({epsilon!r}, {max_calls!r})))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def planned_here(epsilon: float, max_calls: int) -> dict[str, Any]:
    """The same in this process, whatever else it holds."""
    model, backup = garnet(**PLANNED), LogSumExp(1.0)
    plan(SecondOrderSmoothCruiser(backup, epsilon=0.2), model, 0, seed=0)  # compiles
    planner = SecondOrderSmoothCruiser(backup, epsilon=epsilon)
    price = forecast(planner, model).calls
    started = time.perf_counter()
    result = plan(planner, model, 0, seed=0, max_calls=max_calls)
    seconds = time.perf_counter() - started
    fields = {"forecast": price, "calls": result.calls, "seconds": seconds, "status": result.status}
    return fields | {"megabytes": peak_megabytes()}
