"""Dask computes the chunks of a run: in processes on this machine, or on a cluster.

Dask moves batches, restarts workers that die, and gives their batches to others. If the scheduler itself goes away,
batches wait a while for it to come back, and are sent again. A batch whose process died is sent again as a careful
one: see `smoothplan.run.remote`.
"""

import contextlib
import logging
import os
import signal
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from smoothplan.base.compiling import paused_clock
from smoothplan.base.stopping import StopSignal
from smoothplan.models.vector import JitModel
from smoothplan.run.chunks import Batch, ClusterError, Done, Work
from smoothplan.run.remote import Order, Shipped, compute, start_python

CONNECT_SECONDS = 30.0
"""Seconds that a scheduler may take to answer, and the first worker to appear."""

FETCH_SECONDS = 2.0
"""Seconds to wait for an answer that should be there."""

WARM_UP = 10.0
"""Seconds beyond `chunk_seconds` for the first chunk of a kind in a process, which may load something."""


@dataclass(eq=False)
class _Ticket:
    """A batch on its way."""

    future: Any = None  # Dask's
    careful: bool = False  # whether its process died, so that it is computed in a child
    attempts: int = 0


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
        self._sent: set[Batch] = set()  # and not done
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
        """How many batches are computed at a time, by the latest count."""
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
        batch.ticket = _Ticket()
        self._sent.add(batch)
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
        self._sent = {batch for batch in self._sent if batch.done is None}

    def close(self) -> None:
        """Discards work in progress. Processes of our own are ended; a cluster is left as it was."""
        with self._leaving:
            for future in [
                *(found for _, found in self._works.values()),
                *(batch.ticket.future for batch in self._sent),
            ]:
                if future is not None:
                    with contextlib.suppress(Exception):  # the client may be closed
                        future.release()

    def _check(self) -> None:
        """Raises if the cluster is gone; counts the workers every two seconds, because they may come and go."""
        lost_seconds = 120.0  # how long batches wait for workers, after all have gone
        if self._client.status in ("closing", "closed"):
            raise ClusterError(f"the cluster at {self._where} is gone: no scheduler answers")
        now = time.monotonic()
        if self._client.status == "running" and now - self._counted_at >= 2.0:
            self._count()
        if now - self._seen_at > lost_seconds:
            raise ClusterError(f"the cluster at {self._where} has had no workers for {lost_seconds:g} s")

    def _count(self) -> int:
        """Counts the workers, by their threads; the count stays if the scheduler does not answer."""
        with contextlib.suppress(OSError, TimeoutError):
            self._counted = sum(self._client.nthreads(callback_timeout=FETCH_SECONDS).values())
        self._counted_at = time.monotonic()
        if self._counted:
            self._seen_at = self._counted_at
        return self._counted

    def _advance(self, batch: Batch) -> None:
        """Sends a batch that is not on its way, and receives one that is back."""
        ticket: _Ticket = batch.ticket
        if ticket.future is None:
            self._submit(batch)
        if ticket.future.status not in ("finished", "error", "cancelled"):
            return
        try:
            batch.done = ticket.future.result(timeout=FETCH_SECONDS)
        except (self._distributed.KilledWorker, CancelledError) as lost:
            ticket.future = None
            ticket.attempts += 1
            ticket.careful |= isinstance(lost, self._distributed.KilledWorker)
            if ticket.attempts >= 20:
                chunk = f"chunk {batch.chunks[0].number} (seed {batch.work.seed})"
                batch.done = Done(
                    [], ClusterError(f"{chunk} was lost {ticket.attempts} times at {self._where}: {lost}")
                )
        except Exception as failed:
            if isinstance(failed, OSError) and ticket.future.status != "error":
                return  # the worker that has it does not answer; Dask may know of another, or compute it again
            problem = ClusterError(f"a worker at {self._where} cannot compute: {type(failed).__name__}: {failed}")
            problem.__cause__ = failed
            batch.done = Done([], problem)

    def _submit(self, batch: Batch) -> None:
        import dask

        data, shipped = self._works[batch.work]
        # The work is the result of a task, so that Dask makes it again if the workers that have it go away.
        if shipped is None or shipped.status in ("cancelled", "error"):
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
                key = f"smoothplan-work-{uuid.uuid4().hex}"
                shipped = self._client.submit(Shipped, data, key=key, pure=False)
            self._works[batch.work] = data, shipped
        compiles = batch.work.compiled or isinstance(batch.work.model, JitModel)
        order = Order(version("smoothplan"), batch.ticket.careful, self._seconds, 60.0 if compiles else WARM_UP)
        key = f"smoothplan-{uuid.uuid4().hex}"
        batch.ticket.future = self._client.submit(compute, shipped, batch.chunks, order, key=key, pure=False)


