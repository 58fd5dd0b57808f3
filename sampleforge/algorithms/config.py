"""The settings of learners: of batches of rollouts, and of critics from a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range, typed
from sampleforge.replay.config import ReplayConfig


@dataclass(frozen=True)
class LearnerConfig(Checked):
    batch_size: int | None = None
    """Env steps per learner batch (default: 2048 over all ranks; with --async-rl one rollout of
    the default number of environments, at least 1024; the same on any number of cores)."""
    minibatch_size: int | None = None
    """Env steps per gradient step (default: about 256, with pqn 128; with --async-rl the whole
    batch, but for images)."""
    num_epochs: int | None = None
    """Passes over each batch (default: 10, for grids that are not pixels 4, for images 2; with
    --async-rl 1, for images 2; with pqn 4, for images and grids 2)."""
    gamma: float = 0.99
    """Discount per env step, 0 to 1."""
    learning_rate: float | None = None
    """Step size of Adam (default: 5e-4, for grids that are not pixels 1e-3; with --async-rl
    3e-4, for images 5e-4; with ddppo and a recurrent core 2.5e-4 for images; with pqn 5e-4)."""
    lr_schedule: Literal["constant", "linear", "cooldown", "kl_adaptive"] | None = None
    """linear: falls to zero at the stop condition; cooldown: in the last quarter before it;
    kl_adaptive: holds the KL near --lr-target-kl (default: constant; if there is a stop condition
    and no population, for Box actions cooldown, with pqn linear)."""
    lr_target_kl: float = 0.008
    """With --lr-schedule kl_adaptive: the KL between the policies before and after the update of a
    batch to aim at, in nats."""
    adam_eps: float = 1e-5
    """Added to the denominator of Adam's step, above 0."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's averages of the gradient and of its square, each from 0 to below 1."""
    max_grad_norm: float = 0.5
    """Norm that gradients are clipped to (0: no clipping)."""
    reward_scale: float = 1.0
    """Factor of rewards for learning; reported returns are unscaled."""
    reward_clip: Literal["sign"] | float | None = None
    """Clip scaled rewards to +- this value for learning; sign: learn from their sign only (-1, 0 or
    1); reported returns are unclipped (default: no clipping)."""
    normalise_returns: bool = True
    """Learn returns divided by their running standard deviation, so that rewards of any size fit;
    but with pqn, all values begin where the first returns are, so that a constant in all rewards
    fits as well."""
    rnd_coeff: float = 0.0
    """Weight of a reward for reaching observations that are new to a network which learns from all
    that were seen (random network distillation), in units of rewards, at least 0 (0: none)."""
    rnd_learning_rate: float = 3e-4
    """Step size of Adam for that network, above 0: the higher, the sooner observations are no
    longer new."""
    max_policy_lag: int | None = None
    """Experience that is more policy versions (gradient steps) old is not learned from (default:
    100, or twice the expected lag if that is more)."""
    async_rl: bool | None = None
    """Sampling continues while the learner trains; off: they take turns, and batches are on-policy
    (default: on for images on a GPU, else off)."""
    num_batches_to_accumulate: int = 2
    """With --async-rl: batches that may wait for the learner before sampling stops."""
    learner_threads: int | None = None
    """Threads of the learner on a CPU (default: 1; with convolutions one per core, with
    --async-rl two of five cores, at most 4 for planes that are no pixels)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "batch_size minibatch_size num_epochs learner_threads", low=1)
        check_range(self, "num_batches_to_accumulate", low=1)
        check_range(self, "gamma", low=0, high=1)
        check_range(self, "learning_rate lr_target_kl adam_eps", low=0, above=True)
        check_range(self, "reward_scale rnd_learning_rate", low=0, above=True)
        if self.reward_clip != "sign":
            check_range(self, "reward_clip", low=0, above=True)
        check_range(self, "max_grad_norm max_policy_lag rnd_coeff", low=0)
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ConfigError(
                f"{typed('adam_betas', self.adam_betas)}: both must be at least 0 and below 1"
            )
        if self.batch_size and self.minibatch_size and self.minibatch_size > self.batch_size:
            raise ConfigError(
                f"--minibatch-size {self.minibatch_size}: a batch has only {self.batch_size} env "
                "steps (--batch-size) to take minibatches from"
            )
        waiting, usual = self.num_batches_to_accumulate, LearnerConfig.num_batches_to_accumulate
        if self.async_rl is False and waiting != usual:
            raise ConfigError(
                f"--num-batches-to-accumulate {waiting}: with --no-async-rl (the default but for "
                "images on a GPU) no batch waits, because sampling and learning take turns; "
                "leave it out or add --async-rl"
            )


@dataclass(frozen=True)
class CriticsConfig(ReplayConfig):
    """What algorithms of continuous control have in common that learn critics from a replay."""

    updates_per_env_step: float = 1.0
    """Gradient steps per env step on average: faster actors or learners wait. It takes the place of
    --samples-per-insert, which counts transitions."""
    num_critics: int = 2
    """Number of critics; targets take the smallest of their values."""
    actor_interval: int = 1
    """The policy is updated in one of so many gradient steps (td3: its targets as well)."""
    learning_rate: float = 3e-4
    """Step size of Adam, of the policy and of the critics."""
    lr_schedule: Literal["constant", "linear", "cooldown"] = "constant"
    """linear: falls to zero at the stop condition; cooldown: in the last quarter before it."""
    adam_eps: float = 1e-8
    """Added to the denominator of Adam's step, above 0."""
    max_grad_norm: float = 0.0
    """Norm that the gradients of the policy and of the critics are clipped to (0: no clipping)."""
    noise_correlation: float = 0.0
    """Every fourth environment explores with noise of this correlation from step to step, 0 to 1
    (0: all noise is independent)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_critics actor_interval", low=1)
        check_range(self, "updates_per_env_step learning_rate adam_eps", low=0, above=True)
        check_range(self, "max_grad_norm", low=0)
        check_range(self, "noise_correlation", low=0, high=1)
        if self.samples_per_insert != "auto":
            raise ConfigError(
                f"{typed('samples_per_insert', self.samples_per_insert)}: here the replay ratio is "
                "given in gradient steps; use --updates-per-env-step"
            )

    @property
    def replay_ratio(self) -> float:
        assert self.batch_size is not None
        return self.updates_per_env_step * self.batch_size


@dataclass(frozen=True)
class TargetsConfig(CriticsConfig):
    """Critics whose targets are values of slowly changing copies of them."""

    target_rate: float = 0.005
    """Fraction of the way that the target networks move to theirs after a gradient step (tau),
    above 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "target_rate", low=0, high=1, above=True)
