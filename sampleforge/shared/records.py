"""Queues of fixed-size records from workers to the driver, without locks: episodes and
evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import sleep
from typing import NamedTuple, Protocol

from sampleforge.shared.arrays import SharedArrays


def _nothing() -> None:
    pass


NO_SNAPSHOT = -1
"""In the place of a snapshot: no frozen opponent has played, or not the whole episode."""


class EpisodeRecord(NamedTuple):
    """One finished episode of an agent: the actor, split and row that played it, ``ret`` the sum of
    its raw rewards, ``length`` in env steps, ``policy`` the index of the policy group that acted
    when it ended, ``seat`` that of the agent.

    ``opponent`` is the snapshot that a frozen opponent in the same row played with (`NO_SNAPSHOT`:
    none), and ``opponent_ret`` the opponent's return of the same episode."""

    actor: int
    split: int
    row: int
    ret: float
    length: int
    policy: int = 0
    seat: int = 0
    opponent: int = NO_SNAPSHOT
    opponent_ret: float = 0.0


class Episodes(Protocol):
    """A queue of finished episodes from the actors to the driver."""

    def put(
        self, records: Iterable[EpisodeRecord], waiting: Callable[[], None] = _nothing
    ) -> None: ...

    def take(self) -> list[EpisodeRecord]: ...


class EpisodeList:
    """A queue of episodes within one process."""

    def __init__(self) -> None:
        self._records: list[EpisodeRecord] = []

    def put(self, records: Iterable[EpisodeRecord], waiting: Callable[[], None] = _nothing) -> None:
        self.extend(records)

    def extend(self, records: Iterable[EpisodeRecord]) -> None:
        self._records += records

    def take(self) -> list[EpisodeRecord]:
        """Remove and return all episodes."""
        records, self._records = self._records, []
        return records


class EpisodeQueue:
    """A queue of episodes between processes, with a ring for each of ``actors``. An actor whose
    ring is full waits: no episode is dropped.

    There is no lock, because an actor that is killed inside `put` would leave it locked, and the
    driver, which replaces that actor, would wait for ever.
    """

    def __init__(self, actors: int, capacity: int = 16384) -> None:
        each = (actors, capacity)
        self.__setstate__(
            SharedArrays(
                {
                    "who": ((*each, 6), "int64"),  # split, row, length, policy, seat, opponent
                    "ret": ((*each, 2), "float64"),  # the agent's, the opponent's
                    "head": ((actors, 8), "int64"),  # a cache line each
                    "tail": ((actors, 8), "int64"),
                }
            )
        )

    def put(self, records: Iterable[EpisodeRecord], waiting: Callable[[], None] = _nothing) -> None:
        """Send finished episodes. Waits for room as long as the driver takes none, and calls
        ``waiting`` again and again meanwhile: a driver that is held goes on, and one that has died
        takes its workers with it."""
        arrays, tails = self._arrays, self._arrays["tail"]
        capacity = arrays["ret"].shape[1]
        for record in records:
            actor, split, row, ret, length, policy, seat, opponent, opponent_ret = record
            self._wait_for_room(actor, capacity, waiting)
            at = tails[actor, 0] % capacity
            arrays["who"][actor, at] = split, row, length, policy, seat, opponent
            arrays["ret"][actor, at] = ret, opponent_ret
            tails[actor, 0] += 1  # last: an incomplete record is never read

    def _wait_for_room(self, actor: int, capacity: int, waiting: Callable[[], None]) -> None:
        heads, tails = self._arrays["head"], self._arrays["tail"]
        while tails[actor, 0] - heads[actor, 0] >= capacity:
            waiting()
            sleep(0.001)

    def take(self) -> list[EpisodeRecord]:
        """Remove and return all episodes in the rings, without waiting for more."""
        arrays, records = self._arrays, []
        capacity = arrays["ret"].shape[1]
        for actor, (head, tail) in enumerate(
            zip(arrays["head"][:, 0].tolist(), arrays["tail"][:, 0].tolist(), strict=True)
        ):
            for at in (n % capacity for n in range(head, tail)):
                split, row, length, policy, seat, opponent = arrays["who"][actor, at].tolist()
                ret, opponent_ret = arrays["ret"][actor, at].tolist()
                who = policy, seat, opponent, opponent_ret
                records.append(EpisodeRecord(actor, split, row, ret, length, *who))
            arrays["head"][actor, 0] = tail
        return records

    def __getstate__(self) -> SharedArrays:
        return self._arrays

    def __setstate__(self, arrays: SharedArrays) -> None:
        self._arrays = arrays


class Evaluation(NamedTuple):
    """The result of one evaluation.

    ``policy_version`` and ``env_steps`` (of training) are those of the moment when the weights were
    copied. Returns are sums of raw rewards; lengths are in env steps."""

    policy_version: int
    env_steps: int
    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float


class Evaluations:
    """The queue of evaluations from the evaluator to the driver.

    It is a ring with one producer and one consumer and without a lock, so that an evaluator that is
    killed leaves it usable, and its successor continues with it."""

    def __init__(self, capacity: int = 256) -> None:
        self._arrays = SharedArrays(
            {
                "records": ((capacity, len(Evaluation._fields)), "float64"),
                "head": ((1,), "int64"),
                "tail": ((1,), "int64"),
            }
        )

    def has_room(self) -> bool:
        """Return whether there is room for one more evaluation."""
        arrays = self._arrays
        return int(arrays["tail"][0] - arrays["head"][0]) < len(arrays["records"])

    def put(self, evaluation: Evaluation) -> None:
        assert self.has_room(), "check has_room() before an evaluation begins"
        records, tail = self._arrays["records"], self._arrays["tail"]
        records[tail[0] % len(records)] = evaluation
        tail[0] += 1  # last: an incomplete record is never read

    def take(self) -> list[Evaluation]:
        """Remove and return all evaluations in the ring, in order, without waiting for more."""
        records, head = self._arrays["records"], self._arrays["head"]
        tail = int(self._arrays["tail"][0])
        evaluations = []
        for at in range(int(head[0]), tail):
            version, env_steps, episodes, *floats = records[at % len(records)].tolist()
            evaluations.append(Evaluation(int(version), int(env_steps), int(episodes), *floats))
        head[0] = tail
        return evaluations
