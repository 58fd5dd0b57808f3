"""Frozen weights of a policy in shared memory, from which actors draw opponents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.newest import COUNTS, Halves, SharedWeights

LATEST = -2
"""The snapshot of an opponent that acts with the newest weights of the policy that is trained."""


class SnapshotPool:
    """Up to ``capacity`` snapshots of a policy, and the probability with which each is drawn.

    This is the seam between self-play and sampling. Self-play decides which snapshots are in the
    pool and how likely each of them is: it calls `put` and `set_probabilities`, in one process.
    Everything else is done by the actors: for every row with seats that a frozen policy plays, they
    `draw` an entry where a game begins, and play the whole game with the weights that the entry had
    then, also if another snapshot takes its place meanwhile. The driver learns from
    `sampleforge.shared.records.EpisodeRecord` which snapshot each opponent was, by the number that
    `put` was given.

    Entry ``capacity``, the last one, stands for the newest weights of the policy that is trained,
    if there are any (``latest``). Without probabilities, a new pool always draws that entry, or
    entry 0. There is no lock, and no torn read.
    """

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        capacity: int,
        latest: SharedWeights | None = None,
    ) -> None:
        """``state``: a model's state_dict, for names and shapes; its tensors are not copied."""
        self.capacity = capacity
        self._latest = latest
        self._entries = [SharedWeights(state) for _ in range(capacity)]
        self._arrays = SharedArrays(
            {**COUNTS, **{f"{half}": ((capacity + 1,), "float64") for half in (0, 1)}}
        )
        self._halves = Halves(self._arrays)
        self._summed_of = -1  # the publication of the probabilities whose sums follow
        self._summed = np.zeros(0)
        self._write(np.eye(capacity + 1)[capacity if latest is not None else 0])

    def put(self, entry: int, state: Mapping[str, torch.Tensor], snapshot: int) -> None:
        """Make ``state`` the weights of ``entry`` (0 to ``capacity`` - 1), under the number
        ``snapshot`` (from 0; each number once). Set the entry's probability afterwards."""
        self._entries[entry].publish(state, snapshot)

    def set_probabilities(self, probabilities: Sequence[float]) -> None:
        """Set the probability of each entry, [``capacity`` + 1] with a sum of 1; the last one is
        that of the newest weights. Raises ValueError for other values, and for an entry without
        weights."""
        given = np.asarray(probabilities, np.float64)
        if given.shape != (self.capacity + 1,) or (given < 0).any() or abs(given.sum() - 1) > 1e-6:
            raise ValueError(
                f"{self.capacity + 1} probabilities with a sum of 1 are needed, but got {given}"
            )
        if given[-1] and self._latest is None:
            raise ValueError(
                "the newest weights have a probability, but the pool follows no policy"
            )
        without = [i for i in range(self.capacity) if given[i] and not self._entries[i].published]
        if without:
            raise ValueError(f"entries {without} have a probability, but no weights yet")
        self._write(given)

    def _write(self, probabilities: npt.NDArray[np.float64]) -> None:
        half = self._halves.begin()
        self._arrays[f"{half}"][:] = probabilities
        self._halves.publish()

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Return ``count`` entries, int64 [count], drawn with their probabilities."""
        if self._halves.published != self._summed_of:
            self._summed_of, given = self._halves.read(lambda half: self._arrays[f"{half}"].copy())
            self._summed = np.cumsum(given / given.sum())
        at = generator.random(count) * self._summed[-1]
        return np.asarray(np.searchsorted(self._summed, at, "right"), np.int64)

    def snapshot(self, entry: int) -> int:
        """Return the number of the snapshot that ``entry`` has now (`LATEST` for the last one)."""
        return LATEST if entry == self.capacity else self._entries[entry].version

    def published(self, entry: int) -> int:
        """Return how often the weights of ``entry`` have changed."""
        return self.weights(entry).published

    def read(self, entry: int, into: Mapping[str, torch.Tensor]) -> int:
        """Copy the weights of ``entry`` into the tensors of ``into``, a model's state_dict. Return
        the number of their snapshot."""
        _, version = self.weights(entry).read(into)
        return LATEST if entry == self.capacity else version

    def weights(self, entry: int) -> SharedWeights:
        """Return the weights of ``entry``."""
        if entry < self.capacity:
            return self._entries[entry]
        assert self._latest is not None
        return self._latest
