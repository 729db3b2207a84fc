"""Results as text, HTML and figures: `summary`, `table`, `html` and `figure`, each for every kind of record.

Records import this module on their first use of it, see `smoothplan.base.records`. Figures need Plotly: a bar is an
interval, a point an estimate, a whisker two standard errors.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from html import escape
from statistics import fmean, stdev
from typing import Any, NamedTuple

from smoothplan.base.arguments import amount, shown
from smoothplan.base.records import Record
from smoothplan.decide.agent import ActResult
from smoothplan.decide.boxes import COARSE
from smoothplan.decide.compare import Comparison
from smoothplan.decide.decide import Decision, signed
from smoothplan.recursive.schedule import Forecast
from smoothplan.run.plan import PlanResult
from smoothplan.run.records import LONG_HORIZONS, REFUSED_CALLS, GapDetails, ReferenceDetails, Support, within

COLOURS = ("#3987c9", "#d9731a", "#1f9e78", "#c0639b", "#b58a12", "#8f6bc0", "#5aa7d6", "#8a8f98")
"""Of planners; the first two also of intervals and marks, the last of context. Visible on white and on black."""


@singledispatch
def summary(record: Record) -> str:
    """A record in a few lines, warnings first."""
    raise TypeError(f"{type(record).__name__} has no summary")


@singledispatch
def table(record: Record) -> str:
    """The table of a record."""
    raise TypeError(f"{type(record).__name__} has no table")


@singledispatch
def figure(record: Record) -> Any:
    """A Plotly figure of a record."""
    raise TypeError(f"{type(record).__name__} has no figure")


def html(record: Record) -> str:
    """A record as preformatted text, for notebooks."""
    text = f"{table(record)}\n{summary(record)}" if isinstance(record, Forecast) else summary(record)
    lines = [escape(clean(line)) for line in text.splitlines()]
    return '<pre class="smoothplan" style="overflow-x:auto">{}</pre>'.format("\n".join(lines))


def clean(text: str) -> str:
    """A text in one line, without control characters."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def listed(lines: Iterable[tuple[str, str]]) -> str:
    """Names in a column, texts beside them."""
    return "\n".join(f"{name:<8}{text}" for name, text in lines)


