"""What --cuda-graphs is refused with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import ApexConfig, AppoConfig
from sampleforge.topologies.cuda_graphs import check_cuda_graphs

APPO = AppoConfig(env="CartPole-v1", cuda_graphs=True)
APEX = ApexConfig(env="CartPole-v1", cuda_graphs=True)


@pytest.mark.parametrize(
    ("config", "change", "device", "message"),
    [
        (APPO, {}, "cpu", "the learner is on the cpu"),
        (APPO, {"model": ModelConfig(core="gru")}, "cuda", "--model.core gru"),
        (APPO, {"compile": True}, "cuda:1", "--compile"),
        (APEX, {"noisy_nets": True}, "cuda", "--noisy-nets"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(
    config: AppoConfig | ApexConfig, change: dict[str, Any], device: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_cuda_graphs(replace(config, **change), device)
    check_cuda_graphs(replace(config, **change, cuda_graphs=False), device)
    check_cuda_graphs(config, "cuda")


def test_several_learners_are_refused() -> None:
    with pytest.raises(ConfigError, match="--cuda-graphs --num-learners 2"):
        replace(APPO, num_learners=2)
