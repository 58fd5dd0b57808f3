"""Which topology an algorithm's name means: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.spec import EnvSpec
from sampleforge.topologies import apex_plan, parts
from sampleforge.topologies.apex import apex, network_maker
from sampleforge.topologies.appo import appo
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.ddppo import ddppo, plan_ddppo
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.plan import plan_appo
from sampleforge.topologies.ppo_defaults import resolve_defaults

NewModel = Callable[[], ActorCritic | QNetwork]


@dataclass(frozen=True)
class Topology:
    """``fit(config, spec)`` is the config with what it leaves open fitted to the environment,
    ``plan(config, spec, device)`` decides the numbers, ``wire(config, plan, spec, start, save,
    control)`` makes the graph, ``model_maker(config, spec, seed)`` what makes the acting model."""

    fit: Callable[[Any, EnvSpec], Any]
    plan: Callable[..., Any]
    wire: Callable[..., Graph]
    model_maker: Callable[[Any, EnvSpec, int], NewModel]


_TOPOLOGIES = {
    "appo": Topology(resolve_defaults, plan_appo, appo, parts.model_maker),
    "ddppo": Topology(resolve_defaults, plan_ddppo, ddppo, parts.model_maker),
    "apex": Topology(apex_plan.fit, apex_plan.plan_apex, apex, network_maker),
}


def topology(config: AnyConfig) -> Topology:
    return _TOPOLOGIES[config.algo]
