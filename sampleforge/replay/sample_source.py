"""The source of a learner's samples: it requests them from the replay shards ahead of time."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.replay.exchange import SAMPLE, UPDATE, SampleRequests
from sampleforge.replay.limiter import RateLimiter

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
        return self._ready.popleft() if self._ready else None

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
