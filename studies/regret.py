"""Regret: how much worse than the best action the recommended one is, against the number of simulator calls."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.bounds.gape import MDPGapE, OTGapE
from smoothplan.bounds.uct import UCT
from smoothplan.chains.cruiser import ReferenceCruiser
from smoothplan.decide.unregularised import smooth_backup, width
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import REBOOT_COST, frozen_lake, garnet, sailing
from smoothplan.recursive.gap_cruiser import OTGapCruiser
from smoothplan.recursive.planners import DebiasedCruiser, SmoothCruiser, SparseSampling
from smoothplan.recursive.schedule import forecast
from smoothplan.run.plan import plan
from smoothplan.run.records import GapDetails, Planner
from smoothplan.theory import exact
from smoothplan.theory.backups import Backup, HardMax
from studies.base import Cell, Row, Study, where
from studies.findings import Axis, Claim, Evidence, Figure, Series, Table

DELTA = 0.1

SOLVED = 1e-8
"""How accurately Q is known."""

Recursive = SparseSampling | SmoothCruiser | DebiasedCruiser
RECURSIVE: dict[str, type[Recursive]] = {
    "SparseSampling": SparseSampling,
    "SmoothCruiser": SmoothCruiser,
    "DebiasedCruiser": DebiasedCruiser,  # it may use the levels of SecondOrderSmoothCruiser, too
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


def shuffled(model: TabularModel, order: Ints) -> TabularModel:
    """The model with its actions in another order, [K]."""
    return TabularModel(
        model.probabilities[:, order],
        model.successors[:, order],
        model.rewards[:, order],
        discount=model.discount,
        reward_kind=model.reward_kind,
        reward_range=model.reward_range,
        terminal=model.terminal,
    )


@lru_cache(maxsize=1)
def task(name: str, size: int, seed: int) -> Task:
    """A root of a model, drawn from the half of states where a random choice costs most, with actions in random order.

    The order makes sure that who knows nothing, and takes the first action, takes a random one.
    """
    model = build(name, size, seed)
    q = exact.solve(model, HardMax(), SOLVED).q
    loss = np.where(model.terminal, -1.0, q.max(axis=1) - q.mean(axis=1))
    hard = np.argsort(-loss, kind="stable")[: max(1, np.count_nonzero(~model.terminal) // 2)]
    rng = np.random.default_rng(seed)
    root, order = int(rng.choice(hard)), rng.permutation(model.actions)
    return Task(shuffled(model, order), root, q[root, order])


@lru_cache(maxsize=256)
def affordable(planner: str, name: str, size: int, calls: int) -> float | None:
    """The finest accuracy of a recursive planner that a number of calls pays for; none where they are too few for any.

    It is relative to the width of the value interval, half of which is known for nothing. It depends on what a model
    declares, not on its table, so that all roots share it.
    """
    model, low, high, found = build(name, size, 0), 1e-3, 0.5, None
    for _ in range(12):
        middle = math.sqrt(low * high)
        price = forecast(_recursive(planner, model, middle), model).calls
        low, high = (middle, high) if price > calls else (low, middle)
        found = middle if 0 < price <= calls else found
    return found


def _recursive(planner: str, model: TabularModel, accuracy: float) -> Recursive:
    backup: Backup = HardMax() if planner == "SparseSampling" else smooth_backup(model)
    return RECURSIVE[planner](backup, accuracy * width(model), DELTA)


def _planner(name: str, case: str, size: int, model: TabularModel, budget: int) -> Planner | None:
    """A planner for a limit on calls; none where not even the coarsest accuracy can be paid for."""
    soft = smooth_backup(model)
    match name:
        case "MDPGapE":
            return MDPGapE(epsilon=0.0, delta=DELTA)
        case "OTGapE":
            return OTGapE(soft, 0.0, DELTA)
        case "UCT":
            return UCT()
        case "ReferenceCruiser":
            return ReferenceCruiser(soft, epsilon=0.05 * width(model), delta=DELTA)  # its horizon follows from ε
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
    workers = 2 if isinstance(planner, ReferenceCruiser) else 1  # results do not depend on them
    result = plan(planner, model, root, seed=cell.seed, max_calls=s["budget"], workers=workers)
    if np.ptp(result.q) == 0.0:
        return idle | {"calls": result.calls}
    assert result.action is not None
    loss = best - float(q[result.action])
    # The bounds of soft backups are about other action values than those that the regret is measured by.
    found = result.details
    return {
        "random": chance,
        "regret": loss if loss > 2.0 * SOLVED else 0.0,  # actions that are alike differ by rounding only
        "calls": result.calls,
        "informed": True,
        "bound": max(found.gap, 0.0) if s["planner"] == "MDPGapE" and isinstance(found, GapDetails) else None,
    }


TITLES = {
    "garnet": "random models",
    "sailing": "sailing",
    "frozen_lake": "FrozenLake",
    "sysadmin": "SysAdmin",
}

Key = tuple[str, str, int]
"""Model, planner, budget."""


class Mean(NamedTuple):
    """A mean and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, samples: Sequence[float] | Floats) -> "Mean":
        """Of independent samples."""
        error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples)) if len(samples) > 1 else 0.0
        return cls(float(np.mean(samples)), error)


