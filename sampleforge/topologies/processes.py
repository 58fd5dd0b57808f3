"""The workers of a graph as processes: started, watched, ended."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic, sleep, time
from typing import Any

from sampleforge.runtime.processes import process_context
from sampleforge.topologies.graph import Graph
from sampleforge.workers.worker import run_worker

STOP_GRACE = 3.0
"""Seconds a worker has to leave its loop before it is killed."""


class WorkerDied(RuntimeError):
    """A worker process ended by itself; the text ends with its traceback, if it left one."""


class ProcessRunner:
    """Runs each worker of ``graph`` in a process of its own.

    ``control`` is the driver's end of the learner's pipe. ``step_timeout``: seconds an actor may
    spend in one step before it counts as hung.
    """

    def __init__(self, graph: Graph, control: Connection, step_timeout: float) -> None:
        self._graph = graph
        self._control = control
        self._step_timeout = step_timeout
        self._processes: dict[str, BaseProcess] = {}
        self._errors: dict[str, Connection] = {}

    def start(self) -> None:
        context = process_context()
        self._started = time()
        for node in self._graph.nodes:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(  # type: ignore[attr-defined]
                target=run_worker,
                args=(node.worker, self._graph.stop, node.placement, theirs),
                name=f"sampleforge: {node.worker.name}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes[node.worker.name] = process
            self._errors[node.worker.name] = ours

    def pids(self) -> dict[str, int]:
        """Process id of each worker by its name."""
        return {name: p.pid for name, p in self._processes.items() if p.pid is not None}

    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` s. Raises WorkerDied as soon as a worker has ended or hangs."""
        wait([p.sentinel for p in self._processes.values()], timeout)
        self._check_alive()
        self._check_heartbeats()

    def ask(self, kind: str, payload: Any, timeout: float) -> Any:
        """The learner's answer to a request. Raises WorkerDied, or TimeoutError."""
        deadline = monotonic() + timeout
        self._control.send((kind, payload))
        self._graph.learner.wakeup.set()
        while not self._control.poll(0.05):
            self._check_alive()
            if monotonic() > deadline:
                raise TimeoutError(f"the learner did not answer {kind!r} within {timeout:.0f} s")
        return self._control.recv()

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.exitcode is not None:
                raise WorkerDied(self._obituary(name, process.exitcode))

    def _obituary(self, name: str, exitcode: int) -> str:
        how = f"exit code {exitcode}"
        if exitcode < 0:
            how = f"signal {signal.Signals(-exitcode).name}"
            if exitcode == -signal.SIGKILL:
                how += " (was it out of memory?)"
        text = f"{name} ended by {how}"
        errors = self._errors[name]
        try:
            if errors.poll():
                text += f"; its traceback:\n\n{errors.recv().rstrip()}"
        except EOFError:
            pass  # it died without a word, and the exit code says how
        return text

    def _check_heartbeats(self) -> None:
        beats = self._graph.counters.column("heartbeat")
        for index, node in enumerate(self._graph.nodes):
            if not node.worker.name.startswith("actor"):
                continue
            age = time() - max(self._started, beats[index])
            if age > self._step_timeout:
                pid = self._processes[node.worker.name].pid
                assert pid is not None
                os.kill(pid, signal.SIGUSR1)  # faulthandler prints all its stacks
                sleep(0.5)
                raise WorkerDied(
                    f"{node.worker.name} has been in one step for {age:.0f} s (--env-timeout "
                    f"{self._step_timeout:.0f}); its stacks are above. Does the environment hang?"
                )

    def close(self) -> None:
        """End all workers: in order, or, after `STOP_GRACE`, by force."""
        self._graph.stop_all()
        deadline = monotonic() + STOP_GRACE
        for process in self._processes.values():
            process.join(max(0.0, deadline - monotonic()))
        self.kill()

    def kill(self) -> None:
        """End what still runs at once."""
        for process in self._processes.values():
            if process.exitcode is None:
                process.kill()
        for process in self._processes.values():
            process.join()
            process.close()
        for errors in self._errors.values():
            errors.close()
        self._processes.clear()
        self._errors.clear()
