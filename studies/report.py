"""The report: every finding of a folder of studies, interactive, in one HTML file that needs no network."""

import base64
import gzip
import hashlib
import json
import math
import re
import textwrap
from collections.abc import Sequence
from html import escape
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import studies
from studies.base import write_whole
from studies.findings import Axis, Claim, Figure, Findings, Series

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#666666")
"""Okabe and Ito's colours, which the colour-blind can tell apart, in an order that leaves the pale ones to the end."""

DARK = ("#338ec1", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#9574aa", "#858585")
"""The same, made brighter for a dark background."""

LARGEST = 1_000_000
"""Bytes of compressed rows, of all studies together, that are put into the page; where there are more, none are."""


class Entry(NamedTuple):
    """A study in the page."""

    anchor: str
    folder: str
    findings: Findings
    rows: bytes  # as JSON lines, compressed

    @property
    def statements(self) -> dict[str, list[Claim]]:
        """Its claims by statement, in the order in which statements first appear."""
        groups: dict[str, list[Claim]] = {}
        for claim in self.findings.evidence.claims:
            groups.setdefault(claim.statement, []).append(claim)
        return groups

    @property
    def holds(self) -> bool:
        """Whether all claims hold."""
        return all(claim.holds for claim in self.findings.evidence.claims)


def write(folder: Path, file: Path | None = None) -> Path:
    """Writes the page for the findings in a folder; it is `folder/report.html` by default.

    Raises:
        ValueError: there are no findings, or a file of them is broken; the message names it.
        ImportError: Plotly or Jinja is missing.
    """
    entries = _read(Path(folder))
    file = Path(folder) / "report.html" if file is None else Path(file)
    write_whole(file, _page(entries))
    return file


def _read(folder: Path) -> list[Entry]:
    """The studies of a folder: those of this package in their order, then others by name."""
    if (folder / "findings.json").is_file():
        raise ValueError(f"{folder} is the folder of one study: name the folder above it")
    paths = sorted(folder.glob("*/findings.json"))
    if not paths:
        raise ValueError(f"no findings in {folder}: write some by `python -m studies run all --out {folder}`")
    found: list[Entry] = []
    for path in paths:
        try:
            findings = Findings.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        rows = path.with_name("rows.jsonl")
        packed = gzip.compress(rows.read_bytes() if rows.is_file() else b"", mtime=0)  # the same rows, the same page
        name = re.sub(r"[^A-Za-z0-9]+", "-", findings.study).strip("-").lower()
        found.append(Entry(f"study-{name}-{len(found)}", path.parent.name, findings, packed))
    places = {name: place for place, name in enumerate(studies.NAMES)}
    return sorted(found, key=lambda entry: places.get(entry.findings.study, len(places)))


def _page(entries: Sequence[Entry]) -> str:
    try:
        from jinja2 import Environment
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(f"a report needs {error.name}: install smoothplan[docs,plots]") from None
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": _number, "base64": _base64, "hash": _hash}
    package = files("studies")
    scripts = [str(get_plotlyjs()), package.joinpath("page.js").read_text(encoding="utf-8")]
    claims = [claim for entry in entries for claim in entry.findings.evidence.claims]
    themes = {
        "light": _template(LIGHT, "#1b2026", "#ffffff", "#dde1e5"),
        "dark": _template(DARK, "#e6e9ec", "#15191e", "#333c46"),
    }
    return environment.from_string(package.joinpath("page.html").read_text(encoding="utf-8")).render(
        entries=entries,
        claims=claims,
        held=sum(claim.holds for claim in claims),
        fits=sum(len(entry.rows) for entry in entries) < LARGEST,
        colours=list(zip(LIGHT, DARK, strict=True)),
        templates=_embedded(themes),
        drawing=lambda figure: _embedded(_drawing(figure)),
        settings=lambda findings: [(name, json.dumps(value)) for name, value in findings.settings.items()],
        named=_named,
        points=_points,
        hidden=_hidden,
        strip=_strip,
        scripts=scripts,
        licence=next(file.read_text() for file in distribution("plotly").files or () if "LICENSE" in file.name),
        digests=[_base64(hashlib.sha256(script.encode()).digest()) for script in scripts],
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _hash(text: str) -> str:
    """A short name for a text, to link to."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _embedded(thing: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(thing, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")


def _number(value: Any) -> str:
    """A cell of a table: numbers to some digits, texts as they are."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _template(colours: Sequence[str], ink: str, paper: str, rule: str) -> Any:
    """What all figures have in common, for a light or a dark page."""
    import plotly.graph_objects as go

    axis = {"gridcolor": rule, "linecolor": ink, "showline": True, "ticks": "outside", "zeroline": False}
    axis |= {"exponentformat": "power"}
    layout = {
        "colorway": colours, "paper_bgcolor": paper, "plot_bgcolor": paper, "xaxis": axis, "yaxis": axis,
        "font": {"color": ink, "family": "system-ui, sans-serif", "size": 13},
        "margin": {"l": 65, "r": 12, "t": 30, "b": 35}, "showlegend": False, "hovermode": "closest",
        "hoverlabel": {"namelength": -1},
    }  # fmt: skip
    bars = [{"error_y": {"color": ink}}]
    return go.layout.Template(layout=layout, data={"bar": bars}).to_plotly_json()


def _drawing(figure: Figure) -> Any:
    """A figure as Plotly has it. Texts are escaped, for Plotly takes some tags for markup."""
    import plotly.graph_objects as go

    named = _named(figure)
    y = _scale(figure.y, [y for series in figure.series for y in series.y])
    layout = {"xaxis": _scale(figure.x, [x for series in figure.series for x in series.x]), "yaxis": y}
    if named:
        names = list(dict.fromkeys(_number(x) for series in figure.series for x in series.x))
        short = ["<br>".join(map(escape, textwrap.wrap(name, 15, max_lines=2, placeholder=" …"))) for name in names]
        ticks = {"tickvals": names, "ticktext": short, "autotickangles": [0, 90]}  # upright where there is no room
        layout |= {"xaxis": {"type": "category", **ticks}, "margin": {"b": 115}}
    traces = [_trace(series, place, named) for place, series in enumerate(figure.series)]
    return go.Figure(traces, layout).to_plotly_json()


def _named(figure: Figure) -> bool:
    """Whether the x axis has names, or bars, which stand side by side like names."""
    return any(series.look == "bars" or any(isinstance(x, str) for x in series.x) for series in figure.series)


def _trace(series: Series, place: int, named: bool) -> Any:
    import plotly.graph_objects as go

    x = [_number(name) for name in series.x] if named else list(series.x)
    common: dict[str, Any] = {"x": x, "y": list(series.y), "name": escape(series.name)}
    if series.low is not None and series.high is not None:
        above = [max(high - y, 0.0) for high, y in zip(series.high, series.y, strict=True)]
        below = [max(y - low, 0.0) for low, y in zip(series.low, series.y, strict=True)]
        common["error_y"] = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5}
    if series.look == "bars":
        return go.Bar(**common)
    points = series.look == "points"
    line = {"width": 1.3 if points else 2, "dash": "dash" if series.look == "dashed" else "solid"}
    return go.Scatter(
        **common, mode="lines+markers" if points else "lines", line=line, marker={"size": 8, "symbol": place % 8}
    )


def _scale(axis: Axis, values: Sequence[Any]) -> dict[str, Any]:
    """A linear or logarithmic axis; one without very large or small numbers has them written out."""
    plain = all(isinstance(value, str) or value == 0 or 1e-3 <= abs(value) < 1e6 for value in values)
    return {"type": "log" if axis.log else "linear"} | ({"tickformat": ",~g"} if plain else {})


def _points(figure: Figure) -> list[tuple[Any, ...]]:
    """Each point of a figure: series, x, y, and the ends of its error bar or two empty cells."""
    rows = []
    for series in figure.series:
        none = [""] * len(series.x)
        columns = (series.x, series.y, series.low or none, series.high or none)
        rows += [(series.name, *point) for point in zip(*columns, strict=True)]
    return rows


def _hidden(figure: Figure) -> int:
    """The number of points that a logarithmic axis cannot show."""
    across = figure.x.log and not _named(figure)
    pairs = [pair for series in figure.series for pair in zip(series.x, series.y, strict=True)]
    return sum((figure.y.log and y <= 0) or (across and x <= 0) for x, y in pairs)  # type: ignore[operator]


def _strip(claim: Claim) -> dict[str, str]:
    """Where a drawing of a claim has the stated interval, the measured number and its error: percent of its width."""
    error = claim.error or 0.0
    marks = {"from": claim.measured - error, "at": claim.measured, "to": claim.measured + error}
    ends = [end for end in (*claim.stated, *marks.values()) if math.isfinite(end)]
    span = (max(ends) - min(ends)) or 1.0
    marks |= {"low": max(claim.stated[0], min(ends) - span), "high": min(claim.stated[1], max(ends) + span)}
    first, width = min(ends) - 0.15 * span, 1.3 * span
    return {name: f"{min(max((value - first) / width, 0.0), 1.0):.1%}" for name, value in marks.items()}
