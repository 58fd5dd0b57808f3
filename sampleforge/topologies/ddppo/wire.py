"""DD-PPO: ranks that each sample and learn; gradients are averaged, and there is nothing central
(Wijmans et al. 2019, arXiv 1911.00357)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import torch

from sampleforge.config import ConfigError
from sampleforge.distributed.group import Rendezvous
from sampleforge.distributed.group_epoch import GroupEpoch
from sampleforge.distributed.progress_board import Board, RolloutBoard
from sampleforge.env.threaded import ThreadedVector
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.counters import AgreedProgress, Progress
from sampleforge.shared.records import EpisodeQueue, Episodes
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import (
    PolicyStart,
    ResumePoint,
    env_makers,
    initial_weights,
    make_learner,
    model_maker,
    policy_maker,
)
from sampleforge.topologies.config import DdppoConfig
from sampleforge.topologies.ddppo.plan import slot_shape, with_room
from sampleforge.topologies.evaluator import add_evaluator, num_evaluators
from sampleforge.topologies.graph import Edge, Graph, GraphBuilder, Node, PolicyGroup
from sampleforge.topologies.ppo_defaults import reason
from sampleforge.topologies.rendezvous import local_rendezvous, member_devices
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.sampler_plan import (
    Plan,
)
from sampleforge.workers.actor import ActorWorker, never
from sampleforge.workers.batched_inference import BatchedInference
from sampleforge.workers.group_member import GroupMember
from sampleforge.workers.inference import InlineInference
from sampleforge.workers.learner import LearnerWorker, Save
from sampleforge.workers.preemption import Preemption
from sampleforge.workers.rank import RankWorker
from sampleforge.workers.rank_sync import MetricsSync
from sampleforge.workers.stream import PolicyPort
from sampleforge.workers.variable import VariableActor
from sampleforge.workers.worker import Placement


def ddppo(
    config: DdppoConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
) -> Graph:
    """Wire the ranks of this machine, which learn one policy. Nothing runs yet, but for the store
    at which those with a GPU each will meet.

    Rank 0 speaks for the group: it writes the checkpoints.
    """
    policy = single_policy(policies)
    start, ranks = policy.start, plan.num_workers
    graph = GraphBuilder("ddppo", ranks + num_evaluators(config), config, start)
    episodes = EpisodeQueue(ranks)
    new_model = model_maker(config, spec, start.seed)
    meeting = local_rendezvous(member_devices(plan.device, ranks), config.rank_timeout, new_model)
    board, group_epoch = RolloutBoard(ranks), GroupEpoch(config.max_rank_restarts, ranks)
    snapshot = None if config.serial else StateSnapshot(new_model())
    parts = (config, plan, spec, start, policy.save, episodes, board, group_epoch)
    wire = partial(add_rank, graph, *parts)
    members = [wire(join, snapshot=snapshot) for join in meeting.rendezvous]
    nodes, exchanges, weights = zip(*members, strict=True)
    evaluation = add_evaluator(graph, config, weights[0], new_model, start, "rank 0")
    group = PolicyGroup(
        policy.id,
        nodes,
        exchanges[0],
        weights[0],
        plan.lag.limit,
        synchronous=True,
        snapshot=snapshot,
        evaluations=evaluation.results,
        resources=meeting.resources,
    )
    return graph.build(
        groups=[group],
        edges=[*edges(ranks), *evaluation.edges],
        notes=notes(config, plan, spec, meeting.note, snapshot),
        episodes=episodes,
        progress=AgreedProgress(**vars(graph.progress), ranks=tuple(range(ranks))),
    )


def single_policy(policies: Sequence[PolicyStart]) -> PolicyStart:
    """Return the only policy. Raises ConfigError if there are several."""
    if len(policies) != 1:
        raise ConfigError(
            f"ddppo trains one policy, but {len(policies)} are asked for: a rank's actor and "
            "learner share one; use appo or apex"
        )
    return policies[0]


def add_rank(
    graph: GraphBuilder,
    config: DdppoConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    save: Save,
    episodes: Episodes,
    board: Board,
    group_epoch: GroupEpoch,
    join: Rendezvous,
    metrics_sync: MetricsSync | None = None,
    snapshot: StateSnapshot | None = None,
    local_rank: int | None = None,
) -> tuple[Node, SlotExchange, SharedWeights]:
    """Add one rank, with slots and weights that only it uses."""
    rank, wakeup, progress = join.rank, Wakeup(), graph.progress
    plan = dataclasses.replace(plan, device=join.device)
    new_model = model_maker(config, spec, start.seed)
    shape = slot_shape(config, spec, plan.rows, join.size)
    slots = TrajectorySlots(plan.slots // plan.num_workers, shape, debug=config.debug)
    exchange = SlotExchange(slots, [wakeup], [wakeup])
    weights = initial_weights(new_model, start)
    new_policy = policy_maker(
        rank,
        new_model,
        weights,
        plan,
        start,
        noise_correlation=config.noise_correlation,
        lives=group_epoch,
    )
    policy = (new_policy, slots, plan.num_splits, rank)
    envs = env_makers(rank, config, plan, start, group_epoch)
    if config.variable_experience:
        envs = [partial(ThreadedVector, make, wakeup.set) for make in envs]
    preemption = _preemption(config, plan, board, join)
    # The ranks end together: none may stop sampling by itself while others wait for its gradients.
    endless = dataclasses.replace(progress, limit_env_steps=None, limit_s=None)
    last = (episodes, wakeup, endless, rank)
    ends = preemption.ends if join.size > 1 else never
    if config.variable_experience:
        port = PolicyPort(0, exchange, BatchedInference(*policy))
        room = with_room(config, plan.num_splits * plan.rollout, join.size)
        variable = partial(VariableActor, round_steps=room, round_ends=ends)
        actor: ActorWorker = variable(0, envs, [port], *last)
    else:
        port = PolicyPort(0, exchange, InlineInference(*policy))
        actor = ActorWorker(0, envs, [port], *last, ends_early=ends)

    member = GroupMember(
        rank,
        rank,
        join.join,
        partial(make_learner, new_model, config, plan, start, varies=True),
        weights,
        progress,
        graph.stop,
        group_epoch,
        debug=config.debug,
        metrics_sync=metrics_sync,
        snapshot=snapshot,
        **({"replacement_timeout": 0.0} if metrics_sync else {}),
    )

    def make_worker(counter_row: int) -> RankWorker:
        new_worker = _learner_maker(exchange, weights, progress, save, wakeup, plan, counter_row)
        return RankWorker(member, actor, new_worker, exchange, graph.counters, wakeup, preemption)

    node = graph.add(
        "rank",
        make_worker,
        wakeup,
        rank_placement(config, plan, rank if local_rank is None else local_rank),
        RestartInGroup(group_epoch),
        envs,
        row=rank,
        in_checkpoint=rank == 0 and snapshot is None,
    )
    return node, exchange, weights


def _preemption(config: DdppoConfig, plan: Plan, board: Board, join: Rendezvous) -> Preemption:
    at_once = plan.num_splits if config.variable_experience else 1
    return Preemption(
        board,
        join.rank,
        join.size,
        plan.rollout * at_once,
        config.sync_fraction,
        config.min_rollout_fraction,
        at_once,
    )


def _learner_maker(
    exchange: SlotExchange,
    weights: SharedWeights,
    progress: Progress,
    save: Save,
    wakeup: Wakeup,
    plan: Plan,
    rank: int,
) -> Callable[..., LearnerWorker]:
    """Return the function that makes the rank's learner worker."""
    return partial(
        LearnerWorker,
        exchange=exchange,
        slots_per_batch=exchange.slots.count,
        weights=weights,
        progress=progress,
        save=save,
        wakeup=wakeup,
        counter_row=rank,
        synchronous=True,
        device=torch.device(plan.device),
        threads=plan.learner_threads,
        counts_updates=rank == 0,
    )


