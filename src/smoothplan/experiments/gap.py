"""Gap: what the best action costs against the gap Δ and the accuracy ε, on fresh trees and where nothing is new."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from smoothplan.arguments import Floats
from smoothplan.experiments.base import Experiment, Row
from smoothplan.experiments.fits import Fit, power_law
from smoothplan.experiments.gap_runs import (
    ACTIONS,
    BRANCHING,
    CRUISERS,
    DISCOUNT,
    FULL,
    QUICK,
    SEARCHES,
    SOLVED,
    STATES,
    TWIN_DISCOUNT,
    TWIN_STATES,
    VARIED,
    Settings,
    cells,
    measure,
)
from smoothplan.findings import Axis, Claim, Evidence, Figure, Series, Table
from smoothplan.schedules.optimise import PRICE_GROWTH

BINS = 6
"""Groups of runs on random models, by Δ ∨ ε."""

LOGS, SCATTER = 0.2, 0.2
"""What may be added to an exponent of 2 by thresholds that grow with log n, which doubles over the range of scales; and
by the scatter of the calls of a run, by a factor of about 1.5, over a few runs at each scale."""

WRONG = "share of all runs whose action is worse than the best one by more than ε"


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Exponents on fresh trees, between twins, and of certified prices; and whether the answers were right."""
    runs = [row for row in rows if row.settings["family"] in ("garnet", "twins")]
    prices = {
        planner: {r.settings["scale"]: r.result["calls"] for r in rows if _is(r, "ladder", planner)}
        for planner in CRUISERS
    }
    fresh = {planner: _binned([row for row in runs if _is(row, "garnet", planner)]) for planner in SEARCHES}
    known = {
        (varied, planner): _by_scale([r for r in runs if _is(r, "twins", planner) and r.settings["varied"] == varied])
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
    figures = [_fresh_figure(fresh), *(_twin_figure(varied, known, prices, settings) for varied in VARIED)]
    unfinished = sum(row.result["status"] != "converged" for row in runs)
    refusal = next(row for row in rows if row.settings["family"] == "refusal")
    notes = [
        "On large random models nearly every state is new, so that the search has to find its tree before it can "
        "measure anything: the exponent is that of a tree whose depth grows with log 1/(Δ ∨ ε), not 2.",
        _refusal_note(refusal),
        "OTGapCruiser's exponents approach 2 + α slowly, where a return through a level of bias b costs b^−α: at these "
        "scales levels of order 1 and 2 are nearly the same, and only certified prices at finer ones tell them apart.",
        f"{unfinished} of {len(runs)} runs did not end within {settings.max_calls:,} calls; they are in no fit.",
    ]
    return Evidence(claims=claims, figures=figures, tables=[_table(claims)], notes=notes)


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


def _is(row: Row, family: str, planner: str) -> bool:
    return bool(row.settings["family"] == family and row.settings["planner"] == planner)


def _binned(rows: Sequence[Row]) -> Points:
    """Groups of about as many runs each, by Δ ∨ ε; a group stands where its geometric mean is."""
    pairs = sorted((max(r.result["gap"], r.result["epsilon"]), r.result["calls"]) for r in rows if _ended(r))
    groups = [group for group in np.array_split(np.array(pairs), BINS) if len(group)]
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
        stated=(2.0 - SCATTER, 2.0 + LOGS + SCATTER),
        reason="thresholds that hold at all times grow with log n, which doubles over this range: up to 0.2; calls of "
        "single runs scatter by a factor of 1.5, which moves a slope over so many runs by up to 0.2",
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
    second = planner == CRUISERS[1]
    return Claim(
        statement=f"Certified prices of {planner}, tend to 1/ε to the power of 2 + α = {_limit(planner)}.",
        quantity=f"exponent of the certified price of {planner}, in 1/ε down to {min(scales):.2g}",
        theory=f"{_limit(planner)} in the limit",
        measured=slope,
        error=None,
        stated=(2.75, 3.25) if second else (3.25, 4.1),
        reason="order 2 has α = 1; a quarter either way, for levels come in steps, is nearer to 3 than to the next half"
        if second
        else "order 1 has α = 2, which it nears from below, for cheap levels of order 0 serve where "
        "errors are large; it must have left order 2's exponent by more than a quarter",
    )


def _limit(planner: str) -> str:
    return "3" if planner == CRUISERS[1] else "4"


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
        error=None,
        stated=(-math.inf, settings.delta),
        reason=f"δ = {settings.delta:g}, checked against exact solutions, over {len(ended)} runs",
    )


def _quartiles(name: str, points: Points) -> Series:
    logs = [np.log(group) for group in points[1]]
    low, middle, high = ([float(np.exp(end(g))) for g in logs] for end in (_first, np.mean, _third))
    return Series(name, points[0], middle, low, high)


def _first(values: Floats) -> float:
    return min(float(np.quantile(values, 0.25)), float(np.mean(values)))


def _third(values: Floats) -> float:
    return max(float(np.quantile(values, 0.75)), float(np.mean(values)))


def _guide(name: str, points: Points, exponent: float) -> Series:
    """A line of that exponent through the geometric mean of all points."""
    x = [min(points[0]), max(points[0])]
    centre = math.exp(float(np.mean(np.log(points[0]))))
    height = math.exp(float(np.mean([np.log(group).mean() for group in points[1]])))
    return Series(name, x, [height * (centre / place) ** exponent for place in x], look="dashed")


def _fresh_figure(fresh: Mapping[str, Points]) -> Figure:
    return Figure(
        name="gap-fresh",
        title="The price of the best action on large random models",
        caption=f"Simulator calls against max(Δ, ε): {STATES:,} states, {ACTIONS} actions, {BRANCHING} successors, "
        f"γ = {DISCOUNT:g}. Geometric means of groups of runs with quartiles. Nearly all states are new, and the "
        "exponent is well above 2.",
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
                f"certified price, order {CRUISERS[1][-1]}",
                list(s.cruiser_scales),
                [prices[CRUISERS[1]][scale] for scale in s.cruiser_scales],
                look="dashed",
            ),
            _guide("exponent 2", known[varied, "OTGapE"], 2.0),
        ],
    )


def _table(claims: Sequence[Claim]) -> Table:
    exponents = [claim for claim in claims if claim.quantity != WRONG]
    return Table(
        "gap-exponents",
        "Exponents of simulator calls",
        ("quantity", "theory", "measured", "± 95 %"),
        [(c.quantity, c.theory, f"{c.measured:.2f}", "" if c.error is None else f"{c.error:.2f}") for c in exponents],
    )


EXPERIMENT = Experiment(
    name="gap",
    title="The price of the best action",
    question="How do simulator calls grow with the inverse of the gap between actions, or of the accuracy?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
