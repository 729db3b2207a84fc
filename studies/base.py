"""What a study is, and how one is run: cells, one row on disk for each, and the findings of all rows."""

import inspect
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO, Any, Generic, Literal, NamedTuple, TypeVar

from studies.findings import Evidence, Findings

Scale = Literal["quick", "full"]
"""Minutes, or a night."""

S = TypeVar("S")

Progress = Callable[[int, int, Mapping[str, Any]], None]
"""Is called before each run: how many are done, how many there are, and the settings of the next one."""


class Cell(NamedTuple):
    """One run of a study: settings that JSON can hold, and a seed."""

    settings: Mapping[str, Any]
    seed: int


class Row(NamedTuple):
    """What one run gave."""

    settings: Mapping[str, Any]
    seed: int
    result: Mapping[str, Any]  # what JSON can hold
    seconds: float


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows whose settings have the wanted values."""
    return [row for row in rows if all(row.settings.get(name) == value for name, value in wanted.items())]


def varied(rows: Iterable[Row], name: str) -> list[Any]:
    """The different values of a setting, in the order of the rows."""
    return list(dict.fromkeys(row.settings[name] for row in rows))


@dataclass(frozen=True)
class Study(Generic[S]):
    """A study: which runs there are, how one is made, and what they show together.

    Args:
        name: of the command line.
        title, question: what it is about.
        quick, full: the settings, a frozen dataclass, for minutes and for a night.
        cells: the runs for given settings, in the order in which they are made.
        measure: makes one run.
        evidence: what the rows show. It gets a row for each cell, in their order.
        sources: files of this package, beside Python code, that results depend on.
        needs: modules that only this study imports. It is left out of `all` where one is missing.
    """

    name: str
    title: str
    question: str
    quick: S
    full: S
    cells: Callable[[S], Iterable[Cell]]
    measure: Callable[[Cell], Mapping[str, Any]]
    evidence: Callable[[S, Sequence[Row]], Evidence]
    sources: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The modules of `needs` that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]

    def version(self) -> str:
        """The version of smoothplan, and a digest of the module that `measure` is from and of `sources`.

        A function that is in no file, such as one of a notebook, stands for its module.
        """
        texts = [files("studies").joinpath(name).read_text(encoding="utf-8") for name in self.sources]
        module = sys.modules.get(self.measure.__module__ or "")
        in_file = module is not None and getattr(module, "__file__", None)
        code = inspect.getsource(module) if module and in_file else self.measure.__code__.co_code.hex()
        return f"{version('smoothplan')}+{blake2b(chr(0).join([code, *texts]).encode(), digest_size=4).hexdigest()}"


def run(study: Study[Any], scale: Scale, out: Path, progress: Progress | None = None) -> Findings:
    """Runs a study, or what is missing of it, and writes rows and findings into `out/NAME`.

    Rows are written as they are made, so that an interrupted study goes on where it stopped. Rows of another version
    of the measuring code are kept in the file and made again.

    Raises:
        ValueError: the file of rows has something else in it, or another process is adding to it.
    """
    settings = study.quick if scale == "quick" else study.full
    folder = Path(out) / study.name
    folder.mkdir(parents=True, exist_ok=True)
    cells = [Cell(_plain(cell.settings), cell.seed) for cell in study.cells(settings)]
    rows = _rows(study, cells, folder / "rows.jsonl", progress)
    findings = Findings(
        study=study.name,
        title=study.title,
        question=study.question,
        command=f"python -m studies run {study.name} --{scale} --out DIR",
        scale=scale,
        settings=_plain(asdict(settings)),
        version=study.version(),
        machine=machine(),
        rows=len(rows),
        seconds=sum(row.seconds for row in rows),
        evidence=study.evidence(settings, rows),
    )
    write_whole(folder / "findings.json", f"{findings.to_json()}\n")
    return findings


def _rows(study: Study[Any], cells: Sequence[Cell], file: Path, progress: Progress | None) -> list[Row]:
    """A row for each cell: those on disk, and the missing ones, which are written there."""
    current = study.version()
    rows: list[Row] = []
    with file.open("a", encoding="utf-8") as out, _interruption() as check:
        lock(out)
        known = _read(file, current)
        for done, cell in enumerate(cells):
            row = known.get(key(cell))
            if row is None:
                if progress is not None:
                    progress(done, len(cells), cell.settings)
                started = time.perf_counter()
                result = study.measure(cell)
                check()
                row = Row(cell.settings, cell.seed, _plain(result), round(time.perf_counter() - started, 3))
                fields = {"study": study.name, **row._asdict(), "version": current, "machine": machine()}
                out.write(json.dumps(fields, allow_nan=False, ensure_ascii=False) + "\n")
                out.flush()
                os.fsync(out.fileno())
            rows.append(row)
    return rows


def lock(out: IO[str]) -> None:
    """Keeps other processes from adding the same rows to a file while it is open; does nothing without file locks."""
    try:
        import fcntl

        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{out.name} is in use: another process is adding rows to it") from None
    except (ImportError, OSError):
        return


@contextmanager
def _interruption() -> Iterator[Callable[[], None]]:
    """Within, the given function raises KeyboardInterrupt if there was a SIGINT or SIGTERM.

    `plan` catches the interruption and returns what it has so far, which would make half a row.
    """
    seen = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if seen:
            raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(file: Path, current: str) -> dict[str, Row]:
    """The rows of this version in a file, by cell. An incomplete last line, which a kill leaves, is cut off."""
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(file, whole)
    rows = {}
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            fields = json.loads(line.decode())
            row = Row(*(fields[name] for name in Row._fields))
            if fields["version"] == current:
                rows[key(Cell(row.settings, row.seed))] = row
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"{file}, line {number}: not a row of a study; move the file away") from None
    return rows


def key(cell: Cell) -> str:
    """What tells a cell from others."""
    return json.dumps([cell.settings, cell.seed], sort_keys=True)


def _plain(thing: Any) -> Any:
    """The same as JSON has it: tuples are lists, and NumPy's numbers are numbers."""
    return json.loads(json.dumps(thing, allow_nan=False, default=lambda value: value.tolist()))


def write_whole(file: Path, text: str) -> None:
    """Writes a file so that it has the old content or the new one at any time, also after a kill or on a full disk."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@cache
def machine() -> dict[str, str]:
    """What a row was made with, apart from smoothplan."""
    libraries = {}
    for name in ("numpy", "numba", "gymnasium"):
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = "missing"
    system = {"system": platform.system(), "processor": platform.machine(), "processors": str(os.cpu_count())}
    return {"python": platform.python_version(), **libraries, **system}
