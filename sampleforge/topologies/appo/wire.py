"""APPO: actors -> ready slots -> learner -> weights -> actors, or their policy workers."""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection

import torch

from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.spec import EnvSpec
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
from sampleforge.topologies.graph import Edge, Graph, Node
from sampleforge.topologies.ppo_defaults import reason
from sampleforge.topologies.sampler_plan import Plan, gathers_ahead
from sampleforge.topologies.sampling import Channels, channels, sampler_edges, sampler_nodes
from sampleforge.workers.learner import ExperienceSink, LearnerWorker, Save
from sampleforge.workers.worker import StopFlag


def appo(
    config: AppoConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    save: Save,
    control: Connection | None,
) -> Graph:
    """Wire one policy's actors, policy workers and learner. Nothing runs yet.

    ``save`` writes a checkpoint, in the learner's process; ``control`` is the learner's end of the
    driver's pipe (None: the driver calls the learner worker itself).
    """
    new_model = model_maker(config, spec, start.seed)
    shape = SlotShape(plan.rollout, plan.rows, spec, config.model.state_size)
    weights = first_weights(new_model, start)
    joined = channels(config, plan, shape, start, weights, other_workers=1)
    slots = TrajectorySlots(plan.slots, shape, debug=config.debug)
    exchange = SlotExchange(slots, joined.actor_wakeups, joined.learner_wakeup)

    def new_policy(index: int) -> NewPolicy:
        spec_if = spec if config.compile else None
        noise = config.noise_correlation
        return policy_maker(index, new_model, weights, plan, start, spec_if, noise)

    sampling = sampler_nodes(joined, exchange, config, plan, start, new_policy)
    learner = _learner(joined, exchange, config, plan, start, new_model, save, control)
    return Graph(
        name="appo",
        nodes=(*sampling, learner),
        learner=learner,
        edges=_edges(plan),
        notes=_notes(config, plan, spec),
        progress=joined.progress,
        counters=joined.counters,
        episodes=joined.episodes,
        exchange=exchange,
        weights=weights,
        stop=StopFlag(),
        restart_budget=joined.restart_budget,
    )


def _learner(
    channels: Channels,
    exchange: SlotExchange,
    config: AppoConfig,
    plan: Plan,
    start: ResumePoint,
    new_model: NewModel,
    save: Save,
    control: Connection | None,
) -> Node:
    if config.sampler_only:
        sink = ExperienceSink(exchange, channels.learner_wakeup, control)
        return Node(sink, channels.learner_wakeup)
    worker = LearnerWorker(
        partial(make_learner, new_model, config, plan, start, compiled=config.compile),
        exchange,
        plan.slots_per_batch,
        channels.weights,
        channels.progress,
        save,
        channels.learner_wakeup,
        counter_row=plan.num_workers + plan.num_policy_workers,
        synchronous=plan.synchronous,
        device=torch.device(plan.device),
        threads=plan.learner_threads,
        prefetch=gathers_ahead(plan, serial=config.serial),
        control=control,
    )
    return Node(worker, channels.learner_wakeup)


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
