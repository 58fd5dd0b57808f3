"""The family of MinAtar: five Atari-like games on a 10 x 10 grid, learned within minutes.

Ids are ``MinAtar/Breakout`` (or ``-v1``: the same). The action set is the game's minimal one
unless ``use_minimal_action_set`` is false (then all six, as in ``-v0``). Sticky actions have
probability 0.1 and difficulty ramps, as in the paper (Young & Tian, 2019). MinAtar has no time
limit, so this module sets one: a policy that never loses would play one episode for ever.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Description, Family, describe, settings_of
from sampleforge.env.gymnasium_ids import sync_vector
from sampleforge.env.vector import EnvVector

GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
MAX_EPISODE_STEPS = 5000
# Background, then the channels.
PALETTE = "000000 5fad56 f2c14e f78154 4d9edb b4436c 969696 dedede 785ac8 3cc8b4 fafa78"
COLOURS = np.array([list(bytes.fromhex(colour)) for colour in PALETTE.split()], np.uint8)
PIXELS_PER_CELL = 16


@functools.cache
def game_module(game: str) -> ModuleType:
    """Return MinAtar's module of one game, without ``import minatar``: that would import matplotlib
    and seaborn for a display that is not used, which takes a second per process."""
    package = importlib.util.find_spec("minatar")
    assert package is not None and package.origin is not None, "the registry checks it"
    path = Path(package.origin).parent / "environments" / f"{game}.py"
    spec = importlib.util.spec_from_file_location(f"_minatar_{game}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class MinAtarSettings:
    """The settings of a game; each field can be given in ``--env-kwargs``."""

    sticky_action_prob: float = 0.1
    difficulty_ramping: bool = True
    use_minimal_action_set: bool = True

    def __str__(self) -> str:
        return (
            f"sticky actions {self.sticky_action_prob:g}, difficulty ramping "
            f"{'on' if self.difficulty_ramping else 'off'}, "
            f"{'minimal' if self.use_minimal_action_set else 'all six'} actions"
        )


class MinAtarEnv(gym.Env[Any, Any]):
    """One MinAtar game as a gymnasium env. Observations: bool [10, 10, channels]. Episodes are cut
    after ``limit`` steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self, game: str, settings: MinAtarSettings, limit: int, render_mode: str | None = None
    ) -> None:
        self.render_mode = render_mode
        self._game = game_module(game).Env(ramping=settings.difficulty_ramping)
        self._sticky = settings.sticky_action_prob
        self._limit = limit
        minimal = settings.use_minimal_action_set
        self._actions = self._game.minimal_action_set() if minimal else range(6)
        self._last_action = 0
        self._steps = 0
        self.action_space = spaces.Discrete(len(self._actions))
        shape = tuple(self._game.state_shape())
        self.observation_space = spaces.Box(0, 1, shape, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._game.random = np.random.RandomState(seed)
            self._last_action = 0  # otherwise it outlives the episode, as in MinAtar
        self._game.reset()
        self._steps = 0
        return self._game.state(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = self._actions[action]
        # The same as MinAtar's Environment.act, whose module is not imported.
        if self._game.random.rand() < self._sticky:
            chosen = self._last_action
        self._last_action = chosen
        reward, terminated = self._game.act(chosen)
        self._steps += 1
        return self._game.state(), float(reward), terminated, self._steps >= self._limit, {}

    def render(self) -> Any:
        """Return an image, uint8 [160, 160, 3]; the last channel that is set gives a cell's
        colour."""
        state = self._game.state()
        numbered = state * (1 + np.arange(state.shape[2]))
        cells = COLOURS[numbered.max(axis=2)]
        return np.kron(cells, np.ones((PIXELS_PER_CELL, PIXELS_PER_CELL, 1), np.uint8))


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    game = GAMES[config.env.removeprefix("MinAtar/").removesuffix("-v1")]
    settings = settings_of(MinAtarSettings, config, ranges={"sticky_action_prob": (0.0, 1.0)})
    limit = config.max_episode_frames or MAX_EPISODE_STEPS
    protocol = f"MinAtar, {settings}, episodes cut at {limit} steps, raw rewards"
    env = MinAtarEnv(game, settings, limit, render_mode)
    return describe(env, Description(protocol=protocol, max_episode_steps=limit))


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    return sync_vector(config, lambda: make_single(config), num_rows, seeds)


FAMILY = Family(
    name="minatar",
    claims=lambda env_id: env_id.startswith("MinAtar/"),
    ids=lambda: [f"MinAtar/{game}{version}" for game in GAMES for version in ("", "-v1")],
    make_vector=make_vector,
    make_single=make_single,
    requires="minatar",
    extra="minatar",
    plain_kwargs=True,
)
