"""The table of the largest ratios in docs/proofs/ratios.md."""

from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "proofs" / "ratios.md"
BEGIN, END = "<!-- ratios: begin -->\n", "<!-- ratios: end -->\n"
HEAD = "| bound | largest ratio | where | cases | computed by |\n|---|---|---|---|---|\n"
PACKAGE = "smoothplan."


class Row(NamedTuple):
    """What was found of one target."""

    name: str
    attacked: str
    ratio: float
    where: str
    cases: int

    def __str__(self) -> str:
        path = self.attacked.removeprefix(PACKAGE)
        return f"| {self.name} | {self.ratio:.4f} | {self.where} | {self.cases:,} | `{path}` |\n"


def read(text: str) -> list[Row]:
    """The rows of a page."""
    table = text.partition(BEGIN)[2].partition(END)[0].removeprefix(HEAD)
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    return [
        Row(name, PACKAGE + path.strip("`"), float(ratio), where, int(cases.replace(",", "")))
        for name, ratio, where, cases, path in cells
    ]


def written(text: str, rows: list[Row]) -> str:
    """The page with other rows."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + HEAD + "".join(map(str, rows)) + END + rest.partition(END)[2]
