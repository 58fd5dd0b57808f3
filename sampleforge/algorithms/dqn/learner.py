"""The learner of a Q-network, as an object without a process: a batch in, metrics and errors
out."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algorithms.captured import CapturedWork, Graphs
from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.loss import (
    DqnOutput,
    distributional_loss,
    dqn_gradient,
    dqn_loss,
    r2d2_loss,
)
from sampleforge.algorithms.flat_parameters import Adam, FlatParameters, Optimiser, RmsProp
from sampleforge.algorithms.learning import GradientLearner, LearnerPlace, Tensors, Update
from sampleforge.algorithms.return_scale import RewardScale, typical_size
from sampleforge.models.forward import autocast
from sampleforge.models.passes_by_hand import q_passes_of
from sampleforge.models.q_heads import Noise, noise_size, noisy_layers, set_noise
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.returns import learned_rewards
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Sequences, Transitions
from sampleforge.shared.staging import wait_for_copies

SCALE_INTERVAL = 16
"""Learner steps between updates of the rewards' scale, once it is known."""


DQN_HYPERPARAMETERS = ("learning_rate", "max_grad_norm", "huber_delta")
"""The discount and the scale of rewards are not among them, because the n-step returns of stored
experience depend on them."""


@dataclass(frozen=True)
class WeightedBatch:
    """A batch, and the exponent of its importance weights, float64 []."""

    batch: Transitions | Sequences
    beta: torch.Tensor


