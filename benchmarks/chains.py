"""Throughput of the chains beside twins in C++, as ratios within one run; and what it costs to correct at all steps.

On tables the twin (chain_twin.cpp) draws the same samples in the same way. Chains through a compiled simulator are
compared with the twin of the recursive engines (twin.cpp), whose simulator is a table: a yardstick, not a rival.
Repeats are interleaved, it is the processor's time that is taken, and the fastest counts, so that neither the speed nor
the load of the machine matters much.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.chains.batched import BatchedChains
from smoothplan.chains.grid import Grid, grid_nodes, make_grid
from smoothplan.chains.table import TableChains
from smoothplan.models.model import GenerativeModel, Oracle
from smoothplan.run.chunks import Sums
from smoothplan.theory.backups import SoftmaxMixture
from studies.contest import (
    Measurement,
    add,
    compile_program,
    mean_and_error,
    own_twin,
    plug_in_case,
)
from studies.contest import twin as recursive_twin
from studies.contest import write_data as write_case

REPEATS = 15
SECONDS = 0.1
"""About how long one measurement lasts."""

STATE = 0
HORIZON, PAIRS = 500, 100
SAMPLES = {"values": 1024, "corrections": 16}
"""Of one chunk."""

GOALS = {"table": 0.5, "jitted": 0.05}
"""Throughput as a fraction of the twin's."""

SUSPICIOUS = 5.0
"""Standard errors between two means beyond which one of the two implementations is wrong."""

Kind = Literal["values", "corrections"]
Contestant = Callable[[int, int], Measurement]
"""chunks, seed → what it measured."""


@dataclass(frozen=True, eq=False)
class Case:
    """A tabular model, a backup, and a reference that is wrong by a little."""

    name: str
    model: sp.TabularModel
    backup: SoftmaxMixture
    reference: Floats  # [S, K]
    tail: float


def case(name: str, backup: SoftmaxMixture, states: int, actions: int, branching: int, discount: float = 0.99) -> Case:
    """A Garnet with a reference that errs by normal noise."""
    model = sp.models.garnet(states=states, actions=actions, branching=branching, discount=discount, seed=1)
    solution = sp.exact.solve(model, backup)
    noise = 0.1 * np.random.default_rng(0).normal(size=solution.q.shape)
    return Case(name, model, backup, solution.q + noise, float(solution.values.mean()))


def cases() -> list[Case]:
    """Tables that fit into the first, the second and the third cache."""
    transport = sp.OptimalTransport(cost=sp.backups.line_cost(4), tau=1.0, lam=0.3)
    return [
        case("LogSumExp, 30 states, K=2, 4 successors", sp.LogSumExp(0.3), 30, 2, 4),
        case("optimal transport, 500 states, K=4, 4 successors", transport, 500, 4, 4),
        case("LogSumExp, 1000 states, K=5, 8 successors", sp.LogSumExp(0.3), 1000, 5, 8),
    ]


def write_data(case: Case, path: Path) -> None:
    """The case as the twin reads it: numbers of double precision, one after the other."""
    model, backup, q = case.model, case.backup, case.reference
    states = np.arange(model.states)
    weights = np.atleast_2d(backup.weights(states))
    shifts = backup.shifts(model.actions).T
    rewards = model.rewards if model.rewards.ndim == 3 else model.rewards[..., None]
    numbers: list[Any] = [
        [*model.probabilities.shape, len(shifts), len(weights)], [model.discount, backup.temperature, case.tail],
        model.probabilities, np.broadcast_to(rewards, model.probabilities.shape),
        np.where(model.ends, -1, model.successors), backup.policy(q, states), backup.value(q, states)[:, None] - q, q,
        shifts, weights,
    ]  # fmt: skip
    np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in numbers]).tofile(path)


def twin(kind: Kind, program: Path, data: Path) -> Contestant:
    """The twin as a contestant. It takes its own time, without reading the data."""

    def run(chunks: int, seed: int) -> Measurement:
        numbers = [STATE, SAMPLES[kind], PAIRS, HORIZON, chunks, seed]
        command = [str(program), str(data), kind, *(str(number) for number in numbers)]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        return Measurement(float(words[0]), int(words[1]), Sums(int(words[2]), float(words[3]), float(words[4])))

    return run


