"""For the reference pages: docstrings as Markdown, and fields described by the comments at the end of their lines."""

import ast
import inspect
import re
from typing import Any

import griffe

COMMENT = re.compile(r"^[^\"'#]*#\s*(?P<text>\S.*)$")
"""A comment behind code without quotes, which might hold a # of their own."""

INDEXED = re.compile(r"(?<!`)\b(\w+\[\w+\]\[\w+\])")
"""An array with two indices, such as outcomes[s][a], which Markdown would take for a link."""


class Docstrings(griffe.Extension):
    """Makes `calls: int  # simulator calls` as good as a docstring, and Markdown of docstrings."""

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, agent: Any, **kwargs: Any
    ) -> None:
        """Reads the comment of an attribute that has no docstring."""
        if attr.docstring is not None or attr.lineno is None or not attr.source:
            return
        found = COMMENT.match(attr.source.splitlines()[-1])
        if found is not None:
            attr.docstring = griffe.Docstring(sentence(found["text"]), lineno=attr.lineno, parent=attr)

    def on_instance(self, *, node: ast.AST | griffe.ObjectNode, obj: griffe.Object, agent: Any, **kwargs: Any) -> None:
        """Marks examples and indexed arrays as code."""
        if obj.docstring is not None:
            paragraphs = inspect.cleandoc(obj.docstring.value).split("\n\n")
            obj.docstring.value = "\n\n".join(map(markdown, paragraphs))


def markdown(paragraph: str) -> str:
    """A paragraph of a docstring: examples become blocks of code."""
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    return INDEXED.sub(r"`\1`", paragraph)


def sentence(text: str) -> str:
    """A comment as a sentence: `calls made` becomes `Calls made.` A name or a formula keeps its first letter."""
    first, *_ = text.split(maxsplit=1)
    start = text[0].upper() + text[1:] if first.isalpha() and first.islower() and first.isascii() else text
    return start if start.endswith((".", "!", "?")) else f"{start}."
