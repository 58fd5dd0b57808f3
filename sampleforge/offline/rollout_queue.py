"""Copies of complete rollouts on their way from the actors to the recorder.

Each actor has buffers of its own, which it fills in turn. The recorder reads a buffer before it
removes it from the actor's ring, so its successor reads it again if the recorder is killed. An
actor whose buffers are all full drops the rollout, and counts it: it never waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.shared.arrays import Layout, SharedArrays, layout_bytes
from sampleforge.shared.rings import IndexRings
from sampleforge.shared.wakeup import Wakeup

Array = npt.NDArray[Any]
_STEP_COLUMNS = ("version", "reward", "terminated", "truncated", "valid", "log_prob", "parameters")


class Rollout(NamedTuple):
    """Where a rollout is from. ``number``: count of the rollouts of its stream; the steps ``begin``
    to ``end`` - 1 of its slot are new."""

    split: int
    seat: int
    policy: int
    number: int
    begin: int
    end: int


@dataclass(frozen=True)
class RecordedRollout:
    """A rollout as the recorder reads it: views, which are valid until it asks for the next one.

    ``columns``: ``first`` and ``obs/<leaf>`` [n+1, rows, ...] (of stacks the newest frames only),
    all others [n, rows, ...]: ``action/<leaf>``, those of the slots, and, under same-step
    autoreset, ``recorded/<leaf>``, the final observations of episodes. ``shortened`` bool
    [rows]: the rows that begin the rollout in an episode that decorrelation shortens (None: no
    row)."""

    actor: int
    about: Rollout
    columns: dict[str, Array]
    shortened: Array | None = None


class RolloutQueue:
    """``depth`` buffers for each of ``actors`` actors, in shared memory. ``wakeup``: of the
    recorder. ``shape``: of the slots, the same for all policies that are recorded."""

    def __init__(self, shape: SlotShape, actors: int, depth: int, wakeup: Wakeup) -> None:
        assert shape.parameters, "the slots of a run that is recorded store parameters"
        self.shape = shape
        self.actors = actors
        self.depth = depth
        self.wakeup = wakeup
        self._names = list(self.layout(shape, 1))
        self._copied = [n for n in self._names if not n.startswith("obs/")]
        self._rings = IndexRings(actors, depth)
        self._arrays = SharedArrays(self.layout(shape, actors * depth))
        self._state = SharedArrays(
            {
                "about": ((actors * depth, len(Rollout._fields)), "int64"),
                "shortened": ((actors * depth, shape.rows), "bool"),
                "dropped_steps": ((actors,), "int64"),
                "ended": ((1,), "bool"),
            }
        )

    @staticmethod
    def layout(shape: SlotShape, count: int) -> Layout:
        """Return the arrays of ``count`` buffers."""
        slots = shape.layout(count)
        names = [n for n in slots if n in _STEP_COLUMNS or n.startswith(("action/", "recorded/"))]
        arrays = {name: slots[name] for name in [*names, "first"]}
        before = slots["first"][0]
        for name, leaf in shape.spec.observations.items():
            frames = leaf.shape[leaf.stack is not None :]
            arrays[f"obs/{name}"] = (before + frames, leaf.dtype)
        return arrays

    @classmethod
    def nbytes(cls, shape: SlotShape, count: int) -> int:
        return layout_bytes(cls.layout(shape, count))

    @property
    def dropped_steps(self) -> int:
        """Env steps that were dropped because the recorder was not fast enough."""
        return int(self._state["dropped_steps"].sum())

    @property
    def ended(self) -> bool:
        """Whether nothing more is recorded."""
        return bool(self._state["ended"][0])

    def end(self) -> None:
        """Record nothing more: actors send no more rollouts. Called by the recorder."""
        self._state["ended"][0] = True

    def send(
        self,
        actor: int,
        slots: TrajectorySlots,
        slot: int,
        about: Rollout,
        shortened: Array | None = None,
    ) -> None:
        """Copy the rollout in ``slot``, or drop it if there is no room. ``shortened``: see
        `RecordedRollout`. Called by the actor, which owns the slot."""
        if self.ended:
            return
        if self._rings.size(actor) == self.depth:
            steps = np.count_nonzero(slots.valid[slot, about.begin : about.end])
            self._state["dropped_steps"][actor] += steps
            return
        place = self._rings.pushed(actor) % self.depth
        at = actor * self.depth + place
        for name in self._copied:
            self._arrays[name][at] = slots.arrays[name][slot]
        for name, leaf in self.shape.spec.observations.items():
            self._arrays[f"obs/{name}"][at] = _frames(slots, slot, name, leaf.stack is not None)
        self._state["about"][at] = about
        self._state["shortened"][at] = False if shortened is None else shortened
        self._rings.push(actor, place)
        self.wakeup.set()

    def ready_actors(self) -> list[int]:
        """Return the actors of which there are rollouts. Called by the recorder."""
        actors: list[int] = self._rings.filled(0, self.actors).tolist()
        return actors

    def take(self, actor: int) -> RecordedRollout | None:
        """Return the oldest rollout of an actor, or None; `done` removes it. Called by the
        recorder."""
        place = self._rings.peek(actor)
        if place is None:
            return None
        at = actor * self.depth + place
        about = Rollout(*self._state["about"][at].tolist())
        columns = {}
        for name in self._names:
            last = about.end + (name == "first" or name.startswith("obs/"))
            columns[name] = self._arrays[name][at, about.begin : last]
        return RecordedRollout(actor, about, columns, self._state["shortened"][at])

    def done(self, actor: int) -> None:
        """Remove the rollout that `take` has returned. Called by the recorder."""
        self._rings.pop(actor)


def _frames(slots: TrajectorySlots, slot: int, name: str, is_stack: bool) -> Array:
    """Return one observation leaf of a slot, [T+1, rows, ...]; of a stack the newest frames."""
    if name in slots.stacks:
        return slots.stacks[name].newest(slot, 0, slots.shape.rollout + 1)
    whole: Array = slots.obs[name][slot]
    return whole[:, :, -1] if is_stack else whole


@dataclass(frozen=True)
class RolloutSender:
    """The end of a `RolloutQueue` of one actor."""

    queue: RolloutQueue
    actor: int

    def send(
        self, slots: TrajectorySlots, slot: int, about: Rollout, shortened: Array | None = None
    ) -> None:
        """Send a copy of a complete rollout, or drop it if there is no room; see
        `RolloutQueue.send`."""
        self.queue.send(self.actor, slots, slot, about, shortened)


def sender(queue: RolloutQueue | None, actor: int) -> RolloutSender | None:
    """Return an actor's end of the queue, if there is one."""
    return None if queue is None else RolloutSender(queue, actor)
