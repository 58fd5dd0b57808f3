"""Soft actor-critic on the replay: where every transition comes from, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

from sampleforge.algorithms.sac.algorithm import SAC
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.spec import EnvSpec, action_specs
from sampleforge.topologies.config import CrossqConfig, SacConfig, Td3Config
from sampleforge.topologies.critics_defaults import resolve_defaults
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.replay.plan import ReplayPlan, plan_replay
from tests.support.apex_graphs import (
    build_replay,
    learner_worker,
    limiter_of,
    serial_rounds,
    with_learner,
)
from tests.support.box_code import CheckingSacMaker, box_config
from tests.support.graphs import spec_of, survive_kills
from tests.support.sac import SPEC


def checking(config: SacConfig) -> tuple[Graph, ReplayPlan]:
    """A graph whose learner checks every transition."""
    graph, plan = build_replay(config)
    spec = spec_of(config)
    return with_learner(graph, CheckingSacMaker(resolve_defaults(config, spec), spec)), plan


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n_step": 3, "priority_alpha": 0.6, "num_replay_shards": 2},
        {"inference": "worker"},
    ],
    ids=["as it is", "windows and priorities", "policy worker"],
)
def test_every_transition_comes_from_its_place(more: dict[str, Any]) -> None:
    graph, plan = checking(box_config(**more))
    limiter = limiter_of(graph)
    for _ in serial_rounds(graph, 200):
        pass
    learner = learner_worker(graph)._learner
    assert learner.checked > 1000 and learner.truncated > 100
    assert limiter.replay_counters.inserted.sum() > 2 * plan.capacity, "the storage went round"


@pytest.mark.multiprocess(timeout=60)
def test_no_transition_is_wrong_in_processes_of_which_some_are_killed(tmp_path: Path) -> None:
    graph, _ = checking(box_config(max_worker_restarts=3))
    survive_kills(graph, tmp_path, ("actor 0", "replay 0", "learner"))


def with_actions(space: spaces.Space[Any]) -> EnvSpec:
    return dataclasses.replace(SPEC, actions=action_specs(space))


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Discrete(3), "'action' is discrete; use apex or pqn"),
        (spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.MultiBinary(2)}), "'b' is multib"),
        (spaces.Box(-float("inf"), float("inf"), (2,)), "finite bounds"),
    ],
)
def test_other_actions_are_refused(space: spaces.Space[Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve_defaults(SacConfig(env="Code"), with_actions(space))


def test_several_box_leaves_of_any_rank_are_learned() -> None:
    leaves: dict[str, spaces.Space[Any]] = {
        "arm": spaces.Box(-1, 1, (2, 2)),
        "leg": spaces.Box(0, 3, ()),
    }
    config = resolve_defaults(SacConfig(env="Code"), with_actions(spaces.Dict(leaves)))
    assert config.target_entropy == -5


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"model": ModelConfig(core="gru")},
            "--model.core gru: sac, crossq and td3 learn from single",
        ),
        ({"model": ModelConfig(separate_critic=True)}, "networks of their own"),
        ({"samples_per_insert": 8.0}, "use --updates-per-env-step"),
    ],
)
def test_settings_that_cannot_take_effect_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SacConfig(env="Code", **more)


@pytest.mark.parametrize(
    ("more", "of_cores"),
    [
        ({}, {1: 1, 2: 2, 16: 2}),
        ({"model": ModelConfig(hidden_sizes=(128, 128))}, {2: 1, 16: 1}),
        ({"model": ModelConfig(hidden_sizes=(128, 256))}, {16: 1}),
        ({"num_learners": 2}, {2: 1, 16: 2}),
        ({"serial": True}, {16: 1}),
        ({"learner_threads": 1}, {16: 1}),
    ],
)
def test_wide_layers_are_computed_by_two_threads(
    more: dict[str, Any], of_cores: dict[int, int]
) -> None:
    """On a core that the actors, which wait for updates, hardly use."""
    for count, threads in of_cores.items():
        with assumed(Machine(count)):
            config = resolve_defaults(SacConfig(env="Code", **more), SPEC)
            assert plan_replay(SAC, config, SPEC, "cpu").learner_threads == threads


@pytest.mark.parametrize(
    "config", [SacConfig(env="Code"), CrossqConfig(env="Code"), Td3Config(env="Code")]
)
def test_the_replay_is_smaller_than_that_of_q_learning_and_rollouts_shorter(config: Any) -> None:
    assert (config.usual_capacity, config.rollout) == (1_000_000, 16)


@pytest.mark.parametrize("updates", [0.25, 2.0])
def test_the_replay_ratio_follows_from_the_updates_per_env_step(updates: float) -> None:
    config = resolve_defaults(SacConfig(env="Code", updates_per_env_step=updates), SPEC)
    assert config.samples_per_insert == 256 * updates
    again = resolve_defaults(config, SPEC)
    assert again == config, "resolved defaults are given again where a run resumes"
