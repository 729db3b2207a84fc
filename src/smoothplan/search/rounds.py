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
from typing import NamedTuple

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.search import saved as saving
from smoothplan.search.converge import Side, converge, flow, new_side
from smoothplan.search.graph import PAIRS, STATES, Graph, Rules
from smoothplan.search.loop import Workspace
from smoothplan.search.saved import Arrays, Readable, require
from smoothplan.search.ugape import Certificate, certificate

GROWTH = 0.03, 0.1
"""The calls of a round, as a fraction of those before: at first, or where bonuses fall like 1/count, for then one
sample may change everything; and where there are many samples and bonuses fall like 1/√count. Less near the end."""

FEW, MANY = 100, 10_000
"""Calls per pair, between which rounds grow from the smaller fraction to the larger."""

LARGE = 20_000
"""Pairs from which on all rounds grow by the larger fraction, for bounds take long to converge."""

MEMORY = 0.9
"""The weight of earlier visits in their average, after calls have grown by the smaller of these fractions."""

INSURED = 0.25
"""The share of a round that goes on reducing the gap between absolute bounds where relative ones are better."""

PARTS = 4
"""Parts of the interval of the anchor's value, each with relative bounds of its own, where the gap is near ε."""

ANCHORS = 5
"""States that are visited most, and tried as an anchor whenever the calls have doubled."""

EPOCH = 1.5
"""The growth of calls over which discoveries are counted."""

FRESH, STALE = 0.2, 0.1
"""d log(pairs)/d log(calls) above which walks take over from rounds, and below which rounds do so from walks, unless
there are more than `FEW` calls per pair."""

ACCURACY = 3e-3
"""The accuracy of converged values, as a fraction of the gap or of ε, whichever is larger."""

HELD = 3
"""Pairs that are named as holding up the gap."""

Policy = Callable[[Floats], Floats]
"""∇F at action values [n, K] of the first n states."""


class View(NamedTuple):
    """A search as it is now."""

    graph: Graph
    rules: Rules
    work: Workspace

    @property
    def width(self) -> float:
        """Of the interval of all values."""
        return float(self.rules.span_high[0] - self.rules.span_low[0])


class Bracket(NamedTuple):
    """Bounds from above and from below, and the intervals of the root's action values that they prove, [K, 2].

    Where there is an anchor, these are the action values less γ times its value.
    """

    upper: Side
    lower: Side
    root: Floats


class Held(NamedTuple):
    """A pair that holds up the gap at the root."""

    entry: int
    share: float  # of the gap, estimated


