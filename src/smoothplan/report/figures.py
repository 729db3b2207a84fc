"""Results as Plotly figures: a bar for an interval, a point for an estimate, a whisker for two standard errors."""

import math
from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from statistics import fmean
from typing import Any, NamedTuple

from smoothplan.base.arguments import amount
from smoothplan.base.records import Record
from smoothplan.decide.compare import Comparison
from smoothplan.decide.decide import Decision
from smoothplan.recursive.schedule import Forecast
from smoothplan.report.text import clean
from smoothplan.run.plan import PlanResult
from smoothplan.run.records import GapDetails, ReferenceDetails, Support

COLOURS = ("#3987c9", "#d9731a", "#1f9e78", "#c0639b", "#b58a12", "#8f6bc0", "#5aa7d6", "#8a8f98")
"""Of planners; the first two also of intervals and marks. They are visible on white and on black."""


@singledispatch
def figure(record: Record) -> Any:
    """A Plotly figure of a record."""
    raise TypeError(f"{type(record).__name__} has no figure")


class Row(NamedTuple):
    """A row of a chart of values."""

    name: str
    point: float | None = None  # an estimate
    error: float | None = None  # its standard error
    interval: tuple[float, float] | None = None
    support: Support = "proved"  # of the interval
    chosen: bool = False
    note: str = ""

    @property
    def whisker(self) -> float:
        """Two standard errors; 0 if there is no finite one."""
        return 2.0 * self.error if self.error is not None and math.isfinite(self.error) else 0.0

    @property
    def words(self) -> str:
        """The row as a tooltip."""
        said = [self.name + (" (chosen)" if self.chosen else "")]
        if self.point is not None:
            noise = f" ± {self.error:.2g} (one standard error)" if self.whisker else ""
            said.append(f"estimate {self.point:.6g}{noise}")
        if self.interval is not None:
            low, high = self.interval
            inside, declared = f"in [{low:.6g}, {high:.6g}]", "by what the model declares"
            said.append(
                {
                    "proved": f"{inside}, proved",
                    "estimate": f"{inside} (estimate)",
                    "lower": f"at least {low:.6g}, proved; at most {high:.6g}, {declared}",
                    "declared": f"{inside}, {declared}",
                }[self.support]
            )
        return _escaped("; ".join([*said, *([self.note] if self.note else [])]))


# Values and action values


@figure.register
def _(result: PlanResult) -> Any:
    return bars(plan_rows(result), result.delta)


@figure.register
def _(decision: Decision) -> Any:
    rows = [
        Row(
            f"action {name}",
            float(decision.q[action]),
            float(decision.q_errors[action]),
            None if decision.q_intervals is None else _pair(decision.q_intervals[action]),
            chosen=action == decision.action,
            note=f"{int(decision.returns[action]):,} returns",
        )
        for action, name in enumerate(decision.names)
    ]
    return bars(rows, decision.delta)


def plan_rows(result: PlanResult) -> list[Row]:
    """The value and the action values of a plan."""
    details, support = result.details, result.support
    rows = [Row("value", result.value, getattr(details, "standard_error", None), result.interval, support)]
    if result.regularised_interval is not None:
        rows = [rows[0]._replace(name="unregularised value")]
        rows.append(Row("regularised value", result.regularised_value, None, result.regularised_interval, support))
    if isinstance(details, ReferenceDetails):
        rows.append(Row("policy of the reference", details.order_1, details.order_1_error, details.policy_interval))
    if result.action is None:
        return rows
    made = details.action_calls.tolist() if isinstance(details, GapDetails) else None
    for action, (name, q) in enumerate(zip(result.names, result.q.tolist(), strict=True)):
        interval = None if result.q_intervals is None else _pair(result.q_intervals[action])
        note = "" if made is None else f"{made[action]:,} calls"
        rows.append(Row(f"action {name}", q, None, interval, support, action == result.action, note))
    return rows


def _pair(ends: Any) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])


