"""Where the workers of a session run: on this machine, in processes or serially."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sampleforge.runners.base import Runner
    from sampleforge.spec import EnvSpec
    from sampleforge.topologies.config import AnyConfig
    from sampleforge.topologies.graph import Graph, Node
    from sampleforge.topologies.registry import Pairing
    from sampleforge.topologies.starts import ResumePoint
    from sampleforge.workers.worker import WorkerContext


@dataclass(frozen=True)
class RunnerContext:
    """What a runner is given by the session. ``workers``: of their processes; ``env_timeout``: see
    `EnvConfig`; ``restarted`` and ``note`` take a message, of a restart or for the log;
    ``is_interrupted``: whether the session ends within seconds; ``age``: see `ClockTicker`."""

    workers: WorkerContext
    env_timeout: float
    restarted: Callable[[str], None]
    note: Callable[[str], None]
    is_interrupted: Callable[[], bool]
    age: Callable[[float], float]


class Deployment(Protocol):
    """What differs between a session on one machine and one whose ranks torchrun has started.

    ``has_workers_here``: some workers run in the session's own process, as they do under torchrun
    and with --serial. ``by_env_steps``: reports are spaced by env steps, to be deterministic.
    ``shares_memory``: all workers can see the shared memory of the session's process.
    """

    has_workers_here: bool
    by_env_steps: bool
    shares_memory: bool

    def pairing(
        self, asked: AnyConfig, config: AnyConfig, spec: EnvSpec, start: ResumePoint
    ) -> Pairing:
        """Return the algorithm and its topology, once the run folder is open and the environment
        is known. ``asked``: the config as the user gave it; ``start``: where the run begins."""

    def runner(self, graph: Graph, context: RunnerContext) -> Runner:
        """Return what runs ``graph``: the session's, or a benchmark's of its simulators."""

    def notices(self, resumed: int | None) -> list[str]:
        """Return what the user is to know before the workers start. ``resumed``: env steps of the
        earlier runs of the folder (None: there is none)."""

    def saves_after(self, error: BaseException) -> bool:
        """Whether a checkpoint can be written after ``error``: the state is whole, as far as the
        learner has it, and there is a place to write it to."""


def processes(graph: Graph, context: RunnerContext, nodes: Sequence[Node] | None = None) -> Runner:
    """Return a runner that gives each worker of ``graph``, or of ``nodes``, a process."""
    from sampleforge.runners.processes import ProcessRunner

    return ProcessRunner(
        graph,
        context.workers,
        context.env_timeout,
        context.restarted,
        context.note,
        context.is_interrupted,
        nodes,
        age=context.age,
    )


class OneMachine:
    """All workers are processes of this machine, or with ``serial`` take turns in this one."""

    shares_memory = True

    def __init__(self, *, serial: bool) -> None:
        self.has_workers_here = self.by_env_steps = serial

    def pairing(
        self, asked: AnyConfig, config: AnyConfig, spec: EnvSpec, start: ResumePoint
    ) -> Pairing:
        from sampleforge.topologies.registry import pairing

        return pairing(config)

    def runner(self, graph: Graph, context: RunnerContext) -> Runner:
        if self.has_workers_here:
            from sampleforge.runners.serial import SerialRunner

            return SerialRunner(graph)
        return processes(graph, context)

    def notices(self, resumed: int | None) -> list[str]:
        return []

    def saves_after(self, error: BaseException) -> bool:
        return not isinstance(error, OSError) or isinstance(error, TimeoutError)
