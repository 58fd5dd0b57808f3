"""The samples of a replay as what a learner learns from, alone or together with other learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.running_stats import Gather, Moments, alone
from sampleforge.ops.schedules import between
from sampleforge.replay.config import ReplayConfig
from sampleforge.replay.exchange import SampleRelay, SampleRequests
from sampleforge.replay.metrics import ReplayMetrics
from sampleforge.replay.observation_stats import unpack
from sampleforge.replay.sample_source import ReadySample, SampleSource
from sampleforge.replay.sequences import SequenceReader, Sequences
from sampleforge.replay.transitions import TransitionReader, Transitions
from sampleforge.rollouts.batch_source import BatchSource, Seconds, Taken
from sampleforge.shared.wakeup import Wakeup


@dataclass(frozen=True)
class ReplaySample:
    """What a learner takes of a replay.

    ``items``: its part of what was drawn. ``beta``: the exponent of their importance weights.
    ``seen``: the moments of the observations that were inserted since the sample before, by leaf,
    each counted once. ``trained``: the env steps of ``items`` that are learned from."""

    items: Transitions | Sequences
    beta: float
    seen: Sequence[Mapping[str, Moments]] = ()
    trained: int = 0


class Choice(NamedTuple):
    """A sample that was chosen: its index in the `SampleRequests`, and the fraction (0 to 1) of the
    training that was done."""

    request: int
    progress: float


class SampleReader:
    """Reads a learner's part of a sample. All learners read the same samples in the same order, and
    wait for each other. ``gather``: returns the vectors [k] of all learners, [learners, k]; raises
    RankLost if one is lost."""

    def __init__(self, batches: SampleBatches, gather: Gather) -> None:
        self.reader = batches.make_reader(str(batches.device))
        self.late = 0
        """Items of the newest sample, of all learners' parts, that were evicted before they were
        read."""
        self._requests = batches.requests
        self._config = batches.config
        self._gather = gather
        self._part = batches.part
        self._seen: list[Mapping[str, Moments]] = []

    def read(self, chosen: Choice) -> ReplaySample | None:
        """Return the sample; None if no item of it is left."""
        request, requests, part = chosen.request, self._requests, self._part
        if (seen := unpack(requests.seen[request], requests.counted)) is not None:
            self._seen.append(seen)
        gathered = self.reader.read(
            requests.items[request, part],
            requests.generations[request, part],
            requests.scaled_probability[request, part],
        )
        items, still_valid = gathered[0], gathered.still_valid
        self._still_valid = still_valid
        self.late = int(np.count_nonzero(self._of_all(still_valid) == 0))
        if self.late == requests.items.shape[1]:
            return None
        if not still_valid.any():
            items = items.blank()
        sample = ReplaySample(items, self._beta(chosen.progress), self._seen, gathered.trained)
        self._seen = []
        return sample

    def forget(self) -> None:
        """Drop the moments of samples of which no item was left, before a new group is formed."""
        self._seen = []

    def errors_of_all(
        self, errors: npt.NDArray[np.float32] | None
    ) -> npt.NDArray[np.float32] | None:
        """Return the errors of the whole sample, float32 [B], given those of the items that this
        learner has read: 0 for items that were evicted; None if there are none."""
        if errors is None:
            return None
        still_valid = self._still_valid
        if not still_valid.all():
            own = np.zeros(len(still_valid), np.float32)
            own[still_valid] = errors[: np.count_nonzero(still_valid)]
            errors = own
        return self._of_all(errors)

    def _of_all(self, own: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """Return the entries of the whole sample, given those of this learner's part."""
        if self._gather is alone:
            return own.astype(np.float32, copy=False)
        gathered = self._gather(torch.from_numpy(own.astype(np.float64)))
        return gathered.flatten().numpy().astype(np.float32)

    def _beta(self, progress: float) -> float:
        first, last = self._config.priority_beta, self._config.priority_beta_final
        assert first is not None, "the config has unresolved defaults"
        return first if last is None else between(first, last, progress)


