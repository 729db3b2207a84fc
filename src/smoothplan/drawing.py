"""Pictures of what a search by bounds has explored: Graphviz text, or a drawing in SVG that needs no other program.

The drawing has a column for each number of steps from the root. A state is a block of rows: its name, a bar for the
interval of its value, and a thinner bar for each action, all on one scale. A line leaves the row of an action and
arrives at the bar of a state: solid lines lead to the next column, dashed ones to the same or an earlier one.
"""

import html
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from smoothplan.search.explored import Explored, Node, Pair
from smoothplan.search.graph import ENDED

SHOWN = 60
"""Nodes of a picture, if no other limit is given: those of the largest reach, see `Explored.reached_most`."""

COLOURS = ("#2f6fb0", "#2a9087", "#c39a1c", "#dd7622", "#c8382f")
"""Of intervals, from narrow to wide: blue, green, yellow, orange, red."""

FILLS = ("#cfe0f5", "#cdebe6", "#f7ebb8", "#fad3ad", "#f5b5ae")
"""The same, light enough to write on."""

Interval = tuple[float, float]


def saved_kind(path: str | Path) -> str:
    """The suffix of a file that `save` can write: .json, .dot or .svg, in a folder that exists."""
    kind = Path(path).suffix.lower()
    if kind not in (".json", ".dot", ".svg"):
        raise ValueError(f"path must end in .json, .dot or .svg, got {str(path)!r}")
    if not Path(path).parent.is_dir():
        raise ValueError(f"path must be in a folder that exists, got {str(path)!r}")
    return kind


def save(graph: Explored, path: str | Path) -> None:
    """Writes a file of the kind that its suffix says: .json, .dot or .svg."""
    kind = saved_kind(path)
    text = graph.to_json() if kind == ".json" else to_dot(graph) if kind == ".dot" else to_svg(graph)
    Path(path).write_text(text + "\n", encoding="utf-8")


# What both kinds of picture say


def title(graph: Explored, shown: int) -> str:
    """What there is, and how much of it a picture of `shown` nodes shows."""
    reached = int((graph.depths >= 0).sum())
    what = "" if graph.horizon is None else " states at a stage"
    part = f"the {shown} of {reached}{what} that are reached most are shown, {reached - shown} are not"
    counts = [(len(graph.states), "state"), (graph.pairs_sampled, "pair"), (graph.calls, "call")]
    states, pairs, calls = (f"{number:,} {name}" + "s" * (number != 1) for number, name in counts)
    return (
        f"Root {_cut(_name(graph, Node(0, 0)), 60)}: gap {graph.gap:.4g}; {states} and {pairs} discovered in {calls}; "
        + (part if shown < reached else "all shown")
    )


def _name(graph: Explored, node: Node) -> str:
    """A state in few words."""
    state = np.asarray(graph.states[node.number])
    if state.shape:
        parts = (f"{part:.3g}" if isinstance(part, float) else str(part) for part in state.ravel().tolist())
        return f"({', '.join(parts)})"
    return graph.state_name(node.number) or f"state {state.item()}"


def _details(graph: Explored, node: Node) -> str:
    """A state and its value, exactly."""
    low, high = graph.interval(node)
    return f"{np.asarray(graph.states[node.number]).tolist()}: value [{low!r}, {high!r}], width {high - low:.6g}"


def _action(graph: Explored, pair: Pair) -> str:
    return graph.action_name(pair.action) or f"action {pair.action}"


def _step(graph: Explored, depth: int) -> str:
    return f"{'step' if graph.horizon is None else 'stage'} {depth}"


def _warmth(graph: Explored, interval: Interval) -> int:
    """How wide an interval is, from 0 to 4: 4 from half of the root's first width on, 3 from a quarter on, ..."""
    width, start = interval[1] - interval[0], graph.span[1] - graph.span[0]
    return sum(width > 0 and width * part >= start for part in (2, 4, 8, 16))


def _thickness(graph: Explored, count: int) -> float:
    """The thickness of a line by samples: 1 for one, 5 for the most that any pair has."""
    return 1.0 + 4.0 * math.log(count) / math.log(max(int(graph.counts.max()), 2))