def aligned(rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table with titles in its first row: columns of texts to the left, then columns of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    layout = "  ".join(f"{{:{'<' if place < texts else '>'}{width}}}" for place, width in enumerate(widths))
    return "\n".join(layout.format(*row).rstrip() for row in rows)


# Plans


@summary.register
def plan_summary(
    result: PlanResult, price: int | None = None, truth: float | None = None, q: Sequence[float] | None = None
) -> str:
    """A plan, optionally beside its forecast, the exact value and the exact action values."""
    text = listed(_plan_lines(result, price, truth))
    if not isinstance(result.details, GapDetails) or result.q_intervals is None:
        return text
    rows = [["root action", "at least", "at most", "calls", *([] if q is None else ["exact"])]]
    calls = result.details.action_calls.tolist()
    for action, (name, (low, high)) in enumerate(zip(result.names, result.q_intervals.tolist(), strict=True)):
        numbers = [_known(low), _known(high), f"{calls[action]:,}", *([] if q is None else [_known(q[action])])]
        rows.append([clean(name), *numbers])
    return f"{text}\n{aligned(rows)}"


def _known(number: float) -> str:
    """A number of an action in words; – if the action is not legal."""
    return f"{number:.6g}" if math.isfinite(number) else "–"


def _plan_lines(result: PlanResult, price: int | None, truth: float | None) -> Iterator[tuple[str, str]]:
    (low, high), details, bonus = result.interval, result.details, result.bonus
    smooth, sure = result.regularised_interval, f"with probability at least {1 - result.delta:g}"
    yield from (("warning", sentence) for sentence in result.warnings)
    mark = " (estimate);" if result.support in ("lower", "declared") else ","
    about = "" if smooth is None else ": the unregularised optimal value"
    yield "value", f"{result.value:.6g}{mark} {_bounds(result.interval, result.support, sure)}{about}"
    if bonus is not None and smooth is not None:
        planned = f"{result.regularised_value:.6g} in [{smooth[0]:.6g}, {smooth[1]:.6g}]"
        larger = f"is {bonus[0]:.4g} to {bonus[1]:.4g} larger, for certain"
        yield "bias", f"the value with the smooth backup, {planned}, {larger}"
    elif bonus is not None and bonus[0] >= 0.0:
        yield "bonus", f"the value is regularised, and includes an entropy bonus of at most {bonus[1]:.3g}"
    elif bonus is not None:  # costs have either sign
        more = f"{bonus[0]:.3g} to {bonus[1]:.3g} more than the unregularised one"
        yield "bonus", f"the value is regularised: {more}, by costs and entropy"
    if truth is not None:
        yield "exact", f"{truth:.6g}, {'inside' if low <= truth <= high else 'OUTSIDE'} the interval"
    yield from ((name, f"{reason} (chosen)") for name, reason in result.chosen.items())
    if result.action is None:
        yield "action", "none, the state is terminal"
    else:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(result.names, result.policy, strict=True))
        estimate = "" if isinstance(details, GapDetails) else " (estimate)"
        yield "action", f"{result.names[result.action]}{estimate}; estimated policy {shares}"
    if isinstance(details, GapDetails):
        close = f"within {details.gap:.4g} of the best" if details.gap > 0.0 else "the best"
        yield "gap", f"action {result.names[result.action or 0]} is {close} {sure}"
        if details.progress is not None:
            yield "means", "; ".join(details.progress.sentences())
    elif details is not None:
        if isinstance(details, ReferenceDetails):
            worth = "worth between {:.6g} and {:.6g}, regulariser included".format(*details.policy_interval)
            yield "policy", f"of the reference: {worth}, {sure}"
        yield "means", details.summary()
    promised = "" if price is None else f", forecast {price:,} at most"
    yield "calls", f"{result.calls:,}{promised}, {result.seconds:.2f} s"
    statuses = {
        "converged": "converged: epsilon is reached, as the planner defines it",
        "completed": "completed: the planner finished, without a promise on epsilon",
        "max_calls": "stopped by the limit on calls",
        "max_seconds": "stopped by the limit on time",
        "interrupted": "interrupted",
        "terminal": "terminal: the state is worth 0",
    }
    yield "status", statuses[result.status]


def _bounds(interval: tuple[float, float], support: Support, sure: str) -> str:
    """An interval and its basis."""
    low, high = (f"{end:.6g}" for end in interval)
    if support == "lower":
        return f"at least {low} {sure}; at most {high}, by what the model declares"
    basis = {"proved": f" {sure}", "declared": ", by what the model declares", "estimate": " (estimate)"}
    return f"in [{low}, {high}]{basis[support]}"


# Decisions and episodes


@summary.register
def _(decision: Decision) -> str:
    lines = [f"warning: {text}" for text in decision.warnings]
    if decision.action is None:
        return "\n".join([*lines, "the state is terminal: there is nothing to decide"])
    proved, level = f"with probability at least {1.0 - decision.delta:g}", f"(estimate at level {decision.delta:g})"
    parts = []
    if math.isfinite(decision.gap):
        short = "" if decision.certified else f" (more than the {decision.epsilon:.4g} asked for)"
        parts.append(f"no action is better by more than {decision.gap:.4g} {proved}{short}")
    if math.isfinite(decision.regret):
        more = f"better by more than {decision.regret:.4g}" if decision.regret > 0.0 else "better"
        parts.append(f"no {'action' if decision.regret > 0.0 else 'other action'} seems {more} {level}")
    if not math.isfinite(decision.gap):
        parts.append("nothing is proved" if parts else "how much better another action may be is not known")
    known = f"the best, {proved}" if decision.gap <= 0.0 else "; ".join(parts)
    chosen = decision.place or 0
    lines.append(f"action {decision.names[chosen]}: {known}")
    width = max(map(len, decision.names))
    for action in _listed_actions(decision):
        line = f"  {'→' if action == chosen else ' '} {decision.names[action]:<{width}}  "
        if math.isnan(decision.q[action]):
            lines.append(f"{line}–, not legal here")
            continue
        line += f"{decision.q[action]:.6g} ± {decision.q_errors[action]:.2g}"
        difference, error = decision.differences[action], decision.difference_errors[action]
        if action != chosen and math.isfinite(error):
            line += f", {signed(difference)} ± {error:.2g}"
        if decision.q_intervals is not None:
            low, high = decision.q_intervals[action]
            line += f"  in [{low:.6g}, {high:.6g}]"
        lines.append(line)
    lines += [f"note: {text}" for text in decision.notes]
    made = f"{decision.calls:,} simulator calls, {decision.seconds:.2f} s"
    return "\n".join([*lines, f"how: {decision.method}", made])


