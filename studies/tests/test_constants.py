"""The study of constants: end to end in small, and that what is dear or cheap in the wrong place is noticed."""

import pytest

from studies import constants
from studies.base import Row
from studies.findings import Findings
from studies.tests.studied import changed, small_run

TINY = constants.Settings(discounts=(0.1, 0.2), actions=(2, 3), temperatures=(0.1, 1.0), epsilons=(0.1, 0.01))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Findings]:
    return small_run(constants.STUDY, TINY, tmp_path_factory.mktemp("constants"))


def test_all_claims_hold_and_every_planner_is_shown(small: tuple[list[Row], Findings]) -> None:
    evidence = small[1].evidence
    assert all(claim.holds for claim in evidence.claims)
    assert [len(figure.series) for figure in evidence.figures] == [7, 7, 7, 7]
    assert [row[0] for row in evidence.tables[0].rows] == [*constants.PLANNERS, constants.DEBIASED]


@pytest.mark.parametrize(
    ("planner", "variant", "log10_calls", "statement"),
    [
        ("SmoothCruiser", "paper", 12.0, "SmoothCruiser's published"),
        ("SmoothCruiser", "certified", 12.0, "Careful"),
        (constants.DEBIASED, "certified", 12.0, "DebiasedCruiser is never"),
    ],
)
def test_wrong_prices_are_noticed(
    small: tuple[list[Row], Findings], planner: str, variant: str, log10_calls: float, statement: str
) -> None:
    rows = changed(small[0], lambda s, r: {"log10_calls": log10_calls}, planner=planner, variant=variant)
    (found,) = [claim.statement for claim in constants.evidence(TINY, rows).claims if not claim.holds]
    assert found.startswith(statement)
