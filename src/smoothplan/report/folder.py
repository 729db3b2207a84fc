"""What is on disk: the findings of each experiment of a folder, its rows, and its static figures."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import smoothplan.findings.figures as pictures
from smoothplan.findings import Findings
from smoothplan.findings.data import Look

FINDINGS, ROWS = "findings.json", "rows.jsonl"

NAME = re.compile(r"[A-Za-z0-9-]+")
"""Names of figures: they become names of files."""


class Found(NamedTuple):
    """An experiment on disk."""

    folder: Path
    findings: Findings

    @property
    def rows(self) -> Path:
        """The file of its rows; it may be missing."""
        return self.folder / ROWS


def read(folder: Path, order: Sequence[str] = ()) -> list[Found]:
    """The experiments of a folder: those named in `order` first, then the others by name.

    Raises:
        ValueError: there are none, or a file is not what an experiment writes; the message names it.
    """
    if (folder / FINDINGS).is_file():
        raise ValueError(f"{folder} is the folder of one experiment: name the folder above it")
    files = sorted(folder.glob(f"*/{FINDINGS}"))
    if not files:
        raise ValueError(f"no findings in {folder}: write some by `smoothplan experiment all --out {folder}`")
    found = [Found(file.parent, _findings(file)) for file in files]
    known = {name: place for place, name in enumerate(order)}
    return sorted(found, key=lambda one: known.get(one.findings.experiment, len(known)))


def _findings(file: Path) -> Findings:
    try:
        findings = Findings.from_json(file.read_text(encoding="utf-8"))
        _check(findings)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    return findings


def _check(findings: Findings) -> None:
    """Raises an error where something has not the type that its name promises, as a file edited by hand may."""
    evidence = findings.evidence
    texts = [findings.experiment, findings.title, findings.question, findings.command, findings.scale, findings.version]
    texts += [*evidence.notes, *findings.machine.values()]
    for claim in evidence.claims:
        texts += [claim.statement, claim.quantity, claim.theory, claim.reason, claim.verdict]
    for figure in evidence.figures:
        texts += [figure.title, figure.caption, figure.x.label, figure.y.label]
        if not NAME.fullmatch(figure.name):
            raise ValueError(f"the name of a figure must be letters, digits and hyphens, got {figure.name!r}")
        for series in figure.series:
            texts.append(series.name)
            if series.look not in get_args(Look):
                raise ValueError(f"look of series {series.name!r} must be one of {get_args(Look)}, got {series.look!r}")
    for table in evidence.tables:
        texts += [table.title, *table.columns]
        if any(len(row) != len(table.columns) for row in table.rows):
            raise ValueError(f"every row of table {table.name!r} must have {len(table.columns)} cells")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} stands where a text must be")
    findings.settings.items()
    float(findings.seconds), float(findings.rows)
    findings.to_json().encode()  # a text may have half a character in it


def draw_missing(found: Found) -> None:
    """Draws the static figures that are missing, or older than the findings."""
    made = (found.folder / FINDINGS).stat().st_mtime
    for figure in found.findings.evidence.figures:
        files = [found.folder / f"{figure.name}.{kind}" for kind in ("svg", "png")]
        if any(not file.exists() or file.stat().st_mtime < made for file in files):
            pictures.draw(figure, found.folder)
