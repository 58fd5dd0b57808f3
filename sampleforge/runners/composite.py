"""Two runners as one: a topology, and the evaluator beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sampleforge.runtime.processes import start_fork_server
from sampleforge.topologies.evaluator import alone
from sampleforge.topologies.graph import Graph
from sampleforge.workers.worker import Worker


class Runner(Protocol):
    """Of the driver's runners, what is done to two of them."""

    def start(self) -> None: ...
    def pids(self) -> dict[str, int]: ...
    def poll(self, timeout: float) -> None: ...
    def close(self) -> None: ...
    def kill(self) -> None: ...


class MainRunner(Runner, Protocol):
    def ask(self, kind: str, payload: Any, timeout: float) -> Any: ...


def beside(
    runner: MainRunner, graph: Graph, processes: Callable[[Graph], Runner] | None
) -> CompositeRunner:
    """``runner``, which runs ``graph``, with the evaluator beside it: run by what ``processes``
    makes for a graph, or, without it, in turn."""
    other = alone(graph)
    if processes is None:
        return CompositeRunner(runner, SerialEvaluator(other.nodes[0].worker))
    start_fork_server()  # a rank of torchrun has none yet, and is pinned to a core when it starts
    return CompositeRunner(runner, processes(other))


class SerialEvaluator:
    """Steps one worker in this process, once per poll."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def start(self) -> None:
        self._worker.start()

    def pids(self) -> dict[str, int]:
        return {}

    def poll(self, timeout: float) -> None:
        self._worker.step()

    def close(self) -> None:
        self._worker.close()

    kill = close


class CompositeRunner:
    """``main``, which runs a topology, and ``beside``, which runs what goes on beside it."""

    def __init__(self, main: MainRunner, beside: Runner) -> None:
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

    def ask(self, kind: str, payload: Any, timeout: float) -> Any:
        return self._main.ask(kind, payload, timeout)

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
