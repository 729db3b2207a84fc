"""Writes docs/gallery.md from the findings in docs/gallery: `make gallery` makes both anew."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from smoothplan.experiments import EXPERIMENTS
from smoothplan.findings import Findings

FOLDER = Path(__file__).parent

HEAD = """\
# Gallery

What the experiments found. This page is written by `make gallery`, which runs `smoothplan experiment all --quick`
and takes some ten minutes on two cores. There is also an [interactive report](gallery/report.html) of the same
findings, with every row. How to run them yourself, and what is on disk afterwards, is in [Experiments](experiments.md).
"""


def gallery() -> str:
    """The page, as Markdown."""
    found = [Findings.from_json((FOLDER / name / "findings.json").read_text("utf-8")) for name in EXPERIMENTS]
    return HEAD + _summary(found) + "".join("\n".join(_section(one)) for one in found)


def _summary(found: list[Findings]) -> str:
    claims = [claim for one in found for claim in one.evidence.claims]
    holding = sum(claim.holds for claim in claims)
    seconds = sum(one.seconds for one in found)
    versions = ", ".join(sorted({one.version.partition("+")[0] for one in found}))
    return (
        f"\n**{holding} of {len(claims)} claims hold** in this run of smoothplan {versions}: "
        f"{sum(one.rows for one in found):,} runs, {seconds:.0f} seconds.\n"
    )


def _section(found: Findings) -> Iterator[str]:
    yield f"\n## {found.title}\n"
    yield f"{found.question} `{found.command}`\n"
    for claim in found.evidence.claims:
        yield f"- {'✓' if claim.holds else '✗ **fails**'} {claim.statement} *{claim.verdict}.*"
    yield ""
    for figure in found.evidence.figures:
        yield f"![{figure.title}](gallery/{found.experiment}/{figure.name}.svg)\n"
        yield f"{figure.caption}\n"
    for table in found.evidence.tables:
        yield f"{table.title}:\n"
        yield _row(table.columns)
        yield "|" + "---|" * len(table.columns)
        for row in table.rows:
            yield _row(row)
        yield ""
    for note in found.evidence.notes:
        yield f"{note}\n"


def _row(cells: Sequence[str | float]) -> str:
    """A line of a table. An upright bar inside a cell would end it."""
    texts = (f"{cell:.4g}" if isinstance(cell, float) else str(cell).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    (FOLDER.parent / "gallery.md").write_text(gallery(), encoding="utf-8")
