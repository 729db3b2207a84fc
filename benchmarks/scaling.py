"""What a second worker brings, and what a cluster costs: ratios within one run, on the same chunks.

Scaling: the same plan with one worker and with two, alternating, start of processes included; and without it, by the
pace of the chunks. Overhead: chunks of about a second on a Dask cluster on this machine, against the time that the
chunks themselves took. Usage: python benchmarks/scaling.py [seconds per run]
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.models.base import GenerativeModel
from smoothplan.parallel.crew import Crew
from smoothplan.parallel.hiring import PoolName, Terms
from smoothplan.parallel.work import Task, Work
from smoothplan.recursion import engine_for

REPEATS = 3
SCALING_GOAL = 1.7
OVERHEAD_GOAL = 0.05


def walk(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    """A simulator in plain Python, a few microseconds a call."""
    place = min(max(float(state[0]) + (0.3 if action else -0.3) + 0.1 * rng.standard_normal(), -1.0), 1.0)
    return np.array([place]), 0.5 * (1.0 + place), False


class Case(NamedTuple):
    """What is run."""

    name: str
    model: GenerativeModel
    state: Any
    pool: PoolName


def cases() -> Iterator[Case]:
    """A compiled engine on threads, and a simulator in Python in processes."""
    table = sp.models.garnet(states=1000, actions=5, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")
    yield Case("compiled engine, threads", table, 0, "threads")
    declared: dict[str, Any] = {"actions": 5, "discount": 0.2, "reward_range": (0, 1), "terminates": False}
    python = sp.VectorModel.from_scalar(walk, **declared, initial_state=[0.2])
    yield Case("Python simulator, processes", python, np.array([0.2]), "processes")


class Job:
    """Equal chunks of a case."""

    def __init__(self, case: Case) -> None:
        planner = sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.02)
        schedule = planner.schedule(case.model)
        self.work = Work(engine_for("auto", schedule, planner.backup, case.model), case.model, case.state, 0)
        self.samples = 1
        seconds = 0.0
        while seconds < 0.05:
            self.samples *= 2
            self.work(self._task(0))
            seconds = self.work(self._task(0)).seconds
        self._each = seconds / self.samples

    def _task(self, chunk: int) -> Task:
        return Task(chunk, "returns", (0, self.samples), self.samples)

    def tasks(self, total: float, each: float) -> list[Task]:
        """Chunks of so many seconds each that take so long in all, by one worker."""
        self.samples = max(1, round(each / self._each))
        return [self._task(chunk) for chunk in range(max(4, round(total / each)))]


def timed(job: Job, tasks: list[Task], terms: Terms) -> tuple[float, float, float]:
    """Seconds until a crew has done tasks: with its start, from the first outcome on, and inside of the chunks."""
    started = time.perf_counter()
    first, inside, sums = started, 0.0, []
    with Crew(terms.hire) as crew:
        for number, (_, outcome) in enumerate(crew.in_order(job.work, tasks)):
            first = time.perf_counter() if number == 0 else first
            inside += outcome.seconds
            sums.append(outcome.sums)
        ended = time.perf_counter()
    assert len(set(sums)) > 1  # no two chunks draw the same
    return ended - started, ended - first, inside


def scaling(case: Case, seconds: float) -> None:
    """Prints what a second worker brings."""
    job = Job(case)
    tasks = job.tasks(seconds, 0.1)
    ratios, paces = [], []
    for _ in range(REPEATS):
        one, two = (timed(job, tasks, Terms(workers, case.pool)) for workers in (1, 2))
        ratios.append(one[0] / two[0])
        paces.append(one[1] / two[1])
    ratio, pace = statistics.median(ratios), statistics.median(paces)
    print(f"{case.name:<30}{ratio:>10.2f}{pace:>14.2f}   goal {SCALING_GOAL}")


def overhead(case: Case, seconds: float) -> None:
    """Prints what a cluster of one worker costs beyond the time that the chunks themselves take.

    The first parcels, before the worker has started or compiled what it needs, do not count. The scheduler and the
    client share the other processor.
    """
    job = Job(case)
    tasks = job.tasks(seconds, 1.0)
    costs = []
    with cluster_of(1) as address, Crew(Terms(1, case.pool, cluster=address).hire) as crew:
        list(crew.in_order(job.work, tasks[:3]))
        for _ in range(REPEATS):
            started = time.perf_counter()
            inside = sum(outcome.seconds for _, outcome in crew.in_order(job.work, tasks))
            costs.append((time.perf_counter() - started) / inside - 1.0)
    print(f"{case.name:<30}{statistics.median(costs):>10.1%}{'':14}   goal {OVERHEAD_GOAL:.0%}")


@contextmanager
def cluster_of(workers: int) -> Iterator[str]:
    """The address of a cluster on this machine."""
    import distributed

    with distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        yield str(cluster.scheduler_address)


def main() -> None:
    """Prints both tables."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    print(f"{'two workers against one':<30}{'whole run':>10}{'pace':>14}")
    for case in cases():
        scaling(case, seconds)
    print(f"\n{'a cluster, chunks of a second':<30}{'overhead':>10}")
    for case in cases():
        overhead(case, seconds)


if __name__ == "__main__":
    main()
