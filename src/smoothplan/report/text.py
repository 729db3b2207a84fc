"""Results as text: summaries and tables, which notebooks and the command line show too."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from html import escape
from statistics import fmean, stdev
from typing import Any

from smoothplan.base.arguments import amount, shown
from smoothplan.base.records import Record
from smoothplan.decide.act import ActResult
from smoothplan.decide.compare import Comparison
from smoothplan.decide.decide import Decision
from smoothplan.recursive.schedule import Forecast
from smoothplan.run.plan import PlanResult
from smoothplan.run.records import LONG_HORIZONS, REFUSED_CALLS, GapDetails, ReferenceDetails, within

Line = tuple[str, str]
"""A name and a text."""

Interval = tuple[float, float]


@singledispatch
def summary(record: Record) -> str:
    """A record in a few lines, warnings first."""
    raise TypeError(f"{type(record).__name__} has no summary")


@singledispatch
def table(record: Record) -> str:
    """The table of a record."""
    raise TypeError(f"{type(record).__name__} has no table")


def html(record: Record) -> str:
    """A record as preformatted text, for notebooks."""
    text = f"{table(record)}\n{summary(record)}" if isinstance(record, Forecast) else summary(record)
    lines = [escape(clean(line, spaces=True)) for line in text.splitlines()]
    return '<pre class="smoothplan" style="overflow-x:auto">{}</pre>'.format("\n".join(lines))


def clean(text: str, spaces: bool = False) -> str:
    """A text in one line, without control characters; runs of spaces become one unless they are kept."""
    text = text if spaces else " ".join(text.split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def listed(lines: Iterable[Line], indent: str = "") -> str:
    """Names in a column, texts beside them."""
    return "\n".join(f"{indent}{name:<8}{text}" for name, text in lines)


def aligned(rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table with titles in its first row: columns of texts to the left, then columns of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


# Plans


@summary.register
def plan_summary(
    result: PlanResult, price: int | None = None, truth: float | None = None, q: Sequence[float] | None = None
) -> str:
    """A plan, optionally beside its forecast, the exact value and the exact action values."""
    rows = _root_actions(result, q)
    return "\n".join([listed(_plan_lines(result, price, truth)), *([aligned(rows)] if rows else [])])


def _plan_lines(result: PlanResult, price: int | None = None, truth: float | None = None) -> Iterator[Line]:
    statuses = {
        "converged": "converged: epsilon is reached, as the planner defines it",
        "completed": "completed: the planner finished, without a promise on epsilon",
        "max_calls": "stopped by the limit on calls",
        "max_seconds": "stopped by the limit on time",
        "interrupted": "interrupted",
        "terminal": "terminal: the state is worth 0",
    }
    yield from (("warning", sentence) for sentence in result.warnings)
    is_unregularised = result.regularised_interval is not None
    yield "value", _value(result) + (": the unregularised optimal value" if is_unregularised else "")
    if result.bonus is not None:
        yield ("bias" if is_unregularised else "bonus"), _bonus(result, result.bonus)
    if truth is not None:
        yield "exact", _compared(truth, result.interval)
    yield from ((name, f"{reason} (chosen)") for name, reason in result.chosen.items())
    yield "action", "none, the state is terminal" if result.action is None else _action(result)
    yield from _details(result)
    promised = "" if price is None else f", forecast {price:,} at most"
    yield "calls", f"{result.calls:,}{promised}, {result.seconds:.2f} s"
    yield "status", statuses[result.status]


def _value(result: PlanResult) -> str:
    """The value, and the basis of its interval."""
    value, (low, high), declared = result.value, result.interval, "by what the model declares"
    match result.support:
        case "lower":
            return f"{value:.6g} (estimate); at least {low:.6g} {_sure(result)}; at most {high:.6g}, {declared}"
        case "declared":
            return f"{value:.6g} (estimate); in [{low:.6g}, {high:.6g}], {declared}"
    return f"{value:.6g}, in [{low:.6g}, {high:.6g}] {_sure(result)}"


def _sure(result: PlanResult) -> str:
    if result.support == "estimate":
        return "(estimate: thresholds do not cover delta)"
    return f"with probability at least {1 - result.delta:g}"


def _bonus(result: PlanResult, bonus: Interval) -> str:
    """The distance of a regularised value from the unregularised one. With costs, both ends may be above 0."""
    low, high = bonus
    if result.regularised_interval is not None:
        least, most = result.regularised_interval
        planned = f"the value with the smooth backup, {result.regularised_value:.6g} in [{least:.6g}, {most:.6g}]"
        return f"{planned}, is {low:.4g} to {high:.4g} larger, for certain"
    if low >= 0.0:
        return f"the value is regularised, and includes an entropy bonus of at most {high:.3g}"
    return f"the value is regularised: {low:.3g} to {high:.3g} more than the ordinary one, by costs and entropy"


def _compared(truth: float, interval: Interval) -> str:
    return f"{truth:.6g}, {'inside' if interval[0] <= truth <= interval[1] else 'OUTSIDE'} the interval"


def _action(result: PlanResult) -> str:
    """The action, certified only by a planner that identifies the best one, and the estimated policy."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(result.names, result.policy, strict=True))
    certified = isinstance(result.details, GapDetails) and result.details.certified
    return f"{result.names[result.action or 0]}{'' if certified else ' (estimate)'}; estimated policy {shares}"


