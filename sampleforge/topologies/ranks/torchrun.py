"""Ranks under torchrun: the graph of one rank, which shares no memory with the other ranks."""

from __future__ import annotations

from collections.abc import Sequence

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError, typed
from sampleforge.peers.boards import GroupEpoch, StoreBoard
from sampleforge.peers.rendezvous import StartupRendezvous, WorldRendezvous
from sampleforge.peers.torch_group import Backend
from sampleforge.runtime.torchrun import World
from sampleforge.shared.counters import AgreedProgress
from sampleforge.shared.records import EpisodeList
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import NetworkMaker
from sampleforge.topologies.config import AnyConfig, RanksRunConfig
from sampleforge.topologies.evaluator import AddedEvaluators, add_evaluators
from sampleforge.topologies.graph import Graph, GraphBuilder, PolicyGroup
from sampleforge.topologies.ranks.rank import RankContext, add_rank
from sampleforge.topologies.ranks.wire import edges, notes, single_policy
from sampleforge.topologies.rendezvous import choose_backend, member_devices
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.topologies.starts import PolicyStart, ResumePoint
from sampleforge.workers.callback import NO_HOOKS, RunHooks
from sampleforge.workers.rank_sync import MetricsSync


def check_world(config: AnyConfig, world: World) -> RanksRunConfig:
    """Return the config as that of a rank of ``world``. Raises ConfigError if such a run is not
    possible under torchrun."""
    if not isinstance(config, RanksRunConfig):
        raise ConfigError(
            f"WORLD_SIZE is {world.size}, as torchrun sets it, but {config.algo} is of one "
            "machine, and every process would train by itself; use ddppo, or start it without "
            "torchrun"
        )
    if config.num_ranks not in (None, world.size):
        raise ConfigError(
            f"--num-ranks is {config.num_ranks} (as asked for, or by the preset), but WORLD_SIZE "
            f"is {world.size}; under torchrun leave it out, or give --num-ranks None"
        )
    if config.record is not None:
        raise ConfigError(
            f"{typed('record', config.record)}: ranks that torchrun starts share no memory with a "
            "recorder; leave it out, or use --num-ranks instead of torchrun"
        )
    for name in ("serial", "benchmark"):
        if getattr(config, name):
            raise ConfigError(
                f"--{name} is for one machine without torchrun, which has set WORLD_SIZE to "
                f"{world.size}; leave it out, or use --num-ranks instead of torchrun"
            )
    if world.max_attempts and config.run_dir is None:
        raise ConfigError(
            f"torchrun may start the ranks again {world.max_attempts} times (--max-restarts), but "
            "without --run-dir each start has a new folder and finds no checkpoint; give --run-dir"
        )
    return config


def backend_and_device(device: str, world: World) -> tuple[Backend, str, str]:
    """Return (the backend, the reason for it as text, this rank's device)."""
    devices = member_devices(device, world.local_size)
    backend, why = choose_backend(devices)
    return backend, why, devices[world.local_rank]


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
    backend, why, device = backend_and_device(plan.device, world)
    board = StoreBoard(rendezvous.another_store(), world.rank, world.size)
    context = RankContext(
        graph,
        new_model,
        plan,
        policy,
        played,
        board,
        GroupEpoch(0, world.size),  # no rank is replaced alone: torchrun restarts all of them
        [graph.new_row() for _ in range(world.size)],
        metrics_sync=MetricsSync(graph.counters, played, known if leads else None),
    )
    join = WorldRendezvous(rendezvous, backend, config.rank_timeout, device)
    node, exchange, weights = add_rank(context, join, world.local_rank)
    evaluation = AddedEvaluators()
    if leads:
        evaluation = add_evaluators(graph, config, weights, new_model, "rank 0")
    group = PolicyGroup(
        policy.id,
        (node,),
        exchange,
        weights,
        plan.max_policy_lag,
        synchronous=True,
        evaluations=evaluation.results,
        resources=(board,),
    )
    wired = graph.build(
        groups=[group],
        edges=[*edges(world.size), *evaluation.edges],
        notes=[
            *notes(config, plan, spec, f"gradients through {why}"),
            f"rendezvous at {world.store}",
        ],
        episodes=known,
        progress=AgreedProgress(**vars(graph.progress), ranks=(world.rank,)),
    )
    if world.attempt and leads:
        wired.counters.row(0)["restarts"] += 1
    return wired
