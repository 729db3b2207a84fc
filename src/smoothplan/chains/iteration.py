"""Finite models of discovered or aggregated states, and soft value iteration on them, compiled."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.theory.softmaxes import Softmaxes, fill_frame, frame_value


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


def iterate(
    model: Chances, q: Floats, values: Floats, tolerance: float, backup: Callable[[Floats], Floats] | None = None
) -> int:
    """Sweeps over q [S, K] and values [S], in place, until no value is further than the tolerance from the truth.

    Args:
        model: what is iterated on.
        q: overwritten.
        values: where to begin; overwritten.
        tolerance: of a value.
        backup: F at all states, from [S, K] to [S], where it is no mixture of softmaxes.

    Returns:
        The number of sweeps, at most 100,000: more than any discount below 0.9999 needs.
    """
    columns, actions = model.soft.shifts.shape
    frames = np.zeros((1, 1 + columns, actions + 1))
    # What changes by d in a sweep is within dγ/(1−γ) of the fixed point.
    enough, most = tolerance * (1.0 - model.discount) / max(model.discount, tolerance), 100_000
    if backup is None:
        return _iterate(model, q.reshape(-1), values, enough, most, frames)
    for sweeps in range(1, most + 1):
        future = (model.chances * values[model.successors]).sum(axis=1)
        q[:] = (model.rewards + model.discount * future).reshape(q.shape)
        before, values[:] = values.copy(), backup(q)
        if np.abs(values - before).max(initial=0.0) <= enough:
            return sweeps
    return most


@compiled
def _iterate(model: Chances, q: Floats, values: Floats, enough: float, most: int, frames: Floats) -> int:
    for sweeps in range(1, most + 1):
        if _sweep(model, q, values, sweeps % 2 == 1, frames) <= enough:
            return sweeps
    return most


@partial(compiled, merged=True)
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
