"""Clipped, scaled and signed rewards where they are learned from; the returns that are reported
stay raw."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.experience import experience_of
from sampleforge.algorithms.windows import MakeWindows
from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.env.place import row_seeds
from sampleforge.run.callback import Callback
from sampleforge.run.session import Session
from sampleforge.shared.records import EpisodeRecord
from sampleforge.topologies.config import ApexConfig, AppoConfig
from tests.support.apex_graphs import apex_config
from tests.support.envs import code_reward, episode_length
from tests.support.graphs import rollouts

SHAPED: list[Any] = [(1.0, "sign"), (0.5, 1.0), (0.25, None)]


def shaped(reward: float, scale: float, clip: Any) -> float:
    """What one reward is learned as, by hand."""
    if clip == "sign":
        return float(reward > 0) - float(reward < 0)
    scaled = reward * scale
    return scaled if clip is None else min(max(scaled, -clip), clip)


@pytest.mark.parametrize(("scale", "clip"), SHAPED)
@pytest.mark.parametrize("drop_truncated", [False, True])
def test_each_reward_of_an_n_step_window_is_shaped_before_the_sum(
    scale: float, clip: Any, drop_truncated: bool
) -> None:
    rng = np.random.default_rng(5)
    steps, rows, n, gamma = 12, 4, 3, 0.9
    reward = rng.normal(0.0, 3.0, (steps, rows)).astype(np.float32)
    terminated, truncated = rng.random((2, steps, rows)) < 0.12
    truncated &= ~terminated
    valid = np.ones((steps, rows), np.bool_)
    config = apex_config(
        n_step=n, gamma=gamma, reward_scale=scale, reward_clip=clip, value_rescaling=False
    )
    windows = MakeWindows(config, drop_truncated)(reward, terminated, truncated, valid)
    ended = terminated | truncated
    compared = 0
    for t in range(steps):
        for row in range(rows):
            used = int(windows.steps[t, row])
            if not used:
                continue
            parts = [gamma**i * shaped(reward[t + i, row], scale, clip) for i in range(used)]
            assert windows.returns[t, row] == pytest.approx(sum(parts), rel=1e-5, abs=1e-6)
            assert not ended[t : t + used - 1, row].any(), "no window goes over an end"
            compared += 1
    assert compared > 30


@pytest.mark.parametrize(("scale", "clip"), SHAPED)
def test_ppo_learns_from_shaped_rewards_of_raw_rollouts(scale: float, clip: Any) -> None:
    config = AppoConfig(
        env="tests.support.envs:CodeEnv",
        num_workers=1,
        num_envs_per_worker=3,
        rollout=8,
        async_rl=True,
    )
    (batch,) = rollouts(config, 1)
    learner = LearnerConfig(reward_scale=scale, reward_clip=clip)
    learned = experience_of(batch, learner, version=0).reward
    expected = [[shaped(x, scale, clip) for x in row] for row in batch.reward.tolist()]
    assert batch.reward.max() > 1, "raw"
    torch.testing.assert_close(learned, torch.tensor(expected, dtype=torch.float32))


class Episodes(Callback):
    def __init__(self) -> None:
        self.played: dict[tuple[int, int, int], list[tuple[float, int]]] = {}

    def on_episode_record(self, session: Session, episode: EpisodeRecord) -> None:
        where = episode.actor, episode.split, episode.row
        self.played.setdefault(where, []).append((episode.ret, episode.length))


@pytest.mark.long
@pytest.mark.parametrize("cls", [AppoConfig, ApexConfig])
def test_reported_returns_are_those_of_the_raw_rewards(tmp_path: Path, cls: Any) -> None:
    """In training and in evaluations, whatever is learned from."""
    config = dataclasses.replace(
        cls(env="tests.support.envs:CodeEnv", env_kwargs={"longest": 5}),
        **{"serial": True, "seed": 3, "train_for_env_steps": 400, "run_dir": str(tmp_path)},
        **{"num_workers": 2, "num_envs_per_worker": 2, "decorrelate": False, "rollout": 10},
        **{"reward_clip": "sign", "reward_scale": 0.1},
        **{"evaluate_interval": 100, "evaluate_episodes": 2},
        **({"learning_starts": 50} if cls is ApexConfig else {}),
    )
    episodes = Episodes()
    summary = train(config, [episodes]).summary
    assert len(episodes.played) == 4

    def expected(env: int, count: int) -> list[tuple[float, int]]:
        lengths = [episode_length(env, k, 5) for k in range(count)]
        return [
            (sum(code_reward(env, k, step + 1) for step in range(length)), length)
            for k, length in enumerate(lengths)
        ]

    for (actor, split, row), played in episodes.played.items():
        env = row_seeds(3, actor, split, row + 1)[row] % 1000
        assert played == expected(env, len(played)) and len(played) > 3
    first = [expected(seed % 1000, 1)[0][0] for seed in row_seeds(4, 0, 0, 2)]
    assert summary["eval_return_mean"] == pytest.approx(np.mean(first))


def test_a_reward_clip_is_a_limit_or_sign() -> None:
    for make in (AppoConfig, ApexConfig):
        assert make(env="x", reward_clip="sign").reward_clip == "sign"
        with pytest.raises(ConfigError, match="--reward-clip 0"):
            make(env="x", reward_clip=0.0)
