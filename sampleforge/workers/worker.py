"""The protocol of all workers, and the process around a worker.

A worker's constructor runs in the driver and only stores its arguments; `start` runs in the
worker's process. `step` does one piece of work, or returns False at once if there is none. `wait`
waits, and is called only in a process of the worker's own. So the same workers run as processes, or
one after the other in one process (see `sampleforge.runners.serial`); several learners or ranks do
not, because they wait for each other within `step`.
"""

from __future__ import annotations

import logging
import os
import re
import select
import sys
import traceback
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError
from sampleforge.env.env_code import as_error, begin_process
from sampleforge.env.user_code import scratch_directory
from sampleforge.runtime.by_value import Definitions
from sampleforge.runtime.machine import CACHE
from sampleforge.runtime.processes import become_worker
from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.counters import Progress
from sampleforge.shared.events import EventLogHandler, EventSender, PythonWarnings, send_through
from sampleforge.shared.wakeup import Wakeup

log = logging.getLogger(__name__)

IDLE_WAIT = 0.5
"""Seconds after which a waiting process checks the stop flag."""


MODEL_TIMEOUT = 600.0
"""Seconds by which the time limit of a step is extended while a worker makes its model, which may
be compiled first."""

CHECK_INTERVAL = 0.002
"""Seconds between the checks of a busy worker for requests of the driver."""


class Worker(Protocol):
    """Does one kind of work for a graph; the head of this file explains its methods."""

    name: str

    def recover(self) -> None:
        """Take over from shared memory the state of the worker's previous life. Called before
        `start`, in each life but the first."""

    def start(self) -> None:
        """Create the objects that the work needs."""

    def step(self) -> bool:
        """Do one piece of work; return False if there is none now, without waiting for some."""

    def wait(self, timeout: float) -> None:
        """Wait until there may be work, for at most ``timeout`` seconds."""

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver; called between two steps."""

    def close(self) -> None:
        """Release the objects of `start`, even if `start` has failed."""


@dataclass(frozen=True)
class Post:
    """The post of a worker, which its successor takes over: the ``row`` of the run's counters that
    it counts in, the ``wakeup`` that ends its waits, and the ``progress`` of the run. ``spin``: the
    seconds for which it waits in a loop before it sleeps: 0 unless it has a core to itself."""

    row: int
    wakeup: Wakeup
    progress: Progress
    spin: float = 0.0

    def counters(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the worker's own counters by name, see `Counters.row`."""
        return self.progress.counters.row(self.row)


class EventDriven:
    """A worker at a `Post`, which counts the seconds in which it waits (``wait_s``). It takes
    nothing over from its previous life, answers no requests, and has nothing to release."""

    _count: dict[str, npt.NDArray[np.float64]]

    def __init__(self, name: str, post: Post) -> None:
        self.name = name
        self._post = post
        self._wakeup = post.wakeup

    def start(self) -> None:
        self._count = self._post.counters()

    def _beat(self) -> None:
        """Show that the worker is alive."""
        self._count["heartbeat"][0] = monotonic()

    def wait(self, timeout: float) -> None:
        started = perf_counter()
        self._wakeup.wait(timeout, self._post.spin)
        self._count["wait_s"] += perf_counter() - started

    def recover(self) -> None:
        pass

    def handle(self, kind: str, payload: Any) -> Any:
        raise NotImplementedError(f"{self.name} answers no {kind!r} requests")

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


EVERYWHERE = Placement()


class WorkerEnd:
    """The worker's end of its control channel: one channel per life of a worker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._next_check = 0.0

    def check_next_time(self) -> None:
        """Make the next `answer` check for a request, because one may have ended a wait."""
        self._next_check = 0.0

    @cached_property
    def _requests(self) -> select.poll:
        """Made once: `Connection.poll` makes a selector in each call."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return poll

    def started(self) -> None:
        """Tell the driver that the worker has started: its limits hold from now on."""
        self._connection.send((STARTED, None))

    def answer(self, worker: Worker) -> None:
        """Answer a request of the driver, if there is one. A busy worker checks only every
        `CHECK_INTERVAL` s."""
        now = perf_counter()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        if self._requests.poll(0):
            number, kind, payload = self._connection.recv()
            self._connection.send((number, worker.handle(kind, payload)))

    def fail(self, why: str) -> None:
        """Send what this life ends with to the driver; only the first is sent."""
        if not self._connection.closed:
            self._connection.send((FAILED, why))
            self._connection.close()


