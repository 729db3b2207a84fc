"""Exponents: how the price of a value grows with 1/ε, by forecasts and in real runs, beside what the theory says."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import garnet
from smoothplan.recursive.optimise import optimised
from smoothplan.recursive.planners import DebiasedCruiser, SecondOrderSmoothCruiser, SmoothCruiser, SparseSampling
from smoothplan.recursive.schedule import forecast
from smoothplan.run.plan import plan
from smoothplan.theory import curvature, exact
from smoothplan.theory.backups import Backup, LogSumExp
from smoothplan.theory.curvature import Problem
from studies.base import Cell, Row, Study, where
from studies.findings import Axis, Claim, Evidence, Figure, Series, Table
from studies.fits import Fit, exponent_beside_logs, local_slopes, power_law
from studies.multilevel import RandomizedMultilevel

SPARSE, FIRST, SECOND = "Sparse Sampling", "SmoothCruiser", "SecondOrderSmoothCruiser"
ONE_TERM, DEBIASED = "DebiasedCruiser, one term only", "DebiasedCruiser"
MULTILEVEL = "RandomizedMultilevel"
SCHEDULED = {SPARSE: SparseSampling, FIRST: SmoothCruiser, SECOND: SecondOrderSmoothCruiser, DEBIASED: DebiasedCruiser}
"""The planners whose price is known in advance."""

KINDS = {SPARSE: (0, 0), FIRST: (1, 0), SECOND: (2, 0), ONE_TERM: (2, 1), DEBIASED: (2, 2)}
"""The levels that their schedules may have, each the kinds of the one before and more."""

BETA = {FIRST: 2.0, SECOND: 3.0, ONE_TERM: 3.0, DEBIASED: 3.0}
"""β of the exponent 2 + 2/(β − 1): the order of the Taylor remainder, and 3 for debiased levels, however many terms
they cancel (docs/proofs/prices.md)."""

ROUGH = 0.05
"""Prices are rough by this, for levels come from grids: what is cheaper by less does not pay."""


@dataclass(frozen=True)
class Settings:
    """One kind of model, several of it; forecasts far down, and runs as far as they can be paid for."""

    forecasts: tuple[float, ...]  # ε, from coarse to fine
    runs: tuple[tuple[str, tuple[float, ...]], ...]  # planner, and ε from coarse to fine
    instances: int  # models
    repeats: int  # runs on each
    first_seed: int = 0  # of models and of runs
    states: int = 50
    actions: int = 2
    branching: int = 4
    discount: float = 0.2  # of runs
    discounts: tuple[float, ...] = (0.2, 0.5, 0.7)  # of forecasts; the first is that of runs
    temperature: float = 1.0
    delta: float = 0.1
    depth: int = 2  # of RandomizedMultilevel


QUICK = Settings(
    forecasts=tuple(10.0 ** -(half / 2.0) for half in range(2, 17)),  # two to a decade
    runs=(
        (SPARSE, (0.1, 0.05, 0.02, 0.01)),
        (FIRST, (0.1, 0.05, 0.02, 0.01, 0.005)),
        (SECOND, (0.1, 0.05, 0.02, 0.01, 0.005)),
        (DEBIASED, (0.1, 0.05, 0.02, 0.01, 0.005)),
        (MULTILEVEL, (0.012, 0.007, 0.004, 0.0025)),
    ),
    instances=4,
    repeats=5,
)
FULL = Settings(
    forecasts=tuple(10.0 ** -(half / 2.0) for half in range(2, 19)),
    runs=(
        (SPARSE, (0.1, 0.05, 0.02, 0.01, 0.005)),
        (FIRST, (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)),
        (SECOND, (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)),
        (DEBIASED, (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)),
        (MULTILEVEL, (0.012, 0.007, 0.004, 0.0025, 0.001)),
    ),
    instances=6,
    repeats=6,
)


def cells(settings: Settings) -> Iterator[Cell]:
    """Forecasts, which depend on what a model declares only, and runs on each instance."""
    names = ("states", "actions", "branching", "discount", "temperature", "delta", "depth")
    problem = {name: getattr(settings, name) for name in names}
    for discount in settings.discounts:
        for planner in KINDS:
            if planner == SPARSE and discount != settings.discount:
                continue  # it has no exponent anywhere
            for epsilon in settings.forecasts:
                price = {"kind": "forecast", "planner": planner, "epsilon": epsilon, "instance": 0}
                yield Cell({**price, **problem, "discount": discount}, seed=0)
    for planner, epsilons in settings.runs:
        for number, epsilon in enumerate(epsilons):
            for instance in range(settings.first_seed, settings.first_seed + settings.instances):
                for repeat in range(settings.repeats):
                    run = {"kind": "run", "planner": planner, "epsilon": epsilon, "instance": instance, **problem}
                    # With the same seed a finer run would begin as a coarser one does.
                    yield Cell(run, seed=settings.first_seed + number * settings.repeats + repeat)


def measure(cell: Cell) -> Mapping[str, Any]:
    """One forecast, or one run at state 0 and its error."""
    s = cell.settings
    model = garnet(s["states"], s["actions"], s["branching"], s["discount"], s["instance"], reward_kind="bernoulli")
    backup = LogSumExp(s["temperature"])
    if s["kind"] == "forecast":
        schedule = optimised(Problem.of(model, backup), s["epsilon"], s["delta"], *KINDS[s["planner"]])
        return {"log_forecast": math.log(schedule.calls)}
    if s["planner"] == MULTILEVEL:
        # In this thread: it is no compiled engine, and processes would cost more than they save.
        result = plan(RandomizedMultilevel(backup, s["epsilon"], s["delta"], s["depth"]), model, 0, seed=cell.seed)
        target = truncated_values(model, backup, s["depth"])[0]
        return {"calls": result.calls, "error": abs(result.value - float(target)), "status": result.status}
    planner = SCHEDULED[s["planner"]](backup, s["epsilon"], s["delta"])
    # The result is the same for any number of workers.
    result = plan(planner, model, 0, seed=cell.seed, workers=os.cpu_count() or 1)
    value = float(exact.solve(model, backup).values[0])
    return {
        "log_forecast": math.log(forecast(planner, model).calls),
        "calls": result.calls,
        "error": abs(result.value - value),
        "covered": result.interval[0] <= value <= result.interval[1],
        "status": result.status,
    }


def truncated_values(model: TabularModel, backup: Backup, depth: int) -> Floats:
    """What RandomizedMultilevel estimates: `depth` backups of the middle of the value interval, [S]."""
    low, high = curvature.value_interval(model, backup)
    values = np.full(model.states, (low + high) / 2.0)
    for _ in range(depth):
        values = backup.value(exact.action_values(model, values), np.arange(model.states))
    return values


class Growth(NamedTuple):
    """What the runs of one planner show."""

    epsilons: list[float]
    calls: list[list[float]]  # at each ε, of all runs
    errors: list[list[float]]
    prices: list[float]  # forecasts at the same ε; empty where there are none

    @property
    def inverse(self) -> list[float]:
        """1/ε."""
        return [1.0 / epsilon for epsilon in self.epsilons]

    @property
    def calls_slope(self) -> Fit:
        """Of the calls made against 1/ε."""
        return power_law(self.inverse, self.calls)

    @property
    def leverage(self) -> float:
        """√Σ(x − x̄)² over all runs, x = log ε: a slope has √n times the deviation of a mean of n, divided by this."""
        x = np.repeat(np.log(self.epsilons), [len(errors) for errors in self.errors])
        return float(np.sqrt(((x - x.mean()) ** 2).sum()))

    @property
    def within(self) -> list[bool]:
        """Of each run, whether its error is at most ε."""
        pairs = zip(self.epsilons, self.errors, strict=True)
        return [error <= epsilon for epsilon, errors in pairs for error in errors]


class Prices(NamedTuple):
    """The forecasts of one planner for one γ."""

    epsilons: list[float]
    logs: list[float]  # of the prices

    @property
    def fine(self) -> tuple[list[float], list[float]]:
        """1/ε, and the logarithms of the prices, for ε ≤ 1e-3."""
        pairs = [(1.0 / e, log) for e, log in zip(self.epsilons, self.logs, strict=True) if e <= 1.001e-3]
        return [x for x, _ in pairs], [log for _, log in pairs]

    @property
    def curvature(self) -> float:
        """q of log price = a + p·x + q·x²/2 with x = log 1/ε: 0 for every power, and for powers with logarithms."""
        x, logs = self.fine
        return float(2.0 * np.polyfit(np.log(x), logs, 2)[0])

    @property
    def local(self) -> tuple[list[float], list[float]]:
        """1/ε between neighbours, and the slopes there."""
        return local_slopes([1.0 / epsilon for epsilon in self.epsilons], self.logs)

    def slope(self, coarse: float, fine: float) -> float:
        """Between two of its ε."""
        first, last = (self.logs[int(np.argmin(np.abs(np.log(self.epsilons) - math.log(e))))] for e in (coarse, fine))
        return (last - first) / math.log(coarse / fine)

    def pays_from(self, fewer: "Prices") -> float | None:
        """The largest ε from which on it is cheaper by more than `ROUGH` than with fewer kinds of levels; or none."""
        cheaper = np.subtract(fewer.logs, self.logs) > math.log1p(ROUGH)
        paying = len(cheaper) - int(np.argmin([*cheaper[::-1], False]))  # the first of the unbroken run at the fine end
        return self.epsilons[paying] if paying < len(self.epsilons) else None


AllPrices = Mapping[tuple[float, str], Prices]
"""By γ and planner."""

DECADES = (1e-4, 1e-6)
"""Where slopes are compared: fine enough for every kind of level to pay, as far as 1e-3 is for their references."""


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """The exponents of the paper's Table 1, and those of debiased levels."""
    growth: dict[str, Growth] = {}
    for planner, epsilons in settings.runs:
        at = [[r.result for r in where(rows, kind="run", planner=planner, epsilon=epsilon)] for epsilon in epsilons]
        growth[planner] = Growth(
            list(epsilons),
            [[float(run["calls"]) for run in runs] for runs in at],
            [[max(float(run["error"]), 1e-12) for run in runs] for runs in at],  # 0 has no logarithm
            [math.exp(runs[0]["log_forecast"]) for runs in at] if planner in SCHEDULED else [],
        )
    prices: dict[tuple[float, str], Prices] = {}
    for row in where(rows, kind="forecast"):
        of = prices.setdefault((row.settings["discount"], row.settings["planner"]), Prices([], []))
        of.epsilons.append(row.settings["epsilon"])
        of.logs.append(float(row.result["log_forecast"]))
    return Evidence(
        claims=[
            *_fine_claims(settings, prices),
            *_slope_claims(settings, prices),
            _never_dearer(prices),
            *_run_claims(settings, growth),
        ],
        figures=_figures(settings, growth, prices),
        tables=[_slopes(settings, prices), _paying(settings, prices)],
        notes=[
            f"K = {settings.actions}, η = {settings.temperature:g}, δ = {settings.delta:g}; runs have "
            f"γ = {settings.discount:g}. "
            "Certified variants throughout. A forecast is the price that is certified in advance; runs stop as soon as "
            "their interval allows. In the range that runs can be paid for, the optimised schedules mix kinds of "
            "levels, and local slopes are still on their way. What the exponents are shows in the forecasts for small "
            "ε, which cost nothing.",
            "DebiasedCruiser cancels up to two terms of the bias that the noise of a reference causes, N^−1 and N^−2; "
            "the curve with one term only is there to tell them apart. The second term saves a factor, not a power.",
            _alike(growth),
            *_jumps(settings, prices),
            f"RandomizedMultilevel certifies nothing; its target here is the value at depth {settings.depth}, which "
            "does not change with ε. A depth that grows with log 1/ε would add to its exponent.",
        ],
    )


