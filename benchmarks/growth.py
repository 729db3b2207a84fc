"""How cost, run time and memory grow with 1/ε, with the number of actions K and with the number of states S.

The cost is the forecast, in simulator calls. A run is stopped at `MAX_CALLS`, so that the finest ε only shows what it
would cost and how much memory it needs on the way. The time of a run includes the tables for compiled code, but hardly
the search for its schedule, which the forecast has left in a cache. Memory is the peak of this process so far.
"""

import resource
import sys
import time
from typing import Literal

import smoothplan as sp

Engine = Literal["compiled", "batched"]

EPSILONS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 1e-3, 1e-4)
ACTIONS = (2, 4, 8, 16)
STATES = (10, 1_000, 30_000, 100_000)
MAX_CALLS: dict[Engine, int] = {"compiled": 20_000_000, "batched": 1_000_000}
MEMORY_GOAL = 500.0
"""Megabytes, whatever ε."""

Planner = sp.SparseSampling | sp.SmoothCruiser | sp.SecondOrderSmoothCruiser
PLANNERS: dict[str, type[Planner]] = {
    "sparse": sp.SparseSampling,
    "order 1": sp.SmoothCruiser,
    "order 2": sp.SecondOrderSmoothCruiser,
}


def peak_megabytes() -> float:
    """The most memory that this process has had resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def garnet(states: int = 50, actions: int = 2) -> sp.TabularModel:
    """A random model with Bernoulli rewards, γ = 0.2."""
    return sp.models.garnet(states=states, actions=actions, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")


def header(name: str) -> None:
    """The head of a table."""
    forecasts = "".join(f"{'calls, ' + planner:>16}" for planner in PLANNERS)
    print(f"\n{name:>9}{forecasts}{'engine':>10}{'run':>10}{'seconds':>9}{'ns/call':>9}{'peak MB':>9}  status")


def row(name: str, model: sp.TabularModel, epsilon: float, engine: Engine = "compiled") -> None:
    """The forecasts of all planners, and a run of the last of them."""
    backup = sp.LogSumExp(1.0)
    planners = [kind(backup, epsilon) for kind in PLANNERS.values()]
    forecasts = "".join(f"{float(sp.forecast(planner, model).calls):>16.2e}" for planner in planners)
    start = time.perf_counter()
    result = sp.plan(planners[-1], model, state=0, seed=0, max_calls=MAX_CALLS[engine], engine=engine)
    seconds = time.perf_counter() - start
    each = 1e9 * seconds / max(result.calls, 1)
    print(
        f"{name:>9}{forecasts}{engine:>10}{result.calls:>10.1e}{seconds:>9.2f}{each:>9.0f}{peak_megabytes():>9.0f}"
        f"  {result.status}",
        flush=True,
    )


def main() -> None:
    """Prints three tables and the verdict on memory."""
    model = garnet()
    header("1/ε")
    for epsilon in EPSILONS:
        for engine in MAX_CALLS:
            row(f"{1.0 / epsilon:g}", model, epsilon, engine)
    limit = peak_megabytes()
    header("K")
    for actions in ACTIONS:
        row(str(actions), garnet(actions=actions), 0.05)
    header("S")
    for states in STATES:
        row(f"{states:,}", garnet(states=states), 0.01)
    verdict = "reached" if limit < MEMORY_GOAL else "MISSED"
    print(f"\nmemory over all ε: {limit:.0f} MB; the goal, below {MEMORY_GOAL:.0f} MB, is {verdict}")


if __name__ == "__main__":
    main()
