"""What results look like: summaries, notebook displays and figures; the notebook of the documentation in a browser."""

import contextlib
import io
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import nbformat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import smoothplan as sp
from docs import notebook
from smoothplan import cli, figures
from smoothplan.decide import Decision
from smoothplan.figures import Row
from tests.browser import Watched, launched
from tests.common import identified

HOSTILE = '<script>alert("1")</script> & \x00 it\'s'


@pytest.fixture(scope="module")
def model() -> sp.TabularModel:
    return sp.models.garnet(states=20, actions=2, branching=2, discount=0.2, seed=1)


@pytest.fixture(scope="module")
def plan(model: sp.TabularModel) -> sp.PlanResult:
    return sp.plan(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1), model, 0)


@pytest.fixture(scope="module")
def search() -> sp.PlanResult:
    """Of a planner that identifies the best action."""
    river = sp.models.river_swim(discount=0.7)
    return sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.5), river, 0, max_calls=2_000)


@pytest.fixture(scope="module")
def forecast(model: sp.TabularModel) -> sp.Forecast:
    return sp.forecast(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1), model)


@pytest.fixture(scope="module")
def comparison(model: sp.TabularModel) -> sp.Comparison:
    planners = {"cruiser": sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1), HOSTILE: sp.UCT()}
    return sp.compare(planners, model, 0, calls=[300, 600], seeds=2)


def decision(**fields: Any) -> Decision:
    plain: dict[str, Any] = {
        "action": 1,
        "q": np.array([1.0, 1.5, -3.0]),
        "q_errors": np.array([0.1, 0.2, np.inf]),
        "q_intervals": None,
        "gap": np.inf,
        "regret": 0.3,
        "certified": False,
        "method": "returns of a reference",
        "warnings": (HOSTILE,),
        "calls": 1_000,
        "seconds": 0.1,
        "status": "max_calls",
        "returns": np.array([50, 60, 1]),
        "differences": np.array([-0.5, 0.0, -4.5]),
        "difference_errors": np.array([0.1, 0.0, np.inf]),
        "epsilon": 0.1,
        "delta": 0.1,
        "seed": 0,
        "names": (HOSTILE, "b", "c"),
    }
    return Decision(**plain | fields)


def drawn(page: str) -> ET.Element:
    """The first drawing of a page, parsed."""
    return ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def marks(page: str, kind: str) -> list[ET.Element]:
    return [mark for mark in drawn(page).iter() if kind in mark.get("class", "").split()]


# Words


def test_reprs_have_a_line(
    model: sp.TabularModel, plan: sp.PlanResult, search: sp.PlanResult, forecast: sp.Forecast, comparison: sp.Comparison
) -> None:
    ordinary = sp.plan_unregularised(
        model, 0, bias=0.2, planner=lambda backup: sp.DebiasedCruiser(backup, epsilon=0.3), max_calls=2_000
    )
    acted = sp.ActResult("Lake", (), 0.9, None, 0, 12, 0.1, 0, "completed", ())
    for thing in (plan, search, forecast, comparison, ordinary, acted):
        assert repr(thing).startswith(f"{type(thing).__name__}(")
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 240
        assert thing.summary()
    assert f"gap {identified(search).gap:.4g}" in repr(search)
    low, high = ordinary.interval
    assert f"in [{low:.6g}, {high:.6g}]" in repr(ordinary)
    assert ordinary.summary().count("with probability at least 0.9") == 2


def test_a_summary_is_what_the_command_line_prints() -> None:
    printed = io.StringIO()
    words = "--model garnet:states=20,discount=0.2,seed=1 --backup hard-max --planner ot-gape:epsilon=0.3 --seed 3"
    with contextlib.redirect_stdout(printed):
        assert cli.main(["plan", *words.split(), "--quiet"]) == 0
    model = sp.models.garnet(states=20, discount=0.2, seed=1)
    result = sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.3), model, seed=3)
    assert result.q_intervals is not None

    def without_time(text: str) -> list[str]:
        return re.sub(r"\d+\.\d\d s", "", text).split()  # and without the width of columns

    assert without_time(printed.getvalue()) == without_time(result.summary())


# Rows


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
    low, high = figures.window(rows)
    assert low < high
    for row in rows:
        assert low < (row.point or 0.0) < high
        assert (ends := figures._whisker(row)) is None or low < ends[0] <= ends[1] < high
    assert 2 <= len(figures.ticks(low, high)) <= 8
    drawn(figures.bars_svg(rows))


