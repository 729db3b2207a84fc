"""What an experiment is, and how one is run: cells, one row on disk for each, and the findings of all rows."""

import fcntl
import hashlib
import json
import os
import platform
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import FrameType
from typing import IO, Any, Generic, Literal, NamedTuple, Self, TypeVar

import smoothplan.findings.figures as pictures
from smoothplan.findings import Evidence, Findings
from smoothplan.findings.files import write_whole

Scale = Literal["quick", "full"]
"""Minutes, or a night."""

S = TypeVar("S")

Told = Callable[[int, int, Mapping[str, Any]], None]
"""Whoever shows how far an experiment is."""

PACKAGE = Path(__file__).parent.parent

PRESENTATION = ("cli.py", "findings", "report")
"""Parts of the package that have no say in what a row contains."""

CODE = (".py", ".cpp", ".h")

LIBRARIES = ("numpy", "numba", "gymnasium")


class Cell(NamedTuple):
    """One run of an experiment: settings that JSON can hold, and a seed."""

    settings: Mapping[str, Any]
    seed: int


class Row(NamedTuple):
    """What one run gave."""

    settings: Mapping[str, Any]
    seed: int
    result: Mapping[str, Any]  # what JSON can hold
    seconds: float


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """An experiment: which runs there are, how one is made, and what they show together.

    Args:
        name: of the command line.
        title, question: what it is about.
        quick, full: the settings, a frozen dataclass, for minutes and for a night.
        cells: the runs for given settings, in the order in which they are made.
        measure: makes one run.
        evidence: what the rows show. It gets a row for each cell, in their order.
    """

    name: str
    title: str
    question: str
    quick: S
    full: S
    cells: Callable[[S], Iterable[Cell]]
    measure: Callable[[Cell], Mapping[str, Any]]
    evidence: Callable[[S, Sequence[Row]], Evidence]


def run(experiment: Experiment[Any], scale: Scale, out: Path, told: Told | None = None) -> Findings:
    """Runs an experiment, or what is missing of it, and writes rows, findings and figures into `out/NAME`.

    Rows are written as they are made, so that an interrupted experiment goes on where it stopped. Rows that another
    version of the code made are kept in the file and made again. Without Matplotlib there is a warning, and no figure.

    Args:
        experiment: which.
        scale: "quick" or "full".
        out: a folder; it is made if it is missing.
        told: is told before each run how many are done, how many there are, and the settings of the next.

    Raises:
        ValueError: the file of rows has something else in it, or another process is adding to it.
    """
    settings = experiment.quick if scale == "quick" else experiment.full
    folder = Path(out) / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    cells = [Cell(_plain(cell.settings), cell.seed) for cell in experiment.cells(settings)]
    rows = _rows(experiment, cells, folder / "rows.jsonl", told)
    findings = Findings(
        experiment=experiment.name,
        title=experiment.title,
        question=experiment.question,
        command=f"smoothplan experiment {experiment.name} --{scale} --out DIR",
        scale=scale,
        settings=_plain(asdict(settings)),
        version=source_version(experiment.name),
        machine=machine(),
        rows=len(rows),
        seconds=sum(row.seconds for row in rows),
        evidence=experiment.evidence(settings, rows),
    )
    write_whole(folder / "findings.json", f"{findings.to_json()}\n".encode())
    try:
        for figure in findings.evidence.figures:
            pictures.draw(figure, folder)
    except ImportError as error:  # the evidence is complete, and other experiments may be waiting
        warnings.warn(f"no figures of {experiment.name}: {error}", stacklevel=2)
    return findings


def _rows(experiment: Experiment[Any], cells: Sequence[Cell], file: Path, told: Told | None) -> list[Row]:
    """A row for each cell: those on disk, and the missing ones, which are written there."""
    current = source_version(experiment.name)
    rows: list[Row] = []
    with file.open("a", encoding="utf-8") as out, _Interruption() as interruption:
        _lock(out)
        known = _read(file, current)
        for done, cell in enumerate(cells):
            found = known.get(_key(cell))
            if found is None:
                if told is not None:
                    told(done, len(cells), cell.settings)
                started = time.perf_counter()
                result = experiment.measure(cell)
                interruption.check()
                found = Row(cell.settings, cell.seed, _plain(result), round(time.perf_counter() - started, 3))
                fields = {"experiment": experiment.name, **found._asdict(), "version": current, "machine": machine()}
                out.write(json.dumps(fields, allow_nan=False, ensure_ascii=False) + "\n")
                out.flush()
                os.fsync(out.fileno())
            rows.append(found)
    return rows


def _lock(out: IO[str]) -> None:
    """Keeps other processes from adding the same rows to a file, for as long as it is open."""
    try:
        fcntl.flock(out.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{out.name} is in use: another process is adding rows to it") from None
    except OSError:
        return  # a file system without locks


class _Interruption(AbstractContextManager["_Interruption"]):
    """Remembers a signal to stop: a plan that one ends returns what it has, which would make half a row."""

    def __init__(self) -> None:
        self._seen = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in (SIGINT, SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._seen = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt if there was a signal."""
        if self._seen:
            raise KeyboardInterrupt


def _read(file: Path, current: str) -> dict[str, Row]:
    """The rows of this version in a file, by cell. What a kill left of a last line is cut off."""
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(file, whole)
    rows = {}
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            fields = json.loads(line.decode())
            row = Row(*(fields[name] for name in Row._fields))
            wanted = fields["version"] == current
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"{file}, line {number}: not a row of an experiment; move the file away") from None
        if wanted:
            rows[_key(Cell(row.settings, row.seed))] = row
    return rows


def _key(cell: Cell) -> str:
    return json.dumps([cell.settings, cell.seed], sort_keys=True)


def _plain(thing: Any) -> Any:
    """The same as JSON has it: tuples are lists, and NumPy's numbers are numbers."""
    return json.loads(json.dumps(thing, allow_nan=False, default=lambda value: value.tolist()))


@cache
def source_version(experiment: str) -> str:
    """The version of smoothplan, with a digest of all its code that may matter to the rows of an experiment."""
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in CODE):
        parts = path.relative_to(PACKAGE).parts
        own = parts[-1].startswith(("base.", "fits.", f"{experiment}.", f"{experiment}_"))
        other = parts[0] == "experiments" and path.suffix == ".py" and not own
        if parts[0] not in PRESENTATION and not other:
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes())
    return f"{version('smoothplan')}+{digest.hexdigest()}"


@cache
def machine() -> dict[str, str]:
    """What a row was made with, apart from smoothplan."""
    libraries = {}
    for name in LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = "missing"
    system = {"system": platform.system(), "processor": platform.machine(), "processors": str(os.cpu_count())}
    return {"python": platform.python_version(), **libraries, **system}