def batch_seconds(workers: int) -> float:
    """How long a batch should take: a second, or more if a hundred batches a second would keep a scheduler busy.

    >>> batch_seconds(2), batch_seconds(10_000)
    (1.0, 100.0)
    """
    return max(1.0, workers / 100)


def _leave(client: Any) -> None:
    """Closes a client, whose scheduler may be gone."""
    with contextlib.suppress(OSError, TimeoutError):
        client.close(timeout=FETCH_SECONDS)


# Processes on this machine


@contextlib.contextmanager
def _local(distributed: Any, workers: int, memory: int | None) -> Iterator[Any]:
    """A scheduler in this process, and workers that end with it. They do not import the user's own script.

    All listen on the loopback interface only, because whoever reaches a port of Dask can run code.
    """
    import dask

    # A process that uses more than its share of the memory is ended; pausing it first would gain nothing.
    settings = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("TARGET", "SPILL", "PAUSE")}
    settings["DASK_LOGGING__DISTRIBUTED"] = "critical"
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
        contextlib.ExitStack() as started,
    ):
        options = ["--nthreads", "1", "--memory-limit", "auto" if memory is None else str(memory)]
        options += ["--local-directory", folder, "--host", "127.0.0.1"]
        options += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        for _ in range(workers):
            process = start_python("serve", cluster.scheduler_address, *options, session=True, settings=settings)
            started.callback(_end_group, process)
        yield cluster


def _end_group(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


# How work travels


def pack(work: Work) -> bytes:
    """Work in bytes, for another process.

    Functions and classes from scripts, notebooks and modules that are not installed travel by value, with the globals
    that they use; everything from installed packages is imported on the other side.

    Raises:
        TypeError: something in it cannot be copied, such as a lock.
    """
    import cloudpickle
    import numba.cloudpickle  # a copy of its own, for the functions that Numba compiles

    own = [module for name, module in list(sys.modules.items()) if name != "__main__" and _is_own(name, module)]
    try:
        with contextlib.ExitStack() as registered:
            for pickler in (cloudpickle, numba.cloudpickle):
                for module in own:
                    if module.__name__ not in pickler.list_registry_pickle_by_value():
                        pickler.register_pickle_by_value(module)
                        registered.callback(pickler.unregister_pickle_by_value, module)
            return bytes(cloudpickle.dumps(work))
    except Exception as error:  # objects of users may refuse in any way
        raise TypeError(
            f"this simulator cannot be sent to other processes: {error}; keep what cannot be copied out of it, create "
            "it on first use, or use workers=1"
        ) from error


def _is_own(name: str, module: Any) -> bool:
    """Whether a module is the user's own: neither smoothplan's nor in a folder of Python or of installed packages."""
    file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
    if not file or name != module.__name__ or name.partition(".")[0] == __name__.partition(".")[0]:
        return False
    path = Path(file).resolve()
    python = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")]
    return {"site-packages", "dist-packages"}.isdisjoint(path.parts) and not any(map(path.is_relative_to, python))