def _fine_claims(settings: Settings, prices: AllPrices) -> Iterator[Claim]:
    per_level = 1.0 / math.log(1.0 / settings.discount)
    yield Claim(
        statement="The price of Sparse Sampling grows faster than every power of 1/ε.",
        quantity="second derivative of log forecast in log 1/ε, Sparse Sampling, ε ≤ 1e-3",
        theory=f"1/log(1/γ) = {per_level:.3f}; 0 for every power",
        measured=prices[settings.discount, SPARSE].curvature,
        stated=(0.85 * per_level, 1.35 * per_level),
        reason="each factor 1/γ in 1/ε adds a level whose width grows like 1/ε. As every level keeps part of the "
        "bias for itself, one of H levels in the best split about 1/H, log 1/γ is effectively less by about 1/H: "
        "with some 5 to 10 levels, up to 15 % more; as much again for rounding to grids",
    )
    for discount in settings.discounts:
        for planner, beta in BETA.items():
            if planner == SECOND and discount != settings.discount:
                continue  # what becomes of pairs there is in the notes, and in the study of the errata
            theory = curvature.total_exponent(beta)
            yield Claim(
                statement=f"The certified price of {planner} is Õ(ε^−{theory:.3g}), γ = {discount:g}.",
                quantity=f"exponent of the forecast, beside logarithms, {planner}, γ = {discount:g}, ε ≤ 1e-3",
                theory=f"2 + 2/(β − 1) = {theory:.3g}",
                measured=exponent_beside_logs(*prices[discount, planner].fine),
                stated=(theory - 0.3, theory + 0.3),
                reason="p of ε^−p·log(1/ε)^q. Prices are rough by 5 to 15 %, for levels come from grids, more where γ "
                "is large; over five decades, where log log 1/ε is nearly a line, that makes p uncertain by 0.1. Three "
                "times that tells 3 from 4",
            )


