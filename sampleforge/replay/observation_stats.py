"""Statistics of the observations that are inserted into a replay, on their way to the learner.

Transitions are drawn many times, and the same observation is in several of them. So the shard
counts each observation once, when it is inserted, and the moments go to the learner with the next
sample. Those since a shard's last sample are lost when a run ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.encoding import Encoding
from sampleforge.models.normaliser import LeafNormaliser, counted
from sampleforge.ops.running_stats import Moments, merge, moments
from sampleforge.rollouts.slots import TrajectorySlots

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the observation leaves that are counted, by name."""


def packed_size(shapes: Shapes) -> int:
    """Return the number of floats in the moments of all leaves: mean and variance of each element,
    and a count per leaf."""
    return sum(2 * math.prod(shape) + 1 for shape in shapes.values())


def unpack(packed: npt.NDArray[np.float64], shapes: Shapes) -> dict[str, Moments] | None:
    """Return the moments of each leaf that `ObservationStats.take` has packed; None if they are of
    no observations."""
    if not shapes or not packed[-1]:  # the last leaf's count: all are 0, or none
        return None
    of_leaves, values = {}, torch.from_numpy(packed.copy())
    for name, shape in shapes.items():
        size = math.prod(shape)
        mean, var, count = values[:size], values[size : 2 * size], values[2 * size]
        of_leaves[name] = Moments(mean.view(shape), var.view(shape), count)
        values = values[2 * size + 1 :]
    return of_leaves


class ObservationStats:
    """Collects the moments of the observations of one shard's rollouts, until `take`."""

    def __init__(self, slots: TrajectorySlots, shapes: Shapes) -> None:
        sequences = slots.shape.sequences
        self._slots = slots
        self._shapes = shapes
        # obs[T] is obs[0] of the next rollout, or obs[overlap] where rollouts share steps.
        self._steps = slots.shape.rollout - (0 if sequences is None else sequences.overlap)
        self._empty = {name: moments(torch.zeros(0, *shape)) for name, shape in shapes.items()}
        self._seen = self._empty
        specs = slots.shape.spec.observations
        # All observations so far, by which far ones are known: see `LeafNormaliser.moments`.
        self._so_far = {
            name: LeafNormaliser(specs[name], Encoding("vector", "for its statistics alone"))
            for name in shapes
        }

    def add(self, slot: int) -> None:
        """Count the observations of a rollout that is not inserted yet, each exactly once. Those of
        dropped steps are left out, because they may have been zeroed."""
        if not self._shapes:
            return
        real = torch.from_numpy(self._real(slot))
        self._seen = {
            name: merge(seen, self._of(slot, name, real)) for name, seen in self._seen.items()
        }

    def take(self, packed: npt.NDArray[np.float64]) -> None:
        """Write the moments of the observations since the last call into ``packed``, float64
        [`packed_size`]."""
        if self._seen is self._empty:
            packed[:] = 0.0
            return
        parts = [part for seen in self._seen.values() for part in (seen.mean, seen.var, seen.count)]
        packed[:] = torch.cat([part.reshape(-1) for part in parts]).numpy()
        self._seen = self._empty

    def _of(self, slot: int, name: str, real: torch.Tensor) -> Moments:
        leaf = self._leaf(slot, name)
        seen = leaf if real.all() else leaf[real]
        so_far = self._so_far[name]
        found = so_far.moments(counted(seen, self._slots.shape.spec.observations[name]))
        so_far.merge(found)
        return found

    def _real(self, slot: int) -> npt.NDArray[np.bool_]:
        """Return which observations are as the environment gave them, bool [steps * rows].

        An observation is real if the step from it is valid. A step that is not valid may begin with
        the final observation of an episode, after which another episode begins: this observation is
        real, unless the step before it was dropped as well (see `sampleforge.env.guard`). The
        step before the rollout is not known here, and counts as valid.
        """
        steps = self._steps
        valid, first = self._slots.valid[slot, :steps], self._slots.first[slot, : steps + 1]
        after_valid = np.ones_like(valid)
        after_valid[1:] = valid[:-1]
        real: npt.NDArray[np.bool_] = valid | (first[1:] & ~first[:-1] & after_valid)
        return real.reshape(-1)

    def _leaf(self, slot: int, name: str) -> torch.Tensor:
        """Return the observations of one leaf, [steps * rows, ...]."""
        slots, steps = self._slots, self._steps
        if name in slots.stacks:
            return slots.stacks[name].read_rows(np.full(steps, slot), np.arange(steps))
        return torch.from_numpy(slots.obs[name][slot, :steps]).flatten(0, 1)
