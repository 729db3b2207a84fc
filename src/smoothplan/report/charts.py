"""Figures of the page: their frame in HTML, their data for the script that draws them, and the same data as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from smoothplan.findings import Axis, Figure, Series
from smoothplan.findings.figures import MARKERS
from smoothplan.report import colours
from smoothplan.report.markup import Html, element, joined
from smoothplan.report.tables import table

SYMBOLS: Mapping[str, str] = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "^": "triangle-up",
    "v": "triangle-down",
    "P": "cross",
    "*": "star",
    "X": "x",
}
"""Plotly's names of Matplotlib's markers."""

OUTLINES: Mapping[str, str] = {
    "circle": "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0Z",
    "square": "M-3.5-3.5H3.5V3.5H-3.5Z",
    "diamond": "M0-5L5 0L0 5L-5 0Z",
    "triangle-up": "M0-4.5L4.5 3.5H-4.5Z",
    "triangle-down": "M0 4.5L4.5-3.5H-4.5Z",
    "cross": "M-1.5-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
    "star": "M0-5L1.2-1.6H4.8L1.9 .6L3 4L0 1.9L-3 4L-1.9 .6L-4.8-1.6H-1.2Z",
    "x": "M-4-2.5L-2.5-4L0-1.5L2.5-4L4-2.5L1.5 0L4 2.5L2.5 4L0 1.5L-2.5 4L-4 2.5L-1.5 0Z",
}
"""The same markers as paths, for the keys of series."""

DIGITS = 6
"""Significant digits in the tables of data: more than anyone can see in the figure."""


def data(figure: Figure) -> dict[str, Any]:
    """What the script needs to draw a figure, as JSON has it."""
    return {
        "named": named(figure),
        "log": {"x": figure.x.log, "y": figure.y.log},
        "series": [
            {
                "name": series.name,
                "look": series.look,
                "symbol": _symbol(place),
                "x": [_label(x) for x in series.x] if named(figure) else list(series.x),
                "y": list(series.y),
                "low": None if series.low is None else list(series.low),
                "high": None if series.high is None else list(series.high),
            }
            for place, series in enumerate(figure.series)
        ],
    }


def named(figure: Figure) -> bool:
    """Whether the x axis has names, or bars, which stand side by side like names."""
    return any(series.look == "bars" or any(isinstance(x, str) for x in series.x) for series in figure.series)


def frame(figure: Figure, anchor: str, files: str) -> Html:
    """A figure: title, controls, the box that the script draws into, caption and data.

    Args:
        figure: which.
        anchor: its id in the page, unique.
        files: where its static files are, for the reader.
    """
    return element(
        "figure",
        element("h3", figure.title, id=anchor),
        element(
            "div",
            _keys(figure),
            _controls(figure),
            element("p", element("span", "↑ ", aria_hidden="true"), figure.y.label, class_="axis"),
            element(
                "div",
                element("p", "Drawing …", class_="waiting"),
                class_="plot",
                role="img",
                aria_label=f"{figure.title}. {figure.caption}",
                data_figure=anchor,
            ),
            element("p", figure.x.label, element("span", " →", aria_hidden="true"), class_="axis across"),
            element("p", class_="remark", role="status"),
            class_="chart",
        ),
        element("figcaption", figure.caption),
        element(
            "details",
            element("summary", "The data of this figure"),
            element("p", "Also for papers: ", element("code", f"{files}.svg"), ", ", element("code", ".png")),
            _table(figure),
        ),
        aria_labelledby=anchor,
    )


def _keys(figure: Figure) -> Html:
    """The legend: a button for each series, which shows or hides it."""
    return element(
        "div",
        *(
            element(
                "button",
                _swatch(series, place),
                element("span", series.name),
                type="button",
                class_="key",
                aria_pressed="true",
                data_series=place,
                style=f"--series: {colours.of_series(place)}",
            )
            for place, series in enumerate(figure.series)
        ),
        class_="keys",
        role="group",
        aria_label="Series shown",
    )


def _controls(figure: Figure) -> Html:
    axes = {"y": figure.y} if named(figure) else {"x": figure.x, "y": figure.y}
    return element(
        "div",
        *(_logarithmic(name, axis) for name, axis in axes.items()),
        element("button", "+", type="button", data_zoom="in", aria_label="Zoom in"),
        element("button", "−", type="button", data_zoom="out", aria_label="Zoom out"),
        element("button", "Reset", type="button", data_reset="", aria_label="Reset axes, zoom and series"),
        class_="controls",
        role="group",
        aria_label="View",
    )


def _logarithmic(name: str, axis: Axis) -> Html:
    return element(
        "button",
        f"log {name}",
        type="button",
        aria_pressed=str(axis.log).lower(),
        data_log=name,
        aria_label=f"Logarithmic {name} axis",
    )


def _swatch(series: Series, place: int) -> Html:
    if series.look == "bars":
        drawing = element("rect", x=6, y=2, width=12, height=12, fill="currentColor")
    else:
        dashes = "5 3" if series.look == "dashed" else None
        drawing = element(
            "line", x1=0, y1=8, x2=24, y2=8, stroke="currentColor", stroke_width=2, stroke_dasharray=dashes
        )
        if series.look == "points":
            marker = element("path", d=OUTLINES[_symbol(place)], fill="currentColor", transform="translate(12 8)")
            drawing = joined(drawing, marker)
    return element("svg", drawing, width=24, height=16, viewBox="0 0 24 16", aria_hidden="true")


def _symbol(place: int) -> str:
    return SYMBOLS[MARKERS[place % len(MARKERS)]]


def _label(x: str | float) -> str:
    return x if isinstance(x, str) else f"{x:g}"


def _table(figure: Figure) -> Html:
    """Each point in a row, with the ends of error bars where there are any."""
    ends = any(series.low is not None or series.high is not None for series in figure.series)
    rows = [row if ends else row[:3] for series in figure.series for row in _points(series)]
    columns = ("series", figure.x.label, figure.y.label, "from", "to")
    return table(f"Data: {figure.title}", columns if ends else columns[:3], rows, DIGITS)


def _points(series: Series) -> list[tuple[str | float, ...]]:
    none = [""] * len(series.x)
    columns: Sequence[Sequence[str | float]] = (series.x, series.y, series.low or none, series.high or none)
    return [(series.name, *point) for point in zip(*columns, strict=True)]
