"""The notebook of the documentation: its outputs are those of a fresh execution, and a browser shows them."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs import notebook
from tests.browser import Watched, launched

group = pytest.mark.xdist_group("notebook")  # one execution serves all


@pytest.fixture(scope="session")
def executed() -> Any:
    return notebook.executed()


@group
def test_the_notebook_is_up_to_date(executed: Any) -> None:
    stored = nbformat.read(notebook.FILE, as_version=4)
    assert [cell.source for cell in stored.cells] == [cell.source for cell in executed.cells], "run docs/notebook.py"
    assert notebook.outputs(stored) == notebook.outputs(executed), "run docs/notebook.py"


@group
def test_the_notebook_in_a_browser(executed: Any, tmp_path: Path) -> None:
    """Figures are drawn, and nothing is fetched."""
    file = tmp_path / "notebook.html"
    file.write_text(notebook.page(executed), encoding="utf-8")
    figured = sum(cell.source.endswith(".figure()") for cell in executed.cells)
    with launched() as browser:
        shown = Watched(browser, file)
        count = "([n]) => document.querySelectorAll('.svg-container:has(.main-svg)').length === n"
        shown.until(lambda: bool(shown.ask(count, figured)), "all figures are drawn")
        sizes = shown.ask(
            """() => [...document.querySelectorAll('.js-plotly-plot .bars path')].map(bar => {
                const box = bar.getBoundingClientRect(); return [box.width, box.height]})"""
        )
        assert len(sizes) >= 3
        assert all(width > 1 and height > 4 for width, height in sizes)
        assert not shown.faults
