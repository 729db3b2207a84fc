"""An agent: it decides again and again, and keeps what it learns."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import working_time
from smoothplan.base.stopping import Stopped, StopSignal, current
from smoothplan.chains.maker import ReferenceMaker
from smoothplan.chains.reference import Reference
from smoothplan.decide.decide import Decision, DecisionRun, either_limit, usual_epsilon
from smoothplan.models.gymnasium import Move
from smoothplan.models.model import GenerativeModel, Oracle, States, required_model
from smoothplan.run.plan import root_state
from smoothplan.run.records import Root
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import HardMax


class AgentTuning(NamedTuple):
    """The numbers that tune an agent."""

    calls: int = 20_000  # simulator calls of a step, if neither calls nor seconds are given
    calls_one_at_a_time: int = 4_000  # the same if the simulator steps one state at a time
    first_steps: int = 25  # calls for the reference before the first step, in steps
    first_seconds: float = 10.0  # the same in the time of steps, if time is limited
    learning: float = 0.25  # the share of a step's budget for improving the reference


ACTING = AgentTuning()

End = Literal["terminated", "truncated", "max_steps", "interrupted"]
"""Why an episode ended: by itself; by the environment's time limit; by the agent's limit on steps; by the user."""


class World(Protocol):
    """A place to act in: a real environment, or the simulator itself."""

    @property
    def state(self) -> Any:
        """The state as the model knows it."""

    def reset(self, seed: int) -> None:
        """Starts an episode."""

    def move(self, action: int) -> Move:
        """Takes an action."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode as it was played."""

    score: float  # the sum of its rewards, which Gymnasium calls the return
    discounted: float
    steps: int
    end: End
    deviations: int  # steps at which another action was taken than the reference's best
    calls: int  # simulator calls
    seconds: float
    states: States = field(repr=False)  # before each step, [T, ...]
    actions: Ints = field(repr=False)  # [T]
    rewards: Floats = field(repr=False)  # [T]


