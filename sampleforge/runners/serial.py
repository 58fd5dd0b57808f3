"""The serial runner: all workers of a graph in turn, in this process, deterministic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakSet

from sampleforge.env.closing import CLOSE_S, in_time
from sampleforge.runners.base import WorkerDied
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.shared.events import Event, Kind, send_through_in_thread
from sampleforge.topologies.graph import Graph, Node
from sampleforge.workers.worker import close


class SerialRunner:
    """Steps the workers of ``graph`` in turn, in this thread, so that a debugger can follow
    them. An environment whose ``close`` has not returned after ``close_s`` seconds is left as it
    is: see `in_time`.

    Several may run in one process, in one thread or in several: the workers' events go to the
    runner that steps them, and the limit of threads stays until the last one is closed.
    """

    _running: ClassVar[WeakSet[SerialRunner]] = WeakSet()
    _restore_threads: ClassVar[list[Callable[[], object]]] = []
    _limiting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, graph: Graph, close_s: float = CLOSE_S) -> None:
        self._nodes: Sequence[Node] = graph.nodes
        self._progress = graph.progress
        self._events: list[Event] = []
        self._failed: Node | None = None
        self._close_s = close_s

    def start(self) -> None:
        with self._limiting:
            if not self._running:
                self._restore_threads.clear()
            self._restore_threads.append(limit_threads(1))
            self._running.add(self)
        with self._listening():
            for node in self._nodes:
                node.worker.start()

    def pids(self) -> dict[str, int]:
        """Return no process ids, because no worker has a process of its own."""
        return {}

    def poll(self, timeout: float) -> None:
        """Step each worker once. Raises RuntimeError for a deadlock: no worker could do anything
        although training has not ended."""
        with self._listening():
            moved = any([self._step(node) for node in self._nodes])
        if not moved and not (self._progress.done or self._progress.clock.halted):
            raise RuntimeError("deadlock: every worker waits for another one")

    def _step(self, node: Node) -> bool:
        try:
            return node.worker.step()
        except BaseException:
            self._failed = node
            raise

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Return a context in which the workers' events come to this runner."""
        before = send_through_in_thread(self._listen)
        try:
            yield
        finally:
            send_through_in_thread(before)

    def _listen(self, kind: Kind, payload: Any) -> None:
        self._events.append(Event("serial", kind, payload))

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def ask(
        self, node: Node, kind: str, payload: Any, timeout: float, *, alone: bool = False, **_: Any
    ) -> Any:
        """As `Runner.ask`. Raises WorkerDied for a worker that an error has left in mid-step."""
        if alone and node is self._failed:
            raise WorkerDied(f"{node.name} failed")
        with self._listening():
            return node.worker.handle(kind, payload)

    def wake(self, node: Node) -> None:
        """All workers are this process."""

    def close(self) -> None:
        with self._listening():
            for node in self._nodes:
                close(node.worker, in_time(self._close_s))
        with self._limiting:
            self._running.discard(self)
            while self._restore_threads and not self._running:
                self._restore_threads.pop()()

    kill = close
