"""The one driver: run a planner at a state, and stop with a valid interval whatever happens."""

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from smoothplan import arguments
from smoothplan.arguments import Floats
from smoothplan.backups import Backup
from smoothplan.engines.base import Engine
from smoothplan.engines.batched import BatchedEngine
from smoothplan.forecast import Planner, amount, scientific
from smoothplan.models.base import GenerativeModel
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.run import Run, Status
from smoothplan.schedules.level import Level
from smoothplan.schedules.schedule import Schedule

REFUSED_CALLS = 10**11
"""A run that may need more simulator calls than this is not started unless the user says how many are acceptable."""

HEADROOM = 4
"""A schedule may cost this much more than the limit on calls and still be tried, for most runs stop early."""

BISECTIONS = 12
"""Of the range of log ε, in search of a schedule that a number of calls can pay for."""

WORTH_COMPILING = 12.0
"""Calls per step from which the compiled engine is faster than the batched one on a jitted simulator."""

EngineName = Literal["auto", "compiled", "batched"]


class HopelessError(ValueError):
    """The forecast is beyond what anyone would want to pay."""


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
        engine: "compiled" for tabular and jitted models, "batched" for any; by default whichever is faster.

    Raises:
        HopelessError: the forecast exceeds `REFUSED_CALLS` and no `max_calls` is given.
    """
    started = time.perf_counter()
    schedule = planner.schedule(model)
    root = _root_state(model, state)
    terminal = isinstance(model, TabularModel) and bool(model.terminal[root])
    seed = arguments.whole("seed", seed, least=0)
    workers = arguments.whole("workers", workers)
    if max_seconds is not None:
        max_seconds = arguments.number("max_seconds", max_seconds, least=0.0)
    if max_calls is not None:
        max_calls = arguments.whole("max_calls", max_calls, least=0)
        schedule = _affordable(planner, model, schedule, max_calls)
    elif schedule.calls > REFUSED_CALLS and not terminal:
        raise HopelessError(_refusal(planner, model, schedule))
    chosen = _engine(engine, schedule, planner.backup, model)
    run = Run(schedule, planner.backup, model, root, seed, chosen, max_calls, planner.epsilon, started)
    if terminal:
        run.status, run.interval = "terminal", (0.0, 0.0)
    else:
        with _Display(schedule.calls) if progress else nullcontext() as display:
            run.go(workers, max_seconds, display)
    q = np.zeros(model.actions) if terminal else run.q
    return PlanResult(
        value=run.value,
        interval=run.interval,
        action=None if terminal else int(q.argmax()),
        q=q,
        policy=run.backed_up(q[None], "policy")[0],
        calls=run.calls,
        seconds=time.perf_counter() - started,
        status=run.status,
        samples=run.samples,
        epsilon=run.epsilon,
        delta=schedule.delta,
        seed=seed,
    )


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
    try:
        result = np.asarray(state)
    except ValueError:
        raise ValueError(f"state must be an array, got {state!r}") from None
    if model.initial_state is not None:
        example = np.asarray(model.initial_state)
        if result.shape != example.shape:
            raise ValueError(f"state must have shape {example.shape}, got {result.shape}")
        # A fraction never becomes a whole number.
        if not np.can_cast(result.dtype, example.dtype, "same_kind"):
            raise TypeError(f"state must be of dtype {example.dtype}, got {state!r}")
        result = result.astype(example.dtype)
    if result.dtype.kind == "f" and not np.isfinite(result).all():
        raise ValueError(f"state must be finite, got {result.tolist()}")
    return result


def _engine(name: EngineName, schedule: Schedule, backup: Backup, model: GenerativeModel) -> Engine:
    if name not in ("auto", "compiled", "batched"):
        raise ValueError(f"engine must be auto, compiled or batched, got {name!r}")
    # The compiled engines are imported here, for they compile on first use.
    if isinstance(model, TabularModel) and name != "batched":
        from smoothplan.engines.compiled import CompiledEngine

        return CompiledEngine(schedule, backup, model)
    if isinstance(model, JitModel) and name != "batched":
        from smoothplan.engines.jitted import JittedEngine, calls_per_step

        fits = JittedEngine.serves(model) and not callable(getattr(backup, "reference", None))
        if fits and (name == "compiled" or calls_per_step(schedule) >= WORTH_COMPILING):
            return JittedEngine(schedule, backup, model)
    if name == "compiled":
        raise ValueError(
            "engine 'compiled' needs a TabularModel, or a JitModel with an initial_state that is a vector of float64 "
            f"and a backup that does not depend on the state, got {type(model).__name__}: use 'batched'"
        )
    return BatchedEngine(schedule, backup)


def _affordable(planner: Planner, model: GenerativeModel, schedule: Schedule, max_calls: int) -> Schedule:
    """The schedule, or where the limit leaves it no chance, the most accurate one found that fits the limit."""
    if schedule.calls <= HEADROOM * max_calls:
        return schedule
    return _finest(planner, model, schedule, max_calls)


def _finest(planner: Planner, model: GenerativeModel, dear: Schedule, max_calls: int) -> Schedule:
    """The most accurate schedule found within a number of calls, where that of the planner is not."""
    low, high = dear.epsilon, dear.problem.width / 2.0
    # The middle of the value interval is always within reach.
    best = Schedule(dear.problem, (Level("constant"),), 1, high, dear.delta)
    for _ in range(BISECTIONS if low < high else 0):
        middle = math.sqrt(low * high)
        schedule = planner.with_epsilon(middle).schedule(model)
        if schedule.calls <= max_calls:
            best, high = schedule, middle
        else:
            low = middle
    return best


def _refusal(planner: Planner, model: GenerativeModel, schedule: Schedule) -> str:
    """Why a run is not started, with the accuracy at which it would be."""
    message = (
        f"this plan may need {scientific(schedule.calls)} simulator calls, more than {scientific(REFUSED_CALLS)}. "
        "Recursion is for short horizons: a smaller discount, a larger epsilon or a higher temperature would help"
    )
    # A tenth, for ε is rounded. A price of nothing is the middle of the value interval: no help to anyone.
    finest = _finest(planner, model, schedule, REFUSED_CALLS // 10)
    if finest.calls > 0:
        message += f" (at epsilon={finest.epsilon:.3g} it is {amount(finest.calls)})"
    return message + "; max_calls=N plans as accurately as N calls allow"


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
        self._task = self._progress.add_task("", total=float(calls), calls="0", limit=amount(calls), interval="")

    def __enter__(self) -> "_Display":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Shows where the run is."""
        shown = f"value in [{interval[0]:.4f}, {interval[1]:.4f}]"
        self._progress.update(self._task, completed=float(calls), calls=amount(calls), interval=shown)
