"""The actors of a graph, which all its policy groups share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sampleforge.runtime.processes import available_cores
from sampleforge.topologies.channels import ActorChannels
from sampleforge.topologies.config import SamplingConfig
from sampleforge.topologies.env_makers import env_makers, in_threads
from sampleforge.topologies.frozen import frozen_port
from sampleforge.topologies.graph import FrozenGroup, GraphBuilder
from sampleforge.topologies.group_wiring import GroupWiring
from sampleforge.topologies.members import member_env_makers
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.frozen import FrozenPort
from sampleforge.workers.policy_mapping import PolicyMapping
from sampleforge.workers.stepping import IndependentStepping
from sampleforge.workers.stream import PolicyPort
from sampleforge.workers.worker import Placement


def add_actors(
    graph: GraphBuilder,
    channels: ActorChannels,
    groups: Sequence[GroupWiring[Any]],
    mapping: PolicyMapping,
    config: SamplingConfig,
    plan: SamplerPlan,
    frozen: Sequence[FrozenGroup] = (),
) -> None:
    """Add all actors, each with a port to every one of ``groups``, in the graph's order, and to the
    ``frozen`` policies.

    No actor can wait for a slot that only it could free: every group's exchange has a slot for each
    stream of each actor that the group may act in, which is enough if all of them pick it.
    """
    cores = available_cores()
    members = [group.member for group in groups if group.member is not None]
    lives, tasks = channels.restart_budget, graph.hooks.tasks
    for index, wakeup in enumerate(channels.wakeups[: plan.num_workers]):
        envs = (
            member_env_makers(index, config, plan, members, lives, tasks)
            if members
            else env_makers(index, config, plan, graph.start, lives, tasks)
        )
        if plan.variable:
            envs = in_threads(envs, wakeup)
        ports: list[PolicyPort | FrozenPort] = [
            *(group.port(i, index, plan, channels.recorded) for i, group in enumerate(groups)),
            *(frozen_port(each, len(groups) + i, index) for i, each in enumerate(frozen)),
        ]
        row = graph.new_row()
        actor = ActorWorker(
            index,
            envs,
            ports,
            channels.episodes,
            wakeup,
            graph.progress,
            row,
            mapping=mapping,
            stepping=IndependentStepping() if plan.variable else None,
            callbacks=graph.hooks.of_worker(index),
        )
        pinned_to = (cores[index % len(cores)],) if plan.pin_actors else None
        placement = Placement(pinned_to, config.worker_niceness)
        graph.add("actor", actor, row, wakeup, placement, RestartAlone(lives, index), envs)
