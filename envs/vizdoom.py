"""The family of ViZDoom: its own scenarios, from pixels, with one engine process per environment.

Ids are those of ViZDoom's gymnasium wrapper: ``VizdoomBasic-v1`` (at most one button at a time) and
``VizdoomBasic-MultiBinary-v1`` (any of them). Observations are ``screen``, uint8 [72, 128, 3], and
``gamevariables`` where the scenario has any. The engine renders 160 x 120, its smallest
resolution; the actor resizes it by the nearest pixel, which takes 20 us (averaging: 290).

Differences from the wrapper: the scenario's time-out is a truncation only, and its final
observation is the real one (black in the wrapper). After a death or a kill the final observation is
the previous one, because the engine gives none. Pygame is not imported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import ConfigError, Description, Family, describe, settings_of
from sampleforge.env.gymnasium_ids import sync_vector
from sampleforge.env.step_values import TRUE_OBJECTIVE
from sampleforge.env.vector import Array, EnvVector
from sampleforge_envs.vizdoom_engine import start, stop

SCENARIOS = {
    "Basic": "basic",
    "DeadlyCorridor": "deadly_corridor",
    "Deathmatch": "deathmatch",
    "DefendCenter": "defend_the_center",
    "DefendLine": "defend_the_line",
    "HealthGathering": "health_gathering",
    "HealthGatheringSupreme": "health_gathering_supreme",
    "MyWayHome": "my_way_home",
    "PredictPosition": "predict_position",
    "TakeCover": "take_cover",
}
HEALTH = "HEALTH"
"""The game variable with the player's health."""
PREFIX, ONE_BUTTON, ANY_BUTTONS = "Vizdoom", "-v1", "-MultiBinary-v1"
IDS = tuple(f"{PREFIX}{name}{kind}" for name in SCENARIOS for kind in (ONE_BUTTON, ANY_BUTTONS))

RANGES = dict.fromkeys(("frame_skip", "width", "height"), (1, math.inf))
"""The least and the largest value of those of the `Settings` that have some."""


@dataclass(frozen=True)
class Settings:
    """The settings of observations and training rewards; each field can be given in
    ``--env-kwargs``. ``resolution``: the resolution of the engine, such as "256x144" for a wider
    view. ``health_reward``: added to the reward of each step in which HEALTH has risen, as after a
    medkit; returns are reported without it."""

    frame_skip: int = 4
    width: int = 128
    height: int = 72
    resolution: str = "160x120"
    grayscale: bool = False
    game_variables: bool = True
    health_reward: float = 0.0


