"""Throughput: calls per second of the engines beside a twin in C++, workers, and growth with S, K and 1/ε."""

import hashlib
import json
import logging
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.run.chunks import Sums
from studies.base import Cell, Row, Study, where
from studies.contest import (
    BATCHED,
    CASES,
    COMPILED,
    PLAIN,
    TWIN,
    Contestant,
    add,
    calibrated,
    compiled_contestant,
    field_of,
    mean_and_error,
    plug_in_case,
)
from studies.findings import Axis, Claim, Evidence, Figure, Series, Table

POOLS = {"threads": "compiled engine, threads", "processes": "Python simulator, processes"}


@dataclass(frozen=True)
class Settings:
    """Repeats of everything; about how long each measurement lasts; and the sizes."""

    repeats: int
    seconds: float
    worker_seconds: float  # several times the half second that a process gets to do at a time
    states: tuple[int, ...]
    actions: tuple[int, ...]
    epsilons: tuple[float, ...]
    max_calls: int
    cases: tuple[str, ...] = tuple(CASES)
    pools: tuple[str, ...] = tuple(POOLS)
    workers: int = 2
    seed: int = 0


QUICK = Settings(
    repeats=5,
    seconds=0.1,
    worker_seconds=3.0,
    states=(10, 100, 1_000, 10_000, 100_000),
    actions=(2, 4, 8, 16),
    epsilons=(0.1, 0.02, 0.005, 0.001),
    max_calls=30_000_000,
)
FULL = Settings(
    repeats=25,
    seconds=1.0,
    worker_seconds=20.0,
    states=(10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000),
    actions=(2, 3, 4, 6, 8, 12, 16, 32),
    epsilons=(0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 1e-3, 3e-4, 1e-4),
    max_calls=10_000_000_000,
)


def cells(settings: Settings) -> Iterator[Cell]:
    """Repeats of all contestants; workers; sizes, interleaved; and one process for each ε."""
    for case in settings.cases:
        for repeat in range(settings.repeats):
            yield Cell({"kind": "contest", "case": case, "seconds": settings.seconds}, settings.seed + 1 + repeat)
    for pool in settings.pools:
        options = {"workers": settings.workers, "repeats": settings.repeats, "seconds": settings.worker_seconds}
        yield Cell({"kind": "workers", "pool": pool, **options}, settings.seed)
    for repeat in range(settings.repeats):
        for what, sizes in (("states", settings.states), ("actions", settings.actions)):
            for size in sizes:
                fields = {"kind": "size", "what": what, "size": size, "seconds": settings.seconds}
                yield Cell(fields, settings.seed + 1 + repeat)
    for epsilon in settings.epsilons:
        yield Cell({"kind": "memory", "epsilon": epsilon, "max_calls": settings.max_calls}, settings.seed)


def measure(cell: Cell) -> Mapping[str, Any]:
    """One measurement. Rows hold times, so that no two runs give the same ones."""
    s = cell.settings
    match s["kind"]:
        case "contest":
            found = {who: run(chunks, cell.seed) for who, (run, chunks) in field_of(s["case"], s["seconds"]).items()}
            rates = {who: each.calls / each.seconds for who, each in found.items()}
            return {"rates": rates, "sums": {who: each.sums.write() for who, each in found.items()}}
        case "workers":
            return speed_ups(s["pool"], s["workers"], s["repeats"], s["seconds"])
        case "size":
            contestant, chunks = _sized(s["what"], s["size"], s["seconds"])
            measured = contestant(chunks, cell.seed)
            return {"seconds_per_call": measured.seconds / measured.calls}
    return planned(s["epsilon"], s["max_calls"])


# Workers


def shared_case(pool: str) -> tuple[sp.GenerativeModel, Any]:
    """A model and a state: a table for the compiled engine, on threads; or a simulator in Python, in processes."""
    if pool == "threads":
        return sp.models.garnet(1000, actions=5, branching=4, discount=0.2, seed=1, reward_kind="bernoulli"), 0

    def walk(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
        """A simulator in plain Python, a few microseconds a call."""
        place = min(max(float(state[0]) + (0.3 if action else -0.3) + 0.1 * rng.standard_normal(), -1.0), 1.0)
        return np.array([place]), 0.5 * (1.0 + place), False

    declared: dict[str, Any] = {"actions": 5, "discount": 0.2, "reward_range": (0, 1), "terminates": False}
    return sp.VectorModel.from_scalar(walk, **declared, initial_state=[0.2]), np.array([0.2])


@contextmanager
def started(pool: str, count: int) -> Iterator[Any]:
    """What `plan` takes for workers: a number of threads; or a Dask client, whose processes are running already."""
    if pool == "threads":
        yield count
        return
    from distributed import Client, LocalCluster

    options: dict[str, Any] = {"n_workers": count, "threads_per_worker": 1, "silence_logs": logging.CRITICAL}
    with LocalCluster(dashboard_address="127.0.0.1:0", **options) as cluster, Client(cluster) as client:
        yield client


def seconds_of(pool: str, workers: Any, max_calls: int) -> float:
    """The time of a plan that ends at a number of calls, far from its accuracy."""
    model, state = shared_case(pool)
    planner = sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=1e-4)
    return sp.plan(planner, model, state, max_calls=max_calls, workers=workers).seconds


