"""Markup that is escaped by construction, and numbers as a reader wants them."""

import math
from decimal import Decimal
from html import escape
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

PLAIN = (1e-3, 1e6)
"""Numbers from here to there are written out; others have a power of ten."""

LEAST = 1e-5
"""An error below this is not written out."""

WHOLE = 10**15
"""Whole numbers below this are written out."""

VOID = frozenset({"br", "circle", "line", "path", "rect"})
"""Elements without content: those of HTML, and of drawings, that are used here."""


class Html(str):
    """Text that is markup already. Any other text is escaped where it becomes a part of an element."""

    __slots__ = ()


def joined(*children: Any) -> Html:
    """Children one after another; texts among them are escaped, and those that are None are left out."""
    return Html(
        "".join(child if isinstance(child, Html) else escape(str(child)) for child in children if child is not None)
    )


def element(tag: str, *children: Any, **attributes: Any) -> Html:
    """An element. `class_` stands for `class`, `aria_label` for `aria-label`; attributes that are None are left out.

    >>> element("p", "a < b", class_="note", aria_label='"x"')
    '<p class="note" aria-label="&quot;x&quot;">a &lt; b</p>'
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{written}/>")
    return Html(f"<{tag}{written}>{joined(*children)}</{tag}>")


def number(value: float, digits: int = 4) -> str:
    """A number to some significant digits: 0.0312, 12,345 or 1.2 × 10⁹; whole ones in full.

    >>> number(60), number(12345.678), number(-0.03125), number(8.5e17), number(10**400)
    ('60', '12,346', '-0.03125', '8.5 × 10¹⁷', '10⁴⁰⁰')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value == 0 or (isinstance(value, int) and abs(value) < WHOLE):
        return f"{value:,.0f}"
    if PLAIN[0] <= abs(value) < PLAIN[1]:
        places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if places else text
    mantissa, _, power = f"{Decimal(value):.{digits - 1}e}".partition("e")  # an integer may be beyond floating point
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    times = "" if mantissa == "1" else f"{mantissa} × "
    return f"{times}10{str(int(power)).translate(SUPERSCRIPTS)}"


def measurement(value: float, error: float | None) -> str:
    """A measured number with half the width of its interval, to two digits of the latter; to four if there is none.

    >>> measurement(0.99963, 0.0112), measurement(16.53213, None), measurement(3e7, 2e6)
    ('1.000 ± 0.011', '16.53', '3 × 10⁷ ± 2 × 10⁶')
    """
    if not error:
        return number(value)
    if abs(value) >= PLAIN[1] or not LEAST <= error < PLAIN[1]:
        return f"{number(value)} ± {number(error, 2)}"
    places = max(1 - math.floor(math.log10(error)), 0)
    return f"{value:,.{places}f} ± {error:,.{places}f}"


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """A count with its noun: "1 run", "2,000 runs"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def duration(seconds: float) -> str:
    """A time to read: "0.9 s", "42 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: int) -> str:
    """A number of bytes to read: "812 bytes", "26 kB", "1.4 MB"."""
    if count < 1000:
        return counted(count, "byte")
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
