"""Critic: how far a reference Q̂, order 1 and order 2 around it are from the truth, against its error range r."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from smoothplan.base.arguments import Floats
from smoothplan.chains.cruiser import ReferenceCruiser
from smoothplan.chains.reference import TabularReference
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import garnet
from smoothplan.run.plan import plan
from smoothplan.run.records import ReferenceDetails
from smoothplan.theory import curvature, exact
from smoothplan.theory.backups import LogSumExp, SoftmaxMixture
from smoothplan.theory.curvature import Problem
from studies.base import Cell, Row, Study, where
from studies.findings import Axis, Claim, Evidence, Figure, Series, Table
from studies.fits import power_law

MODEL: dict[str, Any] = {"states": 200, "actions": 4, "branching": 4, "reward_kind": "bernoulli"}
TOLERANCE = 1e-10
"""Of the exact solver: well below a cubic error of the smallest r."""


@cache
def _solved(discount: float, temperature: float, seed: int) -> tuple[TabularModel, SoftmaxMixture, exact.Solution]:
    model, backup = garnet(**MODEL, discount=discount, seed=seed), LogSumExp(temperature)
    return model, backup, exact.solve(model, backup, TOLERANCE)


def critic(discount: float, temperature: float, seed: int, error_range: float) -> Floats:
    """Q̂, [S, K]: errors whose range is r at every state, and a shift of its own for each state."""
    model, _, solution = _solved(discount, temperature, seed)
    rng = np.random.default_rng(seed)
    noise = rng.uniform(size=(model.states, model.actions))
    noise = (noise - noise.min(axis=1, keepdims=True)) / np.ptp(noise, axis=1)[:, None] - 0.5
    shift = rng.uniform(-2.0, 2.0, size=(model.states, 1))
    return np.asarray(solution.q + error_range * (noise + shift))


def exact_errors(discount: float, temperature: float, seed: int, table: Floats) -> dict[str, float]:
    """Extremes of V − estimate over all states: of what Q̂ says itself, and of orders 1 and 2."""
    model, backup, solution = _solved(discount, temperature, seed)
    estimates = dict(zip(("order_1", "order_2"), ChainMeans(model, backup, table).orders(), strict=True))
    estimates["critic"] = backup.value(table, np.arange(model.states))
    errors = {name: solution.values - estimate for name, estimate in estimates.items()}
    result = {f"{name}_low": float(error.min()) for name, error in errors.items()}
    return result | {f"{name}_high": float(error.max()) for name, error in errors.items()}


class ChainMeans:
    """What chains around a table have for means, by linear algebra, for a model without terminal states.

    Args:
        model: a tabular model.
        backup: F.
        table: Q̂, [S, K].
    """

    def __init__(self, model: TabularModel, backup: SoftmaxMixture, table: Floats) -> None:
        states = np.arange(model.states)
        self._model, self._backup, self._table = model, backup, table
        policy = backup.policy(table, states)
        self._moves = np.zeros((model.states, model.states))
        np.add.at(self._moves, (states[:, None, None], model.successors), policy[:, :, None] * model.continuation)
        reward = (policy * model.expected_rewards).sum(axis=1)
        self._gain = reward + backup.value(table, states) - (policy * table).sum(axis=1)

    def _summed(self, each: Floats, horizon: int | None, tail: float = 0.0) -> Floats:
        """Σ γ^t·each(s_t) along the chain, [S]; up to a horizon, beyond which the tail counts."""
        discount = self._model.discount
        if horizon is None:
            return np.asarray(np.linalg.solve(np.eye(len(each)) - discount * self._moves, each))
        result = np.full(len(each), tail)
        for _ in range(horizon):
            result = each + discount * self._moves @ result
        return result

    def orders(self, horizon: int | None = None, tail: float = 0.0) -> tuple[Floats, Floats]:
        """The value of the policy ∇F(Q̂), and the same with quadratic terms of returns through it, [S] each.

        Args:
            horizon: steps of the chains; infinitely many by default.
            tail: the value of what lies beyond.
        """
        model = self._model
        first = self._summed(self._gain, horizon, tail)
        through = first if horizon is None else self._summed(self._gain, horizon - 1, tail)
        future = np.einsum("skb,skb->sk", model.continuation, through[model.successors])
        error = model.expected_rewards + model.discount * future - self._table
        hessian = self._backup.hessian(self._table, np.arange(model.states))
        quadratic = 0.5 * np.einsum("si,sij,sj->s", error, hessian, error)
        return first, first + self._summed(quadratic, horizon)


def sampled(s: Mapping[str, Any], seed: int, table: Floats) -> dict[str, Any]:
    """One run of the planner, beside the exact value and the exact means of its samples."""
    model, backup, solution = _solved(s["discount"], s["temperature"], seed)
    planner = ReferenceCruiser(
        backup,
        TabularReference(table),
        order=s["order"],
        epsilon=s["epsilon"],
        delta=s["delta"],
        error_range=s["error_range"],
    )
    result = plan(planner, model, 0, seed=seed, max_calls=s["calls"])
    found = result.details
    assert isinstance(found, ReferenceDetails)
    means = ChainMeans(model, backup, table).orders(found.horizon, Problem.of(model, backup).middle)
    estimate, error = (found.order_1, found.order_1_error) if s["order"] == 1 else (found.order_2, found.order_2_error)
    return {
        "truth": float(solution.values[0]),
        "mean": float(means[s["order"] - 1][0]),
        "estimate": estimate,
        "noise": error,
        "low": result.interval[0],
        "high": result.interval[1],
        "calls": result.calls,
        "status": result.status,
        "certified": found.certified,
    }


SMALL = 0.02
"""Slopes are fitted up to this r: where r ≪ η, the leading order shows."""

Order = Literal["critic", "order_1", "order_2"]
NAMES: dict[Order, str] = {"critic": "Q̂ itself", "order_1": "order 1", "order_2": "order 2"}

FALSE_ALARM = 1e-6
"""How often a claim about samples fails though everything is right."""


@dataclass(frozen=True)
class Settings:
    """Error ranges r for each (γ, η), computed; and some of them sampled."""

    problems: tuple[tuple[float, float], ...]  # (γ, η), each with slopes
    ranges: tuple[float, ...]
    table_problems: tuple[tuple[float, float], ...]
    table_range: float
    models: int
    sampled_range: float
    sampled_runs: int
    sampled_calls: tuple[int, ...]  # the most of a run, for each (γ, η)
    step_epsilon: float = 0.005  # ε·(1 − γ): an accuracy relative to how large values are
    delta: float = 1e-3
    seed: int = 1


QUICK = Settings(
    problems=((0.9, 0.3), (0.95, 0.3), (0.99, 0.3)),
    ranges=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0),
    table_problems=((0.9, 0.3), (0.95, 0.1), (0.99, 0.3)),
    table_range=0.25,
    models=3,
    sampled_range=0.25,
    sampled_runs=3,
    sampled_calls=(20_000_000, 50_000_000, 200_000_000),
)
FULL = Settings(
    problems=((0.9, 0.3), (0.95, 0.3), (0.99, 0.3), (0.995, 0.3)),
    ranges=(0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0),
    table_problems=((0.9, 0.3), (0.95, 0.1), (0.99, 0.3)),
    table_range=0.25,
    models=20,
    sampled_range=0.25,
    sampled_runs=12,
    sampled_calls=(300_000_000, 1_000_000_000, 5_000_000_000, 10_000_000_000),
)


def cells(settings: Settings) -> Iterator[Cell]:
    """Exact errors, then runs of the planner."""
    points = [(*problem, r) for problem in settings.problems for r in settings.ranges]
    points += [(*problem, settings.table_range) for problem in settings.table_problems]
    for discount, temperature, error_range in dict.fromkeys(points):
        for number in range(settings.models):
            fields = {"discount": discount, "temperature": temperature, "error_range": error_range}
            yield Cell({"kind": "exact", **fields}, settings.seed + number)
    for (discount, temperature), calls in zip(settings.problems, settings.sampled_calls, strict=True):
        for order in (1, 2):
            for number in range(settings.sampled_runs):
                run = {
                    "kind": "sampled",
                    "discount": discount,
                    "temperature": temperature,
                    "error_range": settings.sampled_range,
                    "order": order,
                    "epsilon": round(settings.step_epsilon / (1.0 - discount), 9),
                    "delta": settings.delta,
                    "calls": calls,
                }
                yield Cell(run, settings.seed + number)


def measure(cell: Cell) -> Mapping[str, Any]:
    """The errors at all states, computed; or the interval at one state, sampled."""
    s = cell.settings
    problem = (s["discount"], s["temperature"], cell.seed)
    table = critic(*problem, s["error_range"])
    return exact_errors(*problem, table) if s["kind"] == "exact" else sampled(s, cell.seed, table)


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Slopes, bounds, the table at one r, and what samples say."""
    computed, runs = where(rows, kind="exact"), where(rows, kind="sampled")
    return Evidence(
        claims=[
            *(claim for problem in settings.problems for claim in _slope_claims(settings, computed, problem)),
            *_bound_claims(computed),
            _gain_claim(settings, computed),
            *_sample_claims(settings, runs),
        ],
        figures=[
            *(_error_figure(settings, computed, problem) for problem in settings.problems),
            _run_figure(settings, runs),
        ],
        tables=[_range_table(settings, computed), _run_table(runs)],
        notes=[
            f"Random models of {MODEL['states']} states and {MODEL['actions']} actions. A critic errs by exactly r in "
            f"the differences between the actions of every state, and by up to 2·r more in the level of a "
            "state, which orders 1 and 2 do not notice.",
            "Order 1 evaluates the critic's policy. At long horizons that may be further from the optimal value than "
            "what the critic says itself; but it is a bound from below whatever the critic is, which the critic's own "
            "word is not.",
        ],
    )


