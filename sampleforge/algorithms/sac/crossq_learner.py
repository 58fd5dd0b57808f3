"""The learner of CrossQ (Bhatt et al. 2024, arXiv 1902.05605), as an object without a process: a
sample in, metrics and errors out."""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.algorithms.critics_learner import HYPERPARAMETERS, Drawing
from sampleforge.algorithms.flat_parameters import Adam, FlatParameters, Optimiser
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.sac.config import SoftConfig
from sampleforge.algorithms.sac.crossq_passes import CrossqPasses
from sampleforge.algorithms.sac.learner import SacLearner, draw, soft_targets
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.batch_renorm import BatchRenorm
from sampleforge.models.critics import Critics

CROSSQ_HYPERPARAMETERS = (*HYPERPARAMETERS, "target_entropy")


class CrossqLearner(SacLearner):
    """`SacLearner` without target networks.

    Its critics, with batch renormalisation, see both ends of the transitions in one batch, so that
    both are normalised alike. The policy is an ordinary network: with batch renormalisation, too,
    it learned the same (benchmarks/results/crossq.md)."""

    def __init__(
        self, model: ActorCritic, critics: Critics, config: SoftConfig, place: LearnerPlace
    ) -> None:
        self._norms = critics.renorms
        self._renorm_by_batch(False)
        super().__init__(model, critics, config, place, CROSSQ_HYPERPARAMETERS)
        self._part = torch.ones(())

    def _adam(self, flat: FlatParameters) -> Optimiser:
        # Of the temperature, too, for which the authors have 0.9 in place of 0.5.
        return Adam(flat, (0.5, 0.999), self._config.adam_eps)

    def _new_passes(self) -> CrossqPasses:
        return CrossqPasses(self.model, self.critics, self.target)

    def _values(self, drawing: Drawing, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        batch = drawing.batch
        with torch.no_grad():
            drawn = draw(self._parameters(self.model, batch.next_obs), drawing.noise[0])
        later = self.critics.features(self._normalised(batch.next_obs))
        both = torch.cat((features, later)), torch.cat((actions, drawn.actions))
        self._renorm_by_batch(True)
        values, of_later = self.critics(*both).float().chunk(2, 1)
        self._renorm_by_batch(False)
        self._part = drawing.share
        targets = soft_targets(
            batch.returns, batch.discount, of_later.detach(), drawn.log_prob, self.temperature()
        )
        return values, targets.detach()

    def _renorm_by_batch(self, training: bool) -> None:
        """Normalise by the statistics of the batch, or by the running ones. Only here: an encoder
        of the user's own stays as it is."""
        for norm in self._norms:
            norm.train(training)

    def _follow(self, acts: bool) -> None:
        for norm in self._norms:
            if not self.averaging.solo:
                self._gather_statistics(norm)
            norm.follow()

    def _gather_statistics(self, norm: BatchRenorm) -> None:
        """Make the statistics of the last batch those of the parts of all learners, each of which
        is normalised by its own part."""
        own = norm.batch_mean.flatten(), norm.batch_var.flatten(), self._part.view(1)
        gathered = self._gather(torch.cat([each.double() for each in own]))
        size = norm.batch_mean.numel()
        means, variances, parts = gathered.to(self._device).tensor_split((size, 2 * size), 1)
        mean = (parts * means).sum(0)
        var = (parts * (variances + (means - mean).square())).sum(0)
        norm.batch_mean.copy_(mean.view_as(norm.batch_mean))
        norm.batch_var.copy_(var.view_as(norm.batch_var))
