"""Videos of episodes: the camera, which films the episodes of one env row and writes captions into
the frames, and the file (.mp4, .gif), written frame by frame through ffmpeg (extra ``video``)."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.env_code import making
from sampleforge.env.gymnasium_ids import sync_vector
from sampleforge.env.parallel import ParallelRows, as_parallel, is_multi_agent
from sampleforge.env.place import row_seeds
from sampleforge.env.registry import apply_flags, for_evaluation, make_single
from sampleforge.env.vector import EnvVector
from sampleforge.runtime.causes import in_words

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
    """Raise ConfigError if ``out`` has another suffix than `SUFFIXES`, or a package is missing."""
    if out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--video {out}: must end in {' or '.join(SUFFIXES)}")
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
        self._written = 0

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
                self._check()
                self._part.replace(self._out)
        except OSError as error:
            raise CannotFilm(f"--video {self._out}: {error}") from error
        finally:
            self._writer = None
            self._part.unlink(missing_ok=True)

    def _check(self) -> None:
        """Raise CannotFilm if the finished file lacks frames. Most of it is written at its end, and
        that the disk was full there is said by ffmpeg's exit status alone, which its package does
        not look at."""
        from imageio_ffmpeg import count_frames_and_secs

        try:
            found = count_frames_and_secs(str(self._part))[0]
        except RuntimeError:  # it is no video
            found = 0
        if found < self._written:
            raise CannotFilm(
                f"--video {self._out}: only {found} of {self._written} frames could be written; is "
                "the disk full? The file that was there before is unchanged"
            )

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
            self._written += 1
        except OSError as error:  # a pipe without a reader; ffmpeg has said more
            raise CannotFilm(
                f"--video {self._out}: ffmpeg ended after {self._written} frames, and said why "
                "above; is the disk full? The file that was there before is unchanged"
            ) from error

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


Env = gym.Env[Any, Any]

FPS = 30.0
"""Frames per second of an environment that does not say (``metadata["render_fps"]``)."""
HOLD_S = 0.8
"""Seconds for which the last frame of an episode is shown."""
WIDTH = 320
"""Least width of a frame in pixels; smaller ones are enlarged by a whole factor."""
FONT, LINE, MARGIN = 14, 19, 6
"""Size of the captions, and the height of a line and the margin in pixels."""
MOST_AGENTS = 4
"""Agents whose returns the caption has; of more there is the mean."""
INK, GROUND = (255, 255, 255), (24, 24, 24)


class Camera:
    """Films ``episodes`` episodes into the file ``out``. The caption of each frame has the
    environment and the policy, the episode, the env step and the return so far, with several agents
    that of each.

    It is a context that finishes the file; after an error there is no file.
    """

    def __init__(self, out: Path, episodes: int) -> None:
        self._out = out
        self._episodes = episodes
        self._subject = ""
        self._video: VideoFile | None = None
        self._frame: Frame | None = None
        self._episode = self._frames = 0
        self._repeat = 1
        self._agents: tuple[str, ...] | None = None
        self._returns: dict[str, float] = {}

    def __enter__(self) -> Camera:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if self._video is None:
            return
        complete = False
        try:
            if kind is None and self._frame is not None:
                self._video.hold(self._frame, HOLD_S)
            complete = kind is None
        finally:
            self._video.close(complete=complete)

    def row(self, config: EnvConfig, seed: int, policy: str | None) -> EnvVector:
        """Return one row of ``config.env`` that is filmed; with several agents that of the first.
        ``policy``: the id of the policy, in a run with several. Raises ConfigError, which names the
        environment, if it cannot be rendered."""
        self._subject = config.env if policy is None else f"{config.env}   {policy}"
        self._repeat = config.action_repeat
        _work_without_display()
        config = dataclasses.replace(for_evaluation(config), env_backend="single")
        made, seeds = [self._made(config)], row_seeds(seed, 0, 0, 1)
        several = is_multi_agent(made[0])
        self._agents = tuple(made[0].possible_agents) if several else None

        def film() -> Any:
            env = made.pop() if made else self._made(config)  # the first one tells their kind
            return (FilmedAgents if several else Filmed)(env, self, config.env)

        with making():
            if several:
                row: EnvVector = ParallelRows(config, lambda row: film(), 1, seeds).seats[0]
            else:
                row = sync_vector(config, film, 1, seeds)
        apply_flags(config, row)
        return row

    def _made(self, config: EnvConfig) -> Any:
        """Return an environment that draws pictures, and open the file for them."""
        try:
            env = make_single(config, "rgb_array")
        except ConfigError:
            raise
        except Exception as error:
            remedy = ""
            if isinstance(error, TypeError) and "render_mode" in str(error):
                remedy = "; give the factory a parameter render_mode, for the environment it makes"
            raise CannotFilm(
                f"{config.env} cannot be made for a video (render_mode rgb_array): "
                f"{in_words(error)}{remedy}"
            ) from error
        if is_multi_agent(env):
            env = as_parallel(env, config.env, 0)
        elif not isinstance(env, gym.Env):
            raise CannotFilm(
                f"{config.env} returned a {type(env).__name__}, and only single environments, of "
                "gymnasium or of PettingZoo, can be filmed"
            )
        if self._video is None:
            metadata = getattr(env, "metadata", None) or {}
            fps = float(metadata.get("render_fps") or FPS)
            self._video = VideoFile(self._out, fps)
        return env

    def begin_episode(self, picture: Any, env_id: str) -> None:
        """Take the first frame of an episode; the last one before it is held."""
        if self._frame is not None:
            assert self._video is not None
            self._video.hold(self._frame, HOLD_S)
        self._episode += 1
        self._frames, self._returns = 0, {}
        self._take(picture, env_id)

    def step(self, picture: Any, rewards: Mapping[str, float], env_id: str) -> None:
        """Take the frame after a step of the environment, of which an env step has several where
        actions are repeated. ``rewards``: each agent's reward, by its name ("" if there
        is only one)."""
        self._frames += 1
        for agent, reward in rewards.items():
            self._returns[agent] = self._returns.get(agent, 0.0) + float(reward)
        self._take(picture, env_id)

    def _take(self, picture: Any, env_id: str) -> None:
        frame = _as_frame(picture, env_id)
        self._frame = captioned(frame, [self._subject, *self._position()])
        assert self._video is not None
        self._video.write(self._frame)

    def _position(self) -> list[str]:
        """Return the lines that say where the episode is."""
        step = f"step {-(-self._frames // self._repeat):,}"
        if self._agents is None:
            number = f"episode {self._episode} of {self._episodes}"
            return [f"{number}   {step}   return {self._returns.get('', 0.0):,.2f}"]
        returns = {agent: self._returns.get(agent, 0.0) for agent in self._agents}
        text = "   ".join(f"{agent} {total:,.2f}" for agent, total in returns.items())
        if len(returns) > MOST_AGENTS:
            text = f"mean of {len(returns)} agents {np.mean([*returns.values()]):,.2f}"
        # An episode of the environment is one of each of its agents.
        return [f"episode {self._episode}   {step}", f"return   {text}"]


class Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the camera every state of an environment."""

    def __init__(self, env: Env, camera: Camera, env_id: str) -> None:
        super().__init__(env)
        self._camera = camera
        self._env_id = env_id

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**given)
        self._camera.begin_episode(self._picture(), self._env_id)
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._camera.step(self._picture(), {"": float(result[1])}, self._env_id)
        return result

    def _picture(self) -> Any:
        return drawn(self.env, self._env_id)


