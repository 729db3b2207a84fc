"""A random walk through a simulator that tests its promises, for `check_model`."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments, streams
from smoothplan.models import model as base
from smoothplan.models.model import Actions, Box, GenerativeModel, ModelError, States, Transition


class ModelReport(NamedTuple):
    """A simulator that passed, as `check_model` saw it."""

    calls: int
    states: int  # different states that were stepped from
    rewards: tuple[float, float]  # smallest and largest reward seen
    successors: int  # most different next states seen of one (s, a)
    terminal: float  # fraction of the transitions that ended in a terminal state
    note: str = ""  # if no range of rewards is declared: one that contains those seen


@dataclass
class Examination:
    """A random walk through a model that tests its promises at every step; see `check_model` for its arguments."""

    model: GenerativeModel
    states: ArrayLike | None
    seed: int
    rounds: int
    calls: int = 0
    walkers: ClassVar[int] = 16  # states in each round of the walk
    repeats: ClassVar[int] = 32  # calls at one of them, for its different outcomes

    def __post_init__(self) -> None:
        base.required_model(self.model, boxes=True)
        if self.states is None and self.model.initial_state is None:
            raise ValueError("states must be given: this model declares no initial_state")
        self.first: States = np.asarray([self.model.initial_state] if self.states is None else self.states)
        if self.first.ndim == 0 or len(self.first) == 0:
            raise ValueError(f"states must be a batch [n, ...] of at least one state, got shape {self.first.shape}")
        self.rounds = arguments.whole("rounds", self.rounds)
        self.each = self.walkers if isinstance(cast(Any, self.model).actions, Box) else self.model.actions  # at a state
        # Random plays: steps that leave a twentieth of the value, at most, and as many plays as take about a second.
        discount, horizon = self.model.discount, base.horizon_of(self.model)
        if horizon is not None:  # to the end
            self.steps = min(horizon, 100_000)
        else:
            self.steps = min(math.ceil(math.log(0.05) / math.log(discount)), 600) if discount > 0.0 else 1
        playing = base.declared_values(self.model) is not None or horizon is not None
        self.plays = max(32, min(20_000 // self.steps, 4_000)) if playing else 0

    @property
    def most_calls(self) -> int:
        """An upper bound on its simulator calls."""
        return self.rounds * (3 * self.walkers + self.repeats) + self.steps * self.plays

    def run(self) -> ModelReport:
        """Raises `ModelError` at the first broken promise."""
        model, walk = self.model, streams.generator(self.seed)
        states, elsewhere = self.first[:0], self.first[:1]
        walked, most, seen = [], 0, set[bytes]()
        for number in range(self.rounds):
            states = np.concatenate([self.first, states])
            batch = states[walk.integers(len(states), size=min(self.walkers, len(states) * self.each))]
            before, actions = batch.copy(), self._actions(batch, number)
            self._compare_legal(batch)
            found = self._step(batch, actions, number)
            if not np.array_equal(batch, before):
                raise ModelError(f"the simulator changed a state in place: {before.tolist()} became {batch.tolist()}")
            # The same call after one elsewhere must have the same outcomes.
            self._step(elsewhere, self._actions(elsewhere, 0), number + self.rounds)
            again = self._step(batch, actions, number)
            differ = [(a != b).reshape(len(actions), -1).any(axis=1) for a, b in zip(found, again, strict=True)]
            if np.any(differ):
                row = int(np.argmax(np.any(differ, axis=0)))
                raise ModelError(
                    "the same states, actions and generator gave two different results: the simulator keeps a hidden "
                    "state, or draws from another generator than the one it is given "
                    f"({self._place(batch[row], actions[row])})"
                )
            most = max(most, self._repeat(batch[:1], actions[:1], number))
            seen.update(state.tobytes() for state in batch)
            walked.append(found)
            elsewhere, states = batch, found.next_states[~found.terminals]
        self._play()
        _, paid, ends = (np.concatenate(parts) for parts in zip(*walked, strict=True))
        low, high = float(paid.min()), float(paid.max())
        note = f"no reward_range is declared; all rewards seen lie in ({low:g}, {high:g}): an observation, no promise"
        note = "" if base.declares_rewards(model) else note
        return ModelReport(self.calls, len(seen), (low, high), most, float(ends.mean()), note)

    def _place(self, state: States, action: Any) -> str:
        box = isinstance(cast(Any, self.model).actions, Box)
        return f"state {state.tolist()}, action {action if box else base.action_names(self.model)[action]}"

    def _actions(self, states: States, number: int) -> Actions:
        """All actions in turn, or others in the place of illegal ones; of a box, drawn ones."""
        drawn = base.random_actions(self.model, states, streams.generator(self.seed, number, "world"))
        if isinstance(cast(Any, self.model.actions), Box):
            return drawn
        mask, actions = base.legal_actions(self.model, states), (np.arange(len(states)) + number) % self.model.actions
        return actions if mask is None else np.where(mask[np.arange(len(states)), actions], actions, drawn)

    def _compare_legal(self, states: States) -> None:
        """Asks for the legal actions of a state alone and again after others: they depend on nothing but the state."""
        mask = base.legal_actions(self.model, states)
        for state, first in () if mask is None else zip(states, mask, strict=True):
            again: Any = base.legal_actions(self.model, state[None])
            if not np.array_equal(again[0], first):
                answers = f"{first.tolist()} and then {again[0].tolist()} at state {state.tolist()}"
                raise ModelError(f"legal must give the same answer for the same state, got {answers}")

    def _step(self, states: States, actions: Actions, draw: int) -> Transition:
        self.calls += len(actions)
        return base.checked_step(self.model, states, actions, streams.generator(self.seed, 1 + draw))

    def _repeat(self, state: States, action: Actions, draw: int) -> int:
        """Steps one (s, a) many times; the number of different next states, after checking declarations against it."""
        model = self.model
        found = self._step(np.repeat(state, self.repeats, axis=0), np.repeat(action, self.repeats, axis=0), draw)
        where = self._place(state[0], action[0])
        rewards = np.unique(found.rewards)
        if model.reward_kind == "deterministic" and len(rewards) > 1:
            raise ModelError(f"rewards declared deterministic took values {rewards[0]} and {rewards[1]} at {where}")
        outcomes: dict[tuple[bytes, bool], float] = {}
        for row, reward, end in zip(*found, strict=True):
            known = outcomes.setdefault((row.tobytes(), bool(end)), reward)
            if model.reward_kind == "transition" and reward != known:
                values = f"{known} and {reward} at {where}, next state {row.tolist()}"
                raise ModelError(f"rewards declared fixed by the transition took values {values}")
        if (most := model.max_successors) is not None and len(outcomes) > most:
            raise ModelError(f"{len(outcomes)} different next states, more than max_successors={most}, at {where}")
        return len(outcomes)

    def _play(self) -> None:
        """Takes random actions: if they earn more than `value_range` allows, so does the best policy.

        No episode may be longer than the horizon. The mean of n returns of width w exceeds its expectation by
        w·√(log(1/α)/2n) with probability α = 1e-6 at most (Hoeffding). Rewards after the last step count as the least.
        """
        steps, count, declared = self.steps, self.plays, base.declared_values(self.model)
        discount, (least, most) = self.model.discount, base.possible_returns(self.model)
        choices = streams.generator(self.seed, 1 + 2 * self.rounds)
        states, going_on, totals = self.first[np.arange(count) % len(self.first)], np.arange(count), np.zeros(count)
        for step in range(steps):
            if len(going_on) == 0:
                break
            actions = base.random_actions(self.model, states, choices)
            found = self._step(states, actions, 1 + 2 * self.rounds + step)
            totals[going_on] += discount**step * found.rewards
            going_on, states = going_on[~found.terminals], found.next_states[~found.terminals]
        if len(going_on) and steps == base.horizon_of(self.model):
            raise base.too_long(self.model, steps, states[0])
        if declared is None:
            return
        totals[going_on] += discount**steps * least
        sure = float(totals.mean()) - (most - least) * math.sqrt(math.log(1e6) / (2.0 * count))
        if sure > declared[1] + base.ROUNDING * max(abs(least), abs(most)):
            earned = f"{totals.mean():.6g} on average from state {self.first[0].tolist()}"
            earned += f"{' and others' if len(self.first) > 1 else ''}, and surely {sure:.6g}"
            raise ModelError(f"value_range={declared} is too low: random actions earn {earned}")
