"""Figures of results: the numbers are where they belong, and the legend says what they rest on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import smoothplan as sp
from smoothplan.report import figures
from smoothplan.report.figures import Row
from tests.common import identified
from tests.report.conftest import HOSTILE


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
    for row in rows:
        assert low < (row.point or 0.0) - row.whisker <= (row.point or 0.0) + row.whisker < high


def test_a_wide_bar_does_not_squeeze_the_estimates() -> None:
    low, high = figures.window([Row("a", -60.0, 0.1, (-463.0, 6.4)), Row("b", -61.0, 0.1, (-463.0, 6.4))])
    assert high - low < 20.0
    alone = [Row("a", 0.5, None, (0.0, 1.0)), Row("b", 0.55, None, (0.0, 9.0))]  # intervals are all there is
    assert figures.window(alone)[1] > 9.0


def test_intervals_are_drawn_by_what_they_rest_on(records: dict[str, Any]) -> None:
    doubtful = replace(records["search"], details=replace(identified(records["search"]), certified=False))
    cases: list[tuple[sp.PlanResult, str, int]] = [
        (records["value"], "proved", 3),
        (records["search"], "proved", 3),
        (doubtful, "estimate", 3),
        (records["tree"], "declared", 1),
        (records["chains"], "proved from below", 3),
    ]
    for result, support, count in cases:
        (bars,) = [trace for trace in result.figure().data if trace.name == f"interval ({support})"]
        assert len(bars.x) == count, support


def test_bars_and_points_have_the_numbers(records: dict[str, Any], decision: Callable[..., Any]) -> None:
    proved = decision(q_intervals=np.array([[0.0, 2.0], [1.0, 3.0], [-5.0, 5.0]]))
    figure = proved.figure()
    bars, points = figure.data
    assert (bars.type, points.type) == ("bar", "scatter")
    assert np.array([bars.base, np.add(bars.base, bars.x)]).T.tolist() == [[0.0, 2.0], [1.0, 3.0], [-5.0, 5.0]]
    assert list(points.x) == proved.q.tolist()
    assert list(points.error_x.array) == pytest.approx([0.2, 0.4, 0.0])
    assert points.marker.symbol == ("circle", "star", "circle")
    assert "60 returns" in points.hovertext[1]
    assert "<script" not in str(figure)
    found = records["search"].figure()
    assert found.layout.xaxis.title.text == "value (discounted reward)"
    assert list(found.layout.yaxis.ticktext) == ["value", "action left", "action right"]
    first, second, *_ = records["unregularised"].figure().layout.yaxis.ticktext
    assert (first, second) == ("unregularised value", "regularised value")


def test_the_price_against_epsilon(records: dict[str, Any]) -> None:
    forecast: sp.Forecast = records["forecast"]
    prices = dict(forecast.prices)
    assert len(prices) == 6
    assert prices[0.1] == forecast.calls
    for epsilon in (0.2, 0.05):
        assert prices[epsilon] == sp.forecast(forecast.planner.with_epsilon(epsilon), forecast.model).calls
    assert list(prices.values()) == sorted(prices.values())
    (line,) = forecast.figure().data
    assert (list(line.x), list(line.y)) == (list(prices), list(prices.values()))
    assert [x for x, symbol in zip(line.x, line.marker.symbol, strict=True) if symbol == "star"] == [0.1]


def test_a_hopeless_price_is_shown_with_few_others() -> None:
    for discount, least in ((0.8, 0.05), (0.97, 0.1)):  # some prices of the second are beyond all floats
        long = sp.models.garnet(states=20, actions=2, discount=discount, seed=1)
        hopeless = sp.forecast(sp.SparseSampling(sp.LogSumExp(1.0), epsilon=0.05), long)
        epsilons = [epsilon for epsilon, _ in hopeless.prices]
        assert 1 <= len(epsilons) <= 7
        assert min(epsilons) >= least  # none that is more expensive
        hopeless.figure()


def test_values_against_calls(records: dict[str, Any]) -> None:
    comparison: sp.Comparison = records["comparison"]
    figure = comparison.figure()
    named = [trace for trace in figure.data if trace.showlegend is not False]
    assert [trace.name for trace in named] == ["cruiser", figures._escaped(HOSTILE)]
    runs = [row for row in comparison.rows if row["planner"] == "cruiser"]
    (points,) = [trace for trace in figure.data if trace.name == "cruiser" and trace.showlegend is False]
    assert list(points.y) == [row["value"] for row in runs]
    assert np.add(points.y, points.error_y.array) == pytest.approx([row["high"] for row in runs])
    assert figure.layout.xaxis.type == "log"
    (declared,) = [trace for trace in figure.data if trace.name != "cruiser" and trace.showlegend is False]
    assert not any([*declared.error_y.array, *declared.error_y.arrayminus])  # a declaration is no finding