def _details(result: PlanResult) -> Iterator[Line]:
    """The lines that are particular to a planner."""
    match result.details:
        case None:
            return
        case GapDetails(gap=gap, progress=progress):
            close = f"within {gap:.4g} of the best" if gap > 0.0 else "the best"
            yield "gap", f"action {result.names[result.action or 0]} is {close} {_sure(result)}"
            if progress is not None:
                yield "means", "; ".join(progress.sentences())
            return
        case ReferenceDetails(policy_interval=(worst, best)):
            yield "policy", f"of the reference: worth between {worst:.6g} and {best:.6g} {_sure(result)}"
    yield "means", result.details.summary()


def _root_actions(result: PlanResult, truth: Sequence[float] | None) -> list[list[str]]:
    """The interval, the simulator calls and, if known, the exact value of every action of a gap planner."""
    if not isinstance(result.details, GapDetails) or result.q_intervals is None:
        return []
    rows = [["root action", "at least", "at most", "calls", *([] if truth is None else ["exact"])]]
    calls = result.details.action_calls.tolist()
    for action, (name, (low, high)) in enumerate(zip(result.names, result.q_intervals.tolist(), strict=True)):
        exact = [] if truth is None else [f"{truth[action]:.6g}"]
        rows.append([clean(name), f"{low:.6g}", f"{high:.6g}", f"{calls[action]:,}", *exact])
    return rows


# Decisions and episodes


@summary.register
def decision_summary(decision: Decision) -> str:
    """A decision: the action, then a line for each action."""
    lines = [f"warning: {text}" for text in decision.warnings]
    if decision.action is None:
        return "\n".join([*lines, "the state is terminal: there is nothing to decide"])
    lines.append(f"action {decision.names[decision.action]}: {_sureness(decision)}")
    width = max(map(len, decision.names))
    for action, name in enumerate(decision.names):
        line = f"  {'→' if action == decision.action else ' '} {name:<{width}}  "
        line += f"{decision.q[action]:.6g} ± {decision.q_errors[action]:.2g}"
        difference, error = decision.differences[action], decision.difference_errors[action]
        if action != decision.action and math.isfinite(error):
            line += f", {'worse' if difference <= 0.0 else 'better'} by {abs(difference):.3g} ± {error:.2g}"
        if decision.q_intervals is not None:
            low, high = decision.q_intervals[action]
            line += f"  in [{low:.6g}, {high:.6g}]"
        lines.append(line)
    return "\n".join(
        [*lines, f"how: {decision.method}", f"{decision.calls:,} simulator calls, {decision.seconds:.2f} s"]
    )


