"""Rounds of samples where states recur: how many of each pair, decided for all pairs at once.

The gap at the root is about Σ visits·bonus over pairs: the discounted visits of the optimistic policy after the
challenger, with what the upper bound of each pair has in excess of its estimate, and those of the likely best policy
after the best action, with what the lower bound lacks. A bonus falls like count^(−ξ), so that the fewest calls for a
gap are those where one more sample of any pair would reduce it by the same: n ∝ (visits·ξ·bonus·n^ξ)^(1/(1+ξ)).

The optimistic policy is the best of many that are nearly as optimistic, and changes as soon as its pairs are known
better. So visits are averaged over rounds. That is fictitious play: an adversary answers every round with the most
optimistic policy, and the samples are the best response to how it has answered so far.
"""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.search import saved as saving
from smoothplan.search.converge import Side, converge, flow, new_side
from smoothplan.search.graph import PAIRS, STATES, Graph, Rules
from smoothplan.search.loop import Workspace
from smoothplan.search.saved import Arrays, Readable
from smoothplan.search.ugape import Certificate, certificate

GROWTH = 0.03, 0.1
"""The calls of a round, as a fraction of those before: at first, or where bonuses fall like 1/count, for then one sample
may change everything; and where there are many samples and bonuses fall like 1/√count. Less where little is missing."""

FEW, MANY = 100, 10_000
"""Calls per pair, between which rounds grow from the smaller fraction to the larger."""

MEMORY = 0.9
"""The weight of earlier visits in their average after calls have grown by the smaller of these fractions."""

INSURED = 0.25
"""The share of a round that goes on reducing the gap between absolute bounds where relative ones are better."""

PARTS = 4
"""Parts of the interval of the anchor's value, each of which has relative bounds of its own where they may suffice."""

ANCHORS = 5
"""States that are visited most, and tried as an anchor."""

EPOCH = 1.5
"""The growth of calls over which discoveries are counted."""

FRESH, STALE = 0.2, 0.1
"""d log(pairs)/d log(calls) above which walks take over from rounds, and below which rounds do so from walks."""

ACCURACY = 1e-3
"""The accuracy of converged values, as a fraction of ε or of the gap."""

Policy = Callable[[Floats], Floats]
"""∇F at action values [n, K] of the first n states."""


class Contribution(NamedTuple):
    """A pair that holds up the gap at the root."""

    entry: int
    share: float  # of the gap, estimated


class Bracket(NamedTuple):
    """Bounds from above and from below, and the intervals of the root's action values that they prove, [K, 2].

    Where there is an anchor, these are the action values less γ times its value.
    """

    upper: Side
    lower: Side
    root: Floats


