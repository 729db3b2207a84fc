"""What the choices of `ReferenceCruiser` are worth: calls × variance of the estimate of order 2, beside naive choices.

Ours: the quadratic term at one random step, with as many pairs as the pilot says, and the calls split between chains
and corrections by their cost and variance. Naive: each sample is a chain with the quadratic term at all of its steps,
from two pairs each. What a given accuracy costs is proportional to calls × variance of the mean, so that the ratio
tells how many times fewer calls are needed. Choices are also taken back one at a time.
"""

import argparse
import math
from functools import partial
from typing import NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.base.compiling import compiled
from smoothplan.chains.cruiser import ReferenceCruiser
from smoothplan.chains.reference import TabularReference
from smoothplan.chains.table import Sampler, TableChains, quadratic, walked
from smoothplan.models.model import Oracle
from smoothplan.run.chunks import Sums
from smoothplan.run.records import ReferenceDetails

GOAL = 10.0
"""How many times fewer calls than naive choices need."""

DISCOUNT, TEMPERATURE, ERROR_RANGE, STATE = 0.99, 0.3, 0.25, 0


class Part(NamedTuple):
    """What one sample of something costs and how much it varies."""

    name: str
    calls: float
    variance: float
    mean: float
    error: float


def measured(name: str, sums: Sums, calls: int) -> Part:
    """A part from its samples."""
    count, total, squares = sums.moments
    variance = max(0.0, squares - total**2 / count) / (count - 1)
    return Part(name, calls / count, variance, total / count, math.sqrt(variance / count))


def price(*parts: Part) -> float:
    """Calls × variance of a sum of independent means, split in the best way."""
    return sum(math.sqrt(part.calls * part.variance) for part in parts) ** 2


def reference(model: sp.TabularModel, backup: sp.LogSumExp, seed: int) -> Floats:
    """Action values with errors of a given range at every state."""
    noise = np.random.default_rng(seed).uniform(size=(model.states, model.actions))
    noise = (noise - noise.min(axis=1, keepdims=True)) / np.ptp(noise, axis=1)[:, None] - 0.5
    return np.asarray(sp.exact.solve(model, backup).q + ERROR_RANGE * noise)


@partial(compiled, allocates=True)
def corrected_everywhere(state: int, pairs: int, horizon: int, run: Sampler) -> float:
    """The quadratic term at every step of a chain, discounted: the alternative to one step at random."""
    columns, actions = run.soft.shifts.shape
    frames = np.empty((1, 1 + columns, actions + 1))
    total, scale = 0.0, 1.0
    for _ in range(horizon):
        _, sample, _ = quadratic(state, pairs, horizon, frames, run)
        total += scale * sample
        scale *= run.discount
        state = walked(state, 1, run)
        if state < 0:
            break
    return total


def main() -> None:
    """Prints the ratios; fails below the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=float, default=2e8, help="simulator calls for each measurement")
    options = parser.parse_args()
    model = sp.models.garnet(
        states=200, actions=4, branching=4, discount=DISCOUNT, seed=options.seed, reward_kind="bernoulli"
    )
    backup = sp.LogSumExp(TEMPERATURE)
    table = reference(model, backup, options.seed)
    planner = ReferenceCruiser(backup, TabularReference(table), epsilon=0.5)
    found = sp.plan(planner, model, STATE, seed=options.seed, max_calls=int(options.calls)).details
    assert isinstance(found, ReferenceDetails)
    assert found.pairs is not None
    horizon, pairs = found.horizon, found.pairs
    chains = TableChains(model, backup, table, float(np.mean(sp.curvature.value_interval(model, backup))))

    def chain(name: str) -> Part:
        oracle = Oracle(model, options.seed, 1)
        return measured(name, chains.values(oracle, STATE, 20_000, horizon), oracle.calls)

    def one_step(name: str, pairs: int) -> Part:
        oracle = Oracle(model, options.seed, 2)
        count = max(50, int(options.calls / (2 * 0.75 * pairs * horizon)))
        return measured(name, chains.corrections(oracle, STATE, count, pairs, horizon), oracle.calls)

    def all_steps(name: str, pairs: int) -> Part:
        oracle = Oracle(model, options.seed, 3)
        count = max(20, int(options.calls / (2 * 0.75 * pairs * horizon**2)))
        run = chains.sampler(oracle)
        samples = np.array([corrected_everywhere(STATE, pairs, horizon, run) for _ in range(count)])
        return measured(name, Sums(count, float(samples.sum()), float(samples @ samples)), oracle.calls)

    linear = chain("chains of order 1")
    ours, two = one_step(f"one step, n = {pairs}", pairs), one_step("one step, n = 2", 2)
    naive, many = all_steps("all steps, n = 2", 2), all_steps(f"all steps, n = {pairs}", pairs)
    print(f"γ = {DISCOUNT}, η = {TEMPERATURE}, error range {ERROR_RANGE}, 200 states, H = {horizon}\n")
    print(f"  {'':<20}{'calls':>12}{'variance':>12}   mean")
    for part in (linear, ours, two, many, naive):
        print(f"  {part.name:<20}{part.calls:>12.4g}{part.variance:>12.4g}   {part.mean:.4g} ± {part.error:.2g}")
    # The naive sample is a chain and all of its corrections at once.
    together = (linear.calls + naive.calls) * (linear.variance + naive.variance)
    best = price(linear, ours)
    print("\ncalls × variance of order 2, times ours:")
    for name, other in (
        ("ours", best),
        ("ours, not split", (linear.calls + ours.calls) * (linear.variance + ours.variance)),
        ("one step, n = 2, split", price(linear, two)),
        (f"all steps, n = {pairs}, split", price(linear, many)),
        ("all steps, n = 2, not split", together),
    ):
        print(f"  {name:<30}{other / best:>10.1f}")
    if together < GOAL * best:
        raise SystemExit(f"only {together / best:.1f} times fewer calls than naive choices; the goal is {GOAL:g}")


if __name__ == "__main__":
    main()
