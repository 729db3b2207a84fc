"""What a reference learns from simulator calls: the value of its greedy policy, and its error, along the way.

Shared references sample by walks on the empirical model, or by bounds as OT-GapE does; on tables the policies are
evaluated exactly. Grids are evaluated by playing their greedy policy from the initial state. Medians over seeds.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.chains.grid import GridReference
from smoothplan.chains.reference import Reference
from smoothplan.chains.shared import SharedReference
from smoothplan.models import Oracle

STEPS = 500
"""Of an episode that does not end."""

SHARED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "FrozenLake-v1": ({"map_name": "8x8"}, (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)),
    "Taxi-v4": ({}, (100, 200, 300, 400, 500, 600)),
}
GRIDS = {"cart_pole": (10_000, 30_000, 100_000, 300_000), "mountain_car": (1_000, 3_000, 10_000, 30_000, 100_000)}
"""Simulator calls of successive improvements."""


def greedy_value(model: sp.TabularModel, reference: Reference) -> float:
    """The value of the greedy policy at the initial state."""
    policy = sp.HardMax().policy(reference.q(np.arange(model.states)))
    return float(sp.exact.evaluate(model, policy, tolerance=1e-5).values[model.initial_state])


def shared_curve(model: sp.TabularModel, truth: Floats, checks: Sequence[int], seed: int) -> list[list[float]]:
    """At each number of calls: greedy value, range of the error at the initial state, and the certified bound on it."""
    reference = SharedReference(model, sp.HardMax(), seed=seed)
    start = np.array([model.initial_state])
    rows = []
    for calls in checks:
        if calls > reference.calls:
            reference.improve(calls - reference.calls)
        error = float(np.ptp(reference.q(start)[0] - truth[start[0]]))
        rows.append([greedy_value(model, reference), error, float(reference.error_range(start)[0])])
    return rows


def shared(seeds: int) -> None:
    """Learning curves on tables."""
    for name, (options, checks) in SHARED.items():
        model = sp.models.from_gymnasium(name, discount=0.99, **options)
        assert isinstance(model, sp.TabularModel)
        solution = sp.exact.solve(model, sp.HardMax(), 1e-6)
        print(f"\n{name}, γ = 0.99: the optimal value is {solution.values[model.initial_state]:.4g}")
        print(f"{'calls':<40}" + "".join(f"{calls:>10,}" for calls in checks))
        started = time.perf_counter()
        rows = np.median([shared_curve(model, solution.q, checks, seed) for seed in range(seeds)], axis=0)
        seconds = (time.perf_counter() - started) / seeds
        for column, what in enumerate(("greedy policy", "error at the root", "certified error at the root")):
            label = what + (f" ({seconds:.1f} s)" if column == 0 else "")
            print(f"{label:<40}" + "".join(f"{row[column]:>10.4g}" for row in rows))


def played(model: sp.GenerativeModel, reference: Reference) -> tuple[float, int]:
    """The discounted return of the greedy policy from the initial state, and the steps until the end."""
    oracle = Oracle(model, seed=0)
    state = np.asarray(model.initial_state)[None]
    total = 0.0
    for step in range(STEPS):
        transition = oracle.sample(state, reference.q(state).argmax(axis=1))
        total += model.discount**step * float(transition.rewards[0])
        if transition.terminals[0]:
            return total, step + 1
        state = transition.next_states
    return total, STEPS


def grids(seeds: int) -> None:
    """Learning curves of grids: a coarse one is improved again and again."""
    for name, checks in GRIDS.items():
        model = getattr(sp.models, name)()
        print(f"\n{name}, γ = {model.discount:g}: calls, nodes, greedy return and steps, the reference's own value")
        for seed in range(seeds):
            started = time.perf_counter()
            reference = GridReference.build(model, sp.HardMax(), cells=4, seed=seed)
            for calls in (0, *checks):
                if calls > 0:
                    reference.improve(calls)
                value, steps = played(model, reference)
                own = float(reference.q(np.asarray(model.initial_state)[None]).max())
                print(
                    f"seed {seed}{reference.calls:>12,}{reference.nodes:>10,}{value:>12.4g}{steps:>6}{own:>12.4g}"
                    f"{time.perf_counter() - started:>8.1f} s"
                )


def main() -> None:
    """All curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    shared(seeds)
    grids(seeds)


if __name__ == "__main__":
    main()
