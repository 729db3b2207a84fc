"""Returns of several actions at a state, which share their random numbers.

A return takes one action and then the best action of a reference Q̂ at every state, for H steps; what lies beyond is
valued by the reference:

    X_a(H) = Σ_{t<H} γ^t R_t + γ^H max_b Q̂(s_H, b),    A_0 = a,    A_t = argmax_b Q̂(s_t, b).

Row i of every action sees the same random numbers, as far as the simulator draws the same way from different states, so
that differences between actions are less noisy than their values. Once an episode has ended, the rows that go on are
simulated together, each with random numbers of its own: rows stay independent of each other.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.engines.base import repeated
from smoothplan.engines.chains import QFunction, values_of
from smoothplan.engines.jitted_chains import JittedChains
from smoothplan.models.base import GenerativeModel, Oracle, States, Transition
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel


class Paired(NamedTuple):
    """Returns of n rows for A actions, [n, A] each."""

    samples: int  # n
    early: Floats  # valued by the reference after a few steps
    returns: Floats  # after all of them


@dataclass(frozen=True, eq=False)
class PairedReturns:
    """Samples returns around one reference. Nothing is kept between calls.

    Args:
        model: the simulator; calls go through the oracle.
        reference: Q̂, a function of states [n, ...] to [n, K].
        values: bounds of what a state can be worth, which the reference's values are brought into.
    """

    model: GenerativeModel
    reference: QFunction
    values: tuple[float, float]

    @property
    def compiled(self) -> bool:
        """Whether threads may share it: a simulator in Python gets processes."""
        return isinstance(self.model, TabularModel | JitModel)

    @property
    def chunk_calls(self) -> int:
        """Simulator calls of a chunk: fewer where the simulator is called once for every state."""
        return 1 << 12 if getattr(self.model.step, "one_at_a_time", False) else 1 << 17

    def paired(self, oracle: Oracle, state: States, actions: Ints, count: int, early: int, horizon: int) -> Paired:
        """Returns of some actions [A] at a state, over a horizon, and valued after a part of it."""
        actions = np.asarray(actions)
        totals = np.zeros(len(actions) * count)  # the rows of an action are together
        soon = totals
        going_on, scale = np.arange(len(totals)), 1.0
        states, chosen = repeated(state, len(totals)), np.repeat(actions, count)
        groups = len(actions)  # that share random numbers
        for step in range(1, horizon + 1):
            states, rewards, terminals = _sample(oracle, states, chosen, groups)
            totals[going_on] += scale * rewards
            scale *= self.model.discount
            if terminals.any():
                going_on, states, groups = going_on[~terminals], states[~terminals], 1
            if len(going_on) == 0:
                break
            q = self._q(states)
            if step in (early, horizon):
                ended = totals.copy()
                ended[going_on] += scale * np.clip(q.max(axis=1), *self.values)
                soon, totals = (ended, totals) if step < horizon else (soon, ended)
            chosen = q.argmax(axis=1)
        if early >= horizon:
            soon = totals
        return Paired(count, *(np.ascontiguousarray(sums.reshape(-1, count).T) for sums in (soon, totals)))

    def _q(self, states: States) -> Floats:
        return values_of(self.reference, frozen(states), self.model.actions)


@dataclass(frozen=True, eq=False)
class CompiledReturns:
    """Returns where nothing is random: one says everything of an action, and compiled chains are fastest.

    Args:
        chains: around a reference on a grid, for the hard maximum. Their tail stands for what lies beyond the horizon.
    """

    chains: JittedChains

    compiled: ClassVar[bool] = True

    @property
    def chunk_calls(self) -> int:
        """Simulator calls of a chunk."""
        return self.chains.chunk_calls

    def paired(self, oracle: Oracle, state: States, actions: Ints, count: int, early: int, horizon: int) -> Paired:
        """As `PairedReturns.paired`; all rows are alike, and early returns are the late ones."""
        totals = [self.chains.returns(oracle, state, int(action), 1, horizon).total for action in actions]
        returns = np.repeat(np.array([totals]), count, axis=0)
        return Paired(count, returns, returns)


def _sample(oracle: Oracle, states: States, actions: Ints, groups: int) -> Transition:
    """One simulator call per row; row i of every group sees the same random numbers."""
    if groups == 1:
        return oracle.sample(states, actions)
    answers = oracle.sample_alike(zip(np.split(states, groups), np.split(actions, groups), strict=True))
    return Transition(*(np.concatenate(column) for column in zip(*answers, strict=True)))