def contestant(kind: Kind, chains: TableChains | BatchedChains, model: GenerativeModel, state: Any) -> Contestant:
    """An engine of chains as a contestant."""

    def run(chunks: int, seed: int) -> Measurement:
        found, calls = [], 0
        start = time.process_time()
        for chunk in range(chunks):
            oracle = Oracle(model, seed, chunk)
            if kind == "values":
                found.append(chains.values(oracle, state, SAMPLES[kind], HORIZON))
            else:
                found.append(chains.corrections(oracle, state, SAMPLES[kind], PAIRS, HORIZON))
            calls += oracle.calls
        return Measurement(time.process_time() - start, calls, add(found))

    return run


def measured(field: dict[str, Contestant]) -> dict[str, list[Measurement]]:
    """All repeats of all contestants."""
    chunks: dict[str, int] = {}
    for name, run in field.items():
        run(1, 0)  # compiles, and warms the caches
        chunks[name] = max(1, round(SECONDS / run(1, 0).seconds))
    found: dict[str, list[Measurement]] = {name: [] for name in field}
    for repeat in range(REPEATS):
        for name, run in field.items():
            found[name].append(run(chunks[name], repeat + 1))
    return found


def print_table(title: str, found: dict[str, list[Measurement]], same: bool = True) -> None:
    """Throughputs, as ratios to the first; means, which must agree where the samples are the same."""
    print(f"\n{title}\n  {'':<10}{'M calls/s':>10}{'of the twin':>13}{'goal':>7}   mean")
    rates = {name: max(each.calls / each.seconds for each in many) for name, many in found.items()}
    first = next(iter(found))
    expected, error = mean_and_error(add(each.sums for each in found[first]))
    for name, many in found.items():
        mean, own = mean_and_error(add(each.sums for each in many))
        goal = f"{GOALS[name]:.2f}" if name in GOALS else ""
        ratio = rates[name] / rates[first]
        print(f"  {name:<10}{rates[name] / 1e6:>10.1f}{ratio:>13.3f}{goal:>7}   {mean:.5f} ± {own:.5f}")
        if same and abs(mean - expected) > SUSPICIOUS * np.hypot(own, error):
            raise SystemExit(f"{name} and the twin disagree: {mean} ± {own}, {expected} ± {error}")


def run_tables(folder: Path) -> None:
    """Chains on tables beside their twin."""
    program = compile_program("chain_twin.cpp")
    if program is None:
        raise SystemExit("the twin is a program in C++, and there is no compiler")
    for case in cases():
        data = folder / "case.bin"
        write_data(case, data)
        table = TableChains(case.model, case.backup, case.reference, case.tail)
        batched = BatchedChains(case.model, case.backup, lambda states, q=case.reference: q[states], case.tail)  # type: ignore[misc]
        kinds: tuple[Kind, ...] = ("values", "corrections")
        for kind in kinds:
            field = {
                "twin": twin(kind, program, data),
                "table": contestant(kind, table, case.model, STATE),
                "batched": contestant(kind, batched, case.model, STATE),
            }
            print_table(f"{case.name}: {kind}, H = {HORIZON}", measured(field))


def cart_pole_grid() -> Grid:
    """Action values that fall with the speed at which the pole falls, so that the policy keeps it up."""
    low, high, shape = np.array([-2.4, -3.0, -0.21, -3.0]), np.array([2.4, 3.0, 0.21, 3.0]), np.array([9, 9, 9, 9])
    nodes = grid_nodes(low, high, shape)
    falling = 20.0 * nodes[:, 2] + 1.5 * nodes[:, 3]
    return make_grid(low, high, shape, np.stack([90.0 - falling, 90.0 + falling], axis=-1))


def run_simulator(folder: Path) -> None:
    """Chains through a compiled simulator, beside the twin of the recursive engines."""
    model, backup, grid = sp.models.cart_pole(), sp.LogSumExp(0.3), cart_pole_grid()
    yardstick, program, data = plug_in_case(), own_twin(), folder / "engines.bin"
    if program is None:
        raise SystemExit("the yardstick is a program in C++, and there is no compiler")
    write_case(yardstick, data)
    kinds: tuple[Kind, ...] = ("values", "corrections")
    for kind in kinds:
        field = {"twin": recursive_twin(yardstick, program, data, 4)}
        for name, chains in (
            ("jitted", BatchedChains(model, backup, grid, 80.0)),
            ("batched", BatchedChains(model, backup, grid.at, 80.0)),
        ):
            field[name] = contestant(kind, chains, model, model.initial_state)
        print_table(f"cart-pole, 9⁴ nodes: {kind}, H = {HORIZON}", measured(field), same=False)


def main() -> None:
    """Runs what is asked for, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["tables", "simulator"])
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as name:
        if only in (None, "tables"):
            run_tables(Path(name))
        if only in (None, "simulator"):
            run_simulator(Path(name))


if __name__ == "__main__":
    main()
