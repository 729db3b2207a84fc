"""Draws the pictures of the documentation: python docs/images/make.py [NAME ...]

Every number in them comes from a real run; the rooms come from the table in architecture.md. They are plain SVG, light
or dark as the reader's system is, and the same runs give the same files.
"""

import contextlib
import io
import json
import math
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints, amount
from smoothplan.models.model import States
from smoothplan.run import progress
from smoothplan.run.records import GapDetails

HERE = Path(__file__).parent

WIDTH = 720
"""Of every picture, in its own units: about the width of a column of text."""

STYLE = """
  svg { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
  .card { fill: #fff; stroke: #d5dbe1; }
  .box { fill: #eef6f5; stroke: #00897b; stroke-width: 1.2; }
  .band { fill: #00897b; fill-opacity: .22; stroke: none; }
  .edge { fill: none; stroke: #00897b; stroke-width: 1.6; }
  .exact { stroke: #b3261e; stroke-width: 1.6; stroke-dasharray: 6 4; }
  .axis { stroke: #5f6b76; stroke-width: 1; }
  .grid { stroke: #5f6b76; stroke-opacity: .18; }
  .arrow { stroke: #5f6b76; stroke-width: 1.6; fill: none; marker-end: url(#head); }
  text { fill: #1b2329; }
  .strong { font-weight: 600; }
  .small { font-size: 12.5px; fill: #46525c; }
  .red { fill: #b3261e; }
  .green { fill: #00695c; }
  #head path { fill: #5f6b76; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1b2127; stroke: #3a444d; }
    .box { fill: #17312f; stroke: #4db6ac; }
    .band { fill: #4db6ac; fill-opacity: .25; }
    .edge { stroke: #4db6ac; }
    .exact { stroke: #ff8a80; }
    .axis, .arrow { stroke: #9aa7b2; }
    .grid { stroke: #9aa7b2; }
    text { fill: #e6ebef; }
    .small { fill: #b4bfc8; }
    .red { fill: #ff8a80; }
    .green { fill: #80cbc4; }
    #head path { fill: #9aa7b2; }
  }
"""


class Plot(NamedTuple):
    """A frame with a logarithmic axis of calls and a linear axis of values."""

    left: float
    top: float
    right: float
    bottom: float
    calls: tuple[float, float]
    values: tuple[float, float]

    def x(self, calls: float) -> float:
        """Where a number of calls is; what is left of the frame is at its edge."""
        low, high = math.log(self.calls[0]), math.log(self.calls[1])
        return self.left + (self.right - self.left) * (math.log(max(calls, self.calls[0])) - low) / (high - low)

    def y(self, value: float) -> float:
        """Where a value is."""
        low, high = self.values
        return self.bottom - (self.bottom - self.top) * (value - low) / (high - low)

    def frame(self, ticks: Sequence[float]) -> list[str]:
        """The axes, with a line for every tick of the values and a label for every power of ten of the calls."""
        parts = []
        for value in ticks:
            y = self.y(value)
            parts.append(line(self.left, y, self.right, y, "grid"))
            parts.append(text(self.left - 8, y + 4, f"{value:.1f}", "small", anchor="end"))
        for power in range(math.ceil(math.log10(self.calls[0])), math.floor(math.log10(self.calls[1])) + 1):
            x = self.x(10**power)
            parts.append(line(x, self.bottom, x, self.bottom + 5, "axis"))
            parts.append(text(x, self.bottom + 20, f"{10**power:,}", "small", anchor="middle"))
        parts.append(line(self.left, self.bottom, self.right, self.bottom, "axis"))
        return parts


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    """A line from one point to another."""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>'


def picture(height: int, title: str, description: str, parts: Sequence[str]) -> str:
    """A whole SVG on a card of its own, so that it can be read on any background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{STYLE}</style>"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker></defs>'
        f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def staircase(plot: Plot, steps: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Points of a line that keeps each value until the next number of calls."""
    points: list[tuple[float, float]] = []
    for (calls, value), after in zip(steps, [*(step[0] for step in steps[1:]), end], strict=True):
        points += [(plot.x(calls), plot.y(value)), (plot.x(after), plot.y(value))]
    return points


