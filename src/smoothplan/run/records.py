"""The one shape of a run: its root, its planner, and the record of its result."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from smoothplan.base.arguments import Floats, Ints, shown
from smoothplan.base.compiling import working_time
from smoothplan.base.records import Arrays, Readable
from smoothplan.models.model import GenerativeModel, legal_actions
from smoothplan.run.progress import Display, GapProgress
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import Backup

Status = Literal["converged", "completed", "max_calls", "max_seconds", "interrupted", "terminal"]
"""Why a run ended: within ε; at the end of a planner that promises no ε; by a limit; at a state worth 0."""

EngineName = Literal["auto", "compiled", "batched"]

Support = Literal["proved", "lower", "declared", "estimate"]
"""The basis of an interval.

Both ends are proved with probability 1 − δ; only the lower end is, and the upper one follows from the model's
declarations; both follow from the declarations; or nothing is known of its basis.
"""

REFUSED_CALLS = 10**11
"""A run that may need more simulator calls is refused unless the user limits calls or, for some planners, time."""

LONG_HORIZONS = (
    "for a long horizon use decide, which finds an action; ReferenceCruiser, for a value from below; or OTGapE with "
    "HardMax, if states recur"
)
"""Advice if recursion would take too many simulator calls."""


class TooExpensiveError(ValueError):
    """The run may need more simulator calls than is reasonable."""


def within(error: float, epsilon: float) -> bool:
    """Whether an error is at most ε, up to rounding."""
    return error <= epsilon * (1.0 + 1e-9)


@dataclass(frozen=True, eq=False)
class Root:
    """The root of a run, and its limits. All arguments have been checked."""

    model: GenerativeModel
    state: Any
    seed: int
    max_calls: int | None
    max_seconds: float | None
    engine: EngineName
    started: float  # on the clock of time.perf_counter
    begun: float = field(default_factory=working_time)  # on the clock that limits on time are measured by

    @property
    def deadline(self) -> float | None:
        """When time is up, on that clock."""
        return None if self.max_seconds is None else self.begun + self.max_seconds

    def late(self, share: float) -> bool:
        """Whether this share of the time limit has passed."""
        return self.max_seconds is not None and working_time() - self.begun > share * self.max_seconds

    @property
    def legal(self) -> Ints:
        """The actions that the root has."""
        mask = legal_actions(self.model, np.asarray(self.state)[None])
        return np.arange(self.model.actions) if mask is None else np.flatnonzero(mask[0])

    def spread(self, rows: Floats) -> Floats:
        """Rows for the legal actions as rows for all, [K, ...]; those of illegal actions are −∞."""
        result = np.full((self.model.actions, *rows.shape[1:]), -np.inf)
        result[self.legal] = rows
        return result

    def backed_up(self, backup: Backup, q: Floats, method: Literal["value", "policy"] = "value") -> Floats:
        """F or its policy at the root for a batch of action values [n, K]."""
        states = np.repeat(np.asarray(self.state)[None], len(q), axis=0)
        result: Floats = getattr(backup, method)(q, states)
        return result


class HistoryPoint(NamedTuple):
    """The intervals after a number of simulator calls."""

    calls: int
    intervals: Floats  # of the action values, [K, 2]


@dataclass
class History:
    """Snapshots of a run, geometrically thinned: 200 of them reach beyond 10¹² calls."""

    snapshots: list[HistoryPoint] = field(default_factory=list)

    def add(self, calls: int, intervals: Floats) -> None:
        """Keeps a snapshot, unless the calls have grown by less than 15% since the one before."""
        if not self.snapshots or calls >= max(1.15 * self.snapshots[-1].calls, 1):
            self.snapshots.append(HistoryPoint(calls, intervals.copy()))

    def saved(self) -> Arrays:
        """The snapshots as arrays, for a checkpoint."""
        return {
            "history": np.array([snapshot.calls for snapshot in self.snapshots], dtype=np.int64),
            "history_intervals": np.array([snapshot.intervals for snapshot in self.snapshots]),
        }

    def restore(self, arrays: Readable) -> None:
        """Takes on saved snapshots."""
        points = zip(arrays["history"].tolist(), arrays["history_intervals"], strict=True)
        self.snapshots = [HistoryPoint(calls, intervals.copy()) for calls, intervals in points]

    def until(self, calls: int, intervals: Floats) -> tuple[HistoryPoint, ...]:
        """The snapshots, of which the last is the present state."""
        earlier = [snapshot for snapshot in self.snapshots if snapshot.calls < calls]
        return (*earlier, HistoryPoint(calls, intervals.copy()))


@dataclass(frozen=True, eq=False)
class GapDetails:
    """Details of a gap planner: how the best action was identified.

    The gap is U(challenger) − L(best), or less if the difference is known better than the values themselves.
    """

    gap: float  # the action is this close to optimal with probability at least 1 − δ
    challenger: int | None  # None if there is only one action
    action_calls: Ints  # simulator calls for each root action, [K]
    rounds: int  # or episodes
    history: tuple[HistoryPoint, ...]
    states: int = 0  # discovered and kept
    pairs: int = 0
    bytes: int = 0  # of memory for them
    graph: Any = field(default=None, repr=False)  # the discovered graph, if any: see `bounds.gape.Explored`
    progress: GapProgress | None = None

    support: ClassVar[Support] = "proved"

    def summary(self) -> str:
        """The quality of the action, and the effort of proving more, in words."""
        further = [] if self.progress is None else self.progress.sentences()
        return "; ".join(
            [f"no action is better by more than {max(self.gap, 0.0):.4g} with probability 1 − δ", *further]
        )


class Budget(NamedTuple):
    """The price and the variance of one part of a run, and its share of the simulator calls."""

    calls: float  # of one sample, on average
    variance: float  # of one sample
    share: float


@dataclass(frozen=True, eq=False)
class ReferenceDetails:
    """Details of `ReferenceCruiser`: the reference, judged by chains. Errors are standard errors."""

    reference: float  # F(Q̂) at the root
    made: bool  # whether the run made the reference: impossible differences of its action values were then clamped
    order_1: float  # the value of the policy ∇F(Q̂), regulariser included
    order_1_error: float
    policy_interval: tuple[float, float]  # contains that value with probability at least 1 − δ
    order_2: float | None
    order_2_error: float | None
    certified: bool  # whether the value is certified, or an estimate
    horizon: int
    truncation: float  # the largest loss through cutting off chains
    pairs: int | None
    budgets: dict[str, Budget]
    least_error_range: float | None  # estimate: the reference has an error range of at least this at some state
    reference_delta: float  # part of the result's δ: the probability that the error range of the reference fails
    warnings: tuple[str, ...]  # sentences that a user must read

    @property
    def support(self) -> Support:
        """Proved if the value is certified; the policy's value proves a lower end in any case."""
        return "proved" if self.certified else "lower"

    def summary(self) -> str:
        """The diagnosis in words."""
        policy = "clamped policy" if self.made else "policy"
        lines = [
            *self.warnings,
            f"the reference claims {self.reference:.4g}",
            f"its {policy} is worth {self.order_1:.4g} ± {self.order_1_error:.2g}, regulariser included",
        ]
        if self.order_2 is not None:
            lines.append(f"with the quadratic correction {self.order_2:.4g} ± {self.order_2_error:.2g}")
            lines.append(f"so its error ranges over at least {self.least_error_range:.2g} somewhere (estimate)")
        if self.reference_delta > 0.0:
            lines.append(f"delta includes {self.reference_delta:g} for the error range of the reference")
        return "; ".join(lines)


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot:
    """The result of a run so far. At all times at once, its interval contains the value with probability 1 − δ."""

    value: float  # the point estimate, within the interval
    interval: tuple[float, float]
    action: int | None  # the best action as far as the run knows; None at a terminal state
    q: Floats  # estimates of the action values, [K]
    q_intervals: Floats | None = None  # [K, 2], if any: all hold at once, and together with the interval
    calls: int  # simulator calls made
    samples: int  # root samples
    epsilon: float  # the accuracy wanted
    delta: float  # the probability that an interval fails, at most
    details: GapDetails | ReferenceDetails | Any = None  # particular to the planner: `support`, and `summary` in words