def _errors(rows: Sequence[Row], name: Order, discount: float, temperature: float, error_range: float) -> list[float]:
    """The largest errors over states, one for each model."""
    found = where(rows, discount=discount, temperature=temperature, error_range=error_range)
    return [max(-r.result[f"{name}_low"], r.result[f"{name}_high"]) for r in found]


def _slope_claims(settings: Settings, rows: Sequence[Row], problem: tuple[float, float]) -> Iterator[Claim]:
    small = [r for r in settings.ranges if r <= SMALL]
    discount, temperature = problem
    spread = SMALL / (3.0 * temperature)  # the next order beside the leading one: |κ₃| ≤ range·κ₂
    # At the bounds, the quartic term is this fraction of the cubic one, which may bend error/r³ over the fitted range.
    quartic = SMALL / (8.0 * temperature * (1.0 - discount))
    # Cubic terms of either sign partly cancel, which may add 0.1 to a slope: a factor of 1.26 over a decade.
    bend = 0.1 + math.log1p(quartic) / math.log(small[-1] / small[0])
    stated: dict[Order, tuple[int, float, str]] = {
        "critic": (1, spread, "the next order is at most r/(8η) beside the leading one"),
        "order_1": (2, 2.0 * spread, "the next order is at most r/(3η) of it, and the chain drifts about as much"),
        "order_2": (
            3,
            bend,
            f"the quartic term is {quartic:.2g} of the cubic one at most, by the bounds; 0.1 is added as "
            "cubic terms of either sign partly cancel",
        ),
    }
    for name, (slope, room, reason) in stated.items():
        fit = power_law(small, [_errors(rows, name, *problem, r) for r in small])
        yield Claim(
            statement=f"The error of {NAMES[name]} is of order {slope} in the critic's error range.",
            quantity=f"slope of the largest error of {NAMES[name]} against r up to {SMALL:g}, γ = {discount:g}",
            theory=f"{slope}",
            measured=fit.slope,
            error=fit.error,
            stated=(slope - room, slope + room),
            reason=reason,
        )


