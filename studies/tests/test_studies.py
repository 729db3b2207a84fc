"""How studies are run: a row on disk for each run, what is missing is made, findings are written."""

import importlib
import io
import json
import linecache
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import studies
from studies import base
from studies.__main__ import main
from studies.base import Cell, Row, Study, run
from studies.findings import Axis, Claim, Evidence, Figure, Findings, Series, Table
from studies.fits import power_law


@dataclass(frozen=True)
class Squares:
    """Settings of a study that squares numbers."""

    numbers: tuple[int, ...] = (1, 2, 3)


def squared(cell: Cell) -> Mapping[str, Any]:
    """Squares a number. It breaks where the environment says so: no state of this process may be part of a study."""
    if os.environ.get("BREAKS_AT") == str(cell.settings["number"]):
        raise RuntimeError("the simulator broke")
    return {"square": np.int64(cell.settings["number"] ** 2)}


def evidence(settings: Squares, rows: Sequence[Row]) -> Evidence:
    x, y = [r.settings["number"] for r in rows], [r.result["square"] for r in rows]
    figure = Figure("squares", "Squares", "They grow.", Axis("n", log=True), Axis("n²"), [Series("n²", x, y)])
    claim = Claim("They are.", "slope", "2", power_law(x, [[v] for v in y]).slope, (1.9, 2.1), "exact")
    return Evidence([claim], [figure], [Table("t", "Squares", ("n", "n²"), list(zip(x, y, strict=True)))], ["none"])


def cells(settings: Squares) -> Iterator[Cell]:
    return (Cell({"number": number}, seed=7) for number in settings.numbers)


SQUARES = Study("squares", "Squares", "Are they?", Squares(), Squares((1, 2, 3, 4)), cells, squared, evidence)


def made(study: Study[Squares], folder: Path, scale: base.Scale = "quick") -> list[int]:
    """Runs a study; which runs were made for it."""
    told: list[int] = []
    run(study, scale, folder, lambda done, total, settings: told.append(settings["number"]))
    return told


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "squares" / "rows.jsonl").read_text("utf-8").splitlines()]


def test_rows_and_findings_are_written(tmp_path: Path) -> None:
    told: list[tuple[int, int, Any]] = []
    findings = run(SQUARES, "quick", tmp_path / "new", lambda *what: told.append(what))
    assert told == [(0, 3, {"number": 1}), (1, 3, {"number": 2}), (2, 3, {"number": 3})]
    rows = rows_of(tmp_path / "new")
    assert [row["result"] for row in rows] == [{"square": 1}, {"square": 4}, {"square": 9}]
    assert {"study", "settings", "seed", "version", "result", "seconds", "machine"} == set(rows[0])
    assert findings.evidence.claims[0].holds
    assert findings.settings == {"numbers": [1, 2, 3]}
    written = (tmp_path / "new" / "squares" / "findings.json").read_text("utf-8")
    assert Findings.from_json(written) == Findings.from_json(findings.to_json())


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKS_AT", "3")
    with pytest.raises(RuntimeError, match="broke"):
        run(SQUARES, "quick", tmp_path)
    assert len(rows_of(tmp_path)) == 2
    monkeypatch.delenv("BREAKS_AT")
    assert made(SQUARES, tmp_path) == [3]
    assert made(SQUARES, tmp_path, "full") == [4]
    assert made(SQUARES, tmp_path, "full") == []


def test_rows_are_those_of_the_code_that_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code in the module makes rows again, and the old ones stay in the file."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "measuring.py"
    for power, rows in ((2, 3), (2, 3), (3, 6)):
        file.write_text(f"def measure(cell):\n    return {{'square': cell.settings['number'] ** {power}}}\n")
        sys.modules.pop("measuring", None)
        linecache.clearcache()
        study = replace(SQUARES, measure=importlib.import_module("measuring").measure)
        run(replace(study, evidence=lambda settings, rows: Evidence()), "quick", tmp_path)
        assert len(rows_of(tmp_path)) == rows