class ChosenSamples(BatchSource):
    """The samples of learner 0, which alone requests them and returns errors. ``relay`` tells the
    other learners what it has chosen."""

    def __init__(
        self,
        samples: SampleSource,
        reader: SampleReader,
        metrics: ReplayMetrics,
        relay: SampleRelay | None,
        wakeup: Wakeup,
    ) -> None:
        self.wakeup = wakeup
        self.samples = samples
        self.reader = reader
        self._metrics = metrics
        self._relay = relay
        self._taken: ReadySample | None = None
        self.begin_again()

    def gather(self) -> bool:
        return self.samples.gather()

    def take(self, progress: float) -> Taken | None:
        self._taken = self.samples.take()
        if self._taken is None:
            return None
        if self._relay is not None:
            self._relay.send(self._taken.request, progress)
        return Taken(Choice(self._taken.request, progress), progress)

    def read(self, batch: Choice) -> ReplaySample | None:
        sample = self.reader.read(batch)
        self._metrics.add_late(self.reader.late)
        return sample

    def done(self, errors: npt.NDArray[np.float32] | None = None) -> None:
        self._give_back(self.reader.errors_of_all(errors))

    def abandon(self) -> None:
        if self._taken is not None:
            self._give_back(None)

    def begin_again(self) -> bool:
        self.abandon()
        self.reader.forget()
        if self._relay is not None:
            self._relay.forget()
        return False

    def plain_state(self) -> dict[str, Any]:
        return {
            "limiter": self.samples.limiter.state(),
            "shard_choice": self.samples.shard_choice,
        }

    def metrics(self) -> dict[str, float]:
        return self._metrics.take()

    def _give_back(self, errors: npt.NDArray[np.float32] | None) -> None:
        assert self._taken is not None
        taken, self._taken = self._taken, None
        self.samples.done(taken, errors)


class RelayedSamples(BatchSource):
    """The samples of another learner than learner 0: those that it has chosen, in the same
    order."""

    def __init__(
        self, relay: SampleRelay, learner: int, reader: SampleReader, wakeup: Wakeup
    ) -> None:
        self.wakeup = wakeup
        self.reader = reader
        self._relay = relay
        self._learner = learner
        self.begin_again()

    def gather(self) -> bool:
        return False

    def take(self, progress: float) -> Taken | None:
        sent = self._relay.take(self._learner)
        return None if sent is None else Taken(Choice(*sent), sent[1])

    def read(self, batch: Choice) -> ReplaySample | None:
        return self.reader.read(batch)

    def done(self, errors: npt.NDArray[np.float32] | None = None) -> None:
        self.reader.errors_of_all(errors)

    def abandon(self) -> None:
        """Do nothing: learner 0 gives the sample back."""

    def begin_again(self) -> bool:
        self.reader.forget()
        while self._relay.take(self._learner) is not None:
            pass  # of the group before
        return False


@dataclass(frozen=True)
class SampleBatches:
    """What a learner learns from: samples of a replay, on its ``device``. Each of ``learners`` has
    an equal part of every sample, and ``learner`` is the number of this one.

    ``samples``: from which learner 0 takes them; ``metrics``: those that it reports; ``relay``:
    from it to the others, if there are several. ``make_reader(device)`` returns what copies items
    out of the slots.
    """

    requests: SampleRequests
    make_reader: Callable[[str], TransitionReader | SequenceReader]
    config: ReplayConfig
    device: torch.device
    samples: SampleSource
    metrics: ReplayMetrics
    relay: SampleRelay | None = None
    learner: int = 0
    learners: int = 1

    @property
    def part(self) -> slice:
        """This learner's part of a sample."""
        size = self.requests.items.shape[1] // self.learners
        return slice(self.learner * size, (self.learner + 1) * size)

    def source(
        self, wakeup: Wakeup, count: Mapping[str, Seconds], version: int, gather: Gather
    ) -> ChosenSamples | RelayedSamples:
        """Return the source of these samples, see `sampleforge.rollouts.batch_source.Batches`."""
        reader = SampleReader(self, gather)
        if self.learner:
            assert self.relay is not None
            return RelayedSamples(self.relay, self.learner, reader, wakeup)
        self.samples.start(life=int(count["restarts"][0]))
        self.metrics.start()
        return ChosenSamples(self.samples, reader, self.metrics, self.relay, wakeup)

    def take_over(self) -> None:
        """Do nothing: a learner finds its requests when it starts."""
