"""Writes what the code samples of pages print into the pages: python -m tests.refresh README.md docs/guide.md

Pages whose outputs agree already stay as they are. In an output that does not, lines that still agree stay, times
become `...`, and all other lines are replaced: look at the differences before you commit them.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from tests.docs.test_documentation import PAGES, agrees, samples, settled

SECONDS = re.compile(r"\d+\.\d+ s$", re.MULTILINE)
"""A time at the end of a line, which differs from run to run."""


def renewed(wanted: str, got: str) -> str:
    """An output as a page may show it."""
    old, new = wanted.splitlines(), SECONDS.sub("... s", settled(wanted, got)).splitlines()
    if len(old) == len(new):
        new = [before if agrees(before, after) else after for before, after in zip(old, new, strict=True)]
    return "".join(f"{line}\n" for line in new)


def refreshed(page: Path) -> str:
    """The text of a page, with the outputs that its samples have now."""
    text, moved = page.read_text("utf-8"), 0
    for found, printed in samples(page):
        if found["output"] is None or agrees(found["output"], printed):
            continue
        output, (start, end) = renewed(found["output"], printed), found.span("output")
        text = text[: start + moved] + output + text[end + moved :]
        moved += len(output) - (end - start)
    return text


def main() -> None:
    """Refreshes the pages that are named, or all of them."""
    pages = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # samples may write files
            text = refreshed(page)
            os.chdir(page.parent)
        if text != page.read_text("utf-8"):
            page.write_text(text, "utf-8")
            print(f"{page}: refreshed")


if __name__ == "__main__":
    main()
