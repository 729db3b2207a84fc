"""The parts of the page: summary, what was run, and a section for each experiment."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from smoothplan.findings import Findings
from smoothplan.report import claims
from smoothplan.report.charts import frame
from smoothplan.report.markup import Html, counted, duration, element, joined, size
from smoothplan.report.tables import table


class Entry(NamedTuple):
    """An experiment in the page."""

    anchor: str  # its id in the page
    folder: str  # the name of its folder
    findings: Findings
    rows: bytes  # as JSON lines
    packed: bytes | None  # the same compressed by gzip, if they are to be in the page

    @property
    def claims(self) -> Mapping[str, claims.Numbered]:
        """Its claims by statement."""
        return claims.grouped(self.anchor, self.findings.evidence.claims)

    def figure(self, place: int) -> str:
        """The id of a figure."""
        return f"{self.anchor}-figure-{place + 1}"


def tally(entries: Sequence[Entry]) -> str:
    """How many claims hold, in words."""
    return claims.tally([claim for entry in entries for claim in entry.findings.evidence.claims])


def wrong(entries: Sequence[Entry]) -> Html:
    """The statements that are not borne out, if there are any."""
    links = [link for entry in entries for link in claims.failing(entry.claims)]
    pieces = [piece for link in links for piece in (" · ", link)][1:]
    return element("p", element("b", "Not borne out: "), *pieces, class_="wrong") if links else Html()


def summary(entries: Sequence[Entry]) -> Html:
    """Every claim with its verdict and a link to it."""
    return joined(
        *(
            joined(
                element("h3", element("a", entry.findings.title, href=f"#{entry.anchor}")),
                element("ul", *(claims.line(statement, group) for statement, group in entry.claims.items())),
            )
            for entry in entries
            if entry.claims
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
    """What was run, on what, and how many claims hold."""
    columns = ("experiment", "claims that hold", "scale", "runs", "time", "version of smoothplan")
    rows = [
        (
            element("a", entry.findings.experiment, href=f"#{entry.anchor}"),
            _held(entry),
            entry.findings.scale,
            entry.findings.rows,
            duration(entry.findings.seconds),
            entry.findings.version,
        )
        for entry in entries
    ]
    machines = {json.dumps(dict(entry.findings.machine), sort_keys=True): entry.findings.machine for entry in entries}
    if len(machines) == 1:
        text = "All on the same machine: " + _versions(next(iter(machines.values()))) + "."
    else:
        text = f"On {len(machines)} different machines or sets of libraries: see each experiment."
    count = counted(sum(entry.findings.rows for entry in entries), "run")
    total = duration(sum(entry.findings.seconds for entry in entries))
    return joined(
        table("What was run", columns, rows),
        element("p", f"{count} in {total} altogether. ", text, class_="small"),
    )


def experiment(entry: Entry) -> Html:
    """The section of an experiment."""
    findings, evidence = entry.findings, entry.findings.evidence
    return element(
        "section",
        element("p", findings.experiment, class_="kicker"),
        element("h2", findings.title, id=entry.anchor),
        element("p", findings.question, class_="question"),
        *(claims.article(statement, group) for statement, group in entry.claims.items()),
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


def _held(entry: Entry) -> Html:
    found = entry.findings.evidence.claims
    return joined(_sign(entry), f" {sum(claim.holds for claim in found)} of {len(found)}" if found else " none")


def _mark(entry: Entry) -> Html:
    """Whether all claims of an experiment hold, before its title."""
    if not entry.claims:
        return _sign(entry)
    held = all(claim.holds for claim in entry.findings.evidence.claims)
    return joined(_sign(entry), element("span", f"{'all' if held else 'not all'} claims hold: ", class_="unseen"))


def _sign(entry: Entry) -> Html:
    if not entry.claims:
        return element("span", "·", class_="sign", aria_hidden="true")
    held = all(claim.holds for claim in entry.findings.evidence.claims)
    kind, sign = ("holds", "✓") if held else ("fails", "✗")
    return element("span", sign, class_=f"sign {kind}", aria_hidden="true")


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
    """A link to the rows in the page. They are compressed; the script of the page unpacks them."""
    weight = size(len(entry.rows))
    if not entry.rows:
        return joined("Its rows are not beside it.")
    if entry.packed is None:
        file = element("code", f"{entry.folder}/rows.jsonl")
        return joined("Every run is a line of ", file, f" ({weight}, too much for this page).")
    name = f"{entry.anchor}-rows.jsonl"
    address = "data:application/gzip;base64," + base64.b64encode(entry.packed).decode("ascii")
    link = element("a", "Download the rows", href=address, download=f"{name}.gz", data_unpacked=name)
    return joined(link, f" (JSON lines: {counted(len(entry.rows.splitlines()), 'line')}, {weight}).")


def _versions(machine: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in machine.items())


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
