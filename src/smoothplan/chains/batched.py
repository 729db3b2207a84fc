"""Chains around a reference Q̂(s, ·) that is given everywhere: no recursion, no branching.

With π(s) = ∇F_s(Q̂(s)), a chain of order 1 from s with horizon H is a sample of the value of π at s,

    Y(s) = Σ_{t<H} γ^t [R_t + F(Q̂(s_t)) − Q̂(s_t, A_t)] + γ^H·tail,    A_t ~ π(s_t),

cut short at the end of the episode. The return of an action is X_a(s) = R + γY(Z), H simulator calls in all. A
correction of second order at s stands for Σ_{t<H} γ^t ½ D²F[e, e](s_t), e = E X − Q̂, along the chain: one step T is
drawn with P(T = t) ∝ γ^t, and at s_T the U-statistic of n pairs of returns.

`TableChains` is for tables, `BatchedChains` for any simulator and any reference. It advances chains in compiled code if
the simulator is compiled and the reference is a grid. Policies and values are then those of the *interpolated* action
values: F is not linear, so its values at the nodes are of no use.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.compiling import compiled
from smoothplan.base.streams import CALLS, Stream, generator, generator_words
from smoothplan.chains.grid import Grid, GridReference, interpolate
from smoothplan.chains.reference import QFunction, Reference, values_of
from smoothplan.chains.table import TableChains
from smoothplan.models.model import (
    Call,
    GenerativeModel,
    Oracle,
    SimulatorError,
    States,
    horizon_of,
    too_long,
    total_weight,
)
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel, Step
from smoothplan.run.chunks import Sums, added, categorical, pieces, repeated
from smoothplan.run.records import Root, refuse_compiled
from smoothplan.theory.backups import Backup, depends_on_state, is_mixture, required_mixture, restricted
from smoothplan.theory.curvature import Problem
from smoothplan.theory.softmaxes import Softmaxes, choose, choose_pairs, draw_stops, fill_choices, paired_sums

LIMIT = 1 << 13
"""Chains that advance together: enough to hide Python's overhead, small enough for the processor's cache."""


@dataclass(frozen=True, eq=False)
class BatchedChains:
    """Samples around one reference for any model, with references of many states at a time. Nothing is kept.

    Horizons are 1 at least. At most `LIMIT` chains advance together, so that memory grows neither with the horizon nor
    with the count. If the reference is a `Grid`, chains advance in compiled code. The model is then a `JitModel` whose
    states are vectors of float64, and F does not depend on states.
    """

    model: GenerativeModel
    backup: Backup
    reference: QFunction | Grid
    tail: float = 0.0  # stands for the value behind the horizon
    gap: float = math.inf  # the most that an action of Q̂ may be below the best; one that is further below is raised

    @property
    def compiled(self) -> bool:
        """Whether threads can run it in parallel; a simulator in Python needs processes."""
        return isinstance(self.reference, Grid)

    @property
    def chunk_calls(self) -> int:
        """Simulator calls of a good chunk."""
        return 1 << 20 if self.compiled else 1 << 19

    def values(self, oracle: Oracle, state: Any, count: int, horizon: int) -> Sums:
        """Chains of order 1 from a state."""
        sizes = pieces(count, LIMIT)
        return added(count, (self._advanced(oracle, repeated(state, size), horizon)[0] for size in sizes))

    def returns(self, oracle: Oracle, state: Any, action: int, count: int, horizon: int) -> Sums:
        """Returns of an action."""
        starts = ((repeated(state, size), np.full(size, action)) for size in pieces(count, LIMIT))
        return added(count, (self._advanced(oracle, states, horizon, actions)[0] for states, actions in starts))

    def corrections(self, oracle: Oracle, state: Any, count: int, pairs: int, horizon: int) -> Sums:
        """Corrections of second order from a state."""
        discount = self.model.discount
        scale = total_weight(discount, horizon) / (4.0 * self._soft.temperature)
        sums, differing = np.zeros(3), 0
        for size in pieces(count, LIMIT):
            # Walks under the policy, each to a step drawn for it; those that end before are dropped.
            stops = draw_stops(size, discount, horizon, oracle.stream)
            _, states = self._advanced(oracle, repeated(state, size), horizon, stops=stops)
            if len(states) == 0:
                continue
            q = self._references(states)
            first, second = choose_pairs(q, self._softmaxes(states), oracle.stream)
            differ = np.flatnonzero(first != second)
            differing += len(differ)
            # Paired returns of the states at which two actions differ, and the differences of their errors.
            states, first, second = states[differ], first[differ], second[differ]
            gaps = q[differ, first] - q[differ, second]
            totals, squares = np.zeros(len(differ)), np.zeros(len(differ))
            for start in range(0, len(differ) * pairs, LIMIT // 2):
                owners = np.arange(start, min(start + LIMIT // 2, len(differ) * pairs)) // pairs
                actions = np.concatenate([first[owners], second[owners]])
                returns, _ = self._advanced(oracle, states[np.concatenate([owners, owners])], horizon, actions)
                differences = returns[: len(owners)] - returns[len(owners) :] - gaps[owners]
                totals += np.bincount(owners, differences, minlength=len(differ))
                squares += np.bincount(owners, differences**2, minlength=len(differ))
            sums += paired_sums(totals, squares, pairs, scale)
        return Sums(count, float(sums[0]), float(sums[1]), (differing, float(sums[2])))

    def _advanced(
        self, oracle: Oracle, states: States, horizon: int, actions: Ints | None = None, stops: Ints | None = None
    ) -> tuple[Floats, States]:
        """Advances a chain of order 1 from each state [n, ...] to its end, to the horizon or to a step of its own.

        If the chains are returns, their first actions [n] are given: these have no advantage. Stops [n] are the steps
        before which chains stop. Returns the sums of the chains, [n], and the states of those that have stopped.
        """
        if isinstance(self.reference, Grid):
            return self._compiled_advance(self.reference, oracle, states, horizon, actions, stops)
        results, stopped = np.zeros(len(states)), [states[:0]]
        going_on, scale = np.arange(len(states)), 1.0
        for step in range(horizon):
            if stops is not None:
                there = stops[going_on] == step
                stopped.append(states[there])
                going_on, states = going_on[~there], states[~there]
            if len(going_on) == 0:
                break
            if step == 0 and actions is not None:
                chosen, advantages = actions, np.zeros(len(actions))
            elif is_mixture(self.backup):
                chosen, advantages = choose(self._references(states), self._softmaxes(states), oracle.stream)
            else:
                q = self._references(states)
                chosen = categorical(self.backup.policy(q, states).T, len(states), oracle.rng)
                advantages = self.backup.value(q, states) - q[np.arange(len(states)), chosen]
            states, rewards, terminals = oracle.sample(states, chosen)
            results[going_on] += scale * (rewards + advantages)
            scale *= self.model.discount
            if terminals.any():
                going_on, states = going_on[~terminals], states[~terminals]
        if len(going_on) and horizon == horizon_of(self.model):
            raise too_long(self.model, horizon, states[0])
        results[going_on] += scale * self.tail
        return results, np.concatenate(stopped)

    def _compiled_advance(
        self, grid: Grid, oracle: Oracle, states: States, horizon: int, actions: Ints | None, stops: Ints | None
    ) -> tuple[Floats, States]:
        """The same in compiled code; a call that broke the model's declarations is named."""
        model, starts = self.model, np.array(states, dtype=np.float64, order="C")
        wanted, known = (starts.shape[1:], model.actions), (grid.low.shape, grid.table.shape[1])
        if known != wanted:
            raise ValueError(
                f"the model has states {list(wanted[0])} and {wanted[1]} actions, the grid states {list(known[0])} and "
                f"{known[1]} actions"
            )
        low, high = model.reward_range
        limits, fault = np.array([low, high, float(model.terminates)]), np.zeros(3 + 2 * starts.shape[1])
        soft, none = self._softmaxes(None), np.empty(0, dtype=np.int64)
        firsts, ends = (none if given is None else given.copy() for given in (actions, stops))
        results, stopped = np.zeros(len(starts)), np.empty((len(ends), starts.shape[1]))
        tail = math.inf if horizon == horizon_of(model) else self.tail  # all have ended
        world = World(model.discount, tail, soft, grid, self.gap, oracle.rng, limits, fault, oracle.stream)
        try:
            step = cast(JitModel, model).ending_step
            count = _advance(starts, firsts, ends, stopped, results, horizon, step, world)
            if math.isinf(tail) and not (finite := np.isfinite(results)).all():
                raise too_long(model, horizon, states[int(np.argmin(finite))])
            return results, stopped[:count]
        except ValueError as error:
            if fault[0] == 0.0:
                raise
            action, (before, after) = int(fault[1]), np.split(fault[3:], 2)
            # The call is one of a batch, of which nothing else is left: made again, it may draw other numbers.
            call = Call(before[None], np.array([action]), generator_words(oracle.rng), oracle.seed, oracle.chunk, 0)
            place = call.place(f", reward {fault[2]}, next state {after.tolist()}", model)
            raise SimulatorError(
                f"a simulator call broke what the model declares, rewards in [{low:g}, {high:g}], finite states and "
                f"terminates={model.terminates} ({place})",
                call,
            ) from error

    @cached_property
    def _soft(self) -> Softmaxes:
        """The backup as compiled code reads it, but for its weights."""
        mixture = required_mixture(self.backup, "a correction of second order", "sample values or returns")
        return Softmaxes(mixture.temperature, frozen(mixture.shifts(self.model.actions).T), np.empty((0, 0)))

    def _softmaxes(self, states: States | None) -> Softmaxes:
        """The backup at states [n, ...], a mixture of softmaxes, with weights [n, J] or [1, J]."""
        mixture: Any = self.backup
        return self._soft._replace(weights=frozen(np.atleast_2d(mixture.weights(states))))

    def _references(self, states: States) -> Floats:
        """Q̂ at states [n, ...], [n, K], read-only."""
        if isinstance(self.reference, Grid):
            q = np.empty((len(states), self.model.actions))
            interpolate(self.reference, states, self.gap, q)
        else:
            q, _ = conditioned(self.reference, states, self.gap, self.model)
        return np.asarray(frozen(q))


