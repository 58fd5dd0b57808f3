"""The workers of a graph as processes: started, watched, ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic, sleep, time
from typing import Any

from sampleforge.runtime.processes import process_context
from sampleforge.topologies.graph import Graph, Node
from sampleforge.workers.worker import WorkerContext, run_worker

STOP_GRACE = 1.5
"""Seconds a worker has to leave its loop before it is killed."""
START_GRACE = 30.0
"""Seconds a process has to begin: it may have to wait for the fork server's imports."""


class WorkerDied(RuntimeError):
    """A worker process ended by itself; the text ends with its traceback, if it left one."""


class ProcessRunner:
    """Runs each worker of ``graph`` in a process of its own.

    ``control`` is the driver's end of the learner's pipe. ``step_timeout``: seconds an actor or a
    policy worker may spend in one step before it counts as hung. ``log`` is told of replacements,
    which stderr shows as well. ``interrupted``: the run is about to end by a signal, which may have
    ended what the environments run on, and workers by that: those that no checkpoint needs are
    neither replaced nor missed.
    """

    def __init__(
        self,
        graph: Graph,
        control: Connection,
        context: WorkerContext,
        step_timeout: float,
        log: Callable[[str], None] = lambda text: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._graph = graph
        self._control = control
        self._surroundings = context
        self._step_timeout = step_timeout
        self._log = log
        self._interrupted = interrupted
        self._not_missed: dict[str, str] = {}
        """Obituaries of the workers that ended after the run was interrupted."""
        self._processes: dict[str, BaseProcess] = {}
        self._errors: dict[str, Connection] = {}
        self._regroupings_told = 0
        self._requests = 0

    def start(self) -> None:
        self._started = time()
        for node in self._graph.nodes:
            self._start(node)

    def _start(self, node: Node) -> None:
        context = process_context()
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(node.worker, self._graph.stop, node.placement, self._surroundings, theirs),
            name=f"sampleforge: {node.worker.name}",
            daemon=False,  # an environment may have processes of its own
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
        watched = [n for n in self._processes if n not in self._not_missed]
        wait([self._processes[n].sentinel for n in watched], timeout)
        self._check_alive()
        self._check_heartbeats()
        self._tell_what_was_lost()

    def ask(self, kind: str, payload: Any, timeout: float) -> Any:
        """The learner's answer to a request. Raises WorkerDied, or TimeoutError. When the run is
        interrupted, metrics are not waited for, and empty."""
        deadline = monotonic() + timeout
        self._check_alive()
        asked = self._send((kind, payload))
        while True:
            while not self._control.poll(0.05):
                if kind == "metrics" and self._interrupted():
                    return {}
                self._check_asked()
                if self._learners_process() is not asked:  # its successor is asked again
                    asked = self._send((kind, payload))
                if monotonic() > deadline:
                    raise TimeoutError(
                        f"the learner did not answer {kind!r} within {timeout:.0f} s"
                    )
            number, answer = self._control.recv()
            if number == self._requests:  # not to a request that was asked again, or given up
                return answer

    def _send(self, request: tuple[str, Any]) -> BaseProcess:
        """Send the learner a request; returns the process that is to answer."""
        self._requests += 1
        self._control.send((self._requests, request))
        self._graph.learner.wakeup.set()
        return self._learners_process()

    def _learners_process(self) -> BaseProcess:
        return self._processes[self._graph.learner.worker.name]

    def _check_asked(self) -> None:
        """As `_check_alive`; the learner is to answer now, and thus missed in any case."""
        self._check_alive()
        name = self._graph.learner.worker.name
        if name in self._not_missed:
            raise WorkerDied(self._not_missed[name])

    def _check_alive(self) -> None:
        """Raises WorkerDied if a worker has ended, unless it may be replaced or is not missed."""
        for node in self._graph.nodes:
            name = node.worker.name
            if name in self._not_missed:
                continue
            process = self._processes[name]
            if process.exitcode is not None or self._errors[name].poll():
                death_message = self._death_message(name, process)
                killed = process.exitcode is not None and process.exitcode < 0
                if self._can_be_missed(node):
                    self._not_missed[name] = death_message
                    self._log(f"after the interrupt: {death_message}")
                elif not killed or not self._replace(node, death_message):
                    raise WorkerDied(death_message)

    def _can_be_missed(self, node: Node) -> bool:
        """Whether a checkpoint can be written without a worker, when all is about to end."""
        steps_envs = bool(node.envs) and self._interrupted()
        return steps_envs and (node is not self._graph.learner or self._graph.snapshot is not None)

    def _replace(self, node: Node, why: str) -> bool:
        """Start another process in the place of one, if the graph can do with that."""
        name, index = node.worker.name, self._graph.nodes.index(node)
        count = self._begin_replacement(index)
        if count is None:
            return False
        process = self._processes[name]
        process.kill()
        process.join()
        process.close()
        self._errors[name].close()
        replaced = f"{why}; it is replaced ({count})"
        print(replaced, file=sys.stderr)
        row = self._graph.counters.row(index)  # which nobody else writes at this moment
        row["heartbeat"][0] = time() + START_GRACE
        if self._graph.group_epoch is None:  # a rank counts its restarts itself
            row["restarts"] += 1
        self._start(node)
        self._log(replaced)  # last: it raises where the disk is full
        return True

    def _tell_what_was_lost(self) -> None:
        """Say from where the ranks go on, once those that were replaced have joined the others."""
        if self._graph.group_epoch is None:
            return
        report = self._graph.group_epoch.gone_on
        if report.number > self._regroupings_told:
            self._regroupings_told = report.number
            lost = "1 update is" if report.lost == 1 else f"{report.lost:,} updates are"
            told = f"the ranks go on from update {report.version:,}: {lost} lost"
            print(told, file=sys.stderr)
            self._log(told)

    def _begin_replacement(self, index: int) -> str | None:
        """How often was replaced by now, with this time; None if the graph cannot do with that, or
        if it was too often."""
        group_epoch, restart_budget = self._graph.group_epoch, self._graph.restart_budget
        if group_epoch is not None and group_epoch.begin():
            return f"{group_epoch.generation} of {group_epoch.limit} times"
        if (
            restart_budget is None
            or index >= restart_budget.workers
            or not restart_budget.begin(index)
        ):
            return None
        return f"{restart_budget.total} of {restart_budget.limit} times"

    def _death_message(self, name: str, process: BaseProcess) -> str:
        if not self._errors[name].poll():
            return f"the fork server has died, and nobody watches over {name} any more"
        try:
            # Before it has ended: a text longer than the pipe would never let it end.
            return f"{name} failed; its traceback:\n\n{self._errors[name].recv().rstrip()}"
        except EOFError:
            process.join(STOP_GRACE)
        code = process.exitcode
        if code is None or code >= 0:
            return f"{name} ended without a word (exit code {code}); see above, or log.txt"
        hint = " (was it out of memory?)" if code == -signal.SIGKILL else ""
        return f"{name} was ended by signal {signal.Signals(-code).name}{hint}"

    def _check_heartbeats(self) -> None:
        if self._interrupted():
            return
        beats = self._graph.counters.column("heartbeat")
        for index, node in enumerate(self._graph.nodes):
            if node is self._graph.learner and not beats[index]:
                continue  # an update has no limit; what it is asked for has
            age = time() - (beats[index] or self._started + START_GRACE)
            if age > self._step_timeout:
                self._dump_stacks(node.worker.name)
                hung = (
                    f"{node.worker.name} has been in one step for {age:.0f} s (--env-timeout "
                    f"{self._step_timeout:g}); its stacks are above. Does the environment hang?"
                )
                if not self._replace(node, hung):
                    raise WorkerDied(hung)

    def _dump_stacks(self, name: str) -> None:
        """Have a process print the stacks of its threads, even if it was stopped."""
        pid = self._processes[name].pid
        assert pid is not None
        for number in (signal.SIGUSR1, signal.SIGCONT):  # faulthandler's, see become_worker
            os.kill(pid, number)
        sleep(0.5)

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
            process.close()  # hangs up, too: its end even if the fork server had lost it
        for errors in self._errors.values():
            errors.close()
        self._processes.clear()
        self._errors.clear()
