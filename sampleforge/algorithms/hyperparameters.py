"""Hyperparameters that may change during the training: plain values in the learner's state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

Config = TypeVar("Config", bound="Any")

LEARNER_HYPERPARAMETERS = (
    "learning_rate",
    "lr_target_kl",
    "gamma",
    "max_grad_norm",
    "reward_scale",
)
APPO_LOSS_HYPERPARAMETERS = (
    "clip_ratio",
    "value_clip",
    "value_coeff",
    "exploration_coeff",
    "kl_coeff",
    "gae_lambda",
    "vtrace_rho",
    "vtrace_c",
)
DQN_HYPERPARAMETERS = ("learning_rate", "max_grad_norm", "reward_scale", "huber_delta")
"""The discount is not among them, because the n-step returns of stored experience depend on it."""
MARWIL_HYPERPARAMETERS = (
    "learning_rate",
    "max_grad_norm",
    "advantage_exponent",
    "max_advantage_weight",
    "value_coeff",
)
"""The discount is not among them, because the returns of the data are computed once."""


def values(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the current values of these hyperparameters, by name."""
    return {name: getattr(config, name) for name in names}


def changed(config: Config, names: tuple[str, ...], new: Mapping[str, Any]) -> Config:
    """Return the config with the ``new`` values of the fields ``names``. Raises ConfigError for a
    value that is out of range."""
    changes: Config = dataclasses.replace(config, **{n: v for n, v in new.items() if n in names})
    return changes


def check_names(known: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise ValueError if ``new`` names a hyperparameter that cannot change during the training."""
    unknown = sorted(set(new) - set(known))
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} cannot change during the training; hyperparameters that can: "
            f"{', '.join(sorted(known))}"
        )
