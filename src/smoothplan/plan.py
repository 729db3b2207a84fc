"""The one driver: run a planner at a state, and stop with a valid interval whatever happens."""

import json
import os
import time
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any, get_args

import numpy as np

from smoothplan import arguments, curvature, figures, summaries
from smoothplan.arguments import Floats
from smoothplan.backups import depends_on_state
from smoothplan.brake import Brake, Stopped
from smoothplan.compiling import announcing
from smoothplan.models.base import GenerativeModel, action_names, required_model
from smoothplan.models.calls import SimulatorError
from smoothplan.models.tabular import TabularModel
from smoothplan.running.checkpoint import Checkpoint
from smoothplan.running.fingerprint import describe, fingerprint
from smoothplan.running.progress import COMPILING, Shown, display_for
from smoothplan.running.run import EngineName, Found, Planner, Root, Run, Status, plain, required_planner
from smoothplan.running.workers import ClusterError, Workers


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PlanResult(Found):
    """What a run found.

    The interval contains the value with probability at least 1 − δ, whatever stopped the run, unless thresholds that do
    not cover δ were asked for.
    """

    policy: Floats  # ∇F(q), [K]
    seconds: float
    status: Status
    seed: int
    bonus: tuple[float, float] | None  # contains the regularised value less the ordinary one, where that is known
    names: tuple[str, ...] = field(repr=False)  # of the actions, [K]; no part of the JSON object

    def __repr__(self) -> str:
        return f"PlanResult({summaries.plan_brief(self)})"

    def summary(self) -> str:
        """What was found, in lines for people."""
        return summaries.plan_summary(self)

    def _repr_html_(self) -> str:
        return figures.plan_html(self)

    def figure(self) -> Any:
        """A Plotly figure of the value and the action values: intervals as bars, estimates as points."""
        return figures.plan_figure(self)

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(plain(self))


def plan(
    planner: Planner,
    model: GenerativeModel,
    state: Any = None,
    *,
    seed: int = 0,
    max_calls: int | None = None,
    max_seconds: float | None = None,
    workers: Any = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    chunk_seconds: float | None = None,
    worker_memory: int | None = None,
    progress: Shown = False,
    engine: EngineName = "auto",
) -> PlanResult:
    """Runs a planner at a state. Ctrl-C and SIGTERM end the run and return what it has.

    Args:
        planner: what to run.
        model: the simulator.
        state: where to plan; the model's initial state by default.
        seed: the same seed gives the same result, for any number of workers, and however often it was resumed, where no
            limit on time is given and no signal or error ends it; docs/long-runs.md says what else must be the same.
        max_calls: a limit on the simulator calls that the result rests on. Giving one also allows a run whose forecast
            is hopeless.
        max_seconds: a limit on time. What is under way then is abandoned. Compiling code, which happens once, and
            loading it do not count, except in processes of Dask. With a limit the result may depend on the machine,
            even where the run ends before: making a reference takes a part of the time.
        workers: a number: threads for compiled engines, processes of Dask for simulators in Python; 1 is this thread.
            Or the address of a Dask scheduler ("tcp://..."), or a Dask client.
        checkpoint: a file. What is done is written there, and a run that finds its own file goes on where that ends.
        chunk_seconds: seconds that one chunk of samples may take; a longer one is an error that names the call. Chunks
            are then computed in processes of Dask, even with one worker. What calls the simulator in this process, one
            call after the other, such as the walks of a search, has each call limited instead.
        worker_memory: bytes that a process on this machine may use; a fair share of the machine's memory by default.
            Giving it also has chunks computed in processes. It does not limit simulator calls in this process: those of
            searches, and of a reference that is made first.
        progress: True to show the shrinking interval, speed and time left on standard error, "json" for JSON lines.
        engine: "compiled" for tabular and jitted models, "batched" for any; by default whichever is faster.

    Raises:
        HopelessError: the run may need too many simulator calls, and no `max_calls` is given.
        ModelError: what the run proves, with probability 1 − δ, contradicts the declared `value_range`.
        SimulatorError: the simulator failed or broke what it declares. It names the call, which `reproduce` makes
            again, and has the result so far as `partial`.
        CheckpointError: the file is in use, of another run, damaged, or cannot be written.
        ClusterError: the cluster is gone. Finished work is in the checkpoint, if there is one.
    """
    started = time.perf_counter()
    required_planner(planner)
    required_model(model)
    if engine not in get_args(EngineName):
        raise ValueError(f"engine must be auto, compiled or batched, got {engine!r}")
    root = Root(
        model=model,
        state=root_state(model, state),
        seed=arguments.whole("seed", seed, least=0),
        max_calls=None if max_calls is None else arguments.whole("max_calls", max_calls, least=0),
        max_seconds=None if max_seconds is None else arguments.number("max_seconds", max_seconds, least=0.0),
        engine=engine,
        started=started,
    )
    display = display_for(progress, epsilon=planner.epsilon, max_calls=root.max_calls, max_seconds=root.max_seconds)
    if isinstance(model, TabularModel) and bool(model.terminal[root.state]):
        return _worth_nothing(planner, root)
    brake = Brake(None if root.max_seconds is None else root.begun + root.max_seconds, chunk_seconds)
    work_force = Workers(
        workers, chunk_seconds=chunk_seconds, worker_memory=worker_memory, brake=brake, announce=display.note
    )
    if checkpoint is not None:  # opened last: no mistake in an argument leaves a file behind
        work_force.checkpoint = Checkpoint(checkpoint, _identity(planner, root))
    with brake.on_signals(), work_force, display, announcing(partial(display.note, COMPILING)):
        if work_force.checkpoint is not None and not work_force.checkpoint.is_new:
            display.note(f"resumed from {checkpoint}: {work_force.checkpoint.chunks} chunks are done")
        run = planner.begin(root)
        try:
            status = run.go(work_force, display)
        except Stopped as stopped:
            status = stopped.reason
        except KeyboardInterrupt:
            status = "interrupted"
        except (SimulatorError, ClusterError) as error:
            error.partial = _result(planner, root, _counted(run, work_force), "interrupted")
            raise
        found = _counted(run, work_force)
        display.update(found.calls, found.interval, getattr(found.details, "standing", None))
        display.end(status)
    return _result(planner, root, found, status)