def _slope_claims(settings: Settings, prices: AllPrices) -> Iterator[Claim]:
    """How much flatter a debiased price is than that of order 1.

    A sample costs T(ε) = T(ε/√γ) + K·N·T(√ε), with N ~ ε^(−1/(m+1)) where m terms are cancelled, so that its slope is
    α(ε) = 1/(m+1) + α(√ε)/2. Where references at √ε are alike, slopes differ from that of m = 0 by 1 − 1/(m+1). In the
    limit they differ by 1, for any m > 0: then noise in the policy decides.
    """
    coarse, fine = DECADES
    if fine < settings.forecasts[-1]:
        return
    noise = 4.0 * ROUGH / math.log(coarse / fine)
    for discount in settings.discounts:
        first = prices[discount, FIRST].slope(coarse, fine)
        for terms, planner in ((1, ONE_TERM), (2, DEBIASED)):
            least = 1.0 - 1.0 / (terms + 1)
            slope = prices[discount, planner].slope(coarse, fine)
            yield Claim(
                statement=f"At γ = {discount:g} the price of {planner} has a slope of {slope:.2f} where that of "
                f"{FIRST} has {first:.2f}.",
                quantity=f"slope of the forecast of {FIRST} less that of {planner}, γ = {discount:g}, ε from "
                f"{coarse:g} to {fine:g}",
                theory=f"{least:.3g} at first, 1 in the limit",
                measured=first - slope,
                stated=(least - noise, 1.0 + noise),
                reason="N ~ ε^(−1/(m+1)) returns instead of ε^−1, and references at √ε, whose slopes count half; "
                f"four prices are rough by {ROUGH:.0%} each",
            )


