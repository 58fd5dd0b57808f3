"""The registry of topologies: the functions of each algorithm, by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.spec import EnvSpec
from sampleforge.topologies.apex import plan as apex_plan
from sampleforge.topologies.apex.wire import apex, network_maker
from sampleforge.topologies.appo.plan import plan_appo
from sampleforge.topologies.appo.wire import appo
from sampleforge.topologies.builders import model_maker
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.ddppo.plan import plan_ddppo
from sampleforge.topologies.ddppo.wire import ddppo
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.marwil import plan as marwil_plan
from sampleforge.topologies.marwil.wire import marwil
from sampleforge.topologies.marwil.wire import model_maker as marwil_model_maker
from sampleforge.topologies.ppo_defaults import reason, resolve_defaults
from sampleforge.topologies.sampler_plan import Plan

NewModel = Callable[[], ActorCritic | QNetwork]
AnyPlan = Plan | apex_plan.ApexPlan | marwil_plan.MarwilPlan
"""The sizes of a run of any algorithm."""


@dataclass(frozen=True)
class Topology:
    """The functions of one algorithm.

    ``resolve_defaults(config, spec)`` resolves the unset fields of the config;
    ``plan(config, spec, device)`` chooses the sizes; ``wire(config, plan, spec, start, policies)``
    builds the graph, with a policy group for each `PolicyStart` of ``policies`` (where there can be
    several, it also takes ``frozen``, `FrozenStart` of the policies that are not trained, and
    ``others``, the agent groups beside the first one);
    ``model_maker(config, spec, seed)`` returns the function that makes the model;
    ``reason(config, plan, spec)`` says in a line which settings were chosen, and why. ``sampler``:
    the kind of worker that steps environments (None: it learns from recorded data).
    """

    resolve_defaults: Callable[[Any, EnvSpec], Any]
    plan: Callable[..., Any]
    wire: Callable[..., Graph]
    model_maker: Callable[[Any, EnvSpec, int], NewModel]
    reason: Callable[[Any, Any, EnvSpec], str]
    sampler: Literal["worker", "rank"] | None = "worker"


_TOPOLOGIES = {
    "appo": Topology(resolve_defaults, plan_appo, appo, model_maker, reason),
    "ddppo": Topology(resolve_defaults, plan_ddppo, ddppo, model_maker, reason, "rank"),
    "apex": Topology(
        apex_plan.resolve_defaults, apex_plan.plan_apex, apex, network_maker, apex_plan.reason
    ),
    "marwil": Topology(
        marwil_plan.resolve_defaults,
        marwil_plan.plan_marwil,
        marwil,
        marwil_model_maker,
        marwil_plan.reason,
        None,
    ),
}


def topology(config: AnyConfig) -> Topology:
    """Return the topology of a config's algorithm."""
    return _TOPOLOGIES[config.algo]
