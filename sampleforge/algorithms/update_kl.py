"""The KL divergence between the policies before and after the update of a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sampleforge.algorithms.experience import WHOLE, Experience, Share, part_of_minibatch
from sampleforge.models.actor_critic import ActorCritic, ModelOutput
from sampleforge.ops.masked import masked_mean
from sampleforge.ops.running_stats import Gather
from sampleforge.shared.staging import page_locked

KL_STEPS = 512
"""Size of the sample that is taken of a larger batch, in env steps. The KL is exact at each."""


def kl_of_update(
    model: ActorCritic,
    experience: Experience,
    generator: torch.Generator,
    share: Share = WHOLE,
) -> Callable[[Gather], torch.Tensor]:
    """Record the policy of ``model`` before an update, and return the function that measures
    KL(policy before the update, policy now) after it, given the gather over all ranks: the mean
    over a sample of the batch's valid steps, each of which stands for the rows of its rank; NaN if
    no step is valid. It takes two forward passes without gradient and does not wait for the device.

    `approx_kl` is another quantity, the KL to the behaviour policy. It is measured before each
    gradient step: with one step per batch it does not see the update at all, and in asynchronous
    runs it is mostly the policy lag.

    ``generator``, on the host, chooses the sample of the whole batch, of which the experience is
    this learner's ``share``. Ranks compare their generators, so each call draws the same amount,
    whatever the size of the batch."""
    draws = torch.rand(KL_STEPS, generator=generator)
    sample, stands_for = _sample(experience, model.state_size > 0, draws, share)
    before = _parameters(model, sample)

    def measure(gather: Gather) -> torch.Tensor:
        rollout = sample.reward.shape[0]
        obs = {name: leaf[:rollout] for name, leaf in sample.obs.items()}
        after = model.distribution(_parameters(model, sample), obs)
        moved = model.distribution(before, obs).kl(after)
        total = sample.counts.sum().double() * stands_for
        own = torch.stack((masked_mean(moved, sample.counts) * total, total))
        sums, totals = gather(own).sum(0)
        kl: torch.Tensor = sums / totals
        return kl.clamp(min=0.0)  # rounding can make a KL near 0 negative

    return measure


def _sample(
    experience: Experience, whole_rows: bool, draws: torch.Tensor, share: Share
) -> tuple[Experience, float]:
    """Return all steps, or `KL_STEPS` random steps, or random rows with about so many steps, and
    the number of steps that each of them stands for."""
    rollout, rows = experience.reward.shape
    count, enough = rollout * rows * share.learners, KL_STEPS
    if whole_rows:
        count, enough = rows * share.learners, max(1, KL_STEPS // rollout)
    if count <= enough:
        return experience, 1.0
    device, stands_for = experience.reward.device, count / enough
    index = (draws[:enough].double() * count).long()
    if share.learners > 1:
        own = share.own(index, rows).to(device)
        return part_of_minibatch(experience, own, whole_rows=whole_rows), stands_for
    index = page_locked(index, device).to(device, non_blocking=True)  # which is not waited for
    sample = experience.rows(index) if whole_rows else experience.steps(index)
    return sample, stands_for


@torch.no_grad()
def _parameters(model: ActorCritic, sample: Experience) -> torch.Tensor:
    """Return the parameters of the action distribution, [T, B, P], as a copy, because compiled
    passes reuse their memory."""
    output: ModelOutput = model(sample.obs, sample.state, sample.is_first)
    return output.parameters[: sample.reward.shape[0]].clone()
