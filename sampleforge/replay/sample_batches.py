"""The samples of a replay as what a learner learns from, alone or together with other learners."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.running_stats import Gather, Moments, alone
from sampleforge.ops.schedules import between
from sampleforge.replay.config import ReplayConfig
from sampleforge.replay.exchange import SAMPLE, UPDATE, SampleRelay, SampleRequests
from sampleforge.replay.limiter import RateLimiter, ReplayMetrics
from sampleforge.replay.observation_stats import unpack
from sampleforge.replay.samples import ItemReader, Sequences, Transitions
from sampleforge.rollouts.batch import BatchSource, Seconds, Taken
from sampleforge.shared.wakeup import Wakeup

WAKE_INTERVAL = 0.005
"""Seconds between the wake-ups of the shards while enough samples are ready. Short updates need not
each wake a process, and shards serve several requests together faster than one by one."""
_LEARNER = 1 << 20
"""In the seed of a learner's later lives, where shards have their index."""


class ReadySample(NamedTuple):
    """A sample that ``shard`` has drawn, in the `SampleRequests` with index ``request``."""

    shard: int
    request: int


class SampleSource:
    """Requests as many samples as there are requests and the limiter allows, and returns TD errors.

    Each request goes to a shard that is drawn in proportion to its sum of priorities, so that all
    shards together act like one. A shard serves requests in order: it takes TD errors before it
    draws a sample that was requested after them. ``shard_choice``: state of the generator that
    draws shards, from the previous run.
    """

    def __init__(
        self,
        requests: SampleRequests,
        limiter: RateLimiter,
        seed: list[int],
        shard_choice: dict[str, Any] | None = None,
    ) -> None:
        self.requests = requests
        self.limiter = limiter
        self._seed = seed
        self._shard_choice = shard_choice

    def start(self, life: int) -> None:
        """Begin to request samples. Requests of a previous ``life`` that was killed are served, and
        used, as if they were of this one. Samples that it had taken are lost; they stay counted, so
        that the limiter permits no sample too many."""
        lives = [_LEARNER, life] if life else []
        self._random = np.random.default_rng([*self._seed, *lives])
        if self._shard_choice is not None and not life:
            self._random.bit_generator.state = self._shard_choice
        self._spare = deque(self.requests.spare())
        kinds = np.delete(self.requests.kind, list(self._spare))
        self._under_way = int(np.count_nonzero(kinds == SAMPLE))
        self._ready: deque[ReadySample] = deque()
        self._few = self.requests.count // 2
        self._unseen = True
        """Whether shards may sleep although there is something for them to do."""
        self._wake_at = 0.0  # perf_counter

    @property
    def batch(self) -> int:
        """Number of items of a sample."""
        return int(self.requests.items.shape[1])

    @property
    def unlearned(self) -> int:
        """Number of items that were requested and not yet taken."""
        return self._under_way * self.batch

    @property
    def shard_choice(self) -> dict[str, Any]:
        """The state of the generator that draws shards."""
        return dict(self._random.bit_generator.state)

    def gather(self) -> bool:
        """Take what shards have answered, and send more requests; return whether there was
        anything to do."""
        answered = self._take_answers()
        requested = self._request()
        if self._unseen and (len(self._ready) <= self._few or perf_counter() >= self._wake_at):
            self.requests.wake_shards()
            self._unseen = False
            self._wake_at = perf_counter() + WAKE_INTERVAL
        return requested or answered

    def take(self) -> ReadySample | None:
        """Return the sample to learn from next, or None."""
        if not self._ready:
            return None
        self._under_way -= 1
        return self._ready.popleft()

    def done(self, sample: ReadySample, errors: npt.NDArray[np.float32] | None) -> None:
        """Return the TD ``errors`` [B] of a sample to its shard; None: there are none."""
        if errors is None:
            self._spare.append(sample.request)
            return
        self.requests.errors[sample.request] = errors
        self.requests.ask(sample.shard, sample.request, UPDATE)
        self._unseen = True

    def _take_answers(self) -> bool:
        requests, moved = self.requests, False
        for shard in range(self.limiter.replay_counters.shards):
            while (request := requests.take_answered(shard)) is not None:
                if requests.kind[request] == SAMPLE:
                    self._ready.append(ReadySample(shard, request))
                else:
                    self._spare.append(request)
                moved = True
        return moved

    def _request(self) -> bool:
        """Request as many samples as spare requests and the limiter allow."""
        # Beginning to learn counts as progress too: the shards may have to act next.
        limiter = self.limiter
        learning = limiter.replay_counters.learning
        moved = not learning[0] and limiter.begin_learning()
        if self._spare and learning[0]:
            for _ in range(limiter.may_sample(self.batch, len(self._spare))):
                limiter.count_samples(self.batch)
                self._under_way += 1
                self.requests.ask(self._drawn_shard(), self._spare.popleft(), SAMPLE)
                moved = True
        self._unseen = self._unseen or moved
        return moved

    def _drawn_shard(self) -> int:
        """Draw a shard in proportion to its sum of priorities."""
        ends = self.limiter.replay_counters.priority_sum.cumsum()
        if len(ends) == 1:
            return 0
        return int((ends / ends[-1]).searchsorted(self._random.random(), side="right"))


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

    def read(self, chosen: Taken) -> ReplaySample | None:
        """Return the sample; None if no item of it is left."""
        request, requests, part = chosen.batch, self._requests, self._part
        if (seen := unpack(requests.seen[request], requests.counted)) is not None:
            self._seen.append(seen)
        gathered = self.reader.read(
            requests.items[request, part],
            requests.generations[request, part],
            requests.scaled_probability[request, part],
        )
        items, still_valid = gathered.batch, gathered.still_valid
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
        return gathered.T.flatten().numpy().astype(np.float32)

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
        return Taken(self._taken.request, progress)

    def read(self, taken: Taken) -> ReplaySample | None:
        sample = self.reader.read(taken)
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
            "limiter": self.samples.limiter.state(self.samples.unlearned),
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
        return None if sent is None else Taken(*sent)

    def read(self, taken: Taken) -> ReplaySample | None:
        return self.reader.read(taken)

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
    make_reader: Callable[[str], ItemReader]
    config: ReplayConfig
    device: torch.device
    samples: SampleSource
    metrics: ReplayMetrics
    relay: SampleRelay | None = None
    learner: int = 0
    learners: int = 1

    @property
    def part(self) -> slice:
        """This learner's part of a sample: one item of as many neighbours as there are learners.
        Where there are priorities, items are drawn from the beginning of the replay to its end
        (`sampleforge.replay.sum_tree`), and every part shall be of the whole replay."""
        return slice(self.learner, None, self.learners)

    def source(
        self, wakeup: Wakeup, count: Mapping[str, Seconds], version: int, gather: Gather
    ) -> ChosenSamples | RelayedSamples:
        """Return the source of these samples, see `sampleforge.rollouts.batch.Batches`."""
        reader = SampleReader(self, gather)
        if self.learner:
            assert self.relay is not None
            return RelayedSamples(self.relay, self.learner, reader, wakeup)
        self.samples.start(life=int(count["restarts"][0]))
        self.metrics.start()
        return ChosenSamples(self.samples, reader, self.metrics, self.relay, wakeup)

    def take_over(self) -> None:
        """Do nothing: a learner finds its requests when it starts."""
