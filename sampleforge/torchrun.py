"""A run whose ranks torchrun has started: this process is one of them; rank 0 has the session."""

from __future__ import annotations

import dataclasses
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge import __version__
from sampleforge.config import ConfigError, difference, from_plain, to_plain
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.runtime.machine import resolve_device
from sampleforge.runtime.torchrun import World
from sampleforge.session.deployment import processes
from sampleforge.session.session import Session, describe
from sampleforge.topologies.config import AnyConfig, DdppoConfig

if TYPE_CHECKING:
    from sampleforge.distributed.rendezvous import StartupRendezvous
    from sampleforge.runners.base import Runner
    from sampleforge.runners.in_process import InProcessRunner
    from sampleforge.topologies.graph import Graph
    from sampleforge.topologies.registry import Topology

START_GRACE = 120.0
"""Seconds beyond --rank-timeout for all to come at the start: hosts differ in what imports take."""
OF_THE_HOST = {
    *("device", "precision", "learner_threads", "set_workers_cpu_affinity", "worker_niceness"),
    "env_timeout",
}
"""Fields that may differ between ranks, and are each rank's own."""
OF_THE_DRIVER = {
    *("run_dir", "resume", "num_ranks", "quiet", "report_interval", "checkpoint_interval"),
    *("keep_checkpoints", "milestone_interval", "evaluate_interval", "evaluate_episodes"),
    "evaluate_stochastic",
}
"""Fields that only rank 0 looks at."""
POLL = 0.5


def run_rank(config: AnyConfig, world: World, run: Callable[..., int]) -> int:
    """Be a rank of ``world`` until the training ends; returns the exit code. ``run(config,
    deployment)`` runs rank 0, which has the session. Raises ConfigError."""
    from sampleforge.topologies.ddppo.torchrun import check_world

    ours = check_world(config, world)
    return run(ours, LeadingRank(ours, world)) if world.rank == 0 else follow(ours, world)


class LeadingRank:
    """The deployment of a session in rank 0's process: the other ranks are not its children."""

    has_workers_here = True
    by_env_steps = False

    def __init__(self, config: DdppoConfig, world: World) -> None:
        self._world = world
        self._rendezvous = rendezvous_of(config, world)

    def topology(self, session: Session) -> Topology:
        """Meet the other ranks, and tell them what rank 0 has found in its run folder."""
        from sampleforge.env.spec_json import spec_to_plain

        config, earlier = session.config, session.opened.earlier
        assert isinstance(config, DdppoConfig)
        message = {
            "asked": to_plain(session.asked),
            "config": to_plain(config),
            "spec": spec_to_plain(session.spec),
            "resumes": earlier.get("resumes", -1) + 1,
            "env_steps": earlier.get("env_steps", 0),
            "wall_s": earlier.get("wall_s", 0.0),
        }
        self._rendezvous.lead(message, about(config, self._world, self._rendezvous))
        return topology_of(self._rendezvous)

    def notices(self, session: Session) -> list[str]:
        world = self._world
        if not world.attempt:
            return []
        where = f"it goes on from {session.resume_point.env_steps:,} env steps"
        if not session.opened.earlier:
            where = "no checkpoint had been written (--checkpoint-interval): it begins anew"
        times = f"{world.attempt} of {world.max_attempts} times"
        return [f"torchrun has started all ranks again ({times}); {where}"]

    def runner(self, session: Session, graph: Graph) -> Runner:
        """The rank in this process; its evaluator, if it has one, in another."""
        from sampleforge.runners.composite import CompositeRunner
        from sampleforge.runtime.processes import start_fork_server

        rank = runner_of(
            graph,
            self._rendezvous,
            session.folder.scratch,
            session.is_interrupted,
            session.config.env_timeout,
            session.ticker.age,
        )
        beside = graph.having("evaluator")
        if not beside:
            return rank
        start_fork_server()  # not before: this process is pinned to a core when its rank starts
        return CompositeRunner(rank, processes(session, graph, beside))

    def saves_after(self, error: BaseException) -> bool:
        """Where the next start goes on. Whatever rank was lost, every gradient step so far came
        after a complete sum of gradients."""
        from sampleforge.distributed.group import RankLost

        return isinstance(error, RankLost)


def follow(config: DdppoConfig, world: World) -> int:
    """The life of any other rank."""
    from sampleforge.env.scratch import make_cwd_importable

    interrupts = Interrupts(lambda: None)

    def interrupted() -> bool:
        return interrupts.received is not None

    try:
        with interrupts:
            make_cwd_importable()
            rendezvous = rendezvous_of(config, world)
            message = rendezvous.follow(about(config, world, rendezvous))
            interrupts.defer()
            graph = follower_graph(config, message, rendezvous)
            ticker = graph.new_ticker()
            runner = runner_of(graph, rendezvous, None, interrupted, config.env_timeout, ticker.age)
            try:
                ticker.start()
                runner.start()
                told = False
                while not graph.progress.done and not interrupted():
                    runner.poll(POLL)
                    told = told or tell_of_fault(graph, world)
            finally:
                runner.close()
                ticker.close()
    except ConfigError:
        raise
    except Exception as error:
        print(f"{whoami(world)}:\n{describe(error)}", file=sys.stderr)
        return 1
    return interrupts.exit_code


