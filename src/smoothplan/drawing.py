"""Pictures of what a search by bounds has explored: Graphviz text, or a drawing in SVG that needs no other program.

The drawing has a column for each number of steps from the root. A state has a name, a bar for the interval of its
value, and a thinner bar for each action, all on one scale. Lines lead from actions to the states that followed.
"""

import html
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smoothplan.search.explored import Explored, Node, Pair
from smoothplan.search.graph import ENDED

NODES_SHOWN = 60
"""Nodes of a picture, if no other limit is given: those of the largest reach, see `Explored.reached_most`."""

COLOURS = ("#2f6fb0", "#2a9087", "#c39a1c", "#dd7622", "#c8382f")
"""Of intervals, from narrow to wide: blue, green, yellow, orange, red."""

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
        f"Root {cut(_name(graph, Node(0, 0)), 60)}: gap {graph.gap:.4g}; {states} and {pairs} discovered in {calls}; "
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


def clean(text: str) -> str:
    """The text in a line, without characters that XML does not allow or that mean something to a terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))


def cut(text: str, length: int) -> str:
    """The beginning of a text in a line."""
    text = clean(text)
    return text if len(text) <= length else text[: max(length - 1, 0)].rstrip(" ,") + "…"


def _rounded(interval: Interval) -> str:
    return f"[{interval[0]:.3g}, {interval[1]:.3g}]"


# Graphviz


def to_dot(graph: Explored, limit: int = NODES_SHOWN) -> str:
    """Graphviz text with the `limit` nodes of the largest reach.

    States are boxes, in warmer colours where their intervals are wider. Lines are actions that led to a state, thicker
    where they did so more often.
    """
    names = {node: f"s{place}" for place, node in enumerate(graph.reached_most(limit))}
    lines = [
        f"// {clean(title(graph, len(names)))}",
        "digraph explored {",
        f"  graph [rankdir=LR, labelloc=t, label={_quoted(title(graph, len(names)))}];",
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11, fontcolor=black];',
        '  edge [fontname="Helvetica", fontsize=9, arrowsize=0.6];',
    ]
    for node, name in names.items():
        low, high = graph.interval(node)
        width = f"{_rounded((low, high))}, width {high - low:.3g}"
        label = _quoted(cut(_name(graph, node), 60), _step(graph, graph.depths[node]), width)
        colour = COLOURS[_warmth(graph, (low, high))] + "55"  # light enough to write on
        lines.append(f'  {name} [label={label}, fillcolor="{colour}", tooltip={_quoted(_details(graph, node))}];')
        for pair in graph.pairs(node):
            targets: defaultdict[str, int] = defaultdict(int)
            for number, seen in pair.successors:
                targets["end" if number == ENDED else names.get(graph.following(node, number), "others")] += seen
            for target, seen in targets.items():
                label = _quoted(f"{cut(_action(graph, pair), 40)} ×{seen}")
                lines.append(f"  {name} -> {target} [label={label}, penwidth={_thickness(graph, seen):.2f}];")
    lines.append("  end [shape=doublecircle, style=solid];")
    lines.append('  others [shape=plaintext, style=solid, label="not shown"];')
    return "\n".join([*lines, "}"])


def _quoted(*lines: str) -> str:
    """A string of Graphviz, which knows backslashes and the entities of HTML."""
    texts = [clean(line).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(texts) + '"'


# SVG. Lengths are in pixels.

LINE, MARGIN, TOP = 15.0, 24.0, 114.0
"""Height of a row; space around the drawing; where the columns begin, below the lines above them."""

LETTER, LETTERS = 6.8, 26
"""Width of a letter in text of 11 pixels, in a wide font, and in bold text an eighth more; letters beside a bar."""

TRACK, WIDTH, GUTTER = 120.0, 320.0, 90.0
"""Width of the scale of a state; of a state with its text; space between columns."""

ACTIONS_SHOWN = 8
"""Actions of a state that are shown, at most."""

STYLE = """
.explored { font: 11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
.explored text { fill: #22272e; stroke: #ffffff; stroke-width: 3px; stroke-linejoin: round; paint-order: stroke; }
.explored .name { font-size: 12px; font-weight: 600; }
.explored .soft { fill: #59636e; }
.explored path { fill: none; stroke: #7b8794; opacity: 0.6; }
.explored .track { stroke: #d5dae0; opacity: 1; }
.explored .return { stroke: #8a63b8; stroke-dasharray: 5 3; opacity: 0.45; }
"""

CAPTION = (
    "Bars are intervals of values on one scale, warmer where they are wider; thin bars are actions, with their samples "
    "(×). Thicker lines stand for more samples.",
    "Dashed lines lead to the same or an earlier column, dotted ones to states that are not shown.",
)

Places = dict[Node, tuple[float, float]]
"""Where the bars of the values begin on the left; the rows of the actions are below."""


def to_svg(graph: Explored, limit: int = NODES_SHOWN) -> str:
    """A drawing of the `limit` nodes of the largest reach."""
    chosen = graph.reached_most(limit)
    places: Places = {}
    bottoms: defaultdict[float, float] = defaultdict(lambda: TOP)  # of the columns
    for node in chosen:
        x = MARGIN + int(graph.depths[node]) * (WIDTH + GUTTER)
        places[node] = x, bottoms[x] + 1.5 * LINE
        bottoms[x] += (min(len(graph.pairs(node)), ACTIONS_SHOWN + 1) + 3.5) * LINE
    bars = [graph.interval(node) for node in chosen]
    bars += [(pair.q[0], pair.q[1]) for node in chosen for pair in graph.pairs(node)]
    low, high = min(low for low, _ in bars), max(high for _, high in bars)
    scale = (low, high) if low < high else (low - 0.5, high + 0.5)

    head = clean(title(graph, len(chosen)))
    parts = [_text(MARGIN, MARGIN, head, "name")]
    parts += [_text(MARGIN, MARGIN + i * LINE, line, "soft") for i, line in enumerate(CAPTION, start=1)]
    for depth, x in enumerate(sorted(bottoms)):
        parts.append(_text(x, TOP - 2.0 * LINE, _step(graph, depth), "name"))
        parts.append(_text(x, TOP - LINE, f"{scale[0]:.3g}", "soft"))
        parts.append(_text(x + TRACK, TOP - LINE, f"{scale[1]:.3g}", "soft", "end"))
    for node in chosen:
        parts += _rows(graph, node, places, scale)
    parts.sort(key=lambda part: not part.startswith("<path"))  # lines are below bars and text
    width = math.ceil(2 * MARGIN + max(1.13 * LETTER * max(map(len, (head, *CAPTION))), max(bottoms) + WIDTH))
    size = f'width="{width}" height="{max(bottoms.values())}" viewBox="0 0 {width} {max(bottoms.values())}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" class="explored" role="img" {size} aria-label='
    page = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([f'{start}"{html.escape(head)}">', f"<style>{STYLE}</style>", page, *parts, "</svg>"])


def _rows(graph: Explored, node: Node, places: Places, scale: Interval) -> Iterator[str]:
    """The bars of a state and its actions, with what is written beside them, and lines to the successors."""
    (x, y), details, interval = places[node], _details(graph, node), graph.interval(node)
    beside = x + TRACK + 8.0
    yield _text(x, y - LINE + 2.0, cut(_name(graph, node), int(WIDTH / (1.13 * LETTER))), "name", tooltip=details)
    yield from _bar(graph, x, y, interval, scale, 10.0, details)
    yield _text(beside, y + 4.0, _rounded(interval), "soft")
    pairs = sorted(graph.pairs(node), key=lambda pair: -pair.samples)
    for pair in pairs[:ACTIONS_SHOWN]:
        y += LINE
        details = f"{_action(graph, pair)}: {pair.samples} samples, value {pair.q}, reward {pair.reward}"
        ended = sum(seen for successor, seen in pair.successors if successor == ENDED)
        counted = f" ×{pair.samples:,}" + (f", end {ended / pair.samples:.0%}" if ended else "")
        yield from _bar(graph, x, y, (pair.q[0], pair.q[1]), scale, 5.0, details)
        yield _text(beside, y + 4.0, cut(_action(graph, pair), LETTERS - len(counted)) + counted, tooltip=details)
        for successor, seen in pair.successors:
            if successor != ENDED:
                yield _line(x, y, places.get(graph.following(node, successor)), _thickness(graph, seen))
    if len(pairs) > ACTIONS_SHOWN:
        yield _text(beside, y + LINE + 4.0, f"{len(pairs) - ACTIONS_SHOWN} others", "soft")


def _bar(
    graph: Explored, x: float, y: float, interval: Interval, scale: Interval, size: float, tooltip: str
) -> Iterator[str]:
    left, right = (TRACK * (end - scale[0]) / (scale[1] - scale[0]) for end in interval)
    left, width = min(left, TRACK - 2.0), max(right - left, 2.0)
    place = f'x="{x + left:.1f}" y="{y - size / 2:.1f}" width="{width:.1f}" height="{size}"'
    yield f'<path class="track" d="M{x:.1f} {y:.1f}h{TRACK:.1f}"/>'
    yield f'<rect {place} rx="1.5" fill="{COLOURS[_warmth(graph, interval)]}">{_title(tooltip)}</rect>'


def _line(x: float, y: float, target: tuple[float, float] | None, width: float) -> str:
    """From the row of an action to the bar of a successor, on the sides that are nearest; or to nowhere."""
    if target is None:
        return f'<path d="M{x + WIDTH:.1f} {y:.1f}h16" stroke-dasharray="2 3"/>'
    start = x - 3.0 if target[0] < x else x + WIDTH
    end = target[0] - 3.0 if target[0] > x else target[0] + WIDTH
    middle = (start + end) / 2 + (30.0 if target[0] == x else 0.0)  # a bend beside its own column
    curve = f"M{start:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {target[1]:.1f} {end:.1f} {target[1]:.1f}"
    return f'<path class="{"" if target[0] > x else "return"}" d="{curve}" stroke-width="{width:.1f}"/>'


def _title(text: str) -> str:
    return f"<title>{html.escape(clean(text))}</title>"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start", tooltip: str = "") -> str:
    inside = html.escape(clean(text)) + (_title(tooltip) if tooltip else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{inside}</text>'