class Agent(AbstractContextManager["Agent"]):
    """Chooses actions, state by state, and keeps what its reference learns.

    The first decision makes a reference from there. At every state a part of the calls improves it, if it can learn,
    and the rest goes into a race between the actions, as in `decide`.

    Args:
        model: the simulator.
        calls: simulator calls of a decision, at most; if no limit is given 20,000, or 4,000 for a simulator that steps
            one state at a time. With 0 the reference's own best action is taken.
        seconds: time of a decision, instead of calls. Decisions then depend on the machine.
        reference: Q̂; by default it is made from the simulator. One with a method improve(calls, state) is improved at
            every state, which changes it.
        reference_calls: simulator calls for the default reference, before the first step, at most; 25 times `calls` by
            default.
        delta: the level of the estimated regret of decisions.
        seed: of the simulator calls.
        workers: as for `plan`.
        stop_signal: stops it, between two batches of simulator calls.

    Attributes:
        calls: simulator calls made, those of the reference included.
        reference_calls: simulator calls for the reference before the first step.
        steps: decisions made.
        deviations: decisions for another action than the reference's best.
        decision: the last one.

    >>> from smoothplan import models
    >>> agent = Agent(models.river_swim(discount=0.9), calls=500)
    >>> agent.act(0)
    1
    """

    def __init__(
        self,
        model: GenerativeModel,
        *,
        calls: int | None = None,
        seconds: float | None = None,
        reference: Reference | None = None,
        reference_calls: int | None = None,
        delta: float = 0.1,
        seed: int = 0,
        workers: Any = 1,
        stop_signal: StopSignal | None = None,
    ) -> None:
        self.model = required_model(model)
        usual = ACTING.calls_one_at_a_time if getattr(model.step, "one_at_a_time", False) else ACTING.calls
        self._limit, self._seconds = either_limit(calls, seconds, usual=usual, least=0)
        self._first = None if self._limit is None else ACTING.first_steps * (self._limit or usual)
        if reference_calls is not None:
            self._first = arguments.whole("reference_calls", reference_calls)
        self._delta, self._seed = arguments.failure(delta), arguments.whole("seed", seed, least=0)
        self._stop_signal = stop_signal or StopSignal()
        self._workers = Workers(workers, stop_signal=self._stop_signal)
        self._epsilon = usual_epsilon(model)
        self._maker = ReferenceMaker(model, HardMax(), reference, self._seed)
        self._raced = 0  # simulator calls of races
        self.reference_calls, self.steps, self.deviations = 0, 0, 0
        self.decision: Decision | None = None
        self._chunk = 0

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends its workers, if it has any besides this thread; `with Agent(...) as agent:` does so by itself."""
        self._workers.close()

    @property
    def calls(self) -> int:
        """Simulator calls made, those of the reference included."""
        return self._raced + self._maker.calls

    @property
    def reference(self) -> Reference | None:
        """Q̂; None until there is one."""
        return self._maker.reference

    def act(self, state: Any) -> int:
        """An action at a state that is not terminal."""
        action = self.decide(state).action
        if action is None:
            raise ValueError(f"state {state!r} is terminal: there is nothing to decide")
        return action

    def decide(self, state: Any) -> Decision:
        """The decision at a state, and how sure it is."""
        started, begun = time.perf_counter(), working_time()
        state = root_state(self.model, state)
        self._stop_signal.check()
        if self.reference is None:
            self.prepare(state)
            begun = working_time()  # the first step has as much time as the others
        root = Root(self.model, state, self._seed, self._limit, self._seconds, "auto", started, begun)
        deciding = DecisionRun(root, self._epsilon, self._delta, self.reference, self._chunk)
        if deciding.is_over:
            return deciding.decision("terminal")
        self._stop_signal.deadline = None if self._seconds is None else begun + self._seconds
        before = current.set(self._stop_signal)
        try:
            deciding.limit_calls(self._learn(state, begun))
            deciding.compare(self._workers)
        except Stopped as stopped:
            if stopped.reason != "max_seconds":
                raise
        finally:
            current.reset(before)
            self._stop_signal.deadline = None
            if deciding.race is not None:
                self._raced += deciding.race.calls
                self._chunk = deciding.race.next_chunk
        self.decision = deciding.decision("completed")
        self.steps += 1
        self.deviations += deciding.race is not None and self.decision.action != deciding.race.best
        return self.decision

    def preparation(self) -> str:
        """The budget of `prepare`, in words."""
        if self._first is None:
            return f"making a reference for about {ACTING.first_seconds * (self._seconds or 0.0):.3g} s"
        return f"making a reference by at most {self._first:,} simulator calls"

    def prepare(self, state: Any = None) -> None:
        """Makes the first reference, if there is none, from a state; the first decision does so itself."""
        if self.reference is not None:
            return
        seconds = ACTING.first_seconds * (self._seconds or 0.0)
        until = working_time() + seconds if self._first is None else None
        try:
            self._maker.make(root_state(self.model, state), calls=self._first, until=until)
        finally:
            self.reference_calls = self._maker.calls

    def _learn(self, state: Any, begun: float) -> int | None:
        """Improves the reference from a state, if it can be; the calls that are left, if they are limited."""
        if not self._maker.learns_at_states or self.model.actions == 1 or self._limit == 0:
            return self._limit
        before, calls, until = self._maker.calls, None, None
        if self._limit is None:
            until = begun + ACTING.learning * (self._seconds or 0.0)
        else:
            calls = max(1, int(ACTING.learning * self._limit))
        self._maker.improve(calls=calls, until=until, state=state)
        return None if self._limit is None else self._limit - (self._maker.calls - before)

    def play(
        self,
        world: World | None = None,
        *,
        max_steps: int = 100,
        seed: int = 0,
        on_step: Callable[[float, int], None] | None = None,
    ) -> Episode:
        """Plays one episode, to its end or until a signal comes.

        Args:
            world: by default the simulator itself, from its initial state.
            max_steps: of an episode that does not end before.
            seed: of the episode.
            on_step: called with the score and the steps so far, after every step.
        """
        world = Simulated(self.model) if world is None else world
        started, before, deviated = time.perf_counter(), self.calls, self.deviations
        states: list[Any] = []
        actions: list[int] = []
        rewards: list[float] = []
        end: End = "max_steps"
        try:
            world.reset(seed)
            while len(actions) < max_steps:
                state = world.state
                action = self.act(state)
                move = world.move(action)
                states.append(state)
                actions.append(action)
                rewards.append(move.reward)
                if on_step is not None:
                    on_step(sum(rewards), len(rewards))
                if move.terminated or move.truncated:
                    end = "terminated" if move.terminated else "truncated"
                    break
        except (Stopped, KeyboardInterrupt):
            end = "interrupted"
        gains = np.array(rewards)
        return Episode(
            score=float(gains.sum()),
            discounted=float(gains @ self.model.discount ** np.arange(len(gains))),
            steps=len(gains),
            end=end,
            deviations=self.deviations - deviated,
            calls=self.calls - before,
            seconds=time.perf_counter() - started,
            states=np.array(states),
            actions=np.array(actions, dtype=np.int64),
            rewards=gains,
        )


class Simulated:
    """A simulator that declares an initial state as a world."""

    def __init__(self, model: GenerativeModel) -> None:
        self._model = model
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Starts an episode."""
        self.state, self._oracle = root_state(self._model, None), Oracle(self._model, seed, role="world")

    def move(self, action: int) -> Move:
        """Takes an action."""
        states, rewards, terminals = self._oracle.sample(np.asarray(self.state)[None], np.array([action]))
        self.state = states[0]
        return Move(float(rewards[0]), bool(terminals[0]), False)
