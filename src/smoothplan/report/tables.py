"""Tables that scroll in a box of their own, with numbers on the right."""

import re
from collections.abc import Sequence

from smoothplan.report.markup import Html, element, number

NUMBER = re.compile(r"[-−+~≈<>≤≥]?\s?\d[\d,.]*(e[-+]?\d+)?(\s?(×|±|%|k?B|m?s\b|min|h\b).*)?")
"""A number, maybe with an error or a unit."""

TAG = re.compile("<[^>]*>")

SHORT = 24
"""Letters of a text that stays in one line."""


def table(label: str, columns: Sequence[str], rows: Sequence[Sequence[str | float]], digits: int = 4) -> Html:
    """A table in a box of its own, that scrolls where it is too wide; numbers are on the right."""
    kinds = [_kind([row[place] for row in rows]) for place in range(len(columns))]
    head = element(
        "tr", *(element("th", text, scope="col", class_=kind) for text, kind in zip(columns, kinds, strict=True))
    )
    body = (
        element(
            "tr",
            *(
                element("td", cell if isinstance(cell, str) else number(cell, digits), class_=kind)
                for cell, kind in zip(row, kinds, strict=True)
            ),
        )
        for row in rows
    )
    return element(
        "div",
        element("table", element("thead", head), element("tbody", *body)),
        class_="box",
        role="region",
        tabindex=0,
        aria_label=label,
    )


def _kind(cells: Sequence[str | float]) -> str | None:
    """The class of a column: numbers, short texts that are not broken into lines, or any."""
    texts = [TAG.sub("", cell) if isinstance(cell, Html) else cell for cell in cells if isinstance(cell, str) and cell]
    if all(NUMBER.fullmatch(text) for text in texts):
        return "number"
    return "short" if all(len(text) <= SHORT for text in texts) else None
