"""APPO: actors -> ready slots -> learner -> weights -> actors, or their policy workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import torch

from sampleforge.data.counters import Counters
from sampleforge.data.episodes import EpisodeQueue
from sampleforge.data.exchange import SlotExchange
from sampleforge.data.requests import InferenceRequests
from sampleforge.data.slots import SlotShape, TrajectorySlots
from sampleforge.data.weights import SharedWeights
from sampleforge.runtime.memory import human_bytes
from sampleforge.runtime.processes import available_cores
from sampleforge.runtime.wakeup import Wakeup
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.graph import COUNTERS, Edge, Graph, Node
from sampleforge.topologies.parts import (
    NewModel,
    Start,
    env_makers,
    first_weights,
    make_learner,
    policy_maker,
    seeded_model,
)
from sampleforge.topologies.plan import Plan
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.inference import Inference, InlineInference, RemoteInference
from sampleforge.workers.learner import ExperienceSink, LearnerWorker, Save
from sampleforge.workers.policy import PolicyWorker
from sampleforge.workers.progress import Progress
from sampleforge.workers.worker import Placement, StopFlag


@dataclass(frozen=True)
class Channels:
    """The edges of the graph; each worker is given those it uses."""

    exchange: SlotExchange
    weights: SharedWeights
    requests: InferenceRequests | None  # with policy workers only
    episodes: EpisodeQueue
    counters: Counters
    progress: Progress
    actor_wakeups: list[Wakeup]
    policy_wakeups: list[Wakeup]
    learner_wakeup: Wakeup


def appo(
    config: AppoConfig,
    plan: Plan,
    spec: EnvSpec,
    start: Start,
    save: Save,
    control: Connection | None,
) -> Graph:
    """Wire one policy's actors, policy workers and learner. Nothing runs yet.

    ``save`` writes a checkpoint, in the learner's process; ``control`` is the learner's end of the
    driver's pipe (None: the driver calls the learner worker itself).
    """
    new_model = partial(seeded_model, config.model, spec, start.seed)
    channels = _channels(config, plan, spec, start, new_model)
    actors = [_actor(i, channels, config, plan, start, new_model) for i in range(plan.num_workers)]
    policies = [
        _policy(i, channels, plan, start, new_model) for i in range(plan.num_policy_workers)
    ]
    learner = _learner(channels, config, plan, start, new_model, save, control)
    return Graph(
        name="appo",
        nodes=(*actors, *policies, learner),
        learner=learner,
        edges=_edges(plan),
        notes=_notes(plan, spec),
        progress=channels.progress,
        counters=channels.counters,
        episodes=channels.episodes,
        exchange=channels.exchange,
        weights=channels.weights,
        stop=StopFlag(),
    )


def _channels(
    config: AppoConfig, plan: Plan, spec: EnvSpec, start: Start, new_model: NewModel
) -> Channels:
    shape = SlotShape(plan.rollout, plan.rows, spec, config.model.state_size)
    actor_wakeups = [Wakeup() for _ in range(plan.num_workers)]
    policy_wakeups = [Wakeup() for _ in range(plan.num_policy_workers)]
    learner_wakeup = Wakeup()
    slots = TrajectorySlots(plan.slots, shape, debug=config.debug)
    counters = Counters(COUNTERS, plan.num_workers + plan.num_policy_workers + 1)
    requests = None
    if policy_wakeups:
        requests = InferenceRequests(shape, plan.num_splits, actor_wakeups, policy_wakeups)
    return Channels(
        exchange=SlotExchange(slots, actor_wakeups, learner_wakeup),
        weights=first_weights(new_model, start),
        requests=requests,
        episodes=EpisodeQueue(),
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
        learner_wakeup=learner_wakeup,
    )


def _actor(
    index: int,
    channels: Channels,
    config: AppoConfig,
    plan: Plan,
    start: Start,
    new_model: NewModel,
) -> Node:
    inference: Inference
    if channels.requests is None:
        new_policy = policy_maker(index, new_model, channels.weights, plan, start)
        inference = InlineInference(new_policy, channels.exchange.slots, plan.num_splits)
    else:
        inference = RemoteInference(channels.requests, index)
    envs = env_makers(index, config, plan, start)
    worker = ActorWorker(
        index,
        envs,
        channels.exchange,
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


def _policy(index: int, channels: Channels, plan: Plan, start: Start, new_model: NewModel) -> Node:
    assert channels.requests is not None
    worker = PolicyWorker(
        index,
        policy_maker(index, new_model, channels.weights, plan, start),
        channels.exchange.slots,
        channels.requests,
        channels.policy_wakeups[index],
        channels.counters,
        counter_row=plan.num_workers + index,
        device=torch.device(plan.device),
    )
    return Node(worker, channels.policy_wakeups[index])


def _learner(
    channels: Channels,
    config: AppoConfig,
    plan: Plan,
    start: Start,
    new_model: NewModel,
    save: Save,
    control: Connection | None,
) -> Node:
    if config.sampler_only:
        sink = ExperienceSink(channels.exchange, channels.learner_wakeup, control)
        return Node(sink, channels.learner_wakeup)
    worker = LearnerWorker(
        partial(make_learner, new_model, config, plan, start),
        channels.exchange,
        plan.slots_per_batch,
        channels.weights,
        channels.progress,
        save,
        channels.learner_wakeup,
        counter_row=plan.num_workers + plan.num_policy_workers,
        synchronous=plan.synchronous,
        pinned=plan.device.startswith("cuda"),
        threads=plan.learner_threads,
        control=control,
    )
    return Node(worker, channels.learner_wakeup)


def _edges(plan: Plan) -> tuple[Edge, ...]:
    actors = f"{plan.num_workers} actors"
    rollout = f"slot of {plan.rollout} steps x {plan.rows} rows"
    edges = [
        Edge(actors, "learner", f"ready {rollout} ({plan.slots_per_batch} a batch)"),
        Edge("learner", actors, f"free slot ({plan.slots} in circulation)"),
    ]
    if plan.inference == "worker":
        policies = f"{plan.num_policy_workers} policy workers"
        edges += [
            Edge(actors, policies, "request (split, slot, t)"),
            Edge(policies, actors, "answer; the actions lie in the slot"),
            Edge("learner", policies, "weights"),
        ]
    else:
        edges.append(Edge("learner", actors, "weights"))
    return (*edges, Edge(actors, "driver", "finished episodes"))


def _notes(plan: Plan, spec: EnvSpec) -> tuple[str, ...]:
    return (
        f"{plan.envs} envs = {plan.num_workers} workers x {plan.num_splits} splits "
        f"x {plan.rows} rows",
        f"batch {plan.batch_size} env steps, "
        f"{'synchronous' if plan.synchronous else 'asynchronous'}",
        f"slots {human_bytes(plan.slot_bytes)} of shared memory",
        f"learner on {plan.device}, {plan.learner_threads} thread(s)",
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )
