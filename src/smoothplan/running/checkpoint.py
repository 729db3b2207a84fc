"""Checkpoints: one SQLite file with what the chunks of a run brought, so that a killed run goes on from there.

An outcome depends on nothing but the run and the chunk's number, so a file is a set of rows: a row that is missing is
computed again. Three tables hold all of it:

    identity   (name, value)                              which run the file belongs to
    chunks     (number, asked, numbers, calls, checksum)  what each chunk brought; numbers are JSON
    snapshots  (name, npz, checksum)                      named arrays, such as a search or a reference

Every addition is committed to the write-ahead log at once, so killing the process loses nothing. The log is synced to
the disk and moved into the file once a second. SQLite checks its log, not its pages, so that every row has a checksum,
and the table `seal` has the sum of them all: a damaged file is an error, never a wrong result.
"""

import ctypes
import io
import json
import os
import sqlite3
import time
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

APPLICATION = 0x536D506C
"""In the header of the file, where SQLite has a place for it: "SmPl"."""

FORMAT = 2
"""Of the tables; another one is refused."""

SYNC_SECONDS = 1.0
"""Between two waits for the disk: what a crash of the machine may cost."""

TABLES = """
CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE chunks (number INTEGER PRIMARY KEY, asked TEXT NOT NULL, numbers TEXT NOT NULL, calls INTEGER NOT NULL,
                     checksum INTEGER NOT NULL);
CREATE TABLE snapshots (name TEXT PRIMARY KEY, npz BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE seal (total INTEGER NOT NULL);
INSERT INTO seal VALUES (0);
"""


class CheckpointError(ValueError):
    """A checkpoint is refused: it is of another run, in use, damaged, or cannot be read or written."""


class Fact(NamedTuple):
    """What a chunk brought."""

    asked: str  # a digest of what was asked of the chunk
    numbers: tuple[float, ...]  # finite; whole numbers stay whole, others keep every bit
    calls: int  # of the simulator


