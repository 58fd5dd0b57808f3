"""Inference for actions that are given: those of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sampleforge.algos.q_policy import GivenActionsPolicy
from sampleforge.env.vector import EnvVector
from sampleforge.offline.dataset import open_dataset
from sampleforge.offline.episode_vector import EpisodeVector
from sampleforge.offline.shuffle import ShuffleBuffer
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.spec import ACTION
from sampleforge.workers.inference import InlineInference


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


class GivenActions(InlineInference):
    """Writes the actions of the dataset into the slot, and, of the newest policy, the values that
    first priorities are computed from and the recurrent states."""

    def __init__(
        self, make_policy: Callable[[], GivenActionsPolicy], rows: DatasetRows, actor: int
    ) -> None:
        super().__init__(make_policy, rows.slots, 1, actor)
        self._given = rows

    def start(self) -> None:
        super().start()
        assert isinstance(self._policy, GivenActionsPolicy)
        self._policy.given = self._given.actions
