"""The hand-over of slots between actors and replay shards, and of samples between shards and
learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sampleforge.replay.limiter import Shares
from sampleforge.replay.observation_stats import Shapes, packed_size
from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.slots import Owner, TrajectorySlots
from sampleforge.shared.arrays import SharedArrays, SharedViews
from sampleforge.shared.rings import IndexRings
from sampleforge.shared.wakeup import Wakeup

SAMPLE, UPDATE = 0, 1
"""The kinds of a `SampleRequests` request: fill it with a sample, or take the TD errors in it."""


class ReplayExchange(RolloutExchange):
    """The exchange of slots between actors and replay shards, which lease their slots to the
    actors. Leases belong to an actor's index, so they remain valid when its process is replaced.

    ``finish_rollout(slots, slot)``, the algorithm's, runs in the actor before each hand-over: see
    `sampleforge.replay.items`.
    """

    def __init__(
        self,
        slots: TrajectorySlots,
        actor_wakeups: list[Wakeup],
        shard_wakeups: list[Wakeup],
        leases: int,
        finish_rollout: Callable[[TrajectorySlots, int], None],
        shares: Shares | None = None,
    ) -> None:
        super().__init__(slots, actor_wakeups, shard_wakeups, leases)
        self.leases = leases
        """Number of slots of one shard that one actor may have at a time."""
        self._finish_rollout = finish_rollout
        self.shares = shares
        """The shares of several sources in what the actors hand over."""
        # For each slot the actor that leases it (-1: none) and its shard, which alone writes both.
        self._lease_of = SharedArrays(
            {"actor": ((slots.count,), "int64"), "shard": ((slots.count,), "int64")}
        )
        self._lease_of["actor"][...] = -1

    def _reader_of(self, slot: int) -> int:
        return int(self._lease_of["shard"][slot])

    def _slots_of(self, actor: int) -> list[int]:
        leased: list[int] = np.flatnonzero(self._lease_of["actor"] == actor).tolist()
        return leased

    def hand_over(self, actor: int, slot: int) -> None:
        self._finish_rollout(self.slots, slot)
        super().hand_over(actor, slot)

    def ready_actors(self, shard: int) -> list[int]:
        """Return the actors that have complete slots for a shard. Called by the shard."""
        actors: list[int] = self._ready.filled(self._ring(shard, 0), self.actors).tolist()
        return actors

    def take_ready(self, shard: int, actor: int) -> int | None:
        """Return the oldest complete slot of one actor, or None. Called by the shard."""
        ring = self._ring(shard, actor)
        slot = self._ready.peek(ring)
        if slot is not None:
            self._lease_of["actor"][slot] = -1
            self._ready.pop(ring)
        return slot

    def lease(self, shard: int, actor: int, slot: int) -> None:
        """Lease ``slot`` to the actor until it comes back complete. Called by the shard."""
        self._lease_of["shard"][slot] = shard  # first: without an actor it is not read
        self._lease_of["actor"][slot] = actor
        self._free.push(self._ring(shard, actor), slot)
        self._actor_wakeups[actor].set()

    def take_over_shard(self, shard: int) -> dict[int, int]:
        """Complete the hand-overs that the shard's previous process, which was killed, had begun.
        Return the actors of the slots that it had leased, by slot. Called by the shard."""
        rings = [self._ring(shard, actor) for actor in range(self.actors)]
        for ring in rings:
            slot = self._ready.peek(ring)
            if slot is not None and self._lease_of["actor"][slot] == -1:  # taken, not yet popped
                self._ready.pop(ring)
        free = self._free.waiting_in(rings)
        actor_of, shard_of = self._lease_of["actor"], self._lease_of["shard"]
        of_shard = np.flatnonzero((actor_of >= 0) & (shard_of == shard))
        leased = {slot: int(actor_of[slot]) for slot in of_shard.tolist()}
        for slot, actor in leased.items():
            if self.slots.owner[slot] == Owner.FREE and slot not in free:  # not yet pushed
                self._free.push(self._ring(shard, actor), slot)
            self._actor_wakeups[actor].set()
        return leased


class SampleRequests(SharedViews):
    """Sample requests in flight: each is an index into arrays in shared memory.

    The learner requests a sample from a shard; the shard fills it in; the learner learns from it
    and returns it with the new TD errors; the shard takes these and answers, which frees the
    request. So ``count`` is the depth of the prefetch, and ``batch`` the items of a sample. A
    sample carries the moments of the observations inserted since the last sample (``seen``), for
    the leaves ``counted``.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        shard_wakeups: list[Wakeup],
        learner_wakeup: Wakeup,
        counted: Shapes | None = None,
    ) -> None:
        self.count = count
        self.counted = counted or {}
        each = (count, batch)
        self._arrays = SharedArrays(
            {
                "items": (each, "int64"),
                "generations": (each, "int64"),
                "scaled_probability": (each, "float64"),
                "errors": (each, "float32"),
                "kind": ((count,), "int64"),
                "seen": ((count, packed_size(self.counted)), "float64"),
            }
        )
        self._shard_wakeups = shard_wakeups
        self._learner_wakeup = learner_wakeup
        # One more than requests: an answered request is at a ring's head until it is removed, and
        # by then the learner may have sent it again.
        self._to_shard = IndexRings(len(shard_wakeups), count + 1)
        self._to_learner = IndexRings(len(shard_wakeups), count)
        self._attach()

    def _attach(self) -> None:
        self.items: npt.NDArray[np.int64] = self._arrays["items"]
        self.generations: npt.NDArray[np.int64] = self._arrays["generations"]
        self.scaled_probability: npt.NDArray[np.float64] = self._arrays["scaled_probability"]
        self.errors: npt.NDArray[np.float32] = self._arrays["errors"]
        self.kind: npt.NDArray[np.int64] = self._arrays["kind"]
        self.seen: npt.NDArray[np.float64] = self._arrays["seen"]

    def ask(self, shard: int, request: int, kind: int) -> None:
        """Send a request of this ``kind`` (SAMPLE or UPDATE) to a shard, which serves it once it is
        awake: see `wake_shards`. Called by the learner."""
        self.kind[request] = kind
        self._to_shard.push(shard, request)

    def wake_shards(self) -> None:
        """Wake the shards: there are requests for them, and they may insert more, because samples
        were requested. Called by the learner."""
        for wakeup in self._shard_wakeups:
            wakeup.set()

    def wake_learner(self) -> None:
        """Wake the learner: requests were answered, or experience was inserted, so that it may
        request more samples. Called by a shard."""
        self._learner_wakeup.set()

    def asked(self, shard: int) -> list[int]:
        """Return the requests to serve, in their order; each is returned until it is answered.
        Called by the shard."""
        return self._to_shard.in_order(shard)

    def answer(self, shard: int, request: int) -> None:
        """Return the first request of `asked`, which was served, to the learner. Called by the
        shard, which then wakes the learner. For a moment the request is in both rings: if the
        shard is killed then, its successor removes it."""
        self._to_learner.push(shard, request)
        self._to_shard.pop(shard)

    def take_over_shard(self, shard: int) -> None:
        """Complete the answer that the shard's previous process, which was killed, had begun.
        Called by the shard."""
        if self._to_learner.pushed(shard) > self._to_shard.popped(shard):
            self._to_shard.pop(shard)
        self._learner_wakeup.set()

    def spare(self) -> list[int]:
        """Return the requests that are on no way between learner and shards. Called by the learner,
        when it has taken none."""
        shards = range(len(self._shard_wakeups))
        # In this order: a shard answers a request before it removes it from its ring.
        under_way: set[int] = set().union(*map(self._not_answered, shards))
        under_way = under_way.union(*map(self._to_learner.waiting, shards))
        return [request for request in range(self.count) if request not in under_way]

    def _not_answered(self, shard: int) -> set[int]:
        """Return the requests that a shard has still to answer."""
        while True:
            removed = self._to_shard.popped(shard)
            answered = self._to_learner.pushed(shard) - removed  # 1: the oldest is not yet removed
            waiting = self._to_shard.waiting(shard, skip=answered)
            if self._to_shard.popped(shard) == removed:
                return waiting

    def take_answered(self, shard: int) -> int | None:
        """Return the next request that this shard has served, or None. Called by the learner."""
        return self._to_learner.pop(shard)


