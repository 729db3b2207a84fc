"""The one driver: forecast the price of a planner on a model, run it, stop with a valid interval whatever happens."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from smoothplan import arguments, parallel
from smoothplan.arguments import Floats
from smoothplan.backups import Backup
from smoothplan.confidence import ConfidenceSequence
from smoothplan.engines.base import Engine, Sums
from smoothplan.engines.batched import BatchedEngine
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.models.tabular import TabularModel
from smoothplan.schedules.schedule import ACTIONS_SHARE, ADAPTIVE_SHARE, Schedule

REFUSED_CALLS = 10**11
"""A run that may need more simulator calls than this is not started unless the user says how many are acceptable."""

HEADROOM = 4
"""A schedule may cost this much more than the limit on calls and still be tried, for most runs stop early."""

COARSENING = 1.25
"""Steps in ε, in search of a schedule that a limit on calls can pay for."""

LOOKS = 64
"""How often a run looks at its interval, at least: a chunk is no more than this fraction of the samples."""

CHUNK_CALLS = {"compiled": 1 << 21, "batched": 1 << 17}
"""Simulator calls per chunk, about: a fraction of a second."""

Status = Literal["converged", "completed", "max_calls", "max_seconds", "interrupted", "terminal"]
"""Why a run stopped: within ε; at the end of a schedule that promises no ε; by a limit; at a state worth 0."""
EngineName = Literal["auto", "compiled", "batched"]


class Planner(Protocol):
    """A frozen configuration of a recursive planner."""

    @property
    def backup(self) -> Backup:
        """F."""

    @property
    def epsilon(self) -> float:
        """The accuracy wanted."""

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""

    def with_epsilon(self, epsilon: float) -> "Planner":
        """The same planner for another accuracy."""


class HopelessError(ValueError):
    """The forecast is beyond what anyone would want to pay."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """What a planner will cost, and why. No simulator call is made for it."""

    planner: Planner
    model: GenerativeModel

    @cached_property
    def schedule(self) -> Schedule:
        """The table of levels."""
        return self.planner.schedule(self.model)

    @property
    def calls(self) -> int:
        """Simulator calls, at most; exact for schedules without order-2 levels on models without terminal states."""
        return self.schedule.calls

    @cached_property
    def exponent(self) -> float:
        """How the price grows: log₂ of the forecast at ε/2 over the forecast at ε."""
        finer = self.planner.with_epsilon(self.schedule.epsilon / 2.0).schedule(self.model)
        return math.log2(finer.calls) - math.log2(max(self.calls, 1)) if finer.calls > 0 else 0.0

    def table(self) -> str:
        """The levels as a table for people: from the root down, each with its children and what is proved of it."""
        schedule = self.schedule
        lines = [
            f"{'level':>5}  {'kind':<8} {'N':>9} {'n':>3}  {'Q̂ via':>5} {'X via':>5} {'pairs':>5}  "
            f"{'bias':>9} {'deviation':>9}  {'calls':>9}"
        ]
        shown = list(range(len(schedule.levels)))[::-1]
        for row in shown[:MAX_ROWS]:
            level, proved = schedule.levels[row], schedule.certificates[row]
            children = [("" if c is None else str(c)) for c in (level.reference, level.linear, level.quadratic)]
            lines.append(
                f"{row:>5}  {level.kind:<8} {level.samples or '':>9} {level.pairs or '':>3}  "
                f"{children[0]:>5} {children[1]:>5} {children[2]:>5}  "
                f"{float(proved.bias):>9.3g} {math.sqrt(proved.variance):>9.3g}  {_amount(schedule.costs[row]):>9}"
            )
        if len(shown) > MAX_ROWS:
            lines.append(f"       … and {len(shown) - MAX_ROWS} more levels")
        return "\n".join(lines)

    def to_json(self) -> str:
        """One JSON object: the price, how it comes about, and every level."""
        schedule = self.schedule
        levels = [
            asdict(level) | {"bias": float(proved.bias), "variance": float(proved.variance), "calls": calls}
            for level, proved, calls in zip(schedule.levels, schedule.certificates, schedule.costs, strict=True)
        ]
        return json.dumps(
            {
                "calls": self.calls,
                "reference_calls": schedule.reference_calls,
                "repeats": schedule.repeats,
                "sample_calls": schedule.sample_calls,
                "epsilon": schedule.epsilon,
                "delta": schedule.delta,
                "bias": schedule.bias,
                "noise": schedule.noise,
                "exponent": self.exponent,
                "levels": levels,
            }
        )

    def summary(self) -> str:
        """The price in words."""
        schedule = self.schedule
        parts = [f"at most {_amount(self.calls)} simulator calls"]
        if schedule.repeats > 1:
            parts.append(
                f"{_amount(schedule.reference_calls)} for one shared reference, then {schedule.repeats:,} samples of "
                f"{_amount(schedule.sample_calls)} calls"
            )
        parts.append(f"error at most {schedule.bias:.3g} bias + {schedule.noise:.3g} noise")
        parts.append(f"halving epsilon costs 2^{self.exponent:.2f} times as much")
        return "; ".join(parts)


MAX_ROWS = 30
"""Levels shown in a table."""


def _amount(calls: int) -> str:
    return f"{calls:,}" if calls < 10**7 else f"{_scientific(calls)}"


def _scientific(number: int) -> str:
    """A whole number of any size in scientific notation."""
    digits = int(math.log10(max(number, 1)))
    return f"{number / 10**digits:.1f}e{digits}" if digits < 300 else f"1e{digits}"


def forecast(planner: Planner, model: GenerativeModel) -> Forecast:
    """The price of a planner on a model, without a single simulator call.

    >>> import smoothplan as sp
    >>> model = sp.models.garnet(states=50, actions=2, branching=4, discount=0.2, seed=1)
    >>> sp.forecast(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1, delta=0.1), model).calls < 10_000
    True
    """
    return Forecast(planner, model)


@dataclass(frozen=True, eq=False)
class PlanResult:
    """What a run found. The interval contains the value with probability at least 1 − δ, whatever stopped the run."""

    value: float
    interval: tuple[float, float]
    action: int | None  # the action with the largest estimate in q; none at a terminal state
    q: Floats  # estimates of the action values, [K]; no guarantee
    policy: Floats  # ∇F(q), [K]
    calls: int  # simulator calls
    seconds: float
    status: Status
    samples: int  # root samples
    epsilon: float
    delta: float
    seed: int

    def to_json(self) -> str:
        """One JSON object."""
        fields = asdict(self)
        fields |= {"q": self.q.tolist(), "policy": self.policy.tolist(), "interval": list(self.interval)}
        return json.dumps(fields)


def plan(
    planner: Planner,
    model: GenerativeModel,
    state: Any = None,
    *,
    seed: int = 0,
    max_calls: int | None = None,
    max_seconds: float | None = None,
    workers: int = 1,
    progress: bool = False,
    engine: EngineName = "auto",
) -> PlanResult:
    """Runs a planner at a state. A keyboard interrupt ends the run and returns what it has.

    Args:
        planner: what to run.
        model: the simulator.
        state: where to plan; the model's initial state by default.
        seed: the same seed gives the same result, whatever the number of workers.
        max_calls: a limit on simulator calls. Giving one also allows a run whose forecast is hopeless.
        max_seconds: a limit on time, checked after every chunk.
        workers: threads.
        progress: whether to show the shrinking interval on standard error.
        engine: "compiled" for tabular models, "batched" for any; by default whichever fits.

    Raises:
        HopelessError: the forecast exceeds `REFUSED_CALLS` and no `max_calls` is given.
    """
    schedule = planner.schedule(model)
    root = _root_state(model, state)
    seed = arguments.whole("seed", seed, least=0)
    workers = arguments.whole("workers", workers)
    if max_seconds is not None:
        max_seconds = arguments.number("max_seconds", max_seconds, least=0.0)
    if max_calls is not None:
        max_calls = arguments.whole("max_calls", max_calls, least=0)
        schedule = _affordable(planner, model, schedule, max_calls)
    elif schedule.calls > REFUSED_CALLS:
        raise HopelessError(_refusal(planner, model, schedule))
    chosen = _engine(engine, schedule, planner.backup, model)
    run = _Run(schedule, planner.backup, model, root, seed, chosen, max_calls, planner.epsilon)
    if isinstance(model, TabularModel) and model.terminal[root]:
        run.status = "terminal"
        return run.result()
    with _Display(schedule.calls) if progress else nullcontext() as display:
        run.go(workers, max_seconds, display)
    return run.result()


def _root_state(model: GenerativeModel, state: Any) -> Any:
    if state is None:
        state = model.initial_state
    if state is None:
        raise ValueError("state must be given, for this model declares no initial_state")
    if isinstance(model, TabularModel):
        state = arguments.whole("state", state, least=0)
        if state >= model.states:
            raise ValueError(f"state must be in 0..{model.states - 1}, got {state}")
        return state
    example = model.initial_state
    result = np.asarray(state, dtype=None if example is None else np.asarray(example).dtype)
    if example is not None and result.shape != np.shape(example):
        raise ValueError(f"state must have shape {np.shape(example)}, got {result.shape}")
    if result.dtype.kind == "f" and not np.isfinite(result).all():
        raise ValueError(f"state must be finite, got {result.tolist()}")
    return result


def _engine(name: EngineName, schedule: Schedule, backup: Backup, model: GenerativeModel) -> Engine:
    tabular = isinstance(model, TabularModel)
    if name == "batched" or (name == "auto" and not tabular):
        return BatchedEngine(schedule, backup)
    if name not in ("auto", "compiled"):
        raise ValueError(f"engine must be auto, compiled or batched, got {name!r}")
    if not isinstance(model, TabularModel):
        raise ValueError(f"engine 'compiled' needs a TabularModel, got {type(model).__name__}: use 'batched'")
    # Imported here, for it compiles on first use.
    from smoothplan.engines.compiled import CompiledEngine

    return CompiledEngine(schedule, backup, model)


def _affordable(planner: Planner, model: GenerativeModel, schedule: Schedule, max_calls: int) -> Schedule:
    """The schedule, or where the limit leaves it no chance, the most accurate one found that fits the limit."""
    if schedule.calls <= HEADROOM * max_calls:
        return schedule
    epsilon = schedule.epsilon
    while schedule.calls > max_calls:
        epsilon *= COARSENING
        schedule = planner.with_epsilon(epsilon).schedule(model)
    return schedule


def _refusal(planner: Planner, model: GenerativeModel, schedule: Schedule) -> str:
    """Why a run is not started, with the accuracy at which it would be."""
    message = (
        f"this plan may need {_scientific(schedule.calls)} simulator calls, more than {_scientific(REFUSED_CALLS)}. "
        "Recursion is for short horizons: a smaller discount, a larger epsilon or a higher temperature would help"
    )
    epsilon = schedule.epsilon
    while epsilon < schedule.problem.width / 2.0:
        epsilon *= 2.0
        price = planner.with_epsilon(epsilon).schedule(model).calls
        if price <= REFUSED_CALLS:
            # A price of nothing is the middle of the value interval: no help to anyone.
            message += f" (at epsilon={epsilon:g} it is {_amount(price)})" if price > 0 else ""
            break
    return message + "; max_calls=N plans as accurately as N calls allow"


class _Task(NamedTuple):
    chunk: int
    action: int | None  # None: samples of the value
    samples: int


@dataclass
class _Run:
    """The state of a run: what has been sampled at the root and what it proves."""

    schedule: Schedule
    backup: Backup
    model: GenerativeModel
    state: Any
    seed: int
    engine: Engine
    max_calls: int | None
    epsilon: float  # what was asked for; a limit on calls may have led to a coarser schedule
    status: Status = "completed"
    calls: int = 0
    samples: int = 0
    started: float = field(default_factory=time.perf_counter)
    interval: tuple[float, float] = field(init=False)
    actions: list[ConfidenceSequence] = field(default_factory=list)
    mean: ConfidenceSequence | None = None
    chunks: int = 0
    planned: int = 0

    def __post_init__(self) -> None:
        self.interval = self.schedule.problem.values
        root, delta, count = self.schedule.root, self.schedule.delta, self.schedule.problem.actions
        if root.kind == "constant":
            return
        through = self.schedule.action_return
        plug_in = root.kind == "plug-in"
        share = ADAPTIVE_SHARE if plug_in else ACTIONS_SHARE
        target = max(self.schedule.epsilon - self.schedule.bias, TINY) if plug_in else self._reference_radius()
        self.actions = [
            ConfidenceSequence(float(through.low), float(through.high), share * delta / count, target)
            for _ in range(count)
        ]

    def _reference_radius(self) -> float:
        """The deviation of a reference entry: what its interval is tuned to."""
        return max(math.sqrt(self.schedule.action_return.variance / self.schedule.root.samples), TINY)

    def go(self, workers: int, max_seconds: float | None, display: "_Display | None") -> None:
        """Samples until the interval is within ε, the schedule is done, or a limit is reached."""
        stages = [] if self.schedule.root.kind == "constant" else [self._action_tasks, self._value_tasks]
        try:
            for stage in stages[: 1 if self.schedule.root.kind == "plug-in" else 2]:
                with closing(parallel.in_order(self._sample, stage(), workers)) as outcomes:
                    for task, (sums, calls) in outcomes:
                        self._book(task, sums, calls)
                        if display is not None:
                            display.update(self.calls, self.interval)
                        if self.schedule.early_stopping and self._within(self.epsilon):
                            self.status = "converged"
                            return
                        if max_seconds is not None and time.perf_counter() - self.started > max_seconds:
                            self.status = "max_seconds"
                            return
                if self.status == "max_calls":
                    return
        except KeyboardInterrupt:
            self.status = "interrupted"
            return
        self._certain()
        if self._within(self.epsilon):
            self.status = "converged"
        elif self.schedule.epsilon > self.epsilon:
            self.status = "max_calls"

    def _action_tasks(self) -> Iterator[_Task]:
        """Returns of all actions, a chunk of each in turn."""
        root, actions = self.schedule.root, self.schedule.problem.actions
        each = self.schedule.reference_calls // (actions * root.samples)
        for count in self._pieces(root.samples, each * actions):
            for action in range(actions):
                yield from self._admitted(action, count, each)

    def _value_tasks(self) -> Iterator[_Task]:
        """Samples of the value around the reference, which is complete by now."""
        sample, bias = self.schedule.sample, self.schedule.bias
        target = max(self.schedule.epsilon - bias, TINY)
        delta = ADAPTIVE_SHARE * self.schedule.delta
        self.mean = ConfidenceSequence(float(sample.low), float(sample.high), delta, target)
        for count in self._pieces(self.schedule.repeats, self.schedule.sample_calls):
            yield from self._admitted(None, count, self.schedule.sample_calls)

    def _pieces(self, samples: int, calls: int) -> Iterator[int]:
        """Sizes of chunks: the same for every run of this schedule under the same limit."""
        budget = CHUNK_CALLS["batched" if isinstance(self.engine, BatchedEngine) else "compiled"]
        if self.max_calls is not None:
            budget = min(budget, self.max_calls // LOOKS)
        size = max(1, min(math.ceil(samples / LOOKS), budget // max(calls, 1)))
        for start in range(0, samples, size):
            yield min(size, samples - start)

    def _admitted(self, action: int | None, count: int, calls: int) -> Iterator[_Task]:
        """The task, if the calls that it may need are within the limit; otherwise the run is over."""
        if self.status == "max_calls":
            return
        self.planned += count * calls
        if self.max_calls is not None and self.planned > self.max_calls:
            self.status = "max_calls"
            return
        yield _Task(self.chunks, action, count)
        self.chunks += 1

    def _sample(self, task: _Task) -> tuple[Sums, int]:
        oracle = Oracle(self.model, self.seed, task.chunk)
        if task.action is None:
            sums = self.engine.values(oracle, self.state, self.q, task.samples)
        else:
            sums = self.engine.returns(oracle, self.state, task.action, task.samples)
        return sums, oracle.calls

    def _book(self, task: _Task, sums: Sums, calls: int) -> None:
        """Takes a chunk into account and tightens the interval."""
        self.calls += calls
        self.samples += sums.samples
        if task.action is None:
            assert self.mean is not None
            self.mean.update(*sums)
            self._tighten(*self.mean.interval)
        else:
            self.actions[task.action].update(*sums)
            if task.action == len(self.actions) - 1:
                intervals = np.array([action.interval for action in self.actions])
                self._tighten_by_actions(intervals[:, 0], intervals[:, 1])

    def _certain(self) -> None:
        """The bound that was certified in advance, once all samples are in."""
        noise = self.schedule.noise
        if self.schedule.root.kind == "plug-in":
            self._tighten_by_actions(self.q - noise, self.q + noise)
        elif self.mean is not None:
            self._tighten(self.mean.mean - noise, self.mean.mean + noise)

    def _tighten_by_actions(self, low: Floats, high: Floats) -> None:
        """An interval for every action's mean return gives one for the value, for F is monotone."""
        bias = float(self.schedule.action_return.bias)
        ends = self._backup(np.stack([low - bias, high + bias]))
        self._intersect(float(ends[0]), float(ends[1]))

    def _tighten(self, low: float, high: float) -> None:
        self._intersect(low - self.schedule.bias, high + self.schedule.bias)

    def _intersect(self, low: float, high: float) -> None:
        self.interval = max(self.interval[0], low), min(self.interval[1], high)

    def _backup(self, q: Floats, method: str = "value") -> Floats:
        """F or its policy at the root for a batch of action values [n, K]."""
        states = np.repeat(np.asarray(self.state)[None], len(q), axis=0)
        result: Floats = getattr(self.backup, method)(q, states)
        return result

    def _within(self, epsilon: float) -> bool:
        low, high = self.interval
        return max(high - self.value, self.value - low) <= epsilon * (1.0 + ROUNDING)

    @property
    def q(self) -> Floats:
        """The reference: the mean return of each action, [K]."""
        if not self.actions:
            low, high = self.schedule.problem.reward_range
            guess = (low + high) / 2.0 + self.schedule.problem.discount * self.schedule.problem.middle
            return np.full(self.schedule.problem.actions, guess)
        return np.array([action.mean for action in self.actions])

    @property
    def value(self) -> float:
        """The point estimate, within the interval."""
        low, high = self.interval
        if self.mean is not None and self.mean.count > 0:
            estimate = self.mean.mean
        elif self.actions and self.actions[-1].count > 0:
            estimate = float(self._backup(self.q[None])[0])
        else:
            estimate = (low + high) / 2.0
        return min(max(estimate, low), high)

    def result(self) -> PlanResult:
        """What the run found."""
        terminal = self.status == "terminal"
        q = np.zeros(self.schedule.problem.actions) if terminal else self.q
        return PlanResult(
            value=0.0 if terminal else self.value,
            interval=(0.0, 0.0) if terminal else self.interval,
            action=None if terminal else int(q.argmax()),
            q=q,
            policy=self._backup(q[None], "policy")[0],
            calls=self.calls,
            seconds=time.perf_counter() - self.started,
            status=self.status,
            samples=self.samples,
            epsilon=self.epsilon,
            delta=self.schedule.delta,
            seed=self.seed,
        )


TINY = 1e-12
"""Stands in for a target radius that is zero or negative, where a schedule promises no ε."""

ROUNDING = 1e-9
"""Relative slack when an interval is compared with ε."""


class _Display(AbstractContextManager["_Display"]):
    """The shrinking interval on standard error."""

    def __init__(self, calls: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("planning"),
            BarColumn(),
            TextColumn("{task.fields[calls]} of at most {task.fields[limit]} calls"),
            TextColumn("{task.fields[interval]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", total=float(calls), calls="0", limit=_amount(calls), interval="")

    def __enter__(self) -> "_Display":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Shows where the run is."""
        shown = f"value in [{interval[0]:.4f}, {interval[1]:.4f}]"
        self._progress.update(self._task, completed=float(calls), calls=_amount(calls), interval=shown)
