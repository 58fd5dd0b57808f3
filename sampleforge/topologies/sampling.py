"""The half of the graph that every topology with actors shares: actors, policy workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.requests import InferenceRequests
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.counters import Counters, Progress
from sampleforge.shared.records import EpisodeQueue
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.topologies.builders import NewPolicy, ResumePoint, env_makers
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import COUNTERS, Edge, Node
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.inference import Inference, InlineInference, RemoteInference
from sampleforge.workers.policy import PolicyWorker
from sampleforge.workers.worker import Placement


@dataclass(frozen=True)
class Channels:
    """What joins the actors to the rest of the graph, and what every worker counts in."""

    weights: SharedWeights
    requests: InferenceRequests | None  # with policy workers only
    episodes: EpisodeQueue
    counters: Counters
    progress: Progress
    actor_wakeups: list[Wakeup]
    policy_wakeups: list[Wakeup]
    learner_wakeup: Wakeup
    restart_budget: RestartBudget


def channels(
    config: AnyConfig,
    plan: SamplerPlan,
    shape: SlotShape,
    start: ResumePoint,
    weights: SharedWeights,
    other_workers: int,
) -> Channels:
    """The channels of a graph with ``other_workers`` beside actors and policy workers."""
    actor_wakeups = [Wakeup() for _ in range(plan.num_workers)]
    policy_wakeups = [Wakeup() for _ in range(plan.num_policy_workers)]
    counters = Counters(COUNTERS, plan.num_workers + plan.num_policy_workers + other_workers)
    requests = None
    if policy_wakeups:
        requests = InferenceRequests(shape, plan.num_splits, actor_wakeups, policy_wakeups)
    return Channels(
        weights=weights,
        requests=requests,
        episodes=EpisodeQueue(plan.num_workers),
        counters=counters,
        progress=Progress(
            counters,
            start.started,
            start.env_steps,
            start.wall_s,
            config.train_for_env_steps,
            config.train_for_seconds,
        ),
        actor_wakeups=actor_wakeups,
        policy_wakeups=policy_wakeups,
        learner_wakeup=Wakeup(),
        restart_budget=RestartBudget(plan.num_workers, config.max_worker_restarts),
    )


def sampler_nodes(
    channels: Channels,
    exchange: RolloutExchange,
    config: AnyConfig,
    plan: SamplerPlan,
    start: ResumePoint,
    policy_maker: Callable[[int], NewPolicy],
) -> tuple[Node, ...]:
    """All actors, then all policy workers: the first rows of the counters, in this order.

    ``policy_maker(i)`` makes the policy of the i-th actor (inline) or policy worker.
    """
    actors = [
        _actor(i, channels, exchange, config, plan, start, policy_maker)
        for i in range(plan.num_workers)
    ]
    policies = [
        _policy(i, channels, exchange, plan, policy_maker(i))
        for i in range(plan.num_policy_workers)
    ]
    return (*actors, *policies)


def _actor(
    index: int,
    channels: Channels,
    exchange: RolloutExchange,
    config: AnyConfig,
    plan: SamplerPlan,
    start: ResumePoint,
    policy_maker: Callable[[int], NewPolicy],
) -> Node:
    inference: Inference
    if channels.requests is None:
        splits = plan.num_splits
        inference = InlineInference(policy_maker(index), exchange.slots, splits, index)
    else:
        inference = RemoteInference(channels.requests, index)
    envs = env_makers(index, config, plan, start, channels.restart_budget)
    worker = ActorWorker(
        index,
        envs,
        exchange,
        inference,
        channels.episodes,
        channels.actor_wakeups[index],
        channels.progress,
        counter_row=index,
    )
    cores = available_cores()
    pinned_to = (cores[index % len(cores)],) if plan.pin_actors else None
    return Node(
        worker,
        channels.actor_wakeups[index],
        Placement(pinned_to, config.worker_niceness),
        envs=tuple(envs),
    )


def _policy(
    index: int,
    channels: Channels,
    exchange: RolloutExchange,
    plan: SamplerPlan,
    new_policy: NewPolicy,
) -> Node:
    assert channels.requests is not None
    worker = PolicyWorker(
        index,
        new_policy,
        exchange.slots,
        channels.requests,
        channels.policy_wakeups[index],
        channels.counters,
        counter_row=plan.num_workers + index,
        device=torch.device(plan.device),
    )
    return Node(worker, channels.policy_wakeups[index])


def sampler_edges(plan: SamplerPlan) -> tuple[Edge, ...]:
    """Requests and weights."""
    actors = f"{plan.num_workers} actors"
    if plan.inference == "inline":
        return (Edge("learner", actors, "weights"),)
    policies = f"{plan.num_policy_workers} policy workers"
    return (
        Edge(actors, policies, "request (split, slot, t)"),
        Edge(policies, actors, "answer; the actions lie in the slot"),
        Edge("learner", policies, "weights"),
    )