def test_rows_are_those_of_the_version_and_of_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {SQUARES.version(), replace(SQUARES, sources=("twin.cpp",)).version()}
    monkeypatch.setattr(base, "version", lambda name: "9.9")
    assert len({*versions, SQUARES.version()}) == 3
    assert SQUARES.version().startswith("9.9+")


def test_every_study_is_complete_and_has_the_same_version_in_every_process() -> None:
    """Cells differ from each other, and quick is no more than full."""
    program = "import studies; print(*(studies.load(name).version() for name in studies.NAMES))"
    elsewhere = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert elsewhere.stdout.split() == [studies.load(name).version() for name in studies.NAMES]
    for name in studies.NAMES:
        study = studies.load(name)
        assert study.name == name
        assert study.question.endswith("?")
        quick, full = ([base.key(cell) for cell in study.cells(scale)] for scale in (study.quick, study.full))
        assert len(set(quick)) == len(quick) > 0
        assert len(set(full)) == len(full) >= len(quick)


@pytest.mark.parametrize("line", [None, b"[1, 2]", b'{"number": "\xff"}', b""])
def test_half_a_row_is_made_again_and_what_is_no_row_is_refused(tmp_path: Path, line: bytes | None) -> None:
    run(SQUARES, "quick", tmp_path)
    file = tmp_path / "squares" / "rows.jsonl"
    before = file.read_bytes()[:-20] if line is None else file.read_bytes() + line + b"\n"
    file.write_bytes(before)
    if line is None:
        assert made(SQUARES, tmp_path) == [3]
        assert [row["result"]["square"] for row in rows_of(tmp_path)] == [1, 4, 9]
        return
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 4: not a row"):
        run(SQUARES, "quick", tmp_path)
    assert file.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
def test_two_processes_do_not_make_the_same_rows(tmp_path: Path) -> None:
    file = tmp_path / "squares" / "rows.jsonl"
    file.parent.mkdir()
    with file.open("a", encoding="utf-8") as other:
        base.lock(other)
        with pytest.raises(ValueError, match=r"rows\.jsonl is in use"):
            run(SQUARES, "quick", tmp_path)
    assert run(SQUARES, "quick", tmp_path).rows == 3


