"""The protocol of all workers, and the process around a worker.

A worker's constructor runs in the driver and only stores its arguments; `start` runs in the
worker's process. `step` never waits: it does one piece of work, or returns False if there is none.
`wait` waits, and is called only in a process of the worker's own. So the same workers run as
processes, or one after the other in one process (see `sampleforge.runners.serial`).
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
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sampleforge.env.scratch import scratch_directory
from sampleforge.runtime.machine import CACHE
from sampleforge.runtime.processes import become_worker
from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.wakeup import Wakeup

IDLE_WAIT = 0.5
"""Seconds after which a waiting process checks the stop flag."""


class Worker(Protocol):
    """A worker; the head of this file explains its methods."""

    name: str

    def start(self) -> None: ...

    def step(self) -> bool: ...

    def wait(self, timeout: float) -> None: ...

    def close(self) -> None: ...


class EventDriven:
    """A worker that waits for a `Wakeup`, counts the seconds of waiting (``wait_s``), and has
    nothing to release."""

    _wakeup: Wakeup
    _count: dict[str, npt.NDArray[np.float64]]

    def wait(self, timeout: float) -> None:
        started = perf_counter()
        self._wakeup.wait(timeout)
        self._count["wait_s"] += perf_counter() - started

    def close(self) -> None:
        pass


class StopFlag:
    """A flag that the driver sets once, upon which every worker leaves its loop."""

    def __init__(self) -> None:
        self._arrays = SharedArrays({"stop": ((1,), "bool")})

    def set(self) -> None:
        self._arrays["stop"][0] = True

    def is_set(self) -> bool:
        return bool(self._arrays["stop"][0])


@dataclass(frozen=True)
class Placement:
    """The cores (None: all) and the niceness of a worker's process."""

    cores: tuple[int, ...] | None = None
    niceness: int = 0


@dataclass(frozen=True)
class WorkerContext:
    """The log file of a worker's process, and the folder for its working directory, into which
    simulators write files. Both paths are absolute."""

    log_file: Path
    scratch: Path


def run_worker(
    worker: Worker,
    stop: StopFlag,
    placement: Placement,
    context: WorkerContext,
    errors: Connection,
) -> None:
    """Run a worker in a child process; this is its main function. The traceback of an exception is
    sent to the driver through ``errors``."""
    become_worker(worker.name, cores=placement.cores, niceness=placement.niceness)
    # Torch's compiled code is shared by the run's workers, and removed when the run ends.
    os.environ.setdefault(CACHE, str(context.scratch / "compiled"))
    logging.basicConfig(
        filename=context.log_file,
        format=f"%(asctime)s {worker.name:<16} %(levelname)-7s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    try:
        with scratch_directory(context.scratch):
            run(worker, stop)
    except BaseException:
        errors.send(traceback.format_exc())
        errors.close()
        # Not a regular exit of the interpreter: other threads may hang on what is broken.
        sys.stderr.flush()
        os._exit(1)


def run(worker: Worker, stop: StopFlag) -> None:
    """Run a worker in the calling thread until ``stop`` is set."""
    try:
        worker.start()
        while not stop.is_set():
            if not worker.step():
                worker.wait(IDLE_WAIT)
    finally:
        worker.close()
