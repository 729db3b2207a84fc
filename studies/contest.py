"""The contest of the study `throughput`: engines, plain Python, and a twin in C++, on the same tables of levels.

The twin (twin.cpp) interprets the same schedule on the same tabular model. It is compiled here, its repeats are
interleaved with those of the engines, and processor time is taken, so that ratios depend little on the speed and the
load of the machine.
"""

import atexit
import math
import random
import shutil
import subprocess
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import GenerativeModel, Oracle
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import VectorModel
from smoothplan.models.zoo import garnet
from smoothplan.recursive.batched import BatchedEngine
from smoothplan.recursive.compiled import CompiledEngine
from smoothplan.recursive.debias import DEBIASING, MOST, Debiased
from smoothplan.recursive.level import Level
from smoothplan.recursive.optimise import optimised
from smoothplan.recursive.schedule import Schedule
from smoothplan.run.chunks import Sums
from smoothplan.theory import exact
from smoothplan.theory.backups import LogSumExp, OptimalTransport, SoftmaxMixture, line_cost
from smoothplan.theory.curvature import Problem

STATE, ACTION = 0, 0
COMPILED, BATCHED, TWIN, PLAIN = "compiled", "batched, NumPy", "C++ twin", "plain Python"
LARGE_CHUNK, SMALL_CHUNK = 1 << 21, 1 << 16
"""Simulator calls that take a compiled and a batched engine a fraction of a second."""


