"""The one driver: run a planner at a state, and stop with a valid interval whatever happens."""

import json
import os
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, get_args

import numpy as np

from smoothplan import arguments
from smoothplan.arguments import Floats
from smoothplan.brake import Brake
from smoothplan.models.base import GenerativeModel
from smoothplan.models.calls import SimulatorError
from smoothplan.models.tabular import TabularModel
from smoothplan.running.checkpoint import Journal
from smoothplan.running.fingerprint import describe, fingerprint
from smoothplan.running.hiring import PoolName, Terms
from smoothplan.running.progress import Shown, display_for
from smoothplan.running.run import EngineName, Found, Planner, Root, Status, until_stopped
from smoothplan.running.workers import ClusterError, Workers


@dataclass(frozen=True, eq=False)
class PlanResult(Found):
    """What a run found. The interval contains the value with probability at least 1 − δ, whatever stopped the run."""

    policy: Floats  # ∇F(q), [K]
    seconds: float
    status: Status
    seed: int

    def to_json(self) -> str:
        """One JSON object."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                fields[name] = value.tolist()
        return json.dumps(fields | {"details": None if self.details is None else self.details.to_fields()})


def plan(
    planner: Planner,
    model: GenerativeModel,
    state: Any = None,
    *,
    seed: int = 0,
    max_calls: int | None = None,
    max_seconds: float | None = None,
    workers: int = 1,
    pool: PoolName = "auto",
    cluster: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    simulator_timeout: float | None = None,
    worker_memory: int | None = None,
    progress: Shown = False,
    engine: EngineName = "auto",
) -> PlanResult:
    """Runs a planner at a state. Ctrl-C and SIGTERM end the run and return what it has.

    Args:
        planner: what to run.
        model: the simulator.
        state: where to plan; the model's initial state by default.
        seed: the same seed gives the same result, whoever does the work, and however often it was resumed.
        max_calls: a limit on simulator calls. Giving one also allows a run whose forecast is hopeless.
        max_seconds: a limit on time. What is under way then is abandoned.
        workers: how many do the work at a time, on this machine.
        pool: "threads", which suit compiled engines, or "processes", which suit simulators in Python and contain them;
            by default what suits the engine. One worker means this thread, unless processes are asked for.
        cluster: a Dask cluster that does the work instead: "local", the address of a scheduler, or a client. With
            "local", the number of its processes is `workers`, or that of the processors if it is 1.
        checkpoint: a file. What is done is written there, and a run that finds its own file goes on where that ends.
        simulator_timeout: seconds that one call of the model's step may take; longer ones are an error. Needs
            processes, and starts them even for one worker.
        worker_memory: bytes that a worker process may grow by; a fair part of the machine's memory by default.
        progress: True to show the shrinking interval, speed and time left on standard error, "json" for JSON lines.
        engine: "compiled" for tabular and jitted models, "batched" for any; by default whichever is faster.

    Raises:
        HopelessError: the run may need too many simulator calls and no `max_calls` is given.
        SimulatorError: the simulator failed or broke what it declares. It names the call, which `reproduce` makes
            again, and has the result so far as `partial`.
        CheckpointError: the file is in use, is of another run, or cannot be written.
        ClusterError: the cluster is gone. Finished work is in the checkpoint, if there is one.
    """
    started = time.perf_counter()
    terms = Terms(workers, pool, cluster, simulator_timeout, worker_memory)
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
    display = display_for(progress, epsilon=planner.epsilon, max_calls=root.max_calls, max_seconds=root.max_seconds)
    if isinstance(model, TabularModel) and bool(model.terminal[root.state]):
        return _worth_nothing(planner, root)
    journal = None if checkpoint is None else Journal.open(checkpoint, _identity(planner, root))
    brake = Brake(None if root.max_seconds is None else started + root.max_seconds)
    with (
        brake.on_signals(),
        Workers(terms.hire, journal, brake, display.note) as workers,
        display,
        terms.model(model, root.seed) as simulator,
    ):
        if journal is not None and not journal.is_new:
            display.note(f"resumed from {checkpoint}: {journal.facts} chunks are done")
        root = replace(root, model=simulator)
        run = planner.begin(root)
        try:
            status = until_stopped(lambda: run.go(workers, display))
        except (SimulatorError, ClusterError) as error:
            error.partial = _result(planner, root, run.found(), "interrupted")
            raise
        found = run.found()
        display.update(found.calls, found.interval)
        display.end(status)
    return _result(planner, root, found, status)


def _identity(planner: Planner, root: Root) -> dict[str, str]:
    """What a run is, for its checkpoint: two runs that are alike in this end in the same bits."""
    things = {"planner": planner, "model": root.model, "state": root.state}
    described = {name: f"{describe(thing)} ({fingerprint(thing)})" for name, thing in things.items()}
    limits = {"seed": str(root.seed), "max_calls": str(root.max_calls), "engine": root.engine}
    return {"version": version("smoothplan")} | described | limits


def _result(planner: Planner, root: Root, found: Found, status: Status) -> PlanResult:
    return PlanResult(
        **{name: getattr(found, name) for name in found.__dataclass_fields__},
        policy=root.backed_up(planner.backup, found.q[None], "policy")[0],
        seconds=time.perf_counter() - root.started,
        status=status,
        seed=root.seed,
    )


def _worth_nothing(planner: Planner, root: Root) -> PlanResult:
    """The result at a terminal state."""
    nothing = Found(
        value=0.0,
        interval=(0.0, 0.0),
        action=None,
        q=np.zeros(root.model.actions),
        q_intervals=None,
        calls=0,
        samples=0,
        epsilon=planner.epsilon,
        delta=planner.delta,
        details=None,
    )
    return _result(planner, root, nothing, "terminal")


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
