"""The hand-over of trajectory slots between actors and the learners of one policy.

Every slot is assigned to one actor and one learner permanently and travels in a circle between
them: free ring -> the actor writes -> ready ring -> the learner reads -> free ring. Each pair of an
actor and a learner has two rings of its own, with one producer and one consumer each, so there is
no lock that a killed process could leave locked. The number of slots in circulation is the
back-pressure: an actor without a free slot waits.

A slot is marked with its new owner before it leaves a ring, and before it enters one. So wherever
an actor or a learner is killed, its successor finds every slot again, by owner and rings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from sampleforge.rollouts.slots import Owner, TrajectorySlots
from sampleforge.shared.rings import IndexRings, next_in_turn
from sampleforge.shared.wakeup import Wakeup


class RolloutExchange(ABC):
    """Circulates slots between actors, which take free slots and hand over complete rollouts, and
    their readers: the learners of a policy, or the shards of a replay.

    Each pair of a reader and an actor has two rings, of ``capacity`` slots: the reader gives slots
    to the actor through one, and gets complete ones back through the other.
    """

    def __init__(
        self,
        slots: TrajectorySlots,
        actor_wakeups: Sequence[Wakeup],
        reader_wakeups: Sequence[Wakeup],
        capacity: int,
    ) -> None:
        self.slots = slots
        self.actors, self._readers = len(actor_wakeups), len(reader_wakeups)
        self._actor_wakeups = actor_wakeups
        self._reader_wakeups = reader_wakeups
        self._free = IndexRings(self._readers * self.actors, capacity)
        self._ready = IndexRings(self._readers * self.actors, capacity)
        self._begin()

    def _begin(self) -> None:
        self._turn = [0] * self.actors
        self._inherited: list[list[int]] = [[] for _ in range(self.actors)]

    @abstractmethod
    def _reader_of(self, slot: int) -> int:
        """Return the reader to which an actor hands over ``slot``."""

    @abstractmethod
    def _slots_of(self, actor: int) -> Iterable[int]:
        """Return the slots that the actor may have now."""

    def num_free(self, actor: int) -> int:
        """Return the number of slots that the actor can take. Only the actor makes it smaller."""
        rings = (self._ring(reader, actor) for reader in range(self._readers))
        return len(self._inherited[actor]) + sum(map(self._free.size, rings))

    def take_free(self, actor: int) -> int | None:
        """Return a slot for this actor to write, from the readers in turn, or None if there is
        none. Called by the actor."""
        if self._inherited[actor]:
            return self._inherited[actor].pop()
        for _ in range(self._readers):
            reader = self._turn[actor]
            self._turn[actor] = (reader + 1) % self._readers
            ring = self._ring(reader, actor)
            slot = self._free.peek(ring)
            if slot is not None:
                self.slots.move(slot, Owner.FREE, Owner.WRITING)
                self._free.pop(ring)
                return slot
        return None

    def hand_over(self, actor: int, slot: int) -> None:
        """Hand the complete rollout in ``slot`` over to its reader, which owns it from then on.
        Called by the actor."""
        self.slots.move(slot, Owner.WRITING, Owner.READY)
        self._push_ready(actor, slot)

    def _push_ready(self, actor: int, slot: int) -> None:
        reader = self._reader_of(slot)
        self._ready.push(self._ring(reader, actor), slot)
        self._reader_wakeups[reader].set()

    def take_over(self, actor: int) -> None:
        """Make the calling process the actor; a previous process of this actor must be dead. Its
        complete rollouts are handed over; its incomplete ones are dropped, but their slots stay
        WRITING, so that the next successor can take them over, too."""
        rings = [self._ring(reader, actor) for reader in range(self._readers)]
        # Read this before the slots: a shard ends a lease before it takes the slot.
        ready = self._ready.waiting_in(rings)
        own = self._slots_of(actor)
        free = self._free.waiting_in(rings)
        self._inherited[actor], complete = abandoned_slots(self.slots, own, free, ready)
        for slot in complete:
            self._push_ready(actor, slot)
        for wakeup in self._reader_wakeups:  # it may have been killed before it woke one
            wakeup.set()

    def fill(self) -> tuple[float, float]:
        """Return the fractions (0 to 1) of all slots that wait for an actor, and that wait for
        their reader."""
        return self._free.total() / self.slots.count, self._ready.total() / self.slots.count

    def _ring(self, reader: int, actor: int) -> int:
        return reader * self.actors + actor


def abandoned_slots(
    slots: TrajectorySlots, of_actor: Iterable[int], free: set[int], ready: set[int]
) -> tuple[list[int], list[int]]:
    """Return the slots of a killed actor: (incomplete, complete but not handed over).

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


