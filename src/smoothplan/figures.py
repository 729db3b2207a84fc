"""Results at a glance: HTML for notebooks, which needs no other library, and Plotly figures.

Both draw the same rows: a bar for an interval, a point for an estimate, a whisker for two standard errors.
"""

import html
import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from smoothplan import drawing, summaries
from smoothplan.arguments import amount
from smoothplan.running.run import Diagnosis, Estimate, Identification
from smoothplan.summaries import Line, Support

if TYPE_CHECKING:
    from smoothplan.compare import Comparison
    from smoothplan.decide import Decision
    from smoothplan.forecast import Forecast
    from smoothplan.plan import PlanResult
    from smoothplan.unregularised import UnregularisedResult

COLOURS = ("#3987c9", "#d9731a", "#1f9e78", "#c0639b", "#b58a12", "#8f6bc0", "#5aa7d6", "#8a8f98")
"""Of planners, and the first two of intervals and marks: to be seen on white and on black."""

NODES_SHOWN = 12
"""Of an explored graph: a notebook shows less than a file, see `drawing.save`."""


class Row(NamedTuple):
    """A row of a chart of values."""

    name: str
    point: float | None = None  # an estimate
    error: float | None = None  # its standard error
    interval: tuple[float, float] | None = None
    support: Support = "proved"  # of the interval
    chosen: bool = False
    exact: float | None = None
    note: str = ""  # more to say, such as a number of calls


# What is drawn


def plan_rows(result: "PlanResult") -> list[Row]:
    """The value, and the action values as far as they are known."""
    details, support = result.details, summaries.support(result)
    error = details.standard_error if isinstance(details, Estimate) else None
    rows = [Row("value", result.value, error, result.interval, support)]
    if isinstance(details, Diagnosis):
        rows.append(Row("policy of the reference", details.order_1, details.order_1_error, details.policy_interval))
    if result.action is None:
        return rows
    made = details.action_calls.tolist() if isinstance(details, Identification) else None
    for action, (name, q) in enumerate(zip(result.names, result.q.tolist(), strict=True)):
        interval = None if result.q_intervals is None else _pair(result.q_intervals[action])
        note = "" if made is None else f"{made[action]:,} calls"
        chosen = action == result.action
        rows.append(Row(f"action {name}", q, None, interval, support, chosen=chosen, note=note))
    return rows


def unregularised_rows(found: "UnregularisedResult") -> list[Row]:
    """The ordinary value above what was planned."""
    regularised, *others = plan_rows(found.regularised)
    ordinary = Row("ordinary value", found.value, None, found.interval, regularised.support)
    return [ordinary, regularised._replace(name="regularised value"), *others]


def decision_rows(decision: "Decision") -> list[Row]:
    """The actions: estimates with standard errors, and intervals where they are proved."""
    return [
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


def comparison_rows(comparison: "Comparison") -> list[Row]:
    """A row for each planner and budget: means over its runs."""
    rows = []
    for (name, budget), runs in comparison.groups().items():
        values = [run["value"] for run in runs if run["value"] is not None]
        ends = [(run["low"], run["high"]) for run in runs if run["low"] is not None and run["high"] is not None]
        interval = (fmean(low for low, _ in ends), fmean(high for _, high in ends)) if ends else None
        supports = {run["support"] for run in runs} - {None}
        rows.append(
            Row(
                f"{name}, {amount(budget)}",
                fmean(values) if values else None,
                stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
                interval,
                "declared" if len(supports) != 1 else supports.pop(),
                exact=runs[0]["exact"],
                note=f"{len(runs)} runs",
            )
        )
    return rows


def _pair(ends: Any) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])


def window(rows: Iterable[Row]) -> tuple[float, float]:
    """The part of the axis that is shown at first.

    Estimates must be told apart, though a proved or declared interval may be a thousand times wider than their
    differences: a bar may widen the axis to nine times what the estimates need, and is cut off there.
    """
    points, bars = [], []
    for row in rows:
        error = 2.0 * row.error if row.error is not None and math.isfinite(row.error) else 0.0
        points += [
            end for point in (row.point, row.exact) if point is not None for end in (point - error, point + error)
        ]
        if row.interval is not None:
            bars.append((row.interval, row.support, row.error is None))
    points = [point for point in points if math.isfinite(point)]
    # Intervals are what a planner without standard errors is about; what is declared is not.
    core = [*points, *(end for ends, support, alone in bars if alone and support == "proved" for end in ends)]
    every = [end for end in (*core, *(end for ends, _, _ in bars for end in ends)) if math.isfinite(end)]
    if not every:
        return -1.0, 1.0
    low, high = (min(core), max(core)) if core and min(core) < max(core) else (min(every), max(every))
    reach = 4.0 * (high - low)
    low, high = max(min(every), low - reach), min(max(every), high + reach)
    margin = 0.04 * (high - low) or 0.5 * abs(low) or 0.5
    return low - margin, high + margin


