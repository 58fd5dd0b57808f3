"""One update of a Q-learner from a sample of the replay, by one learner or by several together."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algos.dqn_learner import DqnLearner
from sampleforge.algos.experience import Share
from sampleforge.ops.schedules import between
from sampleforge.replay.config import ReplayConfig
from sampleforge.replay.exchange import SampleRequests
from sampleforge.replay.observation_stats import unpack
from sampleforge.replay.sequences import SequenceReader, Sequences
from sampleforge.replay.transitions import TransitionReader, Transitions


class Updated(NamedTuple):
    """The result of an update."""

    batch: Transitions | Sequences
    """What this learner has learned from."""
    metrics: dict[str, float]
    errors: npt.NDArray[np.float32] | None
    """float32 [B], from which the new priorities are made, 0 for items that were evicted before
    they were read; None if the step was skipped."""
    late: int
    """Number of items of the whole sample that were evicted before they were read."""
    trained: int
    """Number of env steps of this learner's part that were learned from."""
    read_s: float
    """Seconds of copying the sample."""


class SampleUpdate:
    """Learns from a sample, of which each of ``share.learners`` learners has an equal part. All
    learners take the step that one learner would take with the whole sample. They update from the
    same requests in the same order, and wait for each other. Raises RankLost if one is lost.
    """

    def __init__(
        self,
        make_reader: Callable[[], TransitionReader | SequenceReader],
        sample_requests: SampleRequests,
        config: ReplayConfig,
        share: Share,
        learner: DqnLearner,
    ) -> None:
        self._learner = learner
        self._reader = make_reader()
        self._sample_requests = sample_requests
        self._config = config
        size = sample_requests.items.shape[1] // share.learners
        self._part = slice(share.learner * size, (share.learner + 1) * size)

    def __call__(self, request: int, progress: float) -> Updated | None:
        """Learn from the sample of ``request``; ``progress`` (0 to 1) is the fraction of the
        training that is done. Return None if no item of the sample was left."""
        started, requests, part = perf_counter(), self._sample_requests, self._part
        if (seen := unpack(requests.seen[request], requests.counted)) is not None:
            self._learner.observe(seen)
        gathered = self._reader.read(
            requests.items[request, part],
            requests.generations[request, part],
            requests.scaled_probability[request, part],
        )
        batch, still_valid = gathered[0], gathered.still_valid
        late = int(np.count_nonzero(self._gather(still_valid) == 0))
        if late == requests.items.shape[1]:
            return None
        if not still_valid.any():
            batch = batch.blank()
        read_s = perf_counter() - started
        metrics, errors = self._learner.update(batch, self._beta(progress), progress)
        trained = gathered.trained
        if errors is None:
            return Updated(batch, metrics, None, late, trained, read_s)
        if not still_valid.all():
            own = np.zeros(len(still_valid), np.float32)
            own[still_valid] = errors[: np.count_nonzero(still_valid)]
            errors = own
        return Updated(batch, metrics, self._gather(errors), late, trained, read_s)

    def _gather(self, own: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """Return the entries of the whole sample, float32 [B], given those of this learner's
        part."""
        averaging = self._learner.averaging
        if averaging.solo:
            return own.astype(np.float32, copy=False)
        gathered = averaging.all_gather(torch.from_numpy(own.astype(np.float64)))
        return gathered.flatten().numpy().astype(np.float32)

    def _beta(self, progress: float) -> float:
        first, last = self._config.priority_beta, self._config.priority_beta_final
        assert first is not None, "the config has unresolved defaults"
        return first if last is None else between(first, last, progress)
