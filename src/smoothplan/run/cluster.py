"""Dask computes the chunks of a run: in processes on this machine, or on a cluster.

Dask moves batches, restarts workers that die, and gives their batches to others. Where the scheduler itself goes away,
batches wait for it to come back, for a while, and are sent again. A batch whose process died is sent again with notes
of every simulator call: a process that dies twice at the same call was killed by the simulator.
"""

import contextlib
import importlib
import io
import logging
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from smoothplan.base.compiling import paused_clock
from smoothplan.base.stopping import StopSignal
from smoothplan.models.calls import SimulatorError
from smoothplan.models.vector import JitModel
from smoothplan.run.chunks import Batch, Done, Outcome, Work
from smoothplan.run.remote import Note, Order, Shipped, compute, read_note
from smoothplan.run.workers import ClusterError

LOOPBACK = "127.0.0.1"
"""Where processes on this machine listen: whoever reaches a port of Dask can run code."""

CONNECT_SECONDS = 30.0
"""How long a scheduler may take to answer, and the first worker to appear."""

LOST_SECONDS = 120.0
"""How long batches wait for workers, after all have gone."""

COUNT_SECONDS = 2.0
"""How often the workers are counted: they may come and go."""

FETCH_SECONDS = 2.0
"""How long an answer may take that should be there."""

NOTE_SECONDS = 3.0
"""How long to look for the note of a process that died on another machine, whose nanny may be busy."""

WARM_UP, COMPILING = 10.0, 60.0
"""Seconds that the first chunk of a kind in a process may take beyond `chunk_seconds`, which may load something; and
where it compiles."""

ATTEMPTS = 20
"""Times that a batch is sent without any progress."""


@dataclass(eq=False)
class _Ticket:
    """A batch on its way."""

    end: int  # chunks to compute; fewer than there are once one of them is known to fail
    outcomes: list[Outcome[Any]] = field(default_factory=list)
    error: BaseException | None = None  # of the chunk at the end,
    abandoned: int = 0  # and its simulator calls
    future: Any = None  # Dask's
    key: str = ""
    noting: bool = False  # whether simulator calls are noted,
    split: int = 0  # and before which chunk a process died: those before it are computed first
    attempts: int = 0  # without progress
    last: tuple[Any, ...] | None = None  # where the process died last time


def batch_seconds(workers: int) -> float:
    """How long a batch should take: a second, or more where a hundred batches a second would keep a scheduler busy.

    >>> batch_seconds(2), batch_seconds(10_000)
    (1.0, 100.0)
    """
    return max(1.0, workers / 100)


