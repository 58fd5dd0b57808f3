"""Hindsight experience replay: what a loss sees of an environment with goals, and what is
refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import ApexConfig, SacConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.pairings.critics_defaults import resolve_defaults
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults as resolve_apex
from sampleforge.topologies.starts import ResumePoint
from tests.support.apex_graphs import learner_worker, serial_rounds, with_learner
from tests.support.box_code import box_config
from tests.support.goal_envs import (
    BIT_FLIP,
    GOAL_CODE,
    BitFlipEnv,
    CheckingHindsightMaker,
)
from tests.support.graphs import one_policy, spec_of, survive_kills
from tests.support.pairings import plan_of, wire_of


def small(**more: Any) -> SacConfig:
    return box_config(**{"env": GOAL_CODE, "her": True, **more})


def checking(config: SacConfig) -> Graph:
    """A graph whose learner checks every transition."""
    spec = spec_of(config)
    config = resolve_defaults(config, spec)
    graph = wire_of(config, plan_of(config, spec), spec, *one_policy(ResumePoint(1)))
    return with_learner(graph, CheckingHindsightMaker(config, spec))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n_step": 3, "num_replay_shards": 2, "priority_alpha": 0.6},
        {"n_step": 3, "env_kwargs": {"reaching": True}, "her_k": 1},
    ],
    ids=["as it is", "windows, shards, priorities", "goals that end episodes"],
)
def test_a_transition_has_its_own_goal_or_one_achieved_later_in_its_episode(
    more: dict[str, Any],
) -> None:
    config = small(**more)
    graph = checking(config)
    for _ in serial_rounds(graph, 200):
        pass
    learner = learner_worker(graph)._learner
    assert learner.checked > 1000
    expected = config.her_k / (config.her_k + 1)
    spread = 5 * np.sqrt(expected * (1 - expected) / learner.checked)
    assert abs(learner.relabelled / learner.checked - expected) < spread
    assert (learner.reached > 100) == bool(config.env_kwargs)


@pytest.mark.multiprocess(timeout=60)
def test_no_goal_is_wrong_in_processes_of_which_some_are_killed(tmp_path: Path) -> None:
    graph = checking(small(n_step=3, max_worker_restarts=3))
    survive_kills(graph, tmp_path, ("actor 0", "replay 0", "learner"))


def test_a_rollout_has_whole_episodes_if_they_have_a_time_limit() -> None:
    spec = spec_of(small())
    assert resolve_defaults(small(), spec).rollout == 7
    limited = dataclasses.replace(spec, max_episode_steps=50)
    assert resolve_defaults(small(), limited).rollout == 51
    assert resolve_defaults(small(rollout=52), limited).rollout == 102
    assert resolve_defaults(small(rollout=52, her=False), limited).rollout == 52
    apex = ApexConfig(env=BIT_FLIP, her=True, rollout=20)
    flips = dataclasses.replace(spec_of(apex), max_episode_steps=8)
    assert resolve_apex(apex, flips).rollout == 27


def test_an_environment_without_goals_is_refused() -> None:
    spec: EnvSpec = dataclasses.replace(spec_of(small()), has_goals=False)
    with pytest.raises(ConfigError, match=r"--her: .*GoalCodeEnv has no goals of the kind"):
        resolve_defaults(small(), spec)
    stacked = dataclasses.replace(spec.observations["achieved_goal"], stack="zero")
    leaves = {**spec.observations, "achieved_goal": stacked}
    spec = dataclasses.replace(spec, has_goals=True, observations=leaves)
    with pytest.raises(ConfigError, match="has no goals"):
        resolve_defaults(small(), spec)
    with pytest.raises(ConfigError, match="--her-k 8: without --her no transition is relabelled"):
        SacConfig(env=GOAL_CODE, her_k=8)


DESIRED = {
    "bits": spaces.MultiBinary(6),
    "float32": spaces.Box(0.0, 1.0, (6,)),
    "int64": spaces.Box(0, 9, (6,), np.int64),
}


class Bits(BitFlipEnv):
    """The bits that are set are whole numbers, those that are wanted are ``desired``."""

    def __init__(self, desired: str) -> None:
        super().__init__(6)
        self.goals: dict[str, spaces.Space[Any]] = {
            "achieved_goal": spaces.MultiBinary(6),
            "desired_goal": DESIRED[desired],
        }
        self.observation_space = spaces.Dict(self.goals)

    def observation(self) -> Any:
        both = super().observation()
        return {name: both[name].astype(space.dtype) for name, space in self.goals.items()}


@pytest.mark.parametrize("desired", DESIRED)
def test_goals_may_be_bits_and_of_another_type_than_those_that_were_achieved(
    desired: str, tmp_path: Path
) -> None:
    config = ApexConfig(
        env="tests.topologies.replay.test_hindsight:Bits",
        env_kwargs={"desired": desired},
        her=True,
        serial=True,
        num_workers=1,
        num_envs_per_worker=4,
        learning_starts=50,
        batch_size=32,
        rollout=7,
        model=ModelConfig(hidden_sizes=(8,)),
        train_for_env_steps=300,
        run_dir=str(tmp_path),
    )
    found = train(config).summary
    assert found["updates"] > 0 and found["skipped_updates"] == 0


@pytest.mark.long
def test_bits_are_flipped_to_the_goal_with_hindsight_alone(tmp_path: Path) -> None:
    """Section 3.1 of the paper: the best mean return is about -2, that of no success -6."""

    def trained(her: bool) -> float:
        config = ApexConfig(
            env=BIT_FLIP,
            env_kwargs={"bits": 6},
            her=her,
            serial=True,
            seed=1,
            num_workers=1,
            num_envs_per_worker=8,
            learning_starts=200,
            replay_capacity=50_000,
            batch_size=128,
            samples_per_insert=64.0,
            learning_rate=1e-3,
            gamma=0.9,
            n_step=1,
            normalise_returns=False,
            model=ModelConfig(hidden_sizes=(128,)),
            train_for_env_steps=5000,
            run_dir=str(tmp_path / str(her)),
        )
        return float(train(config).summary["return_mean"])

    assert trained(her=True) > -3.5
    assert trained(her=False) < -4.5


def test_rewards_that_do_not_follow_from_goals_are_refused_before_there_is_a_folder(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"--her: compute_reward.* failed with an empty info"):
        train(ApexConfig(env="tests.env.test_goals:NeedsInfo", her=True, run_dir=str(run)))
    assert not run.exists()