def band(plot: Plot, steps: Sequence[tuple[float, float, float]], end: float) -> list[str]:
    """The shrinking interval: (calls, low, high) at each step."""
    low = staircase(plot, [(calls, low) for calls, low, _ in steps], end)
    high = staircase(plot, [(calls, high) for calls, _, high in steps], end)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

    area = f'<polygon class="band" points="{path([*high, *reversed(low)])}"/>'
    return [area, *(f'<polyline class="edge" points="{path(points)}"/>' for points in (low, high))]


def thinned(steps: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Steps at which the interval shrinks visibly, and the last."""
    kept = [steps[0]]
    for step in steps[1:]:
        if step[2] - step[1] < 0.985 * (kept[-1][2] - kept[-1][1]):
            kept.append(step)
    return kept if kept[-1] == steps[-1] else [*kept, steps[-1]]


def boxes(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """A row of boxes, each a heading and two lines, with arrows from one to the next."""
    parts, gap, height, top = [], 22.0, 78.0, 20.0
    width = (WIDTH - 40 - gap * (len(rows) - 1)) / len(rows)
    for number, (heading, first, second) in enumerate(rows):
        x = 20 + number * (width + gap)
        parts.append(f'<rect class="box" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="7"/>')
        parts.append(text(x + width / 2, top + 24, heading, "strong", "middle"))
        parts.append(text(x + width / 2, top + 46, first, "small", "middle"))
        parts.append(text(x + width / 2, top + 64, second, "small", "middle"))
        if number > 0:
            parts.append(line(x - gap + 2, top + height / 2, x - 3, top + height / 2, "arrow"))
    return parts


def shrinking(planner: sp.DebiasedCruiser, model: sp.TabularModel) -> tuple[sp.PlanResult, list[str]]:
    """A run, with every line of progress that it writes."""
    progress.LINE_SECONDS = 0.0  # every update, not one a second
    lines = io.StringIO()
    with contextlib.redirect_stderr(lines):
        result = sp.plan(planner, model, state=0, seed=0, progress="json")
    return result, lines.getvalue().splitlines()


def overview() -> str:
    """From a state to an interval, and how that shrinks."""
    model = sp.models.garnet(states=50, actions=2, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")
    planner = sp.DebiasedCruiser(sp.LogSumExp(1.0), epsilon=0.01, delta=0.1)
    forecast, exact = sp.forecast(planner, model), float(sp.exact.solve(model, planner.backup).values[0])
    result, lines = shrinking(planner, model)
    low, high = result.interval
    parts = boxes(
        [
            ("state", "your simulator,", "ε and δ"),
            ("schedule", f"{len(forecast.schedule.levels)} levels, each", "with a certificate"),
            ("price", f"≤ {amount(forecast.calls)} calls,", "known in advance"),
            ("samples", f"{amount(result.calls)} calls,", "stopped early"),
            ("interval", f"[{low:.4f}, {high:.4f}]", f"probability ≥ {1 - result.delta:g}"),
        ]
    )
    # Before the first chunk of calls is in, the interval is what the model declares, as it is then.
    steps = [(line["calls"], *line["interval"]) for line in map(json.loads, lines) if line.get("interval")]
    steps[0] = (0, *steps[0][1:])
    plot = Plot(64, 150, WIDTH - 28, 360, (1_000, forecast.calls * 1.25), (0.8, 2.2))
    parts += plot.frame([0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2])
    parts += band(plot, thinned(steps), result.calls)
    parts.append(line(plot.left, plot.y(exact), plot.right, plot.y(exact), "exact"))
    parts.append(text(plot.left + 6, plot.y(exact) - 8, f"exact value {exact:.4f}", "small red"))
    for calls, words, above in ((result.calls, "stops here: within ε", 96), (forecast.calls, "the price", 40)):
        x = plot.x(calls)
        parts.append(line(x, plot.bottom, x, plot.bottom - above, "axis"))
        parts.append(text(x, plot.bottom - above - 6, words, "small", "end"))
    parts.append(
        text(plot.x(30_000), plot.y(1.62), f"certified interval, all along: {1 - result.delta:.0%}", "small green")
    )
    parts.append(text((plot.left + plot.right) / 2, 402, "simulator calls (logarithmic)", "small", "middle"))
    parts.append(text(20, 132, "value of the state", "small"))
    description = (
        f"A state leads to a schedule, a price of at most {forecast.calls:,} simulator calls, samples and an interval. "
        f"The plot shows the interval of one run, which contains the exact value {exact:.4f} and shrinks to "
        f"[{low:.4f}, {high:.4f}] after {result.calls:,} calls."
    )
    return picture(418, "How smoothplan plans", description, parts)


def actions() -> str:
    """The intervals of five actions, from the start to the proof that one is best."""
    model = sp.models.garnet(states=10_000, actions=5, branching=2, discount=0.7, sparsity=0.5, seed=1)
    exact = sp.exact.solve(model, sp.HardMax()).q[0]
    planner = sp.OTGapE(sp.HardMax(), epsilon=0.1, delta=0.1)
    result = sp.plan(planner, model, state=0)
    assert isinstance(result.details, GapDetails)
    assert result.q_intervals is not None
    history = result.details.history
    parts: list[str] = []
    width, gap, left = 118.0, 16.0, 46.0
    high = float(max(snapshot.intervals[:, 1].max() for snapshot in history))
    for action in range(model.actions):
        x = left + action * (width + gap)
        plot = Plot(x, 52, x + width, 270, (1.0, float(result.calls)), (0.0, high))
        parts += [line(x, plot.y(tick), x + width, plot.y(tick), "grid") for tick in (0.0, 1.0, 2.0, 3.0)]
        parts.append(line(x, plot.bottom, x + width, plot.bottom, "axis"))
        ends = [(snapshot.calls, snapshot.intervals[action]) for snapshot in history]
        steps = [(calls, float(interval[0]), float(interval[1])) for calls, interval in ends]
        parts += band(plot, thinned(steps), result.calls)
        parts.append(line(x, plot.y(exact[action]), x + width, plot.y(exact[action]), "exact"))
        best = "strong green" if action == result.action else ""
        parts.append(text(x + width / 2, 40, f"action {action}{', chosen' if best else ''}", best, "middle"))
        bounds = "[{:.3f}, {:.3f}]".format(*result.q_intervals[action])
        parts.append(text(x + width / 2, 292, bounds, "small", "middle"))
        if action == 0:
            parts += [text(x - 8, plot.y(tick) + 4, f"{tick:.0f}", "small", "end") for tick in (0.0, 1.0, 2.0, 3.0)]
    gap_found = result.details.gap
    said = (
        f"After {result.calls:,} simulator calls no other action can be better than action {result.action} by more "
        f"than {gap_found:.3f},"
    )
    parts.append(text(WIDTH / 2, 320, said, "small", "middle"))
    last = f"with probability {1 - result.delta:g}. Dashed: the exact action values. Calls are on a logarithmic scale."
    parts.append(text(WIDTH / 2, 339, last, "small", "middle"))
    return picture(356, "Intervals of five action values", f"{said} {last}", parts)


def shop_step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    """The shop of the tutorial."""
    stock = np.minimum(states[:, 0] + 8.0 * actions, 40.0)
    demand = rng.gamma(9.0, 0.5, size=len(stock))
    left = np.maximum(stock - demand, 0.0)
    profit = 3.0 * np.minimum(stock, demand) - 0.2 * left - 8.0 * actions - 6.0 * (actions > 0)
    return left[:, None], profit


def decision() -> str:
    """What the tutorial's decision knows of each action: how much better or worse than the chosen one it is."""
    model = sp.VectorModel(
        shop_step, actions=4, discount=0.97, reward_range=(-40, 120), terminates=False, initial_state=[3.0]
    )
    found = sp.decide(model, calls=100_000, seed=0)
    shown = 2.0 * np.where(np.arange(model.actions) == found.action, 0.0, found.difference_errors)
    low = 2 * math.floor((found.differences - shown).min() / 2)
    high = 2 * math.ceil((found.differences + shown).max() / 2)
    left, right, top, pitch = 150.0, 640.0, 58.0, 46.0
    bottom = top + pitch * model.actions

    def x(difference: float) -> float:
        return float(left + (right - left) * (difference - low) / (high - low))

    parts = [text(left, 32, "better or worse than the chosen action, with two standard errors on either side", "small")]
    for tick in range(low, high + 1, 2):
        parts.append(line(x(tick), top - 8, x(tick), bottom, "grid"))
        parts.append(text(x(tick), bottom + 18, f"{tick:+d}" if tick else "0", "small", "middle"))
    parts.append(line(x(0.0), top - 8, x(0.0), bottom, "exact"))
    said = []
    for action, (mean, error) in enumerate(zip(found.differences, found.difference_errors, strict=True)):
        y = top + pitch * (action + 0.5)
        chosen = action == found.action
        name = f"{action} crates" if action != 1 else "1 crate"
        parts.append(text(left - 14, y + 5, name, "strong green" if chosen else "", "end"))
        if chosen:
            parts.append(text(x(0.0) + 14, y + 5, "chosen", "strong green"))
        else:
            parts.append(line(x(mean - 2.0 * error), y, x(mean + 2.0 * error), y, "edge"))
            said.append(f"{name}: {mean:+.2f} ± {error:.2f}")
        parts.append(f'<circle cx="{x(mean):.1f}" cy="{y:.1f}" r="5" class="box"/>')
    return picture(int(bottom) + 36, "A decision: how much better or worse each action is", "; ".join(said), parts)


def rooms() -> str:
    """The rooms of the package from top to bottom, with an arrow for every import that no chain of arrows implies."""
    page = (HERE.parent / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| (`[^|]+`) \| ([^|]*) \| ([\w, –]+) \|$", page, re.MULTILINE)
    below = {name: re.findall(r"\w+", imports) for name, _, _, imports in rows}

    def reached(name: str) -> set[str]:
        return {end for step in below[name] for end in {step, *reached(step)}}

    left, width, height, pitch, top = 20.0, 560.0, 36.0, 56.0, 18.0
    floor = {name: number for number, name in enumerate(below)}
    parts = []
    for name, contents, purpose, _ in rows:
        y = top + pitch * floor[name]
        box = f'x="{left}" y="{y}" width="{width}" height="{height}" rx="7"'
        parts.append(f'<rect class="box" data-room="{name}" {box}/>')
        parts.append(text(left + 14, y + 23, name, "strong"))
        listed = contents.replace("`", "").replace("__init__, ", "")
        parts.append(text(left + 120, y + 23, purpose.partition(":")[0] if listed == name else listed, "small"))
    lanes = 0
    for above, lower in below.items():
        for name in lower:
            if any(name in reached(other) for other in lower if other != name):
                continue
            start, end = top + pitch * floor[above] + height, top + pitch * floor[name]
            arrow = f'<path class="arrow" data-from="{above}" data-to="{name}"'
            if floor[name] == floor[above] + 1:
                parts.append(f'{arrow} d="M{left + 60} {start + 2}V{end - 3}"/>')
                continue
            lanes += 1
            x, edge = left + width + 26.0 * lanes, left + width
            start, end = start - height / 2, end + height / 2
            parts.append(f'{arrow} d="M{edge + 2} {start}H{x}V{end}H{edge + 3}"/>')
    description = (
        "The rooms from top to bottom: " + ", ".join(below) + ". An arrow leads to a room that is imported from."
    )
    return picture(int(top + pitch * len(rows)), "The rooms of smoothplan", description, parts)


def main() -> None:
    """Writes the pictures that are named, or all, beside this file."""
    drawings = {"overview": overview, "actions": actions, "decision": decision, "rooms": rooms}
    for name in sys.argv[1:] or drawings:
        draw = drawings[name]
        path = HERE / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
