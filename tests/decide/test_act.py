"""Playing real environments: budgets, ends, signals, animations, and that planning pays."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import smoothplan as sp
from smoothplan.chains.grid import GridReference
from smoothplan.decide.agent import FIRST_STEPS, recording
from smoothplan.decide.unregularised import smooth_backup
from smoothplan.models import from_gymnasium
from smoothplan.models.gymnasium import Player

# Episodes


def test_episodes_are_reproducible_and_differ() -> None:
    def played(**options: Any) -> list[Any]:
        result = sp.act("FrozenLake-v1", calls=500, episodes=3, **options)
        assert 0 < result.reference_calls <= FIRST_STEPS * 500  # learning on the way belongs to episodes
        assert result.calls == result.reference_calls + sum(episode.calls for episode in result.episodes)
        assert all(0 < episode.calls <= 500 * episode.steps for episode in result.episodes)
        return [(episode.score, episode.steps, episode.deviations, episode.calls) for episode in result.episodes]

    first = played(seed=1)
    assert first == played(seed=1) != played(seed=2)
    assert len({steps for _, steps, _, _ in first}) > 1


def test_what_is_reported_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    result = sp.act("FrozenLake-v1", is_slippery=False, calls=1_000, episodes=3, discount=0.9, progress=True)
    assert capsys.readouterr().out == ""
    assert result.scores.tolist() == [1.0] * 3
    assert (result.mean, result.error) == (1.0, 0.0)
    for episode in result.episodes:
        assert (episode.steps, episode.end) == (6, "terminated")
        assert episode.discounted == pytest.approx(0.9**5)
    fields = json.loads(result.to_json())
    assert (fields["mean"], fields["calls"], len(fields["episodes"])) == (1.0, result.calls, 3)
    assert sp.act("FrozenLake-v1", calls=0).error is None


def test_the_environments_time_limit_and_ours_end_an_episode() -> None:
    left = sp.CriticReference(lambda states: np.tile([1.0, 0.0, 0.0, 0.0], (len(states), 1)))
    (episode,) = sp.act("FrozenLake-v1", is_slippery=False, reference=left, calls=0).episodes
    assert (episode.steps, episode.end, episode.score) == (100, "truncated", 0.0)
    (episode,) = sp.act("FrozenLake-v1", is_slippery=False, reference=left, calls=0, max_steps=7).episodes
    assert (episode.steps, episode.end) == (7, "max_steps")


def test_an_environment_that_is_given_is_played_itself() -> None:
    mine = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CliffWalking-v1"))
    result = sp.act(mine, calls=500)
    assert result.environment == "CliffWalking-v1"
    assert list(mine.return_queue) == [result.mean] == [-13.0]


class Walk(gymnasium.Env[Any, Any]):
    """A noisy walk in single precision, whose actions are −1, 0 and 1. It pays to go to the right."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(3, start=-1)
    state: Any

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.zeros(1, dtype=np.float32)
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        noise = 0.1 * self.np_random.standard_normal(1)
        self.state = np.clip(self.state + action + noise, -5, 5).astype(np.float32)
        return self.state, float(self.state[0] > 0), False, False, {}


def test_an_environment_of_ones_own_is_played_around_a_critic() -> None:
    """The critic would go to the left; returns of a few steps show that the reward is on the right."""
    left = sp.CriticReference(lambda states: np.tile([0.01, 0.0, 0.0], (len(states), 1)))
    settings: dict[str, Any] = {"reference": left, "reward_range": (0, 1), "discount": 0.6, "max_steps": 10}
    assert sp.act(Walk(), calls=0, **settings).mean <= 1.0
    planned = sp.act(Walk(), calls=1_000, **settings)
    assert planned.mean >= 8.0
    assert planned.episodes[0].deviations >= 3
    assert planned.reference_calls == 0


@pytest.mark.parametrize(("stage", "number"), [("prepare", signal.SIGTERM), ("play", signal.SIGINT)])
def test_a_signal_returns_the_episodes_so_far(
    stage: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, interruptible: None
) -> None:
    real: Any = getattr(sp.Agent, stage)

    def signalling(agent: sp.Agent, *arguments: Any, **options: Any) -> Any:
        found = real(agent, *arguments, **options)
        monkeypatch.undo()  # a second signal ends everything
        os.kill(os.getpid(), number)
        if stage == "prepare":
            agent._stop_signal.check()
        return found

    monkeypatch.setattr(sp.Agent, stage, signalling)
    result = sp.act("FrozenLake-v1", map_name="8x8", calls=1_000, episodes=10_000)
    ends = [episode.end for episode in result.episodes]
    assert result.end == "interrupted"
    assert result.calls == result.reference_calls + sum(episode.calls for episode in result.episodes) > 0
    assert len(ends) == (0 if stage == "prepare" else 2)
    assert "interrupted" not in ends[:-1]
    assert (json.loads(result.to_json())["mean"] is None) == (stage == "prepare")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": -1}, "calls must be"),  # the other errors of an agent are tested there
        ({"episodes": 0}, "episodes must be"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"seed": -1}, "seed must be"),
        ({"discount": 1.0}, "discount must be"),
        ({"map_name": "9x9"}, "gymnasium cannot make"),
    ],
)
def test_misuse_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.act("FrozenLake-v1", **options)


# It pays


def test_a_taxi_finds_its_way_from_everywhere() -> None:
    """The first reference knows a fifth of the states; every episode starts elsewhere."""
    planned = sp.act("Taxi-v4", episodes=10)
    assert all(episode.end == "terminated" and episode.score > 0 for episode in planned.episodes)
    alone = sp.act("Taxi-v4", episodes=10, calls=0)
    assert alone.mean < 0.0


