"""Environments with goals: one that says where each goal was achieved, and BitFlip of the HER
paper; and a learner that checks each transition, its own goal or a relabelled one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.algorithms.learning import Update
from sampleforge.algorithms.sac.learner import SacLearner
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import SacConfig
from tests.support.apex_graphs import LONGEST
from tests.support.box_code import BoxCodeEnv
from tests.support.envs import episode_length
from tests.support.sac import sac_learner

GOAL_CODE = "tests.support.goal_envs:GoalCodeEnv"
BIT_FLIP = "tests.support.goal_envs:BitFlipEnv"
FAR = 100
"""The step of the desired goals of GoalCodeEnv, which no episode has."""


def goal_reward(achieved: Any, desired: Any) -> Any:
    """The reward of a step that achieved [env id, episode, step], exact in float32."""
    same = (achieved[..., :2] == desired[..., :2]).all(-1)
    return np.where(same, achieved[..., 2] + 16 * desired[..., 2], -1e6)


class GoalCodeEnv(BoxCodeEnv):
    """BoxCodeEnv with goals [env id, episode, step]: that of the step is achieved, step `FAR` of
    the episode is desired. With ``reaching`` the step that achieves the desired goal ends the
    episode, beside those that do it anyway."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {
            "observation": BoxCodeEnv.observation_space,
            "achieved_goal": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "desired_goal": spaces.Box(-np.inf, np.inf, (3,), np.float64),
        }
    )

    def __init__(self, reaching: bool = False, **more: Any) -> None:
        super().__init__(**more)
        if reaching:
            self.compute_terminated = lambda achieved, desired, info: (achieved == desired).all(-1)

    def observation(self) -> Any:
        seen = super().observation()
        desired = np.array([*seen[:2], FAR], np.float64)
        return {
            "observation": seen,
            "achieved_goal": seen[:3].astype(np.float64),
            "desired_goal": desired,
        }

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return goal_reward(achieved, desired)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, float(goal_reward(obs["achieved_goal"], obs["desired_goal"])), *rest)


class BitFlipEnv(gym.Env[Any, Any]):
    """BitFlip of section 3.1 of the paper: an action flips one of ``bits`` bits, a step costs 1
    until they are the desired ones, with which the episode ends, or after ``bits`` steps."""

    def __init__(self, bits: int = 8) -> None:
        self.bits = bits
        goal = spaces.Box(0.0, 1.0, (bits,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(("achieved_goal", "desired_goal"), goal))
        self.action_space = spaces.Discrete(bits)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.now, self.wanted = self.np_random.integers(0, 2, (2, self.bits)).astype(np.float32)
        self.left = self.bits
        return self.observation(), {}

    def observation(self) -> Any:
        return {"achieved_goal": self.now.copy(), "desired_goal": self.wanted.copy()}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -(achieved != desired).any(-1).astype(np.float32)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return (achieved == desired).all(-1)

    def step(self, action: Any) -> Any:
        self.now[action] = 1 - self.now[action]
        self.left -= 1
        done = bool((self.now == self.wanted).all())
        reward = self.compute_reward(self.now, self.wanted, {})
        return self.observation(), float(reward), done, self.left == 0, {"is_success": done}


class Rarely(gym.Env[Any, Any]):
    """One row in eight succeeds in its first two episodes, after 5 env steps; all other episodes
    fail, after 100."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, vector_index: int) -> None:
        self.succeeds = 2 * (vector_index == 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.succeeds -= 1
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        success, fails = self.succeeds >= 0 and self.steps == 5, self.steps == 100
        info = {"is_success": success} if success or fails else {}
        return self.observation_space.sample(), float(success), success, fails, info


def rarely(vector_index: int = 0) -> Rarely:
    return Rarely(vector_index)


class CheckingHindsight(SacLearner):
    """Checks every transition of GoalCodeEnv by a literal sum, and learns from it. ``relabelled``
    counts those with another goal, ``reached`` those whose window achieves it."""

    checked = relabelled = reached = 0
    reaching = False

    def update(self, batch: ReplaySample, progress: float) -> Update:
        items = batch.items
        assert isinstance(items, Transitions)
        for i in range(len(items.returns)):
            self._check(items, i)
        self.checked += len(items.returns)
        result = super().update(batch, progress)
        return result._replace(metrics={**result.metrics, "checked": float(self.checked)})

    def _check(self, items: Transitions, i: int) -> None:
        now, after, goal, goal_after = (
            leaves[name][i].numpy().astype(int).tolist()
            for name in ("achieved_goal", "desired_goal")
            for leaves in (items.obs, items.next_obs)
        )
        assert goal == goal_after and goal[:2] == now[:2] == after[:2], "a goal of another episode"
        length = episode_length(now[0], now[1], LONGEST)
        own = goal[2] == FAR
        assert own or now[2] < goal[2] <= length, "a goal that was achieved later"
        total, discount = 0.0, 1.0
        for step in range(now[2] + 1, now[2] + 1 + self._config.n_step):
            total += discount * (step + 16 * goal[2])
            discount *= self._config.gamma
            reaches = self.reaching and step == goal[2]
            if reaches or (step == length and now[1] % 2 == 0):
                discount = 0.0
            if discount == 0 or step in (length, after[2]):
                break
        assert step == after[2] or reaches, "the observation after the window"
        assert abs(float(items.returns[i]) - total) < 1e-6 * total
        assert abs(float(items.discount[i]) - discount) < 1e-6
        assert items.reward is not None
        assert float(items.reward[i]) == now[2] + 1 + 16 * goal[2]
        self.relabelled += not own
        self.reached += reaches and not own


class CheckingHindsightMaker:
    """Makes one, in any process."""

    def __init__(self, config: SacConfig, spec: EnvSpec) -> None:
        self.config = config
        self.spec = spec

    def __call__(self) -> SacLearner:
        learner = sac_learner(self.config, self.spec)
        learner.__class__ = CheckingHindsight
        learner.reaching = self.config.env_kwargs.get("reaching", False)  # type: ignore[attr-defined]
        return learner
