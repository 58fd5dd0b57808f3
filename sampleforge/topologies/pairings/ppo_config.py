"""The config of PPO on slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.topologies.config import SlotsRunConfig


@dataclass(frozen=True)
class AppoConfig(PpoLossConfig, SlotsRunConfig):
    """Asynchronous PPO: actors, policy workers and a learner exchange trajectory slots."""

    algo: ClassVar[str] = "appo"
    pairing: ClassVar[str] = "sampleforge.topologies.pairings.ppo_defaults:APPO"
