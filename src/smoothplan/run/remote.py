"""What runs on the workers of Dask: batches of chunks, and notes of what was under way when a process dies.

A process that dies leaves two files behind: the simulator call that was under way, and the traceback of a chunk that
took too long. The client reads them, or has a nanny on the same machine do so.
"""

import faulthandler
import os
import pickle
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import streams
from smoothplan.base.arguments import Ints
from smoothplan.base.stopping import Stopped
from smoothplan.models.calls import Call, watcher
from smoothplan.run.chunks import Chunk, Done, Work

WANTED_SECONDS = 0.25
"""How often a batch looks whether it is still wanted: its run may be over, or killed."""

_HEAD = struct.Struct("<qq")  # the number of the call, and its row

_one_limited = threading.Lock()  # the timer of faulthandler is one for the process


class Order(NamedTuple):
    """How a batch is to be computed."""

    key: str  # of the attempt
    version: str  # of smoothplan
    noting: bool  # whether to note every simulator call before it is made
    chunk_seconds: float | None
    warm_up: float  # seconds that the first chunk of a method in a process may take beyond that: it loads and compiles


class Note(NamedTuple):
    """What was under way when a process died."""

    chunk: int
    number: int  # of simulator calls begun in the chunk
    pid: int
    time: float
    call: Call
    late: str  # the traceback, where the chunk took too long


class Shipped:
    """Work on a worker: unpacked once, in bytes where it travels on. Dask forgets it when its run is over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.warm: set[str] = set()  # what it has computed a chunk of: each method compiles code of its own

    def __reduce__(self) -> tuple[Any, ...]:
        return Shipped, (self._data,)

    @cached_property
    def work(self) -> Work:
        """The work itself. Only what this program has packed is ever unpacked: it can run any code."""
        try:
            found: Work = pickle.loads(self._data)
            return found
        except BaseException as error:
            raise RuntimeError(
                f"this simulator cannot be set up in another process: {type(error).__name__}: {error}"
            ) from error


def compute(shipped: Shipped, chunks: list[Chunk[Any]], order: Order) -> Done:
    """Computes a batch on a worker."""
    here = version("smoothplan")
    if here != order.version:
        raise RuntimeError(f"a worker has smoothplan {here}: install version {order.version} there")
    work = shipped.work
    watch = _Watch(work, order)
    before = watcher.set(watch)
    try:
        with _one_limited if order.chunk_seconds is not None else nullcontext():

            @contextmanager
            def around(chunk: Chunk[Any]) -> Iterator[None]:
                watch.begin(chunk)
                with watch.limit(
                    order.chunk_seconds, 0.0 if chunk.draw.__qualname__ in shipped.warm else order.warm_up
                ):
                    yield
                shipped.warm.add(chunk.draw.__qualname__)

            done = work.each(chunks, around)
        if isinstance(done.error, Stopped):  # nobody wants it any more
            return Done([])
        return done if done.error is None else done._replace(error=_portable(done.error))
    finally:
        watcher.reset(before)
        watch.close()


def _portable(error: BaseException) -> BaseException:
    """An error that arrives as it is, with its traceback in a note; or its description."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:  # of whatever kind the error's own code raises
        error = RuntimeError(repr(error))
    error.add_note(f"in a worker process:\n{trace}")
    return error


class _Watch:
    """Is told of every simulator call before it is made: notes it, and stops a batch that nobody wants any more."""

    def __init__(self, work: Work, order: Order) -> None:
        from distributed import get_worker

        self._work, self._order = work, order
        self._dask = get_worker()
        self._task = self._dask.get_current_task()
        self._looked = time.monotonic()
        self._chunk = self._number = 0
        self._folder = _folder(order.key)
        self._file = -1
        if order.noting:
            self._folder.mkdir(exist_ok=True)
            self._file = os.open(self._folder / "call", os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def begin(self, chunk: Chunk[Any]) -> None:
        """A chunk begins. Compiled code makes its calls unseen, so the first one stands for all."""
        self._chunk, self._number = chunk.number, 0
        rng = streams.generator(self._work.seed, chunk.number, self._work.role)
        self(np.asarray(self._work.state)[None], np.array([chunk.action]), rng)

    def __call__(self, states: NDArray[Any], actions: Ints, rng: np.random.Generator) -> None:
        """A batch is about to be stepped."""
        now = time.monotonic()
        if now - self._looked > WANTED_SECONDS:
            self._looked = now
            task = self._dask.state.tasks.get(self._task)
            if task is None or task.state == "cancelled":
                raise Stopped("interrupted")
        if self._file >= 0:
            self._number += 1
            call = (self._chunk, self._number, os.getpid(), time.time(), states, actions, streams.generator_words(rng))
            os.pwrite(self._file, _HEAD.pack(self._number, -1) + pickle.dumps(call), 0)

    def row(self, row: int) -> None:
        """A row of the batch is about to be stepped."""
        if self._file >= 0:
            os.pwrite(self._file, _HEAD.pack(self._number, row), 0)

    @contextmanager
    def limit(self, seconds: float | None, more: float) -> Iterator[None]:
        """Ends the process when time is up, even where a simulator holds the interpreter lock."""
        if seconds is None:
            yield
            return
        with (self._folder / "late").open("w") as file:
            faulthandler.dump_traceback_later(seconds + more, exit=True, file=file)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """The batch is over."""
        if self._file >= 0:
            os.close(self._file)
            shutil.rmtree(self._folder, ignore_errors=True)


def _folder(key: str) -> Path:
    return Path(tempfile.gettempdir()) / key


def read_note(key: str, seed: int) -> Note | None:
    """The note of a batch whose process died on this machine, if there is one. It can be read once."""
    folder = _folder(key)
    try:
        data = (folder / "call").read_bytes()
        number, row = _HEAD.unpack_from(data)
        chunk, counted, pid, when, states, actions, words = pickle.loads(data[_HEAD.size :])
        late = (folder / "late").read_text() if (folder / "late").exists() else ""
    except Exception:  # there is none, or only a part of one
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    guilty = row if number == counted and 0 <= row < len(actions) else 0 if len(actions) == 1 else None
    return Note(chunk, counted, pid, when, Call(states, actions, words, seed, chunk, guilty), late)


def serve() -> None:
    """A worker of Dask in this process, with its nanny, that ends when standard input is closed, with its children."""
    from distributed.cli.dask_worker import main

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    main(sys.argv[1:])