def window(rows: Iterable[Row]) -> tuple[float, float]:
    """The part of the axis that is shown at first.

    Estimates stay distinguishable even if an interval is a thousand times wider than their differences: a bar widens
    the axis to at most nine times the span of the estimates, and is cut off there.
    """
    points, bars = [], []
    for row in rows:
        points += [] if row.point is None else [row.point - row.whisker, row.point + row.whisker]
        bars += [] if row.interval is None else [(row.interval, row.support == "proved" and row.error is None)]
    points = [point for point in points if math.isfinite(point)]
    core = [*points, *(end for ends, is_finding in bars if is_finding for end in ends)]
    every = [end for end in (*core, *(end for ends, _ in bars for end in ends)) if math.isfinite(end)]
    if not every:
        return -1.0, 1.0
    low, high = (min(core), max(core)) if core and min(core) < max(core) else (min(every), max(every))
    reach = 4.0 * (high - low)
    low, high = max(min(every), low - reach), min(max(every), high + reach)
    margin = 0.04 * (high - low) or 0.5 * abs(low) or 0.5
    return low - margin, high + margin


def bars(rows: Sequence[Row], delta: float) -> Any:
    """A figure of rows on one axis."""
    chart = _plotly().Figure()
    blue, orange, grey = COLOURS[0], COLOURS[1], COLOURS[-1]
    looks: dict[Support, tuple[str, dict[str, Any]]] = {
        "proved": ("proved", {"color": blue, "opacity": 0.75}),
        "estimate": ("estimate", {"color": orange, "opacity": 0.3, "pattern": {"shape": "/"}}),
        "lower": ("proved from below", {"color": grey, "opacity": 0.3, "line": {"color": blue, "width": 2}}),
        "declared": ("declared", {"color": grey, "opacity": 0.3}),
    }
    for support, (title, look) in looks.items():
        found = [(y, row, row.interval) for y, row in enumerate(rows) if row.interval and row.support == support]
        if found:
            chart.add_bar(
                orientation="h", y=[y for y, _, _ in found], base=[low for _, _, (low, _) in found],
                x=[high - low for _, _, (low, high) in found], width=0.5, marker=look, hoverinfo="text",
                hovertext=[row.words for _, row, _ in found], name=f"interval ({title})",
            )  # fmt: skip
    points = [(y, row, row.point) for y, row in enumerate(rows) if row.point is not None and math.isfinite(row.point)]
    whiskers = [row.whisker for _, row, _ in points]
    chosen = any(row.chosen for row in rows)
    chart.add_scatter(
        x=[point for _, _, point in points], y=[y for y, _, _ in points], mode="markers", hoverinfo="text",
        hovertext=[row.words for _, row, _ in points],
        error_x={"type": "data", "array": whiskers, "visible": any(whiskers)},
        marker={
            "color": orange, "size": [14 if row.chosen else 9 for _, row, _ in points],
            "symbol": ["star" if row.chosen else "circle" for _, row, _ in points],
        },
        name="estimate" + " ± 2 standard errors" * any(whiskers) + ", star: chosen" * chosen,
    )  # fmt: skip
    chart.update_xaxes(title="value (discounted reward)", range=window(rows))
    names = [_escaped(row.name if len(row.name) <= 40 else f"{row.name[:39]}…") for row in rows]
    chart.update_yaxes(tickvals=list(range(len(rows))), ticktext=names, autorange="reversed")
    sure = f"; proved intervals hold with probability at least {1 - delta:g}" if delta else ""
    legend = {"orientation": "h", "y": -0.35 if len(rows) < 6 else -0.25}
    return chart.update_layout(
        title=f"Values and intervals{sure}", legend=legend, barmode="overlay", height=220 + 36 * len(rows)
    )


# Prices and comparisons


