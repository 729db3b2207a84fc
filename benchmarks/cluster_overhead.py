"""What Dask costs with chunks of about a second, and what a second worker brings: threads, and processes of Dask.

The time with one process is compared with what the chunks themselves took; with two workers, with one worker in this
thread. Starting and compiling do not count. Usage: python benchmarks/cluster_overhead.py [seconds per run]
"""

import statistics
import sys
import time
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.recursive.planners import engine_for
from smoothplan.run.chunks import Chunk, Sums, Work
from smoothplan.run.workers import Workers

REPEATS = 3
OVERHEAD_GOAL = 0.05


def drift(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """A slow simulator in Python."""
    moved = states.copy()
    for row, action in enumerate(actions.tolist()):
        moved[row] += 0.1 * (2 * action - 1) + sum(rng.random() for _ in range(24)) / 24 - 0.5
    return moved, np.exp(-(moved[:, 0] ** 2))


def work(compiled: bool) -> Work:
    """A recursive planner on a table, or on a simulator in Python."""
    model: Any = sp.models.garnet(states=50, actions=2, branching=4, discount=0.5, seed=1)
    if not compiled:
        model = sp.VectorModel(
            drift, actions=2, discount=0.2, reward_range=(0, 1), terminates=False, initial_state=[0.0]
        )
    planner = sp.DebiasedCruiser(sp.LogSumExp(0.5), epsilon=0.01 if compiled else 0.1, delta=0.1)
    engine = engine_for("compiled" if compiled else "batched", planner.schedule(model), planner.backup, model)
    return Work(engine, model, 0 if compiled else np.array([0.0]), 0)


def chunks(job: Work, seconds: float, count: int) -> list[Chunk[Sums]]:
    """`count` chunks that take about `seconds` each."""

    def time_of(samples: int) -> float:
        return job.each([Chunk(0, type(job.engine).returns, (0, samples), samples)]).outcomes[0].seconds

    samples = 1
    while time_of(samples) < 0.1 * seconds:
        samples *= 2
    once = min(time_of(samples) for _ in range(3))
    samples = max(1, round(samples * seconds / once))
    return [Chunk(number, type(job.engine).returns, (0, samples), samples) for number in range(count)]


def timed(workers: Workers, job: Work, todo: list[Chunk[Sums]]) -> tuple[float, float]:
    """Seconds that the chunks took in all, and by themselves."""
    started = time.perf_counter()
    inside = sum(outcome.seconds for _, outcome in workers.in_order(job, todo))
    return time.perf_counter() - started, inside


def main() -> None:
    """Prints the overhead and the speed-ups."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    jobs = {"compiled": work(True), "Python": work(False)}
    print(f"{'':<44}{'median':>10}")
    for name, job in jobs.items():
        todo = chunks(job, 1.0, max(2, round(seconds)))
        with Workers(1, chunk_seconds=600.0) as one:  # one process of Dask
            timed(one, job, todo[:3])
            found = [timed(one, job, todo) for _ in range(REPEATS)]
        cost = statistics.median(whole / inside - 1.0 for whole, inside in found)
        print(
            f"{f'Dask, chunks of a second, {name}: overhead':<44}{cost:>10.1%}   goal {OVERHEAD_GOAL:.0%}", flush=True
        )
    for name, job in jobs.items():
        todo = chunks(job, 0.1, round(10 * seconds))
        with Workers(1) as one, Workers(2) as two:
            timed(two, job, todo[:40])
            ratios = [timed(one, job, todo)[0] / timed(two, job, todo)[0] for _ in range(REPEATS)]
        how = "threads" if job.engine.compiled else "processes of Dask"
        print(f"{f'two {how}, {name}: speed-up':<44}{statistics.median(ratios):>10.2f}", flush=True)


if __name__ == "__main__":
    main()
