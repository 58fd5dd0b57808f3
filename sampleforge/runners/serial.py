"""All workers of a graph in turn, in this process: deterministic, and open to a debugger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sampleforge.topologies.graph import Graph, Node


class SerialRunner:
    """Steps the workers of ``graph`` in their order, again and again, on one thread."""

    def __init__(self, graph: Graph) -> None:
        self._nodes: Sequence[Node] = graph.nodes
        self._progress = graph.progress

    def start(self) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for node in self._nodes:
            node.worker.start()

    def pids(self) -> dict[str, int]:
        """No worker has a process of its own."""
        return {}

    def poll(self, timeout: float) -> None:
        """Step each worker once. Raises RuntimeError if none could move before the end: a
        deadlock."""
        moved = any([node.worker.step() for node in self._nodes])
        if not moved and not self._progress.done:
            raise RuntimeError("no worker can move: each waits for another")

    def ask(self, node: Node, kind: str, payload: Any, timeout: float) -> Any:
        return node.worker.handle(kind, payload)

    def close(self) -> None:
        for node in self._nodes:
            node.worker.close()
        torch.set_num_threads(self._threads)

    kill = close