class DqnLearner(GradientLearner[QNetwork, DqnConfig]):
    """Online network (``model``), target network and optimiser.

    See `GradientLearner`. ``version`` determines when the target network is updated. Noisy layers
    of both networks draw new noise for each forward pass, from a generator with the place's
    ``noise_seed``. If several learners learn one policy, each has a part of every batch.
    ``env_steps`` is set by the process around it.
    """

    copies: tuple[str, ...] = ("target",)

    def __init__(self, model: QNetwork, config: DqnConfig, place: LearnerPlace) -> None:
        self.target = copy.deepcopy(model).requires_grad_(False)
        super().__init__(model, config, DQN_HYPERPARAMETERS, place, {"target": self.target})
        self._noise_generator = torch.Generator(place.device).manual_seed(place.noise_seed)
        noise = Noise(self._noise_generator, per_row=False)
        set_noise(self.model, noise)
        set_noise(self.target, noise)
        assert config.target_update_interval is not None
        self._target_interval = config.target_update_interval
        self._target_updates = 0  # also where versions are skipped, see `GroupMember`
        self._optimiser = self._add_optimiser(
            "optimiser", model, lambda flat: _make_optimiser(flat, config)
        )
        self._is_noisy = bool(noisy_layers(self.model))
        by_hand = self.averaging.solo and place.precision == "fp32"
        self._passes = q_passes_of(self.model, self.target) if by_hand else None
        self._reward_scale = RewardScale(place.device) if config.normalise_returns else None
        self._scale_is_known = False
        self._graphed: CapturedWork | None = None

    def update(self, batch: ReplaySample, progress: float) -> Update:
        """Learn from one sample, or from this learner's part of it.

        ``progress`` (0 to 1) is the fraction of the training that is done; it drives the
        schedules. A step whose gradient is not finite is skipped and counted. The errors are those
        of `DqnOutput`, in units of the network's ``value_scale``."""
        for seen in batch.seen:
            self._count_observations(seen)
        self._check_frozen()
        self._follow_schedules(progress)
        beta, items = batch.beta, self._in_units(batch.items.to(self._device))
        if self._graphed is None:
            scalars = self._gradient(items, beta)
        else:
            exponent = torch.full((), beta, dtype=torch.float64, device=self._device)
            scalars = dict(self._graphed(WeightedBatch(items, exponent)))
        on_device = scalars.pop("errors")
        scalars["value_scale"] = self.model.value_scale
        metrics, errors = _fetch(scalars, on_device)
        self._scale_is_known = metrics["value_scale"] > 0
        metrics["q_mean"] *= metrics["value_scale"] or 1.0
        finite = bool(np.isfinite(metrics["grad_norm"]) and np.isfinite(metrics["td_error_max"]))
        metrics |= {**self._step_unless(not finite), "beta": beta}
        if self.version // self._target_interval > self._target_updates:
            self._target_updates = self.version // self._target_interval
            self.target.load_state_dict(self.model.state_dict())
        if not finite:
            metrics.pop("td_error_mean", None)
            return Update(metrics, batch.trained)
        metrics = {"td_error_mean": float(errors.mean()), **metrics}
        return Update(metrics, batch.trained, errors)

    def use_graphs(self, graphs: Graphs) -> None:
        """Compute the gradients of each batch by one of the device's ``graphs`` from now on, if the
        batch has as many transitions as the one before. Only for a single learner without a
        recurrent core and noisy layers."""
        assert self.averaging.solo and self.model.state_size == 0

        def gradient(inputs: WeightedBatch) -> dict[str, torch.Tensor]:
            return self._gradient(inputs.batch, inputs.beta)  # the gradients stay in place

        def fixed() -> Hashable:
            return self._config.max_grad_norm, self._config.huber_delta

        self._graphed = CapturedWork(gradient, graphs, fixed)

    def _gradient(
        self, batch: Transitions | Sequences, beta: float | torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Compute the clipped gradient of the loss over all learners' parts; return the metrics,
        and this part's ``errors`` [B]."""
        output, means = self._differentiate(batch, beta)
        norm = self._clip_gradient(self._optimiser)
        noise = noise_size(self.model) if self._is_noisy else {}
        scalars = {**means, **noise, "grad_norm": norm, "errors": output.errors}
        if not self.averaging.solo:
            own = torch.where(output.weight > 0, output.metrics["td_error_max"], 0.0)
            scalars["td_error_max"] = self.averaging.all_gather(own.reshape(1)).max()
        return scalars

    def _in_units(self, batch: Transitions | Sequences) -> Transitions | Sequences:
        """Return the batch with returns in units of the networks' ``value_scale``, which follows
        the rewards. Values, targets and priorities are in the same unit."""
        if self._reward_scale is None:
            return batch
        if not self._scale_is_known or self.version % SCALE_INTERVAL == 0:
            assert batch.reward is not None
            clip = self._config.reward_clip
            assert clip != "auto", "resolve the topology's defaults first"
            reward = learned_rewards(batch.reward, self._config.reward_scale, clip)
            self._set_scale(self._reward_scale.update(reward, self.averaging.all_gather))
        unit = self.model.value_scale
        if not self._scale_is_known:  # the first reward may be a later one of the window
            size = typical_size(batch.returns, self.averaging.all_gather).to(unit.dtype)
            unit = torch.where(unit > 0, unit, size)
        return replace(batch, returns=batch.returns / unit)

    def _set_scale(self, scale: torch.Tensor) -> None:
        # Scaling the heads cannot keep squashed values: they have to be learned again after each
        # move of the scale.
        keep = not self._config.value_rescaling
        for network in (self.model, self.target):
            network.rescale_values(scale, keep=keep)

    def _differentiate(
        self, batch: Transitions | Sequences, beta: float | torch.Tensor
    ) -> tuple[DqnOutput, dict[str, torch.Tensor]]:
        """Set the gradients of the loss; return its output, and the metrics of all learners."""
        if self._passes is not None and isinstance(batch, Transitions):
            output = dqn_gradient(*self._passes, batch, beta, self._config)
            return output, output.metrics
        with autocast(self._device, self._precision):
            output = self._loss(batch, beta)
        if not self.averaging.solo:
            output.metrics["td_error_mean"] = output.errors.mean()
        return output, self.averaging.backward(
            self._optimiser.flat, output.loss, output.metrics, output.weight
        )

    def _loss(self, batch: Transitions | Sequences, beta: float | torch.Tensor) -> DqnOutput:
        config = self._config
        if isinstance(batch, Sequences):
            return r2d2_loss(
                self.model, self.target, batch, beta, config, config.burn_in, self._gather
            )
        if self.model.value_distribution is not None:
            return distributional_loss(self.model, self.target, batch, beta, config, self._gather)
        return dqn_loss(self.model, self.target, batch, beta, config, self._gather)

    def reseed(self, seed: int) -> None:
        """Seed the noise of noisy layers anew."""
        self._noise_generator.manual_seed(seed)

    def _other_tensors(self) -> Tensors:
        return {} if self._reward_scale is None else {"reward_scale": self._reward_scale.state()}

    def load(self, tensors: Tensors, plain: dict[str, Any]) -> None:
        """Restore a `state`. Raises ValueError if it is of another model."""
        super().load(tensors, plain)
        if self._reward_scale is None:
            self._set_scale(torch.ones((), device=self._device))
        elif "reward_scale" in tensors:
            self._reward_scale.load(tensors["reward_scale"])
        else:  # the run did not normalise before
            self._reward_scale.begin_at(self.model.value_scale)
        self._scale_is_known = bool(self.model.value_scale > 0)
        self._target_updates = self.version // self._target_interval


def _fetch(
    metrics: dict[str, torch.Tensor], errors: torch.Tensor
) -> tuple[dict[str, float], npt.NDArray[np.float32]]:
    """Copy scalars and errors [B] to the CPU in one copy, which waits for the device once."""
    scalars = torch.stack([m.detach() for m in metrics.values()])
    joined = torch.cat((scalars.double(), errors))
    wait_for_copies(joined.device)
    both = joined.cpu().numpy()
    floats = dict(zip(metrics, both[: len(metrics)].tolist(), strict=True))
    return floats, both[len(metrics) :].astype(np.float32)


def _make_optimiser(flat: FlatParameters, config: DqnConfig) -> Optimiser:
    eps = config.optimiser_eps
    assert eps is not None and config.optimiser != "auto"
    if config.optimiser == "adam":
        return Adam(flat, (0.9, 0.999), eps)
    return RmsProp(flat, config.rmsprop_decay, eps)
