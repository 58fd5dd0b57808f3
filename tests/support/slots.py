"""A few small trajectory slots."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.spec import Autoreset, EnvSpec, action_specs, observation_specs


def some_spec(autoreset: Autoreset = "next_step") -> EnvSpec:
    obs = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), "x": gym.spaces.Box(-1, 1, (3,))}
    )
    return EnvSpec(
        "fake", observation_specs(obs), action_specs(gym.spaces.Discrete(4)), autoreset=autoreset
    )


def some_slots(count: int = 4, **kwargs: bool) -> TrajectorySlots:
    return TrajectorySlots(count, SlotShape(5, 2, some_spec(), 7), **kwargs)
