"""Runs under torchrun: this process is one of the ranks, and rank 0 has the session."""

from __future__ import annotations

import dataclasses
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.config import ConfigError, difference, from_plain, to_plain
from sampleforge.run.callback import named_callbacks
from sampleforge.run.deployment import runner_context
from sampleforge.run.ending import describe
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.runtime.machine import resolve_device
from sampleforge.runtime.torchrun import World
from sampleforge.topologies.config import AnyConfig, RanksRunConfig
from sampleforge.topologies.config_classes import run_modules
from sampleforge.version import __version__

if TYPE_CHECKING:
    from sampleforge.peers.rendezvous import StartupRendezvous
    from sampleforge.run.session import Session
    from sampleforge.runners.base import Runner
    from sampleforge.spec import EnvSpec
    from sampleforge.topologies.graph import Graph
    from sampleforge.topologies.registry import Pairing
    from sampleforge.topologies.starts import ResumePoint

START_GRACE = 120.0
"""Seconds beyond --rank-timeout within which all ranks must join at the start, because imports take
different times on different hosts."""
RANK_FIELDS = {
    "device",
    "precision",
    "learner_threads",
    "set_workers_cpu_affinity",
    "worker_niceness",
    "env_timeout",
}
"""Config fields that each rank sets for itself, and that may differ between ranks."""
LEADER_FIELDS = {
    "run_dir",
    "resume",
    "num_ranks",
    "quiet",
    "report_interval",
    "checkpoint_interval",
    "keep_checkpoints",
    "milestone_interval",
    "evaluate_interval",
    "evaluate_episodes",
    "evaluate_stochastic",
    "num_evaluators",
    "evaluation_env",
    "evaluation_env_kwargs",
    "evaluation_function",
    "metrics_window",
    "stop",
    "track",
    "track_project",
    "track_name",
    "track_group",
}
"""Config fields that only rank 0 reads."""
POLL = 0.5
"""Seconds between two checks of a following rank whether training has ended."""


def run_rank(config: AnyConfig, world: World, run: Callable[..., int]) -> int:
    """Run this process as a rank of ``world`` until the training ends; return the exit code.
    ``run(config, deployment)`` runs the session of rank 0. Raises ConfigError."""
    from sampleforge.topologies.ranks import check_world

    ours = check_world(config, world)
    return run(ours, LeadingRank(ours, world)) if world.rank == 0 else follow(ours, world)


class LeadingRank:
    """The deployment of the session in rank 0, whose other ranks are not its child processes."""

    has_workers_here = True
    by_env_steps = False
    shares_memory = False

    def __init__(self, config: RanksRunConfig, world: World) -> None:
        self._config = config
        self._world = world
        self._rendezvous = rendezvous_of(config, world)

    def pairing(
        self, asked: AnyConfig, config: AnyConfig, spec: EnvSpec, start: ResumePoint
    ) -> Pairing:
        """Wait for the other ranks, send them config, spec and progress of the run, and return the
        algorithm, wired over these ranks."""
        from sampleforge.env.spec_json import spec_to_plain

        assert isinstance(config, RanksRunConfig)
        message = {
            "asked": to_plain(asked),
            "config": to_plain(config),
            "spec": spec_to_plain(spec),
            "resumes": start.resumes,
            "env_steps": start.env_steps,
            "wall_s": start.wall_s,
        }
        self._rendezvous.lead(message, rank_info(config, self._world, self._rendezvous))
        return pairing_of(config, self._rendezvous)

    def notices(self, resumed: int | None) -> list[str]:
        world = self._world
        if not world.attempt:
            return []
        start = "training starts anew: there was no checkpoint (--checkpoint-interval)"
        if resumed is not None:
            start = f"training resumes at {resumed:,} env steps"
        times = f"{world.attempt} of {world.max_attempts} times"
        return [f"torchrun has restarted all ranks ({times}); {start}"]

    def runner(self, graph: Graph, session: Session) -> Runner:
        """Return the runner of the rank in this process, and of its evaluator, if there is one, in
        another process."""
        from sampleforge.runners.in_process import CompositeRunner, InProcessRunner
        from sampleforge.runners.processes import ProcessRunner
        from sampleforge.runtime.processes import start_fork_server

        context = runner_context(session)
        rank = InProcessRunner(graph, self._rendezvous, context)
        beside = graph.having("evaluator")
        if not beside:
            return rank
        start_fork_server(run_modules(self._config))
        return CompositeRunner(rank, ProcessRunner(graph, context, beside))

    def saves_after(self, error: BaseException) -> bool:
        """Return whether to write a checkpoint after ``error``, for the restart by torchrun. After
        the loss of a rank the weights are valid: every gradient step had a complete sum of
        gradients."""
        from sampleforge.peers.group import RankLost

        return isinstance(error, RankLost)


