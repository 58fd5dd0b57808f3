"""The defaults of MARWIL that depend on the observations and the core."""

from __future__ import annotations

import dataclasses
from typing import Any

from sampleforge.algorithms.marwil.algorithm import MARWIL
from sampleforge.spec import EnvSpec
from sampleforge.topologies.pairings.marwil_config import MarwilConfig
from sampleforge.topologies.registry import STORED, Pairing
from sampleforge.topologies.stored.plan import StoredPlan

BATCH, BATCH_OF_IMAGES = 256, 512
"""Recorded env steps of a gradient step."""
SEQUENCE = 32
"""Env steps of a row that a recurrent core learns from."""


def resolve_defaults(config: MarwilConfig, spec: EnvSpec) -> MarwilConfig:
    """Return ``config`` with its unset fields resolved for the environment."""
    image, recurrent = config.model.has_pixels(spec.observations), config.model.core != "none"
    defaults: dict[str, Any] = {
        "batch_size": BATCH_OF_IMAGES if image else BATCH,
        "learning_rate": 3e-4 if image else 1e-3,
        "sequence_length": SEQUENCE if recurrent else None,
    }
    unset = {name: v for name, v in defaults.items() if getattr(config, name) is None}
    model = config.model
    if model.separate_critic is None:
        model = dataclasses.replace(model, separate_critic=not image and not recurrent)
    return dataclasses.replace(config, **unset, model=model)


def reason(config: MarwilConfig, plan: StoredPlan, _spec: EnvSpec) -> str:
    """Return a line with the chosen settings and the reason; ``config`` is resolved."""
    exponent = config.advantage_exponent
    kind = "Behaviour cloning" if exponent == 0 else f"Advantage weighting, exponent {exponent:g}"
    rows = "single steps" if plan.length == 1 else f"sequences of {plan.length} steps"
    return f"{kind}: {rows}, learning rate {config.learning_rate:g}"


MARWIL_ON_STORED = Pairing(MARWIL, STORED, resolve_defaults, reason)
