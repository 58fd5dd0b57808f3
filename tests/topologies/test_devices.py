"""Where learners launch their work as CUDA graphs, and what --cuda-graphs is refused with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.critics_config import CrossqConfig, SacConfig, Td3Config
from sampleforge.topologies.devices import uses_cuda_graphs
from sampleforge.topologies.dqn_config import ApexConfig
from sampleforge.topologies.ppo_config import AppoConfig
from sampleforge.topologies.pqn_config import PqnConfig

APPO = AppoConfig(env="CartPole-v1", cuda_graphs=True, train_for_env_steps=100)
APEX = ApexConfig(env="CartPole-v1", cuda_graphs=True)


@pytest.mark.parametrize(
    ("config", "change", "device", "message"),
    [
        (APPO, {}, "cpu", "the learner is on the cpu"),
        (APPO, {"model": ModelConfig(core="gru")}, "cuda", "--model.core gru"),
        (APPO, {"variable_experience": True}, "cuda:1", "--variable-experience"),
        (
            APPO,
            {"anneal": {"exploration_coeff": "linear"}},
            "cuda",
            "--anneal exploration_coeff=linear",
        ),
        (APEX, {"noisy_nets": True}, "cuda", "--noisy-nets"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(
    config: AppoConfig | ApexConfig, change: dict[str, Any], device: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        uses_cuda_graphs(replace(config, **change), device)
    assert not uses_cuda_graphs(replace(config, **change, cuda_graphs=False), device)
    assert not uses_cuda_graphs(replace(config, **change, cuda_graphs=None), device)
    assert uses_cuda_graphs(config, "cuda")


def test_several_learners_are_refused() -> None:
    with pytest.raises(ConfigError, match="--cuda-graphs --num-learners 2"):
        replace(APPO, num_learners=2)


@pytest.mark.parametrize(
    "cls", [AppoConfig, PqnConfig, ApexConfig, SacConfig, CrossqConfig, Td3Config]
)
def test_graphs_are_used_on_a_gpu_if_nothing_is_said(cls: Any) -> None:
    config = cls(env="CartPole-v1")
    assert uses_cuda_graphs(config, "cuda:1") and not uses_cuda_graphs(config, "cpu")
    assert not uses_cuda_graphs(replace(config, num_learners=2), "cuda")
