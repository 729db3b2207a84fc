"""RandomizedMultilevel: its price by depth, what n₀ and a are worth, how its error falls, and how fast it is.

python benchmarks/multilevel.py [--calls 4e6] [price choices falls speed beside]
"""

import argparse
import math
import time

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.models.model import Oracle
from studies.multilevel import RandomizedMultilevel

DEPTHS, ACTIONS = (1, 2, 3, 4, 5), (2, 5)

CHUNKS = 32
"""Parts of a measurement."""


def noisy(actions: int, discount: float, seed: int) -> sp.TabularModel:
    """Rewards of 0 and 1, so that returns vary at every depth."""
    shape = sp.models.garnet(states=50, actions=actions, branching=4, discount=discount, seed=seed)
    return sp.TabularModel(
        shape.probabilities, shape.successors, shape.expected_rewards, discount=discount, reward_kind="bernoulli"
    )


MODELS: dict[str, tuple[sp.TabularModel, float]] = {
    "γ=0.2 K=2 η=0.5": (noisy(2, 0.2, 1), 0.5),
    "γ=0.2 K=2 η=0.1": (noisy(2, 0.2, 1), 0.1),
    "γ=0.5 K=3 η=0.5": (noisy(3, 0.5, 2), 0.5),
    "γ=0.5 K=3 η=0.1": (noisy(3, 0.5, 2), 0.1),
    "γ=0.9 K=2 η=0.5": (noisy(2, 0.9, 3), 0.5),
    "γ=0.9 K=2 η=0.1": (noisy(2, 0.9, 3), 0.1),
    "γ=0.5 K=5 η=0.5": (noisy(5, 0.5, 4), 0.5),
}


def sampled(planner: RandomizedMultilevel, model: sp.TabularModel, calls: float) -> Floats:
    """Samples, sums and sums of squares of each of many chunks, [CHUNKS, 3]."""
    engine = planner.engine(model, planner.depth_for(model))
    count = max(2, int(calls / engine.expected_calls / CHUNKS))
    return np.array([engine.roots(Oracle(model, 0, chunk), 0, count).moments for chunk in range(CHUNKS)])


def variance(parts: Floats) -> float:
    """Of a sample."""
    samples, total, squares = parts.sum(axis=0)
    return float((squares - total**2 / samples) / (samples - 1.0))


def price(calls: float) -> None:
    """Expected calls of a sample by depth."""
    print("expected calls of a sample, noisy rewards")
    for actions in ACTIONS:
        model = noisy(actions, 0.5, 1)
        prices = [RandomizedMultilevel(sp.LogSumExp(1.0), 0.1, depth=depth).expected_calls(model) for depth in DEPTHS]
        print(f"  K={actions}: " + "  ".join(f"{found:.3g}" for found in prices))


def choices(calls: float) -> None:
    """Calls × variance of a sample by a and n₀, at depth 2."""
    decays, bases = (1.5, 2.0, 3.0), (1, 2, 4, 8)
    print("calls × variance at depth 2; columns: " + ", ".join(f"a={a:g} n₀={n}" for a in decays for n in bases))
    for name, (model, temperature) in MODELS.items():
        found = []
        for decay in decays:
            for base in bases:
                planner = RandomizedMultilevel(sp.LogSumExp(temperature), 0.1, depth=2, base=base, decay=decay)
                found.append(planner.expected_calls(model) * variance(sampled(planner, model, calls)))
        print(f"  {name}: " + "  ".join(f"{value:.3g}" for value in found), flush=True)


def falls(calls: float) -> None:
    """The slope of the error of means against the number of samples, in logarithms: −1/2 if the variance is finite."""
    for name in ("γ=0.2 K=2 η=0.5", "γ=0.5 K=3 η=0.5"):
        model, temperature = MODELS[name]
        planner = RandomizedMultilevel(sp.LogSumExp(temperature), 0.1, depth=2)
        engine = planner.engine(model, 2)
        count, chunks = 16, 2048
        means = np.array([engine.roots(Oracle(model, 1, chunk), 0, count).total / count for chunk in range(chunks)])
        sizes, errors = [], []
        while len(means) >= CHUNKS:
            sizes.append(count * chunks / len(means))
            errors.append(means.std(ddof=1))
            means = (means[0::2] + means[1::2]) / 2.0
        slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
        print(f"  {name}: from {sizes[0]:.0f} to {sizes[-1]:.0f} samples the error falls with slope {slope:.2f}")


def speed(calls: float) -> None:
    """Simulator calls per second."""
    for actions in ACTIONS:
        for depth in (1, 2, 3):
            model = noisy(actions, 0.5, 1)
            engine = RandomizedMultilevel(sp.LogSumExp(0.5), 0.1, depth=depth).engine(model, depth)
            count, made = max(1, int(engine.chunk_calls / engine.expected_calls)), 0
            started = time.process_time()
            while made < calls:
                oracle = Oracle(model, 0, made)
                engine.roots(oracle, 0, count)
                made += oracle.calls
            print(f"  K={actions} depth {depth}: {made / (time.process_time() - started) / 1e6:.1f} M calls/s")


def beside(calls: float) -> None:
    """Calls for a standard error of 0.01 at depth 3, beside the forecast of a certified planner for ε = 0.02."""
    backup = sp.LogSumExp(1.0)
    fixed = sp.models.garnet(states=50, actions=2, branching=4, discount=0.2, seed=1)
    for name, model in (("deterministic", fixed), ("bernoulli", noisy(2, 0.2, 1))):
        planner = RandomizedMultilevel(backup, 0.02, depth=3)
        found = variance(sampled(planner, model, calls))
        needed = planner.expected_calls(model) * found / 0.01**2
        certified = sp.forecast(sp.DebiasedCruiser(backup, epsilon=0.02), model).calls
        result = sp.plan(sp.DebiasedCruiser(backup, epsilon=0.02), model, 0)
        own = sp.plan(planner, model, 0)
        print(
            f"  {name}: deviation {math.sqrt(found):.3g}, {planner.expected_calls(model):.3g} calls each, so "
            f"{needed:.3g} calls; its run for ε=0.02 made {own.calls:,}; certified: forecast {certified:.3g}, "
            f"made {result.calls:,}"
        )


if __name__ == "__main__":
    parts = {"price": price, "choices": choices, "falls": falls, "speed": speed, "beside": beside}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=float, default=4e6)
    parser.add_argument("parts", nargs="*", help=", ".join(parts))
    options = parser.parse_args()
    for part in options.parts or parts:
        print(part)
        parts[part](options.calls)
