"""The env rows that play a dataset, whose actions are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sampleforge.env.vector import EnvVector
from sampleforge.offline.dataset import open_dataset
from sampleforge.offline.episode_vector import EpisodeVector
from sampleforge.offline.shuffle import ShuffleBuffer
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.spec import ACTION


class DatasetRows:
    """The env vector of an actor that plays a dataset, and where its inference finds the vector.
    ``folder``: of the dataset; ``shuffle``: env steps of the shuffle buffer; ``seed`` returns its
    seed, another one in each life of the actor."""

    def __init__(
        self,
        folder: str | Path,
        slots: TrajectorySlots,
        shuffle: int,
        seed: Callable[[], list[int]],
    ) -> None:
        self._folder = folder
        self.slots = slots
        self._shuffle = shuffle
        self._seed = seed
        self._vector: EpisodeVector | None = None

    def actions(self) -> npt.NDArray[np.int64]:
        """Return the actions [rows] of the next step."""
        assert self._vector is not None, "the actor makes it before it asks for actions"
        actions: npt.NDArray[np.int64] = self._vector.actions[ACTION]
        return actions

    def make(self) -> EnvVector:
        """Open the dataset and return the env vector."""
        shape = self.slots.shape
        dataset = open_dataset(self._folder, shape.spec)
        buffer = ShuffleBuffer(dataset, self._shuffle, self._seed())
        self._vector = EpisodeVector(shape.spec, shape.rows, buffer)
        return self._vector
