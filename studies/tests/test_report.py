"""The report of studies: what it reads and refuses, and the page in a real browser.

The findings here were made by no study: they have every look of a series, texts that are markup, and numbers that a
logarithmic axis cannot show.
"""

import gzip
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from studies import report
from studies.findings import Axis, Claim, Evidence, Figure, Findings, Series, Table
from tests.browser import Watched, launched

pytestmark = pytest.mark.xdist_group("browser")  # one browser serves all

EVIL = "</script><script>window.injected = 1</script><img src=x onerror='window.injected = 1'> & <b>bold</b>"
ROWS = '{"seed": 0, "result": {"name": "ε < 1"}}\n{"seed": 1, "result": {"name": "</a>"}}\n'
X = [1.0, 10.0, 100.0, 1000.0]
LONG = "a planner with a name that takes up a lot of room"

FIGURES = [
    Figure(
        "looks",
        "Calls against 1/ε",
        "Points lie along the dashed line.",
        Axis("1/ε", log=True),
        Axis("simulator calls", log=True),
        [
            Series("measured", X, [2.0, 210.0, 1.9e4, 2e6], [1.0, 100.0, 1e4, 1e6], [3.0, 300.0, 3e4, 3e6]),
            Series("theory, slope 2", X, [2.0, 200.0, 2e4, 2e6], look="dashed"),
            Series("forecast", X, [9.0, 300.0, 9e4, 3e6], look="line"),
        ],
    ),
    Figure(
        "names",
        "Calls by planner",
        "Ours is lower.",
        Axis("planner"),
        Axis("calls"),
        [
            Series("published", [LONG, "B"], [3.0, 5.0], look="bars"),
            Series("ours", [LONG, "B"], [1, 2], [0.5, 1], [2, 3], "bars"),
        ],
    ),
    Figure(
        "signs",
        f"Not positive {EVIL}",
        f"A log axis cannot show all of it. {EVIL}",
        Axis("depth"),
        Axis(f"error {EVIL}", log=True),
        [
            Series(EVIL, [0, 1, 2, 3], [1.0, 0.0, -2.0, 0.5], [0.5, -0.5, -3.0, -0.5], [1.5, 0.5, -1.0, 1.5]),
            Series("short " + "a-name-without-any-space-at-all" * 5, [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0]),
        ],
    ),
]
CLAIMS = [
    Claim("The order is 2.", "slope", "2", 1.98, (1.9, 2.1), "log factors", 0.03),
    Claim("A bound is kept.", "ratio", "at most 1", 1.25, (-math.inf, 1.0), "it is a bound"),
    Claim("A bound is kept.", "another ratio", "at most 1", 1, (-math.inf, 1.0), "it is a bound", 0.0),
    Claim(f"Savings. {EVIL}", f"ratio {EVIL}", f"large {EVIL}", 1e13, (1e10, math.inf), f"why {EVIL}"),
]
WIDE = Table("wide", "A wide table", [f"column {i}" for i in range(15)], [[EVIL, *(10.0**i for i in range(14))]])
FULL = Findings(
    study="exponents",
    title="Exponents",
    question="How does the price grow?",
    command="python -m studies run exponents --quick --out DIR",
    scale="quick",
    settings={"epsilons": [0.1, 0.05], "text": EVIL},
    version="0.1.0+0123abcd",
    machine={"python": "3.11.7", "numpy": "2.0.0"},
    rows=2,
    seconds=75.0,
    evidence=Evidence(CLAIMS, FIGURES, [WIDE], ["Points are means.", EVIL]),
)
BARE = replace(FULL, study="bare <i>", title=f"Nothing {EVIL}", evidence=Evidence(), settings={}, rows=0)


def put(folder: Path, name: str, findings: Findings, rows: str = ROWS) -> Path:
    """Writes what a study would."""
    (folder / name).mkdir(parents=True)
    (folder / name / "findings.json").write_text(findings.to_json(), encoding="utf-8")
    (folder / name / "rows.jsonl").write_bytes(rows.encode())
    return folder


# Files


