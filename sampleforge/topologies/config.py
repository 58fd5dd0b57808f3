"""Everything one run is made from, per topology. Each part is typed by its owner's dataclass, and
an object is given the whole under the type of its own part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sampleforge.algos.config import AppoLossConfig, LearnerConfig
from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.models.config import ModelConfig
from sampleforge.runtime.config import RunConfig
from sampleforge.workers.config import SamplerConfig


@dataclass(frozen=True)
class AppoConfig(AppoLossConfig, LearnerConfig, SamplerConfig, RunConfig, EnvConfig):
    """Asynchronous PPO: actors, policy workers and a learner exchange trajectory slots."""

    algo: ClassVar[str] = "appo"
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = self.train_for_env_steps or self.train_for_seconds or self.benchmark
        if self.lr_schedule == "linear" and not ends:
            raise ConfigError(
                "lr_schedule is 'linear', which falls to zero at the stop condition, but there is "
                "none; give train_for_env_steps or train_for_seconds, or use 'constant'"
            )


AnyConfig = AppoConfig
"""The config of one or another algorithm."""

ALGOS: dict[str, type[AnyConfig]] = {"appo": AppoConfig}
"""Config class per algorithm's name."""
