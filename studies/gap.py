"""Gap: what the best action costs against the gap Δ and the accuracy ε, on fresh trees and where nothing is new."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.bounds.gape import MDPGapE, OTGapE
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import garnet
from smoothplan.recursive.gap_cruiser import OTGapCruiser
from smoothplan.recursive.optimise import PRICE_GROWTH, ladder
from smoothplan.run.plan import plan
from smoothplan.run.records import GapDetails, Planner
from smoothplan.theory import exact
from smoothplan.theory.backups import Backup, HardMax, LogSumExp
from smoothplan.theory.curvature import Problem
from studies.base import Cell, Row, Study, where
from studies.findings import Axis, Claim, Evidence, Figure, Series
from studies.fits import Fit, power_law

ACTIONS, BRANCHING, DISCOUNT = 5, 2, 0.7
"""Of the random models."""

SOFT = 0.05
"""The temperature η of OT-GapE on them."""

TWIN_STATES, TWIN_DISCOUNT, TWIN_TEMPERATURE = 6, 0.2, 1.0
"""Of the twins: few states, which are soon all known, and a horizon that is short enough for recursion."""

SOLVED = 1e-6
"""How accurately Q is known: no answer is held to be wrong by less."""


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
    refusal_calls: int = 10**6  # a limit for OTGapCruiser on a large random model, whose horizon is too long for it
    states: int = 100_000  # of random models: hardly any is met twice
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
    ladder_scales=_halves(2.0**-12, 2.0**-22),
)
FULL = Settings(
    instances=20,
    roots=5,
    epsilons=(1.0, 0.7, 0.5, 0.35, 0.2, 0.1),
    seeds=10,
    search_scales=_halves(0.32, 0.005),
    cruiser_scales=_halves(0.32, 0.005),
    ladder_scales=_halves(2.0**-12, 2.0**-26),
)


def _planner(name: str, epsilon: float, delta: float, temperature: float) -> Planner:
    if name == "MDPGapE":
        return MDPGapE(epsilon=epsilon, delta=delta)
    if name == "OTGapE":
        return OTGapE(LogSumExp(temperature), epsilon, delta)
    order, debias = CRUISERS[name]
    return OTGapCruiser(LogSumExp(temperature), epsilon, delta, order=order, debias=debias)


FIRST, DEBIASED = "OTGapCruiser, order 1", "OTGapCruiser, debiased"
CRUISERS = {FIRST: (1, 0), DEBIASED: (2, 2)}
"""The levels that they may use; those of the second are the default."""

SEARCHES = ("MDPGapE", "OTGapE")
VARIED = {"gap": (*SEARCHES, *CRUISERS), "epsilon": ("OTGapE", DEBIASED)}
"""What varies between twins, and who is run on them."""


def twins(gap: float) -> TabularModel:
    """A random model in whose state 0 both actions do the same, except that their mean rewards differ by the gap."""
    rng = np.random.default_rng(1)
    shape = (TWIN_STATES, 2, 4)
    probabilities = rng.dirichlet(np.ones(4), size=shape[:2])
    successors = rng.integers(1, TWIN_STATES, size=shape)
    rewards = rng.random(shape[:2])
    probabilities[0, 1], successors[0, 1] = probabilities[0, 0], successors[0, 0]
    rewards[0] = 0.5 + gap / 2.0, 0.5 - gap / 2.0
    return TabularModel(probabilities, successors, rewards, discount=TWIN_DISCOUNT, reward_kind="bernoulli")


def instance(number: int, states: int) -> TabularModel:
    """A large random model; half of its rewards are zero."""
    return garnet(states, ACTIONS, BRANCHING, DISCOUNT, number, sparsity=0.5)


@lru_cache(maxsize=2)
def _solved(number: int, states: int, roots: int) -> tuple[TabularModel, dict[bool, Floats]]:
    """A large random model and the action values of its first states, [roots, K], by whether the backup is soft."""
    model = instance(number, states)
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
                    case = {"instance": number, "states": settings.states, "root": root, "roots": settings.roots}
                    yield Cell({"family": "garnet", "planner": planner, "epsilon": epsilon, **case, **common}, root)
    for varied, planners in VARIED.items():
        for planner in planners:
            for scale in settings.cruiser_scales if planner in CRUISERS else settings.search_scales:
                for seed in range(first, first + settings.seeds):
                    yield Cell({"family": "twins", "planner": planner, "varied": varied, "scale": scale} | common, seed)
    for planner in CRUISERS:
        for scale in dict.fromkeys([*settings.cruiser_scales, *settings.ladder_scales]):
            yield Cell({"family": "ladder", "planner": planner, "scale": scale, "delta": settings.delta}, 0)
    refusal = {"family": "refusal", "planner": DEBIASED, "epsilon": settings.epsilons[-1], "delta": settings.delta}
    yield Cell(refusal | {"states": settings.states, "max_calls": settings.refusal_calls}, first)


def measure(cell: Cell) -> Mapping[str, Any]:
    """One run, one price, or one refusal."""
    s = cell.settings
    match s["family"]:
        case "garnet":
            model, solutions = _solved(s["instance"], s["states"], s["roots"])
            q = solutions[s["planner"] == "OTGapE"][s["root"]]
            return _run(_planner(s["planner"], s["epsilon"], s["delta"], SOFT), model, s["root"], q, cell)
        case "twins":
            # Where the gap is to decide, ε is far below it.
            gap, epsilon = (s["scale"], 0.05 * s["scale"]) if s["varied"] == "gap" else (0.0, s["scale"])
            planner = _planner(s["planner"], epsilon, s["delta"], TWIN_TEMPERATURE)
            return _run(planner, twins(gap), 0, np.array([gap, 0.0]), cell)
        case "ladder":
            problem = Problem.of(twins(0.0), LogSumExp(TWIN_TEMPERATURE))
            # Intervals of half the scale tell actions apart that differ by it; δ is shared by the two actions.
            _, rungs = ladder(problem, s["scale"] / 2.0, s["delta"] / 2.0, *CRUISERS[s["planner"]])
            return {"calls": 2.0 * rungs[-1].price, "of_a_return": float(rungs[-1].through.calls)}
        case _:
            planner = _planner(s["planner"], s["epsilon"], s["delta"], SOFT)
            return _refusal(planner, instance(cell.seed, s["states"]), s["max_calls"])


def _run(planner: Planner, model: TabularModel, root: int, q: Floats, cell: Cell) -> dict[str, Any]:
    """What a run took, and how much worse than the best its action is; q has the action values, up to a constant."""
    workers = 2 if isinstance(planner, OTGapCruiser) else 1  # results do not depend on them
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
    assert isinstance(limited, GapDetails)
    try:
        plan(planner, model, 0)
    except sp.TooExpensiveError as error:
        return {"refused": str(error), "gap": limited.gap}
    return {"refused": "", "gap": limited.gap}


WRONG = "share of all runs whose action is worse than the best one by more than ε"


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Exponents on fresh trees, between twins, and of certified prices; and whether the answers were right."""
    runs = [*where(rows, family="garnet"), *where(rows, family="twins")]
    prices = {
        planner: {r.settings["scale"]: r.result["calls"] for r in where(rows, family="ladder", planner=planner)}
        for planner in CRUISERS
    }
    fresh = {planner: _binned(where(runs, family="garnet", planner=planner)) for planner in SEARCHES}
    known = {
        (varied, planner): _by_scale(where(runs, family="twins", planner=planner, varied=varied))
        for varied, planners in VARIED.items()
        for planner in planners
    }
    claims = [_fresh_claim(planner, points) for planner, points in fresh.items()]
    claims += [
        _cruiser_claim(*key, points, prices[key[1]]) if key[1] in CRUISERS else _search_claim(*key, points)
        for key, points in known.items()
    ]
    claims += [_ladder_claim(planner, settings, prices[planner]) for planner in CRUISERS]
    claims.append(_right(settings, runs))
    figures = [_fresh_figure(settings, fresh), *(_twin_figure(varied, known, prices, settings) for varied in VARIED)]
    unfinished = sum(row.result["status"] != "converged" for row in runs)
    (refusal,) = where(rows, family="refusal")
    notes = [
        "On large random models nearly every state is new, so that the search has to find its tree before it can "
        "measure anything: the exponent is that of a tree whose depth grows with log 1/(Δ ∨ ε), not 2.",
        _refusal_note(refusal),
        "OTGapCruiser's exponents approach 2 + α slowly, where a return through a level of bias b costs b^−α: at these "
        "scales most levels are of order 0 or 1, and only certified prices at finer ones tell the exponents apart.",
        f"{unfinished} of {len(runs)} runs did not end within {settings.max_calls:,} calls; they are in no fit.",
    ]
    return Evidence(claims=claims, figures=figures, notes=notes)


