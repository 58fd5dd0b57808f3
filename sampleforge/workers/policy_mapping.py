"""Policy mappings: which policy acts in a stream during its next rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class StreamId(NamedTuple):
    """The place of a stream in the run: its actor, the split of that actor, and the seat, which is
    one agent slot of an environment (0 in a single-agent environment)."""

    actor: int
    split: int
    seat: int


PolicyMapping = Callable[[StreamId, int], int]
"""``mapping(stream, rollout)`` returns the index of the policy group that acts in the stream's
``rollout``-th rollout (from 0). It can be pickled, and gives the same answer whenever it is called
with the same arguments: an actor that waits for a slot of that group calls it again."""


def only_policy(stream: StreamId, rollout: int) -> int:
    """Return 0: there is one policy group."""
    return 0


class DrawnAnew:
    """Draws one of ``policies`` policy groups for each rollout, all with the same probability."""

    def __init__(self, policies: int, seed: int) -> None:
        self._policies = policies
        self._seed = seed

    def __call__(self, stream: StreamId, rollout: int) -> int:
        generator = np.random.default_rng([self._seed, *stream, rollout])
        return int(generator.integers(self._policies))


class InTurn:
    """Lets ``policies`` policy groups act in turn, in every stream in the same order.

    Groups that sample and learn in turn need it: a batch of theirs has the same number of slots of
    each actor, and an actor that has written its share waits for the update. With independent draws
    two actors could each wait for the group whose batch lacks the share of the other.
    """

    def __init__(self, policies: int) -> None:
        self._policies = policies

    def __call__(self, stream: StreamId, rollout: int) -> int:
        return rollout % self._policies


class FixedPerStream:
    """Gives each stream one of ``policies`` policy groups for good: the streams of an actor, and
    the actors (with ``splits`` streams each), are dealt to the groups in turn.

    Overlapping sequences need it: a rollout begins with the last steps of the one before, which one
    policy must have taken.
    """

    def __init__(self, policies: int, splits: int) -> None:
        self._policies = policies
        self._splits = splits

    def __call__(self, stream: StreamId, rollout: int) -> int:
        return (stream.actor * self._splits + stream.split + stream.seat) % self._policies
