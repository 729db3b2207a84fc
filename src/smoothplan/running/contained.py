"""A worker process as seen from outside: it may die at any time, and what it was to do is done all the same.

A task gives the same bits whoever does it. So a task whose process died, killed by an operator or for lack of memory,
is simply done again in a fresh one; from then on with a note of every simulator call before it is made. A process that
dies twice at the same call was killed by the simulator, and the call is known.
"""

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from smoothplan import arguments
from smoothplan.brake import PATIENCE
from smoothplan.models.calls import SimulatorError
from smoothplan.running import worker
from smoothplan.running.work import Chunk, Delivery, Outcome, Packed
from smoothplan.running.worker import (
    KEPT,
    LENGTH,
    Done,
    Failed,
    NewWork,
    Note,
    Request,
    compiled_timeout,
    framed,
    read_note,
)

ATTEMPTS = 20
"""Processes that may die at one task before it is given up."""

GUILTY = 2
"""Deaths in a row at the same simulator call that are put down to the simulator."""

HOPELESS = 4
"""Deaths in a row at the same point outside of simulator calls after which a task is given up."""

FAREWELL = 1.0
"""Seconds that a process which has hung up gets to end by itself, so that it is known how."""

PIECE = 1 << 20
"""Bytes that are read at once."""

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""A program that wants to die of SIGPIPE does not mean our pipes."""

START = (
    "import importlib, json, sys; options = json.loads(sys.argv[1]); sys.path[:] = options.pop('path'); "
    "importlib.import_module(options.pop('module')).serve(**options)"
)
"""The program of a worker, which finds this package where its parent does."""


def command(module: str, **options: Any) -> list[str]:
    """What starts the `serve` of a module in another process."""
    said = json.dumps(options | {"module": module, "path": _path()})
    return [sys.executable, *["-O"] * sys.flags.optimize, "-P", "-c", START, said]


class ContainedWorker:
    """Does tasks in a process of its own, which is started when it is needed and replaced when it dies.

    Args:
        timeout: seconds that one call of the model's step may take: a row for a simulator of one call at a time, a
            whole batch for others. The first call in a process may take `worker.WARM_UP` at least. Of an engine that is
            compiled with its simulator, whole tasks are timed; see `worker.compiled_timeout`.
        memory: bytes by which the process may grow. A simulator that wants more gets a `MemoryError`; a process that
            grows slowly is replaced between tasks.
    """

    def __init__(self, timeout: float | None = None, memory: int | None = None) -> None:
        self.timeout = None if timeout is None else arguments.positive("timeout", timeout)
        self.memory = None if memory is None else arguments.whole("memory", memory)
        self.starts = 0  # of processes, so far
        self._process: _Process | None = None
        self._closed = False
        self._busy = threading.Lock()  # held while tasks are done
        self._guard = threading.Lock()  # of the process: who holds it may send it a signal

    @property
    def pid(self) -> int | None:
        """The number of the process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def run(self, packed: Packed, tasks: Sequence[Chunk]) -> Delivery:
        """Does tasks one after the other, up to the first that fails. One thread at a time.

        Raises:
            CancelledError: it was closed.
        """
        with self._busy:
            try:
                return self._run(packed, tasks)
            except BaseException:
                self._end()  # nobody knows what it is doing
                raise

    def close(self) -> None:
        """Kills the process and its children. Any thread may call this, and a run that is under way ends."""
        with self._guard:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        with self._busy:
            self._end()

    def _run(self, packed: Packed, tasks: Sequence[Chunk]) -> Delivery:
        outcomes: list[Outcome] = []
        deaths = _Deaths(self.timeout)
        while len(outcomes) < len(tasks):
            process = self._started()
            if isinstance(process, Exception):
                return Delivery(outcomes, process)
            careful = deaths.count > 0
            todo = list(tasks[len(outcomes) :])[: 1 if careful else None]
            try:
                process.ask(packed, todo, careful)
                for _ in todo:
                    reply = process.receive()
                    if isinstance(reply, Failed):
                        if reply.exhausted:
                            self._end()
                            if process.done > 0:  # what earlier tasks left behind may be to blame
                                break
                        return Delivery(outcomes, reply.error())
                    outcomes.append(reply.outcome)
                    process.done += 1
                    deaths = _Deaths(self.timeout)
                    if reply.grown:
                        self._end()
                        break
            except _DiedError:
                status = self._end(FAREWELL)
                if self._closed:
                    raise CancelledError from None
                error = deaths.verdict(status, process.note, careful)
                if error is not None:
                    return Delivery(outcomes, error)
        return Delivery(outcomes)

    def _started(self) -> "_Process | Exception":
        with self._guard:
            if self._closed:
                raise CancelledError
            if self._process is None:
                try:
                    self._process = _Process(self.timeout, self.memory)
                except OSError as error:
                    problem = RuntimeError(f"a worker process cannot be started: {error}")
                    problem.__cause__ = error
                    return problem
                self.starts += 1
            return self._process

    def _end(self, patience: float = 0.0) -> int:
        """Ends the process, if there is one, after so many seconds; its exit status."""
        with self._guard:
            process, self._process = self._process, None
        return 0 if process is None else process.end(patience)


