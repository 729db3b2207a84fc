"""Exponents: how the price of a value grows with 1/ε, by forecasts and in real runs, beside what the theory says."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothplan import curvature, exact
from smoothplan.arguments import Floats
from smoothplan.backups import Backup, LogSumExp
from smoothplan.experiments.base import Cell, Experiment, Row
from smoothplan.experiments.exponents_growth import Growth, Prices
from smoothplan.findings import Axis, Claim, Evidence, Figure, Series, Table
from smoothplan.forecast import forecast
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import garnet
from smoothplan.plan import plan
from smoothplan.planners import RandomizedMultilevel, SecondOrderSmoothCruiser, SmoothCruiser, SparseSampling

SPARSE, FIRST, SECOND = "Sparse Sampling", "SmoothCruiser", "SecondOrderSmoothCruiser"
MULTILEVEL = "RandomizedMultilevel"
SCHEDULED = {SPARSE: SparseSampling, FIRST: SmoothCruiser, SECOND: SecondOrderSmoothCruiser}
"""The planners whose price is known in advance."""

BETA = {FIRST: 2.0, SECOND: 3.0}
"""The order of the Taylor remainder, which gives the exponent 2 + 2/(β − 1)."""

MONTE_CARLO = 2.0
"""The exponent of a mean of samples of bounded cost and variance, as at a fixed depth."""

START = 0
"""The state that is planned for."""


@dataclass(frozen=True)
class Settings:
    """One kind of model, several of it; forecasts far down, and runs as far as they can be paid for."""

    forecasts: tuple[float, ...]  # ε
    runs: tuple[tuple[str, tuple[float, ...]], ...]  # planner, and ε from coarse to fine
    instances: int  # models
    repeats: int  # runs on each
    first_seed: int = 0  # of models and of runs
    states: int = 50
    actions: int = 2
    branching: int = 4
    discount: float = 0.2
    temperature: float = 1.0
    delta: float = 0.1
    depth: int = 2  # of RandomizedMultilevel


def _halves(first: int, last: int) -> tuple[float, ...]:
    """Powers of ten, two to a decade."""
    return tuple(10.0 ** -(half / 2.0) for half in range(2 * first, 2 * last + 1))


QUICK = Settings(
    forecasts=_halves(1, 7),
    runs=(
        (SPARSE, (0.1, 0.05, 0.02, 0.01)),
        (FIRST, (0.1, 0.05, 0.02, 0.01, 0.005)),
        (SECOND, (0.1, 0.05, 0.02, 0.01, 0.005)),
        (MULTILEVEL, (0.012, 0.007, 0.004, 0.0025)),
    ),
    instances=4,
    repeats=5,
)
FULL = Settings(
    forecasts=_halves(1, 9),
    runs=(
        (SPARSE, (0.1, 0.05, 0.02, 0.01, 0.005)),
        (FIRST, (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)),
        (SECOND, (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)),
        (MULTILEVEL, (0.012, 0.007, 0.004, 0.0025, 0.001)),
    ),
    instances=6,
    repeats=6,
)

ERROR_SPREAD = 4.0
"""Four times √n times the deviation of the logarithm of a root mean square of n errors, √((κ−1)/4) = 1 for a kurtosis
κ = 5: normal errors have 3, but those of different models differ in scale."""

SMALLEST = 1e-12
"""Stands in for an error of exactly 0, which has no logarithm."""


def cells(settings: Settings) -> Iterator[Cell]:
    """Forecasts, which depend on what a model declares only, and runs on each instance."""
    problem = {
        name: getattr(settings, name)
        for name in ("states", "actions", "branching", "discount", "temperature", "delta", "depth")
    }
    for planner in SCHEDULED:
        for epsilon in settings.forecasts:
            yield Cell({"kind": "forecast", "planner": planner, "epsilon": epsilon, "instance": 0, **problem}, seed=0)
    for planner, epsilons in settings.runs:
        for number, epsilon in enumerate(epsilons):
            for instance in range(settings.first_seed, settings.first_seed + settings.instances):
                for repeat in range(settings.repeats):
                    run = {"kind": "run", "planner": planner, "epsilon": epsilon, "instance": instance, **problem}
                    # With the same seed a finer run would begin as a coarser one does.
                    yield Cell(run, seed=settings.first_seed + number * settings.repeats + repeat)


def measure(cell: Cell) -> Mapping[str, Any]:
    """One forecast, or one run and its error."""
    s = cell.settings
    model = garnet(s["states"], s["actions"], s["branching"], s["discount"], s["instance"], reward_kind="bernoulli")
    backup = LogSumExp(s["temperature"])
    if s["planner"] == MULTILEVEL:
        # In this thread: it is no compiled engine, and processes would cost more than they save.
        result = plan(RandomizedMultilevel(backup, s["epsilon"], s["delta"], s["depth"]), model, START, seed=cell.seed)
        target = truncated_values(model, backup, s["depth"])[START]
        return {"calls": result.calls, "error": abs(result.value - float(target)), "status": result.status}
    planner = SCHEDULED[s["planner"]](backup, s["epsilon"], s["delta"])
    price = forecast(planner, model).calls
    if s["kind"] == "forecast":
        return {"log_forecast": math.log(price)}
    # The result is the same for any number of workers.
    result = plan(planner, model, START, seed=cell.seed, workers=os.cpu_count() or 1)
    value = float(exact.solve(model, backup).values[START])
    return {
        "log_forecast": math.log(price),
        "calls": result.calls,
        "error": abs(result.value - value),
        "covered": result.interval[0] <= value <= result.interval[1],
        "status": result.status,
    }


def truncated_values(model: TabularModel, backup: Backup, depth: int) -> Floats:
    """What RandomizedMultilevel estimates: so many backups of the middle of the value interval, [S]."""
    low, high = curvature.value_interval(model, backup)
    values = np.full(model.states, (low + high) / 2.0)
    for _ in range(depth):
        values = backup.value(exact.action_values(model, values), np.arange(model.states))
    return values


def _growth(settings: Settings, rows: Sequence[Row]) -> dict[str, Growth]:
    found: dict[str, Growth] = {}
    for planner, epsilons in settings.runs:
        at = [
            [
                r.result
                for r in rows
                if r.settings["kind"] == "run" and r.settings["planner"] == planner and r.settings["epsilon"] == epsilon
            ]
            for epsilon in epsilons
        ]
        found[planner] = Growth(
            list(epsilons),
            [[float(run["calls"]) for run in runs] for runs in at],
            [[max(float(run["error"]), SMALLEST) for run in runs] for runs in at],
            [math.exp(runs[0]["log_forecast"]) for runs in at] if planner in SCHEDULED else [],
        )
    return found


def _prices(settings: Settings, rows: Sequence[Row]) -> dict[str, Prices]:
    logs = {
        (r.settings["planner"], r.settings["epsilon"]): float(r.result["log_forecast"])
        for r in rows
        if r.settings["kind"] == "forecast"
    }
    epsilons = list(settings.forecasts)
    return {planner: Prices(epsilons, [logs[planner, e] for e in epsilons]) for planner in SCHEDULED}


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """The exponents of the paper's Table 1."""
    growth, prices = _growth(settings, rows), _prices(settings, rows)
    return Evidence(
        claims=[*_fine_claims(settings, prices), *_run_claims(settings, growth)],
        figures=_figures(settings, growth, prices),
        tables=[_table(settings, growth, prices)],
        notes=[
            "Certified variants throughout. A forecast is the price that is certified in advance; runs stop as soon as "
            "their interval allows. In the range that runs can be paid for, the optimised schedules mix kinds of "
            "levels: at ε ≥ 0.02 those of SmoothCruiser and SecondOrderSmoothCruiser are the same, and local slopes "
            "are still on their way. What the exponents are shows in the forecasts for small ε, which cost nothing.",
            f"RandomizedMultilevel certifies nothing; its target here is the value at depth {settings.depth}, which "
            "does not change with ε. A depth that grows with log 1/ε would add to its exponent.",
        ],
    )


