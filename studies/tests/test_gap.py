"""The study of gaps: it runs to the end, and a wrong exponent or wrong answers do not pass."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import smoothplan as sp
from studies import gap
from studies.base import Cell, Row
from studies.tests.studied import small_run

TINY = gap.Settings(
    instances=1,
    roots=2,
    epsilons=(1.0, 0.5),
    seeds=1,
    search_scales=(0.32, 0.16),
    cruiser_scales=(0.32, 0.16),
    ladder_scales=(2.0**-12, 2.0**-13),
    states=200,
    refusal_calls=1_000,
)
PLANTED = replace(TINY, roots=8, search_scales=(0.32, 0.16, 0.08, 0.04), cruiser_scales=(0.32, 0.16, 0.08, 0.04, 0.02))


def test_it_runs_to_the_end(tmp_path: Path) -> None:
    rows, findings = small_run(gap.STUDY, TINY, tmp_path)
    assert len(rows) == len(list(gap.cells(TINY)))
    claims = {claim.quantity: claim for claim in findings.evidence.claims}
    assert claims[gap.WRONG].measured == 0.0
    assert any("refused" in note and "short horizons" in note for note in findings.evidence.notes)
    names = [figure.name for figure in findings.evidence.figures]
    assert names == ["gap-fresh", "gap-twins-gap", "gap-twins-accuracy"]


@pytest.mark.parametrize("difference", [0.0, 0.1])
@pytest.mark.parametrize("backup", [sp.HardMax(), sp.LogSumExp(1.0)])
def test_twins_differ_by_the_gap(difference: float, backup: Any) -> None:
    best, other = sp.exact.solve(gap.twins(difference), backup).q[0]
    assert best - other == pytest.approx(difference, abs=1e-12)


def planted(exponents: dict[str, float], regret: Callable[[Cell], float] = lambda cell: 0.0) -> dict[str, bool]:
    """Whether each claim holds where calls follow such exponents, on models ("garnet") and by planner (twins)."""
    rows = []
    for cell in gap.cells(PLANTED):
        s = cell.settings
        if s["family"] in ("ladder", "refusal"):
            rows.append(Row(s, cell.seed, gap.measure(cell), 0.0))
            continue
        fresh = s["family"] == "garnet"
        scale = s["epsilon"] if fresh else s["scale"]
        exponent = exponents[s["family"] if fresh else s["planner"]]
        found = {"status": "converged", "gap": 0.0, "epsilon": scale, "regret": regret(cell)}
        rows.append(Row(s, cell.seed, {"calls": 100.0 * scale**-exponent, **found}, 0.0))
    evidence = gap.evidence(PLANTED, rows)
    return {claim.quantity: claim.holds for claim in evidence.claims}


RIGHT = {"garnet": 3.0, "MDPGapE": 2.1, "OTGapE": 2.1, gap.FIRST: 2.6, gap.DEBIASED: 2.4}


def test_what_the_theory_says_passes() -> None:
    assert all(planted(RIGHT).values())


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"garnet": 1.5}, "random models"),
        ({"garnet": 6.5}, "random models"),
        ({"MDPGapE": 1.0, "OTGapE": 3.0}, "E in"),
        ({gap.FIRST: 1.2, gap.DEBIASED: 4.5}, "the calls of OTGapCruiser"),
    ],
)
def test_a_wrong_exponent_does_not_pass(wrong: dict[str, float], where: str) -> None:
    holds = planted(RIGHT | wrong)
    meant = {quantity for quantity in holds if where in quantity and ("twins" in quantity or "random" in where)}
    assert meant
    assert {quantity for quantity, held in holds.items() if not held} == meant


def test_wrong_answers_do_not_pass() -> None:
    holds = planted(RIGHT, lambda cell: 2.0 if cell.settings["planner"] == "OTGapE" else 0.0)
    assert [quantity for quantity, held in holds.items() if not held] == [gap.WRONG]
