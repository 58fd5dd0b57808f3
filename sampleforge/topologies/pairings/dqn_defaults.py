"""The defaults of Ape-X that depend on the environment and the core."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from sampleforge.algorithms.dqn.algorithm import DQN
from sampleforge.config import ConfigError
from sampleforge.replay.hindsight import hindsight_rollout
from sampleforge.spec import EnvSpec
from sampleforge.topologies.pairings.dqn_config import ApexConfig
from sampleforge.topologies.registry import REPLAY, Pairing
from sampleforge.topologies.replay.plan import ReplayPlan

_FOR_IMAGES: dict[str, Any] = {
    "batch_size": 512,
    "optimiser": "rmsprop",
    "learning_rate": 6.25e-5,
    "head_size": 512,
    "target_update_interval": 2500,
    "learning_starts": 50_000,
    "samples_per_insert": 1.0,
}
"""The settings of the paper (table 1 and appendix C)."""
_FOR_VECTORS: dict[str, Any] = {
    "batch_size": 256,
    "optimiser": "adam",
    "learning_rate": 5e-4,
    "head_size": 0,
    "target_update_interval": 100,
    "learning_starts": 1000,
    "samples_per_insert": 8.0,
}


_DENSE_LEARNING_RATE = 2e-3
"""Without convolutions and core. With 5e-4 Taxi has a return of -200 after 100,000 env steps, with
this between -65 and 7.8 (benchmarks/results/levers.md)."""
_WITHOUT_CORE: dict[str, Any] = {"n_step": 3, "gamma": 0.99, "value_rescaling": False}
_WITH_CORE: dict[str, Any] = {
    "batch_size": 64,
    "n_step": 5,
    "gamma": 0.997,
    "value_rescaling": True,
}
"""The settings of R2D2 (Kapturowski et al. 2019, table 2)."""
_WITH_CORE_FOR_IMAGES: dict[str, Any] = {
    "optimiser": "adam",
    "learning_rate": 1e-4,
    "priority_alpha": 0.9,
    "priority_beta": 0.6,
}
"""Settings of the same table, for images only."""
_PRIORITIES: dict[str, Any] = {"priority_alpha": 0.6, "priority_beta": 0.4}


def _optimiser_eps(optimiser: str, *, image: bool, core: bool) -> float:
    """Return the number that is added to the denominator of a step.

    RMSProp in the paper adds 1.5e-7 under the root, RMSProp in torch adds its eps outside of it:
    3.9e-4 is the root of 1.5e-7. For images Adam has 1.5e-4, as in Rainbow (Hessel et al. 2018),
    or, with a core, 1e-3, as in R2D2.
    """
    if not image:
        return 1e-6
    if optimiser == "rmsprop":
        return 3.9e-4
    return 1e-3 if core else 1.5e-4


def resolve_defaults(config: ApexConfig, spec: EnvSpec) -> ApexConfig:
    """Return ``config`` with its unset fields resolved for the observations and the core, and with
    a rollout of whole strides of sequences."""
    sequences = config.sequences
    image, core = config.model.has_pixels(spec.observations), sequences is not None
    defaults = _PRIORITIES | (_FOR_IMAGES if image else _FOR_VECTORS)
    defaults |= _WITH_CORE if core else _WITHOUT_CORE
    if image and core:
        defaults |= _WITH_CORE_FOR_IMAGES
    if not core and not config.model.has_convolved(spec.observations):
        defaults["learning_rate"] = _DENSE_LEARNING_RATE
    optimiser = defaults["optimiser"] if config.optimiser == "auto" else config.optimiser
    defaults["optimiser_eps"] = _optimiser_eps(optimiser, image=image, core=core)
    resolved = {n: v for n, v in defaults.items() if getattr(config, n) in (None, "auto")}
    if config.samples_per_insert is None:
        del resolved["samples_per_insert"]  # None is a setting of its own: no limit
    if "learning_starts" in resolved:
        resolved["learning_starts"] = min(
            config.replay_capacity or defaults["learning_starts"], defaults["learning_starts"]
        )
    resolved["epsilon_base"] = config.base_epsilon
    if config.reward_clip == "auto":
        rescaled = resolved.get("value_rescaling", config.value_rescaling)
        resolved["reward_clip"] = 1.0 if image and not rescaled else None
    if config.normalise_returns is None:
        clips = resolved.get("reward_clip", config.reward_clip) is not None
        resolved["normalise_returns"] = not clips and config.value_distribution != "c51"
    resolved["rollout"] = hindsight_rollout(config, config.rollout, spec)
    if sequences is not None:
        resolved["rollout"] = math.ceil(config.rollout / sequences.stride) * sequences.stride
    return dataclasses.replace(config, **resolved, **_atom_range(config, spec))


def _atom_range(config: ApexConfig, spec: EnvSpec) -> dict[str, Any]:
    """Return the first and the last atom of C51 as far as they were not given. Raises ConfigError
    if there is no default for these observations."""
    if config.value_distribution != "c51":
        return {}
    paper = {"v_min": -10.0, "v_max": 10.0}
    unset = {name: end for name, end in paper.items() if getattr(config, name) is None}
    if unset and not config.model.has_pixels(spec.observations):
        raise ConfigError(
            f"--value-distribution c51: {' and '.join(map(_flag, unset))} "
            f"{'is' if len(unset) == 1 else 'are'} missing, and the range of the returns of "
            f"{spec.env_id} is not known; give the lowest and the highest discounted return as "
            "--v-min and --v-max (at most r / (1 - gamma) for rewards up to r), or use "
            "--value-distribution quantile"
        )
    return unset


def reason(config: ApexConfig, plan: ReplayPlan, _spec: EnvSpec) -> str:
    """Return a line with the replay ratio and the learning rate; ``config`` is resolved."""
    ratio = "No limit of the replay ratio"
    if plan.ratio is not None:
        ratio = f"Replay ratio {plan.ratio:g} (tolerance {plan.tolerance:,.0f})"
    return f"{ratio}, learning rate {config.learning_rate:g}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


APEX = Pairing(DQN, REPLAY, resolve_defaults, reason)