# Compiled code


class World(NamedTuple):
    """The setting of chains in compiled code."""

    discount: float
    tail: float
    soft: Softmaxes
    grid: Grid
    gap: float
    rng: np.random.Generator
    limits: Floats  # smallest and largest reward, and 1 if states may be terminal
    fault: Floats  # [3 + 2d], a call that broke the declarations: (1, action, reward, state, next state)
    stream: Stream


def _signature() -> Any:
    """The types of `_advance`."""
    import numba
    from numba.core.types import FunctionType

    floats, row = frozen(np.zeros((1, 1))), frozen(np.zeros(1))
    grid = Grid(row, row, frozen(np.ones(1, dtype=np.int64)), floats)
    soft, stream = Softmaxes(1.0, floats, floats), np.zeros(5, np.uint64)
    world = World(0.5, 0.0, soft, grid, 1.0, generator(0), np.zeros(3), np.zeros(5), stream)
    # A step is compiled by `JitModel` for states that are vectors of float64.
    states = numba.types.Array(numba.float64, 2, "C", readonly=True)
    actions = numba.types.Array(numba.int64, 1, "C", readonly=True)
    flags = numba.types.Array(numba.boolean, 1, "C")
    answer = numba.types.Tuple((numba.float64[:, ::1], numba.float64[::1], flags))
    step = FunctionType(answer(states, actions, numba.typeof(world.rng)))
    points, numbers, results = numba.float64[:, ::1], numba.int64[::1], numba.float64[::1]
    return numba.int64(points, numbers, numbers, points, results, numba.int64, step, numba.typeof(world))


