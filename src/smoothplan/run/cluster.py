"""Dask computes the chunks of a run: in processes on this machine, or on a cluster.

Dask moves batches, restarts workers that die, and gives their batches to others. If the scheduler itself goes away,
batches wait a while for it to come back, and are sent again. A batch whose process died is computed again in a child
of a worker, which writes down every simulator call before it is made. So a simulator that ends its process is named,
with the chunk and the call in flight.
"""

import faulthandler
import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import streams
from smoothplan.base.arguments import Ints
from smoothplan.base.compiling import paused_clock
from smoothplan.models.model import Call, SimulatorError, watcher
from smoothplan.run.chunks import Batch, Chunk, ClusterError, Done, Work

PATIENCE = 60.0
"""Seconds to wait for a scheduler to answer, and for workers to appear."""

FETCH_SECONDS = 2.0
"""Seconds to wait for an answer that should be there."""

WARM_UP = 60.0
"""Seconds beyond `chunk_seconds` for the first chunk of a kind in a process, which may compile something."""

Limits = tuple[float, float] | None
"""Seconds that a chunk may take, and the first of its kind in a process, if they are limited."""


# In the process that plans


class DaskPool:
    """The workers of Dask.

    Args:
        where: a number of processes on this machine, the address of a scheduler, or a client.
        work: the first work, which must be able to travel.
        chunk_seconds: seconds that one chunk may take.
        memory: bytes that a process on this machine may use.

    Attributes:
        workers: how many batches are computed at a time, by the latest count.
        batch_seconds: how long a batch should take: a second, or more if a scheduler would get a hundred a second.
        under_way: batches that are sent and not received.
    """

    def __init__(self, where: Any, work: Work, chunk_seconds: float | None = None, memory: int | None = None) -> None:
        try:
            with paused_clock():
                import distributed
        except ImportError:
            raise ImportError(
                f"workers={where!r}, chunk_seconds={chunk_seconds} needs Dask for this simulator: "
                'pip install "smoothplan[dask]"'
            ) from None
        self._distributed: Any = distributed
        self._limits: Limits = None if chunk_seconds is None else (chunk_seconds, chunk_seconds + WARM_UP)
        self._works: dict[Work, Any] = {work: (pack(work), None)}  # in bytes, and Dask's futures of them
        self.under_way: list[Batch] = []
        self.workers, self.batch_seconds = where if isinstance(where, int) else 1, 1.0
        self._counted, self._seen = -math.inf, time.monotonic()  # when workers were counted, and when there were any
        self._leaving = ExitStack()
        try:
            self._client = self._connected(where, memory)
            if isinstance(where, int):  # importing libraries is a part of starting; the first batch tells of errors
                with suppress(TimeoutError):
                    self._client.wait_for_workers(where, timeout=PATIENCE)
                self._client.run(_unpacked, self._works[work][0], on_error="ignore")
            self._seen = time.monotonic()
        except BaseException:
            self._leaving.close()
            raise

    def _connected(self, where: Any, memory: int | None) -> Any:
        distributed = self._distributed
        if isinstance(where, distributed.Client):
            if where.asynchronous or where.status != "running":
                raise ClusterError(f"the client in workers={where!r} is asynchronous or not connected")
            self._where = str(where.scheduler.address)
            return where
        if isinstance(where, int):
            where = self._leaving.enter_context(_local(distributed, where, memory))
        elif not isinstance(where, str):
            raise TypeError(f"workers must be a number, the address of a Dask scheduler or a client, got {where!r}")
        self._where = where if isinstance(where, str) else where.scheduler_address
        try:
            client = distributed.Client(where, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ClusterError(f"no Dask scheduler answers at workers={self._where!r}: {error}") from error
        self._leaving.enter_context(suppress(OSError, TimeoutError))  # the scheduler may be gone
        self._leaving.callback(client.close, timeout=FETCH_SECONDS)
        return client

    def send(self, batch: Batch) -> None:
        """Takes a batch, which `receive` submits; TypeError if the simulator cannot travel."""
        if batch.work not in self._works:
            busy = {each.work for each in self.under_way}
            for old in list(self._works)[:-3]:  # an agent has other work at every state
                if old not in busy:
                    del self._works[old]
            self._works[batch.work] = pack(batch.work), None
        self.under_way.append(batch)

    def receive(self, seconds: float) -> list[Batch]:
        """Waits until a batch is done, but no longer than that; all that are done."""
        end = time.monotonic() + seconds
        try:
            while True:
                if self._client.status in ("closing", "closed"):
                    raise ClusterError(f"the cluster at {self._where} is gone: no scheduler answers")
                if self._client.status == "running":  # otherwise Dask tries to connect again
                    self._count()
                    for batch in self.under_way:
                        self._advance(batch)
                if time.monotonic() - self._seen > PATIENCE:
                    raise ClusterError(f"the cluster at {self._where} has no workers: start some with `dask worker`")
                arrived = [batch for batch in self.under_way if batch.done is not None]
                if arrived or time.monotonic() >= end:
                    break
                time.sleep(0.005)
        except ClusterError:
            raise
        except Exception as error:  # of whatever kind Dask raises
            raise ClusterError(f"the cluster at {self._where} is gone: {type(error).__name__}: {error}") from error
        self.under_way = [batch for batch in self.under_way if batch.done is None]
        return arrived

    def close(self) -> None:
        """Discards work in progress. Processes of our own are ended; a cluster is left as it was."""
        futures = [*(future for _, future in self._works.values()), *(batch.ticket for batch in self.under_way)]
        with self._leaving, suppress(Exception):  # the client may be closed
            for future in futures:
                if future is not None:
                    future.release()

    def _count(self) -> None:
        """Counts the workers by their threads, every two seconds: they come and go."""
        if time.monotonic() - self._counted < 2.0:
            return
        with suppress(OSError, TimeoutError):  # the count stays if the scheduler does not answer
            found = sum(self._client.nthreads(callback_timeout=FETCH_SECONDS).values())
            if found:
                self.workers, self.batch_seconds, self._seen = found, max(1.0, found / 100), time.monotonic()
        self._counted = time.monotonic()

    def _advance(self, batch: Batch) -> None:
        """Sends a batch that is not on its way, and receives one that is back."""
        if batch.ticket is None:
            self._submit(batch)
        if batch.ticket.status not in ("finished", "error", "cancelled"):
            return
        try:
            batch.done = batch.ticket.result(timeout=FETCH_SECONDS)
            died = batch.done is None
        except (self._distributed.KilledWorker, CancelledError) as lost:
            died = isinstance(lost, self._distributed.KilledWorker)
        except Exception as failed:
            if isinstance(failed, OSError) and batch.ticket.status != "error":
                return  # the worker that has it does not answer; Dask may know of another, or compute it again
            problem = ClusterError(f"a worker at {self._where} cannot compute: {type(failed).__name__}: {failed}")
            problem.__cause__ = failed
            batch.done = Done([], problem)
        if batch.done is None:  # it is sent again
            batch.ticket = None
            batch.deaths += died
            if batch.deaths == 10:  # even a child does not help, such as if no process has enough memory
                chunk = f"chunk {batch.chunks[0].number} (seed {batch.work.seed})"
                batch.done = Done([], ClusterError(f"workers at {self._where} died of {chunk} {batch.deaths} times"))

    def _submit(self, batch: Batch) -> None:
        import dask

        data, shipped = self._works[batch.work]
        # The bytes are the result of a task, so that Dask makes it again if the workers that have them go away.
        if shipped is None or shipped.status in ("cancelled", "error"):
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
                shipped = self._client.submit(bytes, data, key=f"smoothplan-work-{uuid.uuid4().hex}", pure=False)
            self._works[batch.work] = data, shipped
        order = shipped, batch.chunks, self._limits, batch.deaths > 0, version("smoothplan")
        batch.ticket = self._client.submit(compute, *order, key=f"smoothplan-{uuid.uuid4().hex}", pure=False)


@contextmanager
def _local(distributed: Any, workers: int, memory: int | None) -> Iterator[Any]:
    """A scheduler in this process, and workers that end with it. They do not import the user's own script.

    All listen on the loopback interface only, because whoever reaches a port of Dask can run code.
    """
    import dask

    # A process that uses more than its share of the memory is ended; pausing it first would gain nothing.
    settings = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("TARGET", "SPILL", "PAUSE")}
    settings["DASK_LOGGING__DISTRIBUTED"] = "critical"
    # It may report a worker that was ended after the cluster has closed, when logs are no longer silenced.
    logging.getLogger("distributed.batched").setLevel(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory(prefix="smoothplan-", ignore_cleanup_errors=True) as folder,
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),  # we send a batch again, and more carefully
        distributed.LocalCluster(
            n_workers=0,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # of an HTTP server that there always is
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        ) as cluster,
        ExitStack() as started,
    ):
        options = ["--nthreads", "1", "--memory-limit", "auto" if memory is None else str(memory)]
        options += ["--local-directory", folder, "--host", "127.0.0.1"]
        options += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        for _ in range(workers):
            process = _start_python("serve", cluster.scheduler_address, *options, session=True, settings=settings)
            started.callback(process.communicate)
            started.enter_context(suppress(ProcessLookupError, PermissionError))
            started.callback(os.killpg, process.pid, signal.SIGKILL)
        yield cluster


