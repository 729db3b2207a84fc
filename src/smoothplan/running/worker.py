"""The loop of a worker process: tasks come in through a socket of its own, outcomes go out.

Whatever a simulator does stays in here. What it prints goes to standard error. A call that takes too long, or that
wants too much memory, ends. When the parent dies, in whatever way, so does the worker with all its children, even while
a simulator hangs in compiled code. `contained.ContainedWorker` is the other side.
"""

import fcntl
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zlib import crc32

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from smoothplan import streams
from smoothplan.arguments import Ints
from smoothplan.models.calls import Call, watcher
from smoothplan.models.jit import JitModel
from smoothplan.running.packing import unpack
from smoothplan.running.work import Chunk, Outcome, Packed, Work

KEPT = 4
"""Works that a worker keeps; the oldest goes first. The other side knows this."""

LOOK = 1.0
"""Seconds between looks at the parent, where nothing else told of its death."""

COMPILED_PATIENCE = 60
COMPILED_LEAST = 10.0
"""Compiled code cannot be watched call by call: a whole task of it may take so many times the limit on a call, which
counts as so many seconds at least."""

WARM_UP = 10.0
"""Seconds that the first call in a process may take at least, for a simulator may compile or load something there."""

Times = tuple[float | None, float]
"""Seconds that a simulator call may take, and that the first may take at least."""

LENGTH = struct.Struct("<Q")
SEAL = struct.Struct("<QI")

Where = Literal["call", "between", "compiled"]
"""In a simulator call; before, between or after them; somewhere in compiled code that makes them."""


class NewWork(NamedTuple):
    """To a worker: work, and where to import from."""

    packed: Packed
    path: list[str]
    folder: str | None


class Request(NamedTuple):
    """To a worker: tasks of a work that it has, to be done one after the other."""

    digest: str
    tasks: list[Chunk]
    careful: bool  # whether to note every simulator call before it is made


class Done(NamedTuple):
    """From a worker: a task is done."""

    outcome: Outcome
    grown: bool  # whether the process has become so large that it should be replaced


class Failed(NamedTuple):
    """From a worker: a task has failed, and those behind it have not been tried."""

    data: bytes | None  # the error, where it can be sent
    text: str
    trace: str
    exhausted: bool  # whether memory ran out

    def error(self) -> Exception:
        """The error, with the traceback of the other process in a note."""
        error: Exception = RuntimeError(self.text)
        if self.data is not None:
            with suppress(Exception):  # of whatever kind the error's own code raises
                error = pickle.loads(self.data)
        error.add_note(f"in a worker process:\n{self.trace}")
        return error


class Note(NamedTuple):
    """What a worker that is careful was about to do."""

    number: int  # of simulator calls begun, with rows of a batch counted too
    where: Where
    call: Call  # the one under way, or the last one, or the first of compiled code


def framed(message: Any) -> bytes:
    """A message with its length in front."""
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


def read_note(file: int) -> Note | None:
    """The note in a file; None if there is none, or only a part of one."""
    with suppress(Exception):  # of whatever kind a state's own code raises
        size, seal = SEAL.unpack(os.pread(file, SEAL.size, 0))
        data = os.pread(file, size, SEAL.size)
        if len(data) == size and crc32(data) == seal:
            note = pickle.loads(data)
            return note if isinstance(note, Note) else None
    return None


def serve(
    connection: int,
    lifeline: int,
    notes: int,
    parent: int,
    timeout: float | None,
    memory: int | None,
    warm_up: float = WARM_UP,
) -> None:
    """Does what is asked for until the other side hangs up.

    Args:
        connection: file descriptor of a socket for messages.
        lifeline: of a pipe, of which only the parent holds the other end.
        notes: of a file for notes.
        parent: process number.
        timeout: seconds that one simulator call may take.
        memory: bytes by which the process may grow.
        warm_up: seconds that the first simulator call may take at least.
    """
    for file in (connection, lifeline, notes):
        os.set_inheritable(file, False)
    with suppress(OSError):
        os.dup2(2, 1)
    with suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    die_with_parent(lifeline, parent)
    worker = _Worker(socket.socket(fileno=connection), notes, (timeout, warm_up), _Memory(memory))
    with suppress(ConnectionError):
        worker.run()
    os._exit(0)


