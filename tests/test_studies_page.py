"""The page that `smoothplan report` writes, in a real browser."""

import base64
import gzip
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from studies.findings.figures import COLOURS

from smoothplan import report
from studies.findings import Axis, Evidence, Figure, Series
from tests.browser import Watched, launched
from tests.samples import BARE, CLAIMS, EVIL, FIGURES, FULL, ROWS, X, put

pytestmark = pytest.mark.xdist_group("browser")  # one browser serves all


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiments")
    put(folder, "exponents", FULL)
    put(folder, "bare", BARE, rows="")
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def opened(browser: Browser, folder: Path) -> Watched:
    watched = Watched(browser, folder / "report.html", viewport={"width": 1100, "height": 800}, color_scheme="light")
    watched.until(lambda: watched.page.locator("[data-drawn]").count() == len(FIGURES), "all figures are drawn")
    return watched


@pytest.fixture
def view(opened: Watched) -> Iterator[Watched]:
    """The page as it was at first; it has done nothing wrong at the end."""
    opened.ask("() => { for (const button of document.querySelectorAll('[data-reset]')) button.click(); }")
    yield opened
    assert opened.faults == []


PLOTS = "[...document.querySelectorAll('[data-figure]')]"

DRAWN = f"""([place]) => [...{PLOTS}[place].querySelectorAll('.scatterlayer .trace, .barlayer .trace')].map((trace) =>
    trace.querySelectorAll('.point').length ||
    (trace.querySelector('.js-line')?.getAttribute('d').match(/[ML]/g).length ?? 0))"""


def drawn(view: Watched, place: int) -> list[int]:
    """For each visible series of a figure the points that are drawn, or the corners of its line."""
    found: list[int] = view.ask(DRAWN, place)
    return found


def axis(view: Watched, place: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = view.ask(
        f"([place, name]) => {{ const axis = {PLOTS}[place]._fullLayout[name + 'axis'];"
        " return { type: axis.type, range: axis.range }; }",
        place,
        name,
    )
    return found


def test_every_series_is_drawn(view: Watched) -> None:
    measured, theory, forecast = drawn(view, 0)
    assert measured == len(X)
    assert theory >= 2  # a straight line needs no more
    assert forecast == len(X)
    assert drawn(view, 1) == [2, 2]
    assert drawn(view, 2) == [2, 4]  # two of four are positive
    whiskers = view.ask(f"() => {PLOTS}.map((plot) => plot.querySelectorAll('path.yerror').length)")
    assert whiskers == [4, 2, 2]
    assert "2 points are not shown" in view.page.locator("figure .remark").nth(2).inner_text()


def test_series_have_the_colours_and_dashes_of_the_static_figures(view: Watched) -> None:
    found = view.ask(
        f"() => [...{PLOTS}[0].querySelectorAll('.js-line')]"
        ".map((line) => [line.style.stroke, line.style.strokeDasharray])"
    )
    wanted = [f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})" for colour in COLOURS[:3]]
    assert [stroke for stroke, _ in found] == wanted
    assert [bool(dashes) and dashes != "none" for _, dashes in found] == [False, True, False]


def test_a_series_can_be_hidden(view: Watched) -> None:
    key = view.page.locator("figure").nth(0).get_by_role("button", name="theory, slope 2")
    assert key.get_attribute("aria-pressed") == "true"
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert len(drawn(view, 0)) == 2
    key.click()
    assert len(drawn(view, 0)) == 3


def test_axes_can_be_logarithmic_or_not(view: Watched) -> None:
    figure = view.page.locator("figure").nth(0)
    assert [axis(view, 0, name)["type"] for name in "xy"] == ["log", "log"]
    figure.get_by_role("button", name="Logarithmic y axis").click()
    assert [axis(view, 0, name)["type"] for name in "xy"] == ["log", "linear"]
    assert figure.get_by_role("button", name="Logarithmic y axis").get_attribute("aria-pressed") == "false"
    figure.get_by_role("button", name="Logarithmic x axis").click()
    assert [axis(view, 0, name)["type"] for name in "xy"] == ["linear", "linear"]
    assert axis(view, 0, "x")["range"][1] > 900
    view.page.locator("figure").nth(2).get_by_role("button", name="Logarithmic y axis").click()
    assert drawn(view, 2) == [4, 4]
    assert view.page.locator("figure .remark").nth(2).inner_text() == ""
    assert axis(view, 1, "x")["type"] == "category"
    assert view.page.locator("figure").nth(1).get_by_role("button", name="Logarithmic x axis").count() == 0


