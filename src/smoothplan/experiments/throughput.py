"""Throughput: calls per second of the engines beside a twin in C++, workers, and growth with S, K and 1/ε."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smoothplan.engines.base import Sums
from smoothplan.experiments.base import Cell, Experiment, Row
from smoothplan.experiments.throughput_contest import CASES, PLAIN, TWIN, add, field_of, mean_and_error
from smoothplan.experiments.throughput_growth import planned, processors, seconds_per_call, speed_ups
from smoothplan.findings import Axis, Claim, Evidence, Figure, Series, Table

COMPILED, BATCHED = "compiled", "batched, NumPy"
POOLS = {"threads": "compiled engine, threads", "processes": "Python simulator, processes"}

SAMPLE_BYTES = 8
"""Of memory that a run which kept one number for each call would need."""

MEMORY_ROOM = 50.0
"""Megabytes by which peaks may differ."""

CACHED_STATES = 1000
"""Up to so many states the table of a model, 0.8 MB then, fits into a cache or nearly so."""

OF_TWIN, OVER_PLAIN, BATCHED_OVER_PLAIN, SPEED_UP, FLAT = 0.5, 30.0, 4.0, 1.3, 2.0
"""What is claimed of the compiled engine, of the batched one, of two workers, and of the time per call: well short of
what was measured, for machines are shared, and their caches and clocks differ."""

ROOM = 1.5
"""By how much two bare threads must be faster than one, or the machine has no second processor to give."""

FALSE_ALARM = 1e-6
"""How often contestants are taken to disagree though they are right."""


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
            return {"rates": rates, "sums": {who: each.sums for who, each in found.items()}}
        case "workers":
            ratios = speed_ups(s["pool"], s["workers"], s["repeats"], s["seconds"])
            speeds = {"speed_ups": [each.workers for each in ratios], "bare": [each.bare for each in ratios]}
            return speeds | {"processors": processors()}
        case "size":
            return {"seconds_per_call": seconds_per_call(s["what"], s["size"], s["seconds"], cell.seed)}
    return planned(s["epsilon"], s["max_calls"])


# What it shows


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Ratios within repeats, and their medians."""
    kinds = ("contest", "workers", "size", "memory")
    contest, workers, sizes, memory = ([r for r in rows if r.settings["kind"] == kind] for kind in kinds)
    rates = {case: _rates([r for r in contest if r.settings["case"] == case]) for case in settings.cases}
    compared = any(TWIN in who for who in rates.values())
    notes = [
        "Rows hold times, so they are not the same twice. Ratios are within one run, of repeats that are interleaved; "
        "medians are compared. It is the processor's time that is taken, but for workers. The stated bounds are wide, "
        "for machines are shared, and their caches and clocks differ.",
    ]
    if not compared:
        notes.append("There is no C++ compiler here, so nothing is compared with the twin.")
    if not all(_room(settings, r) for r in workers):
        notes.append(
            f"There was no room for {settings.workers} workers: bare threads, which need nothing but processors, did "
            f"not gain {ROOM:g} either. Nothing is claimed of what workers bring where that is so."
        )
    return Evidence(
        claims=[
            *_speed_claims(rates),
            *_agreement_claims(contest),
            *_worker_claims(settings, workers),
            *_flat_claims(settings, sizes),
            *_memory_claims(settings, memory),
        ],
        figures=[_engine_figure(rates), *_size_figures(settings, sizes), _memory_figure(memory)],
        tables=[_engine_table(rates), _worker_table(settings, workers), _memory_table(memory)],
        notes=notes,
    )


Rates = Mapping[str, Sequence[float]]
"""Calls per second of each contestant, one for each repeat."""


def _rates(rows: Sequence[Row]) -> dict[str, list[float]]:
    return {who: [r.result["rates"][who] for r in rows] for who in rows[0].result["rates"]} if rows else {}


def _ratio(rates: Rates, one: str, other: str) -> tuple[float, float]:
    """The median ratio within repeats, and half the spread of its middle half."""
    ratios = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
    return statistics.median(ratios), _spread(ratios)