def _meaning(rows: Sequence[Row], delta: float | None) -> list[str]:
    """The legend: what the marks that are there stand for."""
    supports = [row.support for row in rows if row.interval is not None]
    sure = "proved" if delta is None else f"all at once with probability at least {1 - delta:g}"
    meanings = {
        "proved": f"solid bars: intervals, {sure}",
        "estimate": "dashed bars: intervals without a proof (estimate)",
        "lower": "pale bars with an edge: proved from below, declared from above",
        "declared": "pale bars: what the model declares, no proof by samples",
    }
    said = [meaning for support, meaning in meanings.items() if support in supports]
    said += ["points: estimates"] * any(row.point is not None for row in rows)
    said += ["whiskers: ± 2 standard errors"] * any(_whisker(row) is not None for row in rows)
    said += ["crosses: exact values"] * any(row.exact is not None for row in rows)
    said += ["star: chosen"] * any(row.chosen for row in rows)
    return said


def _whisker(row: Row) -> tuple[float, float] | None:
    """The estimate ± 2 standard errors."""
    if row.point is None or row.error is None or not math.isfinite(row.error):
        return None
    return row.point - 2.0 * row.error, row.point + 2.0 * row.error


def _words(row: Row) -> str:
    """A row in words, for a tooltip."""
    said = [row.name + (" (chosen)" if row.chosen else "")]
    if row.point is not None:
        noise = "" if _whisker(row) is None else f" ± {row.error:.2g} (one standard error)"
        said.append(f"estimate {row.point:.6g}{noise}")
    if row.interval is not None:
        low, high = row.interval
        said.append(
            {
                "proved": f"in [{low:.6g}, {high:.6g}], proved",
                "estimate": f"in [{low:.6g}, {high:.6g}] (estimate)",
                "lower": f"at least {low:.6g}, proved; at most {high:.6g}, by what the model declares",
                "declared": f"in [{low:.6g}, {high:.6g}], by what the model declares",
            }[row.support]
        )
    said += [] if row.exact is None else [f"exact {row.exact:.6g}"]
    return "; ".join([*said, *([row.note] if row.note else [])])


# HTML. Lengths are in pixels; colours of text are those of the page, so that a dark one can be read.

LABELS, PLOT, HEIGHT = 200.0, 430.0, 24.0
"""Width of the names, width of the axis, height of a row."""


def plan_html(result: "PlanResult") -> str:
    """A plan."""
    rows = plan_rows(result)
    graph = getattr(result.details, "graph", None)
    more = []
    if graph is not None:
        wide = drawing.to_svg(graph, NODES_SHOWN).replace("<svg ", '<svg style="max-width:none" ', 1)
        more = [_folded("The graph explored", f'<div style="overflow-x:auto">{wide}</div>')]
    return _page("Plan", bars_svg(rows), _meaning(rows, result.delta), _described(summaries.plan_lines(result)), *more)


def unregularised_html(found: "UnregularisedResult") -> str:
    """A plan for the ordinary optimal value."""
    rows = unregularised_rows(found)
    planned = _folded("What was planned, the regularised value", _described(summaries.plan_lines(found.regularised)))
    lines = _described(summaries.unregularised_lines(found))
    return _page("Plan", bars_svg(rows), _meaning(rows, found.regularised.delta), lines, planned)


def decision_html(decision: "Decision") -> str:
    """A decision: what a user must read first, then the actions."""
    rows = decision_rows(decision)
    chosen = "none, the state is terminal" if decision.action is None else decision.names[decision.action]
    regret = f"{decision.regret:.4g} (estimate, at level {decision.delta:g})"
    gap = "not proved"
    if math.isfinite(decision.gap):
        gap = f"no action is better by more than {max(decision.gap, 0.0):.4g}, with probability {1 - decision.delta:g}"
    lines = [
        ("regret", regret if math.isfinite(decision.regret) else "no estimate"),
        ("gap", gap),
        ("method", decision.method),
        ("calls", f"{decision.calls:,}, {decision.seconds:.2f} s"),
    ]
    table = [["action", "estimate", "standard error", "at least", "at most", "returns"]]
    for row, returns in zip(rows, decision.returns.tolist(), strict=True):
        ends = ("", "") if row.interval is None else row.interval
        numbers = [_number(number) for number in (row.point, row.error, *ends)]
        table.append([row.name.removeprefix("action ") + " ★" * row.chosen, *numbers, f"{returns:,}"])
    warned = "".join(f"<div>⚠ {_escaped(sentence)}</div>" for sentence in decision.warnings)
    chart = warned + bars_svg(rows), _meaning(rows, decision.delta)
    return _page(f"Action: {chosen}", *chart, _described(lines), _folded("Action values", _table(table)))


