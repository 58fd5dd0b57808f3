"""Which episodes say something about the return of a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from sampleforge.config import ConfigError
from sampleforge.data.dataset import open_dataset
from sampleforge.env.config import EnvConfig
from sampleforge.models.config import ModelConfig
from sampleforge.tools.estimate.comparable import check_comparable
from tests.support.graphs import spec_of
from tests.support.recorded import recorded, write_dataset

CODE = "tests.support.multi_agent:CodeParallelEnv"


def config(agents: int) -> EnvConfig:
    return EnvConfig(env=CODE, env_kwargs={"agents": agents})


@pytest.mark.parametrize("agents", [(3, 3), (3, 1), (1, 3)])
def test_episodes_of_several_agents_are_refused(agents: tuple[int, int], tmp_path: Path) -> None:
    """Their returns depend on the actions of the others, which an episode has not."""
    of_data, of_run = (spec_of(config(each)) for each in agents)
    data = open_dataset(write_dataset(tmp_path, of_data, recorded([5] * 3, of_data.actions)))
    with pytest.raises(ConfigError, match=r"has 3 agents: .* sampleforge eval RUN --stochastic"):
        check_comparable(data, of_run, ModelConfig())


def test_those_of_one_agent_are_taken(tmp_path: Path) -> None:
    spec = spec_of(config(1))
    data = open_dataset(write_dataset(tmp_path, spec, recorded([5] * 3, spec.actions)))
    check_comparable(data, spec, ModelConfig())
