"""An adversary who looks for the largest ratio of a truth, calculated exactly, to the bound that the library proves.

    python -m tests.attack --minutes 30 --seed 0 --write

A ratio above 1 would refute a bound. `tests/statistics/test_attack.py` makes a quick search of every target; this
one takes as long as it is given, and writes the largest ratios into docs/proofs/ratios.md.
"""

from pathlib import Path

from tests.attack import curvatures, intervals, levels, searching
from tests.attack.climbing import Attack, Target

TARGETS: dict[str, Target] = {
    target.name: target for part in (levels, curvatures, intervals, searching) for target in part.TARGETS
}
"""Every bound under attack, by name."""

PAGE = Path(__file__).parents[2] / "docs" / "proofs" / "ratios.md"
BEGIN = "<!-- ratios: begin -->\n| bound | largest ratio | where | cases | computed by |\n|---|---|---|---|---|\n"
END = "<!-- ratios: end -->\n"

Rows = dict[str, tuple[float, str]]
"""The largest ratio that was found of each target, and its line of the page."""


def row(attack: Attack) -> tuple[float, str]:
    """What an attack has found."""
    target, path = attack.target, attack.target.attacked.removeprefix("smoothplan.")
    cells = target.name, f"{attack.best:.4f}", str(attack.summit), f"{attack.evaluations:,}", f"`{path}`"
    return attack.best, f"| {' | '.join(cells)} |\n"


def read(text: str) -> Rows:
    """The rows of a page."""
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines(keepends=True)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {name: (float(ratio), line) for (_, name, ratio, *_), line in zip(cells, lines, strict=True)}


def written(text: str, rows: Rows) -> str:
    """The page with other rows, in the order of the targets."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "".join(rows[name][1] for name in TARGETS if name in rows) + END + rest.partition(END)[2]
