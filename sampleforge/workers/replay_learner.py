"""The learner worker of Ape-X, which learns from samples of the replay and returns priorities."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

import numpy as np

from sampleforge.distributed.group import RankLost
from sampleforge.replay.config import ReplayConfig
from sampleforge.replay.exchange import SAMPLE, UPDATE, SampleRelay, SampleRequests
from sampleforge.replay.limiter import ItemSteps, RateLimiter
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.counters import Progress
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.workers.learner import Save
from sampleforge.workers.metrics import Divergence, ReportMetrics
from sampleforge.workers.sample_update import SampleUpdate
from sampleforge.workers.worker import EventDriven, StopFlag


class ReplayLearnerWorker(EventDriven):
    """Requests samples ahead, learns from each, returns its TD errors, and publishes the weights
    every ``publish_interval`` env steps of all actors together.

    Each request goes to a shard that is drawn in proportion to its sum of priorities, so that all
    shards together act like one. A shard serves requests in order: it takes TD errors before it
    draws a sample that was requested after them.

    With several learners this is learner 0, and ``relay`` sends its samples to the other learners.
    """

    def __init__(
        self,
        update: SampleUpdate,
        sample_requests: SampleRequests,
        limiter: RateLimiter,
        weights: SharedWeights,
        config: ReplayConfig,
        progress: Progress,
        stop: StopFlag,
        save: Save,
        wakeup: Wakeup,
        counter_row: int,
        *,
        publish_interval: int,
        seed: list[int],
        threads: int,
        item_steps: ItemSteps,
        shard_choice: dict[str, Any] | None = None,
        relay: SampleRelay | None = None,
    ) -> None:
        """``shard_choice``: state of the generator that draws shards, from the previous run."""
        self.name = "learner" if relay is None else "learner 0"
        self._update = update
        self._relay = relay
        self._stop = stop
        self._sample_requests = sample_requests
        self._limiter = limiter
        self._weights = weights
        self._config = config
        self._progress = progress
        self._save = save
        self._wakeup = wakeup
        self._counter_row = counter_row
        self._seed = seed
        self._threads = threads
        self._publish_interval = publish_interval
        self._item_steps = item_steps
        self._shard_choice = shard_choice

    def start(self) -> None:
        limit_threads(self._threads)
        self._learner = self._update.start()
        self._divergence = Divergence()
        self._random = np.random.default_rng(self._seed)
        if self._shard_choice is not None:
            self._random.bit_generator.state = self._shard_choice
        self._batch = self._sample_requests.items.shape[1]
        self._spare = deque(range(self._sample_requests.count))
        self._ready: deque[tuple[int, int]] = deque()  # (shard, request)
        self._metrics = ReportMetrics()
        self._published_at = 0  # env steps
        self._aged = np.zeros(2)  # number of samples, and sum of their ages, at the last report
        self._late = 0  # sampled items that were evicted before they were read
        self._count = self._progress.counters.row(self._counter_row)

    def step(self) -> bool:
        moved = self._take_answers()
        moved = self._request_samples() or moved
        if self._ready:
            self._learn(*self._ready.popleft())
            return True
        return moved

    def _take_answers(self) -> bool:
        sample_requests, moved = self._sample_requests, False
        for shard in range(self._limiter.replay_counters.shards):
            while (request := sample_requests.take_answered(shard)) is not None:
                if sample_requests.kind[request] == SAMPLE:
                    self._ready.append((shard, request))
                else:
                    self._spare.append(request)
                moved = True
        return moved

    def _request_samples(self) -> bool:
        """Request as many samples as spare requests and the limiter allow."""
        # Beginning to learn counts as progress too: the shards may have to act next.
        replay_counters = self._limiter.replay_counters
        moved = not replay_counters.learning[0] and self._limiter.begin_learning()
        while self._spare and replay_counters.learning[0] and self._limiter.may_sample(self._batch):
            priority_sum = replay_counters.priority_sum.copy()
            shard = int(self._random.choice(len(priority_sum), p=priority_sum / priority_sum.sum()))
            self._limiter.count_samples(self._batch)
            self._sample_requests.ask(shard, self._spare.popleft(), SAMPLE)
            moved = True
        if moved:
            self._sample_requests.wake_shards()
        return moved

    def _learn(self, shard: int, request: int) -> None:
        started, fraction = perf_counter(), self._progress.fraction
        if self._relay is not None:
            self._relay.send(request, fraction)
        try:
            updated = self._update(request, fraction)
        except RankLost:
            if self._stop.is_set():  # the other learners have left
                return
            raise
        if updated is None:
            self._late += self._batch
            self._spare.append(request)
            return
        learned = perf_counter()
        self._late += updated.late
        self._divergence.check(updated.metrics, all_skipped=updated.errors is None)
        if updated.errors is None:
            self._spare.append(request)
        else:
            self._sample_requests.errors[request] = updated.errors
            self._sample_requests.ask(shard, request, UPDATE)
        self._publish()
        self._count["batch_s"] += updated.read_s
        self._count["learn_s"] += learned - started - updated.read_s
        self._count["publish_s"] += perf_counter() - learned
        self._count["updates"][0] = self._learner.version
        self._count["trained_steps"] += updated.trained
        self._metrics.add(updated.metrics)

    def _publish(self) -> None:
        """Publish the weights if ``publish_interval`` env steps have passed since the last time.
        For a small network, publishing after every update would take as long as learning."""
        env_steps = self._progress.env_steps
        if env_steps - self._published_at >= self._publish_interval:
            self._published_at = env_steps
            self._weights.publish(self._learner.model.state_dict(), self._learner.version)

    def close(self) -> None:
        self._update.close()

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver, like
        `sampleforge.workers.learner.LearnerWorker.handle`."""
        if kind == "metrics":
            return self._metrics.take() | self._replay_metrics()
        assert kind == "save", kind
        tensors, plain = self._learner.state()
        plain["limiter"] = self._limiter.state()
        plain["shard_choice"] = self._random.bit_generator.state
        try:
            self._save(tensors, {**payload, "learner": plain})
        except (OSError, ValueError) as error:  # ValueError: a tensor that is not finite
            return f"{type(error).__name__}: {error}"
        return None

    def _replay_metrics(self) -> dict[str, float]:
        """Return the metrics of the replay, in env steps even if items are sequences."""
        replay_counters, config, each = (
            self._limiter.replay_counters,
            self._config,
            self._item_steps,
        )
        inserts = replay_counters.inserted_since_start * each.inserted
        stored = float(replay_counters.stored.sum()) * each.inserted
        metrics = {
            "replay_transitions": stored,
            "replay_fill": stored / config.replay_capacity,
            "replay_priority_sum": float(replay_counters.priority_sum.sum()),
            "stale_priority_updates": float(replay_counters.stale_updates.sum()),
            "late_samples": float(self._late),
        }
        if replay_counters.frame_bytes.any():
            metrics["replay_frame_bytes"] = float(replay_counters.frame_bytes.sum())
        if inserts:
            metrics["samples_per_insert"] = (
                float(replay_counters.sampled[0]) * each.learned / inserts
            )
        before, self._aged = (
            self._aged,
            np.array([replay_counters.drawn.sum(), replay_counters.age_sum.sum()]),
        )
        drawn, ages = self._aged - before
        if drawn:
            metrics["sample_age_mean"] = float(ages / drawn) * each.inserted
        if replay_counters.shards > 1:
            metrics |= {
                f"replay_priority_sum_{i}": float(priority_sum)
                for i, priority_sum in enumerate(replay_counters.priority_sum)
            }
        return metrics
