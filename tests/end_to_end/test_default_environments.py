"""The environments that the defaults are made for start and step in every topology that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sampleforge.api import train
from sampleforge.topologies.config import ALGOS
from tests.support.graphs import spec_of
from tests.support.probes import probe_by

DISCRETE = {
    "Acrobot-v1": None,
    "CartPole-v1": None,
    "FrozenLake-v1": None,
    "LunarLander-v3": "Box2D",
    "MinAtar/Breakout-v1": "minatar",
    "MiniGrid-Empty-5x5-v0": "minigrid",
}
CONTINUOUS = {
    "HalfCheetah-v5": "mujoco",
    "Hopper-v5": "mujoco",
    "MountainCarContinuous-v0": None,
    "Pendulum-v1": None,
}
"""Id -> the module it needs. Ape-X learns discrete actions only."""
CASES = [
    *[(env, "apex") for env in DISCRETE],
    *[(env, algo) for algo in ("appo", "ddppo") for env in {**DISCRETE, **CONTINUOUS}],
]


@pytest.mark.long
@pytest.mark.parametrize(("env", "algo"), CASES)
def test_a_run_with_defaults_trains_for_some_steps(
    env: str, algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serially, in this process, the probe's part included."""
    needed = {**DISCRETE, **CONTINUOUS}[env]
    if needed is not None:
        pytest.importorskip(needed)
    probe_by(spec_of, monkeypatch)
    small: dict[str, Any] = {"num_envs_per_worker": 4, "rollout": 16, "batch_size": 64}
    if algo == "apex":
        small |= {"learning_starts": 128, "replay_capacity": 4096, "batch_size": 32}
    config = ALGOS[algo](
        env=env,
        run_dir=str(tmp_path / "run"),
        seed=1,
        serial=True,
        quiet=True,
        device="cpu",
        train_for_env_steps=400,
        **small,
    )
    summary = train(config).summary
    assert summary["status"] == "finished"
    assert summary["env_steps"] >= 400
    assert summary["updates"] >= 1
