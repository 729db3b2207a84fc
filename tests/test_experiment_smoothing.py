"""The experiment `smoothing`: small runs whose claims hold, and claims that notice what is wrong."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smoothplan.experiments import Cell, Row, run
from smoothplan.experiments.smoothing import EXPERIMENT, Settings, evidence, measure
from smoothplan.experiments.smoothing_measures import sailor_reference
from smoothplan.findings import Findings
from smoothplan.models.zoo import COMPASS, sailing

TINY = Settings(
    taus=(0.1, 1.0),
    lams=(0.2,),
    coarse_taus=(1e-2, 1.0),
    fine_taus=(1e-4, 1e-2),
    sailing_taus=(1.0, 5.0),
    models=1,
    searches=1,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoothing")


@pytest.fixture(scope="module")
def findings(folder: Path) -> Findings:
    return run(replace(EXPERIMENT, quick=TINY), "quick", folder)


@pytest.fixture(scope="module")
def rows(folder: Path, findings: Findings) -> list[Row]:
    lines = (folder / "smoothing" / "rows.jsonl").read_text("utf-8").splitlines()
    return [Row(*(json.loads(line)[name] for name in Row._fields)) for line in lines]


def test_it_runs(folder: Path, findings: Findings) -> None:
    assert all(claim.holds for claim in findings.evidence.claims), [c.verdict for c in findings.evidence.claims]
    assert len(findings.evidence.claims) == 9
    assert all((folder / "smoothing" / f"{figure.name}.svg").exists() for figure in findings.evidence.figures)


def changed(rows: list[Row], kind: str, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> list[Row]:
    return [r._replace(result=change(dict(r.result))) if r.settings["kind"] == kind else r for r in rows]


@pytest.mark.parametrize(
    ("kind", "change", "quantity"),
    [
        ("values", lambda r: r | {"entropy_gap": 1.01 * r["entropy_bound"] + 1e-6}, "gap to the entropy backup"),
        ("search", lambda r: r | {"hard_low": -1.01 * r["hard_bound"]}, "gap to the hard maximum"),
        ("values", lambda r: r | {"hard_high": 1.01 * r["range_high"] + 1e-3}, "excess of a gap over the exact range"),
        ("search", lambda r: r | {"range_low": 1.1 * r["range_low"], "range_high": 1.1 * r["range_high"]}, "width"),
        ("values", lambda r: r | {"entropy_gap": r["entropy_gap"] + 1e-6}, "with C ≡ 0"),
        ("limit", lambda r: r | {"error": math.sqrt(r["error"])}, "slope of the error against η: entropy, all"),
        ("limit", lambda r: r | {"error": r["error"] ** 0.3}, "slope of the error against η: entropy, random"),
        ("limit", lambda r: r | {"error": r["error"] ** 1.2}, "slope of the error against τ"),
        ("sailing", lambda r: r | {"near_share": 0.5}, "share of moved mass"),
    ],
)
def test_what_is_wrong_is_noticed(
    rows: list[Row], kind: str, change: Callable[[dict[str, Any]], Mapping[str, Any]], quantity: str
) -> None:
    right, wrong = evidence(TINY, rows), evidence(TINY, changed(rows, kind, change))
    assert [c.holds for c in right.claims if quantity in c.quantity] == [True]
    assert [c.holds for c in wrong.claims if quantity in c.quantity] == [False]


def test_the_sailor_heads_for_the_goal() -> None:
    prior = sailor_reference(sailing(4), 4).reshape(4, 4, 8, 8)
    np.testing.assert_allclose(prior.sum(axis=-1), 1.0)
    assert COMPASS[prior[0, 0, 0].argmax()] == (1, 1)
    assert COMPASS[prior[3, 0, 5].argmax()] == (0, 1)
    assert COMPASS[prior[1, 3, 2].argmax()] == (1, 0)


def test_the_seed_decides() -> None:
    cell = Cell({"kind": "search", "costs": "line", "reference": "peaked", "tau": 1.0, "lam": 0.5}, 1)
    assert measure(cell) == measure(cell) != measure(cell._replace(seed=2))
