"""The protocol of all runners, which execute the workers of a graph, and what they are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sampleforge.runtime.by_value import Definitions
from sampleforge.runtime.watch import seconds_since
from sampleforge.shared.events import Event
from sampleforge.topologies.graph import Node


class WorkerDied(RuntimeError):
    """A worker has died; the message ends with its traceback if there is one."""


class Runner(Protocol):
    """Runs the workers of a graph: `ProcessRunner`, `SerialRunner`, `InProcessRunner`, or two of
    them together (`CompositeRunner`)."""

    def start(self) -> None:
        """Start all workers."""

    def pids(self) -> dict[str, int]:
        """Return the process id of each worker that has one, by its name."""

    def poll(self, timeout: float) -> None:
        """Let the workers run for up to ``timeout`` s. Raises WorkerDied if a worker has died and
        is not restarted."""

    def take_events(self) -> list[Event]:
        """Return the events that workers have sent since the last call; also allowed after
        `close`."""

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
        """Return a worker's answer to a request (`Worker.handle`). Raises WorkerDied, or
        TimeoutError after ``timeout`` s. ``waiting`` is called several times a second meanwhile; it
        may raise. ``alone``: whatever has become of all other workers."""

    def wake(self, node: Node) -> None:
        """Continue a worker's process, if it was stopped."""

    def close(self) -> None:
        """End all workers, in order if possible, and release their resources."""

    def kill(self) -> None:
        """End all workers at once."""


def ignore(text: str) -> None:
    """Do nothing with a message."""


@dataclass(frozen=True)
class RunnerContext:
    """What a runner is given beside its graph. ``env_timeout``: seconds that a worker may spend in
    one step before it counts as hung; ``scratch``: the absolute path of the folder for the working
    directories of their processes (None: a temporary one), unless the run ``keeps_directory``: then
    they stay in the driver's. ``definitions``: what they have of the main module, if they cannot
    import it. ``alert`` is told of restarts, ``note`` of what is for the log alone.

    ``is_interrupted()``: the run is about to end by a signal, which may have ended what the
    environments run on, and workers by that: those that no checkpoint needs are neither restarted
    nor missed. ``age`` returns the seconds since a time of ``monotonic``, without those in which
    the driver was paused: so were the workers, or they may have waited for it."""

    env_timeout: float
    scratch: Path | None = None
    keeps_directory: bool = False
    definitions: Definitions | None = None
    alert: Callable[[str], None] = ignore
    note: Callable[[str], None] = ignore
    is_interrupted: Callable[[], bool] = lambda: False
    age: Callable[[float], float] = seconds_since
