"""Decisions: how good `decide` is on problems of the textbooks, and whether its errors and warnings can be trusted."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any, Literal

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from studies.base import Cell, Row, Study, where
from studies.findings import Axis, Claim, Evidence, Figure, Series, Table
from studies.regret import Mean
from studies.textbook import REPORTED_ON, Textbook

Kind = Literal["whole numbers", "floats"]
KINDS: dict[Kind, Any] = {"whole numbers": np.int64, "floats": np.float64}
"""What states are made of."""

LEVELS = {"68 %": 0.994, "90 %": 1.645, "99 %": 2.576}
"""Standard errors to either side of an estimate, by the probability that a normal one is within."""

EVALUATED = 1e-4
"""How accurately the values of a policy that was followed are known, relative to the largest."""

SOLVED = 1e-7
"""How accurately optimal values are known, relative to the largest; sums of rewards are off by less."""

BAD = 0.02
"""A loss, as a share of the span of all actions, that a reader would have liked to be warned of."""

LEAST = 1e-3
"""A mean regret below this share of the span counts as this in a ratio."""


@dataclass(frozen=True)
class Settings:
    """Problems by name, numbers of their states and of seeds for each, and limits on simulator calls."""

    budgets: tuple[int, ...]
    states: int
    seeds: int
    problems: tuple[str, ...] = tuple(REPORTED_ON)


QUICK = Settings(budgets=(2_000, 20_000), states=3, seeds=2)
FULL = Settings(budgets=(2_000, 20_000, 200_000), states=5, seeds=20)


@lru_cache(maxsize=len(REPORTED_ON))
def problem(name: str) -> Textbook:
    """A problem; it keeps its exact values."""
    return REPORTED_ON[name]()


def cells(settings: Settings) -> Iterator[Cell]:
    """All runs of one problem, then of the next. States may be alike, so that each has seeds of its own."""
    for name in settings.problems:
        for kind in KINDS:
            for budget in settings.budgets:
                for state in range(settings.states):
                    for seed in range(state * settings.seeds, (state + 1) * settings.seeds):
                        yield Cell({"problem": name, "kind": kind, "budget": budget, "state": state}, seed)


def measure(cell: Cell) -> Mapping[str, Any]:
    """What a decision loses, what it says of its loss, and how many of its estimates are how far off."""
    s = cell.settings
    task, dtype = problem(s["problem"]), KINDS[s["kind"]]
    place = task.met(s["state"] + 1)[s["state"]]
    model = task.model(dtype)
    started = time.process_time()
    decision = sp.decide(model, place.astype(dtype), calls=s["budget"], seed=cell.seed)
    spent = time.process_time() - started
    action, reference = decision.action, decision.reference
    assert action is not None
    number = task.number(place[None])[0]
    gap, slack = float(task.q[number].max() - task.q[number, action]), SOLVED * float(np.abs(task.q).max())
    known = math.isfinite(decision.regret)
    found = {
        "regret": task.regret(place, action),
        "calls": decision.calls / s["budget"],
        "warned": bool(decision.warnings),
        "estimated": float(decision.regret) if known else None,  # in units of value, as the gap is
        "gap": gap,
        "underestimated": bool(decision.regret < gap - slack),
        "policy": type(reference).__name__,
        "cpu": spent,
    }
    if reference is None:
        none = {"known": 0, "outside": [0] * len(LEVELS)}
        return found | {"q": none, "differences": none}
    followed = task.evaluated(reference.q(task.states.astype(dtype)).argmax(axis=1), EVALUATED)[number]
    others = np.arange(task.actions) != action
    apart = (followed - followed[action])[others]
    return found | {
        "q": far_off(decision.q - followed, decision.q_errors, slack),
        "differences": far_off(decision.differences[others] - apart, decision.difference_errors[others], slack),
    }


def far_off(deviations: Floats, errors: Floats, slack: float) -> dict[str, Any]:
    """How many estimates have a finite standard error, and how many of them are off by more than each of `LEVELS`."""
    known = np.isfinite(errors)
    sizes, errors = np.abs(deviations[known]), errors[known]
    outside = [int(np.count_nonzero(sizes > z * errors + slack)) for z in LEVELS.values()]
    return {"known": int(known.sum()), "outside": outside}


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Regret by problem and budget, how often errors and warnings are right, and what is claimed of that."""
    return Evidence(
        claims=[_falls(settings, rows), _alike(settings, rows), _small(settings, rows), _warned(rows)],
        figures=[_figure(settings, rows)],
        tables=[
            _regrets(settings, rows),
            _calibration(settings, rows),
            _warnings(settings, rows),
            _followed(settings, rows),
        ],
        notes=[
            "Regret: the exact value of the best action less that of the chosen one, as a share of the span between "
            "the best and the worst action. States are some that optimal play meets and where actions differ; they are "
            "the same for all budgets, kinds of states and seeds, so that standard errors are about these states.",
            "Constants of the library were chosen on other instances of these problems. The fishery is of a kind that "
            "was not among them.",
            "Standard errors of action values are about the policy that returns follow, and compared with its exact "
            "values; regrets are about the best policy.",
        ],
    )


