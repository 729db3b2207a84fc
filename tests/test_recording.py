"""Animations of real episodes: complete and right, or an error before anything is played."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import smoothplan as sp
from smoothplan.models.gymnasium import Player
from smoothplan.recording import Recorder

Pictures = list[np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")


def read(path: Path) -> tuple[Pictures, float]:
    """The pictures of an animation, and their number per second."""
    if path.suffix == ".gif":
        from PIL import Image, ImageSequence

        with Image.open(path) as image:
            pictures, seconds = [], 0.0
            for frame in ImageSequence.Iterator(image):
                pictures.append(np.asarray(frame.convert("RGB")))
                seconds += frame.info["duration"] / 1000.0
        return pictures, len(pictures) / seconds
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    found = subprocess.run(command, capture_output=True, check=True)
    size = re.search(rb"Video: h264.* (\d+)x(\d+).* (\d+) fps", found.stderr)
    assert size is not None
    width, height, speed = map(int, size.groups())
    return list(np.frombuffer(found.stdout, np.uint8).reshape(-1, height, width, 3)), speed


def lake() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="rgb_array")


def expected(actions: list[int]) -> Pictures:
    real = lake()
    real.reset(seed=0)
    pictures = [np.asarray(real.render())]
    for action in actions:
        real.step(action)
        pictures.append(np.asarray(real.render()))
    return pictures


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
@pytest.mark.parametrize("ended", ["by itself", "by an interrupt", "by an error"])
def test_the_file_has_every_picture_of_the_first_episode(
    suffix: str, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that did not come to its end."""
    taken: list[int] = []
    real = Player.move

    def move(self: Player, action: int) -> Any:
        if len(taken) == 3 and ended != "by itself":
            raise KeyboardInterrupt if ended == "by an interrupt" else RuntimeError("the lights went out")
        taken.append(action)
        return real(self, action)

    monkeypatch.setattr(Player, "move", move)
    path = tmp_path / f"lake{suffix}"
    settings: dict[str, Any] = {"is_slippery": False, "calls": 300, "episodes": 2, "record": path}
    if ended == "by an error":
        with pytest.raises(RuntimeError, match="the lights went out"):
            sp.act("FrozenLake-v1", **settings)
    else:
        sp.act("FrozenLake-v1", **settings)
    pictures, speed = read(path)
    assert len(pictures) == (7 if ended == "by itself" else 4)
    assert speed == pytest.approx(4.0)
    for found, real_one in zip(pictures, expected(taken), strict=False):
        assert found.shape == (256, 256, 3)
        # A palette and a lossy codec change colours a little; a figure at another place changes many pixels a lot.
        assert np.abs(found.astype(int) - real_one).mean() < 2.0
    assert np.abs(pictures[0].astype(int) - expected(taken)[1]).mean() > 2.0


def test_pictures_of_odd_size_are_padded(tmp_path: Path) -> None:
    path = tmp_path / "odd.mp4"
    with Recorder(path) as recorder:
        for shade in (40, 200):
            recorder.add(np.full((31, 45, 3), shade, dtype=np.uint8), 10.0)
    pictures, speed = read(path)
    assert [picture.shape for picture in pictures] == [(32, 46, 3)] * 2
    assert [picture.mean() for picture in pictures] == pytest.approx([40, 200], abs=5)
    assert speed == 10.0


def test_drawing_is_no_part_of_the_state(tmp_path: Path) -> None:
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


class Blind(gymnasium.Env[Any, Any]):
    """Draws nothing."""

    observation_space, action_space = spaces.Discrete(1), spaces.Discrete(2)
    state = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise AssertionError("nothing is to be played")


@pytest.mark.parametrize(
    ("file", "missing", "error", "message"),
    [
        ("lake.avi", None, ValueError, "record must be a file that ends in .gif or .mp4, got"),
        ("lake.gif", "PIL.Image", ImportError, r'record needs Pillow to write a GIF: pip install "smoothplan\[gym\]"'),
        ("lake.mp4", "imageio_ffmpeg", ImportError, "record needs FFmpeg to write an MP4: pip install"),
        ("nowhere/lake.gif", None, ValueError, "record must be a file that can be written, got .*No such file"),
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
    model = sp.models.from_gymnasium("FrozenLake-v1")
    with pytest.raises(
        ValueError, match="record needs pictures of Blind: make it with render_mode='rgb_array', got None"
    ):
        Player(Blind(), model, look=lambda *_: None)
    blind = Blind()
    blind.render_mode = "rgb_array"
    with pytest.raises(ValueError, match="record needs pictures of Blind, and it cannot draw them"):
        Player(blind, model, look=lambda *_: None)