def forecast_html(forecast: "Forecast") -> str:
    """The price, and how it grows."""
    now = forecast.schedule.epsilon
    legend = ["price against accuracy, on logarithmic scales", f"large point: the present epsilon, {now:g}"]
    levels = _folded(
        "Levels", f'<pre style="overflow-x:auto;font-family:monospace">{html.escape(forecast.table())}</pre>'
    )
    chart = curve_svg(forecast.prices, now)
    return _page("Forecast", chart, legend, f"<div>{_escaped(forecast.summary())}</div>", levels)


def comparison_html(comparison: "Comparison") -> str:
    """The table, and its means as bars."""
    rows = comparison_rows(comparison)
    legend = _meaning(rows, None) if rows else []
    return _page(
        "Comparison",
        bars_svg(rows) if rows else "",
        ["means of the runs of a planner with a budget of calls", *legend],
        _table(comparison.cells(), 2),
    )


def bars_svg(rows: Sequence[Row]) -> str:
    """Rows on one axis."""
    low, high = window(rows)
    bottom = HEIGHT * len(rows)

    def place(value: float) -> float:
        return LABELS + PLOT * (min(max(value, low), high) - low) / (high - low)

    parts = []
    for tick in ticks(low, high):
        x = place(tick)
        parts.append(_line(x, 0.0, x, bottom, opacity=0.15))
        parts.append(_text(x, bottom + 15.0, f"{tick:.6g}", "middle", opacity=0.75))
    parts.append(_text(LABELS + PLOT / 2, bottom + 31.0, "value (discounted reward)", "middle", opacity=0.75))
    for number, row in enumerate(rows):
        y = HEIGHT * (number + 0.5)
        name = drawing.cut(row.name, 24 if row.chosen else 27)
        parts.append("<g>" + _tooltip(_words(row)))
        parts.append(_text(LABELS - 8.0, y + 4.0, "★ " * row.chosen + name, "end", bold=row.chosen))
        if row.interval is not None:
            parts += _bar(row, place(row.interval[0]), place(row.interval[1]), y)
            parts += [_arrow(LABELS, y, -1.0)] * (row.interval[0] < low) + [_arrow(LABELS + PLOT, y, 1.0)] * (
                row.interval[1] > high
            )
        whisker = _whisker(row)
        if whisker is not None:
            parts.append(_line(place(whisker[0]), y, place(whisker[1]), y, width=2.0))
            parts += [_line(place(end), y - 4.0, place(end), y + 4.0, width=2.0) for end in whisker]
        if row.point is not None and math.isfinite(row.point):
            parts.append(f'<circle class="point" cx="{place(row.point):.1f}" cy="{y:.1f}" r="4" fill="currentColor"/>')
        if row.exact is not None:
            x = place(row.exact)
            parts += [_line(x - 4.0, y - 4.0, x + 4.0, y + 4.0, 2.0, colour=COLOURS[1])]
            parts += [_line(x - 4.0, y + 4.0, x + 4.0, y - 4.0, 2.0, colour=COLOURS[1])]
        parts.append("</g>")
    return _svg(parts, LABELS + PLOT + 24.0, bottom + 38.0, "; ".join(map(_words, rows)))


def _bar(row: Row, left: float, right: float, y: float) -> list[str]:
    blue, orange = COLOURS[:2]
    look = {
        "proved": f'fill="{blue}" fill-opacity="0.75"',
        "estimate": f'fill="{orange}" fill-opacity="0.15" stroke="{orange}" stroke-dasharray="4 3"',
    }.get(row.support, 'fill="currentColor" fill-opacity="0.16"')
    size = f'x="{left:.1f}" y="{y - 6.0:.1f}" width="{max(right - left, 2.0):.1f}" height="12"'
    shown = row.support == "lower" and left > LABELS  # it may be cut off
    edge = [_line(left, y - 7.0, left, y + 7.0, width=3.0, colour=blue)] if shown else []
    return [f'<rect class="bar {row.support}" rx="2" {size} {look}/>', *edge]