def pack(work: Work) -> bytes:
    """Work in bytes, for another process.

    Functions and classes from scripts, notebooks and modules that are not installed travel by value, with the globals
    that they use; everything from installed packages is imported on the other side.

    Raises:
        TypeError: something in it cannot be copied, such as a lock.
    """
    import cloudpickle
    import numba.cloudpickle  # a copy of its own, for the functions that Numba compiles

    own = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and name == module.__name__
        and name.partition(".")[0] not in ("__main__", "smoothplan")
        and not _is_installed(getattr(module, "__file__", None))
    ]
    try:
        with ExitStack() as registered:
            for pickler in (cloudpickle, numba.cloudpickle):
                known = pickler.list_registry_pickle_by_value()
                for module in (each for each in own if each.__name__ not in known):
                    pickler.register_pickle_by_value(module)
                    registered.callback(pickler.unregister_pickle_by_value, module)
            return bytes(cloudpickle.dumps(work))
    except Exception as error:  # objects of users may refuse in any way
        raise TypeError(
            f"this simulator cannot be sent to other processes: {error}; keep what cannot be copied out of it, create "
            "it on first use, or use workers=1"
        ) from error


@cache  # an agent packs every decision
def _is_installed(file: str | None) -> bool:
    """Whether the module of a file is Python's own, or of an installed package; one without a file is."""
    if not file:
        return True
    path = Path(file).resolve()
    standard = tuple(str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("stdlib", "platstdlib"))
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or str(path).startswith(standard)