def _refusal_note(row: Row) -> str:
    """Recursion is for short horizons, and says so."""
    said, limit, epsilon = row.result["refused"], row.settings["max_calls"], row.settings["epsilon"]
    return (
        f"OTGapCruiser on large random models, γ = {DISCOUNT:g}, ε = {epsilon:g}: "
        + (f'refused ("{said}"). ' if said else "not refused. ")
        + f"With a limit of {limit:,} calls its action may still be worse than the best by {row.result['gap']:.3g}."
    )


Points = tuple[list[float], list[list[float]]]
"""Positions Δ ∨ ε, and the calls of the runs there."""


def _binned(rows: Sequence[Row]) -> Points:
    """Six groups of about as many runs each, by Δ ∨ ε; a group stands where its geometric mean is."""
    pairs = sorted((max(r.result["gap"], r.result["epsilon"]), r.result["calls"]) for r in rows if _ended(r))
    groups = [group for group in np.array_split(np.array(pairs), 6) if len(group)]
    return [float(np.exp(np.log(group[:, 0]).mean())) for group in groups], [group[:, 1].tolist() for group in groups]


def _by_scale(rows: Sequence[Row]) -> Points:
    scales = list(dict.fromkeys(row.settings["scale"] for row in rows if _ended(row)))
    return scales, [[r.result["calls"] for r in rows if _ended(r) and r.settings["scale"] == s] for s in scales]


