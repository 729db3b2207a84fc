"""What a search has explored: a snapshot, which turns into JSON; `smoothplan.drawing` makes pictures of it."""

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count as ordinals
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan import arguments
from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.models.base import GenerativeModel
from smoothplan.search.explorer import Explorer
from smoothplan.search.graph import ENDED, STATES
from smoothplan.search.saved import outcomes_of


class Node(NamedTuple):
    """A state, by the number under which it was discovered, at a stage; an endless problem has stage 0 only."""

    number: int
    stage: int


class Pair(NamedTuple):
    """An action that was sampled at a node. Pooled counts are those of the state at any stage."""

    action: int
    samples: int
    reward: list[float]  # the interval of the mean reward
    q: list[float]  # the interval of the action value
    successors: list[tuple[int, int]]  # (number or ENDED, how often it was seen)


@dataclass(frozen=True, eq=False, repr=False)
class Explored:
    """A snapshot of a search: N states, K actions, at most B successors of a pair.

    There are H stages, one in an endless problem, and R = H records of a pair where counts are stage-wise, else one.
    """

    states: Ints | tuple[Any, ...]  # the states themselves, in the order of their discovery; the root is first
    intervals: Floats  # of the values, [N, H, 2]
    q: Floats  # intervals of the action values, [N, H, K, 2]
    rewards: Floats  # intervals of the mean rewards, [N, R, K, 2]
    counts: Ints  # samples, [N, R, K]
    starts: Ints  # where the outcomes of a pair begin, [N·R·K + 1]
    successors: NDArray[np.int32]  # of all outcomes, pair by pair, [M]: a number, or ENDED
    hits: Ints  # how often each outcome was seen, [M]
    gap: float  # what is proved: no action is better than the best one by more
    span: tuple[float, float]  # what was known of the root's value before the first sample
    tail: tuple[float, float]  # what is known of any value after the last stage of a finite horizon
    horizon: int | None
    discount: float
    calls: int
    state_names: tuple[str, ...] | None  # by the state itself, where states are numbers
    action_names: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"Explored({len(self.states)} states, {self.pairs_sampled} pairs, {self.calls} calls)"

    @property
    def pairs_sampled(self) -> int:
        """Pairs of a state and an action, and of a stage where counts are stage-wise, that were sampled."""
        return int((self.counts > 0).sum())

    @cached_property
    def depths(self) -> Ints:
        """The fewest steps from the root along discovered successors, [N, H + 1] or [N, 1]; −1 where never reached.

        With a finite horizon the column is the stage, and the last one is for what follows the last stage.
        """
        depths = np.full((len(self.states), 1 if self.horizon is None else self.horizon + 1), -1)
        depths[0, 0] = steps = 0
        latest = np.zeros(1, dtype=np.int64)
        while len(latest) > 0 and steps != self.horizon:
            record = self._record(steps)
            seen = [self.successors[slice(*self._outcomes(number, record))] for number in latest.tolist()]
            steps += 1
            stage = 0 if self.horizon is None else steps
            numbers = np.unique(np.concatenate(seen))
            numbers = numbers[numbers >= 0]
            latest = numbers[depths[numbers, stage] < 0]
            depths[latest, stage] = steps
        return frozen(depths)  # type: ignore[no-any-return]

    @property
    def nodes(self) -> list[Node]:
        """All that was reached, by stage, then in the order of discovery."""
        return [Node(number, stage) for stage, number in np.argwhere(self.depths.T >= 0).tolist()]

    def interval(self, node: Node) -> tuple[float, float]:
        """The interval of a node's value."""
        if node.stage == self.horizon:
            return self.tail
        low, high = self.intervals[node].tolist()
        return low, high

    def pairs(self, node: Node) -> list[Pair]:
        """The actions that were sampled at a node."""
        if node.stage == self.horizon:
            return []
        place = node.number, self._record(node.stage)
        columns = (self.counts[place], self.rewards[place], self.q[node])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Pair(action, count, reward, q, self._successors(*place, action))
            for action, (count, reward, q) in enumerate(rows)
            if count > 0
        ]

    def _outcomes(self, number: int, record: int, action: int | None = None) -> tuple[int, int]:
        """Where the outcomes of a pair are, or those of all actions."""
        records, actions = self.counts.shape[1:]
        first = (number * records + record) * actions
        first, last = (first, first + actions) if action is None else (first + action, first + action + 1)
        return int(self.starts[first]), int(self.starts[last])

    def _successors(self, number: int, record: int, action: int) -> list[tuple[int, int]]:
        """The successors of a pair, and how often each was seen."""
        where = slice(*self._outcomes(number, record, action))
        seen: dict[int, int] = {}
        for successor, hits in zip(self.successors[where].tolist(), self.hits[where].tolist(), strict=True):
            seen[successor] = seen.get(successor, 0) + hits  # with another reward
        return list(seen.items())

    def state_name(self, number: int) -> str | None:
        """The name of a state, where it has one."""
        state = np.asarray(self.states[number])
        if self.state_names is None or state.shape or state.dtype.kind not in "iu":
            return None
        return self.state_names[state] if 0 <= state < len(self.state_names) else None

    def action_name(self, action: int) -> str | None:
        """The name of an action, where it has one."""
        return None if self.action_names is None else self.action_names[action]

    def reached_most(self, limit: int) -> list[Node]:
        """The nodes of the largest reach, at most `limit`; the root comes first.

        The reach of a path from the root is the product, over its steps, of the discount, the action's share of the
        samples at its node, and the successor's share of the samples of the pair; that of a node, the largest of its
        paths. Reach does not grow along a path, so that what is returned hangs together.
        """
        arguments.whole("limit", limit)
        chosen: dict[Node, None] = {}
        order = ordinals()
        waiting = [(-1.0, next(order), Node(0, 0))]
        while waiting and len(chosen) < limit:
            negative, _, node = heapq.heappop(waiting)
            if node in chosen:
                continue
            chosen[node] = None
            pairs = self.pairs(node)
            total = sum(pair.samples for pair in pairs)
            for pair in pairs:
                for number, seen in pair.successors:
                    successor = self.following(node, number)
                    if number != ENDED and successor not in chosen:
                        heapq.heappush(waiting, (self.discount * negative * seen / total, next(order), successor))
        return list(chosen)

    def to_json(self) -> str:
        """One JSON object: what was reached, and the pairs that were sampled there.

        Lists of two numbers are intervals. States are referred to by their `number`; with a finite horizon a
        successor stands at the stage after that of the pair.
        """
        nodes = self.nodes
        fields = {
            "horizon": self.horizon,
            "discount": self.discount,
            "calls": self.calls,
            "gap": self.gap,
            "q_intervals": self.q[0, 0].tolist(),
            "states_discovered": len(self.states),
            "pairs_sampled": self.pairs_sampled,
            "states": [self._state_fields(node) for node in nodes],
            "pairs": [fields for node in nodes for fields in self._pair_fields(node)],
        }
        return json.dumps(fields, allow_nan=False, default=str)

    def _record(self, stage: int) -> int:
        """Where the statistics of a stage are, along R."""
        return stage if self.counts.shape[1] > 1 else 0

    def following(self, node: Node, number: int) -> Node:
        """The node of a successor."""
        return Node(number, 0 if self.horizon is None else node.stage + 1)

    def _state_fields(self, node: Node) -> dict[str, Any]:
        name = self.state_name(node.number)
        return {
            "number": node.number,
            "state": np.asarray(self.states[node.number]).tolist(),
            **({} if name is None else {"name": name}),
            **({} if self.horizon is None else {"stage": node.stage}),
            "depth": int(self.depths[node]),
            "interval": self.interval(node),
        }

    def _pair_fields(self, node: Node) -> Iterator[dict[str, Any]]:
        for pair in self.pairs(node):
            yield {
                "state": node.number,
                **({} if self.horizon is None else {"stage": node.stage}),
                "action": pair.action,
                **({} if (name := self.action_name(pair.action)) is None else {"name": name}),
                "count": pair.samples,
                "reward": pair.reward,
                "q": pair.q,
                "successors": [
                    {"state": "end" if number == ENDED else number, "count": seen, "share": seen / pair.samples}
                    for number, seen in pair.successors
                ],
            }


