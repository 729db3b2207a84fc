"""A drawing of what a search has explored, as SVG that needs no other program.

There is a column for each number of steps from the root. A state is a block of rows: its name, a bar for the interval
of its value, and a thinner bar for each action. All bars are on one scale. A line leaves an action's row and arrives at
the bar of a state: those to the next column on the right of the row and the left of the bar. Lines back to the column
before go the opposite way, those that stay in a column bend beside it, and those that go back further run above all
blocks.
"""

import html
import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from smoothplan.search.picture import Choice, Interval, Picture, Spot, bounds, clean, cut, exact

LINE = 15.0
"""Height of a row."""

LETTER, NAME_LETTER, TITLE_LETTER = 6.8, 7.7, 9.0
"""Width of a letter in text of 11 pixels, and in bold text of 12 and 14, in a wide font."""

LONGEST = 26
"""Letters of the text beside a bar, at most."""

WIDEST_TEXT = 1400.0
"""Length of a line above the columns, at most."""

MARGIN, SPACE, LANE = 24.0, 14.0, 5.0
"""Round the drawing, between the blocks of a column, and between lines that run above the blocks."""

TALLEST = 1500.0
"""A column that would be taller shows fewer actions of each state, but at least one and a row for the others."""

MOST_ROWS = 12
"""Actions shown of a state, at most."""

MOST_RETURNS = 40
"""Lines drawn that do not lead to the next column."""

STYLE = """
.explored { font: 11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
.explored .page { fill: #ffffff; }
.explored text { fill: #22272e; stroke: #ffffff; stroke-width: 3px; stroke-linejoin: round; paint-order: stroke; }
.explored .title { font-size: 14px; font-weight: 600; }
.explored .name { font-size: 12px; font-weight: 600; }
.explored .soft { fill: #59636e; }
.explored .track { stroke: #d5dae0; fill: none; }
.explored .line { stroke: #7b8794; fill: none; opacity: 0.6; }
.explored .return { stroke: #8a63b8; fill: none; opacity: 0.6; stroke-dasharray: 5 3; }
.explored .point { fill: #59636e; }
.explored .arrow { fill: #8a63b8; }
.explored .root { fill: none; stroke: #22272e; stroke-width: 1.5; }
.explored .w0 { fill: #2f6fb0; } .explored .w1 { fill: #2a9087; } .explored .w2 { fill: #c39a1c; }
.explored .w3 { fill: #dd7622; } .explored .w4 { fill: #c8382f; }
@media (prefers-color-scheme: dark) {
.explored .page { fill: #15191e; }
.explored text { fill: #e4e8ec; stroke: #15191e; }
.explored .soft { fill: #9fa9b4; }
.explored .track { stroke: #39414a; }
.explored .line { stroke: #94a1ae; }
.explored .return { stroke: #b794e0; }
.explored .point { fill: #b4bec8; }
.explored .arrow { fill: #b794e0; }
.explored .root { stroke: #e4e8ec; }
.explored .w0 { fill: #62a5ec; } .explored .w1 { fill: #55bdb3; } .explored .w2 { fill: #e2bf50; }
.explored .w3 { fill: #f29650; } .explored .w4 { fill: #ef6c63; }
}
"""

Rows = dict[int, tuple[Choice, ...]]
"""The choices that are drawn of each spot, by place."""


class Edge(NamedTuple):
    """A line from a row of a block to another block, or the same; both are places in `Picture.spots`."""

    place: int
    row: int
    lead: int
    seen: int
    back: int  # columns that it goes back: −1 to the next one, 0 within a column


class Block(NamedTuple):
    """Where a state is drawn."""

    spot: Spot
    rows: tuple[Choice, ...]
    x: float
    top: float

    @property
    def value(self) -> float:
        """The height of the bar of the value."""
        return self.top + 1.5 * LINE

    def row(self, number: int) -> float:
        """The height of the bar of an action."""
        return self.top + (2.5 + number) * LINE


def to_svg(picture: Picture) -> str:
    """The drawing, for light and dark pages."""
    return _Drawing(picture).text()


