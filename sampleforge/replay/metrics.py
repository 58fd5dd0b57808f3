"""The metrics of a replay, for the reports of its learner."""

from __future__ import annotations

import numpy as np

from sampleforge.replay.limiter import ItemSteps, RateLimiter


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