@dataclass(frozen=True, eq=False)
class Case:
    """A schedule to run, and what is sampled at its root."""

    name: str
    model: TabularModel
    backup: SoftmaxMixture
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
        return self.schedule.levels[child].rewards + self.schedule.costs[child]

    def samples(self, calls: int) -> int:
        """The samples that a number of simulator calls pays for, at least one."""
        return max(1, calls // self.sample_calls)


class Measurement(NamedTuple):
    """What one repeat of one contestant found."""

    seconds: float
    calls: int
    sums: Sums


Contestant = Callable[[int, int], Measurement]
"""chunks, seed → what it measured."""


def plug_in_case(
    name: str = "plug-in", states: int = 1000, actions: int = 5, branching: int = 8, samples: int = 8, depth: int = 3
) -> Case:
    """Levels F(Q̂), N samples for each action, LogSumExp."""
    model = garnet(states=states, actions=actions, branching=branching, discount=0.5, seed=1)
    backup = LogSumExp(1.0)
    levels = (Level("constant"), *(Level("plug-in", samples=samples, reference=row) for row in range(depth + 1)))
    schedule = Schedule(Problem.of(model, backup), levels, repeats=1, epsilon=0.1, delta=0.1)
    return Case(name, model, backup, schedule, "returns", np.zeros(actions))


def optimised_case(name: str, backup: SoftmaxMixture, actions: int, epsilon: float) -> Case:
    """The cheapest schedule with Bernoulli rewards, γ = 0.2."""
    model = garnet(states=50, actions=actions, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")
    schedule = optimised(Problem.of(model, backup), epsilon, 0.1, 2, 2)
    reference = exact.solve(model, backup).q[STATE] + 0.03 * (-1.0) ** np.arange(actions)
    return Case(name, model, backup, schedule, "values", reference)


def second_order_case(name: str, backup: SoftmaxMixture, actions: int) -> Case:
    """A level of order 2 over one of order 1 and a plug-in level, with Bernoulli rewards."""
    model = garnet(states=50, actions=actions, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")
    levels = (
        Level("constant"),
        Level("plug-in", samples=2, reference=0),
        Level("order-1", samples=5, reference=0, linear=1),
        Level("order-2", samples=7, reference=0, linear=2, quadratic=1, pairs=2),
        Level("plug-in", samples=1, reference=3),
    )
    schedule = Schedule(Problem.of(model, backup), levels, repeats=1, epsilon=0.1, delta=0.1)
    return Case(name, model, backup, schedule, "returns", np.zeros(actions))


def debiased_case(
    name: str, backup: SoftmaxMixture, actions: int, order: Literal[0, 1], debias: int, rewards: int = 4
) -> Case:
    """Two debiased levels with N = 4, the second a plug-in or of order 1; returns average a number of rewards."""
    model = garnet(states=50, actions=actions, branching=4, discount=0.5, seed=1, reward_kind="bernoulli")
    first = Level("plug-in", samples=4, reference=0, debias=debias, rewards=rewards)
    second = replace(first, reference=1)
    if order == 1:
        second = replace(second, kind="order-1", linear=1)
    levels = (Level("constant", rewards=rewards), first, second, Level("plug-in", samples=1, reference=2))
    schedule = Schedule(Problem.of(model, backup), levels, repeats=1, epsilon=0.1, delta=0.1)
    return Case(name, model, backup, schedule, "returns", np.zeros(actions))


CASES: dict[str, Callable[[str], Case]] = {
    "plug-in": plug_in_case,
    "order 2": lambda name: second_order_case(name, LogSumExp(1.0), 2),
    "transport": lambda name: optimised_case(name, OptimalTransport(cost=line_cost(4), tau=1.0, lam=0.5), 4, 0.03),
    "debiased plug-in": lambda name: debiased_case(name, LogSumExp(1.0), 5, order=0, debias=1, rewards=1),
    "debiased order 1": lambda name: debiased_case(name, LogSumExp(1.0), 2, order=1, debias=2),
    "debiased transport": lambda name: debiased_case(
        name, OptimalTransport(cost=line_cost(5), tau=1.0, lam=0.5), 5, order=1, debias=2
    ),
}
"""Every kind of level. Plain plug-in levels: K = 5, N = 8, depth 3, 1000 states with 8 successors each. Pairs: K = 2.
An optimised schedule: K = 4, ε = 0.03 with line costs. Debiased levels: K = 5 without averaged rewards; with four of
them, K = 2 and K = 5."""


# The twin


def _weights(level: Level) -> list[float]:
    """What each block of a debiased level counts for, by the size of blocks: its F, then its slope, [2·(MOST + 1)]."""
    weights = np.zeros((2, MOST + 1))
    if level.debias > 0:
        debiasing = DEBIASING[cast(Debiased, level.kind), level.debias]
        weights[0, : len(debiasing.values)], weights[1, : len(debiasing.slopes)] = debiasing.values, debiasing.slopes
    return list((weights / 2.0 ** np.arange(MOST + 1)).ravel())


def write_data(case: Case, path: Path) -> None:
    """The case as the twin reads it: numbers of double precision, one after the other."""
    model, problem, levels = case.model, case.schedule.problem, case.schedule.levels
    shifts = case.backup.shifts(model.actions).T
    weights = np.atleast_2d(case.backup.weights(np.arange(model.states)))
    rewards = model.rewards if model.rewards.ndim == 3 else model.rewards[..., None]
    kinds = ["constant", "plug-in", "order-1", "order-2"]

    def child(row: int | None) -> int:
        return -1 if row is None else row

    table = [
        [
            kinds.index(level.kind), level.samples, child(level.reference), child(level.linear), child(level.quadratic),
            level.pairs, level.printed,
            level.shift + (problem.middle if level.kind == "constant" else 0.0),
            *(level.clip or (-math.inf, math.inf)), level.debias, level.rewards, *_weights(level),
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


def compile_program(name: str, optimise: str = "-O3") -> Path | None:
    """A C++ program of this package, compiled for this machine; none where there is no compiler.

    Raises:
        RuntimeError: the compiler does not compile it, with its words.
    """
    program = workshop() / Path(name).stem
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        return None
    with as_file(files("studies")) as folder:
        command = [compiler, optimise, "-std=c++17", f"-I{folder}", "-o", str(program), str(folder / name)]
        for tuned in (["-march=native"], []):  # not every compiler knows this machine
            result = subprocess.run([*command, *tuned], check=False, capture_output=True, text=True)
            if result.returncode == 0:
                return program
    raise RuntimeError(f"{compiler} does not compile {name}:\n{result.stderr}")


@cache
def workshop() -> Path:
    """A folder for the time of this process."""
    folder = Path(tempfile.mkdtemp(prefix="smoothplan-twin-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def own_twin() -> Path | None:
    """The twin of this process, compiled once."""
    return compile_program("twin.cpp")


def twin(case: Case, program: Path, data: Path, count: int) -> Contestant:
    """The twin as a contestant, with `count` samples per chunk. Its time excludes reading the data."""

    def run(chunks: int, seed: int) -> Measurement:
        numbers = [STATE, ACTION, count, chunks, seed]
        command = [str(program), str(data), case.what, *(str(number) for number in numbers)]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        sums = Sums(int(words[2]), float(words[3]), float(words[4]))
        return Measurement(float(words[0]), int(words[1]), sums)

    return run


# The engines


def engine_contestant(case: Case, engine: Any, model: GenerativeModel, chunk_calls: int) -> Contestant:
    """An engine as a contestant, one chunk after another."""
    count = case.samples(chunk_calls)

    def run(chunks: int, seed: int) -> Measurement:
        oracles = [Oracle(model, seed, number) for number in range(chunks)]
        start = time.process_time()
        if case.what == "values":
            sums = [engine.values(oracle, STATE, case.reference, count) for oracle in oracles]
        else:
            sums = [engine.returns(oracle, STATE, ACTION, count) for oracle in oracles]
        seconds = time.process_time() - start
        return Measurement(seconds, sum(oracle.calls for oracle in oracles), add(sums))

    return run


def compiled_contestant(case: Case) -> Contestant:
    """The compiled engine on the table."""
    return engine_contestant(case, CompiledEngine(case.schedule, case.backup, case.model), case.model, LARGE_CHUNK)


def add(parts: Iterable[Sums]) -> Sums:
    """The sums of several chunks as one."""
    return sum(parts, start=Sums())


def mean_and_error(sums: Sums) -> tuple[float, float]:
    """The mean of samples and its standard error."""
    mean = sums.total / sums.samples
    return mean, math.sqrt(max(sums.squares / sums.samples - mean**2, 0.0) / sums.samples)


def numpy_model(model: TabularModel) -> VectorModel:
    """The same model, as a user with NumPy and no table class would write it."""
    branches = model.probabilities.shape[-1]
    ends = np.cumsum(model.probabilities, axis=-1).reshape(-1, branches)[:, :-1]  # the last one is 1, up to rounding
    successors, rewards = model.successors.ravel(), model.rewards.ravel()

    def step(states: Ints, actions: Ints, rng: np.random.Generator) -> tuple[Ints, Floats]:
        pairs = states * model.actions + actions
        branch = (rng.random(len(pairs))[:, None] >= ends[pairs]).sum(axis=1)
        means = rewards[pairs]
        bernoulli = model.reward_kind == "bernoulli"
        return successors[pairs * branches + branch], (rng.random(len(pairs)) < means) * 1.0 if bernoulli else means

    return VectorModel(
        step,
        actions=model.actions,
        discount=model.discount,
        reward_range=model.reward_range,
        reward_kind=model.reward_kind,
        max_successors=model.max_successors,
        terminates=False,
        initial_state=STATE,
    )


# Plain Python


class Plain:
    """The recursion of plug-in levels as one first writes it down: one state at a time, lists and floats."""

    def __init__(self, case: Case) -> None:
        model = case.model
        self._levels, self._middle = case.schedule.levels, case.schedule.problem.middle
        self._discount, self._temperature = model.discount, case.backup.temperature
        self._sums = np.cumsum(model.probabilities, axis=-1).tolist()
        self._successors, self._rewards = model.successors.tolist(), model.rewards.tolist()
        self._actions, self._last = range(model.actions), model.probabilities.shape[-1] - 1
        self.calls = 0

    def one_return(self, child: int, state: int, action: int, rng: random.Random) -> float:
        """R + γ·Y(Z), through a level."""
        self.calls += 1
        branch = min(bisect_right(self._sums[state][action], rng.random()), self._last)
        successor: int = self._successors[state][action][branch]
        return float(self._rewards[state][action] + self._discount * self.sample(child, successor, rng))

    def sample(self, row: int, state: int, rng: random.Random) -> float:
        """A sample of a level at a state."""
        level = self._levels[row]
        if level.reference is None:
            return self._middle + level.shift
        q = [
            sum(self.one_return(level.reference, state, action, rng) for _ in range(level.samples)) / level.samples
            for action in self._actions
        ]
        top = max(q)
        return top + self._temperature * math.log(sum(math.exp((value - top) / self._temperature) for value in q))


def plain_contestant(case: Case) -> Contestant:
    """Plain Python as a contestant, a sample per chunk."""
    child = case.schedule.root.reference
    assert child is not None

    def run(chunks: int, seed: int) -> Measurement:
        recursion, rng = Plain(case), random.Random(seed)
        start = time.process_time()
        samples = [recursion.one_return(child, STATE, ACTION, rng) for _ in range(chunks)]
        seconds = time.process_time() - start
        return Measurement(seconds, recursion.calls, Sums(chunks, sum(samples), sum(x * x for x in samples)))

    return run


# Everyone


def contestants(case: Case) -> dict[str, Contestant]:
    """Everyone who runs a case."""
    batched = BatchedEngine(case.schedule, case.backup)
    field = {
        COMPILED: compiled_contestant(case),
        "batched, table": engine_contestant(case, batched, case.model, SMALL_CHUNK),
        BATCHED: engine_contestant(case, batched, numpy_model(case.model), SMALL_CHUNK),
    }
    program = own_twin()
    if program is not None:
        data = workshop() / f"{case.name}.bin"
        write_data(case, data)
        field[TWIN] = twin(case, program, data, case.samples(LARGE_CHUNK))
    if all(level.kind in ("constant", "plug-in") and level.debias == 0 for level in case.schedule.levels):
        field[PLAIN] = plain_contestant(case)
    return field


def calibrated(contestant: Contestant, seconds: float) -> int:
    """The number of chunks that take about that long. Compiles, and warms the caches, on the way."""
    contestant(1, 0)
    return max(1, round(seconds / max(contestant(1, 0).seconds, 1e-6)))


@cache
def field_of(name: str, seconds: float) -> dict[str, tuple[Contestant, int]]:
    """The contestants of a case, each with the number of chunks that take it about that long."""
    field = contestants(CASES[name](name))
    return {who: (contestant, calibrated(contestant, seconds)) for who, contestant in field.items()}