@figure.register
def _(forecast: Forecast) -> Any:
    now, points = forecast.schedule.epsilon, forecast.prices
    x, y = [epsilon for epsilon, _ in points], [float(max(calls, 1)) for _, calls in points]
    chart = _plotly().Figure()
    chart.add_scatter(
        x=x, y=y, mode="lines+markers", line={"color": COLOURS[0]}, hoverinfo="text",
        text=[f"ε = {epsilon:.4g}: at most {amount(calls)} simulator calls" for epsilon, calls in points],
        marker={
            "size": [14 if epsilon == now else 8 for epsilon in x],
            "symbol": ["star" if epsilon == now else "circle" for epsilon in x],
            "color": [COLOURS[int(epsilon == now)] for epsilon in x],
        },
    )  # fmt: skip
    chart.update_xaxes(type="log", title="accuracy ε (reward)", tickvals=x, ticktext=[f"{each:.3g}" for each in x])
    chart.update_yaxes(type="log", title="price (simulator calls)", exponentformat="power")
    return chart.update_layout(title=f"The price against ε; star: the present one, {now:g}", showlegend=False)


@figure.register
def _(comparison: Comparison) -> Any:
    chart = _plotly().Figure()
    groups = comparison.groups()
    exact: dict[float, list[str]] = {}
    for place, name in enumerate(dict.fromkeys(name for name, _ in groups)):
        own = (group for (each, _), group in groups.items() if each == name)
        means = [found for group in own if (found := [run for run in group if run["value"] is not None])]
        runs = [run for group in means for run in group]
        title, colour = _escaped(name), COLOURS[place % len(COLOURS)]
        # Declared ends are no findings, and would squeeze everything else.
        below = [0.0 if run["support"] in (None, "declared") else run["value"] - run["low"] for run in runs]
        above = [0.0 if run["support"] in (None, "declared", "lower") else run["high"] - run["value"] for run in runs]
        hover = [
            f"{title}, seed {run['seed']}: value {run['value']:.6g}, {run['calls']:,} calls"
            + ("" if run["low"] is None else f"<br>in [{run['low']:.6g}, {run['high']:.6g}] ({run['support']})")
            for run in runs
        ]
        chart.add_scatter(
            x=[max(run["calls"], 1) for run in runs], y=[run["value"] for run in runs], mode="markers", opacity=0.45,
            marker={"color": colour, "size": 6}, text=hover, hoverinfo="text", legendgroup=title, name=title,
            error_y={"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1},
            showlegend=False,
        )  # fmt: skip
        chart.add_scatter(
            x=[max(fmean(run["calls"] for run in group), 1.0) for group in means],
            y=[fmean(run["value"] for run in group) for group in means],
            mode="lines+markers", line={"color": colour, "width": 2}, marker={"size": 9}, legendgroup=title,
            name=title, text=[f"{title}: mean of {len(group)} runs" for group in means],
            hovertemplate="%{text}: %{y:.6g}, %{x:,.0f} calls<extra></extra>",
        )  # fmt: skip
        for value in {round(run["exact"], 9) for run in runs if run["exact"] is not None}:
            exact.setdefault(value, []).append(title)
    for value, about in exact.items():
        said = f"exact {value:.6g}" + (f" ({', '.join(about)})" if len(exact) > 1 else "")
        chart.add_hline(
            y=value, line_dash="dash", line_color=COLOURS[-1], annotation_text=said, annotation_position="bottom left"
        )
    budgets = sorted({budget for _, budget in groups})
    ticks = {"tickvals": budgets, "ticktext": [amount(budget) for budget in budgets]}
    chart.update_xaxes(type="log", title="simulator calls made", **ticks)
    chart.update_yaxes(title="value (discounted reward)")
    return chart.update_layout(title="Values against simulator calls; lines: means, bars: intervals of runs")


def _escaped(text: str) -> str:
    """A text in one line without markup: Plotly interprets some tags."""
    return escape(clean(text))


def _plotly() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ImportError('figure() needs Plotly: pip install "smoothplan[plots]"') from None
    return go
