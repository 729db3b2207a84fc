"""Rounds of samples for states that recur: the counts of all pairs are decided at once.

The gap at the root is about Σ visits·bonus over pairs: the discounted visits of the optimistic policy after the
challenger, times the excess of each pair's upper bound over its estimate, and those of the likely best policy after the
best action, times the deficit of the lower bound. A bonus falls like count^(−ξ), so the fewest calls for a gap are
those at which one more sample of any pair would reduce it equally: n ∝ (visits·ξ·bonus·n^ξ)^(1/(1+ξ)).

The optimistic policy is the best of many that are nearly as optimistic, and changes as soon as its pairs are known
better. So visits are averaged over rounds. That is fictitious play: an adversary answers every round with the most
optimistic policy, and the samples are the best response to its answers so far.
"""

import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.streams import CALLS
from smoothplan.bounds.converge import Side, converge, flow, new_side
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import Graph
from smoothplan.theory.backups import depends_on_state


class RoundTuning(NamedTuple):
    """The numbers that tune rounds. Any others are valid too: they change the price of a search, and nothing else.

    A round makes a fraction of the calls made before, less near the end. The fraction is small at first, or while
    bonuses fall like 1/count, as one sample may then change everything; it is large after many samples, once bonuses
    fall like 1/√count, or if there are so many pairs that bounds take long to converge.
    """

    growth: tuple[float, float] = 0.03, 0.1  # the small and the large fraction
    calls_per_pair: tuple[int, int] = 100, 10_000  # between these, rounds grow from the small fraction to the large
    large: int = 20_000  # pairs from which on all rounds grow by the large fraction
    memory: float = 0.9  # the weight of earlier visits in their average, after calls have grown by the small fraction
    absolute_share: float = 0.25  # the share of a round that reduces the absolute gap while relative bounds are better
    parts: int = 4  # parts of the interval of the anchor's value, each with its own relative bounds, for a gap near ε
    anchors: int = 5  # the most visited states, tried as an anchor whenever the calls have doubled
    epoch: float = 1.5  # the growth of calls over which discoveries are counted
    # d log(pairs)/d log(calls): above the first, walks take over from rounds; below the second, rounds take over from
    # walks, and after more calls than the smaller `calls_per_pair` in any case.
    discovery: tuple[float, float] = 0.2, 0.1
    accuracy: float = 3e-3  # of converged values, as a fraction of the gap or of ε, whichever is larger
    bottlenecks: int = 3  # pairs that are reported to hold up the gap


SHARING = RoundTuning()


class BestAction(NamedTuple):
    """No action is better than the best one by more than the gap."""

    best: int
    challenger: int
    gap: float


def best_action(cases: Floats) -> BestAction:
    """The action with the smallest gap, if one of several cases holds: intervals [m, K, 2], of all actions in each.

    Only differences within a case matter: its intervals may be those of action values less a number common to all.
    """
    actions = cases.shape[1]
    if actions == 1:
        return BestAction(0, 0, 0.0)
    excess = cases[:, None, :, 1] - cases[:, :, None, 0]  # [m, best, challenger]
    excess[:, np.arange(actions), np.arange(actions)] = -np.inf
    worst = excess.max(axis=0)
    gaps = worst.max(axis=1)
    best = int(np.argmin(gaps))
    return BestAction(best, int(np.argmax(worst[best])), float(gaps[best]))


def root_intervals(explorer: Explorer) -> Floats:
    """The intervals of the root's action values, [K, 2]."""
    graph, actions = explorer.graph, explorer.rules.actions
    return np.stack([graph.q_low[:actions], graph.q_high[:actions]], axis=1)


class Bracket(NamedTuple):
    """Bounds from above and from below, and the intervals of the root's action values that they prove, [K, 2].

    If there is an anchor, these are the action values less γ times its value.
    """

    upper: Side
    lower: Side
    root: Floats


