"""DoomDuel-v0: two players of ViZDoom, each with an engine process, who shoot at each other.

The scenario is ViZDoom's multi_duel: the players face each other across a hall, step to the left or
right, and shoot. The engines play one networked game over the loopback device, without a window:
the first one is its host. The reward of a step is the change of the player's frags: 1 for each
kill. The game itself brings a dead player back. Episodes are cut after `MAX_EPISODE_STEPS` env
steps.

Agents are ``player_0`` and ``player_1``. Observation: the player's screen, uint8 [72, 128, 3].
Actions: 0 nothing, 1 left, 2 right, 3 shoot. A row takes steps of both engines at the same time, in
two threads.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import ConfigError, Family, refuse_kwargs
from sampleforge.env.parallel import ParallelRows
from sampleforge.env.vector import Array, EnvVector
from sampleforge_envs.vizdoom import nearest_pixels
from sampleforge_envs.vizdoom_engine import start_together, stop

ID = "DoomDuel-v0"
FRAME_SKIP = 4
MAX_EPISODE_STEPS = 525
"""One minute of the game."""
SHAPE = (72, 128, 3)
ENGINE = (120, 160, 3)
"""The engine's smallest screen."""
BUTTONS = 3
HOST = "-host 2 -port {port} -deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_spawnfarthest 1"
GUEST = "-join 127.0.0.1 -port {port}"
Dicts = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]


class DoomDuel:
    """One duel, with PettingZoo's ParallelEnv interface."""

    metadata: Mapping[str, Any] = {"name": ID}

    def __init__(self) -> None:
        self.possible_agents = ["player_0", "player_1"]
        self.agents: list[str] = []
        self._games: list[Any] = []
        # The kernel ends an engine with the thread that has started it, so these threads stay.
        self._threads = ThreadPoolExecutor(len(self.possible_agents))
        self._pixels = nearest_pixels(ENGINE, SHAPE)
        self._frags = [0.0, 0.0]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 255, SHAPE, np.uint8)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(1 + BUTTONS)

    def _each(self, function: Callable[[Any, int], None]) -> None:
        """Call ``function(game, player)`` for both games at the same time: each waits for the
        other."""
        list(self._threads.map(function, self._games, range(len(self._games))))

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._games:
            self._each(lambda game, player: game.new_episode())
        else:
            self._games = configured_games(free_port(), seed or 0)
            start_together(self._games, self._threads)
        self.agents = list(self.possible_agents)
        self._frags = [self._count(game) for game in self._games]
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Dicts:
        chosen = [int(actions[agent]) for agent in self.possible_agents]

        # The engines wait for each other at every tic, and one whose player dies would take fewer.
        together = threading.Barrier(len(self._games))

        def act(game: Any, player: int) -> None:
            pressed = [float(button + 1 == chosen[player]) for button in range(BUTTONS)]
            game.set_action(pressed)
            for tic in range(FRAME_SKIP):
                together.wait()
                game.advance_action(1, tic == FRAME_SKIP - 1)

        self._each(act)
        frags = [self._count(game) for game in self._games]
        rewards = dict(zip(self.agents, np.subtract(frags, self._frags).tolist(), strict=True))
        self._frags = frags
        none = dict.fromkeys(self.agents, False)
        return self._observe(), rewards, none, dict(none), {agent: {} for agent in self.agents}

    def _count(self, game: Any) -> float:
        from vizdoom import GameVariable

        return float(game.get_game_variable(GameVariable.FRAGCOUNT))

    def _observe(self) -> dict[str, Array]:
        screens = [game.get_state().screen_buffer for game in self._games]
        return {
            agent: screen.take(self._pixels).reshape(SHAPE)
            for agent, screen in zip(self.possible_agents, screens, strict=True)
        }

    def close(self) -> None:
        for game in self._games:
            stop(game)
        self._threads.shutdown()


def configured_games(port: int, seed: int) -> list[Any]:
    """Return the games of both players, which are not started."""
    import vizdoom

    games = []
    for player, arguments in enumerate((HOST, GUEST)):
        game = vizdoom.DoomGame()
        game.load_config(str(Path(vizdoom.scenarios_path) / "multi_duel.cfg"))
        game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        game.set_window_visible(False)
        game.set_mode(vizdoom.Mode.PLAYER)
        game.add_game_args(
            f"{arguments.format(port=port)} +name player_{player} +colorset {player}"
        )
        game.set_seed(seed)
        games.append(game)
    return games


def free_port() -> int:
    """Return a UDP port of the loopback device that is not in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    refuse_kwargs(config)
    rows = ParallelRows(
        config,
        lambda row: DoomDuel(),
        num_rows,
        seeds,
        limit=MAX_EPISODE_STEPS,
        frame_skip=FRAME_SKIP,
        protocol="ViZDoom multi_duel.cfg, two players, +1 per kill",
    )
    return rows.seats[0]


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    raise ConfigError(f"{ID} has no single environment that could be used by hand or be filmed")


FAMILY = Family(
    name="doom_duel",
    claims=lambda env_id: env_id.startswith("DoomDuel"),
    ids=lambda: [ID],
    make_vector=make_vector,
    make_single=make_single,
    requires="vizdoom",
    extra="vizdoom",
    plain_kwargs=True,
)