class SampleRelay:
    """Tells the other learners of a policy which samples learner 0 learns from, and when.

    ``wakeups``: those of the other learners, from learner 1 on; ``requests``: number of sample
    requests. Learner 0 writes, each other learner reads a ring of its own.
    """

    def __init__(self, wakeups: Sequence[Wakeup], requests: int) -> None:
        self._wakeups = wakeups
        self._rings = IndexRings(len(wakeups), requests + 1)  # and one of a group that was lost
        self._arrays = SharedArrays(
            {"progress": ((requests,), "float64"), "from": ((len(wakeups),), "int64")}
        )

    def send(self, request: int, progress: float) -> None:
        """Have all learners learn from ``request`` next, at this ``progress`` (0 to 1) of the
        training. Called by learner 0."""
        self._arrays["progress"][request] = progress
        for ring, wakeup in enumerate(self._wakeups):
            self._rings.push(ring, request)
            wakeup.set()

    def forget(self) -> None:
        """Have the other learners leave out what was sent so far. Called by learner 0 before it
        joins a new group of learners."""
        for ring in range(len(self._wakeups)):
            self._arrays["from"][ring] = self._rings.pushed(ring)

    def take(self, learner: int) -> tuple[int, float] | None:
        """Return the next request and its progress, or None. Called by learner ``learner``."""
        ring = learner - 1
        while (request := self._rings.pop(ring)) is not None:
            if self._rings.popped(ring) > self._arrays["from"][ring]:
                return request, float(self._arrays["progress"][request])
        return None