class Rounds:
    """Decides between walks and rounds, and what a round samples.

    Args:
        policy: ∇F.

    Attributes:
        threads: threads that converge bounds.
        anchor: the number of the state that relative bounds refer to.
        proved: the best that relative bounds have proved so far.
        holding: the pairs that hold up the gap.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.threads = 1
        self.anchor = 0
        self.proved: Certificate | None = None
        self.holding: tuple[Contribution, ...] = ()
        self._visits: dict[bool, Floats] = {}  # whether relative → averages from above and from below, [2, n·K]
        self._marked = np.array([1, 1])  # calls and pairs when the epoch began
        self._anchored = self._relative = 0  # calls when the anchor was chosen; whether relative bounds are better there
        self._last_growth=GROWTH[0]
        self._on = False

    # Walks or rounds

    def take_over(self, graph: Graph, calls: int) -> bool:
        """Whether the next samples are those of a round: few pairs are new."""
        if calls >= EPOCH * self._marked[0]:
            now = np.array([max(calls, 1), max(int(graph.totals[PAIRS]), 1)])
            calls_growth, pairs_growth = np.log(now / self._marked)
            self._on = bool(pairs_growth <= (FRESH if self._on else STALE) * calls_growth)
            self._marked = now
        return self._on

    # Bounds

    def tighten(self, graph: Graph, rules: Rules, work: Workspace, epsilon: float, calls: int) -> list[Bracket]:
        """Converges all bounds, and proves what they prove; those to allocate by, the better ones first."""
        tolerance = self._tolerance(graph, rules, epsilon)
        (absolute,) = self._brackets(graph, rules, work, tolerance, [(-1, 0.0, 0.0)])
        self._narrow(graph, absolute)
        gap = certificate(absolute.root[None]).gap
        if gap <= epsilon or rules.actions == 1:
            return [absolute]
        if calls >= 2 * self._anchored:
            self._choose_anchor(graph, rules, work, tolerance, absolute, calls)
        if not self._relative:
            return [absolute]
        ends = float(graph.low[self.anchor]), float(graph.high[self.anchor])
        (relative,) = self._brackets(graph, rules, work, tolerance, [(self.anchor, *ends)])
        found = certificate(relative.root[None])
        if epsilon < found.gap <= 3.0 * epsilon:
            cuts = np.linspace(*ends, PARTS + 1)
            parts = self._brackets(graph, rules, work, tolerance, [(self.anchor, *cuts[i : i + 2]) for i in range(PARTS)])
            found = certificate(np.stack([part.root for part in parts]))
        if self.proved is None or found.gap < self.proved.gap:
            self.proved = found
        return [relative, absolute] if found.gap < gap else [absolute]

    def _choose_anchor(self, graph: Graph, rules: Rules, work: Workspace, tolerance: float, absolute: Bracket, calls: int) -> None:
        """The state that leaves the smallest gap: the root, the last anchor, or one that is visited most."""
        visits = self._new_visits(graph, rules, absolute)[1].reshape(-1, rules.actions).sum(axis=1)
        candidates = dict.fromkeys([self.anchor, 0, *np.argsort(-visits)[:ANCHORS].tolist()])
        tried = [(number, float(graph.low[number]), float(graph.high[number])) for number in candidates]
        gaps = [certificate(each.root[None]).gap for each in self._brackets(graph, rules, work, tolerance, tried)]
        self.anchor, self._anchored = tried[int(np.argmin(gaps))][0], calls
        self._relative = int(min(gaps) < certificate(absolute.root[None]).gap)

    def _tolerance(self, graph: Graph, rules: Rules, epsilon: float) -> float:
        actions = rules.actions
        gap = certificate(np.stack([graph.q_low[:actions], graph.q_high[:actions]], axis=1)[None]).gap
        return ACCURACY * max(epsilon, 0.1 * gap, 1e-9 * float(rules.span_high[0] - rules.span_low[0]))

    def _brackets(
        self, graph: Graph, rules: Rules, work: Workspace, tolerance: float, wanted: Iterable[tuple[int, float, float]]
    ) -> list[Bracket]:
        """Converged bounds for anchors, each with an interval of its value; in threads, if there are several."""
        sides = [
            new_side(graph, rules, side, anchor, value)
            for anchor, low, high in wanted
            for side, value in ((1, low), (-1, high))
        ]

        def converged(side: Side) -> float:
            frames, room = np.zeros_like(work.frames), np.zeros_like(work.room)
            return float(converge(graph, rules, side, frames, room, tolerance))

        if self.threads == 1:
            surpluses = [converged(side) for side in sides]
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                surpluses = list(pool.map(converged, sides))
        ends = [self._root(rules, side, surplus) for side, surplus in zip(sides, surpluses, strict=True)]
        return [
            Bracket(sides[i], sides[i + 1], np.stack([-ends[i + 1], ends[i]], axis=1)) for i in range(0, len(sides), 2)
        ]

    def _root(self, rules: Rules, side: Side, surplus: float) -> Floats:
        """Bounds of the root's action values, less γ times the value of the anchor, [K]."""
        constant = (1.0 - rules.discount) * side.base if side.anchor >= 0 else 0.0
        return side.q[: rules.actions] + surplus + constant

    def _narrow(self, graph: Graph, found: Bracket) -> None:
        """Intersects the intervals of the graph with converged ones. An interval never widens, nor turns over."""
        states, pairs = len(found.upper.values), len(found.upper.q)
        high, q_high = graph.high[:states], graph.q_high[:pairs]
        low, q_low = graph.low[:states], graph.q_low[:pairs]
        slack_high = found.root[0, 1] - found.upper.q[0]
        slack_low = -found.root[0, 0] - found.lower.q[0]
        np.maximum(low, np.minimum(-found.lower.values, high), out=low)
        np.minimum(high, np.maximum(found.upper.values, low), out=high)
        np.maximum(q_low, np.minimum(-found.lower.q - slack_low, q_high), out=q_low)
        np.minimum(q_high, np.maximum(found.upper.q + slack_high, q_low), out=q_high)

    # Counts

    def counts(self, graph: Graph, rules: Rules, brackets: list[Bracket], gap: float, epsilon: float, calls: int, most: int) -> Ints:
        """Samples of each pair in the next round, [n·K], at most `most` in all."""
        counts = graph.pairs["count"][: len(brackets[0].upper.q)]
        visits = [self._averaged(graph, rules, bracket) for bracket in brackets]
        gains = [self._gains(rules, bracket, each) for bracket, each in zip(brackets, visits, strict=True)]
        self._note_holding(rules, brackets[0], visits[0])
        # As if the gap fell like calls^(−ξ), with the mean ξ of what it consists of.
        gain, exponents = gains[0]
        exponent = float(gain @ exponents / max(gain.sum(), 1e-300))
        largest = np.interp(math.log(calls / graph.totals[PAIRS]), np.log([FEW, MANY]), GROWTH)
        growth = float(np.interp(exponent, [0.5, 1.0], [largest, GROWTH[0]]))
        self._last_growth = growth
        if epsilon > 0.0:
            growth = min(growth, max((gap / epsilon) ** (1.0 / exponent) - 1.0, 0.5 * GROWTH[0]))
        budget = max(growth * calls, float(rules.actions))
        shares = [1.0] if len(brackets) == 1 else [1.0 - INSURED, INSURED]
        wanted = np.zeros(len(counts))
        for each, share in zip(gains, shares, strict=True):
            wanted = np.maximum(wanted, _shared_out(counts, *each, share * budget))
        return _whole(wanted, min(most, max(int(budget), 1)))

    def _averaged(self, graph: Graph, rules: Rules, bracket: Bracket) -> Floats:
        """Visits of pairs, averaged over rounds, from above and from below, [2, n·K]."""
        visits, relative = self._new_visits(graph, rules, bracket), bracket.upper.anchor >= 0
        if relative in self._visits:
            before = self._visits[relative]
            memory = MEMORY ** (self._last_growth / GROWTH[0])
            visits *= 1.0 - memory
            visits[:, : before.shape[1]] += memory * before
        self._visits[relative] = visits
        return visits

    def _new_visits(self, graph: Graph, rules: Rules, bracket: Bracket) -> Floats:
        """Discounted visits of the optimistic policy after the challenger, and of the likely best policy, [2, n·K]."""
        actions, upper, lower = rules.actions, bracket.upper, bracket.lower
        likely = 0.5 * (upper.q - lower.q)
        best = int(np.argmax(likely[:actions]))
        others = np.where(np.arange(actions) == best, -np.inf, upper.q[:actions])
        challenger = int(np.argmax(others)) if actions > 1 else 0
        result = np.zeros((2, len(upper.q)))
        waiting = np.zeros(len(upper.values))
        for row, (q, first) in enumerate(((upper.q, challenger), (likely, best))):
            policy = self._policy(q.reshape(-1, actions)).reshape(-1)
            flow(
                graph.pairs,
                graph.successors,
                graph.hits,
                rules.discount,
                np.ascontiguousarray(policy),
                first,
                upper.anchor,
                waiting,
                result[row],
            )
        return result

    def _gains(self, rules: Rules, bracket: Bracket, visits: Floats) -> tuple[Floats, Floats]:
        """What a pair contributes to the fall of the gap, visits·ξ·bonus, and its ξ; [n·K] each."""
        widest = float(rules.span_high[0] - rules.span_low[0])
        sides = (bracket.upper, bracket.lower)
        parts = [
            row * side.exponent * np.minimum(side.bonus, widest) for row, side in zip(visits, sides, strict=True)
        ]
        gain = parts[0] + parts[1]
        weighted = parts[0] * bracket.upper.exponent + parts[1] * bracket.lower.exponent
        return gain, np.divide(weighted, gain, out=np.full_like(gain, 0.5), where=gain > 0.0)

    def _note_holding(self, rules: Rules, bracket: Bracket, visits: Floats) -> None:
        widest = float(rules.span_high[0] - rules.span_low[0])
        parts = visits[0] * np.minimum(bracket.upper.bonus, widest) + visits[1] * np.minimum(
            bracket.lower.bonus, widest
        )
        total = float(parts.sum())
        largest = np.argsort(-parts)[:3]
        self.holding = tuple(Contribution(int(e), float(parts[e] / total)) for e in largest if parts[e] > 0.0)

    # Checkpoints

    def saved(self) -> Arrays:
        """What the next rounds depend on."""
        numbers = [int(self._on), *self._marked, self.anchor, self._anchored, self._relative]
        proved = [] if self.proved is None else [[self.proved.best, self.proved.challenger, self.proved.gap]]
        empty = np.zeros((2, 0))
        return {
            "rounds": np.array(numbers, dtype=np.int64),
            "proved": np.array(proved, dtype=np.float64).reshape(-1, 3),
            "visits": self._visits.get(False, empty),
            "relative_visits": self._visits.get(True, empty),
        }

    def restore(self, arrays: Readable, graph: Graph, rules: Rules) -> None:
        """Takes on what was saved; ValueError if it does not fit."""
        numbers = saving.piece(arrays, "rounds", np.int64, 6)
        proved = saving.finite(arrays, "proved", None, 3)
        visits = {relative: saving.finite(arrays, name, 2, None) for relative, name in _VISITS.items()}
        states = int(graph.totals[STATES])
        saving.require(0 <= numbers[3] < states and (numbers[1:3] > 0).all(), "'rounds' must be those of this search")
        saving.require(len(proved) <= 1, "'proved' must have one row at most")
        for each in visits.values():
            saving.require(each.shape[1] <= states * rules.actions, "'visits' must be those of known pairs")
        self._on, self._marked = bool(numbers[0]), numbers[1:3].copy()
        self.anchor, self._anchored, self._relative = (int(number) for number in numbers[3:])
        self.proved = Certificate(int(proved[0, 0]), int(proved[0, 1]), float(proved[0, 2])) if len(proved) else None
        self._visits = {relative: each.copy() for relative, each in visits.items() if each.shape[1] > 0}


_VISITS = {False: "visits", True: "relative_visits"}


def _shared_out(counts: Ints, gain: Floats, exponent: Floats, budget: float) -> Floats:
    """New samples of pairs, [n·K], `budget` in all: where one more of any would reduce the gap by the same."""
    have = np.maximum(counts, 1.0)
    ratios, powers = gain / have, 1.0 / (1.0 + exponent)

    def new(scale: float) -> Floats:
        return np.asarray(np.maximum(have * (scale * ratios) ** powers - counts, 0.0))

    largest = float(ratios.max(initial=0.0))
    if largest == 0.0:
        return np.zeros(len(counts))
    low, high = 1e-3 / largest, 2.0 / largest
    while new(high).sum() < budget:
        low, high = high, 4.0 * high
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if new(middle).sum() > budget else (middle, high)
    return new(high)


def _whole(wanted: Floats, most: int) -> Ints:
    """Whole numbers near these, with the sum rounded and at most `most`: what is left over by rounding is carried on."""
    total = float(wanted.sum())
    if total > most:
        wanted = wanted * (most / total)
    ends = np.floor(np.cumsum(wanted) + 0.5).astype(np.int64)
    return np.diff(ends, prepend=0)


__all__ = ["Bracket", "Contribution", "Rounds"]
