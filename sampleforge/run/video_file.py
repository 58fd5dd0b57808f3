"""Video files (.mp4, .gif), written frame by frame through ffmpeg (extra ``video``)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError

Frame = npt.NDArray[np.uint8]
"""[height, width, 3], RGB."""

FILMED = 3
"""Default number of episodes of a video."""
SUFFIXES = (".mp4", ".gif")
PACKAGES = ("imageio_ffmpeg", "PIL")
GIF_FPS = 25.0
"""Frames per second that a GIF has at most; most programs show faster ones slowly."""


class CannotFilm(ConfigError):
    """A video could not be made."""

    exit_code = 1


def check_video(out: Path) -> None:
    """Raise ConfigError if no video can be written to ``out``."""
    if out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--video {out}: must end in {' or '.join(SUFFIXES)}")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--video {out}: there is no folder {out.parent}")
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"--video {out} needs the package {package}, which is not installed: "
                'pip install "sampleforge[video]"'
            )


class VideoFile:
    """Writes frames, all of the same size, at ``fps`` frames per second into ``out``.

    The file appears when it is complete. A GIF leaves frames out if there are more than `GIF_FPS` a
    second.
    """

    def __init__(self, out: Path, fps: float) -> None:
        self._out = out
        self._part = out.with_name(f".{out.stem}.part{out.suffix}")
        self._is_gif = out.suffix.lower() == ".gif"
        self._every = math.ceil(fps / GIF_FPS) if self._is_gif else 1
        self._fps = fps / self._every
        self._shape: tuple[int, ...] = ()
        self._writer: Generator[None, Any, None] | None = None
        self._given = 0
        self._length = 0

    def write(self, frame: Frame) -> None:
        """Add a frame. Raises CannotFilm if its size differs from that of the ones before, or if
        the file cannot be written."""
        self._given += 1
        if (self._given - 1) % self._every == 0:
            self._write(frame)

    def hold(self, frame: Frame, seconds: float) -> None:
        """Show a frame for so many seconds."""
        for _ in range(max(1, round(seconds * self._fps))):
            self._write(frame)

    def close(self, *, complete: bool) -> None:
        """Finish the file; remove it unless it is ``complete``."""
        try:
            if self._writer is not None:
                self._writer.close()
            if complete and self._writer is not None:
                self._part.replace(self._out)
        except OSError as error:
            raise CannotFilm(f"--video {self._out}: {error}") from error
        finally:
            self._writer = None
            self._part.unlink(missing_ok=True)

    def _write(self, frame: Frame) -> None:
        if not self._shape:
            self._shape = frame.shape
            self._writer = self._open()
        if frame.shape != self._shape:
            raise CannotFilm(
                f"--video {self._out}: a frame of {frame.shape[1]} x {frame.shape[0]} pixels after "
                f"ones of {self._shape[1]} x {self._shape[0]}; the frames of a video have one size"
            )
        height, width = (side + side % 2 for side in frame.shape[:2])  # H.264 needs even sides
        even = np.zeros((height, width, 3), np.uint8)
        even[: frame.shape[0], : frame.shape[1]] = frame
        assert self._writer is not None
        try:
            self._writer.send(even.tobytes())
        except OSError as error:
            raise CannotFilm(f"--video {self._out}: {error}") from error

    def _open(self) -> Generator[None, Any, None]:
        from imageio_ffmpeg import write_frames

        height, width = (side + side % 2 for side in self._shape[:2])
        how: dict[str, Any] = {"codec": "libx264", "quality": 7}
        if self._is_gif:
            # A palette for each frame: one for all would keep all frames in memory.
            palette = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
            how = {"codec": "gif", "pix_fmt_out": "pal8", "output_params": ["-vf", palette]}
        writer: Generator[None, Any, None] = write_frames(
            str(self._part),
            (width, height),
            fps=self._fps,
            macro_block_size=2,
            ffmpeg_log_level="error",
            **how,
        )
        writer.send(None)
        return writer
