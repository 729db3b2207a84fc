"""What the way through Dask costs: a plan by one worker process, beside the same plan in this process.

What a second worker brings is measured by the study `throughput`.
Usage: PYTHONPATH=. python benchmarks/cluster_overhead.py [seconds per run]
"""

import statistics
import sys

from studies.throughput import POOLS, calls_for, seconds_of, started

REPEATS = 3
OVERHEAD_GOAL = 0.05


def overhead(pool: str, seconds: float) -> None:
    """Prints what a cluster of one worker costs beyond the time of the plan itself.

    The first plan, before the worker has compiled what it needs, does not count. The scheduler and the client share the
    other processor.
    """
    calls = calls_for(pool, 1, seconds)
    with started("processes", 1) as client:
        seconds_of(pool, client, calls)
        costs = [seconds_of(pool, client, calls) / seconds_of(pool, 1, calls) - 1.0 for _ in range(REPEATS)]
    print(f"{POOLS[pool]:<30}{statistics.median(costs):>10.1%}   goal {OVERHEAD_GOAL:.0%}")


def main() -> None:
    """Prints the overheads."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    print(f"{'a plan by one Dask worker':<30}{'overhead':>10}")
    for pool in POOLS:
        overhead(pool, seconds)


if __name__ == "__main__":
    main()
