"""The probe of an environment, remembered."""

from __future__ import annotations

import json
from collections.abc import Callable

from sampleforge.env import probe
from sampleforge.env.config import EnvConfig
from sampleforge.spec import EnvSpec

STEADY = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MinAtar/Breakout", "PaddleDuel-v0")
"""Environments that no test changes."""
_by_probe = probe.probe
_specs: dict[str, EnvSpec] = {}


def remembered_probe(config: EnvConfig, *warn: Callable[[str], None]) -> EnvSpec:
    """Return what `probe` returns; in the same pytest process once only for each environment of
    `STEADY` with its settings. A probe is the start of an interpreter, half a second of a core."""
    if config.env not in STEADY:
        return _by_probe(config, *warn)
    key = json.dumps(probe._own_part(config), sort_keys=True, default=str)
    if key not in _specs:
        _specs[key] = _by_probe(config)
    return _specs[key]