class DoomEnv(gym.Env[Any, Any]):
    """One ViZDoom game as a gymnasium env. ``limit``: env steps after which an episode is truncated
    (None: the scenario's time-out)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}  # noqa: RUF012

    def __init__(
        self,
        env_id: str,
        settings: Settings,
        limit: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.settings = settings
        self._game = configured_game(env_id, settings)
        timeout = self._game.get_episode_timeout()  # frames, 0 for none
        self.limit = limit or -(-timeout // settings.frame_skip) or None
        self._game.set_episode_timeout(0)
        self.action_space = self._make_actions(env_id.endswith(ANY_BUTTONS))
        self._make_observations()
        self.reward_shaping = self._offer_shaping(env_id)
        self._started = False
        self._steps = 0
        self._return = 0.0  # without shaping
        self._health = 0.0

    def _make_actions(self, any_buttons: bool) -> spaces.Space[Any]:
        """Return the wrapper's action space: ``binary`` buttons, ``continuous`` ones (turn by an
        angle in degrees), or a Dict of both."""
        from vizdoom import is_delta_button

        buttons = self._game.get_available_buttons()
        deltas = [button for button in buttons if is_delta_button(button)]
        plain = [button for button in buttons if not is_delta_button(button)]
        self._game.set_available_buttons(deltas + plain)
        self._num_deltas = len(deltas)
        pressed = itertools.product((0.0, 1.0), repeat=len(plain))
        self._presses = None if any_buttons else [list(p) for p in pressed if sum(p) <= 1]
        binary: spaces.Space[Any] = spaces.MultiBinary(len(plain))
        if self._presses is not None:
            binary = spaces.Discrete(len(self._presses))
        if not deltas:
            return binary
        return spaces.Dict(
            {"binary": binary, "continuous": spaces.Box(-180.0, 180.0, (len(deltas),), np.float32)}
        )

    def _make_observations(self) -> None:
        game, settings = self._game, self.settings
        channels = 1 if settings.grayscale else 3
        shape = (settings.height, settings.width, channels)
        leaves: dict[str, spaces.Space[Any]] = {"screen": spaces.Box(0, 255, shape, np.uint8)}
        self.variables = [variable.name for variable in game.get_available_game_variables()]
        if not settings.game_variables:
            self.variables = []
        if self.variables:
            count = (len(self.variables),)
            leaves["gamevariables"] = spaces.Box(-np.inf, np.inf, count, np.float32)
        self.observation_space = spaces.Dict(leaves)
        source = (game.get_screen_height(), game.get_screen_width(), channels)
        self._pixels = nearest_pixels(source, shape)
        self._observation: dict[str, Array] = {
            "screen": np.zeros(shape, np.uint8),
            **(
                {"gamevariables": np.zeros(len(self.variables), np.float32)}
                if self.variables
                else {}
            ),
        }
        self._screen = np.zeros(source, np.uint8)

    def _offer_shaping(self, env_id: str) -> dict[str, float]:
        """Return the reward-shaping numbers by name. Raises ConfigError if health is to be rewarded
        in a scenario that does not tell it."""
        if not self.settings.health_reward:
            return {}
        told = [variable.name for variable in self._game.get_available_game_variables()]
        if HEALTH not in told:
            raise ConfigError(
                f"{env_id}: env_kwargs has health_reward={self.settings.health_reward:g}, but the "
                f"scenario does not tell {HEALTH}; its game variables are "
                f"{', '.join(told) or 'none'}"
            )
        self._health_index = told.index(HEALTH)
        return {"health_reward": self.settings.health_reward}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        # Drawn as the wrapper draws it, so that the same seed gives the same game.
        self._game.set_seed(int(self.np_random.integers(0, 2**32, dtype=np.uint32)))
        if self._started:
            self._game.new_episode()
        else:
            start(self._game)
            self._started = True
        self._steps, self._return = 0, 0.0
        self._observe()
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        health = self._health
        reward = self._game.make_action(self._buttons(action), self.settings.frame_skip)
        self._steps += 1
        terminated = self._game.is_episode_finished()
        if not terminated:
            self._observe()
        truncated = self.limit is not None and self._steps >= self.limit
        self._return += reward
        info = {}
        if self.reward_shaping:
            info[TRUE_OBJECTIVE] = self._return
            reward += self.reward_shaping["health_reward"] * (self._health > health)
        return self._observation, reward, terminated, truncated and not terminated, info

    def _buttons(self, action: Any) -> list[float]:
        """Return one number per button, continuous ones first."""
        turned: list[float] = []
        if self._num_deltas:
            turned, action = action["continuous"].tolist(), action["binary"]
        if self._presses is not None:
            return turned + self._presses[action]
        return turned + [float(pressed) for pressed in action]

    def _observe(self) -> None:
        """Make a new observation, without changing observations that were returned before."""
        state = self._game.get_state()
        self._screen = state.screen_buffer
        screen = self._observation["screen"]
        self._observation = {"screen": self._screen.take(self._pixels).reshape(screen.shape)}
        if self.variables:
            self._observation["gamevariables"] = state.game_variables.astype(np.float32)
        if self.reward_shaping:
            self._health = float(state.game_variables[self._health_index])

    def render(self) -> Any:
        """Return the engine's screen, uint8 [height, width, 3]."""
        screen = self._screen.reshape(*self._screen.shape[:2], -1)
        return np.broadcast_to(screen, (*screen.shape[:2], 3)).copy()

    def close(self) -> None:
        stop(self._game)


