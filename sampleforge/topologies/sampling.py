"""The half of the graph that every topology with actors shares: actors, policy workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.requests import InferenceRequests
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.records import EpisodeQueue
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.topologies.builders import NewPolicy, ResumePoint, env_makers
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import Edge, GraphBuilder
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.inference import Inference, InlineInference, RemoteInference
from sampleforge.workers.policy import PolicyWorker
from sampleforge.workers.worker import Placement


@dataclass(frozen=True)
class Channels:
    """What joins the actors to the rest of the graph."""

    weights: SharedWeights
    requests: InferenceRequests | None  # with policy workers only
    episodes: EpisodeQueue
    actor_wakeups: list[Wakeup]
    policy_wakeups: list[Wakeup]
    learner_wakeups: list[Wakeup]
    restart_budget: RestartBudget


def channels(
    config: AnyConfig,
    plan: SamplerPlan,
    shape: SlotShape,
    weights: SharedWeights,
    learners: int = 1,
) -> Channels:
    """Make the channels of a graph whose slots have this ``shape``."""
    actor_wakeups = [Wakeup() for _ in range(plan.num_workers)]
    policy_wakeups = [Wakeup() for _ in range(plan.num_policy_workers)]
    requests = None
    if policy_wakeups:
        requests = InferenceRequests(shape, plan.num_splits, actor_wakeups, policy_wakeups)
    return Channels(
        weights=weights,
        requests=requests,
        episodes=EpisodeQueue(plan.num_workers),
        actor_wakeups=actor_wakeups,
        policy_wakeups=policy_wakeups,
        learner_wakeups=[Wakeup() for _ in range(learners)],
        restart_budget=RestartBudget(plan.num_workers, config.max_worker_restarts),
    )


def add_samplers(
    graph: GraphBuilder,
    channels: Channels,
    exchange: RolloutExchange,
    config: AnyConfig,
    plan: SamplerPlan,
    start: ResumePoint,
    policy_maker: Callable[[int], NewPolicy],
) -> None:
    """Add all actors, then all policy workers.

    ``policy_maker(i)`` makes the policy of the i-th actor (inline) or policy worker.
    """
    cores = available_cores()
    for index in range(plan.num_workers):
        envs = env_makers(index, config, plan, start, channels.restart_budget)
        inference: Inference
        if channels.requests is None:
            policy = policy_maker(index)
            inference = InlineInference(policy, exchange.slots, plan.num_splits, index)
        else:
            inference = RemoteInference(channels.requests, index)
        pinned_to = (cores[index % len(cores)],) if plan.pin_actors else None
        wakeup = channels.actor_wakeups[index]
        make_actor = partial(
            ActorWorker, index, envs, exchange, inference, channels.episodes, wakeup, graph.progress
        )
        graph.add(
            "actor",
            make_actor,
            wakeup,
            Placement(pinned_to, config.worker_niceness),
            RestartAlone(channels.restart_budget, index),
            envs,
        )
    for index, wakeup in enumerate(channels.policy_wakeups):
        assert channels.requests is not None
        make_policy_worker = partial(
            PolicyWorker,
            index,
            policy_maker(index),
            exchange.slots,
            channels.requests,
            wakeup,
            graph.counters,
            device=torch.device(plan.device),
        )
        graph.add("policy", make_policy_worker, wakeup)


def sampler_edges(plan: SamplerPlan, learner: str = "learner") -> tuple[Edge, ...]:
    """The requests, and the weights that ``learner`` publishes."""
    actors = f"{plan.num_workers} actors"
    if plan.inference == "inline":
        return (Edge(learner, actors, "weights"),)
    policies = f"{plan.num_policy_workers} policy workers"
    return (
        Edge(actors, policies, "request (split, slot, t)"),
        Edge(policies, actors, "answer; the actions lie in the slot"),
        Edge(learner, policies, "weights"),
    )
