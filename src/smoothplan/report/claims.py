"""Claims and their verdicts: in the summary, and in the section of their experiment. The same statement stands once."""

import math
from collections.abc import Mapping, Sequence

from smoothplan.findings import Claim
from smoothplan.report.markup import Html, element, joined, measurement, number
from smoothplan.report.strip import strip

Numbered = Mapping[str, Claim]
"""Claims by their ids in the page."""


def grouped(anchor: str, claims: Sequence[Claim]) -> Mapping[str, Numbered]:
    """Claims by statement, in the order in which statements first appear, each with an id that starts with `anchor`."""
    groups: dict[str, dict[str, Claim]] = {}
    for place, claim in enumerate(claims, start=1):
        groups.setdefault(claim.statement, {})[f"{anchor}-claim-{place}"] = claim
    return groups


def tally(claims: Sequence[Claim]) -> str:
    """How many claims hold, in words."""
    held = sum(claim.holds for claim in claims)
    if not claims:
        return "No claims were checked"
    if len(claims) == 1:
        return "The one claim holds" if held else "The one claim does not hold"
    return f"All {held} claims hold" if held == len(claims) else f"{held} of {len(claims)} claims hold"


def failing(groups: Mapping[str, Numbered]) -> list[Html]:
    """Links to the statements that have a claim that does not hold."""
    return [
        element("a", statement, href=f"#{_heading(group)}")
        for statement, group in groups.items()
        if not all(claim.holds for claim in group.values())
    ]


def line(statement: str, group: Numbered) -> Html:
    """A statement in the summary: verdict, link to the statement, and every measurement with a link to its claim."""
    numbers = (
        joined("; " if place else None, element("a", measurement(claim.measured, claim.error), href=f"#{anchor}"))
        for place, (anchor, claim) in enumerate(group.items())
    )
    return element(
        "li",
        badge(list(group.values())),
        element("a", statement, href=f"#{_heading(group)}", class_="statement"),
        element("span", element("span", "measured ", class_="unseen"), *numbers, class_="measured"),
    )


def article(statement: str, group: Numbered) -> Html:
    """A statement with its claims: what the theory says, what was measured, the stated interval, and why that."""
    claims = list(group.values())
    reasons = {claim.reason for claim in claims}
    shared = len(claims) > 1 and len(reasons) == 1
    return element(
        "article",
        element("h3", statement, " ", badge(claims), id=_heading(group)),
        *(_claim(anchor, claim, not shared) for anchor, claim in group.items()),
        _reason("Why these intervals: ", claims[0].reason) if shared else None,
        class_="claims",
        aria_labelledby=_heading(group),
    )


def badge(claims: Sequence[Claim]) -> Html:
    """The verdict on some claims, as a sign and in words."""
    held = sum(claim.holds for claim in claims)
    if held == len(claims):
        return _badge("holds", "✓", "holds")
    return _badge("fails", "✗", f"{held} of {len(claims)} hold" if held else "does not hold")


def _badge(kind: str, sign: str, words: str) -> Html:
    mark = element("span", f"{sign} ", aria_hidden="true")
    return element("span", mark, element("span", words, class_="words"), class_=f"badge {kind}")


def _heading(group: Numbered) -> str:
    return f"{next(iter(group))}-statement"


def _claim(anchor: str, claim: Claim, reasoned: bool) -> Html:
    return element(
        "div",
        element(
            "div",
            element("p", _verdict(claim)),
            _reason("Why this interval: ", claim.reason) if reasoned else None,
        ),
        strip(claim),
        class_=f"claim {'holds' if claim.holds else 'fails'}",
        id=anchor,
    )


def _verdict(claim: Claim) -> Html:
    quantity = claim.quantity[:1].upper() + claim.quantity[1:]
    where = "inside" if claim.holds else "outside"
    return joined(
        f"{quantity}: the theory says {claim.theory}; measured ",
        element("b", measurement(claim.measured, claim.error)),
        ", ",
        element("b", where) if not claim.holds else where,
        f" the stated {_stated(claim)}.",
    )


def _stated(claim: Claim) -> str:
    low, high = claim.stated
    if math.isinf(low):
        return f"bound of at most {number(high)}"
    return f"bound of at least {number(low)}" if math.isinf(high) else f"interval [{number(low)}, {number(high)}]"


def _reason(words: str, reason: str) -> Html:
    return element("p", element("b", words), reason, class_="small")