def calls_for(pool: str, workers: Any, seconds: float) -> int:
    """The calls that take about that long. Starts the workers and compiles on the way."""
    calls = 10_000
    seconds_of(pool, workers, calls)
    # Long enough for what a run costs at its start not to matter.
    while (found := seconds_of(pool, workers, calls)) < 0.5 * seconds:
        calls *= 2
    return max(1, round(calls * seconds / found))


def speed_ups(pool: str, workers: int, repeats: int, seconds: float) -> dict[str, Any]:
    """How much faster several workers are than one, beside several bare threads: what the machine had to give."""
    with ExitStack() as stack:
        alone, together = (stack.enter_context(started(pool, count)) for count in (1, workers))
        calls = calls_for(pool, alone, seconds)
        seconds_of(pool, together, calls)  # starts them
        ratios, bare = [], []
        for _ in range(repeats):
            ratios.append(seconds_of(pool, alone, calls) / seconds_of(pool, together, calls))
            bare.append(bare_seconds(1) / bare_seconds(workers))
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"speed_ups": ratios, "bare": bare, "processors": usable}


def bare_seconds(workers: int) -> float:
    """The time that threads take for digests, about 0.4 s for one: they need no lock and little memory."""
    data = [bytes(30_000_000)] * max(workers, 8)
    begun = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(lambda each: hashlib.blake2b(each).digest(), data))
    return time.perf_counter() - begun


# Sizes of a model, and memory


@cache
def _sized(what: str, size: int, seconds: float) -> tuple[Contestant, int]:
    """The compiled engine where a model has that many states or actions."""
    # Within three steps of the root there are up to 16,000 states, so that large tables are really used.
    sizes = {"states": 1000, "actions": 2, "branching": 16, "samples": 8, "depth": 3} | {what: size}
    sizes["branching"] = min(sizes["branching"], sizes["states"])
    contestant = compiled_contestant(plug_in_case(**sizes))  # type: ignore[arg-type]
    return contestant, calibrated(contestant, seconds)


def peak_megabytes() -> float:
    """The most memory that this process has had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts what the parent had when it started this process
        peaks = [line.split()[1] for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM")]
        if peaks:
            return int(peaks[0]) * 1024 / 1e6
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def planned(epsilon: float, max_calls: int) -> dict[str, Any]:
    """Plans to an accuracy in a process of its own: calls, time, and the peak of its memory."""
    program = f"import json; from {__name__} import planned_here as p; print(json.dumps(p({epsilon!r}, {max_calls!r})))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def planned_here(epsilon: float, max_calls: int) -> dict[str, Any]:
    """The same in this process, whatever else it holds."""
    model, backup = sp.models.garnet(50, 2, 4, 0.2, 1, reward_kind="bernoulli"), sp.LogSumExp(1.0)
    sp.plan(sp.SecondOrderSmoothCruiser(backup, epsilon=0.2), model, 0, seed=0)  # compiles
    planner = sp.SecondOrderSmoothCruiser(backup, epsilon=epsilon)
    result = sp.plan(planner, model, 0, seed=0, max_calls=max_calls)
    return {"calls": result.calls, "status": result.status, "megabytes": peak_megabytes()}


# What it shows


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Ratios within repeats, and their medians."""
    contest, workers, sizes, memory = (where(rows, kind=kind) for kind in ("contest", "workers", "size", "memory"))
    rates = {case: _rates(where(contest, case=case)) for case in settings.cases}
    notes = [
        "Rows hold times, so they are not the same twice. Ratios are within one run, of repeats that are interleaved; "
        "medians are compared. Processor time is taken, but for workers. The stated bounds are wide, for machines are "
        "shared, and their caches and clocks differ.",
    ]
    if not any(TWIN in who for who in rates.values()):
        notes.append("There is no C++ compiler here, so nothing is compared with the twin.")
    if not all(_room(settings, r) for r in workers):
        notes.append(
            f"There was no room for {settings.workers} workers: bare threads, which need nothing but processors, did "
            "not gain 1.5 either. Nothing is claimed of what workers bring where that is so."
        )
    return Evidence(
        claims=[
            *_speed_claims(rates),
            *_agreement_claims(contest),
            *_worker_claims(settings, workers),
            _flat_claim(settings, sizes),
            _memory_claim(settings, memory),
        ],
        figures=[_engine_figure(rates), *_size_figures(settings, sizes), _memory_figure(memory)],
        tables=[_worker_table(settings, workers)],
        notes=notes,
    )


