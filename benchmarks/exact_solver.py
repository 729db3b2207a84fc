"""The exact solver on 100,000 states: seconds and peak memory, beside bare sweeps of gather and multiply in NumPy.

A sweep of value iteration must at least look up the values of all successors and multiply them by their probabilities.
The ratio of a solution to as many bare sweeps is what the rest costs: the sum, the backup, the error bound.
"""

import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

import smoothplan as sp
from smoothplan.theory.backups import Backup, line_cost

STATES, ACTIONS, SUCCESSORS, DISCOUNT = 100_000, 5, 2, 0.7
TOLERANCE = 1e-8
REPEATS = 3


def seconds(run: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak_megabytes(run: Callable[[], object]) -> float:
    """The most memory that a call holds at a time, beyond what was there before."""
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 1e6


def bare_sweeps(model: sp.TabularModel, count: int) -> None:
    """So many times: gather the values of successors and multiply."""
    values = np.linspace(0.0, 1.0, model.states)
    for _ in range(count):
        np.multiply(model.probabilities, values[model.successors])


def main() -> None:
    """Prints a row for each backup."""
    model = sp.models.garnet(states=STATES, actions=ACTIONS, branching=SUCCESSORS, discount=DISCOUNT, seed=1)
    backups: dict[str, Backup] = {
        "HardMax": sp.HardMax(),
        "LogSumExp": sp.LogSumExp(0.5),
        "OptimalTransport": sp.OptimalTransport(cost=line_cost(ACTIONS), tau=1.0, lam=0.5),
    }
    print(f"{STATES:,} states, {ACTIONS} actions, {SUCCESSORS} successors, γ = {DISCOUNT}, to {TOLERANCE:g}")
    print(f"{'backup':<18}{'sweeps':>7}{'seconds':>9}{'bare sweeps':>13}{'ratio':>7}{'peak MB':>9}{'error':>10}")
    for name, backup in backups.items():
        solve = partial(sp.exact.solve, model, backup, TOLERANCE)
        solution = solve()
        bare = partial(bare_sweeps, model, solution.iterations)
        times = [(seconds(solve), seconds(bare)) for _ in range(REPEATS)]
        ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{name:<18}{solution.iterations:>7}{ours:>9.2f}{theirs:>13.2f}{ours / theirs:>7.1f}"
            f"{peak_megabytes(solve):>9.0f}{solution.error:>10.1e}"
        )


if __name__ == "__main__":
    main()
