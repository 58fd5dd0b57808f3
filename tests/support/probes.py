"""The probe of an environment, remembered."""

from __future__ import annotations

import json
from collections.abc import Callable

from sampleforge.env import probe
from sampleforge.env.config import EnvConfig
from sampleforge.spec import EnvSpec

STEADY = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MinAtar/Breakout", "PaddleDuel-v0")
"""Environments that no test changes; nor those of the tests' own modules."""
_by_probe = probe.probe
_specs: dict[str, EnvSpec] = {}


def remembered_probe(config: EnvConfig, warn: Callable[[str], None] = probe.log.warning) -> EnvSpec:
    """Return what `probe` returns; in the same pytest process once only for each steady environment
    with its settings, if there was nothing to warn of. A probe is the start of an interpreter: half
    a second of a core, two if the environment's module imports torch."""
    if config.env not in STEADY and not config.env.startswith("tests."):
        return _by_probe(config, warn)
    key = json.dumps(probe._own_part(config), sort_keys=True, default=str)
    if key not in _specs:
        warnings = list[str]()
        spec = _by_probe(config, warnings.append)
        for warning in warnings:
            warn(warning)
        if warnings:
            return spec
        _specs[key] = spec
    return _specs[key]