def _bound_claims(rows: Sequence[Row]) -> Iterator[Claim]:
    for order, name in ((1, "order_1"), (2, "order_2")):
        ratios = []
        for r in rows:
            s = r.settings
            below, above = curvature.reference_bias(order, s["error_range"], s["temperature"], s["discount"])
            slack = 2.0 * TOLERANCE
            high, low = r.result[f"{name}_high"] / (above + slack), r.result[f"{name}_low"] / (below - slack)
            ratios.append(max(high, low))
        yield Claim(
            statement=f"The certified bias of order {order} is never exceeded"
            + (": V − E Y lies in [0, r²/(8η(1−γ))]." if order == 1 else "."),
            quantity=f"largest error of order {order} over its bound, all r, γ and models",
            theory="at most 1",
            measured=max(ratios),
            stated=(0.0, 1.0),
            reason="a bound is a bound, at every state; the solver's tolerance is allowed for",
        )


def _gain_claim(settings: Settings, rows: Sequence[Row]) -> Claim:
    problem, r = max(settings.table_problems), settings.table_range
    first, second = _errors(rows, "order_1", *problem, r), _errors(rows, "order_2", *problem, r)
    ratio = (r**2 / (8.0 * problem[1])) / curvature.remainder(r, 3, problem[1])
    return Claim(
        statement="At long horizons order 2 is far nearer than order 1.",
        quantity=f"least ratio of the errors of orders 1 and 2 at γ = {problem[0]:g}, η = {problem[1]:g}, r = {r:g}",
        theory=f"about {ratio:.2g} or more",
        measured=min(one / two for one, two in zip(first, second, strict=True)),
        stated=(0.5 * ratio, math.inf),
        reason=f"the sharp remainders of one step are {ratio:.2g} to 1, and cubic ones partly cancel; half of it "
        "leaves room for what the pairs' own chains add",
    )


def most_misses(runs: int, delta: float) -> int:
    """The most intervals of level 1 − δ that may miss, but for a false alarm."""
    for misses in range(runs + 1):
        more = (math.comb(runs, k) * delta**k * (1.0 - delta) ** (runs - k) for k in range(misses + 1, runs + 1))
        if math.fsum(more) <= FALSE_ALARM:
            return misses
    return runs