Rates = Mapping[str, Sequence[float]]
"""Calls per second of each contestant, one for each repeat."""


def _rates(rows: Sequence[Row]) -> dict[str, list[float]]:
    return {who: [r.result["rates"][who] for r in rows] for who in rows[0].result["rates"]} if rows else {}


def _spread(numbers: Sequence[float]) -> float:
    """Half the spread of the middle half."""
    if len(numbers) < 2:
        return 0.0
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return (high - low) / 2.0


def _speed_claims(rates: Mapping[str, Rates]) -> Iterator[Claim]:
    # Bounds are short of what was measured, for machines are shared, and their caches and clocks differ.
    wanted = (
        (
            COMPILED,
            TWIN,
            0.85,
            "compiled engine is fast beside a",
            "between 0.9 and 1 in every case",
        ),
        (COMPILED, PLAIN, 30.0, "compiled engine is fast beside", "160 to 1"),
        (BATCHED, PLAIN, 4.0, "batched engine with NumPy is fast beside", "40 to 1, and simulators differ"),
    )
    for one, other, least, words, reason in wanted:
        ratios = {
            case: [a / b for a, b in zip(who[one], who[other], strict=True)]
            for case, who in rates.items()
            if one in who and other in who
        }
        if ratios:
            case = min(ratios, key=lambda name: statistics.median(ratios[name]))
            yield Claim(
                statement=f"The {words} {other}.",
                quantity=f"calls per second, {one} over {other}, the least of the cases ({case})",
                theory=f"at least {least:g}",
                measured=statistics.median(ratios[case]),
                error=_spread(ratios[case]),
                stated=(least, math.inf),
                reason=f"an earlier measurement gave {reason}",
            )


def _agreement_claims(rows: Sequence[Row]) -> Iterator[Claim]:
    distances = []
    for case in {r.settings["case"] for r in rows}:
        here = [r.result["sums"] for r in where(rows, case=case)]
        found = {who: mean_and_error(add(Sums.read(sums[who]) for sums in here)) for who in here[0]}
        mean, error = found[COMPILED]
        distances += [abs(mean - m) / math.hypot(error, e) for who, (m, e) in found.items() if who != COMPILED]
    if distances:
        yield Claim(
            statement="All contestants estimate the same numbers.",
            quantity="largest distance of a contestant's mean from the compiled engine's, in standard errors",
            theory="that of normal noise",
            measured=max(distances),
            # P(|normal| > z) ≤ exp(−z²/2); the few samples of plain Python have an error that is itself uncertain.
            stated=(0.0, 2.0 * math.sqrt(2.0 * math.log(len(distances) / 1e-6))),
            reason="twice what normal noise exceeds once in a million runs, for plain Python takes few samples",
        )


def _worker_claims(settings: Settings, rows: Sequence[Row]) -> Iterator[Claim]:
    for r in rows:
        if _room(settings, r):
            yield Claim(
                statement=f"{settings.workers} workers are faster than one: {POOLS[r.settings['pool']]}.",
                quantity=f"speed-up by {settings.workers} workers, {POOLS[r.settings['pool']]}",
                theory=f"about {settings.workers} at best",
                measured=statistics.median(r.result["speed_ups"]),
                error=_spread(r.result["speed_ups"]),
                stated=(1.3, math.inf),
                reason=f"bare threads gained {statistics.median(r.result['bare']):.2f} in the same run; chunks and "
                "their order cost little, but the second processor of a shared machine is seldom idle",
            )


def _room(settings: Settings, row: Row) -> bool:
    """Whether the machine had processors for the workers: bare threads were faster by 1.5 while they were measured."""
    return bool(row.result["processors"] >= settings.workers and statistics.median(row.result["bare"]) >= 1.5)


def _times(rows: Sequence[Row], what: str, sizes: Sequence[int]) -> list[list[float]]:
    return [[r.result["seconds_per_call"] for r in where(rows, what=what, size=size)] for size in sizes]


