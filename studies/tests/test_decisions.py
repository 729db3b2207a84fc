"""The study of decisions: its rows, what it finds, and claims that notice what is wrong."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from studies import decisions
from studies.base import Cell, Row
from studies.findings import Findings
from studies.tests.studied import small_run
from studies.textbook import REPORTED_ON

TINY = decisions.Settings(budgets=(300, 600), states=2, seeds=2, problems=("machine", "admission"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Findings]:
    return small_run(decisions.STUDY, TINY, tmp_path_factory.mktemp("decisions"))


def test_rows_have_what_findings_need(small: tuple[list[Row], Findings]) -> None:
    rows = small[0]
    assert len(rows) == 2 * 2 * 2 * 2 * 2
    for row in rows:
        found, actions = row.result, REPORTED_ON[row.settings["problem"]]().actions
        assert 0.0 <= found["regret"] <= 1.0
        assert 0.0 < found["calls"] <= 1.0
        assert found["gap"] >= 0.0
        assert found["estimated"] is None or found["estimated"] >= 0.0
        assert not (found["estimated"] is None and found["underestimated"])  # infinity is below nothing
        for name, most in (("q", actions), ("differences", actions - 1)):
            known, outside = found[name]["known"], found[name]["outside"]
            assert most >= known >= outside[0] >= outside[1] >= outside[2] >= 0
    assert any(row.result["q"]["known"] > 0 for row in rows)
    assert {type(row.result["warned"]) for row in rows} == {bool}


def test_findings_have_all_problems_and_budgets(small: tuple[list[Row], Findings]) -> None:
    evidence = small[1].evidence
    assert len(evidence.claims) == 4
    assert [series.name for series in evidence.figures[0].series] == ["machine", "admission"]
    assert all(len(series.x) == 2 for series in evidence.figures[0].series)
    assert [len(table.rows) for table in evidence.tables] == [2, 2, 2, 2]
    assert len(evidence.tables[0].columns) == 1 + 2 * 2
    assert Findings.from_json(small[1].to_json()).evidence.tables[2].columns[0] == "calls"


def test_a_row_says_what_the_decision_says() -> None:
    """All that `decide` gives, once more by hand."""
    name, calls, seed = "machine", 600, 1
    found = decisions.measure(Cell({"problem": name, "kind": "floats", "budget": calls, "state": 0}, seed))
    task = REPORTED_ON[name]()
    state = task.met(1)[0]
    decision = sp.decide(task.model(), state.astype(float), calls=calls, seed=seed)
    assert decision.action is not None
    best = task.q[task.number(state[None])[0]]
    assert found["regret"] == pytest.approx((best.max() - best[decision.action]) / np.ptp(best))
    assert found["calls"] == decision.calls / calls
    assert found["warned"] == bool(decision.warnings)
    assert found["policy"] == type(decision.reference).__name__
    assert found["q"]["known"] == np.isfinite(decision.q_errors).sum()


def test_deviations_are_counted_in_standard_errors() -> None:
    """An infinite error is no error, and rounding is allowed for where nothing is random."""
    deviations, errors = np.array([0.5, -1.2, 2.0, -3.0, 99.0, 1e-9]), np.array([1.0, 1.0, 1.0, 1.0, np.inf, 0.0])
    assert decisions.far_off(deviations, errors, 1e-8) == {"known": 5, "outside": [3, 2, 1]}
    assert decisions.far_off(deviations, errors, 1e-10) == {"known": 5, "outside": [4, 3, 2]}


def good(settings: Mapping[str, Any]) -> float:
    """A regret as it should be."""
    return 0.015 if settings["budget"] == min(TINY.budgets) else 0.005


def planted(regret: Callable[[Mapping[str, Any]], float], warned: bool = False) -> list[bool]:
    """Verdicts on decisions with such regrets: calls help, kinds are alike, regrets are small, losses are told."""
    none = {"known": 0, "outside": [0, 0, 0]}
    rest = {"calls": 1.0, "estimated": None, "gap": 0.0, "underestimated": False, "policy": "NoneType", "cpu": 0.1}
    rows = []
    for number, cell in enumerate(decisions.cells(TINY)):
        loss = regret(cell.settings) + 1e-4 * (number % 3)
        found = {"regret": loss, "warned": warned, "q": none, "differences": none, **rest}
        rows.append(Row(cell.settings, cell.seed, found, 0.1))
    return [claim.holds for claim in decisions.evidence(TINY, rows).claims]


def test_claims_hold_or_fail_as_they_should() -> None:
    assert planted(good) == [True, True, True, True]
    assert planted(lambda s: 0.01 - 0.5 * good(s)) == [False, True, True, True]
    assert planted(lambda s: (3.0 if s["kind"] == "floats" else 1.0) * good(s) / 3.0) == [True, False, True, True]
    assert planted(lambda s: (3.0 if s["kind"] != "floats" else 1.0) * good(s) / 3.0) == [True, False, True, True]
    assert planted(lambda s: good(s) + 0.01 * (s["problem"] == "machine"), warned=True) == [True, True, False, True]
    assert planted(lambda s: good(s) + 0.01 * (s["budget"] == 300)) == [True, True, True, False]
    assert planted(lambda s: 0.5 + s["budget"] / 6e3) == [False, True, False, False]


def test_a_rise_within_two_standard_errors_may_be_noise() -> None:
    def rising(settings: Mapping[str, Any]) -> float:
        later = settings["budget"] == 600 and settings["state"] == 0
        return good(settings) + (0.03 if later else 0.0)

    assert planted(rising, warned=True) == [True, True, False, True]


def test_regrets_that_are_next_to_nothing_are_alike() -> None:
    assert planted(lambda s: 5e-4 if s["kind"] == "floats" else 0.0) == [True] * 4
