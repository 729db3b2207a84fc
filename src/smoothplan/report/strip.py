"""A claim at a glance: the stated interval as a band, and what was measured, with its error, as a mark on it."""

import math
from collections.abc import Mapping

from smoothplan.findings import Claim
from smoothplan.report.markup import Html, element, number

WIDTH, HEIGHT = 320, 62
LEFT, RIGHT = 12, 308
"""Where the scale begins and ends."""
MIDDLE, HALF = 32, 7
"""Where the band is, and half its height."""

ABOVE, BELOW = 14, 57
"""Where the labels stand."""

CLOSE = 80
"""Labels of ends that are closer than this would touch."""

MARGIN = 0.18
"""The part of the scale that is left free on either side of what is shown."""


def strip(claim: Claim) -> Html:
    """The drawing. It says nothing that the text beside it does not: a screen reader leaves it out."""
    low, high = claim.stated
    error = claim.error or 0.0
    ends = [end for end in (low, high, claim.measured - error, claim.measured + error) if math.isfinite(end)]
    span = (max(ends) - min(ends)) or max(abs(claim.measured), 1.0)
    first, last = min(ends) - MARGIN * span, max(ends) + MARGIN * span

    def at(value: float) -> float:
        return round(LEFT + (min(max(value, first), last) - first) / (last - first) * (RIGHT - LEFT), 1)

    measured = at(claim.measured)
    whisker = None
    if error:
        left, right = at(claim.measured - error), at(claim.measured + error)
        whisker = element("line", x1=left, x2=right, y1=MIDDLE, y2=MIDDLE, class_="whisker")
    return element(
        "svg",
        element("line", x1=LEFT, x2=RIGHT, y1=MIDDLE, y2=MIDDLE, class_="scale"),
        element("rect", x=at(low), width=round(at(high) - at(low), 1), y=MIDDLE - HALF, height=2 * HALF, class_="band"),
        *_ends({end: at(end) for end in claim.stated if math.isfinite(end)}),
        whisker,
        element("circle", cx=measured, cy=MIDDLE, r=5, class_="mark"),
        _label(number(claim.measured), measured, ABOVE, "measured"),
        class_="strip",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        aria_hidden="true",
    )


def _ends(places: Mapping[float, float]) -> list[Html]:
    """Ticks at the ends of the band, by value, with a label each, or one for both where they are close."""
    ticks = [
        element("line", x1=place, x2=place, y1=MIDDLE - HALF - 3, y2=MIDDLE + HALF + 3, class_="end")
        for place in places.values()
    ]
    if len(places) == 2 and max(places.values()) - min(places.values()) < CLOSE:
        return [*ticks, _label(" … ".join(number(end) for end in places), sum(places.values()) / 2)]
    return ticks + [_label(number(end), place) for end, place in places.items()]


def _label(text: str, place: float, height: float = BELOW, kind: str | None = None) -> Html:
    anchor = "start" if place < WIDTH * 0.2 else "end" if place > WIDTH * 0.8 else "middle"
    return element("text", text, x=place, y=height, text_anchor=anchor, class_=kind)
