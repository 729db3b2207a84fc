"""Which engine runs a plan, for each family of planners: a compiled one where it serves, else one for any simulator."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from smoothplan import curvature
from smoothplan.arguments import Floats
from smoothplan.backups import Backup, HardMax, SoftmaxMixture, depends_on_state, is_mixture
from smoothplan.engines.base import Engine
from smoothplan.engines.batched import BatchedEngine
from smoothplan.engines.chains import BatchedChains, Chains, values_of
from smoothplan.engines.compiled import CompiledEngine
from smoothplan.engines.compiled_chains import TableChains
from smoothplan.engines.jitted_chains import JittedChains
from smoothplan.engines.returns import CompiledReturns, PairedReturns
from smoothplan.engines.steps import serves
from smoothplan.models.base import GenerativeModel, States, is_deterministic
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.references import GridReference, Reference
from smoothplan.running.run import EngineName, Root
from smoothplan.schedules.level import Problem
from smoothplan.schedules.schedule import Schedule
from smoothplan.search.known import Key


def engine_for(name: EngineName, schedule: Schedule, backup: Backup, model: GenerativeModel) -> Engine:
    """The engine for a schedule."""
    if isinstance(model, TabularModel) and is_mixture(backup) and name != "batched":
        return CompiledEngine(schedule, backup, model)
    refuse_compiled(name, "a TabularModel and a mixture of softmaxes", model, backup)
    return BatchedEngine(schedule, backup)


def searched_table(root: Root, key: Key | None, backup: Backup) -> TabularModel | None:
    """The table that a compiled search draws from; None where the simulator is called.

    A backup that is no mixture of softmaxes is called in Python, so that such a search is not compiled as a whole.
    """
    if not is_mixture(backup):
        refuse_compiled(root.engine, "a mixture of softmaxes", backup)
    if isinstance(root.model, TabularModel) and root.engine != "batched" and key is None:
        return root.model
    refuse_compiled(root.engine, "a TabularModel and no key", root.model)
    return None


def chains_for(
    root: Root, backup: Backup, reference: Reference, problem: Problem, bounded: bool = False
) -> tuple[Chains, tuple[float, float]]:
    """The engine for chains around a reference, and bounds of F(Q̂) − Q̂(a), which contain 0.

    An action of the reference that is too far below the best is raised: further than any action can be where the error
    range of the reference is `bounded` and must not grow; else further than `likely_gap`.
    """
    model, tail = root.model, problem.middle
    gap = problem.action_gap if bounded else likely_gap(backup, problem)
    at = conditioned(reference, gap, problem.actions)
    if isinstance(model, TabularModel) and root.engine != "batched":
        states = np.flatnonzero(~model.terminal)
        table = np.zeros((model.states, problem.actions))
        table[states] = at(states).shifted
        advantages = backup.value(table[states], states)[:, None] - table[states]
        bounds = min(float(advantages.min(initial=0.0)), 0.0), max(float(advantages.max(initial=0.0)), 0.0)
        return TableChains(model, backup, table, tail), bounds
    lowest = min(curvature.gap_to_hard_max(backup, problem.actions)[0], 0.0)  # F(Q̂) − Q̂(a) ≥ F(Q̂) − max Q̂
    if (
        root.engine != "batched"
        and isinstance(reference, GridReference)
        and _compiles(model, reference)
        and _is_fixed(backup)
        # Between nodes that are raised the error range may grow.
        and not (bounded and np.ptp(reference.grid.table, axis=1).max() > gap)
    ):
        nodes = reference.grid.table
        table = np.maximum(nodes - nodes.max(axis=1, keepdims=True), -gap)
        # Interpolation does not widen a range.
        bounds = lowest, max(problem.at_zero[1] - float(table.min()), 0.0)
        return JittedChains(model, backup, reference.grid._replace(table=table), tail), bounds
    refuse_compiled(
        root.engine,
        "a TabularModel, or a JitModel with vectors of float64 for states, a GridReference without periodic axes and "
        "a mixture of softmaxes that does not depend on the state; and where error_range is given, nodes whose actions "
        "are no further apart than actions can be",
        model,
        reference,
        backup,
    )
    engine = BatchedChains(model, backup, lambda states: at(states).shifted, tail)
    return engine, (lowest, max(problem.at_zero[1] + gap, 0.0))


def likely_gap(backup: Backup, problem: Problem) -> float:
    """How far below the best an action may be for its probability to matter; no further than any action can be.

    Actions that are together less likely than 1e-12 need not be told apart. Where a probability falls off is known of
    mixtures of softmaxes.
    """
    if not is_mixture(backup):
        return problem.action_gap
    spread = float(np.ptp(backup.shifts(problem.actions), axis=0).max())
    return min(problem.action_gap, spread + backup.temperature * math.log(problem.actions / 1e-12))


def returns_for(model: GenerativeModel, reference: Reference, beyond: float) -> PairedReturns | CompiledReturns:
    """The engine for returns that follow the best actions of a reference.

    Args:
        model: the simulator.
        reference: Q̂.
        beyond: what a state is worth behind the horizon, about, for an engine that does not ask the reference there.
    """
    values = curvature.value_interval(model, HardMax())
    if is_deterministic(model) and isinstance(reference, GridReference) and _compiles(model, reference):
        return CompiledReturns(JittedChains(model, HardMax(), reference.grid, min(max(beyond, values[0]), values[1])))
    return PairedReturns(model, reference.q, values)


class Conditioned(NamedTuple):
    """A reference at n states, reduced to what a policy depends on."""

    shifted: Floats  # action values less that of the best action, and none too far below, [n, K]
    top: Floats  # the value of the best action, [n]


def conditioned(reference: Reference, gap: float, actions: int) -> Callable[[States], Conditioned]:
    """A reference of which only differences are left, for a policy depends on nothing else, and they are not rounded.

    No action is further than `gap` below the best: that does not enlarge range(Q̂ − Q) if range(Q) ≤ gap.
    """

    def at(states: States) -> Conditioned:
        values = values_of(reference.q, states, actions)
        top = values.max(axis=1)
        return Conditioned(np.maximum(values - top[:, None], -gap), top)

    return at


def _compiles(model: Any, reference: GridReference) -> TypeGuard[JitModel]:
    """Whether chains of compiled simulator calls are possible."""
    return isinstance(model, JitModel) and not reference.periodic and serves(model)


def _is_fixed(backup: Backup) -> TypeGuard[SoftmaxMixture]:
    """Whether a backup is a mixture of softmaxes that is the same at every state."""
    return is_mixture(backup) and not depends_on_state(backup)


def refuse_compiled(name: EngineName, needed: str, *given: Any) -> None:
    """The error for a compiled engine that cannot serve; nothing where it was not asked for."""
    if name == "compiled":
        kinds = ", ".join(type(thing).__name__ for thing in given)
        raise ValueError(f"engine 'compiled' needs {needed}, got {kinds}: use 'batched'")
