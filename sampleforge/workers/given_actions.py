"""The env rows that play a dataset, whose actions are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sampleforge.data.dataset import open_dataset
from sampleforge.data.episode_vector import EpisodeVector
from sampleforge.data.shuffle import ShuffleBuffer
from sampleforge.env.vector import Array, EnvVector
from sampleforge.rollouts.slots import TrajectorySlots


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

    def actions(self) -> dict[str, Array]:
        """Return the actions of the next step, leaf -> [rows, ...]."""
        assert self._vector is not None, "the actor makes it before it asks for actions"
        return self._vector.actions

    def make(self) -> EnvVector:
        """Open the dataset and return the env vector."""
        shape = self.slots.shape
        dataset = open_dataset(self._folder, shape.spec)
        buffer = ShuffleBuffer(dataset, self._shuffle, self._seed())
        self._vector = EpisodeVector(shape.spec, shape.rows, buffer)
        return self._vector
