"""Which topology an algorithm's name stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sampleforge.topologies.appo import appo
from sampleforge.topologies.ddppo import ddppo, plan_ddppo
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.plan import Plan, plan_appo


@dataclass(frozen=True)
class Topology:
    """``plan(config, spec, device)`` decides what the config leaves open, or raises ConfigError;
    ``wire(config, plan, spec, start, save, control)`` makes the graph, and starts nothing."""

    plan: Callable[..., Plan]
    wire: Callable[..., Graph]


TOPOLOGIES = {"appo": Topology(plan_appo, appo), "ddppo": Topology(plan_ddppo, ddppo)}
"""By the ``algo`` of a config class; see `sampleforge.topologies.config.ALGOS`."""
