"""The serial runner: all workers of a graph in turn, in this process, deterministic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sampleforge.runners.base import WorkerDied
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.events import Event, Kind, send_through
from sampleforge.topologies.graph import Graph, Node
from sampleforge.workers.worker import close


class SerialRunner:
    """Steps the workers of ``graph`` in turn, in this thread, so that a debugger can follow
    them."""

    def __init__(self, graph: Graph) -> None:
        self._nodes: Sequence[Node] = graph.nodes
        self._progress = graph.progress
        self._events: list[Event] = []
        self._failed: Node | None = None

    def start(self) -> None:
        self._before = send_through(self._listen)
        self._restore_threads = limit_threads(1)
        for node in self._nodes:
            node.worker.start()

    def pids(self) -> dict[str, int]:
        """Return no process ids, because no worker has a process of its own."""
        return {}

    def poll(self, timeout: float) -> None:
        """Step each worker once. Raises RuntimeError for a deadlock: no worker could do anything
        although training has not ended."""
        moved = any([self._step(node) for node in self._nodes])
        if not moved and not self._progress.done:
            raise RuntimeError("deadlock: every worker waits for another one")

    def _step(self, node: Node) -> bool:
        try:
            return node.worker.step()
        except BaseException:
            self._failed = node
            raise

    def _listen(self, kind: Kind, payload: Any) -> None:
        self._events.append(Event("serial", kind, payload))

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def ask(
        self,
        node: Node,
        kind: str,
        payload: Any,
        timeout: float,
        *,
        waiting: Callable[[], None] = lambda: None,
        alone: bool = False,
    ) -> Any:
        """As `Runner.ask`. Raises WorkerDied for a worker that an error has left in mid-step."""
        if alone and node is self._failed:
            raise WorkerDied(f"{node.name} failed")
        return node.worker.handle(kind, payload)

    def wake(self, node: Node) -> None:
        """All workers are this process."""

    def close(self) -> None:
        for node in self._nodes:
            close(node.worker)
        self._restore_threads()
        send_through(self._before)

    kill = close
