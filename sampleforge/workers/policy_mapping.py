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


class RandomPerRollout:
    """Draws one of ``policies`` policy groups for each rollout, all with the same probability."""

    def __init__(self, policies: int, seed: int) -> None:
        self._policies = policies
        self._seed = seed

    def __call__(self, stream: StreamId, rollout: int) -> int:
        generator = np.random.default_rng([self._seed, *stream, rollout])
        return int(generator.integers(self._policies))


class RoundRobin:
    """Lets ``policies`` policy groups act in turn, in every stream in the same order.

    Synchronous groups need it: each batch has the same number of slots of each actor, and an actor
    that has written its share waits for the update. With independent draws, actor A could wait for
    a group whose batch lacks a slot of actor B, while B waits for a group whose batch lacks a slot
    of A.
    """

    def __init__(self, policies: int) -> None:
        self._policies = policies

    def __call__(self, stream: StreamId, rollout: int) -> int:
        return rollout % self._policies


class FixedPerSplit:
    """Gives each split of an actor one of ``policies`` policy groups for the whole run, in turn, in
    every actor in the same order.

    Populations need it: the return of an episode is then that of one member.
    """

    def __init__(self, policies: int) -> None:
        self._policies = policies

    def __call__(self, stream: StreamId, rollout: int) -> int:
        return stream.split % self._policies


class FixedPerStream:
    """Gives each stream one of ``policies`` policy groups for the whole run: the streams, in the
    order of actors (with ``splits`` streams each), are dealt to the groups in turn.

    Overlapping sequences need it: a rollout begins with the last steps of the one before, which one
    policy must have taken.
    """

    def __init__(self, policies: int, splits: int) -> None:
        self._policies = policies
        self._splits = splits

    def __call__(self, stream: StreamId, rollout: int) -> int:
        return (stream.actor * self._splits + stream.split + stream.seat) % self._policies
