"""The defaults of SAC, CrossQ and TD3 that depend on the environment."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeVar

from sampleforge.algorithms.critics_passes import are_dense
from sampleforge.algorithms.sac.algorithm import CROSSQ, SAC
from sampleforge.algorithms.sac.config import SoftConfig
from sampleforge.algorithms.td3.algorithm import TD3
from sampleforge.config import ConfigError, typed
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics, check_bounded_boxes
from sampleforge.models.encoders import to_be_loaded
from sampleforge.models.parts import has_actor
from sampleforge.replay.hindsight import hindsight_rollout
from sampleforge.runtime.torch_settings import usual_torch
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import seeded
from sampleforge.topologies.pairings.critics_config import CriticsRunConfig
from sampleforge.topologies.registry import REPLAY, Pairing
from sampleforge.topologies.replay.plan import ReplayPlan

Config = TypeVar("Config", bound=CriticsRunConfig)
_DEFAULTS: dict[str, Any] = {
    "batch_size": 256,
    "learning_starts": 5000,
    "gamma": 0.99,
    "n_step": 1,
    "priority_alpha": 0.0,
    "priority_beta": 0.4,
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "num_splits": 1,
    "reward_clip": None,
}
"""The same on any machine: gradient steps per env step do not depend on the number of cores, and
one actor is faster than the learner of any of them."""
_OF_MODEL: dict[str, Any] = {
    "hidden_sizes": (256, 256),
    "activation": "relu",
    "normalise_observations": False,
    "layer_norm": False,
}


def resolve_defaults(config: Config, spec: EnvSpec) -> Config:
    """Return ``config`` with its unset fields resolved. Raises ConfigError if the actions are not
    bounded Box actions."""
    check_bounded_boxes(config.algo, spec.actions)
    unset = {n: v for n, v in _DEFAULTS.items() if getattr(config, n) in (None, "auto")}
    if config.variable_experience:  # each row is a split of its own
        unset.pop("num_splits", None)
    if "num_envs_per_worker" in unset:
        unset["num_envs_per_worker"] = max(1, unset["num_envs_per_worker"] // spec.num_agents)
    if "learning_starts" in unset:
        unset["learning_starts"] = min(
            config.replay_capacity or unset["learning_starts"], unset["learning_starts"]
        )
    if isinstance(config, SoftConfig) and config.target_entropy is None:
        unset["target_entropy"] = _target_entropy(spec)
    model = config.model
    missing = {n: v for n, v in _OF_MODEL.items() if getattr(model, n) in (None, "auto")}
    # Squashed actions are part of the algorithm, and SAC's spread depends on the state.
    std: Literal["state", "learned"] = "state" if isinstance(config, SoftConfig) else "learned"
    model = dataclasses.replace(model, **missing, squash_actions=True, action_std=std)
    config = dataclasses.replace(config, **unset, model=model)
    if config.compile:
        _check_passes(config, spec)
    rollout = hindsight_rollout(config, config.rollout, spec)
    return dataclasses.replace(config, rollout=rollout)


def _target_entropy(spec: EnvSpec) -> float:
    """Return minus the number of action elements, SAC's rule for actions in -1 to 1. An element
    whose bounds are equal moves nothing: it may be uniform, with an entropy of log 2, so that the
    others keep theirs."""
    bounds = [
        pair
        for action in spec.actions.values()
        for pair in zip(action.env_low or action.low, action.env_high or action.high, strict=True)
    ]
    return sum(-1.0 if low < high else math.log(2.0) for low, high in bounds)


def _check_passes(config: CriticsRunConfig, spec: EnvSpec) -> None:
    """Raise ConfigError if the passes of a learner of any agents are not those by hand, which alone
    are compiled."""
    if config.freeze and config.unfreeze_after is None:
        raise ConfigError(
            f"{typed('freeze', config.freeze)} --compile: sac, crossq and td3 compile the passes "
            "of networks that are trained as a whole; leave out one of the two"
        )
    for group in spec.agent_groups:
        network, sizes = config.model, (group.observations, group.actions)
        with seeded(0), usual_torch(), to_be_loaded():
            policy = ActorCritic(network, *sizes, has_values=False)
            dense = are_dense(policy, Critics(network, *sizes, config.num_critics))
        usual = "bf16" if network.has_pixels(group.observations) else "fp32"  # on some devices
        precision = usual if config.precision == "auto" else config.precision
        if precision == "bf16" or not dense:
            raise ConfigError(
                "--compile: sac, crossq and td3 compile the passes of MLPs of a vector, of tanh, "
                "relu or elu layers in fp32, and --precision, or the encoder, activation or layer "
                "norm of --model, asks for others; leave out --compile"
            )


def reason(config: CriticsRunConfig, plan: ReplayPlan, _spec: EnvSpec) -> str:
    """Return a line with the updates per env step and how the run begins; ``config`` is
    resolved."""
    more = ""
    if isinstance(config, SoftConfig):
        more = f", entropy held at {config.target_entropy:g}"
        if not config.learn_temperature:
            more = f", temperature {config.initial_temperature:g}"
    trained = config.init_from is not None and has_actor(config.init_parts)
    actions = "actions of the policy of --init-from" if trained else "uniform actions"
    begins = f"{actions} in the first {plan.learning_starts:,} env steps"
    if not config.is_live:
        begins = f"the first after {plan.learning_starts:,} env steps of the data"
    return (
        f"{config.updates_per_env_step:g} update(s) of {config.batch_size} transitions per env "
        f"step, {begins}, learning rate {config.learning_rate:g}{more}"
    )


SAC_ON_REPLAY = Pairing(SAC, REPLAY, resolve_defaults, reason)
CROSSQ_ON_REPLAY = Pairing(CROSSQ, REPLAY, resolve_defaults, reason)
TD3_ON_REPLAY = Pairing(TD3, REPLAY, resolve_defaults, reason)
