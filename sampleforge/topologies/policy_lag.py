"""The expected policy lag of a run, and its limit.

The lag of a row is the number of gradient steps (policy versions) between its action and the batch
that it is in. If an asynchronous learner is slower than the actors, all slots wait for it, and the
lag in updates is the number of batches that these slots make. One update is epochs x minibatches
versions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.config import ConfigError
from sampleforge.topologies.config import SlotsRunConfig

LEAST_LIMIT = 100
"""Least value of an automatic limit, in versions; Sample Factory's default."""
MARGIN = 2
"""Factor of an automatic limit over the expected lag, because slow actors hand over rows that are
older than expected."""
MOSTLY_STALE = 0.5
"""Fraction of stale rows above which the user is warned."""


@dataclass(frozen=True)
class PolicyLag:
    """The expected policy lag and its limit.

    ``batches``: the expected lag in updates of a batch, each of which takes ``steps_per_batch``
    gradient steps. ``limit``: rows that are older, in versions, are not learned from.
    ``limit_chosen``: the limit was chosen automatically."""

    batches: float
    steps_per_batch: int
    limit: int
    limit_chosen: bool

    @property
    def versions(self) -> int:
        """The expected lag in policy versions."""
        return math.ceil(self.batches * self.steps_per_batch)

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user about the limit."""
        if not self.limit_chosen or self.limit == LEAST_LIMIT:
            return ()
        return (
            f"--max-policy-lag {self.limit}, raised from {LEAST_LIMIT}: the expected lag is "
            f"{self.versions} versions "
            f"({self.batches:.3g} batches x {self.steps_per_batch} gradient steps)",
        )


def policy_lag(config: LearnerConfig, batch_size: int, batches: float) -> PolicyLag:
    """Return the policy lag of a run whose rows are expected to be ``batches`` updates old."""
    steps = (config.num_epochs or 1) * minibatches(config, batch_size)
    limit = config.max_policy_lag
    if limit is None:
        adapted = max(LEAST_LIMIT, MARGIN * math.ceil(batches * steps))
        return PolicyLag(batches, steps, adapted, limit_chosen=True)
    return PolicyLag(batches, steps, limit, limit_chosen=False)


def minibatches(config: LearnerConfig, batch_size: int) -> int:
    """Return the number of gradient steps per epoch."""
    return max(1, batch_size // (config.minibatch_size or batch_size))


def check_asynchronous_lag(config: SlotsRunConfig, lag: PolicyLag) -> None:
    """Raise ConfigError if most rows would be too old to learn from."""
    if lag.versions <= lag.limit or config.sampler_only:
        return
    raise ConfigError(
        f"--max-policy-lag {lag.limit}: the expected lag is {lag.versions} policy versions "
        f"({lag.batches:.3g} batches in circulation x {lag.steps_per_batch} gradient steps per "
        f"batch, with --num-epochs {config.num_epochs}), and older experience is not learned from; "
        f"use --max-policy-lag {MARGIN * lag.versions} or leave it out, train synchronously "
        "(--no-async-rl), or lower --num-epochs or --num-batches-to-accumulate"
    )


def stale_warning(
    fraction: float, limit: int, lag: float, lag_batches: float, *, synchronous: bool
) -> str | None:
    """Return the warning about a ``fraction`` of stale rows, given the mean lag in versions
    (``lag``) and in updates of a batch; None if it is not needed."""
    if fraction <= MOSTLY_STALE:
        return None
    remedy = "raise --max-policy-lag or lower --num-epochs"
    if not synchronous:
        remedy = "raise --max-policy-lag, lower --num-epochs, or use --no-async-rl"
    return (
        f"{fraction:.0%} of the experience is older than --max-policy-lag {limit} and is not "
        f"learned from (mean lag {lag:.1f} versions, {lag_batches:.1f} updates of a batch); "
        f"{remedy}"
    )
