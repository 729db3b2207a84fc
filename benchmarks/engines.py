"""Throughput of the engines beside a twin in C++, as ratios within one run.

The twin (twin.cpp) interprets the same table of levels on the same tabular model. It is compiled here, its repeats are
interleaved with those of the engines, and medians are compared, so that nothing depends on the speed of the machine.
"""

import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup
from smoothplan.engines.base import Engine, Sums
from smoothplan.engines.batched import BatchedEngine
from smoothplan.engines.compiled import CompiledEngine
from smoothplan.models.base import GenerativeModel
from smoothplan.parallel.crew import Crew
from smoothplan.parallel.hiring import Terms
from smoothplan.parallel.work import Task, Work
from smoothplan.schedules import Level, Problem, Schedule, optimised

REPEATS = 7
SECONDS = 0.25
"""About how long one measurement lasts."""

STATE, ACTION = 0, 0
GOALS = {"compiled": 0.7, "batched, NumPy simulator": 0.15}
"""Throughput as a fraction of the twin's, on one thread."""

SCALING_GOAL = 1.7
"""How much faster two threads are than one."""

SUSPICIOUS = 5.0
"""Standard errors between two means beyond which one of the two implementations is wrong."""


@dataclass(frozen=True, eq=False)
class Case:
    """A schedule to run, and what is sampled at its root."""

    name: str
    model: sp.TabularModel
    backup: Backup
    schedule: Schedule
    what: Literal["returns", "values"]
    reference: Floats  # of the root, [K]

    @property
    def sample_calls(self) -> int:
        """Calls of one sample, at most."""
        if self.what == "values":
            return self.schedule.sample_calls
        child = self.schedule.root.reference
        assert child is not None
        return 1 + self.schedule.costs[child]

    def chunk_samples(self, engine: Engine) -> int:
        """Samples per chunk, as `plan` would choose them."""
        return max(1, engine.chunk_calls // self.sample_calls)

    def task(self, chunk: int, count: int) -> Task:
        """So many samples."""
        first = self.reference if self.what == "values" else ACTION
        return Task(chunk, self.what, (first, count), count)


class Measurement(NamedTuple):
    """What one repeat of one contestant found."""

    seconds: float
    calls: int
    sums: Sums


Contestant = Callable[[int, int], Measurement]
"""chunks, seed → what it measured."""


def plug_in_case() -> Case:
    """K = 5, N = 8, depth 3, 1000 states with 8 successors each, LogSumExp."""
    model = sp.models.garnet(states=1000, actions=5, branching=8, discount=0.5, seed=1)
    backup = sp.LogSumExp(1.0)
    levels = (Level("constant"), *(Level("plug-in", samples=8, reference=row) for row in range(4)))
    schedule = Schedule(Problem.of(model, backup), levels, repeats=1, epsilon=0.1, delta=0.1)
    return Case("plug-in K=5 N=8 depth 3", model, backup, schedule, "returns", np.zeros(5))


def optimised_case(name: str, backup: Backup, actions: int, epsilon: float) -> Case:
    """An optimised schedule of order 2 with Bernoulli rewards, γ = 0.2."""
    model = sp.models.garnet(states=50, actions=actions, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")
    schedule = optimised(Problem.of(model, backup), epsilon, delta=0.1)
    reference = sp.exact.solve(model, backup).q[STATE] + 0.03 * (-1.0) ** np.arange(actions)
    return Case(name, model, backup, schedule, "values", reference)


def cases() -> list[Case]:
    """The three schedules."""
    transport = sp.OptimalTransport(cost=sp.backups.line_cost(4), tau=1.0, lam=0.5)
    return [
        plug_in_case(),
        optimised_case("order 2, K=2, ε=0.01", sp.LogSumExp(1.0), 2, 0.01),
        optimised_case("optimal transport, K=4, ε=0.03", transport, 4, 0.03),
    ]


def write_data(case: Case, path: Path) -> None:
    """The case as the twin reads it: numbers of double precision, one after the other."""
    model, problem, levels = case.model, case.schedule.problem, case.schedule.levels
    if isinstance(case.backup, sp.OptimalTransport):
        shifts, weights = case.backup.tau * case.backup.cost.T, case.backup.reference_at(np.arange(model.states))
    else:
        shifts, weights = np.zeros((1, model.actions)), np.ones((1, 1))
    weights = np.atleast_2d(weights)
    rewards = model.rewards if model.rewards.ndim == 3 else model.rewards[..., None]
    kinds = ["constant", "plug-in", "order-1", "order-2"]

    def child(row: int | None) -> int:
        return -1 if row is None else row

    table = [
        [
            kinds.index(level.kind), level.samples, child(level.reference), child(level.linear), child(level.quadratic),
            level.pairs, level.centring == "policy",
            level.shift + (problem.middle if level.kind == "constant" else 0.0),
            *(level.clip or (-math.inf, math.inf)),
        ]
        for level in levels
    ]  # fmt: skip
    header = [*model.probabilities.shape, len(shifts), len(levels), len(weights)]
    numbers: list[Any] = [
        header, [model.reward_kind == "bernoulli", model.discount, case.backup.temperature],
        model.probabilities, model.successors, np.broadcast_to(rewards, model.probabilities.shape), model.ends,
        shifts, weights, case.reference, table,
    ]  # fmt: skip
    np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in numbers]).tofile(path)


