"""Where the workers of a session run: on this machine, in processes or serially, or as the ranks
that torchrun has started, of which the session has rank 0."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.config import to_plain
from sampleforge.runtime.imports import import_beside
from sampleforge.runtime.machine import resolve_device
from sampleforge.runtime.processes import check_may_have_children, start_fork_server
from sampleforge.runtime.torchrun import World
from sampleforge.topologies.config import AnyConfig, RanksRunConfig
from sampleforge.topologies.config_classes import run_modules
from sampleforge.version import __version__

if TYPE_CHECKING:
    from sampleforge.peers.rendezvous import StartupRendezvous
    from sampleforge.run.session import Session
    from sampleforge.runners.base import Runner, RunnerContext
    from sampleforge.spec import EnvSpec
    from sampleforge.topologies.graph import Graph
    from sampleforge.topologies.registry import Pairing
    from sampleforge.topologies.starts import ResumePoint


class Deployment:
    """Where the workers of a session run: here all of them are processes of this machine, or with
    ``serial`` take turns in this one.

    ``has_workers_here``: some workers run in the session's own process, as they do with --serial
    and under torchrun. ``by_env_steps``: reports are spaced by env steps, to be deterministic.
    ``shares_memory``: all workers can see the shared memory of the session's process.
    """

    shares_memory = True

    def __init__(self, *, serial: bool) -> None:
        self.has_workers_here = self.by_env_steps = serial

    def try_environment(self, config: AnyConfig) -> EnvSpec:
        """Return the spec of the environment of a config, which is tried in a process of its own;
        the modules of the run are imported meanwhile, here and in the fork server. Raises
        EnvProbeError if it does not work, ConfigError if this process can start no workers."""
        modules = run_modules(config)
        if not self.has_workers_here:
            check_may_have_children()
            start_fork_server(modules)
        from sampleforge.env.user_code import make_cwd_importable

        make_cwd_importable()  # the user's environment, encoder and callbacks may lie there
        wait_for_imports = import_beside(*modules)
        from sampleforge.env.probe import probe

        spec = probe(config)
        wait_for_imports()
        return spec

    def pairing(
        self, asked: AnyConfig, config: AnyConfig, spec: EnvSpec, start: ResumePoint
    ) -> Pairing:
        """Return the algorithm and its topology, once the run folder is open and the environment
        is known. ``asked``: the config as the user gave it; ``start``: where the run begins."""
        from sampleforge.topologies.registry import pairing

        return pairing(config)

    def runner(self, graph: Graph, session: Session) -> Runner:
        """Return what runs ``graph``: the session's, or a benchmark's of its simulators."""
        if self.has_workers_here:
            from sampleforge.runners.serial import SerialRunner

            return SerialRunner(graph)
        from sampleforge.runners.processes import ProcessRunner

        return ProcessRunner(graph, runner_context(session))

    def notices(self, resumed: int | None) -> list[str]:
        """Return what the user is to know before the workers start. ``resumed``: env steps of the
        earlier runs of the folder (None: there is none)."""
        return []

    def saves_after(self, error: BaseException) -> bool:
        """Whether a checkpoint can be written after ``error``: the state is whole, as far as the
        learner has it, and there is a place to write it to."""
        from sampleforge.run.folder.files import CannotWrite

        return not isinstance(error, CannotWrite)


def runner_context(session: Session) -> RunnerContext:
    """Return what a runner is given by a session."""
    from sampleforge.runners.base import RunnerContext

    return RunnerContext(
        session.config.env_timeout,
        session.folder.scratch,
        session.has_own_code,
        session.definitions,
        alert=session.restarted,
        note=session.note,
        is_interrupted=session.is_interrupted,
        age=session.ticker.age,
    )


START_GRACE = 120.0
"""Seconds beyond --rank-timeout within which all ranks must join at the start, because imports take
different times on different hosts."""


class LeadingRank(Deployment):
    """The deployment of the session in rank 0, whose other ranks are not its child processes."""

    shares_memory = False

    def __init__(self, config: RanksRunConfig, world: World) -> None:
        self.has_workers_here, self.by_env_steps = True, False
        self._config = config
        self._world = world
        self._rendezvous = rendezvous_of(config, world)

    def pairing(
        self, asked: AnyConfig, config: AnyConfig, spec: EnvSpec, start: ResumePoint
    ) -> Pairing:
        """Wait for the other ranks, send them config, spec and progress of the run, and return the
        algorithm, wired over these ranks."""
        from sampleforge.env.spec_json import spec_to_plain
        from sampleforge.topologies.registry import pairing_over
        from sampleforge.topologies.sampler_plan import pays_on_gpu

        assert isinstance(config, RanksRunConfig)
        message = {
            "asked": to_plain(asked),
            "config": to_plain(config),
            "spec": spec_to_plain(spec),
            "resumes": start.resumes,
            "env_steps": start.env_steps,
            "wall_s": start.wall_s,
        }
        about = rank_info(config, self._world, self._rendezvous)
        if config.device == "auto" and not pays_on_gpu(config, spec):
            about["backend"] = None  # all learn on their CPUs, whatever GPUs there are
        self._rendezvous.lead(message, about)
        return pairing_over(config, self._rendezvous)

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


def rendezvous_of(config: RanksRunConfig, world: World) -> StartupRendezvous:
    """Return a new rendezvous of the ranks of ``world``."""
    from sampleforge.peers.rendezvous import StartupRendezvous

    return StartupRendezvous(world, config.rank_timeout + START_GRACE)


def rank_info(
    config: RanksRunConfig, world: World, rendezvous: StartupRendezvous
) -> dict[str, Any]:
    """Return the values that this rank sends to rank 0 before it starts, which
    `rendezvous.peer_mismatch` compares."""
    from sampleforge.topologies.devices import backend_and_device

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
