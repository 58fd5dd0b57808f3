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

from collections.abc import Iterable, Sequence
from typing import Protocol

from sampleforge.rollouts.slots import Owner, TrajectorySlots
from sampleforge.shared.rings import IndexRings, next_in_turn
from sampleforge.shared.wakeup import Wakeup


class RolloutExchange(Protocol):
    """The interface of an exchange for actors, which take free slots and hand over complete
    rollouts."""

    slots: TrajectorySlots

    def num_free(self, actor: int) -> int:
        """Return the number of slots that the actor can take. Only the actor makes it smaller."""

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


class SlotExchange:
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
        self.slots = slots
        self._actors, self._learners = len(actor_wakeups), len(learner_wakeups)
        for count, role in ((self._actors, "actors"), (self._learners, "learners")):
            if slots.count % count:
                raise ValueError(f"{slots.count} slots cannot be dealt evenly to {count} {role}")
        self._learner_of = _deal(slots.count, self._actors, self._learners)
        rings, capacity = self._learners * self._actors, slots.count // self._actors
        self._free = IndexRings(rings, capacity)
        self._ready = IndexRings(rings, capacity)
        self._actor_wakeups = actor_wakeups
        self._learner_wakeups = learner_wakeups
        self.reset()

    def reset(self) -> None:
        """Make all slots free again. No worker that had one may still be running."""
        self._next_actor = [0] * self._learners
        self._next_learner = [0] * self._actors
        self._inherited: list[list[int]] = [[] for _ in range(self._actors)]
        self._free.clear()
        self._ready.clear()
        for slot in range(self.slots.count):
            self.slots.owner[slot] = Owner.FREE
            self._free.push(self._ring_of(slot), slot)

    def _ring(self, learner: int, actor: int) -> int:
        return learner * self._actors + actor

    def _ring_of(self, slot: int) -> int:
        return self._ring(self._learner_of[slot], slot % self._actors)

    def num_free(self, actor: int) -> int:
        """Return the number of slots that this actor can take. Called by the actor."""
        rings = (self._ring(learner, actor) for learner in range(self._learners))
        return len(self._inherited[actor]) + sum(map(self._free.size, rings))

    def take_free(self, actor: int) -> int | None:
        """Return a slot for this actor to write, from the learners in turn, or None if there is
        none. Called by the actor."""
        if self._inherited[actor]:
            return self._inherited[actor].pop()
        for _ in range(self._learners):
            learner = self._next_learner[actor]
            self._next_learner[actor] = (learner + 1) % self._learners
            ring = self._ring(learner, actor)
            slot = self._free.peek(ring)
            if slot is not None:
                self.slots.move(slot, Owner.FREE, Owner.WRITING)
                self._free.pop(ring)
                return slot
        return None

    def take_over(self, actor: int) -> None:
        """Take over the slots of the actor's previous process, see `RolloutExchange`. Called by the
        actor. Incomplete slots stay WRITING, so that the next successor can take them over, too."""
        rings = [self._ring(learner, actor) for learner in range(self._learners)]
        free = _waiting(self._free, rings)
        ready = _waiting(self._ready, rings)
        own = range(actor, self.slots.count, self._actors)
        self._inherited[actor], complete = abandoned_slots(self.slots, own, free, ready)
        for slot in complete:
            self._ready.push(self._ring_of(slot), slot)
        for wakeup in self._learner_wakeups:
            wakeup.set()

    def hand_over(self, actor: int, slot: int) -> None:
        """Hand the complete rollout in ``slot`` over to its learner, which owns it from then on.
        Called by the actor."""
        self.slots.move(slot, Owner.WRITING, Owner.READY)
        ring = self._ring_of(slot)
        self._ready.push(ring, slot)
        self._learner_wakeups[ring // self._actors].set()

    def take_ready(self, learner: int = 0) -> int | None:
        """Return the oldest complete slot of the next actor in turn that has one, or None if no
        actor has one. Called by the learner."""
        filled = self._ready.filled(self._ring(learner, 0), self._actors)
        if not len(filled):
            return None
        actor = next_in_turn(filled, self._next_actor[learner])
        self._next_actor[learner] = (actor + 1) % self._actors
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
        self._actor_wakeups[slot % self._actors].set()

    def give_back_all(self, learner: int) -> None:
        """Give back the slots that the previous process of this learner, which must be dead, was
        reading. Called by the learner. Complete rollouts that it had not taken stay ready."""
        rings = [self._ring(learner, actor) for actor in range(self._actors)]
        free = _waiting(self._free, rings)
        ready = _waiting(self._ready, rings)
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

    def fill(self) -> tuple[float, float]:
        """Return the fractions (0 to 1) of all slots that are free, and that wait for their
        learner."""
        return self._free.total() / self.slots.count, self._ready.total() / self.slots.count


def _deal(slots: int, actors: int, learners: int) -> list[int]:
    """Return the learner of each slot; slot i belongs to actor i % ``actors``. Each learner gets an
    equal share, also of each actor's slots if these can be dealt evenly."""
    if slots % (actors * learners) == 0:
        return [slot // actors % learners for slot in range(slots)]
    return [slot * learners // slots for slot in range(slots)]


def _waiting(rings: IndexRings, which: Iterable[int]) -> set[int]:
    """Return the indices that wait in any of these rings."""
    return set().union(*(rings.waiting(ring) for ring in which))