def _listed_actions(decision: Decision) -> list[int]:
    """The actions that a summary lists: all; of numbers in a box the coarse ones, the one chosen and its neighbours."""
    every, points, chosen = list(range(len(decision.names))), decision.actions, decision.place or 0
    if points is None:
        return every
    if points.ndim > 1:  # the best ones, as many as fit on a screen
        return [chosen, *sorted(set(every) - {chosen}, key=lambda action: -decision.q[action])[:12]]
    every.sort(key=lambda action: float(points[action]))
    place = every.index(chosen)
    return [action for action in every if action < COARSE[1] or action in every[max(place - 1, 0) : place + 2]]


@summary.register
def _(result: ActResult) -> str:
    most = 20  # episodes that fit on a screen
    ends = {"truncated": "cut off by the environment's time limit", "max_steps": "stopped by the limit on steps"}
    rows = [["episode", "return", "discounted", "steps", "deviations", "ms/step", "end"]]
    for number, episode in enumerate(result.episodes[:most]):
        speed = 1e3 * episode.seconds / max(episode.steps, 1)
        numbers = (f"{episode.score:g}", f"{episode.discounted:.4g}", f"{episode.steps}", f"{episode.deviations}")
        rows.append([f"{number}", *numbers, f"{speed:.1f}", ends.get(episode.end, episode.end)])
    more = [f"… and {len(result.episodes) - most} more episodes"] if len(result.episodes) > most else []
    error = "" if result.error is None else f" ± {result.error:.2g} (standard error)"
    made = f"{result.reference_calls:,} for the first reference, {result.calls:,} in all"
    about = [
        *(("warning", sentence) for sentence in result.warnings),
        ("return", f"{result.mean:.4g}{error}, of {len(result.episodes)} episodes of {result.environment}"),
        ("policy", f"of {result.reference!r}, improved by returns at every step, at discount {result.discount:g}"),
        ("calls", f"{made}; {result.seconds:.1f} s"),
    ]
    return "\n".join([aligned(rows), *more, listed(about)])


# Forecasts


@summary.register
def _(forecast: Forecast) -> str:
    schedule = forecast.schedule
    parts = [f"at most {amount(forecast.calls)} simulator calls"]
    if schedule.repeats > 1:
        samples = f"{schedule.repeats:,} samples of {amount(schedule.sample_calls)} calls"
        parts.append(f"{amount(schedule.reference_calls)} for one shared reference, then {samples}")
    sure = f"with probability at least {1.0 - schedule.delta:g}"
    parts.append(f"error at most {schedule.bias:.3g} bias + {schedule.noise:.3g} noise {sure}")
    if not within(schedule.bias + schedule.noise, schedule.epsilon):
        parts.append(f"which does not confirm the epsilon of {schedule.epsilon:g} that the publication promises")
    if forecast.calls > 0:
        parts.append(f"halving epsilon costs 2^{forecast.exponent:.2f} times as much")
    if forecast.calls > REFUSED_CALLS:
        parts.append(f"hopeless: {LONG_HORIZONS}")
    return "; ".join(parts)