class Rounds:
    """Decides between walks and rounds, and chooses the samples of a round.

    Args:
        explorer: owns the graph.

    Attributes:
        anchor: the number of the state that relative bounds refer to.
        proved: the best proof by relative bounds so far.
        differences: estimates of the root's action values by relative bounds, less their mean, [K]; empty before.
        values: bounds of all values by the last sweeps, from below and from above, [2, n].
        exponent: ξ, if the gap falls about like calls^(−ξ).
        bottlenecks: the pairs that hold up the gap, and the estimated share of each.
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer, self._by_state = explorer, depends_on_state(explorer.backup)
        self.proved: BestAction | None = None
        self.differences = np.zeros(0)
        self.values = np.zeros((2, 0))
        self.exponent = 0.5
        self.bottlenecks: tuple[tuple[int, float], ...] = ()
        self._on = False
        self._mark = 1, 1  # calls and pairs when the epoch began
        self._compared = 1  # calls at the last `compare_now`
        self.anchor = 0
        self._anchored = 0  # calls when it was chosen
        self._relative = False  # whether relative bounds were better then
        self._growth = SHARING.growth[0]  # of the last round
        self._visits: dict[bool, Floats] = {}  # whether relative → averages from above and from below, [2, n·K]

    def take_over(self, calls: int) -> bool:
        """Whether the next samples are those of a round: few pairs are new."""
        if calls >= SHARING.epoch * self._mark[0]:
            pairs = max(int(self._explorer.graph.totals[0]["pairs"]), 1)
            discovery = math.log(pairs / self._mark[1]) / math.log(calls / self._mark[0])
            fresh, stale = SHARING.discovery
            self._on = discovery <= (fresh if self._on else stale) or calls >= SHARING.calls_per_pair[0] * pairs
            self._mark = calls, pairs
        return self._on

    def compare_now(self, calls: int) -> bool:
        """Whether walks have doubled the calls since declared values were compared with the proved ones."""
        if calls < 2 * self._compared:
            return False
        self._compared = calls
        return True

    # Bounds

    def tighten(self, epsilon: float, threads: int = 1) -> list[Bracket]:
        """Converges all bounds and keeps their proof; returns those to allocate by, the best ones first."""
        calls = self._calls
        absolute = self.sweep(epsilon, threads)
        gap = best_action(absolute.root[None]).gap
        if gap <= epsilon:
            return [absolute]
        tolerance = self._tolerance(epsilon)
        if calls >= 2 * self._anchored:
            self._choose_anchor(tolerance, absolute, calls, threads)
        if not self._relative:
            return [absolute]
        low, high = self._ends(self.anchor)
        (relative,) = self._brackets(tolerance, [(self.anchor, low, high)], threads)
        middles = relative.root.mean(axis=1)
        self.differences = middles - middles.mean()
        found = best_action(relative.root[None])
        if epsilon < found.gap <= SHARING.parts * epsilon:
            cuts = np.linspace(low, high, SHARING.parts + 1)
            parts = self._brackets(tolerance, [(self.anchor, *cuts[i : i + 2]) for i in range(SHARING.parts)], threads)
            found = best_action(np.stack([part.root for part in parts]))
        if self.proved is None or found.gap < self.proved.gap:
            self.proved = found
        return [relative, absolute] if found.gap < gap else [absolute]

    def sweep(self, epsilon: float, threads: int = 1) -> Bracket:
        """Converges the intervals of the graph."""
        (found,) = self._brackets(self._tolerance(epsilon), [(-1, 0.0, 0.0)], threads)
        self.values = np.stack([-found.lower.values, found.upper.values])
        _narrow(self._explorer.graph, found)
        return found

    def _tolerance(self, epsilon: float) -> float:
        """The accuracy that converged values need."""
        return SHARING.accuracy * max(
            epsilon, best_action(root_intervals(self._explorer)[None]).gap, 1e-9 * self._width
        )

    @property
    def _calls(self) -> int:
        return int(self._explorer.oracle.stream[CALLS])

    @property
    def _width(self) -> float:
        """Of the interval of all values."""
        rules = self._explorer.rules
        return float(rules.span_high[0] - rules.span_low[0])

    def _ends(self, number: int) -> tuple[float, float]:
        """The interval of a state's value."""
        return float(self._explorer.graph.low[number]), float(self._explorer.graph.high[number])

    def _choose_anchor(self, tolerance: float, absolute: Bracket, calls: int, threads: int) -> None:
        """The state that leaves the smallest gap: the root, the last anchor, or one that is visited most."""
        visits = self._new_visits(absolute)[1].reshape(-1, self._explorer.rules.actions).sum(axis=1)
        candidates = dict.fromkeys([self.anchor, 0, *np.argsort(-visits)[: SHARING.anchors].tolist()])
        brackets = self._brackets(tolerance, [(number, *self._ends(number)) for number in candidates], threads)
        gaps = [best_action(bracket.root[None]).gap for bracket in brackets]
        self.anchor, self._anchored = list(candidates)[int(np.argmin(gaps))], calls
        self._relative = min(gaps) < best_action(absolute.root[None]).gap

    def _brackets(self, tolerance: float, wanted: Iterable[tuple[int, float, float]], threads: int) -> list[Bracket]:
        """Converged bounds for anchors, each with an interval of its value, by a number of threads."""
        graph, rules, work = self._explorer.graph, self._explorer.rules, self._explorer.work
        sides = [
            new_side(graph, rules, side, anchor, value)
            for anchor, low, high in wanted
            for side, value in ((1, low), (-1, high))
        ]

        def root(side: Side) -> Floats:
            """Bounds of the root's action values, less γ times the value of the anchor, [K]."""
            frames, room = np.zeros_like(work.frames), np.zeros_like(work.room)
            side.q[:] += converge(graph, rules, side, frames, room, tolerance)
            return side.side * (side.q[: rules.actions] + (1.0 - rules.discount) * side.base)

        if threads == 1:
            roots = [root(side) for side in sides]
        else:
            with ThreadPoolExecutor(threads) as pool:
                roots = list(pool.map(root, sides))
        return [
            Bracket(sides[i], sides[i + 1], np.stack([roots[i + 1], roots[i]], axis=1)) for i in range(0, len(sides), 2)
        ]

    # Counts

    def counts(self, brackets: list[Bracket], gap: float, epsilon: float, most: int) -> Ints:
        """Samples of each pair in the next round, [n·K], at most `most` in all."""
        graph, calls = self._explorer.graph, self._calls
        counts = graph.pairs["count"][: len(brackets[0].upper.q)]
        visits = [self._averaged(bracket) for bracket in brackets]
        gains = [self._gains(bracket, each) for bracket, each in zip(brackets, visits, strict=True)]
        # As if the gap fell like calls^(−ξ), with the mean ξ of its parts.
        gain, exponents = gains[0]
        self.exponent = float(gain @ exponents / gain.sum()) if gain.any() else 0.5
        self.bottlenecks = self._largest_parts(brackets[0], visits[0])
        small, large = SHARING.growth
        pairs = int(graph.totals[0]["pairs"])
        largest = np.interp(math.log(calls / pairs), np.log(SHARING.calls_per_pair), SHARING.growth)
        self._growth = large if pairs > SHARING.large else float(np.interp(self.exponent, [0.5, 1.0], [largest, small]))
        growth = self._growth
        if gap < epsilon * (1.0 + growth) ** self.exponent:  # less is enough
            growth = max((gap / epsilon) ** (1.0 / self.exponent) - 1.0, small / 2.0)
        budget = max(growth * calls, float(self._explorer.rules.actions))
        shares = [1.0] if len(brackets) == 1 else [1.0 - SHARING.absolute_share, SHARING.absolute_share]
        wanted = np.zeros(len(counts))
        for each, share in zip(gains, shares, strict=True):
            wanted = np.maximum(wanted, _shared_out(counts, *each, share * budget))
        return _whole(wanted, min(most, int(budget)))

    def _averaged(self, bracket: Bracket) -> Floats:
        """Visits of pairs, averaged over rounds, from above and from below, [2, n·K]."""
        visits, relative = self._new_visits(bracket), bracket.upper.anchor >= 0
        if relative in self._visits:
            before, memory = self._visits[relative], SHARING.memory ** (self._growth / SHARING.growth[0])
            visits *= 1.0 - memory
            visits[:, : before.shape[1]] += memory * before
        self._visits[relative] = visits
        return visits

    def _new_visits(self, bracket: Bracket) -> Floats:
        """Discounted visits of the optimistic policy after the challenger, and of the likely best policy, [2, n·K]."""
        graph, rules, backup = self._explorer.graph, self._explorer.rules, self._explorer.backup
        actions, upper = rules.actions, bracket.upper.q
        likely = 0.5 * (upper - bracket.lower.q)
        best = int(np.argmax(likely[:actions]))
        challenger = int(np.argmax(np.where(np.arange(actions) == best, -np.inf, upper[:actions])))
        result, waiting = np.zeros((2, len(upper))), np.zeros(len(upper) // actions)
        states = np.concatenate(2 * [np.asarray(self._explorer.states)[: len(waiting)]]) if self._by_state else None
        policies = backup.policy(np.concatenate([upper, likely]).reshape(-1, actions), states)
        seen = graph.pairs, graph.successors, graph.hits
        for row, (policy, first) in enumerate(zip(policies.reshape(2, -1), (challenger, best), strict=True)):
            flow(*seen, rules.discount, np.ascontiguousarray(policy), first, bracket.upper.anchor, waiting, result[row])
        return result

    def _gains(self, bracket: Bracket, visits: Floats) -> tuple[Floats, Floats]:
        """The gain of samples of a pair, visits·ξ·bonus, and its ξ; [n·K] each."""
        gain, weighted = np.zeros(visits.shape[1]), np.zeros(visits.shape[1])
        for each, side in zip(visits, (bracket.upper, bracket.lower), strict=True):
            part = each * side.exponent * np.minimum(side.bonus, self._width)
            gain += part
            weighted += part * side.exponent
        return gain, np.divide(weighted, gain, out=np.full_like(gain, 0.5), where=gain > 0.0)

    def _largest_parts(self, bracket: Bracket, visits: Floats) -> tuple[tuple[int, float], ...]:
        """The pairs with the largest shares of the gap, by their entries."""
        bonuses = np.minimum([bracket.upper.bonus, bracket.lower.bonus], self._width)
        parts = visits[0] * bonuses[0] + visits[1] * bonuses[1]
        largest, total = np.argsort(-parts)[: SHARING.bottlenecks], float(np.sum(parts))
        return tuple((int(entry), float(parts[entry] / total)) for entry in largest if parts[entry] > 0.0)

    # Checkpoints

    def saved(self) -> Arrays:
        """The state that the next rounds and the progress of the search depend on."""
        numbers = [self._on, *self._mark, self.anchor, self._anchored, self._relative, self._compared]
        return {
            "rounds": np.array(numbers, dtype=np.int64),
            "growth": np.array([self._growth, self.exponent]),
            "bottlenecks": np.array(self.bottlenecks, dtype=np.float64).reshape(-1, 2),
            "proved": np.array([] if self.proved is None else [self.proved], dtype=np.float64).reshape(-1, 3),
            "differences": self.differences,
            "visits": self._visits.get(False, np.zeros((2, 0))),
            "relative_visits": self._visits.get(True, np.zeros((2, 0))),
        }

    def restored(self, arrays: Readable) -> "Rounds":
        """The saved state, of a graph that is restored too."""
        result, numbers = Rounds(self._explorer), arrays["rounds"].tolist()
        on, calls, pairs, result.anchor, result._anchored, relative, result._compared = numbers
        result._on, result._mark, result._relative = bool(on), (calls, pairs), bool(relative)
        result._growth, result.exponent = arrays["growth"].tolist()
        result.bottlenecks = tuple((int(entry), share) for entry, share in arrays["bottlenecks"].tolist())
        for best, challenger, gap in arrays["proved"].tolist():
            result.proved = BestAction(int(best), int(challenger), gap)
        result.differences = arrays["differences"].copy()
        visits = {False: arrays["visits"], True: arrays["relative_visits"]}
        result._visits = {kind: each.copy() for kind, each in visits.items() if each.size}
        return result


def _narrow(graph: Graph, found: Bracket) -> None:
    """Intersects the intervals of the graph with converged ones. An interval never widens, nor turns over."""
    states, pairs = len(found.upper.values), len(found.upper.q)
    for low, high, below, above in (
        (graph.low[:states], graph.high[:states], -found.lower.values, found.upper.values),
        (graph.q_low[:pairs], graph.q_high[:pairs], -found.lower.q, found.upper.q),
    ):
        np.maximum(low, np.minimum(below, high), out=low)
        np.minimum(high, np.maximum(above, low), out=high)


def _shared_out(counts: Ints, gain: Floats, exponent: Floats, budget: float) -> Floats:
    """New samples of pairs, [n·K], `budget` in all, such that one more of any would reduce the gap equally."""
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
    """Whole numbers near these, at most `most` in all: the remainder of rounding is carried on to the next."""
    total = float(wanted.sum())
    if total > most:
        wanted = wanted * (most / total)
    ends = np.floor(np.cumsum(wanted) + 0.5).astype(np.int64)
    return np.minimum(np.diff(ends, prepend=0), most)
