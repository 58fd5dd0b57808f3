"""Ranks that each sample and learn, and average their gradients: those of one machine, and those
that torchrun starts, each of which shares no memory with the others.

As DD-PPO has them: Wijmans et al. 2019, arXiv 1911.00357.
"""

from __future__ import annotations

from collections.abc import Sequence

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError
from sampleforge.peers.boards import GroupEpoch, RolloutBoard, StoreBoard
from sampleforge.peers.rendezvous import StartupRendezvous
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.counters import AgreedProgress
from sampleforge.shared.newest import StateSnapshot
from sampleforge.shared.records import EpisodeList, EpisodeQueue
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import NetworkMaker
from sampleforge.topologies.config import RanksRunConfig
from sampleforge.topologies.devices import backend_and_device, local_rendezvous, peer_devices
from sampleforge.topologies.evaluator import add_evaluators
from sampleforge.topologies.graph import Edge, Graph, GraphBuilder, PolicyGroup
from sampleforge.topologies.learner_maker import gradient_bytes, new_state
from sampleforge.topologies.ranks.actor import RankContext
from sampleforge.topologies.ranks.plan import acts_on_device, slot_shape
from sampleforge.topologies.ranks.rank import add_rank
from sampleforge.topologies.recorder import add_recorder, rollout_queue
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.topologies.starts import PolicyStart, ResumePoint
from sampleforge.workers.callback import NO_HOOKS, RunHooks
from sampleforge.workers.group_member import MetricsSync


def wire_ranks(
    algorithm: Algorithm,
    config: RanksRunConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
    hooks: RunHooks = NO_HOOKS,
) -> Graph:
    """Wire the ranks of this machine, which learn one policy. Nothing runs yet, except the store of
    nccl, if each rank has a GPU. Rank 0 answers the driver and writes the checkpoints. ``hooks``:
    of the run's callbacks."""
    policy = single_policy(config.algo, policies)
    start, ranks = policy.start, plan.num_workers
    graph = GraphBuilder(config, start, hooks)
    episodes = EpisodeQueue(ranks)
    new_model = NetworkMaker(algorithm, config, spec, start.seed)
    devices = peer_devices(plan.device, ranks)
    gradients = gradient_bytes(new_model, plan, start)
    rendezvous = local_rendezvous(devices, config.rank_timeout, gradients)
    snapshot = None if config.serial else StateSnapshot(new_state(new_model, plan, start))
    streams = plan.num_splits * (2 if config.variable_experience else 1)
    shape = slot_shape(algorithm, config, spec, plan.rows, ranks)
    queue = rollout_queue(config, spec, shape, ranks, streams)
    epoch = GroupEpoch(config.max_rank_restarts, ranks)
    context = RankContext(
        graph,
        new_model,
        plan,
        policy,
        episodes,
        RolloutBoard(ranks),
        RestartInGroup(epoch, not_replaced=rendezvous.not_replaced),
        [graph.new_row() for _ in range(ranks)],
        snapshot=snapshot,
        recorded=queue,
    )
    added = [add_rank(context, join) for join in rendezvous.members]
    recording = add_recorder(graph, config, queue)
    nodes, exchanges, weights = zip(*added, strict=True)
    results, evaluation = add_evaluators(graph, config, weights[0], new_model, "rank 0")
    group = PolicyGroup(
        policy.id,
        nodes,
        exchanges[0],
        weights[0],
        plan.max_policy_lag,
        synchronous=True,
        snapshot=snapshot,
        evaluations=results,
        resources=rendezvous.resources,
    )
    return graph.build(
        groups=[group],
        edges=[*edges(ranks), *evaluation],
        notes=notes(config, plan, spec, rendezvous.note, snapshot),
        episodes=episodes,
        progress=AgreedProgress(**vars(graph.progress), ranks=tuple(range(ranks))),
        recording=recording,
    )


def single_policy(algo: str, policies: Sequence[PolicyStart]) -> PolicyStart:
    """Return the only policy. Raises ConfigError for several policies."""
    if len(policies) != 1:
        raise ConfigError(
            f"{algo} trains one policy, but {len(policies)} are asked for: a rank's actor and "
            "learner share one; use appo or apex"
        )
    return policies[0]


def edges(ranks: int) -> tuple[Edge, ...]:
    """Return the edges of the ranks."""
    each = f"{ranks} ranks"
    return (
        Edge(each, each, "gradients, summed at every minibatch; counts and moments"),
        Edge("rank 0", "driver", "checkpoints, metrics"),
        Edge(each, "driver", "finished episodes"),
    )


def notes(
    config: RanksRunConfig,
    plan: Plan,
    spec: EnvSpec,
    gradients: str,
    snapshot: StateSnapshot | None = None,
) -> tuple[str, ...]:
    """Return the notes about a run; ``gradients`` names the transport of gradients."""
    ranks = plan.num_workers
    state = "" if snapshot is None else human_bytes(snapshot.nbytes)
    variable = plan.slots > ranks * plan.num_splits
    on_gpu = acts_on_device(config, plan.device, spec)
    return (
        plan.describe_envs("ranks"),
        f"batch {ranks * plan.batch_size} env steps = {ranks} ranks x {plan.batch_size}",
        *(["variable experience: faster splits give more of a batch"] if variable else []),
        *plan.lag.notes,
        f"slots {human_bytes(plan.slot_bytes)} of shared memory",
        f"ranks on {plan.device}, {plan.learner_threads} thread(s) each",
        *(["inference on the rank's GPU (images)"] if on_gpu else []),
        gradients,
        *([f"learner state {state} of shared memory, for restarts"] if state else []),
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )


def wire_world(
    algorithm: Algorithm,
    config: RanksRunConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
    *,
    rendezvous: StartupRendezvous,
    hooks: RunHooks = NO_HOOKS,
) -> Graph:
    """Wire the rank of this process, after the rendezvous of all ranks; rank 0 also has the
    evaluators. ``hooks``: of the callbacks of this process."""
    policy = single_policy(config.algo, policies)
    start, world = policy.start, rendezvous.world
    leads = world.rank == 0
    graph = GraphBuilder(config, start, hooks)
    new_model = NetworkMaker(algorithm, config, spec, start.seed)
    played, known = EpisodeList(), EpisodeList()
    backend, note, device = backend_and_device(plan.device, world)
    board = StoreBoard(rendezvous.another_store(), world.rank, world.size)
    context = RankContext(
        graph,
        new_model,
        plan,
        policy,
        played,
        board,
        RestartInGroup(GroupEpoch(0, world.size)),  # torchrun replaces all ranks, none alone
        [graph.new_row() for _ in range(world.size)],
        metrics_sync=MetricsSync(graph.counters, played, known if leads else None),
    )
    join = rendezvous.of_group(backend, config.rank_timeout, device)
    node, exchange, weights = add_rank(context, join, world.local_rank)
    results, evaluation = (
        add_evaluators(graph, config, weights, new_model, "rank 0") if leads else (None, ())
    )
    group = PolicyGroup(
        policy.id,
        (node,),
        exchange,
        weights,
        plan.max_policy_lag,
        synchronous=True,
        evaluations=results,
        resources=(board,),
    )
    wired = graph.build(
        groups=[group],
        edges=[*edges(world.size), *evaluation],
        notes=[
            *notes(config, plan, spec, note),
            f"rendezvous at {world.store}",
        ],
        episodes=known,
        progress=AgreedProgress(**vars(graph.progress), ranks=(world.rank,)),
    )
    if world.attempt and leads:
        wired.counters.row(0)["restarts"] += 1
    return wired
