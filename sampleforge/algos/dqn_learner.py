"""The learner of a Q-network, as an object without a process: a batch in, metrics and errors
out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algos.averaging import Averaging, Local
from sampleforge.algos.config import DqnConfig
from sampleforge.algos.distributional import distributional_loss
from sampleforge.algos.dqn import DqnOutput, dqn_loss
from sampleforge.algos.hyperparameters import DQN_HYPERPARAMETERS, changed, check_names, values
from sampleforge.algos.learner import load_optimiser, optimiser_tensors
from sampleforge.algos.policy import autocast
from sampleforge.algos.r2d2 import r2d2_loss
from sampleforge.algos.return_scale import RewardScale, typical_size
from sampleforge.models.noisy import Noise, noise_size, set_noise
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.running_stats import Moments, alone
from sampleforge.ops.schedules import linear
from sampleforge.replay.sequences import Sequences
from sampleforge.replay.transitions import Transitions

SCALE_INTERVAL = 16
"""Learner steps between updates of the rewards' scale, once it is known."""


class UpdateResult(NamedTuple):
    """The result of an update."""

    metrics: dict[str, float]
    errors: npt.NDArray[np.float32] | None
    """`DqnOutput.errors` [B], from which the new priorities are made, in units of the network's
    ``value_scale``; None if the step was skipped."""


