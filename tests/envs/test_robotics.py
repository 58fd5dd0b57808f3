"""gymnasium-robotics and DeepMind's control suite: their ids, and their environments where they are
installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sampleforge.env.config import EnvConfig
from sampleforge.env.goals import GoalRule
from sampleforge.env.registry import make_single, make_vector
from sampleforge_envs import dm_control, robotics
from tests.support.env_vectors import rollout


@pytest.mark.parametrize(
    ("env_id", "claimed"),
    [
        ("FetchReach-v4", True),
        ("FetchReech-v4", True),
        ("PointMaze_UMaze-v3", True),
        ("HandManipulateBlockRotateZ_BooleanTouchSensors-v1", True),
        ("FrankaKitchen-v1", True),
        ("HalfCheetah-v5", False),
        ("dm_control/cheetah-run", False),
    ],
)
def test_ids_of_robotics_are_known_without_it(env_id: str, claimed: bool) -> None:
    assert robotics.FAMILY.claims(env_id) == claimed
    assert robotics.FAMILY.extra == "robotics"


def test_ids_of_the_suite_are_known_without_it() -> None:
    family = dm_control.FAMILY
    assert family.claims("dm_control/cheetah-run") and family.extra == "dm-control"
    assert not family.claims("dm_control/cheetah-run-v0"), "shimmy's, where that is installed"
    assert family.meant("dm_control/cheetah-run-v0") == "dm_control/cheetah-run"
    assert family.meant("dm_control/cheetah-run") is None and family.meant("Fetch-v0") is None


@pytest.mark.parametrize("env_id", ["FetchReach-v4", "PointMaze_UMaze-v3"])
def test_goals_of_robotics_have_the_rewards_of_its_steps(env_id: str) -> None:
    pytest.importorskip("gymnasium_robotics")
    config = EnvConfig(env=env_id, decorrelate=False, max_episode_steps=20)
    vector = make_vector(config, 2, [0, 1])
    assert vector.spec.has_goals and vector.spec.max_episode_steps == 20
    rule = GoalRule(make_single(config), env_id)
    actions = np.random.default_rng(0).uniform(-1, 1, (60, 2, *vector.action_space.shape))  # type: ignore[misc]
    for out in rollout(vector, actions.astype(np.float32))[1:]:
        goals = out.obs["achieved_goal"], out.obs["desired_goal"]
        assert np.array_equal(out.reward[out.valid], rule.rewards(*goals)[out.valid])
        assert not out.terminated.any() and not rule.terminated(*goals).any()
    vector.close()


def test_tasks_of_the_suite_are_as_the_suite_gives_them() -> None:
    pytest.importorskip("dm_control")
    vector = make_vector(EnvConfig(env="dm_control/cartpole-swingup", decorrelate=False), 1, [3])
    original = dm_control.suite().load("cartpole", "swingup")
    original.task.random.seed(3)
    actions = np.random.default_rng(0).uniform(-1, 1, (1001, 1, 1)).astype(np.float32)
    outs = rollout(vector, actions)
    vector.close()
    step: Any = original.reset()
    for out, action in zip(outs[1:1001], actions[:, 0], strict=False):
        step = original.step(action)
        for name, value in step.observation.items():
            assert np.array_equal(out.obs[name][0], np.float32(value))
        assert out.reward[0] == np.float32(step.reward) and not out.terminated[0]
    assert step.last() and outs[1000].truncated[0] and not outs[999].truncated[0]
    assert not outs[1001].valid[0], "it is reset"


def test_tasks_of_the_suite_that_end_in_success_are_terminated() -> None:
    pytest.importorskip("dm_control")
    env = make_single(EnvConfig(env="dm_control/lqr-lqr_2_1"))
    env.reset(seed=0)
    original: Any = env.unwrapped
    original._env.task.get_termination = lambda physics: 0.0
    assert env.step(np.zeros(1, np.float32))[2:4] == (True, False)
    original._env.task.get_termination = lambda physics: 1.0
    env.reset()
    assert env.step(np.zeros(1, np.float32))[2:4] == (False, True)
    env.close()
