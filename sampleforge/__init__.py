"""SampleForge: reinforcement learning on one machine, as fast as the simulator allows.

::

    import sampleforge as sf

    result = sf.train(sf.AppoConfig(env="CartPole-v1", train_for_env_steps=200_000))
    policy = sf.load_policy(result.run_dir)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sampleforge.version import __version__ as __version__

if TYPE_CHECKING:
    from sampleforge.api import LoadedPolicy, Result, Trainer, load_policy, train
    from sampleforge.config import ConfigError
    from sampleforge.models.config import ModelConfig
    from sampleforge.run.callback import Callback, Message
    from sampleforge.run.session import Session
    from sampleforge.topologies.config import (
        ApexConfig,
        AppoConfig,
        CrossqConfig,
        DdppoConfig,
        MarwilConfig,
        PqnConfig,
        SacConfig,
        Td3Config,
    )
    from sampleforge.workers.hooks import EpisodeHandle, LearnerUpdate, RolloutView

# Imported when first used: the command line must answer --help without torch.
_HOMES = {
    "ApexConfig": "sampleforge.topologies.config",
    "AppoConfig": "sampleforge.topologies.config",
    "Callback": "sampleforge.run.callback",
    "ConfigError": "sampleforge.config",
    "CrossqConfig": "sampleforge.topologies.config",
    "DdppoConfig": "sampleforge.topologies.config",
    "EpisodeHandle": "sampleforge.workers.hooks",
    "LearnerUpdate": "sampleforge.workers.hooks",
    "LoadedPolicy": "sampleforge.api",
    "MarwilConfig": "sampleforge.topologies.config",
    "PqnConfig": "sampleforge.topologies.config",
    "SacConfig": "sampleforge.topologies.config",
    "Message": "sampleforge.run.callback",
    "ModelConfig": "sampleforge.models.config",
    "Result": "sampleforge.api",
    "RolloutView": "sampleforge.workers.hooks",
    "Session": "sampleforge.run.session",
    "Td3Config": "sampleforge.topologies.config",
    "Trainer": "sampleforge.api",
    "load_policy": "sampleforge.api",
    "train": "sampleforge.api",
}

__all__ = [
    "ApexConfig",
    "AppoConfig",
    "Callback",
    "ConfigError",
    "CrossqConfig",
    "DdppoConfig",
    "EpisodeHandle",
    "LearnerUpdate",
    "LoadedPolicy",
    "MarwilConfig",
    "Message",
    "ModelConfig",
    "PqnConfig",
    "Result",
    "RolloutView",
    "SacConfig",
    "Session",
    "Td3Config",
    "Trainer",
    "load_policy",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
        if name.endswith("Config"):
            from sampleforge.config import SettingsDoc

            return SettingsDoc.of(found)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
