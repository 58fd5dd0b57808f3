"""The defaults of PQN that depend on the environment."""

from __future__ import annotations

import dataclasses
from typing import Any

from sampleforge.algorithms.annealing import usual_lr_schedule
from sampleforge.algorithms.pqn.algorithm import PQN
from sampleforge.runtime.machine import this_machine
from sampleforge.spec import EnvSpec
from sampleforge.topologies.pairings.pqn_config import PqnConfig
from sampleforge.topologies.registry import SLOTS, Pairing
from sampleforge.topologies.sampler_plan import MIN_BATCH, most_workers, nearest_minibatch

VECTORS: dict[str, Any] = {
    "rows": 32,
    "rollout": 64,
    "num_epochs": 4,
    "learning_rate": 5e-4,
    "return_lambda": 0.95,
}
PLANES: dict[str, Any] = {
    "rows": 128,
    "rollout": 32,
    "num_epochs": 2,
    "learning_rate": 5e-4,
    "return_lambda": 0.65,
}
"""Settings for images and other planes: those of the paper (table of hyperparameters, MinAtar)."""
MINIBATCH = 128
"""Env steps of a minibatch."""
FALL, LONGEST_FALL = 100_000, 1_000_000
"""Env steps over which epsilon falls: without a limit of env steps, and at most."""


def resolve_defaults(config: PqnConfig, spec: EnvSpec) -> PqnConfig:
    """Return ``config`` with its unset fields resolved for the observations."""
    planes = config.model.has_convolved(spec.observations)
    chosen = dict(PLANES if planes else VECTORS)
    rows = max(1, chosen.pop("rows") // spec.num_agents)
    steps = config.train_for_env_steps
    chosen |= {
        "async_rl": config.sampler_only or config.variable_experience,
        "lr_schedule": usual_lr_schedule(config, "linear"),
        "epsilon_env_steps": FALL if steps is None else max(1, min(LONGEST_FALL, steps // 10)),
    }
    cores = 1 if config.serial else this_machine().cores
    workers = config.num_workers or most_workers(rows, cores)
    chosen |= {"num_workers": workers, "num_envs_per_worker": max(1, rows // workers)}
    unset = {name: value for name, value in chosen.items() if getattr(config, name) is None}
    model = config.model
    if model.layer_norm is None:
        model = dataclasses.replace(model, layer_norm=True)
    config = dataclasses.replace(config, **unset, model=model)
    if config.minibatch_size is None:
        config = dataclasses.replace(config, minibatch_size=_minibatch(config, spec.num_agents))
    return config


def _minibatch(config: PqnConfig, agents: int) -> int | None:
    """Return the minibatch size near `MINIBATCH` that divides the batch into equal parts."""
    rows, workers, rollout = config.num_envs_per_worker, config.num_workers, config.rollout
    assert rows is not None and workers is not None and rollout is not None
    each = rows * workers * rollout * agents
    batch = config.batch_size or each * -(-MIN_BATCH // each)
    unit = 1 if config.model.core == "none" else rollout
    return nearest_minibatch(batch, MINIBATCH, unit)


def reason(config: PqnConfig, _plan: object, spec: EnvSpec) -> str:
    """Return a line with the chosen settings and the reason; ``config`` is resolved."""
    kind = "planes" if config.model.has_convolved(spec.observations) else "vectors"
    return (
        f"Lambda-returns ({kind}, lambda {config.return_lambda:g}): {config.num_epochs} epochs, "
        f"minibatches of {config.minibatch_size}, learning rate {config.learning_rate:g}, epsilon "
        f"falls to {config.epsilon_last:g} in {config.epsilon_env_steps:,} env steps"
    )


PQN_ON_SLOTS = Pairing(PQN, SLOTS, resolve_defaults, reason)
