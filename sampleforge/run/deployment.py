"""Where the workers of a session run: on this machine, in processes or serially."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sampleforge.runtime.imports import import_beside
from sampleforge.runtime.processes import start_fork_server
from sampleforge.topologies.config_classes import run_modules

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.runners.base import Runner, RunnerContext
    from sampleforge.spec import EnvSpec
    from sampleforge.topologies.config import AnyConfig
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
        return not isinstance(error, OSError) or isinstance(error, TimeoutError)


def try_environment(config: AnyConfig, deployment: Deployment) -> EnvSpec:
    """Return the spec of the environment of a config, which is tried in a process of its own; the
    modules of the run are imported meanwhile, here and in the fork server. Raises EnvProbeError if
    it does not work."""
    modules = run_modules(config)
    if not deployment.has_workers_here:
        start_fork_server(modules)
    from sampleforge.env.scratch import make_cwd_importable

    make_cwd_importable()  # the user's environment, encoder and callbacks may lie there
    wait_for_imports = import_beside(*modules)
    from sampleforge.env.probe import probe

    spec = probe(config)
    wait_for_imports()
    return spec


def runner_context(session: Session) -> RunnerContext:
    """Return what a runner is given by a session."""
    from sampleforge.runners.base import RunnerContext
    from sampleforge.workers.worker import WorkerContext

    return RunnerContext(
        session.config.env_timeout,
        WorkerContext(session.folder.log_file, session.folder.scratch),
        alert=session.restarted,
        note=session.note,
        is_interrupted=session.is_interrupted,
        age=session.ticker.age,
    )
