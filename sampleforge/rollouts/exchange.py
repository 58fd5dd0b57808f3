"""The hand-over of trajectory slots between actors and one learner.

Every slot is assigned to one actor permanently and travels in a circle: free ring of that actor ->
the actor writes -> ready ring of that actor -> the learner reads -> free ring. Each ring has one
producer and one consumer, so there is no lock that a killed process could leave locked. The number
of slots in circulation is the back-pressure: an actor without a free slot waits.

A slot is marked with its new owner before it leaves a ring, and before it enters one. So wherever
an actor is killed, its successor finds every slot again, by owner and rings (`left_behind`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sampleforge.rollouts.slots import Owner, TrajectorySlots
from sampleforge.shared.rings import IndexRings
from sampleforge.shared.wakeup import Wakeup


class RolloutExchange(Protocol):
    """The actor's view of an exchange: it gets free slots and hands complete rollouts over."""

    slots: TrajectorySlots

    def num_free(self, actor: int) -> int:
        """Return how many slots `take_free` has for the actor. Only the actor makes them fewer."""

    def take_free(self, actor: int) -> int | None:
        """Return a slot to write, or None if there is none."""

    def hand_over(self, actor: int, slot: int) -> None:
        """Hand over the complete rollout in ``slot``, which no longer belongs to the actor."""

    def take_over(self, actor: int) -> None:
        """Make the calling process the actor; a previous process of this actor must be dead. Its
        incomplete rollouts are dropped, its complete ones are handed over."""

    def fill(self) -> tuple[float, float]:
        """Return the fractions (0 to 1) of all slots that wait for an actor, and that wait for
        their reader."""


def left_behind(
    slots: TrajectorySlots, of_actor: Iterable[int], free: set[int], ready: set[int]
) -> tuple[list[int], list[int]]:
    """Return the slots that a killed actor had: (being written, complete but not handed over).

    ``of_actor``: the slots that the actor may have had. ``free`` and ``ready``: the slots in its
    rings. The readers at the other ends of the rings are still running: they mark a READY slot as
    their own before they take it from the ring. So ``ready`` must be read before this call, and a
    slot that is READY now but was not in that ring has never entered it.
    """
    writing, complete = [], []
    for slot in of_actor:
        owner = slots.owner[slot]
        if owner == Owner.READY and slot not in ready:
            complete.append(slot)
        elif owner == Owner.WRITING and slot in free:  # marked, but not yet popped
            slots.move(slot, Owner.WRITING, Owner.FREE)
        elif owner == Owner.WRITING:
            slots.renew(slot)
            writing.append(slot)
    return writing, complete


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
        """Make all slots free again. No worker that had one may still be running."""
        self._turn = 0
        self._inherited: list[list[int]] = [[] for _ in range(self._actors)]
        self._free.clear()
        self._ready.clear()
        for slot in range(self.slots.count):
            self.slots.owner[slot] = Owner.FREE
            self._free.push(slot % self._actors, slot)

    def num_free(self, actor: int) -> int:
        """Return how many slots there are for this actor to write. Called by the actor."""
        return len(self._inherited[actor]) + self._free.size(actor)

    def take_free(self, actor: int) -> int | None:
        """Return a slot for this actor to write, or None if there is none. Called by the actor."""
        if self._inherited[actor]:
            return self._inherited[actor].pop()
        slot = self._free.peek(actor)
        if slot is not None:
            self.slots.move(slot, Owner.FREE, Owner.WRITING)
            self._free.pop(actor)
        return slot

    def take_over(self, actor: int) -> None:
        """Take over the slots of the actor's previous process, see `RolloutExchange`. Called by the
        actor. The slots stay WRITING until they are used, so that the next successor would find
        them too."""
        own = range(actor, self.slots.count, self._actors)
        self._inherited[actor], complete = left_behind(
            self.slots, own, self._free.waiting(actor), self._ready.waiting(actor)
        )
        for slot in complete:
            self._ready.push(actor, slot)
        self._learner_wakeup.set()

    def hand_over(self, actor: int, slot: int) -> None:
        """Hand the complete rollout in ``slot`` over to the learner, which owns it from then on.
        Called by the actor."""
        self.slots.move(slot, Owner.WRITING, Owner.READY)
        self._ready.push(actor, slot)
        self._learner_wakeup.set()

    def take_ready(self) -> int | None:
        """Return the oldest complete slot of the next actor in turn that has one, or None. Called
        by the learner."""
        for _ in range(self._actors):
            actor, self._turn = self._turn, (self._turn + 1) % self._actors
            slot = self._ready.peek(actor)
            if slot is not None:
                self.slots.move(slot, Owner.READY, Owner.READING)
                self._ready.pop(actor)
                return slot
        return None

    def give_back(self, slot: int) -> None:
        """Make ``slot`` free again, after reading it. Called by the learner."""
        self.slots.move(slot, Owner.READING, Owner.FREE)
        self._free.push(slot % self._actors, slot)
        self._actor_wakeups[slot % self._actors].set()

    def fill(self) -> tuple[float, float]:
        """Return the fractions (0 to 1) of all slots that are free, and that wait for the
        learner."""
        return self._free.total() / self.slots.count, self._ready.total() / self.slots.count
