"""A journal of what the chunks of a run brought, so that a run that was killed goes on from there.

A chunk's outcome depends on nothing but the run and the chunk, so a journal is a set of facts: their order does not
matter, and one that is missing is computed again. A file is lines of text, each a digest and some JSON:

    c9b2f1a06d3e8f57 {"smoothplan checkpoint":1,"planner":"...","seed":"0"}    whose it is
    0f4e7d1c2b3a5968 {"chunk":17,"asked":"9c1e","numbers":[100,0.25],"calls":4096}
    5a6b7c8d9e0f1a2b {"snapshot":"graph","arrays":{"low":{"dtype":"<f8","shape":[3],"data":"..."}}}

Lines that are damaged are left out. Nothing that a file contains is ever executed.
"""

import io
import os
import stat
import sys
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.running import records
from smoothplan.running.locks import lock
from smoothplan.running.records import DamageError, Fact

SYNC_SECONDS = 1.0
"""Between two waits for the disk, at least: what a crash of the whole machine may cost, at most."""


HEADER_LIMIT = 2**20
"""Bytes of a header, at most."""


LINE_LIMIT = records.ARRAYS_LIMIT * 3 // 2
"""Bytes of a line, at most: those of arrays that do not compress, in base64."""

PIECE = 2**20
"""Bytes read at a time."""

ATTEMPTS = 100
"""Times that a file is opened again because another run replaced it in between, at most."""


_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class CheckpointError(ValueError):
    """A checkpoint is refused: it is of another run, in use, or cannot be read or written."""


class CheckpointWarning(UserWarning):
    """Parts of a checkpoint are damaged and were left out."""


class _Span(NamedTuple):
    """Where a line is in the file."""

    offset: int
    length: int


