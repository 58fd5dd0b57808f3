"""docs/metrics.md explains every metric that a run writes, in the group that TensorBoard shows."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.api import train
from sampleforge.models.config import ModelConfig
from sampleforge.run.reports.metrics import GROUPS, OTHERS, group_of, tag
from sampleforge.topologies.config import (
    AnyConfig,
    AppoConfig,
    CrossqConfig,
    DdppoConfig,
    MarwilConfig,
    PqnConfig,
    SacConfig,
    Td3Config,
)
from tests.support import REPO
from tests.support.apex_graphs import apex_config
from tests.support.graphs import spec_of
from tests.support.recorded import recorded, write_dataset

SHORT: dict[str, Any] = {
    **{"serial": True, "quiet": True, "train_for_env_steps": 5000, "report_interval": 0.5},
    **{"evaluate_interval": 500, "evaluate_episodes": 2},
}
SEEDED: dict[str, Any] = {**SHORT, "env": "CartPole-v1", "seed": 1}
POPULATION: dict[str, Any] = {
    **{**SEEDED, "train_for_env_steps": 15_000, "num_epochs": 1},
    **{"num_policies": 2, "pbt": True, "pbt_start": 2000, "pbt_period": 500},
    **{"pbt_perturb_chance": 1.0, "pbt_relative_gap": 0.0},
}
CRITICS: dict[str, Any] = {
    **{**SEEDED, "env": "Pendulum-v1", "train_for_env_steps": 3000, "learning_starts": 1000},
    "model": ModelConfig(hidden_sizes=(8,)),
}
RUNS: dict[str, AnyConfig] = {
    "appo": AppoConfig(**SEEDED),
    "appo-async": AppoConfig(**SEEDED, async_rl=True, lr_schedule="kl_adaptive"),
    "apex": apex_config(**SHORT, num_replay_shards=2),
    "apex-c51": apex_config(
        **SHORT, value_distribution="c51", v_min=0.0, v_max=50.0, noisy_nets=True
    ),
    "pqn": PqnConfig(**SEEDED),
    "sac": SacConfig(**CRITICS),
    "crossq": CrossqConfig(**CRITICS),
    "td3": Td3Config(**CRITICS, priority_alpha=0.6),
    "self-play": AppoConfig(**{**SEEDED, "env": "PaddleDuel-v0"}, opponent_pool=2),
    "population": AppoConfig(**POPULATION),
    "ddppo": DdppoConfig(**SEEDED, num_ranks=1, debug=True),
    "marwil": MarwilConfig(**{**SEEDED, "evaluate_interval": 64}, batch_size=32),
}


def documented() -> dict[str, str]:
    """Name, perhaps with a ``*``, -> the group whose table it is in. Each row must have a name, a
    unit and a meaning."""
    found, group = {}, ""
    for line in (REPO / "docs" / "metrics.md").read_text().splitlines():
        if heading := re.match(r"## (\w+)/", line):
            group = heading[1]
        elif line.startswith("| `"):
            name, unit, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            assert unit and len(meaning) > 3, line
            assert name.strip("`") not in found, f"{name} is explained twice"
            found[name.strip("`")] = group
    return found


def test_the_tables_have_the_groups_of_tensorboard() -> None:
    for name, group in documented().items():
        assert group_of(name.replace("*", "0")) == group, name
    names = {name for names in GROUPS.values() for name in names}
    assert names <= set(documented())


def test_tags_begin_with_the_group_of_their_metric() -> None:
    assert tag("loss") == "losses/loss" and tag("eval_return_mean") == "eval/return_mean"
    assert tag("replay_fill") == "replay/fill" and tag("rank3_wait_s") == "ranks/rank3_wait_s"
    assert tag("return_mean_epsilon_0.4") == "rollout/return_mean_epsilon_0.4"
    assert tag("my_own") == f"{OTHERS}/my_own"
    assert tag("my_loss") == "losses/my_loss", "the term of a loss is told by its name"


def four_numbers(config: MarwilConfig, folder: Path) -> str:
    """A dataset that fits CartPole."""
    spec, rng = spec_of(config), np.random.default_rng(0)
    episodes = [
        dataclasses.replace(each, observations={"obs": rng.normal(size=(21, 4)).astype("f")})
        for each in recorded([20] * 30, spec.actions)
    ]
    return str(write_dataset(folder / "data", spec, episodes))


@pytest.mark.long
@pytest.mark.parametrize("kind", RUNS)
def test_every_metric_of_a_run_is_explained(kind: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"record": str(tmp_path / "data")} if kind == "appo" else {}
    config = dataclasses.replace(RUNS[kind], run_dir=str(tmp_path / "run"), **more)
    if isinstance(config, MarwilConfig):
        config = dataclasses.replace(config, input=(four_numbers(config, tmp_path),))
    result = train(config)
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    written = {name.split("/")[-1] for line in lines for name in json.loads(line)}
    assert {"loss", "eval_return_mean", "stage_env_us"} <= written
    assert {"data_passes", "return_mean", "return_mean_early"} & written
    if "q_mean" not in written:
        assert "explained_variance" in written
    known = documented()
    unknown = {n for n in written if not any(fnmatch.fnmatchcase(n, k) for k in known)}
    assert not unknown
