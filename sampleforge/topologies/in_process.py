"""The one worker of a graph in this process: what it is under torchrun, which starts the others."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any

import setproctitle
import torch

from sampleforge.data.encounter import Encounter
from sampleforge.data.ranks import RankLost
from sampleforge.data.store_board import StoreBoard
from sampleforge.env.scratch import scratch_directory
from sampleforge.topologies.graph import Graph
from sampleforge.workers.rank import RankWorker

WATCH = 1.0
"""Seconds between two looks of the watch."""
BRIEFLY = 0.05


class InProcessRunner:
    """Steps the rank of ``graph`` between the driver's other duties.

    ``scratch``: where its working directory is made (None: in the system's). ``interrupted``: a
    rank that is asked to end does so between two steps, or when the others, who are asked too,
    have left in the middle of one. ``step_timeout``: see `ProcessRunner`; here a thread of its own
    watches, which ends the process, for torchrun to begin anew.
    """

    def __init__(
        self,
        graph: Graph,
        encounter: Encounter,
        scratch: Path | None,
        interrupted: Callable[[], bool],
        step_timeout: float,
    ) -> None:
        worker = graph.learner.worker
        assert isinstance(worker, RankWorker) and graph.nodes == (graph.learner,)
        self._graph = graph
        self._worker = worker
        self._encounter = encounter
        self._scratch = scratch
        self._interrupted = interrupted
        self._step_timeout = step_timeout
        self._resources = ExitStack()
        self._entered = inf
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watch_over, name="watch", daemon=True)

    def start(self) -> None:
        setproctitle.setproctitle(f"sampleforge: {self._worker.name}")
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        placement = self._graph.learner.placement
        if placement.cores is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, set(placement.cores))
        if placement.niceness:
            os.nice(placement.niceness)
        torch.set_num_threads(1)
        self._resources.enter_context(scratch_directory(self._scratch))
        self._parent = os.getppid()
        self._watch.start()
        self._entered = time()
        self._worker.start()
        self._entered = inf

    def pids(self) -> dict[str, int]:
        return {self._worker.name: os.getpid()}

    def poll(self, timeout: float) -> None:
        """Work for ``timeout`` s. Raises what the rank raises; RankLost not where it is
        interrupted itself."""
        deadline = monotonic() + timeout
        self._entered = time()
        try:
            while monotonic() < deadline and not (self._worker.ended or self._interrupted()):
                if not self._worker.step():
                    self._worker.wait(BRIEFLY)
        except RankLost as error:
            if not self._interrupted():
                raise
            print(f"interrupted, and {error}", file=sys.stderr)
        finally:
            self._entered = inf
        if self._worker.ended:
            self._encounter.last_words()

    def ask(self, kind: str, payload: Any, timeout: float) -> Any:
        """The rank's answer to a request."""
        return self._worker.handle((kind, payload))

    def close(self) -> None:
        if self._worker.ended:
            self._encounter.wait_for_last_words()
        self._worker.close()
        for held in self._graph.held:
            if isinstance(held, StoreBoard):
                held.close()
        self._closed.set()
        if self._watch.ident is not None:
            self._watch.join()
        self._resources.close()

    def kill(self) -> None:
        """This process ends at once; nothing but its directory would be left."""
        self._resources.close()

    def _watch_over(self) -> None:
        """End the process if it hangs in a step, or if torchrun has died, which would leave it."""
        row = self._graph.counters.row(self._encounter.world.rank)
        while not self._closed.wait(WATCH):
            if os.getppid() != self._parent:
                print(f"{self._worker.name}: torchrun has died", file=sys.stderr, flush=True)
                os._exit(1)
            age = time() - max(float(row["heartbeat"][0]), self._entered)
            if age > self._step_timeout:
                faulthandler.dump_traceback(all_threads=True)
                print(
                    f"{self._worker.name} has been in one step for {age:.0f} s (--env-timeout "
                    f"{self._step_timeout:g}); its stacks are above. Does the environment hang?",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)