class FilmedAgents:
    """Shows the camera every state of a PettingZoo ``ParallelEnv``."""

    def __init__(self, env: Any, camera: Camera, env_id: str) -> None:
        self.env = env
        self._camera = camera
        self._env_id = env_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **given: Any) -> Any:
        result = self.env.reset(**given)
        self._camera.begin_episode(drawn(self.env, self._env_id), self._env_id)
        return result

    def step(self, actions: Mapping[str, Any]) -> Any:
        result = self.env.step(actions)
        self._camera.step(drawn(self.env, self._env_id), result[1], self._env_id)
        return result


def drawn(env: Any, env_id: str) -> Any:
    """Return what an environment draws. Raises CannotFilm if that fails."""
    try:
        return env.render()
    except Exception as error:
        raise CannotFilm(f"{env_id} cannot be rendered: {in_words(error)}") from error


def captioned(frame: Frame, lines: list[str]) -> Frame:
    """Return a frame, enlarged to at least `WIDTH` pixels, with lines of text below it."""
    from PIL import Image, ImageDraw, ImageFont

    factor = -(-WIDTH // frame.shape[1])
    large = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = large.shape[:2]
    image = Image.new("RGB", (width, height + LINE * len(lines) + MARGIN), GROUND)
    image.paste(Image.fromarray(large), (0, 0))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(FONT)
    for index, line in enumerate(lines):
        draw.text((MARGIN, height + MARGIN // 2 + LINE * index), line, INK, font)
    return np.asarray(image)


def _as_frame(picture: Any, env_id: str) -> Frame:
    """Return what an environment has rendered. Raises CannotFilm if that is no RGB image."""
    frame = np.asarray(picture)
    if frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8:
        return frame
    what = "nothing" if picture is None else f"{frame.dtype} {list(frame.shape)}"
    raise CannotFilm(
        f"{env_id} cannot be rendered: render() returned {what}, but with render_mode rgb_array "
        "must return an image, uint8 [height, width, 3]"
    )


def _work_without_display() -> None:
    """Have the libraries that draw do so in memory if there is no display. It must come before
    their import."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
