"""The workers of a graph as processes: started, supervised, restarted, ended.

`WorkerProcess` is one life of a worker; `ProcessRunner` supervises the lives of all. What a death
means is the node's own rule (`sampleforge.topologies.restarts`).
"""

from __future__ import annotations

import multiprocessing.process
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from selectors import EVENT_READ, DefaultSelector
from time import monotonic, sleep
from typing import Any

import numpy as np

from sampleforge.runners.base import RunnerContext, WorkerDied
from sampleforge.runners.events import EventReader
from sampleforge.runners.silence import START_S, StoppedWorkers, Unanswered
from sampleforge.runtime.by_value import as_sent
from sampleforge.runtime.limits import check_workers
from sampleforge.runtime.processes import continue_process, process_context, wake_fork_server
from sampleforge.runtime.watch import hangs
from sampleforge.shared.events import Event, EventSender
from sampleforge.topologies.graph import Graph, Node
from sampleforge.workers.worker import FAILED, STARTED, StopFlag, WorkerEnd, run_worker

STOP_GRACE = 1.5
"""Seconds a worker has to leave its loop before it is killed."""
END_GRACE = 5.0
"""Seconds a killed process has to be gone; one that a broken disk holds is not waited for."""
START_GRACE = 30.0
"""Seconds a process has to begin: it may have to wait for the fork server's imports."""


class WorkerProcess:
    """One life of a worker: its process, and the control channel that belongs to this life alone.

    Requests are numbered, and so are answers: the answer to a request that was given up is not
    taken for that to the next one.
    """

    def __init__(
        self,
        node: Node,
        stop: StopFlag,
        context: RunnerContext,
        events: EventSender,
        life: int,
    ) -> None:
        self.node = node
        self.events = events
        self.life = life
        processes = process_context()
        self._channel, theirs = processes.Pipe()
        self._process = processes.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(
                context.definitions,
                node.worker,
                stop,
                node.placement,
                context.scratch,
                context.keeps_directory,
                WorkerEnd(theirs),
                events,
                life,
            ),
            name=f"sampleforge: {node.name}",
            daemon=False,  # an environment may have processes of its own
        )
        wake_fork_server()  # the start would wait for it without limit
        with as_sent(context.definitions):
            self._process.start()
        theirs.close()
        self._requests = 0
        self._answers: dict[int, Any] = {}
        self._why: str | None = None
        self._hung_up = self._ended = False
        self.has_started = False
        """Whether the worker has said that it has started."""

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    @property
    def descriptors(self) -> tuple[int, int]:
        """Become readable when the process sends something or ends."""
        return self._channel.fileno(), self._process.sentinel

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended the process: nothing in the worker's own code did."""
        code = self._process.exitcode
        return code is not None and code < 0

    @property
    def is_over(self) -> bool:
        """Whether the process has ended, or is about to end with a traceback, as of the last
        `look`."""
        return self._ended or self._hung_up or self._why is not None

    def look(self) -> None:
        """Take what the process has sent, and whether it has ended."""
        self._ended = self._process.exitcode is not None
        if not self._ended:
            self._read()

    def request(self, kind: str, payload: Any) -> int:
        """Send a request; returns its number."""
        self._requests += 1
        self._answers.clear()  # to requests that were given up
        try:
            self._channel.send((self._requests, kind, payload))
        except OSError:  # the process has just ended, which the supervisor notices by itself
            self._hung_up = True
        self.node.wakeup.set()
        return self._requests

    def answer(self, number: int, timeout: float) -> tuple[Any] | None:
        """Wait up to ``timeout`` s for the answer to a request; returns (answer,), or None."""
        if not self._hung_up and number not in self._answers:
            self._channel.poll(timeout)
            self._read()
        elif self._hung_up:
            sleep(timeout)
        return (self._answers.pop(number),) if number in self._answers else None

    def _read(self) -> None:
        """Take all messages that have come."""
        try:
            while not self._hung_up and self._channel.poll():
                number, message = self._channel.recv()
                if number == FAILED:
                    self._why = message
                elif number == STARTED:
                    self.has_started = True
                else:
                    self._answers[number] = message
        except (EOFError, OSError):
            self._hung_up = True

    def death_message(self) -> str:
        """Return why the life has ended."""
        self._read()
        name = self.node.name
        if self._why is not None:
            return f"{name} failed: {self._why}"
        if not self._hung_up:
            return f"the fork server has died, so that the end of {name} would not be noticed"
        wake_fork_server()  # which alone knows how the process has ended
        self._process.join(STOP_GRACE)
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"{name} ended and gave no reason (exit code {code}); see above, or log.txt"
        hint = " (was it out of memory?)" if code == -signal.SIGKILL else ""
        return f"{name} was ended by signal {signal.Signals(-code).name}{hint}"

    def dump_stacks(self) -> None:
        """Have the process print the stacks of its threads, even if it was stopped."""
        for number in (signal.SIGUSR1, signal.SIGCONT):  # faulthandler's, see become_worker
            os.kill(self.pid, number)
        sleep(0.5)

    def wake(self) -> None:
        """Continue the process, if it was stopped."""
        continue_process(self.pid)

    def join(self, timeout: float) -> None:
        self._process.join(timeout)

    def kill(self) -> None:
        """End the process, if it has not ended, and the processes that its environments have
        started and not ended."""
        with suppress(ProcessLookupError, PermissionError):  # no such group, or nothing but zombies
            os.killpg(self.pid, signal.SIGKILL)
        if self._process.exitcode is None:
            self._process.kill()

    def close(self, timeout: float = END_GRACE) -> None:
        """Release what the life had, after it has ended or was killed. A process that is not gone
        after ``timeout`` s is left to the kernel, which kills it as soon as it can."""
        wake_fork_server()
        self._process.join(timeout)
        if self._process.exitcode is None:
            # Python would wait for it, without limit, when this process ends.
            multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]
            self._process._popen.close()
        else:
            self._process.close()  # hangs up, too: its end even if the fork server had lost it
        self._channel.close()


