"""The configuration of learning: optimiser and batch (LearnerConfig), the loss of APPO
(AppoLossConfig), Q-learning (DqnConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range
from sampleforge.models.config import QHeadsConfig


@dataclass(frozen=True)
class LearnerConfig(Checked):
    batch_size: int | None = None
    """Env steps per learner batch (default: one rollout of every row, at least 1024)."""
    minibatch_size: int | None = None
    """Env steps per gradient step (default: about 256; with --async-rl the whole batch)."""
    num_epochs: int | None = None
    """Passes over each batch (default: 10, with images 3, with planes that are not pixels 4; with
    --async-rl 1)."""
    gamma: float = 0.99
    """Discount per env step."""
    learning_rate: float | None = None
    """Step size of Adam (default: 5e-4, with planes that are not pixels 1e-3; with --async-rl
    3e-4)."""
    lr_schedule: Literal["constant", "linear", "kl_adaptive"] = "constant"
    """linear: to zero at the stop condition; kl_adaptive: keeps the KL near --lr-target-kl."""
    lr_target_kl: float = 0.008
    """Target of the kl_adaptive schedule: the KL between the policies before and after the update
    of a batch."""
    adam_eps: float = 1e-5
    """Added to the denominator of Adam's step."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's two running averages, each at least 0 and less than 1."""
    max_grad_norm: float = 0.5
    """Gradients are clipped to this norm (0: never)."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this for learning; reported returns are not."""
    reward_clip: float | None = None
    """Scaled rewards are clipped to +- this for learning; reported returns are not."""
    normalise_returns: bool = True
    """Learn values of returns divided by their running standard deviation, so that rewards may be
    of any size. It is measured from the first reward that is not zero."""
    max_policy_lag: int | None = None
    """Experience more than this many policy versions old is masked out of the loss, and counted
    (default: 100, or twice the lag to be expected of the settings, if that is more)."""
    async_rl: bool | None = None
    """Sample while the learner trains. Off: they take turns, and every batch is on-policy (default:
    on with images, else off)."""
    num_batches_to_accumulate: int = 2
    """Batches that may wait for the learner before sampling stops (back-pressure; async only)."""
    learner_threads: int | None = None
    """Threads of the learner on a CPU (default: one, or all cores with --no-async-rl)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "batch_size minibatch_size num_epochs learner_threads", low=1)
        check_range(self, "num_batches_to_accumulate", low=1)
        check_range(self, "gamma", low=0, high=1)
        check_range(self, "learning_rate lr_target_kl adam_eps", low=0, above=True)
        check_range(self, "reward_scale reward_clip", low=0, above=True)
        check_range(self, "max_grad_norm max_policy_lag", low=0)
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ConfigError(
                f"adam_betas is {self.adam_betas}, but both must be at least 0 and less than 1"
            )
        if self.batch_size and self.minibatch_size and self.minibatch_size > self.batch_size:
            raise ConfigError(
                f"minibatch_size is {self.minibatch_size}, but a batch has only {self.batch_size} "
                "env steps to take minibatches from; lower minibatch_size or raise batch_size"
            )


@dataclass(frozen=True)
class AppoLossConfig(Checked):
    advantage: Literal["vtrace", "gae"] | None = None
    """vtrace: off-policy corrected, recomputed per minibatch; gae: once per batch, from the values
    at sampling (default: gae; with --async-rl vtrace)."""
    vtrace_rho: float = 1.0
    """Upper bound of V-trace's importance weights rho, above 0."""
    vtrace_c: float = 1.0
    """Upper bound of V-trace's trace coefficients c, above 0."""
    gae_lambda: float = 0.95
    """Trace decay of GAE, and of V-trace's trace coefficients (1: the paper's V-trace)."""
    normalise_advantages: bool = True
    """Subtract the mean from the advantages of a minibatch, and divide by the standard
    deviation."""
    advantage_floor: float = 0.1
    """Advantages are divided by their standard deviation, but at least by this fraction of that of
    the returns. In a solved task advantages are noise, which would otherwise be scaled up (with
    --normalise-returns; 0: no lower bound)."""
    clip_ratio: float = 0.2
    """The ratio to the behaviour policy is clipped to [1/(1+e), 1+e]."""
    value_clip: float | None = None
    """Largest move of value predictions away from those at sampling within one batch (default: no
    limit)."""
    value_coeff: float = 0.5
    """Weight of the value loss, at least 0."""
    exploration: Literal["entropy", "symmetric_kl"] = "entropy"
    exploration_coeff: float | None = None
    """Weight of the entropy bonus, or of the symmetric KL to the uniform policy (default: .003,
    with Box actions 0, with images and --no-async-rl .01)."""
    noise_correlation: float = 0.7
    """Box actions: correlation of the noise of successive steps, in every fourth env row (0: all
    noise is independent)."""
    kl_coeff: float = 0.0
    """Weight of a penalty on KL(behaviour, policy)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "vtrace_rho vtrace_c clip_ratio value_clip", low=0, above=True)
        check_range(self, "gae_lambda noise_correlation", low=0, high=1)
        check_range(self, "value_coeff exploration_coeff kl_coeff advantage_floor", low=0)


@dataclass(frozen=True)
class DqnConfig(QHeadsConfig):
    """Q-learning, with or without a recurrent core. The defaults of options that are None depend on
    the observations; see `sampleforge.topologies.apex`."""

    batch_size: int | None = None
    """Transitions per gradient step (default: 512 for images, else 256); with a recurrent core
    sequences (default: 64)."""
    gamma: float | None = None
    """Discount per env step (default: .99, with a recurrent core .997)."""
    n_step: int | None = None
    """Rewards summed before the target bootstraps, fewer at the end of an episode, rollout or
    sequence (default: 3, with a recurrent core 5)."""
    burn_in: int = 40
    """Number of first steps of each sequence that only update the recurrent state and are not
    learned from."""
    double: bool = True
    """Double Q-learning: the online network chooses the action that the target network values."""
    dueling: bool = True
    """Separate heads for the state's value and the actions' advantages."""
    head_size: int | None = None
    """Width of a hidden layer in each head (0: no layer; default: 512 for images, else 0)."""
    huber_delta: float = 1.0
    """TD errors beyond this count linearly (0: all count squared)."""
    value_rescaling: bool | None = None
    """Learn squashed values h(Q) instead of clipping rewards (default: with a recurrent core)."""
    optimiser: Literal["auto", "adam", "rmsprop"] = "auto"
    """rmsprop: centred, as in the paper (auto: rmsprop for images without a core, else adam)."""
    learning_rate: float | None = None
    """Step size of the optimiser (default: the paper's 6.25e-5 for images, with a recurrent core
    1e-4; else 5e-4)."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: to zero at the stop condition."""
    optimiser_eps: float | None = None
    """Added to the denominator of the step (default: for images 3.9e-4 with rmsprop, 1.5e-4 with
    adam, 1e-3 with a recurrent core; else 1e-6)."""
    rmsprop_decay: float = 0.95
    """Decay rate of rmsprop's running averages, 0 to 1."""
    max_grad_norm: float = 40.0
    """Gradients are clipped to this norm (0: never)."""
    target_update_interval: int | None = None
    """Learner steps between copies of the network to the target network (default: 2500 for images,
    else 100)."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this for learning; reported returns are not."""
    reward_clip: Literal["auto"] | float | None = "auto"
    """Scaled rewards are clipped to +- this for learning; reported returns are not (auto: 1 for
    images unless values are rescaled, else none)."""
    normalise_returns: bool | None = None
    """Learn returns of rewards divided by the running root mean square of nonzero rewards, so that
    rewards may be of any size (default: on, except with clipped rewards and with c51, whose support
    is in the rewards' own unit)."""
    epsilon_base: float | None = None
    """Epsilon of env row i of N is epsilon_base ** (1 + epsilon_exponent * i / (N - 1)) (default:
    0.4, or 0 with noisy nets, which explore by themselves)."""
    epsilon_exponent: float = 7.0
    """Exponent in the epsilon of each env row, at least 0: see --epsilon-base."""
    weights_refresh_interval: int = 400
    """Env steps of an actor between its checks for newer weights."""
    learner_threads: int | None = None
    """Threads of the learner on a CPU (default: one)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "batch_size target_update_interval learner_threads", low=1)
        check_range(self, "n_step", low=1, high=255)
        check_range(self, "burn_in", low=0)
        check_range(self, "gamma epsilon_base", low=0, high=1)
        check_range(self, "rmsprop_decay", low=0, high=1)
        check_range(self, "head_size huber_delta max_grad_norm", low=0)
        check_range(self, "epsilon_exponent weights_refresh_interval", low=0)
        check_range(self, "learning_rate optimiser_eps reward_scale", low=0, above=True)
        if self.reward_clip != "auto":
            check_range(self, "reward_clip", low=0, above=True)
        if self.normalise_returns and self.value_distribution == "c51":
            raise ConfigError(
                "normalise_returns divides rewards by their typical size, but with "
                "value_distribution 'c51' returns lie between v_min and v_max, which are in the "
                "rewards' own unit; leave it out, or use 'quantile'"
            )

    @property
    def base_epsilon(self) -> float:
        """``epsilon_base``, or its default."""
        if self.epsilon_base is not None:
            return self.epsilon_base
        return 0.0 if self.noisy_nets else 0.4
