"""Speed beside an earlier commit: imports, engines, searches and chains of both, measured in turn in one run.

    python benchmarks/versions.py COMMIT [--rounds N] [--case NAME ...]

Every measurement is a process of its own that imports one of the two versions. The versions take turns, so that a noisy
machine disturbs both alike. A rate is the best of all rounds, in calls per second, without compilation.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

REPETITIONS = 3
"""Runs within one process, after a first one that compiles."""


def _garnet(**options: Any) -> Any:
    import smoothplan as sp

    return sp.models.garnet(**{"states": 1000, "actions": 5, "branching": 4, "discount": 0.2, "seed": 1} | options)


def _vector(table: Any) -> Any:
    """The same model as a simulator in NumPy."""
    import smoothplan as sp

    return sp.VectorModel(
        table.step,
        actions=table.actions,
        discount=table.discount,
        reward_range=table.reward_range,
        reward_kind=table.reward_kind,
        max_successors=table.max_successors,
        initial_state=0,
    )


def compiled_engine() -> int:
    """A schedule on a table."""
    import smoothplan as sp

    planner = sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.006)
    return sp.plan(planner, _garnet(reward_kind="bernoulli"), 0).calls


def batched_engine() -> int:
    """A schedule on a simulator in NumPy."""
    import smoothplan as sp

    planner = sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.02)
    return sp.plan(planner, _vector(_garnet(reward_kind="bernoulli")), 0).calls


def jitted_engine() -> int:
    """A schedule on a compiled simulator."""
    import smoothplan as sp

    return sp.plan(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.01), _jitted()).calls


@cache
def _jitted() -> Any:
    import smoothplan as sp

    return sp.JitModel(_noisy_walk, actions=2, discount=0.2, reward_range=(0, 1), initial_state=[0.0])


def _noisy_walk(states: Any, actions: Any, rng: Any) -> Any:
    """A walk on the line, worth more near the origin."""
    moved = states + rng.normal(0.0, 0.3, states.shape) + (actions - 0.5).reshape(-1, 1)
    return moved, 1.0 / (1.0 + moved[:, 0] ** 2), actions < 0


def table_search() -> int:
    """A best action by bounds on a table with many states."""
    import smoothplan as sp

    model = _garnet(states=100_000, branching=2, discount=0.7, sparsity=0.5)
    return sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.02), model, 0, max_calls=400_000).calls


def recurrent_search() -> int:
    """A best action by bounds on a small table whose states recur."""
    import smoothplan as sp

    model = sp.models.river_swim(discount=0.9)
    return sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.01), model, 0, max_calls=400_000).calls


def simulator_search() -> int:
    """A best action by bounds on a simulator in NumPy."""
    import smoothplan as sp

    model = _vector(_garnet(states=100_000, branching=2, discount=0.7, sparsity=0.5))
    return sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.1), model, 0, max_calls=20_000).calls


def tree_search() -> int:
    """UCT on a table."""
    import smoothplan as sp

    return sp.plan(sp.UCT(), _garnet(discount=0.9), 0, max_calls=1_000_000).calls


def table_chains() -> int:
    """Chains of order 2 around a reference on a table."""
    import smoothplan as sp

    model = _garnet(states=200, actions=4, branching=3, discount=0.99)
    backup = sp.LogSumExp(0.3)
    reference = sp.TabularReference(sp.exact.solve(model, backup).q)
    planner = sp.ReferenceCruiser(backup, order=2, epsilon=1e-6, reference=reference, improve=False)
    return sp.plan(planner, model, 0, max_calls=20_000_000).calls


def simulator_chains() -> int:
    """Chains of order 1 around a grid on a compiled simulator, which is made first."""
    import smoothplan as sp

    model = sp.models.from_gymnasium("CartPole-v1", discount=0.99)
    planner = sp.ReferenceCruiser(sp.LogSumExp(0.1), order=1, epsilon=1e-6)
    return sp.plan(planner, model, max_calls=4_000_000).calls


CASES: dict[str, Callable[[], int]] = {
    case.__name__: case
    for case in (
        compiled_engine,
        batched_engine,
        jitted_engine,
        table_search,
        recurrent_search,
        simulator_search,
        tree_search,
        table_chains,
        simulator_chains,
    )
}


def measure(name: str) -> float:
    """Calls per second of a case in this process: the best of a few runs after one that compiles."""
    case = CASES[name]
    case()
    rates = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        rates.append(case() / (time.perf_counter() - started))
    return max(rates)


def _run(checkout: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _rate(checkout: Path, name: str) -> float:
    if name == "import":
        started = time.perf_counter()
        _run(checkout, "-c", "import smoothplan")
        empty = time.perf_counter()
        _run(checkout, "-c", "pass")
        return 1.0 / max(2 * empty - started - time.perf_counter(), 1e-3)
    return float(json.loads(_run(checkout, __file__, "--measure", name)))


def main() -> None:
    """Prints a table of rates and their ratios."""
    parser = argparse.ArgumentParser(description="Compares the speed of this tree with that of an earlier commit.")
    parser.add_argument("commit", nargs="?", default="HEAD", help="the commit to compare with (default: HEAD)")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each case and version (default: 3)")
    parser.add_argument("--case", action="append", choices=["import", *CASES], help="only this case; repeatable")
    parser.add_argument("--measure", choices=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "-q", "--detach", before, options.commit], check=True)
        try:
            print(f"{'case':<18} {'before':>12} {'now':>12} {'now/before':>11}", flush=True)
            for name in options.case or ["import", *CASES]:
                rates: dict[Path, list[float]] = {before: [], ROOT: []}
                for _ in range(options.rounds):
                    for checkout, found in rates.items():
                        found.append(_rate(checkout, name))
                old, new = max(rates[before]), max(rates[ROOT])
                print(f"{name:<18} {old:>12,.4g} {new:>12,.4g} {new / old:>11.2f}", flush=True)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)


if __name__ == "__main__":
    main()
