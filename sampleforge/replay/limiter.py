"""What limits the leases and the samples of a replay: the counters that its shards and its learner
share, the limiter of samples per insert, the shares of several sources; and the metrics of these.

An item is a transition, or, with a recurrent core, a sequence of transitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.shared.arrays import SharedArrays, SharedViews

_SHARD_COUNTERS = {
    "inserted": "int64",  # items that could be sampled, in total
    "leased": "int64",  # items of the slots that actors have
    "stored": "int64",  # items that can be sampled now
    "priority_sum": "float64",  # sum of their priorities
    "drawn": "int64",
    "age_sum": "float64",  # sum of the ages of drawn items, in items inserted since they were
    "full": "bool",  # the shard has begun to evict: it will not hold more
    "frame_bytes": "int64",  # bytes of compressed frames
    "restoring": "bool",  # the shard is reading a saved replay
    "stale_updates": "int64",  # priorities that came too late: their item was evicted
}
_LEARNER_COUNTERS = {
    "base": "int64",  # for each shard: items inserted before learning began
    "carried": "float64",  # [0]: the balance at the end of the previous run
    "sampled": "int64",  # [0]
    "learning": "bool",  # [0]
    "begun": "bool",  # [0]: learning had begun when the replay that is restored was saved
}


class ReplayCounters(SharedViews):
    """Counters of each shard, [shards] each, in shared memory. The shard writes those of
    `_SHARD_COUNTERS`, the learner those of `_LEARNER_COUNTERS`."""

    inserted: npt.NDArray[np.int64]
    leased: npt.NDArray[np.int64]
    stored: npt.NDArray[np.int64]
    priority_sum: npt.NDArray[np.float64]
    drawn: npt.NDArray[np.int64]
    age_sum: npt.NDArray[np.float64]
    full: npt.NDArray[np.bool_]
    frame_bytes: npt.NDArray[np.int64]
    restoring: npt.NDArray[np.bool_]
    stale_updates: npt.NDArray[np.int64]
    base: npt.NDArray[np.int64]
    carried: npt.NDArray[np.float64]
    sampled: npt.NDArray[np.int64]
    learning: npt.NDArray[np.bool_]
    begun: npt.NDArray[np.bool_]

    def __init__(self, shards: int) -> None:
        columns = {**_SHARD_COUNTERS, **_LEARNER_COUNTERS}
        self._arrays = SharedArrays({n: ((shards,), dtype) for n, dtype in columns.items()})
        self._attach()

    def _attach(self) -> None:
        for name in (*_SHARD_COUNTERS, *_LEARNER_COUNTERS):
            setattr(self, name, self._arrays[name])

    @property
    def shards(self) -> int:
        return len(self.inserted)

    @property
    def inserted_since_start(self) -> int:
        """Items inserted since learning began."""
        return int((self.inserted - self.base).sum()) if self.learning[0] else 0


class ItemSteps(NamedTuple):
    """The env steps of an item; a transition has 1 and 1."""

    inserted: int = 1
    """Steps that an item adds to the replay: those that a sequence does not share with the one
    before."""
    learned: int = 1
    """Steps that are learned from each time the item is drawn: all but the burn-in."""


@dataclass(frozen=True)
class RateLimiter:
    """Keeps ``|inserts * ratio - samples|`` within ``tolerance`` at every instant (Reverb's
    SampleToInsertRatio; Cassirer et al. 2021, arXiv 2102.04736).

    Inserts, samples and ``learning_starts`` are numbers of items. They count from the moment when
    the replay has ``learning_starts`` items. With ``ratio`` None both sides run freely. Inserts are
    limited when slots are leased to actors: a leased slot may come back at any moment, so it counts
    already, and each shard has an equal share of what is allowed. There is no lock.
    """

    replay_counters: ReplayCounters
    ratio: float | None
    tolerance: float
    learning_starts: int

    @property
    def balance(self) -> float:
        """inserts * ratio - samples; positive if samples are due."""
        replay_counters = self.replay_counters
        inserts = replay_counters.inserted_since_start * (self.ratio or 0.0)
        return float(replay_counters.carried[0] + inserts - replay_counters.sampled[0])

    def may_lease(self, shard: int, items: int) -> bool:
        """Return whether the shard may lease another slot of ``items`` items to an actor."""
        replay_counters = self.replay_counters
        if self.ratio is None:
            return True
        learning = replay_counters.learning[0]  # first: only then is `base` complete
        committed = (
            replay_counters.inserted[shard]
            - (replay_counters.base[shard] if learning else 0)
            + replay_counters.leased[shard]
            + items
        )
        allowed = (
            self.tolerance - replay_counters.carried[0] + replay_counters.sampled[0]
        ) / self.ratio
        if learning:
            return bool(committed <= allowed / replay_counters.shards)
        # The limit holds before learning too, so that not too many old items are waiting for a
        # learner that starts late. But the items that learning needs to begin are always allowed,
        # whatever the balance of the previous run.
        needed = self.learning_starts / replay_counters.shards
        return bool(
            committed - items < needed or committed <= needed + allowed / replay_counters.shards
        )

    def begin_learning(self) -> bool:
        """Return whether there are enough items to learn from, and record the first time. Called by
        the learner. Full shards are enough, whatever ``learning_starts`` is, because with short
        episodes the steps that reset take up room. A restored replay from which learning had begun
        is enough too."""
        replay_counters = self.replay_counters
        if not replay_counters.learning[0]:
            if replay_counters.restoring.any():
                return False
            enough = (
                replay_counters.begun[0] or replay_counters.stored.sum() >= self.learning_starts
            )
            if not enough and not replay_counters.full.all():
                return False
            replay_counters.base[:] = replay_counters.inserted
            replay_counters.learning[0] = True
        return True

    def may_sample(self, count: int, batches: int = 1) -> int:
        """Return how many batches of ``count`` more samples may be drawn, at most ``batches``.
        Called by the learner once it may learn."""
        if self.ratio is None:
            return batches
        return max(0, min(batches, math.floor((self.balance + self.tolerance) / count)))

    def count_samples(self, count: int) -> None:
        """Count ``count`` requested samples. Called by the learner."""
        self.replay_counters.sampled[0] += count

    def state(self, unlearned: int) -> dict[str, Any]:
        """Return what `load` restores. ``unlearned``: counted samples that end with the process,
        before they have been learned from; they are due again."""
        return {"balance": self.balance + unlearned if self.ratio is not None else 0.0}

    def load(self, state: dict[str, Any], *, restoring: bool = False, begun: bool = False) -> None:
        """Restore the balance of a `state`. ``restoring``: a replay is restored too, and each shard
        clears its flag when it has read its part. ``begun``: learning had begun when that replay
        was saved; the learner's state may be later, for it is saved after the replay."""
        self.replay_counters.carried[0] = state["balance"] if self.ratio is not None else 0.0
        self.replay_counters.restoring[:] = restoring
        self.replay_counters.begun[0] = begun