def follow(config: RanksRunConfig, world: World) -> int:
    """Run any other rank than rank 0 until training ends; return the exit code."""
    from sampleforge.env.scratch import make_cwd_importable
    from sampleforge.runners.base import RunnerContext
    from sampleforge.runners.in_process import InProcessRunner

    interrupts = Interrupts(lambda: None)

    def interrupted() -> bool:
        return interrupts.received is not None

    try:
        with interrupts:
            make_cwd_importable()
            rendezvous = rendezvous_of(config, world)
            message = rendezvous.follow(rank_info(config, world, rendezvous))
            interrupts.defer()
            graph = follower_graph(config, message, rendezvous)
            ticker = graph.new_ticker()
            context = RunnerContext(config.env_timeout, is_interrupted=interrupted, age=ticker.age)
            runner = InProcessRunner(graph, rendezvous, context)
            try:
                ticker.start()
                runner.start()
                reported = False
                while not graph.progress.done and not interrupted():
                    runner.poll(POLL)
                    reported = reported or report_fault(graph, world)
            finally:
                runner.close()
                ticker.close()
    except ConfigError:
        raise
    except Exception as error:
        print(f"{rank_name(world)}:\n{describe(error)}", file=sys.stderr)
        return 1
    return interrupts.exit_code


def report_fault(graph: Graph, world: World) -> bool:
    """Print the first error that an environment of this rank has raised; return False if there is
    none. Rank 0 counts the errors of all ranks, but does not have their tracebacks."""
    text = graph.counters.first_fault.get()
    if text is not None:
        print(
            f"{rank_name(world)}: an environment raised an error; it was rebuilt, and its episode "
            f"is dropped. The first traceback:\n\n{text}",
            file=sys.stderr,
        )
    return text is not None


def rank_name(world: World) -> str:
    """Return the name of this rank in messages."""
    return f"rank {world.rank} of {world.size}, on {socket.gethostname()}"


def rendezvous_of(config: RanksRunConfig, world: World) -> StartupRendezvous:
    """Return a new rendezvous of the ranks of ``world``."""
    from sampleforge.peers.rendezvous import StartupRendezvous

    return StartupRendezvous(world, config.rank_timeout + START_GRACE)


def rank_info(
    config: RanksRunConfig, world: World, rendezvous: StartupRendezvous
) -> dict[str, Any]:
    """Return the values that this rank sends to rank 0 before it starts, which
    `rendezvous.peer_mismatch` compares."""
    from sampleforge.topologies.ranks import backend_and_device

    return {
        "host": socket.gethostname(),
        "address": rendezvous.address,
        "version": __version__,
        "backend": backend_and_device(resolve_device(config.device), world)[0],
        "checkpoint": latest_checkpoint(config),
    }


def latest_checkpoint(config: RanksRunConfig) -> int:
    """Return the env steps of the latest checkpoint in this host's run folder; -1 if there is
    none."""
    if config.run_dir is None:
        return -1
    files = Path(config.run_dir, "checkpoints").glob("*.safetensors")
    steps = [path.name.partition("-")[0] for path in files]
    return max((int(text) for text in steps if text.isdecimal()), default=-1)


def follower_graph(
    config: RanksRunConfig, message: dict[str, Any], rendezvous: StartupRendezvous
) -> Graph:
    """Return the graph of this rank for the run of rank 0, given rank 0's ``message``. Raises
    ConfigError if this rank was started with other settings."""
    from sampleforge.env.spec_json import spec_from_plain
    from sampleforge.run.beginning import plan_run
    from sampleforge.topologies.config import ONLY_POLICY
    from sampleforge.topologies.starts import PolicyStart, ResumePoint
    from sampleforge.workers.callback import RunHooks, for_workers

    own = to_plain(config)
    changed = difference(
        *(without(c, RANK_FIELDS | LEADER_FIELDS) for c in (message["asked"], own))
    )
    if changed:
        lines = "\n  ".join(changed)
        raise ConfigError(
            f"{rank_name(rendezvous.world)}, was started with other settings than rank 0 (rank 0 "
            f"-> this rank):\n  {lines}\ngive all ranks the same command"
        )
    from sampleforge.run.folder.stored_config import with_own_code

    kept = {name: own[name] for name in RANK_FIELDS}
    leaders = from_plain(type(config), {**message["config"], **kept}, "the config of rank 0")
    config = with_own_code(leaders, config)  # so that a forged message cannot run code here
    spec, chosen = spec_from_plain(message["spec"]), pairing_of(config, rendezvous)
    assert config.seed is not None
    start = ResumePoint(config.seed, message["resumes"], message["env_steps"], message["wall_s"])
    plan = plan_run(chosen, config, spec)
    callbacks = for_workers(named_callbacks(config.callbacks), processes=False)
    policy = PolicyStart(ONLY_POLICY, start, never_saves)
    return plan.wire(start, [policy], hooks=RunHooks(callbacks, (ONLY_POLICY,)))


def without(config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the config without the fields ``names``."""
    return {name: value for name, value in config.items() if name not in names}


def never_saves(tensors: dict[str, Any], state: dict[str, Any]) -> None:
    """Stand for the function that writes checkpoints, in ranks that write none."""
    raise AssertionError("rank 0 alone is asked to save")


def pairing_of(config: RanksRunConfig, rendezvous: StartupRendezvous) -> Pairing:
    """Return the algorithm over the ranks of a rendezvous that is complete."""
    from sampleforge.topologies.ranks import wire_world
    from sampleforge.topologies.ranks_plan import plan_ranks
    from sampleforge.topologies.registry import pairing

    chosen = pairing(config)
    over_ranks = dataclasses.replace(
        chosen.topology,
        plan=partial(plan_ranks, world=rendezvous.world),
        wire=partial(wire_world, rendezvous=rendezvous),
    )
    return dataclasses.replace(chosen, topology=over_ranks)
