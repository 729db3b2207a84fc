"""Planning by bounds on recurrent models: what it costs in simulator calls and seconds, and how fast it makes calls.

Prices are medians over seeds: hard max, δ = 0.1, at the model's initial state, beside goals that were set in advance.
Answers are compared with the exact solution. The models written for model checkers are those of Storm's examples; they
are left out where stormpy is not installed. Speeds are ratios, measured in turn: to the C++ twin of the recursive
engines, of two workers to one, and to a NumPy simulator's own speed.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.run.records import GapDetails
from studies import prism
from studies.contest import own_twin, plug_in_case, twin, workshop, write_data
from studies.recurrent import mixed, redeclared, two_queues, two_queues_simulator, warehouse

HARD, DELTA = sp.HardMax(), 0.1
UNIT = (0.0, 1.0)
"""What the value of reaching a goal lies in."""

REPEATS, SECONDS = 3, 2.0
"""Of a measurement of speed."""

BATCH = 100_000
"""Calls of a NumPy simulator at a time, where its own speed is measured."""

SHARE = 0.02
"""Of the value range: the accuracy that is asked for on the two queues and the warehouse."""


class Case(NamedTuple):
    """A model, the accuracy, and the goal for its price in calls, where there is one."""

    name: str
    build: Callable[[int], sp.TabularModel]  # by seed, which only random models depend on
    epsilon: float
    goal: float | None = None


class Outcome(NamedTuple):
    """What one run took and found."""

    calls: int
    seconds: float
    gap: float
    right: bool  # whether the action is ε-optimal
    missed: bool  # whether an interval at the root misses the truth
    converged: bool


def cases() -> Iterator[Case]:
    """All models; those that need a declared value range or stormpy where these are there."""
    for discount, goal in ((0.95, 5e5), (0.99, 8e6)):
        river = sp.models.river_swim(discount=discount)
        yield Case(f"river swim, γ = {discount}", _fixed(river), 0.3, goal)
    for discount, goal in ((0.9, 4e6), (0.95, 2e7), (0.99, 1.8e8)):
        queues = two_queues(discount)
        yield Case(f"two queues, γ = {discount}", _fixed(queues), _share(queues), goal)
    stock = warehouse(0.95)
    yield Case("warehouse, γ = 0.95", _fixed(stock), _share(stock))
    yield Case("tree into a loop, γ = 0.9", mixed, 0.3)
    lake = sp.models.frozen_lake("8x8", discount=0.99)
    yield from _reaching("FrozenLake 8x8", lake, 4.4e6, 1.7e6)
    if find_spec("stormpy") is None:
        print("stormpy is not installed: the maze and the consensus protocol are left out")
        return
    for name, goal in (("maze", 1.5e5), ("consensus", 1.7e7)):
        yield from _reaching(name, redeclared(prism.checked(name).model, discount=0.99), None, goal)


def _fixed(model: sp.TabularModel) -> Callable[[int], sp.TabularModel]:
    return lambda seed: model


def _share(model: sp.TabularModel) -> float:
    low, high = model.reward_range
    return SHARE * (high - low) / (1.0 - model.discount)


def _reaching(name: str, model: sp.TabularModel, goal: float | None, declared: float) -> Iterator[Case]:
    """A goal to reach, without and with the declaration that values lie in [0, 1]."""
    yield Case(f"{name}, γ = {model.discount}", _fixed(model), 0.1, goal)
    known = redeclared(model, value_range=UNIT)
    yield Case(f"{name}, γ = {model.discount}, values in [0, 1]", _fixed(known), 0.1, declared)


def outcome(case: Case, seed: int, max_calls: int) -> Outcome:
    """One run, compared with the exact solution."""
    model = case.build(seed)
    truth = sp.exact.solve(model, HARD).q[model.initial_state]
    result = sp.plan(sp.OTGapE(HARD, case.epsilon, DELTA), model, seed=seed, max_calls=max_calls)
    found, intervals = result.details, result.q_intervals
    assert isinstance(found, GapDetails)
    assert intervals is not None
    slack = 1e-6 * max(1.0, float(np.abs(truth).max()))
    return Outcome(
        calls=result.calls,
        seconds=result.seconds,
        gap=found.gap,
        right=bool(truth.max() - truth[result.action] <= case.epsilon),
        missed=bool((intervals[:, 0] > truth + slack).any() or (intervals[:, 1] < truth - slack).any()),
        converged=result.status == "converged",
    )


def prices(only: str, seeds: int, max_calls: int | None) -> None:
    """Medians over seeds. A run ends at twice its goal, at `max_calls`, or at 10 million calls."""
    sp.plan(sp.OTGapE(HARD, 0.0), two_queues(0.9), max_calls=1000)  # compiles
    print(f"{'medians':<44}{'ε':>8}{'calls':>13}{'goal':>9}{'seconds':>9}{'gap':>9}  right, missed, unfinished")
    for case in cases():
        if only not in case.name:
            continue
        most = max_calls or int(2.0 * (case.goal or 5e6))
        runs = [outcome(case, seed, most) for seed in range(seeds)]
        calls, seconds, gap = (statistics.median(run[field] for run in runs) for field in range(3))
        right, missed, ended = (sum(run[field] for run in runs) for field in range(3, 6))
        goal = "" if case.goal is None else f"{case.goal:.2g}"
        print(
            f"{case.name:<44}{case.epsilon:>8.3g}{calls:>13,.0f}{goal:>9}{seconds:>9.2f}{gap:>9.3g}"
            f"  {right} of {seeds}, {missed}, {seeds - ended}",
            flush=True,
        )


def calibrated(model: sp.GenerativeModel) -> int:
    """Calls that a search makes in some seconds. What has to be compiled is compiled before."""
    planner = sp.OTGapE(HARD, 0.0)
    sp.plan(planner, model, max_calls=1000)
    return sp.plan(planner, model, max_seconds=SECONDS).calls


def search_rate(model: sp.GenerativeModel, calls: int, seed: int, workers: int = 1) -> tuple[float, float]:
    """Calls per second, by the clock, of a search without end; and per second of processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    sp.plan(sp.OTGapE(HARD, 0.0), model, seed=seed, max_calls=calls, workers=workers)
    return calls / (time.perf_counter() - clock), calls / (time.process_time() - processor)