def _fine_claims(settings: Settings, prices: Mapping[str, Prices]) -> list[Claim]:
    per_level = 1.0 / math.log(1.0 / settings.discount)
    claims = [
        Claim(
            statement="The price of Sparse Sampling grows faster than every power of 1/ε.",
            quantity="second derivative of log forecast in log 1/ε, Sparse Sampling, ε ≤ 1e-3",
            theory=f"1/log(1/γ) = {per_level:.3f}; 0 for every power",
            measured=prices[SPARSE].curvature,
            error=None,
            stated=(0.85 * per_level, 1.35 * per_level),
            reason="each factor 1/γ in 1/ε adds a level whose width grows like 1/ε. As every level keeps part of the "
            "bias for itself, one of H levels in the best split about 1/H, log 1/γ is effectively less by about 1/H: "
            "with some 5 to 10 levels, up to 15 % more; as much again for rounding to grids",
        )
    ]
    for planner, beta in BETA.items():
        theory = curvature.total_exponent(beta)
        claims.append(
            Claim(
                statement=f"The certified price of {planner} is Õ(ε^−{theory:g}).",
                quantity=f"exponent of the forecast, beside logarithms, {planner}, ε ≤ 1e-3",
                theory=f"2 + 2/(β − 1) = {theory:g}",
                measured=prices[planner].exponent,
                error=None,
                stated=(theory - 0.3, theory + 0.3),
                reason="p of ε^−p·log(1/ε)^q. Prices are rough by about 5 %, for levels come from grids; over four "
                "decades, where log log 1/ε is nearly a line, that makes p uncertain by 0.1. The exponents of "
                "neighbouring orders differ by 1",
            )
        )
    return claims