class DaskPool:
    """The workers of Dask.

    Args:
        where: a number of processes on this machine, the address of a scheduler, a client, or a cluster.
        work: the first work, which must be able to travel.
        stop_signal: stops the run.
        chunk_seconds: seconds that one chunk may take.
        memory: bytes that a process on this machine may use.
    """

    def __init__(
        self,
        where: Any,
        work: Work,
        stop_signal: StopSignal,
        chunk_seconds: float | None = None,
        memory: int | None = None,
    ) -> None:
        try:
            with paused_clock():
                import distributed
        except ImportError:
            needs = f"workers={where!r} needs" if chunk_seconds is None else "chunk_seconds needs"
            raise ImportError(f'{needs} Dask for this simulator: pip install "smoothplan[dask]"') from None
        self._distributed: Any = distributed
        self._stop_signal, self._seconds, self._memory = stop_signal, chunk_seconds, memory
        self._leaving = contextlib.ExitStack()
        self._works: dict[Work, Any] = {work: (pack(work), None)}  # in bytes, and Dask's futures of them
        self._sent: list[_Ticket] = []
        self._counted = 0  # threads of workers,
        self._counted_at = self._seen_at = 0.0  # when they were counted, and when there were any
        try:
            self._client = self._connected(where)
            self._await_workers()
        except BaseException:
            self._leaving.close()
            raise

    def _connected(self, where: Any) -> Any:
        distributed = self._distributed
        self._is_local = isinstance(where, int)
        if isinstance(where, distributed.Client):
            if where.asynchronous:
                raise TypeError("workers must not be an asynchronous client")
            if where.status != "running":
                raise ClusterError(f"the client in workers={where!r} is not connected")
            self._where = str(where.scheduler.address)
            return where
        if self._is_local:
            where = self._leaving.enter_context(_local(distributed, where, self._memory))
        elif not isinstance(where, str | distributed.deploy.Cluster):
            raise TypeError(f"workers must be a number, the address of a Dask scheduler or a client, got {where!r}")
        self._where = where if isinstance(where, str) else where.scheduler_address
        try:
            client = distributed.Client(where, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ClusterError(f"no Dask scheduler answers at workers={self._where!r}: {error}") from error
        self._leaving.callback(_leave, client)
        return client

    def _await_workers(self) -> None:
        end = time.monotonic() + CONNECT_SECONDS
        while not self._count():
            if time.monotonic() > end:
                raise ClusterError(f"the cluster at {self._where} has no workers: start some with `dask worker`")
            self._stop_signal.check()
            time.sleep(0.02)

    @property
    def workers(self) -> int:
        """How many batches are computed at a time, as of late."""
        return max(self._counted, 1)

    @property
    def batch_seconds(self) -> float:
        """How long a batch should take, with as many workers as there are."""
        return batch_seconds(self.workers)

    @property
    def note(self) -> str | None:
        """Where the cluster and its dashboard are."""
        link = self._client.dashboard_link if not self._is_local and find_spec("bokeh") is not None else None
        dashboard = "" if link is None else f", dashboard at {link}"
        return f"{self.workers} worker{'s' * (self.workers > 1)} at {self._where}{dashboard}"

    def send(self, batch: Batch) -> None:
        """Sends a batch.

        Raises:
            TypeError: the simulator holds something that cannot be sent to another process.
        """
        if batch.work not in self._works:
            self._works[batch.work] = pack(batch.work), None
        batch.ticket = _Ticket(len(batch.chunks))
        self._sent.append(batch.ticket)
        self.wait([batch], 0.0)

    def wait(self, batches: Sequence[Batch], seconds: float) -> None:
        """Waits until one of these batches is done, but no longer than that.

        Raises:
            ClusterError: the cluster is gone.
        """
        end = time.monotonic() + seconds
        try:
            while True:
                self._check()
                if self._client.status == "running":
                    for batch in batches:
                        self._advance(batch)
                if any(batch.done is not None for batch in batches) or time.monotonic() >= end:
                    break
                time.sleep(0.005)
        except ClusterError:
            raise
        except Exception as error:  # of whatever kind Dask raises
            raise ClusterError(f"the cluster at {self._where} is gone: {type(error).__name__}: {error}") from error
        self._sent = [ticket for ticket in self._sent if ticket.future is not None]

    def close(self) -> None:
        """Abandons what is under way. Processes of our own are ended; a cluster is left as it was."""
        with self._leaving:
            for future in [*(found for _, found in self._works.values()), *(ticket.future for ticket in self._sent)]:
                if future is not None:
                    with contextlib.suppress(Exception):  # the client may be closed
                        future.release()

    def _check(self) -> None:
        """Raises where there is no hope left; counts the workers now and then."""
        if self._client.status in ("closing", "closed"):
            raise ClusterError(f"the cluster at {self._where} is gone: no scheduler answers")
        now = time.monotonic()
        if self._client.status == "running" and now - self._counted_at >= COUNT_SECONDS:
            self._count()
        if now - self._seen_at > LOST_SECONDS:
            raise ClusterError(f"the cluster at {self._where} has had no workers for {LOST_SECONDS:g} s")

    def _count(self) -> int:
        """Counts the workers, by their threads; as many as before where the scheduler does not answer."""
        with contextlib.suppress(OSError, TimeoutError):
            self._counted = sum(self._client.nthreads(callback_timeout=FETCH_SECONDS).values())
        self._counted_at = time.monotonic()
        if self._counted:
            self._seen_at = self._counted_at
        return self._counted

    def _advance(self, batch: Batch) -> None:
        """Sends a batch that is not on its way, and takes in one that is back."""
        ticket: _Ticket = batch.ticket
        if ticket.future is None:
            self._submit(batch)
        if ticket.future.status not in ("finished", "error", "cancelled"):
            return
        try:
            done: Done = ticket.future.result(timeout=FETCH_SECONDS)
        except (self._distributed.KilledWorker, CancelledError) as lost:
            ticket.future = None
            ticket.attempts += 1
            if isinstance(lost, self._distributed.KilledWorker):
                self._blame(batch)
            if ticket.attempts >= ATTEMPTS:
                first = batch.chunks[len(ticket.outcomes)]
                what = f"chunk {first.number} (seed {batch.work.seed}) was lost {ATTEMPTS} times at {self._where}"
                ticket.end, ticket.error = len(ticket.outcomes), ClusterError(f"{what}: {lost}")
        except Exception as failed:
            if isinstance(failed, OSError) and ticket.future.status != "error":
                return  # the worker that has it does not answer; Dask may know of another, or compute it again
            problem = ClusterError(f"a worker at {self._where} cannot compute: {type(failed).__name__}: {failed}")
            problem.__cause__ = failed
            ticket.future, ticket.end, ticket.error = None, len(ticket.outcomes), problem
        else:
            ticket.future, ticket.attempts = None, 0
            ticket.outcomes += done.outcomes
            if done.error is not None:
                ticket.end, ticket.error, ticket.abandoned = len(ticket.outcomes), done.error, done.abandoned
        if len(ticket.outcomes) >= ticket.end:
            batch.done = Done(ticket.outcomes, ticket.error, ticket.abandoned)

    def _submit(self, batch: Batch) -> None:
        import dask

        data, shipped = self._works[batch.work]
        # The work is the result of a task, so that Dask makes it again where the workers that have it go away.
        if shipped is None or shipped.status in ("cancelled", "error"):
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
                key = f"smoothplan-work-{uuid.uuid4().hex}"
                shipped = self._client.submit(Shipped, data, key=key, pure=False)
            self._works[batch.work] = data, shipped
        ticket: _Ticket = batch.ticket
        ticket.key = f"smoothplan-{uuid.uuid4().hex}"
        ticket.noting |= ticket.attempts > 0 or self._seconds is not None
        compiles = batch.work.compiled or isinstance(batch.work.model, JitModel)
        warm_up = COMPILING if compiles else WARM_UP
        order = Order(ticket.key, version("smoothplan"), ticket.noting, self._seconds, warm_up)
        start = len(ticket.outcomes)
        todo = batch.chunks[start : min(ticket.split, ticket.end) if ticket.split > start else ticket.end]
        ticket.future = self._client.submit(compute, shipped, todo, order, key=ticket.key, pure=False)

    def _blame(self, batch: Batch) -> None:
        """The process of a batch has died: finds out whether the simulator killed it."""
        ticket: _Ticket = batch.ticket
        note = self._note(ticket.key, batch.work.seed) if ticket.noting else None
        if note is None:
            return
        ticket.split = [chunk.number for chunk in batch.chunks].index(note.chunk)
        events = self._client.get_events("worker-restart-memory") or ()
        sizes = [event["rss"] for _, event in events if event.get("pid") == note.pid]
        here = ("memory", note.chunk) if sizes else ("call", note.chunk, note.number)
        again, ticket.last = here == ticket.last, here
        if not (note.late or again):
            return
        if note.late:
            what = f"a chunk took longer than chunk_seconds={self._seconds:g} s"
        elif sizes:
            limit = "" if self._memory is None else f"worker_memory={self._memory}, "
            what = f"the simulator needs more memory than its process may have ({limit}{sizes[-1]} bytes in use)"
        else:
            what = "the simulator ended its process, by a crash or an exit"
        where = "somewhere in compiled code, which begins with " if batch.work.compiled else ""
        error = SimulatorError(f"{what} ({where}{note.call.place()})", note.call)
        if note.late:
            error.add_note(f"in a worker process:\n{note.late.rstrip()}")
        if batch.work.compiled:
            error.add_note("compiled code cannot be watched: engine='batched' tells the very call")
        ticket.end, ticket.error = ticket.split, error

    def _note(self, key: str, seed: int) -> Note | None:
        """What a process that died has left behind: on this machine, or where a nanny finds it."""
        note = read_note(key, seed)
        end = time.monotonic() + (0.0 if self._is_local else NOTE_SECONDS)
        while note is None and time.monotonic() < end:
            self._stop_signal.check()
            answers: dict[str, Any] = {}
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                answers = self._client.run(
                    read_note, key, seed, nanny=True, on_error="return", callback_timeout=FETCH_SECONDS
                )
            found = [answer for answer in answers.values() if isinstance(answer, Note)]
            note = max(found, key=lambda entry: entry.time) if found else None
            time.sleep(0.2)
        return note


def _leave(client: Any) -> None:
    """Closes a client, whose scheduler may be gone."""
    with contextlib.suppress(OSError, TimeoutError):
        client.close(timeout=FETCH_SECONDS)


@contextlib.contextmanager
def _local(distributed: Any, workers: int, memory: int | None) -> Iterator[Any]:
    """A scheduler in this process, and workers that end with it. They do not import the user's own script.

    A process that uses more than its share of the memory is ended; there is nothing to be gained by pausing it.
    """
    import dask

    with (
        tempfile.TemporaryDirectory(prefix="smoothplan-", ignore_cleanup_errors=True) as folder,
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),  # we send a batch again, and more carefully
        distributed.LocalCluster(
            n_workers=0,
            host=LOOPBACK,
            dashboard_address=f"{LOOPBACK}:0",  # of an HTTP server that there always is
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        ) as cluster,
        contextlib.ExitStack() as started,
    ):
        limit = "auto" if memory is None else str(memory)
        for _ in range(workers):
            options = ["--nthreads", "1", "--memory-limit", limit, "--local-directory", folder]
            options += ["--host", LOOPBACK, "--no-dashboard", "--dashboard-address", f"{LOOPBACK}:0"]
            started.enter_context(_local_worker([cluster.scheduler_address, *options]))
        yield cluster


