"""Noticing that a training has diverged: no update moves the weights any more."""

from __future__ import annotations

from collections.abc import Mapping

MAX_SKIPPED_UPDATES = 10
"""Updates in a row whose gradient steps were all skipped, before the run ends."""


class DivergedError(RuntimeError):
    """Losses or gradients were not finite too often in a row."""


class Divergence:
    """Counts updates in a row of which every gradient step was skipped, because its gradient was
    not finite. Observations and rewards are finite at that point (`sampleforge.env.not_finite`)."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def look(self, metrics: Mapping[str, float], *, all_skipped: bool) -> None:
        """After an update, of which every gradient step was skipped or not. Raises DivergedError
        after too many that were."""
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
