"""How far a cluster would scale, from 10 to 10,000 workers: a simulation, from what one batch costs when measured.

Measured, on a real Dask scheduler with real workers on this machine: the processor time of the scheduler and of the
client for one batch that has nothing to do, and the time of a trip there and back. Simulated: a run of many equal
batches. The client writes down and books one batch at a time; the scheduler handles one event at a time (a batch that
is sent, and one that is done); a worker does one batch and has another waiting; it fails at random, which loses what
it has (the scheduler sends that to another), and comes back after a while. Everything else is taken to be free: the
network in particular. What is reported is the useful work, as a share of what the workers could have done.

A run books batches in order, so the simulation also holds them back while one that was lost is done again.
Usage: python benchmarks/cluster_study.py [worker-hours between two failures of one worker]
"""

import contextlib
import heapq
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

import smoothplan as sp
from smoothplan.recursive.planners import engine_for
from smoothplan.run.chunks import Chunk, Sums, Work
from smoothplan.run.cluster import DaskPool
from smoothplan.run.workers import AHEAD, BEHIND, Workers

WORKERS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
SECONDS = (0.5, 1.0, 5.0, 20.0, 60.0)
"""Of a batch."""

BATCHES = 20
"""That each worker would do, if there were no waiting."""

HOURS = 200.0
"""Between two failures of a worker: preemptible machines are taken away about that often, others ten times less."""

AWAY = 120.0
"""Seconds until a worker that failed is back."""

NOTICED = 30.0
"""Seconds until the scheduler knows that a worker failed whose connection did not break."""

MEASURED = 3_000
"""Batches by which the costs are measured."""


