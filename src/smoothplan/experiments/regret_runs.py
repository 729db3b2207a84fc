"""The runs behind the experiment on regret: planners under a limit on simulator calls, on four kinds of models."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from smoothplan import exact
from smoothplan.arguments import Floats
from smoothplan.backups import Backup, HardMax
from smoothplan.defaults import entropy_backup, width
from smoothplan.experiments.base import Cell
from smoothplan.forecast import forecast
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import REBOOT_COST, frozen_lake, garnet, sailing
from smoothplan.plan import plan
from smoothplan.planners import (
    UCT,
    MDPGapE,
    OTGapCruiser,
    OTGapE,
    ReferenceCruiser,
    SecondOrderSmoothCruiser,
    SmoothCruiser,
    SparseSampling,
)
from smoothplan.running.run import Identification, Planner, Scheduled

DELTA = 0.1

WORKERS = 2
"""Threads of ReferenceCruiser: results do not depend on them."""

SOLVED = 1e-8
"""How accurately Q is known."""

TRIVIAL = 0.5
"""Roots are drawn from the states where a random choice costs most: this share, where it costs least, is left out."""

REFERENCE_ACCURACY = 0.05
"""The ε of ReferenceCruiser, which its horizon follows from, over the width of the value interval."""

FINEST, COARSEST, BISECTIONS = 1e-3, 0.5, 12
"""Accuracies that recursive planners may have, over the width of the value interval (half of it is known for nothing),
and steps to the finest that a number of calls can pay for."""

RECURSIVE = {
    "SparseSampling": SparseSampling,
    "SmoothCruiser": SmoothCruiser,
    "SecondOrderSmoothCruiser": SecondOrderSmoothCruiser,
}
PLANNERS = ("MDPGapE", "OTGapE", "UCT", "ReferenceCruiser", *RECURSIVE, "OTGapCruiser")


@dataclass(frozen=True)
class Settings:
    """Models by name with their sizes, roots of each, and limits on simulator calls."""

    sizes: tuple[tuple[str, int], ...]
    pairs: int  # of a root and a seed, for each model
    budgets: tuple[int, ...]
    slow_budget: int  # the largest for OTGapE with a soft backup
    first_seed: int = 0


QUICK = Settings(
    sizes=(("garnet", 1_000), ("sailing", 4), ("frozen_lake", 4), ("sysadmin", 4)),
    pairs=20,
    budgets=(100, 3_000, 100_000),
    slow_budget=3_000,
)
FULL = Settings(
    sizes=(("garnet", 10_000), ("sailing", 8), ("frozen_lake", 8), ("sysadmin", 7)),
    pairs=80,
    budgets=(100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000),
    slow_budget=300_000,
)


def sysadmin(machines: int, discount: float = 0.95) -> TabularModel:
    """`models.zoo.sysadmin` as a table: the bits of a state, from the lowest, are its machines."""
    states = 2**machines
    running = np.arange(states)[:, None] >> np.arange(machines) & 1
    connected = (1.0 + np.roll(running, 1, axis=1) + np.roll(running, -1, axis=1)) / 3.0
    survival = np.where(running == 1, 0.45 + 0.5 * connected, 0.05 * connected)
    up = np.repeat(survival[:, None, :], machines + 1, axis=1)  # [S, K, machines]
    for machine in range(machines):
        up[:, machine + 1, machine] = 1.0
    probabilities = np.ones((states, machines + 1, states))
    for machine in range(machines):
        chance = up[:, :, machine, None]
        probabilities *= np.where(running[:, machine] == 1, chance, 1.0 - chance)
    rewards = running.mean(axis=1)[:, None] - REBOOT_COST / machines * (np.arange(machines + 1) > 0)
    successors = np.broadcast_to(np.arange(states), probabilities.shape)
    return TabularModel(
        probabilities, successors, rewards, discount=discount, reward_range=(-REBOOT_COST / machines, 1.0)
    )


def build(name: str, size: int, seed: int) -> TabularModel:
    """A model; the seed is for those that are random."""
    match name:
        case "garnet":
            return garnet(states=size, actions=5, branching=2, discount=0.7, seed=seed, sparsity=0.5)
        case "sailing":
            return sailing(size, discount=0.9)
        case "frozen_lake":
            return frozen_lake(f"{size}x{size}")
        case _:
            return sysadmin(size)


class Task(NamedTuple):
    """Where to plan, and what every action there is worth."""

    model: TabularModel
    root: int
    q: Floats  # [K]


@lru_cache(maxsize=1)
def task(name: str, size: int, seed: int) -> Task:
    """A root of a model, drawn from the states where a random choice costs most, with actions in random order.

    The order makes sure that who knows nothing, and takes the first action, takes a random one.
    """
    model = build(name, size, seed)
    q = exact.solve(model, HardMax(), SOLVED).q
    loss = np.where(model.terminal, -1.0, q.max(axis=1) - q.mean(axis=1))
    hard = np.argsort(-loss, kind="stable")[: max(1, int((1.0 - TRIVIAL) * np.count_nonzero(~model.terminal)))]
    rng = np.random.default_rng(seed)
    root, order = int(rng.choice(hard)), rng.permutation(model.actions)
    shuffled = TabularModel(
        model.probabilities[:, order],
        model.successors[:, order],
        model.rewards[:, order],
        discount=model.discount,
        reward_kind=model.reward_kind,
        reward_range=model.reward_range,
        terminal=model.terminal,
    )
    return Task(shuffled, root, q[root, order])


@lru_cache(maxsize=256)
def affordable(planner: str, name: str, size: int, calls: int) -> float | None:
    """The finest accuracy of a recursive planner that so many calls can pay for; none where they are too few for any.

    It depends on what a model declares, not on its table, so that all roots share it.
    """
    model, low, high, found = build(name, size, 0), FINEST, COARSEST, None
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        price = forecast(_recursive(planner, model, middle), model).calls
        low, high = (middle, high) if price > calls else (low, middle)
        found = middle if 0 < price <= calls else found
    return found


def _recursive(planner: str, model: TabularModel, accuracy: float) -> Scheduled:
    backup: Backup = HardMax() if planner == "SparseSampling" else entropy_backup(model)
    return RECURSIVE[planner](backup, accuracy * width(model), DELTA)


def _planner(name: str, case: str, size: int, model: TabularModel, budget: int) -> Planner | None:
    """A planner for a limit on calls; none where not even the coarsest accuracy can be paid for."""
    soft = entropy_backup(model)
    match name:
        case "MDPGapE":
            return MDPGapE(epsilon=0.0, delta=DELTA)
        case "OTGapE":
            return OTGapE(soft, 0.0, DELTA)
        case "UCT":
            return UCT()
        case "ReferenceCruiser":
            return ReferenceCruiser(soft, epsilon=REFERENCE_ACCURACY * width(model), delta=DELTA)
        case "OTGapCruiser":
            return OTGapCruiser(soft, 0.0, DELTA)
        case _:
            accuracy = affordable(name, case, size, budget)
            return None if accuracy is None else _recursive(name, model, accuracy)


def cells(settings: Settings) -> Iterator[Cell]:
    """All planners at one root, then at the next."""
    for model, size in settings.sizes:
        for seed in range(settings.first_seed, settings.first_seed + settings.pairs):
            for planner in PLANNERS:
                for budget in settings.budgets:
                    if planner != "OTGapE" or budget <= settings.slow_budget:
                        yield Cell({"model": model, "size": size, "planner": planner, "budget": budget}, seed)


def measure(cell: Cell) -> Mapping[str, Any]:
    """How much worse than the best the recommended action is, at the root; and what bounds it, where something does."""
    s = cell.settings
    model, root, q = task(s["model"], s["size"], cell.seed)
    best, chance = float(q.max()), float(q.max() - q.mean())
    planner = _planner(s["planner"], s["model"], s["size"], model, s["budget"])
    idle = {"random": chance, "regret": chance, "calls": 0, "informed": False, "bound": None}
    if planner is None:
        return idle
    workers = WORKERS if isinstance(planner, ReferenceCruiser) else 1
    result = plan(planner, model, root, seed=cell.seed, max_calls=s["budget"], workers=workers)
    if np.ptp(result.q) == 0.0:
        return idle | {"calls": result.calls}
    assert result.action is not None
    loss = best - float(q[result.action])
    # The bounds of soft backups are about other action values than those that the regret is measured by.
    found = result.details if s["planner"] == "MDPGapE" else None
    return {
        "random": chance,
        "regret": loss if loss > 2.0 * SOLVED else 0.0,  # actions that are alike differ by rounding only
        "calls": result.calls,
        "informed": True,
        "bound": max(found.gap, 0.0) if isinstance(found, Identification) else None,
    }
