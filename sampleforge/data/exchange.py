"""Hand-over of trajectory slots between actors and one learner.

Every slot belongs to one actor for good and travels in a circle: free ring of that actor -> the
actor writes -> ready ring of that actor -> the learner reads -> free ring. Each ring has one
producer and one consumer, so there is no lock that a killed process could hold, and the number of
slots in circulation is the back-pressure: an actor without a free slot waits.
"""

from __future__ import annotations

from typing import Protocol

from sampleforge.data.rings import IndexRings
from sampleforge.data.slots import Owner, TrajectorySlots
from sampleforge.runtime.wakeup import Wakeup


class RolloutExchange(Protocol):
    """What an actor gets its slots from and hands its rollouts to."""

    slots: TrajectorySlots

    def take_free(self, actor: int) -> int | None:
        """A slot to write, or None if there is none now."""

    def hand_over(self, actor: int, slot: int) -> None:
        """The rollout in ``slot`` is complete; it is not the actor's any more."""

    def fill(self) -> tuple[float, float]:
        """Fractions of all slots that wait for an actor, and that wait for whoever comes next."""


class SlotExchange:
    """Circulates the slots of one policy between ``num_actors`` actors and its learner.

    Raises ValueError unless the slots can be dealt out evenly.
    """

    def __init__(
        self, slots: TrajectorySlots, actor_wakeups: list[Wakeup], learner_wakeup: Wakeup
    ) -> None:
        self.slots = slots
        self._actors = len(actor_wakeups)
        if slots.count % self._actors:
            raise ValueError(f"{slots.count} slots cannot be dealt evenly to {self._actors} actors")
        self._free = IndexRings(self._actors, slots.count // self._actors)
        self._ready = IndexRings(self._actors, slots.count // self._actors)
        self._actor_wakeups = actor_wakeups
        self._learner_wakeup = learner_wakeup
        self.reset()

    def reset(self) -> None:
        """All slots are free again, whoever had them: only where all who did are gone."""
        self._turn = 0
        self._free.clear()
        self._ready.clear()
        for slot in range(self.slots.count):
            self.slots.owner[slot] = Owner.FREE
            self._free.push(slot % self._actors, slot)

    def take_free(self, actor: int) -> int | None:
        """Actor: a slot to write, or None if there is none now."""
        slot = self._free.pop(actor)
        if slot is not None:
            self.slots.move(slot, Owner.FREE, Owner.WRITING)
        return slot

    def hand_over(self, actor: int, slot: int) -> None:
        """Actor: the rollout in ``slot`` is complete; the learner owns it from now on."""
        self.slots.move(slot, Owner.WRITING, Owner.READY)
        self._ready.push(actor, slot)
        self._learner_wakeup.set()

    def take_ready(self) -> int | None:
        """Learner: the oldest complete rollout of the next actor in turn that has one, or None."""
        for _ in range(self._actors):
            actor, self._turn = self._turn, (self._turn + 1) % self._actors
            slot = self._ready.pop(actor)
            if slot is not None:
                self.slots.move(slot, Owner.READY, Owner.READING)
                return slot
        return None

    def give_back(self, slot: int) -> None:
        """Learner: ``slot`` has been read and may be written again."""
        self.slots.move(slot, Owner.READING, Owner.FREE)
        self._free.push(slot % self._actors, slot)
        self._actor_wakeups[slot % self._actors].set()

    def fill(self) -> tuple[float, float]:
        """Fractions of all slots that are free, and that wait for the learner."""
        return self._free.total() / self.slots.count, self._ready.total() / self.slots.count
