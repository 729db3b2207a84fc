"""Results in words: the lines of their summaries, which the command line prints too."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from smoothplan.running.run import Diagnosis, Estimate, Identification

if TYPE_CHECKING:
    from smoothplan.acting import ActResult
    from smoothplan.plan import PlanResult
    from smoothplan.unregularised import UnregularisedResult

Line = tuple[str, str]
"""A name and a text."""

Support = Literal["proved", "lower", "declared", "estimate"]
"""What an interval rests on.

Both ends are proved with probability 1 − δ; only the lower end is, and the upper one follows from what the model
declares; both follow from what the model declares; or thresholds do not cover δ.
"""

STATUSES = {
    "converged": "converged: epsilon is reached, as the planner defines it",
    "completed": "completed: the planner finished, without a promise on epsilon",
    "max_calls": "stopped by the limit on calls",
    "max_seconds": "stopped by the limit on time",
    "interrupted": "interrupted",
    "terminal": "terminal: the state is worth 0",
}


def text(lines: Iterable[Line], width: int = 8, indent: str = "") -> str:
    """Lines with their names in a column of this width."""
    return "\n".join(f"{indent}{name:<{width}}{words}" for name, words in lines)


def aligned(rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table, its first row being titles: columns of texts to the left, then columns of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


# Plans


def support(result: "PlanResult") -> Support:
    """What the interval of a plan rests on."""
    details = result.details
    if isinstance(details, Identification) and not details.certified:
        return "estimate"
    if isinstance(details, Diagnosis) and not details.certified:
        return "lower"
    no_sample = result.delta == 0.0 and result.interval[0] < result.interval[1]
    return "declared" if isinstance(details, Estimate) or no_sample else "proved"


def warning_lines(result: "PlanResult") -> Iterator[Line]:
    """What a reader of a plan must know before anything else."""
    yield from (("warning", sentence) for sentence in getattr(result.details, "warnings", ()))


def plan_lines(result: "PlanResult", price: int | None = None, truth: float | None = None) -> Iterator[Line]:
    """What a plan found, beside its forecast and the exact value where they are known."""
    yield "value", _value(result)
    if result.bonus is not None:
        yield "bonus", _bonus(result.bonus)
    if truth is not None:
        yield "exact", compared(truth, result.interval)
    yield "action", "none, the state is terminal" if result.action is None else _action(result)
    yield from _details(result)
    promised = "" if price is None else f", forecast {price:,} at most"
    yield "calls", f"{result.calls:,}{promised}, {result.seconds:.2f} s"
    yield "status", STATUSES[result.status]


def root_actions(result: "PlanResult", truth: Sequence[float] | None = None) -> list[list[str]] | None:
    """The interval of every action, its simulator calls and its exact value if known; None where there are none."""
    if not isinstance(result.details, Identification) or result.q_intervals is None:
        return None
    rows = [["root action", "at least", "at most", "calls", *([] if truth is None else ["exact"])]]
    calls = result.details.action_calls.tolist()
    for action, (name, (low, high)) in enumerate(zip(result.names, result.q_intervals.tolist(), strict=True)):
        exact = [] if truth is None else [f"{truth[action]:.6g}"]
        rows.append([name, f"{low:.6g}", f"{high:.6g}", f"{calls[action]:,}", *exact])
    return rows


def plan_summary(result: "PlanResult") -> str:
    """All that is worth reading of a plan."""
    actions = root_actions(result)
    lines = [*warning_lines(result), *plan_lines(result)]
    return "\n".join([text(lines), *([] if actions is None else [aligned(actions)])])


def plan_brief(result: "PlanResult") -> str:
    """A plan in one line."""
    (low, high), details = result.interval, result.details
    estimate = "" if support(result) == "proved" else " (estimate)"
    words = [f"value {result.value:.6g}{estimate} in [{low:.6g}, {high:.6g}]"]
    words.append("terminal" if result.action is None else f"action {result.names[result.action]}")
    if isinstance(details, Identification):
        words.append(f"gap {max(details.gap, 0.0):.4g}{'' if details.certified else ' (estimate)'}")
    return ", ".join([*words, f"{result.calls:,} calls", result.status])


def sure(result: "PlanResult") -> str:
    """How sure the statements of a plan are."""
    if support(result) == "estimate":
        return "(estimate: thresholds do not cover delta)"
    return f"with probability at least {1 - result.delta:g}"


def compared(truth: float, interval: tuple[float, float]) -> str:
    """An exact value beside an interval."""
    inside = interval[0] <= truth <= interval[1]
    return f"{truth:.6g}, {'inside' if inside else 'OUTSIDE'} the interval"


def _value(result: "PlanResult") -> str:
    """The value and its interval: certified, or an estimate."""
    (low, high), details = result.interval, result.details
    if isinstance(details, Estimate):
        noise = "" if details.standard_error is None else f" ± {details.standard_error:.2g} (one standard error)"
        cut = f"truncated at depth {details.depth}: bias at most {details.bias:.2g}"
        return f"estimate {result.value:.6g}{noise}, {cut}; in [{low:.6g}, {high:.6g}], by what the model declares"
    return _stated(result.value, result.interval, result)


def _stated(value: float, interval: tuple[float, float], result: "PlanResult") -> str:
    """A value and an interval that rests on what the interval of a plan rests on."""
    (low, high), declared = interval, "by what the model declares"
    match support(result):
        case "lower":
            return f"{value:.6g} (estimate); at least {low:.6g} {sure(result)}; at most {high:.6g}, {declared}"
        case "declared":
            return f"{value:.6g} (estimate); in [{low:.6g}, {high:.6g}], {declared}"
    return f"{value:.6g}, in [{low:.6g}, {high:.6g}] {sure(result)}"


def _bonus(bonus: tuple[float, float]) -> str:
    """How far a regularised value may be from the ordinary one. Costs may so have an interval that ends above 0."""
    low, high = bonus
    if low >= 0.0:
        return f"the value is regularised, and includes an entropy bonus of at most {high:.3g}"
    return f"the value is regularised: {low:.3g} to {high:.3g} more than the ordinary one, by costs and entropy"


def _action(result: "PlanResult") -> str:
    """The chosen action, certified only by a planner that identifies the best one, and the policy, an estimate."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(result.names, result.policy, strict=True))
    certified = isinstance(result.details, Identification) and result.details.certified
    estimate = "" if certified else " (estimate)"
    return f"{result.names[result.action or 0]}{estimate}; estimated policy {shares}"


