"""The explored graph as a record: a snapshot that turns into JSON, or into text for Graphviz."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import ENDED, Graph, Rules

Node = tuple[int, int]
"""The number under which a state was discovered, and a stage, which is 0 in an endless problem."""


class Pair(NamedTuple):
    """An action that was sampled at a node. Pooled counts are those of the state at any stage."""

    action: int
    samples: int
    reward: list[float]  # the interval of the mean reward
    q: list[float]  # the interval of the action value
    successors: dict[Node | None, int]  # the count of each; None for the end


@dataclass(frozen=True, eq=False, repr=False)
class Explored:
    """A snapshot of a search. Later samples do not change it."""

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
    def depths(self) -> dict[Node, int]:
        """The fewest steps from the root to every node that was reached along discovered successors, nearest first.

        Nodes at the same depth are in the order of discovery.
        """
        depths, latest = {(0, 0): 0}, [(0, 0)]
        while latest:
            found = {node for before in latest for pair in self.pairs(before) for node in pair.successors}
            latest = sorted(node for node in found if node is not None and node not in depths)
            depths |= dict.fromkeys(latest, 1 + max(depths.values()))
        return depths

    def interval(self, node: Node) -> list[float]:
        """The interval of a node's value."""
        number, stage = node
        if stage == self.rules.stages:  # after the last stage of a finite horizon
            return [float(self.rules.span_low[stage]), float(self.rules.span_high[stage])]
        return self.intervals[number, stage].tolist()  # type: ignore[no-any-return]

    def pairs(self, node: Node) -> Iterator[Pair]:
        """The actions that were sampled at a node."""
        (number, stage), graph, rules = node, self.graph, self.rules
        for action in range(rules.actions if stage < rules.stages else 0):
            record = number * rules.records + min(stage, rules.records - 1)
            pair = graph.pairs[record * rules.actions + action]
            if pair["count"] > 0:
                successors: dict[Node | None, int] = {}
                for outcome in range(pair["start"], pair["start"] + pair["seen"]):  # some differ in rewards only
                    successor = int(graph.successors[outcome])
                    after = None if successor == ENDED else (successor, 0 if rules.endless else stage + 1)
                    successors[after] = successors.get(after, 0) + int(graph.hits[outcome])
                reward, q = [float(pair["reward_low"]), float(pair["reward_high"])], self.q[number, stage, action]
                yield Pair(action, int(pair["count"]), reward, q.tolist(), successors)

    def to_json(self) -> str:
        """One JSON object: the states that were reached, and the pairs that were sampled there.

        Lists of two numbers are intervals. States are referred to by their `number`; with a finite horizon a successor
        is at the stage after that of the pair.
        """
        states, pairs = [], []
        for node, depth in sorted(self.depths.items(), key=lambda item: item[0][::-1]):
            stage = {} if self.rules.endless else {"stage": node[1]}
            state, name = np.asarray(self.states[node[0]]).tolist(), self._name(node[0])
            fields: dict[str, Any] = {"number": node[0], "state": state} | ({"name": name} if name else {}) | stage
            states.append(fields | {"depth": depth, "interval": self.interval(node)})
            for pair in self.pairs(node):
                called = {} if self.action_names is None else {"name": self.action_names[pair.action]}
                successors = [
                    {"state": "end" if after is None else after[0], "count": seen, "share": seen / pair.samples}
                    for after, seen in pair.successors.items()
                ]
                fields = {"state": node[0], **stage, "action": pair.action, **called, "count": pair.samples}
                pairs.append(fields | {"reward": pair.reward, "q": pair.q, "successors": successors})
        found = {
            "horizon": None if self.rules.endless else self.rules.stages,
            "discount": float(self.rules.discount),
            "calls": self.calls,
            "gap": self.gap,
            "q_intervals": self.q[0, 0].tolist(),
            "states_discovered": len(self.states),
            "pairs_sampled": int(self.graph.totals[0]["pairs"]),
            "states": states,
            "pairs": pairs,
        }
        return json.dumps(found, allow_nan=False, default=str)

    def to_dot(self, limit: int = 60) -> str:
        """Graphviz text with the `limit` nodes that are nearest to the root.

        Boxes are warmer the wider their intervals are; lines are thicker the more samples they stand for.
        """
        shown = list(self.depths)[: arguments.whole("limit", limit)]
        names = {node: f"s{place}" for place, node in enumerate(shown)}
        left, most = len(self.depths) - len(shown), max(int(self.graph.pairs["count"].max()), 2)
        extent = f"the {len(shown)} nearest nodes; {left} more" if left else "all nodes"
        title = f"{self!r}: gap {self.gap:.4g}, {extent}"
        lines = [
            "digraph explored {",
            f"  graph [rankdir=LR, labelloc=t, label={_quoted(title)}];",
            '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11];',
            '  edge [fontname="Helvetica", fontsize=9, arrowsize=0.6];',
            "  end [shape=doublecircle, style=solid];",
            '  others [shape=plaintext, style=solid, label="not shown"];',
        ]
        span = max(float(self.rules.span_high[0] - self.rules.span_low[0]), 1e-300)
        for node, name in names.items():
            low, high = self.interval(node)
            step = f"{'step' if self.rules.endless else 'stage'} {self.depths[node]}"
            state = self._name(node[0]) or str(np.asarray(self.states[node[0]]).tolist())
            hue = 0.6 - 0.6 * min((high - low) / span, 1.0) ** 0.25  # from blue to red
            label = _quoted(state[:60], step, f"[{low:.3g}, {high:.3g}]")
            lines.append(f'  {name} [label={label}, fillcolor="{hue:.3f} 0.35 1.0"];')
            for pair in self.pairs(node):
                action = f"action {pair.action}" if self.action_names is None else self.action_names[pair.action][:40]
                targets: dict[str, int] = {}
                for after, seen in pair.successors.items():
                    target = "end" if after is None else names.get(after, "others")
                    targets[target] = targets.get(target, 0) + seen
                for target, seen in targets.items():
                    width = 1.0 + 4.0 * math.log(seen) / math.log(most)
                    lines.append(f"  {name} -> {target} [label={_quoted(f'{action} ×{seen}')}, penwidth={width:.2f}];")
        return "\n".join([*lines, "}"])

    def _name(self, number: int) -> str | None:
        """The name of a state, if it has one."""
        state = np.asarray(self.states[number])
        if self.state_names is None or state.shape or state.dtype.kind not in "iu":
            return None
        return self.state_names[int(state)] if 0 <= state < len(self.state_names) else None


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
