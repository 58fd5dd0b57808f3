"""Finished episodes, from actors to driver: fixed-size records through a faster-fifo queue."""

from __future__ import annotations

import queue
import struct
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import faster_fifo

_RECORD = struct.Struct("<iiidq")


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


def _loads(record: bytes) -> EpisodeRecord:
    return EpisodeRecord(*_RECORD.unpack(bytes(record)))


def _dumps(record: EpisodeRecord) -> bytes:
    return _RECORD.pack(*record)


class EpisodeQueue:
    """Many actors put, the driver takes. A full queue makes the actor wait: nothing is dropped."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self._queue = faster_fifo.Queue(max_bytes, loads=_loads, dumps=_dumps)

    def put(self, actor: int, split: int, episodes: Iterable[_Episode]) -> None:
        """Send finished episodes. Raises queue.Full if the driver takes none for 10 seconds."""
        records = [EpisodeRecord(actor, split, e.row, e.ret, e.length) for e in episodes]
        self._queue.put_many(records, timeout=10.0)

    def take(self) -> list[EpisodeRecord]:
        """All episodes that wait, without waiting for more."""
        found: list[EpisodeRecord] = []
        try:
            while True:
                found += self._queue.get_many(block=False, max_messages_to_get=10_000)
        except queue.Empty:
            return found
