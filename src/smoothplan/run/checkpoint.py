"""Checkpoints: one SQLite file with the outcomes of a run's chunks, so that a killed run continues from there.

An outcome depends on nothing but the run and the chunk's number, so a file is a set of rows, and a missing row is
computed again. One table holds all of them: (name, value, checksum). Names are "identity model" for the model of the
run, "chunk 7" for the outcome of a chunk, in JSON, and "snapshot search" for named arrays.

Every addition is committed to the write-ahead log at once, so killing the process loses nothing. SQLite moves the log
into the file from time to time, and waits for the disk only then. It checks its log but not its pages, hence the
checksums: a damaged row is an error, never a wrong result.
"""

import ctypes
import io
import json
import os
import re
import sqlite3
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

APPLICATION, FORMAT = 0x536D506C, 3
"""In the header of the file, where SQLite has room for them: "SmPl", and the version of the table."""


class CheckpointError(ValueError):
    """A checkpoint is refused: it is of another run, in use, damaged, or cannot be read or written."""


class ChunkRow(NamedTuple):
    """The outcome of a chunk."""

    asked: str  # a digest of the chunk's work
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

    Attributes:
        resumed: whether an earlier run has written anything.

    Raises:
        CheckpointError: the file is not a checkpoint, of another run, in use, damaged, or cannot be read or written.
            Its content has not been changed.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Mapping[str, str]) -> None:
        self._path = Path(path)
        self.found: dict[int, ChunkRow] = {}  # when it was opened
        self.resumed = False
        with self._errors():
            if self._path.is_file() and 0 < self._path.stat().st_size < 512:  # SQLite would take it for an empty one
                raise self.refuse("is not a checkpoint of smoothplan")
            self._database = sqlite3.connect(self._path, timeout=0.0, check_same_thread=False)
            # Only `close` ends the connection, in this process: if a forked child did, it would remove our log.
            self._process = os.getpid()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))
        try:
            with self._errors():
                for statement in ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "COMMIT"):  # writes nothing
                    self._database.execute(statement)
                loaded = self._load(identity)
                for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL"):
                    self._database.execute(statement)
                if not loaded:
                    with self._database:
                        self._database.execute("BEGIN")
                        self._database.execute(
                            "CREATE TABLE rows (name TEXT PRIMARY KEY, value BLOB, checksum INTEGER)"
                        )
                        self._database.execute(f"PRAGMA application_id = {APPLICATION}")
                        self._database.execute(f"PRAGMA user_version = {FORMAT}")
                        self._insert("INSERT", {f"identity {name}": text.encode() for name, text in identity.items()})
        except BaseException:
            self._database.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves one file, all of it on the disk, and unlocks it. It may be called again."""
        if os.getpid() == self._process:
            self._database.close()

    def find(self, number: int, asked: str) -> ChunkRow | None:
        """The outcome of a chunk that was in the file when it was opened.

        Raises:
            CheckpointError: something else was asked of the chunk.
        """
        row = self.found.get(number)
        if row is not None and row.asked != asked:
            raise self.refuse(f"is of another run: chunk {number} was asked {row.asked} there, {asked} here")
        return row

    def add(self, rows: Iterable[tuple[int, ChunkRow]]) -> None:
        """Adds outcomes of chunks, all or none. When it returns, the operating system has them."""
        self._insert("INSERT", {f"chunk {n}": json.dumps(row, allow_nan=False).encode() for n, row in rows})

    def snapshot(self, name: str) -> dict[str, NDArray[Any]] | None:
        """The arrays that were last kept under a name, or None."""
        for (value,) in self._rows("SELECT value FROM rows WHERE name = ?", f"snapshot {name}"):
            with np.load(io.BytesIO(value), allow_pickle=False) as arrays:
                return dict(arrays)
        return None

    def keep(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the snapshot of a name by arrays of numbers. A kill at any moment leaves the old or the new one."""
        stream = io.BytesIO()  # as of `numpy.savez_compressed`, at the fastest compression
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for part, array in arrays.items():
                if np.asarray(array).dtype.hasobject:
                    raise TypeError(f"array {part!r} must be of numbers, got dtype {np.asarray(array).dtype}")
                with archive.open(f"{part}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        self._insert("INSERT OR REPLACE", {f"snapshot {name}": stream.getvalue()})

    def refuse(self, reason: str) -> CheckpointError:
        """An error that names the file."""
        return CheckpointError(f"checkpoint {self._path} {reason}")

    def refuse_simulator(self, repeated: str) -> CheckpointError:
        """An error for work that has another outcome than before when it is repeated."""
        return self.refuse(
            f"is of another simulator: {repeated} that is made again has another outcome. The simulator, its data, a "
            "library or the processor has changed, or the simulator does not take all its randomness from rng"
        )

    def _load(self, identity: Mapping[str, str]) -> bool:
        """Checks the whole file, and reads the chunks; False if it is empty."""
        (application,), (version,) = self._rows("PRAGMA application_id"), self._rows("PRAGMA user_version")
        if not self._rows("SELECT 1 FROM sqlite_master LIMIT 1") and application == version == (0,):
            return False
        if application != (APPLICATION,):
            raise self.refuse("is not a checkpoint of smoothplan")
        if version != (FORMAT,):
            raise self.refuse(f"has format {version[0]}, and this version reads {FORMAT}")
        (problem,) = self._rows("PRAGMA quick_check(1)")
        if problem != ("ok",):
            raise self._damaged(problem[0])
        there: dict[str, str] = {}
        for name, value, checksum in self._database.execute("SELECT name, value, checksum FROM rows"):
            # Damage may also change the type of an entry.
            if not (isinstance(name, str) and isinstance(value, bytes)) or checksum != _checksum(name, value):
                raise self._damaged(f"the checksum of {name} does not fit")
            kind, _, key = name.partition(" ")
            if kind == "identity":
                there[key] = value.decode()
            elif kind == "chunk":
                self.found[int(key)] = ChunkRow(*json.loads(value))
            self.resumed |= kind != "identity"
        for name in {**identity, **there}:
            old, new = there.get(name, "nothing"), identity.get(name, "nothing")
            if old != new:
                differ = (place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
                start = max(next(differ, 0) - 10, 0)  # shortly before they differ
                shown = f"there {old[start : start + 60]}, here {new[start : start + 60]}"
                raise self.refuse(f"is of another {name}: {shown}")
        return True

    def _insert(self, how: str, rows: Mapping[str, bytes]) -> None:
        """Writes rows in one transaction."""
        with self._errors(), self._database:
            values = ((name, value, _checksum(name, value)) for name, value in rows.items())
            self._database.executemany(f"{how} INTO rows VALUES (?, ?, ?)", values)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._database.execute(query, values).fetchall()

    def _damaged(self, problem: str) -> CheckpointError:
        return self.refuse(f"is damaged ({problem}): move it away to start again, or restore a copy")

    @contextmanager
    def _errors(self) -> Iterator[None]:
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
                raise self.refuse("is not a checkpoint of smoothplan, or its header is damaged") from error
            if code == sqlite3.SQLITE_CORRUPT:
                raise self._damaged(str(error)) from error
            raise self.refuse(f"cannot be read or written: {error}") from error


def _checksum(name: str, value: bytes) -> int:
    return crc32(value, crc32(name.encode()))
