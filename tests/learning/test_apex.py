"""Short trainings of Ape-X with each kind of head, in this process and from a fixed seed: how busy
the machine is changes nothing."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from sampleforge.models.config import ModelConfig
from sampleforge.runners.serial import SerialRunner
from tests.support.apex_graphs import apex_config, build_apex

ATOMS: dict[str, Any] = {"value_distribution": "c51", "v_min": 0.0, "v_max": 100.0}
HEADS: dict[str, dict[str, Any]] = {
    "c51": ATOMS,
    "quantile": {"value_distribution": "quantile", "num_atoms": 21},
    "noisy": {"noisy_nets": True},
    "all": {**ATOMS, "noisy_nets": True, "value_rescaling": True, "head_size": 32},
}


@pytest.mark.long
@pytest.mark.parametrize("head", HEADS)
def test_cartpole_is_learned(head: str) -> None:
    """Random: 22 of 500. A mean of 50 over 20 episodes comes after 3 to 6 thousand steps."""
    chosen = apex_config(
        **HEADS[head],
        env="CartPole-v1",
        num_workers=1,
        num_envs_per_worker=8,
        num_splits=1,
        rollout=10,
        model=ModelConfig(hidden_sizes=(64, 64), activation="relu", normalise_observations=False),
        learning_rate=1e-3,
        batch_size=64,
        target_update_interval=50,
        learning_starts=300,
        replay_capacity=20_000,
        samples_per_insert=8.0,
        prefetch_batches=2,
        debug=False,
    )
    graph, _ = build_apex(chosen)
    runner, returns = SerialRunner(graph), deque([0.0], maxlen=20)
    runner.start()
    try:
        while sum(returns) <= 50.0 * 20 and graph.progress.env_steps < 15_000:
            runner.poll(0)
            returns += [episode.ret for episode in graph.episodes.take()]
    finally:
        runner.close()
    assert sum(returns) > 50.0 * 20, sum(returns) / 20
