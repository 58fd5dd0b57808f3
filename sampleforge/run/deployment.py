"""Where the workers of a session run: on this machine, in processes or serially."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.runners.base import Runner
    from sampleforge.topologies.graph import Graph, Node
    from sampleforge.topologies.registry import Pairing


class Deployment(Protocol):
    """What differs between a session on one machine and one whose ranks torchrun has started.

    ``has_workers_here``: some workers run in the session's own process, as they do under torchrun
    and with --serial. ``by_env_steps``: reports are spaced by env steps, to be deterministic.
    ``shares_memory``: all workers can see the shared memory of the session's process.
    """

    has_workers_here: bool
    by_env_steps: bool
    shares_memory: bool

    def pairing(self, session: Session) -> Pairing:
        """Return the algorithm and its topology, once the run folder is open and the environment
        is known."""

    def runner(self, session: Session, graph: Graph) -> Runner:
        """Return what runs ``graph``: the session's, or a benchmark's of its simulators."""

    def notices(self, session: Session) -> list[str]:
        """Return what the user is to know before the workers start."""

    def saves_after(self, error: BaseException) -> bool:
        """Whether a checkpoint can be written after ``error``: the state is whole, as far as the
        learner has it, and there is a place to write it to."""


def processes(session: Session, graph: Graph, nodes: Sequence[Node] | None = None) -> Runner:
    """Return a runner that gives each worker of ``graph``, or of ``nodes``, a process."""
    from sampleforge.runners.processes import ProcessRunner

    return ProcessRunner(
        graph,
        session.worker_context,
        session.config.env_timeout,
        session.restarted,
        session.note,
        session.is_interrupted,
        nodes,
        age=session.ticker.age,
    )


class OneMachine:
    """All workers are processes of this machine, or with ``serial`` take turns in this one."""

    shares_memory = True

    def __init__(self, *, serial: bool) -> None:
        self.has_workers_here = self.by_env_steps = serial

    def pairing(self, session: Session) -> Pairing:
        from sampleforge.topologies.registry import pairing

        return pairing(session.config)

    def runner(self, session: Session, graph: Graph) -> Runner:
        if self.has_workers_here:
            from sampleforge.runners.serial import SerialRunner

            return SerialRunner(graph)
        return processes(session, graph)

    def notices(self, session: Session) -> list[str]:
        return []

    def saves_after(self, error: BaseException) -> bool:
        return not isinstance(error, OSError) or isinstance(error, TimeoutError)
