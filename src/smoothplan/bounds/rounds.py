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
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays, Readable
from smoothplan.bounds.converge import Side, converge, flow, new_side
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import Rules
from smoothplan.theory.backups import depends_on_state, is_mixture


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
    likely_share: float = 0.01  # the weight of upper bounds along the policy that is likely to be the best
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
    Intervals of illegal actions are [−∞, −∞].
    """
    legal = np.flatnonzero(cases[0, :, 1] > -np.inf)
    cases, actions = cases[:, legal], len(legal)
    if actions == 1:
        return BestAction(int(legal[0]), int(legal[0]), 0.0)
    excess = cases[:, None, :, 1] - cases[:, :, None, 0]  # [m, best, challenger]
    excess[:, np.arange(actions), np.arange(actions)] = -np.inf
    worst = excess.max(axis=0)
    gaps = worst.max(axis=1)
    best = int(np.argmin(gaps))
    return BestAction(int(legal[best]), int(legal[np.argmax(worst[best])]), float(gaps[best]))


def root_entries(rules: Rules) -> slice:
    """The entries of the root's action values."""
    return slice(rules.first * rules.actions, (rules.first + 1) * rules.actions)


def root_intervals(explorer: Explorer) -> Floats:
    """The intervals of the root's action values, [K, 2]."""
    graph, entries = explorer.graph, root_entries(explorer.rules)
    return np.stack([graph.q_low[entries], graph.q_high[entries]], axis=1)


class Bracket(NamedTuple):
    """Bounds from above and from below, and the intervals of the root's action values that they prove, [K, 2].

    If there is an anchor, these are the action values less γ times its value.
    """

    upper: Side
    lower: Side
    root: Floats


KEPT = (
    *("proved", "differences", "exponent", "bottlenecks", "anchor"),
    *("_on", "_mark", "_compared", "_anchored", "_relative", "_growth", "_visits"),
)
"""Attributes of `Rounds` that a checkpoint keeps."""


