"""Checkpoints: one SQLite file with the outcomes of a run's chunks, so that a killed run continues from there.

An outcome depends on nothing but the run and the chunk's number, so a file is a set of rows, and a missing row is
computed again. One table holds all of them: (name, value, checksum). Names are "identity model" for the model of the
run, "chunk 7" for the outcome of a chunk, in JSON, and "snapshot search" for named arrays.

Every addition is committed to the write-ahead log at once, so killing the process loses nothing. The log is synced to
the disk and moved into the file once a second. SQLite checks its log but not its pages, hence the checksums: a damaged
row is an error, never a wrong result.
"""

import gc
import io
import json
import os
import re
import sqlite3
import time
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

APPLICATION, FORMAT = 0x536D506C, 3
"""In the header of the file, where SQLite has room for them: "SmPl", and the version of the table."""

SYNC_SECONDS = 1.0
"""Between two waits for the disk: the most that a crash of the machine may cost."""


class CheckpointError(ValueError):
    """A checkpoint is refused: it is of another run, in use, damaged, or cannot be read or written."""


class ChunkRow(NamedTuple):
    """The outcome of a chunk."""

    asked: str  # a digest of what was asked of the chunk
    numbers: list[float]  # finite; whole numbers stay whole, others keep every bit
    calls: int  # of the simulator


def described(thing: Any) -> str:
    """A thing by its repr, with every digit of its arrays and without addresses of memory."""
    with np.printoptions(threshold=2**62, floatmode="unique"):
        text = f"array of dtype {thing.dtype}: {thing!r}" if isinstance(thing, np.ndarray) else repr(thing)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(text.split()))


