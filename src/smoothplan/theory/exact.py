"""Solutions of tabular models to within a tolerance, for any backup.

Value iteration with a certified error bound. All Bellman operators T here satisfy V ≤ V' + c ⇒ TV ≤ TV' + γc, so with
d = TV − V the fixed point lies between TV + γ/(1−γ)·min d and TV + γ/(1−γ)·max d. If there are terminal states, whose
value is fixed at 0, the minimum and the maximum include 0. With a horizon of H steps, H iterations are exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.models.model import effective_horizon, masked, required_model
from smoothplan.models.tabular import TabularModel
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, at_zero_range, required_backup, restricted


@dataclass(frozen=True, eq=False)
class Solution:
    """The fixed point of a Bellman operator on a tabular model.

    Terminal states have value and action values 0, illegal actions of the others the action value −∞.
    """

    values: Floats  # V, [S]
    q: Floats  # Q, [S, K]
    policy: Floats  # ∇F(Q), or the policy evaluated, [S, K]
    error: float  # no value is further than this from the truth
    iterations: int


def solve(model: TabularModel, backup: Backup, tolerance: float = 1e-8) -> Solution:
    """The regularised optimal values V(s) = F_s(Q_s), Q_s(a) = E[R + γV(Z)], to within a tolerance, rounding included.

    Args:
        model: a tabular model.
        backup: F.
        tolerance: the largest allowed error of a value.

    Raises:
        ArithmeticError: the tolerance is finer than double precision can reach on this model.
        ModelError: a value is outside the range that the model declares.
    """
    _require_table(model)
    required_backup(backup)
    states, backup = np.arange(model.states), restricted(backup, model)
    low, high = at_zero_range(backup, model)
    gain = max(abs(model.reward_range[0] + low), abs(model.reward_range[1] + high))  # the most that one step can add
    values, error, iterations = _fixed_point(model, lambda q: backup.value(q, states), gain, tolerance)
    running = states[~model.terminal]
    for state in (running[np.argmin(values[running])], running[np.argmax(values[running])]) if len(running) else ():
        curvature.require_possible(model, backup, (values[state] - error, values[state] + error), state)
    q = action_values(model, values)
    return Solution(values, q, backup.policy(q, states), error, iterations)


def evaluate(model: TabularModel, policy: ArrayLike, backup: Backup | None = None, tolerance: float = 1e-8) -> Solution:
    """The values of a policy [S, K]: its expected discounted reward, less the backup's regulariser at every step.

    Args:
        model: a tabular model.
        policy: a distribution over actions for each state, [S, K].
        backup: its regulariser is subtracted; `HardMax`, which has none, by default.
        tolerance: the largest allowed error of a value.
    """
    _require_table(model)
    weights = arguments.distributions("policy", policy, model.actions)
    if weights.shape != (model.states, model.actions):
        raise ValueError(f"policy must have shape {(model.states, model.actions)}, got {weights.shape}")
    if model.legal is not None and (wrong := (weights > 0.0) & ~model.legal & ~model.terminal[:, None]).any():
        state, action = np.argwhere(wrong)[0]
        raise ValueError(
            f"policy must be 0 for illegal actions, got {weights[state, action]:.6g} for action "
            f"{action} at state {state}"
        )
    charge = restricted(backup or HardMax(), model).regulariser(weights, np.arange(model.states))
    gain = max(abs(bound) for bound in model.reward_range) + float(np.abs(charge).max())

    def average(q: Floats) -> Floats:
        return np.asarray(np.einsum("sk,sk->s", weights, np.where(weights > 0.0, q, 0.0)) - charge)

    found = _fixed_point(model, average, gain, tolerance)
    return Solution(found[0], action_values(model, found[0]), weights, *found[1:])


def _require_table(model: TabularModel) -> None:
    if not isinstance(required_model(model), TabularModel):
        raise TypeError(f"model must be a table of states, a TabularModel, got {arguments.shown(model)}")


def action_values(model: TabularModel, values: Floats) -> Floats:
    """Q(s, a) = E[R] + γ E[V(Z)], [S, K]; 0 at terminal states, −∞ for illegal actions."""
    future = np.einsum("skb,skb->sk", model.continuation, values[model.successors])
    q: Floats = masked(model.expected_rewards + model.discount * future, model.legal)
    q[model.terminal] = 0.0
    return q


def _fixed_point(
    model: TabularModel, aggregate: Callable[[Floats], Floats], gain: float, tolerance: float
) -> tuple[Floats, float, int]:
    """Iterates V ← aggregate(Q(V)) to within the tolerance; returns values, their error bound and the iterations."""
    tolerance, steps = arguments.positive("tolerance", tolerance), effective_horizon(model)
    reach = model.discount * steps
    # Rounding moves TV by at most this times the size of the values: B products and their sum, and five operations.
    unit = np.finfo(np.float64).eps / 2.0 * (model.probabilities.shape[-1] + 5)
    # |TV − V| starts below 2·gain and shrinks by γ: after this many iterations only rounding is left.
    enough = 2
    if model.horizon is not None:
        enough += int(model.depths.max())  # nothing changes after as many steps
    elif gain * reach > tolerance:
        enough += math.ceil((math.log(tolerance) - math.log(2.0 * gain * reach)) / math.log(model.discount))
    values = np.zeros(model.states)
    for iteration in range(1, enough + 1):
        updated = aggregate(action_values(model, values))
        updated[model.terminal] = 0.0
        change = updated - values
        low, high = curvature.with_the_end(model, float(change.min()), float(change.max()))
        rounding = unit * (gain + float(np.abs(updated).max())) * steps
        error = reach * (high - low) / 2.0 + rounding
        if error <= tolerance:
            centred = updated + reach * (high + low) / 2.0
            centred[model.terminal] = 0.0
            return centred, error, iteration
        if rounding > tolerance:
            break
        values = updated
    raise ArithmeticError(
        f"tolerance {tolerance:g} is finer than double precision can reach here: rounding may cost "
        f"{unit * gain * (1.0 + steps) * steps:.1g}"
    )
