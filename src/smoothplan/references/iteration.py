"""Soft value iteration over discovered or aggregated states, compiled, and from wherever the values are."""

from typing import NamedTuple

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.engines.kernels import Softmaxes, fill_frame, frame_value
from smoothplan.streams import compiled

PATIENCE = 100_000
"""Sweeps, at most: more than any discount below 0.9999 needs."""


class Chances(NamedTuple):
    """A model as lists of what may follow a pair: Q(s, a) = rewards + γ Σ chances·V(successors).

    What ends the episode has no entry, or chance 0. There are S states, K actions and at most B successors.
    """

    rewards: Floats  # [S·K], means
    chances: Floats  # [S·K, B]
    successors: Ints  # [S·K, B]
    rows: Ints  # [S], where a state's weights are in `soft.weights`
    discount: float
    soft: Softmaxes


def iterate(model: Chances, q: Floats, values: Floats, tolerance: float) -> int:
    """Sweeps over q [S, K] and values [S], in place, until no value is further than the tolerance from the truth.

    Returns:
        The number of sweeps.
    """
    columns, actions = model.soft.shifts.shape
    frames = np.zeros((1, 1 + columns, actions + 1))
    # What changes by d in a sweep is within dγ/(1−γ) of the fixed point.
    enough = tolerance * (1.0 - model.discount) / max(model.discount, tolerance)
    return _iterate(model, q.reshape(-1), values, enough, frames)


@compiled
def _iterate(model: Chances, q: Floats, values: Floats, enough: float, frames: Floats) -> int:
    for sweeps in range(1, PATIENCE + 1):
        if _sweep(model, q, values, sweeps % 2 == 1, frames) <= enough:
            return sweeps
    return PATIENCE


@compiled
def _sweep(model: Chances, q: Floats, values: Floats, backwards: bool, frames: Floats) -> float:
    """Backs every state up, the last one first or last; the largest change of a value."""
    count = len(values)
    actions = model.soft.shifts.shape[1]
    change = 0.0
    for place in range(count):
        state = count - 1 - place if backwards else place
        for action in range(actions):
            pair = state * actions + action
            future = 0.0
            for branch in range(model.chances.shape[1]):
                future += model.chances[pair, branch] * values[model.successors[pair, branch]]
            q[pair] = frames[0, 0, action] = model.rewards[pair] + model.discount * future
        fill_frame(frames, 0, model.soft)
        value = frame_value(frames, 0, model.rows[state], model.soft)
        change = max(change, abs(value - values[state]))
        values[state] = value
    return change