class Checkpoint(AbstractContextManager["Checkpoint"]):
    """An open checkpoint, locked: nobody else can open it until it is closed or its process ends.

    Args:
        path: of the file. A new one is made if there is none, or an empty one.
        identity: what distinguishes the run from others, by name: {"model": "...", "seed": "0"}.

    Raises:
        CheckpointError: the file is not a checkpoint, of another run, in use, damaged, or cannot be read or written.
            Its content has not been changed.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Mapping[str, str]) -> None:
        self._shown = os.fspath(path)
        self._found: dict[int, ChunkRow] = {}  # when it was opened
        self._synced = time.monotonic()
        file = Path(path)
        with self._errors("opened"):
            if not file.parent.is_dir():
                raise self.refuse(f"cannot be opened: there is no directory {file.parent}")
            if file.exists() and not file.is_file():
                raise self.refuse("cannot be opened: it is not an ordinary file")
            if file.exists() and 0 < file.stat().st_size < 512:  # SQLite would take it for an empty one
                raise CheckpointError(f"{self._shown} is not a checkpoint of smoothplan; it is left as it is")
            self._database = sqlite3.connect(file, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            with self._errors("read"):
                self._execute("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "COMMIT")  # writes nothing
                loaded = self._load(identity)
                # The log is synced when it is moved.
                self._execute(
                    "PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", "PRAGMA wal_autocheckpoint = 0"
                )
                if not loaded:
                    with self._transaction():
                        self._execute(
                            "CREATE TABLE rows (name TEXT PRIMARY KEY, value BLOB, checksum INTEGER)",
                            f"PRAGMA application_id = {APPLICATION}",
                            f"PRAGMA user_version = {FORMAT}",
                        )
                    self._insert("INSERT", [(f"identity {name}", value.encode()) for name, value in identity.items()])
                    self._sync()
        except BaseException:
            self._database.close()
            raise
        self.chunks = len(self._found)  # in the file
        _OPEN.add(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_new(self) -> bool:
        """Whether nothing has been written yet, by this run or an earlier one."""
        return not self._rows("SELECT name FROM rows WHERE name NOT LIKE 'identity %' LIMIT 1")

    def find(self, number: int, asked: str) -> ChunkRow | None:
        """The outcome of a chunk that was in the file when it was opened.

        Raises:
            CheckpointError: something else was asked of the chunk.
        """
        row = self._found.get(number)
        if row is not None and row.asked != asked:
            raise self.refuse(f"is of another run: chunk {number} was asked {row.asked} there, {asked} here")
        return row

    def add(self, rows: Iterable[tuple[int, ChunkRow]]) -> None:
        """Commits outcomes of chunks. When it returns, the operating system has them, and a kill loses nothing."""
        texts = [(f"chunk {number}", json.dumps(row, allow_nan=False)) for number, row in rows]
        self._insert("INSERT", [(name, text.encode()) for name, text in texts])
        self.chunks += len(texts)

    def has(self, name: str) -> bool:
        """Whether there is a snapshot of that name."""
        return bool(self._rows("SELECT name FROM rows WHERE name = ?", f"snapshot {name}"))

    def snapshot(self, name: str) -> dict[str, NDArray[Any]] | None:
        """The arrays that were last kept under a name, or None."""
        rows = self._rows("SELECT value FROM rows WHERE name = ?", f"snapshot {name}")
        if not rows:
            return None
        try:
            with np.load(io.BytesIO(rows[0][0]), allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, OSError, zipfile.BadZipFile, MemoryError) as error:
            raise CheckpointError(f"checkpoint {self._shown}: snapshot {name!r} cannot be read: {error}") from error

    def keep(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the snapshot of a name by arrays of numbers. A kill at any moment leaves the old or the new one."""
        stream = io.BytesIO()  # as of `numpy.savez_compressed`, at the fastest compression
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for part, array in arrays.items():
                if np.asarray(array).dtype.hasobject:
                    raise TypeError(f"array {part!r} must be of numbers, got dtype {np.asarray(array).dtype}")
                with archive.open(f"{part}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        self._insert("INSERT OR REPLACE", [(f"snapshot {name}", stream.getvalue())])

    def sync_if_due(self) -> None:
        """Moves the log into the file and waits for the disk, once a second."""
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self._sync()

    def close(self) -> None:
        """Leaves one file, all of it on the disk, and unlocks it. It may be called again."""
        with suppress(sqlite3.ProgrammingError):  # it is closed
            try:
                self._sync()
            finally:
                self._database.close()

    def refuse(self, reason: str) -> CheckpointError:
        """An error that names the file."""
        return CheckpointError(f"checkpoint {self._shown} {reason}")

    def _load(self, identity: Mapping[str, str]) -> bool:
        """Checks the whole file, and reads the chunks; False if it is empty."""
        (application,), (version,) = self._rows("PRAGMA application_id"), self._rows("PRAGMA user_version")
        if not self._rows("SELECT 1 FROM sqlite_master LIMIT 1") and application == version == (0,):
            return False
        if application != (APPLICATION,):
            raise CheckpointError(f"{self._shown} is not a checkpoint of smoothplan; it is left as it is")
        if version != (FORMAT,):
            raise self.refuse(f"has format {version[0]}, and this version reads {FORMAT}")
        problems = [text for (text,) in self._rows("PRAGMA quick_check(1)") if text != "ok"]
        if problems:
            raise self._damaged(problems[0])
        there: dict[str, str] = {}
        for name, value, checksum in self._database.execute("SELECT name, value, checksum FROM rows"):
            if checksum != _checksum(name, value):
                raise self._damaged(f"the checksum of {name} does not fit")
            kind, _, key = name.partition(" ")
            if kind == "identity":
                there[key] = value.decode()
            elif kind == "chunk":
                self._found[int(key)] = ChunkRow(*json.loads(value))
        other = [name for name in {**identity, **there} if identity.get(name) != there.get(name)]
        if other:
            shown = [f"of another {name}: {_difference(there.get(name), identity.get(name))}" for name in other[:3]]
            raise self.refuse(f"is {'; '.join(shown)}")
        return True

    def _execute(self, *statements: str) -> None:
        for statement in statements:
            self._database.execute(statement)

    def _insert(self, how: str, rows: list[tuple[str, bytes]]) -> None:
        with self._transaction():
            self._database.executemany(f"{how} INTO rows VALUES (?, ?, ?)", ((*row, _checksum(*row)) for row in rows))
        self.sync_if_due()

    def _sync(self) -> None:
        with self._errors("written"):
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._synced = time.monotonic()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it, or nothing."""
        with self._errors("written"):
            self._database.execute("BEGIN")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have done so itself
                    self._database.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._errors("read"):
            return self._database.execute(query, values).fetchall()

    def _damaged(self, problem: str) -> CheckpointError:
        return self.refuse(f"is damaged ({problem}): move it away to start again, or restore a copy")

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Turns errors of SQLite and of the operating system into errors that name the file."""
        try:
            yield
        except (sqlite3.ProgrammingError, CheckpointError):
            raise  # it is closed, or the error names the file already
        except (sqlite3.Error, OSError, ValueError, MemoryError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise self.refuse("is in use by another run") from error
            if code == sqlite3.SQLITE_NOTADB:
                raise CheckpointError(
                    f"{self._shown} is not a checkpoint of smoothplan, or its header is damaged; it is left as it is"
                ) from error
            if code == sqlite3.SQLITE_CORRUPT:
                raise self._damaged(str(error)) from error
            raise self.refuse(f"cannot be {action}: {error}") from error


_OPEN: "weakref.WeakSet[Checkpoint]" = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child: keeps connections for ever, because closing one would remove the log of the parent."""
    kept: list[Any] = [found._database for found in _OPEN]
    kept.append(kept)  # a cycle,
    gc.freeze()  # which is never collected
    for found in _OPEN:
        found._database = sqlite3.connect(":memory:")
        found._database.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _checksum(name: str, value: bytes) -> int:
    return crc32(value, crc32(name.encode()))


def _difference(there: str | None, here: str | None) -> str:
    """Two values for an error message, from shortly before they differ."""
    values = ["nothing" if value is None else value for value in (there, here)]
    same = next((place for place, (one, two) in enumerate(zip(*values, strict=False)) if one != two), 0)
    start = 0 if same < 40 else same - 10
    shown = [f"{'…' if start else ''}{v[start : start + 60]}{'…' if len(v) > start + 60 else ''}" for v in values]
    return f"there {shown[0]}, here {shown[1]}"
