"""The config of Ape-X."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.topologies.config import ReplayRunConfig


@dataclass(frozen=True)
class ApexConfig(DqnConfig, ReplayRunConfig):
    """Ape-X DQN: many actors write into a prioritised replay, a learner draws from it."""

    algo: ClassVar[str] = "apex"
    pairing: ClassVar[str] = "sampleforge.topologies.pairings.dqn_defaults:APEX"
