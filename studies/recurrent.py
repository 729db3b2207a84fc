"""Recurrent models, whose few states are visited again and again, for benchmarks, studies and tests."""

import math
from typing import Any

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import States
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import VectorModel
from smoothplan.models.zoo import garnet

CAPACITY = 15
"""Customers that fit into either queue; an arrival at a full queue is lost."""

ARRIVALS = (0.2, 0.15, 0.05)
"""Probabilities of an arrival at the first queue, at the second, at both."""

SERVED = np.array([0, 0, 1, 1])
"""The queue that an action serves."""

SERVICE = np.array([0.35, 0.55, 0.35, 0.55])
"""The probability that an action completes a service; a slow and a fast way for each queue."""

PRICES = np.array([0.0, 3.0, 0.0, 3.0])
"""What an action costs per step."""

WAITING = np.array([1.0, 1.5])
"""What a waiting customer of each queue costs per step."""

MOST = float(CAPACITY * WAITING.sum() + PRICES.max())
"""The largest cost of a step; rewards are divided by it."""


def redeclared(model: TabularModel, **changes: Any) -> TabularModel:
    """The same table with other declarations."""
    fields = {
        "discount": model.discount,
        "reward_kind": model.reward_kind,
        "reward_range": model.reward_range,
        "terminal": model.ends,
        "initial_state": model.initial_state,
    }
    return TabularModel(model.probabilities, model.successors, model.rewards, **{**fields, **changes})


def two_queues(discount: float) -> TabularModel:
    """Two queues and one server: 256 states, 4 actions, at most 5 successors; rewards in [−1, 0] fixed by (s, a).

    At most one of these happens in a step: an arrival at either queue, at both, or the end of a service.
    """
    side = CAPACITY + 1
    states, actions = (grid.reshape(-1) for grid in np.indices((side * side, len(SERVED))))
    queues = np.stack([states // side, states % side], axis=1)
    moves = _moves(queues, actions)
    found = np.clip(queues[:, None] + moves, 0, CAPACITY)
    chances = np.stack([*(np.full(len(states), chance) for chance in ARRIVALS), SERVICE[actions]], axis=1)
    shape = side * side, len(SERVED), -1
    return TabularModel(
        np.concatenate([chances, 1.0 - chances.sum(axis=1, keepdims=True)], axis=1).reshape(shape),
        (found[..., 0] * side + found[..., 1]).reshape(shape),
        queue_rewards(queues, actions).reshape(shape[:2]),
        discount=discount,
        reward_range=(-1.0, 0.0),
        initial_state=5 * side + 5,
        action_names=("first, slow", "first, fast", "second, slow", "second, fast"),
    )


def _moves(queues: Ints, actions: Ints) -> Ints:
    """How each event changes the queues, [n, 5, 2]: arrivals, the end of a service, nothing."""
    moves = np.zeros((len(queues), 5, 2), dtype=np.int64)
    moves[:, :3] = [[1, 0], [0, 1], [1, 1]]
    moves[np.arange(len(queues)), 3, SERVED[actions]] = -1
    return moves


def queue_rewards(queues: Ints, actions: Ints) -> Floats:
    """Minus the costs of waiting and of service, [n]; queues are [n, 2]."""
    return np.asarray(-(queues @ WAITING + PRICES[actions]) / MOST)


def _queues_step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    """The two queues, vectorised."""
    levels = np.cumsum(ARRIVALS)
    drawn = rng.random(len(states))
    first = (drawn < levels[0]) | ((drawn >= levels[1]) & (drawn < levels[2]))
    second = (drawn >= levels[0]) & (drawn < levels[2])
    served = (drawn >= levels[2]) & (drawn < levels[2] + SERVICE[actions])
    moved = states + np.stack([first, second], axis=1)
    moved -= served[:, None] & (SERVED[actions][:, None] == np.arange(2))
    return np.clip(moved, 0, CAPACITY), queue_rewards(states, actions)


def two_queues_simulator(discount: float) -> VectorModel:
    """`two_queues` as a NumPy simulator: a state is the lengths of both queues."""
    return VectorModel(
        _queues_step,
        actions=len(SERVED),
        discount=discount,
        reward_range=(-1.0, 0.0),
        reward_kind="deterministic",
        max_successors=5,
        terminates=False,
        initial_state=np.array([5, 5]),
    )


def mixed(seed: int, depth: int = 4, states: int = 40, discount: float = 0.9) -> TabularModel:
    """A random tree, whose nodes are met once, that leads into a random recurrent model.

    Every pair has 2 successors and every state 3 actions, so that there are 6^d nodes at depth d. The root is state 0,
    and the recurrent states come last.
    """
    actions, branching = 3, 2
    last = garnet(states, actions, branching, discount, seed)
    rng = np.random.default_rng(seed)
    inner = sum((actions * branching) ** d for d in range(depth))
    shape = inner, actions, branching
    children = 1 + np.arange(inner * actions * branching).reshape(shape)
    nodes = children.size + 1
    leaves = nodes - inner
    below = nodes + rng.integers(states, size=(leaves, actions, branching))
    probabilities = rng.dirichlet(np.ones(branching), size=(nodes, actions))
    return TabularModel(
        np.concatenate([probabilities, last.probabilities]),
        np.concatenate([children, below, nodes + last.successors]),
        np.concatenate([rng.random((nodes, actions)), last.rewards]),
        discount=discount,
        reward_range=(0.0, 1.0),
    )


def warehouse(discount: float, capacity: int = 240, largest_demand: int = 24) -> TabularModel:
    """A stock of 0 to `capacity` units that is ordered in lots; a random demand is met as far as the stock goes.

    Demand is binomial, with `largest_demand` + 1 outcomes. A unit sold earns 1, an order costs 2 and 0.4 per unit, a
    unit left costs 0.01 per step: the reward depends on the next state. An order that does not fit is cut.
    """
    orders = np.array([0, 10, 20, 40, 80])
    stock = np.arange(capacity + 1)[:, None, None]
    delivered = np.minimum(orders[:, None], capacity - stock)
    available = stock + delivered
    demand = np.arange(largest_demand + 1)
    sold = np.minimum(demand, available)
    left = available - sold
    odds = np.array([math.comb(largest_demand, k) for k in demand]) / 2.0**largest_demand
    tails = np.cumsum(odds[::-1])[::-1]
    # All demands that sell out lead to the same state: one outcome.
    chances = np.where(demand < available, odds, np.where(demand == available, tails, 0.0))
    rewards = sold - 2.0 * (delivered > 0) - 0.4 * delivered - 0.01 * left
    return TabularModel(chances, left, rewards, discount=discount, initial_state=20)