def curve_svg(points: Sequence[tuple[float, int]], now: float) -> str:
    """Prices against ε on logarithmic scales."""
    if not points:
        return "<div>The price is beyond all numbers that a drawing can show.</div>"
    width, height, left, top = 420.0, 190.0, 110.0, 26.0
    across = [math.log10(epsilon) for epsilon, _ in points]
    up = [math.log10(max(calls, 1)) for _, calls in points]
    spans = [(min(across), max(across)), (min(up), max(up))]
    (start, end), (low, high) = ((a, b) if a < b else (a - 0.5, b + 0.5) for a, b in spans)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + width * (x - start) / (end - start), top + height * (high - y) / (high - low)

    parts = []
    for _, calls in points:
        y = place(start, math.log10(max(calls, 1)))[1]
        parts += [_line(left, y, left + width, y, opacity=0.15)]
        parts += [_text(left - 8.0, y + 4.0, amount(calls), "end", opacity=0.75)]
    for epsilon, _ in points:
        x = place(math.log10(epsilon), low)[0]
        parts += [_text(x, top + height + 20.0, f"{epsilon:.3g}", "middle", opacity=0.75)]
    places = [place(*each) for each in zip(across, up, strict=True)]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline points="{joined}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
    for (x, y), (epsilon, calls) in zip(places, points, strict=True):
        size = 7.0 if epsilon == now else 4.0
        tooltip = _tooltip(f"epsilon {epsilon:.4g}: at most {amount(calls)} simulator calls")
        mark = f'class="point" cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{COLOURS[int(epsilon == now)]}"'
        parts.append(f"<circle {mark}>{tooltip}</circle>")
    parts.append(_text(left + width / 2, top + height + 38.0, "accuracy epsilon (reward)", "middle", opacity=0.75))
    parts.append(_text(left - 8.0, 11.0, "simulator calls", "end", opacity=0.75))
    return _svg(parts, left + width + 30.0, top + height + 44.0, "The price against epsilon")


def ticks(low: float, high: float) -> list[float]:
    """Round numbers within an interval, about five.

    >>> ticks(0.13, 0.41)
    [0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    """
    rough = (high - low) / 6.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * unit >= rough * (1.0 - 1e-9))
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _page(title: str, chart: str, legend: Sequence[str], *parts: str) -> str:
    said = f'<div style="opacity:0.75;font-size:85%">{_escaped("; ".join(legend))}</div>'
    head = f'<div style="font-weight:600;margin-bottom:4px">{_escaped(title)}</div>'
    inside = "\n".join([head, chart, said, *parts])
    return f'<div class="smoothplan" style="max-width:70em;line-height:1.45">\n{inside}\n</div>'


def _described(lines: Iterable[Line]) -> str:
    """Names and texts as a table."""
    cell = 'style="text-align:left;vertical-align:top;padding:1px 12px 1px 0;border:0;background:none"'
    rows = [
        f"<tr style='background:none'><th {cell}>{_escaped(name)}</th><td {cell}>{_escaped(words)}</td></tr>"
        for name, words in lines
    ]
    return f'<table style="margin:6px 0;border:0;border-collapse:collapse">{"".join(rows)}</table>'