class NumpySimulator:
    """The table as a simulator that knows NumPy only: Walker's aliases, one uniform number for a successor."""

    def __init__(self, model: sp.TabularModel) -> None:
        self._actions, self._branches = model.actions, model.probabilities.shape[-1]
        self._keep, other = aliases(model.probabilities.reshape(-1, self._branches))
        rows = np.arange(len(other))[:, None]
        successors = model.successors.reshape(-1, self._branches)
        self._successors = np.stack([successors[rows, other], successors], axis=-1).ravel()
        self._keep = self._keep.ravel()
        self._rewards = model.rewards.ravel()
        self._bernoulli = model.reward_kind == "bernoulli"

    def __call__(self, states: Ints, actions: Ints, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """step(states [n], actions [n], rng) → (next_states, rewards)."""
        pairs = states * self._actions
        pairs += actions
        level = rng.random(len(pairs))
        level *= self._branches
        entry = level.astype(np.int64)
        level -= entry
        entry += pairs * self._branches
        keeps = level < self._keep[entry]
        entry *= 2
        entry += keeps
        rewards = self._rewards[pairs]
        if self._bernoulli:
            rewards = (rng.random(len(pairs)) < rewards).astype(np.float64)
        return self._successors[entry], rewards


def aliases(probabilities: Floats) -> tuple[Floats, Ints]:
    """Walker's tables for rows of distributions [n, B]: the probability of keeping each entry, and its alternative."""
    count, branches = probabilities.shape
    keep, other = probabilities * branches, np.tile(np.arange(branches), (count, 1))
    rows = np.arange(count)
    settled = np.zeros(keep.shape, dtype=np.bool_)
    for _ in range(branches - 1):
        small = np.where(settled, np.inf, keep).argmin(axis=1)
        large = np.where(settled, -np.inf, keep).argmax(axis=1)
        differ = small != large
        other[rows[differ], small[differ]] = large[differ]
        keep[rows[differ], large[differ]] -= 1.0 - keep[rows[differ], small[differ]]
        settled[rows, small] = True
    keep[~settled] = 1.0
    return keep, other


def numpy_model(model: sp.TabularModel) -> sp.VectorModel:
    """The same model, as a user with NumPy and no table would write it."""
    return sp.VectorModel(
        NumpySimulator(model),
        actions=model.actions,
        discount=model.discount,
        reward_range=model.reward_range,
        reward_kind=model.reward_kind,
        max_successors=model.max_successors,
        terminates=False,
        initial_state=STATE,
    )


def compile_twin(folder: Path) -> Path:
    """The twin, compiled for this machine."""
    program = folder / "twin"
    source = Path(__file__).with_name("twin.cpp")
    command = ["g++", "-O3", "-march=native", "-std=c++17", "-pthread", "-o", str(program), str(source)]
    subprocess.run(command, check=True)
    return program


def twin(case: Case, program: Path, data: Path, count: int, threads: int) -> Contestant:
    """The twin as a contestant, with so many samples per chunk. It takes its own time, without reading the data."""

    def run(chunks: int, seed: int) -> Measurement:
        numbers = [STATE, ACTION, count, chunks, threads, seed]
        command = [str(program), str(data), case.what, *(str(number) for number in numbers)]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        sums = Sums(int(words[2]), float(words[3]), float(words[4]))
        return Measurement(float(words[0]), int(words[1]), sums)

    return run


def engine_contestant(case: Case, engine: Engine, model: GenerativeModel, threads: int) -> Contestant:
    """An engine as a contestant, on threads over chunks as `plan` runs it."""
    count = case.chunk_samples(engine)

    def run(chunks: int, seed: int) -> Measurement:
        work, tasks = Work(engine, model, STATE, seed), [case.task(number, count) for number in range(chunks)]
        start = time.perf_counter()
        with Crew(Terms(threads, "threads").hire) as crew:
            outcomes = [outcome for _, outcome in crew.in_order(work, tasks)]
        seconds = time.perf_counter() - start
        return Measurement(seconds, sum(found.calls for found in outcomes), add(found.sums for found in outcomes))

    return run


def add(parts: Iterable[tuple[float, ...]]) -> Sums:
    """The sums of several chunks as one."""
    samples, total, squares = (sum(column) for column in zip(*parts, strict=True))
    return Sums(int(samples), total, squares)


def contestants(case: Case, program: Path, data: Path) -> dict[str, Contestant]:
    """Everyone who runs a case."""
    compiled = CompiledEngine(case.schedule, case.backup, case.model)
    batched = BatchedEngine(case.schedule, case.backup)
    return {
        "twin": twin(case, program, data, case.chunk_samples(compiled), 1),
        "twin, 2 threads": twin(case, program, data, case.chunk_samples(compiled), 2),
        "compiled": engine_contestant(case, compiled, case.model, 1),
        "compiled, 2 threads": engine_contestant(case, compiled, case.model, 2),
        "batched, NumPy simulator": engine_contestant(case, batched, numpy_model(case.model), 1),
        "batched, table": engine_contestant(case, batched, case.model, 1),
    }


def mean_and_error(sums: Sums) -> tuple[float, float]:
    """The mean of samples and its standard error."""
    mean = sums.total / sums.samples
    return mean, math.sqrt(max(sums.squares / sums.samples - mean**2, 0.0) / sums.samples)


def run_case(case: Case, program: Path, folder: Path) -> None:
    """Measures a case and prints its table."""
    data = folder / "case.bin"
    write_data(case, data)
    field = contestants(case, program, data)
    chunks: dict[str, int] = {}
    for name, contestant in field.items():
        contestant(2, 0)  # compiles, and warms the caches
        seconds = contestant(2, 0).seconds
        chunks[name] = 2 * max(1, round(SECONDS / seconds))
    found: dict[str, list[Measurement]] = {name: [] for name in field}
    for repeat in range(REPEATS):
        for name, contestant in field.items():
            found[name].append(contestant(chunks[name], repeat + 1))

    print_table(case, found)


def print_table(case: Case, found: dict[str, list[Measurement]]) -> None:
    """Median throughputs, as ratios to the twin's on as many threads and to one thread; means, which must agree."""
    rates = {name: statistics.median(each.calls / each.seconds for each in many) for name, many in found.items()}
    single = {f"{name}, 2 threads": name for name in ("twin", "compiled")}
    print(f"\n{case.name}: {case.sample_calls:,} calls per sample at most, {len(case.schedule.levels)} levels")
    print(f"  {'':<26}{'M calls/s':>10}{'of the twin':>13}{'goal':>7}{'of 1 thread':>13}{'goal':>7}   mean")
    expected, error = mean_and_error(add(each.sums for each in found["twin"]))
    for name, many in found.items():
        goal = f"{GOALS[name]:.2f}" if name in GOALS else ""
        scaling = f"{rates[name] / rates[single[name]]:.2f}" if name in single else ""
        scaling_goal = f"{SCALING_GOAL:.2f}" if name == "compiled, 2 threads" else ""
        beside = rates["twin, 2 threads" if name in single else "twin"]
        mean, own = mean_and_error(add(each.sums for each in many))
        print(
            f"  {name:<26}{rates[name] / 1e6:>10.1f}{rates[name] / beside:>13.2f}{goal:>7}{scaling:>13}"
            f"{scaling_goal:>7}   {mean:.5f} ± {own:.5f}"
        )
        distance = abs(mean - expected) / math.hypot(own, error)
        if distance > SUSPICIOUS:
            raise SystemExit(f"{name} and the twin disagree by {distance:.1f} standard errors")


def main() -> None:
    """Runs all cases."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compile_twin(folder)
        for case in cases():
            run_case(case, program, folder)


if __name__ == "__main__":
    main()
