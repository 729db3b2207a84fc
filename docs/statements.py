"""For the site: mentions of statements of the proofs, such as Lemma 2.3, become links. MkDocs calls the hook."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify

PROOFS = Path(__file__).parent / "proofs"

HEADING = re.compile(r"^### ((?:Lemma|Proposition|Theorem|Corollary) (\d+\.\d+)\. .+)$", re.MULTILINE)

MENTION = re.compile(r"(?:Lemmas?|Propositions?|Theorems?|Corollar(?:y|ies))\s\d+\.\d+(?:(?:\sand|,|\sto)\s\d+\.\d+)*")
"""One statement or several: Lemma 2.3; Lemmas 2.1 to 2.8; Propositions 3.3 and 3.4."""

LINK = re.compile(r"(?:(?:Lemma|Proposition|Theorem|Corollary)\s)?(\d+\.\d+)")
"""What becomes a link in a mention: Lemma 2.3, but in Lemmas 2.1 to 2.8 the numbers."""

KEPT = re.compile(r"(^#[^\n]*$|^```.*?^```$|`[^`\n]*`|\[[^\]]*\]\([^)]*\))", re.MULTILINE | re.DOTALL)
"""Headings, code and links, which stay as they are."""


@cache
def places() -> dict[str, str]:
    """The file and the anchor of every statement, by its number."""
    return {
        number: f"proofs/{file.name}#{slugify(heading, '-')}"
        for file in PROOFS.glob("*.md")
        for heading, number in HEADING.findall(file.read_text(encoding="utf-8"))
    }


def linked(text: str, folder: str) -> str:
    """The text of a page in a folder of docs, with links."""

    def link(found: re.Match[str]) -> str:
        return f"[{found[0]}]({os.path.relpath(places()[found[1]], folder)})"

    parts = KEPT.split(text)  # every other part is one that stays
    parts[::2] = [MENTION.sub(lambda mention: LINK.sub(link, mention[0]), part) for part in parts[::2]]
    return "".join(parts)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page as it goes into the site; the map of the paper mentions statements of the paper."""
    source = Path(page.file.src_uri)
    return markdown if source.name == "paper.md" else linked(markdown, str(source.parent))
