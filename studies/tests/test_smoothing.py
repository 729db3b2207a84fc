"""The study `smoothing`: small runs whose claims hold, and claims that notice what is wrong."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smoothplan.models.zoo import COMPASS, sailing
from studies.base import Row, run
from studies.findings import Findings
from studies.smoothing import STUDY, Settings, sailor_reference
from studies.tests.studied import Change, changed, small_run, verdict

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
def small(folder: Path) -> tuple[list[Row], Findings]:
    return small_run(STUDY, TINY, folder)


def test_it_runs(small: tuple[list[Row], Findings], folder: Path) -> None:
    claims = small[1].evidence.claims
    assert all(claim.holds for claim in claims), [claim.verdict for claim in claims]
    assert len(claims) == 9
    told: list[Any] = []
    run(replace(STUDY, quick=TINY), "quick", folder, lambda *what: told.append(what))
    assert told == []  # what has been cached meanwhile is no part of the version


@pytest.mark.parametrize(
    ("kind", "change", "quantity"),
    [
        ("values", lambda _, r: {"entropy_gap": 1.01 * r["entropy_bound"] + 1e-6}, "gap to the entropy backup"),
        ("search", lambda _, r: {"hard_low": -1.01 * r["hard_bound"]}, "gap to the hard maximum"),
        ("values", lambda _, r: {"hard_high": 1.01 * r["range_high"] + 1e-3}, "excess of a gap over the exact range"),
        ("search", lambda _, r: {"range_low": 1.1 * r["range_low"], "range_high": 1.1 * r["range_high"]}, "width"),
        ("values", lambda _, r: {"entropy_gap": r["entropy_gap"] + 1e-6}, "with C ≡ 0"),
        ("limit", lambda _, r: {"error": math.sqrt(r["error"])}, "slope of the error against η: entropy, all"),
        ("limit", lambda _, r: {"error": r["error"] ** 0.3}, "slope of the error against η: entropy, random"),
        ("limit", lambda _, r: {"error": r["error"] ** 1.2}, "slope of the error against τ"),
        ("sailing", lambda _, r: {"near_share": 0.5}, "share of moved mass"),
    ],
)
def test_what_is_wrong_is_noticed(small: tuple[list[Row], Findings], kind: str, change: Change, quantity: str) -> None:
    assert verdict(small[1].evidence, quantity)
    assert not verdict(STUDY.evidence(TINY, changed(small[0], change, kind=kind)), quantity)


def test_the_sailor_heads_for_the_goal() -> None:
    prior = sailor_reference(sailing(4), 4).reshape(4, 4, 8, 8)
    np.testing.assert_allclose(prior.sum(axis=-1), 1.0)
    assert COMPASS[prior[0, 0, 0].argmax()] == (1, 1)
    assert COMPASS[prior[3, 0, 5].argmax()] == (0, 1)
    assert COMPASS[prior[1, 3, 2].argmax()] == (1, 0)
