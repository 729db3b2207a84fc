"""The runs behind the experiment on gaps: large random models, twins, certified prices, and refusals."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from smoothplan import exact
from smoothplan.arguments import Floats
from smoothplan.backups import Backup, HardMax, LogSumExp
from smoothplan.experiments.base import Cell
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import garnet
from smoothplan.plan import plan
from smoothplan.planners import MDPGapE, OTGapCruiser, OTGapE
from smoothplan.running.run import HopelessError, Identification, Planner
from smoothplan.schedules.level import Problem
from smoothplan.schedules.optimise import ladder

STATES, ACTIONS, BRANCHING, DISCOUNT, SPARSITY = 100_000, 5, 2, 0.7, 0.5
"""Of the random models: so many states that hardly any is met twice, and half of the rewards zero."""

SOFT = 0.05
"""The temperature η of OT-GapE on them."""

TWIN_STATES, TWIN_BRANCHING, TWIN_DISCOUNT, TWIN_TEMPERATURE = 6, 4, 0.2, 1.0
"""Of the twins: few states, which are soon all known, and a horizon that is short enough for recursion."""

FAR_BELOW = 0.05
"""ε over Δ where the gap is to decide."""

SOLVED = 1e-6
"""How accurately Q is known: no answer is held to be wrong by less."""

REFUSAL_CALLS = 10**6
"""A limit for OT-GapCruiser on a large random model, whose horizon is too long for it."""

WORKERS = 2
"""Threads of OT-GapCruiser: results do not depend on them."""


@dataclass(frozen=True)
class Settings:
    """Random models and root states by accuracy, and twins by scale: of the gap, and of the accuracy without a gap."""

    instances: int
    roots: int
    epsilons: tuple[float, ...]
    seeds: int
    search_scales: tuple[float, ...]
    cruiser_scales: tuple[float, ...]
    ladder_scales: tuple[float, ...]  # of certified prices that nobody pays
    delta: float = 0.1
    max_calls: int = 5 * 10**10
    first_seed: int = 0


def _halves(first: float, last: float) -> tuple[float, ...]:
    return tuple(first / 2.0**k for k in range(math.floor(math.log2(first / last) + 1e-9) + 1))


QUICK = Settings(
    instances=5,
    roots=4,
    epsilons=(1.0, 0.7, 0.5, 0.35, 0.25),
    seeds=3,
    search_scales=_halves(0.32, 0.02),
    cruiser_scales=_halves(0.32, 0.01),
    ladder_scales=_halves(2.0**-7, 2.0**-12),
)
FULL = Settings(
    instances=20,
    roots=5,
    epsilons=(1.0, 0.7, 0.5, 0.35, 0.2, 0.1),
    seeds=10,
    search_scales=_halves(0.32, 0.005),
    cruiser_scales=_halves(0.32, 0.005),
    ladder_scales=_halves(2.0**-7, 2.0**-15),
)


def _planner(name: str, epsilon: float, delta: float, temperature: float) -> Planner:
    match name:
        case "MDPGapE":
            return MDPGapE(epsilon=epsilon, delta=delta)
        case "OTGapE":
            return OTGapE(LogSumExp(temperature), epsilon, delta)
        case _:
            return OTGapCruiser(LogSumExp(temperature), epsilon, delta, order=int(name[-1]))


CRUISERS = ("OTGapCruiser, order 1", "OTGapCruiser, order 2")
SEARCHES = ("MDPGapE", "OTGapE")
VARIED = {"gap": (*SEARCHES, *CRUISERS), "epsilon": ("OTGapE", CRUISERS[1])}
"""What varies between twins, and who is run on them."""


def twins(gap: float) -> TabularModel:
    """A random model in whose state 0 both actions do the same, except that their mean rewards differ by the gap."""
    rng = np.random.default_rng(1)
    shape = (TWIN_STATES, 2, TWIN_BRANCHING)
    probabilities = rng.dirichlet(np.ones(TWIN_BRANCHING), size=shape[:2])
    successors = rng.integers(1, TWIN_STATES, size=shape)
    rewards = rng.random(shape[:2])
    probabilities[0, 1], successors[0, 1] = probabilities[0, 0], successors[0, 0]
    rewards[0] = 0.5 + gap / 2.0, 0.5 - gap / 2.0
    return TabularModel(probabilities, successors, rewards, discount=TWIN_DISCOUNT, reward_kind="bernoulli")


def instance(number: int) -> TabularModel:
    """A large random model."""
    return garnet(STATES, ACTIONS, BRANCHING, DISCOUNT, number, SPARSITY)


@lru_cache(maxsize=2)
def _solved(number: int, roots: int) -> tuple[TabularModel, dict[bool, Floats]]:
    """A large random model and the action values of its first states, [roots, K], by whether the backup is soft."""
    model = instance(number)
    backups: dict[bool, Backup] = {False: HardMax(), True: LogSumExp(SOFT)}
    return model, {soft: exact.solve(model, backup, SOLVED).q[:roots] for soft, backup in backups.items()}


def cells(settings: Settings) -> Iterator[Cell]:
    """Random models, one after the other; twins; certified prices; and what recursion says to a long horizon."""
    common = {"delta": settings.delta, "max_calls": settings.max_calls}
    first = settings.first_seed
    for number in range(first, first + settings.instances):
        for root in range(settings.roots):
            for planner in SEARCHES:
                for epsilon in settings.epsilons:
                    case = {"instance": number, "root": root, "roots": settings.roots}
                    yield Cell({"family": "garnet", "planner": planner, "epsilon": epsilon, **case, **common}, root)
    for varied, planners in VARIED.items():
        for planner in planners:
            for scale in settings.cruiser_scales if planner in CRUISERS else settings.search_scales:
                for seed in range(first, first + settings.seeds):
                    yield Cell({"family": "twins", "planner": planner, "varied": varied, "scale": scale} | common, seed)
    for planner in CRUISERS:
        for scale in dict.fromkeys([*settings.cruiser_scales, *settings.ladder_scales]):
            yield Cell({"family": "ladder", "planner": planner, "scale": scale, "delta": settings.delta}, 0)
    refusal = {"family": "refusal", "planner": CRUISERS[1], "epsilon": settings.epsilons[-1], "delta": settings.delta}
    yield Cell(refusal | {"max_calls": REFUSAL_CALLS}, first)


def measure(cell: Cell) -> Mapping[str, Any]:
    """One run, one price, or one refusal."""
    s = cell.settings
    match s["family"]:
        case "garnet":
            model, solutions = _solved(s["instance"], s["roots"])
            q = solutions[s["planner"] == "OTGapE"][s["root"]]
            return _run(_planner(s["planner"], s["epsilon"], s["delta"], SOFT), model, s["root"], q, cell)
        case "twins":
            gap, epsilon = (s["scale"], FAR_BELOW * s["scale"]) if s["varied"] == "gap" else (0.0, s["scale"])
            planner = _planner(s["planner"], epsilon, s["delta"], TWIN_TEMPERATURE)
            return _run(planner, twins(gap), 0, np.array([gap, 0.0]), cell)
        case "ladder":
            problem = Problem.of(twins(0.0), LogSumExp(TWIN_TEMPERATURE))
            # Intervals of half the scale tell actions apart that differ by it; δ is shared by the two actions.
            _, rungs = ladder(problem, s["scale"] / 2.0, s["delta"] / 2.0, int(s["planner"][-1]))
            return {"calls": 2.0 * rungs[-1].price, "of_a_return": float(rungs[-1].through.calls)}
        case _:
            planner = _planner(s["planner"], s["epsilon"], s["delta"], SOFT)
            return _refusal(planner, instance(cell.seed), s["max_calls"])


def _run(planner: Planner, model: TabularModel, root: int, q: Floats, cell: Cell) -> dict[str, Any]:
    """What a run took, and how much worse than the best its action is; q has the action values, up to a constant."""
    workers = WORKERS if isinstance(planner, OTGapCruiser) else 1
    result = plan(planner, model, root, seed=cell.seed, max_calls=cell.settings["max_calls"], workers=workers)
    second, best = np.sort(q)[-2:]
    assert result.action is not None
    return {
        "calls": result.calls,
        "status": result.status,
        "gap": float(best - second),
        "epsilon": planner.epsilon,
        "regret": float(best - q[result.action]),
    }


def _refusal(planner: Planner, model: TabularModel, max_calls: int) -> dict[str, Any]:
    """What is said where nobody limits the calls; how much the action may be worse than the best with a limit."""
    limited = plan(planner, model, 0, max_calls=max_calls).details
    assert isinstance(limited, Identification)
    try:
        plan(planner, model, 0)
    except HopelessError as error:
        return {"refused": str(error), "gap": limited.gap}
    return {"refused": "", "gap": limited.gap}
