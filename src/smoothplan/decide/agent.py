"""An agent, which decides again and again and keeps what it learns; and episodes of Gymnasium that it plays."""

import importlib
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import working_time
from smoothplan.base.records import Record
from smoothplan.base.stopping import Stopped, StopSignal, current
from smoothplan.chains.reference import Reference, required_reference
from smoothplan.decide.decide import Decision, DecisionRun, either_limit, with_coarse_actions
from smoothplan.decide.policies import Budget, PolicySearch, Rule
from smoothplan.models.gymnasium import Legal, Look, Player, from_gymnasium, notes
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.models.snapshots import Restore, Snapshot
from smoothplan.run.plan import root_state, session
from smoothplan.run.progress import Display
from smoothplan.run.records import Root, Status
from smoothplan.run.workers import Workers

if TYPE_CHECKING:
    import gymnasium

End = Literal["terminated", "truncated", "max_steps", "interrupted"]
"""Why an episode ended: by itself; by the environment's time limit; by the agent's limit on steps; by the user."""


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
    actions: Ints | Floats = field(repr=False)  # [T]; [T, d] if they are vectors of a box
    rewards: Floats = field(repr=False)  # [T]


class Agent(AbstractContextManager["Agent"]):
    """Chooses actions, state by state, and keeps what its reference learns.

    The first decision makes a reference from there. At every state a part of the calls improves it, if it can learn,
    and the rest goes into a race between the actions, as in `decide`. If nothing is random, the rest goes into a plan
    instead, which is kept from state to state. Actions may be a `Box`, without a reference or a rule of yours.

    Args:
        model: the simulator.
        calls: simulator calls of a decision, at most; if no limit is given 20,000, or 4,000 for a simulator that steps
            one state at a time. With 0 the reference's own best action is taken.
        seconds: time of a decision, instead of calls. Decisions then depend on the machine.
        reference: Q̂; by default it is made from the simulator. One with a method improve(calls, state) is improved at
            every state, which changes it.
        reference_calls: simulator calls for the default reference, before the first step, at most; by default 25 times
            `calls`, or what ten times `seconds` allow.
        policy: a rule in use, which is followed unless something better is found; as for `decide`.
        delta: the level of the estimated regret of decisions.
        seed: of the simulator calls.
        workers: as for `plan`; `with Agent(...) as agent:` ends them, and so does `close`.
        stop_signal: stops it, between two batches of simulator calls.

    Attributes:
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
        policy: Rule | None = None,
        delta: float = 0.1,
        seed: int = 0,
        workers: Any = 1,
        stop_signal: StopSignal | None = None,
    ) -> None:
        self.model, self._planned = model, with_coarse_actions(model, reference, policy)
        usual = 4_000 if getattr(model.step, "one_at_a_time", False) else 20_000
        self._limit, self._seconds = either_limit(calls, seconds, usual=usual, least=0)
        self._first = None if self._limit is None else 25 * (self._limit or usual)
        if reference_calls is not None:
            self._first = arguments.whole("reference_calls", reference_calls)
        self._delta, self._seed = arguments.failure(delta), arguments.whole("seed", seed, least=0)
        self._stop_signal = stop_signal or StopSignal()
        self._workers = Workers(workers, stop_signal=self._stop_signal)
        self._policies = PolicySearch(self._planned, self._seed, required_reference(reference), policy, self._delta)
        self._policies.lasts = True
        self._raced, self._chunk = 0, 0  # simulator calls of races, and the next chunk of samples
        self.reference_calls, self.steps, self.deviations = 0, 0, 0
        self.decision: Decision | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends its workers, if it has any besides this thread."""
        self._workers.close()

    @property
    def calls(self) -> int:
        """Simulator calls made, those of the reference included."""
        return self._raced + self._policies.calls

    @property
    def reference(self) -> Reference | None:
        """Q̂; None until there is one."""
        return self._policies.reference if self._policies.made else None

    def act(self, state: Any) -> Any:
        """An action at a state that is not terminal: its number; or, of a box, a number or a vector [d]."""
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
        root = Root(self._planned, state, self._seed, self._limit, self._seconds, "auto", started, begun)
        run = DecisionRun(root, None, self._delta, self._policies, self.model, self._chunk)
        if run.is_over:
            return run.decision("terminal")
        learning = 0.25  # the share of the budget for improving the reference
        until = None if self._seconds is None else begun + learning * self._seconds
        self._stop_signal.deadline = None if self._seconds is None else begun + self._seconds
        before = current.set(self._stop_signal)
        try:
            # Plans are compared by V̂ where they end, which must not change from step to step.
            learns = self._policies.learns_at_states and not self._policies.has_plan
            if learns and self._planned.actions > 1 and self._limit != 0:
                calls = None if self._limit is None else max(1, int(learning * self._limit))
                self._policies.improve(state, calls=calls, until=until)
            run.compare(self._workers)
        except Stopped as stopped:
            if stopped.reason != "max_seconds":
                raise
        finally:
            current.reset(before)
            self._policies.speed = run.calls / max(working_time() - begun, 1e-9)
            self._stop_signal.deadline = None
            if run.race is not None:
                self._raced += run.race.calls
                self._chunk = run.race.next_chunk
        self.decision = run.decision("completed")
        self.steps += 1
        self.deviations += run.race is not None and self.decision.place != run.race.best
        return self.decision

    def prepare(self, state: Any = None) -> None:
        """Makes the first reference, if there is none, from a state; the first decision does so itself."""
        if self.reference is not None:
            return
        # Without a number of calls it takes the time of ten decisions.
        seconds, begun = 10.0 * (self._seconds or 0.0) if self._first is None else None, working_time()
        try:
            self._policies.make(root_state(self.model, state), Budget(self._first, working_time(), seconds))
        finally:
            self.reference_calls = self._policies.calls
            self._policies.speed = self.reference_calls / max(working_time() - begun, 1e-9)

    def save(self, path: str | Path) -> None:
        """Writes its memory to a file, as arrays: what its policy has learnt. No code is written, and no model.

        Raises:
            ValueError: there is nothing to save yet, or its reference cannot be saved.
        """
        if self.reference is None:
            raise ValueError("the agent has learnt nothing yet: save it after a decision, or after prepare()")
        with Path(path).open("wb") as file:
            declared = np.array([self._planned.actions, self.model.discount])
            memory: dict[str, Any] = self._policies.saved() | {"chunk": np.array([self._chunk, self._seed])}
            memory["declared"] = declared
            np.savez_compressed(file, **memory)

    @classmethod
    def load(cls, path: str | Path, model: GenerativeModel, **options: Any) -> "Agent":
        """An agent with the memory of a saved one, for the same model.

        Args:
            path: the file.
            model: the simulator, as it was declared for the saved agent.
            **options: of `Agent`, such as calls and policy; the seed is that of the saved agent.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            chunk, seed = arrays["chunk"].tolist()
            actions, discount = arrays["declared"].tolist()
        except (KeyError, ValueError, EOFError, BadZipFile) as error:
            raise ValueError(f"path must be a file that Agent.save has written, got {str(path)!r}: {error}") from error
        agent = cls(model, seed=seed, **options)
        known = agent._planned.actions
        if (actions, discount) != (known, model.discount):
            raise ValueError(
                f"model must be the one that was saved, with {actions:.0f} actions and discount {discount}, got "
                f"{known} actions and discount {model.discount}"
            )
        agent._policies.restore(arrays, model)
        agent._chunk = chunk
        return agent

    def play(
        self,
        world: "Player | Simulated | None" = None,
        *,
        max_steps: int = 100,
        seed: int = 0,
        on_step: Callable[[float, int], None] | None = None,
    ) -> Episode:
        """Plays one episode, to its end or until a signal comes.

        Args:
            world: with `state`, `reset(seed)` and `move(action)`; by default the simulator itself, from its initial
                state.
            max_steps: of an episode that does not end before.
            seed: of the episode.
            on_step: called with the score and the steps so far, after every step.
        """
        world = Simulated(self.model) if world is None else world
        started, before, deviated = time.perf_counter(), self.calls, self.deviations
        states: list[Any] = []
        actions: list[Any] = []
        rewards: list[float] = []
        end: End = "max_steps"
        try:
            world.reset(seed)
            while len(actions) < max_steps:
                state = world.state
                action = self.act(state)
                reward, terminated, truncated = world.move(action)
                states.append(state)
                actions.append(action)
                rewards.append(reward)
                if on_step is not None:
                    on_step(sum(rewards), len(rewards))
                if terminated or truncated:
                    end = "terminated" if terminated else "truncated"
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
            actions=np.array(actions, dtype=np.int64) if self._planned is self.model else np.array(actions, np.float64),
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

    def move(self, action: Any) -> tuple[float, bool, bool]:
        """Takes an action; see `Player.move`."""
        states, rewards, terminals = self._oracle.sample(np.asarray(self.state)[None], np.array([action]))
        self.state = states[0]
        return float(rewards[0]), bool(terminals[0]), False


# Gymnasium


@dataclass(frozen=True, eq=False, repr=False)
class ActResult(Record):
    """Episodes, and the simulator calls that they took."""

    environment: str
    episodes: tuple[Episode, ...]
    discount: float
    reference: Reference | None  # at the end; None if a signal came before it was made
    reference_calls: int  # simulator calls for the reference before the first step
    calls: int  # all simulator calls
    seconds: float
    seed: int
    end: Status  # "completed", or "interrupted" by Ctrl-C or SIGTERM
    warnings: tuple[str, ...]  # such as that copies know what observations hide

    @property
    def scores(self) -> Floats:
        """The sums of rewards, [E]."""
        return np.array([episode.score for episode in self.episodes])

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(self.scores.mean()) if self.episodes else math.nan

    @property
    def error(self) -> float | None:
        """Its standard error; None of fewer than two episodes."""
        count = len(self.episodes)
        return float(self.scores.std(ddof=1) / math.sqrt(count)) if count > 1 else None

    def __repr__(self) -> str:
        played = f"{len(self.episodes)} episodes of {self.environment}"
        return f"ActResult({played}, mean return {self.mean:.4g}, {self.calls:,} calls, {self.end})"

    def to_dict(self) -> dict[str, Any]:
        """The fields, with the reference in words; episodes without their states, actions and rewards."""
        reference = None if self.reference is None else repr(self.reference)
        return super().to_dict() | {"reference": reference, "mean": self.mean, "error": self.error}


def act(
    environment: "str | gymnasium.Env[Any, Any]",
    *,
    discount: float = 0.99,
    horizon: int | None = None,
    legal: bool | Legal = True,
    reference: Reference | None = None,
    reference_calls: int | None = None,
    calls: int | None = None,
    seconds: float | None = None,
    episodes: int = 1,
    max_steps: int = 1000,
    seed: int = 0,
    reward_range: tuple[float, float] | None = None,
    value_range: tuple[float, float] | None = None,
    snapshot: Snapshot | None = None,
    restore: Restore | None = None,
    state_bytes: int | None = None,
    record: str | Path | None = None,
    progress: bool = False,
    **options: Any,
) -> ActResult:
    """Plays episodes of a Gymnasium environment, planning with its generative model at every step.

    The environment itself is stepped, with its own time limit and randomness. Planning does not know its randomness,
    and the steps left only with a discount of 1 or a horizon. Ctrl-C and SIGTERM end it and return the episodes so far.

    Args:
        environment: an id such as "FrozenLake-v1", or an environment, which is then played itself.
        discount: γ of the planning. With 1, it plans for the environment's time limit, or for `horizon` steps.
        horizon: an episode is truncated after that many steps, and planning knows how many are left.
        reference, reference_calls, calls, seconds: as for `Agent`.
        episodes: how many.
        max_steps: of an episode that neither ends nor reaches the environment's own limit on time.
        seed: of the episodes and of the planning.
        legal, reward_range, value_range, snapshot, restore, state_bytes: as for `from_gymnasium`.
        record: a file for an animation of the first episode, .gif or .mp4. It is complete even if the episode is not.
        progress: whether to show the episode on standard error.
        **options: passed to `gymnasium.make` with an id.

    >>> act("FrozenLake-v1", is_slippery=False, calls=500).mean
    1.0
    """
    started = time.perf_counter()
    episodes, seed = arguments.whole("episodes", episodes), arguments.whole("seed", seed, least=0)
    max_steps = arguments.whole("max_steps", max_steps)
    played: list[Episode] = []
    end: Status = "completed"
    title = f"playing {environment}" if isinstance(environment, str) else "playing"
    display = Display(progress, title=title, unit="episodes", max_calls=episodes)
    with (
        session(display) as force,
        nullcontext() if record is None else recording(record) as look,
    ):
        declared: dict[str, Any] = {
            "discount": discount,
            "horizon": horizon,
            "legal": legal,
            "state_bytes": state_bytes,
        }
        declared |= {"reward_range": reward_range, "value_range": value_range, "snapshot": snapshot, "restore": restore}
        model = from_gymnasium(environment, **declared, **options)
        limits: dict[str, Any] = {"calls": calls, "seconds": seconds, "reference_calls": reference_calls}
        agent = Agent(model, reference=reference, seed=seed, stop_signal=force.stop_signal, **limits)
        player = Player(environment, model, look=look, **options)

        def show(score: float, steps: int) -> None:
            display.show(f"score {score:g} after {steps} steps")

        try:
            if reference is None:
                display.note("making a reference")
            agent.prepare()
            while len(played) < episodes and end == "completed":
                drawn = episode_seed(seed, len(played))
                played.append(agent.play(player, max_steps=max_steps, seed=drawn, on_step=show))
                player.look = None  # only the first episode is recorded
                end = "interrupted" if played[-1].end == "interrupted" else end
                display.update(len(played))
        except (Stopped, KeyboardInterrupt):
            end = "interrupted"
    return ActResult(
        environment=player.name,
        episodes=tuple(played),
        discount=model.discount,
        reference=agent.reference,
        reference_calls=agent.reference_calls,
        calls=agent.calls,
        seconds=time.perf_counter() - started,
        seed=seed,
        end=end,
        warnings=notes(model),
    )


def episode_seed(seed: int, number: int) -> int:
    """A seed for every episode of every run: runs of neighbouring seeds share none."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


