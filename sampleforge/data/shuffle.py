"""The shuffle buffer, which gives the episodes of a dataset in a random order, without end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sampleforge.data.dataset import OfflineDataset, StoredEpisode


class ShuffleBuffer:
    """Holds episodes of ``dataset``, of ``steps`` env steps together or one episode more. `next`
    removes one at random and reads others until the buffer is full again. Each pass over the
    dataset reads its episodes in another random order."""

    def __init__(self, dataset: OfflineDataset, steps: int, seed: list[int]) -> None:
        self._dataset = dataset
        self._steps = steps
        self._random = np.random.default_rng(seed)
        self._held: list[StoredEpisode] = []
        self._held_steps = 0
        self._coming: Iterator[StoredEpisode] = iter(())
        self.passes = 0
        """Number of passes over the dataset that have begun."""

    def next(self) -> StoredEpisode:
        """Return the next episode."""
        while self._held_steps < self._steps and self._read():
            pass
        at = int(self._random.integers(len(self._held)))
        self._held[at], self._held[-1] = self._held[-1], self._held[at]
        episode = self._held.pop()
        self._held_steps -= len(episode)
        return episode

    def _read(self) -> bool:
        """Read an episode into the buffer. Return False if the buffer has all episodes of a pass:
        then none is read twice."""
        episode = next(self._coming, None)
        if episode is None:
            if self._held:  # the next pass begins when this one has been given
                return False
            order = self._random.permutation(self._dataset.num_episodes)
            self._coming = self._dataset.episodes(order.tolist())
            self.passes += 1
            episode = next(self._coming)
        self._held.append(episode)
        self._held_steps += len(episode)
        return True