@table.register
def _(forecast: Forecast) -> str:
    schedule, most = forecast.schedule, 30  # rows that fit on a screen
    last = len(schedule.levels) - 1
    rows = [["level", "kind", "N", "debias", "n", "Q from", "X from", "pairs from", "M", "bias", "deviation", "calls"]]
    for row in range(last, max(last - most, -1), -1):
        level, is_root = schedule.levels[row], row == last
        proved = schedule.sample if is_root else schedule.certificates[row]
        calls = (schedule.sample_calls or schedule.reference_calls) if is_root else schedule.costs[row]
        sizes = [number or "" for number in (level.samples, level.debias, level.pairs)]
        children = ["" if child is None else child for child in (level.reference, level.linear, level.quadratic)]
        cells = ["root" if is_root else row, level.kind, *sizes, *children, "" if is_root else level.rewards]
        numbers = [f"{float(proved.bias):.3g}", f"{math.sqrt(proved.variance):.3g}", amount(calls)]
        rows.append([*map(str, cells), *numbers])
    more = [f"… and {last + 1 - most} more levels"] if last >= most else []
    legend = """\
N: returns per action in the reference Q̂; debias: terms of its bias that are cancelled; n: pairs of returns in the
quadratic term; "from": the level that the returns of the reference, the return X of the drawn action, and the pairs go
through; M: rewards that are averaged in a return through the level."""
    return "\n".join([aligned(rows, texts=2), *more, legend])


# Comparisons


@summary.register
def _(comparison: Comparison) -> str:
    return f"{comparison!r} at state {shown(comparison.state)} of {comparison.model}\n{table(comparison)}"


@table.register
def _(comparison: Comparison) -> str:
    known = any(row["exact"] is not None for row in comparison.rows)
    truths = ["covered", "mean error", "mean regret"] if known else []
    cells = [["planner", "action (share)", "budget", "runs", "mean calls", "mean value", "mean width", *truths]]
    for (planner, budget), group in comparison.groups().items():
        ran = [row for row in group if row["failure"] is None]
        actions = Counter(row["action"] for row in ran if row["action"] is not None).most_common(1)
        names = dict(enumerate(map(clean, comparison.names)))
        action = f"{names.get(actions[0][0], actions[0][0])} ({actions[0][1] / len(ran):.0%})" if actions else "–"
        calls = f"{round(fmean(row['calls'] for row in ran)):,}" if ran else "–"
        cells.append([clean(planner), action, f"{budget:,}", f"{len(ran)}", calls])
        cells[-1] += [_mean(ran, "value", error=True), _mean(ran, "width")]
        if known:
            tested = [row for row in ran if row["exact"] is not None and row["low"] is not None]
            inside = [row["low"] <= row["exact"] <= row["high"] for row in tested]
            cells[-1] += [f"{fmean(inside):.0%}" if inside else "–"]
            cells[-1] += [_mean(ran, "error", error=True), _mean(ran, "regret", error=True)]
    failures = Counter(f"{row['planner']}: {row['failure']}" for row in comparison.rows if row["failure"] is not None)
    failed = [f"{count} runs failed, {reason}" for reason, count in failures.items()]
    return "\n".join([aligned(cells, texts=2), *failed])


def _mean(rows: Sequence[dict[str, Any]], name: str, error: bool = False) -> str:
    """The mean of a column, with its standard error if that is asked for."""
    values = [row[name] for row in rows if row[name] is not None]
    if not values:
        return "–"
    noise = f" ± {stdev(values) / math.sqrt(len(values)):.2g}" if error and len(values) > 1 else ""
    return f"{fmean(values):.4g}{noise}"


