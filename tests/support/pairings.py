"""Networks and plans of the algorithm that a config names."""

from __future__ import annotations

from typing import Any

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import NetworkMaker, seeded
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.registry import pairing


def network_maker(config: Any, spec: EnvSpec, seed: int) -> NetworkMaker:
    """Return what makes the network with its initial weights."""
    return pairing(config).network_maker(config, spec, seed)


def plan_of(config: Any, spec: EnvSpec, device: str = "cpu") -> Any:
    """Return the sizes of a run; ``config`` has resolved defaults."""
    return pairing(config).plan(config, spec, device)


def wire_of(config: Any, plan: Any, spec: EnvSpec, *args: Any, **options: Any) -> Graph:
    """Return the graph of a run."""
    return pairing(config).wire(config, plan, spec, *args, **options)


def seeded_model(config: ModelConfig, spec: EnvSpec, seed: int) -> ActorCritic:
    """Return an actor-critic with its initial weights, the same for the same seed."""
    with seeded(seed):
        return ActorCritic(config, spec.observations, spec.actions)