def _sureness(decision: Decision) -> str:
    """What is proved of an action, and what is estimated."""
    proved = f"with probability at least {1.0 - decision.delta:g}"
    if decision.gap <= 0.0:
        return f"the best, {proved}"
    parts = []
    if math.isfinite(decision.gap):
        short = "" if decision.certified else f" (more than the {decision.epsilon:.4g} asked for)"
        parts.append(f"no action is better by more than {decision.gap:.4g} {proved}{short}")
    if decision.regret == 0.0:
        parts.append(f"no other action seems better (estimate at level {decision.delta:g})")
    elif math.isfinite(decision.regret):
        parts.append(
            f"no action seems better by more than {decision.regret:.4g} (estimate at level {decision.delta:g})"
        )
    if not parts:
        return "nothing is known of how good it is"
    return "; ".join([*parts, *([] if math.isfinite(decision.gap) else ["nothing is proved"])])


@summary.register
def act_summary(result: ActResult) -> str:
    """Episodes, one by one and all together."""
    most = 20  # episodes that fit on a screen
    ends = {"truncated": "cut off by the environment's time limit", "max_steps": "stopped by the limit on steps"}
    rows = [["episode", "return", "discounted", "steps", "deviations", "ms/step"]]
    for number, episode in enumerate(result.episodes[:most]):
        speed = 1e3 * episode.seconds / max(episode.steps, 1)
        numbers = (f"{episode.score:g}", f"{episode.discounted:.4g}", f"{episode.steps}", f"{episode.deviations}")
        rows.append([f"{number}", *numbers, f"{speed:.1f}"])
    last = ["", *(f"  {ends.get(episode.end, episode.end)}" for episode in result.episodes[:most])]
    lines = [line + end for line, end in zip(aligned(rows).splitlines(), last, strict=True)]
    more = [f"… and {len(result.episodes) - most} more episodes"] if len(result.episodes) > most else []
    error = "" if result.error is None else f" ± {result.error:.2g} (standard error)"
    made = f"{result.reference_calls:,} for the first reference, {result.calls:,} in all"
    about = [
        *(("warning", sentence) for sentence in result.warnings),
        ("return", f"{result.mean:.4g}{error}, of {len(result.episodes)} episodes of {result.environment}"),
        ("policy", f"of {result.reference!r}, improved by returns at every step, at discount {result.discount:g}"),
        ("calls", f"{made}; {result.seconds:.1f} s"),
    ]
    return "\n".join([*lines, *more, listed(about)])


# Forecasts


@summary.register
def forecast_summary(forecast: Forecast) -> str:
    """The price in words."""
    schedule = forecast.schedule
    parts = [f"at most {amount(forecast.calls)} simulator calls"]
    if schedule.repeats > 1:
        parts.append(
            f"{amount(schedule.reference_calls)} for one shared reference, then {schedule.repeats:,} samples of "
            f"{amount(schedule.sample_calls)} calls"
        )
    sure = f"with probability at least {1.0 - schedule.delta:g}"
    parts.append(f"error at most {schedule.bias:.3g} bias + {schedule.noise:.3g} noise {sure}")
    if not within(schedule.bias + schedule.noise, schedule.epsilon):
        parts.append(f"which does not confirm the epsilon of {schedule.epsilon:g} that the publication promises")
    if forecast.calls > 0:
        parts.append(f"halving epsilon costs 2^{forecast.exponent:.2f} times as much")
    if forecast.calls > REFUSED_CALLS:
        parts.append(f"hopeless: {LONG_HORIZONS}")
    return "; ".join(parts)


