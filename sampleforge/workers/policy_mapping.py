"""Policy mappings: which policy acts in a stream during its next rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.env.user_code import import_function


class StreamId(NamedTuple):
    """The place of a stream in the run: its actor, the split of that actor, and the seat, which is
    one agent slot of an environment (0 in a single-agent environment). ``agent``: the name of the
    agent (empty in a single-agent environment); ``group``: the index of its agent group."""

    actor: int
    split: int
    seat: int
    agent: str = ""
    group: int = 0


PolicyMapping = Callable[[StreamId, int], int]
"""``mapping(stream, rollout)`` returns the index of the policy that acts in the stream's
``rollout``-th rollout (from 0): first come the policy groups, and then the frozen policies. It can
be pickled, and gives the same answer whenever it is called with the same arguments: an actor that
waits for a slot of that group calls it again."""


def only_policy(stream: StreamId, rollout: int) -> int:
    """Return 0: there is one policy group."""
    return 0


class RandomPerRollout:
    """Draws one of ``policies`` policy groups for each rollout, all with the same probability.

    Each stream draws without replacement: in every ``policies`` successive rollouts each group acts
    once, in a random order. So no group falls behind by chance, for whose batch the actors that
    wait for slots of other groups would be needed.
    """

    def __init__(self, policies: int, seed: int) -> None:
        self._policies = policies
        self._seed = seed

    def __call__(self, stream: StreamId, rollout: int) -> int:
        block, turn = divmod(rollout, self._policies)
        generator = np.random.default_rng([self._seed, *stream[:3], block])
        return int(generator.permutation(self._policies)[turn])


class RoundRobin:
    """Lets ``policies`` policy groups act in turn, in every split in the same order.

    Synchronous groups need it: each batch has the same number of slots of each actor, and an actor
    that has written its share waits for the update. With independent draws, actor A could wait for
    a group whose batch lacks a slot of actor B, while B waits for a group whose batch lacks a slot
    of A.

    ``apart``: whether the seats of a split begin with different groups, so that these play each
    other. Seat s goes on s groups after seat 0, in the next ``policies`` rollouts 2s groups, and so
    on, so that each group meets each other one. In every ``policies`` successive rollouts each seat
    has each group once, so that all batches have equal shares, whatever the number of seats. False
    where one seat at a time learns, which is another one later: its turns would be unequal.
    """

    def __init__(self, policies: int, *, apart: bool = True) -> None:
        self._policies = policies
        self._apart = apart

    def __call__(self, stream: StreamId, rollout: int) -> int:
        shift = stream.seat if self._apart else 0
        distance = 1 + rollout // self._policies % (self._policies - 1)
        return (rollout + shift * distance) % self._policies


class FixedPerStream:
    """Gives each stream one of ``policies`` policy groups for the whole run: the splits of an actor
    are dealt to the groups in turn, and each actor goes on ``shift`` groups after the one before.

    Overlapping sequences need it: a rollout begins with the last steps of the one before, which one
    policy must have taken. So do populations, whose actors all have the same order (a shift of 0):
    the return of an episode is then that of one member.
    """

    def __init__(self, policies: int, shift: int) -> None:
        self._policies = policies
        self._shift = shift

    def __call__(self, stream: StreamId, rollout: int) -> int:
        return (stream.actor * self._shift + stream.split + stream.seat) % self._policies


@dataclass(frozen=True)
class GroupPolicies:
    """The policies of one agent group: the indices of the ``trained`` and of the ``frozen`` ones.
    ``pick(stream, rollout)`` returns the place in ``trained`` of the one that acts. ``seats``: the
    seats of its agents."""

    seats: tuple[int, ...]
    trained: tuple[int, ...]
    frozen: tuple[int, ...]
    pick: PolicyMapping


class ByAgentGroup:
    """Gives each seat a policy of its agent group.

    If a group has frozen policies, one of its seats learns and the others are played by frozen
    policies, so that every split learns from the same number of seats in each rollout. The seat
    that learns is another one every ``turn`` rollouts (None: it stays the same), and differs
    between the splits.
    """

    def __init__(self, groups: Sequence[GroupPolicies], seed: int, turn: int | None = None) -> None:
        self._groups = groups
        self._seed = seed
        self._turn = turn

    def __call__(self, stream: StreamId, rollout: int) -> int:
        group = self._groups[stream.group]
        if group.trained and (not group.frozen or self._learns(group, stream, rollout)):
            return group.trained[group.pick(stream, rollout)]
        generator = np.random.default_rng([self._seed, *stream[:3], rollout, 1])
        return group.frozen[int(generator.integers(len(group.frozen)))]

    def _learns(self, group: GroupPolicies, stream: StreamId, rollout: int) -> bool:
        turns = 0 if self._turn is None else rollout // self._turn
        return group.seats[(stream.actor + stream.split + turns) % len(group.seats)] == stream.seat


class UserMapping:
    """The user's own function, which is called as ``function(seat, rollout)`` with a `StreamId` and
    returns the id of a policy.

    ``name``: package.module:function. ``policies``: the ids of all policies, in the order of their
    indices. Raises ConfigError if there is no such function, or if it returns something else.
    """

    def __init__(self, name: str, policies: Sequence[str]) -> None:
        self._name = name
        self._policies = list(policies)
        self._function: Callable[[StreamId, int], Any] | None = None

    def __call__(self, stream: StreamId, rollout: int) -> int:
        if self._function is None:
            self._function = import_function("--policy-mapping", self._name)
        policy = self._function(stream, rollout)
        if policy not in self._policies:
            raise ConfigError(
                f"--policy-mapping {self._name} returned {policy!r} for {stream}, rollout "
                f"{rollout}, but must return one of the policies {', '.join(self._policies)}"
            )
        return self._policies.index(policy)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_function": None}  # imported again in each process
