"""Figures for papers: SVG and PNG files, by Matplotlib."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smoothplan.findings.data import Figure, Series
from smoothplan.findings.files import write_whole

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#666666")
"""Okabe and Ito's colours, which the colour-blind can tell apart, in an order that leaves the pale ones to the end."""

MARKERS = "osD^vP*X"

SIZE = (6.4, 4.0)
"""Inches."""

CROWDED, LEGEND_COLUMNS, LEGEND_LETTERS = 6, 3, 94
"""Series from which on a legend would hide some of them: it goes below the axes, in so many columns at most, as the
longest name allows: so many letters fit side by side."""

PLAIN = (1.0, 100.0)
"""Numbers from here to there are easier to read without a power of ten."""

RESOLUTION = 160
"""Dots per inch of a PNG."""

STYLE: Any = {
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "smoothplan",  # the same figure gives the same file
    "svg.fonttype": "none",
}


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Writes a figure as SVG and PNG into a folder, and returns the files.

    Raises:
        ImportError: Matplotlib is missing.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise ImportError("figures need Matplotlib: install smoothplan[plots]") from None
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=SIZE, layout="constrained")
        axes = canvas.add_subplot()
        bars = [series for series in figure.series if series.look == "bars"]
        for number, series in enumerate(figure.series):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            if series.look == "bars":
                _bars(axes, series, colour, bars.index(series), len(bars))
            else:
                _line(axes, series, colour, marker)
        axes.set(title=figure.title, xlabel=figure.x.label, ylabel=figure.y.label)
        if figure.x.log:  # setting a scale, even the linear one, would take the names of bars away
            axes.set_xscale("log")
        if figure.y.log:
            axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            _plain_labels(axis)
        if len(figure.series) >= CROWDED:
            longest = max(len(series.name) for series in figure.series) + 5  # the line takes as much room as five
            columns = max(1, min(LEGEND_COLUMNS, LEGEND_LETTERS // longest))
            canvas.legend(loc="outside lower center", ncols=columns, fontsize="small")
        elif len(figure.series) > 1:
            axes.legend(fontsize="small")
        files = [folder / f"{figure.name}.{kind}" for kind in ("svg", "png")]
        for file in files:
            metadata = {"Date": None} if file.suffix == ".svg" else {"Software": None}
            content = io.BytesIO()
            canvas.savefig(content, format=file.suffix[1:], dpi=RESOLUTION, metadata=metadata)
            write_whole(file, content.getvalue())
    return files


def _plain_labels(axis: Any) -> None:
    """Writes 30, not 3·10¹, along a logarithmic axis that has no other numbers than such ones."""
    from matplotlib.ticker import LogFormatter

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and PLAIN[0] <= low and high <= PLAIN[1]:
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(labelOnlyBase=False))


def _line(axes: Any, series: Series, colour: str, marker: str) -> None:
    theory = series.look == "dashed"
    axes.errorbar(
        series.x,
        series.y,
        yerr=_whiskers(series),
        color=colour,
        marker=marker if series.look == "points" else "",
        markersize=4.5,
        linestyle="--" if theory else "-",
        linewidth=1.0 if series.look == "points" else 1.4,
        capsize=2.5,
        label=series.name,
        zorder=1 if theory else 2,
    )


def _bars(axes: Any, series: Series, colour: str, place: int, count: int) -> None:
    width = 0.8 / count
    positions = np.arange(len(series.x)) + (place - (count - 1) / 2.0) * width
    axes.bar(positions, series.y, width, yerr=_whiskers(series), color=colour, label=series.name, capsize=2.5)
    axes.set_xticks(np.arange(len(series.x)), [str(name) for name in series.x])


def _whiskers(series: Series) -> Sequence[Any] | None:
    if series.low is None or series.high is None:
        return None
    below = np.maximum(np.subtract(series.y, series.low), 0.0)
    above = np.maximum(np.subtract(series.high, series.y), 0.0)
    return [below, above]