@pytest.mark.full
def test_a_pole_is_balanced_around_a_coarse_reference() -> None:
    model = from_gymnasium("CartPole-v1")
    reference = GridReference.build(model, smooth_backup(model), cells=4)
    alone = sp.act("CartPole-v1", reference=reference, episodes=3, calls=0)
    planned = sp.act("CartPole-v1", reference=reference, max_steps=400)
    assert alone.mean < 350
    assert planned.mean == 400
    assert planned.episodes[0].deviations > 0


# Animations

Pictures = list[np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")


def read(path: Path) -> tuple[Pictures, float]:
    """The pictures of an animation, and their number per second."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    found = subprocess.run(command, capture_output=True, check=True)
    size = re.search(rb"Video: (?:h264|gif).* (\d+)x(\d+).* (\d+) fps", found.stderr)
    assert size is not None
    width, height, speed = map(int, size.groups())
    return list(np.frombuffer(found.stdout, np.uint8).reshape(-1, height, width, 3)), speed


def expected(actions: list[int]) -> Pictures:
    real = gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="rgb_array")
    real.reset(seed=0)
    return [np.asarray(real.render()), *(np.asarray((real.step(action), real.render())[1]) for action in actions)]


@pytest.mark.parametrize(
    ("suffix", "error"), [(".gif", None), (".mp4", None), (".mp4", KeyboardInterrupt), (".gif", RuntimeError)]
)
def test_the_file_has_every_picture_of_the_first_episode(
    suffix: str, error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that an interrupt or an error has ended."""
    taken: list[int] = []
    real = Player.move

    def move(self: Player, action: int) -> Any:
        if len(taken) == 3 and error is not None:
            raise error("the lights went out")
        taken.append(action)
        return real(self, action)

    monkeypatch.setattr(Player, "move", move)
    path = tmp_path / f"lake{suffix}"
    settings: dict[str, Any] = {"is_slippery": False, "calls": 300, "episodes": 2, "record": path}
    if error is RuntimeError:
        with pytest.raises(RuntimeError, match="the lights went out"):
            sp.act("FrozenLake-v1", **settings)
    else:
        result = sp.act("FrozenLake-v1", **settings)
        ends = [(6, "terminated")] * 2 if error is None else [(3, "interrupted")]
        assert [(episode.steps, episode.end) for episode in result.episodes] == ends
    pictures, speed = read(path)
    assert len(pictures) == (7 if error is None else 4)
    assert speed == pytest.approx(4.0)
    for found, real_one in zip(pictures, expected(taken), strict=False):
        assert found.shape == (256, 256, 3)
        # A lossy codec changes colours a little; a figure at another place changes many pixels a lot.
        assert np.abs(found.astype(int) - real_one).mean() < 2.0
    assert np.abs(pictures[0].astype(int) - expected(taken)[1]).mean() > 2.0


def test_pictures_of_odd_size_become_even_and_a_failure_is_told(tmp_path: Path) -> None:
    path = tmp_path / "odd.mp4"
    with recording(path) as add:
        for shade in (40, 200):
            add(np.full((31, 45, 3), shade, dtype=np.uint8), 10.0)
    pictures, speed = read(path)
    assert [picture.shape for picture in pictures] == [(32, 46, 3)] * 2
    assert [picture.mean() for picture in pictures] == pytest.approx([40, 200], abs=5)
    assert speed == 10.0
    path.unlink()

    def failing() -> None:
        with recording(path) as add:
            path.mkdir()
            for _ in range(100):  # more than a pipe holds, so that writing fails, too
                add(np.zeros((310, 450, 3), dtype=np.uint8), 10.0)

    with pytest.raises(OSError, match="record: FFmpeg did not write"):
        failing()


def test_drawing_is_no_part_of_the_state() -> None:
    """Blackjack keeps its canvas in the environment; a copy of it does not know of that."""
    model = sp.models.from_gymnasium("Blackjack-v1")
    pictures: Pictures = []
    one = Player("Blackjack-v1", model)
    two = Player("Blackjack-v1", model, look=lambda picture, _: pictures.append(picture))
    for player in (one, two):
        player.reset(3)
    np.testing.assert_array_equal(one.state, two.state)
    assert one.move(1) == two.move(1)
    np.testing.assert_array_equal(one.state, two.state)
    assert [picture.ndim for picture in pictures] == [3, 3]
    assert not np.array_equal(pictures[0], pictures[1])


@pytest.mark.parametrize(
    ("file", "missing", "error", "message"),
    [
        ("lake.avi", None, ValueError, "record must be a file that ends in .gif or .mp4, got"),
        ("lake.gif", "imageio_ffmpeg", ImportError, r'record needs FFmpeg: pip install "smoothplan\[gym\]"'),
        ("nowhere/lake.gif", None, ValueError, "record must be a file in a folder that can be written, got"),
        ("lake.gif", "pygame", ValueError, "record needs pictures of FrozenLake-v1, and it cannot draw them: pygame"),
    ],
)
def test_what_is_missing_is_said_before_the_work(
    file: str, missing: str | None, error: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(Player, "move", lambda *_: pytest.fail("played"))
    with pytest.raises(error, match=message):
        sp.act("FrozenLake-v1", record=tmp_path / file)
    assert not list(tmp_path.iterdir())


def test_an_environment_that_does_not_draw_is_refused() -> None:
    for mode, reason in ((None, ": make it with render_mode='rgb_array', got None"), ("rgb_array", ", and it cannot")):
        blind = Walk()
        blind.render_mode = mode
        with pytest.raises(ValueError, match=f"record needs pictures of Walk{reason}"):
            Player(blind, sp.models.from_gymnasium("FrozenLake-v1"), look=lambda *_: None)