@dataclass(frozen=True)
class Shares:
    """The source of each actor (``source_of``), and the weight of each source."""

    source_of: tuple[int, ...]
    weights: tuple[float, ...]


class ShareKeeper:
    """Keeps the numbers of slots that the actors of several sources fill in the proportion of the
    sources' weights; one per replay shard.

    A source whose share is complete gets no slot until the others have caught up. The one that is
    furthest behind always gets slots, so no source waits for itself. At most the slots that a
    source has already make the difference.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._filled = [0] * len(shares.weights)

    def count(self, actor: int) -> None:
        """Count a slot that an actor has filled."""
        self._filled[self._shares.source_of[actor]] += 1

    def may_lease(self, actor: int) -> bool:
        """Return whether an actor may have another slot."""
        weights = self._shares.weights
        progress = [filled / weight for filled, weight in zip(self._filled, weights, strict=True)]
        return progress[self._shares.source_of[actor]] <= min(progress)


class ReplayMetrics:
    """Metrics in env steps, even if items are sequences: ``item_steps`` is what an item stands for.
    ``capacity``: of the replay, in transitions."""

    def __init__(self, limiter: RateLimiter, item_steps: ItemSteps, capacity: int) -> None:
        self._limiter = limiter
        self._item_steps = item_steps
        self._capacity = capacity

    def start(self) -> None:
        self._late = 0
        self._aged = self._ages()

    def add_late(self, items: int) -> None:
        """Count sampled items that were evicted before they were read."""
        self._late += items

    def take(self) -> dict[str, float]:
        """Return the metrics now; the age of samples since the last call."""
        counters, each = self._limiter.replay_counters, self._item_steps
        inserts = counters.inserted_since_start * each.inserted
        stored = float(counters.stored.sum()) * each.inserted
        metrics = {
            "replay_transitions": stored,
            "replay_fill": stored / self._capacity,
            "replay_priority_sum": float(counters.priority_sum.sum()),
            "stale_priority_updates": float(counters.stale_updates.sum()),
            "late_samples": float(self._late),
        }
        if counters.frame_bytes.any():
            metrics["replay_frame_bytes"] = float(counters.frame_bytes.sum())
        if inserts:
            metrics["samples_per_insert"] = float(counters.sampled[0]) * each.learned / inserts
        before, self._aged = self._aged, self._ages()
        drawn, ages = self._aged - before
        if drawn:
            metrics["sample_age_mean"] = float(ages / drawn) * each.inserted
        if counters.shards > 1:
            metrics |= {
                f"replay_priority_sum_{i}": float(priority_sum)
                for i, priority_sum in enumerate(counters.priority_sum)
            }
        return metrics

    def _ages(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return how many items were drawn so far, and the sum of their ages."""
        counters = self._limiter.replay_counters
        return np.array([counters.drawn.sum(), counters.age_sum.sum()], np.float64)
