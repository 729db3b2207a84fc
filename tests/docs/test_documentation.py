"""Every code sample in the README and in docs runs and prints what it says, and pages name only what there is."""

import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

import smoothplan
from smoothplan import cli
from tests.browser import Watched, launched
from tests.docs.test_architecture import missing_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
MODULES = [module.name for module in pkgutil.walk_packages(smoothplan.__path__, "smoothplan.")]
PICTURES = sorted((DOCS / "images").glob("*.svg"))

on_one_worker = pytest.mark.xdist_group("site")  # which is built once, and looked at in one browser


SAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```$(?:\n+```text\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE)
"""A sample, and where a block of plain text follows at once, what it prints; `...` stands for anything."""

BLOCK = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


ESTIMATE = re.compile(r"(?P<value>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?) ± (?P<error>\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
"""An estimate and its standard error, as summaries print them."""

FITTED = re.compile(r"\bfit\b")
"""A summary has this word if a fit was followed, or competed."""

NEAR = 0.5
"""The largest distance between estimates of a page and of a run that rest on fits, in standard errors.

Fits by least squares amplify rounding, which differs from processor to processor, until they take other actions at a
few states. Kernels for other processors moved estimates by up to 0.14 standard errors, and standard errors by 5 %. Each
of five other seeds of docs/index.md moved an estimate by more than one.
"""

NEAR_ERROR = 0.1
"""The largest distance between their standard errors, as a part of them."""


def near(wanted: re.Match[str], got: re.Match[str]) -> bool:
    """Whether two estimates differ by no more than processors do."""
    (value, error), (found, found_error) = (map(float, one.group("value", "error")) for one in (wanted, got))
    return abs(found - value) <= NEAR * error and abs(found_error - error) <= NEAR_ERROR * error


def settled(wanted: str, got: str) -> str:
    """What was printed, with the estimates of the page in place of those near them if the page's rest on fits."""
    places = list(zip(ESTIMATE.finditer(wanted), ESTIMATE.finditer(got), strict=False))
    if FITTED.search(wanted):
        for before, after in reversed(places):
            if near(before, after):
                got = got[: after.start()] + before[0] + got[after.end() :]
    return got


def agrees(wanted: str, got: str) -> bool:
    """Whether a page says what is printed: exactly, but for estimates that rest on fits."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(wanted, settled(wanted, got), flags)


def samples(page: Path) -> Iterator[tuple[re.Match[str], str]]:
    """Runs the samples of a page in order, as one program: each sample, and what it prints."""
    names: dict[str, Any] = {}
    text = page.read_text("utf-8")
    for sample in SAMPLE.finditer(text):
        line, printed = text.count("\n", 0, sample.start("code")), io.StringIO()
        with contextlib.redirect_stdout(printed):  # errors show the line of the page
            exec(compile("\n" * line + sample["code"], page.name, "exec"), names)
        yield sample, printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_samples_run_and_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty folder."""
    monkeypatch.chdir(tmp_path)
    for sample, printed in samples(page):
        wanted = sample["output"]
        assert wanted is None or agrees(wanted, printed), f"{page.name} prints, after\n{sample['code']}\n{printed}"


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=name_of)
def test_examples_run_and_answer(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"python {name_of(script)}\n" in script.read_text("utf-8")  # how to run it
    runpy.run_path(str(script), run_name="__main__")
    said = capsys.readouterr()
    assert len(said.out.splitlines()) >= 3
    assert said.err == ""


def test_an_output_that_is_not_what_the_page_says_is_found() -> None:
    assert agrees("calls: 12...\n", "calls:  1234\n")
    assert not agrees("calls: 13...\n", "calls: 1234\n")


SUMMARY = """action 0: no other action seems better
  → 0  183.745 ± 1.2
    1  182.489 ± 1.2, worse by 1.26 ± 0.49
how: a least-squares fit earned most of 6 policies, 0.156 ± 0.63 more than a fit; returns of 129 steps
99,992 simulator calls, ... s
"""


@pytest.mark.parametrize(
    ("part", "printed", "agree"),
    [
        ("", "", True),
        ("183.745 ± 1.2", "183.669 ± 1.2", True),  # as found on other processors
        ("1.26 ± 0.49", "1.32 ± 0.5", True),
        ("183.745 ± 1.2", "184.4 ± 1.2", False),
        ("183.745 ± 1.2", "-183.745 ± 1.2", False),
        ("1.26 ± 0.49", "1.55 ± 0.49", False),
        ("1.26 ± 0.49", "1.26 ± 0.55", False),
        ("→ 0  183.745 ± 1.2\n    1", "0  183.745 ± 1.2\n  → 1", False),
        ("action 0", "action 1", False),
        ("worse", "better", False),
        ("    1  182.489 ± 1.2, worse by 1.26 ± 0.49\n", "", False),
        ("a least-squares fit earned", "a fit earned", False),
        ("6 policies", "5 policies", False),
        ("99,992", "99,991", False),
    ],
)
def test_only_estimates_of_fits_may_differ_a_little(part: str, printed: str, agree: bool) -> None:
    assert part in SUMMARY
    assert agrees(SUMMARY, SUMMARY.replace(part, printed).replace("...", "2.5")) == agree


def test_estimates_without_a_fit_agree_exactly() -> None:
    wanted = SUMMARY.replace(" fit", " table")
    assert agrees(wanted, wanted)
    assert not agrees(wanted, wanted.replace("183.745", "183.744"))


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as repositories make them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for name, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        assert target.exists(), name
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_pages_are_understood(page: Path) -> None:
    """Every `smoothplan ...` in a block of commands parses; it is not run."""
    text = page.read_text(encoding="utf-8")
    blocks = [block["text"].replace("\\\n", " ") for block in BLOCK.finditer(text) if block["language"] == "console"]
    for line in "\n".join(blocks).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["smoothplan"]:
            cli.command_parser().parse_args(words[1:])


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_citations_name_this_version() -> None:
    citation, readme = (ROOT / "CITATION.cff").read_text("utf-8"), (ROOT / "README.md").read_text("utf-8")
    assert f"\nversion: {smoothplan.__version__}\n" in citation
    assert re.search(rf"version = {{{{?{re.escape(smoothplan.__version__)}}}", readme)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    listed = set(re.findall(r": (\S+\.md)$", navigation, flags=re.MULTILINE))
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_everything_public_is_in_the_reference() -> None:
    text = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    described = [pkgutil.resolve_name(path) for path in re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)]
    missing = [name for name in smoothplan.__all__ if not any(getattr(smoothplan, name) is one for one in described)]
    assert not missing, f"not in docs/reference: {missing}"