class _Deaths:
    """What is known of the processes that died at one task."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self.count = 0
        self._last: tuple[Any, ...] = ()
        self._in_a_row = 0

    def verdict(self, status: int, note: Note | None, careful: bool) -> Exception | None:
        """Takes note of a death; the error, if that is one too many."""
        self.count += 1
        if not careful:
            return None
        here = ("start",) if note is None else (note.where, note.number)
        self._in_a_row = self._in_a_row + 1 if here == self._last else 1
        self._last = here
        if self._in_a_row >= (GUILTY if note is not None and note.where == "call" else HOPELESS):
            return self._error(status, note)
        if self.count >= ATTEMPTS:
            error = self._error(status, note)
            error.add_note(f"{ATTEMPTS} processes died at this task, and not always at this call")
            return error
        return None

    def _error(self, status: int, note: Note | None) -> Exception:
        how = self._how(status, note)
        if note is None:
            return RuntimeError(
                f"a worker process {how} before it could begin; if it said why, that is on standard error"
            )
        match note.where:
            case "call":
                message = f"the simulator {how} ({note.call.place()})"
            case "between":
                message = f"the process of the simulator {how}, outside of its calls, after {note.call.place()}"
            case "compiled":
                message = f"the compiled simulator {how} in a chunk that starts with {note.call.place()}"
        return SimulatorError(message, note.call)

    def _how(self, status: int, note: Note | None) -> str:
        if status >= 0:
            return f"exited with status {status}"
        if status == -signal.SIGALRM and self._timeout is not None:
            if note is not None and note.where == "compiled":
                return f"took longer than {compiled_timeout(self._timeout):g} s"
            return f"took longer than simulator_timeout={self._timeout:g} s"
        name = f"{-status}"
        with suppress(ValueError):
            name = signal.Signals(-status).name
        return f"killed its process (signal {name})" if note is not None else f"was killed (signal {name})"


class _DiedError(Exception):
    """A process has ended, or hung up."""


class _Process:
    """A worker process, and our ends of what connects us."""

    def __init__(self, timeout: float | None, memory: int | None) -> None:
        self.done = 0  # tasks
        self.note: Note | None = None  # what it was about to do when it ended, if it was careful
        self._sent: deque[str] = deque(maxlen=KEPT)  # digests of the works that it has
        self._buffer = bytearray()
        with ExitStack() as ours, ExitStack() as theirs:
            self._connection, connection = socket.socketpair()
            ours.callback(self._connection.close)
            theirs.callback(connection.close)
            lifeline, self._lifeline = os.pipe()
            ours.callback(os.close, self._lifeline)
            theirs.callback(os.close, lifeline)
            self._notes = ours.enter_context(tempfile.TemporaryFile())
            files = {"connection": connection.fileno(), "lifeline": lifeline, "notes": self._notes.fileno()}
            limits = {"timeout": timeout, "memory": memory, "warm_up": worker.WARM_UP}
            self._process = subprocess.Popen(
                command(worker.__name__, **files, **limits, parent=os.getpid()),
                stdin=subprocess.DEVNULL,
                pass_fds=tuple(files.values()),
                start_new_session=True,
            )
            self._files = ours.pop_all()
        self.pid = self._process.pid
        self._connection.setblocking(False)

    def ask(self, packed: Packed, tasks: list[Chunk], careful: bool) -> None:
        """Hands out tasks."""
        if packed.digest not in self._sent:
            self._sent.append(packed.digest)
            self._send(NewWork(packed, _path(), _folder()))
        if careful:
            self._notes.truncate(0)
        self._send(Request(packed.digest, tasks, careful))

    def receive(self) -> Done | Failed:
        """What became of the next task."""
        while True:
            if len(self._buffer) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
                if len(self._buffer) >= end:
                    message: Done | Failed = pickle.loads(self._buffer[LENGTH.size : end])
                    del self._buffer[:end]
                    return message
            self._wait(select.POLLIN)
            try:
                piece = self._connection.recv(PIECE)
            except BlockingIOError:
                continue
            except ConnectionError:
                raise _DiedError from None
            if not piece:
                raise _DiedError
            self._buffer += piece

    def kill(self) -> None:
        """Kills it and its children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, patience: float) -> int:
        """Kills what is left of it after so many seconds, and lets go of everything; its exit status."""
        end = time.monotonic() + patience
        while not self._dead() and time.monotonic() < end:
            time.sleep(PATIENCE / 10)
        self.kill()
        status = self._process.wait()
        self.note = read_note(self._notes.fileno())
        self._files.close()
        return status

    def _send(self, message: Any) -> None:
        data = memoryview(framed(message))
        while data:
            self._wait(select.POLLOUT)
            with suppress(BlockingIOError):
                try:
                    data = data[self._connection.send(data, NO_SIGNAL) :]
                except ConnectionError:
                    raise _DiedError from None

    def _wait(self, event: int) -> None:
        """Waits until the connection is ready; but not for a dead process, whose children may hold the other end."""
        waiting = select.poll()
        waiting.register(self._connection, event)
        while not waiting.poll(PATIENCE * 1000):
            if self._dead():
                raise _DiedError

    def _dead(self) -> bool:
        """Whether it has ended. It is not waited for yet, so that its number, and its group's, mean nobody else."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the program ignores its children, and the system has waited for it
            return True


def _path() -> list[str]:
    """Where this process imports from."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def _folder() -> str | None:
    """The folder that this process is in, if it still exists."""
    try:
        return str(Path.cwd())
    except OSError:
        return None