class Checkpoint(AbstractContextManager["Checkpoint"]):
    """An open checkpoint, locked: nobody else can open it until it is closed or its process ends.

    Args:
        path: of the file. A new one is made if there is none, or an empty one.
        identity: what makes the run this run and no other, by name: {"model": "...", "seed": "0"}.

    Raises:
        CheckpointError: the file is not a checkpoint, of another run, in use, damaged, or cannot be read or written.
            What it contains has not been changed.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Mapping[str, str]) -> None:
        self._shown = os.fspath(path)
        self._facts: dict[int, Fact] = {}  # that were found
        self._synced = time.monotonic()
        self._database = self._connected()
        try:
            with self._errors("read"):
                self._lock()
                if self._is_new():
                    self._create(dict(identity))
                else:
                    self._load(dict(identity))
        except BaseException:
            self._database.close()
            raise
        self.chunks = len(self._facts)  # in the file
        _OPEN.add(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_new(self) -> bool:
        """Whether nothing has been written yet, by this run or an earlier one."""
        return self.chunks == 0 and not self._rows("SELECT name FROM snapshots LIMIT 1")

    def find(self, number: int, asked: str) -> Fact | None:
        """What a chunk brought, if that was there when the checkpoint was opened.

        Raises:
            CheckpointError: something else was asked of the chunk.
        """
        fact = self._facts.get(number)
        if fact is not None and fact.asked != asked:
            raise CheckpointError(
                f"checkpoint {self._shown} is of another run: chunk {number} was asked {fact.asked} there, {asked} here"
            )
        return fact

    def add(self, facts: Iterable[tuple[int, Fact]]) -> None:
        """Commits what chunks brought. When it returns, the operating system has it, and a kill loses nothing."""
        rows = [(number, fact.asked, json.dumps(fact.numbers, allow_nan=False), fact.calls) for number, fact in facts]
        with self._transaction():
            for row in rows:
                self._database.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", (*row, _checksum(*row)))
                self._reseal(_checksum(*row))
        self.chunks += len(rows)
        self.sync_if_due()

    def has(self, name: str) -> bool:
        """Whether there is a snapshot of that name."""
        return bool(self._rows("SELECT name FROM snapshots WHERE name = ?", name))

    def snapshot(self, name: str) -> dict[str, NDArray[Any]] | None:
        """The arrays that were last kept under a name, or None."""
        rows = self._rows("SELECT npz FROM snapshots WHERE name = ?", name)
        if not rows:
            return None
        try:
            with np.load(io.BytesIO(rows[0][0]), allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, OSError, zipfile.BadZipFile, MemoryError) as error:
            raise CheckpointError(f"checkpoint {self._shown}: snapshot {name!r} cannot be read: {error}") from error

    def keep(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the snapshot of a name. A kill at any moment leaves the old one or the new one.

        Args:
            name: of the snapshot.
            arrays: by name; of numbers or truth values, or records of them.
        """
        data = _npz(arrays)
        checksum = _checksum(name, data)
        with self._transaction():
            for (old,) in self._rows("SELECT checksum FROM snapshots WHERE name = ?", name):
                self._reseal(-old)
            self._database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (name, data, checksum))
            self._reseal(checksum)
        self.sync_if_due()

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

    def _connected(self) -> sqlite3.Connection:
        path = Path(self._shown)
        with self._errors("opened"):
            if not path.parent.is_dir():
                raise CheckpointError(f"checkpoint {self._shown} cannot be opened: there is no directory {path.parent}")
            if path.exists() and not path.is_file():
                raise CheckpointError(f"checkpoint {self._shown} cannot be opened: it is not an ordinary file")
            if path.exists() and 0 < path.stat().st_size < 512:  # which SQLite takes for an empty one
                raise CheckpointError(f"{self._shown} is not a checkpoint of smoothplan; it is left as it is")
            return sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)

    def _lock(self) -> None:
        """Takes the file for this run alone. Nothing is written."""
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.execute("BEGIN EXCLUSIVE")
        self._database.execute("COMMIT")

    def _is_new(self) -> bool:
        """Whether there are no tables yet; raises where the file is somebody else's."""
        (application,), (version,) = self._rows("PRAGMA application_id"), self._rows("PRAGMA user_version")
        if not self._rows("SELECT 1 FROM sqlite_master LIMIT 1") and application == version == (0,):
            return True
        if application != (APPLICATION,):
            raise CheckpointError(f"{self._shown} is not a checkpoint of smoothplan; it is left as it is")
        if version != (FORMAT,):
            raise CheckpointError(f"checkpoint {self._shown} has format {version[0]}, and this version reads {FORMAT}")
        return False

    def _create(self, identity: dict[str, str]) -> None:
        self._log_ahead()
        with self._transaction():
            for statement in TABLES.split(";"):
                self._database.execute(statement)
            self._database.executemany("INSERT INTO identity VALUES (?, ?)", identity.items())
            self._reseal(sum(_checksum(*item) for item in identity.items()))
            self._database.execute(f"PRAGMA application_id = {APPLICATION}")
            self._database.execute(f"PRAGMA user_version = {FORMAT}")
        self._sync()

    def _load(self, identity: dict[str, str]) -> None:
        """Checks the whole file, and takes in the chunks."""
        problems = [text for (text,) in self._rows("PRAGMA quick_check(1)") if text != "ok"]
        if problems:
            raise self._damaged(problems[0])
        found = dict(self._rows("SELECT name, value FROM identity"))
        total = sum(_checksum(*item) for item in found.items())
        for number, asked, numbers, calls, checksum in self._database.execute("SELECT * FROM chunks"):
            if checksum != _checksum(number, asked, numbers, calls):
                raise self._damaged(f"the checksum of chunk {number} does not fit")
            self._facts[number] = Fact(asked, tuple(json.loads(numbers)), calls)
            total += checksum
        for name, data, checksum in self._database.execute("SELECT * FROM snapshots"):
            if checksum != _checksum(name, data):
                raise self._damaged(f"the checksum of snapshot {name!r} does not fit")
            total += checksum
        if self._rows("SELECT total FROM seal") != [(_wrapped(total),)]:
            raise self._damaged("rows are missing")
        names = [name for name in {**identity, **found} if identity.get(name) != found.get(name)]
        if names:
            shown = [
                f"of another {name}: there {_short(found.get(name))}, here {_short(identity.get(name))}"
                for name in names[:3]
            ]
            raise CheckpointError(f"checkpoint {self._shown} is {'; '.join(shown)}")
        self._log_ahead()

    def _log_ahead(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")  # the log is synced when it is moved
        self._database.execute("PRAGMA wal_autocheckpoint = 0")

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

    def _reseal(self, change: int) -> None:
        ((total,),) = self._rows("SELECT total FROM seal")
        self._database.execute("UPDATE seal SET total = ?", (_wrapped(total + change),))

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._errors("read"):
            return self._database.execute(query, values).fetchall()

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {self._shown} is damaged ({what}): move it away to start again, or restore a copy"
        )

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turns errors of SQLite and of the operating system into errors that name the file."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # it is closed
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise CheckpointError(f"checkpoint {self._shown} is in use by another run") from error
            if code == sqlite3.SQLITE_NOTADB:
                raise CheckpointError(
                    f"{self._shown} is not a checkpoint of smoothplan, or its header is damaged; it is left as it is"
                ) from error
            if code == sqlite3.SQLITE_CORRUPT:
                raise self._damaged(str(error)) from error
            raise CheckpointError(f"checkpoint {self._shown} cannot be {what}: {error}") from error
        except CheckpointError:
            raise
        except (OSError, ValueError, MemoryError) as error:
            raise CheckpointError(f"checkpoint {self._shown} cannot be {what}: {error}") from error


_OPEN: "weakref.WeakSet[Checkpoint]" = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child: nothing may close the connection, for SQLite would remove the log of the parent."""
    for found in list(_OPEN):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(found._database))
        found._database = sqlite3.connect(":memory:")
        found._database.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _checksum(*fields: Any) -> int:
    """A digest of a row, as a whole number that SQLite can hold."""
    digest = blake2b(digest_size=8)
    for field in fields:
        data = field if isinstance(field, bytes) else str(field).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _wrapped(total: int) -> int:
    """A sum modulo 2⁶⁴, as a whole number that SQLite can hold."""
    return (total + 2**63) % 2**64 - 2**63


def _npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays in the format of `numpy.savez_compressed`, compressed in a hurry; no Python objects."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            if np.asarray(array).dtype.hasobject:
                raise TypeError(f"array {name!r} must be of numbers, got dtype {np.asarray(array).dtype}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    return stream.getvalue()


def _short(value: str | None) -> str:
    """A value for an error message, without its middle if it is long."""
    if value is None:
        return "nothing"
    return value if len(value) <= 60 else f"{value[:40]}…{value[-20:]}"
