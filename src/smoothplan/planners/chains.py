"""Chains around a reference as a planner needs them: which engine, and bounds of what it samples."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from smoothplan import arguments, curvature
from smoothplan.arguments import Floats
from smoothplan.backups import Backup, depends_on_state
from smoothplan.engines.chains import BatchedChains, Chains, checked_references
from smoothplan.models.base import States
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.references import GridReference, Reference
from smoothplan.running.run import Root
from smoothplan.schedules.level import Problem

UNLIKELY = 1e-12
"""Actions that are together less likely than this need not be told apart."""


def likely_gap(backup: Backup, problem: Problem) -> float:
    """How far below the best an action may be for its probability to matter; no further than any action can be."""
    spread = float(np.ptp(backup.shifts(problem.actions), axis=0).max())
    return min(problem.action_gap, spread + backup.temperature * math.log(problem.actions / UNLIKELY))


class Conditioned(NamedTuple):
    """A reference at n states without what is of no use to a policy."""

    shifted: Floats  # action values less that of the best action, and none too far below, [n, K]
    top: Floats  # the value of the best action, [n]


def conditioned(reference: Reference, gap: float, actions: int) -> Callable[[States], Conditioned]:
    """A reference of which only differences are left, for a policy depends on nothing else, and they are not rounded.

    No action is further than `gap` below the best: that does not enlarge range(Q̂ − Q) if range(Q) ≤ gap.
    """

    def at(states: States) -> Conditioned:
        values = checked_references(arguments.numbers("reference.q(states)", reference.q(states)), states, actions)
        top = values.max(axis=1)
        return Conditioned(np.maximum(values - top[:, None], -gap), top)

    return at


def chains_for(
    root: Root, backup: Backup, reference: Reference, problem: Problem, gap: float | None = None
) -> tuple[Chains, tuple[float, float]]:
    """The engine for chains around a reference, and bounds of F(Q̂) − Q̂(a), of 0 too.

    No action of the reference is taken to be further than `gap` below the best; by default `likely_gap`.
    """
    model, tail = root.model, problem.middle
    gap = likely_gap(backup, problem) if gap is None else gap
    at = conditioned(reference, gap, problem.actions)
    # The compiled engines are imported here, for they compile on first use.
    if isinstance(model, TabularModel) and root.engine != "batched":
        from smoothplan.engines.compiled_chains import TableChains

        states = np.flatnonzero(~model.terminal)
        table = np.zeros((model.states, problem.actions))
        table[states] = at(states).shifted
        advantages = backup.value(table[states], states)[:, None] - table[states]
        bounds = min(float(advantages.min(initial=0.0)), 0.0), max(float(advantages.max(initial=0.0)), 0.0)
        return TableChains(model, backup, table, tail), bounds
    lowest = min(curvature.gap_to_hard_max(backup, problem.actions)[0], 0.0)  # F(Q̂) − Q̂(a) ≥ F(Q̂) − max Q̂
    if root.engine != "batched" and isinstance(reference, GridReference) and _compiles(model, backup, reference):
        from smoothplan.engines.jitted_chains import JittedChains

        nodes = reference.grid.table
        table = np.maximum(nodes - nodes.max(axis=1, keepdims=True), -gap)
        # Interpolation does not widen a range.
        bounds = lowest, max(problem.at_zero[1] - float(table.min()), 0.0)
        return JittedChains(model, backup, reference.grid._replace(table=table), tail), bounds
    if root.engine == "compiled":
        raise ValueError(
            "engine 'compiled' needs a TabularModel, or a JitModel with vectors of float64 for states, a GridReference "
            "without periodic axes and a backup that does not depend on the state, got "
            f"{type(model).__name__}, {type(reference).__name__} and {type(backup).__name__}: use 'batched'"
        )
    return BatchedChains(model, backup, lambda states: at(states).shifted, tail), (
        lowest,
        max(problem.at_zero[1] + gap, 0.0),
    )


def _compiles(model: Any, backup: Backup, reference: GridReference) -> TypeGuard[JitModel]:
    """Whether chains of compiled simulator calls are possible."""
    if not isinstance(model, JitModel) or reference.periodic:
        return False
    from smoothplan.engines.steps import serves

    return serves(model) and not depends_on_state(backup)


def support(problem: Problem, advantages: tuple[float, float], horizon: int) -> tuple[float, float]:
    """Bounds of a chain of that many steps, and of a return, whose first step has no advantage."""
    steps, tail = weight(problem.discount, horizon), problem.discount**horizon * problem.middle
    low, high = (steps * (end + advantage) for end, advantage in zip(problem.reward_range, advantages, strict=True))
    if problem.terminates:
        return min(low, 0.0) + min(tail, 0.0), max(high, 0.0) + max(tail, 0.0)
    return low + tail, high + tail


def weight(discount: float, horizon: int) -> float:
    """Σ γ^t over the steps of a chain."""
    return (1.0 - discount**horizon) / (1.0 - discount)