def rank_placement(config: DdppoConfig, plan: Plan, local_rank: int) -> Placement:
    """The ranks of a machine take turns with its cores."""
    cores = available_cores()
    pinned_to = (cores[local_rank % len(cores)],) if plan.pin_actors else None
    return Placement(pinned_to, config.worker_niceness)


def edges(ranks: int) -> tuple[Edge, ...]:
    each = f"{ranks} ranks"
    return (
        Edge(each, each, "gradients, summed at every minibatch; counts and moments"),
        Edge("rank 0", "driver", "checkpoints, metrics"),
        Edge(each, "driver", "finished episodes"),
    )


VARIABLE = "variable experience: a rank's batch is of whichever splits were ready"


def notes(
    config: DdppoConfig,
    plan: Plan,
    spec: EnvSpec,
    gradients: str,
    snapshot: StateSnapshot | None = None,
) -> tuple[str, ...]:
    ranks = plan.num_workers
    kept = "" if snapshot is None else human_bytes(snapshot.nbytes)
    return (
        reason(config, spec),
        plan.describe_envs("ranks"),
        f"batch {ranks * plan.batch_size} env steps = {ranks} ranks x {plan.batch_size}",
        *([VARIABLE] if plan.slots > ranks * plan.num_splits else []),
        *plan.lag.notes,
        f"slots {human_bytes(plan.slot_bytes)} of shared memory",
        f"ranks on {plan.device}, {plan.learner_threads} thread(s) each",
        gradients,
        *([f"learner state {kept} of shared memory, for ranks that are replaced"] if kept else []),
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )
