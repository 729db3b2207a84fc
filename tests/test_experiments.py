"""How experiments are run: a row on disk for each run, what is missing is made, findings and figures are written."""

import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from smoothplan.cli import main
from smoothplan.experiments import EXPERIMENTS, Cell, Experiment, Row, base, run
from smoothplan.experiments.fits import mean_interval, power_law
from smoothplan.findings import Axis, Claim, Evidence, Figure, Findings, Series, Table
from smoothplan.findings.files import write_whole


@dataclass(frozen=True)
class Squares:
    """Settings of an experiment that squares numbers."""

    numbers: tuple[int, ...] = (1, 2, 3)


@dataclass
class Notebook:
    """Which runs were made, and which one fails."""

    made: list[int] = field(default_factory=list)
    fails_at: int | None = None

    def measure(self, cell: Cell) -> Mapping[str, Any]:
        number = cell.settings["number"]
        if number == self.fails_at:
            raise RuntimeError("the simulator broke")
        self.made.append(number)
        return {"square": np.int64(number**2)}


def squares(notebook: Notebook) -> Experiment[Squares]:
    def cells(settings: Squares) -> Iterator[Cell]:
        return (Cell({"number": number}, seed=7) for number in settings.numbers)

    def evidence(settings: Squares, rows: Sequence[Row]) -> Evidence:
        x, y = [r.settings["number"] for r in rows], [r.result["square"] for r in rows]
        figure = Figure(
            "squares", "Squares", "They grow.", Axis("n", log=True), Axis("n²", log=True), [Series("n²", x, y)]
        )
        claim = Claim(
            "Squares are squares.", "slope", "2", power_law(x, [[v] for v in y]).slope, None, (1.9, 2.1), "exact"
        )
        return Evidence([claim], [figure], [Table("t", "Squares", ("n", "n²"), list(zip(x, y, strict=True)))], ["none"])

    return Experiment(
        "squares", "Squares", "Are they?", Squares(), Squares((1, 2, 3, 4)), cells, notebook.measure, evidence
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "squares" / "rows.jsonl").read_text("utf-8").splitlines()]


def file_of_one_row(file: Path) -> IO[bytes]:
    """The rows of an experiment that was stopped after the first one, to add to."""
    with suppress(RuntimeError):
        run(squares(Notebook(fails_at=2)), "quick", file.parent.parent)
    return file.open("ab")


