"""Ape-X with a recurrent core as a whole: what is fitted to it, learning, evaluation, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sampleforge.api import load_policy, train
from sampleforge.config import ConfigError
from sampleforge.evaluation import evaluate
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.trust import Trust
from sampleforge.run.reports.statistics import RunStatistics
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from tests.support.apex_graphs import build_apex, serial_rounds
from tests.support.graphs import spec_of
from tests.support.pairings import plan_of

MAZE = "tests.support.envs:MemoryTMaze"


def test_settings_that_are_left_open_are_fitted_to_the_core() -> None:
    spec = spec_of(ApexConfig(env=MAZE))

    def found(core: Any, **given: Any) -> tuple[Any, ...]:
        config = resolve_defaults(ApexConfig(env=MAZE, model=ModelConfig(core=core), **given), spec)
        names = ("n_step", "gamma", "value_rescaling", "batch_size", "rollout")
        return tuple(getattr(config, name) for name in names)

    assert found("none") == (3, 0.99, False, 256, 50)
    assert found("gru") == found("lstm") == (5, 0.997, True, 64, 80)
    given = {"n_step": 3, "gamma": 0.99, "value_rescaling": False, "batch_size": 7, "rollout": 120}
    assert found("gru", **given) == tuple(given.values())


def test_numbers_are_in_env_steps_whatever_a_sequence_shares() -> None:
    """Sequences of 80 that begin every 20 steps and learn from 60: each step is in three."""
    config = ApexConfig(
        env=MAZE,
        model=ModelConfig(core="gru"),
        num_workers=2,
        num_envs_per_worker=4,
        sequence_overlap=60,
        burn_in=20,
        rollout=40,
        replay_capacity=10_000,
        learning_starts=990,
        samples_per_insert=6.0,
        prefetch_batches=3,
    )
    spec = spec_of(config)
    plan = plan_of(resolve_defaults(config, spec), spec, "cpu")
    assert plan.capacity == 10_000 // 160 * 160, "the overlap takes memory, but no capacity"
    assert plan.item_ratio == 2.0 and plan.learning_starts_items == 50
    items, leases = 2 * 4, 2 * 2
    assert plan.tolerance == leases * items * 2.0 + 3 * 64


def maze(tmp_path: Path, core: Any, **kwargs: Any) -> ApexConfig:
    """Ten steps lie between cue and question. Sequences of 28 begin anywhere, every 20 steps."""
    sequences = {"sequence_length": 28, "sequence_overlap": 8, "burn_in": 8}
    defaults: dict[str, Any] = {
        "env": MAZE,
        "env_kwargs": {"length": 10},
        "run_dir": str(tmp_path / "run"),
        "serial": True,
        "quiet": True,
        "seed": 1,
        "device": "cpu",
        "num_envs_per_worker": 32,
        "rollout": 40,
        "model": ModelConfig(
            core=core,
            core_size=32,
            hidden_sizes=(32,),
            activation="relu",
            normalise_observations=False,
        ),
        "learning_rate": 3e-3,
        "n_step": 5,
        "gamma": 0.97,
        "batch_size": 256 if core == "none" else 32,
        "replay_capacity": 20_000,
        "learning_starts": 2000,
        "target_update_interval": 50,
        "samples_per_insert": 6.0,
        "prefetch_batches": 1,
        "report_interval": 1.0,
        **(sequences if core != "none" else {}),
    }
    return ApexConfig(**{**defaults, **kwargs})


@pytest.mark.long
@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_only_a_recurrent_core_remembers(core: str, tmp_path: Path) -> None:
    """1 is perfect; 0 is chance, and the best without memory. The recurrent ones need 10-20
    thousand steps."""
    steps = 20_000 if core == "none" else 150_000
    graph, _ = build_apex(maze(tmp_path, core))
    statistics, found = RunStatistics(graph, {}), 0.0
    for _ in serial_rounds(graph, steps):  # a round is at least one step
        if episodes := graph.episodes.take():
            statistics.take_episodes(episodes)
            found = statistics.return_mean or 0.0
        learned = graph.counters.total("updates") > 20
        if graph.progress.env_steps >= steps or (learned and found > 0.95):
            break
    assert abs(found) < 0.4 if core == "none" else found > 0.95, f"mean return {found}"


@pytest.mark.long
def test_a_run_says_what_it_chose_and_goes_on(tmp_path: Path) -> None:
    left_open = {"n_step": None, "gamma": None, "batch_size": None, "rollout": 50}

    def config(**kwargs: Any) -> ApexConfig:
        return maze(tmp_path, "lstm", num_envs_per_worker=8, **{**left_open, **kwargs})

    first = train(config(train_for_env_steps=5000))
    updates, log = first.summary["updates"], first.run_dir / "log.txt"
    assert updates > 3
    assert "sequences of 28 steps, one every 20, of which 8 are burn-in" in log.read_text()
    stored = yaml.safe_load((first.run_dir / "config.yaml").read_text())
    assert [stored[n] for n in ("n_step", "gamma", "batch_size", "rollout")] == [5, 0.997, 64, 60]
    assert stored["value_rescaling"] is True
    second = train(config(train_for_env_steps=10_000))
    assert second.summary["updates"] > updates + 3
    assert "resumed with an empty replay: 2000 transitions are collected" in log.read_text()
    played = evaluate(first.run_dir, episodes=10, trust=Trust(everything=True))
    assert played["episodes"] == 10 and played["length_mean"] == 11
    third = train(config(train_for_env_steps=14_000, save_replay=True))
    fourth = train(config(train_for_env_steps=15_000, save_replay=True))
    assert fourth.summary["updates"] > third.summary["updates"], "no refill of 2000 steps"
    assert "resumed with the replay of 14," in log.read_text()
    action, state = load_policy(first.run_dir, trust=True).act([1.0, 0.0])
    assert action in (0, 1) and state.shape == (1, 64) and state.abs().sum() > 0
    with pytest.raises(ConfigError, match="burn_in: 8 -> 4"):
        train(config(train_for_env_steps=16_000, burn_in=4))