def monte_carlo(budget: int) -> float:
    """What is left of the regret of a random choice where 100 calls tell nothing and errors fall like calls^−1/2."""
    return math.sqrt(100 / max(budget, 100))


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Regret by model, planner and budget, and what is claimed of it."""
    regrets: dict[Key, list[float]] = {}
    random = {
        model: float(np.mean([r.result["random"] for r in where(rows, model=model)])) for model, _ in settings.sizes
    }
    for row in rows:
        key = row.settings["model"], row.settings["planner"], row.settings["budget"]
        regrets.setdefault(key, []).append(float(row.result["regret"]))
    # Planners that are for this: they look for an action, at any horizon.
    claims = [_vanishes(planner, regrets, random) for planner in ("MDPGapE", "OTGapE", "UCT")]
    claims += [_no_worse(settings, regrets, random), _certified(rows)]
    return Evidence(
        claims=claims,
        figures=[_figure(model, settings, regrets, random[model]) for model in random],
        tables=[_uninformed(settings, rows)],
        notes=[
            "Simple regret: the exact value of the best action at the root less that of the recommended one, for the "
            "ordinary maximum. Roots are drawn from those states where a random choice costs most (half of them), and "
            "actions are put in random order, so that nobody gains or loses by recommending the first one.",
            "A run that has no estimate at all, or the same one for all actions, is counted as a random choice. "
            "Recursive planners get the finest accuracy whose forecast the budget can pay for; they estimate a value, "
            "and their action is a by-product. They are alike where their schedules are: with few calls and a small "
            "temperature, levels of order 0 are best. ReferenceCruiser pays for its reference out of the budget, and "
            "knows nothing of the actions until it has paid for the first chains too.",
            "Smooth planners have the temperature whose bias is at most a thousandth of the width of the value "
            "interval. UCT has its defaults.",
            _speeds(settings, rows),
            *(_duel(model, settings, regrets) for model in random),
        ],
    )


def over_models(means: Sequence[Mean]) -> Mean:
    """The mean of independent means."""
    return Mean(float(np.mean([m.value for m in means])), math.hypot(*(m.error for m in means)) / len(means))


def _vanishes(planner: str, regrets: Mapping[Key, list[float]], random: Mapping[str, float]) -> Claim:
    budget = max(budget for _, name, budget in regrets if name == planner)
    found = over_models([Mean.of(np.array(regrets[model, planner, budget]) / random[model]) for model in random])
    return Claim(
        statement=f"The regret of {planner} vanishes as calls grow.",
        quantity=f"regret of {planner} after {budget:,} calls over that of a random choice, mean over models",
        theory="0 in the limit",
        measured=found.value,
        error=1.96 * found.error,
        stated=(-math.inf, 3.0 * monte_carlo(budget)),
        reason="100 calls tell nothing, a few for each action or one path; from there errors of estimates fall like "
        f"calls^−1/2, to {monte_carlo(budget):.2g} of what they were; 3 times that, for constants",
    )


def _no_worse(settings: Settings, regrets: Mapping[Key, list[float]], random: Mapping[str, float]) -> Claim:
    budget = max(settings.budgets)
    found = over_models([Mean.of(_difference(model, budget, regrets) / random[model]) for model in random])
    return Claim(
        statement="With many calls, planning by bounds is no worse than UCT, and proves what it says.",
        quantity=f"regret of MDPGapE less that of UCT after {budget:,} calls, over that of a random choice, mean over "
        "models",
        theory="at most 0",
        measured=found.value,
        error=1.96 * found.error,
        stated=(-math.inf, monte_carlo(budget)),
        reason="differences that are smaller than the error of a Monte-Carlo estimate after as many calls do not count",
    )


def _difference(model: str, budget: int, regrets: Mapping[Key, list[float]]) -> Floats:
    """Regret of MDPGapE less that of UCT, root by root."""
    return np.subtract(regrets[model, "MDPGapE", budget], regrets[model, "UCT", budget])


def _certified(rows: Sequence[Row]) -> Claim:
    bounded = [row.result for row in rows if row.result["bound"] is not None]
    broken = [result["regret"] > result["bound"] + 2.0 * SOLVED for result in bounded]
    return Claim(
        statement="Whenever a run is stopped, the gap between the bounds of MDPGapE covers the regret.",
        quantity="share of runs of MDPGapE whose regret exceeds its own bound",
        theory=f"at most {DELTA:g}",
        measured=float(np.mean(broken)),
        stated=(-math.inf, DELTA),
        reason=f"δ = {DELTA:g}, at all times at once, over {len(bounded)} runs",
    )


def _speeds(settings: Settings, rows: Sequence[Row]) -> str:
    """What a budget in simulator calls does not show."""
    budget = max(settings.budgets)
    ours, theirs = (
        sum(row.seconds for row in where(rows, planner=planner, budget=budget)) for planner in ("MDPGapE", "UCT")
    )
    return (
        f"Budgets are in simulator calls, not in time: for {budget:,} calls of a table MDPGapE took "
        f"about {float(f'{ours / max(theirs, 1e-3):.1g}'):g} times as long as UCT."
    )


def _duel(model: str, settings: Settings, regrets: Mapping[Key, list[float]]) -> str:
    """Where UCT and MDPGapE differ by more than two standard errors."""
    verdicts = []
    for budget in settings.budgets:
        difference = Mean.of(_difference(model, budget, regrets))
        if abs(difference.value) > 2.0 * difference.error:
            winner, loser = ("UCT", "MDPGapE") if difference.value > 0.0 else ("MDPGapE", "UCT")
            verdicts.append(f"{winner} beats {loser} at {budget:,} calls")
    told = "; ".join(verdicts) or "MDPGapE and UCT do not differ by two standard errors"
    return f"{TITLES[model][0].upper()}{TITLES[model][1:]}: {told}."


def _figure(model: str, settings: Settings, regrets: Mapping[Key, list[float]], random: float) -> Figure:
    series = []
    for planner in PLANNERS:
        budgets = [budget for place, name, budget in regrets if (place, name) == (model, planner)]
        means = [Mean.of(regrets[model, planner, budget]) for budget in budgets]
        low, high = [max(0.0, m.value - m.error) for m in means], [m.value + m.error for m in means]
        series.append(Series(planner, [float(budget) for budget in budgets], [m.value for m in means], low, high))
    ends = [float(min(settings.budgets)), float(max(settings.budgets))]
    series.append(Series("random choice", ends, [random, random], look="dashed"))
    return Figure(
        name=f"regret-{model.replace('_', '-')}",
        title=f"Simple regret against simulator calls: {TITLES[model]}",
        caption=f"Means over {settings.pairs} roots, ± one standard error. On the dashed line nothing is known yet: "
        "recursion is for shorter horizons than these.",
        x=Axis("simulator calls", log=True),
        y=Axis("simple regret"),
        series=series,
    )


def _uninformed(settings: Settings, rows: Sequence[Row]) -> Table:
    """Who could not say anything."""

    def share(planner: str, budget: int) -> str:
        found = [row.result["informed"] for row in where(rows, planner=planner, budget=budget)]
        return f"{1.0 - np.mean(found):.2f}" if found else ""

    return Table(
        "regret-uninformed",
        "Share of runs without an estimate that tells actions apart, all models",
        ("planner", *(f"{budget:,}" for budget in settings.budgets)),
        [[planner, *(share(planner, budget) for budget in settings.budgets)] for planner in PLANNERS],
    )


STUDY = Study(
    name="regret",
    title="Regret against simulator calls",
    question="How good is the action that each planner recommends after a given number of simulator calls?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