def explored(explorer: Explorer, model: GenerativeModel) -> Explored:
    """What a search has discovered by now. Later rounds do not change it."""
    graph, rules = explorer.graph, explorer.rules
    size, actions, stages = int(graph.totals[STATES]), rules.actions, rules.stages
    records = stages if rules.stage_wise else 1
    pairs = size * records * actions
    nodes = size * stages
    outcomes = outcomes_of(graph.pairs[:pairs])

    def both(low: Floats, high: Floats, *shape: int) -> Floats:
        return frozen(np.stack([low, high], axis=-1).reshape(*shape, 2))  # type: ignore[no-any-return]

    return Explored(
        states=explorer.states,
        intervals=both(graph.low[:nodes], graph.high[:nodes], size, stages),
        q=both(graph.q_low[: nodes * actions], graph.q_high[: nodes * actions], size, stages, actions),
        rewards=both(graph.pairs["reward_low"][:pairs], graph.pairs["reward_high"][:pairs], size, records, actions),
        counts=frozen(graph.pairs["count"][:pairs].copy().reshape(size, records, actions)),
        starts=frozen(np.concatenate([[0], np.cumsum(graph.pairs["seen"][:pairs])])),
        successors=frozen(graph.successors[outcomes]),
        hits=frozen(graph.hits[outcomes]),
        gap=explorer.certificate.gap,
        span=(float(rules.span_low[0]), float(rules.span_high[0])),
        tail=(float(rules.span_low[-1]), float(rules.span_high[-1])),
        horizon=None if rules.endless else stages,
        discount=float(rules.discount),
        calls=explorer.oracle.calls,
        state_names=getattr(model, "state_names", None),
        action_names=getattr(model, "action_names", None),
    )
