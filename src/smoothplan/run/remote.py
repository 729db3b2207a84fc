"""Code for other processes: workers of Dask, which compute batches, and children of workers, which can be blamed.

A batch whose process died is computed again in a child of a worker. The child writes down every simulator call before
it is made, so a simulator that ends its process is named, with the chunk and the call in flight.
"""

import faulthandler
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import streams
from smoothplan.base.arguments import Ints
from smoothplan.base.stopping import Stopped
from smoothplan.models.model import Call, SimulatorError, watcher
from smoothplan.run.chunks import Chunk, Done, Work


def start_python(function: str, *arguments: str, session: bool = False, settings: dict[str, str] | None = None) -> Any:
    """A Python process that calls a function of this module, and can import whatever this process can."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from smoothplan.run.remote import {function}; {function}()", *arguments],
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


class Shipped:
    """Work on a worker: unpacked once, in bytes if it travels on. Dask forgets it when its run is over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.warm: set[str] = set()  # the kinds of chunks that it has computed

    def __reduce__(self) -> tuple[Any, ...]:
        return Shipped, (self._data,)

    @cached_property
    def work(self) -> Work:
        """The work itself. Only bytes that this program has packed are unpacked: they can run any code."""
        try:
            found: Work = pickle.loads(self._data)
            return found
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"this simulator cannot be set up in another process: {reason}") from error


class Order(NamedTuple):
    """How to compute a batch."""

    version: str  # of smoothplan
    careful: bool  # in a child, which writes down every simulator call before it is made
    chunk_seconds: float | None
    warm_up: float  # seconds that the first chunk of a kind in a process may take beyond that


def compute(shipped: Shipped, chunks: list[Chunk[Any]], order: Order) -> Done:
    """Computes a batch on a worker."""
    here = version("smoothplan")
    if here != order.version:
        raise RuntimeError(f"a worker has smoothplan {here}: install version {order.version} there")
    wanted = _Wanted()
    try:
        if order.careful:
            return _in_child(shipped, chunks, order, wanted)
        with Path(os.devnull).open("w") as nowhere:
            done = _computed(shipped, chunks, order, wanted, nowhere)
    except Stopped:
        return Done([])
    return Done([]) if isinstance(done.error, Stopped) else done


_one_limited = threading.Lock()  # the timer of faulthandler is one for the process


def _computed(shipped: Shipped, chunks: list[Chunk[Any]], order: Order, watch: Any, late: IO[str]) -> Done:
    """Computes chunks in this process. It ends, with its traceback in a file, if one of them takes too long."""

    @contextmanager
    def around(chunk: Chunk[Any]) -> Iterator[None]:
        if order.chunk_seconds is None:
            yield
            return
        more = 0.0 if chunk.draw.__qualname__ in shipped.warm else order.warm_up
        with _one_limited:
            faulthandler.dump_traceback_later(order.chunk_seconds + more, exit=True, file=late)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
        shipped.warm.add(chunk.draw.__qualname__)

    before = watcher.set(watch)
    try:
        done = shipped.work.each(chunks, around)
    finally:
        watcher.reset(before)
    if done.error is None:
        return done
    trace = "".join(traceback.format_exception(done.error)).rstrip()
    try:
        error = pickle.loads(pickle.dumps(done.error))
    except Exception:  # of whatever kind the error's own code raises
        error = RuntimeError(repr(done.error))
    error.add_note(f"in a worker process:\n{trace}")
    return done._replace(error=error)


class _Wanted:
    """Stops a batch that nobody wants any more, because its run is over or was killed."""

    def __init__(self) -> None:
        from distributed import get_worker

        self.dask = get_worker()
        self._task = self.dask.get_current_task()
        self._looked = time.monotonic()

    def __call__(self, *_: Any) -> None:
        if time.monotonic() - self._looked > 0.25:
            self._looked = time.monotonic()
            task = self.dask.state.tasks.get(self._task)
            if task is None or task.state == "cancelled":
                raise Stopped("interrupted")

    def row(self, row: int) -> None:
        pass


