"""What every worker is, and the process around one.

A worker's constructor runs in the driver and only remembers its parts; `start` runs where the
worker works. `step` never waits: it does one piece of work, or returns False if there is none.
`wait` is the waiting, and only a process does it. Thus the same workers run as processes, and in
turn in one process (see `sampleforge.runners.serial`).
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sampleforge.env.scratch import scratch_directory
from sampleforge.runtime.machine import CACHE
from sampleforge.runtime.processes import become_worker
from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.events import EventLogHandler, EventSender, send_through
from sampleforge.shared.wakeup import Wakeup

IDLE_WAIT = 0.5
"""Seconds after which a waiting process looks at the stop flag, whatever it waits for."""


class Worker(Protocol):
    """Does one kind of work for a graph, in a process of its own or in turn with others."""

    name: str

    def recover(self) -> None:
        """Take over from shared memory what the dead predecessor left. Called before `start`, in
        each life of the worker but its first."""

    def start(self) -> None:
        """Make what the work needs."""

    def step(self) -> bool:
        """Do one piece of work; returns False if there is none now. Never waits."""

    def wait(self, timeout: float) -> None:
        """Wait until there may be work, at most ``timeout`` s."""

    def handle(self, kind: str, payload: Any) -> Any:
        """Answer a request of the driver, between two steps."""

    def close(self) -> None:
        """Release what `start` made, even where it had not ended."""


class EventDriven:
    """A worker that others wake, and that counts how long it waited for them (``wait_s``). It has
    nothing to take over from a predecessor, answers no requests, and has nothing to release."""

    name: str

    _wakeup: Wakeup
    _count: dict[str, npt.NDArray[np.float64]]

    def wait(self, timeout: float) -> None:
        started = perf_counter()
        self._wakeup.wait(timeout)
        self._count["wait_s"] += perf_counter() - started

    def recover(self) -> None:
        pass

    def handle(self, kind: str, payload: Any) -> Any:
        raise NotImplementedError(f"{self.name} answers no {kind!r} requests")

    def close(self) -> None:
        pass


class StopFlag:
    """Set once by the driver; every worker leaves its loop then."""

    def __init__(self) -> None:
        self._arrays = SharedArrays({"stop": ((1,), "bool")})

    def set(self) -> None:
        self._arrays["stop"][0] = True

    def is_set(self) -> bool:
        return bool(self._arrays["stop"][0])


@dataclass(frozen=True)
class Placement:
    """Where a worker's process runs: cores (None: all), niceness."""

    cores: tuple[int, ...] | None = None
    niceness: int = 0


@dataclass(frozen=True)
class WorkerContext:
    """Where a worker's process leaves what it has to say, and what simulators drop: they write into
    the working directory. All paths are absolute."""

    log_file: Path
    scratch: Path


class WorkerEnd:
    """The worker's end of its control channel: one channel per life of a worker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def answer(self, worker: Worker) -> None:
        """Answer a request of the driver, if one has come."""
        if self._connection.poll():
            number, kind, payload = self._connection.recv()
            self._connection.send((number, worker.handle(kind, payload)))

    def fail(self, traceback: str) -> None:
        """Say why the life ends."""
        self._connection.send((FAILED, traceback))
        self._connection.close()


FAILED = -1
"""In the place of a request's number: the message is the traceback of the worker's end."""


def run_worker(
    worker: Worker,
    stop: StopFlag,
    placement: Placement,
    context: WorkerContext,
    channel: WorkerEnd,
    events: EventSender,
    life: int,
) -> None:
    """The main function of every child process; an exception's traceback goes to the driver."""
    become_worker(worker.name, cores=placement.cores, niceness=placement.niceness)
    # What torch compiles for the run's workers, who share it, goes when the run ends.
    os.environ.setdefault(CACHE, str(context.scratch / "compiled"))
    send_through(events)
    logging.basicConfig(format="%(message)s", handlers=[EventLogHandler()])
    logging.captureWarnings(True)
    try:
        with scratch_directory(context.scratch):
            run(worker, stop, channel, life)
    except BaseException:
        channel.fail(traceback.format_exc())
        # Not through the interpreter's end: other threads may hold on to what is broken.
        sys.stderr.flush()
        os._exit(1)


def run(worker: Worker, stop: StopFlag, channel: WorkerEnd, life: int) -> None:
    """Run one life of a worker, until the stop flag is set."""
    try:
        if life:
            worker.recover()
        worker.start()
        while not stop.is_set():
            channel.answer(worker)
            if not worker.step():
                worker.wait(IDLE_WAIT)
    finally:
        worker.close()