def _sample_claims(settings: Settings, runs: Sequence[Row]) -> list[Claim]:
    misses = sum(not r.result["low"] <= r.result["truth"] <= r.result["high"] for r in runs)
    away = max(abs(r.result["estimate"] - r.result["mean"]) / r.result["noise"] for r in runs)
    # P(|normal| > z) ≤ exp(−z²/2); standard errors are estimates themselves, from hundreds of samples and more.
    limit = 1.1 * math.sqrt(2.0 * math.log(len(runs) / FALSE_ALARM))
    return [
        Claim(
            statement="Certified intervals around a critic contain the optimal value.",
            quantity=f"intervals that miss it, of {len(runs)} at level 1 − {settings.delta:g}",
            theory=f"{settings.delta * len(runs):g} expected at most",
            measured=float(misses),
            stated=(0.0, float(most_misses(len(runs), settings.delta))),
            reason=f"more would happen with probability {FALSE_ALARM:g} if each missed with probability δ",
        ),
        Claim(
            statement="Sampled chains have the means that were computed.",
            quantity="largest distance of an estimate from its computed mean, in standard errors",
            theory="that of normal noise",
            measured=away,
            stated=(0.0, limit),
            reason=f"more would happen with probability {FALSE_ALARM:g}; a tenth is added as errors are estimated",
        ),
    ]


def _error_figure(settings: Settings, rows: Sequence[Row], problem: tuple[float, float]) -> Figure:
    discount, temperature = problem
    places = list(settings.ranges)
    series = []
    for name, label in NAMES.items():
        series.append(Series.spread(label, places, [_errors(rows, name, *problem, r) for r in places]))
    for order in (1, 2):
        bounds = [
            max(-low, high) for low, high in (curvature.reference_bias(order, r, temperature, discount) for r in places)
        ]
        series.append(Series(f"bound of order {order}", places, bounds, look="dashed"))
    return Figure(
        name=f"critic-{discount:g}".replace(".", "-"),
        title=f"Errors around a critic, γ = {discount:g}, η = {temperature:g}",
        caption="The largest error over all states against the range of the critic's errors: linear, quadratic, cubic; "
        "bars from the least to the largest of the models. Where r/(8η(1−γ)) is not small, a quartic term takes over "
        "at order 2.",
        x=Axis("error range r of the critic", log=True),
        y=Axis("largest error of a value", log=True),
        series=series,
    )


def _run_figure(settings: Settings, runs: Sequence[Row]) -> Figure:
    series = []
    for order in (1, 2):
        here = [r for r in runs if r.settings["order"] == order and r.seed < settings.seed + 3]
        names = [f"{r.settings['discount']:g} #{r.seed}" for r in here]
        middle, low, high = ([r.result[name] - r.result["truth"] for r in here] for name in ("estimate", "low", "high"))
        series.append(Series(f"order {order}", names, middle, low, high, look="bars"))
    return Figure(
        name="critic-runs",
        title="Sampled estimates and certified intervals, less the optimal value",
        caption="Runs of ReferenceCruiser with the critic's error range declared. Each interval contains 0, which is "
        "the optimal value; order 1 errs below it.",
        x=Axis("discount γ, and number of the model"),
        y=Axis("estimate − optimal value"),
        series=series,
    )


def _range_table(settings: Settings, rows: Sequence[Row]) -> Table:
    return Table(
        "critic-range",
        f"Largest error over states at r = {settings.table_range:g}: mean over models",
        ("γ", "η", *NAMES.values()),
        [
            (*problem, *(f"{np.mean(_errors(rows, name, *problem, settings.table_range)):.2g}" for name in NAMES))
            for problem in settings.table_problems
        ],
    )


def _run_table(runs: Sequence[Row]) -> Table:
    lines = []
    for discount, order in dict.fromkeys((r.settings["discount"], r.settings["order"]) for r in runs):
        found = [r.result for r in where(runs, discount=discount, order=order)]
        columns = [
            [f["calls"], abs(f["estimate"] - f["truth"]), f["noise"], (f["high"] - f["low"]) / 2.0] for f in found
        ]
        lines.append((discount, order, *(f"{mean:.2g}" for mean in np.mean(columns, axis=0))))
    names = ("γ", "order", "calls", "|estimate − truth|", "standard error", "half width")
    return Table("critic-runs", "Sampled runs: means over runs", names, lines)


STUDY = Study(
    name="critic",
    title="Planning around a critic",
    question="How does the error of a critic become the error of a value, at orders 0, 1 and 2, up to γ = 0.99?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
