"""A complete rollout as the hooks of callbacks see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.rollouts.slots import length
from sampleforge.workers.callback import WorkerCallbacks, call
from sampleforge.workers.stream import Stream

Array = npt.NDArray[Any]


class RolloutView:
    """A complete rollout of T steps of the rows of a split; in a multi-agent environment, of one
    agent of them. Its arrays are read-only views of shared memory, which belongs to the learner
    after the hook: copy what you keep.

    ``actor`` (DD-PPO: the rank), ``split``, ``seat``, ``agent``: its place. ``policy``: the id of
    the policy that has acted. ``length``: T, its number of steps. ``overlap``: the number of its
    first steps that are the last ones of the rollout before (Ape-X with a recurrent core, else 0).
    """

    def __init__(self, stream: Stream, callbacks: WorkerCallbacks) -> None:
        assert stream.slot is not None
        self.actor = callbacks.worker
        _, self.split, self.seat, self.agent, _ = stream.id
        self.policy = callbacks.policies[stream.policy]
        self._slots, self._slot = stream.slots, stream.slot
        self.length = length(self._slots, self._slot)
        self.overlap = stream.begun_at

    @property
    def obs(self) -> Mapping[str, Array]:
        """The observations before each step and after the last one, leaf -> [T+1, rows, ...]. Of a
        step that ended an episode the next one is the final observation, except in the layout
        same_step."""
        views = {name: self._view(leaf, 1) for name, leaf in self._slots.obs.items()}
        steps = np.arange(self.length + 1)
        for name, stacks in self._slots.stacks.items():
            copies = stacks.read_rows(np.full(len(steps), self._slot), steps).numpy()
            copies = copies.reshape(len(steps), -1, *copies.shape[1:])
            copies.flags.writeable = False
            views[name] = copies
        return views

    @property
    def actions(self) -> Mapping[str, Array]:
        """The actions in the policy's form, leaf -> [T, rows, ...]."""
        return {name: self._view(leaf) for name, leaf in self._slots.actions.items()}

    @property
    def reward(self) -> Array:
        """Raw rewards, float32 [T, rows]."""
        return self._view(self._slots.reward)

    @property
    def terminated(self) -> Array:
        """Bool [T, rows]."""
        return self._view(self._slots.terminated)

    @property
    def truncated(self) -> Array:
        """Bool [T, rows]."""
        return self._view(self._slots.truncated)

    @property
    def valid(self) -> Array:
        """Whether a step is experience, bool [T, rows]: one that only resets the row is not."""
        return self._view(self._slots.valid)

    @property
    def first(self) -> Array:
        """Whether an observation begins an episode, bool [T+1, rows]."""
        return self._view(self._slots.first, 1)

    @property
    def version(self) -> Array:
        """The version of the policy that has chosen the action, int64 [T, rows]."""
        return self._view(self._slots.version)

    @property
    def extras(self) -> Mapping[str, Array]:
        """The algorithm's own columns, name -> [T, rows]: with APPO and DD-PPO ``log_prob`` and
        ``value``."""
        return {name: self._view(column) for name, column in self._slots.extras.items()}

    @property
    def place(self) -> str:
        """The place of the rollout, in words."""
        agent = f", agent {self.agent}" if self.agent else ""
        return f"actor {self.actor}, split {self.split}{agent}"

    def _view(self, column: Array, more: int = 0) -> Array:
        view = column[self._slot, : self.length + more]
        view.flags.writeable = False
        return view


def rollout_hooks(callbacks: WorkerCallbacks | None) -> Callable[[Stream], None] | None:
    """Return the function that calls the hooks of a stream's complete rollout; None if no callback
    overrides them. A rollout without steps has no hooks."""
    hooks = () if callbacks is None else callbacks.hooks("on_rollout_end")
    if callbacks is None or not hooks:
        return None

    def tell(stream: Stream) -> None:
        rollout = RolloutView(stream, callbacks)
        if rollout.length:
            call(hooks, rollout)

    return tell
