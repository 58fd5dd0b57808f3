"""Runs under torchrun: this process is one of the ranks, and rank 0 has the session."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from sampleforge.config import ConfigError, difference, from_plain, to_plain
from sampleforge.run.callback import callbacks_of
from sampleforge.run.deployment import LeadingRank, rank_info, rendezvous_of
from sampleforge.run.ending import describe
from sampleforge.run.folder.stored_config import REPORTS, with_own_code
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.runtime.torchrun import World
from sampleforge.topologies.config import AnyConfig, RanksRunConfig

if TYPE_CHECKING:
    from sampleforge.peers.rendezvous import StartupRendezvous
    from sampleforge.shared.events import Event
    from sampleforge.topologies.graph import Graph

RANK_FIELDS = {
    "device",
    "precision",
    "learner_threads",
    "set_workers_cpu_affinity",
    "worker_niceness",
    "env_timeout",
}
"""Config fields that each rank sets for itself, and that may differ between ranks."""
LEADER_FIELDS = {*REPORTS, "run_dir", "resume", "num_ranks", "quiet", "stop"}
"""Config fields that only rank 0 reads."""
POLL = 0.5
"""Seconds between two checks of a following rank whether training has ended."""


def run_rank(config: AnyConfig, world: World, run: Callable[..., int]) -> int:
    """Run this process as a rank of ``world`` until the training ends; return the exit code.
    ``run(config, deployment)`` runs the session of rank 0. Raises ConfigError."""
    from sampleforge.topologies.ranks.plan import check_world

    ours = check_world(config, world)
    return run(ours, LeadingRank(ours, world)) if world.rank == 0 else follow(ours, world)


def follow(config: RanksRunConfig, world: World) -> int:
    """Run any other rank than rank 0 until training ends; return the exit code."""
    from sampleforge.env.user_code import make_cwd_importable
    from sampleforge.run.own_code import has_own_code
    from sampleforge.runners.base import RunnerContext
    from sampleforge.runners.in_process import InProcessRunner

    interrupts = Interrupts(lambda: None)

    def interrupted() -> bool:
        return interrupts.received is not None

    has_begun = False
    try:
        with interrupts:
            make_cwd_importable()
            rendezvous = rendezvous_of(config, world)
            message = rendezvous.follow(rank_info(config, world, rendezvous))
            interrupts.defer()
            graph = follower_graph(config, message, rendezvous)
            ticker = graph.new_ticker()
            context = RunnerContext(
                config.env_timeout,
                keeps_directory=has_own_code(config),
                is_interrupted=interrupted,
                age=ticker.age,
            )
            runner = InProcessRunner(graph, rendezvous, context)
            try:
                has_begun = True
                ticker.start()
                runner.start()
                reported = False
                while not graph.progress.done and not interrupted():
                    runner.poll(POLL)
                    reported = reported or report_fault(graph, world)
            finally:
                runner.close()
                ticker.close()
                report_events(runner.take_events(), world)
    except ConfigError as error:
        if has_begun:
            error.exit_code = 1
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


def report_events(events: Iterable[Event], world: World) -> None:
    """Print the log lines among the ``events`` of this rank that it has not sent to rank 0: those
    since its last update."""
    for event in events:
        if event.kind == "log":
            print(f"{rank_name(world)}: {event.payload[1]}", file=sys.stderr)


def rank_name(world: World) -> str:
    """Return the name of this rank in messages."""
    return f"rank {world.rank} of {world.size}, on {socket.gethostname()}"


def follower_graph(
    config: RanksRunConfig, message: dict[str, Any], rendezvous: StartupRendezvous
) -> Graph:
    """Return the graph of this rank for the run of rank 0, given rank 0's ``message``. Raises
    ConfigError if this rank was started with other settings."""
    from sampleforge.env.spec_json import spec_from_plain
    from sampleforge.run.beginning import plan_run
    from sampleforge.topologies.policy_roles import ONLY_POLICY
    from sampleforge.topologies.registry import pairing_over
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
    kept = {name: own[name] for name in RANK_FIELDS}
    leaders = from_plain(type(config), {**message["config"], **kept}, "the config of rank 0")
    config = with_own_code(leaders, config)  # so that a forged message cannot run code here
    spec, chosen = spec_from_plain(message["spec"]), pairing_over(config, rendezvous)
    assert config.seed is not None
    start = ResumePoint(config.seed, message["resumes"], message["env_steps"], message["wall_s"])
    plan = plan_run(chosen, config, spec)
    callbacks = for_workers(callbacks_of((), config.callbacks), processes=False)
    policy = PolicyStart(ONLY_POLICY, start, never_saves)
    return plan.wire(start, [policy], hooks=RunHooks(callbacks, (ONLY_POLICY,)))


def without(config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the config without the fields ``names``."""
    return {name: value for name, value in config.items() if name not in names}


def never_saves(tensors: dict[str, Any], state: dict[str, Any]) -> None:
    """Stand for the function that writes checkpoints, in ranks that write none."""
    raise AssertionError("rank 0 alone is asked to save")