def test_rows_findings_and_figures_are_written(tmp_path: Path) -> None:
    told: list[tuple[int, int, Any]] = []
    findings = run(squares(Notebook()), "quick", tmp_path / "new", lambda *what: told.append(what))
    assert told == [(0, 3, {"number": 1}), (1, 3, {"number": 2}), (2, 3, {"number": 3})]
    rows = rows_of(tmp_path / "new")
    assert [row["result"] for row in rows] == [{"square": 1}, {"square": 4}, {"square": 9}]
    assert {"experiment", "settings", "seed", "version", "result", "seconds", "machine"} == set(rows[0])
    assert findings.evidence.claims[0].holds
    assert findings.settings == {"numbers": [1, 2, 3]}
    folder = tmp_path / "new" / "squares"
    assert Findings.from_json((folder / "findings.json").read_text("utf-8")) == Findings.from_json(findings.to_json())
    assert (folder / "squares.svg").read_text("utf-8").startswith("<?xml")
    assert (folder / "squares.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    first = Notebook(fails_at=3)
    with pytest.raises(RuntimeError, match="broke"):
        run(squares(first), "quick", tmp_path)
    assert first.made == [1, 2]
    second = Notebook()
    run(squares(second), "quick", tmp_path)
    assert second.made == [3]
    third = Notebook()
    assert run(squares(third), "full", tmp_path).rows == 4
    assert third.made == [4]
    assert len(rows_of(tmp_path)) == 4


def test_half_a_line_is_cut_off(tmp_path: Path) -> None:
    run(squares(Notebook()), "quick", tmp_path)
    file = tmp_path / "squares" / "rows.jsonl"
    file.write_text(file.read_text("utf-8")[:-20], encoding="utf-8")
    again = Notebook()
    run(squares(again), "quick", tmp_path)
    assert again.made == [3]
    assert [row["result"]["square"] for row in rows_of(tmp_path)] == [1, 4, 9]


def test_rows_of_other_code_are_made_again_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(squares(Notebook()), "quick", tmp_path)
    monkeypatch.setattr(base, "source_version", lambda name: "0.0.1+other")
    again = Notebook()
    run(squares(again), "quick", tmp_path)
    assert again.made == [1, 2, 3]
    assert len(rows_of(tmp_path)) == 6


@pytest.mark.parametrize("line", [b"[1, 2]", b"\0", b'{"number": "\xff"}', b"[" * 100_000, b""])
def test_what_is_no_row_is_refused(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "squares" / "rows.jsonl"
    with file_of_one_row(file) as rows:
        rows.write(line + b"\n")
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: not a row"):
        run(squares(Notebook()), "quick", tmp_path)
    assert file.read_bytes() == before


def test_a_bad_byte_inside_a_row_is_not_mended(tmp_path: Path) -> None:
    file = tmp_path / "squares" / "rows.jsonl"
    file_of_one_row(file).close()
    file.write_bytes(file.read_bytes().replace(b"squares", b"squ\xffres", 1))
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1: not a row"):
        run(squares(Notebook()), "quick", tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
def test_two_processes_do_not_make_the_same_rows(tmp_path: Path) -> None:
    file = tmp_path / "squares" / "rows.jsonl"
    file.parent.mkdir()
    with file.open("a", encoding="utf-8") as other:
        base._lock(other)
        with pytest.raises(ValueError, match=r"rows\.jsonl is in use"):
            run(squares(Notebook()), "quick", tmp_path)
    assert run(squares(Notebook()), "quick", tmp_path).rows == 3


def test_without_matplotlib_only_the_figures_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.warns(
        UserWarning, match=r"no figures of squares: figures need Matplotlib: install smoothplan\[plots\]"
    ):
        findings = run(squares(Notebook()), "quick", tmp_path)
    assert findings.rows == 3
    assert {file.name for file in (tmp_path / "squares").iterdir()} == {"rows.jsonl", "findings.json"}


def test_a_file_is_written_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    write_whole(file, b"old")
    link.symlink_to(file)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*file"):
        write_whole(file, b"newer")
    assert file.read_bytes() == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_a_result_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    experiment = squares(Notebook())
    broken = Experiment(**{**vars(experiment), "measure": lambda cell: {"square": float("nan")}})
    with pytest.raises(ValueError, match="JSON"):
        run(broken, "quick", tmp_path)
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
    experiment = squares(Notebook())
    with pytest.raises(KeyboardInterrupt):
        run(Experiment(**{**vars(experiment), "measure": measure}), "quick", tmp_path)
    assert len(rows_of(tmp_path)) == 1
    assert signal.getsignal(number) == before


def test_the_version_is_that_of_the_code() -> None:
    version = base.source_version("constants")
    assert len(version.split("+")[1]) == 8
    assert version != base.source_version("nothing of that name")


def test_a_slope_and_its_interval() -> None:
    """Of 200 fits to noisy power laws at least 170 intervals have the slope: expected 190, false alarms below 1e-6."""
    rng = np.random.default_rng(0)
    x = [1.0, 2.0, 4.0, 8.0, 16.0]
    covered = 0
    for _ in range(200):
        fit = power_law(x, [3.0 * place**1.5 * np.exp(0.3 * rng.standard_normal(30)) for place in x])
        covered += fit.low <= 1.5 <= fit.high
    assert covered >= 170
    assert fit.at([1.0])[0] == pytest.approx(3.0, rel=0.3)


def test_a_planted_wrong_slope_is_seen() -> None:
    fit = power_law([1.0, 2.0, 4.0], [[1.0, 1.1], [8.0, 8.8], [64.0, 70.0]])
    assert not Claim("", "slope", "2", fit.slope, fit.error, (1.9, 2.1), "").holds


@pytest.mark.parametrize(
    ("x", "samples"), [([1.0], [[1.0]]), ([1.0, 2.0], [[1.0]]), ([1.0, 2.0], [[1.0], []]), ([1.0, 2.0], [[1.0], [0.0]])]
)
def test_bad_samples_are_refused(x: list[float], samples: list[list[float]]) -> None:
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match="samples must be"):
        power_law(x, samples)


def test_the_mean_and_its_interval() -> None:
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, low) == pytest.approx((2.0, 2.0 - 1.96 / np.sqrt(3.0)))
    assert high - mean == pytest.approx(mean - low)
    assert mean_interval([4.0]) == (4.0, 4.0, 4.0)


def test_a_claim_says_what_came_out() -> None:
    claim = Claim("", "slope of calls", "3", 2.951, 0.06, (2.6, 3.2), "")
    assert claim.verdict == (
        "slope of calls: the theory says 3; measured 2.951 ± 0.06, inside the stated interval [2.6, 3.2]"
    )
    above = Claim("", "ratio", "at least 10", 9.0, None, (10.0, float("inf")), "")
    assert not above.holds
    assert above.verdict.endswith("measured 9, OUTSIDE the stated bound of at least 10")


@pytest.mark.parametrize("values", [[1.0], [1.0, float("nan")]])
def test_a_series_is_checked(values: list[float]) -> None:
    with pytest.raises(ValueError, match="of series 'a' must"):
        Series("a", [1.0, 2.0], values)


def test_places_of_a_series_are_checked() -> None:
    with pytest.raises(ValueError, match="x of series 'a' must be names or finite numbers"):
        Series("a", [1.0, float("nan")], [1.0, 2.0])


def test_other_files_are_no_findings() -> None:
    for text in ("{}", "[1]", '{"evidence": {}}', "nonsense", "NaN"):
        with pytest.raises(ValueError):  # noqa: PT011 - JSON has its own words
            Findings.from_json(text)


def test_the_command_line_runs_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "constants", "--quick", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "holds" in shown
    assert "FAILS" not in shown
    assert main(["experiment", "constants", "--json", "--out", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["failing"] == 0
    assert printed["experiments"][0]["experiment"] == "constants"


def test_a_claim_that_fails_shows_in_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def evidence(settings: Squares, rows: Sequence[Row]) -> Evidence:
        return Evidence([Claim("Squares are small.", "square", "1", rows[-1].result["square"], None, (0, 2), "")])

    good = squares(Notebook())
    monkeypatch.setattr("smoothplan.findings.figures.draw", lambda figure, folder: None)
    monkeypatch.setitem(EXPERIMENTS, "good", good)
    monkeypatch.setitem(EXPERIMENTS, "bad", Experiment(**{**vars(good), "name": "bad", "evidence": evidence}))
    assert main(["experiment", "bad", "good", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "FAILS  square: the theory says 1; measured 9, OUTSIDE" in shown
    assert shown.endswith("FAILS: 1 of 2 claims\n")
    assert (tmp_path / "bad" / "findings.json").exists()
    assert (tmp_path / "squares" / "findings.json").exists()  # the next one was run all the same
    assert main(["experiment", "bad", "good", "--json", "--out", str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)["failing"] == 1
    assert main(["experiment", "good", "--out", str(tmp_path)]) == 0


def test_all_may_stand_beside_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smoothplan.experiments.EXPERIMENTS", {"squares": squares(Notebook())})
    assert main(["experiment", "squares", "all", "squares", "--json", "--out", str(tmp_path)]) == 0
    assert len(json.loads(capsys.readouterr().out)["experiments"]) == 1


def test_an_output_that_knows_no_greek_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["experiment"]) == 0
    assert rb"\u03b5" in written.getvalue()


def test_the_command_line_lists_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS)
    assert main(["experiment", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiments"].keys() == EXPERIMENTS.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense", "--out", "here"], "unknown experiment 'nonsense'"),
        (["all", "nonsense", "--out", "here"], "unknown experiment 'nonsense'"),
        (["constants"], "--out DIR is needed"),
        (["constants", "--out", ""], "--out DIR is needed"),
    ],
)
def test_the_command_line_complains_in_a_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint


def test_every_experiment_is_complete() -> None:
    """Cells differ from each other, the same settings give the same cells, and quick is no more than full."""
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.question.endswith("?")
        quick = [base._key(cell) for cell in experiment.cells(experiment.quick)]
        full = [base._key(cell) for cell in experiment.cells(experiment.full)]
        assert len(set(quick)) == len(quick) > 0
        assert len(set(full)) == len(full) >= len(quick)
