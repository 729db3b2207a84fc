"""Episodes of a real Gymnasium environment, played by an `Agent` that plans at every step, and their animations."""

import importlib
import math
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats
from smoothplan.base.records import Record
from smoothplan.base.stopping import Stopped
from smoothplan.chains.reference import Reference
from smoothplan.decide.agent import Agent, Episode
from smoothplan.models.gymnasium import Look, Player, from_gymnasium, notes
from smoothplan.run.progress import Display
from smoothplan.run.records import Status
from smoothplan.run.session import session

if TYPE_CHECKING:
    import gymnasium


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
    warnings: tuple[str, ...]  # such as the cost of a copy of the environment

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

    The environment itself is stepped, with its own time limit and randomness; planning knows neither. Ctrl-C and
    SIGTERM end it and return the episodes so far.

    Args:
        environment: an id such as "FrozenLake-v1", or an environment, which is then played itself.
        discount: γ of the planning.
        reference, reference_calls, calls, seconds: as for `Agent`.
        episodes: how many.
        max_steps: of an episode that neither ends nor reaches the environment's own limit on time.
        seed: of the episodes and of the planning.
        reward_range, value_range, state_bytes: as for `from_gymnasium`.
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
    with (
        session(title=title, unit="episodes", progress=progress, max_calls=episodes) as opened,
        nullcontext() if record is None else recording(record) as look,
    ):
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
            stop_signal=opened.stop_signal,
        )
        player = Player(environment, model, look=look, **options)
        on_step = partial(show_score, opened.display)
        try:
            if reference is None:
                opened.display.note(agent.preparation())
            agent.prepare()
            while len(played) < episodes and end == "completed":
                drawn = episode_seed(seed, len(played))
                played.append(agent.play(player, max_steps=max_steps, seed=drawn, on_step=on_step))
                player.look = None  # only the first episode is recorded
                end = "interrupted" if played[-1].end == "interrupted" else end
                opened.display.update(len(played))
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


def show_score(display: Display, score: float, steps: int) -> None:
    """Shows the score of the present episode."""
    display.show(f"score {score:g} after {steps} steps")


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
    is_new = not file.exists()
    try:
        file.open("ab").close()
    except OSError as error:
        raise ValueError(f"record must be a file that can be written, got {str(path)!r}: {error}") from error
    if is_new:
        file.unlink()
    coded = ["-vf", "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"]  # a palette each
    if file.suffix.lower() == ".mp4":  # most players need even sizes
        coded = ["-vf", "scale=ceil(iw/2)*2:ceil(ih/2)*2:flags=neighbor", "-pix_fmt", "yuv420p"]
        coded += ["-c:v", "libx264", "-movflags", "+faststart"]
    process: subprocess.Popen[bytes] | None = None

    def add(picture: NDArray[Any], frames_per_second: float) -> None:
        nonlocal process
        if process is None:
            size = f"{picture.shape[1]}x{picture.shape[0]}"
            given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{frames_per_second:g}", "-i", "-"]
            process = subprocess.Popen(
                [program, "-y", "-loglevel", "error", *given, *coded, f"file:{file.absolute()}"],
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