def test_zoom_and_reset(view: Watched) -> None:
    figure = view.page.locator("figure").nth(0)
    first = axis(view, 0, "x")["range"]
    figure.get_by_role("button", name="Zoom in").click()
    assert _width(axis(view, 0, "x")["range"]) == pytest.approx(_width(first) / 2)
    figure.get_by_role("button", name="theory, slope 2").click()
    assert _width(axis(view, 0, "x")["range"]) == pytest.approx(_width(first) / 2)  # the zoom stays
    figure.get_by_role("button", name="Reset").click()
    assert axis(view, 0, "x")["range"] == pytest.approx(first)
    assert len(drawn(view, 0)) == 3

    box = figure.locator(".plot")
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    assert place is not None
    view.page.mouse.move(place["x"] + 200, place["y"] + 100)
    view.page.mouse.down()
    view.page.mouse.move(place["x"] + 300, place["y"] + 200, steps=4)
    view.page.mouse.up()
    view.until(lambda: _width(axis(view, 0, "x")["range"]) < 0.5 * _width(first), "a drag zooms")
    figure.get_by_role("button", name="Reset").click()
    assert axis(view, 0, "x")["range"] == pytest.approx(first)


def _width(ends: list[float]) -> float:
    return ends[1] - ends[0]


def test_a_pointer_over_a_point_tells_its_numbers(view: Watched) -> None:
    box = view.page.locator("figure").nth(0).locator(".point").nth(1)
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    assert place is not None
    view.page.mouse.move(place["x"] + place["width"] / 2 - 3, place["y"] + place["height"] / 2)
    view.page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    view.page.locator(".hovertext").wait_for()
    text = view.page.locator(".hovertext").text_content() or ""
    assert "measured" in text
    assert "210" in text
    view.page.mouse.move(0, 0)


def test_keyboard_alone(view: Watched) -> None:
    view.ask("() => document.querySelector('a, button, [tabindex]').focus()")
    assert view.ask("() => document.activeElement.className") == "skip"
    reached = []
    for _ in range(60):
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
    levels = view.ask("() => [...document.querySelectorAll('h1, h2, h3, h4')].map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    tables = view.ask(
        "() => [...document.querySelectorAll('figure')].map((f) => f.querySelectorAll('tbody tr').length)"
    )
    assert tables == [sum(len(series.x) for series in figure.series) for figure in FIGURES]
    doubled = view.ask(
        "() => { const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);"
        " return ids.filter((id, place) => ids.indexOf(id) !== place); }"
    )
    assert doubled == []
    dead = view.ask(
        "() => [...document.querySelectorAll('a[href^=\"#\"]')].map((a) => a.getAttribute('href').slice(1))"
        ".filter((id) => !document.getElementById(id))"
    )
    assert dead == []


