"""The actors of a graph, which all its policy groups share: what makes their environments, and
their ports to the policies that are trained and to those that only act."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sampleforge.data.rollout_queue import RolloutQueue, sender
from sampleforge.env.place import FROZEN_STREAM
from sampleforge.shared.counters import Progress
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.snapshots import SnapshotPool
from sampleforge.topologies.builders import (
    Lives,
    NetworkMaker,
    env_makers,
    in_threads,
    policy_seed,
)
from sampleforge.topologies.config import ReplayRunConfig, SamplingConfig
from sampleforge.topologies.graph import FrozenGroup, GraphBuilder
from sampleforge.topologies.group_wiring import ActorChannels, GroupWiring
from sampleforge.topologies.members import member_env_makers
from sampleforge.topologies.placement import actor_placement
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.topologies.starts import FrozenStart, ResumePoint
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.frozen import FrozenInference, FrozenPort
from sampleforge.workers.inference import Inference, LocalInference, RemoteInference
from sampleforge.workers.policy_mapping import PolicyMapping
from sampleforge.workers.split import EndingOnce, IndependentStepping, Stepping
from sampleforge.workers.stream import PolicyPort


def frozen_port(group: FrozenGroup, policy: int, actor: int, lives: Lives) -> FrozenPort:
    """Return the port of an actor to a frozen policy. ``lives``: how often an actor was replaced,
    so that its next life has other draws."""
    new_seed = partial(policy_seed, actor, group.start, lives, FROZEN_STREAM)
    return FrozenPort(policy, FrozenInference(group.pool, group.new_model, new_seed))


def frozen_group(
    start: FrozenStart,
    network: NetworkMaker,
    latest: Mapping[str, SharedWeights],
) -> FrozenGroup:
    """Return a frozen policy with the weights that it begins with. ``latest``: the weights of each
    trained policy, by its id."""
    model = network()
    follows = None if start.follows is None else latest[start.follows]
    pool = SnapshotPool(model.state_dict(), start.snapshots, follows)
    if follows is None:
        if (given := start.start.resume or start.start.initial) is not None:
            given.weights(model)
        pool.put(0, model.state_dict(), 0)
    return FrozenGroup(start.id, pool, network.to_be_loaded, start.start)


def policy_port(
    group: GroupWiring[Any],
    number: int,
    actor: int,
    plan: SamplerPlan,
    recorded: RolloutQueue | None,
) -> PolicyPort:
    """Return the port of an actor to a policy group, the ``number``-th of the graph. ``plan``: of
    the actors; ``recorded``: the queue to the recorder (None: nothing is recorded)."""
    inference: Inference
    if group.requests is None:
        slots = group.slots
        # Agents with the same policy share a forward pass, and so do streams that wait.
        together = plan.variable or (slots.shape.spec.num_agents > 1 and not slots.stacks)
        inference = LocalInference(
            group.new_acting(actor),
            slots,
            plan.num_streams,
            actor,
            group.members,
            together=together,
        )
    else:
        inference = RemoteInference(group.requests, actor)
    return PolicyPort(number, group.exchange, inference, sender(recorded, actor))


DROPPED = 0.1
"""Part of the env steps, at most, that are taken for no transition when learning begins: those of
which the last observation was not kept."""


def _stepping(
    config: SamplingConfig, plan: SamplerPlan, start: ResumePoint, progress: Progress, policies: int
) -> Stepping:
    """Return how the splits of an actor step."""
    if plan.variable:
        return IndependentStepping()
    if isinstance(config, ReplayRunConfig) and config.begins_early:
        assert config.learning_starts is not None, "the defaults are resolved"
        starts = policies * config.learning_starts
        return EndingOnce(progress, start.env_steps + math.ceil((1 + DROPPED) * starts))
    return Stepping()


def add_actors(
    graph: GraphBuilder,
    channels: ActorChannels,
    groups: Sequence[GroupWiring[Any]],
    mapping: PolicyMapping,
    config: SamplingConfig,
    plan: SamplerPlan,
    frozen: Sequence[FrozenGroup],
    recorded: RolloutQueue | None,
) -> None:
    """Add all actors, each with a port to every one of ``groups``, in the graph's order, and to the
    ``frozen`` policies. ``recorded``: the queue to the recorder (None: nothing is recorded).

    No actor can wait for a slot that only it could free: every group's exchange has a slot for each
    stream of each actor that the group may act in, which is enough if all of them pick it.
    """
    members = [group.member for group in groups if group.member is not None]
    budget, tasks = channels.restart_budget, graph.hooks.tasks
    for index, wakeup in enumerate(channels.wakeups[: plan.num_workers]):
        envs = (
            member_env_makers(index, config, plan, members, budget.life, tasks)
            if members
            else env_makers(index, config, plan, graph.start, budget.life, tasks)
        )
        if plan.variable:
            envs = in_threads(envs, wakeup)
        ports: list[PolicyPort | FrozenPort] = [
            *(policy_port(group, i, index, plan, recorded) for i, group in enumerate(groups)),
            *(
                frozen_port(each, len(groups) + i, index, budget.life)
                for i, each in enumerate(frozen)
            ),
        ]
        post = graph.post(wakeup)
        actor = ActorWorker(
            index,
            envs,
            ports,
            channels.episodes,
            post,
            mapping,
            stepping=_stepping(config, plan, graph.start, post.progress, len(groups)),
            callbacks=graph.hooks.of_worker(index),
        )
        placement = actor_placement(plan, index, config.worker_niceness)
        graph.add("actor", actor, post, placement, RestartAlone(budget, index), envs)