def _flat_claim(settings: Settings, rows: Sequence[Row]) -> Claim:
    cached = [size for size in settings.states if size <= 1000]  # a table of 0.8 MB
    times = [min(group) for group in _times(rows, "states", cached)]  # the fastest: others' load only adds
    return Claim(
        statement="The time of a call does not depend on the number of states, while the table fits into a cache.",
        quantity=f"longest over shortest time per call, {cached[0]} to {cached[-1]:,} states",
        theory="1",
        measured=max(times) / min(times),
        stated=(1.0, 2.0),
        reason="no work grows with S; what grows is the distance of a table from the processor",
    )


def _kept(row: Row) -> float:
    """Megabytes that a run which kept one number for each call would need."""
    return float(8 * row.result["calls"] / 1e6)


def _memory_claim(settings: Settings, rows: Sequence[Row]) -> Claim:
    peaks = [r.result["megabytes"] for r in rows]
    return Claim(
        statement="Memory does not grow with 1/ε.",
        quantity=f"megabytes of the peak, the most over all ε less the least, ε from {settings.epsilons[0]:g} to "
        f"{settings.epsilons[-1]:g}",
        theory="0",
        measured=max(peaks) - min(peaks),
        stated=(0.0, 50.0),
        reason=f"a run that kept a number for each of its calls would need {max(map(_kept, rows)):,.0f} MB more; some "
        "are left to the allocator and to the search for a schedule",
    )


def _engine_figure(rates: Mapping[str, Rates]) -> Figure:
    order = [who for who in (PLAIN, BATCHED, "batched, table", COMPILED, TWIN) if any(who in r for r in rates.values())]
    series = []
    for case, here in rates.items():
        names = [who for who in order if who in here]
        groups = [[rate / 1e6 for rate in here[who]] for who in names]
        series.append(Series.spread(case, names, groups, statistics.median))
    return Figure(
        name="throughput-engines",
        title="Simulator calls per second, one thread",
        caption="Medians over interleaved repeats, with the least and the largest, for tables of levels of every kind: "
        "plain plug-in levels, an optimised schedule of order 2, one with a transport backup, and debiased levels.",
        x=Axis("engine"),
        y=Axis("million calls per second", log=True),
        series=series,
    )


def _size_figures(settings: Settings, rows: Sequence[Row]) -> Iterator[Figure]:
    seen = {
        "states": "No work grows with S; what grows is the distance of a table from the processor.",
        "actions": "What a visit costs beside its K·N calls is shared by more of them.",
    }
    for what, sizes in (("states", settings.states), ("actions", settings.actions)):
        times = [[1e9 * each for each in group] for group in _times(rows, what, sizes)]
        yield Figure(
            name=f"throughput-{what}",
            title=f"Time of a call against the number of {what}",
            caption=f"The compiled engine on random models; medians, with the least and the largest. {seen[what]}",
            x=Axis(f"{what} {'S' if what == 'states' else 'K'}", log=what == "states"),
            y=Axis("nanoseconds per call"),
            series=[Series.spread("compiled engine", [float(size) for size in sizes], times, statistics.median)],
        )


def _memory_figure(rows: Sequence[Row]) -> Figure:
    places = [1.0 / r.settings["epsilon"] for r in rows]
    peaks = [r.result["megabytes"] for r in rows]
    return Figure(
        name="throughput-memory",
        title="Peak memory of a plan against 1/ε",
        caption="Resident memory of a process that plans and does nothing else, most of which is Python and its "
        "libraries; and what it would be if a number were kept for every call. Plans of order 2, γ = 0.2, K = 2.",
        x=Axis("1/ε", log=True),
        y=Axis("megabytes"),
        series=[
            Series("measured", places, peaks),
            Series("if every call were kept", places, [min(peaks) + _kept(r) for r in rows], look="dashed"),
        ],
    )


def _worker_table(settings: Settings, rows: Sequence[Row]) -> Table:
    return Table(
        "throughput-workers",
        f"Speed-up by {settings.workers} workers that are running already",
        ("work", "median", "least", "most", "bare threads", "processors"),
        [
            (
                POOLS[r.settings["pool"]],
                *(f"{of(r.result['speed_ups']):.2f}" for of in (statistics.median, min, max)),
                f"{statistics.median(r.result['bare']):.2f}",
                r.result["processors"],
            )
            for r in rows
        ],
    )


STUDY = Study(
    name="throughput",
    title="Throughput, workers, memory",
    question="How many simulator calls a second do the engines make, beside C++; do workers help; what grows?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
    sources=("twin.cpp", "stream.h"),
)
