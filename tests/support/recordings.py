"""Small runs that record CodeEnv, and the check of what they have recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sampleforge.data.dataset import StoredEpisode
from sampleforge.topologies.config import AppoConfig
from tests.support.envs import code_reward

CODE = "tests.support.envs:CodeEnv"


def config(folder: Path, **more: Any) -> AppoConfig:
    small: dict[str, Any] = {
        **{"env": CODE, "num_workers": 1, "num_envs_per_worker": 4, "num_splits": 1, "rollout": 6},
        **{"seed": 1, "async_rl": True, "record": str(folder), "record_segment_mb": 0.002},
    }
    return AppoConfig(**{**small, **more})


def check_code(episode: StoredEpisode) -> None:
    """All steps are consecutive ones of one episode of CodeEnv, from its reset on."""
    env, number, step, action = episode.observations["obs"].T
    assert (env == env[0]).all() and (number == number[0]).all()
    assert step.tolist() == list(range(len(episode) + 1)) and episode.begins
    assert action[1:].tolist() == episode.actions["action"].tolist()
    assert (episode.rewards == code_reward(env[1:], number[1:], step[1:])).all()
