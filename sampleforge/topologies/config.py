"""Everything one run is made from, per topology. Each part is typed by its owner's dataclass, and
an object is given the whole under the type of its own part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sampleforge.algos.config import AppoLossConfig, DqnConfig, LearnerConfig
from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.models.config import CompilerConfig, ModelConfig
from sampleforge.replay.config import ReplayConfig
from sampleforge.rollouts.sequence_shape import SequenceShape
from sampleforge.runtime.config import RunConfig
from sampleforge.workers.config import EvaluatorConfig, RanksConfig, SamplerConfig


@dataclass(frozen=True)
class AppoConfig(
    CompilerConfig,
    AppoLossConfig,
    LearnerConfig,
    SamplerConfig,
    EvaluatorConfig,
    RunConfig,
    EnvConfig,
):
    """Asynchronous PPO: actors, policy workers and a learner exchange trajectory slots."""

    algo: ClassVar[str] = "appo"
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compile and self.serial:
            raise ConfigError(
                "serial is for debugging, but no debugger gets into what compile makes; leave out "
                "one of the two"
            )
        _check_schedules(self, linear_lr=self.lr_schedule == "linear", moving_beta=False)
        _check_evaluator(self, self.evaluate_interval)


@dataclass(frozen=True)
class ApexConfig(ReplayConfig, DqnConfig, SamplerConfig, EvaluatorConfig, RunConfig, EnvConfig):
    """Ape-X DQN: many actors write into a prioritised replay, a learner draws from it."""

    algo: ClassVar[str] = "apex"
    rollout: int = 50
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            hidden_sizes=(128, 128), activation="relu", normalise_observations=False
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        moving = self.priority_beta_final is not None
        _check_schedules(self, linear_lr=self.lr_schedule == "linear", moving_beta=moving)
        _check_evaluator(self, self.evaluate_interval)
        if self.model.core != "none" and self.value_distribution != "none":
            raise ConfigError(
                f"value_distribution is {self.value_distribution!r} and model.core "
                f"{self.model.core!r}, but distributions are learned from single transitions "
                "only; use 'none' for one of them"
            )
        self._check_sequences()

    @property
    def sequences(self) -> SequenceShape | None:
        """What is drawn for a recurrent core; None: single transitions."""
        if self.model.core == "none":
            return None
        stride = self.sequence_length - self.sequence_overlap
        return SequenceShape(self.sequence_length, stride, self.burn_in)

    def _check_sequences(self) -> None:
        length, overlap, burn_in = self.sequence_length, self.sequence_overlap, self.burn_in
        if self.model.core == "none":
            for name in ("sequence_length", "sequence_overlap", "burn_in"):
                if getattr(self, name) != getattr(ApexConfig, name):
                    raise ConfigError(
                        f"{name} is {getattr(self, name)}, but model.core is 'none', and single "
                        "transitions are drawn for it; leave it out, or use 'gru' or 'lstm'"
                    )
        elif overlap >= length:
            raise ConfigError(
                f"sequence_overlap is {overlap}, but a sequence has only {length} steps "
                "(sequence_length) and must begin later than the one before; lower it"
            )
        elif burn_in > overlap:
            raise ConfigError(
                f"burn_in is {burn_in}, but a sequence shares only {overlap} steps "
                f"(sequence_overlap) with the one before: the other {burn_in - overlap} would "
                "never be learned from; lower burn_in or raise sequence_overlap"
            )


@dataclass(frozen=True)
class DdppoConfig(
    AppoLossConfig,
    LearnerConfig,
    RanksConfig,
    SamplerConfig,
    EvaluatorConfig,
    RunConfig,
    EnvConfig,
):
    """Decentralised PPO: every rank samples and learns, and gradients are averaged. Numbers of envs
    and sizes of batches are those of one rank."""

    algo: ClassVar[str] = "ddppo"
    model: ModelConfig = field(default_factory=ModelConfig)
    # Other defaults than the parts':
    async_rl: bool = False
    worker_niceness: int = 0
    adam_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_schedules(self, linear_lr=self.lr_schedule == "linear", moving_beta=False)
        parts = AppoConfig(env=self.env)
        for name, reason in _NOT_OF_RANKS.items():
            value = getattr(self, name)
            if value != (False if name == "async_rl" else getattr(parts, name)):
                raise ConfigError(f"{name} is {value!r}, but with ddppo {reason}; leave it out")
        if self.inference == "worker":
            raise ConfigError(
                "inference is 'worker', but with ddppo a rank computes its actions; leave it out"
            )
        if self.serial and (self.num_ranks or 1) > 1:
            raise ConfigError(
                f"serial is one process, but num_ranks is {self.num_ranks}, and ranks wait for "
                "each other; use 1 rank, or leave out serial"
            )
        if self.serial and self.variable_experience:
            raise ConfigError(
                "serial is for runs that can be repeated, but with variable_experience the steps "
                "come in the order in which environments happen to be ready; leave out one of both"
            )


_NOT_OF_RANKS = {
    "num_workers": "each of the num_ranks ranks steps its own envs",
    "num_policy_workers": "a rank computes its own actions",
    "async_rl": "a rank learns from its own, newest rollouts",
    "num_batches_to_accumulate": "a rank learns from its own, newest rollouts",
    "max_worker_restarts": "ranks are replaced, max_rank_restarts times",
    "sampler_only": "sampling and learning take turns",
}
"""Flags of the parts that mean nothing to a rank."""


def _check_schedules(config: RunConfig, *, linear_lr: bool, moving_beta: bool) -> None:
    """Raise ConfigError if something shall move until the stop condition, and there is none."""
    if config.train_for_env_steps or config.train_for_seconds or config.benchmark:
        return
    if linear_lr:
        raise ConfigError(
            "lr_schedule is 'linear', which falls to zero at the stop condition, but there is "
            "none; give train_for_env_steps or train_for_seconds, or use 'constant'"
        )
    if moving_beta:
        raise ConfigError(
            "priority_beta_final is set, which priority_beta moves to until the stop condition, "
            "but there is none; give train_for_env_steps or train_for_seconds, or leave it out"
        )


def _check_evaluator(config: RunConfig, interval: int | None) -> None:
    """Raise ConfigError if there would never be other weights than the first to evaluate."""
    if interval is not None and config.sampler_only:
        raise ConfigError(
            f"evaluate_interval is {interval}, but with sampler_only nothing is learned that could "
            "be evaluated; leave out one of the two"
        )


PpoConfig = AppoConfig | DdppoConfig
AnyConfig = PpoConfig | ApexConfig
"""The config of one or another algorithm."""

ALGOS: dict[str, type[AnyConfig]] = {"appo": AppoConfig, "apex": ApexConfig, "ddppo": DdppoConfig}
"""Config class per algorithm's name."""
