"""APPO: actors -> ready slots -> learner -> weights -> actors, or their policy workers."""

from __future__ import annotations

from functools import partial

import torch

from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.spec import EnvSpec
from sampleforge.topologies.appo.plan import gathers_ahead
from sampleforge.topologies.builders import (
    NewModel,
    NewPolicy,
    ResumePoint,
    first_weights,
    make_learner,
    model_maker,
    policy_maker,
)
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.evaluator import add_evaluator, evaluators
from sampleforge.topologies.graph import Edge, Graph, GraphBuilder, Node, PolicyGroup
from sampleforge.topologies.ppo_defaults import reason
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.topologies.sampling import Channels, add_samplers, channels, sampler_edges
from sampleforge.workers.learner import ExperienceSink, LearnerWorker, Save


def appo(
    config: AppoConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    save: Save,
) -> Graph:
    """Wire one policy's actors, policy workers and learner. Nothing runs yet.

    ``save`` writes a checkpoint, in the learner's process.
    """
    new_model = model_maker(config, spec, start.seed)
    shape = SlotShape(plan.rollout, plan.rows, spec, config.model.state_size)
    weights = first_weights(new_model, start)
    joined = channels(config, plan, shape, weights)
    slots = TrajectorySlots(plan.slots, shape, debug=config.debug)
    exchange = SlotExchange(slots, joined.actor_wakeups, joined.learner_wakeup)

    def new_policy(index: int) -> NewPolicy:
        spec_if = spec if config.compile else None
        noise = config.noise_correlation
        return policy_maker(index, new_model, weights, plan, start, spec_if, noise)

    graph = GraphBuilder("appo", plan.num_samplers + 1 + evaluators(config), config, start)
    add_samplers(graph, joined, exchange, config, plan, start, new_policy)
    learner = _add_learner(graph, joined, exchange, config, plan, start, new_model, save)
    evaluation = add_evaluator(graph, config, weights, new_model, start)
    return graph.build(
        groups=[
            PolicyGroup("policy", (learner,), exchange, weights, plan.lag.limit, plan.synchronous)
        ],
        edges=[*_edges(plan), *evaluation],
        notes=_notes(config, plan, spec),
        episodes=joined.episodes,
    )


def _add_learner(
    graph: GraphBuilder,
    channels: Channels,
    exchange: SlotExchange,
    config: AppoConfig,
    plan: Plan,
    start: ResumePoint,
    new_model: NewModel,
    save: Save,
) -> Node:
    wakeup = channels.learner_wakeup
    if config.sampler_only:
        return graph.add("learner", lambda counter_row: ExperienceSink(exchange, wakeup), wakeup)
    make_worker = partial(
        LearnerWorker,
        partial(make_learner, new_model, config, plan, start, compiled=config.compile),
        exchange,
        plan.slots_per_batch,
        channels.weights,
        graph.progress,
        save,
        wakeup,
        synchronous=plan.synchronous,
        device=torch.device(plan.device),
        threads=plan.learner_threads,
        prefetch=gathers_ahead(plan, serial=config.serial),
    )
    return graph.add("learner", make_worker, wakeup, in_checkpoint=True)


def _edges(plan: Plan) -> tuple[Edge, ...]:
    actors = f"{plan.num_workers} actors"
    rollout = f"slot of {plan.rollout} steps x {plan.rows} rows"
    return (
        Edge(actors, "learner", f"ready {rollout} ({plan.slots_per_batch} a batch)"),
        Edge("learner", actors, f"free slot ({plan.slots} in circulation)"),
        *sampler_edges(plan),
        Edge(actors, "driver", "finished episodes"),
    )


def _notes(config: AppoConfig, plan: Plan, spec: EnvSpec) -> tuple[str, ...]:
    ahead = gathers_ahead(plan, serial=config.serial)
    return (
        reason(config, spec),
        plan.envs_in_words(),
        f"batch {plan.batch_size} env steps, "
        f"{'synchronous' if plan.synchronous else 'asynchronous'}",
        *plan.lag.notes,
        f"slots {human_bytes(plan.slot_bytes)} of shared memory",
        f"learner on {plan.device}, {plan.learner_threads} thread(s)"
        f"{', beside one that gathers the next batch' if ahead else ''}",
        *(["the model's passes are compiled: the start takes longer"] if config.compile else []),
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )
