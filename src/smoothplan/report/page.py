"""The page: every finding of a folder of experiments, interactive, in one HTML file that needs no network."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from smoothplan.findings.files import write_whole
from smoothplan.report import sections
from smoothplan.report.charts import data
from smoothplan.report.folder import Found, draw_missing, read
from smoothplan.report.markup import joined
from smoothplan.report.sections import Entry

LARGEST = 1_000_000
"""Bytes of compressed rows, of all experiments together, that are put into the page; where there are more, none are."""


class Library(NamedTuple):
    """The script that draws figures."""

    digest: str  # as a browser's policy has it
    packed: str  # compressed by gzip, in base64


def write(folder: Path, file: Path | None = None, order: Sequence[str] = ()) -> Path:
    """Writes the page for the findings in a folder, and the static figures that are missing there.

    The page needs no network, and none of the other files.

    Args:
        folder: where experiments wrote: it has a folder for each.
        file: the page, by default `folder/report.html`.
        order: names of experiments in the order in which they appear; others follow by name.

    Raises:
        ValueError: there are no findings, or a file of them is broken; the message names it.
        ImportError: Plotly or Matplotlib is missing.
    """
    folder = Path(folder)
    found = read(folder, order)
    library = _library()
    for one in found:
        draw_missing(one)
    file = folder / "report.html" if file is None else Path(file)
    write_whole(file, _page(_entries(found), library).encode())
    return file


def _entries(found: Sequence[Found]) -> list[Entry]:
    rows = [one.rows.read_bytes() if one.rows.is_file() else b"" for one in found]
    packed = [_packed(lines) for lines in rows]
    fits = sum(map(len, packed)) < LARGEST
    entries: list[Entry] = []
    for one, lines, small in zip(found, rows, packed, strict=True):
        anchor = re.sub(r"[^A-Za-z0-9]+", "-", one.findings.experiment).strip("-").lower() or "experiment"
        if anchor in {entry.anchor for entry in entries} | _taken():
            anchor = f"{anchor}-{len(entries) + 1}"
        entries.append(Entry(anchor, one.folder.name, one.findings, lines, small if fits else None))
    return entries


def _taken() -> set[str]:
    """The ids of the template."""
    return set(re.findall(r'id="([^"]*)"', _asset("page.html")))


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)  # the same content gives the same page


def _page(entries: Sequence[Entry], library: Library) -> str:
    script = _asset("page.js")
    figures = {
        entry.figure(place): data(figure)
        for entry in entries
        for place, figure in enumerate(entry.findings.evidence.figures)
    }
    return Template(_asset("page.html")).substitute(
        policy=_policy(_digest(script), library.digest),
        tally=joined(sections.tally(entries)),
        style=_asset("page.css"),
        contents=sections.contents(entries),
        wrong=sections.wrong(entries),
        summary=sections.summary(entries),
        runs=sections.runs(entries),
        experiments="\n".join(sections.experiment(entry) for entry in entries),
        figures=_embedded(figures),
        library=library.packed if figures else "",
        script=script,
    )


def _policy(*digests: str) -> str:
    """What the browser may do: run the scripts with these digests, and ask nobody for anything."""
    allowed = " ".join(f"'{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _embedded(thing: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(thing, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("smoothplan.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _library() -> Library:
    """Plotly's script, as its Python package has it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError("a report needs Plotly: install smoothplan[plots]") from None
    script = str(get_plotlyjs())
    return Library(_digest(script), base64.b64encode(_packed(script.encode())).decode("ascii"))
