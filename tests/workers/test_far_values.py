"""One absurd number of an environment is bounded where it comes in, and named with its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.api import train
from sampleforge.env.config import EnvConfig
from sampleforge.env.random_play import RandomPlay
from sampleforge.topologies.config import (
    AnyConfig,
    ApexConfig,
    AppoConfig,
    CrossqConfig,
    DdppoConfig,
    SacConfig,
    Td3Config,
)
from tests.support.apex_graphs import build_replay, serial_rounds
from tests.support.callbacks import Warnings
from tests.support.graphs import rollouts
from tests.support.runs import summary
from tests.support.variants import slow

SPIKES: dict[str, Any] = {
    "env": "tests.support.spike_envs:SpikeEnv",
    **{"num_workers": 1, "num_splits": 1, "num_envs_per_worker": 4, "rollout": 16},
    **{"serial": True, "seed": 1, "device": "cpu"},
}


WORKERS = {name: value for name, value in SPIKES.items() if name != "num_workers"}
BOXES: dict[str, Any] = {
    **SPIKES,
    "env": "tests.support.spike_envs:BoxSpikeEnv",
    **{"learning_starts": 200, "batch_size": 32, "updates_per_env_step": 1 / 16},
}
RUNS: dict[str, AnyConfig] = {
    "appo": AppoConfig(**SPIKES),
    "ddppo": DdppoConfig(**WORKERS, num_ranks=1),
    "apex": ApexConfig(**SPIKES, learning_starts=200),
    "sac": SacConfig(**BOXES),
    "crossq": CrossqConfig(**BOXES),
    "td3": Td3Config(**BOXES),
    "population": AppoConfig(**SPIKES, num_policies=2, pbt=True),
}


@pytest.mark.long
@pytest.mark.parametrize("at", [1, 40])
@pytest.mark.parametrize("value", [1e8, -1e8, 1e38])
@pytest.mark.parametrize("bounded", [False, True])
def test_an_absurd_observation_reaches_no_learner(at: int, value: float, bounded: bool) -> None:
    given: dict[str, Any] = {"where": "obs", "value": value, "at": at, "bounded": bounded}
    chosen = AppoConfig(**SPIKES, env_kwargs=given)
    found = [np.asarray(batch.obs["obs"]) for batch in rollouts(chosen, 6)]
    largest = max(abs(each).max() for each in found)
    assert 3 < largest < 20, "ten times the typical size, in every environment"


@pytest.mark.parametrize("at", [1, 45])
@pytest.mark.parametrize("value", [1e3, 1e8, -1e8, 1e38])
def test_an_absurd_reward_reaches_no_learner(at: int, value: float) -> None:
    chosen = AppoConfig(**SPIKES, env_kwargs={"where": "reward", "value": value, "at": at})
    found = np.concatenate([np.asarray(batch.reward) for batch in rollouts(chosen, 6)])
    assert sorted(np.unique(found)) == pytest.approx(sorted([0.0, 1.0, np.sign(value) * 10]))
    assert (abs(found) == 10).sum() == 4, "one in each environment"


@pytest.mark.long
@pytest.mark.parametrize("name", ["apex", "sac", "crossq", "td3"])
def test_an_absurd_reward_is_in_no_window_of_the_replay(name: str) -> None:
    given: dict[str, Any] = {"where": "reward", "value": 1e8, "at": 40}
    run: Any = RUNS[name]
    graph, _ = build_replay(replace(run, env_kwargs=given, learning_starts=64))
    for _ in serial_rounds(graph, 120):
        pass
    slots: Any = graph.groups[0].exchange.slots  # type: ignore[union-attr]
    assert slots.reward.max() == 10.0
    assert 10.0 <= slots.extras["returns"].max() < 13
    if name == "apex":
        assert slots.extras["td_error"].max() < 100, "the first priorities"


@pytest.mark.long
@pytest.mark.parametrize("where", ["obs", "reward", ""])
def test_it_is_a_warning_with_env_row_leaf_and_value(where: str, tmp_path: Path) -> None:
    told = Warnings()
    given: dict[str, Any] = {"where": where, "value": 1e8, "at": 40}
    config = AppoConfig(
        **SPIKES, env_kwargs=given, train_for_env_steps=1000, run_dir=str(tmp_path / "run")
    )
    train(config, callbacks=[told])
    said = [text for text in told.warnings if "far_values" in text]
    assert len(said) == bool(where), "once per actor"
    if where:
        assert said[0].startswith("actor 0, split 0, tests.support.spike_envs:SpikeEnv, row 0: ")
        assert "1e+08" in said[0] and "correct the environment" in said[0]
    if where == "obs":
        assert "observation leaf 'obs' holds 1e+08 at [0]" in said[0]
    if where == "reward":
        assert "for learning it counts as 10" in said[0]


@pytest.mark.long
@pytest.mark.parametrize("where", ["obs", "reward"])
@pytest.mark.parametrize(
    "name", [slow(name) if name in ("sac", "crossq", "td3") else name for name in RUNS]
)
def test_each_number_of_a_hundred_deviations_is_counted_and_the_first_one_named(
    name: str, where: str, tmp_path: Path
) -> None:
    told, run = Warnings(), tmp_path / "run"
    given: dict[str, Any] = {"where": where, "value": 1e3, "at": 405}
    chosen: dict[str, Any] = {"env_kwargs": given, "train_for_env_steps": 6000, "run_dir": str(run)}
    train(replace(RUNS[name], **chosen), callbacks=[told])
    said = [text for text in told.warnings if "counted as far_values" in text]
    assert len(said) == 1 and "SpikeEnv, row 0: " in said[0], told.warnings
    assert ("leaf 'obs' holds 1000 at [0], " if where == "obs" else "is 1000, far") in said[0]
    rows = 8 if name == "population" else 4
    assert summary(run)["far_values"] == rows, "one in each environment"


@pytest.mark.long
def test_a_far_number_in_a_stack_of_frames_is_counted_once(tmp_path: Path) -> None:
    """In the frame in which it comes, and not again in the stacks that still hold it."""
    told, run = Warnings(), tmp_path / "run"
    given: dict[str, Any] = {"where": "obs", "value": 1e3, "at": 405}
    chosen: dict[str, Any] = {"env_kwargs": given, "train_for_env_steps": 3000, "run_dir": str(run)}
    stacked = replace(RUNS["apex"], env="tests.support.spike_envs:stacked_spikes")
    train(replace(stacked, **chosen), callbacks=[told])
    (said,) = [text for text in told.warnings if "counted as far_values" in text]
    assert "leaf 'obs' holds 1000 at [0], " in said
    assert summary(run)["far_values"] == 4, "one in each environment"


def test_the_check_of_the_bounds_sees_the_number_as_it_is() -> None:
    config = EnvConfig(
        env=SPIKES["env"], env_kwargs={"where": "obs", "value": 1e8, "at": 3, "bounded": True}
    )
    play = RandomPlay(config, 2)
    play.reset()
    for _ in range(3):
        play.step()
    outside = play.out_of_bounds()
    assert outside is not None and "is 1e+08" in outside.text
    play.close()
