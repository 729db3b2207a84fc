"""The one driver: run a planner at a state, and stop with a valid interval whatever happens."""

import json
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from smoothplan import arguments
from smoothplan.arguments import Floats
from smoothplan.forecast import amount
from smoothplan.models.base import GenerativeModel
from smoothplan.models.tabular import TabularModel
from smoothplan.run import Diagnosis, EngineName, Identification, Planner, Root, Run, Status


@dataclass(frozen=True, eq=False)
class PlanResult:
    """What a run found. The interval contains the value with probability at least 1 − δ, whatever stopped the run."""

    value: float
    interval: tuple[float, float]
    action: int | None  # the best action as far as the run knows; none at a terminal state
    q: Floats  # estimates of the action values, [K]; no guarantee
    q_intervals: Floats | None  # [K, 2], where there are any: all hold at once, and together with the interval
    policy: Floats  # ∇F(q), [K]
    calls: int  # simulator calls
    seconds: float
    status: Status
    samples: int  # root samples
    epsilon: float
    delta: float
    seed: int
    identification: Identification | None = None  # what a run in search of the best action did
    diagnosis: Diagnosis | None = None  # what a run around a reference says of it

    def to_json(self) -> str:
        """One JSON object."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                fields[name] = value.tolist()
        if self.identification is not None:
            fields["identification"] = self.identification.to_fields()
        if self.diagnosis is not None:
            fields["diagnosis"] = self.diagnosis.to_fields()
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
        HopelessError: the run may need too many simulator calls and no `max_calls` is given.
    """
    started = time.perf_counter()
    if engine not in get_args(EngineName):
        raise ValueError(f"engine must be auto, compiled or batched, got {engine!r}")
    root = Root(
        model=model,
        state=_root_state(model, state),
        seed=arguments.whole("seed", seed, least=0),
        max_calls=None if max_calls is None else arguments.whole("max_calls", max_calls, least=0),
        max_seconds=None if max_seconds is None else arguments.number("max_seconds", max_seconds, least=0.0),
        engine=engine,
        started=started,
    )
    workers = arguments.whole("workers", workers)
    if isinstance(model, TabularModel) and bool(model.terminal[root.state]):
        return _worth_nothing(planner, root)
    run = planner.begin(root)
    with _Display(root.max_calls) if progress else nullcontext() as display:
        run.go(workers, display)
    return _result(planner, root, run)


def _result(planner: Planner, root: Root, run: Run) -> PlanResult:
    q = run.q
    return PlanResult(
        value=run.value,
        interval=run.interval,
        action=run.action,
        q=q,
        q_intervals=run.q_intervals,
        policy=root.backed_up(planner.backup, q[None], "policy")[0],
        calls=run.calls,
        seconds=time.perf_counter() - root.started,
        status=run.status,
        samples=run.samples,
        epsilon=run.epsilon,
        delta=run.delta,
        seed=root.seed,
        identification=run.identification,
        diagnosis=run.diagnosis,
    )


def _worth_nothing(planner: Planner, root: Root) -> PlanResult:
    """The result at a terminal state."""
    q = np.zeros(root.model.actions)
    return PlanResult(
        value=0.0,
        interval=(0.0, 0.0),
        action=None,
        q=q,
        q_intervals=None,
        policy=root.backed_up(planner.backup, q[None], "policy")[0],
        calls=0,
        seconds=time.perf_counter() - root.started,
        status="terminal",
        samples=0,
        epsilon=planner.epsilon,
        delta=planner.delta,
        seed=root.seed,
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


class _Display(AbstractContextManager["_Display"]):
    """The shrinking interval on standard error."""

    def __init__(self, limit: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("planning"),
            BarColumn(),
            TextColumn("{task.fields[calls]}{task.fields[limit]} calls"),
            TextColumn("{task.fields[interval]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, calls="0", limit="", interval="")
        if limit is not None:
            self.expect(limit)

    def __enter__(self) -> "_Display":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def expect(self, calls: int) -> None:
        """Takes note of the calls that the run may make, at most."""
        self._progress.update(self._task, total=float(calls), limit=f" of at most {amount(calls)}")

    def update(self, calls: int, interval: tuple[float, float]) -> None:
        """Shows where the run is."""
        shown = f"value in [{interval[0]:.4f}, {interval[1]:.4f}]"
        self._progress.update(self._task, completed=float(calls), calls=amount(calls), interval=shown)
