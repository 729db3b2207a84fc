"""History: how much to order, if demand depends on that of the last two days.

Yesterday's demand alone would be no state, because the next one depends on more. So a state has both, after the stock.

python examples/last_two_sales.py
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import smoothplan as sp

MARGIN, KEEPING, DELIVERY, LOST = 4.0, 0.3, 12.0, 1.0  # of a piece, a piece overnight, an order, a customer sent away
ORDERS = np.array([0, 15, 30, 45])  # pieces of each action


def forecast(yesterday: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """Mean demand, [n]: it follows level and trend. Replace it by a fit to your own sales."""
    return np.asarray(np.clip(8.0 + 0.65 * yesterday + 0.4 * (yesterday - before), 2.0, 38.0))


def step(states: NDArray[Any], actions: NDArray[Any], rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """A day: states are [stock, demand of yesterday, of the day before], and rewards are profits."""
    stock, yesterday, before = states.T
    stock = np.minimum(stock + ORDERS[actions], 80)
    demand = np.minimum(rng.poisson(forecast(yesterday, before)), 50)
    sold = np.minimum(stock, demand)
    profits = MARGIN * sold - KEEPING * (stock - sold) - DELIVERY * (actions > 0) - LOST * (demand - sold)
    return np.stack([stock - sold, demand, yesterday], axis=1), profits


def main() -> None:
    """Decides after a rise, a calm and a fall, with the same stock and the same demand yesterday."""
    shop = sp.VectorModel(
        step,
        actions=["nothing", *(f"{pieces} pieces" for pieces in ORDERS[1:])],
        discount=0.95,
        reward_range=(-90.0, 200.0),
        terminates=False,
        initial_state=[12, 20, 20],
    )
    sp.check_model(shop)
    for stock, yesterday, before in ([12, 20, 5], [12, 20, 20], [12, 20, 35]):
        decision = sp.decide(shop, [stock, yesterday, before], calls=50_000, seed=0)
        second = np.sort(decision.differences)[-2]  # the chosen action differs from itself by 0
        print(
            f"{before}, then {yesterday} were asked for, and {stock} are left: order {decision.names[decision.action]};"
        )
        print(f"    the next best order earns {-second:.1f} less (estimate)")


if __name__ == "__main__":
    main()
