"""An agent: it decides again and again, and keeps what it learns."""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from smoothplan import arguments, curvature
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import HardMax
from smoothplan.brake import Brake, Stopped
from smoothplan.compiling import working_time
from smoothplan.decide import EPSILON, Deciding, Decision
from smoothplan.models.base import GenerativeModel, Oracle, States, required_model
from smoothplan.models.gymnasium import Move
from smoothplan.plan import root_state
from smoothplan.planners.preparing import in_portions
from smoothplan.planners.race import RACES
from smoothplan.references import Improvable, Reference, default_reference
from smoothplan.running.run import Root
from smoothplan.running.workers import Workers

CALLS, FEWER_CALLS = 20_000, 4_000
"""Simulator calls of a step, if neither calls nor seconds are given; and where states are simulated one by one."""

FIRST, FIRST_SECONDS = 25, 10.0
"""Steps' worth of calls for the reference before the first step; and of time, where steps are limited by time."""

LEARNING = 0.25
"""The part of a step's budget that goes into improving the reference."""

End = Literal["terminated", "truncated", "max_steps", "interrupted"]
"""Why an episode was over: it ended; by the environment's limit on time; by ours; by the user."""


class World(Protocol):
    """Where an agent acts: a real environment, or the simulator itself."""

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


class Agent:
    """Chooses actions, state by state. What its reference has learnt stays.

    The first decision makes a reference from there. At every state a part of the calls improves it, where it can learn,
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
        brake: what stops it, between two batches of simulator calls.

    Attributes:
        calls: simulator calls made, those of the reference included.
        reference_calls: those for the reference before the first step.
        steps: decisions made.
        deviations: of them, those for another action than the reference's best.
        decision: the last one, with what is known of it.

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
        brake: Brake | None = None,
    ) -> None:
        if calls is not None and seconds is not None:
            raise ValueError(f"calls and seconds cannot both be given, got {calls!r} and {seconds!r}")
        self.model, self.reference = required_model(model), reference
        self._seconds = None if seconds is None else arguments.positive("seconds", seconds)
        usual = FEWER_CALLS if getattr(model.step, "one_at_a_time", False) else CALLS
        self._limit: int | None = None
        if seconds is None:
            self._limit = usual if calls is None else arguments.whole("calls", calls, least=0)
        self._first: int | None = None
        if reference_calls is not None:
            self._first = arguments.whole("reference_calls", reference_calls)
        elif self._limit is not None:
            self._first = FIRST * (self._limit or usual)
        self._delta, self._seed = arguments.failure(delta), arguments.whole("seed", seed, least=0)
        self._brake = brake or Brake()
        self._workers = Workers(workers, brake=self._brake)
        low, high = curvature.value_interval(model, HardMax())
        self._epsilon = EPSILON * (high - low)
        self._made: Oracle | None = None if reference is not None else Oracle(model, self._seed)
        self._raced = self._taught = 0  # simulator calls of races, and for improving a reference that was given
        self.reference_calls, self.steps, self.deviations = 0, 0, 0
        self.decision: Decision | None = None
        self._chunk = RACES

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends its workers, where it has any besides this thread; `with Agent(...) as agent:` does so by itself."""
        self._workers.close()

    @property
    def calls(self) -> int:
        """Simulator calls made, those of the reference included."""
        return self._raced + self._taught + (0 if self._made is None else self._made.calls)

    def act(self, state: Any) -> int:
        """An action at a state that is not terminal."""
        action = self.decide(state).action
        if action is None:
            raise ValueError(f"state {state!r} is terminal: there is nothing to decide")
        return action

    def decide(self, state: Any) -> Decision:
        """The decision at a state, with what is known of it."""
        started, begun = time.perf_counter(), working_time()
        state = root_state(self.model, state)
        self._brake.check()
        if self.reference is None:
            self.prepare(state)
            assert self.reference is not None
            begun = working_time()  # the first step has as much time as the others
        left = self._learn(state, begun)
        root = Root(self.model, state, self._seed, left, self._seconds, "auto", started, begun)
        deciding = Deciding(root, self._epsilon, self._delta, self.reference, self._chunk)
        try:
            deciding.compare(self._workers)
        finally:
            if deciding.race is not None:
                self._raced += deciding.race.calls
                self._chunk = deciding.race.next_chunk
        self.decision = deciding.decision("completed")
        assert deciding.race is not None
        self.steps += 1
        self.deviations += self.decision.action != deciding.race.best
        return self.decision

    def preparation(self) -> str:
        """What `prepare` will do, in words."""
        if self._first is None:
            assert self._seconds is not None
            return f"making a reference for about {FIRST_SECONDS * self._seconds:.3g} s"
        return f"making a reference by at most {self._first:,} simulator calls"

    def prepare(self, state: Any = None) -> None:
        """Makes the first reference, if there is none, from a state; the first decision does so itself."""
        if self.reference is not None:
            return
        state = root_state(self.model, state)
        oracle = self._made
        assert oracle is not None

        def improve(calls: int) -> None:
            if self.reference is None:
                self.reference = default_reference(self.model, HardMax(), state=state, calls=calls, oracle=oracle)
            else:
                assert isinstance(self.reference, Improvable)
                self.reference.improve(calls)

        try:
            if self._first is not None:
                improve(self._first)
            else:
                assert self._seconds is not None
                in_portions(improve, working_time() + FIRST_SECONDS * self._seconds, lambda: oracle.calls)
        finally:
            self.reference_calls = oracle.calls

    def _learn(self, state: Any, begun: float) -> int | None:
        """Improves the reference from a state, where it can be; the calls that are left, if they are limited."""
        improve: Any = getattr(self.reference, "improve", None)
        learns = callable(improve) and "state" in inspect.signature(improve).parameters and self.model.actions > 1
        if not learns or self._limit == 0:
            return self._limit
        assert isinstance(self.reference, Improvable)
        reference, before = self.reference, self.reference.calls
        try:
            if self._seconds is not None:
                in_portions(
                    lambda calls: improve(calls, state), begun + LEARNING * self._seconds, lambda: reference.calls
                )
                return None
            assert self._limit is not None
            improve(max(1, int(LEARNING * self._limit)), state)
            return self._limit - (reference.calls - before)
        finally:
            if self._made is None:
                self._taught += reference.calls - before

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
            world: where; by default the simulator itself, from its initial state.
            max_steps: of an episode that does not end before.
            seed: of the episode.
            on_step: is told the score and the steps so far, after every step.
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
    """The simulator as a world, from its initial state.

    Args:
        model: a simulator that declares an initial state.
    """

    def __init__(self, model: GenerativeModel) -> None:
        self._model, self.state = model, root_state(model, None)
        self._oracle = Oracle(model, 0)

    def reset(self, seed: int) -> None:
        """Starts an episode."""
        self.state, self._oracle = root_state(self._model, None), Oracle(self._model, seed, WORLDS)

    def move(self, action: int) -> Move:
        """Takes an action."""
        states, rewards, terminals = self._oracle.sample(np.asarray(self.state)[None], np.array([action]))
        self.state = states[0]
        return Move(float(rewards[0]), bool(terminals[0]), False)


WORLDS = RACES - 1
"""The chunk that simulated worlds draw from: no planner does."""