class Costs(NamedTuple):
    """Seconds for one batch."""

    client: float
    scheduler: float
    trip: float  # of an empty batch, there and back


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[tuple[str, int]]:
    """The address of a scheduler with workers, and the number of its process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scheduler.json"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        module, there = [sys.executable, "-m"], ["--no-dashboard", "--scheduler-file", str(file)]
        scheduler = subprocess.Popen(
            [*module, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *there],
            **quiet,  # type: ignore[call-overload]
        )
        processes = [scheduler] + [
            subprocess.Popen(
                [*module, "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *there],
                **quiet,  # type: ignore[call-overload]
            )
            for _ in range(workers)
        ]
        try:
            while not file.exists():
                time.sleep(0.1)
            yield str(json.loads(file.read_text())["address"]), scheduler.pid
        finally:
            for process in processes:
                process.kill()
                process.wait()


def cpu(pid: int) -> float:
    """Processor seconds of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measured() -> Costs:
    """What a batch costs here."""
    model = sp.models.chain(states=3, discount=0.1)
    planner = sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1)
    work = Work(engine_for("compiled", planner.schedule(model), planner.backup, model), model, 0, 0)

    class Tiny(DaskPool):
        """Sends every chunk alone."""

        batch_seconds = 0.0

    def chunks(count: int) -> list[Chunk[Sums]]:
        return [Chunk(number, type(work.engine).returns, (0, 1), 1) for number in range(count)]

    with cluster(2) as (address, scheduler), Workers(address) as workers:
        workers._pool = Tiny(address, work)
        trips = []
        for chunk in chunks(100):
            started = time.perf_counter()
            list(workers.in_order(work, [chunk]))
            trips.append(time.perf_counter() - started)
        before = cpu(os.getpid()), cpu(scheduler)
        list(workers.in_order(work, chunks(MEASURED)))
        spent = cpu(os.getpid()) - before[0], cpu(scheduler) - before[1]
    return Costs(spent[0] / MEASURED, spent[1] / MEASURED, sorted(trips)[len(trips) // 2])


@dataclass
class Server:
    """Serves one after the other."""

    free: float = 0.0
    busy: float = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """When a request is done that comes now."""
        self.free = max(self.free, now) + seconds
        self.busy += seconds
        return self.free


class Outcome(NamedTuple):
    """What came of a simulated run."""

    share: float  # of what the workers could have done
    client: float  # how busy it was
    scheduler: float
    failures: int


def simulated(workers: int, seconds: float, costs: Costs, hours: float, seed: int = 0) -> Outcome:
    """A run of many batches. Events are (time, kind, worker, batch), in order of time."""
    rng = random.Random(seed)
    batches = workers * BATCHES
    client, scheduler = Server(), Server()
    events: list[tuple[float, int, str, int, int]] = []
    count = 0

    def at(when: float, kind: str, worker: int = -1, batch: int = -1) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (when, count, kind, worker, batch))

    held: list[list[int]] = [[] for _ in range(workers)]  # batches of a worker, the first under way
    epochs = [0] * workers  # failures so far: what was begun before one is lost
    idle = list(range(workers)) * AHEAD  # places that are free
    rng.shuffle(idle)
    pending: list[int] = []  # known to the scheduler, for nobody
    sent = booked = 0
    done: set[int] = set()
    failures, clock = 0, 0.0
    rate = 1.0 / (3600.0 * hours)
    for worker in range(workers):
        at(rng.expovariate(rate), "fail", worker)

    def begin(now: float, worker: int) -> None:
        at(now + seconds, f"done {epochs[worker]}", worker, held[worker][0])

    def assign(now: float) -> None:
        while pending and idle:
            worker = idle.pop()
            at(scheduler.serve(now, costs.scheduler / 2.0), f"arrive {epochs[worker]}", worker, pending.pop())

    def send(now: float) -> None:
        nonlocal sent
        while sent < batches and sent - booked < BEHIND * workers and sent - len(done) < AHEAD * workers:
            at(client.serve(now, costs.client / 2.0), "sent", batch=sent)
            sent += 1

    send(0.0)
    while booked < batches:
        clock, _, kind, worker, batch = heapq.heappop(events)
        name, _, epoch = kind.partition(" ")
        stale = bool(epoch) and int(epoch) != epochs[worker]
        if name == "sent" or (name == "arrive" and stale):
            pending.append(batch)
            assign(clock)
        elif name == "arrive":
            held[worker].append(batch)
            if len(held[worker]) == 1:
                begin(clock, worker)
        elif name == "done" and not stale:
            held[worker].pop(0)
            idle.append(worker)
            if held[worker]:
                begin(clock, worker)
            at(client.serve(scheduler.serve(clock, costs.scheduler / 2.0), costs.client / 2.0), "back", batch=batch)
            assign(clock)
        elif name == "back":
            done.add(batch)
            while booked in done:
                booked += 1
            send(clock)
        elif name == "fail":
            failures += 1
            epochs[worker] += 1
            idle = [other for other in idle if other != worker]
            lost, held[worker] = held[worker], []
            for entry in lost:
                at(clock + NOTICED, "sent", batch=entry)
            at(clock + AWAY, "return", worker)
        elif name == "return":
            idle.extend([worker] * AHEAD)
            at(clock + rng.expovariate(rate), "fail", worker)
            assign(clock)
    return Outcome(batches * seconds / (workers * clock), client.busy / clock, scheduler.busy / clock, failures)


def main() -> None:
    """Measures, simulates and prints."""
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else HOURS
    costs = measured()
    print(f"measured for one batch: client {1e3 * costs.client:.2f} ms, scheduler {1e3 * costs.scheduler:.2f} ms of")
    print(f"processor time, {1e3 * costs.trip:.1f} ms there and back; a failure every {hours:g} worker-hours")
    print(f"\n{'':>8}" + "".join(f"{f'{seconds:g} s':>9}" for seconds in SECONDS) + f"{'ours':>9}   busy with ours")
    print(f"{'workers':>8}{'share of the work that the workers could have done, by the length of a batch':>30}")
    for workers in WORKERS:
        chosen = max(1.0, workers / 100)  # as `DaskPool.batch_seconds`
        outcomes = [simulated(workers, seconds, costs, hours) for seconds in (*SECONDS, chosen)]
        shares = "".join(f"{outcome.share:>9.1%}" for outcome in outcomes)
        ours = outcomes[-1]
        busy = f"client {ours.client:.0%}, scheduler {ours.scheduler:.0%}; batches of {chosen:g} s"
        print(f"{workers:>8}{shares}   {busy}; {ours.failures} failures", flush=True)
    for name, cost in (("client", costs.client), ("scheduler", costs.scheduler)):
        print(f"the {name} is busy all the time from {1.0 / cost:,.0f} workers on with batches of 1 s")


if __name__ == "__main__":
    main()
