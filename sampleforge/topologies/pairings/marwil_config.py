"""The config of MARWIL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sampleforge.algorithms.marwil.config import ImitationConfig
from sampleforge.topologies.config import StoredRunConfig


@dataclass(frozen=True)
class MarwilConfig(ImitationConfig, StoredRunConfig):
    """Behaviour cloning and advantage-weighted learning from recorded data: no actors, the learner
    reads datasets."""

    algo: ClassVar[str] = "marwil"
    pairing: ClassVar[str] = "sampleforge.topologies.pairings.marwil_defaults:MARWIL_ON_STORED"
