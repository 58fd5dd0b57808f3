"""Rows whose actions were not drawn independently are marked in the dataset, in every topology."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sampleforge.data.dataset import open_dataset
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig, SamplingConfig
from tests.support.offline import SEEN, record

BOX = "tests.support.envs:AimEnv"
SMALL: dict[str, Any] = {"serial": True, "seed": 1, "decorrelate": False, "rollout": 7}
ROWS: dict[str, Any] = {"num_workers": 1, "num_splits": 2, "num_envs_per_worker": 6}
OFF_POLICY: dict[str, Any] = {"learning_starts": 100, "replay_capacity": 500, "batch_size": 8}
FOURTH = {3}
"""Of six rows in two splits of three: the row 3 of the run has correlated noise."""
RUNS: dict[str, tuple[SamplingConfig, set[int]]] = {
    "appo": (AppoConfig(env=BOX, **SMALL, **ROWS), FOURTH),
    "appo, policy workers": (AppoConfig(env=BOX, **SMALL, **ROWS, inference="worker"), FOURTH),
    "appo, no noise": (AppoConfig(env=BOX, **SMALL, **ROWS, noise_correlation=0.0), set()),
    "appo, Dict with a Box": (
        AppoConfig(env=SEEN, env_kwargs={"name": "dict"}, **SMALL, **ROWS),
        FOURTH,
    ),
    "appo, Tuple with a Box": (
        AppoConfig(env=SEEN, env_kwargs={"name": "tuple"}, **SMALL, **ROWS),
        FOURTH,
    ),
    "appo, Discrete": (AppoConfig(env=SEEN, **SMALL, **ROWS), set()),
    "ddppo": (
        DdppoConfig(env=BOX, num_ranks=1, num_splits=2, num_envs_per_worker=6, **SMALL),
        FOURTH,
    ),
    "apex": (ApexConfig(env=SEEN, **SMALL, **ROWS, **OFF_POLICY), set()),
    "apex, noisy nets": (
        ApexConfig(env=SEEN, noisy_nets=True, **SMALL, **ROWS, **OFF_POLICY),
        set(range(6)),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_rows_that_do_not_draw_independently_are_marked(run: str, tmp_path: Path) -> None:
    config, marked = RUNS[run]
    folder = tmp_path / "data"
    record(dataclasses.replace(config, record=str(folder)), 200)
    seen: dict[int, set[bool]] = {}
    for episode in open_dataset(folder).episodes():
        assert episode.independent is not None and episode.number is not None
        _, split, _, row, _ = episode.number
        seen.setdefault(3 * split + row, set()).update(episode.independent.tolist())
    assert seen == {row: {row not in marked} for row in range(6)}
