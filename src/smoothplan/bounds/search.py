"""A search by bounds at work: by walks while they discover much, by rounds of samples once states recur."""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np

from smoothplan.base.arguments import Floats
from smoothplan.base.records import Arrays, Readable
from smoothplan.bounds.explored import explored
from smoothplan.bounds.rounds import Rounds
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import COMPARED, PAIRS, ROUNDS, STATES
from smoothplan.graph.sampling import Batch, Draw, PairSampler, Sampled
from smoothplan.graph.sets import BestAction, best_action
from smoothplan.models.model import declared_values
from smoothplan.run.chunks import Chunk, Work
from smoothplan.run.progress import Bottleneck, Display, GapProgress
from smoothplan.run.records import GapDetails, History, Root, Snapshot, Status
from smoothplan.run.session import SLICE_CALLS, in_slices
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import is_mixture


class SearchRun:
    """A search for an action that is ε-optimal with probability 1 − δ. What it proves holds whenever it stops.

    Args:
        explorer: owns the graph, which may have been explored before.
        root: the limits of the run.
        epsilon, delta: ε and δ; δ is that of the explorer's rules.
        certified: whether its thresholds cover δ.
    """

    def __init__(self, explorer: Explorer, root: Root, epsilon: float, delta: float, certified: bool = True) -> None:
        self.explorer, self._root = explorer, root
        self.epsilon, self.delta, self._certified = epsilon, delta, certified
        self._history = History()
        rules = explorer.rules
        recurs = rules.endless and rules.focused and rules.published < 0.0 and is_mixture(explorer.backup)
        self.rounds = Rounds(explorer) if recurs else None
        self._declares_values = declared_values(root.model) is not None
        explorer.graph.totals[COMPARED] = max(1, explorer.graph.totals[COMPARED])

    def run(self, workers: Workers, display: Display) -> Status:
        """Searches until the gap is within ε or a limit is reached."""
        return "converged" if self.search(self._root.max_calls, workers, display) else "max_calls"

    def search(self, max_calls: int | None, workers: Workers, display: Display) -> bool:
        """Searches until the gap is within ε or a number of calls is made; returns whether it is.

        Walks build on each other, so one worker makes them. The chunks of a round are drawn by all workers, and threads
        of this process sweep its bounds.
        """
        root, role = self._root, self.explorer.oracle.role
        work = Work(PairSampler(), root.model, root.state, root.seed, kept=False, role=role)

        def draw(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Sampled]]:
            chunks = (Chunk(number, PairSampler.pairs, (*pairs,), int(pairs[2].sum())) for number, *pairs in batches)
            for chunk, outcome in workers.in_order(work, chunks):
                yield (chunk.number, *chunk.arguments), outcome.sums
                display.update(self.calls, self.interval, self.progress)

        def explore(until: int, limit: int) -> bool:
            return self.explore(until, limit, draw, workers.threads)

        return in_slices(self, explore, max_calls, workers, display)

    def explore(self, until: int, limit: int, draw: Draw, threads: int = 1) -> bool:
        """Makes walks until a number of calls is made, or one round; returns whether the gap is within ε.

        Args:
            until: no walk begins after this many calls in all.
            limit: no call is made after this many in all; a round may use them all.
            draw: calls the simulator for a round.
            threads: sweep the bounds.
        """
        converged = self._round(limit, draw, threads)
        if converged is None:
            converged = self.explorer.explore(self.epsilon, until, SLICE_CALLS, limit)
        self._history.add(self.calls, self.explorer.intervals)
        return converged

    def _round(self, limit: int, draw: Draw, threads: int) -> bool | None:
        """A round of samples; None if walks are better."""
        rounds, totals = self.rounds, self.explorer.graph.totals
        if rounds is None:
            return None
        if not rounds.take_over(self.calls):
            if self._declares_values and self.calls >= 2 * totals[COMPARED]:
                totals[COMPARED] = self.calls
                rounds.sweep(self.epsilon, threads)
                self._require_possible(rounds)
            return None
        brackets = rounds.tighten(self.epsilon, threads)
        self._require_possible(rounds)
        best, challenger, gap = self.proved
        if gap <= self.epsilon:
            return True
        if self.calls >= limit:
            return False
        counts = rounds.counts(brackets, gap, self.epsilon, limit - self.calls)
        if not counts.any():  # no sample helps: the actions are tied for certain
            return None
        self.explorer.sample(np.flatnonzero(counts), counts[counts > 0], (best, challenger), draw)
        self.explorer.graph.totals[ROUNDS] += 1
        return False

    def _require_possible(self, rounds: Rounds) -> None:
        """Compares what sweeps have proved of every value with the range that the model declares."""
        explorer, (low, high) = self.explorer, rounds.values
        for number in (int(np.argmax(low)), int(np.argmin(high))):
            proved = float(low[number]), float(high[number])
            curvature.require_possible(self._root.model, explorer.backup, proved, explorer.state(number))

    # What is known

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self.explorer.oracle.calls

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the root's value."""
        return self.explorer.interval

    @property
    def proved(self) -> BestAction:
        """The best that is proved: by the intervals of the action values, or by relative bounds."""
        found = best_action(self.explorer.intervals[None])
        relative = None if self.rounds is None else self.rounds.proved
        return found if relative is None or found.gap <= relative.gap else relative

    @property
    def estimates(self) -> Floats:
        """Estimates of the root's action values, within their intervals, [K]."""
        intervals = self.explorer.intervals
        middles = intervals.mean(axis=1)
        if self.rounds is not None and len(self.rounds.differences):
            middles = middles.mean() + self.rounds.differences
        return np.asarray(np.clip(middles, intervals[:, 0], intervals[:, 1]))

    @property
    def progress(self) -> GapProgress:
        """How far the identification of the best action is."""
        explorer, rounds, gap = self.explorer, self.rounds, self.proved.gap
        low, high = explorer.span
        price = None
        if self.calls > 0 and 0.0 < self.epsilon < gap:
            exponent = 0.5 if rounds is None else rounds.exponent
            with suppress(OverflowError):  # more than a float can count: no estimate
                price = math.exp(math.log(self.calls) + (math.log(gap) - math.log(self.epsilon)) / exponent)
        bottlenecks = tuple(
            Bottleneck(explorer.state(entry // explorer.rules.actions), entry % explorer.rules.actions, share)
            for entry, share in (() if rounds is None else rounds.bottlenecks)
        )
        fraction = gap / (high - low) if high > low else 0.0
        return GapProgress(gap, fraction, price, gap < best_action(explorer.intervals[None]).gap, bottlenecks)

    def result(self) -> Snapshot:
        """The middles of the intervals, and the action that is proved to be the closest to optimal."""
        explorer, graph = self.explorer, self.explorer.graph
        intervals = explorer.intervals
        best, challenger, gap = self.proved
        return Snapshot(
            value=sum(self.interval) / 2.0,
            interval=self.interval,
            action=best,
            q=self.estimates,
            q_intervals=intervals,
            calls=self.calls,
            samples=int(graph.pairs["count"][: self._root.model.actions].sum()),  # of the root's own pairs
            epsilon=self.epsilon,
            delta=self.delta,
            details=GapDetails(
                gap=gap,
                challenger=challenger if len(intervals) > 1 else None,
                action_calls=graph.spent.copy(),
                rounds=int(graph.totals[ROUNDS]),
                history=self._history.until(self.calls, intervals),
                certified=self._certified,
                states=int(graph.totals[STATES]),
                pairs=int(graph.totals[PAIRS]),
                bytes=explorer.bytes,
                graph=explored(explorer, gap),
                progress=self.progress,
            ),
        )

    # Checkpoints

    def saved(self) -> Arrays:
        """The search as arrays, between two calls of `explore`."""
        rounds = {} if self.rounds is None else self.rounds.saved()
        return self.explorer.saved() | rounds | self._history.saved()

    def restore(self, arrays: Readable) -> None:
        """Takes on the search that was saved.

        Raises:
            ValueError: the arrays are not those of such a search, which is then as it was.
        """
        rounds = None if self.rounds is None else self.rounds.restored(arrays)
        history = History()
        history.restore(arrays, self._root.model.actions)
        self.explorer.restore(arrays)
        self.rounds, self._history = rounds, history
