"""Copies of complete rollouts on their way from the actors to the recorder.

Each actor has buffers of its own, which it fills in turn. The recorder reads a buffer before it
removes it from the actor's ring, so its successor reads it again if the recorder is killed.

If the recorder cannot keep up, whole episodes are left out (`KeptEpisodes`): while more than half
of an actor's buffers wait, no episode that begins is recorded. The other half is for those that are
being recorded. An actor that has no room for these either waits for the recorder, for `PATIENCE` at
most; then they are cut, and counted as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.data.minari_format import Dropped
from sampleforge.rollouts.slots import RECORDED, SlotShape, TrajectorySlots
from sampleforge.rollouts.stacks import check_first_stacks
from sampleforge.shared.arrays import Layout, SharedArrays, layout_bytes
from sampleforge.shared.rings import IndexRings
from sampleforge.shared.wakeup import Wakeup

Flags = npt.NDArray[np.bool_]


class KeptEpisodes:
    """Which episodes of the ``rows`` rows of a stream are recorded.

    `begin` decides, before a rollout, for all episodes that begin in it; each of them is then kept,
    or dropped, to its end. So what is kept does not depend on what happens in the episodes, such as
    how long they become. (If single rollouts were dropped, it would be long episodes that lack
    some.)

    ``admits``: whether the episodes that begin in this rollout are kept."""

    def __init__(self, rows: int) -> None:
        self.admits = True
        self._kept = np.zeros(rows, np.bool_)  # rows whose episode is kept
        self._dropped = np.zeros(rows, np.bool_)

    def begin(self, *, admits: bool) -> None:
        """Decide for the episodes that begin in the next rollout."""
        self.admits = admits

    def take(self, first: Flags, valid: Flags) -> tuple[bool, int, int]:
        """Take the steps of a rollout: ``first`` (bool [n, rows]) marks those that begin an
        episode, ``valid`` those that the environment took. Return whether some are of episodes that
        are kept, and the numbers of episodes and of env steps that are dropped here."""
        began = np.logical_or.accumulate(first, 0)
        if self.admits and not self._dropped.any():
            self._kept |= began[-1:].any(0)
            return bool(self._kept.any()), 0, 0
        dropped = np.where(began, not self.admits, self._dropped)
        kept = np.where(began, self.admits, self._kept)
        some = bool(kept.any()) or bool(self._kept.any())
        if len(first):
            self._dropped, self._kept = dropped[-1], kept[-1]
        return some, int((first & dropped).sum()), int((valid & dropped).sum())

    def lose(self) -> int:
        """Drop the rest of all episodes that are kept, and return their number."""
        lost = int(self._kept.sum())
        self._dropped |= self._kept
        self._kept[...] = False
        return lost

    def forget(self) -> None:
        """Another policy, which is not recorded, goes on with the episodes."""
        self._kept[...] = self._dropped[...] = False


Array = npt.NDArray[Any]
_STEP_COLUMNS = ("version", "reward", "terminated", "truncated", "valid", "log_prob", *RECORDED)
PATIENCE = 5.0
"""Seconds for which an actor waits for a recorder that stands still."""


class Rollout(NamedTuple):
    """Where a rollout is from. ``number``: count of the rollouts of its stream; the steps ``begin``
    to ``end`` - 1 of its slot are new. ``admits``: the episodes that begin in it are recorded.
    ``at``: env steps of the whole run when it began (-1: unknown)."""

    split: int
    seat: int
    policy: int
    number: int
    begin: int
    end: int
    admits: bool = True
    at: int = -1


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
    """``depth`` buffers for each of ``actors`` actors, in shared memory. ``wakeup`` wakes the
    recorder. ``shape``: the slots' shape, the same for all policies that are recorded.
    ``patience``: seconds for which an actor waits for room, 0 where it and the recorder take
    turns."""

    def __init__(
        self,
        shape: SlotShape,
        actors: int,
        depth: int,
        wakeup: Wakeup,
        patience: float = PATIENCE,
    ) -> None:
        assert shape.parameters, "the slots of a run that is recorded store parameters"
        self.shape = shape
        self.actors = actors
        self.depth = depth
        self.wakeup = wakeup
        self.patience = patience
        self._names = list(self.layout(shape, 1))
        self._copied = [n for n in self._names if not n.startswith("obs/")]
        self.rings = IndexRings(actors, depth)
        self._arrays = SharedArrays(self.layout(shape, actors * depth))
        self.state = SharedArrays(
            {
                "about": ((actors * depth, len(Rollout._fields)), "int64"),
                "shortened": ((actors * depth, shape.rows), "bool"),
                "dropped": ((actors, len(Dropped._fields)), "int64"),
                "ended": ((actors,), "bool"),
                "held": ((1,), "int64"),
                "records": ((1,), "bool"),
                "lost": ((len(Dropped._fields),), "int64"),
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
    def dropped(self) -> Dropped:
        """What was sampled in this run and is not recorded."""
        return Dropped(*(self.state["dropped"].sum(0) + self.state["lost"]).tolist())

    @property
    def ended(self) -> bool:
        """Whether nothing more is recorded."""
        return bool(self.state["ended"].all())

    def begin(self) -> None:
        """Begin to record. If an earlier recorder has not ended, it was killed: the episodes that
        it held are lost, and counted. Called by the recorder."""
        held = self.state["held"]
        if self.state["records"][0]:
            self.lose(int(held[0]))
        held[0], self.state["records"][0] = 0, True

    def lose(self, episodes: int) -> None:
        """Note that the recording was broken off, and how many episodes that lost. Called by the
        recorder."""
        lost = self.state["lost"]
        lost += Dropped(lost_episodes=episodes, breaks=1)

    def hold(self, episodes: int) -> None:
        """Note how many episodes would be lost if the recorder was killed now: those that it has
        taken, and that are not in a closed segment. Called by the recorder."""
        self.state["held"][0] = episodes

    def settle(self) -> None:
        """Count as lost what a recorder held that was ended before it had written it. Called when
        all workers have ended."""
        if self.state["records"][0] or self.state["held"][0]:
            self.lose(int(self.state["held"][0]))
            self.state["held"][0], self.state["records"][0] = 0, False

    def end(self) -> None:
        """Record nothing more: actors send no more rollouts. Called by the recorder."""
        self.state["ended"][...] = True
        self.state["records"][0] = False

    def copy(
        self,
        slots: TrajectorySlots,
        slot: int,
        at: int,
        about: Rollout,
        shortened: Array | None,
    ) -> None:
        """Copy the rollout in ``slot`` into buffer ``at``, of all. Called by its actor. Raises
        ConfigError if the first stack of an episode is another one than is read from the frames."""
        for name in self._copied:
            self._arrays[name][at] = slots.arrays[name][slot]
        new = slot, slice(about.begin, about.end + 1)
        for name, leaf in self.shape.spec.observations.items():
            if leaf.stack is not None and name in slots.obs:
                check_first_stacks(name, leaf, slots.obs[name][new], slots.first[new])
            self._arrays[f"obs/{name}"][at] = _frames(slots, slot, name, leaf.stack is not None)
        self.state["about"][at] = about
        self.state["shortened"][at] = False if shortened is None else shortened

    def ready_actors(self) -> list[int]:
        """Return the actors of which there are rollouts. Called by the recorder."""
        actors: list[int] = self.rings.filled(0, self.actors).tolist()
        return actors

    def take(self, actor: int) -> RecordedRollout | None:
        """Return the oldest rollout of an actor, or None; `done` removes it. Called by the
        recorder."""
        place = self.rings.peek(actor)
        if place is None:
            return None
        at = actor * self.depth + place
        about = Rollout(*self.state["about"][at].tolist())
        columns = {}
        for name in self._names:
            last = about.end + (name == "first" or name.startswith("obs/"))
            columns[name] = self._arrays[name][at, about.begin : last]
        return RecordedRollout(actor, about, columns, self.state["shortened"][at])

    def done(self, actor: int) -> None:
        """Remove the rollout that `take` has returned. Called by the recorder."""
        self.rings.pop(actor)


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

    def has_room(self) -> bool:
        """Return whether episodes that begin now can be recorded."""
        return 2 * self.queue.rings.size(self.actor) <= self.queue.depth

    def send(
        self,
        slots: TrajectorySlots,
        slot: int,
        about: Rollout,
        kept: KeptEpisodes,
        shortened: Array | None,
        waiting: Callable[[], None],
    ) -> None:
        """Copy the rollout in ``slot``, which the actor owns, if some of its episodes are ``kept``.
        If there is no room, wait for it, and call ``waiting`` meanwhile. ``shortened``: see
        `RecordedRollout`."""
        queue, state = self.queue, self.queue.state
        if state["ended"][self.actor]:
            return
        new = slice(about.begin, about.end)
        first, valid = slots.first[slot, new], slots.valid[slot, new]
        some, *dropped = kept.take(first, valid)
        counts = state["dropped"][self.actor]
        counts[:2] += dropped
        if not some:
            return
        if not self._waits_for_room(waiting):
            steps = np.count_nonzero(valid) - dropped[1]
            counts += Dropped(steps=int(steps), cut_episodes=kept.lose())
            return
        place = queue.rings.pushed(self.actor) % queue.depth
        queue.copy(slots, slot, self.actor * queue.depth + place, about, shortened)
        queue.rings.push(self.actor, place)
        queue.wakeup.set()

    def _waits_for_room(self, waiting: Callable[[], None]) -> bool:
        """Return whether there is room for a rollout, after waiting for it."""
        queue, until = self.queue, monotonic() + self.queue.patience
        while queue.rings.size(self.actor) == queue.depth:
            if queue.ended or monotonic() >= until:
                return False
            waiting()
            sleep(0.001)
        return True

    def end(self) -> None:
        """Send nothing more."""
        self.queue.state["ended"][self.actor] = True


def sender(queue: RolloutQueue | None, actor: int) -> RolloutSender | None:
    """Return an actor's end of the queue, if there is one."""
    return None if queue is None else RolloutSender(queue, actor)