class Run(Protocol):
    """A run of a planner at a root. Its result is valid whenever it ends."""

    def run(self, workers: Workers, display: Display) -> Status:
        """Samples until the run is within ε or a limit on calls is reached, or `Stopped`; returns why it ended."""

    def result(self) -> Snapshot:
        """The result so far. It may be called at any time."""


class Planner(Protocol):
    """A frozen configuration of a planner."""

    @property
    def backup(self) -> Backup:
        """F."""

    @property
    def epsilon(self) -> float:
        """The accuracy wanted."""

    @property
    def delta(self) -> float:
        """The probability of missing it."""

    def start(self, root: Root) -> Run:
        """A run that has not made any simulator call yet."""


def required_planner(planner: Planner) -> Planner:
    """The planner, if it is one; otherwise an error that shows how to write one."""
    given: Any = planner
    name = getattr(given, "__name__", type(given).__name__)
    if isinstance(given, type):
        raise TypeError(f"planner must be an object, such as {name}(...), got the class {name} itself")
    if hasattr(given, "step") and hasattr(given, "reward_range"):
        raise TypeError(f"planner must be a planner, got the model {name}: are planner and model swapped?")
    if not (callable(getattr(given, "start", None)) and hasattr(given, "backup")):
        raise TypeError(f"planner must be one, such as OTGapE(HardMax(), epsilon=0.1), got {shown(given)}")
    return planner


def refuse_compiled(name: EngineName, needed: str, *given: Any) -> None:
    """Raises if a compiled engine was asked for, which cannot serve."""
    if name == "compiled":
        kinds = ", ".join(type(thing).__name__ for thing in given)
        raise ValueError(f"engine 'compiled' needs {needed}, got {kinds}: use 'batched'")
