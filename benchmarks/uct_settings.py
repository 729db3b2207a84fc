"""The settings of UCT on nine models: which exploration constant and rollout have the least regret.

A regret is that of the recommended action, in parts of the mean regret of a random action, in the discounted problem.
All depths are those of ε = 0.1. Planning is at random states, of a new model for each seed where there are many.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats

BUDGETS = (1_000, 10_000, 100_000)
MATTERS = 1e-3
"""A state is planned at if its actions differ by this part of all action values of the model."""

MODELS: dict[str, Callable[[int], sp.TabularModel]] = {
    "garnet": lambda seed: sp.models.garnet(200, 5, 3, 0.9, seed),
    "sparse": lambda seed: sp.models.garnet(200, 4, 2, 0.9, seed, sparsity=0.9),
    "bernoulli": lambda seed: sp.models.garnet(100, 4, 3, 0.8, seed, reward_kind="bernoulli"),
    "sailing": lambda seed: sp.models.sailing(),
    "lake": lambda seed: sp.models.frozen_lake(),
    "rooms": lambda seed: sp.models.two_room(3),
    "river": lambda seed: sp.models.river_swim(),
    "chain": lambda seed: sp.models.chain(),
    "inventory": lambda seed: sp.models.inventory(),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "c = 0.1": {"exploration": 0.1},
    "c = 0.25": {"exploration": 0.25},
    "c = 0.5": {"exploration": 0.5},
    "c = √2": {"exploration": 2**0.5},
    "no rollout": {"rollout": "none"},
    "open loop": {"loop": "open"},
}


class Case(NamedTuple):
    """Where to plan, and the truth there."""

    model: sp.TabularModel
    state: int
    q: Floats  # [K]


def cases(name: str, seeds: int) -> list[Case]:
    """A random state where the actions differ, for each seed."""
    result = []
    for seed in range(seeds):
        model = MODELS[name](seed)
        q = sp.exact.solve(model, sp.HardMax()).q
        matters = np.flatnonzero(~model.terminal & (np.ptp(q, axis=1) > MATTERS * np.ptp(q)))
        state = int(np.random.default_rng(seed).choice(matters))
        result.append(Case(model, state, q[state]))
    return result


def regret(planner: sp.UCT, where: list[Case], budget: int) -> float:
    """The mean regret, in parts of that of a random action."""
    found = []
    for seed, (model, state, q) in enumerate(where):
        action = sp.plan(planner, model, state, seed=seed, max_calls=budget).action
        found.append((q.max() - q[action]) / (q.max() - q.mean()))
    return float(np.mean(found))


def main() -> None:
    """Prints a table for each budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60, help="cases of each model")
    options = parser.parse_args()
    places = {name: cases(name, options.seeds) for name in MODELS}
    for budget in BUDGETS:
        print(f"{f'{budget:,} calls':<16}" + "".join(f"{name:>11}" for name in MODELS) + f"{'mean':>11}")
        for name, settings in SETTINGS.items():
            row = [regret(sp.UCT(**settings), where, budget) for where in places.values()]
            print(f"{name:<16}" + "".join(f"{number:11.3f}" for number in (*row, np.mean(row))), flush=True)


if __name__ == "__main__":
    main()
