"""What a simulator call of a Gymnasium environment costs, as a ratio to a step of the environment itself.

    python benchmarks/environments.py [--steps 300] [NAME ...]

prints a table. Environment and model are stepped in turns, with the same actions, so that both see the same machine.
Names may have a module to import, as gymnasium.make takes them: ale_py:ALE/Freeway-v5.
"""

import argparse
import time
from typing import Any

import gymnasium
import numpy as np

from smoothplan.models import from_gymnasium
from smoothplan.models.gymnasium import native, notes
from smoothplan.models.model import random_actions

NAMES = [
    "Pendulum-v1",
    "Acrobot-v1",
    "Blackjack-v1",
    "InvertedPendulum-v5",
    "Ant-v5",
    "minigrid:MiniGrid-DoorKey-5x5-v0",
    "minigrid:MiniGrid-DoorKey-16x16-v0",
    "minigrid:MiniGrid-KeyCorridorS6R3-v0",
    "minigrid:MiniGrid-FourRooms-v0",
]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Simulator calls as ratios to steps of the environment.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="environments; some by default")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    print("| environment | by | bytes of a state | µs/step | µs/call | calls/s | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.names or NAMES:
        print(row(name, arguments.steps), flush=True)


def row(name: str, steps: int) -> str:
    """The row of one environment."""
    model, real, rng = from_gymnasium(name), gymnasium.make(name), np.random.default_rng(0)
    real.reset(seed=0)
    states: Any = np.asarray(model.initial_state)[None]
    own = calls = 0.0
    for _ in range(steps):
        action = random_actions(model, states, rng)
        begun = time.perf_counter()
        ended = any(real.step(native(real.action_space, action[0]))[2:4])
        between = time.perf_counter()
        moved, _, terminal = model.step(states, action, rng)[:3]
        own, calls = own + between - begun, calls + time.perf_counter() - between
        states = np.asarray(model.initial_state)[None] if terminal[0] else moved
        if ended:
            real.reset()
    way = next((way for way in ("copies", "snapshots") if f"by {way}" in " ".join(notes(model))), "its state")
    times = f"{own / steps * 1e6:.0f} | {calls / steps * 1e6:.0f} | {steps / calls:,.0f} | {calls / own:.1f}"
    return f"| {name} | {way} | {states.nbytes} | {times} |"


if __name__ == "__main__":
    main()