def _ended(row: Row) -> bool:
    return bool(row.result["status"] == "converged")


def _exponent(points: Points) -> Fit:
    """Of 1/(Δ ∨ ε)."""
    return power_law([1.0 / x for x in points[0]], points[1])


def _fresh_claim(planner: str, points: Points) -> Claim:
    fit = _exponent(points)
    depth = math.log(1.0 / DISCOUNT)  # a tree for x is log(1/x)/log(1/γ) deep, and more by a constant
    low, high = math.log(BRANCHING) / depth, math.log(BRANCHING * math.sqrt(ACTIONS)) / depth
    return Claim(
        statement=f"On fresh trees {planner} pays for discovery, but follows no more than √K of the K actions of a "
        "state on average.",
        quantity=f"exponent of the calls of {planner} in 1/(Δ ∨ ε), random models",
        theory=f"more than 2, at most {math.log(BRANCHING * ACTIONS) / depth:.3g}",
        measured=fit.slope,
        error=fit.error,
        stated=(low, high),
        reason=f"a level of the tree is a factor of γ in accuracy. If one action of each state is followed the tree "
        f"has B^H leaves, an exponent of log B/log(1/γ) = {low:.3g}, about that of estimating one mean; if all are, "
        f"(BK)^H, the bound of the paper; bounds are of use if it is no more than (B√K)^H",
    )


def _search_claim(varied: str, planner: str, points: Points) -> Claim:
    fit = _exponent(points)
    return Claim(
        statement=f"Where all states are soon known, {planner} takes (Δ ∨ ε)^−2 calls.",
        quantity=f"exponent of the calls of {planner} in {_symbol(varied)}, twins",
        theory="2, and logarithms",
        measured=fit.slope,
        error=fit.error,
        stated=(1.8, 2.4),
        reason="thresholds that hold at all times grow with log n, which doubles over this range: up to 0.2; calls of "
        "single runs scatter by a factor of 1.5, which moves a slope over these runs by up to 0.2",
    )


def _cruiser_claim(varied: str, planner: str, points: Points, prices: Mapping[float, float]) -> Claim:
    fit = _exponent(points)
    certified = _exponent((points[0], [[prices[scale]] for scale in points[0]])).slope
    slack = math.log(PRICE_GROWTH) / math.log(max(points[0]) / min(points[0]))
    return Claim(
        statement=f"The calls of {planner}, grow like its certified prices, which tend to (Δ ∨ ε)^−(2+α).",
        quantity=f"exponent of the calls of {planner}, in {_symbol(varied)}, twins",
        theory=f"{_limit(planner)} in the limit; {certified:.3g} by certified prices at these scales",
        measured=fit.slope,
        error=fit.error,
        stated=(certified - slack, certified + slack),
        reason=f"a run ends on some rung of its ladder, early or late, and rungs differ in price by a factor of "
        f"{PRICE_GROWTH:g}: over this range that is {slack:.2g} in the exponent",
    )