class Rounds:
    """Decides between walks and rounds, and what a round samples.

    Args:
        policy: ∇F.

    Attributes:
        threads: threads that converge bounds.
        anchor: the number of the state that relative bounds refer to.
        proved: the best that relative bounds have proved so far.
        differences: estimates of the root's action values by relative bounds, less their mean, [K]; empty before.
        values: what the last sweeps have proved of all values, from below and from above, [2, n].
        exponent: ξ, where the gap falls about like calls^(−ξ).
        holding: the pairs that hold up the gap.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.threads = 1
        self.proved: Certificate | None = None
        self.differences = np.zeros(0)
        self.values = np.zeros((2, 0))
        self.exponent = 0.5
        self.holding: tuple[Held, ...] = ()
        self._on = False
        self._mark = 1, 1  # calls and pairs when the epoch began
        self.anchor = 0
        self._anchored = 0  # calls when it was chosen
        self._relative = False  # whether relative bounds were better then
        self._growth = GROWTH[0]  # of the last round
        self._visits: dict[bool, Floats] = {}  # whether relative → averages from above and from below, [2, n·K]

    def take_over(self, graph: Graph, calls: int) -> bool:
        """Whether the next samples are those of a round: few pairs are new."""
        if calls >= EPOCH * self._mark[0]:
            pairs = max(int(graph.totals[PAIRS]), 1)
            discovery = math.log(pairs / self._mark[1]) / math.log(calls / self._mark[0])
            self._on = discovery <= (FRESH if self._on else STALE) or calls >= FEW * pairs
            self._mark = calls, pairs
        return self._on

    # Bounds

    def tighten(self, view: View, epsilon: float, calls: int) -> list[Bracket]:
        """Converges all bounds, and proves what they prove; returns those to allocate by, the best ones first."""
        absolute = self.sweep(view, epsilon)
        gap = certificate(absolute.root[None]).gap
        if gap <= epsilon:
            return [absolute]
        tolerance = _tolerance(view, epsilon)
        if calls >= 2 * self._anchored:
            self._choose_anchor(view, tolerance, absolute, calls)
        if not self._relative:
            return [absolute]
        ends = _ends(view.graph, self.anchor)
        (relative,) = self._brackets(view, tolerance, [(self.anchor, *ends)])
        middles = relative.root.mean(axis=1)
        self.differences = middles - middles.mean()
        found = certificate(relative.root[None])
        if epsilon < found.gap <= PARTS * epsilon:
            cuts = np.linspace(*ends, PARTS + 1)
            parts = self._brackets(view, tolerance, [(self.anchor, *cuts[i : i + 2]) for i in range(PARTS)])
            found = certificate(np.stack([part.root for part in parts]))
        if self.proved is None or found.gap < self.proved.gap:
            self.proved = found
        return [relative, absolute] if found.gap < gap else [absolute]

    def sweep(self, view: View, epsilon: float) -> Bracket:
        """Converges the intervals of the graph."""
        (found,) = self._brackets(view, _tolerance(view, epsilon), [(-1, 0.0, 0.0)])
        self.values = np.stack([-found.lower.values, found.upper.values])
        _narrow(view.graph, found)
        return found

    def _choose_anchor(self, view: View, tolerance: float, absolute: Bracket, calls: int) -> None:
        """The state that leaves the smallest gap: the root, the last anchor, or one that is visited most."""
        visits = self._new_visits(view, absolute)[1].reshape(-1, view.rules.actions).sum(axis=1)
        candidates = dict.fromkeys([self.anchor, 0, *np.argsort(-visits)[:ANCHORS].tolist()])
        brackets = self._brackets(view, tolerance, [(number, *_ends(view.graph, number)) for number in candidates])
        gaps = [certificate(bracket.root[None]).gap for bracket in brackets]
        self.anchor, self._anchored = list(candidates)[int(np.argmin(gaps))], calls
        self._relative = min(gaps) < certificate(absolute.root[None]).gap

    def _brackets(self, view: View, tolerance: float, wanted: Iterable[tuple[int, float, float]]) -> list[Bracket]:
        """Converged bounds for anchors, each with an interval of its value; by several threads, if there are any."""
        sides = [
            new_side(view.graph, view.rules, side, anchor, value)
            for anchor, low, high in wanted
            for side, value in ((1, low), (-1, high))
        ]

        def root(side: Side) -> Floats:
            """Bounds of the root's action values, less γ times the value of the anchor, [K]."""
            frames, room = np.zeros_like(view.work.frames), np.zeros_like(view.work.room)
            surplus = converge(view.graph, view.rules, side, frames, room, tolerance)
            side.q[:] += surplus
            return side.side * (side.q[: view.rules.actions] + (1.0 - view.rules.discount) * side.base)

        if self.threads == 1:
            roots = [root(side) for side in sides]
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                roots = list(pool.map(root, sides))
        return [
            Bracket(sides[i], sides[i + 1], np.stack([roots[i + 1], roots[i]], axis=1)) for i in range(0, len(sides), 2)
        ]

    # Counts

    def counts(self, view: View, brackets: list[Bracket], gap: float, epsilon: float, calls: int, most: int) -> Ints:
        """Samples of each pair in the next round, [n·K], at most `most` in all."""
        counts = view.graph.pairs["count"][: len(brackets[0].upper.q)]
        visits = [self._averaged(view, bracket) for bracket in brackets]
        gains = [_gains(view, bracket, each) for bracket, each in zip(brackets, visits, strict=True)]
        # As if the gap fell like calls^(−ξ), with the mean ξ of what it consists of.
        gain, exponents = gains[0]
        self.exponent = float(gain @ exponents / gain.sum()) if gain.any() else 0.5
        self.holding = _holding(view, brackets[0], visits[0])
        pairs = int(view.graph.totals[PAIRS])
        largest = np.interp(math.log(calls / pairs), np.log([FEW, MANY]), GROWTH)
        self._growth = float(np.interp(self.exponent, [0.5, 1.0], [largest, GROWTH[0]]))
        if pairs > LARGE:
            self._growth = GROWTH[1]
        growth = self._growth
        if gap < epsilon * (1.0 + growth) ** self.exponent:  # less is enough
            growth = max((gap / epsilon) ** (1.0 / self.exponent) - 1.0, GROWTH[0] / 2.0)
        budget = max(growth * calls, float(view.rules.actions))
        shares = [1.0] if len(brackets) == 1 else [1.0 - INSURED, INSURED]
        wanted = np.zeros(len(counts))
        for each, share in zip(gains, shares, strict=True):
            wanted = np.maximum(wanted, _shared_out(counts, *each, share * budget))
        return _whole(wanted, min(most, int(budget)))

    def _averaged(self, view: View, bracket: Bracket) -> Floats:
        """Visits of pairs, averaged over rounds, from above and from below, [2, n·K]."""
        visits, relative = self._new_visits(view, bracket), bracket.upper.anchor >= 0
        if relative in self._visits:
            before, memory = self._visits[relative], MEMORY ** (self._growth / GROWTH[0])
            visits *= 1.0 - memory
            visits[:, : before.shape[1]] += memory * before
        self._visits[relative] = visits
        return visits

    def _new_visits(self, view: View, bracket: Bracket) -> Floats:
        """Discounted visits of the optimistic policy after the challenger, and of the likely best policy, [2, n·K]."""
        actions, upper = view.rules.actions, bracket.upper.q
        likely = 0.5 * (upper - bracket.lower.q)
        best = int(np.argmax(likely[:actions]))
        challenger = int(np.argmax(np.where(np.arange(actions) == best, -np.inf, upper[:actions])))
        result, waiting = np.zeros((2, len(upper))), np.zeros(len(upper) // actions)
        for row, (q, first) in enumerate(((upper, challenger), (likely, best))):
            policy = np.ascontiguousarray(self._policy(q.reshape(-1, actions))).reshape(-1)
            graph = view.graph.pairs, view.graph.successors, view.graph.hits
            flow(*graph, view.rules.discount, policy, first, bracket.upper.anchor, waiting, result[row])
        return result

    # Checkpoints

    def saved(self) -> Arrays:
        """What the next rounds depend on."""
        proved = [] if self.proved is None else [self.proved]
        return {
            "rounds": np.array([self._on, *self._mark, self.anchor, self._anchored, self._relative], dtype=np.int64),
            "growth": np.array([self._growth]),
            "proved": np.array(proved, dtype=np.float64).reshape(-1, 3),
            "differences": self.differences,
            **{name: self._visits.get(relative, np.zeros((2, 0))) for relative, name in VISITS.items()},
        }

    def restore(self, arrays: Readable, graph: Graph, rules: Rules) -> None:
        """Takes on what was saved; ValueError if it does not fit."""
        numbers = saving.piece(arrays, "rounds", np.int64, 6)
        growth, proved = saving.finite(arrays, "growth", 1), saving.finite(arrays, "proved", None, 3)
        differences = saving.finite(arrays, "differences", None)
        visits = {relative: saving.finite(arrays, name, 2, None).copy() for relative, name in VISITS.items()}
        states = int(graph.totals[STATES])
        require(0 <= numbers[3] < states and (numbers[1:3] > 0).all(), "'rounds' must be those of this search")
        require(len(proved) <= 1, "'proved' must have one row at most")
        require(len(differences) in (0, rules.actions), "'differences' must be those of the actions")
        widest = max(each.shape[1] for each in visits.values())
        require(widest <= states * rules.actions, "'visits' must be those of known pairs")
        on, calls, pairs, self.anchor, self._anchored, relative = numbers.tolist()
        self._on, self._mark, self._relative, self._growth = bool(on), (calls, pairs), bool(relative), float(growth[0])
        self.proved, self.differences = None, differences.copy()
        for best, challenger, gap in proved.tolist():
            self.proved = Certificate(int(best), int(challenger), gap)
        self._visits = {relative: each for relative, each in visits.items() if each.shape[1] > 0}


VISITS = {False: "visits", True: "relative_visits"}
"""Names of saved visits."""


def _ends(graph: Graph, number: int) -> tuple[float, float]:
    """The interval of a state's value."""
    return float(graph.low[number]), float(graph.high[number])


def _tolerance(view: View, epsilon: float) -> float:
    """How accurate converged values must be."""
    actions = view.rules.actions
    gap = certificate(np.stack([view.graph.q_low[:actions], view.graph.q_high[:actions]], axis=1)[None]).gap
    return ACCURACY * max(epsilon, gap, 1e-9 * view.width)


def _narrow(graph: Graph, found: Bracket) -> None:
    """Intersects the intervals of the graph with converged ones. An interval never widens, nor turns over."""
    states, pairs = len(found.upper.values), len(found.upper.q)
    for low, high, below, above in (
        (graph.low[:states], graph.high[:states], -found.lower.values, found.upper.values),
        (graph.q_low[:pairs], graph.q_high[:pairs], -found.lower.q, found.upper.q),
    ):
        np.maximum(low, np.minimum(below, high), out=low)
        np.minimum(high, np.maximum(above, low), out=high)


def _gains(view: View, bracket: Bracket, visits: Floats) -> tuple[Floats, Floats]:
    """What samples of a pair reduce, visits·ξ·bonus, and its ξ; [n·K] each."""
    gain, weighted = np.zeros(visits.shape[1]), np.zeros(visits.shape[1])
    for each, side in zip(visits, (bracket.upper, bracket.lower), strict=True):
        part = each * side.exponent * np.minimum(side.bonus, view.width)
        gain += part
        weighted += part * side.exponent
    return gain, np.divide(weighted, gain, out=np.full_like(gain, 0.5), where=gain > 0.0)


def _holding(view: View, bracket: Bracket, visits: Floats) -> tuple[Held, ...]:
    """The pairs with the largest shares of the gap."""
    parts = sum(
        each * np.minimum(side.bonus, view.width)
        for each, side in zip(visits, (bracket.upper, bracket.lower), strict=True)
    )
    largest = np.argsort(-np.asarray(parts))[:HELD]
    total = float(np.sum(parts))
    return tuple(Held(int(entry), float(parts[entry] / total)) for entry in largest if parts[entry] > 0.0)


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
    """Whole numbers near these, at most `most` in all: what rounding leaves over is carried on to the next."""
    total = float(wanted.sum())
    if total > most:
        wanted = wanted * (most / total)
    ends = np.floor(np.cumsum(wanted) + 0.5).astype(np.int64)
    return np.minimum(np.diff(ends, prepend=0), most)