def _never_dearer(prices: AllPrices) -> Claim:
    names = list(KINDS)
    worst = max(
        more - less
        for discount, planner in prices
        if (discount, fewer := names[max(names.index(planner) - 1, 0)]) in prices
        for more, less in zip(prices[discount, planner].logs, prices[discount, fewer].logs, strict=True)
    )
    return Claim(
        statement="More kinds of levels are never dearer.",
        quantity="largest price over that with fewer kinds of levels, over planners, γ and ε",
        theory="at most 1",
        measured=math.exp(worst),
        stated=(0.0, 1.0 + 1e-12),
        reason="the search tries sets of kinds one by one and takes the cheapest schedule",
    )


def _slopes(settings: Settings, prices: AllPrices) -> Table:
    """Local slopes by decade."""
    decades = [e for e in settings.forecasts if 10.0 * e <= 1.001 * settings.forecasts[0]][::2]
    return Table(
        "exponents-slopes",
        "Slopes of certified prices over a decade, down to ε",
        ("γ", "planner", *(f"{e:.0e}" for e in decades)),
        [
            (f"{discount:g}", planner, *(f"{price.slope(10.0 * e, e):.2f}" for e in decades))
            for (discount, planner), price in prices.items()
        ],
    )


def _paying(settings: Settings, prices: AllPrices) -> Table:
    """From which ε on more kinds of levels pay."""
    finest = settings.forecasts[-1]
    rows = []
    for discount in settings.discounts:
        for fewer, more in ((FIRST, SECOND), (SECOND, ONE_TERM), (ONE_TERM, DEBIASED)):
            less, price = prices[discount, fewer], prices[discount, more]
            start = price.pays_from(less)
            saved = f"{math.exp(less.logs[-1] - price.logs[-1]):.3g}"
            rows.append((f"{discount:g}", more, fewer, "nowhere" if start is None else f"{start:.2g}", saved))
    return Table(
        "exponents-paying",
        f"The largest ε that was tried from which on a price is lower by more than {ROUGH:.0%}",
        ("γ", "planner", "beside", "from ε", f"factor at {finest:.0e}"),
        rows,
    )


