"""Errata: what is printed against what is true, where the paper needs mending. Each with a measurement."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from smoothplan.experiments.base import Cell, Experiment, Row
from smoothplan.experiments.errata_evidence import CLIPPINGS, centring, clipping, prices, remainders, values
from smoothplan.experiments.errata_measures import (
    attained_remainders,
    centring_variance,
    clipping_bias,
    log_price,
    value_bounds,
)
from smoothplan.findings import Evidence

ANCHOR = {"temperature": 1.0, "delta": 0.1}
DISCOUNT = 0.2
"""Where γ is not what is varied."""

CLIPPED_REWARDS = ((0.3, 0.6), (0.5, 0.9), (0.1, 0.2))
"""Mean rewards of the two actions, the same in every state."""

REMAINDERS = (("entropy", 2), ("entropy", 5), ("transport", 3))
VALUES = ((2, 0.2, 1.0), (2, 0.9, 0.1), (4, 0.5, 0.5), (8, 0.9, 1.0))
"""K, γ, η of the models whose values are bounded."""

CENTRED_ACTIONS = 4
REWARDS = ("bernoulli", "deterministic")


@dataclass(frozen=True)
class Settings:
    """What is varied in each part."""

    discounts: tuple[float, ...]
    finest_printed: float  # ε
    mended: tuple[float, ...]  # ε: a recursion for prices can be followed as far as one likes
    certified: tuple[float, ...]  # ε
    reference_errors: tuple[float, ...]  # of the references of clipped samples
    clipped_samples: int
    sizes: tuple[float, ...]  # range(Δ)/η of Taylor remainders
    remainders: int  # random instances
    centring_errors: tuple[float, ...]  # of the references of centred samples
    centred_samples: int
    instances: int
    first_seed: int = 0


QUICK = Settings(
    discounts=(0.04, 0.1, 0.2, 0.3, 0.5, 0.9),
    finest_printed=1e-8,
    mended=tuple(10.0**-power for power in range(2, 51, 6)),
    certified=tuple(10.0 ** -(half / 2.0) for half in range(6, 13)),
    reference_errors=(0.01, 0.03, 0.1, 0.3, 1.0),
    clipped_samples=500_000,
    sizes=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    remainders=20_000,
    centring_errors=(0.03, 0.1, 0.3, 1.0),
    centred_samples=50_000,
    instances=6,
)
FULL = Settings(
    discounts=(0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9),
    finest_printed=1e-10,
    mended=tuple(10.0**-power for power in range(2, 101, 3)),
    certified=tuple(10.0 ** -(half / 2.0) for half in range(6, 16)),
    reference_errors=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    clipped_samples=100_000_000,
    sizes=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
    remainders=1_000_000,
    centring_errors=(0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.6, 1.0),
    centred_samples=2_000_000,
    instances=40,
)


def printed_epsilons(discount: float, finest: float) -> list[float]:
    """About one for each factor of ten, from 0.01 on. Their ratio is a power of √γ, for prices rise in such steps."""
    steps = max(1, round(2.0 * math.log(10.0) / math.log(1.0 / discount)))
    ratio = discount ** (steps / 2.0)
    return [0.01 * ratio**k for k in range(math.floor(math.log(finest / 0.01) / math.log(ratio)) + 1)]


def cells(settings: Settings) -> Iterator[Cell]:
    """All parts, one after the other."""
    seed = settings.first_seed
    for discount in settings.discounts:
        accuracies = {
            "printed": printed_epsilons(discount, settings.finest_printed),
            "mended": settings.mended,
            "certified": settings.certified,
        }
        for variant, epsilons in accuracies.items():
            for epsilon in epsilons:
                price = {"variant": variant, "discount": discount, "epsilon": epsilon, **ANCHOR}
                yield Cell({"part": "price", **price}, seed=0)
    for kind in CLIPPINGS:
        for number, (error, rewards) in enumerate(product(settings.reference_errors, CLIPPED_REWARDS)):
            clipped = {"clipping": kind, "error": error, "rewards": rewards, "samples": settings.clipped_samples}
            yield Cell({"part": "clip", **clipped}, seed + number)
    for actions, discount, temperature in VALUES:
        yield Cell({"part": "values", "actions": actions, "discount": discount, "temperature": temperature}, seed)
    for kind, actions in REMAINDERS:
        for size in settings.sizes:
            instances = {"kind": kind, "actions": actions, "size": size, "count": settings.remainders}
            yield Cell({"part": "remainder", **instances}, seed)
    for rewards_kind in REWARDS:
        for error in settings.centring_errors:
            for instance in range(settings.instances):
                for subtracted in ("action", "policy"):
                    centred = {"centring": subtracted, "rewards": rewards_kind, "error": error}
                    yield Cell({"part": "centring", **centred, "samples": settings.centred_samples}, seed + instance)


def measure(cell: Cell) -> Mapping[str, Any]:
    """One price, one batch of samples, or one search for extremes."""
    s = dict(cell.settings)
    match s.pop("part"):
        case "price":
            return {"log_calls": log_price(**s)}
        case "clip":
            s["rewards"] = np.array(s["rewards"])
            return clipping_bias(**s, temperature=ANCHOR["temperature"], discount=DISCOUNT, seed=cell.seed)
        case "values":
            return value_bounds(**s, seed=cell.seed)
        case "remainder":
            return attained_remainders(**s, seed=cell.seed)
        case _:
            return centring_variance(
                **s, actions=CENTRED_ACTIONS, discount=DISCOUNT, temperature=ANCHOR["temperature"], seed=cell.seed
            )


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """All parts together."""
    parts = [show(rows) for show in (prices, clipping, values, remainders, centring)]
    return Evidence(
        claims=[claim for part in parts for claim in part.claims],
        figures=[figure for part in parts for figure in part.figures],
        tables=[table for part in parts for table in part.tables],
        notes=[note for part in parts for note in part.notes],
    )


EXPERIMENT = Experiment(
    name="errata",
    title="What is printed, and what is true",
    question="Where the paper needs mending, what does the printed version do, and what does the mended one?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