def test_the_map_of_the_paper_names_what_there_is() -> None:
    """Its cells name files, each with the names that follow it: `file.py`: `one`, `two`; `other.py`."""
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|$", (DOCS / "paper.md").read_text("utf-8"), flags=re.MULTILINE)
    named = [re.findall(r"`([^`]+)`", part) for row in rows[2:] for part in row.split(";")]
    assert sum(len(names) for names in named) > 60  # a map, and the pattern above still reads it
    modules = [(file.removesuffix(".py").replace("/", "."), names) for file, *names in filter(None, named)]
    missing = missing_names(f"smoothplan.{module}:{name}" for module, names in modules for name in ["", *names])
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("picture", PICTURES, ids=name_of)
def test_pictures_are_small_and_whole(picture: Path) -> None:
    """They are plain SVG, which asks for nothing from elsewhere."""
    text = picture.read_text("utf-8")
    assert len(text.encode()) < 100_000  # a picture must not make a page slow
    assert text.rstrip().endswith("</svg>")
    assert not re.search(r"<script|(?:href|src)=|url\(\s*['\"]?http|@import", text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_show_nothing_from_elsewhere(page: Path) -> None:
    """Readers may be offline: links lead out, but no picture, style or script comes from there."""
    assert not re.search(r"!\[[^]]*\]\(https?:|<(?:img|script|link|iframe)\b[^>]*https?:", page.read_text("utf-8"))


def test_the_site_asks_for_nothing_from_elsewhere() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "font: false" in settings
    assert "http" not in settings
    # The plugin for search without a server fetches a script by this name unless it is given one.
    assert (DOCS / "javascripts" / "iframe-worker.js").exists()
    assert "- javascripts/iframe-worker.js" in settings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    silenced = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=silenced, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@on_one_worker
def test_the_site_is_built_without_a_warning(site: Path) -> None:
    for page in ("index.html", "tutorial.html", "studies.html", "architecture.html", "reference/planners.html"):
        assert (site / page).stat().st_size > 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


ARTICLE = re.compile(r"(?<=<article class=\"md-content__inner md-typeset\">).*(?=</article>)", re.DOTALL)
"""What a built page has beside navigation."""

FIND_FAULTS = r"""() => {
  const faults = document.documentElement.scrollWidth > innerWidth ? ["the page is wider than a phone"] : []
  for (const section of document.querySelectorAll("section[data-page]")) {
    const note = (fault) => faults.push(`${section.dataset.page}: ${fault}`)
    for (const formula of section.querySelectorAll(".arithmatex")) {
      const source = formula.querySelector("annotation")?.textContent
      if (!source) note(`${formula.textContent}: ${formula.title || "not typeset"}`)
      else if (/[_^]([−+-]|[a-z0-9]{2})/i.test(source)) note(`${source}: a script without braces`)
      else if (!formula.closest("div.arithmatex, table") && formula.getBoundingClientRect().right > innerWidth)
        note(`${source}: too wide for a line on a phone`)
    }
    for (const skipped of section.querySelectorAll("code, .arithmatex")) skipped.remove()
    for (const [line] of section.textContent.matchAll(/.*[$].*/g)) note(`${line}: a dollar outside of formulas`)
  }
  return faults
}"""


def faults_of_formulas(browser: Browser, site: Path, articles: Mapping[str, str]) -> list[str]:
    """What is wrong with the formulas of some pages: all are put into one page of the site and opened on a phone."""
    sections = "".join(f'<section data-page="{name}">{article}</section>' for name, article in articles.items())
    page = site / "formulas.html"
    page.write_text(ARTICLE.sub(lambda _: sections, (site / "index.html").read_text("utf-8")), "utf-8")
    watched = Watched(browser, page, viewport={"width": 390, "height": 844})
    found: list[str] = watched.ask(FIND_FAULTS)
    return found + watched.faults


@on_one_worker
def test_formulas_are_typeset(site: Path, browser: Browser) -> None:
    """KaTeX understands every formula without a warning, and nothing is fetched from elsewhere."""
    articles = {}
    for source in DOCS.rglob("*.md"):
        if "$" in source.read_text("utf-8"):
            name = source.relative_to(DOCS)
            articles[str(name)] = "".join(ARTICLE.findall((site / name.with_suffix(".html")).read_text("utf-8")))
    assert "extending.md" in articles
    faults = faults_of_formulas(browser, site, articles)
    assert not faults, "\n".join(faults)


@on_one_worker
def test_faults_of_formulas_are_found(site: Path, browser: Browser) -> None:
    broken = {
        "wrong.md": (r'<span class="arithmatex">\frac{1}</span>', r"wrong.md: \frac{1}: KaTeX parse error"),
        "unknown.md": (r'<div class="arithmatex">\unknown</div>', r"unknown.md: \unknown: KaTeX parse error"),
        "odd.md": ('<span class="arithmatex">√2</span>', "odd.md: √2: KaTeX parse error"),  # KaTeX would only warn
        "script.md": ('<span class="arithmatex">2^−l</span>', "script.md: 2^−l: a script without braces"),
        "unseen.md": ("<p>No empty line before\n$$\nx</p>", "unseen.md: $$: a dollar"),
        "wide.md": (rf'<span class="arithmatex">\text{{{"wide " * 20}}}</span>', "wide.md: \\text"),
        "elsewhere.md": ('<img src="http://127.0.0.1:9/x.png">', "request: http://127.0.0.1:9/x.png"),
    }
    good = '<p>A dollar in <code>$code</code>, and <span class="arithmatex">\\range(Q̂ − Q)</span>.</p>'
    articles = {name: article for name, (article, _) in broken.items()}
    faults = "\n".join(faults_of_formulas(browser, site, articles | {"good.md": good}))
    for _, fault in broken.values():
        assert fault in faults
    assert "good.md" not in faults
