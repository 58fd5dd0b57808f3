"""The configuration of the replay (ReplayConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class ReplayConfig(Checked):
    replay_capacity: int = 2_000_000
    """Transitions in the replay, all shards together (rounded down to whole rollouts)."""
    replay_compression: Literal["none", "lz4"] = "none"
    """lz4: keep the frames of stacked images compressed; needs the package lz4."""
    replay_compression_ratio: float = 10.0
    """Expected compression ratio: the memory for frames is their raw size divided by this. If they
    shrink less, the replay holds fewer transitions."""
    save_replay: bool = False
    """Save the replay with the latest checkpoint, every --checkpoint-interval. Off: a resumed run
    refills the replay first."""
    num_replay_shards: int = 1
    """Number of processes among which the replay is divided."""
    learning_starts: int | None = None
    """Transitions in the replay before learning begins, also after a resume (default: 50000 for
    images, else 1000)."""
    priority_alpha: float | None = None
    """Transitions are drawn in proportion to priority ** alpha (0: uniformly, without a tree;
    default: 0.6, or 0.9 for images with a recurrent core)."""
    priority_beta: float | None = None
    """Exponent of the importance weights that correct for the priorities (1: completely; default:
    0.4, or 0.6 for images with a recurrent core)."""
    priority_beta_final: float | None = None
    """Value that beta reaches, linearly, at the stop condition (default: beta is constant)."""
    priority_epsilon: float = 1e-6
    """Added to every priority, so that every transition can be drawn."""
    samples_per_insert: Literal["auto"] | float | None = "auto"
    """Replay ratio: times that a transition is learned from on average; the faster side, actors or
    learner, waits for the other (auto: 1 for images, else 8; none: neither side waits)."""
    samples_per_insert_tolerance: float | None = None
    """Samples (transitions, or sequences) by which the ratio may be missed at any moment (default:
    the least that the rollouts and batches in flight allow)."""
    prefetch_batches: int = 16
    """Batches that may be in flight between replay and learner."""
    sequence_length: int = 80
    """Env steps of a sequence, which a recurrent core learns from, including the burn-in."""
    sequence_overlap: int = 40
    """Steps that a sequence shares with the next one of its env row. With a recurrent core,
    --rollout is raised to a multiple of the rest."""

    @property
    def priority_exponent(self) -> float:
        """``priority_alpha`` of a config with resolved defaults."""
        assert self.priority_alpha is not None
        return self.priority_alpha

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "replay_capacity num_replay_shards prefetch_batches", low=1)
        check_range(self, "learning_starts sequence_length", low=1)
        check_range(self, "sequence_overlap", low=0)
        check_range(self, "replay_compression_ratio", low=1)
        check_range(self, "priority_alpha", low=0)
        check_range(self, "priority_beta priority_beta_final", low=0, high=1)
        check_range(self, "priority_epsilon", low=0, above=True)
        check_range(self, "samples_per_insert_tolerance", low=0, above=True)
        if self.samples_per_insert != "auto":
            check_range(self, "samples_per_insert", low=0, above=True)
        if self.learning_starts is not None and self.learning_starts > self.replay_capacity:
            raise ConfigError(
                f"learning_starts is {self.learning_starts}, but the replay holds only "
                f"{self.replay_capacity} transitions; lower learning_starts or raise "
                "replay_capacity"
            )