@contextlib.contextmanager
def _local_worker(options: list[str]) -> Iterator[None]:
    """A worker of Dask, with the nanny that starts it again if it dies; both end with this process."""
    settings = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("TARGET", "SPILL", "PAUSE")}
    settings["DASK_LOGGING__DISTRIBUTED"] = "critical"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from smoothplan.run.remote import serve; serve()", *options],
        stdin=subprocess.PIPE,  # which is closed when this process ends, in whatever way
        stdout=2,  # what a simulator prints goes to standard error
        env=os.environ | settings | {"PYTHONPATH": path},
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def pack(work: Work) -> bytes:
    """Work in bytes, for another process.

    Functions and classes from scripts, notebooks and modules that are not installed travel by value, with the globals
    that they use; everything from installed packages is imported on the other side.

    Raises:
        TypeError: something in it cannot be copied, such as a lock.
    """
    stream = io.BytesIO()
    try:
        with _local_modules_by_value():
            _pickler()(stream).dump(work)
    except Exception as error:  # objects of users may refuse in any way
        raise TypeError(
            f"this simulator cannot be sent to other processes: {error}; keep what cannot be copied out of it, create "
            "it on first use, or use workers=1"
        ) from error
    return stream.getvalue()


@cache
def _pickler() -> Any:
    import cloudpickle
    from numba.core.dispatcher import Dispatcher

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Leaves out what our own classes derive from the rest; knows compiled functions of packages by name."""

        def reducer_override(self, value: Any) -> Any:
            kind: Any = type(value)
            if isinstance(value, Dispatcher):
                name, module = str(getattr(value, "__qualname__", "")), sys.modules.get(value.__module__)
                if _is_installed(value.__module__) and getattr(module, name, None) is value:
                    return _imported, (value.__module__, name)
            derived = _derived(kind) if kind.__module__.partition(".")[0] == "smoothplan" else ()
            if derived and kind.__getstate__ is object.__getstate__:
                return _new, (kind,), {name: item for name, item in vars(value).items() if name not in derived}
            return super().reducer_override(value)

    return Pickler


def _imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


@cache
def _derived(kind: Any) -> frozenset[str]:
    """The cached properties of a class."""
    return frozenset(n for base in kind.__mro__ for n, v in vars(base).items() if isinstance(v, cached_property))


@contextlib.contextmanager
def _local_modules_by_value() -> Iterator[None]:
    """Has the picklers copy what is from modules that are not installed, in place of its name."""
    import cloudpickle
    import numba.cloudpickle  # a copy of its own, for the functions that Numba compiles

    modules = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and name != "__main__" and name == getattr(module, "__name__", None)
        if getattr(module, "__file__", None) and not _is_installed(name)
    ]
    with contextlib.ExitStack() as registered:
        for pickler in (cloudpickle, numba.cloudpickle):
            for module in modules:
                if module.__name__ not in pickler.list_registry_pickle_by_value():
                    pickler.register_pickle_by_value(module)
                    registered.callback(pickler.unregister_pickle_by_value, module)
        yield


def _is_installed(module: str) -> bool:
    """Whether a module is smoothplan's, Python's or an installed library's, and not the user's own."""
    top = module.partition(".")[0]
    if top == __name__.partition(".")[0] or top in sys.builtin_module_names:
        return True
    files = [vars(sys.modules[name]).get("__file__") for name in (module, top) if name in sys.modules]
    if not any(files):
        return top in sys.stdlib_module_names
    return top != "__main__" and _installed_file(next(filter(None, files)))


@cache
def _installed_file(file: str) -> bool:
    """Whether a file is in a folder of Python's own modules, or of installed packages."""
    path = Path(file).resolve()
    python = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or any(map(path.is_relative_to, python))
