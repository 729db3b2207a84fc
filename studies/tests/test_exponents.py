"""The study of exponents: end to end in small, and that wrong exponents are called wrong."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smoothplan.models.zoo import garnet
from smoothplan.theory import curvature, exact
from smoothplan.theory.backups import LogSumExp
from studies import exponents
from studies.base import Row
from studies.exponents import DEBIASED, FIRST, MULTILEVEL, ONE_TERM, SECOND, SPARSE, Prices
from studies.fits import exponent_beside_logs, power_law
from studies.tests.studied import small_run, verdict

TINY = exponents.Settings(
    forecasts=(1e-3, 8e-4, 6e-4),
    runs=(*((planner, (0.2, 0.1)) for planner in exponents.SCHEDULED), (MULTILEVEL, (0.05, 0.02))),
    instances=1,
    repeats=2,
    depth=1,
)

Growth = Callable[[str, float], float]
"""log price of a planner at log 1/ε."""


def theory(planner: str, x: float) -> float:
    """Prices as the theory has them, logarithms and all."""
    if planner == SPARSE:
        return 2.0 * x + x**2 / (2.0 * math.log(1.0 / exponents.QUICK.discount))
    if planner == MULTILEVEL:
        return 2.0 * x
    # More kinds of levels are cheaper, whatever ε is.
    return (
        curvature.total_exponent(exponents.BETA[planner]) * x
        - 2.0 * math.log(x)
        - 30.0 * list(exponents.KINDS).index(planner)
    )


def rows(growth: Growth = theory, calls: Growth = theory, error: float = 1.0) -> list[Row]:
    """Rows with prices that grow as given, runs that save a third of theirs, and errors a power of ε."""
    made = []
    for cell in exponents.cells(exponents.QUICK):
        planner, epsilon = cell.settings["planner"], cell.settings["epsilon"]
        x = math.log(1.0 / epsilon)
        result = {"log_forecast": growth(planner, x)}
        if cell.settings["kind"] == "run":
            result |= {
                "calls": math.exp(calls(planner, x)) / 1.5,
                "error": 0.3 * 0.01 ** (1.0 - error) * epsilon**error,
            }
        made.append(Row(cell.settings, cell.seed, result, 0.0))
    return made


def failing(made: list[Row]) -> set[str]:
    """The quantities of the claims that do not hold."""
    return {claim.quantity for claim in exponents.evidence(exponents.QUICK, made).claims if not claim.holds}


def test_it_runs(tmp_path: Path) -> None:
    findings = small_run(exponents.STUDY, TINY, tmp_path)[1]
    assert findings.rows == (5 + 4 + 4) * 3 + 5 * 2 * 2
    assert [len(figure.series) for figure in findings.evidence.figures] == [7, 6, 6, 6, 8, 6]
    fine = [claim for claim in findings.evidence.claims if claim.quantity.startswith("exponent of the forecast")]
    assert len(fine) == 4 + 3 + 3
    assert verdict(findings.evidence, "with fewer kinds")


def changed(planner: str, change: Growth) -> Growth:
    """The theory, but for one planner."""
    return lambda name, x: theory(name, x) + (change(name, x) if name == planner else 0.0)


@pytest.mark.parametrize(
    ("planner", "wrong"), [(SPARSE, 6.0), (FIRST, 3.0), (SECOND, 4.0), (ONE_TERM, 4.0), (DEBIASED, 4.0)]
)
def test_a_wrong_exponent_is_found(planner: str, wrong: float) -> None:
    """Of both forecasts and runs; and the right one is accepted."""
    assert failing(rows()) == set()
    lower = 30.0 * list(exponents.KINDS).index(planner)
    planted = changed(planner, lambda name, x: wrong * x - lower - theory(name, x))
    found = failing(rows(planted, planted))
    assert found
    assert all(planner in quantity for quantity in found)


@pytest.mark.parametrize("planner", [SPARSE, FIRST, SECOND, DEBIASED, MULTILEVEL])
def test_runs_that_grow_faster_than_their_forecasts_are_found(planner: str) -> None:
    found = failing(rows(calls=changed(planner, lambda _, x: 0.5 * x)))
    assert found
    assert all(planner in quantity for quantity in found)


@pytest.mark.parametrize(
    ("planner", "change", "error", "words", "count"),
    [
        (DEBIASED, lambda _, x: x, 1.0, "slope of the forecast of SmoothCruiser", 3),  # not flatter than the others
        (SECOND, lambda _, x: 50.0, 1.0, "largest price over that with fewer kinds of levels", 1),
        (SECOND, lambda _, x: 0.0, 0.0, "slope of root mean square errors", 5),
    ],
)
def test_other_claims_that_are_wrong_are_found(
    planner: str, change: Growth, error: float, words: str, count: int
) -> None:
    growth = changed(planner, change)
    assert sum(quantity.startswith(words) for quantity in failing(rows(growth, growth, error))) == count


def test_where_more_kinds_of_levels_pay() -> None:
    fewer = Prices([0.1, 0.01, 0.001, 0.0001], [1.0, 2.0, 3.0, 4.0])
    for savings, start in (([0.1, 0.0, 0.1, 0.1], 0.001), ([0.1] * 4, 0.1), ([0.1, 0.1, 0.1, 0.04], None)):
        more = Prices(fewer.epsilons, np.subtract(fewer.logs, savings).tolist())
        assert more.pays_from(fewer) == start
    assert fewer.slope(0.1, 0.001) == pytest.approx(2.0 / math.log(100.0))


def test_the_target_of_a_deep_truncation_is_the_value() -> None:
    model, backup = garnet(states=8, actions=3, branching=3, discount=0.5, seed=3), LogSumExp(0.4)
    solution = exact.solve(model, backup)
    deep = exponents.truncated_values(model, backup, 60)
    np.testing.assert_allclose(deep, solution.values, atol=1e-7)
    shallow = exponents.truncated_values(model, backup, 1)
    assert np.abs(shallow - solution.values).max() > 1e-3


def test_an_exponent_beside_logarithms() -> None:
    x = np.geomspace(1e3, 1e9, 13)
    for p, q in ((4.0, -2.7), (3.0, 1.5), (2.0, 0.0)):
        assert exponent_beside_logs(x.tolist(), (p * np.log(x) + q * np.log(np.log(x))).tolist()) == pytest.approx(p)
    with pytest.raises(ValueError, match="at least 3"):
        exponent_beside_logs([10.0, 100.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="greater than 1"):
        exponent_beside_logs([1.0, 10.0, 100.0], [1.0, 2.0, 3.0])


def test_a_power_law_of_root_mean_squares() -> None:
    """A sample of next to nothing moves a geometric mean, and no root mean square."""
    samples = [[3.0, 4.0], [6.0, 8.0], [12.0, 16.0]]
    assert power_law([1.0, 2.0, 4.0], samples, "square").slope == pytest.approx(1.0)
    assert power_law([1.0, 2.0, 4.0], samples, "square").intercept == pytest.approx(math.log(math.sqrt(12.5)))
    samples[2].append(1e-9)
    assert power_law([1.0, 2.0, 4.0], samples).slope < 0.0 < power_law([1.0, 2.0, 4.0], samples, "square").slope