class DqnLearner:
    """Online network (``model``), target network and optimiser.

    ``version`` counts gradient steps, skipped ones included. It is the policy version, and it
    determines when the target network is updated. Noisy layers of both networks draw new noise for
    each forward pass, from a generator with ``noise_seed``. ``averaging`` joins the learner with
    those of the same policy in other processes, each of which has a part of every batch (None:
    there are no others). ``env_steps`` is set by the process around it; ``tag`` holds plain values
    that others keep with the state. Both are stored and copied with it.
    """

    def __init__(
        self,
        model: QNetwork,
        config: DqnConfig,
        *,
        device: torch.device,
        precision: str,
        noise_seed: int = 0,
        averaging: Averaging | None = None,
    ) -> None:
        self.model = model.to(device)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self._noise_generator = torch.Generator(device).manual_seed(noise_seed)
        noise = Noise(self._noise_generator, per_row=False)
        set_noise(self.model, noise)
        set_noise(self.target, noise)
        self.version = 0
        self.env_steps = 0
        self.tag: dict[str, Any] = {}
        assert config.learning_rate is not None and config.target_update_interval is not None
        self._config = config
        self._learning_rate = config.learning_rate
        self._target_interval = config.target_update_interval
        self._target_updates = 0  # also where versions are skipped, see `GroupMember`
        self._device = device
        self._precision = precision
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.averaging = averaging or Local()
        self.averaging.follow(self._parameters)
        self._optimiser = _make_optimiser(self._parameters, config)
        self._reward_scale = RewardScale(device) if config.normalise_returns else None
        self._scale_is_known = False

    def update(self, batch: Transitions | Sequences, beta: float, progress: float) -> UpdateResult:
        """Learn from one batch, or from this learner's part of it.

        ``beta`` is the exponent of the importance weights. ``progress`` (0 to 1) is the fraction of
        the training that is done; it drives the linear schedule. A step whose gradient is not
        finite is skipped and counted."""
        config = self._config
        batch = self._in_units(batch.to(self._device))
        with autocast(self._device, self._precision):
            output = self._loss(batch, beta)
        if not self.averaging.solo:
            output.metrics["td_error_mean"] = output.errors.mean()
        means = self.averaging.backward(output)
        limit = config.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        scalars = {**means, **noise_size(self.model), "grad_norm": norm}
        if not self.averaging.solo:
            own = torch.where(output.weight > 0, output.metrics["td_error_max"], 0.0)
            scalars["td_error_max"] = self.averaging.all_gather(own.reshape(1)).max()
        scalars["value_scale"] = self.model.value_scale
        metrics, errors = _fetch(scalars, output.errors)
        self._scale_is_known = metrics["value_scale"] > 0
        metrics["q_mean"] *= metrics["value_scale"] or 1.0
        rate = self._learning_rate
        if config.lr_schedule == "linear":
            rate = linear(rate, progress)
        finite = bool(np.isfinite(metrics["grad_norm"]) and np.isfinite(metrics["td_error_max"]))
        if finite:
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            self._optimiser.step()
        self.version += 1
        if self.version // self._target_interval > self._target_updates:
            self._target_updates = self.version // self._target_interval
            self.target.load_state_dict(self.model.state_dict())
        metrics |= {"learning_rate": rate, "skipped_steps": float(not finite), "beta": beta}
        if not finite:
            metrics.pop("td_error_mean", None)
            return UpdateResult(metrics, None)
        return UpdateResult({"td_error_mean": float(errors.mean()), **metrics}, errors)

    def observe(self, seen: Mapping[str, Moments]) -> None:
        """Merge the moments of new observations into the statistics that normalise observations."""
        if self.model.normaliser is not None:
            self.model.normaliser.merge(
                {
                    name: Moments(*(part.to(self._device) for part in (of.mean, of.var, of.count)))
                    for name, of in seen.items()
                }
            )

    def _in_units(self, batch: Transitions | Sequences) -> Transitions | Sequences:
        """Return the batch with returns in units of the networks' ``value_scale``, which follows
        the rewards. Values, targets and priorities are in the same unit."""
        if self._reward_scale is None:
            return batch
        if not self._scale_is_known or self.version % SCALE_INTERVAL == 0:
            assert batch.reward is not None
            clip = self._config.reward_clip
            assert clip != "auto", "resolve the topology's defaults first"
            reward = batch.reward * self._config.reward_scale
            reward = reward if clip is None else reward.clamp(-clip, clip)
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

    def _loss(self, batch: Transitions | Sequences, beta: float) -> DqnOutput:
        config = self._config
        gather = alone if self.averaging.solo else self.averaging.all_gather
        if isinstance(batch, Sequences):
            return r2d2_loss(self.model, self.target, batch, beta, config, config.burn_in, gather)
        if self.model.value_distribution is not None:
            return distributional_loss(self.model, self.target, batch, beta, config, gather)
        return dqn_loss(self.model, self.target, batch, beta, config, gather)

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that `change` can change, by name."""
        return values(self._config, DQN_HYPERPARAMETERS)

    def change(self, new: Mapping[str, Any]) -> None:
        """Change hyperparameters, from the next update on. Raises ValueError for a name that cannot
        change, ConfigError for a value out of range."""
        check_names(self.hyperparameters(), new)
        self._config = changed(self._config, DQN_HYPERPARAMETERS, new)
        self._learning_rate = new.get("learning_rate", self._learning_rate)

    def reseed(self, seed: int) -> None:
        """Seed the noise of noisy layers anew."""
        self._noise_generator.manual_seed(seed)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the complete state of learning: tensors (clones on the CPU) and plain values."""
        tensors = {f"model/{n}": t for n, t in self.model.state_dict().items()}
        tensors |= {f"target/{n}": t for n, t in self.target.state_dict().items()}
        tensors |= optimiser_tensors(self._optimiser)
        if self._reward_scale is not None:
            tensors["reward_scale"] = self._reward_scale.state()
        plain = {
            "version": self.version,
            "env_steps": self.env_steps,
            "hyperparameters": self.hyperparameters(),
            **({"tag": dict(self.tag)} if self.tag else {}),
        }
        return {n: t.detach().cpu().clone() for n, t in tensors.items()}, plain

    def load(self, tensors: dict[str, torch.Tensor], plain: dict[str, Any]) -> None:
        """Restore a `state`. Raises ValueError if it is of another model."""
        for prefix, network in (("model/", self.model), ("target/", self.target)):
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            try:
                network.load_state_dict(own)
            except RuntimeError as error:
                raise ValueError(f"the checkpoint is of another model: {error}") from error
        load_optimiser(self._optimiser, tensors)
        if self._reward_scale is None:
            self._set_scale(torch.ones((), device=self._device))
        elif "reward_scale" in tensors:
            self._reward_scale.load(tensors["reward_scale"])
        else:  # the run did not normalise before
            self._reward_scale.begin_at(self.model.value_scale)
        self._scale_is_known = bool(self.model.value_scale > 0)
        self.version = plain["version"]
        self._target_updates = self.version // self._target_interval
        self.env_steps = plain.get("env_steps", 0)
        self.tag = dict(plain.get("tag", {}))
        self.change(plain.get("hyperparameters", {}))


def _fetch(
    metrics: dict[str, torch.Tensor], errors: torch.Tensor
) -> tuple[dict[str, float], npt.NDArray[np.float32]]:
    """Copy scalars and errors [B] to the CPU in one copy, which waits for the device once."""
    scalars = torch.stack([m.detach().double() for m in metrics.values()])
    both = torch.cat((scalars, errors.double())).cpu().numpy()
    floats = dict(zip(metrics, both[: len(metrics)].tolist(), strict=True))
    return floats, both[len(metrics) :].astype(np.float32)


def _make_optimiser(
    parameters: list[torch.nn.Parameter], config: DqnConfig
) -> torch.optim.Optimizer:
    rate, eps = config.learning_rate, config.optimiser_eps
    assert rate is not None and eps is not None and config.optimiser != "auto"
    if config.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=rate, eps=eps, fused=True)
    return torch.optim.RMSprop(
        parameters, lr=rate, alpha=config.rmsprop_decay, eps=eps, centered=True
    )