def regrets(rows: Sequence[Row], **wanted: Any) -> list[float]:
    """The regrets of some rows, as shares of the span."""
    return [float(row.result["regret"]) for row in where(rows, **wanted)]


def _falls(settings: Settings, rows: Sequence[Row]) -> Claim:
    rises = []
    for name in settings.problems:
        for kind in KINDS:
            for fewer, more in pairwise(settings.budgets):
                before, after = (regrets(rows, problem=name, kind=kind, budget=calls) for calls in (fewer, more))
                rise = Mean.of(np.subtract(after, before))  # state by state and seed by seed
                rises.append(rise.value - 2.0 * rise.error)
    return Claim(
        statement="Ten times the calls never give more regret, on any problem.",
        quantity="largest rise of the mean regret from one budget to the next, less two standard errors, as a share of "
        "the span",
        theory="at most 0",
        measured=max(rises),
        stated=(-math.inf, 0.0),
        reason="more calls must not hurt; a rise of less than two standard errors may be noise",
    )


def _alike(settings: Settings, rows: Sequence[Row]) -> Claim:
    ratios = []
    for budget in settings.budgets:
        means = [max(LEAST, float(np.mean(regrets(rows, kind=kind, budget=budget)))) for kind in KINDS]
        ratios.append(max(means) / min(means))
    return Claim(
        statement="It does not matter whether states are whole numbers or floats.",
        quantity="largest ratio of the mean regrets with whole numbers and with floats, all problems, over budgets",
        theory="1",
        measured=max(ratios),
        stated=(1.0, 2.0),
        reason=f"a factor of two either way is no reason to write a simulator differently; means below "
        f"{100.0 * LEAST:g} % of the span count as that",
    )


def _small(settings: Settings, rows: Sequence[Row]) -> Claim:
    budget = max(settings.budgets)
    means = {
        (name, kind): Mean.of(regrets(rows, problem=name, kind=kind, budget=budget))
        for name in settings.problems
        for kind in KINDS
    }
    (name, kind), largest = max(means.items(), key=lambda item: item[1].value)
    return Claim(
        statement=f"With {budget:,} calls, decisions lose 1 % of the span at most, in the mean, on every problem.",
        quantity=f"largest mean regret after {budget:,} calls, as a share of the span: {name}, {kind}",
        theory="at most 0.01",
        measured=largest.value,
        error=1.96 * largest.error,
        stated=(-math.inf, 0.01),
        reason="a loss that hardly anybody would notice beside what a simulator leaves out",
    )


def _warned(rows: Sequence[Row]) -> Claim:
    bad = [row.result["regret"] > BAD for row in rows if not row.result["warned"]]
    share = float(np.mean(bad)) if bad else 0.0
    return Claim(
        statement=f"Decisions without a warning seldom lose more than {100.0 * BAD:g} % of the span.",
        quantity=f"share of the {len(bad):,} decisions without a warning that lose more than {100.0 * BAD:g} % of the "
        "span",
        theory="at most 0.05",
        measured=share,
        error=1.96 * math.sqrt(len(KINDS) * share * (1.0 - share) / max(len(bad), 1)),  # both kinds may be alike
        stated=(-math.inf, 0.05),
        reason="the usual level of a test: a reader takes a decision without a warning for a good one",
    )