def _spread(numbers: Sequence[float]) -> float:
    if len(numbers) < 2:
        return 0.0
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return (high - low) / 2.0


def _speed_claims(rates: Mapping[str, Rates]) -> Iterator[Claim]:
    wanted = (
        (COMPILED, TWIN, OF_TWIN, "160 to 189 of the twin's 232 million calls a second"),
        (COMPILED, PLAIN, OVER_PLAIN, "160 to 1"),
        (BATCHED, PLAIN, BATCHED_OVER_PLAIN, "40 to 1, and simulators differ"),
    )
    for one, other, least, reason in wanted:
        ratios = {case: _ratio(who, one, other) for case, who in rates.items() if one in who and other in who}
        if ratios:
            case = min(ratios, key=lambda name: ratios[name][0])
            yield Claim(
                statement=f"The {one.replace(', ', ' engine with ')}{' engine' if one == COMPILED else ''} is fast "
                f"beside {'a' if other == TWIN else ''} {other}.".replace("  ", " "),
                quantity=f"calls per second, {one} over {other}, the least of the cases ({case})",
                theory=f"at least {least:g}",
                measured=ratios[case][0],
                error=ratios[case][1],
                stated=(least, math.inf),
                reason=f"an early measurement gave {reason}",
            )


def _agreement_claims(rows: Sequence[Row]) -> Iterator[Claim]:
    distances = []
    for case in {r.settings["case"] for r in rows}:
        here = [r.result["sums"] for r in rows if r.settings["case"] == case]
        found = {who: mean_and_error(add(Sums(*sums[who]) for sums in here)) for who in here[0]}
        mean, error = found[COMPILED]
        distances += [abs(mean - m) / math.hypot(error, e) for who, (m, e) in found.items() if who != COMPILED]
    if distances:
        yield Claim(
            statement="All contestants estimate the same numbers.",
            quantity="largest distance of a contestant's mean from the compiled engine's, in standard errors",
            theory="that of normal noise",
            measured=max(distances),
            error=None,
            # P(|normal| > z) ≤ exp(−z²/2); the few samples of plain Python have an error that is itself uncertain.
            stated=(0.0, 2.0 * math.sqrt(2.0 * math.log(len(distances) / FALSE_ALARM))),
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
                stated=(SPEED_UP, math.inf),
                reason=f"bare threads gained {statistics.median(r.result['bare']):.2f} in the same run; chunks and "
                "their order cost little, but the second processor of a shared machine is seldom idle",
            )


def _room(settings: Settings, row: Row) -> bool:
    """Whether the machine had processors for the workers while they were measured."""
    return bool(row.result["processors"] >= settings.workers and statistics.median(row.result["bare"]) >= ROOM)


def _sizes(rows: Sequence[Row], what: str, sizes: Sequence[int]) -> list[list[float]]:
    return [
        [r.result["seconds_per_call"] for r in rows if (r.settings["what"], r.settings["size"]) == (what, size)]
        for size in sizes
    ]


def _flat_claims(settings: Settings, rows: Sequence[Row]) -> Iterator[Claim]:
    cached = [size for size in settings.states if size <= CACHED_STATES]
    times = [min(group) for group in _sizes(rows, "states", cached)]  # the fastest: others' load only adds
    yield Claim(
        statement="The time of a call does not depend on the number of states, while the table fits into a cache.",
        quantity=f"longest over shortest time per call, {cached[0]} to {cached[-1]:,} states",
        theory="1",
        measured=max(times) / min(times),
        error=None,
        stated=(1.0, FLAT),
        reason="no work grows with S; what grows is the distance of a table from the processor",
    )


