"""A Dask cluster does the tasks of a run: one on this machine, or any that is there.

Dask moves parcels and survives machines that go away: it does a parcel again whose worker died. What a simulator in
Python does to its process is contained, as on this machine: Dask's worker hands it to a process of our own. Where the
scheduler itself goes away, parcels wait for it to come back, for a while, and are sent again.

One thread talks to Dask. It never waits long, and nobody waits for it but `close`.
"""

import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from smoothplan import brake
from smoothplan.brake import PATIENCE
from smoothplan.running.contained import ContainedWorker, command
from smoothplan.running.packing import unpack
from smoothplan.running.processes import default_memory
from smoothplan.running.work import Chunk, Delivery, Packed, Work
from smoothplan.running.worker import die_with_parent
from smoothplan.running.workers import ClusterError

CONNECT_SECONDS = 30.0
"""How long a scheduler may take to answer, and the first worker to appear; and to come back after it went away."""

LOST_SECONDS = 120.0
"""How long parcels wait for workers, after all have gone."""

COUNT_SECONDS = 2.0
"""How often the workers are counted: they may come and go."""

FETCH_SECONDS = 2.0
"""How long an answer may take that should be there."""

ATTEMPTS = 20
"""Times that a parcel is sent, at most. Each time, Dask itself gives up after its worker died four times."""

LEAST_PARCEL = 1.0
"""Seconds that a parcel should take, at least."""

PARCELS_PER_SECOND = 100.0
"""That all workers together should finish, at most: a fraction of what a scheduler can handle."""

IDLE_SECONDS = 5.0
"""A process of our own on a worker ends when nobody has needed it for so long."""

LOOK_SECONDS = 0.25
"""How often someone looks whether the task of such a process is still wanted: its run may be over, or killed."""

LARGE = "distributed.admin.large-graph-warning-threshold"
"""Dask warns of large tasks; a model with a large table makes one, once."""


@dataclass(eq=False)
class _Parcel:
    """Tasks on their way, and whom to tell of them."""

    packed: Packed
    tasks: bytes
    outcome: "Future[Delivery]"
    attempts: int = 0
    sent: Any = None  # Dask's future


def parcel_seconds(workers: int) -> float:
    """How long a parcel should take, so that so many workers do not overwhelm their scheduler and the client.

    >>> parcel_seconds(2), parcel_seconds(10_000)
    (1.0, 100.0)
    """
    return max(LEAST_PARCEL, workers / PARCELS_PER_SECOND)


