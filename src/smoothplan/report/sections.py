"""The parts of the page: summary, what was run, and a section for each experiment."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from smoothplan.findings import Claim, Findings
from smoothplan.report.charts import frame
from smoothplan.report.markup import Html, counted, duration, element, joined, number, size
from smoothplan.report.strip import strip
from smoothplan.report.tables import table


class Entry(NamedTuple):
    """An experiment in the page."""

    anchor: str  # its id in the page
    folder: str  # the name of its folder
    findings: Findings
    rows: bytes | None  # its rows as JSON lines, if they are to be in the page
    weight: int  # bytes of its rows

    def claim(self, place: int) -> str:
        """The id of a claim."""
        return f"{self.anchor}-claim-{place + 1}"

    def figure(self, place: int) -> str:
        """The id of a figure."""
        return f"{self.anchor}-figure-{place + 1}"


def tally(entries: Sequence[Entry]) -> str:
    """How many claims hold, in words."""
    claims = [claim for entry in entries for claim in entry.findings.evidence.claims]
    held = sum(claim.holds for claim in claims)
    if not claims:
        return "No claims were checked"
    if held == len(claims):
        return "The one claim holds" if held == 1 else f"All {held} claims hold"
    return f"{held} of {counted(len(claims), 'claim')} hold{'s' if len(claims) == 1 else ''}"


def summary(entries: Sequence[Entry]) -> Html:
    """Every claim with its verdict and a link to it."""
    return joined(
        *(
            joined(
                element("h3", element("a", entry.findings.title, href=f"#{entry.anchor}")),
                element("ul", *(_line(entry, place) for place in range(len(entry.findings.evidence.claims)))),
            )
            for entry in entries
            if entry.findings.evidence.claims
        )
    )


def contents(entries: Sequence[Entry]) -> Html:
    """Links to the sections of the experiments, each with a mark that says whether its claims hold."""
    return element(
        "ul",
        *(
            element("li", element("a", _mark(entry), entry.findings.title, href=f"#{entry.anchor}"))
            for entry in entries
        ),
    )


def runs(entries: Sequence[Entry]) -> Html:
    """What was run, and on what."""
    columns = ("experiment", "scale", "runs", "time", "version of smoothplan")
    rows = [
        (element("a", one.experiment, href=f"#{anchor}"), one.scale, one.rows, duration(one.seconds), one.version)
        for anchor, one in ((entry.anchor, entry.findings) for entry in entries)
    ]
    machines = {json.dumps(dict(entry.findings.machine), sort_keys=True): entry.findings.machine for entry in entries}
    if len(machines) == 1:
        text = "All on the same machine: " + _versions(next(iter(machines.values()))) + "."
    else:
        text = f"On {len(machines)} different machines or sets of libraries: see each experiment."
    total = duration(sum(entry.findings.seconds for entry in entries))
    return joined(
        table("What was run", columns, rows),
        element("p", f"{counted(sum(row[2] for row in rows), 'run')} in {total} altogether. ", text, class_="small"),
    )


def experiment(entry: Entry) -> Html:
    """The section of an experiment."""
    findings, evidence = entry.findings, entry.findings.evidence
    return element(
        "section",
        element("p", findings.experiment, class_="kicker"),
        element("h2", findings.title, id=entry.anchor),
        element("p", findings.question, class_="question"),
        *(_claim(claim, entry.claim(place)) for place, claim in enumerate(evidence.claims)),
        *(
            frame(figure, entry.figure(place), f"{entry.folder}/{figure.name}")
            for place, figure in enumerate(evidence.figures)
        ),
        *(joined(element("h3", one.title), table(one.title, one.columns, one.rows)) for one in evidence.tables),
        _notes(evidence.notes),
        _origin(entry),
        aria_labelledby=entry.anchor,
        class_="experiment",
    )


def _line(entry: Entry, place: int) -> Html:
    claim = entry.findings.evidence.claims[place]
    return element(
        "li",
        _badge(claim.holds),
        element(
            "div",
            element("a", claim.statement, href=f"#{entry.claim(place)}"),
            element("p", f"{_measured(claim)}; stated {_stated(claim)}", class_="small"),
        ),
    )


def _mark(entry: Entry) -> Html | None:
    claims = entry.findings.evidence.claims
    if not claims:
        return element("span", "·", class_="sign", aria_hidden="true")
    held = all(claim.holds for claim in claims)
    kind, sign, words = ("holds", "✓", "all claims hold: ") if held else ("fails", "✗", "some claims do not hold: ")
    return joined(
        element("span", sign, class_=f"sign {kind}", aria_hidden="true"), element("span", words, class_="unseen")
    )


def _badge(holds: bool) -> Html:
    kind, sign, words = ("holds", "✓", "holds") if holds else ("fails", "✗", "does not hold")
    return element("span", element("span", f"{sign} ", aria_hidden="true"), words, class_=f"badge {kind}")


def _claim(claim: Claim, anchor: str) -> Html:
    return element(
        "article",
        _badge(claim.holds),
        element("h3", claim.statement, id=anchor),
        strip(claim),
        element("p", claim.verdict[:1].upper() + claim.verdict[1:], "."),
        element("p", element("b", "Why this interval: "), claim.reason, class_="small"),
        class_=f"claim {'holds' if claim.holds else 'fails'}",
        aria_labelledby=anchor,
    )


def _measured(claim: Claim) -> str:
    error = "" if claim.error is None else f" ± {number(claim.error, 2)}"
    return f"measured {number(claim.measured)}{error}"


def _stated(claim: Claim) -> str:
    low, high = claim.stated
    if math.isinf(low):
        return f"at most {number(high)}"
    return f"at least {number(low)}" if math.isinf(high) else f"{number(low)} to {number(high)}"


def _notes(notes: Sequence[str]) -> Html | None:
    if not notes:
        return None
    return joined(element("h3", "Notes"), element("ul", *(element("li", note) for note in notes), class_="notes"))


def _origin(entry: Entry) -> Html:
    """How the experiment is made again, and its rows."""
    findings = entry.findings
    ran = f"{counted(findings.rows, 'run')} in {duration(findings.seconds)}, by smoothplan {findings.version}, with "
    return joined(
        element("h3", "Make it again"),
        element("pre", element("code", findings.command), tabindex=0, role="region", aria_label="Command"),
        element("p", ran, _versions(findings.machine), ". ", _download(entry), class_="small"),
        element(
            "details",
            element("summary", "All settings"),
            table(
                "Settings", ("setting", "value"), [(name, _setting(value)) for name, value in findings.settings.items()]
            ),
        )
        if findings.settings
        else None,
    )


def _download(entry: Entry) -> Html:
    if entry.weight == 0:
        return joined("Its rows are not beside it.")
    if entry.rows is None:
        file = element("code", f"{entry.folder}/rows.jsonl")
        return joined("Every run is a line of ", file, f" ({size(entry.weight)}, too much for this page).")
    address = "data:application/x-ndjson;charset=utf-8;base64," + base64.b64encode(entry.rows).decode("ascii")
    lines = counted(entry.rows.count(b"\n"), "line")
    link = element("a", "Download the rows", href=address, download=f"{entry.findings.experiment}-rows.jsonl")
    return joined(link, f" (JSON lines: {lines}, {size(entry.weight)}).")


def _versions(machine: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in machine.items())


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
