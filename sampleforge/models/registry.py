"""The creation of models, and the registration of users' own encoders."""

from __future__ import annotations

from collections.abc import Mapping

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import (
    register_encoder,
    resolve_encoder,
    with_import_string,
)
from sampleforge.spec import ActionSpec, ArraySpec

__all__ = ["make_model", "register_encoder", "resolve_encoder", "with_import_string"]


def make_model(
    config: ModelConfig,
    observations: Mapping[str, ArraySpec],
    actions: Mapping[str, ActionSpec],
) -> ActorCritic:
    """Return a new actor-critic with ``config``, on the CPU, initialised from torch's global random
    generator. Raises ConfigError if the config does not fit the spaces."""
    return ActorCritic(config, observations, actions)
