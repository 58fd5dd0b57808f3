"""The family of MiniGrid and BabyAI: grid worlds whose observations are codes, not pixels.

Ids are minigrid's own (``MiniGrid-Empty-5x5-v0``, ``BabyAI-GoToLocal-v0``). The agent sees a square
of cells (7 x 7, or ``agent_view_size``), three codes each: object, colour, state. Codes are
categories, so they are stored as uint8 and one-hot encoded by the model: divided by 255 like
pixels, they would be almost equal. Leaves of the observation:

* ``image``: the codes, [7, 7, 3];
* ``direction``: the agent's compass direction, one of 4;
* ``mission``: the words of the task, one category each, where the task differs between episodes
  ("go to the red door"). A mission that never changes carries no information and is left out.

Rewards are minigrid's own: 1 - 0.9 x (steps taken / step limit) for success, otherwise 0.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import ConfigError, Description, Family, describe, description_of
from sampleforge.env.gymnasium_ids import bare, gymnasium_env, sync_vector
from sampleforge.env.vector import Array, EnvVector

PREFIXES = ("MiniGrid-", "BabyAI-")
STATES = 4
"""Codes of a cell's third channel: a door's state (3 of them) or an agent's direction (4)."""
BABYAI_WORDS = (
    "red green blue purple yellow grey box ball key door object a the go to open pick up put next "
    "in front of you behind on your left right and then after ,"
)
"""The words of BabyAI's grammar."""
BABYAI_LENGTH = 72
"""Number of words of BabyAI's longest sentence, "A and B, then C and D", where each of the four
parts is "put the red ball in front of you next to the blue box in front of you"."""


def ids() -> list[str]:
    """Return the ids that minigrid registers when it is imported; empty if it is not installed."""
    if not FAMILY.installed:
        return []
    # minigrid imports pygame, which would print a greeting in every process.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import minigrid  # noqa: F401

    return [env_id for env_id in gym.registry if env_id.startswith(PREFIXES)]


class Missions:
    """Turns the missions of one environment into word codes: uint8 [length], 0 for no word."""

    def __init__(self, words: Iterable[str], length: int) -> None:
        self._codes = {word: code for code, word in enumerate(sorted(set(words)), 1)}
        self._length = length
        self._mission: str | None = None
        self.space = spaces.MultiDiscrete([len(self._codes) + 1] * length, dtype=np.uint8)

    @classmethod
    def of(cls, space: Any) -> Missions | None:
        """Return the encoder for a MissionSpace; None if all its missions are the same.

        A MissionSpace is a sentence with gaps and the phrases for each gap. The space of BabyAI
        does not describe its missions, which come from a grammar.
        """
        if type(space).__name__ == "BabyAIMissionSpace":
            return cls(split(BABYAI_WORDS), BABYAI_LENGTH)
        gaps = space.ordered_placeholders or []
        if all(len(phrases) == 1 for phrases in gaps):
            return None
        longest = [max(phrases, key=lambda phrase: len(split(phrase))) for phrases in gaps]
        words = {word for phrases in gaps for phrase in phrases for word in split(phrase)}
        sentence = split(space.mission_func(*longest))
        return cls([*words, *sentence], len(sentence))

    def __call__(self, mission: str) -> Array:
        """Return the codes of ``mission``. Raises ConfigError for a word that is not in the mission
        space."""
        if mission != self._mission:
            words = split(mission)
            if len(words) > self._length or not self._codes.keys() >= set(words):
                raise ConfigError(
                    f"the mission {mission!r} has words that its mission space does not announce; "
                    f"announced are up to {self._length} words of {', '.join(self._codes)}"
                )
            self._encoded = np.zeros(self._length, np.uint8)
            self._encoded[: len(words)] = [self._codes[word] for word in words]
            self._mission = mission
        return self._encoded


def split(text: str) -> list[str]:
    """Return the words of a mission; a comma counts as a word."""
    return text.replace(",", " , ").split()


class GridCodes(gym.ObservationWrapper[Any, Any, Any]):
    """Gives the observations of a MiniGrid environment as categories, as the module docstring
    says."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX

        super().__init__(env)
        seen: Any = env.observation_space
        codes = [len(OBJECT_TO_IDX), len(COLOR_TO_IDX), STATES]
        image = np.broadcast_to(np.array(codes), seen["image"].shape)
        cells = spaces.MultiDiscrete(image, dtype=np.uint8)
        leaves: dict[str, spaces.Space[Any]] = {"image": cells, "direction": spaces.Discrete(4)}
        self.missions = Missions.of(seen["mission"])
        if self.missions is not None:
            leaves["mission"] = self.missions.space
        self.observation_space = spaces.Dict(leaves)
        self._codes = cells.nvec

    def observation(self, observation: Any) -> dict[str, Any]:
        if (observation["image"] >= self._codes).any():
            raise ConfigError(
                "the agent's view holds a code that minigrid.core.constants does not have: "
                f"{observation['image'].max(axis=(0, 1))} is the highest object, colour and state; "
                "register the object or colour there before the environment is made"
            )
        codes = {"image": observation["image"], "direction": observation["direction"]}
        if self.missions is not None:
            codes["mission"] = self.missions(observation["mission"])
        return codes

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        # BabyAI prints a line for each task that it draws and rejects.
        with contextlib.redirect_stdout(io.StringIO()):
            return super().reset(**given)


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    return described(GridCodes(gymnasium_env(config, render_mode)))


def described(env: GridCodes) -> GridCodes:
    """Return ``env`` with its description."""
    mission = "left out, as it never changes" if env.missions is None else "as word codes"
    simulator: Any = env.unwrapped
    # One of BabyAI has none before its first reset: it sets one per episode, by the task.
    limits = [simulator.max_steps, description_of(env).max_episode_steps]
    return describe(
        env,
        Description(
            protocol=f"minigrid's codes of the agent's view, mission {mission}, raw rewards",
            max_episode_steps=min(filter(None, limits), default=None),
        ),
    )


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    def make() -> gym.Env[Any, Any]:
        return described(GridCodes(bare(gymnasium_env(config))))

    return sync_vector(config, make, num_rows, seeds)


FAMILY = Family(
    name="minigrid",
    claims=lambda env_id: env_id.startswith(PREFIXES),
    ids=ids,
    make_vector=make_vector,
    make_single=make_single,
    requires="minigrid",
    extra="minigrid",
    plain_kwargs=True,
)