# In other processes: workers of Dask, and their children


def _start_python(function: str, *arguments: str, session: bool = False, settings: dict[str, str] | None = None) -> Any:
    """A Python process that calls a function of this module, and can import whatever this process can."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {__name__} import {function}; {function}()", *arguments],
        stdin=subprocess.PIPE,  # which is closed when this process ends, in whatever way
        stdout=2,  # output of a simulator goes to standard error
        env=os.environ | (settings or {}) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=session,
    )


def _end_with_parent(end: Callable[[], None]) -> None:
    """Ends this process as soon as the one that started it has ended."""

    def wait() -> None:
        sys.stdin.buffer.read()
        end()

    threading.Thread(target=wait, daemon=True).start()


def serve() -> None:
    """A worker of Dask in this process, with the nanny that starts it again if it dies."""
    from distributed.cli.dask_worker import main

    _end_with_parent(lambda: os.killpg(os.getpid(), signal.SIGKILL))
    main(sys.argv[1:])


@lru_cache(maxsize=2)  # batches of a run have the same work
def _unpacked(data: bytes) -> Work:
    """The work in bytes. Only bytes that this program has packed are unpacked: they can run any code."""
    try:
        found: Work = pickle.loads(data)
        return found
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"this simulator cannot be set up in another process: {reason}") from error


def compute(data: bytes, chunks: list[Chunk[Any]], limits: Limits, careful: bool, wanted: str) -> Done | None:
    """Computes a batch on a worker, or carefully in a child of it, with the wanted version of smoothplan."""
    here = version("smoothplan")
    if here != wanted:
        raise RuntimeError(f"a worker has smoothplan {here}: install version {wanted} there")
    if careful:
        return _in_child(data, chunks, limits)
    with Path(os.devnull).open("w") as nowhere:
        return _computed(data, chunks, limits, nowhere)


_one_limited = threading.Lock()  # the timer of faulthandler is one for the process
_warm: set[tuple[int, str]] = set()  # works, and kinds of chunks, that this process has computed


def _computed(
    data: bytes, chunks: list[Chunk[Any]], limits: Limits, late: IO[str], notes: "_Notes | None" = None
) -> Done:
    """Computes chunks in this process. It ends, with its traceback in a file, if one of them takes too long."""
    work = _unpacked(data)

    @contextmanager
    def around(chunk: Chunk[Any]) -> Iterator[None]:
        if notes is not None:
            # Compiled code makes its calls unseen, so a first one stands for all.
            rng = streams.generator(work.seed, chunk.number, work.role)
            notes.chunk = chunk.number
            notes(np.asarray(work.state)[None], np.array([chunk.action]), rng)
        if limits is None:
            yield
            return
        with _one_limited:
            kind = hash(data), chunk.draw.__qualname__
            faulthandler.dump_traceback_later(limits[kind not in _warm], exit=True, file=late)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
        _warm.add(kind)

    before = watcher.set(notes)
    try:
        done = work.each(chunks, around)
    finally:
        watcher.reset(before)
    if done.error is not None:  # its traceback does not travel
        done.error.add_note(f"in a worker process:\n{''.join(traceback.format_exception(done.error)).rstrip()}")
    return done


def _in_child(data: bytes, chunks: list[Chunk[Any]], limits: Limits) -> Done | None:
    """Computes a batch in a child process. If that ends itself or exceeds a limit, the simulator is to blame.

    None if somebody else killed the child, such as the system for lack of memory.
    """
    import cloudpickle
    import distributed
    import psutil

    limit = distributed.get_worker().memory_manager.memory_limit or math.inf
    most, used = 0.95 * limit, 0  # the share at which Dask ends a worker
    with tempfile.TemporaryDirectory(prefix="smoothplan-") as name:
        folder = Path(name)
        (folder / "batch").write_bytes(cloudpickle.dumps((data, chunks, limits)))
        child = _start_python("compute_in_child", name)
        try:
            while child.poll() is None and used <= most:
                time.sleep(0.02)
                with suppress(psutil.NoSuchProcess):
                    used = psutil.Process(child.pid).memory_info().rss
        finally:
            child.kill()
            child.communicate()
        found = {file.name: file.read_bytes() for file in folder.iterdir()}
    if "done" in found:
        done: Done = pickle.loads(found["done"])
        return done
    if child.returncode == -signal.SIGKILL and used <= most:
        return None
    if not found.get("call"):
        raise RuntimeError(f"a child of a worker ended before the first simulator call, with status {child.returncode}")
    late = found["late"].decode().rstrip()
    if limits is not None and late:
        reason = f"a chunk took longer than chunk_seconds={limits[0]:g} s"
    elif used > most:
        reason = f"the simulator needs more memory than its process may have: {used} of {limit} bytes in use"
    else:
        reason = "the simulator ended its process, by a crash or an exit"
    row, work = int.from_bytes(found["call"][:8], "little") - 1, _unpacked(data)
    chunk, states, actions, words = pickle.loads(found["call"][8:])
    guilty = row if row >= 0 else 0 if len(actions) == 1 else None
    call = Call(states, actions, words, work.seed, chunk, guilty)
    where = "in compiled code, of which engine='batched' names the call; it begins with " * work.engine.compiled
    error = SimulatorError(f"{reason} ({where}{call.place()})", call)
    if late:
        error.add_note(f"in a worker process:\n{late}")
    return Done([], error)


def compute_in_child() -> None:
    """In the child: computes a batch, and writes down each simulator call before it is made."""
    folder = Path(sys.argv[1])
    _end_with_parent(lambda: os._exit(1))
    with (folder / "late").open("w") as late, (folder / "call").open("wb") as file:
        data, chunks, limits = pickle.loads((folder / "batch").read_bytes())
        done = _computed(data, chunks, limits, late, _Notes(file.fileno()))
    (folder / "new").write_bytes(pickle.dumps(done))
    (folder / "new").rename(folder / "done")


class _Notes:
    """Writes down a simulator call before it is made: the row that is stepped plus 1, in eight bytes, and the call."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.chunk = 0

    def __call__(self, states: NDArray[Any], actions: Ints, rng: np.random.Generator) -> None:
        call = pickle.dumps((self.chunk, states, actions, streams.generator_words(rng)))
        os.pwrite(self._file, bytes(8) + call, 0)

    def row(self, row: int) -> None:
        os.pwrite(self._file, (row + 1).to_bytes(8, "little"), 0)