def test_a_folder_without_findings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no findings in {tmp_path}: write some by `python -m studies run")):
        report.write(tmp_path)
    put(tmp_path, "exponents", FULL)
    with pytest.raises(ValueError, match="is the folder of one study: name the folder above it"):
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
        b"[]",
        b"\xff\xfe",
        FULL.to_json().encode()[:-200],
        _broken("seconds", value="long"),
        _broken("evidence", value={}),
        _broken("evidence", "notes", value=["\ud800"]),
        _broken("evidence", "claims", 0, "measured", value=float("nan")),
        _broken("evidence", "figures", 0, "series", 0, "look", value="pie"),
        _broken("evidence", "figures", 0, "series", 0, "y", value=[1.0]),
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
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=re.escape("a report needs plotly.offline: install smoothplan[docs,plots]")):
        report.write(tmp_path)


def test_order_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our studies come first; the same findings give the same page; many rows stay outside."""
    for name in ("alpha", "gap", "exponents", "beta"):
        put(tmp_path, name, replace(BARE, study=name))
    file = report.write(tmp_path, tmp_path / "other.html")
    text = file.read_text("utf-8")
    assert file == tmp_path / "other.html"
    anchors = re.findall(r'<h2 id="study-(\w+)-\d"', text)
    assert anchors == ["exponents", "gap", "alpha", "beta"]
    assert text.count("gzip;base64,") == 4
    assert report.write(tmp_path, file).read_text("utf-8") == text
    assert len(text.encode()) < 6_000_000
    assert "Permission is hereby granted, free of charge" in text  # the licence of the library in it
    monkeypatch.setattr(report, "LARGEST", 10)
    text = report.write(tmp_path).read_text("utf-8")
    assert "gzip;base64," not in text
    assert "<code>gap/rows.jsonl</code>" in text


# The page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    put(folder, "exponents", FULL)
    put(folder, "bare", BARE, rows="")
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


DRAW_ALL = "() => { for (const button of document.querySelectorAll('[data-reset]')) button.click(); }"


@pytest.fixture(scope="module")
def opened(browser: Browser, folder: Path) -> Watched:
    return Watched(browser, folder / "report.html", viewport={"width": 1100, "height": 800}, color_scheme="light")


@pytest.fixture
def view(opened: Watched) -> Iterator[Watched]:
    """The page as it was at first; it has done nothing wrong at the end."""
    opened.ask(DRAW_ALL)
    opened.until(lambda: opened.page.locator("[data-drawn] .main-svg").count() > 0, "figures are drawn")
    yield opened
    assert opened.faults == []


PLOTS = "[...document.querySelectorAll('.plot')]"


def drawn(view: Watched, place: int) -> list[int]:
    """For each visible series of a figure the points that are drawn, or the corners of its line."""
    found: list[int] = view.ask(
        f"([place]) => [...{PLOTS}[place].querySelectorAll('.scatterlayer .trace, .barlayer .trace')].map((trace) =>"
        " trace.querySelectorAll('.point').length ||"
        " (trace.querySelector('.js-line')?.getAttribute('d').match(/[ML]/g).length ?? 0))",
        place,
    )
    return found


def axis(view: Watched, place: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = view.ask(
        f"([place, name]) => {{ const axis = {PLOTS}[place]._fullLayout[name + 'axis'];"
        " return { type: axis.type, range: axis.range }; }",
        place,
        name,
    )
    return found


def width(view: Watched) -> float:
    ends = axis(view, 0, "x")["range"]
    return float(ends[1] - ends[0])


def test_every_series_is_drawn(view: Watched) -> None:
    measured, theory, forecast = drawn(view, 0)
    assert measured == len(X)
    assert theory >= 2  # a straight line needs no more
    assert forecast == len(X)
    assert drawn(view, 1) == [2, 2]
    assert drawn(view, 2) == [2, 4]  # two of four are positive
    whiskers = view.ask(f"() => {PLOTS}.map((plot) => plot.querySelectorAll('path.yerror').length)")
    assert whiskers == [4, 2, 2]
    assert "positive numbers only: 2." in view.page.locator("figure").nth(2).inner_text()
    dashes = view.ask(f"() => [...{PLOTS}[0].querySelectorAll('.js-line')].map((line) => line.style.strokeDasharray)")
    assert [bool(each) and each != "none" for each in dashes] == [False, True, False]


def test_series_axes_and_zoom(view: Watched) -> None:
    figure = view.page.locator("figure").nth(0)
    key = figure.get_by_role("button", name="theory, slope 2")
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert len(drawn(view, 0)) == 2
    key.click()
    assert len(drawn(view, 0)) == 3
    assert [axis(view, 0, name)["type"] for name in "xy"] == ["log", "log"]
    for name in "yx":
        figure.get_by_role("button", name=f"Logarithmic {name} axis").click()
        assert axis(view, 0, name)["type"] == "linear"
    assert axis(view, 0, "x")["range"][1] > 900
    figure.get_by_role("button", name="Reset").click()
    assert [axis(view, 0, name)["type"] for name in "xy"] == ["log", "log"]
    assert figure.get_by_role("button", name="Logarithmic x axis").get_attribute("aria-pressed") == "true"
    assert view.page.locator("figure").nth(1).get_by_role("button", name="Logarithmic x axis").count() == 0
    first = width(view)
    figure.get_by_role("button", name="Zoom in").click()
    assert width(view) == pytest.approx(first / 2)
    key.click()
    assert width(view) == pytest.approx(first / 2)  # the zoom stays
    figure.get_by_role("button", name="Reset").click()
    assert width(view) == pytest.approx(first)


def test_keyboard_alone(view: Watched) -> None:
    view.ask("() => document.querySelector('a, button, [tabindex]').focus()")
    assert view.ask("() => document.activeElement.className") == "skip"
    reached = []
    for _ in range(80):
        view.page.keyboard.press("Tab")
        reached.append(
            view.ask("() => document.activeElement.dataset.series ?? document.activeElement.dataset.log ?? ''")
        )
        if reached[-1] == "y":
            break
    assert [name for name in reached if name] == ["0", "1", "2", "x", "y"]
    assert view.ask("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    view.page.keyboard.press("Space")
    assert axis(view, 0, "y")["type"] == "linear"
    view.page.keyboard.press("Enter")
    assert axis(view, 0, "y")["type"] == "log"
    assert view.ask("() => document.activeElement.dataset.log") == "y"  # the focus stays


def test_what_a_screen_reader_is_told(view: Watched) -> None:
    session = view.page.context.new_cdp_session(view.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
    ]
    for role in ("button", "link", "figure", "heading", "navigation", "region"):
        assert [name.strip() != "" for found, name in named if found == role], role
        assert all(name.strip() for found, name in named if found == role), role
    images = [name for role, name in named if role == "image"]
    assert images == [f"{figure.title}. {figure.caption}" for figure in FIGURES]
    assert {"main", "banner", "contentinfo"} <= {role for role, _ in named}
    tables = view.ask(
        "() => [...document.querySelectorAll('figure')].map((f) => f.querySelectorAll('tbody tr').length)"
    )
    assert tables == [sum(len(series.x) for series in figure.series) for figure in FIGURES]
    wrong = view.ask(
        "() => { const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);"
        " const links = [...document.querySelectorAll('a[href^=\"#\"]')].map((a) => a.getAttribute('href').slice(1));"
        " const twice = ids.filter((id, place) => ids.indexOf(id) !== place);"
        " return [...twice, ...links.filter((id) => !ids.includes(id))]; }"
    )
    assert wrong == []  # ids that stand twice, and links that lead nowhere


def test_dark_and_light(view: Watched) -> None:
    def colours() -> list[str]:
        return list(
            view.ask(
                f"() => [getComputedStyle(document.body).backgroundColor, {PLOTS}[0]._fullLayout.paper_bgcolor,"
                f" {PLOTS}[0].querySelector('.js-line').style.stroke]"
            )
        )

    button = view.page.get_by_role("button", name="Dark")
    light = colours()
    assert light[0] == "rgb(255, 255, 255)"
    view.page.emulate_media(color_scheme="dark")
    view.until(lambda: colours()[2] != light[2], "a figure is drawn in other colours when the system turns dark")
    dark = colours()
    assert dark[:2] == ["rgb(21, 25, 30)", "#15191e"]
    assert button.get_attribute("aria-pressed") == "true"
    view.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert colours() == light  # on paper
    view.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert colours() == dark
    button.click()
    assert colours() == light
    view.page.emulate_media(color_scheme="light")


def test_a_phone(view: Watched) -> None:
    pixels = 320
    view.page.set_viewport_size({"width": pixels, "height": 700})
    view.until(
        lambda: bool(view.ask(f"() => {PLOTS}.every((plot) => plot._fullLayout.width === plot.clientWidth)")),
        "figures take the width of their boxes",
    )
    assert view.ask("() => document.documentElement.scrollWidth") <= pixels
    beyond = view.ask(
        "([width]) => [...document.querySelectorAll('main *')].filter((e) => !e.closest('.box, pre, .plot')"
        " && e.getBoundingClientRect().right > width + 1).map((e) => e.outerHTML.slice(0, 80))",
        pixels,
    )
    assert beyond == []
    assert view.ask("() => [...document.querySelectorAll('.box')].some((box) => box.scrollWidth > box.clientWidth)")
    view.page.set_viewport_size({"width": 1100, "height": 800})


def test_rows_can_be_downloaded(view: Watched) -> None:
    link = view.page.get_by_role("link", name="Download the rows").first
    with view.page.expect_download() as downloading:
        link.click()
    assert downloading.value.suggested_filename == "exponents-rows.jsonl.gz"
    assert gzip.decompress(downloading.value.path().read_bytes()) == ROWS.encode()
    assert (link.get_attribute("href") or "").startswith("data:application/gzip;base64,")  # it needs no script


def test_verdicts(view: Watched) -> None:
    text = view.page.locator("main").inner_text()
    assert view.page.title() == "3 of 4 claims hold · smoothplan"
    for claim in CLAIMS:
        assert f"{claim.verdict}." in text
        assert f"Why this interval: {claim.reason}" in text
    assert view.page.locator(".summary .statement").all_inner_texts() == [
        CLAIMS[place].statement for place in (0, 1, 3)
    ]
    assert view.page.locator(".summary .badge").all_inner_texts() == ["✓ holds", "✗ 1 of 2 hold", "✓ holds"]
    assert view.page.locator(".claim.fails").count() == 1
    assert view.page.locator(".wrong").inner_text() == "Not borne out: A bound is kept."
    for words in (FULL.command, FULL.version, "python 3.11.7"):
        assert words in text


def test_odd_figures(browser: Browser, tmp_path: Path) -> None:
    odd: list[list[Series]] = [
        [Series("one point", [3.0], [5.0])],
        [Series("nothing positive", [-1.0, -2.0], [-5.0, 0.0])],
        [Series("nothing", [], []), Series("b", [], [], look="bars")],
        [],
        [Series("all decades", [1e-300, 1e300], [1e-300, 1e300])],
        [Series("names and numbers", [1.0, 2.0], [1.0, 2.0]), Series("b", ["__proto__", "c"], [1.0, 2.0])],
    ]
    figures = [Figure(f"f{i}", f"{i}", "", Axis("x", log=True), Axis("y", log=True), s) for i, s in enumerate(odd)]
    put(tmp_path, "odd", replace(FULL, evidence=Evidence(figures=figures)))
    watched = Watched(browser, report.write(tmp_path))
    watched.ask("() => { for (const button of document.querySelectorAll('figure button')) button.click(); }")
    watched.until(lambda: watched.page.locator("[data-drawn]").count() == len(odd), "all figures are drawn")
    assert watched.faults == []


def test_without_scripts(browser: Browser, folder: Path) -> None:
    """Controls that do nothing are not shown; the data is."""
    watched = Watched(browser, folder / "report.html", java_script_enabled=False)
    assert not watched.page.locator(".chart").first.is_visible()
    assert watched.page.locator("noscript .remark").is_visible()
    assert watched.page.get_by_text("The data of this figure").first.is_visible()


def test_texts_are_texts(view: Watched) -> None:
    assert view.ask("() => window.injected ?? null") is None
    assert view.ask("() => document.querySelectorAll('main img, main b b, main script:not([type])').length") == 0
    assert EVIL in view.page.locator(".notes").inner_text()
    assert view.page.locator("[data-series]", has_text=EVIL).count() == 1
