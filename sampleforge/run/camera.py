"""The camera: one env row whose episodes go into a video, with captions in the frames."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.env_code import making
from sampleforge.env.parallel import ParallelRows, as_parallel, is_multi_agent
from sampleforge.env.registry import for_evaluation, make_single, sync_vector
from sampleforge.env.seeding import row_seeds
from sampleforge.env.vector import EnvVector
from sampleforge.run.video_file import CannotFilm, Frame, VideoFile

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
        self._episode = self._step = 0
        self._agents: tuple[str, ...] | None = None
        self._returns: dict[str, float] = {}

    def __enter__(self) -> Camera:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if self._video is not None:
            if kind is None and self._frame is not None:
                self._video.hold(self._frame, HOLD_S)
            self._video.close(complete=kind is None)

    def row(self, config: EnvConfig, seed: int, policy: str | None) -> EnvVector:
        """Return one row of ``config.env`` that is filmed; with several agents that of the first.
        ``policy``: the id of the policy, in a run with several. Raises ConfigError, which names the
        environment, if it cannot be rendered."""
        self._subject = config.env if policy is None else f"{config.env}   {policy}"
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
        if config.rescale_actions:
            for seat in row.seats:
                seat.rescale_actions()
        return row

    def _made(self, config: EnvConfig) -> Any:
        """Return an environment that draws pictures, and open the file for them."""
        try:
            env = make_single(config, "rgb_array")
        except ConfigError:
            raise
        except Exception as error:
            raise CannotFilm(
                f"{config.env} cannot be made for a video (render_mode rgb_array): {error!r}"
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
        self._step, self._returns = 0, {}
        self._take(picture, env_id)

    def step(self, picture: Any, rewards: Mapping[str, float], env_id: str) -> None:
        """Take the frame after a step. ``rewards``: each agent's reward, by its name ("" if there
        is only one)."""
        self._step += 1
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
        step = f"step {self._step:,}"
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
        raise CannotFilm(f"{env_id} cannot be rendered: {error!r}") from error


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
