"""How experience is kept and drawn again (ReplayConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class ReplayConfig(Checked):
    replay_capacity: int = 2_000_000
    """Transitions in the replay, all shards together (rounded down to whole rollouts)."""
    replay_compression: Literal["none", "lz4"] = "none"
    """lz4: frames of stacked images are kept compressed; needs the package lz4."""
    replay_compression_ratio: float = 10.0
    """Times that frames are assumed to shrink: the memory for them is their size divided by this.
    Where they shrink less, the replay holds fewer transitions."""
    save_replay: bool = False
    """Checkpoints hold the replay too, the latest one's only: --checkpoint-interval says how often
    that is written. Off: a resumed run refills it first."""
    num_replay_shards: int = 1
    """Processes that the replay is divided among."""
    learning_starts: int | None = None
    """Transitions in the replay before learning begins, also after a resume (none: 50000 for
    images, else 1000)."""
    priority_alpha: float | None = None
    """Transitions are drawn in proportion to priority ** alpha (0: uniformly, without a tree; none:
    0.6, or 0.9 for images with a recurrent core)."""
    priority_beta: float | None = None
    """Exponent of the importance weights that make up for the priorities (1: entirely; none: 0.4,
    or 0.6 for images with a recurrent core)."""
    priority_beta_final: float | None = None
    """Beta moves to this, linearly, until the stop condition (none: it stays)."""
    priority_epsilon: float = 1e-6
    """Added to every priority, so that each can be drawn."""
    samples_per_insert: Literal["auto"] | float | None = "auto"
    """Times that a transition is learned from on average; faster actors or learners wait (auto: 1
    for images, else 8; none: nobody waits)."""
    samples_per_insert_tolerance: float | None = None
    """Samples (transitions, or sequences) by which the ratio may be missed at any moment (none: as
    few as the rollouts and batches under way demand)."""
    prefetch_batches: int = 16
    """Samples that may be under way between replay and learner."""
    sequence_length: int = 80
    """Env steps of what is drawn for a recurrent core, the burn-in included."""
    sequence_overlap: int = 40
    """Steps that a sequence shares with the next one of its env row. With a recurrent core,
    --rollout is raised to a multiple of the rest."""

    @property
    def priority_exponent(self) -> float:
        """``priority_alpha`` of a config that was fitted."""
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
