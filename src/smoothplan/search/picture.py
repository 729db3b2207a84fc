"""What a picture of a search shows, whoever draws it, and the picture as Graphviz text."""

import math
from collections.abc import Iterator
from typing import NamedTuple

Interval = tuple[float, float]


class Choice(NamedTuple):
    """An action at a state."""

    name: str
    samples: int
    reward: Interval
    q: Interval
    leads: tuple[tuple[int, int], ...]  # (place in `Picture.spots`, how often) of successors that are shown
    ended: int  # how often the episode ended
    hidden: int  # how often the successor is not shown


class Spot(NamedTuple):
    """A state, at a stage where there are any."""

    name: str
    state: str
    depth: int
    interval: Interval
    choices: tuple[Choice, ...]  # most samples first

    @property
    def details(self) -> str:
        """The state and its value, exactly."""
        return f"{self.name}, which is {self.state}: value {exact(self.interval)}"


class Picture(NamedTuple):
    """What to draw; the root is the first spot."""

    title: str
    step: str  # what a depth counts
    start: float  # the width of the root's interval before the first sample
    spots: tuple[Spot, ...]

    @property
    def choices(self) -> list[Choice]:
        """Those of all spots."""
        return [choice for spot in self.spots for choice in spot.choices]

    @property
    def most(self) -> int:
        """The samples of the choice that has most, and at least 1."""
        return max((choice.samples for choice in self.choices), default=1)

    def warmth(self, interval: Interval) -> int:
        """How wide an interval is, from 0 to 4: 4 from half of the width at the start on, 3 from a quarter on...."""
        width = interval[1] - interval[0]
        return sum(width > 0 and width * part >= self.start for part in (2, 4, 8, 16))

    def thickness(self, count: int) -> float:
        """Of a line, by samples: 1 for one, 5 for the most."""
        return 1.0 + 4.0 * math.log(count) / math.log(max(self.most, 2))


def clean(text: str) -> str:
    """The text in a line, without characters that XML does not allow or that mean something to a terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))


def cut(text: str, length: int) -> str:
    """The beginning of a text in a line."""
    text = clean(text)
    return text if len(text) <= length else text[: max(length - 1, 0)].rstrip(" ,") + "…"


def bounds(interval: Interval) -> str:
    """An interval in three digits."""
    return f"[{interval[0]:.3g}, {interval[1]:.3g}]"


def exact(interval: Interval) -> str:
    """An interval in all digits."""
    return f"[{interval[0]!r}, {interval[1]!r}], width {interval[1] - interval[0]:.6g}"


FILLS = ("#cfe0f5", "#cdebe6", "#f7ebb8", "#fad3ad", "#f5b5ae")
"""Of the nodes in Graphviz text, from narrow to wide."""


def to_dot(picture: Picture) -> str:
    """Graphviz text: states are boxes, warmer if wider, and actions points; the thicker a line the more samples."""
    lines = [
        f"// {clean(picture.title)}",
        "digraph explored {",
        f"  graph [rankdir=LR, labelloc=t, label={_quoted(picture.title)}];",
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11, fontcolor=black];',
        '  edge [fontname="Helvetica", fontsize=9, arrowsize=0.6];',
    ]
    for place, spot in enumerate(picture.spots):
        width = f"width {spot.interval[1] - spot.interval[0]:.3g}"
        label = _quoted(cut(spot.name, 60), f"{picture.step} {spot.depth}", f"{bounds(spot.interval)}, {width}")
        colour = f'fillcolor="{FILLS[picture.warmth(spot.interval)]}"'
        root = ", penwidth=3" if place == 0 else ""
        lines.append(f"  s{place} [label={label}, {colour}, tooltip={_quoted(spot.details)}{root}];")
    if any(choice.ended for choice in picture.choices):
        lines.append("  end [shape=doublecircle, style=solid];")
    for place, spot in enumerate(picture.spots):
        for number, choice in enumerate(spot.choices):
            lines += _branches(picture, f"s{place}", f"s{place}a{number}", choice)
    return "\n".join([*lines, "}"])


def _branches(picture: Picture, state: str, point: str, choice: Choice) -> Iterator[str]:
    """From a state to the point of an action, and from there to the successors."""
    yield f"  {point} [shape=point, width=0.08, tooltip={_quoted(f'action value {exact(choice.q)}')}];"
    label, width = _quoted(f"{cut(choice.name, 40)} ×{choice.samples}"), picture.thickness(choice.samples)
    yield f"  {state} -> {point} [label={label}, arrowhead=none, penwidth={width:.2f}];"
    targets = [(f"s{lead}", seen) for lead, seen in choice.leads]
    if choice.ended > 0:
        targets.append(("end", choice.ended))
    if choice.hidden > 0:
        yield f'  {point}more [shape=plaintext, style=solid, label="not shown"];'
        targets.append((f"{point}more", choice.hidden))
    for target, seen in targets:
        yield f'  {point} -> {target} [label="{seen}", penwidth={picture.thickness(seen):.2f}];'


def _quoted(*lines: str) -> str:
    """A string of Graphviz, which knows backslashes and the entities of HTML."""
    texts = [clean(line).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(texts) + '"'
