"""What ranks without common memory tell each other after every update."""

from __future__ import annotations

import numpy as np
import torch

from sampleforge.data.counters import Counters
from sampleforge.data.episodes import EpisodeList, EpisodeRecord
from sampleforge.data.ranks import RankGroup


class Accounts:
    """Keeps all rows of ``counters`` as their ranks last told them; a rank's own row is live.

    ``played``: where this rank's actor puts its episodes. ``known``: those of all ranks, for the
    driver, where there is one to take them. All ranks call `exchange` together.
    """

    def __init__(
        self, counters: Counters, played: EpisodeList, known: EpisodeList | None = None
    ) -> None:
        self._counters = counters
        self._played = played
        self._known = known

    def exchange(self, group: RankGroup) -> None:
        played = self._played.take()
        row = self._counters.row(group.rank)
        own = np.concatenate([*row.values(), [len(played)]])
        told = group.gather(torch.from_numpy(own)).numpy()
        self._counters.tell(told[:, :-1], keep=group.rank)
        episodes = told[:, -1].astype(int).tolist()
        if any(episodes):
            self._exchange_episodes(group, played, episodes)

    def _exchange_episodes(
        self, group: RankGroup, played: list[EpisodeRecord], counts: list[int]
    ) -> None:
        """Every rank's episodes in messages of one size: collectives know no other."""
        own = torch.zeros(max(counts), len(EpisodeRecord._fields), dtype=torch.float64)
        for at, record in enumerate(played):
            own[at] = torch.tensor(record, dtype=torch.float64)
        told = group.gather(own.flatten()).view(group.size, *own.shape)
        if self._known is None:
            return
        for rank, count in enumerate(counts):
            for _, split, row, ret, length in told[rank, :count].tolist():
                self._known.extend([EpisodeRecord(rank, int(split), int(row), ret, int(length))])
