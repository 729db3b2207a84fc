"""Summaries, tables and notebook displays of results."""

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import smoothplan as sp
from smoothplan import cli, report
from smoothplan.base.records import Record, plain
from tests.common import identified
from tests.report.conftest import HOSTILE


def test_every_record_has_a_line_a_summary_a_page_and_json(records: dict[str, Any]) -> None:
    for name, record in records.items():
        assert re.fullmatch(rf"{type(record).__name__}\(.*\)", repr(record)), name
        assert len(repr(record)) < 240
        assert record.summary()
        assert record._repr_html_().count("\n") + 1 >= record.summary().count("\n")
        assert isinstance(json.loads(record.to_json(), parse_constant=pytest.fail), dict)
    assert f"gap {identified(records['search']).gap:.4g}" in repr(records["search"])


def test_results_do_not_import_the_report_before_it_is_asked_for() -> None:
    code = "import smoothplan, sys; assert not any(name.startswith('smoothplan.report') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_record_is_refused() -> None:
    for render in (report.summary, report.table, report.figure):
        with pytest.raises(TypeError, match="Record has no"):
            render(Record())


def test_json_has_the_types_of_json() -> None:
    found = plain({"a": np.array([1.0, np.nan]), "b": (np.int64(3), float("inf")), "c": None, "d": "x"})
    assert found == {"a": [1.0, None], "b": [3, None], "c": None, "d": "x"}


def test_a_summary_is_what_the_command_line_prints() -> None:
    printed = io.StringIO()
    words = "--model garnet:states=20,discount=0.2,seed=1 --backup hard-max --planner ot-gape:epsilon=0.3 --seed 3"
    with contextlib.redirect_stdout(printed):
        assert cli.main(["plan", *words.split(), "--quiet"]) == 0
    model = sp.models.garnet(states=20, discount=0.2, seed=1)
    result = sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.3), model, seed=3)
    assert result.q_intervals is not None
    assert _without_time(printed.getvalue()) == _without_time(result.summary() + "\n")


def _without_time(text: str) -> str:
    return re.sub(r"\d+\.\d\d s", "", text)


def test_a_summary_says_what_an_interval_rests_on(records: dict[str, Any]) -> None:
    words = {
        "value": "with probability at least 0.9",
        "search": "with probability at least 0.9",
        "tree": "by what the model declares",
        "chains": "with probability at least 0.9; at most",
    }
    for name, expected in words.items():
        assert expected in records[name].summary().splitlines()[0], name
    assert records["unregularised"].summary().count("with probability at least 0.9") == 1
    doubtful = replace(records["search"], details=replace(identified(records["search"]), certified=False))
    assert "probability" not in doubtful.summary()
    assert doubtful.summary().count("(estimate: thresholds do not cover delta)") == 2


def test_pages_need_no_plotly_and_cannot_be_broken_into(
    monkeypatch: pytest.MonkeyPatch, records: dict[str, Any], decision: Callable[..., sp.PlanResult]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    hostile = [replace(records[name], names=(HOSTILE, HOSTILE)) for name in ("value", "search")]
    hostile += [decision(), decision(action=None), records["comparison"]]
    for record in [*records.values(), *hostile]:
        page = record._repr_html_()
        assert not re.search(r"<script|[ \n]on\w+=|(?:href|src)=|url\(|@import|https?://|\x00", page)
        assert ET.fromstring(page).tag == "pre"  # every tag is closed
    assert "&lt;script&gt;" in hostile[0]._repr_html_()
    assert decision().summary().startswith("warning: ")
    with pytest.raises(ImportError, match=re.escape('pip install "smoothplan[plots]"')):
        records["value"].figure()
