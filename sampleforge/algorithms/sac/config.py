"""The settings of soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import ConfigError, check_range, typed
from sampleforge.replay.config import ReplayConfig


@dataclass(frozen=True)
class SacLossConfig(ReplayConfig):
    """Soft actor-critic: a squashed Gaussian policy, and several critics."""

    updates_per_env_step: float = 1.0
    """Gradient steps per env step on average: faster actors or learners wait. It takes the place of
    --samples-per-insert, which counts transitions."""
    num_critics: int = 2
    """Number of critics; targets and the policy's loss take the smallest of their values."""
    target_rate: float = 0.005
    """Fraction of the way that the target critics move to the critics after each gradient step
    (tau), above 0 to 1."""
    actor_interval: int = 1
    """The policy and the temperature are updated in one of so many gradient steps."""
    initial_temperature: float = 1.0
    """The weight of the entropy that learning begins with."""
    target_entropy: float | None = None
    """Entropy in nats at which the temperature holds the policy, of actions in units of their
    bounds, -1 to 1 (default: minus the number of action elements)."""
    learning_rate: float = 3e-4
    """Step size of Adam, of the policy, the critics and the temperature."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: falls to zero at the stop condition."""
    adam_eps: float = 1e-8
    """Added to the denominator of Adam's step, above 0."""
    max_grad_norm: float = 0.0
    """Norm that the gradients of the policy and of the critics are clipped to (0: no clipping)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_critics actor_interval", low=1)
        check_range(self, "target_rate", low=0, high=1, above=True)
        check_range(self, "updates_per_env_step learning_rate adam_eps", low=0, above=True)
        check_range(self, "initial_temperature", low=0, above=True)
        check_range(self, "max_grad_norm", low=0)
        check_range(self, "target_entropy")
        if self.samples_per_insert not in ("auto", self.samples_of_updates):
            raise ConfigError(
                f"{typed('samples_per_insert', self.samples_per_insert)}: the replay ratio of sac "
                "is given in gradient steps; use --updates-per-env-step"
            )

    @property
    def samples_of_updates(self) -> float | None:
        """The ``samples_per_insert`` that ``updates_per_env_step`` stands for; None before the
        defaults are resolved."""
        return None if self.batch_size is None else self.updates_per_env_step * self.batch_size
