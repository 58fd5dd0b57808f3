"""The settings of soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass

from sampleforge.algorithms.config import CriticsConfig, TargetsConfig
from sampleforge.config import check_range


@dataclass(frozen=True)
class SoftConfig(CriticsConfig):
    """A squashed Gaussian policy, whose entropy a learned or a fixed temperature holds, and several
    critics."""

    initial_temperature: float = 1.0
    """The weight of the entropy that learning begins with."""
    learn_temperature: bool = True
    """Learn the weight of the entropy, so that the entropy is that of --target-entropy; else it
    stays what it is."""
    target_entropy: float | None = None
    """Entropy in nats at which the temperature holds the policy, of actions in units of their
    bounds, -1 to 1 (default: minus the number of action elements)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "initial_temperature", low=0, above=True)
        check_range(self, "target_entropy")


@dataclass(frozen=True)
class SacLossConfig(SoftConfig, TargetsConfig):
    """Soft actor-critic."""
