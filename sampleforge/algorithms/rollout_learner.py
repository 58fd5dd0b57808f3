"""The learner of batches of rollouts, as an object without a process."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sampleforge.algorithms.captured import CapturedWork, Graphs, Outputs
from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.experience import (
    Experience,
    Minibatches,
    experience_of,
    minibatch_positions,
)
from sampleforge.algorithms.flat_parameters import Adam
from sampleforge.algorithms.learning import (
    GradientLearner,
    LearnerPlace,
    Tensors,
    Update,
    to_floats,
)
from sampleforge.algorithms.losses import MAXIMA, Loss
from sampleforge.algorithms.return_scale import ReturnScale, common_error
from sampleforge.algorithms.rnd import ADAM, MINIBATCH, NoveltyBonus, new_novelty
from sampleforge.algorithms.update_kl import kl_of_update
from sampleforge.models.forward import autocast
from sampleforge.models.passes_by_hand import ActorCriticPasses, passes_of
from sampleforge.ops.schedules import kl_adaptive
from sampleforge.rollouts.batch import Batch
from sampleforge.shared.staging import page_locked

LEARNER_HYPERPARAMETERS = (
    "learning_rate",
    "lr_target_kl",
    "gamma",
    "max_grad_norm",
    "reward_scale",
)


@dataclass(frozen=True)
class DrawnSteps:
    """The steps of an update that is taken as one graph: the ``experience``, and for each epoch the
    ``order`` (int64 [epochs, n]) of its columns or of its single steps; n = 0: each minibatch is
    the whole experience. ``rate`` (float32 []) is the learning rate."""

    experience: Experience
    order: torch.Tensor
    rate: torch.Tensor


class RolloutLearner(GradientLearner[Any, LearnerConfig]):
    """Model, optimiser, schedules and running statistics of one policy.

    See `GradientLearner`. A minibatch without a valid row on any rank makes no step and no version.
    All learners of a policy begin with the same `state` and have the same `state` after each
    update. The place's ``batch_size``, of a batch whose size varies, determines the number of
    gradient steps.

    ``env_steps`` counts the valid env steps of all batches.
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        config: LearnerConfig,
        place: LearnerPlace,
    ) -> None:
        novelty = new_novelty(config, place)
        others = None if novelty is None else {"rnd": novelty}
        super().__init__(model, config, LEARNER_HYPERPARAMETERS, place, others)
        assert config.num_epochs is not None
        self._loss = loss
        self._batch_size = place.batch_size
        self._share = place.share
        self._optimiser = self._add_optimiser(
            "optimiser", model, lambda flat: Adam(flat, config.adam_betas, config.adam_eps)
        )
        self._bonus: NoveltyBonus | None = None
        if novelty is not None:
            of_novelty = self._add_optimiser("rnd_optimiser", novelty, lambda x: Adam(x, **ADAM))
            exchange = self.averaging, self._gather
            self._bonus = NoveltyBonus(novelty, of_novelty, config, *exchange)
        self._num_epochs = config.num_epochs
        self._adapts_rate = config.lr_schedule == "kl_adaptive"
        self._generator = torch.Generator().manual_seed(place.seed)  # minibatch order
        self._return_scale = ReturnScale(config.gamma, place.device)
        self._values_begun = False  # whether a batch with a reward was there
        self._graphed: CapturedWork | None = None
        self._loads = 0  # each puts the optimiser's state in another place

    def update(self, batch: Batch, progress: float) -> Update:
        """Learn from one batch [T+1, B]. This waits for the device once, at the end, before the
        weights are published (and once more for the number of steps, if the size of batches
        varies).

        ``progress`` (0 to 1) is the fraction of the training that is done; it drives the
        schedules. A gradient step whose gradient is not finite is skipped and counted in
        ``skipped_steps``; a minibatch without a valid row is counted in ``empty_minibatches``.
        Means are weighted by valid rows, and 0 if there is none. ``explained_variance`` is that of
        the values at sampling; it is left out where the value targets do not vary.
        """
        self._check_frozen()
        if self._annealings:
            progress = float(self.averaging.all_gather(torch.tensor([progress])).max())
        self._follow_schedules(progress)
        batch = batch.to(self._device)
        experience = experience_of(batch, self._config, self.version, self.averaging.all_gather)
        counts = self._count(batch, experience)
        if self._bonus is not None:
            of_rank = max(1, MINIBATCH * self._share.learners // self.averaging.ranks)
            single_steps = self._drawn(experience, of_rank, 1, whole_rows=False)
            experience, found = self._bonus.add(experience, single_steps)
            counts |= found
        if self._config.normalise_returns:
            experience = self._normalise_returns(experience, batch.last_value)
            counts["return_scale"] = self._return_scale.scale
        counts["value_scale"] = self.model.value_scale
        self.model.train()
        measure = None
        with autocast(self._device, self._precision):
            if self._adapts_rate:
                measure = kl_of_update(self.model, experience, self._generator, self._share)
            experience = self._loss.prepare(self.model, experience)
        count, metrics_of_steps = self._learn(experience)
        if measure is not None:
            with autocast(self._device, self._precision):
                metrics_of_steps["update_kl"] = measure(self.averaging.all_gather)
        metrics = to_floats({**metrics_of_steps, **counts})
        self._values_begun = metrics.pop("return_scale", 0.0) > 0
        steps = count - int(metrics["empty_minibatches"])
        self.version -= count - steps
        for name in ("policy_lag_mean", "policy_lag_max"):
            in_batches = name.replace("lag", "lag_batches")
            metrics[in_batches] = metrics[name] / count
        self.env_steps += int(metrics["valid_steps"])
        self._update_statistics(batch, metrics)
        # Before the first reward nothing is learned, so the KL cannot guide the learning rate.
        if self._adapts_rate and metrics["value_scale"] > 0 and steps > metrics["skipped_steps"]:
            self._learning_rate = kl_adaptive(
                self._learning_rate, metrics["update_kl"], self._config.lr_target_kl
            )
        metrics |= {"learning_rate": self._learning_rate, **self._scheduled}
        trained = int(metrics.pop("own_trained_steps"))
        return Update(metrics, trained)

    def _normalise_returns(self, experience: Experience, last_value: Tensor | None) -> Experience:
        """Measure returns by their scale. In the first batch with a reward all values, which were 0
        until then, are raised to what makes their mean temporal difference 0; return the experience
        with them. Gradient steps alone reach a value near 1 / (1 - gamma) rewards slowly, and until
        then what an action changes is small beside the error. Values that are too high stay: states
        that are seldom reached then promise more than those that were learned from, which is how
        MountainCar-v0 is solved (optimistic initial values; Sutton and Barto 2018, section 2.6). A
        frozen critic stays as it is. ``last_value`` [B]: of the last observation; if it was not
        recorded, that of the one before is used in its place."""
        scale = self._return_scale.update(experience, self._gather, last_value)
        self.model.rescale_values(scale)
        begun = self._values_begun or "critic" in self.model.frozen
        if begun or not self._loss.has_policy_values:
            return experience
        last_value = experience.value[-1] if last_value is None else last_value
        error = common_error(experience, last_value, self._config.gamma, scale, self._gather)
        by = error.clamp(min=0.0)
        self.model.raise_values(by)
        return experience.with_values_raised(by)

    def _count(self, batch: Batch, experience: Experience) -> dict[str, torch.Tensor]:
        """Return the numbers of valid and stale env steps and their policy lag, over all ranks;
        ``own_trained_steps`` alone counts only the steps that this rank learns from."""
        valid, lag = batch.valid, self.version - batch.version.double()
        used = experience.mask.sum().double()
        own = (
            valid.sum().double(),
            used,
            torch.where(valid, lag, 0.0).sum(),
            torch.where(valid, lag, -torch.inf).max(),
            torch.where(valid, lag, torch.inf).min(),
        )
        gathered = self.averaging.all_gather(torch.stack(own))
        seen, learned, lags, highest, lowest = gathered.unbind(1)
        some = seen.sum() > 0
        return {
            "own_trained_steps": used,
            "valid_steps": seen.sum(),
            "stale_steps": seen.sum() - learned.sum(),
            "policy_lag_min": torch.where(some, lowest.min(), 0.0),
            "policy_lag_mean": lags.sum() / seen.sum().clamp(min=1),
            "policy_lag_max": torch.where(some, highest.max(), 0.0),
        }

    def use_graphs(self, graphs: Graphs) -> None:
        """Launch the steps of each update as one of the device's ``graphs`` from now on. Only for a
        single learner without a recurrent core, whose batches all have one size."""
        assert self.averaging.solo and self._batch_size is None and self.model.state_size == 0

        def fixed() -> Hashable:
            rest = self.hyperparameters()
            del rest["learning_rate"]
            return self._loads, tuple(rest.items())

        def take(drawn: DrawnSteps) -> Outputs:
            return self._take_steps(drawn.experience, self._minibatches_of(drawn), drawn.rate)

        self._graphed = CapturedWork(take, graphs, fixed)

    def _learn(self, experience: Experience) -> tuple[int, Tensors]:
        """Take all gradient steps of an update; return their number and the metrics of all
        together. The version counts all of them; `update` subtracts the empty minibatches once
        their number is known."""
        if self._graphed is None:
            minibatches, rate = self._minibatches(experience), self._learning_rate
            count, metrics = len(minibatches), self._take_steps(experience, minibatches, rate)
        else:
            drawn = self._draw(experience)
            size = self._minibatch_length(experience)
            count = self._num_epochs * max(1, math.ceil(drawn.order.shape[1] / size))
            metrics = self._graphed(drawn)
        self.version += count
        return count, metrics

    def _draw(self, experience: Experience) -> DrawnSteps:
        """Return the steps of all minibatches, in the order in which `minibatch_positions` would
        draw them."""
        rollout, rows = experience.reward.shape
        device, count = experience.reward.device, rows if self._whole_rows else rollout * rows
        if self._whole_rows and self._minibatch_size(experience) >= rollout * rows:
            count = 0
        on_host = torch.empty((self._num_epochs, count), dtype=torch.int64)
        for order in on_host if count else ():
            order.copy_(torch.randperm(count, generator=self._generator))
        rate = torch.full((), self._learning_rate, device=device)
        positions = page_locked(on_host, device).to(device, non_blocking=True)
        return DrawnSteps(experience, positions, rate)

    def _minibatches_of(self, drawn: DrawnSteps) -> Minibatches:
        """Return the minibatches of steps that were drawn."""
        size, parts = self._minibatch_length(drawn.experience), list[torch.Tensor | None]()
        for order in drawn.order.unbind():
            parts += torch.split(order, size) if len(order) else [None]
        return Minibatches(parts, drawn.experience, whole_rows=self._whole_rows)

    def _minibatch_length(self, experience: Experience) -> int:
        """Return how many columns, or single steps, a minibatch has."""
        size = self._minibatch_size(experience)
        return size // experience.reward.shape[0] if self._whole_rows else size

    @property
    def _whole_rows(self) -> bool:
        """Whether minibatches hold rows with all of their steps."""
        return self._loss.looks_along_time or self.model.state_size > 0

    def _minibatch_size(self, experience: Experience) -> int:
        whole = experience.reward.numel() * self._share.learners
        return self._config.minibatch_size or self._batch_size or whole

    def _minibatches(self, experience: Experience) -> Minibatches:
        """Return the minibatches of all epochs."""
        size = self._minibatch_size(experience)
        return self._drawn(experience, size, self._num_epochs, whole_rows=self._whole_rows)

    def _drawn(
        self, experience: Experience, size: int, epochs: int, *, whole_rows: bool
    ) -> Minibatches:
        """Return random minibatches of ``size`` env steps, over all learners, of so many passes."""
        drawn = [
            positions
            for _ in range(epochs)
            for positions in minibatch_positions(
                experience,
                size,
                whole_rows=whole_rows,
                generator=self._generator,
                due=self._batch_size,
                share=self._share,
            )
        ]
        return Minibatches(drawn, experience, whole_rows=whole_rows)

    @cached_property
    def _passes(self) -> ActorCriticPasses | None:
        """The passes of the model by hand, if there are any; found at the first update, because
        passes may be compiled before it."""
        return passes_of(self.model) if self._precision == "fp32" else None

    def _take_steps(
        self, experience: Experience, minibatches: Minibatches, rate: float | torch.Tensor
    ) -> Tensors:
        """Take a gradient step with the learning rate ``rate`` for each minibatch, or none where
        there is no valid row, without waiting for the device; return the metrics of all steps
        together. Means are weighted by the minibatches' valid rows."""
        losses = self._loss.of_minibatches(
            self.model, experience, minibatches, self._passes, self._precision, self._gather
        )
        flat, empty = self._optimiser.flat, losses.rows == 0
        # Added to the norm of a gradient: a step without a valid row is skipped like one whose
        # gradient is not finite.
        burdens = torch.where(empty, torch.inf, 0.0).float().unbind()
        norms = []
        for number, burden in enumerate(burdens):
            self.averaging.clear(flat, losses.terms)
            losses.differentiate(number)
            self.averaging.finish(flat)
            norms.append(self._clip_gradient(self._optimiser))
            self._optimiser.step(rate, (norms[-1] + burden).mul_(0.0).nan_to_num_(nan=1.0))
        metrics, norm = losses.metrics(), torch.stack(norms)
        weight = losses.rows / torch.where(losses.rows.sum() > 0, losses.rows.sum(), 1.0)
        for name in MAXIMA:
            if name in metrics:
                metrics[f"{name}_first"] = metrics[name][0]
                metrics[name] = torch.where(empty, 0.0, metrics[name] * weight).sum()
        return {
            **metrics,
            "grad_norm": torch.where(empty, 0.0, norm * weight).sum(),
            "skipped_steps": (~torch.isfinite(norm) & ~empty).sum(),
            "empty_minibatches": empty.sum(),
        }

    @torch.no_grad()
    def _update_statistics(self, batch: Batch, metrics: dict[str, float]) -> None:
        """Update the running statistics of observations. They change only between batches, so that
        behaviour and learner agree within one. A batch whose loss is not finite is left out."""
        if not math.isfinite(metrics["loss"]):
            return
        if self.model.normaliser is not None:
            # obs[T] is obs[0] of the row's next rollout: each observation is counted once.
            rollout, _ = batch.steps
            leaves = {n: leaf[:rollout].flatten(0, 1) for n, leaf in batch.obs.items()}
            # Observations of invalid steps are left out: some are zeros (env.guard).
            valid = batch.valid.flatten()
            self.model.normaliser.update(leaves, valid, self._gather)

    def hyperparameters(self) -> dict[str, Any]:
        return super().hyperparameters() | self._loss.hyperparameters() | self._own_values

    def change(self, new: Mapping[str, Any], *, relative: bool = False) -> None:
        rate, initial = self._learning_rate, self._config.learning_rate
        super().change(new)
        if relative and self._adapts_rate and "learning_rate" in new:
            self._learning_rate = rate * new["learning_rate"] / initial
        self._tell_parts(new)

    def _set_scheduled(self, new: dict[str, float]) -> None:
        super()._set_scheduled(new)
        self._tell_parts(new)

    def _tell_parts(self, new: Mapping[str, Any]) -> None:
        """Give the loss and the scale of the returns their new values."""
        self._loss.change(new)
        self._return_scale.gamma = self._config.gamma

    def reseed(self, seed: int) -> None:
        """Seed the order of minibatches anew."""
        self._generator.manual_seed(seed)

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """Return the complete state of learning: tensors (clones on the CPU) and plain values."""
        tensors, plain = super().state()
        adapted = {"learning_rate": self._learning_rate} if self._adapts_rate else {}
        return tensors, plain | adapted

    def _other_tensors(self) -> Tensors:
        return {
            "rng/minibatches": self._generator.get_state(),
            "return_scale": self._return_scale.state(),
        }

    def load(self, tensors: Tensors, plain: dict[str, Any]) -> None:
        """Restore a `state`. Raises ValueError if it is of another model."""
        super().load(tensors, plain)
        self._loads += 1
        self._generator.set_state(tensors["rng/minibatches"])
        self._return_scale.load(tensors["return_scale"])
        self._values_begun = bool(self._return_scale.scale > 0)
        if not self._config.normalise_returns and not self.model.value_scale:
            self.model.rescale_values(1.0)  # returns were normalised, and every reward was 0
        if self._adapts_rate:
            self._learning_rate = plain.get("learning_rate", self._learning_rate)
