"""The choice of the episodes that are recorded, when not all of them can be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]


class KeptEpisodes:
    """Which episodes of the ``rows`` rows of a stream are recorded.

    `begin` decides, before a rollout, for all episodes that begin in it; each of them is then kept,
    or dropped, to its end. So what is kept does not depend on what happens in the episodes, such as
    how long they become. (If single rollouts were dropped, it would be long episodes that lack
    some.)

    ``admits``: whether the episodes that begin in this rollout are kept."""

    def __init__(self, rows: int) -> None:
        self.admits = True
        self._kept = np.zeros(rows, np.bool_)  # rows whose episode is kept
        self._dropped = np.zeros(rows, np.bool_)

    def begin(self, *, admits: bool) -> None:
        """Decide for the episodes that begin in the next rollout."""
        self.admits = admits

    def take(self, first: Flags, valid: Flags) -> tuple[bool, int, int]:
        """Take the steps of a rollout: ``first`` (bool [n, rows]) marks those that begin an
        episode, ``valid`` those that the environment took. Return whether some are of episodes that
        are kept, and the numbers of episodes and of env steps that are dropped here."""
        began = np.logical_or.accumulate(first, 0)
        if self.admits and not self._dropped.any():
            self._kept |= began[-1:].any(0)
            return bool(self._kept.any()), 0, 0
        dropped = np.where(began, not self.admits, self._dropped)
        kept = np.where(began, self.admits, self._kept)
        some = bool(kept.any()) or bool(self._kept.any())
        if len(first):
            self._dropped, self._kept = dropped[-1], kept[-1]
        return some, int((first & dropped).sum()), int((valid & dropped).sum())

    def lose(self) -> int:
        """Drop the rest of all episodes that are kept, and return their number."""
        lost = int(self._kept.sum())
        self._dropped |= self._kept
        self._kept[...] = False
        return lost

    def forget(self) -> None:
        """Another policy, which is not recorded, goes on with the episodes."""
        self._kept[...] = self._dropped[...] = False
