"""The shared memory of one member of a population: changes on their way to its learners, and what
its learners and actors report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.newest import StateSnapshot


class Segment(NamedTuple):
    """The part of a member's life between two copies: its ``number`` (from 0), and the ``seed`` of
    its environments, its actions and its minibatches. A segment depends on nothing but the weights
    that it begins with, its seed and its hyperparameters."""

    number: int
    seed: int


class MemberBoard:
    """The counts of one member, which learners and actors write and the driver reads.

    Every number has one writer. ``learners``: their number. ``streams``: number of the member's
    splits over all actors. ``seed``: the seed of its first segment. ``env_steps``: the member's own
    count in earlier runs of the folder. ``shaping``: the reward-shaping numbers that its
    environments begin with, by name. It can be pickled to child processes.
    """

    def __init__(
        self,
        learners: int,
        streams: int,
        seed: int,
        env_steps: int = 0,
        shaping: Mapping[str, float] | None = None,
    ) -> None:
        self._arrays = SharedArrays(
            {
                "segment": ((1,), "int64"),
                "seed": ((1,), "int64"),
                "learned": ((1,), "int64"),
                "applied": ((learners, 8), "int64"),  # a cache line for each writer
                "applied_at": ((1,), "int64"),
                "sampled": ((streams, 8), "int64"),
                "restarted": ((streams, 8), "int64"),
                "shaping": ((max(1, len(shaping or {})),), "float64"),
                "shapings": ((1,), "int64"),
            }
        )
        self._earlier = env_steps
        self._shaped = tuple(shaping or {})
        self._arrays["seed"][0] = seed
        if shaping:
            self.set_shaping(shaping)

    @property
    def segment(self) -> Segment:
        """The member's current segment."""
        return Segment(int(self._arrays["segment"][0]), int(self._arrays["seed"][0]))

    def begin_segment(self, segment: Segment) -> None:
        """Begin a segment, or continue the current one. Called by learner 0."""
        self._arrays["seed"][0] = segment.seed  # first: a reader looks for another number
        self._arrays["segment"][0] = segment.number

    @property
    def applied(self) -> int:
        """Number of the newest change that all learners have applied."""
        return int(self._arrays["applied"][:, 0].min())

    def set_applied(self, learner: int, number: int) -> None:
        """Record, from a learner, the newest change that it has applied."""
        self._arrays["applied"][learner, 0] = number

    @property
    def applied_at(self) -> int:
        """Env steps that had led to the member's weights when that change was applied; for a copy
        those of its donor."""
        return int(self._arrays["applied_at"][0])

    def set_applied_at(self, env_steps: int) -> None:
        """Record, from learner 0, when it has applied its newest change; before `set_applied`."""
        self._arrays["applied_at"][0] = env_steps

    @property
    def learned(self) -> int:
        """Env steps that have led to the member's weights; see `ChangeFollower`."""
        return int(self._arrays["learned"][0])

    def set_learned(self, env_steps: int) -> None:
        """Record, from learner 0, the env steps that have led to its weights."""
        self._arrays["learned"][0] = env_steps

    @property
    def sampled(self) -> int:
        """Env steps that the member's own actions have taken."""
        return self._earlier + int(self._arrays["sampled"][:, 0].sum())

    def add_sampled(self, stream: int, env_steps: int) -> None:
        """Count env steps of a stream. Called by its actor."""
        self._arrays["sampled"][stream, 0] += env_steps

    def forget_sampled(self) -> None:
        """Set the counts of all streams to 0. Called by the driver while no actor is there."""
        self._arrays["sampled"][:] = 0

    def set_restarted(self, stream: int, segment: int) -> None:
        """Record, from its actor, that a stream's environments have begun anew for a segment."""
        self._arrays["restarted"][stream, 0] = segment

    @property
    def shaping_number(self) -> int:
        """Counts the changes of the reward-shaping numbers; 0 if there are none."""
        return int(self._arrays["shapings"][0])

    @property
    def shaping(self) -> dict[str, float]:
        """The reward-shaping numbers of the member's environments, by name."""
        return dict(zip(self._shaped, self._arrays["shaping"].tolist(), strict=False))

    def set_shaping(self, shaping: Mapping[str, float]) -> None:
        """Set the reward-shaping numbers, if they have changed. Called by learner 0."""
        new = np.array([shaping[name] for name in self._shaped])
        if len(new) and (self.shaping_number == 0 or (new != self._arrays["shaping"]).any()):
            self._arrays["shaping"][:] = new
            self._arrays["shapings"][0] += 1

    @property
    def has_restarted(self) -> bool:
        """Whether the environments of all streams have begun anew for the current segment."""
        return bool((self._arrays["restarted"][:, 0] >= self._arrays["segment"][0]).all())


class ChangeInbox:
    """The newest change that the driver has sent to the learners of one member. It holds the state
    of the donor, if weights are copied, so that the donor may go on meanwhile.

    The driver sends a change only after all learners have applied the one before it. A change is
    complete or not there: see `sampleforge.shared.newest`.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Reserve memory for the state of a learner; see `StateSnapshot`."""
        self._newest = StateSnapshot(tensors)

    @property
    def nbytes(self) -> int:
        return self._newest.nbytes

    @property
    def number(self) -> int:
        """Number of the newest change, from 1; 0 if there is none."""
        return max(0, self._newest.version)

    def send(
        self, number: int, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]
    ) -> None:
        """Send change ``number``: the donor's ``tensors`` (empty: no weights are copied) and
        values for JSON. Called by the driver."""
        self._newest.publish(tensors, {"version": number, "change": dict(plain)})

    def read(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the newest change as it was sent. Called by learners."""
        tensors, plain = self._newest.read()
        return tensors, plain["change"]
