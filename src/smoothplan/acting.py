"""Acting: an episode of a real environment, planned anew at every step around a reference that learns on the way.

At a state s, a part of the step's simulator calls improves the reference Q̂ from there, where it can learn; the rest
goes into returns X_a of every action, which follow the policy π of Q̂ after the first step. Their means estimate
Q^π(s, a), and an action that is better under Q^π than π's own improves on π (policy improvement). Few returns are
noisy, though: `deviation` leaves the reference's best action only on good evidence.
"""

import inspect
import json
import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smoothplan import arguments, summaries
from smoothplan.arguments import Floats
from smoothplan.backups import Backup
from smoothplan.brake import Brake, Stopped
from smoothplan.compiling import announcing, working_time
from smoothplan.defaults import entropy_backup
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.models.gymnasium import Player, from_gymnasium, notes
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.planners.engines import chains_for, conditioned
from smoothplan.planners.preparing import Preparation
from smoothplan.recording import Recorder
from smoothplan.references import Reference
from smoothplan.running.progress import COMPILING, Episodes
from smoothplan.running.run import Root, Status
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Problem

if TYPE_CHECKING:
    import gymnasium

REFERENCE_CALLS = 2_000
"""Simulator calls for the first reference, where it is shared and learns on the way."""

LEARNING = 0.5
"""The part of a step's budget that goes into improving the reference."""

FALSE_ALARMS = 0.01
"""How often a choice may deviate from the reference's by noise alone."""

End = Literal["terminated", "truncated", "max_steps", "interrupted"]
"""Why an episode was over: it ended; by the environment's limit on time; by ours; by the user."""


