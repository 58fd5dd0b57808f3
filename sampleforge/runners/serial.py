"""The serial runner: all workers of a graph in turn, in this process, deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.events import Event, Kind, send_through
from sampleforge.topologies.graph import Graph, Node


class SerialRunner:
    """Steps the workers of ``graph`` in turn, in this thread, so that a debugger can follow
    them."""

    def __init__(self, graph: Graph) -> None:
        self._nodes: Sequence[Node] = graph.nodes
        self._progress = graph.progress
        self._events: list[Event] = []

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
        moved = any([node.worker.step() for node in self._nodes])
        if not moved and not self._progress.done:
            raise RuntimeError("deadlock: every worker waits for another one")

    def _listen(self, kind: Kind, payload: Any) -> None:
        self._events.append(Event("serial", kind, payload))

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def ask(self, node: Node, kind: str, payload: Any, timeout: float) -> Any:
        return node.worker.handle(kind, payload)

    def close(self) -> None:
        for node in self._nodes:
            node.worker.close()
        self._restore_threads()
        send_through(self._before)

    kill = close
