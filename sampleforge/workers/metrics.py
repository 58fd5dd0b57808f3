"""The metrics of a report, aggregated over updates, and the check for divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.shared.events import send

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
SKIPPED = "gradient steps of an update were skipped"
"""In the warning of the first steps that were skipped, which names the cause."""
FAR_TOO_LARGE = 1e9
"""Rewards and observations beyond this are named as the cause of gradients that are not finite."""


class DivergedError(RuntimeError):
    """Losses or gradients were not finite in too many successive updates."""


class Divergence:
    """Counts the gradient steps that were skipped because their gradient was not finite, in
    ``skipped_updates`` of the worker's counters, and warns of the first. Observations and rewards
    are finite at this point (`sampleforge.env.guard`).

    ``counts``: whether this worker counts for all learners of its policy and warns."""

    def __init__(self, count: Mapping[str, npt.NDArray[np.float64]], *, counts: bool) -> None:
        self._count = count
        self._counts = counts
        self._in_a_row = 0
        self._warned = False

    def check(self, metrics: Mapping[str, float], steps: int, batch: Any) -> None:
        """Take an update of so many gradient ``steps`` from ``batch``, of which ``skipped_steps``
        in ``metrics`` were skipped. Raises DivergedError after too many updates in succession of
        which all were."""
        skipped = int(metrics.get("skipped_steps", 0))
        self._in_a_row = self._in_a_row + 1 if 0 < steps <= skipped else 0
        if not skipped:
            return
        if self._counts:
            self._count["skipped_updates"] += skipped
        norms = [value for name, value in metrics.items() if name.endswith("grad_norm")]
        norm = next((value for value in norms if not math.isfinite(value)), max(norms))
        seen = (
            f"(loss {metrics['loss']:g}, gradient norm {norm:g}); "
            f"{_cause(largest(batch), metrics['learning_rate'])}"
        )
        if self._counts and not self._warned:
            self._warned = True
            text = (
                f"{skipped} of {steps} {SKIPPED}, because the gradient was not finite {seen}. Such "
                "steps are counted as skipped_updates"
            )
            send("log", ("warning", text))
        if self._in_a_row == MAX_SKIPPED_UPDATES:
            raise DivergedError(
                f"no gradient was finite in {MAX_SKIPPED_UPDATES} updates in a row, although "
                f"observations and rewards were {seen}"
            )


def largest(batch: Any) -> dict[str, float]:
    """Return the largest absolute values of a batch of any learner, by kind: "rewards" (or
    discounted sums of them) and "observations"."""
    if isinstance(batch, ReplaySample):
        batch = batch.items
    rewards = next(
        (
            column
            for name in ("reward", "return_to_go", "returns")
            if (column := getattr(batch, name, None)) is not None
        ),
        torch.zeros(()),
    )
    observations = [leaf for leaf in batch.obs.values() if leaf.is_floating_point()]
    return {
        "rewards": float(rewards.abs().max()),
        "observations": max((float(leaf.abs().max()) for leaf in observations), default=0.0),
    }


def _cause(sizes: Mapping[str, float], learning_rate: float) -> str:
    """Return why gradients are probably not finite, and the remedy."""
    remedies = {
        "rewards": "scale them with --reward-scale or --reward-clip",
        "observations": "scale them, or use --model.normalise-observations",
    }
    for kind, remedy in remedies.items():
        if sizes[kind] > FAR_TOO_LARGE:
            return (
                f"the environment's {kind} are far too large (up to {sizes[kind]:.3g}): correct "
                f"it, or {remedy}"
            )
    return (
        f"the training has diverged: lower --learning-rate (now {learning_rate:g}) or "
        "--max-grad-norm"
    )
