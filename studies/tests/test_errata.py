"""The study of the errata: end to end in small, and that the printed version is not mistaken for the truth."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from smoothplan.models.zoo import garnet
from smoothplan.theory import exact
from smoothplan.theory.backups import LogSumExp
from smoothplan.theory.curvature import Problem
from studies import errata
from studies.base import Row
from studies.errata import prices
from studies.errata_measures import (
    clipping_bias,
    ladder_price,
    level_field,
    predicted_exponent,
    price,
    printed_epsilons,
)
from studies.findings import Findings
from studies.tests.studied import Change, changed, small_run

TINY = errata.Settings(
    discounts=(0.1, 0.2),
    finest_printed=1e-5,
    mended=(1e-2, 1e-4, 1e-8, 1e-16),
    certified=(1e-2, 7e-3, 5e-3),
    reference_errors=(0.03, 0.1),
    clipped_samples=20_000,
    sizes=(0.1, 1.0),
    remainders=2_000,
    centring_errors=(0.1,),
    centred_samples=2_000,
    instances=2,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Findings]:
    return small_run(errata.STUDY, TINY, tmp_path_factory.mktemp("errata"))


def failing(rows: list[Row]) -> set[str]:
    """The statements that do not hold."""
    return {claim.statement for claim in errata.evidence(TINY, rows).claims if not claim.holds}


def test_it_runs(small: tuple[list[Row], Findings]) -> None:
    rows, evidence = small[0], small[1].evidence
    assert len(rows) == len(list(errata.cells(TINY)))
    assert {figure.name for figure in evidence.figures} == {
        f"errata-{name}" for name in ("prices", "jump", "supports", "clipping", "remainders", "centring")
    }
    # What needs no long range of ε, and no many samples, holds in small too.
    sure = ("All", "That bound", "The Taylor", "B =", "[(r_lo", "The printed bound", "Sampled", "Without clipping")
    for claim in evidence.claims:
        assert claim.holds or not claim.statement.startswith((*sure, "Their", "Those")), claim.verdict


@pytest.mark.parametrize(
    ("part", "change", "statements", "count"),
    [
        ("clip", lambda s, r: {"bias": s["error"] ** 3, "exact": s["error"] ** 3}, ("Clipped",), 1),
        ("clip", lambda s, r: {"exact": s["error"] ** 2}, ("Without", "Sampled"), 2),
        ("values", lambda s, r: {"largest": r["high"] + 0.1}, ("[(r_lo",), 1),
        ("values", lambda s, r: {"largest": r["printed"]}, ("B =",), 1),
        ("remainder", lambda s, r: {"first": 1.01, "second": 1.01}, ("The Taylor",), 2),
        ("remainder", lambda s, r: {"first": 0.9, "second": 0.9}, ("That bound",), 2),
        ("centring", lambda s, r: {"variance": 0.2}, ("X_A", "Where rewards", "The difference"), 3),
    ],
)
def test_what_is_wrong_is_noticed(
    small: tuple[list[Row], Findings], part: str, change: Change, statements: tuple[str, ...], count: int
) -> None:
    """A bias that vanishes under clipping, a value outside, a remainder above its bound, centrings that are alike."""
    wrong = failing(changed(small[0], change, part=part))
    assert len({statement for statement in wrong if statement.startswith(statements)}) == count


Exponent = Callable[[float], float]
"""Of a price, for a γ."""

SUPPORTS = {"pairs": 0.9, "debiased": 0.05}
"""Exponents of the widest supports."""


def price_rows(exponents: Mapping[str, Exponent], supports: Mapping[str, float] = SUPPORTS) -> list[Row]:
    """Rows of prices with given exponents for each variant and γ."""
    rows = []
    for cell in errata.cells(errata.QUICK):
        s = cell.settings
        if s["part"] == "price":
            result = {"log_calls": -exponents[s["variant"]](s["discount"]) * math.log(s["epsilon"])}
            if s["variant"] in supports:
                result["support"] = s["epsilon"] ** -supports[s["variant"]]
            rows.append(Row(s, 0, result, 0.0))
    return rows


def three(discount: float) -> float:
    return 3.0


RIGHT: dict[str, Exponent] = {
    "printed": predicted_exponent,
    "mended": three,
    "pairs": three,
    "debiased": lambda discount: 8.0 / 3.0,  # on the way to 3
}


def failing_prices(rows: list[Row]) -> list[str]:
    return [claim.statement for claim in prices(rows).claims if not claim.holds]


def test_an_exponent_of_three_as_printed_would_be_found() -> None:
    assert failing_prices(price_rows(RIGHT)) == []
    for variant in RIGHT:
        wrong = three if variant == "printed" else predicted_exponent
        assert len(failing_prices(price_rows({**RIGHT, variant: wrong}))) == 1


def test_a_jump_and_wide_supports_would_be_found() -> None:
    def jump(settings: Mapping[str, Any], result: dict[str, Any]) -> Mapping[str, Any]:
        return {"log_calls": result["log_calls"] + (3.0 if settings["epsilon"] < 1e-5 else 0.0)}

    jumping = changed(price_rows(RIGHT), jump, variant="debiased", discount=0.5)
    assert "Their local slopes do not jump." in failing_prices(jumping)
    (wide,) = failing_prices(price_rows(RIGHT, {**SUPPORTS, "debiased": 0.5}))
    (narrow,) = failing_prices(price_rows(RIGHT, {**SUPPORTS, "pairs": 0.1}))
    assert wide.startswith("Those of debiased levels")
    assert narrow.startswith("Supports are why")


@pytest.mark.parametrize("discount", [0.1, 0.5])
def test_the_recursion_for_prices_is_the_printed_schedule(discount: float) -> None:
    """Unmended it must agree with the forecast, up to what rounding accuracies to a grid costs."""
    model = garnet(states=10, actions=2, branching=2, discount=discount, reward_kind="bernoulli")
    problem = Problem.of(model, LogSumExp(1.0))
    for epsilon in printed_epsilons(discount, 1e-6):
        ours = ladder_price(problem, epsilon, 0.1, coarse_pairs=False)
        assert ours == pytest.approx(price("printed", discount, epsilon, 1.0, 0.1)["log_calls"], abs=1.0)
        assert ladder_price(problem, epsilon, 0.1, coarse_pairs=True) < ours


def test_supports_are_those_of_the_levels() -> None:
    """Pairs have wider ones than debiased levels, which are a few times as wide as the value interval."""
    pairs, debiased = (price(variant, 0.5, 1e-4, 1.0, 0.1) for variant in ("pairs", "debiased"))
    assert pairs["support"] > 100.0 > 20.0 > debiased["support"] > 1.0
    assert debiased["log_calls"] < pairs["log_calls"]


def test_on_a_level_field_all_states_have_the_value_that_is_claimed() -> None:
    rewards, backup = np.array([0.2, 0.7]), LogSumExp(0.5)
    values = exact.solve(level_field(rewards, 0.4, states=10, seed=1), backup).values
    np.testing.assert_allclose(values, float(backup.value(rewards)) / 0.6, atol=1e-7)


def test_biases_are_enumerated_right() -> None:
    """Sampled biases are within 5.5 standard errors: a false alarm once in 2e7 for each of four."""
    for kind, error in (("none", 1.0), ("values", 1.0), ("values", 0.1), ("printed", 0.1)):
        found = clipping_bias(kind, error, np.array([0.5, 0.9]), 1.0, 0.2, samples=100_000, seed=3)  # type: ignore[arg-type]
        assert abs(found["bias"] - found["exact"]) < 5.5 * found["standard_error"]
        assert abs(found["exact"]) > 5e-4