@contextmanager
def recording(path: str | Path) -> Iterator[Look]:
    """Writes pictures, all of one size and speed, to an animation, by FFmpeg. Whatever ends it, the file is complete.

    Gymnasium's `RecordVideo` writes no GIF, keeps all pictures in memory, and needs MoviePy.

    Args:
        path: a file that ends in .gif or .mp4. An existing one is replaced.
    """
    file = Path(path)
    if file.suffix.lower() not in (".gif", ".mp4"):
        raise ValueError(f"record must be a file that ends in .gif or .mp4, got {str(path)!r}")
    try:
        program = str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise ImportError(f'record needs FFmpeg: pip install "smoothplan[gym]" ({error})') from None
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ValueError(f"record must be a file in a folder that can be written, got {str(path)!r}")
    coded = "-vf split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"  # a palette each
    if file.suffix.lower() == ".mp4":  # most players need even sizes
        even = "scale=ceil(iw/2)*2:ceil(ih/2)*2:flags=neighbor"
        coded = f"-vf {even} -pix_fmt yuv420p -c:v libx264 -movflags +faststart"
    process: subprocess.Popen[bytes] | None = None

    def add(picture: NDArray[Any], frames_per_second: float) -> None:
        nonlocal process
        if process is None:
            size = f"{picture.shape[1]}x{picture.shape[0]}"
            given = f"-y -loglevel error -f rawvideo -pix_fmt rgb24 -s {size} -r {frames_per_second:g} -i -"
            process = subprocess.Popen(
                [program, *given.split(), *coded.split(), f"file:{file.absolute()}"],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C ends the episode, not the file
            )
        assert process.stdin is not None
        process.stdin.write(picture.tobytes())

    try:
        yield add
    finally:
        if process is not None:
            _, said = process.communicate()
            if process.returncode != 0:
                raise OSError(f"record: FFmpeg did not write {file}: {said.decode(errors='replace').strip()}")