LEGEND = """\
N: returns per action in the reference Q̂; debias: terms of its bias that are cancelled; n: pairs of returns in the
quadratic term; "from": the level that the returns of the reference, the return X of the drawn action, and the pairs go
through; M: rewards that are averaged in a return through the level."""


@table.register
def forecast_table(forecast: Forecast) -> str:
    """The levels, from the root down."""
    schedule, most = forecast.schedule, 30  # rows that fit on a screen
    last = len(schedule.levels) - 1
    columns = {"level": ">5", " kind": "<9", "N": ">9", "debias": ">6", "n": ">3", " Q̂ from": ">7", "X from": ">6"}
    columns |= {"pairs from": ">10", "M": ">6", "bias": ">9", "deviation": ">9", "calls": ">10"}
    rows: list[Sequence[Any]] = [tuple(columns)]
    for row in range(last, max(last - most, -1), -1):
        level, is_root = schedule.levels[row], row == last
        proved = schedule.sample if is_root else schedule.certificates[row]
        calls = (schedule.sample_calls or schedule.reference_calls) if is_root else schedule.costs[row]
        children = ("" if child is None else child for child in (level.reference, level.linear, level.quadratic))
        numbers = (f"{float(proved.bias):.3g}", f"{math.sqrt(proved.variance):.3g}", amount(calls))
        sizes = (level.samples or "", level.debias or "", level.pairs or "")
        name, rewards = ("root", "") if is_root else (row, level.rewards)
        rows.append((name, f" {level.kind}", *sizes, *children, rewards, *numbers))
    lines = [" ".join(f"{cell:{width}}" for cell, width in zip(row, columns.values(), strict=True)) for row in rows]
    more = [f"       … and {last + 1 - most} more levels"] if last >= most else []
    return "\n".join([*lines, *more, LEGEND])


# Comparisons


@summary.register
def comparison_summary(comparison: Comparison) -> str:
    """The table below a line on what was compared."""
    return f"{comparison!r} at state {shown(comparison.state)} of {comparison.model}\n{table(comparison)}"


@table.register
def comparison_table(comparison: Comparison) -> str:
    """Means of the runs of each planner and budget."""
    known = any(row["exact"] is not None for row in comparison.rows)
    truths = ["covered", "mean error", "mean regret"] if known else []
    titles = ["planner", "action (share)", "budget", "runs", "mean calls", "mean value", "mean width", *truths]
    cells = [titles, *(_cells(group, known) for group in comparison.groups().values())]
    failures = Counter(f"{row['planner']}: {row['failure']}" for row in comparison.rows if row["failure"] is not None)
    return "\n".join(
        [aligned(cells, texts=2), *(f"{count} runs failed, {reason}" for reason, count in failures.items())]
    )


def _cells(group: Sequence[dict[str, Any]], known: bool) -> list[str]:
    """The runs of one planner and budget."""
    ran = [row for row in group if row["failure"] is None]

    def mean(name: str, error: bool = False) -> str:
        values = [row[name] for row in ran if row[name] is not None]
        if not values:
            return "–"
        noise = f" ± {stdev(values) / math.sqrt(len(values)):.2g}" if error and len(values) > 1 else ""
        return f"{fmean(values):.4g}{noise}"

    actions = Counter(row["action"] for row in ran if row["action"] is not None).most_common(1)
    action = f"{actions[0][0]} ({actions[0][1] / len(ran):.0%})" if actions else "–"
    calls = f"{round(fmean(row['calls'] for row in ran)):,}" if ran else "–"
    cells = [clean(group[0]["planner"]), action, f"{group[0]['budget']:,}", f"{len(ran)}", calls]
    cells += [mean("value", error=True), mean("width")]
    if not known:
        return cells
    tested = [row for row in ran if row["exact"] is not None and row["low"] is not None]
    inside = [row["low"] <= row["exact"] <= row["high"] for row in tested]
    return [*cells, f"{fmean(inside):.0%}" if inside else "–", mean("error", error=True), mean("regret", error=True)]
