"""The configuration of learning: optimiser and batch (LearnerConfig), the loss of APPO
(AppoLossConfig), Q-learning (DqnConfig), learning from recorded actions (ImitationConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range, typed
from sampleforge.models.config import QHeadsConfig
from sampleforge.offline.config import StoredConfig
from sampleforge.replay.config import ReplayConfig


@dataclass(frozen=True)
class LearnerConfig(Checked):
    batch_size: int | None = None
    """Env steps per learner batch (default: 2048 over all ranks; with --async-rl one rollout of
    the default number of environments, at least 1024; the same on any number of cores)."""
    minibatch_size: int | None = None
    """Env steps per gradient step (default: about 256; with --async-rl the whole batch)."""
    num_epochs: int | None = None
    """Passes over each batch (default: 10, for images 3, for grids that are not pixels 4; with
    --async-rl 1)."""
    gamma: float = 0.99
    """Discount per env step, 0 to 1."""
    learning_rate: float | None = None
    """Step size of Adam (default: 5e-4, for grids that are not pixels 1e-3; with --async-rl
    3e-4)."""
    lr_schedule: Literal["constant", "linear", "kl_adaptive"] | None = None
    """linear: falls to zero at the stop condition; kl_adaptive: holds the KL near
    --lr-target-kl (default: constant; with pqn linear, if there is a stop condition)."""
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
    """Learn returns divided by their running standard deviation, so that rewards of any size
    fit."""
    max_policy_lag: int | None = None
    """Experience that is more policy versions (gradient steps) old is not learned from (default:
    100, or twice the expected lag if that is more)."""
    async_rl: bool | None = None
    """Sampling continues while the learner trains; off: they take turns, and batches are on-policy
    (default: on for images, else off)."""
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
        check_range(self, "reward_scale", low=0, above=True)
        if self.reward_clip != "sign":
            check_range(self, "reward_clip", low=0, above=True)
        check_range(self, "max_grad_norm max_policy_lag", low=0)
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
                f"--num-batches-to-accumulate {waiting}: with --no-async-rl (the default without "
                "images) no batch waits, because sampling and learning take turns; leave it out "
                "or add --async-rl"
            )


@dataclass(frozen=True)
class AppoLossConfig(Checked):
    advantage: Literal["vtrace", "gae"] | None = None
    """vtrace: off-policy corrected, recomputed per minibatch; gae: once per batch, from the values
    at sampling (default: gae; with --async-rl vtrace)."""
    vtrace_rho: float = 1.0
    """V-trace: upper limit of the importance weight of each TD error, above 0."""
    vtrace_c: float = 1.0
    """V-trace: upper limit of the importance weight that carries later TD errors back, above 0."""
    gae_lambda: float = 0.95
    """Trace decay of GAE and of V-trace's traces, 0 to 1 (1: V-trace as in its paper)."""
    normalise_advantages: bool = True
    """Subtract the mean of a minibatch's advantages and divide by their standard deviation."""
    advantage_floor: float = 0.1
    """With --normalise-returns: advantages are divided by no less than this fraction of the
    standard deviation of the returns, so that the noise of a solved task is not magnified (0: no
    limit)."""
    clip_ratio: float = 0.2
    """Clip the probability ratio to the behaviour policy to [1/(1+e), 1+e], e above 0."""
    value_clip: float | None = None
    """Distance that value predictions may move from those at sampling within a batch, in units of
    the normalised returns (default: no limit)."""
    value_coeff: float = 0.5
    """Weight of the value loss, at least 0."""
    exploration: Literal["entropy", "symmetric_kl"] = "entropy"
    """Bonus that keeps the policy random: its entropy, or the symmetric KL to the uniform
    policy."""
    exploration_coeff: float | None = None
    """Weight of that bonus, at least 0 (default: 0.003; with --no-async-rl 0 for Box actions, 0.01
    for images)."""
    exploration_schedule: Literal["constant", "linear"] = "constant"
    """linear: the weight of the bonus falls to zero at the stop condition."""
    noise_correlation: float = 0.7
    """Box actions: every fourth environment explores with noise of this correlation from step to
    step, 0 to 1 (0: all noise is independent)."""
    kl_coeff: float = 0.0
    """Weight of a penalty on KL(behaviour, policy), at least 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "vtrace_rho vtrace_c clip_ratio value_clip", low=0, above=True)
        check_range(self, "gae_lambda noise_correlation", low=0, high=1)
        check_range(self, "value_coeff exploration_coeff kl_coeff advantage_floor", low=0)


@dataclass(frozen=True)
class DqnConfig(QHeadsConfig, ReplayConfig):
    """Q-learning, with or without a recurrent core. The defaults of options that are None depend on
    the observations; see `sampleforge.topologies.replay`."""

    gamma: float | None = None
    """Discount per env step, 0 to 1 (default: 0.99, with a recurrent core 0.997)."""
    n_step: int | None = None
    """Rewards summed before the target bootstraps, fewer at the end of an episode, rollout or
    sequence (default: 3, with a recurrent core 5)."""
    double: bool = True
    """Double Q-learning: the online network chooses the action that the target network values."""
    dueling: bool = True
    """Separate heads for the state's value and the actions' advantages."""
    head_size: int | None = None
    """Width of a hidden layer in each head, 0 for no such layer (default: 512 for images, else
    0)."""
    huber_delta: float = 1.0
    """TD errors beyond this value count linearly (0: all count squared)."""
    value_rescaling: bool | None = None
    """Learn squashed values h(Q) instead of clipping rewards (default: with a recurrent core)."""
    optimiser: Literal["auto", "adam", "rmsprop"] = "auto"
    """rmsprop: centred, as in the paper (auto: rmsprop for images without a core, else adam)."""
    learning_rate: float | None = None
    """Step size of the optimiser (default: 6.25e-5 for images, with a recurrent core 1e-4; else
    5e-4)."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: falls to zero at the stop condition."""
    optimiser_eps: float | None = None
    """Added to the denominator of the step (default: for images 3.9e-4 with rmsprop, 1.5e-4 with
    adam, 1e-3 with a recurrent core; else 1e-6)."""
    rmsprop_decay: float = 0.95
    """Decay rate of RMSProp's average of squared gradients, 0 to 1."""
    max_grad_norm: float = 40.0
    """Norm that gradients are clipped to (0: no clipping)."""
    target_update_interval: int | None = None
    """Gradient steps between copies of the network to the target network (default: 2500 for images,
    else 100)."""
    normalise_returns: bool | None = None
    """Learn returns of rewards divided by their running root mean square, so that rewards of any
    size fit (default: yes, except for clipped rewards and for c51)."""
    epsilon_base: float | None = None
    """Environment i of N explores with epsilon = base ** (1 + exponent * i / (N - 1)), 0 to 1
    (default: 0.4, or 0 with --noisy-nets)."""
    epsilon_exponent: float = 7.0
    """The exponent in that formula, at least 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "target_update_interval", low=1)
        check_range(self, "n_step", low=1, high=255)
        check_range(self, "gamma epsilon_base", low=0, high=1)
        check_range(self, "rmsprop_decay", low=0, high=1)
        check_range(self, "head_size huber_delta max_grad_norm", low=0)
        check_range(self, "epsilon_exponent", low=0)
        check_range(self, "learning_rate optimiser_eps", low=0, above=True)
        if self.normalise_returns and self.value_distribution == "c51":
            raise ConfigError(
                "--normalise-returns --value-distribution c51: returns of c51 lie between --v-min "
                "and --v-max in the rewards' own unit, and cannot be normalised; leave out "
                "--normalise-returns, or use --value-distribution quantile"
            )

    @property
    def base_epsilon(self) -> float:
        """``epsilon_base``, or its default."""
        if self.epsilon_base is not None:
            return self.epsilon_base
        return 0.0 if self.noisy_nets else 0.4


@dataclass(frozen=True)
class ImitationConfig(StoredConfig):
    """Behaviour cloning and advantage-weighted learning from recorded data. The defaults of options
    that are None depend on the observations; see `sampleforge.topologies.stored`."""

    advantage_exponent: float = 1.0
    """Weight each recorded action by exp(this * A / c), A being its advantage and c the moving norm
    of the advantages; 0 is behaviour cloning, in which all actions count alike."""
    max_advantage_weight: float = 20.0
    """Largest weight of an action, at least 1."""
    advantage_norm_decay: float = 0.99
    """Decay rate of the moving average of squared advantages per gradient step, 0 to 1."""
    value_coeff: float = 0.5
    """Weight of the value loss, at least 0. Behaviour cloning learns no value function."""
    learning_rate: float | None = None
    """Step size of Adam (default: 3e-4 for images, else 1e-3)."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: falls to zero at the stop condition."""
    adam_eps: float = 1e-5
    """Added to the denominator of Adam's step, above 0."""
    max_grad_norm: float = 10.0
    """Norm that gradients are clipped to (0: no clipping)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "max_advantage_weight", low=1)
        check_range(self, "advantage_norm_decay", low=0, high=1)
        check_range(self, "advantage_exponent value_coeff max_grad_norm", low=0)
        check_range(self, "learning_rate adam_eps", low=0, above=True)
