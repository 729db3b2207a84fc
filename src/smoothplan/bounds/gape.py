"""OT-GapE (the paper, section 8) and MDP-GapE (Jonsson et al., 2020): the best action by confidence bounds.

They keep an interval for the value of every discovered state, and look for the root action that is ε-optimal with
probability 1 − δ: by walks while these discover much, by rounds of samples once states recur.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.streams import CALLS
from smoothplan.bounds.explored import explored
from smoothplan.bounds.rounds import BestAction, Rounds, best_action, root_intervals
from smoothplan.graph.explorer import (
    Draw,
    Explorer,
    Key,
    PairSampler,
    required_key,
    searched_table,
)
from smoothplan.graph.graph import rules_of, spans, successor_bound
from smoothplan.models.model import Oracle, declared_values
from smoothplan.run.chunks import Work
from smoothplan.run.progress import Bottleneck, Display, GapProgress
from smoothplan.run.records import GapDetails, History, Root, Snapshot, Status
from smoothplan.run.workers import SLICE_CALLS, Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, is_mixture, required_backup


@dataclass(frozen=True)
class OTGapE:
    """Best-action identification by bounds that are propagated through a monotone backup.

    Every state that is discovered keeps an interval for its value. While many pairs are new, UGapE chooses a root
    action, and a walk by ∇F of the upper bounds leads from there to the pair whose sample helps most. Once states
    recur, a round samples many pairs at once. Whenever the run stops, all intervals are valid at once, and so is the
    gap of the result's details, which may be smaller than that between the intervals: differences may be known better
    than values.

    Args:
        backup: F.
        epsilon: the action returned is this close to optimal; 0 for a run until the best action is proved or a limit
            is reached.
        delta: the probability that any interval fails.
        sampling: "focused" walks on the empirical model and samples the pair whose own uncertainty matters most, with
            some trajectories in between, and samples many pairs in rounds if states recur; "trajectories" samples
            along the way only, as printed.
        walk: "soft" by ∇F(U), "greedy" by argmax U, or ζ in [0, 1]: soft with probability ζ.
        horizon: None for the discounted value of the model; a number of stages, which are then told apart as printed.
        tail: the values after the last stage: "honest", anything that the discounted value may be, or "zero", as
            printed: the value is then that of the finite problem.
        counts: "pooled" over stages, or "stage-wise", as printed.
        successors: a bound on the different next states of one (s, a); the model's own by default. None is needed: it
            helps if it is 1 or 2, and once all next states of a pair were seen.
        key: identifies a state, a function from a state to something hashable; by default the state itself. States
            with the same key must behave alike, or nothing is proved.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    sampling: Literal["focused", "trajectories"] = "focused"
    walk: Literal["soft", "greedy"] | float = "soft"
    horizon: int | None = None
    tail: Literal["honest", "zero"] = "honest"
    counts: Literal["pooled", "stage-wise"] = "pooled"
    successors: int | None = None
    key: Key | None = None

    no_forecast: ClassVar[str] = "its price depends on the gaps between the actions, which only the run reveals"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.bounded("epsilon", self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        arguments.one_of("sampling", self.sampling, "focused", "trajectories")
        arguments.one_of("tail", self.tail, "honest", "zero")
        arguments.one_of("counts", self.counts, "pooled", "stage-wise")
        if not isinstance(self.walk, str):
            arguments.number("walk", self.walk, least=0.0, most=1.0)
        elif self.walk not in ("soft", "greedy"):
            raise ValueError(f"walk must be 'soft', 'greedy' or a number in [0, 1], got {self.walk!r}")
        if self.horizon is not None:
            most = 100_000  # every state has bounds at each stage
            object.__setattr__(self, "horizon", arguments.whole("horizon", self.horizon, most=most))
        elif self.tail == "zero" or self.counts == "stage-wise":
            name = "tail" if self.tail == "zero" else "counts"
            raise ValueError(f"{name}={getattr(self, name)!r} needs a horizon, got horizon=None")
        if self.successors is not None:
            object.__setattr__(self, "successors", successor_bound("successors", self.successors))
        required_key(self.key)

    def start(self, root: Root, explorer: Explorer | None = None) -> "SearchRun":
        """A search that knows nothing but the root; or one that goes on with a graph.

        Args:
            root: the state, and the limits of the run.
            explorer: owns the graph to go on with, such as that of a `SharedReference` of the same model, backup and δ.
        """
        model, horizon = root.model, self.horizon
        if root.max_calls is None and root.max_seconds is None:  # a run that might go on for ever is refused
            if self.epsilon == 0.0:
                raise ValueError("epsilon must be greater than 0 unless max_calls or max_seconds is given, got 0")
            curvature.require_resolvable(self.epsilon, curvature.value_interval(model, self.backup))
            beyond = 0.0
            if horizon is not None:
                beyond = model.discount**horizon * float(np.ptp(spans(model, self.backup, horizon, self.tail)[-1]))
            if beyond >= self.epsilon:
                raise ValueError(
                    f"horizon must be longer unless max_calls or max_seconds is given, got {horizon}: values "
                    f"beyond it may differ by {beyond:.2g}, and epsilon={self.epsilon:g} may never be reached"
                )
        if explorer is None:
            rules = rules_of(model, self.backup, self.delta, self.successors, horizon, self.tail)._replace(
                records=horizon if horizon and self.counts == "stage-wise" else 1,
                soft_share={"soft": 1.0, "greedy": 0.0}[self.walk] if isinstance(self.walk, str) else float(self.walk),
                focused=self.sampling == "focused",
            )
            table = searched_table(root, self.key, self.backup)
            explorer = Explorer(rules, Oracle(model, root.seed), self.backup, root.state, table, self.key)
        elif explorer.oracle.model is not model or explorer.rules.log_odds != -math.log(self.delta):
            raise ValueError(f"explorer must be of the model of the root, and of delta={self.delta:g}")
        return SearchRun(explorer, root, self.epsilon, self.delta)


@dataclass(frozen=True)
class MDPGapE(OTGapE):
    """The hard-max case of `OTGapE`, whose walk is greedy (Jonsson et al., 2020).

    Args:
        backup: the hard maximum.
        epsilon, delta, sampling, horizon, tail, counts, successors, key: as for `OTGapE`.
    """

    backup: Backup = field(default_factory=HardMax)
    epsilon: float = field(kw_only=True)
    walk: Literal["soft", "greedy"] | float = "greedy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_mixture(self.backup) or self.backup.temperature != 0.0:
            raise ValueError(f"MDPGapE is for the hard maximum, got {self.backup!r}: use OTGapE")


class SearchRun:
    """A search for an action that is ε-optimal with probability 1 − δ. Its proofs hold whenever it stops.

    Args:
        explorer: owns the graph, which may have been explored before.
        root: the limits of the run.
        epsilon, delta: ε and δ; δ is that of the explorer's rules.
    """

    def __init__(self, explorer: Explorer, root: Root, epsilon: float, delta: float) -> None:
        self.explorer, self._root = explorer, root
        self.epsilon, self.delta = epsilon, delta
        self._history = History()
        self.rounds = Rounds(explorer)
        self._declares_values = declared_values(root.model) is not None

    def run(self, workers: Workers, display: Display) -> Status:
        """Searches until the gap is within ε or a limit is reached."""
        return "converged" if self.search(self._root.max_calls, workers, display) else "max_calls"

    def search(self, max_calls: int | None, workers: Workers, display: Display) -> bool:
        """Searches until the gap is within ε or a number of calls is made; returns whether it is.

        Walks build on each other, so one worker makes them. The chunks of a round are drawn by all workers, and threads
        of this process sweep its bounds.
        """
        root, role, threads = self._root, self.explorer.oracle.role, workers.threads
        work = Work(PairSampler(), root.model, root.state, root.seed, kept=False, role=role)

        def shown(chunks: Iterable[Any]) -> Iterator[Any]:
            for found in workers.in_order(work, chunks):
                yield found
                display.update(self.calls, self.interval, self.progress)

        def explore(until: int, limit: int) -> tuple[int, bool]:
            converged = self.explore(until, limit, shown if display.shown else partial(workers.in_order, work), threads)
            if display.shown:
                display.update(self.calls, self.interval, self.progress)
            return self.calls, converged

        return workers.in_slices(self, explore, max_calls)

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
        self._history.add(self.calls, root_intervals(self.explorer))
        return converged

    def _round(self, limit: int, draw: Draw, threads: int) -> bool | None:
        """A round of samples; None if walks are better."""
        rounds = self.rounds
        if not rounds.take_over(self.calls):
            if self._declares_values and rounds.compare_now(self.calls):
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
        self.explorer.sample_pairs(np.flatnonzero(counts), counts[counts > 0], (best, challenger), draw)
        self.explorer.graph.totals[0]["rounds"] += 1
        return False

    def _require_possible(self, rounds: Rounds) -> None:
        """Compares the bounds of every value with the range that the model declares, if it does."""
        explorer, (low, high) = self.explorer, rounds.values
        for number in (int(np.argmax(low)), int(np.argmin(high))) if self._declares_values else ():
            proved = float(low[number]), float(high[number])
            curvature.require_possible(self._root.model, explorer.backup, proved, explorer.state(number))

    # Results

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return int(self.explorer.oracle.stream[CALLS])

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the root's value."""
        return float(self.explorer.graph.low[0]), float(self.explorer.graph.high[0])

    @property
    def proved(self) -> BestAction:
        """The best proof: by the intervals of the action values, or by relative bounds."""
        found = best_action(root_intervals(self.explorer)[None])
        return found if found.gap <= self.rounds.proved.gap else self.rounds.proved

    @property
    def progress(self) -> GapProgress:
        """How far the identification of the best action is."""
        explorer, rounds, proved = self.explorer, self.rounds, self.proved
        width, price = float(explorer.rules.span_high[0] - explorer.rules.span_low[0]), None
        if self.calls > 0 and 0.0 < self.epsilon < proved.gap:
            with suppress(OverflowError):  # more than a float can count: no estimate
                decay = (math.log(proved.gap) - math.log(self.epsilon)) / rounds.exponent
                price = math.exp(math.log(self.calls) + decay)
        bottlenecks = tuple(
            Bottleneck(explorer.state(int(entry) // explorer.rules.actions), int(entry) % explorer.rules.actions, share)
            for entry, share in rounds.bottlenecks.tolist()
        )
        fraction = proved.gap / width if width > 0.0 else 0.0
        return GapProgress(proved.gap, fraction, price, proved is rounds.proved, bottlenecks)

    def result(self) -> Snapshot:
        """The middles of the intervals, and the action that is proved to be the closest to optimal."""
        explorer, totals, intervals = self.explorer, self.explorer.graph.totals[0], root_intervals(self.explorer)
        best, challenger, gap = self.proved
        q = intervals.mean(axis=1)
        if len(self.rounds.differences):
            q = q.mean() + self.rounds.differences
        return Snapshot(
            value=sum(self.interval) / 2.0,
            interval=self.interval,
            action=best,
            q=np.clip(q, intervals[:, 0], intervals[:, 1]),
            q_intervals=intervals,
            calls=self.calls,
            samples=int(explorer.graph.pairs["count"][: self._root.model.actions].sum()),  # of the root's own pairs
            epsilon=self.epsilon,
            delta=self.delta,
            details=GapDetails(
                gap=gap,
                challenger=challenger if len(intervals) > 1 else None,
                action_calls=explorer.graph.spent.copy(),
                rounds=int(totals["rounds"]),
                history=self._history.until(self.calls, intervals),
                states=int(totals["states"]),
                pairs=int(totals["pairs"]),
                bytes=explorer.bytes,
                graph=explored(explorer, gap),
                progress=self.progress,
            ),
        )

    # Checkpoints

    def saved(self) -> Arrays:
        """The search as arrays, between two calls of `explore`."""
        return self.explorer.saved() | self.rounds.saved() | self._history.saved()

    def restore(self, arrays: Readable) -> None:
        """Takes on the search that was saved."""
        self.explorer.restore(arrays)
        self.rounds.restore(arrays)
        self._history.restore(arrays)