@dataclass(frozen=True)
class Episode:
    """One episode as it was played."""

    score: float  # the sum of its rewards, which Gymnasium calls the return
    discounted: float
    steps: int
    end: End
    deviations: int  # steps at which another action was taken than the reference's best
    calls: int  # simulator calls
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class ActResult:
    """What episodes brought."""

    environment: str
    episodes: tuple[Episode, ...]
    discount: float
    backup: Backup
    reference: Reference | None  # as it was at the end; None if a signal came before it was made
    reference_calls: int  # simulator calls for it before the first step
    calls: int  # simulator calls in all
    seconds: float
    seed: int
    end: Status  # "completed", or "interrupted" by Ctrl-C or SIGTERM
    warnings: tuple[str, ...]  # that a reader must know of, such as a reference that could not be made

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

    def summary(self) -> str:
        """What the episodes brought, in lines for people."""
        return summaries.text(summaries.act_lines(self))

    def to_json(self) -> str:
        """One JSON object."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields |= {"backup": repr(self.backup), "reference": repr(self.reference)}
        fields |= {"mean": self.mean if self.episodes else None, "error": self.error}
        return json.dumps(fields | {"episodes": [asdict(episode) for episode in self.episodes]})


def act(
    environment: "str | gymnasium.Env[Any, Any]",
    *,
    discount: float = 0.99,
    backup: Backup | None = None,
    reference: Reference | None = None,
    reference_calls: int | None = None,
    calls: int | None = None,
    seconds: float | None = None,
    episodes: int = 1,
    max_steps: int = 1000,
    seed: int = 0,
    reward_range: tuple[float, float] | None = None,
    value_range: tuple[float, float] | None = None,
    state_bytes: int | None = None,
    record: str | Path | None = None,
    progress: bool = False,
    **options: Any,
) -> ActResult:
    """Plays episodes of a Gymnasium environment, planning with its generative model at every step.

    Ctrl-C and SIGTERM end it and return the episodes so far.

    The environment itself is stepped, with its own time limit and randomness; planning knows neither.

    Args:
        environment: an id such as "FrozenLake-v1", or an environment, which is then played itself.
        discount: γ of the planning.
        backup: F, smooth; by default `LogSumExp` with a temperature that hardly matters.
        reference: Q̂; by default it is made from the simulator, as `ReferenceCruiser` does. One with a method
            improve(calls, state) is improved at every state of the episode, which changes it.
        reference_calls: simulator calls for the default reference before the first step, at most: 2,000 by default; for
            a grid, which does not learn on the way, 100,000, or 400,000 on a compiled simulator.
        calls: simulator calls for a step, about; 20,000 by default, 4,000 for a simulator that is not compiled. With 0
            the reference's own best action is taken.
        seconds: time for a step, instead of calls; compiling and loading code do not count. The result then depends
            on the machine.
        episodes: how many.
        max_steps: of an episode that neither ends nor reaches the environment's own limit on time.
        seed: of the episodes and of the planning.
        reward_range, value_range, state_bytes: as for `from_gymnasium`.
        record: a file for an animation of the first episode, .gif or .mp4. It has what was played, whatever ends it.
        progress: whether to show the episode on standard error.
        **options: passed to `gymnasium.make` with an id.

    >>> act("FrozenLake-v1", is_slippery=False, calls=500).mean
    1.0
    """
    started = time.perf_counter()
    if calls is not None and seconds is not None:
        raise ValueError(f"calls and seconds cannot both be given, got {calls!r} and {seconds!r}")
    calls = None if calls is None else arguments.whole("calls", calls, least=0)
    seconds = None if seconds is None else arguments.positive("seconds", seconds)
    episodes, seed = arguments.whole("episodes", episodes), arguments.whole("seed", seed, least=0)
    max_steps = arguments.whole("max_steps", max_steps)
    if reference_calls is not None:
        reference_calls = arguments.whole("reference_calls", reference_calls)
    recorder = None if record is None else Recorder(record)  # complains before the work, not after it
    played: list[Episode] = []
    actor: Actor | None = None
    prepared = 0
    end: Status = "completed"
    with Brake().on_signals() as brake:  # first of all: a signal while the model is built ends the run, too
        model = from_gymnasium(
            environment,
            discount=discount,
            reward_range=reward_range,
            value_range=value_range,
            state_bytes=state_bytes,
            **options,
        )
        player = Player(environment, model, look=None if recorder is None else recorder.add, **options)
        backup = backup or entropy_backup(model)
        if calls is None and seconds is None:
            calls = 20_000 if isinstance(model, TabularModel | JitModel) else 4_000
        root = Root(model, model.initial_state, seed, None, None, "auto", started)
        preparation = Preparation(root, backup, reference, improve=False)
        # A shared reference learns on the way. A grid does not, and gets as many calls as for a plan.
        learns = np.asarray(model.initial_state).dtype.kind != "f"
        shown = Episodes(player.name, episodes) if progress else None
        told = nullcontext() if shown is None else announcing(partial(shown.note, COMPILING))
        with shown or nullcontext() as display, told, recorder or nullcontext():
            try:
                preparation.make(Workers(brake=brake), reference_calls or (REFERENCE_CALLS if learns else None))
                reference, prepared = preparation.reference, preparation.calls  # it may learn on the way, by more calls
                actor = Actor(model, backup, reference, calls=calls, seconds=seconds, seed=seed, brake=brake)
                while len(played) < episodes and end == "completed":
                    played.append(_play(player, actor, episode_seed(seed, len(played)), max_steps, display))
                    player.look = None  # only the first episode is recorded
                    end = "interrupted" if played[-1].end == "interrupted" else end
            except (Stopped, KeyboardInterrupt):
                end = "interrupted"
    if actor is None:
        prepared = preparation.calls
    return ActResult(
        environment=player.name,
        episodes=tuple(played),
        discount=model.discount,
        backup=backup,
        reference=reference,
        reference_calls=prepared,
        calls=prepared if actor is None else prepared + actor.calls,
        seconds=time.perf_counter() - started,
        seed=seed,
        end=end,
        warnings=(*notes(model), *preparation.warnings),
    )


def episode_seed(seed: int, number: int) -> int:
    """A seed for every episode of every run: runs of neighbouring seeds share none."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def _play(player: Player, actor: "Actor", seed: int, max_steps: int, display: Episodes | None) -> Episode:
    """Plays one episode, to its end or until a signal comes."""
    started, before, deviated = time.perf_counter(), actor.calls, actor.deviations
    score = discounted = 0.0
    end: End = "max_steps"
    steps = 0
    try:
        player.reset(seed)
        while steps < max_steps:
            move = player.move(actor.choose(player.state))
            score, discounted = score + move.reward, discounted + actor.model.discount**steps * move.reward
            steps += 1
            if display is not None:
                display.update(score, steps)
            if move.terminated or move.truncated:
                end = "terminated" if move.terminated else "truncated"
                break
    except (Stopped, KeyboardInterrupt):
        end = "interrupted"
    if display is not None:
        display.over()
    taken = time.perf_counter() - started
    return Episode(score, discounted, steps, end, actor.deviations - deviated, actor.calls - before, taken)


