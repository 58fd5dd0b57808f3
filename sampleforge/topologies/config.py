"""Everything one run is made from, per topology. Each part is typed by its owner's dataclass, and an
object is given the whole under the type of its own part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sampleforge.algos.config import AppoLossConfig, LearnerConfig
from sampleforge.env.config import EnvConfig
from sampleforge.models.config import ModelConfig
from sampleforge.runtime.config import RunConfig
from sampleforge.workers.config import SamplerConfig


@dataclass(frozen=True)
class AppoConfig(AppoLossConfig, LearnerConfig, SamplerConfig, RunConfig, EnvConfig):
    """Asynchronous PPO: actors, policy workers and a learner exchange trajectory slots."""

    algo: ClassVar[str] = "appo"
    model: ModelConfig = field(default_factory=ModelConfig)