class ClusterPool:
    """The workers of a Dask cluster.

    Args:
        cluster: "local", the address of a scheduler, or a client.
        workers: processes of a local cluster; those of this machine's processors if it is 1.
        contained: whether simulators run in processes of our own.
        timeout: see `ContainedWorker`.
        memory: see `ContainedWorker`.
    """

    def __init__(
        self,
        cluster: Any,
        workers: int = 1,
        *,
        contained: bool = False,
        timeout: float | None = None,
        memory: int | None = None,
    ) -> None:
        self._distributed = _library()
        self._how = contained, timeout, memory
        self._leaving = contextlib.ExitStack()
        self._closed = threading.Event()
        self._new: queue.SimpleQueue[_Parcel | None] = queue.SimpleQueue()
        self._open: list[_Parcel] = []
        self._works: dict[str, Any] = {}  # Dask's futures of works, by digest
        self._counted = 0  # threads of workers,
        self._counted_at = self._seen_at = 0.0  # when they were counted, and when there were any
        self._thread = threading.Thread(target=self._serve, name="smoothplan-cluster", daemon=True)
        try:
            self._client = self._connected(cluster, workers)
            self._await_workers()
        except BaseException:
            self._leaving.close()
            raise
        self._thread.start()

    def _connected(self, cluster: Any, workers: int) -> Any:
        distributed = self._distributed
        if isinstance(cluster, distributed.Client):
            if cluster.asynchronous:
                raise TypeError("cluster must not be an asynchronous client")
            if cluster.status != "running":
                raise ClusterError(f"the client in cluster={cluster!r} is not connected")
            self._where = str(cluster.scheduler.address)
            return cluster
        if cluster == "local":
            cluster = self._leaving.enter_context(_local(distributed, workers if workers > 1 else os.cpu_count() or 1))
        elif not isinstance(cluster, str | distributed.deploy.Cluster):
            raise TypeError(f"cluster must be 'local', the address of a Dask scheduler or a client, got {cluster!r}")
        self._where = cluster if isinstance(cluster, str) else cluster.scheduler_address
        try:
            client = distributed.Client(cluster, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ClusterError(f"no Dask scheduler answers at cluster={self._where!r}: {error}") from error
        self._leaving.callback(_leave, client)
        return client

    def _await_workers(self) -> None:
        end = time.monotonic() + CONNECT_SECONDS
        while not self._count():
            if time.monotonic() > end:
                raise ClusterError(f"the cluster at {self._where} has no workers: start some with `dask worker`")
            current = brake.current.get()
            if current is not None:
                current.check()
            time.sleep(PATIENCE)
        self._check_versions()

    def _check_versions(self) -> None:
        """Raises where a worker cannot know what it is asked for; one that is unable to answer now may be later."""
        mine = version("smoothplan")
        answers: dict[str, Any] = {}
        with contextlib.suppress(OSError, TimeoutError):
            answers = self._client.run(version, "smoothplan", on_error="return", callback_timeout=CONNECT_SECONDS)
        for worker, found in answers.items():
            if isinstance(found, PackageNotFoundError):
                raise ClusterError(f"the worker at {worker} has no smoothplan: install version {mine} there")
            if isinstance(found, str) and found != mine:
                raise ClusterError(f"the worker at {worker} has smoothplan {found}: install version {mine} there")

    @property
    def parcel_seconds(self) -> float:
        """How long a parcel should take, with as many workers as there are."""
        return parcel_seconds(self.workers)

    @property
    def note(self) -> str | None:
        """Where the cluster and its dashboard are."""
        link = self._client.dashboard_link if find_spec("bokeh") is not None else None
        dashboard = "" if link is None else f", dashboard at {link}"
        return f"{self.workers} worker{'s' * (self.workers > 1)} at {self._where}{dashboard}"

    @property
    def workers(self) -> int:
        """How many parcels are done at a time, as of late."""
        return max(self._counted, 1)

    def submit(self, work: Work, tasks: Sequence[Chunk]) -> "Future[Delivery]":
        """Does tasks somewhere."""
        parcel = _Parcel(work.packed, pickle.dumps(tuple(tasks)), Future())
        self._new.put(parcel)
        return parcel.outcome

    def close(self) -> None:
        """Abandons what is under way. A cluster of our own is taken down; others are left as they were."""
        self._closed.set()
        self._new.put(None)
        with self._leaving:
            self._thread.join()

    def _serve(self) -> None:
        """Sends parcels and takes them in, until the pool is closed or the cluster is gone."""
        error: ClusterError | None = None
        try:
            while not self._closed.is_set():
                self._take(PATIENCE)
                self._check()
                if self._client.status == "running":
                    self._open = [parcel for parcel in self._open if not self._is_back(parcel)]
        except ClusterError as problem:
            error = problem
        except Exception as problem:  # of whatever kind Dask raises
            error = ClusterError(f"the cluster at {self._where} is gone: {type(problem).__name__}: {problem}")
            error.__cause__ = problem
        for sent in [*self._works.values(), *(parcel.sent for parcel in self._open)]:
            if sent is not None:
                with contextlib.suppress(Exception):  # the client may be closed
                    sent.release()
        while not self._closed.is_set() or not self._new.empty() or self._open:
            for parcel in self._open:
                if error is None:
                    parcel.outcome.cancel()
                else:
                    parcel.outcome.set_exception(error)
            self._open = []
            self._take(PATIENCE)

    def _take(self, patience: float) -> None:
        """Takes in what is to be sent; waits a little for the first."""
        with contextlib.suppress(queue.Empty):
            parcel = self._new.get(timeout=patience)
            while True:
                if parcel is not None:
                    self._open.append(parcel)
                parcel = self._new.get_nowait()

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
            client = self._client
            self._counted = sum(client.nthreads(callback_timeout=FETCH_SECONDS).values())
        self._counted_at = time.monotonic()
        if self._counted:
            self._seen_at = self._counted_at
        return self._counted

    def _is_back(self, parcel: _Parcel) -> bool:
        """Sends a parcel that is not on its way, and hands over one that is back; whether it is done with."""
        if parcel.sent is None:
            self._send(parcel)
        if parcel.sent.status not in ("finished", "error", "cancelled"):
            return False
        try:
            delivery = parcel.sent.result(timeout=FETCH_SECONDS)
        except (self._distributed.KilledWorker, CancelledError) as error:  # it is lost
            if parcel.attempts >= ATTEMPTS:
                problem = ClusterError(f"a task was lost {ATTEMPTS} times at {self._where}: {error}")
                parcel.outcome.set_exception(problem)
                return True
            parcel.sent = None  # to be sent again
            return False
        except ClusterError as error:
            parcel.outcome.set_exception(error)
        except Exception as error:
            if isinstance(error, OSError) and parcel.sent.status != "error":
                return False  # whoever has it does not answer; Dask may know of another, or do it again
            problem = ClusterError(f"a worker at {self._where} cannot do its task: {type(error).__name__}: {error}")
            problem.__cause__ = error
            parcel.outcome.set_exception(problem)
        else:
            parcel.outcome.set_result(delivery)
        return True

    def _send(self, parcel: _Parcel) -> None:
        client, digest = self._client, parcel.packed.digest
        # The work is the result of a task, so that Dask makes it again where those who have it go away.
        work = self._works.get(digest)
        if work is None or work.status in ("cancelled", "error"):
            import dask

            with dask.config.set({LARGE: "1TB"}):
                key = f"smoothplan-work-{uuid.uuid4().hex}"
                work = self._works[digest] = client.submit(Shipped, *parcel.packed, key=key, pure=False)
        parcel.attempts += 1
        key = f"smoothplan-{uuid.uuid4().hex}"
        parcel.sent = client.submit(do, work, version("smoothplan"), parcel.tasks, *self._how, key=key, pure=False)


def _library() -> Any:
    try:
        import distributed
    except ImportError:
        raise ImportError('cluster needs Dask: pip install "smoothplan[dask]"') from None
    return distributed


def _leave(client: Any) -> None:
    """Closes a client, whose scheduler may be gone."""
    with contextlib.suppress(OSError, TimeoutError):
        client.close(timeout=FETCH_SECONDS)


@contextlib.contextmanager
def _local(distributed: Any, workers: int) -> Iterator[Any]:
    """A scheduler in this process, and workers that end with it. They know nothing of the user's own script."""
    with (
        tempfile.TemporaryDirectory(prefix="smoothplan-", ignore_cleanup_errors=True) as folder,
        distributed.LocalCluster(
            n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL
        ) as cluster,
        contextlib.ExitStack() as started,
    ):
        options = ["--nthreads", "1", "--no-dashboard", "--local-directory", folder]
        for _ in range(workers):
            started.enter_context(_local_worker([cluster.scheduler_address, *options]))
        yield cluster


@contextlib.contextmanager
def _local_worker(arguments: list[str]) -> Iterator[None]:
    """A worker of Dask, with the nanny that starts it again if it dies; both end with this process."""
    lifeline, ours = os.pipe()
    try:
        process = subprocess.Popen(
            command(__name__, lifeline=lifeline, parent=os.getpid(), arguments=arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        os.close(lifeline)
        os.close(ours)


def serve(lifeline: int, parent: int, arguments: list[str]) -> None:
    """A worker of Dask in this process that ends when the other end of a pipe is closed, with its children."""
    from distributed.cli.dask_worker import main

    os.set_inheritable(lifeline, False)
    die_with_parent(lifeline, parent)
    main(arguments)


# What follows runs on the workers.


class Shipped:
    """Work on a worker: unpacked once, in bytes where it travels on. Dask forgets it when its run is over."""

    def __init__(self, digest: str, data: bytes) -> None:
        self.packed = Packed(digest, data)

    def __reduce__(self) -> tuple[Any, ...]:
        return Shipped, tuple(self.packed)

    @cached_property
    def work(self) -> Work:
        """The work itself."""
        return unpack(self.packed.data)


def do(shipped: Shipped, wanted: str, tasks: bytes, contained: bool, timeout: float | None, memory: int | None) -> Any:
    """Does tasks on a worker."""
    if version("smoothplan") != wanted:
        raise ClusterError(f"a worker has smoothplan {version('smoothplan')}: install version {wanted} there")
    todo: tuple[Chunk, ...] = pickle.loads(tasks)
    return _contained(timeout, memory).run(shipped.packed, todo) if contained else shipped.work.each(todo)


Place = tuple[int, float | None, int | None]
"""Of a process of our own: the thread whose tasks it does, and its limits."""

_kept: dict[Place, "_Kept"] = {}
_guard = threading.Lock()


def _contained(timeout: float | None, memory: int | None) -> "_Kept":
    """The process that belongs to this thread, claimed for its present task."""
    from distributed import get_worker

    place = threading.get_ident(), timeout, memory
    with _guard:
        kept = _kept.get(place)
        if kept is None:
            kept = _kept[place] = _Kept(place)
        kept.dask = get_worker()
        kept.key = kept.dask.get_current_task()
        return kept


class _Kept:
    """A process of our own, until its task is no longer wanted or nobody has needed it for a while."""

    def __init__(self, place: Place) -> None:
        _, timeout, memory = self._place = place
        self._worker = ContainedWorker(timeout, default_memory(os.cpu_count() or 1) if memory is None else memory)
        self.dask: Any = None
        self.key: Any = None  # of the task, if there is one
        self._left = time.monotonic()
        threading.Thread(target=self._watch, name="smoothplan-kept", daemon=True).start()

    def run(self, packed: Packed, tasks: Sequence[Chunk]) -> Delivery:
        """Does tasks."""
        try:
            return self._worker.run(packed, tasks)
        finally:
            with _guard:
                self.key, self._left = None, time.monotonic()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with _guard:
                if not self._needed():
                    del _kept[self._place]
                    break
        self._worker.close()

    def _needed(self) -> bool:
        if self.key is None:
            return time.monotonic() - self._left < IDLE_SECONDS
        task = self.dask.state.tasks.get(self.key)
        return task is not None and task.state != "cancelled"
