"""Progress displays: what is measured, what is written, and that a display never breaks the work."""

import io
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from smoothplan.decide.act import show_score
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


@pytest.mark.parametrize(("seconds", "every"), [(3.0, 0.5), (10.0, 0.01), (100.0, 0.5)])
@pytest.mark.parametrize("resumed", [0, 10**12])
def test_speed_does_not_depend_on_resumed_calls_or_the_rate_of_updates(
    seconds: float, resumed: int, every: float
) -> None:
    assert _after(seconds, resumed=resumed, every=every)._speed == pytest.approx(100.0, rel=0.02)


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
    assert _after(10.0, **known)._left == (None if left is None else pytest.approx(left, abs=1.0))


def test_no_time_left_too_soon_or_without_a_speed_or_an_interval() -> None:
    assert _after(1.5, max_calls=5000, epsilon=0.1, max_seconds=9.0)._left is None
    clock = FakeClock()
    display = Display("json", clock=clock, max_calls=10**20, epsilon=0.1)
    assert display._speed is None
    for calls in (100, 200):
        clock.now += 5.0
        display.update(calls, (-np.inf, np.inf))
    assert display._speed == 20.0
    assert display._left is None


# JSON lines


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    with Display("json", max_calls=5000, epsilon=0.05, clock=clock) as display:
        display.note("résumé: 3 calls")
        for second in range(11):
            clock.now = 1000.0 + second
            display.update(100 * second, (0.25, 1.25))
        clock.now += 0.5
        display.end("converged")
    note, *lines = _lines(capsys)
    assert note == {"note": "résumé: 3 calls"}
    assert [line["seconds"] for line in lines] == [*range(11), 10.5]
    assert [line["status"] for line in lines] == ["running"] * 11 + ["converged"]
    assert lines[0] == {
        "seconds": 0.0,
        "calls": 0,
        "calls_per_second": None,
        "interval": [0.25, 1.25],
        "at_most_calls": 5000,
        "seconds_left": None,
        "status": "running",
    }
    assert lines[10] == lines[0] | {"seconds": 10.0, "calls": 1000, "calls_per_second": 100.0, "seconds_left": 40.0}


def test_about_one_line_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    with Display("json", clock=clock) as display:
        for update in range(1000):
            clock.now = 1000.0 + 0.01 * update
            display.update(update, UNKNOWN)
    lines = _lines(capsys)
    times = [line["seconds"] for line in lines]
    assert len(lines) in (11, 12)
    assert all(after - before >= 1.0 - 1e-3 for before, after in pairwise(times[:-1]))
    assert lines[-1]["calls"] == 999


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
    with Display("json", clock=FakeClock(), max_calls=10**400) as display:
        display.expect(10**5000)
        calls: Any = np.int64(5)
        display.update(calls, (-np.inf, np.float64(2.0)))
    first, last = _lines(capsys)
    assert first["interval"] == last["interval"] == [None, 2.0]
    assert first["at_most_calls"] is None
    with Display("json", max_calls=100, clock=FakeClock()) as display:
        display.expect(10**400)
        display.expect(7)
    (line,) = _lines(capsys)
    assert (line["status"], line["interval"], line["at_most_calls"]) == ("ended", None, 7)


# The live line


def test_nothing_of_the_live_line_stays_but_notes(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    note = "[bold]dashboard[/] at http://127.0.0.1:8787/status?" + "x" * 300
    with Display(True, max_calls=10, clock=clock) as display:
        display.expect(10**5000)
        display.note(note)
        display.update(5, (-np.inf, np.inf))
        clock.now += 5.0
        display.update(6, UNKNOWN)
        display.end("converged")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == note  # neither wrapped nor read as markup


class Terminal(io.StringIO):
    """A file that claims to be a terminal."""

    @classmethod
    def shown(cls, monkeypatch: pytest.MonkeyPatch, columns: int) -> "Terminal":
        """One in place of standard error."""
        terminal = cls()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("sys.stderr", terminal)
        return terminal

    def text(self) -> str:
        """What was written to it, without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (200, ["{planning}", "1,000 of at most 5,000 calls, 100/s value in [0.2500, 1.2500]", "40 s left"]),
        (80, ["1,000 calls, 100/s [0.2500, 1.2500]", "40 s left"]),
    ],
)
def test_the_live_line(monkeypatch: pytest.MonkeyPatch, columns: int, parts: list[str]) -> None:
    terminal, clock = Terminal.shown(monkeypatch, columns), FakeClock()
    with Display(True, title="{planning}", max_calls=5000, clock=clock) as display:
        for second in range(11):
            clock.now = 1000.0 + second
            display.update(100 * second, (0.25, 1.25))
        display._bar.refresh()
    assert [part for part in parts if part not in terminal.text()] == []


def test_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal.shown(monkeypatch, 200)
    with Display(True, title="playing Lake{0}-v1", unit="episodes", max_calls=3) as display:
        show_score(display, 2.5, 7)
        display.update(1)
        display._bar.refresh()
    assert "playing Lake{0}-v1" in terminal.text()
    assert "1 of 3 episodes score 2.5 after 7 steps" in terminal.text()


# Which display


@pytest.mark.parametrize("progress", [None, 1, "live", np.array(["json", "json"])])
def test_another_argument_is_refused(progress: Any) -> None:
    with pytest.raises(ValueError, match='progress must be True, False or "json", got'):
        Display(progress)


# Standard error goes away


def _use(display: Display) -> None:
    display.expect(10)
    display.note("a note")
    display.update(5, UNKNOWN)
    display.end("converged")


class Broken(io.StringIO):
    """A terminal that was closed."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def _closed() -> io.StringIO:
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("progress", [True, "json"])
@pytest.mark.parametrize("file", [None, _closed(), Broken()], ids=["none", "closed", "pipe"])
def test_a_display_without_standard_error(monkeypatch: pytest.MonkeyPatch, progress: Any, file: Any) -> None:
    monkeypatch.setattr("sys.stderr", file)
    with Display(progress) as display:
        _use(display)
        display.show("a text")


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(False) as display:
        _use(display)
    assert capsys.readouterr() == ("", "")


def test_a_display_that_loses_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for progress in (True, "json"):
        file = Terminal()
        monkeypatch.setattr("sys.stderr", file)
        with Display(progress) as display:
            _use(display)
            file.close()
            _use(display)
