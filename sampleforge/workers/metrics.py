"""The metrics of a report, aggregated over updates, and the check for divergence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

PER_UPDATE = frozenset(
    {"valid_steps", "stale_steps", "skipped_steps", "empty_minibatches", "learning_rate"}
)
"""Metrics of an update as a whole, not of its rows: each update has the same weight."""
LAG = "policy_lag"
"""Prefix of metrics over all valid rows, including stale ones."""
CUSTOM = "custom_"
"""Prefix of the metrics that callbacks add to an update or to an episode."""


class ReportMetrics:
    """Aggregates the metrics of all updates since the last report.

    A name that ends with ``_max`` or ``_min`` is the extreme of all updates. Other metrics are
    means, weighted by the rows that each update has learned from (``valid_steps`` less
    ``stale_steps``; updates without these metrics have the same weight). A metric of rows is left
    out if there was no such row.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._extremes: dict[str, float] = {}

    def add(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            weight = _weight(name, metrics)
            if not weight:
                continue
            if name.endswith(("_max", "_min")):
                extreme = np.maximum if name.endswith("_max") else np.minimum
                self._extremes[name] = float(extreme(self._extremes.get(name, value), value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + weight * value
                self._weights[name] = self._weights.get(name, 0.0) + weight

    def take(self) -> dict[str, float]:
        """Return the metrics since the last call; empty if there was no update."""
        metrics = {name: total / self._weights[name] for name, total in self._sums.items()}
        metrics |= self._extremes
        self._sums, self._weights, self._extremes = {}, {}, {}
        return metrics


def _weight(name: str, metrics: dict[str, float]) -> float:
    """Return the weight of an update in the mean of a metric."""
    seen = metrics.get("valid_steps")
    if seen is None or name in PER_UPDATE or name.startswith(CUSTOM):
        return 1.0
    return seen if name.startswith(LAG) else seen - metrics["stale_steps"]


MAX_SKIPPED_UPDATES = 10
"""Number of successive updates with all gradient steps skipped that ends the run."""


class DivergedError(RuntimeError):
    """Losses or gradients were not finite in too many successive updates."""


class Divergence:
    """Counts successive updates in which every gradient step was skipped because its gradient was
    not finite. Observations and rewards are finite at this point (`sampleforge.env.not_finite`)."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def check(self, metrics: Mapping[str, float], *, all_skipped: bool) -> None:
        """Count an update; ``all_skipped``: every gradient step was skipped. Raises DivergedError
        after too many such updates in succession."""
        self._in_a_row = self._in_a_row + 1 if all_skipped else 0
        if self._in_a_row == MAX_SKIPPED_UPDATES:
            raise DivergedError(
                f"no gradient was finite in {MAX_SKIPPED_UPDATES} updates in a row, although "
                f"observations and rewards were (loss {metrics['loss']:g}, gradient norm "
                f"{metrics['grad_norm']:g}); the training has diverged, or rewards or observations "
                f"are far too large: lower --learning-rate (now {metrics['learning_rate']:g}) or "
                "--max-grad-norm, scale rewards with --reward-scale or --reward-clip, or use "
                "--model.normalise-observations"
            )
