"""Parameters that change with time: when to heat a tank, if electricity has another price every hour.

The time is a part of the state. An hour past 23 is 0 again, so states recur and the problem is endless.

python examples/hours_of_a_day.py
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import smoothplan as sp

CENTS = [18, 17, 16, 16, 17, 20, 26, 33, 36, 31, 26, 22, 20, 19, 20, 23, 28, 35, 40, 38, 32, 27, 23, 20]
"""The price of a kilowatt-hour, by the hour of the day."""

USE = np.array([0, 0, 0, 0, 0, 1, 4, 4, 2, 1, 1, 1, 2, 1, 1, 1, 1, 2, 3, 4, 3, 2, 1, 0])
"""Mean use of hot water by the hour, in kilowatt-hours."""

SIZE, LACKING = 20, 1.0  # kilowatt-hours in a full tank; the cost of each one that is lacking
HEAT = np.array([0, 3, 6])  # kilowatt-hours of each action


def step(states: NDArray[Any], actions: NDArray[Any], rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Heats for an hour: states are [heat in the tank, hour], and rewards are minus costs."""
    heat, hour = states.T
    bought = np.minimum(HEAT[actions], SIZE - heat)
    left = heat + bought - np.minimum(rng.poisson(USE[hour]), 15)
    costs = 0.01 * np.array(CENTS)[hour] * bought + LACKING * np.maximum(-left, 0)
    return np.stack([np.maximum(left, 0), (hour + 1) % 24], axis=1), -costs


def main() -> None:
    """Plans a day, hour by hour, and compares its cost with that of a tank that is always kept warm."""
    tank = sp.VectorModel(
        step,
        actions=["off", "half", "full"],
        discount=0.99,
        reward_range=(-20.0, 0.0),
        terminates=False,
        initial_state=[10, 0],
    )
    spent = {}
    with sp.Agent(tank, calls=1_000, reference_calls=50_000, seed=0) as agent:
        for name in ("planned", "kept warm"):
            state, rng, costs, shown = np.array([10, 0]), np.random.default_rng(1), 0.0, ""
            for _ in range(24 * 7):  # the same draws of use for both
                action = agent.act(state) if name == "planned" else 2 * (state[0] < 12)
                shown += "-hH"[action]
                after, rewards = step(state[None], np.array([action]), rng)
                state, costs = after[0], costs - float(rewards[0])
            spent[name] = costs
            print(f"{name:<10} the first day, from midnight on: {shown[:24]}")
    print("a week costs", ", ".join(f"{costs:.2f} ({name})" for name, costs in spent.items()))


if __name__ == "__main__":
    main()
