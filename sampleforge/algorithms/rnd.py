"""Random network distillation (Burda et al. 2018, arXiv 1810.12894): a reward for observations that
are new, as a part of a learner of rollouts.

A network with random weights, which never change, is the target; a second one learns to predict its
outputs from the observations of the experience. Its error is small where it has learned and large
elsewhere, so the error at the observation that a step reached is the novelty of that step; it is 0
where the episode had the same observation before (NovelD, Zhang et al. 2021, has the same limit: a
policy that is paid again and again for one place stays there). In units of the standard deviation
of its discounted sums, and times ``rnd_coeff``, it is added to the reward. The deviation is that of
all experience so far, and the errors fall, so the bonus fades.

One value function learns the sum of both rewards, and the bonus ends with an episode as the reward
does. (The paper has a second value function, whose bonus goes on after an episode.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sampleforge.algorithms.averaging import Averaging
from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.experience import Experience, Minibatches
from sampleforge.algorithms.flat_parameters import Optimiser
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.losses import gathered, valid_rows
from sampleforge.algorithms.return_scale import spread
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import make_encoder
from sampleforge.models.encoders import Dense, activation, orthogonal_
from sampleforge.models.normaliser import make_normaliser, normalised_leaves
from sampleforge.ops.returns import linear_recurrence
from sampleforge.ops.running_stats import Gather, Moments, merge, over_ranks, scalar_moments
from sampleforge.ops.visits import first_visits
from sampleforge.spec import ArraySpec

FEATURES = 128
"""Number of outputs of the two networks."""
CLIP = 5.0
"""Normalised observations are clipped to +- this, as in the paper."""
DISCOUNT = 0.99
"""Discount of the sums of novelty whose deviation is its unit, as in the paper."""
MINIBATCH = 256
"""Env steps of a gradient step of the predictor, over all ranks."""
ADAM: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}
PIECE = 512
"""Observations whose novelty is computed at once."""


class Novelty(nn.Module):
    """The target, the predictor, the statistics that normalise what they see, and those of the
    novelty.

    Both networks have the encoder that ``config`` gives a policy, each with weights of its own,
    without a recurrent core; the predictor has one hidden layer more.
    """

    moments: Tensor
    """float64 [3]: number of steps, mean and variance of their discounted sums of novelty."""

    def __init__(self, config: ModelConfig, observations: Mapping[str, ArraySpec]) -> None:
        super().__init__()
        config = dataclasses.replace(
            config,
            normalise_observations=True,
            normalise_images=config.has_pixels(observations),
        )
        self.normaliser = make_normaliser(observations, config)
        floats = normalised_leaves(observations, config)
        self._clipped = tuple(floats)
        encoders: list[Any] = [make_encoder(config, observations, floats) for _ in range(2)]
        width = encoders[0].out_features
        hidden = Dense(width, (FEATURES,), activation("relu", "relu"))
        self.target = nn.Sequential(encoders[0], orthogonal_(nn.Linear(width, FEATURES)))
        self.target.requires_grad_(False)
        last = orthogonal_(nn.Linear(FEATURES, FEATURES))
        self.predictor = nn.Sequential(encoders[1], hidden, last)
        self.register_buffer("moments", torch.zeros(3, dtype=torch.float64))

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the novelty [N] of the leaves [N, ...]: the mean over the outputs of the squared
        difference of prediction and target."""
        if self.normaliser is not None:
            leaves = self.normaliser(obs)
            obs = leaves | {name: leaves[name].clamp(-CLIP, CLIP) for name in self._clipped}
        with torch.no_grad():
            target = self.target(obs)
        error: Tensor = (self.predictor(obs) - target).square().mean(1)
        return error

    @torch.no_grad()
    def unit(self, novelty: Tensor, counts: Tensor, gather: Gather) -> Tensor:
        """Count the ``novelty`` [T, B] of a batch, of all ranks, with the weights ``counts``
        [T, B]; return its unit [], the standard deviation of the discounted sums so far (1 as long
        as all were 0). Steps after the rollout, and those that do not count, are taken for as novel
        as the mean of the batch."""
        mean = over_ranks(scalar_moments(novelty, counts), gather).mean.to(novelty.dtype)
        more = torch.where(counts > 0, novelty - mean, 0.0)
        sums = linear_recurrence(more, torch.full_like(more, DISCOUNT)) + mean / (1.0 - DISCOUNT)
        new = over_ranks(scalar_moments(sums, counts), gather)
        steps, old_mean, old_var = self.moments.unbind()
        total = merge(Moments(old_mean, old_var, steps), new)
        updated = torch.stack((total.count, total.mean, total.var))
        self.moments.copy_(torch.where(torch.isfinite(updated).all(), updated, self.moments))
        unit = spread(self.moments[1], self.moments[2])
        return torch.where(unit > 0, unit, 1.0)


