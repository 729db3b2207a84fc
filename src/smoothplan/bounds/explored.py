"""The explored graph as a record: a snapshot that turns into JSON, or into text for Graphviz."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import ENDED, Graph, Rules


@dataclass(frozen=True, eq=False, repr=False)
class Explored:
    """A snapshot of a search, as JSON or as text for Graphviz. Later samples do not change it."""

    states: Ints | tuple[Any, ...]  # in the order of their discovery; the root is first
    graph: Graph  # counts and intervals, read-only
    rules: Rules
    gap: float  # no action is better than the best one by more
    calls: int
    state_names: tuple[str, ...] | None  # by the state itself, if states are numbers
    action_names: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"Explored({len(self.states)} states, {self.graph.totals[0]['pairs']} pairs, {self.calls} calls)"

    @cached_property
    def intervals(self) -> Floats:
        """Intervals of the values of N states at H stages, [N, H, 2]."""
        return self._stacked(self.graph.low, self.graph.high)

    @cached_property
    def q(self) -> Floats:
        """Intervals of the action values, [N, H, K, 2]."""
        return self._stacked(self.graph.q_low, self.graph.q_high, self.rules.actions)

    def _stacked(self, low: Floats, high: Floats, *columns: int) -> Floats:
        shape = len(self.states), self.rules.stages, *columns
        return np.stack([low[: math.prod(shape)], high[: math.prod(shape)]], axis=-1).reshape(*shape, 2)

    @cached_property
    def _reached(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The states that successors lead to, the nearest to the root first, and the pairs that were sampled there."""
        rules, names = self.rules, self.state_names or ()
        states, pairs, known, latest, depth = list[dict[str, Any]](), list[dict[str, Any]](), {(0, 0)}, [(0, 0)], 0
        while latest:
            found = set[tuple[int, int]]()
            for number, stage in latest:
                state, inside = np.asarray(self.states[number]), stage < rules.stages
                is_named = not state.shape and state.dtype.kind in "iu" and 0 <= state < len(names)
                ends = self.intervals[number, stage] if inside else np.array([rules.span_low[-1], rules.span_high[-1]])
                fields = {"number": number, "stage": stage, "depth": depth, "interval": ends.tolist()}
                states.append(fields | {"state": state.tolist(), "name": names[int(state)] if is_named else None})
                for pair in self._sampled(number, stage) if inside else ():
                    pairs.append(pair)
                    after = [seen["state"] for seen in pair["successors"] if seen["state"] != "end"]
                    found.update((successor, 0 if rules.endless else stage + 1) for successor in after)
            latest, depth = sorted(found - known), depth + 1
            known |= found
        return states, pairs

    def _sampled(self, number: int, stage: int) -> Iterator[dict[str, Any]]:
        """The pairs that were sampled at a state. Pooled counts are those of the state at any stage."""
        graph, rules = self.graph, self.rules
        for action in range(rules.actions):
            record = number * rules.records + min(stage, rules.records - 1)
            pair, hits = graph.pairs[record * rules.actions + action], Counter[int | str]()
            for outcome in range(pair["start"], pair["start"] + pair["seen"]):  # some differ in rewards only
                successor = int(graph.successors[outcome])
                hits["end" if successor == ENDED else successor] += int(graph.hits[outcome])
            if hits:
                yield {
                    "state": number,
                    "stage": stage,
                    "action": action,
                    "name": None if self.action_names is None else self.action_names[action],
                    "count": hits.total(),
                    "reward": [float(pair["reward_low"]), float(pair["reward_high"])],
                    "q": self.q[number, stage, action].tolist(),
                    "successors": [{"state": after, "count": seen} for after, seen in hits.items()],
                }

    def to_json(self) -> str:
        """One JSON object: the states that were reached, and the pairs that were sampled there.

        Lists of two numbers are intervals. States are referred to by their `number`; with a finite horizon a successor
        is at the stage after that of the pair, and otherwise all stages are 0.
        """
        found = {
            "horizon": None if self.rules.endless else self.rules.stages,
            "discount": float(self.rules.discount),
            "calls": self.calls,
            "gap": self.gap,
            "q_intervals": self.q[0, 0].tolist(),
            "states_discovered": len(self.states),
            "pairs_sampled": int(self.graph.totals[0]["pairs"]),
            "states": self._reached[0],
            "pairs": self._reached[1],
        }
        return json.dumps(found, allow_nan=False, default=str)

    def to_dot(self, limit: int = 60) -> str:
        """Graphviz text with the `limit` states, or states at stages, that are nearest to the root.

        Boxes are warmer the wider their intervals are; lines are thicker the more samples they stand for.
        """
        states, pairs = self._reached
        shown = states[: arguments.whole("limit", limit)]
        names = {(state["number"], state["stage"]): f"s{place}" for place, state in enumerate(shown)}
        left, most = len(states) - len(shown), max(int(self.graph.pairs["count"].max()), 2)
        extent = f"the {len(shown)} nearest nodes; {left} more" if left else "all nodes"
        lines = [
            "digraph explored {",
            f"  graph [rankdir=LR, labelloc=t, label={_quoted(f'{self!r}: gap {self.gap:.4g}, {extent}')}];",
            '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11];',
            '  edge [fontname="Helvetica", fontsize=9, arrowsize=0.6];',
            "  end [shape=doublecircle, style=solid];",
            '  others [shape=plaintext, style=solid, label="not shown"];',
        ]
        span = max(float(self.rules.span_high[0] - self.rules.span_low[0]), 1e-300)
        for state, name in zip(shown, names.values(), strict=True):
            low, high = state["interval"]
            hue = 0.6 - 0.6 * min((high - low) / span, 1.0) ** 0.25  # from blue to red
            step = f"{'step' if self.rules.endless else 'stage'} {state['depth']}"
            label = _quoted((state["name"] or str(state["state"]))[:60], step, f"[{low:.3g}, {high:.3g}]")
            lines.append(f'  {name} [label={label}, fillcolor="{hue:.3f} 0.35 1.0"];')
        for pair in pairs:
            source, later = names.get((pair["state"], pair["stage"])), 0 if self.rules.endless else pair["stage"] + 1
            targets, action = Counter[str](), pair["name"] or f"action {pair['action']}"
            for seen in pair["successors"] if source else ():
                known = "end" if seen["state"] == "end" else names.get((seen["state"], later), "others")
                targets[known] += seen["count"]
            for target, seen in targets.items():
                label, width = _quoted(f"{action[:40]} ×{seen}"), 1.0 + 4.0 * math.log(seen) / math.log(most)
                lines.append(f"  {source} -> {target} [label={label}, penwidth={width:.2f}];")
        return "\n".join([*lines, "}"])


def _quoted(*lines: str) -> str:
    """A string of Graphviz, which knows backslashes and entities of HTML; unprintable characters are replaced."""
    texts = (
        "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(line.split())) for line in lines
    )
    escaped = (text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return '"' + "\\n".join(escaped) + '"'


def explored(explorer: Explorer, gap: float) -> Explored:
    """A snapshot of a search that has proved a gap."""
    model, graph = explorer.oracle.model, Graph(*(frozen(array.copy()) for array in explorer.graph))
    names = (getattr(model, name, None) for name in ("state_names", "action_names"))
    return Explored(explorer.states, graph, explorer.rules, gap, explorer.oracle.calls, *names)
