"""Agents against tuned heuristics on simulators with float states.

    PYTHONPATH=. python benchmarks/deciding.py [--episodes 8] [--calls 20000] [--seed 0] [NAME ...]

prints discounted returns: of the heuristic and of the agent's first reference, each over many simulated episodes; and
how much better the agent is than the heuristic, in episodes with the same random numbers of the world, with the
standard error of that difference. Times per step include learning.
"""

import argparse

import numpy as np

import smoothplan as sp
from smoothplan.decide.agent import Simulated
from studies.simulators import Policy, Problem, epidemic, inventory, queues, tuned, value

PROBLEMS: dict[str, Problem] = {
    "inventory-3": inventory(3, seed=7),
    "inventory-5": inventory(5, seed=8),
    "inventory-10": inventory(10, seed=9),
    "epidemic": epidemic(),
    "queues": queues(),
}


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description="Agents against tuned heuristics.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROBLEMS)}; all by default")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--calls", type=int, default=20_000, help="simulator calls of a step")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| problem | heuristic, many | reference, many | heuristic | agent − heuristic | deviations | ms/step |")
    print("|---|---|---|---|---|---|---|")
    for name in given.names or PROBLEMS:
        print(row(PROBLEMS[name], given.episodes, given.calls, given.seed), flush=True)


def row(problem: Problem, episodes: int, calls: int, seed: int) -> str:
    """A row of the table."""
    heuristic, _ = tuned(problem)
    model = problem.model
    agent = sp.Agent(model, calls=calls, seed=seed)
    agent.prepare()
    reference = agent.reference
    assert reference is not None
    many = [value(model, policy) for policy in (heuristic, lambda states: reference.q(states).argmax(axis=1))]
    steps = int(np.ceil(np.log(0.05) / np.log(model.discount)))
    played = [agent.play(max_steps=steps, seed=number) for number in range(episodes)]
    usual = np.array([followed(model, heuristic, steps, number) for number in range(episodes)])
    gains = np.array([episode.discounted for episode in played]) - usual
    error = gains.std(ddof=1) / np.sqrt(episodes)
    speed = 1e3 * sum(episode.seconds for episode in played) / (steps * episodes)
    texts = [problem.name, *(f"{mean:.4g} ± {noise:.2g}" for mean, noise in many), f"{usual.mean():.4g}"]
    texts += [f"{gains.mean():.3g} ± {error:.2g}", f"{agent.deviations / agent.steps:.0%}", f"{speed:.0f}"]
    return f"| {' | '.join(texts)} |"


def followed(model: sp.VectorModel, policy: Policy, steps: int, seed: int) -> float:
    """The discounted return of a policy in a simulated world."""
    world, total = Simulated(model), 0.0
    world.reset(seed)
    for step in range(steps):
        reward, _, _ = world.move(int(policy(np.asarray(world.state)[None])[0]))
        total += model.discount**step * reward
    return total


if __name__ == "__main__":
    main()