FAILED, STARTED = -1, -2
"""Sent in the place of a request's number: with `FAILED`, the payload is why the worker has ended,
in words."""


def run_worker(
    definitions: Definitions | None,
    worker: Worker,
    stop: StopFlag,
    placement: Placement,
    scratch: Path,
    keeps_directory: bool,
    channel: WorkerEnd,
    events: EventSender,
    life: int,
) -> None:
    """Run a worker in a child process; this is its main function. What it fails with is sent to the
    driver through ``channel``, log lines through ``events``. ``definitions`` come first, because
    ``worker`` cannot be unpickled without them. ``scratch``: the absolute path of the
    folder for its working directory, into which simulators write files, unless it
    ``keeps_directory``, the driver's."""
    become_worker(worker.name, cores=placement.cores, niceness=placement.niceness)
    # Torch's compiled code is shared by the run's workers, and removed when the run ends.
    os.environ.setdefault(CACHE, str(scratch / "compiled"))
    begin_process()
    send_through(events)
    logging.basicConfig(format="%(message)s", handlers=[EventLogHandler()])
    warnings.showwarning = PythonWarnings()
    try:
        with nullcontext() if keeps_directory else scratch_directory(scratch):
            run(worker, stop, channel, life)
    except BaseException as error:
        channel.fail(_told(error))  # if `run` has not
        # Not a regular exit of the interpreter: other threads may hang on what is broken.
        sys.stderr.flush()
        os._exit(1)


def run(worker: Worker, stop: StopFlag, channel: WorkerEnd, life: int) -> None:
    """Run one life of a worker in the calling thread, until ``stop`` is set.

    What it fails with is sent before it is closed, because closing broken environments may raise
    as well, or hang.
    """
    try:
        if life:
            worker.recover()
        worker.start()
        channel.started()
        while not stop.is_set():
            channel.answer(worker)
            if not worker.step():
                worker.wait(IDLE_WAIT)
                channel.check_next_time()
    except BaseException as error:
        channel.fail(_told(error))
        raise
    finally:
        close(worker)


def _told(error: BaseException) -> str:
    """Return what the user is told of the error that ends a worker: its traceback; of a
    ConfigError its message, which says all that the user can do about it."""
    if isinstance(error, ConfigError):
        return str(error)
    return out_of_memory(error) or (
        f"its traceback:\n\n{''.join(traceback.format_exception(error)).rstrip()}"
    )


GPU_FULL = "the GPU has not enough memory"
_REFUSED = re.compile(r"CUDA (driver )?error: out of memory|_ALLOC(ATION)?_FAILED")
"""What CUDA, cuBLAS and cuDNN say when they get no memory, as on a GPU that other programs fill:
torch raises an OutOfMemoryError only for its own tensors."""


def out_of_memory(error: BaseException) -> str | None:
    """Return what to say of an error for which a GPU had not enough memory; None of another."""
    # Torch's own class goes by its name, because not every worker imports torch.
    refused = isinstance(error, RuntimeError) and _REFUSED.search(str(error))
    if type(error).__name__ != "OutOfMemoryError" and not refused:
        return None
    why = str(error).split(". See documentation")[0].split("\n")[0]
    return (
        f"{GPU_FULL}: {why}. Lower "
        "--batch-size or --minibatch-size (learner), --replay-gpu-memory (its copies of "
        "frames), --num-envs-per-worker or --num-policy-workers (inference), or end other "
        "programs that use the GPU"
    )


def close(worker: Worker, limit: AbstractContextManager[None] | None = None) -> None:
    """Close ``worker``. An error is only logged: it is not why a run ends. ``limit``: a context
    that raises if this takes too long."""
    try:
        with limit or nullcontext():
            worker.close()
    except BaseException as error:
        log.warning("%s: closing its environments failed: %r", worker.name, as_error(error))
