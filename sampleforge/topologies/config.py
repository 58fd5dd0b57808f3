"""Everything one run is made from, per topology. Each part is typed by its owner's dataclass, and
an object is given the whole under the type of its own part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sampleforge.algos.config import AppoLossConfig, DqnConfig, LearnerConfig
from sampleforge.config import ConfigError
from sampleforge.data.config import ReplayConfig
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
        _check_schedules(self, linear_lr=self.lr_schedule == "linear", moving_beta=False)


@dataclass(frozen=True)
class ApexConfig(ReplayConfig, DqnConfig, SamplerConfig, RunConfig, EnvConfig):
    """Ape-X DQN: many actors write into a prioritised replay, a learner draws from it."""

    algo: ClassVar[str] = "apex"
    rollout: int = 50
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            hidden_sizes=(128, 128), activation="relu", normalise_observations=False
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        moving = self.priority_beta_final is not None
        _check_schedules(self, linear_lr=self.lr_schedule == "linear", moving_beta=moving)
        if self.model.core != "none":
            raise ConfigError(
                f"model.core is {self.model.core!r}, but Ape-X's replay of single transitions has "
                "no memory to train it with; use 'none', or appo"
            )


def _check_schedules(config: RunConfig, *, linear_lr: bool, moving_beta: bool) -> None:
    """Raise ConfigError if something shall move until the stop condition, and there is none."""
    if config.train_for_env_steps or config.train_for_seconds or config.benchmark:
        return
    if linear_lr:
        raise ConfigError(
            "lr_schedule is 'linear', which falls to zero at the stop condition, but there is "
            "none; give train_for_env_steps or train_for_seconds, or use 'constant'"
        )
    if moving_beta:
        raise ConfigError(
            "priority_beta_final is set, which priority_beta moves to until the stop condition, "
            "but there is none; give train_for_env_steps or train_for_seconds, or leave it out"
        )


AnyConfig = AppoConfig | ApexConfig
ALGOS: dict[str, type[AnyConfig]] = {"appo": AppoConfig, "apex": ApexConfig}
"""Config class per algorithm's name."""