def test_a_file_is_written_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    base.write_whole(file, "old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        base.write_whole(file, "new")
    assert file.read_text("utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_result_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        run(replace(SQUARES, measure=lambda cell: {"square": float("nan")}), "quick", tmp_path)
    assert rows_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_row(tmp_path: Path, number: signal.Signals) -> None:
    """A plan that a signal ends returns what it has; that is no row."""

    def measure(cell: Cell) -> Mapping[str, Any]:
        if cell.settings["number"] == 2:
            with suppress(KeyboardInterrupt):  # as `plan` does
                os.kill(os.getpid(), number)
        return {"square": 0}

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        run(replace(SQUARES, measure=measure), "quick", tmp_path)
    assert len(rows_of(tmp_path)) == 1
    assert signal.getsignal(number) == before


# Fits, claims and series


def test_a_slope_and_its_interval() -> None:
    """Of 200 fits to noisy power laws at least 170 intervals have the slope: expected 190, false alarms below 1e-6."""
    rng = np.random.default_rng(0)
    x = [1.0, 2.0, 4.0, 8.0, 16.0]
    covered = 0
    for _ in range(200):
        fit = power_law(x, [3.0 * place**1.5 * np.exp(0.3 * rng.standard_normal(30)) for place in x])
        covered += fit.low <= 1.5 <= fit.high
    assert covered >= 170


@pytest.mark.parametrize(("x", "samples"), [([1.0], [[1.0]]), ([1.0, 2.0], [[1.0]]), ([1.0, 2.0], [[1.0], [0.0]])])
def test_bad_samples_are_refused(x: list[float], samples: list[list[float]]) -> None:
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match=r"samples (and x )?must"):
        power_law(x, samples)


def test_a_claim_says_what_came_out() -> None:
    claim = Claim("", "slope of calls", "3", 2.951, (2.6, 3.2), "", error=0.06)
    assert claim.verdict == (
        "slope of calls: the theory says 3; measured 2.951 ± 0.06, inside the stated interval [2.6, 3.2]"
    )
    above = Claim("", "ratio", "at least 10", 9.0, (10.0, float("inf")), "")
    assert not above.holds
    assert above.verdict.endswith("measured 9, OUTSIDE the stated bound of at least 10")


@pytest.mark.parametrize(("x", "y"), [([1.0, 2.0], [1.0]), ([1.0, 2.0], [1.0, np.nan]), ([1.0, np.nan], [1.0, 2.0])])
def test_a_series_is_checked(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match="of series 'a' must"):
        Series("a", x, y)


# The command line


def squares_only(monkeypatch: pytest.MonkeyPatch, **others: Study[Any]) -> None:
    known = {"squares": SQUARES, **others}
    monkeypatch.setattr(studies, "NAMES", tuple(known))
    monkeypatch.setattr(studies, "load", known.__getitem__)


def test_the_command_line_runs_studies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that fails shows in the exit status; the next study is run all the same."""

    def small(settings: Squares, rows: Sequence[Row]) -> Evidence:
        return Evidence([Claim("Squares are small.", "square", "1", rows[-1].result["square"], (0, 2), "")])

    squares_only(monkeypatch, bad=replace(SQUARES, name="bad", evidence=small))
    assert main(["run", "squares", "--out", str(tmp_path)]) == 0
    assert "holds  slope: the theory says 2; measured 2" in capsys.readouterr().out
    assert main(["run", "bad", "squares", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "FAILS  square: the theory says 1; measured 9, OUTSIDE" in shown
    assert shown.endswith("FAILS: 1 of 2 claims\n")
    assert main(["run", "squares", "all", "--full", "--json", "--out", str(tmp_path)]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["failing"], [found["study"] for found in printed["studies"]]) == (1, ["squares", "bad"])
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").stat().st_size > 0


def test_a_study_whose_modules_are_missing_is_skipped_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    squares_only(monkeypatch, needy=replace(SQUARES, name="needy", needs=("numpy", "nothing_like_it")))
    assert main(["run", "all", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == "studies: needy is skipped: it needs nothing_like_it, not installed\n"
    assert "holds  slope" in captured.out
    assert main(["run", "needy", "--out", str(tmp_path)]) == 2
    assert "the study needy needs nothing_like_it: pip install nothing_like_it" in capsys.readouterr().err


def test_the_command_line_lists_studies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in studies.NAMES)
    assert main(["list", "--json"]) == 0
    assert tuple(json.loads(capsys.readouterr().out)) == studies.NAMES


def test_an_output_without_greek_letters_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["list"]) == 0
    sys.stdout.flush()
    assert rb"\u03b5" in written.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nonsense", "--out", "here"], "unknown study 'nonsense': choose from exponents, "),
        (["run", "constants"], "--out"),
        (["run", "constants", "--out", ""], "--out must name a folder, got ''"),
        (["report", "no-such-folder"], "no findings in no-such-folder"),
        ([], "COMMAND"),
    ],
)
def test_the_command_line_complains_in_a_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: Any = main(arguments)
    except SystemExit as ended:
        status = ended.code
    complaint = capsys.readouterr().err
    assert status == 2
    assert complaint.count("\n") == 1
    assert message in complaint


def test_ctrl_c_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(cell: Cell) -> Mapping[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return {}

    squares_only(monkeypatch, stopped=replace(SQUARES, name="stopped", measure=measure))
    assert main(["run", "stopped", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "studies: error: interrupted; the same command goes on from here\n"
