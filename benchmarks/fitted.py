"""What the policy of a fitted reference is worth against simulator calls, regressor by regressor.

Beside it the tuned heuristic, and a grid where there can be one. `python -m benchmarks.fitted` takes minutes for the
built-in regressor and the grid; `--regressors trees boosting network` adds scikit-learn's, which take hours at 500,000.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import smoothplan as sp
from smoothplan.chains.reference import Improvable, Reference
from studies.simulators import Problem, epidemic, inventory, queues, tuned, value

PROBLEMS: dict[str, Callable[[], Problem]] = {
    "inventory3": lambda: inventory(3),
    "inventory5": lambda: inventory(5),
    "inventory10": lambda: inventory(10),
    "inventory5-0.99": lambda: inventory(5, discount=0.99, seed=1),
    "inventory10-other": lambda: inventory(10, seed=3),
    "epidemic": epidemic,
    "queues": queues,
}


def _trees() -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(n_estimators=20, min_samples_leaf=5, random_state=0)


def _boosting() -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(random_state=0)


def _network() -> Any:
    from sklearn.neural_network import MLPRegressor

    return MLPRegressor((64, 64), early_stopping=True, random_state=0)


REGRESSORS: dict[str, Callable[[], Any]] = {
    "built-in": lambda: None,
    "trees": _trees,
    "boosting": _boosting,
    "network": _network,
}


def _grid(problem: Problem, calls: int) -> Reference:
    return sp.references.default_reference(problem.model, sp.HardMax(), calls=calls)


def _fitted(problem: Problem, calls: int, regressor: Any) -> Improvable:
    reference = sp.FittedReference(problem.model, sp.HardMax(), regressor=regressor)
    reference.improve(calls)
    return reference


def measured(problem: Problem, make: Callable[..., Reference], *given: Any) -> str:
    """The value of the greedy policy of a reference, its standard error, and the seconds that making it took."""
    before = time.process_time()
    try:
        reference = make(problem, *given)
    except ValueError as refusal:  # no grid of that dimension, or a simulator that refuses some of its states
        return f"none ({type(refusal).__name__})"
    seconds = time.process_time() - before
    mean, error = value(problem.model, lambda states: reference.q(states).argmax(axis=1))
    return f"{mean:.2f} ± {error:.2f} ({seconds:.1f} s)"


def main() -> None:
    """Prints a row for every problem and number of calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--calls", nargs="+", type=int, default=[20_000, 100_000, 500_000])
    parser.add_argument("--regressors", nargs="*", choices=REGRESSORS, default=["built-in"])
    parser.add_argument("--no-grid", action="store_true")
    chosen = parser.parse_args()
    print(
        "| problem | calls | heuristic |",
        *([] if chosen.no_grid else ["grid |"]),
        *(f"{n} |" for n in chosen.regressors),
    )
    for name in chosen.problems:
        problem = PROBLEMS[name]()
        heuristic = "{:.2f} ± {:.2f}".format(*value(problem.model, tuned(problem)[0]))
        for calls in chosen.calls:
            print(f"| {problem.name}, γ = {problem.model.discount} | {calls} | {heuristic} |", end="", flush=True)
            if not chosen.no_grid:
                print(f" {measured(problem, _grid, calls)} |", end="", flush=True)
            for regressor in chosen.regressors:
                print(f" {measured(problem, _fitted, calls, REGRESSORS[regressor]())} |", end="", flush=True)
            print()


if __name__ == "__main__":
    main()