def configured_game(env_id: str, settings: Settings) -> Any:
    """Return a DoomGame of the id's scenario without starting it. Raises ConfigError for a
    resolution that the engine does not have."""
    import vizdoom

    sizes = {
        name.removeprefix("RES_").lower(): value
        for name, value in vizdoom.ScreenResolution.__members__.items()
    }
    if settings.resolution not in sizes:
        raise ConfigError(
            f"{env_id}: resolution is {settings.resolution!r}, but must be one of "
            f"{', '.join(sizes)}"
        )
    game = vizdoom.DoomGame()
    game.load_config(str(Path(vizdoom.scenarios_path) / f"{SCENARIOS[scenario(env_id)]}.cfg"))
    game.set_screen_resolution(sizes[settings.resolution])
    formats = vizdoom.ScreenFormat
    game.set_screen_format(formats.GRAY8 if settings.grayscale else formats.RGB24)
    game.set_window_visible(False)
    return game


def scenario(env_id: str) -> str:
    """Return the scenario of an id, a key of `SCENARIOS`."""
    return env_id.removeprefix(PREFIX).removesuffix(ANY_BUTTONS).removesuffix(ONE_BUTTON)


def nearest_pixels(source: tuple[int, int, int], shape: tuple[int, int, int]) -> Array:
    """Return flat indices into an image ``source`` [H, W, C] that resize it to ``shape`` by the
    nearest pixel. One `take` with them takes 21 us for 160 x 120 to 128 x 72 in colour; indexing
    rows and columns one after the other takes 48."""
    height, width, channels = source
    rows = (np.arange(shape[0]) + 0.5) * height / shape[0]
    columns = (np.arange(shape[1]) + 0.5) * width / shape[1]
    pixels = rows.astype(np.intp)[:, None] * width + columns.astype(np.intp)
    return (pixels[:, :, None] * channels + np.arange(channels)).ravel()


def make_single(config: EnvConfig, render_mode: str | None = None) -> DoomEnv:
    settings = settings_of(Settings, config, ranges=RANGES)
    env = DoomEnv(config.env, settings, config.max_episode_frames, render_mode)
    return describe(env, Description(settings.frame_skip, protocol(env, config.env), env.limit))


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    return sync_vector(config, lambda: make_single(config), num_rows, seeds)


def protocol(env: DoomEnv, env_id: str) -> str:
    """Return the settings that scores depend on, in one line."""
    settings = env.settings
    return ", ".join(
        [
            f"ViZDoom {SCENARIOS[scenario(env_id)]}.cfg",
            f"screen {settings.resolution} to {settings.width}x{settings.height} "
            f"{'grey' if settings.grayscale else 'RGB'}",
            f"game variables {' '.join(env.variables) or 'none'}",
            f"frame skip {settings.frame_skip}",
            "any buttons" if env_id.endswith(ANY_BUTTONS) else "one button at a time",
            f"episodes cut at {env.limit} steps" if env.limit else "no time limit",
            "raw rewards",
            *(
                f"{number:+g} in training when HEALTH rises"
                for number in env.reward_shaping.values()
            ),
        ]
    )


def meant(env_id: str) -> str | None:
    """Return the id of the scenario that an id of Sample Factory (doom_basic) names, or None."""
    names = {f"doom_{file}": name for name, file in SCENARIOS.items()}
    name = names.get(env_id)
    return None if name is None else f"{PREFIX}{name}{ONE_BUTTON}"


FAMILY = Family(
    name="vizdoom",
    claims=lambda env_id: env_id.lower().startswith(PREFIX.lower()),
    ids=lambda: IDS,
    make_vector=make_vector,
    make_single=make_single,
    requires="vizdoom",
    extra="vizdoom",
    plain_kwargs=True,
    meant=meant,
)
