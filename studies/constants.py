"""Constants: the calls that published constants ask for, and certified schedules, over γ, K, η, ε. Nothing is run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from smoothplan.models.zoo import garnet
from smoothplan.recursive.planners import DebiasedCruiser, SecondOrderSmoothCruiser, SmoothCruiser, SparseSampling
from smoothplan.recursive.schedule import forecast
from smoothplan.theory.backups import LogSumExp
from studies.base import Cell, Row, Study
from studies.findings import Axis, Claim, Evidence, Figure, Series, Table

PLANNERS = {
    "Sparse Sampling": SparseSampling,
    "SmoothCruiser": SmoothCruiser,
    "SecondOrderSmoothCruiser": SecondOrderSmoothCruiser,
}
DEBIASED = "DebiasedCruiser"
"""It has no published constants."""

NAMES = {"paper": "published", "certified": "ours"}
CASES = [*product(PLANNERS, NAMES), (DEBIASED, "certified")]
"""Planners and variants."""

SECONDS, YEARS = math.log10(1e9), math.log10(1e9 * 3600 * 24 * 365)
"""log₁₀ of the simulator calls that no engine makes in less than a second, or than a year: they make 1e8 to 1e9."""


Point = tuple[float, int, float, float]
"""γ, K, η, ε."""


@dataclass(frozen=True)
class Settings:
    """One parameter varies at a time; the others are as at the anchor."""

    discounts: tuple[float, ...]
    actions: tuple[int, ...]
    temperatures: tuple[float, ...]
    epsilons: tuple[float, ...]
    anchor: Point = (0.2, 2, 0.1, 0.1)
    delta: float = 0.1


QUICK = Settings(
    discounts=(0.05, 0.1, 0.2, 0.3),
    actions=(2, 3, 5, 8),
    temperatures=(0.05, 0.1, 0.3, 1.0),
    epsilons=(0.1, 0.03, 0.01, 0.003, 0.001),
)
FULL = Settings(
    discounts=(0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
    actions=(2, 3, 5, 8, 16, 32),
    temperatures=(0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0),
    epsilons=(0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001, 1e-4),
)


def cells(settings: Settings) -> Iterator[Cell]:
    """Both variants of each planner, along four lines through the anchor."""
    points = [_along(settings, name, value) for name, (_, values) in _lines(settings).items() for value in values]
    for point in dict.fromkeys([settings.anchor, *points]):
        for planner, variant in CASES:
            at = dict(zip(NAMED, point, strict=True))
            yield Cell({"planner": planner, "variant": variant, **at, "delta": settings.delta}, seed=0)


def measure(cell: Cell) -> Mapping[str, Any]:
    """The forecast of one planner; a price may have hundreds of digits, so its logarithm is kept."""
    s = cell.settings
    # A forecast depends on what the model declares, not on its table.
    model = garnet(
        states=10, actions=s["actions"], branching=2, discount=s["discount"], seed=cell.seed, reward_kind="bernoulli"
    )
    problem = LogSumExp(s["temperature"]), s["epsilon"], s["delta"]
    planner = DebiasedCruiser(*problem) if s["planner"] == DEBIASED else PLANNERS[s["planner"]](*problem, s["variant"])
    return {"log10_calls": math.log10(max(forecast(planner, model).calls, 1))}


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Prices along each line, and the ratio at the anchor."""
    prices = {
        (r.settings["planner"], r.settings["variant"], *_point(r.settings)): float(r.result["log10_calls"])
        for r in rows
    }
    figures = [
        Figure(
            name=f"constants-{name}",
            title=f"The price of a value against the {label}",
            caption=f"log₁₀ of the simulator calls, δ = {settings.delta:g}, by the "
            "published constants and by our certified schedules; the other parameters as at the anchor "
            f"(γ, K, η, ε) = {settings.anchor}. Where ours coincide, the cheapest schedule that was found has "
            "plug-in levels only: other kinds pay at finer ε.",
            x=Axis(label, log=name != "discount"),
            y=Axis("log₁₀ of simulator calls"),
            series=[
                Series(
                    f"{planner}, {NAMES[variant]}",
                    [float(value) for value in values],
                    [prices[(planner, variant, *_along(settings, name, value))] for value in values],
                    look="dashed" if variant == "paper" else "points",
                )
                for planner, variant in CASES
            ],
        )
        for name, (label, values) in _lines(settings).items()
    ]
    table = Table(
        "constants-anchor",
        f"Simulator calls at γ = {settings.anchor[0]:g}, K = {settings.anchor[1]}, η = {settings.anchor[2]:g}, "
        f"ε = {settings.anchor[3]:g}, δ = {settings.delta:g}",
        ("planner", "published", "ours", "ratio"),
        [
            *(
                (
                    planner,
                    *(f"{10 ** prices[(planner, variant, *settings.anchor)]:.2g}" for variant in NAMES),
                    f"{10 ** _saving(prices, planner, settings.anchor):.1g}",
                )
                for planner in PLANNERS
            ),
            (DEBIASED, "none", f"{10 ** prices[(DEBIASED, 'certified', *settings.anchor)]:.2g}", ""),
        ],
    )
    published, ours = (prices[("SmoothCruiser", variant, *settings.anchor)] for variant in NAMES)
    saving = _saving(prices, "SmoothCruiser", settings.anchor)
    gains = {  # on each of the others, and where
        (planner, point): prices[(planner, "certified", *point)] - prices[(DEBIASED, "certified", *point)]
        for planner in PLANNERS
        for point in dict.fromkeys(_point(row.settings) for row in rows)
    }
    (beaten, best), gain = max(gains.items(), key=lambda item: item[1])
    idle = sum(each == 0.0 for each in gains.values())
    claims = [
        Claim(
            statement="SmoothCruiser's published constants cannot be run.",
            quantity="log₁₀ of the published calls of SmoothCruiser at the anchor",
            theory="more than a year allows",
            measured=published,
            stated=(YEARS, math.inf),
            reason=f"a year of 1e9 calls a second has 1e{YEARS:.3g}",
        ),
        Claim(
            statement=f"Careful constants can: they are smaller by {saving:.1f} orders of magnitude.",
            quantity="log₁₀ of the certified calls of SmoothCruiser at the anchor",
            theory="seconds",
            measured=ours,
            stated=(0.0, SECONDS),
            reason=f"1e{SECONDS:.3g} calls take a second to ten",
        ),
        Claim(
            statement=f"{DEBIASED} is never dearer than the other certified planners.",
            quantity=f"log₁₀ of the calls of {DEBIASED} over those of another certified planner, largest of all points",
            theory="at most 0",
            measured=0.0 - min(gains.values()),
            stated=(-math.inf, 1e-12),
            reason="its schedule is the cheapest of all kinds of levels, theirs among them",
        ),
    ]
    return Evidence(
        claims=claims,
        figures=figures,
        tables=[table],
        notes=[
            "Forecasts only: no simulator call is made. SecondOrderSmoothCruiser's published schedules are as printed.",
            f"{DEBIASED} gains most on the certified {beaten} at (γ, K, η, ε) = {best}, a factor of "
            f"{10**gain:.3g}, and nothing at {idle} of {len(gains)} points. The study of exponents says where its "
            "levels pay.",
        ],
    )


def _saving(prices: Mapping[tuple[Any, ...], float], planner: str, point: Point) -> float:
    """log₁₀ of published over certified calls."""
    return prices[(planner, "paper", *point)] - prices[(planner, "certified", *point)]


NAMED = ("discount", "actions", "temperature", "epsilon")
"""The parameters of a point."""


def _lines(settings: Settings) -> dict[str, tuple[str, Sequence[float]]]:
    """Parameters that vary, by name: what they are called, and their values."""
    return {
        "discount": ("discount γ", settings.discounts),
        "actions": ("actions K", settings.actions),
        "temperature": ("temperature η", settings.temperatures),
        "epsilon": ("accuracy ε", settings.epsilons),
    }


def _point(settings: Mapping[str, Any]) -> Point:
    return settings["discount"], settings["actions"], settings["temperature"], settings["epsilon"]


def _along(settings: Settings, name: str, value: float) -> Point:
    return _point(dict(zip(NAMED, settings.anchor, strict=True)) | {name: value})


STUDY = Study(
    name="constants",
    title="Published constants against ours",
    question="How many simulator calls do the published constants ask for, and how many a certified schedule?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
