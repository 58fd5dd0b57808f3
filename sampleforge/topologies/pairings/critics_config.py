"""The configs of SAC, CrossQ and TD3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sampleforge.algorithms.config import CriticsConfig
from sampleforge.algorithms.sac.config import SacLossConfig, SoftConfig
from sampleforge.algorithms.td3.config import Td3LossConfig
from sampleforge.config import ConfigError, typed
from sampleforge.models.config import CompilerConfig
from sampleforge.topologies.config import ReplayRunConfig

_NOT_FOR_CRITICS = {
    "core": "sac, crossq and td3 learn from single transitions, and a recurrent core needs "
    "sequences",
    "separate_critic": "the critics are networks of their own",
}
"""Settings of the model that do not apply to SAC, CrossQ and TD3, and why."""


@dataclass(frozen=True, repr=False, eq=False)
class CriticsRunConfig(CriticsConfig, CompilerConfig, ReplayRunConfig):
    """What SAC, CrossQ and TD3 have: actors write into a replay, a learner of continuous control
    draws from it."""

    heavy_updates: ClassVar[bool] = True
    # Defaults that differ from those of the parts:
    rollout: int = 16
    weights_refresh_interval: int = 1
    usual_capacity: ClassVar[int] = 1_000_000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, reason in _NOT_FOR_CRITICS.items():
            if getattr(self.model, name) not in (None, "none"):
                raise ConfigError(
                    f"{typed(f'model.{name}', getattr(self.model, name))}: {reason}; leave it out"
                )


@dataclass(frozen=True)
class SacConfig(CriticsRunConfig, SacLossConfig):
    """Soft actor-critic: continuous control from a replay, with a learned temperature."""

    algo: ClassVar[str] = "sac"
    pairing: ClassVar[str] = "sampleforge.topologies.pairings.critics_defaults:SAC_ON_REPLAY"


@dataclass(frozen=True)
class CrossqConfig(CriticsRunConfig, SoftConfig):
    """CrossQ: soft actor-critic with normalised critics and without target networks, which learns
    from fewer env steps."""

    algo: ClassVar[str] = "crossq"
    pairing: ClassVar[str] = "sampleforge.topologies.pairings.critics_defaults:CROSSQ_ON_REPLAY"
    # Defaults that differ from those of the parts, as the authors have them:
    learning_rate: float = 1e-3
    actor_interval: int = 3


@dataclass(frozen=True)
class Td3Config(CriticsRunConfig, Td3LossConfig):
    """TD3: continuous control from a replay, with a deterministic policy."""

    algo: ClassVar[str] = "td3"
    pairing: ClassVar[str] = "sampleforge.topologies.pairings.critics_defaults:TD3_ON_REPLAY"
    # Defaults that differ from those of the parts:
    actor_interval: int = 2
