"""Progress displays: what is measured, what is written, and that a display never breaks the work."""

import io
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from smoothplan.run.progress import Display

UNKNOWN = (0.0, 1.0)
"""An interval that says nothing."""


@dataclass
class FakeClock:
    """A clock that the test sets."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == ""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in captured.err.splitlines()]


# Speed and time left


def _after(seconds: float, *, resumed: int = 0, every: float = 0.5, **known: Any) -> Display:
    """A run of 100 calls per second, updated at regular times, whose interval does not change."""
    clock = FakeClock()
    display = Display("json", clock=clock, **known)
    for update in range(int(seconds / every) + 1):
        clock.now = 1000.0 + every * update
        display.update(resumed + int(100.0 * every * update), UNKNOWN)
    return display


@pytest.mark.parametrize(
    ("known", "left"),
    [
        ({}, None),
        ({"max_calls": 5000}, 40.0),
        ({"max_calls": 500}, 0.0),  # it is beyond its limit
        # After 1,000 calls half the width is 0.5: a tenth of it takes a hundred times the calls.
        ({"epsilon": 0.05}, 990.0),
        ({"max_seconds": 60.0}, 50.0),
        ({"max_calls": 5000, "epsilon": 0.25}, 30.0),
        ({"max_calls": 5000, "epsilon": 0.05, "max_seconds": 30.0}, 20.0),
        ({"resumed": 9000, "epsilon": 0.25}, 300.0),  # resumed calls narrowed the interval too
    ],
)
def test_time_left_is_the_least_that_is_known(known: dict[str, Any], left: float | None) -> None:
    assert _after(10.0, **known)._task.time_remaining == (None if left is None else pytest.approx(left, abs=1.0))


# JSON lines


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    with Display("json", max_calls=5000, epsilon=0.05, clock=clock) as display:
        display.note("résumé: 3 calls")
        for update in range(1001):
            clock.now = 1000.0 + 0.01 * update
            display.update(update, (0.25, 1.25))
        clock.now += 0.5
        display.end("converged")
    note, *lines = _lines(capsys)
    assert note == {"note": "résumé: 3 calls"}
    assert len(lines) in (11, 12)  # about one a second, and one at the end
    assert all(after["seconds"] - before["seconds"] >= 1.0 - 1e-3 for before, after in pairwise(lines[:-1]))
    assert [line["status"] for line in lines] == ["running"] * (len(lines) - 1) + ["converged"]
    assert lines[0] == {
        "seconds": 0.0,
        "calls": 0,
        "calls_per_second": None,
        "interval": [0.25, 1.25],
        "at_most_calls": 5000,
        "seconds_left": None,
        "status": "running",
    }
    last = {"seconds": 10.5, "calls": 1000, "calls_per_second": pytest.approx(100.0, rel=0.1), "status": "converged"}
    assert lines[-1] == lines[0] | last | {"seconds_left": pytest.approx(40.0, rel=0.1)}


@pytest.mark.parametrize(("error", "status"), [(ValueError("no"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_the_last_line_is_written_whatever_happens(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)), Display("json", clock=FakeClock()) as display:  # noqa: PT012
        display.update(5, UNKNOWN)
        display.update(6, UNKNOWN)
        raise error
    lines = _lines(capsys)
    assert [(line["calls"], line["status"]) for line in lines] == [(5, "running"), (6, status)]


def test_the_smallest_limit_counts_and_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    with Display("json", clock=FakeClock(), max_calls=10**400, epsilon=0.1) as display:
        calls: Any = np.int64(5)
        display.update(calls, (-np.inf, np.float64(2.0)))
        display.expect(7)
        display.expect(10**5000)
    first, last = _lines(capsys)
    assert first["interval"] == last["interval"] == [None, 2.0]
    assert (first["at_most_calls"], last["at_most_calls"], last["status"]) == (None, 7, "ended")


# The live line


def test_nothing_of_the_live_line_stays_but_notes(capsys: pytest.CaptureFixture[str]) -> None:
    note = "[bold]dashboard[/] at http://127.0.0.1:8787/status?" + "x" * 300
    with Display(True, max_calls=10, clock=FakeClock()) as display:
        display.expect(10**5000)
        display.note(note)
        display.update(5, (-np.inf, np.inf))
        display.end("converged")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == note  # neither wrapped nor read as markup


class Terminal(io.StringIO):
    """A file that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("unit", ["calls", "episodes"])
def test_the_live_line(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    terminal, clock = Terminal(), FakeClock()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with Display(True, title="{planning}", unit=unit, max_calls=5000, clock=clock) as display:
        for second in range(11):
            clock.now = 1000.0 + second
            display.update(100 * second, (0.25, 1.25))
        display.show("score 2.5 after 7 steps")
        display._bar.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())  # without control sequences
    count = "1,000 of at most 5,000 calls, 100/s" if unit == "calls" else "1,000 of 5,000 episodes"
    for part in ("{planning}", f"{count}, value in [0.2500, 1.2500] score 2.5 after 7 steps", "0:00:40"):
        assert part in text


# Whatever is wrong


@pytest.mark.parametrize("progress", [None, 1, "live", np.array(["json", "json"])])
def test_another_argument_is_refused(progress: Any) -> None:
    with pytest.raises(ValueError, match='progress must be True, False or "json", got'):
        Display(progress)


class Broken(Terminal):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("progress", [True, "json"])
@pytest.mark.parametrize("file", [None, io.StringIO(), Terminal(), Broken()], ids=["none", "closed", "lost", "pipe"])
def test_a_display_without_standard_error(monkeypatch: pytest.MonkeyPatch, progress: Any, file: Any) -> None:
    """There is none, it is closed before or during the run, or nobody reads it."""
    monkeypatch.setattr("sys.stderr", file)
    if type(file) is io.StringIO:
        file.close()
    with Display(progress) as display:
        for _ in range(2):
            display.note("a note")
            display.update(5, UNKNOWN)
            display.show("a text")
            if type(file) is Terminal:
                file.close()
        display.end("converged")
