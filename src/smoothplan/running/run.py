"""A run at the root: where it starts, what `plan` drives and reads, and what a best-action run reports."""

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup
from smoothplan.models.base import GenerativeModel
from smoothplan.running.workers import Workers
from smoothplan.search.saved import Arrays, Readable, finite, piece

Status = Literal["converged", "completed", "max_calls", "max_seconds", "interrupted", "terminal"]
"""Why a run stopped: within ε; at the end of a planner that promises no ε; by a limit; at a state worth 0."""

EngineName = Literal["auto", "compiled", "batched"]

HISTORY_RATIO = 1.15
"""From the calls of one snapshot to those of the next, at least: 200 snapshots reach beyond 10¹² calls."""


class Display(Protocol):
    """Where a run shows how far it is."""

    def expect(self, calls: int) -> None:
        """Takes note of the calls that the run may make, at most."""

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Shows the calls made and the interval."""


@dataclass(frozen=True, eq=False)
class Root:
    """Where a run starts, and its limits. All arguments have been checked."""

    model: GenerativeModel
    state: Any
    seed: int
    max_calls: int | None
    max_seconds: float | None
    engine: EngineName
    started: float  # on the clock of time.perf_counter

    def late(self, share: float) -> bool:
        """Whether so much of the time that a run may take is over."""
        return self.max_seconds is not None and time.perf_counter() - self.started > share * self.max_seconds

    def backed_up(self, backup: Backup, q: Floats, method: Literal["value", "policy"] = "value") -> Floats:
        """F or its policy at the root for a batch of action values [n, K]."""
        states = np.repeat(np.asarray(self.state)[None], len(q), axis=0)
        result: Floats = getattr(backup, method)(q, states)
        return result


class Snapshot(NamedTuple):
    """What was known after so many simulator calls."""

    calls: int
    intervals: Floats  # of the action values, [K, 2]


@dataclass
class History:
    """Snapshots of a run, geometrically thinned."""

    snapshots: list[Snapshot] = field(default_factory=list)

    def add(self, calls: int, intervals: Floats) -> None:
        """Keeps a snapshot, unless the one before is too close."""
        if not self.snapshots or calls >= max(HISTORY_RATIO * self.snapshots[-1].calls, 1):
            self.snapshots.append(Snapshot(calls, intervals.copy()))

    def saved(self) -> Arrays:
        """The snapshots as arrays, for a checkpoint."""
        return {
            "history": np.array([snapshot.calls for snapshot in self.snapshots], dtype=np.int64),
            "history_intervals": np.array([snapshot.intervals for snapshot in self.snapshots]),
        }

    def restore(self, arrays: Readable, actions: int) -> None:
        """Takes on the snapshots of another history; ValueError if they cannot be any."""
        calls = piece(arrays, "history", np.dtype(np.int64), None)
        intervals = finite(arrays, "history_intervals", len(calls), actions, 2)
        self.snapshots = [Snapshot(int(count), ends.copy()) for count, ends in zip(calls, intervals, strict=True)]

    def until(self, calls: int, intervals: Floats) -> tuple[Snapshot, ...]:
        """The snapshots, of which the last is the present state."""
        earlier = [snapshot for snapshot in self.snapshots if snapshot.calls < calls]
        return (*earlier, Snapshot(calls, intervals.copy()))


@dataclass(frozen=True, eq=False)
class Identification:
    """What a run in search of the best action did."""

    gap: float  # U(challenger) − L(best): the action is this close to optimal with probability at least 1 − δ
    challenger: int | None  # none where there is one action only
    action_calls: Ints  # simulator calls for each root action, [K]
    rounds: int  # or episodes
    history: tuple[Snapshot, ...]
    certified: bool = True  # whether the guarantee covers δ
    states: int = 0  # discovered and kept
    pairs: int = 0
    bytes: int = 0  # of memory for them
    graph: Any = None  # what was discovered, where something was: see `search.explored.Explored`

    def to_fields(self) -> dict[str, Any]:
        """Everything but the graph, for JSON."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "graph"}
        history = [{"calls": calls, "intervals": intervals.tolist()} for calls, intervals in self.history]
        return fields | {"action_calls": self.action_calls.tolist(), "history": history}


