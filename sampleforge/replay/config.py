"""The configuration of the replay (ReplayConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class ReplayConfig(Checked):
    usual_capacity: ClassVar[int] = 2_000_000
    replay_capacity: int | None = None
    """Transitions that the replay holds, over all shards, rounded down to whole rollouts (default:
    2000000, with sac, crossq and td3 1000000, or as many as fit in memory if these are fewer)."""
    replay_compression: Literal["none", "lz4"] = "none"
    """lz4: keep the frames of stacked images compressed; needs the package lz4."""
    replay_compression_ratio: float = 10.0
    """Factor by which frames are assumed to shrink: their memory is their size divided by it. Where
    they shrink less, the replay holds fewer transitions."""
    replay_gpu_memory: float = 0.0
    """GiB of the learner's GPU for copies of stacked frames, so that samples are gathered there (0:
    frames are in the machine's memory alone). With fewer than all frames, the other samples are
    copied to the GPU as without it."""
    save_replay: bool = False
    """Keep the replay of the latest checkpoint, so that a resumed run goes on with it; off: a
    resumed run fills its replay anew."""
    num_replay_shards: int = 1
    """Number of processes among which the replay is divided."""
    learning_starts: int | None = None
    """Transitions in the replay before learning begins, also after a resume (default: 50000 for
    images, else 1000; with sac, crossq and td3 5000)."""
    priority_alpha: float | None = None
    """Transitions are drawn in proportion to priority ** alpha; 0: uniformly (default: 0.6, or 0.9
    for images with a recurrent core; with sac, crossq and td3 0)."""
    priority_beta: float | None = None
    """Exponent of the importance weights that make up for the priorities; 1: entirely (default:
    0.4, or 0.6 for images with a recurrent core)."""
    priority_beta_final: float | None = None
    """Value that beta moves to, linearly, until the stop condition (default: beta is constant)."""
    priority_epsilon: float = 1e-6
    """Added to every priority, so that each transition can be drawn."""
    samples_per_insert: Literal["auto"] | float | None = "auto"
    """Replay ratio: times that a transition is learned from on average. Faster actors or learners
    wait (auto: 1 for images, else 8; None: no limit, and no worker waits)."""
    samples_per_insert_tolerance: float | None = None
    """Samples (transitions, or sequences) by which the replay ratio may be missed at any moment
    (default: the least that the rollouts and batches in flight allow)."""
    prefetch_batches: int = 16
    """Batches that may be in flight between replay and learner."""
    sequence_length: int = 80
    """Env steps of a sequence, which is drawn for a recurrent core, burn-in included."""
    sequence_overlap: int = 40
    """Env steps that a sequence shares with the next one of its environment. With a recurrent core,
    --rollout is raised to a multiple of the rest."""
    burn_in: int = 40
    """First env steps of each sequence: they bring the recurrent state up to date and are not
    learned from."""
    batch_size: int | None = None
    """Transitions per gradient step (default: 512 for images, else 256), or with a recurrent core
    sequences (default: 64)."""
    her: bool = False
    """Hindsight experience replay: relabel drawn transitions with goals that were achieved later in
    their episodes, in environments with achieved_goal, desired_goal and compute_reward. --rollout
    is raised to a multiple of the time limit and the reset."""
    her_k: int = 4
    """With --her: relabelled transitions per transition that keeps its goal."""
    weights_refresh_interval: int = 400
    """Env steps of an actor between two looks for newer weights."""
    gamma: float | None = None
    """Discount per env step, 0 to 1 (default: 0.99, with a recurrent core 0.997)."""
    n_step: int | None = None
    """Rewards summed before the target bootstraps, fewer at the end of an episode, rollout or
    sequence (default: 3, with a recurrent core 5; with sac, crossq and td3 1)."""
    reward_scale: float = 1.0
    """Factor of rewards for learning; reported returns are unscaled."""
    reward_clip: Literal["auto", "sign"] | float | None = "auto"
    """Clip scaled rewards to +- this value for learning; sign: learn from their sign only (-1, 0 or
    1); reported returns are unclipped (auto: 1 for images unless values are rescaled, else no
    clipping; None: no clipping)."""
    learner_threads: int | None = None
    """Threads of the learner on a CPU (default: 1; with convolutions two of five cores, at most 4
    for planes that are no pixels)."""

    @property
    def replay_ratio(self) -> float | None:
        """Samples for each transition that is inserted, of a config with resolved defaults; None:
        no worker waits."""
        assert self.samples_per_insert != "auto"
        return self.samples_per_insert

    @property
    def priority_exponent(self) -> float:
        """``priority_alpha`` of a config with resolved defaults."""
        assert self.priority_alpha is not None
        return self.priority_alpha

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "replay_capacity num_replay_shards prefetch_batches", low=1)
        check_range(self, "learning_starts sequence_length batch_size learner_threads", low=1)
        check_range(self, "sequence_overlap burn_in weights_refresh_interval", low=0)
        check_range(self, "n_step", low=1, high=255)
        check_range(self, "her_k", low=1)
        check_range(self, "gamma", low=0, high=1)
        check_range(self, "replay_compression_ratio", low=1)
        check_range(self, "replay_gpu_memory", low=0)
        check_range(self, "priority_alpha", low=0)
        check_range(self, "priority_beta priority_beta_final", low=0, high=1)
        check_range(self, "priority_epsilon reward_scale", low=0, above=True)
        if self.reward_clip not in ("auto", "sign"):
            check_range(self, "reward_clip", low=0, above=True)
        check_range(self, "samples_per_insert_tolerance", low=0, above=True)
        if self.samples_per_insert != "auto":
            check_range(self, "samples_per_insert", low=0, above=True)
        if self.her_k != ReplayConfig.her_k and not self.her:
            raise ConfigError(
                f"--her-k {self.her_k}: without --her no transition is relabelled; add --her, or "
                "leave it out"
            )
        if self.replay_gpu_memory and self.replay_compression != "none":
            raise ConfigError(
                f"--replay-gpu-memory {self.replay_gpu_memory:g} --replay-compression "
                f"{self.replay_compression}: the GPU's copies are of frames that are not "
                "compressed; leave out one of the two"
            )
        starts, capacity = self.learning_starts, self.replay_capacity
        if starts is not None and capacity is not None and starts > capacity:
            raise ConfigError(
                f"--learning-starts {self.learning_starts}: the replay holds only "
                f"{self.replay_capacity} transitions (--replay-capacity)"
            )
