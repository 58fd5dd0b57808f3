"""A runner of two runners: a rank of torchrun in this process, and its evaluator in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sampleforge.runners.base import Runner
from sampleforge.shared.events import Event
from sampleforge.topologies.graph import Node


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
        return self._main.ask(node, kind, payload, timeout, waiting=waiting, alone=alone)

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