def _run_claims(settings: Settings, growth: Mapping[str, Growth]) -> list[Claim]:
    claims = []
    for planner, runs in growth.items():
        span = math.log(runs.epsilons[0] / runs.epsilons[-1])
        fit, error = runs.calls_slope, runs.error_slope
        if planner in SCHEDULED:
            # Of a run, the part that is not saved: between the variance found over the one certified, and 1.
            low, high = -math.log(4.0) / span, math.log(1.5) / span
            claims.append(
                Claim(
                    statement=f"Real runs of {planner} grow as their forecast does.",
                    quantity=f"slope of calls against 1/ε less that of the forecast, {planner}",
                    theory="0, less what runs save by stopping early",
                    measured=fit.slope - runs.price_slope,
                    error=fit.error,
                    stated=(low, high),
                    reason="a run saves nothing at worst, and at best all but the ratio of variances, a quarter to a "
                    "half: Bernoulli rewards of uniform means have a variance of 1/6, and 0.4 or more is certified of "
                    "returns. So calls over forecast shrink by a factor of 4 at most along the range, and grow by "
                    "noise only",
                )
            )
        else:
            claims.append(
                Claim(
                    statement="At a fixed depth, the price of unbiased samples is that of plain Monte Carlo.",
                    quantity=f"slope of calls against 1/ε, {planner} at depth {settings.depth}",
                    theory=f"{MONTE_CARLO:g}",
                    measured=fit.slope,
                    error=fit.error,
                    stated=(MONTE_CARLO - 0.25, MONTE_CARLO + 0.25),
                    reason="cost and variance of a sample do not depend on ε; but the cost has an infinite variance, "
                    "and runs look at their noise at growing intervals, so that slopes vary by about 0.1",
                )
            )
        claims.append(
            Claim(
                statement=f"Errors of {planner} shrink in proportion to ε.",
                quantity=f"slope of root mean square errors against ε, {planner}",
                theory="1",
                measured=error.slope,
                error=error.error,
                stated=(1.0 - ERROR_SPREAD / runs.leverage, 1.0 + ERROR_SPREAD / runs.leverage),
                reason="four standard errors of the slope, where the errors are nearly normal: a kurtosis of up to 5",
            )
        )
    total = sum(runs.runs for runs in growth.values())
    claims.append(
        Claim(
            statement=f"At least 1 − δ = {1.0 - settings.delta:g} of all runs are within ε.",
            quantity=f"share of {total} runs with an error of at most ε",
            theory=f"at least {1.0 - settings.delta:g}",
            measured=sum(runs.within * runs.runs for runs in growth.values()) / total,
            error=None,
            stated=(1.0 - settings.delta, 1.0),
            reason="the guarantee of the planners; RandomizedMultilevel's is an estimate",
        )
    )
    return claims


def _theory(planner: str) -> str:
    if planner in BETA:
        return f"{curvature.total_exponent(BETA[planner]):g}"
    return "not polynomial" if planner == SPARSE else f"{MONTE_CARLO:g} (fixed depth)"