def _identity(planner: Planner, root: Root) -> dict[str, str]:
    """What a run is, for its checkpoint: two runs that are alike in this end in the same bits."""
    things = {"planner": planner, "model": root.model, "state": root.state}
    described = {name: f"{describe(thing)} ({fingerprint(thing)})" for name, thing in things.items()}
    limits = {"seed": str(root.seed), "max_calls": str(root.max_calls), "engine": root.engine}
    return {"version": version("smoothplan")} | described | limits


def _counted(run: Run, workers: Workers) -> Found:
    """What a run found, where calls include those of a chunk that was stopped under way."""
    found = run.found()
    return replace(found, calls=found.calls + workers.abandoned)


def _result(planner: Planner, root: Root, found: Found, status: Status) -> PlanResult:
    return PlanResult(
        **{name: getattr(found, name) for name in found.__dataclass_fields__},
        policy=root.backed_up(planner.backup, found.q[None], "policy")[0],
        seconds=time.perf_counter() - root.started,
        status=status,
        seed=root.seed,
        bonus=_bonus(planner, root, status),
        names=action_names(root.model),
    )


def _bonus(planner: Planner, root: Root, status: Status) -> tuple[float, float] | None:
    """What regularisation adds to a value, at least and at most; None where that differs from state to state."""
    ordinary = planner.backup.temperature == 0.0 or status == "terminal"
    unknown = ordinary or depends_on_state(planner.backup)
    return None if unknown else curvature.gap_of_values(root.model, planner.backup)


def _worth_nothing(planner: Planner, root: Root) -> PlanResult:
    """The result at a terminal state."""
    nothing = Found(
        value=0.0,
        interval=(0.0, 0.0),
        action=None,
        q=np.zeros(root.model.actions),
        calls=0,
        samples=0,
        epsilon=planner.epsilon,
        delta=planner.delta,
    )
    return _result(planner, root, nothing, "terminal")


def root_state(model: GenerativeModel, state: Any) -> Any:
    """A state to plan at, the model's initial one by default, or an error that says what is wrong with it."""
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
        if result.shape == () and example.shape == (1,):  # a number for a vector of one
            result = result[None]
        if result.shape != example.shape:
            raise ValueError(f"state must have shape {example.shape}, got {result.shape}")
        # A fraction never becomes a whole number.
        if not np.can_cast(result.dtype, example.dtype, "same_kind"):
            raise TypeError(f"state must be of dtype {example.dtype}, got {state!r}")
        result = result.astype(example.dtype)
    if result.dtype.kind == "f" and not np.isfinite(result).all():
        raise ValueError(f"state must be finite, got {result.tolist()}")
    return result