def test_a_wide_bar_does_not_squeeze_the_estimates_and_is_cut_off() -> None:
    rows = [Row("a", -60.0, 0.1, (-463.0, 6.4)), Row("b", -61.0, 0.1, (-463.0, 6.4))]
    low, high = figures.window(rows)
    assert high - low < 20.0
    page = figures.bars_svg(rows)
    assert len(marks(page, "beyond")) == 4
    alone = [Row("a", 0.5, None, (0.0, 1.0)), Row("b", 0.55, None, (0.0, 9.0))]  # intervals are all there is
    assert figures.window(alone)[1] > 9.0
    assert not marks(figures.bars_svg(alone), "beyond")


def test_what_is_proved_and_what_is_not_are_drawn_differently(
    model: sp.TabularModel, plan: sp.PlanResult, search: sp.PlanResult
) -> None:
    tree = sp.plan(sp.UCT(), model, 0, max_calls=100)
    chains = sp.plan(sp.ReferenceCruiser(sp.LogSumExp(0.1), order=1, epsilon=0.1), model, 0, max_calls=2_000)
    doubtful = replace(search, details=replace(identified(search), certified=False))
    cases: list[tuple[sp.PlanResult, str, int]] = [
        (plan, "proved", 3),
        (search, "proved", 3),
        (doubtful, "estimate", 3),
        (tree, "declared", 1),
        (chains, "lower", 3),
    ]
    for result, support, bars in cases:
        page = result._repr_html_()
        assert len(marks(page, support)) == bars, support
        assert len(marks(page, "point")) == len(figures.plan_rows(result))
        assert "★" in page
    assert "probability" in plan._repr_html_()
    assert "no proof" in tree._repr_html_()


def test_bars_and_points_stand_where_the_numbers_are() -> None:
    (row,) = [Row("a", 2.0, 0.5, (0.0, 10.0))]
    low, high = figures.window([row])

    def number(x: float) -> float:
        return low + (x - figures.LABELS) / figures.PLOT * (high - low)

    page = figures.bars_svg([row])
    (point,), (bar,) = marks(page, "point"), marks(page, "proved")
    assert number(float(point.get("cx", 0))) == pytest.approx(2.0, abs=0.02)
    left, width = float(bar.get("x", 0)), float(bar.get("width", 0))
    assert number(left) == pytest.approx(max(low, 0.0), abs=0.02)
    assert number(left + width) == pytest.approx(min(high, 10.0), abs=0.04)


# Pages


