"""All workers of a graph in turn, in this process: deterministic, and open to a debugger."""

from __future__ import annotations

from typing import Any

import torch

from sampleforge.topologies.graph import Graph


class SerialRunner:
    """Steps the workers of ``graph`` in their order, again and again, on one thread."""

    def __init__(self, graph: Graph) -> None:
        self._workers = [node.worker for node in graph.nodes]
        self._learner = graph.learner.worker
        self._progress = graph.progress

    def start(self) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for worker in self._workers:
            worker.start()

    def pids(self) -> dict[str, int]:
        """No worker has a process of its own."""
        return {}

    def poll(self, timeout: float) -> None:
        """One round. Raises RuntimeError if nobody could move before the end: a deadlock."""
        moved = any([worker.step() for worker in self._workers])
        if not moved and not self._progress.done:
            raise RuntimeError("no worker can move: each waits for another")

    def ask(self, kind: str, payload: Any, timeout: float) -> Any:
        """The learner's answer to a request."""
        return self._learner.handle((kind, payload))  # type: ignore[attr-defined]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        torch.set_num_threads(self._threads)

    kill = close