CONTRASTS = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [red, green, blue] = numbers(colour).map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  };
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return (numbers(colour)[3] ?? 1) > 0 ? colour : behind(element.parentElement);
  };
  return [...document.querySelectorAll('body *')].filter((element) => {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest('script, style')) return false;
    const style = getComputedStyle(element);
    const text = light(element instanceof SVGElement ? style.fill : style.color), ground = light(behind(element));
    return Math.max(text, ground) / Math.min(text, ground) < 4.5;
  }).map((element) => [element.tagName, element.textContent.slice(0, 40)]);
}"""
"""Texts whose contrast with their background is below what WCAG AA asks for."""


def test_dark_and_light(view: Watched) -> None:
    def stroke() -> str:
        return str(view.ask(f"() => {PLOTS}[0].querySelector('.js-line').style.stroke"))

    def background() -> str:
        return str(view.ask("() => getComputedStyle(document.body).backgroundColor"))

    button = view.page.get_by_role("button", name="Dark")
    light = stroke()
    assert background() == "rgb(255, 255, 255)"
    assert view.ask(CONTRASTS) == []
    view.page.emulate_media(color_scheme="dark")
    view.until(lambda: stroke() != light, "a figure is drawn in other colours when the system turns dark")
    assert background() == "rgb(21, 25, 30)"
    assert button.get_attribute("aria-pressed") == "true"
    assert view.ask(CONTRASTS) == []
    button.click()
    assert background() == "rgb(255, 255, 255)"
    assert stroke() == light
    view.page.emulate_media(color_scheme="light")
    button.click()
    assert background() == "rgb(21, 25, 30)"
    view.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert stroke() == light  # on paper
    view.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert stroke() != light
    button.click()
    assert stroke() == light


@pytest.mark.parametrize("width", [320, 412])
def test_a_phone(view: Watched, width: int) -> None:
    view.page.set_viewport_size({"width": width, "height": 700})
    view.until(
        lambda: bool(view.ask(f"() => {PLOTS}.every((plot) => plot._fullLayout.width === plot.clientWidth)")),
        "figures take the width of their boxes",
    )
    assert view.ask("() => document.documentElement.scrollWidth") <= width
    beyond = view.ask(
        "([width]) => [...document.querySelectorAll('main *')].filter((e) => !e.closest('.box, pre, .unseen, .plot')"
        " && e.getBoundingClientRect().right > width + 1).map((e) => e.outerHTML.slice(0, 80))",
        width,
    )
    assert beyond == []
    assert view.ask("() => [...document.querySelectorAll('.box')].some((box) => box.scrollWidth > box.clientWidth)")
    view.page.set_viewport_size({"width": 1100, "height": 800})


def test_rows_can_be_downloaded(view: Watched) -> None:
    with view.page.expect_download() as downloading:
        view.page.get_by_role("link", name="Download the rows").click()
    assert downloading.value.suggested_filename == "exponents-rows.jsonl"
    assert downloading.value.path().read_bytes() == ROWS.encode()
    address = view.page.get_by_role("link", name="Download the rows").get_attribute("href")
    assert address is not None
    kind, _, packed = address.partition(",")  # what a reader without scripts gets
    assert kind == "data:application/gzip;base64"
    assert gzip.decompress(base64.b64decode(packed)) == ROWS.encode()


def test_verdicts(view: Watched) -> None:
    text = view.page.locator("main").inner_text()
    assert view.page.title() == "3 of 4 claims hold · smoothplan"
    assert "Slope: the theory says 2; measured 1.980 ± 0.030, inside the stated interval [1.9, 2.1]." in text
    assert "Ratio: the theory says at most 1; measured 1.25, outside the stated bound of at most 1." in text
    assert (
        f"Ratio {EVIL}: the theory says large {EVIL}; measured 10¹³, inside the stated bound of at least 10¹⁰" in text
    )
    assert f"Why this interval: why {EVIL}" in text
    assert "Why these intervals: it is a bound" in text
    assert view.page.locator(".summary .statement").all_inner_texts() == [
        CLAIMS[place].statement for place in (0, 1, 3)
    ]
    assert view.page.locator(".summary .badge").all_inner_texts() == ["✓ holds", "✗ 1 of 2 hold", "✓ holds"]
    assert view.page.locator(".claim.fails").count() == 1
    assert view.page.locator(".wrong").inner_text() == "Not borne out: A bound is kept."
    assert FULL.command in text
    assert FULL.version in text
    assert "python 3.11.7" in text


ODD = [
    ("one point", [Series("a", [3.0], [5.0])]),
    ("nothing positive", [Series("a", [-1.0, -2.0], [-5.0, 0.0])]),
    ("nothing", [Series("a", [], []), Series("b", [], [], look="bars")]),
    ("no series", []),
    ("all decades", [Series("a", [1e-300, 1e300], [1e-300, 1e300])]),
    ("names and numbers", [Series("a", [1.0, 2.0], [1.0, 2.0]), Series("b", ["__proto__", "c"], [1.0, 2.0])]),
]


def test_odd_figures(browser: Browser, tmp_path: Path) -> None:
    odd = [Figure(f"f{i}", title, "", Axis("x", log=True), Axis("y", log=True), s) for i, (title, s) in enumerate(ODD)]
    put(tmp_path, "odd", replace(FULL, evidence=Evidence(figures=odd)))
    watched = Watched(browser, report.write(tmp_path))
    watched.until(lambda: watched.page.locator("[data-drawn]").count() == len(odd), "all figures are drawn")
    watched.ask("() => { for (const button of document.querySelectorAll('figure button')) button.click(); }")
    assert watched.faults == []


def test_without_scripts(browser: Browser, folder: Path) -> None:
    """Controls that do nothing are not shown; the data is."""
    watched = Watched(browser, folder / "report.html", java_script_enabled=False)
    assert not watched.page.locator(".chart").first.is_visible()
    assert watched.page.locator("noscript .remark").is_visible()
    assert watched.page.get_by_text("The data of this figure").first.is_visible()


def test_texts_are_texts(view: Watched, folder: Path) -> None:
    assert view.ask("() => window.injected ?? null") is None
    assert view.ask("() => document.querySelectorAll('main img, main b b, main script').length") == 0
    assert EVIL in view.page.locator(".notes").inner_text()
    assert view.page.locator(".key", has_text=EVIL).count() == 1
    assert len(re.findall("</script", (folder / "report.html").read_text("utf-8"))) == 3