def test_pages_need_no_plotly_and_cannot_be_broken_into(
    monkeypatch: pytest.MonkeyPatch,
    plan: sp.PlanResult,
    search: sp.PlanResult,
    forecast: sp.Forecast,
    comparison: sp.Comparison,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    hostile = replace(plan, names=(HOSTILE, HOSTILE))
    decided = figures.decision_html(decision())
    pages = [each._repr_html_() for each in (hostile, search, forecast, comparison)]
    for page in [*pages, decided, figures.decision_html(decision(action=None, q_intervals=np.ones((3, 2))))]:
        assert not re.search(r"<script|[ \n]on\w+=|(?:href|src)=|url\(|@import|\x00", page)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
        drawn(page)
        ET.fromstring(page.replace("&nbsp;", " "))  # every tag is closed
    assert "&lt;script&gt;" in decided
    assert decided.index("alert") < decided.index("<svg")  # warnings come first
    for draw in (hostile.figure, forecast.figure, comparison.figure, lambda: figures.decision_figure(decision())):
        with pytest.raises(ImportError, match=re.escape('pip install "smoothplan[plots]"')):
            draw()


def test_the_graph_is_in_the_page_of_a_search(plan: sp.PlanResult, search: sp.PlanResult) -> None:
    assert 'class="explored"' in search._repr_html_()
    assert "explored" not in plan._repr_html_()


# Figures


def test_figures_have_the_numbers_and_say_what_they_are(search: sp.PlanResult) -> None:
    proved = decision(q_intervals=np.array([[0.0, 2.0], [1.0, 3.0], [-5.0, 5.0]]))
    figure = figures.decision_figure(proved)
    bars, points = figure.data
    assert (bars.type, points.type) == ("bar", "scatter")
    assert np.array([bars.base, np.add(bars.base, bars.x)]).T.tolist() == [[0.0, 2.0], [1.0, 3.0], [-5.0, 5.0]]
    assert list(points.x) == proved.q.tolist()
    assert list(points.error_x.array) == pytest.approx([0.2, 0.4, 0.0])
    assert points.marker.symbol == ("circle", "star", "circle")
    assert "60 returns" in points.hovertext[1]
    assert "<script" not in str(figure)
    found = search.figure()
    assert found.layout.xaxis.title.text == "value (discounted reward)"
    assert list(found.layout.yaxis.ticktext) == ["value", "action left", "action right"]


def test_the_price_against_epsilon(forecast: sp.Forecast) -> None:
    prices = dict(forecast.prices)
    assert len(prices) == 6
    assert prices[0.1] == forecast.calls
    for epsilon in (0.2, 0.05):
        assert prices[epsilon] == sp.forecast(forecast.planner.with_epsilon(epsilon), forecast.model).calls
    assert list(prices.values()) == sorted(prices.values())
    (line,) = forecast.figure().data
    assert (list(line.x), list(line.y)) == (list(prices), list(prices.values()))
    assert [x for x, symbol in zip(line.x, line.marker.symbol, strict=True) if symbol == "star"] == [0.1]
    assert len(marks(forecast._repr_html_(), "point")) == 6


def test_a_hopeless_price_is_shown_with_few_others() -> None:
    for discount, least in ((0.8, 0.05), (0.97, 0.1)):  # some prices of the second are beyond all floats
        long = sp.models.garnet(states=20, actions=2, discount=discount, seed=1)
        hopeless = sp.forecast(sp.SparseSampling(sp.LogSumExp(1.0), epsilon=0.05), long)
        epsilons = [epsilon for epsilon, _ in hopeless.prices]
        assert 1 <= len(epsilons) <= 7
        assert min(epsilons) >= least  # none that is dearer
        hopeless._repr_html_()
        hopeless.figure()


def test_values_against_calls(comparison: sp.Comparison) -> None:
    figure = comparison.figure()
    named = [trace for trace in figure.data if trace.showlegend is not False]
    assert [trace.name for trace in named] == ["cruiser", figures._escaped(HOSTILE)]
    runs = [row for row in comparison.rows if row["planner"] == "cruiser"]
    (points,) = [trace for trace in figure.data if trace.name == "cruiser" and trace.showlegend is False]
    assert list(points.y) == [row["value"] for row in runs]
    assert np.add(points.y, points.error_y.array) == pytest.approx([row["high"] for row in runs])
    assert figure.layout.xaxis.type == "log"
    (declared,) = [trace for trace in figure.data if trace.name != "cruiser" and trace.showlegend is False]
    assert not any([*declared.error_y.array, *declared.error_y.arrayminus])  # what is declared is no finding


# The notebook


group = pytest.mark.xdist_group("notebook")  # one execution serves all


@pytest.fixture(scope="module")
def executed() -> Any:
    return notebook.executed()


@group
def test_the_notebook_is_up_to_date(executed: Any) -> None:
    stored = nbformat.read(notebook.FILE, as_version=4)
    assert [cell.source for cell in stored.cells] == [cell.source for cell in executed.cells], "run docs/notebook.py"
    assert notebook.outputs(stored) == notebook.outputs(executed), "run docs/notebook.py"


@group
def test_the_notebook_in_a_browser(executed: Any, tmp_path: Path) -> None:
    """Bars, points and figures are drawn, text has the colour of the page, and nothing is fetched."""
    file = tmp_path / "notebook.html"
    file.write_text(notebook.page(executed), encoding="utf-8")
    figured = sum(cell.source.endswith(".figure()") for cell in executed.cells)
    with launched() as browser:
        shown = Watched(browser, file)
        count = "([n]) => document.querySelectorAll('.svg-container:has(.main-svg)').length === n"
        shown.until(lambda: bool(shown.ask(count, figured)), "all figures are drawn")
        sizes = shown.ask(
            """() => [...document.querySelectorAll('.smoothplan rect.bar, .js-plotly-plot .bars path')].map(bar => {
                const box = bar.getBoundingClientRect(); return [box.width, box.height]})"""
        )
        assert len(sizes) >= 12
        assert all(width > 1 and height > 4 for width, height in sizes)
        # The two themes differ in this colour; the drawings must follow it.
        for ink in ("rgb(0, 0, 0)", "rgb(255, 255, 255)"):
            found = shown.ask(
                """([ink]) => {
                    document.body.style.setProperty('--jp-content-font-color1', ink);
                    const texts = [...document.querySelectorAll('.smoothplan > svg text')];
                    return texts.map(text => getComputedStyle(text).fill)
                }""",
                ink,
            )
            assert set(found) == {ink}
        assert not shown.faults
