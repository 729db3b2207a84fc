"""The study of exponents: end to end in small, and that wrong exponents are called wrong."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smoothplan import exact
from smoothplan.backups import LogSumExp
from smoothplan.models.zoo import garnet
from studies import exponents
from studies.base import Row
from studies.exponents import FIRST, MULTILEVEL, SECOND, SPARSE
from studies.fits import exponent_beside_logs, power_law
from tests.studied import small_run

TINY = exponents.Settings(
    forecasts=(1e-3, 8e-4, 6e-4),
    runs=((SPARSE, (0.2, 0.1)), (FIRST, (0.2, 0.1)), (SECOND, (0.2, 0.1)), (MULTILEVEL, (0.05, 0.02))),
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
    return {FIRST: 4.0, SECOND: 3.0, MULTILEVEL: 2.0}[planner] * x - 2.0 * math.log(x)


def rows(growth: Growth = theory, calls: Growth = theory, error: float = 1.0) -> list[Row]:
    """Rows with prices that grow as given, runs that save a third of theirs, and errors a power of ε."""
    made = []
    for cell in exponents.cells(exponents.QUICK):
        planner, epsilon = cell.settings["planner"], cell.settings["epsilon"]
        x = math.log(1.0 / epsilon)
        result = {"log_forecast": growth(planner, x)}
        if cell.settings["kind"] == "run":
            made_calls = calls(planner, x) if planner != MULTILEVEL else calls(planner, x) + 2.0 * math.log(x)
            result |= {"calls": math.exp(made_calls) / 1.5, "error": 0.3 * 0.01 ** (1.0 - error) * epsilon**error}
        made.append(Row(cell.settings, cell.seed, result, 0.0))
    return made


def failing(made: list[Row]) -> set[str]:
    """The quantities of the claims that do not hold."""
    return {claim.quantity for claim in exponents.evidence(exponents.QUICK, made).claims if not claim.holds}


def test_it_runs(tmp_path: Path) -> None:
    findings = small_run(exponents.STUDY, TINY, tmp_path)[1]
    assert findings.rows == 3 * 3 + 4 * 2 * 2
    assert [len(figure.series) for figure in findings.evidence.figures] == [5, 6, 5]
    fine = [claim for claim in findings.evidence.claims if claim.quantity.startswith("exponent of the forecast")]
    assert len(fine) == 2


def test_growth_as_in_theory_is_accepted() -> None:
    assert failing(rows()) == set()


@pytest.mark.parametrize(
    ("planner", "wrong", "where"),
    [
        *((SPARSE, 6.0, "forecast"), (FIRST, 3.0, "forecast"), (SECOND, 4.0, "forecast")),
        *((planner, None, "runs") for planner in (SPARSE, FIRST, SECOND, MULTILEVEL)),
    ],
)
def test_a_wrong_exponent_is_found(planner: str, wrong: float | None, where: str) -> None:
    """A wrong exponent of both forecasts and runs, or runs that grow faster than their forecasts by ε^(−1/2)."""

    def planted(name: str, x: float) -> float:
        right = theory(name, x)
        return right if name != planner else right + 0.5 * x if wrong is None else wrong * x

    (found,) = failing(rows(planted, planted) if where == "forecast" else rows(calls=planted))
    assert planner in found


def test_errors_that_do_not_shrink_with_epsilon_are_found() -> None:
    found = failing(rows(error=0.0))
    assert sum(quantity.startswith("slope of root mean square errors") for quantity in found) == 4


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