class Budget(NamedTuple):
    """What one part of a run costs and how much it varies, and the part of the simulator calls that it gets."""

    calls: float  # of one sample, on average
    variance: float  # of one sample
    share: float


class Lesson(NamedTuple):
    """What the policy of a reference was worth after so many simulator calls."""

    calls: int
    value: float
    error: float  # standard


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What the chains say of the reference. Errors are standard errors; the interval is certified."""

    reference: float  # F(Q̂) at the root
    order_1: float  # the value of the policy ∇F(Q̂)
    order_1_error: float
    policy_interval: tuple[float, float]  # contains that value with probability at least 1 − δ
    order_2: float | None
    order_2_error: float | None
    certified: bool  # whether the value is certified, or an estimate
    horizon: int
    truncation: float  # the most that may be lost where chains are cut off
    pairs: int | None
    budgets: dict[str, Budget]
    learning: tuple[Lesson, ...]  # how the reference was improved

    @property
    def least_error_range(self) -> float | None:
        """An error range that the reference must have somewhere, by what order 2 adds to order 1 (an estimate)."""
        return None if self.order_2 is None else self._scale * math.sqrt(max(self.order_2 - self.order_1, 0.0))

    _scale: float = 0.0  # √(8η(1−γ))

    def summary(self) -> str:
        """The diagnosis in words."""
        lines = [
            f"the reference claims {self.reference:.4g}",
            f"its policy is worth {self.order_1:.4g} ± {self.order_1_error:.2g}",
        ]
        if self.order_2 is not None:
            lines.append(f"with the quadratic correction {self.order_2:.4g} ± {self.order_2_error:.2g}")
            lines.append(f"so its error ranges over at least {self.least_error_range:.2g} somewhere (estimate)")
        return "; ".join(lines)

    def to_fields(self) -> dict[str, Any]:
        """For JSON."""
        fields = asdict(self) | {"least_error_range": self.least_error_range}
        fields.pop("_scale")
        fields["learning"] = [lesson._asdict() for lesson in self.learning]
        return fields | {"budgets": {name: budget._asdict() for name, budget in self.budgets.items()}}


class Truncation(NamedTuple):
    """Where a run cuts the future off, and by how much the value there may be off because of that."""

    depth: int
    bias: float


@dataclass(frozen=True)
class Estimate:
    """A value that is an estimate around the value at a finite depth."""

    standard_error: float | None
    depth: int
    bias: float


class Run(Protocol):
    """The state of a run: what has been sampled and what it proves. Valid whenever the run stops."""

    status: Status
    """Why it stopped; whoever stops it says so."""

    @property
    def calls(self) -> int:
        """Simulator calls made."""

    @property
    def samples(self) -> int:
        """Root samples taken."""

    @property
    def interval(self) -> tuple[float, float]:
        """Contains the value of the root with probability at least 1 − δ."""

    @property
    def value(self) -> float:
        """The point estimate, within the interval."""

    @property
    def q(self) -> Floats:
        """Estimates of the action values, [K]."""

    @property
    def q_intervals(self) -> Floats | None:
        """Intervals of the action values, [K, 2], where there are any: all hold at once, and with `interval`."""

    @property
    def action(self) -> int:
        """The best action as far as the run knows."""

    @property
    def epsilon(self) -> float:
        """The accuracy wanted."""

    @property
    def delta(self) -> float:
        """The probability that an interval fails."""

    @property
    def identification(self) -> Identification | None:
        """What a run in search of the best action did; None for others."""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What a run around a reference says of it; None for others."""

    def go(self, workers: Workers, display: Display) -> None:
        """Samples until the run is within ε or a limit on calls is reached.

        Raises:
            Stopped: time is up, or the user wants it to end. The run is valid as it is.
        """


@runtime_checkable
class Estimating(Protocol):
    """What a run has beside, whose value is an estimate around the value at a finite depth."""

    @property
    def standard_error(self) -> float | None:
        """The standard error of the value around the value at that depth; None where there are too few samples."""

    @property
    def truncation(self) -> Truncation:
        """The depth, and its bias."""


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

    def begin(self, root: Root) -> Run:
        """A run that has not made any simulator call yet."""