class SlotExchange(RolloutExchange):
    """Circulates the slots of one policy between its actors and its learners; each learner has an
    equal share of the slots.

    Raises ValueError unless the slots can be dealt out evenly.
    """

    def __init__(
        self,
        slots: TrajectorySlots,
        actor_wakeups: Sequence[Wakeup],
        learner_wakeups: Sequence[Wakeup],
    ) -> None:
        actors, learners = len(actor_wakeups), len(learner_wakeups)
        for count, role in ((actors, "actors"), (learners, "learners")):
            if slots.count % count:
                raise ValueError(f"{slots.count} slots cannot be dealt evenly to {count} {role}")
        self._learner_of = _deal(slots.count, actors, learners)
        super().__init__(slots, actor_wakeups, learner_wakeups, slots.count // actors)
        self.reset()

    def reset(self) -> None:
        """Make all slots free again. No worker that had one may still be running."""
        self._begin()
        self._next_actor = [0] * self._readers
        self._free.clear()
        self._ready.clear()
        for slot in range(self.slots.count):
            self.slots.owner[slot] = Owner.FREE
            self._free.push(self._ring_of(slot), slot)

    def _reader_of(self, slot: int) -> int:
        return self._learner_of[slot]

    def _slots_of(self, actor: int) -> Iterable[int]:
        return range(actor, self.slots.count, self.actors)

    def _ring_of(self, slot: int) -> int:
        return self._ring(self._learner_of[slot], slot % self.actors)

    def take_ready(self, learner: int = 0) -> int | None:
        """Return the oldest complete slot of the next actor in turn that has one, or None if no
        actor has one. Called by the learner."""
        filled = self._ready.filled(self._ring(learner, 0), self.actors)
        if not len(filled):
            return None
        actor = next_in_turn(filled, self._next_actor[learner])
        self._next_actor[learner] = (actor + 1) % self.actors
        ring = self._ring(learner, actor)
        slot = self._ready.peek(ring)
        assert slot is not None, "only the learner takes slots from the ring"
        self.slots.move(slot, Owner.READY, Owner.READING)
        self._ready.pop(ring)
        return slot

    def give_back(self, slot: int) -> None:
        """Make ``slot`` free again, after reading it. Called by the learner."""
        self.slots.move(slot, Owner.READING, Owner.FREE)
        self._push_free(slot)

    def _push_free(self, slot: int) -> None:
        self._free.push(self._ring_of(slot), slot)
        self._actor_wakeups[slot % self.actors].set()

    def give_back_all(self, learner: int) -> None:
        """Give back the slots that the previous process of this learner, which must be dead, was
        reading. Called by the learner. Complete rollouts that it had not taken stay ready."""
        rings = [self._ring(learner, actor) for actor in range(self.actors)]
        free = self._free.waiting_in(rings)
        ready = self._ready.waiting_in(rings)
        for slot in range(self.slots.count):
            if self._learner_of[slot] != learner:
                continue
            owner = self.slots.owner[slot]
            if owner == Owner.READING and slot in ready:  # marked, but not yet taken
                self.slots.move(slot, Owner.READING, Owner.READY)
            elif owner == Owner.READING:
                self.give_back(slot)
            elif owner == Owner.FREE and slot not in free:  # marked, but not yet given back
                self._push_free(slot)


def _deal(slots: int, actors: int, learners: int) -> list[int]:
    """Return the learner of each slot; slot i belongs to actor i % ``actors``. Each learner gets an
    equal share, also of each actor's slots if these can be dealt evenly."""
    if slots % (actors * learners) == 0:
        return [slot // actors % learners for slot in range(slots)]
    return [slot * learners // slots for slot in range(slots)]
