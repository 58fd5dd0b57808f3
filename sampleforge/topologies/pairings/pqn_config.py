"""The config of PQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sampleforge.algorithms.pqn.config import PqnLossConfig
from sampleforge.config import ConfigError
from sampleforge.topologies.config import SlotsRunConfig


@dataclass(frozen=True)
class PqnConfig(PqnLossConfig, SlotsRunConfig):
    """PQN: Q-learning from batches of rollouts, without a replay and a target network."""

    algo: ClassVar[str] = "pqn"
    pairing: ClassVar[str] = "sampleforge.topologies.pairings.pqn_defaults:PQN_ON_SLOTS"
    # Defaults that differ from those of the parts:
    max_grad_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr_schedule == "kl_adaptive":
            raise ConfigError(
                "--lr-schedule kl_adaptive: a Q-network has no distribution whose KL could be "
                "held; use constant or linear"
            )
        if self.compile:
            raise ConfigError(
                "--compile: pqn has passes of a Q-network, which only its own code computes; leave "
                "it out"
            )
