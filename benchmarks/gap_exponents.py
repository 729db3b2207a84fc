"""How the simulator calls of a planner in search of the best action grow with 1/(Δ ∨ ε).

Two actions at the root lead to the same states and differ in their rewards by Δ only. Either Δ shrinks and ε is far
below it, or Δ = 0 and ε shrinks. The slope of log calls against log 1/(Δ ∨ ε) should approach 2 + α, where one return
through a level of bias b costs b^−α: 4 for levels of order 1 and 3 for those of order 2. Constants come first: it is
the slopes at the fine end that count, and what limits them is the slope of the levels themselves, which is shown too.
For OT-GapE it should approach 2, once the search has discovered all states that matter: so there are few.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

import smoothplan as sp
from smoothplan.run import Planner
from smoothplan.schedules.level import Problem
from smoothplan.schedules.optimise import ladder

Factory = Callable[[float], Planner]
"""A planner for an accuracy ε."""

DISCOUNT, TEMPERATURE, DELTA = 0.2, 1.0, 0.1
STATES, BRANCHING = 6, 4
FAR_BELOW = 0.05
"""ε over Δ where the gap is to decide."""

BACKUP = sp.LogSumExp(TEMPERATURE)
FACTORIES: dict[str, Factory] = {
    f"OTGapCruiser, order {order}": lambda epsilon, order=order: sp.OTGapCruiser(BACKUP, epsilon, DELTA, order)
    for order in (0, 1, 2)
} | {"OTGapE": lambda epsilon: sp.OTGapE(BACKUP, epsilon, DELTA)}


def twins(gap: float) -> sp.TabularModel:
    """A random model in whose state 0 both actions do the same, except that their mean rewards differ by the gap."""
    rng = np.random.default_rng(1)
    shape = (STATES, 2, BRANCHING)
    probabilities = rng.dirichlet(np.ones(BRANCHING), size=shape[:2])
    successors = rng.integers(1, STATES, size=shape)
    rewards = rng.random(shape[:2])
    probabilities[0, 1], successors[0, 1] = probabilities[0, 0], successors[0, 0]
    rewards[0] = 0.5 + gap / 2.0, 0.5 - gap / 2.0
    return sp.TabularModel(probabilities, successors, rewards, discount=DISCOUNT, reward_kind="bernoulli")


def slopes(scales: Sequence[float], prices: Sequence[float]) -> list[float]:
    """Slopes of log price against log 1/scale, between neighbours; NaN first."""
    return [math.nan, *(-np.diff(np.log(prices)) / np.diff(np.log(scales)))]


def fitted(scales: Sequence[float], prices: Sequence[float]) -> float:
    """The slope over the finer half."""
    half = len(scales) // 2
    return float(-np.polyfit(np.log(scales[half:]), np.log(prices[half:]), 1)[0])


def measure(factory: Factory, scales: Sequence[float], *, by_gap: bool, seeds: int, max_calls: int) -> list[float]:
    """Prints the calls, a geometric mean over seeds, for gaps or accuracies; stops where a run does not finish."""
    prices: list[float] = []
    for scale in scales:
        model = twins(scale if by_gap else 0.0)
        start = time.perf_counter()
        results = [
            sp.plan(factory(FAR_BELOW * scale if by_gap else scale), model, 0, seed=seed, max_calls=max_calls)
            for seed in range(seeds)
        ]
        if any(result.status != "converged" for result in results):
            break
        prices.append(math.exp(np.mean([math.log(result.calls) for result in results])))
        slope = slopes(scales[: len(prices)], prices)[-1]
        seconds = (time.perf_counter() - start) / seeds
        print(f"{scale:>10.4g}{prices[-1]:>12.3g}{slope:>8.2f}{seconds:>9.2f} s", flush=True)
    if len(prices) > 3:
        print(f"{'fitted':>10}{'':>12}{fitted(scales[: len(prices)], prices):>8.2f}  over the finer half")
    return prices


def levels(order: int, scales: Sequence[float]) -> None:
    """Prints the certified price of knowing an action within half a scale: of one return, and of all of them."""
    problem = Problem.of(twins(0.0), BACKUP)
    rungs = [ladder(problem, scale / 2.0, DELTA / 2.0, order)[1][-1] for scale in scales]
    each, prices = [float(rung.through.calls) for rung in rungs], [rung.price for rung in rungs]
    for row in zip(scales, rungs, each, slopes(scales, each), prices, slopes(scales, prices), strict=True):
        scale, rung, one, alpha, price, slope = row
        share = float(rung.through.bias) / rung.radius
        print(f"{scale:>10.4g}{one:>12.3g}{alpha:>8.2f}{price:>12.3g}{slope:>8.2f}{share:>8.2f}")
    print(f"{'fitted':>10}{'':>12}{fitted(scales, each):>8.2f}{'':>12}{fitted(scales, prices):>8.2f}")


def main() -> None:
    """Prints tables for every planner, then for the levels themselves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--finest", type=float, default=0.01, help="the smallest gap and accuracy (0.0035 takes half an hour)"
    )
    parser.add_argument("--max-calls", type=int, default=2 * 10**10, help="of one run")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--planner", action="append", choices=tuple(FACTORIES))
    options = parser.parse_args()
    scales = [0.32 * 2.0 ** (-k / 2) for k in range(100) if 0.32 * 2.0 ** (-k / 2) >= options.finest]
    for name in options.planner or FACTORIES:
        for by_gap in (True, False):
            print(f"\n{name}\n{'Δ' if by_gap else 'ε':>10}{'calls':>12}{'slope':>8}{'time':>9}")
            measure(FACTORIES[name], scales, by_gap=by_gap, seeds=options.seeds, max_calls=options.max_calls)
    for order in (0, 1, 2):
        print(f"\ncertified levels of order {order} at most: calls of one return, of all returns, and bias over radius")
        print(f"{'ε':>10}{'T':>12}{'α':>8}{'price':>12}{'slope':>8}{'bias':>8}")
        levels(order, [2.0**-k for k in range(1, 13)])


if __name__ == "__main__":
    main()