def _clean(text: str) -> str:
    """The text in a line, without characters that XML does not allow or that mean something to a terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))


def _cut(text: str, length: int) -> str:
    """The beginning of a text in a line."""
    text = _clean(text)
    return text if len(text) <= length else text[: max(length - 1, 0)].rstrip(" ,") + "…"


def _rounded(interval: Interval) -> str:
    return f"[{interval[0]:.3g}, {interval[1]:.3g}]"


# Graphviz


def to_dot(graph: Explored, limit: int = SHOWN) -> str:
    """Graphviz text with the `limit` nodes of the largest reach.

    States are boxes, warmer if their intervals are wider, and actions points; the thicker a line the more samples.
    """
    names = {node: f"s{place}" for place, node in enumerate(graph.reached_most(limit))}
    lines = [
        f"// {_clean(title(graph, len(names)))}",
        "digraph explored {",
        f"  graph [rankdir=LR, labelloc=t, label={_quoted(title(graph, len(names)))}];",
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11, fontcolor=black];',
        '  edge [fontname="Helvetica", fontsize=9, arrowsize=0.6];',
    ]
    for node, name in names.items():
        low, high = graph.interval(node)
        width = f"{_rounded((low, high))}, width {high - low:.3g}"
        label = _quoted(_cut(_name(graph, node), 60), _step(graph, graph.depths[node]), width)
        colour, root = FILLS[_warmth(graph, (low, high))], ", penwidth=3" if name == "s0" else ""
        tooltip = _quoted(_details(graph, node))
        lines.append(f'  {name} [label={label}, fillcolor="{colour}", tooltip={tooltip}{root}];')
        for pair in graph.pairs(node):
            lines += _branches(graph, node, pair, names)
    if any("-> end [" in line for line in lines):
        lines.append("  end [shape=doublecircle, style=solid];")
    return "\n".join([*lines, "}"])


def _branches(graph: Explored, node: Node, pair: Pair, names: dict[Node, str]) -> Iterator[str]:
    """From a state to the point of an action, and from there to the successors."""
    point = f"{names[node]}a{pair.action}"
    label, width = _quoted(f"{_cut(_action(graph, pair), 40)} ×{pair.samples}"), _thickness(graph, pair.samples)
    yield f"  {point} [shape=point, width=0.08, tooltip={_quoted(f'action value {pair.q}')}];"
    yield f"  {names[node]} -> {point} [label={label}, arrowhead=none, penwidth={width:.2f}];"
    targets: defaultdict[str, int] = defaultdict(int)
    for number, seen in pair.successors:
        targets["end" if number == ENDED else names.get(graph.following(node, number), f"{point}more")] += seen
    if f"{point}more" in targets:
        yield f'  {point}more [shape=plaintext, style=solid, label="not shown"];'
    for target, seen in targets.items():
        yield f'  {point} -> {target} [label="{seen}", penwidth={_thickness(graph, seen):.2f}];'


def _quoted(*lines: str) -> str:
    """A string of Graphviz, which knows backslashes and the entities of HTML."""
    texts = [_clean(line).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(texts) + '"'


# SVG. Lengths are in pixels.

LINE, MARGIN, SPACE = 15.0, 24.0, 14.0
"""Height of a row; space around the drawing; space between the blocks of a column."""

LETTER, LETTERS, WRAPPED = 6.8, 26, 160
"""Width of a letter in text of 11 pixels, in a wide font, and in bold text an eighth more; letters of the text beside a
bar, and of a line above the columns, at most."""

TRACK, GUTTER = 120.0, 90.0
"""Width of the scale of a block; space between columns."""

TALLEST, MOST_ROWS, MOST_RETURNS = 1500.0, 12, 40
"""A taller column shows fewer actions of each state; actions of a state, at most; dashed lines, at most."""

STYLE = """
.explored { font: 11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
.explored text { fill: #22272e; stroke: #ffffff; stroke-width: 3px; stroke-linejoin: round; paint-order: stroke; }
.explored .name { font-size: 12px; font-weight: 600; }
.explored .soft { fill: #59636e; }
.explored path { fill: none; stroke: #7b8794; opacity: 0.6; }
.explored .track { stroke: #d5dae0; opacity: 1; }
.explored .return { stroke: #8a63b8; stroke-dasharray: 5 3; opacity: 0.45; }
"""


class _Block(NamedTuple):
    """Where a state is drawn, and the actions that are shown."""

    node: Node
    x: float  # the left end of its bars
    side: float  # where lines leave it on the right
    top: float
    pairs: list[Pair]
    others: int  # actions that are not shown

    @property
    def value(self) -> float:
        """The height of the bar of the value."""
        return self.top + 1.5 * LINE

    def row(self, number: int) -> float:
        """The height of the bar of an action."""
        return self.top + (2.5 + number) * LINE


LEGEND = (
    "Bars are intervals of values on one scale, the warmer the wider; thin ones are those of actions, with their "
    "samples (×). The thicker a line, the more samples. Dashed lines lead to the same or an earlier column, dotted "
    "ones to states that are not shown. A square marks an action that may end the episode."
)


def to_svg(graph: Explored, limit: int = SHOWN) -> str:
    """A drawing of the `limit` nodes of the largest reach."""
    chosen = graph.reached_most(limit)
    columns: dict[int, list[Node]] = {depth: [] for depth in sorted({int(graph.depths[node]) for node in chosen})}
    for node in chosen:
        columns[int(graph.depths[node])].append(node)
    head = textwrap.wrap(_clean(title(graph, len(chosen))), WRAPPED)
    notes = textwrap.wrap(LEGEND, WRAPPED)
    top = MARGIN + (len(head) + len(notes) + 3) * LINE
    texts = [_rounded(graph.interval(node)) for node in chosen]
    texts += [_row_text(graph, pair) for node in chosen for pair in graph.pairs(node)]
    reach = TRACK + 20.0 + LETTER * max(map(len, texts))  # from the left of a block to its right side
    blocks, bottom = _blocks(graph, columns, reach, top)
    bars = [graph.interval(node) for node in chosen]
    bars += [(pair.q[0], pair.q[1]) for block in blocks.values() for pair in block.pairs]
    scale = min(low for low, _ in bars), max(high for _, high in bars)
    if scale[0] == scale[1]:
        scale = scale[0] - 0.5, scale[1] + 0.5

    parts = [_text(MARGIN, MARGIN + i * LINE, line, "name") for i, line in enumerate(head)]
    parts += [_text(MARGIN, MARGIN + (len(head) + i) * LINE, line, "soft") for i, line in enumerate(notes)]
    for place, depth in enumerate(columns):
        x = MARGIN + place * (reach + GUTTER)
        parts.append(_text(x, top - 2.0 * LINE, _step(graph, depth), "name"))
        parts.append(_text(x, top - LINE, f"{scale[0]:.3g}", "soft"))
        parts.append(_text(x + TRACK, top - LINE, f"{scale[1]:.3g}", "soft", "end"))
    parts += _lines(graph, blocks)
    for block in blocks.values():
        parts += _rows(graph, block, scale)
    text = 2 * MARGIN + 1.13 * LETTER * max(map(len, head + notes))
    width, height = math.ceil(max(MARGIN + len(columns) * (reach + GUTTER), text)), math.ceil(bottom + MARGIN)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    label = html.escape(" ".join(head))
    start = f'<svg xmlns="http://www.w3.org/2000/svg" class="explored" role="img" {size} aria-label="{label}">'
    page = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([start, f"<style>{STYLE}</style>", page, *parts, "</svg>"])


def _blocks(
    graph: Explored, columns: dict[int, list[Node]], reach: float, top: float
) -> tuple[dict[Node, _Block], float]:
    """The blocks, those of a column ordered by where lines to them come from; and the lower end of the drawing."""
    sources: defaultdict[Node, list[float]] = defaultdict(list)  # the heights of the rows that lead to a node
    blocks: dict[Node, _Block] = {}
    bottom = top
    for place, nodes in enumerate(columns.values()):
        rows = min(max(int(TALLEST / (LINE * len(nodes))) - 3, 1), MOST_ROWS)
        x, y = MARGIN + place * (reach + GUTTER), top
        for node in sorted(nodes, key=lambda node: np.mean(sources[node] or [0.0])):
            pairs = sorted(graph.pairs(node), key=lambda pair: -pair.samples)
            others = len(pairs) - rows if len(pairs) > rows + 1 else 0
            block = blocks[node] = _Block(node, x, x + reach, y, pairs[: len(pairs) - others], others)
            for number, pair in enumerate(block.pairs):
                for successor, _ in pair.successors:
                    sources[graph.following(node, successor)].append(block.row(number))
            y = block.row(len(block.pairs) + (others > 0)) + SPACE
        bottom = max(bottom, y)
    return blocks, bottom


def _rows(graph: Explored, block: _Block, scale: Interval) -> Iterator[str]:
    """The bars of a state and its actions, with what is written beside them."""
    beside = block.x + TRACK + 8.0
    details, interval = _details(graph, block.node), graph.interval(block.node)
    name = _cut(_name(graph, block.node), int((block.side - block.x) / (1.13 * LETTER)))
    yield _text(block.x, block.top + LINE - 5.0, name, "name", tooltip=details)
    yield from _bar(graph, block.x, block.value, interval, scale, 10.0, details)
    yield _text(beside, block.value + 4.0, _rounded(interval), "soft")
    for number, pair in enumerate(block.pairs):
        y, ended = block.row(number), any(successor == ENDED for successor, _ in pair.successors)
        details = f"{_action(graph, pair)}: {pair.samples} samples, value {pair.q}, reward {pair.reward}"
        yield from _bar(graph, block.x, y, (pair.q[0], pair.q[1]), scale, 5.0, details)
        yield _text(beside, y + 4.0, _row_text(graph, pair), tooltip=details)
        if ended:
            yield f'<rect x="{block.side - 4.0:.1f}" y="{y - 4.0:.1f}" width="8" height="8" fill="#59636e"/>'
    if block.others:
        yield _text(beside, block.row(len(block.pairs)) + 4.0, f"{block.others} others", "soft")


def _row_text(graph: Explored, pair: Pair) -> str:
    """An action, its samples, and how often it ended the episode."""
    ended = sum(seen for successor, seen in pair.successors if successor == ENDED)
    counted = f" ×{pair.samples:,}" + (f", end {ended / pair.samples:.0%}" if ended else "")
    return _cut(_action(graph, pair), LETTERS - len(counted)) + counted


def _bar(
    graph: Explored, x: float, y: float, interval: Interval, scale: Interval, size: float, tooltip: str
) -> Iterator[str]:
    left, right = (TRACK * (end - scale[0]) / (scale[1] - scale[0]) for end in interval)
    left, width = min(left, TRACK - 2.0), max(right - left, 2.0)
    place = f'x="{x + left:.1f}" y="{y - size / 2:.1f}" width="{width:.1f}" height="{size}"'
    yield f'<path class="track" d="M{x:.1f} {y:.1f}h{TRACK:.1f}"/>'
    yield f'<rect {place} rx="1.5" fill="{COLOURS[_warmth(graph, interval)]}">{_title(tooltip)}</rect>'


def _lines(graph: Explored, blocks: dict[Node, _Block]) -> list[str]:
    """From the rows of actions to the bars of successors; of those that lead back, the most frequent ones."""
    ahead: list[str] = []
    back: list[tuple[int, str]] = []
    for block in blocks.values():
        for number, pair in enumerate(block.pairs):
            y = block.row(number)
            for successor, seen in pair.successors:
                if successor == ENDED:
                    continue
                tooltip = _title(f"{_action(graph, pair)} at {_name(graph, block.node)}: {seen} of {pair.samples}")
                width = f'stroke-width="{_thickness(graph, seen):.1f}"'
                target = blocks.get(graph.following(block.node, successor))
                if target is None:
                    ahead.append(f'<path d="M{block.side:.1f} {y:.1f}h16" stroke-dasharray="2 3">{tooltip}</path>')
                elif target.x > block.x:
                    curve = _curve(block.side, y, target.x - 3.0, target.value)
                    ahead.append(f'<path d="{curve}" {width}>{tooltip}</path>')
                else:
                    within = target.x == block.x  # a bend beside the column; otherwise from left to right, backwards
                    curve = _curve(block.side if within else block.x - 3.0, y, target.side, target.value, 30.0 * within)
                    back.append((seen, f'<path class="return" d="{curve}" {width}>{tooltip}</path>'))
    back.sort(key=lambda line: -line[0])
    return ahead + [line for _, line in back[:MOST_RETURNS]]


def _curve(x: float, y: float, to_x: float, to_y: float, bend: float = 0.0) -> str:
    """A path that leaves and arrives horizontally."""
    middle = (x + to_x) / 2 + bend
    return f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _title(text: str) -> str:
    return f"<title>{html.escape(_clean(text))}</title>"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start", tooltip: str = "") -> str:
    inside = html.escape(_clean(text)) + (_title(tooltip) if tooltip else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{inside}</text>'