class Journal(AbstractContextManager["Journal"]):
    """A checkpoint that is open, and locked: nobody else can open it until it is closed or its process ends.

    Attributes:
        recovered: the number of facts that were found when it was opened.
    """

    def __init__(self, path: Path, shown: str, file: io.FileIO, identity: dict[str, str]) -> None:
        """Use `Journal.open`."""
        self._path, self._shown, self._file = path, shown, file
        self._facts: dict[int, Fact] = {}  # that were found; of those that are added nobody asks
        self._added = 0
        self._snapshots: dict[str, list[_Span]] = {}  # the last one counts
        self._size = 0  # of what is known to be written; whatever lies beyond was given up
        self._dirty = False
        self._synced = time.monotonic()
        with _reasons(shown, "read"):
            self._load(identity)
            self._spare.unlink(missing_ok=True)  # of a run that was killed
        self.recovered = len(self._facts)
        _OPEN.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str]) -> "Journal":
        """The checkpoint at a path; a new one if there is no file, or an empty one.

        Args:
            path: of the file.
            identity: what makes the run this run and no other, by name: {"model": "...", "seed": "0"}.

        Raises:
            CheckpointError: the file is not a checkpoint, or of another run, or in use, or cannot be read or written.
                It has not been changed.

        Warns:
            CheckpointWarning: parts of the file were damaged and are left out.
        """
        shown = os.fspath(path)
        names = dict(identity)
        if not all(isinstance(entry, str) for item in names.items() for entry in item) or records.TITLE in names:
            raise TypeError(f"identity must map names other than {records.TITLE!r} to strings, got {names!r}")
        if len(records.header_of(names)) > HEADER_LIMIT:
            raise ValueError(f"identity must fit into {HEADER_LIMIT} bytes, got {len(records.header_of(names))}")
        try:
            real = Path(os.path.realpath(shown))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"checkpoint {shown!r} cannot be opened: {error}") from error
        file = _locked(real, shown)
        try:
            return cls(real, shown, file, names)
        except BaseException:
            file.close()
            raise

    @property
    def facts(self) -> int:
        """The number of facts."""
        return len(self._facts) + self._added

    @property
    def is_new(self) -> bool:
        """Whether nothing has been written yet, by this run or an earlier one."""
        return self.facts == 0 and not self._snapshots

    def find(self, chunk: int, asked: str) -> Fact | None:
        """The fact of a chunk, if it was there when the journal was opened.

        Raises:
            CheckpointError: something else was asked of the chunk.
        """
        fact = self._facts.get(chunk)
        if fact is not None and fact.asked != asked:
            raise CheckpointError(
                f"checkpoint {self._shown} is of another run: chunk {chunk} was asked {records.short(fact.asked)} "
                f"there, {records.short(asked)} here"
            )
        return fact

    def add(self, facts: Iterable[tuple[int, Fact]]) -> None:
        """Writes facts of chunks. When it returns, the operating system has them all, and a kill loses none."""
        checked: dict[int, Fact] = {}
        for chunk, given in facts:
            number, fact = records.checked_fact(chunk, *given)
            known = self._facts.get(number) or checked.get(number)
            if known is None:
                checked[number] = fact
            elif records.bits_of(known) != records.bits_of(fact):
                raise CheckpointError(f"checkpoint {self._shown}: chunk {number} brought {known}, and now {fact}")
        self._opened()
        if checked:
            self._append(
                b"".join(records.line_of({"chunk": chunk} | fact._asdict()) for chunk, fact in checked.items())
            )
            self._added += len(checked)
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                self._sync()

    def has(self, name: str) -> bool:
        """Whether there is a snapshot of that name."""
        return name in self._snapshots

    def snapshot(self, name: str) -> dict[str, NDArray[Any]] | None:
        """The arrays that were last kept under a name, or None."""
        file = self._opened()
        if name not in self._snapshots:
            return None
        with _reasons(self._shown, "read"):
            span = self._snapshots[name][-1]
            file.seek(span.offset)
            line = _read(file, span.length)
        try:
            return records.unpacked_arrays(records.content_of(line[:-1])["arrays"])
        except (DamageError, MemoryError) as error:
            raise CheckpointError(f"checkpoint {self._shown}: snapshot {name!r} cannot be read: {error}") from error

    def keep(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the snapshot of a name. A kill at any moment leaves the old one or the new one, and all facts.

        Args:
            name: of the snapshot.
            arrays: by name; of numbers or truth values, or records of them.
        """
        packed = {
            records.checked_name("an array's name", key): records.packed_array(key, value)
            for key, value in arrays.items()
        }
        total = sum(np.asarray(value).nbytes for value in arrays.values())
        if total > records.ARRAYS_LIMIT or len(packed) > records.NUMBERS_LIMIT:
            most = f"arrays must have {records.ARRAYS_LIMIT} bytes at most"
            raise ValueError(f"{most}, got {len(packed)} arrays, {total} bytes")
        line = records.line_of({"snapshot": records.checked_name("name", name), "arrays": packed})
        self._opened()
        with _reasons(self._shown, "written"):
            self._cut()
            self._replace(name, line)
            self._synced = time.monotonic()

    def close(self) -> None:
        """Waits for the disk and gives the file free. It may be called again."""
        if self._file.closed:
            return
        try:
            with _reasons(self._shown, "written"):
                self._cut()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Journal({self._shown!r}, facts={self.facts})"

    @property
    def _spare(self) -> Path:
        """Where a new file is written before it takes the place of the old one."""
        return self._path.with_name(f".{self._path.name}.smoothplan-new")

    def _opened(self) -> io.FileIO:
        if self._file.closed:
            raise CheckpointError(f"checkpoint {self._shown} is closed")
        return self._file

    def _load(self, identity: dict[str, str]) -> None:
        """Reads the whole file, or begins a new one."""
        header = records.header_of(identity)
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            first = reader.read(len(header))
            if len(first) < len(header) and header.startswith(first):  # empty, or torn in its very first line
                self._file.truncate(0)
                self._append(header)
                os.fsync(self._file.fileno())
                _sync_folder(self._path.parent)
                return
            reader.seek(0)
            first = reader.readline(HEADER_LIMIT)
            self._check_header(first, identity, reader)
            damaged, lost = self._read_lines(reader, len(first), identity)
        if damaged:
            warnings.warn(
                f"checkpoint {self._shown}: {_counted(damaged, 'damaged line')} ({_counted(lost, 'byte')}) left out; "
                f"{_counted(len(self._facts), 'chunk')} {'is' if len(self._facts) == 1 else 'are'} kept",
                CheckpointWarning,
                stacklevel=4,
            )

    def _check_header(self, first: bytes, identity: dict[str, str], reader: BinaryIO) -> None:
        """Raises unless the first line says that the file belongs to this run."""
        try:
            if not first.endswith(b"\n"):
                raise DamageError("it is torn")
            content = records.content_of(first[:-1])
            if records.TITLE not in content:
                raise DamageError("it is missing")
            self._check_identity(content, identity)
        except DamageError as error:
            rest = reader.read(PIECE)
            if records.TITLE.encode() not in first and not any(map(records.is_intact, (first + rest).splitlines())):
                raise CheckpointError(f"{self._shown} is not a checkpoint of smoothplan; it is left as it is") from None
            raise CheckpointError(
                f"the first line of checkpoint {self._shown} is damaged ({error}): nobody can tell which run it is of"
            ) from None

    def _check_identity(self, content: dict[str, Any], identity: dict[str, str]) -> None:
        """Raises unless a header is of this run."""
        found = dict(content)
        version = found.pop(records.TITLE)
        if type(version) is not int or not all(isinstance(value, str) for value in found.values()):
            raise DamageError("it makes no sense")
        if version != records.FORMAT:
            raise CheckpointError(
                f"checkpoint {self._shown} has format {records.short(str(version))}, and this version reads "
                f"{records.FORMAT}"
            )
        names = [name for name in {**identity, **found} if identity.get(name) != found.get(name)]
        if names:
            shown = [
                f"of another {name}: there {records.short(found.get(name))}, here {records.short(identity.get(name))}"
                for name in names[:3]
            ]
            raise CheckpointError(f"checkpoint {self._shown} is {'; '.join(shown)}")

    def _read_lines(self, reader: BinaryIO, offset: int, identity: dict[str, str]) -> tuple[int, int]:
        """Takes in all lines from an offset on; how many were damaged, and their bytes. A torn last one is cut off."""
        damaged = lost = 0
        self._size = offset
        for line, length in _lines(reader):
            whole = line.endswith(b"\n")
            try:
                if not whole:
                    raise DamageError("it is torn")
                self._take(records.content_of(line[:-1]), _Span(offset, length), identity)
            except DamageError:
                damaged, lost = damaged + 1, lost + length
            offset += length
            self._size = offset if whole else self._size
        if self._size < offset:
            self._file.truncate(self._size)
        return damaged, lost

    def _take(self, content: dict[str, Any], span: _Span, identity: dict[str, str]) -> None:
        """Takes in what a line says, or raises that it makes no sense."""
        match content:
            case {"chunk": chunk, "asked": asked, "numbers": list(numbers), "calls": calls, **rest} if not rest:
                try:
                    number, fact = records.checked_fact(chunk, asked, tuple(numbers), calls)
                except (TypeError, ValueError, RecursionError) as error:
                    raise DamageError(str(error)) from None
                if records.bits_of(self._facts.setdefault(number, fact)) != records.bits_of(fact):
                    raise CheckpointError(
                        f"checkpoint {self._shown} contradicts itself: chunk {number} brought {self._facts[number]} "
                        f"and {fact}"
                    )
            case {"snapshot": str(name), "arrays": dict(arrays), **rest} if (
                not rest and len(name) <= records.NAME_LIMIT
            ):
                records.unpacked_arrays(arrays)
                self._snapshots.setdefault(name, []).append(span)
            case _ if records.TITLE in content:
                self._check_identity(content, identity)  # two files in one: what follows is another run's
            case _:
                raise DamageError("the line says nothing")

    def _append(self, data: bytes) -> None:
        """Writes at the end, all or nothing."""
        with _reasons(self._shown, "written"):
            self._cut()
            self._dirty = True
            try:
                _write(self._file, data)
            except BaseException:
                with suppress(OSError):  # else before the next line is written
                    self._cut()
                raise
            self._size += len(data)
            self._dirty = False

    def _cut(self) -> None:
        """Cuts off what was written in part and given up."""
        if self._dirty:
            self._file.truncate(self._size)
            self._dirty = False

    def _sync(self) -> None:
        self._synced = time.monotonic()
        with _reasons(self._shown, "written"):
            os.fsync(self._file.fileno())

    def _replace(self, name: str, line: bytes) -> None:
        """Puts a new file in place of the old one: without old snapshots of the name, and with a new one at its end."""
        out = sorted(self._snapshots.get(name, []))
        size = self._size - sum(span.length for span in out)
        snapshots = {
            other: [
                _Span(span.offset - sum(o.length for o in out if o.offset < span.offset), span.length) for span in spans
            ]
            for other, spans in self._snapshots.items()
            if other != name
        } | {name: [_Span(size, len(line))]}
        spare = self._spare
        spare.unlink(missing_ok=True)
        old, new = self._file, _file(os.open(spare, _FLAGS | os.O_CREAT | os.O_EXCL, _mode(self._file)))
        try:
            lock(new)
            starts, ends = (
                [0, *(span.offset + span.length for span in out)],
                [*(span.offset for span in out), self._size],
            )
            for start, end in zip(starts, ends, strict=True):
                _copy(old, start, end, new)
            _write(new, line)
            os.fsync(new.fileno())
            if sys.platform == "win32":  # where a file that is open can neither move nor be replaced
                old.close()
                new.close()
                spare.replace(self._path)
                new = _locked(self._path, self._shown)
            else:
                spare.replace(self._path)
        finally:
            # An interrupt may come just after the new file took its place.
            if _is_at(new, self._path):
                self._file, self._size, self._snapshots = new, size + len(line), snapshots
                old.close()
            else:
                new.close()
                spare.unlink(missing_ok=True)
        _sync_folder(self._path.parent)


_OPEN: "weakref.WeakSet[Journal]" = weakref.WeakSet()


def _forget() -> None:
    """In a child process: a lock lives as long as anyone has the file open, so a child lets go of it."""
    for journal in list(_OPEN):
        journal._file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def _reasons(shown: str, what: str) -> Iterator[None]:
    """Turns errors of the operating system into errors that name the checkpoint."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"checkpoint {shown} cannot be {what}: {error.strerror or error}") from error
    except MemoryError as error:
        raise CheckpointError(f"checkpoint {shown} cannot be {what}: there is not enough memory") from error


def _locked(path: Path, shown: str) -> io.FileIO:
    """The file at a path, made if there is none, and locked."""
    with _reasons(shown, "opened"):
        for _ in range(ATTEMPTS):
            if not path.parent.is_dir():
                raise CheckpointError(f"checkpoint {shown} cannot be opened: there is no directory {path.parent}")
            if path.exists() and not path.is_file():
                raise CheckpointError(f"checkpoint {shown} cannot be opened: it is not an ordinary file")
            file = _file(os.open(path, _FLAGS | os.O_CREAT, 0o666))
            try:
                lock(file)
                if _is_at(file, path):
                    return file
            except BlockingIOError:
                file.close()
                raise CheckpointError(f"checkpoint {shown} is in use by another run") from None
            except BaseException:
                file.close()
                raise
            file.close()  # another run has just put a new file in its place
    raise CheckpointError(f"checkpoint {shown} is in use by another run")


def _is_at(file: io.FileIO, path: Path) -> bool:
    """Whether a path leads to this very file, and an ordinary one."""
    try:
        there, here = path.stat(), os.fstat(file.fileno())
    except (OSError, ValueError):  # there is none, or it is closed
        return False
    return stat.S_ISREG(here.st_mode) and os.path.samestat(there, here)


def _file(descriptor: int) -> io.FileIO:
    return io.FileIO(descriptor, "r+")


def _mode(file: io.FileIO) -> int:
    return stat.S_IMODE(os.fstat(file.fileno()).st_mode)


def _sync_folder(folder: Path) -> None:
    """Waits until a new name in a folder is on the disk, where the system can say so."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write(file: io.FileIO, data: bytes) -> None:
    """Writes all of it, at once if the system can."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _read(file: io.FileIO, length: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < length and (piece := file.read(length - len(pieces))):
        pieces += piece
    return bytes(pieces)


def _copy(source: io.FileIO, start: int, end: int, target: io.FileIO) -> None:
    source.seek(start)
    while start < end:
        piece = _read(source, min(PIECE, end - start))
        if not piece:
            raise OSError("the file has become shorter")
        _write(target, piece)
        start += len(piece)


def _lines(reader: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The lines of a file with their lengths; of a long one that cannot be ours there is only the end."""
    while piece := reader.readline(PIECE):
        pieces, length = [piece], len(piece)
        promising = records.BEGINNING.match(piece) is not None
        while not piece.endswith(b"\n") and (piece := reader.readline(PIECE)):
            length += len(piece)
            promising = promising and length <= LINE_LIMIT
            if promising:
                pieces.append(piece)
            else:
                pieces = [piece[-1:]]
        yield b"".join(pieces), length


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
