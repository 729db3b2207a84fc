"""Acting: episodes of a real Gymnasium environment, played by an `Agent` that plans at every step."""

import json
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoothplan import arguments, summaries
from smoothplan.agent import Agent, Episode
from smoothplan.arguments import Floats
from smoothplan.brake import Brake, Stopped
from smoothplan.compiling import announcing
from smoothplan.models.gymnasium import Player, from_gymnasium, notes
from smoothplan.recording import Recorder
from smoothplan.references import Reference
from smoothplan.running.progress import COMPILING, Count
from smoothplan.running.run import Status, plain

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True, eq=False, repr=False)
class ActResult:
    """What episodes brought."""

    environment: str
    episodes: tuple[Episode, ...]
    discount: float
    reference: Reference | None  # as it was at the end; None if a signal came before it was made
    reference_calls: int  # simulator calls for it before the first step
    calls: int  # simulator calls in all
    seconds: float
    seed: int
    end: Status  # "completed", or "interrupted" by Ctrl-C or SIGTERM
    warnings: tuple[str, ...]  # that a reader must know of, such as what a copy of the environment costs

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
        """One JSON object. Its episodes have no states, actions and rewards: those are in `episodes` only."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields |= {"reference": None if self.reference is None else repr(self.reference)}
        fields |= {"mean": self.mean if self.episodes else None, "error": self.error}
        return json.dumps(fields | {"episodes": plain(self.episodes)})


def act(
    environment: "str | gymnasium.Env[Any, Any]",
    *,
    discount: float = 0.99,
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
        reference, reference_calls, calls, seconds: as for `Agent`.
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
    episodes, seed = arguments.whole("episodes", episodes), arguments.whole("seed", seed, least=0)
    max_steps = arguments.whole("max_steps", max_steps)
    recorder = None if record is None else Recorder(record)  # complains before the work, not after it
    played: list[Episode] = []
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
        agent = Agent(
            model,
            calls=calls,
            seconds=seconds,
            reference=reference,
            reference_calls=reference_calls,
            seed=seed,
            brake=brake,
        )
        player = Player(environment, model, look=None if recorder is None else recorder.add, **options)
        shown = Count(f"playing {player.name}", episodes, "episodes") if progress else None
        told = nullcontext() if shown is None else announcing(partial(shown.note, COMPILING))
        with shown or nullcontext() as display, told, recorder or nullcontext():
            try:
                if display is not None and reference is None:
                    display.note(agent.preparation())
                agent.prepare()
                while len(played) < episodes and end == "completed":
                    on_step = None if display is None else partial(show_score, display)
                    played.append(
                        agent.play(player, max_steps=max_steps, seed=episode_seed(seed, len(played)), on_step=on_step)
                    )
                    player.look = None  # only the first episode is recorded
                    end = "interrupted" if played[-1].end == "interrupted" else end
                    if display is not None:
                        display.over()
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


def show_score(display: Count, score: float, steps: int) -> None:
    """Says how the episode that is under way stands."""
    display.show(f"score {score:g} after {steps} steps")


def episode_seed(seed: int, number: int) -> int:
    """A seed for every episode of every run: runs of neighbouring seeds share none."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