def die_with_parent(lifeline: int, parent: int) -> None:
    """Ends this process and its children when the other end of the lifeline is closed."""

    def wait() -> None:
        waiting = select.poll()
        waiting.register(lifeline, 0)
        while not waiting.poll(LOOK * 1000) and os.getppid() == parent:
            pass
        with suppress(OSError):
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    if sys.platform == "linux":
        # The thread below needs the interpreter lock, which a simulator may hold: a signal does not.
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=wait, daemon=True).start()


class _Worker:
    def __init__(self, connection: socket.socket, notes: int, times: "Times", memory: "_Memory") -> None:
        self._connection, self._notes, self._times, self._memory = connection, notes, times, memory
        self._works: dict[str, Work | Failed] = {}
        self._warm: set[str] = set()  # digests of those that have done a task

    def run(self) -> None:
        """Answers messages, in order."""
        while (message := self._receive()) is not None:
            if isinstance(message, NewWork):
                self._memory.limit()
                self._unpack(message)
            else:
                self._answer(message)

    def _receive(self) -> Any:
        head = self._read(LENGTH.size)
        return pickle.loads(self._read(LENGTH.unpack(head)[0])) if head else None

    def _read(self, size: int) -> bytes:
        """So many bytes, or none at the end."""
        data = bytearray()
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            if not piece:
                return b""
            data += piece
        return bytes(data)

    def _unpack(self, message: NewWork) -> None:
        sys.path[:] = message.path
        if message.folder is not None:
            with suppress(OSError):
                os.chdir(message.folder)
        found: Work | Failed
        try:
            found = unpack(message.packed.data)
            if isinstance(found.model, JitModel):
                replace(found.model)  # which compiles the step again, while no clock runs
        except BaseException as error:
            problem = RuntimeError(
                f"this simulator cannot be set up in another process: {type(error).__name__}: {error}"
            )
            problem.__cause__ = error
            found = self._failed(problem)
        self._works[message.packed.digest] = found
        while len(self._works) > KEPT:
            del self._works[next(iter(self._works))]

    def _answer(self, request: Request) -> None:
        work = self._works[request.digest]
        for task in request.tasks:
            reply: Done | Failed
            if isinstance(work, Failed):
                reply = work
            else:
                try:
                    reply = Done(self._do(work, task, request), self._memory.grown())
                except BaseException as error:  # a simulator may raise anything
                    reply = self._failed(error)
            self._connection.sendall(framed(reply))
            if isinstance(reply, Failed):
                return

    def _do(self, work: Work, task: Chunk, request: Request) -> Outcome:
        timeout, warm_up = self._times
        first = None if timeout is None or request.digest in self._warm else max(timeout, warm_up)
        watch = _Watch(work, task, timeout, first, self._notes if request.careful else None)
        if not work.compiled:
            work = replace(work, model=_Watched(work.model, watch, self._memory))
        before = watcher.set(watch)
        try:
            watch.begin()
            outcome = work(task)
            self._warm.add(request.digest)
            return outcome
        finally:
            watch.stop()
            watcher.reset(before)

    def _failed(self, error: BaseException) -> Failed:
        exhausted = self._memory.ran_out(error)
        trace = "".join(traceback.format_exception(error)).rstrip()
        data = None
        if isinstance(error, Exception):
            with suppress(Exception):  # of whatever kind the error's own code raises
                data = cloudpickle.dumps(error)
                pickle.loads(data)
        return Failed(data, repr(error), trace, exhausted)


