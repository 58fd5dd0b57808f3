"""Runners for torchrun, which starts the other ranks: of a single rank in this process, and of that
rank together with its evaluator in another process."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any

import setproctitle

from sampleforge.env.closing import CLOSE_S, in_time
from sampleforge.env.user_code import scratch_directory
from sampleforge.peers.boards import StoreBoard
from sampleforge.peers.group import RankLost
from sampleforge.peers.rendezvous import StartupRendezvous
from sampleforge.runners.base import Runner, RunnerContext
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.runtime.watch import Watch
from sampleforge.shared.events import Event, Kind, send_through
from sampleforge.topologies.graph import Graph, Node
from sampleforge.workers.rank import RankWorker
from sampleforge.workers.worker import close

IDLE_WAIT = 0.05
"""Seconds that a rank waits for an event when it has nothing to do."""


class InProcessRunner:
    """Steps the rank of ``graph`` in this process, between the other tasks of the driver.

    Without ``context.scratch`` its temporary directory is in the system's. A rank
    that is asked to end does so between two steps, or as soon as the other ranks, which are also
    asked, have left the group. After ``context.env_timeout`` a `Watch` ends the process, and
    torchrun restarts the ranks.
    """

    def __init__(
        self,
        graph: Graph,
        rendezvous: StartupRendezvous,
        context: RunnerContext,
    ) -> None:
        (node,) = graph.having("rank")
        worker = node.worker
        assert isinstance(worker, RankWorker)
        self._node = node
        self._graph = graph
        self._worker = worker
        self._rendezvous = rendezvous
        self._scratch = context.scratch
        self._keeps_directory = context.keeps_directory
        self._interrupted = context.is_interrupted
        self._resources = ExitStack()
        row = graph.counters.row(node.counter_row)
        self._watch = Watch(
            worker.name,
            context.env_timeout,
            lambda: float(row["heartbeat"][0]),
            lambda: bool(row["starting"][0]),
            context.age,
        )

    def start(self) -> None:
        setproctitle.setproctitle(f"sampleforge: {self._worker.name}")
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        placement = self._node.placement
        if placement.cores is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, set(placement.cores))
        if placement.niceness:
            os.nice(placement.niceness)
        limit_threads(1)
        if not self._keeps_directory:
            self._resources.enter_context(scratch_directory(self._scratch))
        self._resources.callback(send_through, send_through(self._listen))
        self._watch.start()
        with self._watch.inside():
            self._worker.start()

    def pids(self) -> dict[str, int]:
        return {self._worker.name: os.getpid()}

    def poll(self, timeout: float) -> None:
        """Step the rank for ``timeout`` s. Raises its errors, except RankLost after an
        interrupt."""
        deadline = monotonic() + timeout
        try:
            with self._watch.inside():
                while monotonic() < deadline and not (self._worker.ended or self._interrupted()):
                    moved = self._worker.step()
                    self._watch.look()
                    if not moved:
                        self._worker.wait(IDLE_WAIT)
        except RankLost as error:
            if not self._interrupted():
                raise
            print(f"interrupted, and {error}", file=sys.stderr)
        if self._worker.ended:
            self._rendezvous.shutdown_barrier()
            sleep(max(0.0, deadline - monotonic()))

    def _listen(self, kind: Kind, payload: Any) -> None:
        self._worker.events.extend([Event(self._worker.name, kind, payload)])

    def take_events(self) -> list[Event]:
        return self._worker.events.take()

    def ask(self, node: Node, kind: str, payload: Any, timeout: float, **_: Any) -> Any:
        """Return the rank's answer to a request, which comes at once."""
        return self._worker.handle(kind, payload)

    def wake(self, node: Node) -> None:
        """It is this process."""

    def close(self) -> None:
        if self._worker.ended:
            self._rendezvous.wait_for_shutdown_barrier()
        close(self._worker, in_time(CLOSE_S))
        for resource in (each for group in self._graph.groups for each in group.resources):
            if isinstance(resource, StoreBoard):
                resource.close()
        self._watch.close()
        self._resources.close()

    def kill(self) -> None:
        """Remove the working directory; the process ends at once afterwards."""
        self._resources.close()


class CompositeRunner:
    """Combines two runners: ``main`` runs the training and answers requests, ``beside`` runs the
    other workers."""

    def __init__(self, main: Runner, beside: Runner) -> None:
        self._main = main
        self._beside = beside

    def start(self) -> None:
        self._main.start()
        self._beside.start()

    def pids(self) -> dict[str, int]:
        return self._main.pids() | self._beside.pids()

    def poll(self, timeout: float) -> None:
        self._main.poll(timeout)
        self._beside.poll(0.0)

    def take_events(self) -> list[Event]:
        return self._main.take_events() + self._beside.take_events()

    def ask(self, node: Node, kind: str, payload: Any, timeout: float, **how: Any) -> Any:
        return self._main.ask(node, kind, payload, timeout, **how)

    def wake(self, node: Node) -> None:
        self._main.wake(node)

    def close(self) -> None:
        try:
            self._beside.close()
        finally:
            self._main.close()

    def kill(self) -> None:
        try:
            self._beside.kill()
        finally:
            self._main.kill()
