"""What the way through a cluster costs: chunks of about a second on a Dask cluster on this machine.

The time is compared with what the chunks themselves took. What a second worker brings on this machine alone is measured
by `smoothplan experiment throughput`. Usage: python benchmarks/cluster_overhead.py [seconds per run]
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from smoothplan.experiments.throughput import POOLS
from smoothplan.experiments.throughput_growth import Job, shared_case
from smoothplan.running.hiring import Terms
from smoothplan.running.workers import Workers

REPEATS = 3
OVERHEAD_GOAL = 0.05


def overhead(pool: str, seconds: float) -> None:
    """Prints what a cluster of one worker costs beyond the time that the chunks themselves take.

    The first parcels, before the worker has started or compiled what it needs, do not count. The scheduler and the
    client share the other processor.
    """
    case = shared_case(pool)
    job = Job(case)
    tasks = job.tasks(seconds, 1.0)
    costs = []
    with cluster_of(1) as address, Workers(Terms(1, case.pool, cluster=address).hire) as workers:
        list(workers.in_order(job.work, tasks[:3]))
        for _ in range(REPEATS):
            started = time.perf_counter()
            inside = sum(outcome.seconds for _, outcome in workers.in_order(job.work, tasks))
            costs.append((time.perf_counter() - started) / inside - 1.0)
    print(f"{POOLS[pool]:<30}{statistics.median(costs):>10.1%}   goal {OVERHEAD_GOAL:.0%}")


@contextmanager
def cluster_of(workers: int) -> Iterator[str]:
    """The address of a cluster on this machine."""
    import distributed

    with distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        yield str(cluster.scheduler_address)


def main() -> None:
    """Prints the overheads."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    print(f"{'a cluster, chunks of a second':<30}{'overhead':>10}")
    for pool in POOLS:
        overhead(pool, seconds)


if __name__ == "__main__":
    main()
