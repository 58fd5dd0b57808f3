"""The warning that most experience is too old to learn from."""

from __future__ import annotations

from collections.abc import Mapping

from sampleforge.topologies.policy_lag import stale_warning


class StaleWarning:
    """Warns once, at the first report with more than half of the rows stale. ``limit``: the run's
    --max-policy-lag."""

    def __init__(self, limit: int, *, synchronous: bool) -> None:
        self._limit = limit
        self._synchronous = synchronous
        self._said = False

    def of(self, scalars: Mapping[str, float]) -> str | None:
        """The warning, if this report is the first that deserves it."""
        if self._said or "policy_lag_mean" not in scalars:
            return None
        text = stale_warning(
            scalars["stale_fraction"],
            self._limit,
            scalars["policy_lag_mean"],
            scalars["policy_lag_batches_mean"],
            synchronous=self._synchronous,
        )
        self._said = text is not None
        return text
