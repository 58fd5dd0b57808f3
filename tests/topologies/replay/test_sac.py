"""Soft actor-critic on the replay: where every transition comes from, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.sac.algorithm import SAC
from sampleforge.algorithms.td3.algorithm import TD3
from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.env.guard import NotFiniteError
from sampleforge.models.config import ModelConfig
from sampleforge.run.callback import Callback
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import EnvSpec, action_specs, rescaled
from sampleforge.topologies.config import CrossqConfig, SacConfig, Td3Config
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.pairings.critics_defaults import resolve_defaults
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.replay.plan import ReplayPlan, plan_replay
from sampleforge.workers.metrics import DivergedError
from tests.support.apex_graphs import (
    build_replay,
    learner_worker,
    limiter_of,
    serial_rounds,
    with_learner,
)
from tests.support.box_code import CheckingSacMaker, box_config
from tests.support.graphs import spec_of, survive_kills
from tests.support.sac import SPEC, sac_config, td3_config


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
        (spaces.Discrete(3), "'action' is Discrete; use apex or pqn"),
        (spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.MultiBinary(2)}), "'b' is MultiB"),
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


def test_an_element_that_cannot_move_does_not_make_the_others_more_certain() -> None:
    """It is uniform between -1 and 1, with an entropy of log 2, whatever the others do."""
    space = spaces.Box(np.array([-2, 3, 0], "f4"), np.array([2, 3, 1], "f4"))
    spec = with_actions(space)
    spec = dataclasses.replace(spec, actions={n: rescaled(a) for n, a in spec.actions.items()})
    entropy = resolve_defaults(SacConfig(env="Code"), spec).target_entropy
    assert entropy == pytest.approx(-2 + np.log(2))


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
    assert config.replay_ratio == 256 * updates and config.samples_per_insert == "auto"
    again = resolve_defaults(config, SPEC)
    assert again == config, "resolved defaults are given again where a run resumes"


@pytest.mark.long
@pytest.mark.parametrize("config", [SacConfig, CrossqConfig, Td3Config])
@pytest.mark.parametrize(
    "more", [{"batch_size": 32}, {"updates_per_env_step": 0.5}], ids=["batch", "updates"]
)
def test_a_run_goes_on_with_another_batch_or_ratio(
    config: Any, more: dict[str, Any], tmp_path: Path
) -> None:
    settings = {
        "env": "Pendulum-v1",
        "run_dir": str(tmp_path),
        "serial": True,
        "quiet": True,
        "learning_starts": 50,
        "model": ModelConfig(hidden_sizes=(8,)),
    }
    first = train(config(**settings, batch_size=16, train_for_env_steps=100)).summary
    # Format 1 stored the ratio that follows from both until there was `replay_ratio`.
    stored = (tmp_path / "config.yaml").read_text()
    assert "samples_per_insert: auto" in stored
    (tmp_path / "config.yaml").write_text(
        stored.replace("samples_per_insert: auto", "samples_per_insert: 16.0", 1)
    )
    asked = {**settings, "batch_size": 16, "train_for_env_steps": 300, **more}
    second = train(config(**asked)).summary
    assert second["env_steps"] >= 300 and second["updates"] > first["updates"]
    flag = next(iter(more)).replace("_", "-")
    assert f"Changed from here on: --{flag}" in (tmp_path / "log.txt").read_text()


@pytest.mark.long
@pytest.mark.parametrize("config", [SacConfig, CrossqConfig, Td3Config])
def test_updates_that_move_no_policy_may_be_skipped(config: Any, tmp_path: Path) -> None:
    """The first message of a diverged training has the norm of what was computed."""
    with pytest.raises((DivergedError, NotFiniteError), match=r"diverged.*--learning-rate"):
        train(
            config(
                env="Pendulum-v1",
                run_dir=str(tmp_path),
                serial=True,
                quiet=True,
                learning_starts=50,
                learning_rate=1e25,
                actor_interval=3,
                train_for_env_steps=2000,
                model=ModelConfig(hidden_sizes=(8,)),
            )
        )


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_a_trained_policy_acts_from_the_first_step(algorithm: Algorithm) -> None:
    config = sac_config() if algorithm is SAC else td3_config(exploration_noise=1e-6)
    network = algorithm.new_network(config, SPEC)
    weights, obs = SharedWeights(network.state_dict()), {"obs": torch.zeros(400, 3)}
    assert algorithm.new_acting is not None
    spread = {}
    for trained in (False, True):
        place = ActingPlace(
            torch.Generator().manual_seed(1),
            num_rows=400,
            ladder=torch.full((400,), 1e-6),
            progress=SimpleNamespace(env_steps=0),  # type: ignore[arg-type]
            is_trained=trained,
        )
        acting = algorithm.new_acting(config, network, weights, place)
        none, rows = torch.zeros(400, dtype=torch.bool), torch.arange(400)
        found = acting.act(obs, torch.zeros(400, 0), none, rows).actions["action"]
        spread[trained] = found.std(0)
    if algorithm is TD3:
        assert (spread[True] < 1e-3).all() and (spread[False] > 0.3).all(), spread
    else:
        assert not torch.equal(spread[True], spread[False])


TAKEN: dict[str, list[float]] = {}
"""The sizes of the actions of each policy, in their order."""


class KeepsActions(Callback):
    def on_rollout_end(self, rollout: Any) -> None:
        taken = np.abs(rollout.actions["action"]).ravel().tolist()
        TAKEN.setdefault(rollout.policy, []).extend(taken)


def test_each_of_several_policies_acts_uniformly_in_its_own_first_steps(tmp_path: Path) -> None:
    TAKEN.clear()
    train(
        Td3Config(
            env="Pendulum-v1",
            run_dir=str(tmp_path),
            serial=True,
            quiet=True,
            seed=1,
            num_policies=3,
            num_workers=1,
            learning_starts=400,
            train_for_env_steps=1100,
            model=ModelConfig(hidden_sizes=(8,)),
        ),
        callbacks=[KeepsActions()],
    )
    assert len(TAKEN) == 3
    for taken in TAKEN.values():
        # Of U(-1, 1); those of the policy that begins are near 0.
        assert len(taken) > 300 and np.mean(taken[-100:]) == pytest.approx(0.5, abs=0.1)


def test_a_trained_policy_acts_on_after_a_resume(tmp_path: Path) -> None:
    """TD3's actions are nearly those of the policy; uniform ones have a mean size of 0.5."""

    def go_on(name: str, env_steps: int, **more: Any) -> None:
        TAKEN.clear()
        more |= {"run_dir": str(tmp_path / name), "train_for_env_steps": env_steps}
        config = Td3Config(
            env="Pendulum-v1",
            serial=True,
            quiet=True,
            seed=1,
            exploration_noise=1e-4,
            learning_starts=600,
            model=ModelConfig(hidden_sizes=(8,)),
            **more,
        )
        train(config, callbacks=[KeepsActions()])

    go_on("first", 20)
    go_on("run", 150, init_from=str(tmp_path / "first"))
    go_on("run", 400)
    taken = next(iter(TAKEN.values()))
    assert len(taken) > 150 and np.mean(taken) < 0.3


@pytest.mark.parametrize("algorithm", [SacConfig, CrossqConfig, Td3Config])
def test_with_variable_experience_each_row_is_a_split(algorithm: Any) -> None:
    for given, splits in (({}, 4), ({"num_splits": 2}, 2)):
        config = algorithm(env="Pendulum-v1", device="cpu", variable_experience=True, **given)
        spec = spec_of(config)
        plan = pairing(config).plan(resolve_defaults(config, spec), spec, "cpu")
        assert (plan.num_splits, plan.envs) == (splits, 4), given
    plain = algorithm(env="Pendulum-v1", device="cpu")
    assert resolve_defaults(plain, spec_of(plain)).num_splits == 1
