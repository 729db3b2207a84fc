"""OT-GapE (the paper, section 8) and MDP-GapE (Jonsson et al., 2020): the best action by confidence bounds.

They keep an interval for the value of every discovered state, and look for the root action that is ε-optimal with
probability 1 − δ. What a round does is in `smoothplan.search`.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from smoothplan import arguments, curvature
from smoothplan.backups import Backup, HardMax, is_mixture, required_backup
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.planners.chunks import SLICE_CALLS, in_slices
from smoothplan.planners.engines import searched_table
from smoothplan.running.run import Display, Found, History, Holding, Identification, Root, Run, Standing, Status
from smoothplan.running.work import Chunk, Work
from smoothplan.running.workers import Workers
from smoothplan.search.batches import PairSampler, Sampled
from smoothplan.search.explored import explored
from smoothplan.search.explorer import Batch, Explorer
from smoothplan.search.graph import PAIRS, ROUNDS, STATES, Rules
from smoothplan.search.known import Key
from smoothplan.search.rules import MOST_STAGES, MOST_SUCCESSORS, rules_of, spans
from smoothplan.search.saved import Arrays, Readable
from smoothplan.search.ugape import certificate


@dataclass(frozen=True)
class OTGapE:
    """Best-action identification by bounds that are propagated through a monotone backup.

    Every state that is discovered keeps an interval for its value. While many pairs are new, UGapE chooses a root
    action, and a walk by ∇F of the upper bounds leads from there to where a sample helps most. Where states recur, a
    round samples many pairs at once. Whenever the run stops, all intervals are valid at once, and so is the gap of the
    result's details, which may be smaller than that between the intervals: differences may be known better than values.

    Args:
        backup: F.
        epsilon: the action returned is this close to optimal; 0 for a run until the best action is proved or a limit
            is reached.
        delta: the probability that any interval fails.
        sampling: "focused" walks on the empirical model and samples the pair whose own uncertainty matters most, with
            some trajectories in between, and samples many pairs in rounds where states recur; "trajectories" samples
            along the way only, as printed.
        walk: "soft" by ∇F(U), "greedy" by argmax U, or ζ in [0, 1]: soft with probability ζ.
        horizon: None for the discounted value of the model; a number of stages, which are then told apart as printed.
        tail: what follows the last stage: "honest", anything that the discounted value may be, or "zero", as printed:
            the value is then that of the finite problem.
        counts: "pooled" over stages, or "stage-wise", as printed.
        thresholds: "valid" cover δ; "published" are those of MDP-GapE's public implementation, which do not.
        rewards: "declared" uses what the model declares of its rewards, "bounded" nothing but their range.
        successors: a bound on the different next states of one (s, a); the model's own by default. None is needed: it
            helps where it is 1 or 2, and once all next states of a pair were seen.
        key: what identifies a state, a function from a state to something hashable; by default the state itself. States
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
    thresholds: Literal["valid", "published"] = "valid"
    rewards: Literal["declared", "bounded"] = "declared"
    successors: int | None = None
    key: Key | None = None

    no_forecast: ClassVar[str] = "its price depends on the gaps between the actions, which only the run reveals"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.bounded("epsilon", self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        for name, choices in (
            ("sampling", ("focused", "trajectories")),
            ("tail", ("honest", "zero")),
            ("counts", ("pooled", "stage-wise")),
            ("thresholds", ("valid", "published")),
            ("rewards", ("declared", "bounded")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be {choices[0]!r} or {choices[1]!r}, got {getattr(self, name)!r}")
        if isinstance(self.walk, str):
            if self.walk not in ("soft", "greedy"):
                raise ValueError(f"walk must be 'soft', 'greedy' or a number in [0, 1], got {self.walk!r}")
        else:
            arguments.probability("walk", self.walk)
        if self.horizon is not None:
            object.__setattr__(self, "horizon", arguments.whole("horizon", self.horizon, most=MOST_STAGES))
        elif self.tail == "zero" or self.counts == "stage-wise":
            name = "tail" if self.tail == "zero" else "counts"
            raise ValueError(f"{name}={getattr(self, name)!r} needs a horizon, got horizon=None")
        if self.successors is not None:
            successors = arguments.whole("successors", self.successors, most=MOST_SUCCESSORS)
            object.__setattr__(self, "successors", successors)
        if self.key is not None and not callable(self.key):
            raise TypeError(f"key must be a function from a state to something hashable, got {self.key!r}")

    def begin(self, root: Root) -> Run:
        """A search that knows nothing but the root."""
        if root.max_calls is None and root.max_seconds is None:
            self._require_end(root.model)
        return SearchRun(self, root, self._explorer(root))

    def _require_end(self, model: GenerativeModel) -> None:
        """Refuses a run without limits that might go on for ever."""
        if self.epsilon == 0.0:
            raise ValueError("epsilon must be greater than 0 where neither max_calls nor max_seconds is given, got 0")
        curvature.resolvable(self.epsilon, curvature.value_interval(model, self.backup))
        if self.horizon is not None:
            low, high = spans(model, self.backup, self.horizon, self.tail)[-1]
            beyond = model.discount**self.horizon * (high - low)
            if beyond >= self.epsilon:
                raise ValueError(
                    f"horizon must be longer where neither max_calls nor max_seconds is given, got {self.horizon}: "
                    f"what lies beyond may be worth {beyond:.2g}, and epsilon={self.epsilon:g} may never be reached"
                )

    def _explorer(self, root: Root) -> Explorer:
        table, oracle = searched_table(root, self.key, self.backup), Oracle(root.model, root.seed)
        return Explorer(self._rules(root.model), oracle, self.backup, root.state, table, self.key)

    def _rules(self, model: GenerativeModel) -> Rules:
        rules = rules_of(model, self.backup, self.delta, self.successors, self.horizon, self.tail, self.rewards)
        published = -1.0
        if self.thresholds == "published":
            published = math.log(model.actions) * (self.horizon or published_horizon(self.epsilon, model.discount))
        return rules._replace(
            stage_wise=self.counts == "stage-wise",
            published=published,
            soft_share={"soft": 1.0, "greedy": 0.0}[self.walk] if isinstance(self.walk, str) else float(self.walk),
            focused=self.sampling == "focused",
        )


@dataclass(frozen=True)
class MDPGapE(OTGapE):
    """The hard-max case of `OTGapE`, whose walk is greedy (Jonsson et al., 2020).

    Args:
        backup: the hard maximum.
        epsilon, delta, sampling, horizon, tail, counts, thresholds, rewards, successors, key: as for `OTGapE`.
    """

    backup: Backup = field(default_factory=HardMax)
    epsilon: float = field(kw_only=True)
    walk: Literal["soft", "greedy"] | float = "greedy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_mixture(self.backup) or self.backup.temperature != 0.0:
            raise ValueError(f"MDPGapE is for the hard maximum, got {self.backup!r}: use OTGapE")

    @classmethod
    def as_published(cls, model: GenerativeModel, *, epsilon: float, delta: float = 0.1) -> "MDPGapE":
        """The algorithm as its public implementation runs it, for comparison: its intervals do not cover δ."""
        return cls(
            epsilon=epsilon,
            delta=delta,
            sampling="trajectories",
            horizon=published_horizon(epsilon, model.discount),
            tail="zero",
            counts="stage-wise",
            thresholds="published",
            rewards="bounded",
        )


def published_horizon(epsilon: float, discount: float) -> int:
    """Beyond it lies less than ε/2: the horizon of MDP-GapE's public implementation, for rewards in [0, 1]."""
    if arguments.positive("epsilon", epsilon) * (1.0 - discount) / 2.0 >= 1.0 or discount == 0.0:
        return 1
    return max(1, math.ceil(math.log(epsilon * (1.0 - discount) / 2.0) / math.log(discount)))


class SearchRun:
    """A run of OT-GapE: the search in slices, with a look at the clock in between."""

    def __init__(self, planner: OTGapE, root: Root, explorer: Explorer) -> None:
        self._planner, self._root, self.explorer = planner, root, explorer
        self._history = History()

    def go(self, workers: Workers, display: Display) -> Status:
        """Searches until the gap is within ε or a limit is reached."""
        return "converged" if self.search(self._root.max_calls, workers, display) else "max_calls"

    def search(self, max_calls: int | None, workers: Workers, display: Display) -> bool:
        """Searches until the gap is within ε or a number of calls is made; whether it is.

        Walks build on each other, so that one worker makes them. The chunks of a round are drawn by all workers, and
        threads of this process sweep its bounds.
        """
        work = Work(PairSampler(), self._root.model, self._root.state, self._root.seed, kept=False)

        def draw(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Sampled]]:
            chunks = (Chunk(number, "pairs", (*pairs,), int(pairs[2].sum())) for number, *pairs in batches)
            for chunk, outcome in workers.in_order(work, chunks):
                assert isinstance(outcome.sums, Sampled)
                yield (chunk.number, *chunk.arguments), outcome.sums
                display.update(self.calls, self.interval, self.standing)

        alone = self.explorer.draw
        self.explorer.draw = draw
        if self.explorer.rounds is not None:
            self.explorer.rounds.threads = workers.threads
        try:
            return in_slices(self, max_calls, workers, display)
        finally:
            self.explorer.draw = alone  # what is learnt may become a reference, and be sent to other processes

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self.explorer.oracle.calls

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the root's value."""
        return self.explorer.interval

    @property
    def standing(self) -> Standing:
        """How far the identification of the best action is."""
        explorer, epsilon = self.explorer, self._planner.epsilon
        gap, (low, high) = explorer.certificate.gap, explorer.span
        price = None
        if self.calls > 0 and 0.0 < epsilon < gap:
            with suppress(OverflowError):  # of what no float can count there is no estimate
                price = math.exp(math.log(self.calls) + (math.log(gap) - math.log(epsilon)) / explorer.exponent)
        holding = (Holding(explorer.state(number), action, share) for number, action, share in explorer.holding)
        fraction = gap / (high - low) if high > low else 0.0
        return Standing(gap, fraction, price, gap < certificate(explorer.intervals[None]).gap, tuple(holding))

    def explore(self, until: int, limit: int) -> bool:
        """Searches until a number of calls is made; whether the gap is within ε."""
        converged = self.explorer.search(self._planner.epsilon, until, SLICE_CALLS, limit)
        self._history.add(self.calls, self.explorer.intervals)
        return converged

    def saved(self) -> Arrays:
        """The search as arrays, for a checkpoint."""
        return self.explorer.saved() | self._history.saved()

    def restore(self, arrays: Readable) -> None:
        """Takes on the search that was saved."""
        self._history.restore(arrays, self._root.model.actions)
        self.explorer.restore(arrays)

    def found(self) -> Found:
        """The middles of the intervals, and the action that is proved to be the closest to optimal."""
        explorer, graph = self.explorer, self.explorer.graph
        intervals = explorer.intervals
        best, challenger, gap = explorer.certificate
        return Found(
            value=sum(self.interval) / 2.0,
            interval=self.interval,
            action=best,
            q=explorer.estimates,
            q_intervals=intervals,
            calls=self.calls,
            samples=int(graph.pairs["count"][: self._root.model.actions].sum()),  # of the root's own pairs
            epsilon=self._planner.epsilon,
            delta=self._planner.delta,
            details=Identification(
                gap=gap,
                challenger=challenger if len(intervals) > 1 else None,
                action_calls=graph.spent.copy(),
                rounds=int(graph.totals[ROUNDS]),
                history=self._history.until(self.calls, intervals),
                certified=self._planner.thresholds == "valid",
                states=int(graph.totals[STATES]),
                pairs=int(graph.totals[PAIRS]),
                bytes=explorer.bytes,
                graph=explored(explorer, self._root.model),
                standing=self.standing,
            ),
        )