def _alike(growth: Mapping[str, Growth]) -> str:
    """Where pairs do not pay yet, and runs with and without them are the same."""
    both = zip(growth[SECOND].epsilons, growth[SECOND].prices, growth[FIRST].prices, strict=True)
    same = [f"{epsilon:g}" for epsilon, second, first in both if second == first]
    return f"{FIRST} and {SECOND} have the same price, and make the same runs, at ε = {', '.join(same) or 'none'}."


def _jumps(settings: Settings, prices: AllPrices) -> Iterator[str]:
    """Where pairs do not have their exponent."""
    for discount in settings.discounts:
        steepest = {}
        for planner in (SECOND, DEBIASED):
            price = prices[discount, planner]
            steepest[planner] = max(slope for x, slope in zip(*price.local, strict=True) if x > 1e3)
        if steepest[SECOND] > steepest[DEBIASED] + 1.0:
            yield (
                f"At γ = {discount:g} the local slope of {SECOND} rises to {steepest[SECOND]:.2g} for some ε below "
                f"1e-3, for a quadratic term squares the support of its child; that of {DEBIASED} to "
                f"{steepest[DEBIASED]:.3g}. No exponent is claimed of pairs there."
            )


def _run_claims(settings: Settings, growth: Mapping[str, Growth]) -> Iterator[Claim]:
    for planner, runs in growth.items():
        span = math.log(runs.epsilons[0] / runs.epsilons[-1])
        fit, error = runs.calls_slope, power_law(runs.epsilons, runs.errors, "square")
        if planner in SCHEDULED:
            # Of a run, the part that is not saved: between the variance found over the one certified, and 1.
            yield Claim(
                statement=f"Real runs of {planner} grow as their forecast does.",
                quantity=f"slope of calls against 1/ε less that of the forecast, {planner}",
                theory="0, less what runs save by stopping early",
                measured=fit.slope - power_law(runs.inverse, [[price] for price in runs.prices]).slope,
                error=fit.error,
                stated=(-math.log(4.0) / span, math.log(1.5) / span),
                reason="a run saves nothing at worst, and at best all but the ratio of variances, a quarter to a "
                "half: Bernoulli rewards of uniform means have a variance of 1/6, and 0.4 or more is certified of "
                "returns. So calls over forecast shrink by a factor of 4 at most along the range, and grow by "
                "noise only",
            )
        else:
            yield Claim(
                statement="At a fixed depth, the price of unbiased samples is that of plain Monte Carlo.",
                quantity=f"slope of calls against 1/ε, {planner} at depth {settings.depth}",
                theory="2",
                measured=fit.slope,
                error=fit.error,
                stated=(1.75, 2.25),
                reason="cost and variance of a sample do not depend on ε; but the cost has an infinite variance, "
                "and runs look at their noise at growing intervals, so that slopes vary by about 0.1",
            )
        # Four times √n times the deviation of the logarithm of a root mean square of n errors, √((κ−1)/4) = 1 for a
        # kurtosis κ = 5: normal errors have 3, but those of different models differ in scale.
        room = 4.0 / runs.leverage
        yield Claim(
            statement=f"Errors of {planner} shrink in proportion to ε.",
            quantity=f"slope of root mean square errors against ε, {planner}",
            theory="1",
            measured=error.slope,
            error=error.error,
            stated=(1.0 - room, 1.0 + room),
            reason="four standard errors of the slope, where the errors are nearly normal: a kurtosis of up to 5",
        )
    within = [held for runs in growth.values() for held in runs.within]
    yield Claim(
        statement=f"At least 1 − δ = {1.0 - settings.delta:g} of all runs are within ε.",
        quantity=f"share of {len(within)} runs with an error of at most ε",
        theory=f"at least {1.0 - settings.delta:g}",
        measured=float(np.mean(within)),
        stated=(1.0 - settings.delta, 1.0),
        reason="the guarantee of the planners; RandomizedMultilevel's is an estimate",
    )


