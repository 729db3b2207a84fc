"""Summaries, tables, notebook displays and figures of results: the numbers, and what they rest on."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import smoothplan as sp
from smoothplan.base.records import plain
from smoothplan.report import Row, window
from tests.common import identified

HOSTILE = '<script>alert("1")</script> & \x00 it\'s'


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    """One record of each kind."""
    model = sp.models.garnet(states=20, actions=2, branching=2, discount=0.2, seed=1)
    cruiser = sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1)
    chains = sp.ReferenceCruiser(sp.LogSumExp(0.1), order=1, epsilon=0.1)
    river = sp.models.river_swim(discount=0.7)
    return {
        "value": sp.plan(cruiser, model, 0),
        "search": sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.5), river, 0, max_calls=2_000),
        "tree": sp.plan(sp.UCT(), model, 0, max_calls=100),
        "chains": sp.plan(chains, model, 0, max_calls=2_000),
        "unregularised": sp.plan_unregularised(
            model, 0, bias=0.2, planner=lambda backup: sp.DebiasedCruiser(backup, epsilon=0.3), max_calls=2_000
        ),
        "decision": sp.decide(river, 0, calls=1_000),
        "forecast": sp.forecast(cruiser, model),
        "comparison": sp.compare({"cruiser": cruiser, HOSTILE: sp.UCT()}, model, 0, calls=[300, 600], seeds=2),
        "episodes": sp.ActResult("Lake", (), 0.9, None, 0, 12, 0.1, 0, "completed", ()),
    }


# Text


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


def test_json_has_the_types_of_json() -> None:
    found = plain({"a": np.array([1.0, np.nan]), "b": (np.int64(3), float("inf")), "c": None, "d": "x"})
    assert found == {"a": [1.0, None], "b": [3, None], "c": None, "d": "x"}


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
    assert "(estimate)" not in repr(records["search"])
    unknown = replace(records["value"], details=SimpleNamespace(support="estimate", summary=lambda: "a guess"))
    assert "] (estimate)" in unknown.summary().splitlines()[0]
    assert "interval (estimate)" in [trace.name for trace in unknown.figure().data]


def test_pages_need_no_plotly_and_cannot_be_broken_into(
    monkeypatch: pytest.MonkeyPatch, records: dict[str, Any]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    hostile = [replace(records[name], names=(HOSTILE, HOSTILE)) for name in ("value", "search", "decision")]
    hostile += [replace(hostile[-1], action=None, warnings=(HOSTILE,))]
    for record in [*records.values(), *hostile]:
        page = record._repr_html_()
        assert not re.search(r"<script|[ \n]on\w+=|(?:href|src)=|url\(|@import|https?://|\x00", page)
        assert ET.fromstring(page).tag == "pre"  # every tag is closed
    assert "&lt;script&gt;" in hostile[0]._repr_html_()
    assert hostile[-1].summary().startswith("warning: ")
    with pytest.raises(ImportError, match=re.escape('pip install "smoothplan[plots]"')):
        records["value"].figure()


# Figures


@given(
    st.lists(
        st.tuples(
            st.floats(-1e9, 1e9),
            st.none() | st.just(float("inf")) | st.floats(0.0, 1e6),
            st.none() | st.tuples(st.floats(-1e9, 1e9), st.floats(0.0, 1e9)),
            st.sampled_from(["proved", "lower", "declared", "estimate"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_estimate_is_on_the_axis(
    cases: list[tuple[float, float | None, tuple[float, float] | None, Any]],
) -> None:
    rows = [
        Row("a", point, error, None if bar is None else (bar[0], bar[0] + bar[1]), support)
        for point, error, bar, support in cases
    ]
    low, high = window(rows)
    for row in rows:
        assert low < row.point - row.whisker <= row.point + row.whisker < high


def test_a_wide_bar_does_not_squeeze_the_estimates() -> None:
    low, high = window([Row("a", -60.0, 0.1, (-463.0, 6.4)), Row("b", -61.0, 0.1, (-463.0, 6.4))])
    assert high - low < 20.0
    alone = [Row("a", 0.5, None, (0.0, 1.0)), Row("b", 0.55, None, (0.0, 9.0))]  # intervals are all there is
    assert window(alone)[1] > 9.0


def test_intervals_are_drawn_by_what_they_rest_on(records: dict[str, Any]) -> None:
    cases: list[tuple[sp.PlanResult, str, int]] = [
        (records["value"], "proved", 3),
        (records["search"], "proved", 3),
        (records["tree"], "declared", 1),
        (records["chains"], "proved from below", 3),
    ]
    for result, support, count in cases:
        (bars,) = [trace for trace in result.figure().data if trace.name == f"interval ({support})"]
        assert len(bars.x) == count, support


def test_bars_and_points_have_the_numbers(records: dict[str, Any]) -> None:
    proved: sp.Decision = replace(
        records["decision"],
        q=np.array([1.0, 1.5]),
        q_errors=np.array([0.1, np.inf]),
        q_intervals=np.array([[0.0, 2.0], [-5.0, 5.0]]),
        action=1,
        returns=np.array([50, 60]),
        names=(HOSTILE, "b"),
    )
    figure = proved.figure()
    bars, points = figure.data
    assert (bars.type, points.type) == ("bar", "scatter")
    assert np.array([bars.base, np.add(bars.base, bars.x)]).T.tolist() == [[0.0, 2.0], [-5.0, 5.0]]
    assert list(points.x) == [1.0, 1.5]
    assert list(points.error_x.array) == pytest.approx([0.2, 0.0])
    assert points.marker.symbol == ("circle", "star")
    assert points.hovertext[1] == "action b (chosen); estimate 1.5; in [-5, 5] (proved)"
    assert "<script" not in str(figure)
    found = records["search"].figure()
    assert found.layout.xaxis.title.text == "value (discounted reward)"
    assert list(found.layout.yaxis.ticktext) == ["value", "action left", "action right"]
    first, second, *_ = records["unregularised"].figure().layout.yaxis.ticktext
    assert (first, second) == ("unregularised value", "regularised value")


def test_values_against_calls(records: dict[str, Any]) -> None:
    comparison: sp.Comparison = records["comparison"]
    figure = comparison.figure()
    assert "<script" not in str(figure)
    runs = [row for row in comparison.rows if row["planner"] == "cruiser"]
    points, means = [trace for trace in figure.data if trace.name == "cruiser"]
    assert list(points.y) == [row["value"] for row in runs]
    assert np.add(points.y, points.error_y.array) == pytest.approx([row["high"] for row in runs])
    assert list(means.y) == pytest.approx(np.reshape(points.y, (2, 2)).mean(axis=1))
    assert figure.layout.xaxis.type == "log"
    declared, _ = [trace for trace in figure.data if trace.name != "cruiser"]
    assert not any([*declared.error_y.array, *declared.error_y.arrayminus])  # a declaration is no finding


def test_every_output_names_the_actions() -> None:
    """Rows, JSON, and the pairs that hold up a gap."""
    model = sp.models.river_swim(discount=0.9)
    found = sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.1), model, 0, max_calls=3_000)
    assert json.loads(found.to_json())["names"] == ["left", "right"]
    assert re.search(r"held up by state \d action (left|right)", found.summary())
    (row,) = sp.compare(sp.UCT(), model, 0, calls=100, seeds=1).rows
    assert row["action_name"] == ["left", "right"][row["action"]]
