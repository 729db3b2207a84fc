"""The experiment `throughput`: a small run, and claims on rows that are made up, for no test depends on time."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smoothplan.engines.base import Sums
from smoothplan.experiments import Row, run, throughput, throughput_contest
from smoothplan.experiments.throughput import EXPERIMENT, QUICK, Settings, cells, evidence
from smoothplan.experiments.throughput_contest import Plain, mean_and_error, own_twin, plug_in_case, workshop
from smoothplan.experiments.throughput_growth import planned_here
from smoothplan.findings import Claim, Evidence
from smoothplan.models.base import Oracle
from smoothplan.planners.engines import engine_for

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


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of every kind, and means that agree; nothing is asked of times. The twin has no need to be fast here."""
    monkeypatch.setattr(throughput_contest, "FLAGS", ("-O0", "-std=c++17"))
    monkeypatch.setattr("smoothplan.findings.figures.draw", lambda figure, folder: [])
    monkeypatch.setattr(throughput, "planned", planned_here)
    own_twin.cache_clear()
    findings = run(replace(EXPERIMENT, quick=TINY), "quick", tmp_path)
    own_twin.cache_clear()
    rows = [json.loads(line) for line in (tmp_path / "throughput" / "rows.jsonl").read_text("utf-8").splitlines()]
    assert [r["settings"]["kind"] for r in rows] == ["contest", "workers", "size", "size", "size", "memory"]
    rates = rows[0]["result"]["rates"]
    assert set(rates) - {"C++ twin"} == {"compiled", "batched, table", "batched, NumPy", "plain Python"}
    assert all(rate > 0.0 for rate in rates.values())
    assert rows[-1]["result"]["status"] == "converged"
    assert rows[-1]["result"]["megabytes"] > 10.0
    assert claim(findings.evidence, "contestant's mean").measured >= 0.0


def test_plain_python_is_the_recursion() -> None:
    """Its mean is that of the compiled engine, at 5.5 standard errors: a false alarm in a million seeds."""
    case = plug_in_case(states=5, actions=2, branching=2, samples=2, depth=2)
    recursion, rng = Plain(case), random.Random(0)
    child = case.schedule.root.reference
    assert child is not None
    samples = [recursion.one_return(child, 0, 0, rng) for _ in range(2_000)]
    assert recursion.calls == 2_000 * case.sample_calls
    engine = engine_for("compiled", case.schedule, case.backup, case.model)
    theirs, error = mean_and_error(engine.returns(Oracle(case.model, 0), 0, 0, 20_000))
    own, own_error = mean_and_error(Sums(len(samples), sum(samples), sum(each**2 for each in samples)))
    assert abs(own - theirs) < 5.5 * (own_error**2 + error**2) ** 0.5
    assert own_error < 0.01


# Made-up rows

RATES = {"compiled": 160e6, "batched, table": 20e6, "batched, NumPy": 40e6, "C++ twin": 200e6, "plain Python": 1e6}


def result(s: dict[str, Any], seed: int) -> dict[str, Any]:
    """What an idle machine would show."""
    match s["kind"]:
        case "contest":
            return {"rates": dict(RATES), "sums": {who: [100, 50.0 + seed % 2, 50.0] for who in RATES}}
        case "workers":
            return {"speed_ups": [1.8, 1.9, 1.7], "bare": [1.9, 1.9, 1.9], "processors": 2}
        case "size":
            return {"seconds_per_call": 1e-8 * (1.0 + s["size"] / 1e4)}
    return {"forecast": 1 / s["epsilon"] ** 3, "calls": 3e7, "seconds": 1.0, "status": "converged", "megabytes": 200.0}


def made_up(change: Callable[[dict[str, Any], dict[str, Any]], None] | None = None) -> list[Row]:
    rows = []
    for cell in cells(QUICK):
        settings = dict(cell.settings)
        found = result(settings, cell.seed)
        if change is not None:
            change(settings, found)
        rows.append(Row(settings, cell.seed, found, 0.0))
    return rows


def claim(found: Evidence, words: str) -> Claim:
    (one,) = [each for each in found.claims if words in each.quantity]
    return one


def slow(s: dict[str, Any], r: dict[str, Any]) -> None:
    if s["kind"] == "contest":
        r["rates"] |= {"compiled": 20e6, "batched, NumPy": 3e6}


def biased(s: dict[str, Any], r: dict[str, Any]) -> None:
    if s["kind"] == "contest":
        r["sums"]["batched, table"] = [100, 95.0, 94.0]


def alone(s: dict[str, Any], r: dict[str, Any]) -> None:
    if s["kind"] == "workers":
        r["speed_ups"] = [1.0, 1.1, 2.0]


def slower_with_states(s: dict[str, Any], r: dict[str, Any]) -> None:
    if s["kind"] == "size":
        r["seconds_per_call"] = 1e-10 * s["size"] ** 0.5


def hoarding(s: dict[str, Any], r: dict[str, Any]) -> None:
    if s["kind"] == "memory":
        r["megabytes"] += 8e-6 / s["epsilon"] ** 2.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (slow, "compiled over C++ twin"),
        (slow, "compiled over plain Python"),
        (slow, "batched, NumPy over plain Python"),
        (biased, "contestant's mean"),
        (alone, "speed-up by 2 workers, compiled engine"),
        (alone, "speed-up by 2 workers, Python simulator"),
        (slower_with_states, "time per call"),
        (hoarding, "megabytes"),
    ],
)
def test_what_is_wrong_is_noticed(change: Callable[[dict[str, Any], dict[str, Any]], None], words: str) -> None:
    assert claim(evidence(QUICK, made_up()), words).holds
    assert not claim(evidence(QUICK, made_up(change)), words).holds


def test_without_a_compiler() -> None:
    def change(s: dict[str, Any], r: dict[str, Any]) -> None:
        if s["kind"] == "contest":
            for numbers in (r["rates"], r["sums"]):
                del numbers["C++ twin"]

    found = evidence(QUICK, made_up(change))
    assert not any("C++" in each.quantity for each in found.claims)
    assert any("no C++ compiler" in note for note in found.notes)
    assert any("no C++ compiler" in str(row) for row in found.tables[0].rows)


@pytest.mark.parametrize("field", [{"processors": 1}, {"bare": [1.0, 1.2, 2.0]}])
def test_without_a_second_processor(field: dict[str, Any]) -> None:
    def change(s: dict[str, Any], r: dict[str, Any]) -> None:
        if s["kind"] == "workers":
            r |= field

    found = evidence(QUICK, made_up(change))
    assert not any("speed-up" in each.quantity for each in found.claims)
    assert any("no room" in note for note in found.notes)


def test_no_compiler_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_contest, "COMPILERS", ("no-such-compiler",))
    assert throughput_contest.compile_program(throughput_contest.SOURCE, workshop()) is None
