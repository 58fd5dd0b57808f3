"""Fixed-size records from workers to the driver, without a lock: episodes and evaluations."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from time import monotonic, sleep
from typing import NamedTuple, Protocol

from sampleforge.shared.arrays import SharedArrays

PATIENCE = 10.0
"""Seconds that an actor waits for the driver to take some of its episodes."""


class EpisodeRecord(NamedTuple):
    """One finished episode: who played it, the sum of its raw rewards, its length in env steps."""

    actor: int
    split: int
    row: int
    ret: float
    length: int


class _Episode(Protocol):
    @property
    def row(self) -> int: ...
    @property
    def ret(self) -> float: ...
    @property
    def length(self) -> int: ...


class Episodes(Protocol):
    """Where actors put finished episodes, and the driver takes them."""

    def put(self, actor: int, split: int, episodes: Iterable[_Episode]) -> None: ...

    def take(self) -> list[EpisodeRecord]: ...


class EpisodeList:
    """Episodes that stay in one process."""

    def __init__(self) -> None:
        self._records: list[EpisodeRecord] = []

    def put(self, actor: int, split: int, episodes: Iterable[_Episode]) -> None:
        self.extend(EpisodeRecord(actor, split, e.row, e.ret, e.length) for e in episodes)

    def extend(self, records: Iterable[EpisodeRecord]) -> None:
        self._records += records

    def take(self) -> list[EpisodeRecord]:
        """All of them, which are then gone from here."""
        found, self._records = self._records, []
        return found


class EpisodeQueue:
    """``actors`` put, each into a ring of its own, and the driver takes. A full ring makes its
    actor wait: nothing is dropped.

    A queue with a lock would be left locked by an actor that is killed while it puts, and the
    driver, which goes on with another in its place, would wait for ever.
    """

    def __init__(self, actors: int, capacity: int = 16384) -> None:
        each = (actors, capacity)
        self.__setstate__(
            SharedArrays(
                {
                    "who": ((*each, 2), "int64"),  # split, row
                    "ret": (each, "float64"),
                    "length": (each, "int64"),
                    "head": ((actors, 8), "int64"),  # a cache line each
                    "tail": ((actors, 8), "int64"),
                }
            )
        )

    def put(self, actor: int, split: int, episodes: Iterable[_Episode]) -> None:
        """Send finished episodes. Raises queue.Full if the driver takes none for 10 seconds."""
        arrays, tails = self._arrays, self._arrays["tail"]
        capacity = arrays["ret"].shape[1]
        for episode in episodes:
            self._wait_for_room(actor, capacity)
            at = tails[actor, 0] % capacity
            arrays["who"][actor, at] = split, episode.row
            arrays["ret"][actor, at] = episode.ret
            arrays["length"][actor, at] = episode.length
            tails[actor, 0] += 1  # last: a record that is half written is not there

    def _wait_for_room(self, actor: int, capacity: int) -> None:
        heads, tails = self._arrays["head"], self._arrays["tail"]
        give_up_at = None
        while tails[actor, 0] - heads[actor, 0] >= capacity:
            give_up_at = give_up_at or monotonic() + PATIENCE
            if monotonic() > give_up_at:
                raise queue.Full
            sleep(0.001)

    def take(self) -> list[EpisodeRecord]:
        """All episodes that wait, without waiting for more."""
        arrays, found = self._arrays, []
        capacity = arrays["ret"].shape[1]
        for actor, (head, tail) in enumerate(
            zip(arrays["head"][:, 0].tolist(), arrays["tail"][:, 0].tolist(), strict=True)
        ):
            for at in (n % capacity for n in range(head, tail)):
                split, row = arrays["who"][actor, at].tolist()
                ret, length = float(arrays["ret"][actor, at]), int(arrays["length"][actor, at])
                found.append(EpisodeRecord(actor, split, row, ret, length))
            arrays["head"][actor, 0] = tail
        return found

    def __getstate__(self) -> SharedArrays:
        return self._arrays

    def __setstate__(self, arrays: SharedArrays) -> None:
        self._arrays = arrays


class Evaluation(NamedTuple):
    """What one evaluation found: ``policy_version`` and ``env_steps`` (of training, so far) are
    those of the moment at which its weights were copied; returns are raw, lengths in env steps."""

    policy_version: int
    env_steps: int
    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float


class Evaluations:
    """The evaluator puts and the driver takes. A ring with one producer and one consumer, so that
    an evaluator which is killed leaves nothing locked, and its successor goes on where it was."""

    def __init__(self, capacity: int = 256) -> None:
        self._arrays = SharedArrays(
            {
                "records": ((capacity, len(Evaluation._fields)), "float64"),
                "head": ((1,), "int64"),
                "tail": ((1,), "int64"),
            }
        )

    def has_room(self) -> bool:
        """Whether one more may be put."""
        arrays = self._arrays
        return int(arrays["tail"][0] - arrays["head"][0]) < len(arrays["records"])

    def put(self, evaluation: Evaluation) -> None:
        assert self.has_room(), "look before an evaluation is begun"
        records, tail = self._arrays["records"], self._arrays["tail"]
        records[tail[0] % len(records)] = evaluation
        tail[0] += 1  # last: a record that is half written is not there

    def take(self) -> list[Evaluation]:
        """All that wait, in their order, without waiting for more."""
        records, head = self._arrays["records"], self._arrays["head"]
        tail = int(self._arrays["tail"][0])
        found = []
        for at in range(int(head[0]), tail):
            version, env_steps, episodes, *floats = records[at % len(records)].tolist()
            found.append(Evaluation(int(version), int(env_steps), int(episodes), *floats))
        head[0] = tail
        return found