def _ladder_claim(planner: str, settings: Settings, prices: Mapping[float, float]) -> Claim:
    scales = settings.ladder_scales
    slope = _exponent((list(scales), [[prices[scale]] for scale in scales])).slope
    debiased = planner == DEBIASED
    return Claim(
        statement=f"Certified prices of {planner}, tend to 1/ε to the power of 2 + α = {_limit(planner)}.",
        quantity=f"exponent of the certified price of {planner}, in 1/ε down to {min(scales):.2g}",
        theory=f"{_limit(planner)} in the limit",
        measured=slope,
        stated=(2.0 + 1.0 / 3.0, 3.1) if debiased else (3.0, 4.1),
        reason=f"m cancelled terms take N ~ ε^(−1/(m+1)) returns through levels that are biased by √ε: α = 1/(m+1) as "
        f"long as these cost next to nothing; m = {2 if debiased else 0}. In the limit α is 2 without cancelled terms "
        "and 1 with them, for noise in the policy takes N ~ ε^(−1/2). 0.1 more, for levels come in steps",
    )


def _limit(planner: str) -> str:
    return "3" if planner == DEBIASED else "4"


def _symbol(varied: str) -> str:
    return "1/Δ" if varied == "gap" else "1/ε"


def _right(settings: Settings, runs: Sequence[Row]) -> Claim:
    ended = [row for row in runs if _ended(row)]
    wrong = [row.result["regret"] > row.result["epsilon"] + 2.0 * SOLVED for row in ended]
    return Claim(
        statement="The action that is returned is ε-optimal with probability 1 − δ.",
        quantity=WRONG,
        theory=f"at most {settings.delta:g}",
        measured=float(np.mean(wrong)),
        stated=(-math.inf, settings.delta),
        reason=f"δ = {settings.delta:g}, checked against exact solutions, over {len(ended)} runs",
    )


def _quartiles(name: str, points: Points) -> Series:
    """Geometric means, with error bars that reach to the quartiles."""
    middle = [float(np.exp(np.log(group).mean())) for group in points[1]]
    ends = [np.quantile(group, [0.25, 0.75]) for group in points[1]]
    low = [min(float(end[0]), mean) for end, mean in zip(ends, middle, strict=True)]
    high = [max(float(end[1]), mean) for end, mean in zip(ends, middle, strict=True)]
    return Series(name, points[0], middle, low, high)


def _guide(name: str, points: Points, exponent: float) -> Series:
    """A line of that exponent through the geometric mean of all points."""
    x = [min(points[0]), max(points[0])]
    centre = math.exp(float(np.mean(np.log(points[0]))))
    height = math.exp(float(np.mean([np.log(group).mean() for group in points[1]])))
    return Series(name, x, [height * (centre / place) ** exponent for place in x], look="dashed")


def _fresh_figure(settings: Settings, fresh: Mapping[str, Points]) -> Figure:
    return Figure(
        name="gap-fresh",
        title="The price of the best action on large random models",
        caption=f"Simulator calls against max(Δ, ε): {settings.states:,} states, {ACTIONS} actions, {BRANCHING} "
        f"successors, γ = {DISCOUNT:g}. Geometric means of groups of runs with quartiles. Nearly all states are new, "
        "and the exponent is well above 2.",
        x=Axis("max(Δ, ε)", log=True),
        y=Axis("simulator calls", log=True),
        series=[
            *(_quartiles(f"{name}: exponent {_exponent(p).slope:.2f}", p) for name, p in fresh.items()),
            _guide("exponent 2", fresh["MDPGapE"], 2.0),
        ],
    )


def _twin_figure(
    varied: str, known: Mapping[tuple[str, str], Points], prices: Mapping[str, Mapping[float, float]], s: Settings
) -> Figure:
    name, other = ("gap", "Δ, with ε far below it") if varied == "gap" else ("accuracy", "ε, with two actions alike")
    drawn = {planner: known[varied, planner] for planner in VARIED[varied]}
    return Figure(
        name=f"gap-twins-{name}",
        title=f"The price of the best of two actions against the {name}",
        caption=f"Simulator calls against {other}: {TWIN_STATES} states, γ = {TWIN_DISCOUNT:g}. Geometric means with "
        "quartiles. A search that knows all states takes the inverse square; OTGapCruiser, which tells no states "
        "apart, follows its certified prices.",
        x=Axis("gap Δ" if varied == "gap" else "accuracy ε", log=True),
        y=Axis("simulator calls", log=True),
        series=[
            *(_quartiles(f"{planner}: exponent {_exponent(p).slope:.2f}", p) for planner, p in drawn.items()),
            Series(
                f"certified price of {DEBIASED}",
                list(s.cruiser_scales),
                [prices[DEBIASED][scale] for scale in s.cruiser_scales],
                look="dashed",
            ),
            _guide("exponent 2", known[varied, "OTGapE"], 2.0),
        ],
    )


STUDY = Study(
    name="gap",
    title="The price of the best action",
    question="How do simulator calls grow with the inverse of the gap between actions, or of the accuracy?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
