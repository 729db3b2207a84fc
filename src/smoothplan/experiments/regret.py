"""Regret: how much worse than the best action the recommended one is, against the number of simulator calls."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from smoothplan.arguments import Floats
from smoothplan.experiments.base import Experiment, Row
from smoothplan.experiments.regret_runs import DELTA, FULL, PLANNERS, QUICK, SOLVED, Settings, cells, measure
from smoothplan.findings import Axis, Claim, Evidence, Figure, Series, Table

TITLES = {
    "garnet": "random models",
    "sailing": "sailing",
    "frozen_lake": "FrozenLake",
    "sysadmin": "SysAdmin",
}

DRAWN = ("MDPGapE", "OTGapE", "UCT", "ReferenceCruiser", "SecondOrderSmoothCruiser", "OTGapCruiser")
"""Planners in figures: the others are in the tables."""

SEARCHES = ("MDPGapE", "OTGapE", "UCT")
"""Planners that are for this: they look for an action, at any horizon."""

NOTHING = 100
"""Simulator calls that are held to tell nothing: a few for each action, or one path."""

SLACK = 3.0
"""For constants, where errors fall like calls^−1/2."""

NORMAL = 1.96
"""Standard errors in half of a 95 % interval."""

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
    """What is left of the regret of a random choice where errors fall like calls^−1/2."""
    return math.sqrt(NOTHING / max(budget, NOTHING))


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Regret by model, planner and budget, and what is claimed of it."""
    regrets: dict[Key, list[float]] = {}
    random: dict[str, float] = {}
    for model, _ in settings.sizes:
        mine = [row for row in rows if row.settings["model"] == model]
        random[model] = float(np.mean([row.result["random"] for row in mine]))
        for row in mine:
            key = model, row.settings["planner"], row.settings["budget"]
            regrets.setdefault(key, []).append(float(row.result["regret"]))
    claims = [_vanishes(planner, regrets, random) for planner in SEARCHES]
    claims += [_no_worse(settings, regrets, random), _certified(rows)]
    return Evidence(
        claims=claims,
        figures=[_figure(model, settings, regrets, random[model]) for model in random],
        tables=[*(_table(model, settings, regrets, random[model]) for model in random), _uninformed(settings, rows)],
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
            *(_winners(model, settings, regrets) for model in random),
        ],
    )


def _budgets(planner: str, model: str, regrets: Mapping[Key, object]) -> list[int]:
    return [budget for place, name, budget in regrets if (place, name) == (model, planner)]


def _relative(planner: str, budget: int, regrets: Mapping[Key, list[float]], random: Mapping[str, float]) -> Mean:
    """Regret over that of a random choice, averaged over models."""
    means = [Mean.of(np.array(regrets[model, planner, budget]) / random[model]) for model in random]
    return Mean(float(np.mean([m.value for m in means])), math.hypot(*(m.error for m in means)) / len(means))


def _vanishes(planner: str, regrets: Mapping[Key, list[float]], random: Mapping[str, float]) -> Claim:
    budget = max(_budgets(planner, next(iter(random)), regrets))
    found = _relative(planner, budget, regrets, random)
    return Claim(
        statement=f"The regret of {planner} vanishes as calls grow.",
        quantity=f"regret of {planner} after {budget:,} calls over that of a random choice, mean over models",
        theory="0 in the limit",
        measured=found.value,
        error=NORMAL * found.error,
        stated=(-math.inf, SLACK * monte_carlo(budget)),
        reason=f"{NOTHING} calls tell nothing; from there errors of estimates fall like calls^−1/2, to "
        f"{monte_carlo(budget):.2g} of what they were; {SLACK:g} times that, for constants",
    )


def _no_worse(settings: Settings, regrets: Mapping[Key, list[float]], random: Mapping[str, float]) -> Claim:
    budget = max(settings.budgets)
    means = [Mean.of(_difference(model, budget, regrets) / random[model]) for model in random]
    error = math.hypot(*(mean.error for mean in means)) / len(means)
    return Claim(
        statement="With many calls, planning by bounds is no worse than UCT, and proves what it says.",
        quantity=f"regret of MDPGapE less that of UCT after {budget:,} calls, over that of a random choice, mean over "
        "models",
        theory="at most 0",
        measured=float(np.mean([mean.value for mean in means])),
        error=NORMAL * error,
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
        error=None,
        stated=(-math.inf, DELTA),
        reason=f"δ = {DELTA:g}, at all times at once, over {len(bounded)} runs",
    )