def _table(rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table of texts and numbers, its first row being titles."""
    made = []
    for number, row in enumerate(rows):
        kind = "th" if number == 0 else "td"
        sides = ["left" if place < texts else "right" for place in range(len(row))]
        cells = [
            f'<{kind} style="text-align:{side};padding:1px 12px 1px 0;white-space:nowrap">{_escaped(cell)}</{kind}>'
            for side, cell in zip(sides, row, strict=True)
        ]
        made.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table style="margin:6px 0;border-collapse:collapse">{"".join(made)}</table>'
    return f'<div style="overflow-x:auto">{table}</div>'


def _number(number: Any) -> str:
    return f"{number:.6g}" if isinstance(number, float) and math.isfinite(number) else "–"


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{_escaped(title)}</summary>{inside}</details>"


def _svg(parts: Sequence[str], width: float, height: float, label: str) -> str:
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    style = "max-width:100%;height:auto;font:12px system-ui,sans-serif;overflow:visible"
    start = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} style="{style}" aria-label='
    return "\n".join([f'{start}"{_escaped(label)}">', *parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str = "start", opacity: float = 1.0, bold: bool = False) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor" fill-opacity="{opacity}"'
    weight = ' font-weight="700"' if bold else ""
    return f"<text {place}{weight}>{_escaped(text)}</text>"


def _line(
    x: float, y: float, right: float, bottom: float, width: float = 1.0, opacity: float = 1.0, colour: str = ""
) -> str:
    stroke = f'stroke="{colour or "currentColor"}" stroke-width="{width}" stroke-opacity="{opacity}"'
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{bottom:.1f}" {stroke}/>'


def _arrow(x: float, y: float, direction: float) -> str:
    """Where a bar goes on beyond the axis."""
    corners = f"M{x:.1f} {y - 6.0:.1f}L{x + 7.0 * direction:.1f} {y:.1f}L{x:.1f} {y + 6.0:.1f}Z"
    return f'<path class="beyond" d="{corners}" fill="currentColor"/>'


def _escaped(text: str) -> str:
    """A text in a line, without markup and control characters."""
    return html.escape(drawing.clean(text))


def _tooltip(text: str) -> str:
    return f"<title>{_escaped(text)}</title>"


# Plotly. Texts are escaped, for it takes some tags for markup.


def plan_figure(result: "PlanResult") -> Any:
    """A Plotly figure of a plan."""
    return bars_figure(plan_rows(result), result.delta)


def unregularised_figure(found: "UnregularisedResult") -> Any:
    """A Plotly figure of a plan for the ordinary optimal value."""
    return bars_figure(unregularised_rows(found), found.regularised.delta)


def decision_figure(decision: "Decision") -> Any:
    """A Plotly figure of a decision."""
    return bars_figure(decision_rows(decision), decision.delta)


def forecast_figure(forecast: "Forecast") -> Any:
    """A Plotly figure of the price against ε."""
    go = _plotly()
    now, points = forecast.schedule.epsilon, forecast.prices
    hover = [f"ε = {epsilon:.4g}: at most {amount(calls)} simulator calls" for epsilon, calls in points]
    marks = {
        "size": [14 if epsilon == now else 8 for epsilon, _ in points],
        "symbol": ["star" if epsilon == now else "circle" for epsilon, _ in points],
        "color": [COLOURS[int(epsilon == now)] for epsilon, _ in points],
    }
    x, y = [epsilon for epsilon, _ in points], [float(max(calls, 1)) for _, calls in points]
    line = go.Scatter(
        x=x, y=y, mode="lines+markers", line={"color": COLOURS[0]}, marker=marks, text=hover, hoverinfo="text"
    )
    figure = go.Figure(line)
    figure.update_xaxes(type="log", title="accuracy ε (reward)", tickvals=x, ticktext=[f"{each:.3g}" for each in x])
    figure.update_yaxes(type="log", title="price (simulator calls)", exponentformat="power")
    return figure.update_layout(title=f"The price against ε; star: the present one, {now:g}", showlegend=False)


def comparison_figure(comparison: "Comparison") -> Any:
    """A Plotly figure of values and proved intervals against simulator calls, a colour for each planner."""
    go = _plotly()
    figure = go.Figure()
    names = list(dict.fromkeys(name for name, _ in comparison.groups()))
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        runs = [run for run in comparison.rows if run["planner"] == name and run["value"] is not None]
        if not runs:
            continue
        # What is declared is no finding, and would squeeze everything else.
        below = [
            run["value"] - run["low"] if run["support"] in ("proved", "lower", "estimate") else 0.0 for run in runs
        ]
        above = [run["high"] - run["value"] if run["support"] in ("proved", "estimate") else 0.0 for run in runs]
        spread = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "width": 3}
        hover = [
            f"{_escaped(name)}, seed {run['seed']}: value {run['value']:.6g}, {run['calls']:,} calls"
            + ("" if run["low"] is None else f"<br>in [{run['low']:.6g}, {run['high']:.6g}] ({run['support']})")
            for run in runs
        ]
        figure.add_scatter(
            x=[max(run["calls"], 1) for run in runs], y=[run["value"] for run in runs], mode="markers", opacity=0.45,
            marker={"color": colour, "size": 6}, error_y=spread, text=hover, hoverinfo="text", legendgroup=name,
            name=_escaped(name), showlegend=False,
        )  # fmt: skip
        groups = [group for (each, _), group in comparison.groups().items() if each == name]
        groups = [kept for group in groups if (kept := [run for run in group if run["value"] is not None])]
        figure.add_scatter(
            x=[max(fmean(run["calls"] for run in group), 1.0) for group in groups],
            y=[fmean(run["value"] for run in group) for group in groups],
            mode="lines+markers", line={"color": colour, "width": 2}, marker={"size": 9}, legendgroup=name,
            name=_escaped(name), text=[f"{_escaped(name)}: mean of {len(group)} runs" for group in groups],
            hovertemplate="%{text}: %{y:.6g}, %{x:,.0f} calls<extra></extra>",
        )  # fmt: skip
    known: dict[float, list[str]] = {}
    for (name, _), group in comparison.groups().items():
        if group[0]["exact"] is not None and name not in known.setdefault(round(group[0]["exact"], 9), []):
            known[round(group[0]["exact"], 9)].append(name)
    for exact, about in known.items():
        said = f"exact {exact:.6g}" + (f" ({_escaped(', '.join(about))})" if len(known) > 1 else "")
        figure.add_hline(
            y=exact, line_dash="dash", line_color=COLOURS[-1], annotation_text=said, annotation_position="bottom left"
        )
    budgets = sorted({budget for _, budget in comparison.groups()})
    marks = {"tickvals": budgets, "ticktext": [amount(budget) for budget in budgets]}
    figure.update_xaxes(type="log", title="simulator calls made", **marks)
    figure.update_yaxes(title="value (discounted reward)")
    return figure.update_layout(title="Values against simulator calls; lines: means, bars: intervals of runs")


def bars_figure(rows: Sequence[Row], delta: float | None = None) -> Any:
    """A Plotly figure of rows on one axis."""
    go = _plotly()
    figure = go.Figure()
    blue, orange = COLOURS[:2]
    looks: dict[Support, dict[str, Any]] = {
        "proved": {"color": blue, "opacity": 0.75},
        "estimate": {"color": "rgba(217,115,26,0.2)", "line": {"color": orange, "width": 2}, "pattern": {"shape": "/"}},
        "lower": {"color": COLOURS[-1], "opacity": 0.3, "line": {"color": blue, "width": 2}},
        "declared": {"color": COLOURS[-1], "opacity": 0.3},
    }
    titles = {"proved": "proved", "estimate": "estimate", "lower": "proved from below", "declared": "declared"}
    numbered = list(enumerate(rows))
    for support, look in looks.items():
        bars = [(y, row, row.interval) for y, row in numbered if row.interval is not None and row.support == support]
        if bars:
            figure.add_bar(
                orientation="h", y=[y for y, _, _ in bars], base=[ends[0] for _, _, ends in bars],
                x=[ends[1] - ends[0] for _, _, ends in bars], width=0.5, marker=look, hoverinfo="text",
                hovertext=[_escaped(_words(row)) for _, row, _ in bars], name=f"interval ({titles[support]})",
            )  # fmt: skip
    points = [(y, row, row.point) for y, row in numbered if row.point is not None and math.isfinite(row.point)]
    if points:
        arms = [0.0 if (ends := _whisker(row)) is None else ends[1] - point for _, row, point in points]
        figure.add_scatter(
            x=[point for _, _, point in points], y=[y for y, _, _ in points], mode="markers", hoverinfo="text",
            hovertext=[_escaped(_words(row)) for _, row, _ in points],
            error_x={"type": "data", "array": arms, "visible": any(arms)},
            marker={
                "color": orange, "size": [14 if row.chosen else 9 for _, row, _ in points],
                "symbol": ["star" if row.chosen else "circle" for _, row, _ in points],
            },
            name="estimate" + " ± 2 standard errors" * any(arms) + ", star: chosen" * any(row.chosen for row in rows),
        )  # fmt: skip
    exact = [(y, row.exact) for y, row in numbered if row.exact is not None]
    if exact:
        figure.add_scatter(
            x=[value for _, value in exact], y=[y for y, _ in exact], mode="markers", name="exact",
            marker={"symbol": "x", "size": 9, "color": COLOURS[2]}, hovertemplate="exact %{x:.6g}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="value (discounted reward)", range=window(rows))
    names = [_escaped(drawing.cut(row.name, 40)) for row in rows]
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=names, autorange="reversed")
    sure = "" if delta is None or not delta else f"; proved intervals hold with probability at least {1 - delta:g}"
    legend = {"orientation": "h", "y": -0.35 if len(rows) < 6 else -0.25}
    return figure.update_layout(
        title=f"Values and intervals{sure}", legend=legend, barmode="overlay", height=220 + 36 * len(rows)
    )


def _plotly() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ImportError('figure() needs Plotly: pip install "smoothplan[plots]"') from None
    return go
