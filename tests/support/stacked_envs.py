"""Stacks of frames of the fake environments, which say so in their metadata."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from tests.support.envs import CodeEnv, CountingVectorEnv, RaisingEnv, Step, UnevenEnv


def said(env: gym.Env[Any, Any], padding: str) -> gym.Env[Any, Any]:
    env.metadata = {**env.metadata, "frame_stack": {"obs": padding}}
    return env


def stacked(depth: int = 4, padding: str = "zero", says: str = "", **kwargs: Any) -> Any:
    """CodeEnv in stacks [depth, 4]; it ``says`` how they are padded, the truth if not given."""
    env = FrameStackObservation(CodeEnv(**kwargs), depth, padding_type=padding)
    return said(env, says or padding)


def stacked_uneven(depth: int = 4, padding: str = "zero", **kwargs: Any) -> Any:
    """UnevenEnv in stacks [depth, 4]."""
    return said(FrameStackObservation(UnevenEnv(**kwargs), depth, padding_type=padding), padding)


def stacked_raising(padding: str = "reset", **kwargs: Any) -> Any:
    return said(FrameStackObservation(RaisingEnv(**kwargs), 3, padding_type=padding), padding)


class StackedVectorEnv(CountingVectorEnv):
    """CountingVectorEnv in stacks [3, 4] padded with zeros; ``mode`` is "next_step" or
    "same_step"."""

    def __init__(self, num_envs: int = 1, mode: str = "same_step", **kwargs: Any) -> None:
        super().__init__(num_envs, mode, **kwargs)
        self.metadata = {**self.metadata, "frame_stack": {"obs": "zero"}}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3, 4), np.float32)
        self.stacks = np.zeros((num_envs, 3, 4), np.float32)
        self.begins = np.ones(num_envs, np.bool_)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return self._push(obs), info

    def step(self, actions: Any) -> Any:
        was_ended = self.ended.copy()
        obs, reward, terminated, truncated, info = super().step(actions)
        if self.mode == "next_step":
            self.begins = was_ended
            return self._push(obs), reward, terminated, truncated, info
        final = info.get("final_obs")
        if final is not None:
            last = self.stacks.copy()
            for row in np.flatnonzero(self.ended):
                final[row] = np.concatenate([last[row, 1:], final[row][None]])
        self.begins = self.ended.copy()
        return self._push(obs), reward, terminated, truncated, info

    def _push(self, obs: Any) -> Any:
        self.stacks[self.begins] = 0
        self.stacks = np.concatenate([self.stacks[:, 1:], obs[:, None]], axis=1)
        return self.stacks.copy()


__all__ = ["StackedVectorEnv", "Step", "stacked", "stacked_raising", "stacked_uneven"]
