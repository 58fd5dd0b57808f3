"""Actions that are repeated (--action-repeat)."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from tests.support.env_vectors import rollout
from tests.support.envs import CodeEnv, code_reward, episode_length


class RepeatedCode(CodeEnv):
    """CodeEnv of one env id, whose time limit is outside of it."""

    def __init__(self, ending: str = "alternate", length: int = 0) -> None:
        super().__init__(env_id=1, ending=ending, length=length)


def repeated_code(ending: str = "alternate", length: int = 0) -> gym.Env[Any, Any]:
    return RepeatedCode(ending, length)


@pytest.mark.parametrize(("ending", "limit"), [("alternate", None), ("terminate", 3)])
def test_an_action_is_repeated_and_its_rewards_are_summed(ending: str, limit: int | None) -> None:
    n, longest = 4, 9
    config = EnvConfig(
        env=f"{__name__}:repeated_code",
        env_kwargs={"ending": ending, **({} if limit is None else {"length": 100})},
        action_repeat=n,
        max_episode_steps=limit,
        decorrelate=False,
    )
    vector = make_vector(config, 1, [0])
    assert (vector.spec.frame_skip, vector.spec.max_episode_steps) == (n, limit)
    outs = rollout(vector, np.zeros((60, 1), np.int64))
    vector.close()
    episode, step, ended, episodes = 0, 0, False, 0
    for out in outs[1:]:
        if ended:
            assert not out.valid[0] and out.first[0]
            episode, step, ended = episode + 1, 0, False
            continue
        length = episode_length(1, episode, longest) if limit is None else limit * n
        steps = range(step + 1, min(step + n, length) + 1)
        assert out.reward[0] == sum(code_reward(1, episode, each) for each in steps)
        step = steps[-1]
        assert out.obs["obs"][0, :3].tolist() == [1, episode, step]
        ended = step == length
        truncates = limit is not None or episode % 2 == 1
        assert out.terminated[0] == (ended and not truncates)
        assert out.truncated[0] == (ended and truncates)
        episodes += ended
    assert episodes > 5


def test_a_time_limit_of_the_environment_counts_its_own_steps() -> None:
    config = EnvConfig(env="Pendulum-v1", action_repeat=3, decorrelate=False)
    vector = make_vector(config, 1, [0])
    assert vector.spec.max_episode_steps == 67, "200 steps"
    original = gym.make("Pendulum-v1")
    original.reset(seed=0)
    actions = np.full((68, 1, 1), 0.25, np.float32)
    outs = rollout(vector, actions)
    vector.close()
    for number, out in enumerate(outs[1:68], 1):
        total = 0.0
        for _ in range(3 if number < 67 else 2):
            _, reward, *_, truncated, _ = original.step(np.array([0.5], np.float32))
            total += float(reward)
        assert out.reward[0] == np.float32(total) and out.truncated[0] == truncated
    assert outs[67].truncated[0]


def test_rows_that_step_together_cannot_repeat_an_action() -> None:
    with pytest.raises(ConfigError, match="--action-repeat 2: CartPole-v1 steps its rows or"):
        make_vector(EnvConfig(env="CartPole-v1", action_repeat=2), 2, [0, 1])
    vector = make_vector(
        EnvConfig(env="CartPole-v1", action_repeat=2, env_backend="single"), 1, [0]
    )
    assert vector.spec.frame_skip == 2
    vector.close()


def test_a_longer_limit_of_an_evaluation_holds_where_actions_are_repeated() -> None:
    config = EnvConfig(env=f"{__name__}:repeated_code", env_kwargs={"length": 100}, action_repeat=2)
    vector = make_vector(dataclasses.replace(config, max_episode_steps=3), 1, [0])
    assert vector.limit_episodes(10)
    outs = rollout(vector, np.zeros((10, 1), np.int64))
    assert [bool(out.truncated[0]) for out in outs[1:]] == [False] * 9 + [True]
    vector.close()
