"""CPU seconds of `decide` beside those of the simulator's own step, on the textbook problems.

    PYTHONPATH=. python benchmarks/overhead.py [--calls 2000 20000 200000] [--seed 0] [NAME ...]

prints, for each number of calls, the seconds beside the simulator and their ratio to its own. A busy machine changes
seconds by a factor of two, and ratios by less. A first decision of each problem, which compiles, is not timed.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import smoothplan as sp
from studies.textbook import CHOSEN_ON, Textbook


def seconds(problem: Textbook, calls: int, seed: int) -> tuple[float, float]:
    """Beside the simulator, and of it."""
    model, inside = problem.model(), 0.0

    def step(*given: Any) -> Any:
        nonlocal inside
        begun = time.process_time()
        answer = model.step(*given)
        inside += time.process_time() - begun
        return answer

    timed, begun = replace(model, step=step), time.process_time()
    sp.decide(timed, calls=calls, seed=seed)
    return time.process_time() - begun - inside, inside


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Time of decisions beside the simulator.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CHOSEN_ON)}; all by default")
    parser.add_argument("--calls", nargs="+", type=int, default=[2_000, 20_000, 200_000])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| problem |", *(f"{calls:,} calls |" for calls in given.calls))
    print("|---|" + "---|" * len(given.calls))
    for name in given.names or CHOSEN_ON:
        problem = CHOSEN_ON[name]()
        seconds(problem, 2_000, given.seed)
        found = [seconds(problem, calls, given.seed) for calls in given.calls]
        print(f"| {name} |", *(f"{beside:.2f} s, {beside / inside:.1f} |" for beside, inside in found), flush=True)


if __name__ == "__main__":
    main()