class Rounds:
    """Decides between walks and rounds, and chooses the samples of a round.

    There are no rounds if counts are stage-wise, if samples are those of trajectories, or if the backup is no mixture
    of softmaxes.

    Attributes:
        anchor: the number of the state that relative bounds refer to.
        proved: the best proof by relative bounds so far; its gap is infinite before there is any.
        differences: estimates of the root's action values by relative bounds, less their mean, [K]; empty before.
        width: of the interval of all values.
        values: bounds of all values by the last sweeps, from below and from above, [2, n·H].
        exponent: ξ, if the gap falls about like calls^(−ξ).
        bottlenecks: the pairs that hold up the gap, by their entries, and the estimated share of each, [m, 2].
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer, rules = explorer, explorer.rules
        self._by_state = depends_on_state(explorer.backup)
        self._possible = rules.records == 1 and rules.focused and is_mixture(explorer.backup)
        self.width = float(rules.span_high[rules.first] - rules.span_low[rules.first])
        self.proved = BestAction(0, 0, math.inf)
        self.differences = np.zeros(0)
        self.values = np.zeros((2, 0))
        self.exponent = 0.5
        self.bottlenecks = np.zeros((0, 2))
        self._on = False
        self._mark = np.array([1, 1])  # calls and pairs when the epoch began
        self._compared = 1  # calls when declared values were last compared with proved ones
        self.anchor = 0
        self._anchored = 0  # calls when it was chosen
        self._relative = False  # whether relative bounds were better then
        self._growth = SHARING.growth[0]  # of the last round
        self._visits = np.zeros((2, 2, 0))  # averages by absolute and by relative bounds, [2, 2, n·H·K]

    def take_over(self, calls: int) -> bool:
        """Whether the next samples are those of a round: few pairs are new."""
        if self._possible and calls >= SHARING.epoch * self._mark[0]:
            pairs = max(int(self._explorer.graph.totals[0]["pairs"]), 1)
            discovery = math.log(pairs / self._mark[1]) / math.log(calls / self._mark[0])
            fresh, stale = SHARING.discovery
            self._on = discovery <= (fresh if self._on else stale) or calls >= SHARING.calls_per_pair[0] * pairs
            self._mark = np.array([calls, pairs])
        return self._on

    def compare_now(self, calls: int) -> bool:
        """Whether walks have doubled the calls since declared values were compared with the proved ones."""
        if not self._possible or calls < 2 * self._compared:
            return False
        self._compared = calls
        return True

    # Bounds

    def tighten(self, epsilon: float, threads: int = 1) -> list[Bracket]:
        """Converges all bounds and keeps their proof; returns those to allocate by, the best ones first."""
        graph, calls = self._explorer.graph, self._explorer.oracle.calls
        absolute = self.sweep(epsilon, threads)
        gap = best_action(absolute.root[None]).gap
        if gap <= epsilon or self._explorer.rules.horizon:  # states that do not recur are no anchors
            return [absolute]
        tolerance = self._tolerance(epsilon)
        if calls >= 2 * self._anchored:
            # The state that leaves the smallest gap: the root, the last anchor, or one that is visited most.
            visits = self._new_visits(absolute)[1].reshape(-1, self._explorer.rules.actions).sum(axis=1)
            anchors = list(dict.fromkeys([self.anchor, 0, *np.argsort(-visits)[: SHARING.anchors].tolist()]))
            ends = [(state, graph.low[state], graph.high[state]) for state in anchors]
            gaps = [best_action(bracket.root[None]).gap for bracket in self._brackets(tolerance, ends, threads)]
            self.anchor, self._anchored, self._relative = anchors[int(np.argmin(gaps))], calls, min(gaps) < gap
        if not self._relative:
            return [absolute]
        low, high = graph.low[self.anchor], graph.high[self.anchor]
        (relative,) = self._brackets(tolerance, [(self.anchor, low, high)], threads)
        middles = relative.root.mean(axis=1)
        self.differences = middles - middles[middles > -np.inf].mean()
        found = best_action(relative.root[None])
        if epsilon < found.gap <= SHARING.parts * epsilon:
            cuts = pairwise(np.linspace(low, high, SHARING.parts + 1))
            parts = self._brackets(tolerance, [(self.anchor, *ends) for ends in cuts], threads)
            found = best_action(np.stack([part.root for part in parts]))
        if found.gap < self.proved.gap:
            self.proved = found
        return [relative, absolute] if found.gap < gap else [absolute]

    def sweep(self, epsilon: float, threads: int = 1) -> Bracket:
        """Converges the intervals of the graph. An interval never widens, nor turns over."""
        graph = self._explorer.graph
        (found,) = self._brackets(self._tolerance(epsilon), [(-1, 0.0, 0.0)], threads)
        upper, lower, _ = found
        self.values = np.stack([-lower.values, upper.values])
        states, pairs = len(upper.values), len(upper.q)
        for low, high, below, above in (
            (graph.low[:states], graph.high[:states], *self.values),
            (graph.q_low[:pairs], graph.q_high[:pairs], -lower.q, upper.q),
        ):
            np.maximum(low, np.minimum(below, high), out=low)
            np.minimum(high, np.maximum(above, low), out=high)
        return found

    def _tolerance(self, epsilon: float) -> float:
        """The accuracy that converged values need."""
        gap = best_action(root_intervals(self._explorer)[None]).gap
        return SHARING.accuracy * max(epsilon, gap, 1e-9 * self.width)

    def _brackets(self, tolerance: float, wanted: Iterable[tuple[int, float, float]], threads: int) -> list[Bracket]:
        """Converged bounds for anchors, each with an interval of its value, by a number of threads."""
        graph, rules, work = self._explorer.graph, self._explorer.rules, self._explorer.work
        order = self._explorer.order()
        sides = [
            new_side(graph, rules, side, anchor, float(value), order)
            for anchor, low, high in wanted
            for side, value in ((1, low), (-1, high))
        ]

        def root(side: Side) -> Floats:
            """Bounds of the root's action values, less γ times the value of the anchor, [K]."""
            converge(graph, rules, side, np.zeros_like(work.frames), np.zeros_like(work.room), tolerance)
            return side.side * (side.q[root_entries(rules)] + (1.0 - rules.discount) * side.base)

        if threads == 1:
            roots = [root(side) for side in sides]
        else:
            with ThreadPoolExecutor(threads) as pool:
                roots = list(pool.map(root, sides))
        pairs = zip(sides[::2], sides[1::2], roots[::2], roots[1::2], strict=True)
        return [Bracket(upper, lower, np.stack([low, high], axis=1)) for upper, lower, high, low in pairs]

    # Counts

    def counts(self, brackets: list[Bracket], gap: float, epsilon: float, most: int) -> Ints:
        """Samples of each pair in the next round, [n·K], at most `most` in all."""
        graph, calls = self._explorer.graph, self._explorer.oracle.calls
        gains = []  # of samples of each pair, visits·ξ·bonus, and its ξ; [n·K] each
        for bracket in brackets:
            visits, (upper, lower, _) = self._averaged(bracket), bracket
            # Which policy is likely to be the best depends on both bounds: it could stay wrong for ever if only the
            # lower ones were tightened along it.
            visits = np.stack([visits[0] + SHARING.likely_share * visits[1], visits[1]])
            exponents = np.stack([upper.exponent, lower.exponent])
            bonuses = np.minimum([upper.bonus, lower.bonus], self.width)
            parts = visits * exponents * bonuses
            gain, weighted = self._pooled(parts), self._pooled(parts * exponents)
            gains.append((gain, np.divide(weighted, gain, out=np.full_like(gain, 0.5), where=gain > 0.0)))
            if bracket is brackets[0]:
                # The gap falls like calls^(−ξ), with the mean ξ of its parts; the largest parts hold it up.
                self.exponent = float(gain @ gains[0][1] / gain.sum()) if gain.any() else 0.5
                shares = self._pooled(visits * bonuses)
                largest = np.argsort(-shares)[: SHARING.bottlenecks]
                largest = largest[shares[largest] > 0.0]
                self.bottlenecks = np.stack([largest, shares[largest] / np.sum(shares)], axis=1)
        # The size of the round.
        small, large = SHARING.growth
        pairs = int(graph.totals[0]["pairs"])
        largest_growth = np.interp(math.log(calls / pairs), np.log(SHARING.calls_per_pair), SHARING.growth)
        by_exponent = float(np.interp(self.exponent, [0.5, 1.0], [largest_growth, small]))
        growth = self._growth = large if pairs > SHARING.large else by_exponent
        if gap < epsilon * (1.0 + growth) ** self.exponent:  # less is enough
            growth = max((gap / epsilon) ** (1.0 / self.exponent) - 1.0, small / 2.0)
        budget = max(growth * calls, float(self._explorer.rules.actions))
        split = [1.0] if len(brackets) == 1 else [1.0 - SHARING.absolute_share, SHARING.absolute_share]
        counts = graph.pairs["count"][: len(gains[0][0])]
        wanted = np.zeros(len(counts))
        for each, share in zip(gains, split, strict=True):
            wanted = np.maximum(wanted, _shared_out(counts, *each, share * budget))
        # Whole numbers near these: the remainder of rounding is carried on to the next.
        most, total = min(most, int(budget)), float(wanted.sum())
        if total > most:
            wanted = wanted * (most / total)
        ends = np.floor(np.cumsum(wanted) + 0.5).astype(np.int64)
        return np.minimum(np.diff(ends, prepend=0), most)

    def _pooled(self, parts: Floats) -> Floats:
        """What samples of each pair, [n·K], have to do with all stages, from above and from below, [2, n·H·K]."""
        rules = self._explorer.rules
        return np.asarray(parts.reshape(2, -1, rules.stages, rules.actions).sum(axis=(0, 2)).reshape(-1))

    def _averaged(self, bracket: Bracket) -> Floats:
        """Visits of pairs, averaged over rounds, from above and from below, [2, n·H·K]."""
        visits, kind, before = self._new_visits(bracket), int(bracket.upper.anchor >= 0), self._visits
        self._visits = np.zeros((2, *visits.shape))
        self._visits[..., : before.shape[2]] = before
        if before[kind].any():
            memory = SHARING.memory ** (self._growth / SHARING.growth[0])
            visits = (1.0 - memory) * visits + memory * self._visits[kind]
        self._visits[kind] = visits
        return visits

    def _new_visits(self, bracket: Bracket) -> Floats:
        """Discounted visits of the optimistic policy after the challenger, and of the likely best one, [2, n·H·K]."""
        graph, rules, backup = self._explorer.graph, self._explorer.rules, self._explorer.backup
        actions, upper = rules.actions, bracket.upper.q
        likely = 0.5 * (upper - bracket.lower.q)
        entries = root_entries(rules)
        best = int(np.argmax(likely[entries]))
        challenger = int(np.argmax(np.where(np.arange(actions) == best, -np.inf, upper[entries])))
        result, waiting = np.zeros((2, len(upper))), np.zeros(len(upper) // actions)
        states = None
        if self._by_state:
            nodes = np.repeat(np.asarray(self._explorer.states), rules.stages, axis=0)
            states = np.concatenate(2 * [nodes[: len(waiting)]])
        policies = backup.policy(np.concatenate([upper, likely]).reshape(-1, actions), states)
        for row, (policy, first) in enumerate(zip(policies.reshape(2, -1), (challenger, best), strict=True)):
            flow(graph, rules, bracket.upper, np.ascontiguousarray(policy), first, waiting, result[row])
        return result

    # Checkpoints

    def saved(self) -> Arrays:
        """The state that the next rounds and the progress of the search depend on."""
        return {f"rounds.{name}": np.array(getattr(self, name)) for name in KEPT}

    def restore(self, arrays: Readable) -> None:
        """Takes on the saved state, of a graph that is restored too."""
        for name in KEPT:
            array = arrays[f"rounds.{name}"]
            setattr(self, name, array.copy() if array.ndim else array.item())
        best, challenger, gap = arrays["rounds.proved"].tolist()
        self.proved = BestAction(int(best), int(challenger), gap)


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