@figure.register
def _(comparison: Comparison) -> Any:
    chart, groups = _plotly().Figure(), comparison.groups()
    exact: dict[float, list[str]] = {}
    for place, name in enumerate(dict.fromkeys(name for name, _ in groups)):
        own = (group for (each, _), group in groups.items() if each == name)
        means = [found for group in own if (found := [run for run in group if run["value"] is not None])]
        runs = [run for group in means for run in group]
        title, colour = escape(clean(name)), COLOURS[place % len(COLOURS)]
        # Declared ends are no findings, and would squeeze everything else.
        below = [0.0 if run["support"] in (None, "declared") else run["value"] - run["low"] for run in runs]
        above = [0.0 if run["support"] in (None, "declared", "lower") else run["high"] - run["value"] for run in runs]
        hover = "%{text}: %{y:.6g}, %{x:,.0f} calls<extra></extra>"
        look = {"name": title, "legendgroup": title, "hovertemplate": hover}
        chart.add_scatter(
            x=[max(run["calls"], 1) for run in runs], y=[run["value"] for run in runs], mode="markers", opacity=0.45,
            error_y={"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1},
            marker={"color": colour, "size": 6}, text=[f"{title}, seed {run['seed']}" for run in runs],
            showlegend=False, **look,
        )  # fmt: skip
        chart.add_scatter(
            x=[max(fmean(run["calls"] for run in group), 1.0) for group in means],
            y=[fmean(run["value"] for run in group) for group in means], mode="lines+markers",
            line={"color": colour, "width": 2}, text=[f"{title}, mean of {len(group)} runs" for group in means], **look,
        )  # fmt: skip
        for value in {round(run["exact"], 9) for run in runs if run["exact"] is not None}:
            exact.setdefault(value, []).append(title)
    for value, about in exact.items():
        said = f"exact {value:.6g}" + (f" ({', '.join(about)})" if len(exact) > 1 else "")
        chart.add_hline(y=value, line_dash="dash", line_color=COLOURS[-1], annotation_text=said)
    budgets = sorted({budget for _, budget in groups})
    chart.update_xaxes(type="log", title="simulator calls made", tickvals=budgets, ticktext=[*map(amount, budgets)])
    chart.update_yaxes(title="value (discounted reward)")
    return chart.update_layout(title="Values against simulator calls; lines: means, bars: intervals of runs")


# Charts of values and action values


class Row(NamedTuple):
    """A row of a chart of values."""

    name: str
    point: float  # an estimate
    error: float | None = None  # its standard error
    interval: tuple[float, float] | None = None
    support: Support = "proved"  # of the interval
    chosen: bool = False

    @property
    def whisker(self) -> float:
        """Two standard errors; 0 if there is no finite one."""
        return 2.0 * self.error if self.error is not None and math.isfinite(self.error) else 0.0

    @property
    def words(self) -> str:
        """The row as a tooltip. Plotly interprets some tags."""
        noise = f" ± {self.error:.2g} (one standard error)" if self.whisker else ""
        proved = "" if self.interval is None else f"; {_bounds(self.interval, self.support, '(proved)')}"
        return escape(clean(f"{self.name}{' (chosen)' * self.chosen}; estimate {self.point:.6g}{noise}{proved}"))


@figure.register
def _(result: PlanResult) -> Any:
    details, support = result.details, result.support
    rows = [Row("value", result.value, getattr(details, "standard_error", None), result.interval, support)]
    if result.regularised_value is not None:
        rows = [rows[0]._replace(name="unregularised value")]
        rows.append(Row("regularised value", result.regularised_value, None, result.regularised_interval, support))
    if isinstance(details, ReferenceDetails):
        rows.append(Row("policy of the reference", details.order_1, details.order_1_error, details.policy_interval))
    return bars([*rows, *_actions(result, [None] * len(result.names), support)], result.delta)


@figure.register
def _(decision: Decision) -> Any:
    if decision.actions is not None and decision.actions.ndim == 1:
        return _curve(decision, decision.actions)
    return bars([*_actions(decision, decision.q_errors.tolist(), "proved")], decision.delta)


def _curve(decision: Decision, actions: Any) -> Any:
    """The values of actions that are numbers; a band of two standard errors of the difference to the one chosen."""
    chart, order, colour = _plotly().Figure(), actions.argsort(), COLOURS[0]
    chosen = decision.place or 0
    x, middle = actions[order].tolist(), decision.q[chosen] + decision.differences[order]
    reach = 2.0 * decision.difference_errors[order]
    reach[~(reach < math.inf)] = 0.0
    band = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    chart.add_scatter(x=x, y=(middle - reach).tolist(), showlegend=False, **band)
    name = "± 2 standard errors of the difference"
    fill = {"fill": "tonexty", "fillcolor": "rgba(57, 135, 201, 0.25)"}
    chart.add_scatter(x=x, y=(middle + reach).tolist(), name=name, **fill, **band)
    chart.add_scatter(x=x, y=middle.tolist(), mode="lines+markers", name="estimate", marker={"color": colour})
    star = {"color": COLOURS[1], "symbol": "star", "size": 13}
    chart.add_scatter(x=[float(actions[chosen])], y=[decision.q[chosen]], mode="markers", name="chosen", marker=star)
    chart.update_xaxes(title="action")
    chart.update_yaxes(title="value (discounted reward)")
    return chart.update_layout(title="Values of the actions compared")


def _actions(found: PlanResult | Decision, errors: Sequence[float | None], support: Support) -> Iterator[Row]:
    """A row for each action; none at a terminal state."""
    chosen = found.place if isinstance(found, Decision) else found.action
    for action, (name, q, error) in enumerate(zip(found.names, found.q.tolist(), errors, strict=True)):
        interval = None if found.q_intervals is None else tuple(found.q_intervals[action].tolist())
        if found.action is not None and math.isfinite(q):  # others are not legal
            yield Row(f"action {name}", q, error, interval, support, action == chosen)


def window(rows: Iterable[Row]) -> tuple[float, float]:
    """The part of the axis that is shown at first.

    Estimates stay distinguishable even if an interval is a thousand times wider than their differences: a bar widens
    the axis to at most nine times the span of the estimates, and is cut off there.
    """
    core: list[float] = []
    every: list[float] = []
    for row in rows:
        core += [row.point - row.whisker, row.point + row.whisker]
        every += row.interval or ()
        if row.support == "proved" and row.error is None:  # a finding, not only the context of an estimate
            core += row.interval or ()
    core = [end for end in core if math.isfinite(end)]
    every = [*core, *(end for end in every if math.isfinite(end))]
    if not every:
        return -1.0, 1.0
    shown_first = core if core and min(core) < max(core) else every
    low, high = min(shown_first), max(shown_first)
    reach = 4.0 * (high - low)
    low, high = max(min(every), low - reach), min(max(every), high + reach)
    # A span that is lost in rounding counts as none.
    margin = 0.04 * (high - low) if high - low > 1e-9 * abs(low) else 0.5 * abs(low) or 0.5
    return low - margin, high + margin


def bars(rows: Sequence[Row], delta: float) -> Any:
    """A figure of rows on one axis."""
    chart = _plotly().Figure()
    blue, orange, grey = COLOURS[0], COLOURS[1], COLOURS[-1]
    looks: dict[Support, tuple[str, dict[str, Any]]] = {
        "proved": ("proved", {"color": blue, "opacity": 0.75}),
        "lower": ("proved from below", {"color": grey, "opacity": 0.3, "line": {"color": blue, "width": 2}}),
        "declared": ("declared", {"color": grey, "opacity": 0.3}),
        "estimate": ("estimate", {"color": orange, "opacity": 0.3}),
    }
    for support, (title, look) in looks.items():
        found = [(y, row.words, *row.interval) for y, row in enumerate(rows) if row.interval and row.support == support]
        if found:
            places, words, lows, highs = zip(*found, strict=True)
            chart.add_bar(
                orientation="h", y=places, base=lows, x=[high - low for low, high in zip(lows, highs, strict=True)],
                width=0.5, marker=look, hoverinfo="text", hovertext=words, name=f"interval ({title})",
            )  # fmt: skip
    whiskers, chosen = [row.whisker for row in rows], any(row.chosen for row in rows)
    chart.add_scatter(
        x=[row.point for row in rows], y=[*range(len(rows))], mode="markers", hoverinfo="text",
        hovertext=[row.words for row in rows], error_x={"array": whiskers, "visible": any(whiskers)},
        marker={"color": orange, "symbol": ["star" if row.chosen else "circle" for row in rows], "size": 11},
        name="estimate" + " ± 2 standard errors" * any(whiskers) + ", star: chosen" * chosen,
    )  # fmt: skip
    chart.update_xaxes(title="value (discounted reward)", range=window(rows))
    names = [escape(clean(row.name if len(row.name) <= 40 else f"{row.name[:39]}…")) for row in rows]
    chart.update_yaxes(tickvals=list(range(len(rows))), ticktext=names, autorange="reversed")
    sure = f"; proved intervals hold with probability at least {1 - delta:g}" if delta else ""
    chart.update_layout(legend={"orientation": "h", "y": -0.3}, barmode="overlay", height=220 + 36 * len(rows))
    return chart.update_layout(title=f"Values and intervals{sure}")


def _plotly() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ImportError('figure() needs Plotly: pip install "smoothplan[plots]"') from None
    return go
