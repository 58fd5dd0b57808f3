"""Hand-over of trajectory slots between actors and one learner.

Every slot belongs to one actor for good and travels in a circle: free ring of that actor -> the
actor writes -> ready ring of that actor -> the learner reads -> free ring. Each ring has one
producer and one consumer, so there is no lock that a killed process could hold, and the number of
slots in circulation is the back-pressure: an actor without a free slot waits.

A slot is marked with its new owner before it leaves a ring, and before it enters one. Wherever an
actor is killed, its successor thus finds each slot again, by owner and rings (`left_behind`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sampleforge.rollouts.slots import Owner, TrajectorySlots
from sampleforge.shared.rings import IndexRings
from sampleforge.shared.wakeup import Wakeup


class RolloutExchange(Protocol):
    """What an actor gets its slots from and hands its rollouts to."""

    slots: TrajectorySlots

    def take_free(self, actor: int) -> int | None:
        """A slot to write, or None if there is none now."""

    def hand_over(self, actor: int, slot: int) -> None:
        """The rollout in ``slot`` is complete; it is not the actor's any more."""

    def take_over(self, actor: int) -> None:
        """The calling process is the actor from now on; the one before is dead, if there was one.
        Its half-written rollouts are dropped, its complete ones handed over."""

    def fill(self) -> tuple[float, float]:
        """Fractions of all slots that wait for an actor, and that wait for whoever comes next."""


def left_behind(
    slots: TrajectorySlots, of_actor: Iterable[int], free: set[int], ready: set[int]
) -> tuple[list[int], list[int]]:
    """The slots that a killed actor had: (being written, complete but not handed over).

    ``of_actor``: those that may have been its own. ``free`` and ``ready`` wait in its rings. Their
    other ends live on meanwhile: they take what is READY only after having marked it as their own,
    so ``ready`` must have been looked at before, and what is READY then but was in no ring has
    never entered it.
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
        """All slots are free again, whoever had them: only where all who did are gone."""
        self._turn = 0
        self._inherited: list[list[int]] = [[] for _ in range(self._actors)]
        self._free.clear()
        self._ready.clear()
        for slot in range(self.slots.count):
            self.slots.owner[slot] = Owner.FREE
            self._free.push(slot % self._actors, slot)

    def take_free(self, actor: int) -> int | None:
        """Actor: a slot to write, or None if there is none now."""
        if self._inherited[actor]:
            return self._inherited[actor].pop()
        slot = self._free.peek(actor)
        if slot is not None:
            self.slots.move(slot, Owner.FREE, Owner.WRITING)
            self._free.pop(actor)
        return slot

    def take_over(self, actor: int) -> None:
        """Actor: see `RolloutExchange`. The slots stay WRITING until they are used, so that the
        next successor finds them as well."""
        own = range(actor, self.slots.count, self._actors)
        self._inherited[actor], complete = left_behind(
            self.slots, own, self._free.waiting(actor), self._ready.waiting(actor)
        )
        for slot in complete:
            self._ready.push(actor, slot)
        self._learner_wakeup.set()

    def hand_over(self, actor: int, slot: int) -> None:
        """Actor: the rollout in ``slot`` is complete; the learner owns it from now on."""
        self.slots.move(slot, Owner.WRITING, Owner.READY)
        self._ready.push(actor, slot)
        self._learner_wakeup.set()

    def take_ready(self) -> int | None:
        """Learner: the oldest complete rollout of the next actor in turn that has one, or None."""
        for _ in range(self._actors):
            actor, self._turn = self._turn, (self._turn + 1) % self._actors
            slot = self._ready.peek(actor)
            if slot is not None:
                self.slots.move(slot, Owner.READY, Owner.READING)
                self._ready.pop(actor)
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