def _in_child(shipped: Shipped, chunks: list[Chunk[Any]], order: Order, wanted: _Wanted) -> Done:
    """Computes chunks in a child process. If it dies, the simulator is to blame, unless the child was killed."""
    import cloudpickle
    import psutil

    limit = wanted.dask.memory_manager.memory_limit or math.inf
    most, used = 0.95 * limit, 0  # the share at which Dask ends a worker
    with tempfile.TemporaryDirectory(prefix="smoothplan-") as name:
        folder = Path(name)
        for kind, content in {"batch": cloudpickle.dumps((shipped, chunks, order)), "call": b"", "late": b""}.items():
            (folder / kind).write_bytes(content)
        child = start_python("compute_in_child", name)
        try:
            while child.poll() is None and used <= most:
                wanted()
                time.sleep(0.02)
                with suppress(psutil.NoSuchProcess):
                    used = psutil.Process(child.pid).memory_info().rss
        finally:
            child.kill()
            child.communicate()
        done: Done = pickle.loads((folder / "done").read_bytes()) if (folder / "done").exists() else Done([])
        if done.error is not None or len(done.outcomes) == len(chunks):
            return done
        call, late = ((folder / kind).read_bytes() for kind in ("call", "late"))
    if child.returncode == -signal.SIGKILL and used <= most:
        raise CancelledError("its process was killed")  # and it is sent again
    if not call:
        raise RuntimeError(f"a child of a worker ended before the first simulator call, with status {child.returncode}")
    if used > most and done.outcomes:  # it may be a leak: another child computes the rest
        rest = _in_child(shipped, chunks[len(done.outcomes) :], order, wanted)
        return rest._replace(outcomes=done.outcomes + rest.outcomes)
    if late:
        reason = f"a chunk took longer than chunk_seconds={order.chunk_seconds:g} s"
    elif used > most:
        reason = f"the simulator needs more memory than its process may have: {used} of {limit} bytes in use"
    else:
        reason = "the simulator ended its process, by a crash or an exit"
    (row,), (states, actions, words) = _ROW.unpack_from(call), pickle.loads(call[_ROW.size :])
    guilty = row if 0 <= row < len(actions) else 0 if len(actions) == 1 else None
    found = Call(states, actions, words, shipped.work.seed, chunks[len(done.outcomes)].number, guilty)
    where = "somewhere in compiled code, which begins with " if shipped.work.compiled else ""
    error = SimulatorError(f"{reason} ({where}{found.place()})", found)
    if late:
        error.add_note(f"in a worker process:\n{late.decode().rstrip()}")
    if shipped.work.compiled:
        error.add_note("compiled code cannot be watched: engine='batched' tells the very call")
    return done._replace(error=error)


def compute_in_child() -> None:
    """In the child: computes a batch, and writes down each simulator call before it is made, and outcomes so far."""
    folder = Path(sys.argv[1])
    _end_with_parent(lambda: os._exit(1))
    with (folder / "late").open("w") as late, (folder / "call").open("wb") as file:
        shipped, chunks, order = pickle.loads((folder / "batch").read_bytes())
        work, notes, done = shipped.work, _Notes(file.fileno()), Done([])
        for chunk in chunks:
            # Compiled code makes its calls unseen, so a first one stands for all.
            rng = streams.generator(work.seed, chunk.number, work.role)
            notes(np.asarray(work.state)[None], np.array([chunk.action]), rng)
            one = _computed(shipped, [chunk], order, notes, late)
            done = one._replace(outcomes=done.outcomes + one.outcomes)
            (folder / "new").write_bytes(pickle.dumps(done))
            (folder / "new").rename(folder / "done")
            if done.error is not None:
                return


_ROW = struct.Struct("<q")  # of a batch, before the call itself


class _Notes:
    """Writes down a simulator call before it is made."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __call__(self, states: NDArray[Any], actions: Ints, rng: np.random.Generator) -> None:
        call = pickle.dumps((states, actions, streams.generator_words(rng)))
        os.pwrite(self._file, _ROW.pack(-1) + call, 0)

    def row(self, row: int) -> None:
        os.pwrite(self._file, _ROW.pack(row), 0)
