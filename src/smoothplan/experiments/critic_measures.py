"""What the experiment `critic` measures: exact errors of chains around a wrong table, and runs of the planner."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from smoothplan import exact
from smoothplan.arguments import Floats
from smoothplan.backups import Backup, LogSumExp
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import garnet
from smoothplan.plan import plan
from smoothplan.planners.reference_cruiser import ReferenceCruiser
from smoothplan.references import TabularReference
from smoothplan.running.run import Diagnosis
from smoothplan.schedules.level import Problem

MODEL: dict[str, Any] = {"states": 200, "actions": 4, "branching": 4, "reward_kind": "bernoulli"}
STATE = 0
SHIFT = 2.0
"""A critic errs by up to so many times r in the level of a state, beside r in the differences between its actions."""

TOLERANCE = 1e-10
"""Of the exact solver: well below a cubic error of the smallest r."""


@cache
def _world(discount: float, temperature: float, seed: int) -> tuple[TabularModel, Backup, exact.Solution]:
    model, backup = garnet(**MODEL, discount=discount, seed=seed), LogSumExp(temperature)
    return model, backup, exact.solve(model, backup, TOLERANCE)


def critic(discount: float, temperature: float, seed: int, error_range: float) -> Floats:
    """Q̂, [S, K]: errors whose range is r at every state, and a shift of its own for each state."""
    model, _, solution = _world(discount, temperature, seed)
    rng = np.random.default_rng(seed)
    noise = rng.uniform(size=(model.states, model.actions))
    noise = (noise - noise.min(axis=1, keepdims=True)) / np.ptp(noise, axis=1)[:, None] - 0.5
    shift = rng.uniform(-SHIFT, SHIFT, size=(model.states, 1))
    return np.asarray(solution.q + error_range * (noise + shift))


def exact_errors(discount: float, temperature: float, seed: int, table: Floats) -> dict[str, float]:
    """Extremes of V − estimate over all states: of what Q̂ says itself, and of orders 1 and 2."""
    model, backup, solution = _world(discount, temperature, seed)
    estimates = dict(zip(("order_1", "order_2"), ChainMeans(model, backup, table).orders(), strict=True))
    estimates["critic"] = backup.value(table, np.arange(model.states))
    errors = {name: solution.values - estimate for name, estimate in estimates.items()}
    result = {f"{name}_low": float(error.min()) for name, error in errors.items()}
    return result | {f"{name}_high": float(error.max()) for name, error in errors.items()}


class ChainMeans:
    """What chains around a table have for means, by linear algebra, for a model without terminal states.

    Args:
        model: a tabular model.
        backup: F.
        table: Q̂, [S, K].
    """

    def __init__(self, model: TabularModel, backup: Backup, table: Floats) -> None:
        states = np.arange(model.states)
        self._model, self._backup, self._table = model, backup, table
        policy = backup.policy(table, states)
        self._moves = np.zeros((model.states, model.states))
        np.add.at(self._moves, (states[:, None, None], model.successors), policy[:, :, None] * model.continuation)
        reward = (policy * model.expected_rewards).sum(axis=1)
        self._gain = reward + backup.value(table, states) - (policy * table).sum(axis=1)

    def _summed(self, each: Floats, horizon: int | None, tail: float = 0.0) -> Floats:
        """Σ γ^t·each(s_t) along the chain, [S]; up to a horizon, beyond which the tail counts."""
        discount = self._model.discount
        if horizon is None:
            return np.asarray(np.linalg.solve(np.eye(len(each)) - discount * self._moves, each))
        result = np.full(len(each), tail)
        for _ in range(horizon):
            result = each + discount * self._moves @ result
        return result

    def orders(self, horizon: int | None = None, tail: float = 0.0) -> tuple[Floats, Floats]:
        """The value of the policy ∇F(Q̂), and the same with quadratic terms of returns through it, [S] each.

        Args:
            horizon: steps of the chains; infinitely many by default.
            tail: the value of what lies beyond.
        """
        model = self._model
        first = self._summed(self._gain, horizon, tail)
        through = first if horizon is None else self._summed(self._gain, horizon - 1, tail)
        future = np.einsum("skb,skb->sk", model.continuation, through[model.successors])
        error = model.expected_rewards + model.discount * future - self._table
        hessian = self._backup.hessian(self._table, np.arange(model.states))
        quadratic = 0.5 * np.einsum("si,sij,sj->s", error, hessian, error)
        return first, first + self._summed(quadratic, horizon)


def sampled(s: Mapping[str, Any], seed: int, table: Floats) -> dict[str, Any]:
    """One run of the planner, beside the exact value and the exact means of its samples."""
    model, backup, solution = _world(s["discount"], s["temperature"], seed)
    planner = ReferenceCruiser(
        backup,
        TabularReference(table),
        order=s["order"],
        epsilon=s["epsilon"],
        delta=s["delta"],
        error_range=s["error_range"],
    )
    result = plan(planner, model, STATE, seed=seed, max_calls=s["calls"])
    found = result.details
    assert isinstance(found, Diagnosis)
    means = ChainMeans(model, backup, table).orders(found.horizon, Problem.of(model, backup).middle)
    estimate, error = (found.order_1, found.order_1_error) if s["order"] == 1 else (found.order_2, found.order_2_error)
    return {
        "truth": float(solution.values[STATE]),
        "mean": float(means[s["order"] - 1][STATE]),
        "estimate": estimate,
        "noise": error,
        "low": result.interval[0],
        "high": result.interval[1],
        "calls": result.calls,
        "status": result.status,
        "certified": found.certified,
    }
