"""Atari through ALE: its C++ vector env by default, single gymnasium envs with ``--env-backend
single``. Both have the same settings, see `Protocol`.

The defaults are the standard of the literature without sticky actions: 84 x 84 grey, 4 frames
stacked, every action for 4 frames, maximum over the last two, up to 30 no-ops and FIRE at the start
of an episode, whole games, raw rewards. Sticky actions are ``--env-kwargs repeat_action_probability
0.25``: scores with and without are not comparable.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import ConfigError, Description, Family, describe, settings_of
from sampleforge.env.gymnasium_ids import sync_vector
from sampleforge.env.gymnasium_vector import GymnasiumVector
from sampleforge.env.vector import Array, EnvVector, Episode, StepOut
from sampleforge.spec import OBSERVATION

PREFIX = "ALE/"
NOOP = 0
"""The action of all games that presses nothing."""
STACKED = {"frame_stack": {"obs": "zero"}}
"""Metadata of both backends: an episode begins with the stack (0, ..., 0, first frame)."""

COUNTED = "frameskip stack_num img_height img_width max_num_frames_per_episode"
RANGES = {
    "repeat_action_probability": (0.0, 1.0),
    "noop_max": (0, math.inf),
    **dict.fromkeys(COUNTED.split(), (1, math.inf)),
}
"""The least and the largest value of the settings of `Protocol`."""


@dataclass(frozen=True)
class Protocol:
    """The settings of observations, actions and episodes; each field can be given in
    ``--env-kwargs``. Rewards are never clipped here, so that returns are true; ``--reward-clip``
    clips them for learning."""

    repeat_action_probability: float = 0.0
    full_action_space: bool = False
    max_num_frames_per_episode: int = 108_000
    img_height: int = 84
    img_width: int = 84
    grayscale: bool = True
    stack_num: int = 4
    frameskip: int = 4
    maxpool: bool = True
    noop_max: int = 30
    use_fire_reset: bool = True
    episodic_life: bool = False

    @classmethod
    def of(cls, config: EnvConfig) -> Protocol:
        """Return the settings of a config: defaults, overridden by env_kwargs and then by
        --max-episode-steps. Raises ConfigError for an unknown key or a value of the wrong type."""
        protocol = settings_of(cls, config, {"clip": "--reward-clip"}, RANGES)
        if config.max_episode_frames is not None:
            frames = config.max_episode_frames * protocol.frameskip
            protocol = replace(protocol, max_num_frames_per_episode=frames)
        return protocol

    def __str__(self) -> str:
        episode = "life is an episode of training" if self.episodic_life else "game is an episode"
        return ", ".join(
            [
                f"ALE {self.img_height}x{self.img_width} {'grey' if self.grayscale else 'RGB'}",
                f"stack {self.stack_num}",
                f"frame skip {self.frameskip}{' with max-pooling' if self.maxpool else ''}",
                f"sticky actions {self.repeat_action_probability:g}",
                f"{'full' if self.full_action_space else 'minimal'} action set",
                f"no-op starts {self.noop_max}",
                f"fire reset {'on' if self.use_fire_reset else 'off'}",
                f"a {episode}",
                "unclipped rewards",
            ]
        )

    @property
    def max_episode_steps(self) -> int:
        return -(-self.max_num_frames_per_episode // self.frameskip)


class AtariVector(GymnasiumVector):
    """ALE's vector env. A step begins in ``send`` and continues in ``threads`` of ALE until
    ``recv``, while the actor serves its other split.

    No-ops and games of different lengths spread the starts of episodes, so ``--decorrelate`` has no
    effect.
    """

    def __init__(self, config: EnvConfig, seeds: Sequence[int], threads: int = 1) -> None:
        import ale_py

        protocol = Protocol.of(config)
        given = {field.name: getattr(protocol, field.name) for field in fields(protocol)}
        given["episodic_life"] = False  # ALE would begin a new game after each life
        env = ale_py.AtariVectorEnv(
            roms()[config.env], len(seeds), num_threads=threads, reward_clipping=False, **given
        )
        # ALE writes its mode into gymnasium's class, where every other VectorEnv would inherit it.
        env.metadata = dict(env.metadata) | STACKED
        VectorEnv.metadata.pop("autoreset_mode", None)
        super().__init__(
            config,
            env,
            seeds,
            frame_skip=protocol.frameskip,
            protocol=str(protocol),
            max_episode_steps=protocol.max_episode_steps,
            asynchronous=True,
        )
        self._ale = env
        self._in_order = np.arange(len(seeds))

    def reset(self, obs: Mapping[str, Array]) -> None:
        observations, info = self._ale.reset(seed=np.array(self._seeds))
        self._write(self._sorted(info, observations)[0], obs)

    def _begin(self, actions: dict[str, Array]) -> None:
        self._ale.send(actions["action"])

    def _step(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *columns, info = self._ale.recv()
        observations, reward, terminated, truncated = self._sorted(info, *columns)
        return observations, reward, terminated, truncated, info

    def _sorted(self, info: Mapping[str, Any], *columns: Array) -> list[Array]:
        """Return the columns in the order of the rows; ALE may return them in the order in which
        they became ready."""
        ids = info["env_id"]
        if np.array_equal(ids, self._in_order):
            return list(columns)
        order = np.argsort(ids)
        return [column[order] for column in columns]


class AtariLives(AtariVector):
    """Each life is an episode of training: the step that loses one is terminal.

    The game goes on. In the step after, which next-step autoreset leaves out, nothing is pressed;
    in games that wait for FIRE the policy presses it, as it has to in evaluations. A life begins
    with an empty stack, as a game does (Stable-Baselines3 and CleanRL reset theirs, too): frames of
    the life before are zero. The episodes that are returned are whole games.
    """

    def __init__(self, config: EnvConfig, seeds: Sequence[int], threads: int = 1) -> None:
        super().__init__(config, seeds, threads)
        self._depth = self.spec.observations[OBSERVATION].shape[0]
        self._lives = np.zeros(len(seeds), np.int64)
        self._left_out, self._over = np.zeros((2, len(seeds)), np.bool_)
        """Rows whose next step is left out, because their last one lost a life; whose game has
        ended by the last step."""
        self._late, self._late_over = np.zeros((2, len(seeds)), np.bool_)
        """Rows that lost a life or the game in a step left out, so that the next one is terminal;
        those of them that lost the game."""
        self._frames = np.full(len(seeds), self._depth, np.int64)
        """Number of frames that each row's stack has of the life, where they are fewer than all."""
        self._over_frames: dict[int, Array] = {}
        """The last frame of the games that were lost in the last step, which was left out."""

    def _begin(self, actions: dict[str, Array]) -> None:
        if self._left_out.any():
            actions = {"action": np.where(self._left_out, NOOP, actions["action"])}
        super()._begin(actions)

    def _step(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, reward, terminated, truncated, info = super()._step()
        lives = self._sorted(info, info["lives"])[0]
        over, lost = terminated | truncated, lives < self._lives
        self._lives = lives
        self._returns[self._left_out] += reward[self._left_out]
        self._lengths += self._left_out
        self._frames = np.where(self._left_out, 1, self._frames + 1)
        ends = (lost & ~self._left_out) | self._late
        self._over = (over & ~self._left_out) | self._late_over
        self._late, self._late_over = (over | lost) & self._left_out, over & self._left_out
        self._left_out = ends & ~over
        return observations, reward, terminated | ends, truncated, info

    def _complete(self, out: StepOut) -> None:
        super()._complete(out)
        stacks = out.obs[OBSERVATION]
        for row in np.flatnonzero(self._frames < self._depth).tolist():
            stacks[row, : self._depth - self._frames[row]] = 0
        for row, frame in self._over_frames.items():  # ALE has begun a game within the life
            stacks[row, -2:-1] = frame
        over = np.flatnonzero(self._late_over).tolist()
        self._over_frames = {row: stacks[row, -1].copy() for row in over}

    def _finish_episodes(self) -> list[Episode]:
        ended = self._ended
        self._ended = ended & self._over
        games = super()._finish_episodes()
        self._ended = ended
        return games


class FireReset(gym.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE after a reset in games that have this action."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        meanings = self.env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        if "FIRE" in meanings:
            observation, _, terminated, truncated, info = self.env.step(meanings.index("FIRE"))
            if terminated or truncated:
                observation, info = self.env.reset(**kwargs)
        return observation, info


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Return gymnasium's env with its own preprocessing, which needs OpenCV."""
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

    gym.register_envs(ale_py)
    protocol = Protocol.of(config)
    if protocol.episodic_life:
        raise ConfigError(
            f"{config.env}: episodic_life=True needs ALE's vector env; gymnasium's preprocessing "
            f"begins a new game after each life. Use --env {config.env} --env-backend vector"
        )
    if not protocol.maxpool:
        raise ConfigError(
            f"{config.env}: maxpool=False needs ALE's vector env; gymnasium's preprocessing always "
            f"pools. Use --env {config.env} --env-backend vector"
        )
    env: gym.Env[Any, Any] = gym.make(
        config.env,
        frameskip=1,
        repeat_action_probability=protocol.repeat_action_probability,
        full_action_space=protocol.full_action_space,
        max_num_frames_per_episode=None,  # it would count the no-ops, which the time limit does not
        render_mode=render_mode,
        disable_env_checker=True,
    )
    env = AtariPreprocessing(
        env,
        noop_max=protocol.noop_max,
        frame_skip=protocol.frameskip,
        screen_size=(protocol.img_width, protocol.img_height),
        grayscale_obs=protocol.grayscale,
    )
    if protocol.use_fire_reset:
        env = FireReset(env)
    env = FrameStackObservation(env, protocol.stack_num, padding_type="zero")
    env = TimeLimit(env, protocol.max_episode_steps)
    # The console has 60 frames a second.
    env.metadata = dict(env.metadata) | STACKED | {"render_fps": 60 / protocol.frameskip}
    return describe(env, Description(protocol.frameskip, str(protocol), protocol.max_episode_steps))


def make_vector(
    config: EnvConfig, num_rows: int, seeds: Sequence[int], threads: int = 1
) -> EnvVector:
    protocol = Protocol.of(config)
    if config.env_backend != "single":
        kind = AtariLives if protocol.episodic_life else AtariVector
        return kind(config, seeds, threads)
    return sync_vector(config, lambda: make_single(config), num_rows, seeds)


def whole_games(config: EnvConfig) -> EnvConfig:
    """Return ``config`` with games as episodes: one that ends with a life is an aid to learning."""
    return replace(config, env_kwargs={**config.env_kwargs, "episodic_life": False})


def roms() -> dict[str, str]:
    """Return environment ids -> ROM names; empty without ale-py."""
    return _registered() if FAMILY.installed else {}


@functools.cache
def _registered() -> dict[str, str]:
    import ale_py

    gym.register_envs(ale_py)
    return {
        env_id: spec.kwargs["game"]
        for env_id, spec in gym.registry.items()
        if env_id.startswith(PREFIX) and spec.kwargs.get("obs_type") != "ram"
    }


GAMES = """
adventure air_raid alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider
berzerk bowling boxing breakout carnival centipede chopper_command crazy_climber defender
demon_attack double_dunk elevator_action enduro fishing_derby freeway frostbite gopher gravitar hero
ice_hockey jamesbond journey_escape kangaroo krull kung_fu_master montezuma_revenge ms_pacman
name_this_game phoenix pitfall pong pooyan private_eye qbert riverraid road_runner robotank seaquest
skiing solaris space_invaders star_gunner tennis time_pilot tutankham up_n_down venture
video_pinball wizard_of_wor yars_revenge zaxxon
"""
"""The games that earlier protocols and other libraries have ids for, by the names of their ROMs."""
NAMES = {game.replace("_", ""): game.title().replace("_", "") for game in GAMES.split()}
OTHER = re.compile(r"(?:ale/|atari_)?(\w+?)(?:-ram)?(?:noframeskip|deterministic)?(?:-v\d+)?", re.I)


def meant(env_id: str) -> str | None:
    """Return the id of the game that an id of an earlier protocol (BreakoutNoFrameskip-v4,
    Breakout-v0), of envpool (Breakout-v5) or of Sample Factory (atari_breakout) names, or None."""
    found = OTHER.fullmatch(env_id)
    name = NAMES.get(found[1].lower().replace("_", "")) if found else None
    return None if name is None else f"{PREFIX}{name}-v5"


FAMILY = Family(
    name="atari",
    claims=lambda env_id: env_id.lower().startswith(PREFIX.lower()),
    ids=lambda: list(roms()),
    make_vector=make_vector,
    make_single=make_single,
    requires="ale_py",
    extra="atari",
    plain_kwargs=True,
    meant=meant,
    for_evaluation=whole_games,
)
