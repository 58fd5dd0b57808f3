"""Gradient steps for one policy. An object without a process: `update(batch)` in, metrics out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from sampleforge.algos.appo import LossOutput
from sampleforge.algos.averaging import Alone, Averaging
from sampleforge.algos.config import LearnerConfig
from sampleforge.algos.experience import Experience, experience_of, minibatches
from sampleforge.algos.policy import autocast
from sampleforge.data.batch import Batch
from sampleforge.data.short_rollouts import NOT_TAKEN
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.running_stats import Gather
from sampleforge.ops.schedules import kl_adaptive, linear

_SCALE_FLOOR = 1e-4  # of the return's standard deviation, where rewards are all zero so far


class Loss(Protocol):
    """What turns experience into a loss; see `sampleforge.algos.appo.AppoLoss`."""

    @property
    def looks_along_time(self) -> bool: ...

    def prepare(self, model: ActorCritic, experience: Experience) -> Experience: ...

    def __call__(
        self, model: ActorCritic, experience: Experience, gather: Gather
    ) -> LossOutput: ...


class Learner:
    """Model, optimiser, schedules and running statistics of one policy.

    ``version`` counts gradient steps: it is the policy version that behaviour is recorded with.
    ``averaging`` joins it with the learners of the same policy in other processes (none: alone).
    They begin with one `state` and have one `state` after each update. ``batch_size``: the env
    steps of a batch, where it may have more or fewer; gradient steps are as many as these make.
    """

    def __init__(
        self,
        model: ActorCritic,
        loss: Loss,
        config: LearnerConfig,
        *,
        device: torch.device,
        precision: str,
        seed: int,
        averaging: Averaging | None = None,
        batch_size: int | None = None,
    ) -> None:
        assert config.learning_rate is not None and config.num_epochs is not None
        self.model = model.to(device)
        self.version = 0
        self._loss = loss
        self._config = config
        self._device = device
        self._precision = precision
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._batch_size = batch_size
        self._averaging = averaging or Alone()
        self._averaging.follow(self._parameters)
        self._optimiser = torch.optim.Adam(
            self._parameters,
            lr=config.learning_rate,
            betas=config.adam_betas,
            eps=config.adam_eps,
            fused=True,
        )
        self._initial_rate = self._learning_rate = config.learning_rate
        self._num_epochs = config.num_epochs
        self._generator = torch.Generator().manual_seed(seed)  # minibatch order
        self._return_moments = torch.zeros(3, dtype=torch.float64)  # batches, mean, mean of squares

    def update(self, batch: Batch, progress: float) -> dict[str, float]:
        """Learn from one batch [T+1, B]; returns what to report. The device is waited for once, at
        the end, for that: the weights are to be published then anyway. (And where a batch varies
        in size, for how many steps it has.)

        ``progress`` (0 to 1, how much of the training is done) moves the linear schedule. A
        gradient step whose gradient is not finite is skipped and counted in ``skipped_steps``.
        """
        if self._config.lr_schedule == "linear":
            progress = float(self._averaging.gather(torch.tensor([progress])).max())
            self._learning_rate = linear(self._initial_rate, progress)
        batch = batch.to(self._device)
        experience = experience_of(batch, self._config, self.version, self._averaging.gather)
        counts = self._count(batch, experience)
        self.model.train()
        with autocast(self._device, self._precision):
            experience = self._loss.prepare(self.model, experience)
        per_step = [self._step(mb) for mb in self._minibatches(experience)]
        means = {name: torch.stack([m[name] for m in per_step]).mean() for name in per_step[0]}
        deviations = torch.stack([m["ratio_deviation"] for m in per_step])
        deviations = self._averaging.gather(deviations).amax(0)
        means["ratio_deviation"] = deviations.mean()
        means["ratio_deviation_first"] = deviations[0]
        skipped = torch.stack([m["skipped_steps"] for m in per_step]).sum()
        metrics = to_floats({**means, "skipped_steps": skipped, **counts})
        self._update_statistics(batch, metrics)
        if self._config.lr_schedule == "kl_adaptive":
            self._learning_rate = kl_adaptive(
                self._learning_rate, metrics["approx_kl"], self._config.lr_target_kl
            )
        metrics["learning_rate"] = self._learning_rate
        return metrics

    def _count(self, batch: Batch, experience: Experience) -> dict[str, torch.Tensor]:
        """Env steps that are valid, and stale, and their policy lag; over all ranks, but for
        ``own_trained_steps``, which this rank learns from."""
        valid, lag = batch.valid, self.version - batch.version.double()
        used = experience.mask.sum().double()
        own = (
            valid.sum().double(),
            used,
            torch.where(valid, lag, 0.0).sum(),
            torch.where(valid, lag, -torch.inf).max(),
            torch.where(valid, lag, torch.inf).min(),
        )
        gathered = self._averaging.gather(torch.stack(own))
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

    def _minibatches(self, experience: Experience) -> Iterator[Experience]:
        size = self._config.minibatch_size or self._batch_size or experience.reward.numel()
        whole_rows = self._loss.looks_along_time or self.model.state_size > 0
        for _ in range(self._num_epochs):
            yield from minibatches(
                experience,
                size,
                whole_rows=whole_rows,
                generator=self._generator,
                due=self._batch_size,
            )

    def _step(self, minibatch: Experience) -> dict[str, torch.Tensor]:
        """One gradient step; the device is never waited for."""
        with autocast(self._device, self._precision):
            output = self._loss(self.model, minibatch, self._averaging.gather)
        metrics = self._averaging.backward(output)
        limit = self._config.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        skip = (~torch.isfinite(norm)).float()
        # The fused kernel skips the step on the device itself where this is 1 (see GradScaler).
        self._optimiser.found_inf = skip  # type: ignore[attr-defined]
        self._optimiser.grad_scale = None  # type: ignore[attr-defined]
        for group in self._optimiser.param_groups:
            group["lr"] = self._learning_rate
        self._optimiser.step()
        self.version += 1
        deviation = output.metrics["ratio_deviation"]  # a maximum, of which the mean says nothing
        extra = {"ratio_deviation": deviation, "grad_norm": norm.detach(), "skipped_steps": skip}
        return {**metrics, **extra}

    @torch.no_grad()
    def _update_statistics(self, batch: Batch, metrics: dict[str, float]) -> None:
        """Running statistics move only between batches: within one, behaviour and learner agree.
        They do not take in a batch whose loss was not finite."""
        if not math.isfinite(metrics["loss"]):
            return
        if self.model.normaliser is not None:
            # obs[T] is obs[0] of the row's next rollout: each observation is counted once.
            rollout, _ = batch.steps
            leaves = {n: leaf[:rollout].flatten(0, 1) for n, leaf in batch.obs.items()}
            taken = (batch.version != NOT_TAKEN).flatten()
            self.model.normaliser.update(leaves, taken, self._averaging.gather)
        learned = metrics["valid_steps"] > metrics["stale_steps"] and not metrics["skipped_steps"]
        if self._config.normalise_returns and learned:
            self._rescale_values(metrics["target_mean"], metrics["target_square_mean"])

    def _rescale_values(self, mean: float, mean_of_squares: float) -> None:
        """Track the targets' standard deviation in ``model.value_scale``, keeping all predictions
        (the output-preserving step of Pop-Art, van Hasselt et al. 2016, arXiv 1602.07714)."""
        self._return_moments[0] += 1
        rate = max(1.0 / float(self._return_moments[0]), 0.01)
        new = torch.tensor([mean, mean_of_squares], dtype=torch.float64)
        self._return_moments[1:] += rate * (new - self._return_moments[1:])
        variance = float(self._return_moments[2] - self._return_moments[1] ** 2)
        scale = max(variance, _SCALE_FLOOR**2) ** 0.5
        self.model.rescale_values(scale)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything that learning goes on from: tensors (clones on the CPU) and plain values."""
        tensors = {f"model/{n}": t for n, t in self.model.state_dict().items()}
        tensors |= optimiser_tensors(self._optimiser)
        tensors["rng/minibatches"] = self._generator.get_state()
        tensors["return_moments"] = self._return_moments
        plain = {"version": self.version, "learning_rate": self._learning_rate}
        return {n: t.detach().cpu().clone() for n, t in tensors.items()}, plain

    def load(self, tensors: dict[str, torch.Tensor], plain: dict[str, Any]) -> None:
        """Go on from a `state`. Raises ValueError if it is of another model."""
        model = {n[len("model/") :]: t for n, t in tensors.items() if n.startswith("model/")}
        try:
            self.model.load_state_dict(model)
        except RuntimeError as error:
            raise ValueError(f"the checkpoint is of another model: {error}") from error
        load_optimiser(self._optimiser, tensors)
        self._generator.set_state(tensors["rng/minibatches"])
        self._return_moments.copy_(tensors["return_moments"])
        self.version = plain["version"]
        self._learning_rate = plain["learning_rate"]


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The state of each parameter, as ``optimiser/<its index>/<name>``."""
    state = optimiser.state_dict()["state"]
    return {f"optimiser/{i}/{n}": t for i, entry in state.items() for n, t in entry.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Take the state of each parameter from the tensors that `optimiser_tensors` named."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser/"):
            _, index, key = name.split("/")
            state.setdefault(int(index), {})[key] = tensor
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def to_floats(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    """All metrics to the CPU in one copy."""
    values = torch.stack([m.detach().double() for m in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))
