"""The running scale of returns (PPO) or rewards (DQN), the unit in which values are learned."""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.algorithms.experience import Experience
from sampleforge.ops.running_stats import Gather, Moments, alone, merge, over_ranks, row_moments

HORIZON = 100
"""Number of batches that the statistics cover. Older batches fade, so that the scale follows
growing returns; before so many batches have come, all count alike."""
REWARD_HORIZON = 100
"""The same for `RewardScale`, in batches that it counts."""
LEAST_SPREAD = 0.1
"""The scale is at least this fraction of the returns' root mean square, because returns that are
all alike have no deviation."""


def spread(mean: Tensor, var: Tensor) -> Tensor:
    """Return the standard deviation of returns with these moments, or `LEAST_SPREAD` of their root
    mean square if that is more."""
    return torch.maximum(var, LEAST_SPREAD**2 * (var + mean.square())).sqrt()


class ReturnScale:
    """Standard deviation of the discounted returns of the experience so far.

    A step's return is the discounted sum of the rewards that follow it in its rollout, plus the
    discounted value that was predicted at sampling for the rollout's end. Only batches with a
    nonzero reward count: other batches would contribute predictions alone, and a long time without
    rewards must neither shrink the scale nor make the next rewards look huge.
    `ActorCritic.value_scale` is 0 until the first such batch, so predictions are 0 as well, and the
    scale is proportional to the rewards, however small or large they are.
    """

    def __init__(self, gamma: float, device: torch.device) -> None:
        self.gamma = gamma
        self._moments = torch.zeros(3, dtype=torch.float64, device=device)  # steps, mean, variance

    @torch.no_grad()
    def update(
        self,
        experience: Experience,
        gather: Gather = alone,
        last_value: Tensor | None = None,
    ) -> Tensor:
        """Count a batch, including the other ranks' parts of it; return the new scale, float64 [],
        0 as long as all rewards were 0. Does not wait for the device. ``last_value``: see
        `sampled_returns`.

        Steps have the weights that they have in the loss. A batch with returns that are not finite
        is left out.
        """
        returns = sampled_returns(experience, self.gamma, last_value)
        both = torch.stack((returns, experience.reward != 0)).flatten(1)
        new = over_ranks(row_moments(both, experience.counts.flatten().expand(2, -1)), gather)
        mean, rewarded = new.mean.unbind()
        var, count = new.var[0], new.count[0]
        steps, old_mean, old_var = self._moments.unbind()
        old = Moments(old_mean, old_var, torch.minimum(steps, (HORIZON - 1) * count))
        total = merge(old, Moments(mean, var, count))
        counted = (rewarded > 0) & torch.isfinite(mean + var)
        updated = torch.stack((total.count, total.mean, total.var))
        self._moments.copy_(torch.where(counted, updated, self._moments))
        return self.scale

    @property
    def scale(self) -> Tensor:
        """The scale, float64 []; 0 as long as all rewards were 0."""
        _, mean, var = self._moments.unbind()
        return spread(mean, var)

    def state(self) -> Tensor:
        """Return the state for `load`, float64 [3]."""
        return self._moments

    def load(self, state: Tensor) -> None:
        """Restore a `state`."""
        self._moments.copy_(state)


@torch.no_grad()
def common_error(
    experience: Experience,
    last_value: Tensor,
    gamma: float,
    scale: Tensor,
    gather: Gather = alone,
) -> Tensor:
    """Return by how much all values are too low, float32 []: the constant that, added to all of
    them, makes the mean temporal difference of the batch, over all learners' parts, nearly 0.

    That is sum(r + gamma v' - v) / sum(1 - gamma [not terminated]), the least-squares temporal
    difference (Bradtke and Barto 1996) with one feature that is 1 everywhere. Where episodes are
    long, the quotient is of little certainty, so it is multiplied by scale^2 / (scale^2 + its
    squared standard error), as if the error were drawn from a normal distribution with the
    deviation of the returns, ``scale`` [] above 0. ``last_value`` [B]: of the last observation.
    Does not wait for the device."""
    values = torch.cat((experience.value, last_value.unsqueeze(0)))
    kept = gamma * (~experience.terminated).double()
    delta = experience.reward + kept * experience.next_values(values) - experience.value
    counts = experience.counts.flatten()
    both = torch.stack((delta, 1.0 - kept)).flatten(1) * counts
    both = torch.where(counts > 0, both, 0.0)
    sums = gather(torch.cat((both.sum(1), (both @ both.T).flatten()))).sum(0)
    total, weight, squares, products, _, weights = sums.unbind()
    error = total / weight
    residual = squares - 2 * error * products + error.square() * weights
    error = error * scale.square() / (scale.square() + residual / weight.square())
    return torch.where(torch.isfinite(error), error, 0.0).float()


class RewardScale:
    """Root mean square of the nonzero rewards that were learned from.

    The frequency of rewards does not matter, and rewards of +-1 have the scale 1 exactly. Returns
    are at most about scale / (1 - gamma), if a reward comes at every step.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # rewards, squares

    @torch.no_grad()
    def update(self, reward: Tensor, gather: Gather = alone) -> Tensor:
        """Count a batch's rewards [...], those of all learners' parts; return the new scale,
        float64 [], 0 as long as all rewards were 0. Does not wait for the device. A batch with a
        reward that is not finite is left out."""
        new = gather(_count_and_squares(reward)).sum(0)
        fading = ((REWARD_HORIZON - 1) * new[0] / self._sums[0]).clamp(max=1.0)  # inf at first
        counted = (new[0] > 0) & torch.isfinite(new[1])
        updated = torch.where(self._sums[0] > 0, self._sums * fading, 0.0) + new
        self._sums.copy_(torch.where(counted, updated, self._sums))
        return self.scale

    @property
    def scale(self) -> Tensor:
        """The scale, float64 []; 0 as long as all rewards were 0."""
        count, squares = self._sums.unbind()
        return torch.where(count > 0, squares / count, 0.0).sqrt()

    def state(self) -> Tensor:
        """Return the state for `load`, float64 [2]."""
        return self._sums

    def load(self, state: Tensor) -> None:
        """Restore a `state`."""
        self._sums.copy_(state)

    def begin_at(self, scale: Tensor) -> None:
        """Begin with ``scale``, the unit that values are in already, as if hardly any reward had
        been counted."""
        self._sums.copy_(1e-9 * torch.stack((torch.ones_like(scale), scale.square())))


def typical_size(x: Tensor, gather: Gather = alone) -> Tensor:
    """Return the root mean square of the nonzero elements of all learners' parts, float64 []; 1 if
    there are none."""
    count, squares = gather(_count_and_squares(x)).sum(0)
    return torch.where(count > 0, squares / count, 1.0).sqrt()


def _count_and_squares(x: Tensor) -> Tensor:
    """Return the number of nonzero elements and the sum of squares, float64 [2]."""
    x = x.double()
    return torch.stack(((x != 0).sum(), x.square().sum()))


def sampled_returns(
    experience: Experience, gamma: float, last_value: Tensor | None = None
) -> Tensor:
    """Return the discounted returns [T, B]: the rewards up to the end of each rollout, and from
    there the value predicted at sampling. ``last_value`` [B]: that of the last observation. If it
    was not recorded (None), the value of the observation before is used in its place."""
    last = experience.value[-1] if last_value is None else last_value
    return experience.advantages_at_sampling(last, gamma, 1.0) + experience.value