def _speeds(settings: Settings, rows: Sequence[Row]) -> str:
    """What a budget in simulator calls does not show."""
    budget = max(settings.budgets)
    seconds = {
        planner: sum(r.seconds for r in rows if (r.settings["planner"], r.settings["budget"]) == (planner, budget))
        for planner in ("MDPGapE", "UCT")
    }
    ratio = seconds["MDPGapE"] / max(seconds["UCT"], 1e-3)
    return (
        f"Budgets are in simulator calls, not in time: for {budget:,} calls of a table MDPGapE took "
        f"about {float(f'{ratio:.1g}'):g} times as long as UCT."
    )


def _winners(model: str, settings: Settings, regrets: Mapping[Key, list[float]]) -> str:
    """Who is best at each budget, and where UCT and MDPGapE differ by more than two standard errors."""
    best, verdicts = [], []
    for budget in settings.budgets:
        means = {
            planner: np.mean(regrets[model, planner, budget]) for planner in PLANNERS if _has(planner, budget, settings)
        }
        least = min(means.values())
        best.append(f"{budget:,}: {', '.join(planner for planner, mean in means.items() if mean == least)}")
        difference = Mean.of(_difference(model, budget, regrets))
        if abs(difference.value) > 2.0 * difference.error:
            winner, loser = ("UCT", "MDPGapE") if difference.value > 0.0 else ("MDPGapE", "UCT")
            verdicts.append(f"{winner} beats {loser} at {budget:,}")
    told = "; ".join(verdicts) or "MDPGapE and UCT do not differ by two standard errors"
    return f"{TITLES[model][0].upper()}{TITLES[model][1:]}: least mean regret at " + "; at ".join(best) + f". {told}."


def _has(planner: str, budget: int, settings: Settings) -> bool:
    return planner != "OTGapE" or budget <= settings.slow_budget


def _figure(model: str, settings: Settings, regrets: Mapping[Key, list[float]], random: float) -> Figure:
    series = []
    for planner in DRAWN:
        budgets = _budgets(planner, model, regrets)
        means = [Mean.of(regrets[model, planner, budget]) for budget in budgets]
        series.append(
            Series(
                planner,
                [float(budget) for budget in budgets],
                [mean.value for mean in means],
                [max(0.0, mean.value - mean.error) for mean in means],
                [mean.value + mean.error for mean in means],
            )
        )
    ends = [float(min(settings.budgets)), float(max(settings.budgets))]
    series.append(Series("random choice", ends, [random, random], look="dashed"))
    return Figure(
        name=f"regret-{model.replace('_', '-')}",
        title=f"Simple regret against simulator calls: {TITLES[model]}",
        caption=f"Means over {settings.pairs} roots, ± one standard error. On the dashed line nothing is known yet: "
        "recursion is for shorter horizons than these. SparseSampling and SmoothCruiser are in the table.",
        x=Axis("simulator calls", log=True),
        y=Axis("simple regret"),
        series=series,
    )


def _table(model: str, settings: Settings, regrets: Mapping[Key, list[float]], random: float) -> Table:
    rows: list[list[str]] = []
    for planner in PLANNERS:
        row = [planner]
        for budget in settings.budgets:
            found = Mean.of(regrets[model, planner, budget]) if _has(planner, budget, settings) else None
            row.append("" if found is None else f"{found.value:.3g} ± {found.error:.1g}")
        rows.append(row)
    rows.append(["random choice", *(f"{random:.3g}" for _ in settings.budgets)])
    return Table(
        f"regret-{model.replace('_', '-')}",
        f"Simple regret, {TITLES[model]}: mean ± standard error by simulator calls",
        ("planner", *(f"{budget:,}" for budget in settings.budgets)),
        rows,
    )


def _uninformed(settings: Settings, rows: Sequence[Row]) -> Table:
    """Who could not say anything."""
    told: dict[tuple[str, int], list[bool]] = {}
    for row in rows:
        told.setdefault((row.settings["planner"], row.settings["budget"]), []).append(row.result["informed"])
    return Table(
        "regret-uninformed",
        "Share of runs without an estimate that tells actions apart, all models",
        ("planner", *(f"{budget:,}" for budget in settings.budgets)),
        [
            [
                planner,
                *(f"{1.0 - np.mean(told[planner, b]):.2f}" if (planner, b) in told else "" for b in settings.budgets),
            ]
            for planner in PLANNERS
        ],
    )


EXPERIMENT = Experiment(
    name="regret",
    title="Regret against simulator calls",
    question="How good is the action that each planner recommends after so many simulator calls?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
