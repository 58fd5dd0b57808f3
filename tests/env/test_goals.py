"""The rewards and ends of episodes of an environment with goals, for any goal."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformReward

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.goals import GoalRule, has_goals
from sampleforge.env.interface import told_of_rows
from sampleforge.env.registry import make_vector
from sampleforge.env.spec_json import spec_from_plain, spec_to_plain
from tests.support.goal_envs import BIT_FLIP, BitFlipEnv, GoalCodeEnv


class OneByOne(BitFlipEnv):
    """Its functions take one goal at a time, and would give one number for a batch."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> float:
        return -float(np.linalg.norm(achieved - desired) > 0)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        return bool(np.linalg.norm(achieved - desired) == 0)


@pytest.mark.parametrize("kind", [BitFlipEnv, OneByOne])
def test_rewards_are_those_of_each_goal_whether_or_not_a_batch_is_taken(kind: Any) -> None:
    env = kind(4)
    rule = GoalRule(env, "BitFlip")
    achieved, desired = np.random.default_rng(0).integers(0, 2, (2, 3, 50, 4)).astype(np.float32)
    same = (achieved == desired).all(-1)
    assert same.any() and not same.all()
    rewards = rule.rewards(achieved, desired)
    assert rewards.dtype == np.float32 and np.array_equal(rewards, np.where(same, 0, -1))
    ends = rule.terminated(achieved, desired)
    assert ends.dtype == np.bool_ and np.array_equal(ends, same)
    assert rule.terminated(achieved[0, :0], desired[0, :0]).shape == (0,)


def test_an_environment_need_not_say_which_goals_end_an_episode() -> None:
    goals = np.zeros((5, 3))
    assert not GoalRule(GoalCodeEnv(), "Code").terminated(goals, goals).any()


def test_the_spec_says_whether_an_environment_has_goals() -> None:
    vector = make_vector(EnvConfig(env=BIT_FLIP), 1, [0])
    vector.close()
    assert vector.spec.has_goals
    assert spec_from_plain(spec_to_plain(vector.spec)).has_goals
    assert not has_goals(gym.make("CartPole-v1"))
    nested = BitFlipEnv()
    goal = spaces.Dict({"a": spaces.Box(0, 1, (2,))})
    nested.observation_space = spaces.Dict({"achieved_goal": goal, "desired_goal": goal})
    assert not has_goals(nested), "a goal that is no array"
    whole = spaces.Box(0, 1, (2,), np.int64)
    mixed = BitFlipEnv()
    for achieved, desired, possible in ((whole, goal["a"], True), (goal["a"], whole, False)):
        mixed.observation_space = spaces.Dict({"achieved_goal": achieved, "desired_goal": desired})
        assert has_goals(mixed) == possible, "what was achieved must fit where a goal is"


class NeedsInfo(BitFlipEnv):
    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return info["reward"]

    def step(self, action: Any) -> Any:
        return self.observation(), -1.0, False, False, {"reward": -1.0}


def test_a_reward_that_does_not_follow_from_the_goals_is_refused() -> None:
    scaled = TransformReward(GoalCodeEnv(), lambda reward: 0.5 * float(reward))
    with pytest.raises(ConfigError, match=r"reward 800\.5, but its compute_reward says 1601"):
        GoalRule(scaled, "Code")
    with pytest.raises(ConfigError, match="failed with an empty info: KeyError: 'reward'"):
        GoalRule(NeedsInfo(), "Code")


def test_each_step_of_the_trial_may_take_as_long_as_a_step_may() -> None:
    """The time-out of the probe, and of a learner that starts, begins anew with each."""
    told: list[int] = []
    with told_of_rows(lambda: told.append(1)):
        GoalRule(GoalCodeEnv(), "Code")
    assert len(told) == 50


class BonusAtTheEnd(BitFlipEnv):
    """The last step of an episode has more than its goals say."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + 3.0 * (terminated or truncated), terminated, truncated, info


def test_the_rewards_of_whole_episodes_are_compared() -> None:
    with pytest.raises(ConfigError, match=r"but its compute_reward says"):
        GoalRule(BonusAtTheEnd(4), "Bonus")