def _memory_claims(settings: Settings, rows: Sequence[Row]) -> Iterator[Claim]:
    peaks = [r.result["megabytes"] for r in rows]
    kept = SAMPLE_BYTES * max(r.result["calls"] for r in rows) / 1e6
    yield Claim(
        statement="Memory does not grow with 1/ε.",
        quantity=f"megabytes of the peak, the most over all ε less the least, ε from {settings.epsilons[0]:g} to "
        f"{settings.epsilons[-1]:g}",
        theory="0",
        measured=max(peaks) - min(peaks),
        error=None,
        stated=(0.0, MEMORY_ROOM),
        reason=f"a run that kept a number for each of its calls would need {kept:,.0f} MB more; some are left to the "
        "allocator and to the search for a schedule",
    )


def _engine_figure(rates: Mapping[str, Rates]) -> Figure:
    order = [who for who in (PLAIN, BATCHED, "batched, table", COMPILED, TWIN) if any(who in r for r in rates.values())]
    series = []
    for case, here in rates.items():
        names = [who for who in order if who in here]
        values = [[rate / 1e6 for rate in here[who]] for who in names]
        middles = [statistics.median(each) for each in values]
        series.append(Series(case, names, middles, [min(each) for each in values], [max(each) for each in values]))
    return Figure(
        name="throughput-engines",
        title="Simulator calls per second, one thread",
        caption="Medians over interleaved repeats, with the least and the largest, for three tables of levels: plain "
        "plug-in levels, an optimised schedule of order 2, and one with a transport backup.",
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
        times = [[1e9 * each for each in group] for group in _sizes(rows, what, sizes)]
        middles = [statistics.median(group) for group in times]
        low, high = [min(group) for group in times], [max(group) for group in times]
        yield Figure(
            name=f"throughput-{what}",
            title=f"Time of a call against the number of {what}",
            caption=f"The compiled engine on random models; medians, with the least and the largest. {seen[what]}",
            x=Axis(f"{what} {'S' if what == 'states' else 'K'}", log=what == "states"),
            y=Axis("nanoseconds per call"),
            series=[Series("compiled engine", [float(size) for size in sizes], middles, low, high)],
        )


def _memory_figure(rows: Sequence[Row]) -> Figure:
    places = [1.0 / r.settings["epsilon"] for r in rows]
    peaks = [r.result["megabytes"] for r in rows]
    kept = [min(peaks) + SAMPLE_BYTES * r.result["calls"] / 1e6 for r in rows]
    return Figure(
        name="throughput-memory",
        title="Peak memory of a plan against 1/ε",
        caption="Resident memory of a process that plans and does nothing else, most of which is Python and its "
        "libraries; and what it would be if a number were kept for every call.",
        x=Axis("1/ε", log=True),
        y=Axis("megabytes"),
        series=[
            Series("measured", places, peaks),
            Series("if every call were kept", places, kept, look="dashed"),
        ],
    )


def _engine_table(rates: Mapping[str, Rates]) -> Table:
    lines = []
    for case, here in rates.items():
        for who, each in here.items():
            beside = f"{_ratio(here, who, TWIN)[0]:.3f}" if TWIN in here else "no C++ compiler"
            lines.append((case, who, f"{statistics.median(each) / 1e6:.3g}", beside))
    return Table("throughput-engines", "Throughput", ("case", "who", "million calls per second", "of the twin"), lines)


def _worker_table(settings: Settings, rows: Sequence[Row]) -> Table:
    return Table(
        "throughput-workers",
        f"Speed-up by {settings.workers} workers, their start not counted",
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


def _memory_table(rows: Sequence[Row]) -> Table:
    return Table(
        "throughput-memory",
        "Plans of order 2, γ = 0.2, K = 2, each in a process of its own",
        ("ε", "calls forecast", "calls made", "seconds", "peak MB", "status"),
        [
            (
                r.settings["epsilon"],
                f"{r.result['forecast']:.2g}",
                f"{r.result['calls']:.2g}",
                f"{r.result['seconds']:.2g}",
                f"{r.result['megabytes']:.0f}",
                r.result["status"],
            )
            for r in rows
        ],
    )


EXPERIMENT = Experiment(
    name="throughput",
    title="Throughput, workers, memory",
    question="How many simulator calls a second do the engines make, beside C++; do workers help; what grows?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
)