class _Watch:
    """Is told of every simulator call before it is made, and when it is over: a clock runs in between."""

    def __init__(self, work: Work, task: Chunk, timeout: float | None, first: float | None, notes: int | None) -> None:
        self._work, self._task, self._timeout, self._notes = work, task, timeout, notes
        self._first = first  # seconds that the first call may take, until one has come to its end
        self._number = 0  # of calls begun
        self._call = self._written(np.asarray(work.state)[None], np.array([task.action]), self._rng())

    def begin(self) -> None:
        """The task begins."""
        # The default action ends the process, whoever holds the interpreter lock.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._note("compiled" if self._work.compiled else "between")
        if self._work.compiled and self._timeout is not None:
            signal.setitimer(signal.ITIMER_REAL, compiled_timeout(self._timeout))

    def __call__(self, states: NDArray[Any], actions: Ints, rng: np.random.Generator) -> None:
        """A call begins; the clock of the one before stops."""
        if self._notes is not None:
            self._number += 1
            self._call = self._written(states, actions, rng)
            self._note("call")
        if self._timeout is not None:
            signal.setitimer(signal.ITIMER_REAL, self._first or self._timeout)

    def stop(self) -> None:
        """The call is over, and with it all rows of a batch."""
        self._first = None
        if self._timeout is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._note("between")

    def _written(self, states: NDArray[Any], actions: Ints, rng: np.random.Generator) -> Call:
        row = 0 if len(actions) == 1 else None
        return Call(states, actions, streams.generator_words(rng), self._work.seed, self._task.chunk, row)

    def _rng(self) -> np.random.Generator:
        return streams.generator(self._work.seed, self._task.chunk)

    def _note(self, where: Where) -> None:
        """Writes down where we are, for those who come after us."""
        if self._notes is None:
            return
        os.ftruncate(self._notes, 0)
        with suppress(Exception):  # of whatever kind a state's own code raises
            data = cloudpickle.dumps(Note(self._number, where, self._call))
            os.pwrite(self._notes, SEAL.pack(len(data), crc32(data)) + data, 0)


def compiled_timeout(timeout: float) -> float:
    """Seconds that a task of a compiled engine may take, given those of a simulator call."""
    return COMPILED_PATIENCE * max(timeout, COMPILED_LEAST)


class _Watched:
    """A model that tells a watch when a call of its step is over."""

    def __init__(self, model: Any, watch: _Watch, memory: "_Memory") -> None:
        self._model = model
        self.step = _WatchedStep(model.step, watch, memory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _WatchedStep:
    def __init__(self, function: Any, watch: _Watch, memory: "_Memory") -> None:
        self._function, self._watch, self._memory = function, watch, memory
        self.one_at_a_time = bool(getattr(function, "one_at_a_time", False))

    def __call__(self, states: Any, actions: Any, rng: Any) -> Any:
        try:
            return self._function(states, actions, rng)
        except BaseException as error:
            self._memory.ran_out(error)
            raise
        finally:
            self._watch.stop()


class _Memory:
    """A limit on how far this process may grow from the size that it has when it is set.

    Beyond it, simulators get a `MemoryError`. Only Linux counts what matters here: memory that can be written to.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most if sys.platform == "linux" else None
        self._set = False
        self._start = 0  # resident bytes at first
        self._settled: int | None = None  # after the first task

    def limit(self) -> None:
        """From now on."""
        if self._most is None or self._set:
            return
        import resource

        self._set = True
        self._start, data = _sizes()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = data + self._most
        resource.setrlimit(
            resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )

    def ran_out(self, error: BaseException) -> bool:
        """Whether an error is for lack of memory. If so there is no limit any more, to have room to tell of it.

        The other side then replaces this process.
        """
        found = any(isinstance(link, MemoryError) for link in _chain(error))
        if found and self._set:
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        return found

    def grown(self) -> bool:
        """Whether it is more than half way from where it was after the first task to the limit: something leaks."""
        if self._most is None:
            return False
        size = _sizes()[0] - self._start
        if self._settled is None:
            self._settled = size
        return size > (self._settled + self._most) / 2


def _sizes() -> tuple[int, int]:
    """Bytes that are resident, and bytes that can be written to."""
    fields = Path("/proc/self/statm").read_text().split()
    page = os.sysconf("SC_PAGE_SIZE")
    return int(fields[1]) * page, int(fields[5]) * page


def _chain(error: BaseException | None) -> Any:
    """An error and what led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
