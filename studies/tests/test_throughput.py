"""The study `throughput`: a small run, and claims on rows that are made up, for no test depends on time."""

import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from smoothplan.theory.backups import LogSumExp
from studies import contest, throughput
from studies.base import Row
from studies.contest import compile_program, contestants, mean_and_error, plug_in_case, second_order_case
from studies.tests.studied import changed, claim, small_run, verdict
from studies.throughput import QUICK, STUDY, Settings, cells, evidence, planned_here

TINY = Settings(
    repeats=1,
    seconds=1e-3,
    worker_seconds=1e-3,
    states=(10, 100),
    actions=(2,),
    epsilons=(0.2,),
    max_calls=10_000,
    cases=("plug-in",),
    pools=("threads",),
)


@pytest.fixture(autouse=True)
def small_contests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "own_twin", partial(compile_program, "twin.cpp", "-O0"))
    monkeypatch.setattr(contest, "LARGE_CHUNK", 1 << 18)


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of every kind, and means that agree; nothing is asked of times."""
    monkeypatch.setattr(throughput, "planned", planned_here)
    rows, _ = small_run(STUDY, TINY, tmp_path)
    assert [r.settings["kind"] for r in rows] == ["contest", "workers", "size", "size", "size", "memory"]
    rates = rows[0].result["rates"]
    assert set(rates) - {"C++ twin"} == {"compiled", "batched, table", "batched, NumPy", "plain Python"}
    assert all(rate > 0.0 for rate in rates.values())
    assert rows[-1].result["status"] == "converged"
    assert rows[-1].result["megabytes"] > 10.0


@pytest.mark.full
def test_processes_are_compared() -> None:
    found = throughput.speed_ups("processes", workers=2, repeats=1, seconds=0.2)
    assert found["speed_ups"][0] > 0.0


@pytest.mark.parametrize("name", ["plug-in", "order 2"])
def test_contestants_estimate_the_same(name: str) -> None:
    """Means are within 5.5 standard errors of the compiled engine's: a false alarm in a million seeds."""
    case = plug_in_case("small", 5, 2, 2, 2, 2) if name == "plug-in" else second_order_case(name, LogSumExp(1.0), 2)
    found = {}
    for who, contestant in contestants(case).items():
        measured = contestant(2_000 if who == "plain Python" else 2, 0)
        assert measured.calls <= measured.sums.samples * case.sample_calls
        found[who] = mean_and_error(measured.sums)
    mean, error = found.pop("compiled")
    assert len(found) >= 2
    for who, (other, its_error) in found.items():
        assert abs(mean - other) < 5.5 * math.hypot(error, its_error), who
        assert its_error < 0.02, who


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
@pytest.mark.parametrize("name", [name for name in contest.CASES if "debiased" in name])
def test_the_twin_debiases_as_the_engine_does(name: str) -> None:
    """The same calls, and means within 5.5 standard errors: a false alarm in a million seeds."""
    case = contest.CASES[name](name)
    field = contestants(case)
    found = [field[who](4, 0) for who in ("compiled", "C++ twin")]
    assert len({measured.calls for measured in found}) == 1  # nothing ends early, so all calls of the forecast are made
    assert found[0].calls == found[0].sums.samples * case.sample_calls
    (mean, error), (other, its_error) = (mean_and_error(measured.sums) for measured in found)
    assert abs(mean - other) < 5.5 * math.hypot(error, its_error)


# Made-up rows

RATES = {"compiled": 190e6, "batched, table": 20e6, "batched, NumPy": 40e6, "C++ twin": 200e6, "plain Python": 1e6}


def result(s: Any, seed: int) -> dict[str, Any]:
    """What an idle machine would show."""
    match s["kind"]:
        case "contest":
            return {"rates": RATES, "sums": {who: [100, 50.0 + seed % 2, 50.0] for who in RATES}}
        case "workers":
            return {"speed_ups": [1.8, 1.9, 1.7], "bare": [1.9, 1.9, 1.9], "processors": 2}
        case "size":
            return {"seconds_per_call": 1e-8 * (1.0 + s["size"] / 1e4)}
    return {"calls": 3e7, "status": "converged", "megabytes": 200.0}


ROWS = [Row(cell.settings, cell.seed, result(cell.settings, cell.seed), 0.0) for cell in cells(QUICK)]

SLOW = {"rates": RATES | {"compiled": 20e6, "batched, NumPy": 3e6}}


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("contest", lambda s, r: SLOW, "compiled over C++ twin"),
        ("contest", lambda s, r: SLOW, "compiled over plain Python"),
        ("contest", lambda s, r: SLOW, "batched, NumPy over plain Python"),
        ("contest", lambda s, r: {"sums": r["sums"] | {"batched, table": [100, 95.0, 94.0]}}, "contestant's mean"),
        ("workers", lambda s, r: {"speed_ups": [1.0, 1.1, 2.0]}, "speed-up by 2 workers, compiled engine"),
        ("workers", lambda s, r: {"speed_ups": [1.0, 1.1, 2.0]}, "speed-up by 2 workers, Python simulator"),
        ("size", lambda s, r: {"seconds_per_call": 1e-10 * s["size"] ** 0.5}, "time per call"),
        ("memory", lambda s, r: {"megabytes": r["megabytes"] + 8e-6 / s["epsilon"] ** 2.5}, "megabytes"),
    ],
)
def test_what_is_wrong_is_noticed(kind: str, change: Callable[[Any, Any], dict[str, Any]], words: str) -> None:
    assert verdict(evidence(QUICK, ROWS), words)
    assert not claim(evidence(QUICK, changed(ROWS, change, kind=kind)), words).holds


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
@pytest.mark.parametrize("name", ["twin.cpp", "chain_twin.cpp"])
def test_the_twins_compile(name: str) -> None:
    """A study goes on without a compiler, but not with one that does not compile a twin."""
    assert compile_program(name, "-O0") is not None
    with pytest.raises(RuntimeError, match=r"does not compile missing\.cpp:\n.*missing\.cpp"):
        compile_program("missing.cpp")


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(s: Any, r: Any) -> dict[str, Any]:
        return {name: {who: each for who, each in r[name].items() if who != "C++ twin"} for name in ("rates", "sums")}

    found = evidence(QUICK, changed(ROWS, without, kind="contest"))
    assert not any("C++" in each.quantity for each in found.claims)
    assert any("no C++ compiler" in note for note in found.notes)
    monkeypatch.setenv("PATH", "")
    assert compile_program("twin.cpp") is None


@pytest.mark.parametrize("field", [{"processors": 1}, {"bare": [1.0, 1.2, 2.0]}])
def test_without_a_second_processor(field: dict[str, Any]) -> None:
    found = evidence(QUICK, changed(ROWS, lambda s, r: field, kind="workers"))
    assert not any("speed-up" in each.quantity for each in found.claims)
    assert any("no room" in note for note in found.notes)