def tell_of_fault(graph: Graph, world: World) -> bool:
    """Show the first error that an environment of this rank raised; False if there is none. Rank 0
    counts those of all ranks, but has no texts of other hosts."""
    text = graph.counters.first_fault.get()
    if text is not None:
        print(
            f"{whoami(world)}: an environment raised an error; it was rebuilt, and its episode is "
            f"dropped. The first traceback:\n\n{text}",
            file=sys.stderr,
        )
    return text is not None


def whoami(world: World) -> str:
    return f"rank {world.rank} of {world.size}, on {socket.gethostname()}"


def rendezvous_of(config: DdppoConfig, world: World) -> StartupRendezvous:
    from sampleforge.distributed.rendezvous import StartupRendezvous

    return StartupRendezvous(world, config.rank_timeout + START_GRACE)


def about(config: DdppoConfig, world: World, rendezvous: StartupRendezvous) -> dict[str, Any]:
    """What a rank says of itself before it begins; see `rendezvous.peer_mismatch`."""
    from sampleforge.topologies.ddppo.torchrun import backend_and_device

    return {
        "host": socket.gethostname(),
        "address": rendezvous.address,
        "version": __version__,
        "backend": backend_and_device(resolve_device(config.device), world)[0],
        "checkpoint": latest_checkpoint(config),
    }


def latest_checkpoint(config: DdppoConfig) -> int:
    """Env steps of the latest checkpoint that this host's run folder has, -1 for none."""
    if config.run_dir is None:
        return -1
    found = Path(config.run_dir, "checkpoints").glob("*.safetensors")
    steps = [path.name.partition("-")[0] for path in found]
    return max((int(text) for text in steps if text.isdecimal()), default=-1)


def follower_graph(
    config: DdppoConfig, message: dict[str, Any], rendezvous: StartupRendezvous
) -> Graph:
    """The graph of this rank, for the run that rank 0 has begun. Raises ConfigError if this rank
    was started with another command."""
    from sampleforge.env.spec_json import spec_from_plain
    from sampleforge.models.registry import resolve_encoder
    from sampleforge.topologies.builders import PolicyStart, ResumePoint
    from sampleforge.topologies.config import ONLY_POLICY

    own = to_plain(config)
    changed = difference(
        *(without(c, OF_THE_HOST | OF_THE_DRIVER) for c in (message["asked"], own))
    )
    if changed:
        lines = "\n  ".join(changed)
        raise ConfigError(
            f"{whoami(rendezvous.world)}, was started with other settings than rank 0 (rank 0's -> "
            f"this one's):\n  {lines}\ngive all ranks the same command"
        )
    from sampleforge.folder.stored_config import with_own_code

    kept = {name: own[name] for name in OF_THE_HOST}
    led = from_plain(DdppoConfig, {**message["config"], **kept}, "the config of rank 0")
    config = with_own_code(led, config)  # a forged message makes no code run here
    spec, chosen = spec_from_plain(message["spec"]), topology_of(rendezvous)
    assert config.seed is not None
    start = ResumePoint(config.seed, message["resumes"], message["env_steps"], message["wall_s"])
    resolved = chosen.resolve_defaults(config, spec)
    assert isinstance(resolved, DdppoConfig)
    config = resolved
    plan = chosen.plan(config, spec, resolve_device(config.device))
    model = resolve_encoder(config.model, spec.observations)
    config = dataclasses.replace(config, model=model, batch_size=plan.batch_size)
    return chosen.wire(config, plan, spec, start, [PolicyStart(ONLY_POLICY, start, never_saves)])


def without(config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def never_saves(tensors: dict[str, Any], state: dict[str, Any]) -> None:
    raise AssertionError("rank 0 alone is asked to save")


def topology_of(rendezvous: StartupRendezvous) -> Topology:
    """DD-PPO over ranks that have met."""
    from sampleforge.topologies.ddppo.plan import plan_ddppo
    from sampleforge.topologies.ddppo.torchrun import ddppo_world
    from sampleforge.topologies.registry import topology

    return dataclasses.replace(
        topology(DdppoConfig()),
        plan=partial(plan_ddppo, world=rendezvous.world),
        wire=partial(ddppo_world, rendezvous=rendezvous),
    )


def runner_of(
    graph: Graph,
    rendezvous: StartupRendezvous,
    scratch: Path | None,
    interrupted: Callable[[], bool],
    step_timeout: float,
    age: Callable[[float], float],
) -> InProcessRunner:
    from sampleforge.runners.in_process import InProcessRunner

    return InProcessRunner(graph, rendezvous, scratch, interrupted, step_timeout, age)
