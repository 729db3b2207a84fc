"""A Dask cluster does the tasks of a run: one on this machine, or any that is there.

Dask moves parcels and survives machines that go away: it does a parcel again whose worker died. What a simulator in
Python does to its process is contained, as on this machine: Dask's worker hands it to a process of our own. Where the
scheduler itself goes away, parcels wait for it to come back, for a while.
"""

import contextlib
import functools
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from smoothplan.parallel.contained import ContainedWorker
from smoothplan.parallel.crew import ClusterError
from smoothplan.parallel.packing import unpack
from smoothplan.parallel.work import Delivery, Packed, Task, Work

CONNECT_SECONDS = 20.0
"""How long a scheduler may take to answer, and the first worker to appear."""

LOST_SECONDS = 60.0
"""How long parcels wait for a scheduler that went away."""

COUNT_SECONDS = 2.0
"""How often the workers are counted: they may come and go."""

ATTEMPTS = 20
"""Times that a parcel is sent, at most. Dask itself gives up after its worker died four times."""

IDLE_SECONDS = 60.0
"""A process of our own on a worker ends when nobody has needed it for so long."""


class ClusterPool:
    """The workers of a Dask cluster.

    Args:
        cluster: "local", the address of a scheduler, or a client.
        workers: processes of a local cluster; those of this machine's processors if it is 1.
        contained: whether simulators run in processes of our own.
        timeout: see `ContainedWorker`.
        memory: see `ContainedWorker`.
    """

    parcel_seconds = 1.0

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
        self._run = uuid.uuid4().hex
        self._how = contained, timeout, memory
        self._closing = contextlib.ExitStack()
        self._sent: dict[str, Any] = {}  # Dask's futures of works
        self._open: set[Any] = set()  # and of parcels
        self._lock = threading.Lock()
        self._closed = False
        self._counted = (-COUNT_SECONDS, 0)
        try:
            self._client = self._connected(cluster, workers)
            self._await_workers()
        except BaseException:
            self._closing.close()
            raise
        self._closing.callback(self._abandon)

    def _connected(self, cluster: Any, workers: int) -> Any:
        distributed = self._distributed
        if isinstance(cluster, distributed.Client):
            self._where = str(cluster.scheduler.address if cluster.scheduler else cluster)
            return cluster
        if cluster == "local":
            cluster = self._closing.enter_context(_local(distributed, workers if workers > 1 else os.cpu_count() or 1))
        elif not isinstance(cluster, str | distributed.deploy.Cluster):
            raise TypeError(f"cluster must be 'local', the address of a Dask scheduler or a client, got {cluster!r}")
        self._where = cluster if isinstance(cluster, str) else cluster.scheduler_address
        try:
            client = distributed.Client(cluster, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise ClusterError(f"no Dask scheduler answers at cluster={self._where!r}: {error}") from error
        self._closing.callback(client.close, timeout=CONNECT_SECONDS)
        return client

    def _await_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise ClusterError(f"the cluster at {self._where} has no workers: start some with `dask worker`") from None

    @property
    def note(self) -> str | None:
        """Where the cluster and its dashboard are."""
        link = self._client.dashboard_link if find_spec("bokeh") is not None else None
        return f"{self.workers} workers at {self._where}" + ("" if link is None else f", dashboard at {link}")

    @property
    def workers(self) -> int:
        """How many parcels are done at a time, as of late."""
        when, count = self._counted
        if time.monotonic() - when >= COUNT_SECONDS:
            with contextlib.suppress(Exception):  # a scheduler that is away: as many as there were
                count = sum(self._client.nthreads().values())
            self._counted = (time.monotonic(), count)
        return max(count, 1)

    def submit(self, work: Work, tasks: Sequence[Task]) -> "Future[Delivery]":
        """Does tasks somewhere."""
        outcome: Future[Delivery] = Future()
        self._send(work.packed, tuple(tasks), outcome, 1)
        return outcome

    def close(self) -> None:
        """Abandons what is under way. A cluster of our own is taken down; others are left as they were."""
        with self._lock:
            self._closed = True
        self._closing.close()

    def _abandon(self) -> None:
        with self._lock:
            futures = [*self._open, *self._sent.values()]
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._client.cancel(futures, force=True)
            if self._how[0]:
                self._client.run(_dismiss, self._run, on_error="ignore", wait=False)

    def _send(self, packed: Packed, tasks: tuple[Task, ...], outcome: "Future[Delivery]", attempt: int) -> None:
        client = self._client
        # The work is the result of a task, so that Dask makes it again where those who have it go away.
        name = f"smoothplan-work-{self._run}-{packed.digest}"
        sent = self._sent.get(packed.digest)
        if sent is None or sent.status in ("cancelled", "lost", "error"):
            sent = client.submit(bytes, packed.data, key=f"{name}-{attempt}", pure=False)
            self._sent[packed.digest] = sent
        key = f"smoothplan-{self._run}-{tasks[0].chunk}-{uuid.uuid4().hex[:8]}"
        asked = (self._run, version("smoothplan"), packed.digest, tasks, *self._how)
        future = client.submit(_do, sent, *asked, key=key, pure=False)
        with self._lock:
            self._open.add(future)
        future.add_done_callback(functools.partial(self._back, packed, tasks, outcome, attempt))

    def _back(
        self, packed: Packed, tasks: tuple[Task, ...], outcome: "Future[Delivery]", attempt: int, future: Any
    ) -> None:
        """A parcel is back, or lost."""
        with self._lock:
            self._open.discard(future)
            if self._closed:
                outcome.cancel()
                return
        try:
            delivery = future.result(timeout=LOST_SECONDS)
        except Exception as error:
            if not self._is_loss(error):
                outcome.set_exception(error)
            else:
                threading.Thread(
                    target=self._again, args=(packed, tasks, outcome, attempt + 1, error), daemon=True
                ).start()
            return
        outcome.set_result(delivery)

    def _is_loss(self, error: Exception) -> bool:
        """Whether a parcel was lost on the way; otherwise it failed."""
        lost = (self._distributed.KilledWorker, self._distributed.CancelledError, TimeoutError, OSError)
        return isinstance(error, lost)

    def _again(
        self, packed: Packed, tasks: tuple[Task, ...], outcome: "Future[Delivery]", attempt: int, error: Exception
    ) -> None:
        """Sends a lost parcel again, once the scheduler is back."""
        until = time.monotonic() + LOST_SECONDS
        while not self._closed and attempt <= ATTEMPTS and time.monotonic() < until:
            if self._client.status == "running":
                with contextlib.suppress(Exception):
                    self._send(packed, tasks, outcome, attempt)
                    return
            elif self._client.status == "closed":
                break
            time.sleep(0.2)
        if self._closed:
            outcome.cancel()
        else:
            outcome.set_exception(ClusterError(f"the cluster at {self._where} is gone: {error}"))


def _library() -> Any:
    try:
        import distributed
    except ImportError:
        raise ImportError('cluster needs Dask: pip install "smoothplan[dask]"') from None
    return distributed


@contextlib.contextmanager
def _local(distributed: Any, workers: int) -> Iterator[Any]:
    """A scheduler in this process, and workers that end with it. They know nothing of the user's own script."""
    with (
        tempfile.TemporaryDirectory(prefix="smoothplan-") as folder,
        distributed.LocalCluster(
            n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL
        ) as cluster,
    ):
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        command += ["--nthreads", "1", "--no-dashboard", "--death-timeout", str(CONNECT_SECONDS)]
        processes = [
            subprocess.Popen(
                [*command, "--local-directory", folder],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for _ in range(workers)
        ]
        try:
            yield cluster
        finally:
            for process in processes:
                _kill_group(process)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


# What follows runs on the workers.

_works: dict[str, Work] = {}
_contained: dict[tuple[str, int], "_Idle"] = {}
_guard = threading.Lock()


class _Idle:
    """A process of our own that ends when its run needs it no more."""

    def __init__(self, run: str, timeout: float | None, memory: int | None) -> None:
        self.worker = ContainedWorker(timeout, memory)
        self._run = run
        self.timer = threading.Timer(IDLE_SECONDS, _dismiss, [run])

    def do(self, packed: Packed, tasks: Sequence[Task]) -> Delivery:
        """Does tasks, and waits for more."""
        self.timer.cancel()
        try:
            return self.worker.run(packed, tasks)
        finally:
            self.timer = threading.Timer(IDLE_SECONDS, _dismiss, [self._run])
            self.timer.daemon = True
            self.timer.start()


def _do(
    data: bytes,
    run: str,
    wanted: str,
    digest: str,
    tasks: tuple[Task, ...],
    contained: bool,
    timeout: float | None,
    memory: int | None,
) -> Delivery:
    """Does tasks on a worker."""
    if version("smoothplan") != wanted:
        raise ClusterError(f"a worker has smoothplan {version('smoothplan')}, and the run {wanted}: install the same")
    if contained:
        with _guard:
            mine = _contained.setdefault((run, threading.get_ident()), _Idle(run, timeout, memory))
        return mine.do(Packed(digest, data), tasks)
    with _guard:
        if digest not in _works:
            _works.clear()  # of earlier runs
            _works[digest] = unpack(data)
        work = _works[digest]
    return work.each(tasks)


def _dismiss(run: str) -> None:
    """Ends the processes of a run."""
    with _guard:
        mine = [_contained.pop(key) for key in list(_contained) if key[0] == run]
    for idle in mine:
        idle.timer.cancel()
        idle.worker.close()