def new_novelty(config: Any, place: LearnerPlace) -> Novelty | None:
    """Return the networks of a run with random weights, from torch's global generator; None without
    ``rnd_coeff``."""
    if not config.rnd_coeff:
        return None
    assert place.spec is not None
    return Novelty(config.model, place.spec.observations)


class NoveltyBonus:
    """Adds the bonus to experience and trains the predictor: the part of one learner of a policy.

    ``averaging`` and ``gather`` connect it with the others: gradients are averaged, and statistics
    are those of the experience of all.
    """

    def __init__(
        self,
        novelty: Novelty,
        optimiser: Optimiser,
        config: LearnerConfig,
        averaging: Averaging,
        gather: Gather,
    ) -> None:
        self._novelty, self._optimiser = novelty, optimiser
        self._coeff, self._learning_rate = config.rnd_coeff, config.rnd_learning_rate
        self._averaging, self._gather = averaging, gather

    def add(
        self, experience: Experience, minibatches: Minibatches
    ) -> tuple[Experience, dict[str, Tensor]]:
        """Return the experience, with its T+1 observations, whose rewards include the bonus, and
        metrics []. Then learn from it in one pass, ``minibatches`` of single steps.

        A step is rewarded for the observation that it led to; at the end of an episode that is the
        episode's last one. Where the environment resets itself in the same step, that one is not
        recorded, and there is no bonus. Only steps that count in the loss are learned from and are
        part of the statistics. A step to an observation that the episode had before, as far as the
        rollout shows it, has no bonus. Does not wait for the device.
        """
        seen, known = experience, experience.step_mask
        if experience.final_value is not None:
            known = known & ~(experience.terminated | experience.truncated)
            seen = dataclasses.replace(experience, mask=experience.mask & known)
        reached = {name: leaf[1:].flatten(0, 1) for name, leaf in experience.obs.items()}
        if self._novelty.normaliser is not None:
            self._novelty.normaliser.update(reached, seen.mask.flatten(), self._gather)
        is_new = known & first_visits(experience.obs, experience.is_first)[1:]
        novelty = torch.where(is_new, self._novelty_of(reached).view(known.shape), 0.0)
        bonus = self._coeff * novelty / self._novelty.unit(novelty, seen.counts, self._gather)
        mean = over_ranks(scalar_moments(bonus, experience.counts), self._gather).mean
        loss = self._learn(reached, seen, minibatches)
        rewarded = dataclasses.replace(experience, reward=experience.reward + bonus)
        return rewarded, {"rnd_reward": mean, "rnd_loss": loss}

    @torch.no_grad()
    def _novelty_of(self, obs: Mapping[str, Tensor]) -> Tensor:
        pieces = {name: torch.split(leaf, PIECE) for name, leaf in obs.items()}
        of_each = zip(*pieces.values(), strict=True)
        return torch.cat([self._novelty(dict(zip(pieces, each, strict=True))) for each in of_each])

    def _learn(
        self, obs: Mapping[str, Tensor], seen: Experience, minibatches: Minibatches
    ) -> Tensor:
        """Take a gradient step for each minibatch of the steps ``seen``; return the mean loss []
        over all ranks. Minibatches without a step that counts, and gradients that are not finite,
        are skipped."""
        counts, flat = minibatches.counts(seen), self._optimiser.flat
        rows = valid_rows(counts, self._gather)
        weights = (counts / torch.where(rows > 0, rows, 1.0).unsqueeze(1)).float()
        burdens = torch.where(rows > 0, 0.0, torch.inf).float().unbind()
        losses = []
        for index, weight, burden in zip(
            minibatches.index, minibatches.parts(weights), burdens, strict=True
        ):
            assert index is not None, "minibatches of single steps"
            error = self._novelty({name: leaf.index_select(0, index) for name, leaf in obs.items()})
            loss = (error * weight).sum()
            self._averaging.clear(flat)
            loss.backward()
            self._averaging.finish(flat)
            skip = (flat.clip_gradient(0.0) + burden).mul_(0.0).nan_to_num_(nan=1.0)
            self._optimiser.step(self._learning_rate, skip)
            losses.append(loss.detach())
        means = gathered(torch.stack(losses).double(), self._gather).sum(0)
        return (means * rows).sum() / torch.where(rows.sum() > 0, rows.sum(), 1.0)