class Actor:
    """Chooses actions, state by state. What its reference has learnt stays.

    Args:
        model: the simulator.
        backup: F, smooth.
        reference: Q̂; improved if it has a method improve(calls, state).
        calls: simulator calls for a choice, or
        seconds: time for a choice.
        seed: of the simulator calls.
        brake: what stops it, between two batches of simulator calls.
    """

    def __init__(
        self,
        model: GenerativeModel,
        backup: Backup,
        reference: Reference,
        *,
        calls: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
        brake: Brake | None = None,
    ) -> None:
        if (calls is None) == (seconds is None):
            raise ValueError(f"either calls or seconds must be given, got {calls!r} and {seconds!r}")
        self.model, self.backup, self.reference = model, backup, reference
        self.calls, self.deviations = 0, 0
        self._limit, self._seconds, self._seed, self._brake = calls, seconds, seed, brake or Brake()
        self._problem = Problem.of(model, backup)
        # Chains are all cut off where the discount is 0.01, so that differences stay.
        self._horizon = 1 if model.discount <= 0.01 else math.ceil(math.log(0.01) / math.log(model.discount))
        improve = getattr(reference, "improve", None)
        self._learner: Any = None  # the reference, if it can be improved from a state
        if callable(improve) and "state" in inspect.signature(improve).parameters:
            self._learner = reference
        self._chunks = 1  # chunk 0 is the reference's

    def choose(self, state: Any) -> int:
        """An action at a state that is not terminal."""
        if self.model.initial_state is not None:
            state = np.asarray(state, dtype=np.asarray(self.model.initial_state).dtype)
        if self._limit == 0 or self.model.actions == 1:
            return self._best(state)
        self._brake.check()
        until = math.inf if self._seconds is None else working_time() + self._seconds
        left = math.inf if self._limit is None else float(self._limit)
        if self._learner is not None:
            left -= self._learn(state, LEARNING * left, until)
        best = self._best(state)
        counts, totals, squares = self._returns(state, left, until)
        choice = deviation(counts, totals, squares, best)
        self.deviations += choice != best
        return choice

    def _best(self, state: Any) -> int:
        """The reference's own best action."""
        here = conditioned(self.reference, math.inf, self.model.actions)(np.asarray(state)[None])
        return int(np.argmax(here.shifted[0]))

    def _learn(self, state: Any, calls: float, until: float) -> int:
        """Improves the reference from a state, by a number of calls or until a part of the time is over."""
        learner = self._learner
        start, before = working_time(), learner.calls
        enough = start + LEARNING * (until - start)
        portion = 1_000 if calls == math.inf else int(calls)  # where time is the limit; the next ones double
        try:
            while portion > 0:
                reached = learner.calls
                learner.improve(portion, state)
                if calls < math.inf or learner.calls == reached or working_time() >= enough:
                    break
                portion *= 2
                self._brake.check()
        finally:
            self.calls += learner.calls - before
        return int(learner.calls - before)

    def _returns(self, state: Any, calls: float, until: float) -> Floats:
        """Returns of every action, in batches that double: their numbers, sums and sums of squares, [3, K].

        There is no batch that might exceed the calls or, judged by those before, the time.
        """
        actions, horizon = self.model.actions, self._horizon
        root = Root(self.model, state, self._seed, None, None, "auto", 0.0)
        chains, _ = chains_for(root, self.backup, self.reference, self._problem)
        oracle = Oracle(self.model, self._seed, self._chunks)
        self._chunks += 1
        moments = np.zeros((3, actions))
        counts = moments[0]
        batch, each, started = 8, float(horizon), working_time()
        try:
            while True:
                if calls < math.inf:
                    batch = min(batch, int((calls - oracle.calls) / (each * actions)))
                now = working_time()
                late = now + (now - started) * batch / max(int(counts[0]), 1) >= until
                if batch < 1 or (late and counts[0] > 0):
                    return moments
                for action in range(actions):
                    moments[:, action] += chains.returns(oracle, state, action, batch, horizon)
                each = 1.1 * oracle.calls / int(counts.sum())  # further returns may be longer than those so far
                batch = int(counts[0])
                self._brake.check()
        finally:
            self.calls += oracle.calls


def deviation(counts: Floats, totals: Floats, squares: Floats, best: int) -> int:
    """The action to take: the reference's best, unless returns are clear evidence that another is better.

    One visit to s with the action a instead of π's own gains Q^π(s, a) − Q^π(s, best), which the means of n returns
    each estimate with the standard error √(2σ²/n), σ² being the variance of returns, pooled over the actions. The
    action with the largest lower bound of its gain is taken, if that is positive: by noise alone this happens in a
    share of `FALSE_ALARMS` of the choices. A rule that trusts noisier means loses: differences between actions are
    often far smaller than the noise of an affordable number of returns, and one wrong step may cost the episode.

    Args:
        counts: numbers of returns, [K], the same for all actions.
        totals: their sums, [K].
        squares: their sums of squares, [K].
        best: the reference's best action.

    >>> deviation(np.array([100, 100]), np.array([50.0, 60.0]), np.array([50.0, 60.0]), best=0)
    0
    >>> deviation(np.array([100, 100]), np.array([30.0, 60.0]), np.array([30.0, 60.0]), best=0)
    1
    """
    if counts.min() < 8:  # too few for a conclusion
        return best
    means = totals / counts
    variance = float(np.maximum(squares - totals * means, 0.0).sum() / (counts - 1).sum())
    errors = np.sqrt(variance * (1.0 / counts + 1.0 / counts[best]))
    gains = means - means[best] - NormalDist().inv_cdf(1.0 - FALSE_ALARMS / (len(counts) - 1)) * errors
    gains[best] = 1e-9 * max(1.0, float(np.abs(means).max()))  # a smaller gain may be one of rounding
    return int(gains.argmax())
