"""The config of PPO on ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.topologies.config import RanksRunConfig


@dataclass(frozen=True)
class DdppoConfig(PpoLossConfig, RanksRunConfig):
    """Decentralised PPO: every rank samples and learns, and gradients are averaged. Numbers of envs
    and sizes of batches are those of one rank."""

    algo: ClassVar[str] = "ddppo"
    pairing: ClassVar[str] = "sampleforge.topologies.pairings.ppo_defaults:DDPPO"
