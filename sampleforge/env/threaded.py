"""Env rows that step in a thread of their own, so that the actor need not wait for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sampleforge.env.env_code import begin_thread
from sampleforge.env.vector import Array, EnvVector, Episode, StepOut, own_outputs
from sampleforge.shared.events import Send, send_through_in_thread, sender_of_thread


class ThreadedVector(EnvVector):
    """An env vector that is created, reset, stepped and closed in one thread.

    This costs 30 us per step. It helps if a step releases the interpreter lock: simulators in other
    processes or on another device, C++ code that releases the lock, and simulators that sleep.
    ``wake`` is called when a step is done. Actions, statistics and faults are those of the vector
    in the thread; `recv` raises the exception of a step.
    """

    def __init__(self, make: Callable[[], EnvVector], wake: Callable[[], None]) -> None:
        self._thread = ThreadPoolExecutor(1, "env rows", _begin_thread, (sender_of_thread(),))
        self._wake = wake
        try:
            self._inner = self._thread.submit(make).result()
        except BaseException:
            self._thread.shutdown()
            raise
        inner = self._inner
        spec = dataclasses.replace(inner.spec, asynchronous=True)
        super().__init__(spec, inner.num_rows)
        self.guard = inner.guard
        self._out = own_outputs(spec, inner.num_rows)
        self._step: Future[list[Episode]] | None = None
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether the step that was sent is done."""
        return self._step is not None and self._step.done()

    def shortened_rows(self) -> Array | None:
        return self._inner.shortened_rows()

    def row_info(self, row: int) -> Mapping[str, Any]:
        return self._inner.row_info(row)

    def row_env(self, row: int) -> Any:
        return self._inner.row_env(row)

    def reset(self, obs: Mapping[str, Array]) -> None:
        self._thread.submit(self._inner.reset, obs).result()

    def send(self, actions: Mapping[str, Array]) -> None:
        """Begin a step like `EnvVector.send`; the actions may change afterwards."""
        self._begin({name: leaf.copy() for name, leaf in actions.items()})

    def recv(self, out: StepOut) -> list[Episode]:
        """Complete the step like `EnvVector.recv`; this waits unless `ready`."""
        assert self._step is not None, "send comes first"
        ended, self._step = self._step.result(), None
        self._complete(out)
        return ended

    def close(self) -> None:
        """Close the vector, after waiting for a step in progress."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._inner.close).result()
            self._thread.shutdown()

    def _begin(self, actions: dict[str, Array]) -> None:
        self._step = self._thread.submit(self._in_thread, actions)
        self._step.add_done_callback(lambda _: self._wake())

    def _in_thread(self, actions: dict[str, Array]) -> list[Episode]:
        self._inner.send(actions)
        return self._inner.recv(self._out)

    def _complete(self, out: StepOut) -> None:
        given = self._out
        for name in ("reward", "terminated", "truncated", "valid", "first"):
            getattr(out, name)[...] = getattr(given, name)
        for name, leaf in given.obs.items():
            out.obs[name][...] = leaf
        if given.final_obs is not None and out.final_obs is not None:
            ended = given.terminated | given.truncated
            for name, leaf in given.final_obs.items():
                out.final_obs[name][ended] = leaf[ended]
        self.valid_rows, self.rebuilt = self._inner.valid_rows, self._inner.rebuilt
        self.fault = self._inner.fault


def _begin_thread(sender: Send | None) -> None:
    """Set up a thread of environments: events go to ``sender``, and settings of the process stay
    those of the actor, which computes beside it."""
    send_through_in_thread(sender)
    begin_thread()
