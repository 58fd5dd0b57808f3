"""The first episodes of a run, of which the short ones end first."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sampleforge.shared.records import EpisodeRecord

PATIENCE = 10
"""Windows of episodes after which a row that has ended fewer than the others is not waited for."""


class FirstEpisodes:
    """Decides which episodes count at the beginning of a run: as many of each of its ``rows`` env
    rows, because a row with long episodes has ended few when another has ended many.

    That holds until ``window`` episodes count: later ones count as they end. It also ends when
    `PATIENCE` times as many episodes (or as rows, if these are more) have ended, so that a row
    whose episode has no end is not waited for for ever.
    """

    def __init__(self, rows: int, window: int) -> None:
        self._rows = rows
        self._left = window if rows > 1 else 0
        self._patience = PATIENCE * max(window, rows)
        self._waiting: dict[tuple[int, int, int], deque[Sequence[EpisodeRecord]]] = {}

    @property
    def waiting(self) -> list[Sequence[EpisodeRecord]]:
        """The games that have ended and do not count yet."""
        return [game for row in self._waiting.values() for game in row]

    def take(self, game: Sequence[EpisodeRecord]) -> list[Sequence[EpisodeRecord]]:
        """Take the records of a game that has ended (an episode, with one agent); return the games
        that count from now on."""
        if self._left <= 0:
            return [game]
        self._waiting.setdefault(game[0][:3], deque()).append(game)
        self._patience -= 1
        if self._patience <= 0:
            self._left, counted = 0, self.waiting
            self._waiting = {}
            return counted
        counted = []
        if len(self._waiting) == self._rows and all(self._waiting.values()):
            counted = [self._waiting[row].popleft() for row in sorted(self._waiting)]
            self._left -= len(counted)
        if self._left <= 0:
            self._waiting = {}
        return counted
