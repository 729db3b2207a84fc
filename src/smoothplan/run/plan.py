"""The drivers: `plan` runs a planner at a state and stops with a valid interval whatever happens; `check_model`.

Every driver works within a `session`.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, get_args
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.base.records import Record
from smoothplan.base.stopping import Stopped, StopSignal
from smoothplan.models.derived import split_stages
from smoothplan.models.model import (
    GenerativeModel,
    ModelError,
    Oracle,
    Transition,
    action_names,
    horizon_of,
    legal_actions,
    required_model,
)
from smoothplan.models.tabular import TabularModel
from smoothplan.models.testing import Examination, ModelReport
from smoothplan.run.checkpoint import Checkpoint, described
from smoothplan.run.chunks import ClusterError, repeated
from smoothplan.run.progress import Display, Shown
from smoothplan.run.records import EngineName, GapDetails, Planner, Root, Snapshot, Status, Support, required_planner
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import depends_on_state


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PlanResult(Record, Snapshot):
    """The result of a run. Its interval contains the value with probability at least 1 − δ, whatever stopped it."""

    policy: Floats  # ∇F(q), [K]
    seconds: float
    status: Status
    seed: int
    bonus: tuple[float, float] | None  # contains the regularised value less the unregularised one; None if not known
    names: tuple[str, ...]  # of the actions, [K]
    regularised_value: float | None = None  # under the planner's backup, if the plan is for the unregularised value
    regularised_interval: tuple[float, float] | None = None
    chosen: dict[str, str] = field(default_factory=dict)  # reasons for a backup, planner and limit chosen by default

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that a user must read, such as that no reference could be made."""
        found: tuple[str, ...] = getattr(self.details, "warnings", ())
        return found

    @property
    def support(self) -> Support:
        """The basis of the interval."""
        support: Support = "proved" if self.details is None else self.details.support
        unsampled = self.delta == 0.0 and self.interval[0] < self.interval[1]
        return "declared" if support == "proved" and unsampled else support

    def __repr__(self) -> str:
        (low, high), details = self.interval, self.details
        estimate = "" if self.support == "proved" else " (estimate)"
        words = [f"value {self.value:.6g}{estimate} in [{low:.6g}, {high:.6g}]"]
        words.append("terminal" if self.action is None else f"action {self.names[self.action]}")
        if isinstance(details, GapDetails):
            words.append(f"gap {max(details.gap, 0.0):.4g}")
        return f"PlanResult({', '.join([*words, f'{self.calls:,} calls', self.status])})"


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
    """Runs a planner at a state. Ctrl-C and SIGTERM end the run and return the result so far.

    Args:
        planner: the planner.
        model: the simulator.
        state: the state to plan at; the model's initial state by default.
        seed: the same seed gives the same result, for any number of workers, and however often the run was resumed,
            unless a limit on time, a signal or an error ends it. docs/long-runs.md lists the other conditions.
        max_calls: a limit on the simulator calls that the result rests on. Giving one also allows a run whose forecast
            is hopeless.
        max_seconds: a limit on time, without compiling and loading code in this process. Work in progress is then
            discarded. With a limit the result may depend on the machine: making a reference takes a share of the time.
        workers: a number: threads for compiled engines, processes of Dask for simulators in Python; 1 is this thread.
            "threads:4": four threads for any simulator, worthwhile if it waits or releases the interpreter lock. Its
            step must allow calls from several threads at once. Or the address of a Dask scheduler ("tcp://..."), or a
            Dask client.
        checkpoint: a file. Finished work is written there, and a run that finds its own file continues from it.
        chunk_seconds: seconds that one chunk of samples may take; a longer one is an error that names the call. Chunks
            are then computed in processes of Dask, even with one worker. Simulator calls that this process makes one
            after the other, such as those of the walks of a search, are limited each instead.
        worker_memory: bytes that a process on this machine may use; a fair share of the machine's memory by default.
            Chunks are then computed in processes. Searches, and makers of references, are not limited.
        progress: True to show the shrinking interval, speed and time left on standard error, "json" for JSON lines.
        engine: "compiled" for tabular and jitted models, "batched" for any; by default whichever is faster.

    Raises:
        TooExpensiveError: the run may need too many simulator calls, and no `max_calls` is given.
        ModelError: the interval that the run proves with probability 1 − δ contradicts the declared `value_range`.
        SimulatorError: the simulator failed or contradicts its declarations. It names the call, which `reproduce` makes
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
    if isinstance(model, TabularModel) and bool(model.terminal[root.state]):
        none: dict[str, Any] = {"value": 0.0, "interval": (0.0, 0.0), "action": None, "calls": 0, "samples": 0}
        worthless = Snapshot(**none, q=np.zeros(model.actions), epsilon=planner.epsilon, delta=planner.delta)
        return _result(planner, root, worthless, "terminal")
    display = Display(progress, epsilon=planner.epsilon, max_calls=root.max_calls, max_seconds=root.max_seconds)
    limits: dict[str, Any] = {"chunk_seconds": chunk_seconds, "worker_memory": worker_memory}
    with session(display, workers, deadline=root.deadline, **limits) as force:
        if checkpoint is not None:  # no mistake in an argument leaves a file behind
            force.checkpoint = Checkpoint(checkpoint, _identity(planner, root))
            if force.checkpoint.resumed:
                display.note(f"resumed from {checkpoint}")
        run = planner.start(root)

        def result(status: Status) -> PlanResult:
            # Calls include those of a chunk that was stopped.
            found = run.result()
            return _result(planner, root, replace(found, calls=found.calls + force.abandoned), status)

        def work() -> Status:
            if force.checkpoint is not None:
                _compare_simulators(force.checkpoint, root)
            return run.run(force, display)

        status = drive(work, lambda: result("interrupted"))
        found = result(status)
        display.update(found.calls, found.interval, getattr(found.details, "progress", None))
        display.end(status)
    return replace(found, seconds=time.perf_counter() - started)


@contextmanager
def session(
    display: Display,
    workers: Any = 1,
    *,
    deadline: float | None = None,
    chunk_seconds: float | None = None,
    worker_memory: int | None = None,
) -> Iterator[Workers]:
    """Opens workers and display, and closes them whatever happens. Ctrl-C and SIGTERM stop the work.

    Args:
        display: shows the work.
        workers, chunk_seconds, worker_memory: as for `plan`.
        deadline: when the work stops, on the clock of `working_time`.
    """
    stop_signal = StopSignal(deadline, chunk_seconds)
    force = Workers(workers, chunk_seconds=chunk_seconds, worker_memory=worker_memory, stop_signal=stop_signal)
    with stop_signal.on_signals(), force, display:
        yield force


def drive(work: Callable[[], Status], so_far: Callable[[], Any]) -> Status:
    """Works to the end, or until something stops the work; the reason why it ended.

    Args:
        work: returns its own reason.
        so_far: the result, which an error of the simulator or of the cluster carries as `partial`.
    """
    try:
        return work()
    except Stopped as stopped:
        return stopped.reason
    except KeyboardInterrupt:
        return "interrupted"
    except (ModelError, ClusterError) as error:
        with suppress(ModelError):  # the model may fail again
            error.partial = so_far()
        raise


def check_model(
    model: GenerativeModel,
    states: ArrayLike | None = None,
    *,
    seed: int = 0,
    rounds: int = 50,
    progress: Shown = False,
) -> ModelReport:
    """Calls a simulator in ways that reveal broken promises, and raises `ModelError` at the first one.

    It checks shapes, dtypes, reward range and kind, non-finite numbers, terminal states and the bound on successors;
    that states are not changed in place; that the same generator gives the same result; and that no call depends on an
    earlier one. A `value_range` is refuted if random actions earn significantly more; for a table, `exact.solve` with
    `HardMax` checks it exactly.

    Args:
        model: the simulator.
        states: states to start from, [n, ...]; the model's initial state by default.
        seed: seed of the random walk that looks for more states.
        rounds: steps of that walk.
        progress: True to show the calls made on standard error, "json" for JSON lines.

    Returns:
        A report of the calls made. A pass is evidence, not proof.
    """
    examination = Examination(model, states, seed, rounds)
    with Display(progress, title="checking", max_calls=examination.most_calls) as display:
        with display.polling(lambda: examination.calls):
            report = examination.run()
        display.update(report.calls)
        display.end("completed")
    return report


def _identity(planner: Planner, root: Root) -> dict[str, str]:
    """The identity of a run, for its checkpoint: with all declarations of the model, and its table if there is one."""
    model, names = root.model, [name for name in dir(GenerativeModel) if not name.startswith("_") and name != "step"]
    return {
        "planner": described(planner),
        "version": version("smoothplan"),
        "model": described((type(model), {name: getattr(model, name, None) for name in names})),
        "table": f"{crc32(model.tables.outcomes.tobytes()):x}" if isinstance(model, TabularModel) else "none",
        "state": described(root.state),
        "seed": str(root.seed),
        "max_calls": str(root.max_calls),
        "engine": root.engine,
    }


def _compare_simulators(checkpoint: Checkpoint, root: Root) -> None:
    """Makes a few simulator calls at the root, and one after each, and compares them with those of an earlier run.

    The run does not count them. The content of a table is part of the identity.
    """
    if isinstance(root.model, TabularModel):
        return
    oracle = Oracle(root.model, root.seed, role="probe")
    mask = legal_actions(root.model, np.asarray(root.state)[None])
    actions = np.arange(root.model.actions) if mask is None else np.flatnonzero(mask[0])
    first = oracle.sample(repeated(root.state, len(actions)), actions)
    further = first.next_states[~first.terminals]
    mask = None if len(further) == 0 else legal_actions(root.model, further)
    second = oracle.sample(further, np.zeros(len(further), dtype=np.int64) if mask is None else mask.argmax(axis=1))
    found = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in Transition._fields}
    before = checkpoint.snapshot("probe")
    if before is None:
        checkpoint.keep("probe", found)
    elif not all(np.array_equal(found[name], before[name]) for name in found):
        raise checkpoint.refuse_simulator("a call")


def _result(planner: Planner, root: Root, found: Snapshot, status: Status) -> PlanResult:
    backup = planner.backup
    bonus = None  # without a regulariser, or if it adds more in some states than in others
    if backup.temperature != 0.0 and status != "terminal" and not depends_on_state(backup):
        bonus = curvature.gap_of_values(root.model, backup)
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
    fields["interval"] = tuple(outward(np.array(found.interval)).tolist())
    fields["q_intervals"] = None if found.q_intervals is None else outward(found.q_intervals)
    return PlanResult(
        **fields,
        policy=root.backed_up(backup, found.q[None], "policy")[0],
        seconds=time.perf_counter() - root.started,
        status=status,
        seed=root.seed,
        bonus=bonus,
        names=action_names(root.model),
    )


def outward(intervals: Floats) -> Floats:
    """Intervals [..., 2], wider by a few units in the last place of their ends: the result of rounded operations."""
    finite = np.where(np.isfinite(intervals), intervals, 0.0)  # those of illegal actions are not
    return np.asarray(intervals + 2.0**-50 * np.abs(finite) * np.array([-1.0, 1.0]))


def root_state(model: GenerativeModel, state: Any) -> Any:
    """A state to plan at, the model's initial one by default, or an error that says why it is none."""
    if state is None:
        state = model.initial_state
    if state is None:
        raise ValueError("state must be given: this model declares no initial_state")
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
    if getattr(model, "stationary", None) is not None:
        left, horizon = int(split_stages(model, result[None])[1][0]), horizon_of(model)
        if not 0 < left <= (horizon or 0):
            raise ValueError(f"state must end with the steps left, from 1 to {horizon}, got {result.tolist()}")
    return result
