"""Animations of an episode: GIF by Pillow, MP4 by FFmpeg."""

import importlib
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""[height, width, 3]"""


class _Writer(Protocol):
    def add(self, picture: Picture) -> None:
        """Appends a picture."""

    def close(self) -> None:
        """Completes the file."""


class Recorder:
    """Writes pictures to an animation, as a context: whatever ends it, the file has all pictures so far.

    What can fail is found out here, before there is anything to lose.

    Args:
        path: a file that ends in .gif or .mp4. An older one is replaced.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        suffix = self.path.suffix.lower()
        if suffix not in (".gif", ".mp4"):
            raise ValueError(f"record must be a file that ends in .gif or .mp4, got {str(path)!r}")
        self._library: Any = _pillow() if suffix == ".gif" else _ffmpeg()
        self._kind: type[_Gif | _Mp4] = _Gif if suffix == ".gif" else _Mp4
        self._writer: _Writer | None = None
        new = not self.path.exists()
        try:
            with self.path.open("ab"):
                pass
        except OSError as error:
            raise ValueError(f"record must be a file that can be written, got {str(path)!r}: {error}") from error
        if new:
            self.path.unlink()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, picture: Picture, frames_per_second: float) -> None:
        """Appends a picture, [height, width, 3]; all have the same size and speed."""
        if self._writer is None:
            self._writer = self._kind(self._library, self.path, picture, frames_per_second)
        self._writer.add(picture)

    def close(self) -> None:
        """Completes the file. There is none without a picture."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _Gif:
    def __init__(self, image: Any, path: Path, first: Picture, frames_per_second: float) -> None:
        self._image, self._path, self._duration = image, path, 1000.0 / frames_per_second
        self._pictures: list[Any] = []

    def add(self, picture: Picture) -> None:
        # With a palette of its own, as in the file: a third of the memory.
        self._pictures.append(self._image.fromarray(picture).quantize())

    def close(self) -> None:
        first, *others = self._pictures
        first.save(
            self._path, format="GIF", save_all=True, append_images=others, duration=self._duration, loop=0, disposal=1
        )


class _Mp4:
    def __init__(self, program: str, path: Path, first: Picture, frames_per_second: float) -> None:
        height, width = first.shape[:2]
        self._border = (0, height % 2), (0, width % 2), (0, 0)  # most players need even numbers
        size = f"{width + width % 2}x{height + height % 2}"
        given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{frames_per_second:g}", "-i", "-"]
        wanted = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", f"file:{path.absolute()}"]
        self._process = subprocess.Popen(
            [program, "-y", "-loglevel", "error", *given, *wanted],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C ends the episode, not the file
        )

    def add(self, picture: Picture) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.pad(picture, self._border, mode="edge").tobytes())
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        _, said = self._process.communicate()
        if self._process.returncode != 0:
            raise OSError(f"record: FFmpeg did not write the MP4: {said.decode(errors='replace').strip()}")


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise ImportError('record needs Pillow to write a GIF: pip install "smoothplan[gym]"') from None


def _ffmpeg() -> str:
    """The program, which comes with the package imageio-ffmpeg unless there is one in the environment."""
    try:
        return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise ImportError(f'record needs FFmpeg to write an MP4: pip install "smoothplan[gym]" ({error})') from None