def _figure(settings: Settings, rows: Sequence[Row]) -> Figure:
    series = []
    for name in settings.problems:
        means = []
        for budget in settings.budgets:  # whole numbers and floats may be alike: they are no independent samples
            found = [regrets(rows, problem=name, kind=kind, budget=budget) for kind in KINDS]
            means.append(Mean.of(np.mean(found, axis=0)))
        low, high = ([100.0 * max(0.0, mean.value + sign * mean.error) for mean in means] for sign in (-1.0, 1.0))
        places = [float(budget) for budget in settings.budgets]
        series.append(Series(name, places, [100.0 * mean.value for mean in means], low, high))
    return Figure(
        name="decisions-regret",
        title="Regret of decisions against simulator calls",
        caption="Means over states, seeds and kinds of states, ± one standard error. A logarithmic axis has no place "
        "for a problem on which every decision is the best one.",
        x=Axis("simulator calls", log=True),
        y=Axis("mean regret in % of the span", log=True),
        series=series,
    )


def _regrets(settings: Settings, rows: Sequence[Row]) -> Table:
    def told(name: str, kind: Kind, budget: int) -> str:
        mean = Mean.of(regrets(rows, problem=name, kind=kind, budget=budget))
        return f"{100.0 * mean.value:.2f} ± {100.0 * mean.error:.2f}"

    columns = [(budget, kind) for budget in settings.budgets for kind in KINDS]
    return Table(
        "decisions-regret",
        "Mean regret in % of the span ± its standard error",
        ("problem", *(f"{budget:,} calls, {kind}" for budget, kind in columns)),
        [[name, *(told(name, kind, budget) for budget, kind in columns)] for name in settings.problems],
    )


def _calibration(settings: Settings, rows: Sequence[Row]) -> Table:
    lines = []
    for budget in settings.budgets:
        found = [row.result for row in where(rows, budget=budget)]
        shares = []
        for name in ("q", "differences"):
            known = sum(result[name]["known"] for result in found)
            outside = np.sum([result[name]["outside"] for result in found], axis=0)
            shares += [_percent(int(count), known) for count in outside]
        estimated = [result["underestimated"] for result in found if result["estimated"] is not None]
        lines.append([f"{budget:,}", *shares, _percent(sum(estimated), len(estimated))])
    names = [f"{name} outside {level}" for name in ("values", "differences") for level in LEVELS]
    return Table(
        "decisions-calibration",
        "Share of estimates outside their intervals, which should be 32, 10 and 1 %, and of estimated regrets, one-"
        "sided at 10 %, that are below the true one",
        ("calls", *names, "regret underestimated"),
        lines,
    )


def _warnings(settings: Settings, rows: Sequence[Row]) -> Table:
    def bad(found: Sequence[Row]) -> str:
        return _percent(sum(row.result["regret"] > BAD for row in found), len(found))

    lines = []
    for budget in settings.budgets:
        found = where(rows, budget=budget)
        warned, unwarned = ([row for row in found if row.result["warned"] is has] for has in (True, False))
        lines.append([f"{budget:,}", _percent(len(warned), len(found)), bad(warned), bad(unwarned)])
    return Table(
        "decisions-warnings",
        f"Decisions with a warning, and decisions that lose more than {100.0 * BAD:g} % of the span among those with "
        "and without one",
        ("calls", "warned", "bad if warned", "bad if not warned"),
        lines,
    )


def _followed(settings: Settings, rows: Sequence[Row]) -> Table:
    policies = sorted({row.result["policy"] for row in rows})
    lines = []
    for budget in settings.budgets:
        found = [row.result for row in where(rows, budget=budget)]
        shares = [_percent(sum(result["policy"] == policy for result in found), len(found)) for policy in policies]
        used = float(np.mean([result["calls"] for result in found]))
        lines.append(
            [f"{budget:,}", *shares, f"{100.0 * used:.0f} %", f"{median(result['cpu'] for result in found):.2g}"]
        )
    return Table(
        "decisions-policies",
        "Policies that returns follow, calls that were used, and processor time",
        ("calls", *policies, "used of the calls, mean", "seconds, median"),
        lines,
    )


def _percent(count: int, of: int) -> str:
    """A share in words; nothing where there is nothing to share."""
    return f"{100.0 * count / of:.1f} %" if of else ""


STUDY = Study(
    name="decisions",
    title="Decisions on problems of the textbooks",
    question="How good, how well calibrated and how well warned are decisions on textbook problems that have exact "
    "answers?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
    sources=("textbook.py",),
)