def _details(result: "PlanResult") -> Iterator[Line]:
    """What is particular to the planner."""
    match result.details:
        case Diagnosis(policy_interval=(worst, best)) as diagnosis:
            yield "policy", f"of the reference: worth between {worst:.6g} and {best:.6g} {sure(result)}"
            yield "means", diagnosis.summary()
        case Identification(gap=gap, standing=standing):
            within = f"within {gap:.4g} of the best" if gap > 0.0 else "the best"
            yield "gap", f"action {result.names[result.action or 0]} is {within} {sure(result)}"
            if standing is not None:
                yield "means", "; ".join(standing.sentences())


# Plans for the ordinary optimal value


def unregularised_lines(found: "UnregularisedResult", truth: float | None = None) -> Iterator[Line]:
    """What a plan with a smooth backup says of the ordinary optimal value."""
    least, most = found.gap
    stated = _stated(found.value, found.interval, found.regularised)
    yield "value", f"{stated}: the ordinary optimal value"
    if truth is not None:
        yield "exact", compared(truth, found.interval)
    yield "backup", f"lse:temperature={found.backup.temperature:.3g}, for a bias of at most {found.bias:g}"
    yield "bias", f"the regularised value is too large by {least:.4g} to {most:.4g}, for certain"
    if found.choice is not None:
        yield from ((name, f"{reason} (chosen)") for name, reason in found.choice.reasons.items())


def unregularised_summary(found: "UnregularisedResult") -> str:
    """The ordinary value, and what was planned."""
    planned = text(plan_lines(found.regularised), indent="  ")
    lines = [*warning_lines(found.regularised), *unregularised_lines(found)]
    return "\n".join([text(lines), "What was planned, the regularised value:", planned])


# Episodes


def act_lines(result: "ActResult") -> Iterator[Line]:
    """What episodes brought, all together."""
    yield from (("warning", sentence) for sentence in result.warnings)
    error = "" if result.error is None else f" ± {result.error:.2g} (standard error)"
    yield "return", f"{result.mean:.4g}{error}, of {len(result.episodes)} episodes of {result.environment}"
    yield "policy", f"of {result.reference!r}, improved by returns at every step, at discount {result.discount:g}"
    made = f"{result.reference_calls:,} for the first reference, {result.calls:,} in all"
    yield "calls", f"{made}; {result.seconds:.1f} s"