class _Drawing:
    """The layout of a picture, from left to right and from top to bottom, and its parts."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.columns: defaultdict[int, list[int]] = defaultdict(list)
        for place, spot in enumerate(picture.spots):
            self.columns[spot.depth].append(place)
        rows = self._rows()
        self.edges, self.left_out = self._edges(rows)
        self.low, self.high = _scale(picture)

        few = len(self.columns) <= 6
        self.track, gutter = (150.0, 96.0) if few else (100.0, 70.0)
        texts = [_row_text(choice) for chosen in rows.values() for choice in chosen]
        texts += [bounds(spot.interval) for spot in picture.spots]
        self.reach = self.track + 8.0 + LETTER * max(map(len, texts)) + 18.0  # from a block's left to its right side
        self.lefts = {d: MARGIN + i * (self.reach + gutter) for i, d in enumerate(sorted(self.columns))}
        self.width = max(700.0, max(self.lefts.values()) + self.reach + 0.6 * gutter + MARGIN)

        room = min(self.width - 2 * MARGIN, WIDEST_TEXT)
        self.head = textwrap.wrap(clean(picture.title), int(room / TITLE_LETTER))
        self.notes = textwrap.wrap(self._legend(), int(room / LETTER))
        self.axis = MARGIN + 20.0 * len(self.head) + LINE * len(self.notes) + 2.2 * LINE
        far = sorted((edge for edge in self.edges if edge.back >= 2), key=lambda edge: (edge.back, edge.place))
        self.top = self.axis + 1.2 * LINE + LANE * len(far)
        self.lanes = {edge: self.top - 8.0 - LANE * number for number, edge in enumerate(far)}
        self.blocks, self.bottom = self._blocks(rows)

    def _rows(self) -> Rows:
        """As many rows of each block as its column has room for."""
        chosen: Rows = {}
        for places in self.columns.values():
            for most in range(MOST_ROWS, 0, -1):
                rows = {place: _merged(self.picture.spots[place].choices, most) for place in places}
                if sum(_height(row) for row in rows.values()) <= TALLEST:
                    break
            chosen |= rows
        return chosen

    def _edges(self, rows: Rows) -> tuple[list[Edge], int]:
        """The lines, and how many are left out: only the most frequent of those that do not lead to the next column."""
        depths = [spot.depth for spot in self.picture.spots]
        edges = [
            Edge(place, row, lead, seen, depths[place] - depths[lead])
            for place, chosen in rows.items()
            for row, choice in enumerate(chosen)
            for lead, seen in choice.leads
        ]
        returns = sorted((edge for edge in edges if edge.back >= 0), key=lambda edge: -edge.seen)
        drawn = [edge for edge in edges if edge.back < 0] + returns[:MOST_RETURNS]
        return drawn, len(edges) - len(drawn)

    def _legend(self) -> str:
        parts = [
            "Bars are intervals of values on one scale, the warmer the wider; "
            f"at the start all were {self.picture.start:.3g} wide or less."
        ]
        if self.picture.choices:
            parts.append("Thin bars are those of actions. The thicker a line, the more samples (×).")
        if any(edge.back >= 0 for edge in self.edges):
            others = f" ({self.left_out} rarer ones are left out)" if self.left_out else ""
            parts.append(f"Dashed lines lead to the same or an earlier {self.picture.step}{others}.")
        if any(choice.hidden for choice in self.picture.choices):
            parts.append("A dotted stub leads to states that are not shown.")
        if any(choice.ended for choice in self.picture.choices):
            parts.append("A square marks an action that may end the episode.")
        return " ".join(parts)

    def _blocks(self, rows: Rows) -> tuple[dict[int, Block], float]:
        """The blocks, each near those that lead to it, and the lower end of the tallest column."""
        tallest = max(sum(_height(rows[place]) for place in places) for places in self.columns.values())
        pulls: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        blocks: dict[int, Block] = {}
        for depth, x in self.lefts.items():
            aims = {place: _mean(pulls[place], self.top + tallest / 2) for place in self.columns[depth]}
            height = sum(_height(rows[place]) for place in aims)
            top = sum(aims.values()) / len(aims) - height / 2
            top = min(max(top, self.top), self.top + tallest - height)
            for place in sorted(aims, key=lambda place: aims[place]):
                block = blocks[place] = Block(self.picture.spots[place], rows[place], x, top)
                top += _height(rows[place])
                for number, choice in enumerate(block.rows):
                    for lead, seen in choice.leads:
                        pulls[lead].append((block.row(number), seen))
        return blocks, self.top + tallest

    def text(self) -> str:
        """The whole drawing."""
        width, height = math.ceil(self.width), math.ceil(self.bottom + MARGIN - SPACE)
        start = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="explored" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" aria-label="{html.escape(clean(self.picture.title))}">'
        )
        parts = [start, f"<style>{STYLE}</style>", _box("page", 0.0, 0.0, float(width), float(height))]
        parts += self._headings()
        for edge in self.edges:
            parts.append(self._line(edge))
        for block in self.blocks.values():
            parts += self._block(block)
        parts += self._arrows()
        root = self.blocks[0]
        frame = _box("root", root.x - 10.0, root.top - 6.0, self.reach + 10.0, _height(root.rows) - 2.0, 5.0)
        return "\n".join([*parts, frame, "</svg>"])

    def _at(self, value: float) -> float:
        """Where a value is on the scale, from the left of a block."""
        return self.track * (value - self.low) / (self.high - self.low)

    def _headings(self) -> Iterator[str]:
        """The lines of text, the names of the columns and their scales."""
        y = MARGIN + 10.0
        for line in self.head:
            yield _text(MARGIN, y, line, "title")
            y += 20.0
        for line in self.notes:
            yield _text(MARGIN, y, line, "soft")
            y += LINE
        marks = {self.low: "start", self.high: "end"}
        if 0.3 < self._at(0.0) / self.track < 0.7:
            marks[0.0] = "middle"
        for depth, x in self.lefts.items():
            yield _text(x, self.axis - LINE, f"{self.picture.step} {depth}", "name soft")
            for mark, anchor in marks.items():
                at = x + self._at(mark)
                yield _element("path", class_="track", d=f"M{at:.1f} {self.axis + 4:.1f}V{self.bottom - SPACE:.1f}")
                yield _text(at, self.axis, f"{mark:.3g}", "soft", anchor)

    def _block(self, block: Block) -> Iterator[str]:
        """The bars of a state and its actions, with what is written beside them."""
        beside, side = block.x + self.track + 8.0, block.x + self.reach
        details = block.spot.details
        name = cut(block.spot.name, int((self.reach - 12.0) / NAME_LETTER))
        yield _text(block.x, block.top + LINE - 5.0, name, "name", tooltip=details)
        yield from self._bar(block.x, block.value, block.spot.interval, 10.0, details)
        yield _text(beside, block.value + 4.0, bounds(block.spot.interval), "soft")
        for number, choice in enumerate(block.rows):
            y, label = block.row(number), _row_text(choice)
            details = f"{choice.name}: {choice.samples} samples, value {exact(choice.q)}, reward {exact(choice.reward)}"
            yield from self._bar(block.x, y, choice.q, 5.0, details)
            yield _text(beside, y + 4.0, label, tooltip=details)
            after = beside + LETTER * len(label) + 4.0
            width = self.picture.thickness(choice.samples)
            yield _element("path", class_="line", d=f"M{after:.1f} {y:.1f}H{side:.1f}", stroke_width=width)
            if choice.ended:
                ended = f"{choice.name}: ended {choice.ended} times of {choice.samples}"
                yield _box("point", side - 4.0, y - 4.0, 8.0, 8.0, tooltip=ended)
            else:
                yield _element("circle", class_="point", cx=side, cy=y, r=3.0)
            if choice.hidden:
                hidden = _title(f"{choice.name}: {choice.hidden} of {choice.samples} to states that are not shown")
                stub = f"M{side + 5.0:.1f} {y:.1f}h14"
                yield _element("path", hidden, class_="line", d=stub, stroke_width=2.0, stroke_dasharray="2 3")

    def _bar(self, x: float, y: float, interval: Interval, size: float, tooltip: str) -> Iterator[str]:
        yield _element("path", class_="track", d=f"M{x:.1f} {y:.1f}h{self.track:.1f}")
        width = max(self._at(interval[1]) - self._at(interval[0]), 2.0)
        left = x + min(self._at(interval[0]), self.track - width)
        yield _box(f"w{self.picture.warmth(interval)}", left, y - size / 2, width, size, 1.5, tooltip)

    def _line(self, edge: Edge) -> str:
        block, target = self.blocks[edge.place], self.blocks[edge.lead]
        choice, y, to = block.rows[edge.row], block.row(edge.row), target.value
        right, port = block.x + self.reach, target.x + self.reach
        if edge.back < 0:
            path = _curve(right, y, target.x - 6.0, to)
        elif edge.back == 0:
            bulge = right + min(16.0 + 0.12 * abs(y - to), 60.0)
            path = f"M{right:.1f} {y:.1f}C{bulge:.1f} {y:.1f} {bulge:.1f} {to:.1f} {port + 5.0:.1f} {to:.1f}"
        elif edge.back == 1:
            path = _curve(block.x - 4.0, y, port + 5.0, to)
        else:
            lane, bend = self.lanes[edge], 30.0
            path = (
                f"M{block.x - 4.0:.1f} {y:.1f}c-{bend} 0 0 {lane - y:.1f} -{bend} {lane - y:.1f}"
                f"H{port + 5.0 + bend:.1f}c-{bend} 0 0 {to - lane:.1f} -{bend} {to - lane:.1f}"
            )
        seen = f"{choice.name} at {block.spot.name} to {target.spot.name}: {edge.seen} of {choice.samples}"
        kind, width = "line" if edge.back < 0 else "return", self.picture.thickness(edge.seen)
        return _element("path", _title(seen), class_=kind, d=path, stroke_width=width if edge.back < 0 else 0.7 * width)

    def _arrows(self) -> Iterator[str]:
        """One where lines arrive, on either side of a bar."""
        for lead, back in dict.fromkeys((edge.lead, edge.back >= 0) for edge in self.edges):
            block = self.blocks[lead]
            if back:
                yield _element("path", class_="arrow", d=f"M{block.x + self.reach - 1:.1f} {block.value:.1f}l8 -4v8z")
            else:
                yield _element("path", class_="point", d=f"M{block.x - 1:.1f} {block.value:.1f}l-8 -4v8z")


def _scale(picture: Picture) -> Interval:
    """The least and the largest bound of all bars, and some room if they are the same."""
    intervals = [spot.interval for spot in picture.spots] + [choice.q for choice in picture.choices]
    low, high = min(low for low, _ in intervals), max(high for _, high in intervals)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _merged(choices: Sequence[Choice], most: int) -> tuple[Choice, ...]:
    """At most so many choices, and one for the others together."""
    others = choices[most:]
    if len(others) <= 1:
        return tuple(choices)
    leads: Counter[int] = Counter()
    for choice in others:
        leads.update(dict(choice.leads))
    merged = Choice(
        name=f"{len(others)} others",
        samples=sum(choice.samples for choice in others),
        reward=(min(choice.reward[0] for choice in others), max(choice.reward[1] for choice in others)),
        q=(min(choice.q[0] for choice in others), max(choice.q[1] for choice in others)),
        leads=tuple(leads.items()),
        ended=sum(choice.ended for choice in others),
        hidden=sum(choice.hidden for choice in others),
    )
    return (*choices[:most], merged)


def _height(rows: Sequence[Choice]) -> float:
    """Of a block, with the space below it."""
    return (2 + len(rows)) * LINE + SPACE


def _row_text(choice: Choice) -> str:
    counted = f" ×{choice.samples:,}" + (f", end {choice.ended / choice.samples:.0%}" if choice.ended else "")
    return cut(choice.name, LONGEST - len(counted)) + counted


def _mean(weighted: Sequence[tuple[float, int]], default: float) -> float:
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total if total else default


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """A path that leaves and arrives horizontally."""
    half = (x + to_x) / 2
    return f"M{x:.1f} {y:.1f}C{half:.1f} {y:.1f} {half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _element(tag: str, inside: str = "", **attributes: float | str) -> str:
    """An element of XML; `inside` is XML already. Underscores in the names of attributes become hyphens."""
    texts = {name: f"{value:.1f}" if isinstance(value, float) else str(value) for name, value in attributes.items()}
    pairs = [name.rstrip("_").replace("_", "-") + f'="{html.escape(text)}"' for name, text in texts.items()]
    return f"<{tag} {' '.join(pairs)}>{inside}</{tag}>"


def _title(text: str) -> str:
    return f"<title>{html.escape(clean(text))}</title>"


def _box(kind: str, x: float, y: float, width: float, height: float, rounding: float = 0.0, tooltip: str = "") -> str:
    inside = _title(tooltip) if tooltip else ""
    return _element("rect", inside, class_=kind, x=x, y=y, width=width, height=height, rx=rounding)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start", tooltip: str = "") -> str:
    inside = html.escape(clean(text)) + (_title(tooltip) if tooltip else "")
    return _element("text", inside, x=x, y=y, class_=kind, text_anchor=anchor)