def _table(settings: Settings, growth: Mapping[str, Growth], prices: Mapping[str, Prices]) -> Table:
    rows = []
    for planner, runs in growth.items():
        scheduled, fit, error = planner in SCHEDULED, runs.calls_slope, runs.error_slope
        fine = "–"
        if planner in BETA:
            fine = f"{prices[planner].exponent:.2f}"
        elif planner == SPARSE:
            fine = f"{prices[planner].local[1][-1]:.1f}, growing"
        rows.append(
            (
                planner,
                _theory(planner),
                fine,
                f"{runs.epsilons[0]:g} – {runs.epsilons[-1]:g}",
                f"{runs.price_slope:.2f}" if scheduled else "–",
                f"{fit.slope:.2f} [{fit.low:.2f}, {fit.high:.2f}]",
                f"{error.slope:.2f} [{error.low:.2f}, {error.high:.2f}]",
                f"{runs.within:.1%} of {runs.runs}",
            )
        )
    return Table(
        "exponents",
        f"Exponents in 1/ε (γ = {settings.discount:g}, K = {settings.actions}, η = {settings.temperature:g}, "
        f"δ = {settings.delta:g}; brackets: 95 % intervals)",
        (
            "planner",
            "theory",
            "forecast, fine end",
            "ε of runs",
            "forecast slope there",
            "calls slope of runs",
            "error slope of runs",
            "within ε",
        ),
        rows,
    )


def _figures(settings: Settings, growth: Mapping[str, Growth], prices: Mapping[str, Prices]) -> list[Figure]:
    ends = [1.0 / settings.forecasts[0], 1.0 / settings.forecasts[-1]]
    flat = [
        Series(f"theory: {curvature.total_exponent(beta):g}", ends, [curvature.total_exponent(beta)] * 2, look="dashed")
        for beta in BETA.values()
    ]
    local = Figure(
        name="exponents-local",
        title="The local exponent of the certified price",
        caption="Slope of log forecast against log 1/ε between neighbouring ε. SmoothCruiser creeps up to 4 and "
        "SecondOrderSmoothCruiser stays at 3, as logarithms let them; Sparse Sampling has no exponent.",
        x=Axis("1/ε", log=True),
        y=Axis("local exponent"),
        series=[*(Series(planner, *price.local) for planner, price in prices.items()), *flat],
    )
    calls = Figure(
        name="exponents-calls",
        title="Simulator calls of real runs",
        caption="Points: geometric means of the calls made, with the range of all runs. Dashed: the forecasts, which "
        f"runs undercut by stopping early. RandomizedMultilevel is at depth {settings.depth}, whatever ε is.",
        x=Axis("1/ε", log=True),
        y=Axis("simulator calls", log=True),
        series=[
            *(_spread(planner, runs.inverse, runs.calls) for planner, runs in growth.items()),
            *(
                Series(f"{planner}, forecast", growth[planner].inverse, growth[planner].prices, look="dashed")
                for planner in (SPARSE, SECOND)
                if planner in growth
            ),
        ],
    )
    finest = [max(r.epsilons[0] for r in growth.values()), min(r.epsilons[-1] for r in growth.values())]
    errors = Figure(
        name="exponents-errors",
        title="Errors of real runs",
        caption="Root mean squares of |value − exact value| over all runs at each ε, with the largest error above "
        "them; all should lie below the dashed line.",
        x=Axis("ε", log=True),
        y=Axis("error", log=True),
        series=[
            *(_rms(planner, runs.epsilons, runs.errors) for planner, runs in growth.items()),
            Series("ε", finest, finest, look="dashed"),
        ],
    )
    return [local, calls, errors]


def _spread(name: str, x: Sequence[float], samples: Sequence[Sequence[float]]) -> Series:
    means = [float(np.exp(np.mean(np.log(group)))) for group in samples]
    return Series(name, list(x), means, [min(group) for group in samples], [max(group) for group in samples])


def _rms(name: str, x: Sequence[float], samples: Sequence[Sequence[float]]) -> Series:
    means = [float(np.sqrt(np.mean(np.square(group)))) for group in samples]
    return Series(name, list(x), means, means, [max(group) for group in samples])


EXPERIMENT = Experiment(
    name="exponents",
    title="The exponents of Table 1",
    question="How do calls and errors of each planner change with ε, and does the theory say so?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
