"""The settings of TD3."""

from __future__ import annotations

from dataclasses import dataclass

from sampleforge.algorithms.config import TargetsConfig
from sampleforge.config import check_range


@dataclass(frozen=True)
class Td3LossConfig(TargetsConfig):
    """TD3: a deterministic policy, several critics, and targets that are smoothed by noise."""

    target_noise: float = 0.2
    """Standard deviation of the noise on the actions of targets, in units of the bounds."""
    target_noise_clip: float = 0.5
    """That noise is clipped to +- this value."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on the actions that are taken, in units of the bounds; of the
    middle env row."""
    exploration_spread: float = 2.0
    """Env rows explore with different noise: the first has so many times that of the middle one,
    the last the middle one's divided by it, the others lie between; 1: all alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "target_noise target_noise_clip exploration_noise", low=0)
        check_range(self, "exploration_spread", low=1)
