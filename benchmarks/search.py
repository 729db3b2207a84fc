"""Planning by bounds on large random models: what it costs in simulator calls, memory per pair, and calls per second.

Prices are medians over instances: 100,000 states, 5 actions, 2 successors, half of the rewards zero, γ = 0.7, δ = 0.1.
Rewards are fixed numbers; "declared" models say so, "bounded" ones declare their range only. The speed is compared
with the C++ twin of the recursive engines, interleaved, so that nothing depends on the speed of the machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import smoothplan as sp
from smoothplan.run.records import GapDetails, Planner
from studies.contest import own_twin, plug_in_case, twin, workshop, write_data
from studies.recurrent import redeclared

EPSILONS = (1.0, 0.5, 0.2)
REPEATS = 5
RATIO_GOAL = 200e3 / 200e6
"""Calls per second over those of the twin."""

MAX_CALLS = 20_000_000
Factory = Callable[[float], Planner]

HARD, SOFT = sp.HardMax(), sp.LogSumExp(0.05)
PLANNERS: dict[str, tuple[Factory, tuple[float, ...]]] = {
    "OT-GapE, hard max, declared": (lambda epsilon: sp.OTGapE(HARD, epsilon), (1e3, 1.2e4, 9e4)),
    "OT-GapE, η = 0.05, declared": (lambda epsilon: sp.OTGapE(SOFT, epsilon), (2e3, 2e4, 2e5)),
    "OT-GapE, hard max, bounded": (lambda epsilon: sp.OTGapE(HARD, epsilon), (4e4, 2.5e5, 1.5e6)),
    "trajectories, declared": (lambda epsilon: sp.OTGapE(HARD, epsilon, sampling="trajectories"), ()),
    "trajectories, bounded": (lambda epsilon: sp.OTGapE(HARD, epsilon, sampling="trajectories"), ()),
}
"""Planners and the goals for their prices; "bounded" ones plan on models that declare no more than a range."""


def instance(seed: int) -> sp.TabularModel:
    """A large random model."""
    return sp.models.garnet(states=100_000, actions=5, branching=2, discount=0.7, sparsity=0.5, seed=seed)


def prices(models: list[sp.TabularModel]) -> None:
    """Median calls, and how often an interval at the root missed the truth."""
    truths = {backup: [sp.exact.solve(model, backup).q[0] for model in models] for backup in (HARD, SOFT)}
    print(f"{'simulator calls, median':<40}" + "".join(f"{f'ε = {epsilon:g}':>12}{'goal':>9}" for epsilon in EPSILONS))
    for name, (factory, goals) in PLANNERS.items():
        row, missed, unfinished, largest = f"{name:<40}", 0, 0, 0.0
        for number, epsilon in enumerate(EPSILONS):
            calls = []
            for seed, model in enumerate(models):
                planner = factory(epsilon)
                known = redeclared(model, reward_kind="bounded") if name.endswith("bounded") else model
                result = sp.plan(planner, known, 0, seed=seed, max_calls=MAX_CALLS)
                found, intervals = result.details, result.q_intervals
                assert isinstance(found, GapDetails)
                assert intervals is not None
                truth = truths[SOFT if planner.backup is SOFT else HARD][seed]
                missed += bool((intervals[:, 0] > truth + 1e-9).any() or (intervals[:, 1] < truth - 1e-9).any())
                unfinished += result.status != "converged"
                calls.append(result.calls)
                largest = max(largest, found.bytes / (found.states * model.actions))
            row += f"{statistics.median(calls):>12,.0f}{f'{goals[number]:.2g}' if goals else '':>9}"
        print(f"{row}   missed {missed}, unfinished {unfinished}, {largest:.0f} bytes per pair (goal 200)", flush=True)


def speed(model: sp.TabularModel) -> None:
    """Calls per second of the search and of the twin, in turn."""
    case, program, data = plug_in_case(), own_twin(), workshop() / "case.bin"
    if program is None:
        raise SystemExit("the speed is compared with a program in C++, and there is no compiler")
    write_data(case, data)
    yardstick = twin(case, program, data, 1000)
    rates: dict[str, list[float]] = {"twin": [], "declared": [], "bounded": []}
    for repeat in range(REPEATS):
        measured = yardstick(2, repeat)
        rates["twin"].append(measured.calls / measured.seconds)
        for rewards, known in (("declared", model), ("bounded", redeclared(model, reward_kind="bounded"))):
            start = time.process_time()
            result = sp.plan(sp.OTGapE(HARD, 0.0), known, 0, seed=repeat, max_calls=500_000)
            rates[rewards].append(result.calls / (time.process_time() - start))
    medians = {name: statistics.median(many) for name, many in rates.items()}
    print(f"\ntwin: {medians['twin'] / 1e6:.0f} M calls/s")
    for rewards in ("declared", "bounded"):
        ratio = medians[rewards] / medians["twin"]
        verdict = "reached" if ratio >= RATIO_GOAL else "MISSED"
        print(f"focused search, {rewards}: {medians[rewards]:,.0f} calls/s, {ratio:.5f} of the twin ({verdict})")


def main() -> None:
    """Prints prices and speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=20)
    options = parser.parse_args()
    models = [instance(seed) for seed in range(options.instances)]
    prices(models)
    speed(models[0])


if __name__ == "__main__":
    main()