def _local_figure(settings: Settings, discount: float, prices: AllPrices) -> Figure:
    ends = [1.0 / settings.forecasts[0], 1.0 / settings.forecasts[-1]]
    limits = sorted({curvature.total_exponent(beta) for beta in BETA.values()}, reverse=True)
    highest = 1.5 * limits[0]  # what is steeper has no exponent
    series = []
    for planner in KINDS:
        if (discount, planner) in prices:
            pairs = [(x, y) for x, y in zip(*prices[discount, planner].local, strict=True) if y <= highest]
            series.append(Series(planner, [x for x, _ in pairs], [y for _, y in pairs]))
    sparse = " Sparse Sampling, which has no exponent, soon leaves the figure." if discount == settings.discount else ""
    return Figure(
        name=f"exponents-local-{round(100.0 * discount)}",
        title=f"The local exponent of the certified price, γ = {discount:g}",
        caption="Slope of log forecast against log 1/ε between neighbouring ε. They near their limits slowly: what the "
        f"slope is at ε depends on what it is at √ε.{sparse}",
        x=Axis("1/ε", log=True),
        y=Axis("local exponent"),
        series=[
            *series,
            *(Series(f"theory: {limit:.3g}", ends, [limit, limit], look="dashed") for limit in limits),
        ],
    )


def _figures(settings: Settings, growth: Mapping[str, Growth], prices: AllPrices) -> list[Figure]:
    savings = Figure(
        name="exponents-savings",
        title="What debiased levels save",
        caption="Certified price of schedules without debiased levels, of order 2 at most, over that with them.",
        x=Axis("1/ε", log=True),
        y=Axis("price without / price with", log=True),
        series=[
            Series(
                f"{planner}, γ = {discount:g}",
                [1.0 / epsilon for epsilon in settings.forecasts],
                np.exp(np.subtract(prices[discount, SECOND].logs, prices[discount, planner].logs)).tolist(),
                look="dashed" if planner == ONE_TERM else "points",
            )
            for discount in settings.discounts
            for planner in (ONE_TERM, DEBIASED)
        ],
    )
    calls = Figure(
        name="exponents-calls",
        title="Simulator calls of real runs",
        caption="Points: geometric means of the calls made, with the range of all runs. Dashed: the forecasts, which "
        f"runs undercut by stopping early. RandomizedMultilevel is at depth {settings.depth}, whatever ε is.",
        x=Axis("1/ε", log=True),
        y=Axis("simulator calls", log=True),
        series=[
            *(Series.spread(planner, runs.inverse, runs.calls) for planner, runs in growth.items()),
            *(
                Series(f"{planner}, forecast", growth[planner].inverse, growth[planner].prices, look="dashed")
                for planner in (SPARSE, SECOND, DEBIASED)
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
    return [*(_local_figure(settings, discount, prices) for discount in settings.discounts), savings, calls, errors]


def _rms(name: str, x: Sequence[float], samples: Sequence[Sequence[float]]) -> Series:
    means = [float(np.sqrt(np.mean(np.square(group)))) for group in samples]
    return Series(name, list(x), means, means, [max(group) for group in samples])


STUDY = Study(
    name="exponents",
    title="The exponents of Table 1, and of debiased levels",
    question="How do calls and errors of each planner change with ε, and does the theory say so?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
