"""Recurrent models on which bounds fail if anything is wrong with them, and a check of all bounds of a run.

Actions are nearly alike, so that none is dropped early, and there are many of them, so that a union over pairs is
needed; what matters is rare, so that short runs mislead.
"""

from collections.abc import Callable

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from studies.recurrent import redeclared
from tests.common import contain, identified

STATES, ACTIONS, DISCOUNT = 3, 150, 0.7
"""Of the rings below."""


def _chances(seed: int, chance: float) -> tuple[Floats, int]:
    """Chances of about that size, [S, K], and a state."""
    rng = np.random.default_rng(seed)
    return chance * rng.uniform(0.8, 1.0, size=(STATES, ACTIONS)), int(rng.integers(STATES))


def ring(seed: int, extreme: float, chance: float = 1e-3) -> sp.TabularModel:
    """A ring of states whose every action moves on, or rarely jumps to one more state, which pays `extreme`.

    The others pay nothing, and it leads back to one of them.
    """
    rare, home = _chances(seed, chance)
    probabilities = np.tile([1.0, 0.0], (STATES + 1, ACTIONS, 1))
    probabilities[:-1] = np.stack([1.0 - rare, rare], axis=-1)
    successors = np.full(probabilities.shape, STATES)
    successors[:-1, :, 0] = (np.arange(STATES)[:, None] + 1) % STATES
    successors[-1] = home
    rewards = np.zeros((STATES + 1, ACTIONS))
    rewards[-1] = extreme
    return sp.TabularModel(probabilities, successors, rewards, discount=DISCOUNT)


def loops(seed: int, chance: float = 1e-2) -> sp.TabularModel:
    """Nearly deterministic: every state leads to itself, but for a small chance of going on; only the last one pays."""
    rare, _ = _chances(seed, chance)
    stay = np.broadcast_to(np.arange(STATES)[:, None], rare.shape)
    return sp.TabularModel(
        np.stack([1.0 - rare, rare], axis=-1),
        np.stack([stay, (stay + 1) % STATES], axis=-1),
        np.where(stay == STATES - 1, 1.0, 0.0),
        discount=DISCOUNT,
    )


def lotteries(seed: int, chance: float = 5e-2) -> sp.TabularModel:
    """Every action on a ring is a ticket that wins 1, rarely; nothing else is random."""
    rare, _ = _chances(seed, chance)
    onward = np.broadcast_to((np.arange(STATES)[:, None, None] + 1) % STATES, (STATES, ACTIONS, 1))
    return sp.TabularModel(np.ones(onward.shape), onward, rare, discount=DISCOUNT, reward_kind="bernoulli")


ADVERSARIAL: dict[str, Callable[[int], sp.TabularModel]] = {
    "rare and good": lambda seed: ring(seed, 1.0),
    "not so rare and good": lambda seed: ring(seed, 1.0, 5e-2),
    "rare and bad": lambda seed: ring(seed, -1.0),
    "nearly deterministic": loops,
    "lotteries": lotteries,
}
"""Random models by seed."""


def tight(model: sp.TabularModel, solution: sp.exact.Solution) -> sp.TabularModel:
    """The same model, which declares the narrowest value range that is true."""
    margin = 1e-9
    return redeclared(model, value_range=(solution.values.min() - margin, solution.values.max() + margin))


def all_hold(result: sp.PlanResult, solution: sp.exact.Solution) -> bool:
    """Whether all bounds contain the truth: at the root, and of every state discovered and its actions."""
    graph = identified(result).graph
    states = np.asarray(graph.states)
    bounds_and_truths = [
        (np.asarray(result.interval), solution.values[states[0]]),
        (np.asarray(result.q_intervals), solution.q[states[0]]),
        (graph.intervals[:, 0], solution.values[states]),
        (graph.q[:, 0], solution.q[states]),
    ]
    return all(contain(bounds[..., 0], truth, bounds[..., 1]) for bounds, truth in bounds_and_truths)
