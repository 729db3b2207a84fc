"""What `smoothplan report` reads and writes, and what it refuses."""

import json
import os
import re
import sys
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from smoothplan.report import colours, page
from studies.findings.figures import COLOURS

from smoothplan import report
from studies.findings import Evidence, figures
from tests.samples import BARE, FIGURES, FULL, ROWS, put


def test_a_folder_without_findings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no findings in {tmp_path}: write some by `smoothplan experiment")):
        report.write(tmp_path)
    put(tmp_path, "exponents", FULL)
    with pytest.raises(ValueError, match="is the folder of one experiment: name the folder above it"):
        report.write(tmp_path / "exponents")
    assert not list(tmp_path.rglob("*.html"))


def _broken(*path: str | int, value: Any) -> bytes:
    """The findings with one field replaced."""
    fields = json.loads(FULL.to_json())
    inner = fields
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        FULL.to_json().encode()[:-200],
        _broken("title", value=3),
        _broken("seconds", value="long"),
        _broken("machine", value=None),
        _broken("settings", value=[1]),
        _broken("evidence", value={}),
        _broken("evidence", "notes", value=[None]),
        _broken("evidence", "notes", value=["\ud800"]),
        _broken("evidence", "claims", 0, "measured", value=None),
        _broken("evidence", "claims", 0, "measured", value=float("nan")),
        _broken("evidence", "claims", 0, "measured", value=10**400),
        _broken("evidence", "claims", 0, "stated", value=[1]),
        _broken("evidence", "figures", 0, "name", value="../../outside"),
        _broken("evidence", "figures", 0, "x", value=None),
        _broken("evidence", "figures", 0, "series", 0, "look", value="pie"),
        _broken("evidence", "figures", 0, "series", 0, "y", value=[1.0]),
        _broken("evidence", "figures", 0, "series", 0, "y", value=None),
        _broken("evidence", "figures", 1, "series", 0, "x", 0, value=None),
        _broken("evidence", "tables", 0, "rows", value=[["one cell"]]),
    ],
)
def test_broken_findings_are_named(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, "bare", BARE)
    file = put(tmp_path, "exponents", FULL) / "exponents" / "findings.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))} cannot be read: "):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_without_plotly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "bare", BARE)
    page._library.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=re.escape("install smoothplan[plots]")):
        report.write(tmp_path)


def test_static_figures_are_drawn_where_they_are_missing_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(figures, "draw", lambda figure, folder: drawn.append((figure.name, folder)))
    put(tmp_path, "a", replace(FULL, evidence=Evidence(figures=[replace(FIGURES[0], name=n) for n in ("x", "y", "z")])))
    os.utime(tmp_path / "a" / "x.svg", (1, 1))
    (tmp_path / "a" / "z.png").unlink()
    report.write(tmp_path)
    assert drawn == [("x", tmp_path / "a"), ("z", tmp_path / "a")]


def test_order_and_anchors(tmp_path: Path) -> None:
    for name in ("alpha", "beta", "gamma", "library"):
        put(tmp_path, name, replace(BARE, experiment=name))
    put(tmp_path, "copy", replace(BARE, experiment="beta"))
    file = report.write(tmp_path, tmp_path / "other.html", order=("unknown", "gamma", "beta"))
    anchors = re.findall(r'<h2 id="([^"]*)"', file.read_text("utf-8"))
    assert file == tmp_path / "other.html"
    assert anchors == ["summary", "claims", "gamma", "beta", "beta-3", "alpha", "library-5"]


def test_many_rows_stay_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "one", BARE)
    assert "gzip;base64," in report.write(tmp_path).read_text("utf-8")
    monkeypatch.setattr(page, "LARGEST", 10)
    text = report.write(tmp_path).read_text("utf-8")
    assert "gzip;base64," not in text
    assert f"<code>one/rows.jsonl</code> ({len(ROWS.encode())} bytes, too much for this page)" in text


def test_the_licence_of_the_library_is_in_the_page(tmp_path: Path) -> None:
    put(tmp_path, "bare", BARE)
    text = report.write(tmp_path).read_text("utf-8")
    licence = next(file for file in distribution("plotly").files or () if file.name.startswith("LICENSE"))
    notice = " ".join(licence.read_text("utf-8").partition("Permission is")[2].split())
    page_text = " ".join(re.sub("<[^>]*>", " ", text).split())
    assert notice in page_text


def test_the_same_findings_give_the_same_page(tmp_path: Path) -> None:
    put(tmp_path, "exponents", FULL)
    first = report.write(tmp_path).read_bytes()
    assert report.write(tmp_path).read_bytes() == first
    assert len(first) < 2_500_000


@pytest.mark.parametrize("colour", COLOURS)
def test_colours_can_be_seen_in_the_dark(colour: str) -> None:
    assert f"--paper: light-dark(#ffffff, {colours.DARK})" in page._asset("page.css")
    assert colours.contrast(colours.on_dark(colour), colours.DARK) >= colours.CONTRAST
    assert colours.contrast("#000000", "#ffffff") == pytest.approx(21)