class LivesWatch:
    """Looks at the lives of workers whose processes have sent something or have ended. One selector
    watches all of them, so that those that do neither take no time, however many there are."""

    def __init__(self) -> None:
        self._selector = DefaultSelector()
        self._watched: dict[WorkerProcess, tuple[int, int]] = {}

    def add(self, life: WorkerProcess) -> None:
        """Watch a life that has begun."""
        self._watched[life] = life.descriptors
        for descriptor in life.descriptors:
            self._selector.register(descriptor, EVENT_READ, life)

    def remove(self, life: WorkerProcess) -> None:
        """Watch a life no longer; it must not be closed yet, but may have ended."""
        for descriptor in self._watched.pop(life, ()):
            self._selector.unregister(descriptor)

    def look(self, timeout: float) -> None:
        """Wait up to ``timeout`` s until a process sends something or ends. Call `look` of the
        lives of those that did; those that are over are watched no longer."""
        if not self._watched:
            sleep(timeout)
            return
        for life in {key.data for key, _ in self._selector.select(timeout)}:
            life.look()
            if life.is_over:
                self.remove(life)

    def close(self) -> None:
        self._watched.clear()
        self._selector.close()


class ProcessRunner:
    """Runs each worker of ``graph``, or only ``nodes``, in a process of its own."""

    def __init__(
        self, graph: Graph, context: RunnerContext, nodes: Sequence[Node] | None = None
    ) -> None:
        assert context.scratch is not None
        self._graph = graph
        self._nodes = graph.nodes if nodes is None else nodes
        self._context = context
        self._step_timeout = context.env_timeout
        self._alert = context.alert
        self._note = context.note
        self._interrupted = context.is_interrupted
        self._age = context.age
        self._not_missed: dict[str, str] = {}
        """Death messages of the workers that ended after the run was interrupted."""
        self._lives: dict[str, WorkerProcess] = {}
        self._watch = LivesWatch()
        self._events = EventReader(self._age)
        self._abandoned_told = 0
        self._stopped = StoppedWorkers(self._alert, self._age, self._is_over)
        self._unanswered = Unanswered(self._alert, self._age, self._is_over)
        self._rules = list({id(node.restart): node.restart for node in self._nodes}.values())
        self._rows = [node.counter_row for node in self._nodes]

    def _is_over(self) -> bool:
        return self._graph.progress.limit_reached

    def start(self) -> None:
        check_workers(len(self._nodes))
        # An update of a learner has no limit; what it is asked for has.
        limit = monotonic() + START_GRACE
        self._first_beats = [inf if node.role == "learner" else limit for node in self._nodes]
        for node in self._nodes:
            self._begin_life(node, 0)

    def _begin_life(self, node: Node, life: int) -> None:
        events = self._events.new_sender(node.name)
        stop = self._graph.stop
        self._lives[node.name] = WorkerProcess(node, stop, self._context, events, life)
        self._watch.add(self._lives[node.name])

    def pids(self) -> dict[str, int]:
        return {name: life.pid for name, life in self._lives.items()}

    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` s. Raises WorkerDied as soon as a worker has ended or hangs."""
        self._watch.look(timeout)
        self._check_lives(self._nodes)
        self._stopped.look(self.pids())
        self._check_heartbeats()
        self._check_silent()
        for rule in self._rules:
            if (news := rule.news()) is not None:
                self._alert(news)

    def take_events(self) -> list[Event]:
        events = self._events.take()
        for name in self._events.abandoned[self._abandoned_told :]:
            self._abandoned_told += 1
            self._alert(
                f"{name} died with the lock of its event queue; its last log lines are lost"
            )
        return events

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
        """As `Runner.ask`. A worker that does not answer in time, or soon after the training is
        over, is restarted, if its rule allows it, and its successor is asked. When the run is
        interrupted, metrics are not waited for, and empty. The time in which a learner starts does
        not count: it may read many gigabytes of data."""
        asked, patient = monotonic(), node.role == "learner" and not alone
        nodes = [node] if alone else self._nodes
        self._check_lives(nodes, restart=not alone)
        life = self._lives[node.name]
        starts = patient and not life.has_started
        number = life.request(kind, payload)
        while (answer := life.answer(number, 0.05)) is None:
            if kind == "metrics" and self._interrupted():
                return {}
            waiting()
            self._check_lives(nodes, restart=not alone)
            if starts and life.has_started:
                starts, asked = False, monotonic()
            waited, limit = self._age(asked), max(timeout, START_S) if starts else timeout
            if not alone:
                self._stopped.look(self.pids())
                if not self._stopped:  # which is told, and is the reason
                    self._unanswered.look(node.name, waited, limit, starts=starts)
                self._check_heartbeats()
                self._check_silent()
            if node.name in self._not_missed:
                raise WorkerDied(self._not_missed[node.name])
            if waited > limit or (not alone and self._keeps_the_end(node, kind, asked)):
                silent = f"{node.name} did not answer {kind!r} within {waited:.0f} s"
                if alone:
                    raise TimeoutError(silent)
                if not self._restart_silent(node, silent):
                    raise TimeoutError(node.restart.told(f"{silent}; its stacks are above"))
            if self._lives[node.name] is not life:  # its successor is asked again
                life, starts = self._lives[node.name], patient
                number, asked = life.request(kind, payload), monotonic()
        self._unanswered.answered(node.name, asked)
        return answer[0]

    def _keeps_the_end(self, node: Node, kind: str, asked: float) -> bool:
        """Return whether the end of the training waits for a hanging worker. The first update of a
        learner may take any time: its network may be compiled in it."""
        has_learned = self._graph.counters.row(node.counter_row)["updates"][0] > 0
        return bool(has_learned) and self._unanswered.is_late(node.name, kind, asked)

    def wake(self, node: Node) -> None:
        if node.name in self._lives:
            self._lives[node.name].wake()

    def _check_lives(self, nodes: Sequence[Node], *, restart: bool = True) -> None:
        """Raises WorkerDied if the worker of one of ``nodes`` has ended, unless it is restarted, as
        far as it may, or not missed."""
        self._watch.look(0.0)
        for node in nodes:
            life = self._lives.get(node.name)
            if (life is not None and not life.is_over) or node.name in self._not_missed:
                continue
            if life is None:
                raise WorkerDied(f"{node.name} was ended")
            message = life.death_message()
            if self._interrupted() and not node.in_checkpoint:
                self._not_missed[node.name] = message
                self._note(f"after the interrupt: {message}")
            elif not (restart and life.was_killed and self._restart(node, message)):
                raise WorkerDied(node.restart.told(message) if life.was_killed else message)

    def _restart(self, node: Node, why: str) -> bool:
        """Begin another life of a worker, if its rule allows it."""
        count = node.restart.begin_next_life()
        if count is None:
            return False
        before = self._lives[node.name]
        before.kill()
        self._watch.remove(before)
        before.close()
        self._events.retire(before.events)
        row = self._graph.counters.row(node.counter_row)  # which has no other writer now
        row["heartbeat"][0] = monotonic() + START_GRACE
        row["silent_s"][0] = 0.0
        row["restarts"] += 1
        self._begin_life(node, before.life + 1)
        self._alert(f"{why}; it is restarted ({count})")  # last: it raises where the disk is full
        return True

    def _check_heartbeats(self) -> None:
        if self._interrupted():
            return
        beats = self._graph.counters.column("heartbeat")[self._rows]
        beats = np.where(beats == 0, self._first_beats, beats)
        # Those that may be late: the pauses of this process only make an age smaller.
        for at in np.flatnonzero(monotonic() - beats > self._step_timeout).tolist():
            node, age = self._nodes[at], self._age(float(beats[at]))
            if age > self._step_timeout:
                self._lives[node.name].dump_stacks()
                starting = bool(self._graph.counters.row(node.counter_row)["starting"][0])
                hung = (
                    f"{node.name} was stopped, for {age:.0f} s (--env-timeout "
                    f"{self._step_timeout:g}); its stacks are above"
                    if node.name in self._stopped
                    else hangs(node.name, age, self._step_timeout, starting=starting)
                )
                if not self._restart(node, hung):
                    raise WorkerDied(node.restart.told(hung))

    def _check_silent(self) -> None:
        """Replace the members of a group that the others wait for in vain: those inside an update
        have no heartbeat."""
        if self._interrupted():
            return
        silent = self._graph.counters.column("silent_s")[self._rows]
        for at in np.flatnonzero(silent).tolist():
            node, seconds = self._nodes[at], float(silent[at])
            message = (
                f"{node.name} was silent for {seconds:g} s while the others of its group waited "
                f"for it (--{node.role}-timeout)"
            )
            if not self._restart_silent(node, message):
                raise WorkerDied(node.restart.told(f"{message}; its stacks are above"))

    def _restart_silent(self, node: Node, why: str) -> bool:
        """Show where a worker is that others wait for in vain, and begin another life of it, if
        its rule allows it."""
        life = self._lives[node.name]
        life.dump_stacks()
        life.kill()  # at once: it goes on if it was stopped, and must not meet its successor
        return self._restart(node, f"{why}; its stacks are above")

    def close(self) -> None:
        """End all workers: in order, or, after `STOP_GRACE`, by force."""
        self._graph.stop_all()
        deadline = monotonic() + STOP_GRACE
        for life in self._lives.values():
            life.join(max(0.0, deadline - monotonic()))
        self.kill()

    def kill(self) -> None:
        for life in self._lives.values():
            life.kill()
        self._watch.close()
        deadline = monotonic() + END_GRACE
        for life in self._lives.values():
            life.close(max(0.0, deadline - monotonic()))
        self._lives.clear()
        self._events.close()