def step_rate(model: sp.VectorModel, seed: int) -> float:
    """Calls per second of a simulator in large batches."""
    rng = np.random.default_rng(seed)
    states = np.repeat(np.asarray(model.initial_state)[None], BATCH, axis=0)
    actions = rng.integers(model.actions, size=BATCH)
    start, calls = time.perf_counter(), 0
    while time.perf_counter() < start + SECONDS / 4.0:
        states, calls = model.step(states, actions, rng)[0], calls + BATCH
    return calls / (time.perf_counter() - start)


def speed() -> None:
    """Ratios of calls per second, medians of repeats in turn."""
    table, simulator = two_queues(0.99), two_queues_simulator(0.99)
    many_calls, few_calls = calibrated(table), calibrated(simulator)
    case, program, data = plug_in_case(), own_twin(), workshop() / "case.bin"
    if program is None:
        raise SystemExit("the speed is compared with a program in C++, and there is no compiler")
    write_data(case, data)
    yardstick = twin(case, program, data, 1000)
    ratios: dict[str, list[float]] = {"of the twin": [], "two workers over one": [], "of the simulator's own": []}
    rates: dict[str, list[float]] = {"table": [], "NumPy simulator": []}
    for repeat in range(REPEATS):
        measured = yardstick(2, repeat)
        clock, processor = search_rate(table, many_calls, repeat)
        vector, _ = search_rate(simulator, few_calls, repeat)
        rates["table"].append(processor)
        rates["NumPy simulator"].append(vector)
        ratios["of the twin"].append(processor * measured.seconds / measured.calls)
        ratios["two workers over one"].append(search_rate(table, many_calls, repeat, workers=2)[0] / clock)
        ratios["of the simulator's own"].append(vector / step_rate(simulator, repeat))
    print("\ntwo queues, γ = 0.99")
    for name, many in rates.items():
        print(f"search of a {name}: {statistics.median(many):,.0f} calls/s")
    for name, many in ratios.items():
        print(f"speed {name}: {statistics.median(many):.4f}")


def main() -> None:
    """Prints prices and speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-calls", type=int, help="of any run (default: twice its goal)")
    parser.add_argument("--only", default="", help="cases whose name has these words; no speed then")
    options = parser.parse_args()
    prices(options.only, options.seeds, options.max_calls)
    if not options.only:
        speed()


if __name__ == "__main__":
    main()