@partial(compiled, allocates=True, inner=True)
def _simulated(states: Floats, actions: Ints, step: Step, world: World) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Simulator calls at states [n, d], one for each action [n], counted and checked."""
    world.stream[CALLS] += np.uint64(len(actions))
    next_states, rewards, terminals = step(states, actions, world.rng)
    low, high, ends = world.limits[0], world.limits[1], world.limits[2] == 1.0
    # No branches, so that the compiler takes several numbers at once; a NaN fails every comparison.
    sound = True
    for row in range(len(rewards)):
        sound &= (low <= rewards[row]) & (rewards[row] <= high) & (ends | (not terminals[row]))
    for number in next_states.reshape(-1):
        sound &= abs(number) < np.inf
    if sound:
        return next_states, rewards, terminals
    fault, size = world.fault, states.shape[1]
    for row in range(len(actions)):  # the first bad call is written down
        fine = low <= rewards[row] <= high and (ends or not terminals[row])
        for axis in range(size):
            fine = fine and abs(next_states[row, axis]) < np.inf
        if not fine and fault[0] == 0.0:
            fault[0], fault[1], fault[2] = 1.0, actions[row], rewards[row]
            for axis in range(size):
                fault[3 + axis], fault[3 + size + axis] = states[row, axis], next_states[row, axis]
    raise ValueError("the simulator broke its declarations")


@partial(compiled, signature=_signature, allocates=True)
def _advance(
    starts: Floats, firsts: Ints, stops: Ints, stopped: Floats, sums: Floats, horizon: int, step: Step, world: World
) -> int:
    """See `BatchedChains._advanced`: one function for chains, returns and walks. Returns how many have stopped.

    The simulator is a first-class function, so that nothing is compiled anew for another model. First actions and stops
    are [n], or [0] if there are none. All arrays are overwritten: `sums` [n] receives the sums of the chains, `stopped`
    [n, d] the states of those that stop.
    """
    together = 256  # chains, that advance by one call of the simulator for each of their steps
    dimensions, columns, found = starts.shape[1], world.grid.table.shape[1], 0
    q, room, advantages = np.empty((together, columns)), np.empty(columns), np.empty(together)
    owners, actions = np.empty(together, dtype=np.int64), np.empty(together, dtype=np.int64)
    for begin in range(0, len(starts), together):
        states, ends = starts[begin : begin + together], stops[begin : begin + together]
        count, scale = len(states), 1.0
        ended = np.zeros(count, dtype=np.bool_)
        for row in range(count):  # loops compile faster than functions of NumPy
            owners[row], advantages[row] = begin + row, 0.0
            if len(firsts) > 0:
                actions[row] = firsts[begin + row]
        for moment in range(horizon):
            # Chains that have ended are dropped, those that stop here are set aside, the others move up.
            going_on = 0
            for row in range(count):
                if ended[row]:
                    continue
                if len(ends) > 0 and ends[row] == moment:
                    for axis in range(dimensions):
                        stopped[found, axis] = states[row, axis]
                    found += 1
                    continue
                if going_on < row:
                    for axis in range(dimensions):
                        states[going_on, axis] = states[row, axis]
                    owners[going_on] = owners[row]
                    if len(ends) > 0:
                        ends[going_on] = ends[row]
                going_on += 1
            count = going_on
            if count == 0:
                break
            states, here = states[:count], actions[:count]
            if moment > 0 or len(firsts) == 0:
                interpolate(world.grid, states, world.gap, q[:count])
                fill_choices(q[:count], world.soft, world.stream, room, here, advantages)
            states, rewards, ended = _simulated(states, here, step, world)
            for row in range(count):
                sums[owners[row]] += scale * (rewards[row] + advantages[row])
            scale *= world.discount
        for row in range(count):
            if not ended[row]:
                sums[owners[row]] += scale * world.tail
    return found


# The engine for a model and a reference


def compiles(model: Any) -> TypeGuard[JitModel]:
    """Whether chains of a simulator on a grid can be compiled: its states are known to be vectors of float64."""
    example = model.initial_state if isinstance(model, JitModel) else None
    return example is not None and example.ndim == 1 and example.dtype == np.float64


def chains_for(
    root: Root, backup: Backup, reference: Reference, problem: Problem, gap: float
) -> tuple[TableChains | BatchedChains, tuple[float, float]]:
    """The engine for chains around a reference, and bounds of F(Q̂) − Q̂(a), which contain 0.

    An action of the reference that is further than a gap below the best is raised to that.
    """
    model, tail, actions = root.model, problem.middle, problem.actions
    backup = restricted(backup, model)
    if isinstance(model, TabularModel) and root.engine != "batched":
        states = np.flatnonzero(~model.terminal)
        table = np.zeros((len(model.terminal), actions))
        table[states], _ = conditioned(reference.q, states, gap, model)
        advantages = (backup.value(table[states], states)[:, None] - table[states])[table[states] > -np.inf]
        ends = float(advantages.min(initial=0.0)), float(advantages.max(initial=0.0))
        return TableChains(model, backup, table, tail), ends
    lowest, highest = min(problem.above_max, 0.0), problem.at_zero[1]  # F(Q̂) − Q̂(a) ≥ F(Q̂) − max Q̂
    if (
        (root.engine != "batched" and isinstance(reference, GridReference) and compiles(model))
        and is_mixture(backup)
        and not depends_on_state(backup)
        and model.legal is None
    ):
        nodes = reference.grid.table
        table = nodes - nodes.max(axis=1, keepdims=True)
        grid = reference.grid._replace(table=frozen(table))
        # Interpolation does not widen a range.
        ends = lowest, max(highest + min(gap, -float(table.min())), 0.0)
        return BatchedChains(model, backup, grid, tail, gap), ends
    refuse_compiled(
        root.engine,
        "a TabularModel, or a JitModel with vectors of float64 for states and all actions legal, a GridReference and "
        "a mixture of softmaxes that does not depend on the state",
        model,
        reference,
        backup,
    )
    return BatchedChains(model, backup, reference.q, tail, gap), (lowest, max(highest + gap, 0.0))


def largest_gap(backup: Backup, problem: Problem, error_range: float | None, made: bool) -> float:
    """A bound on the distance of an action of a reference from the best; the support of chains grows with it.

    Actions that are together less likely than 1e-12 need not be told apart: the policy is as good as the one given.
    This is known of mixtures of softmaxes. An error range does not grow if no action is raised that could be right,
    and a reference that keeps to it is not changed at all. In a reference that was made, and not given, no action is
    further from the best than actions can be.
    """
    possible = problem.action_gap
    spread = float(np.ptp(backup.shifts(problem.actions), axis=0).max()) if is_mixture(backup) else possible
    likely = spread + backup.temperature * math.log(problem.actions / 1e-12)
    if error_range is not None:
        return max(possible, min(likely, possible + error_range))
    return min(likely, possible) if made else likely


def conditioned(reference: QFunction, states: States, gap: float, model: GenerativeModel) -> tuple[Floats, Floats]:
    """A reference at n states: action values less the best one [n, K], none below −gap, and the best one [n].

    A policy depends on the differences alone, which are not rounded. If range(Q) ≤ gap, range(Q̂ − Q) does not grow.
    Illegal actions have the value −∞.
    """
    values = values_of(reference, states, model)
    top = values.max(axis=1)
    return np.where(values > -np.inf, np.maximum(values - top[:, None], -gap), -np.inf), top
