"""The learner of an actor-critic policy, as an object without a process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from sampleforge.algos.appo import LossOutput
from sampleforge.algos.averaging import Averaging, Local
from sampleforge.algos.config import LearnerConfig
from sampleforge.algos.experience import WHOLE, Experience, Share, experience_of, minibatches
from sampleforge.algos.hyperparameters import LEARNER_HYPERPARAMETERS, changed, check_names, values
from sampleforge.algos.policy import autocast
from sampleforge.algos.return_scale import ReturnScale
from sampleforge.algos.update_kl import UpdateKl
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.explained_variance import MOMENTS, explained_variance
from sampleforge.ops.running_stats import Gather
from sampleforge.ops.schedules import kl_adaptive, linear
from sampleforge.rollouts.batch import Batch


class Loss(Protocol):
    """A function from experience to a loss; see `sampleforge.algos.appo.AppoLoss`."""

    @property
    def looks_along_time(self) -> bool: ...

    def hyperparameters(self) -> dict[str, Any]: ...

    def change(self, new: Mapping[str, Any]) -> None: ...

    def prepare(self, model: ActorCritic, experience: Experience) -> Experience: ...

    def __call__(
        self, model: ActorCritic, experience: Experience, gather: Gather
    ) -> LossOutput: ...


class Learner:
    """Model, optimiser, schedules and running statistics of one policy.

    ``version``, the policy version, is the number of gradient steps. A minibatch without a valid
    row on any rank makes no step and no version. ``averaging`` connects the learner with those of
    the same policy in other processes (None: there are none). All of them begin with the same
    `state` and have the same `state` after each update. ``batch_size`` is the nominal number of env
    steps of a batch whose size varies; it determines the number of gradient steps. ``share``: the
    part of each batch that this learner has.

    ``env_steps`` counts the valid env steps of all batches. ``tag`` holds plain values that others
    keep with the state. Both are stored and copied with it.
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
        share: Share = WHOLE,
    ) -> None:
        assert config.learning_rate is not None and config.num_epochs is not None
        self.model = model.to(device)
        self.version = 0
        self.env_steps = 0
        self.tag: dict[str, Any] = {}
        self._loss = loss
        self._config = config
        self._device = device
        self._precision = precision
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._batch_size = batch_size
        self._share = share
        self._averaging = averaging or Local()
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
        self._return_scale = ReturnScale(config.gamma, device)

    def update(self, batch: Batch, progress: float) -> dict[str, float]:
        """Learn from one batch [T+1, B]; return the metrics. This waits for the device once, at the
        end, before the weights are published (and once more for the number of steps, if the size of
        batches varies).

        ``progress`` (0 to 1) is the fraction of the training that is done; it drives the linear
        schedule. A gradient step whose gradient is not finite is skipped and counted in
        ``skipped_steps``; a minibatch without a valid row is counted in ``empty_minibatches``.
        Means are weighted by valid rows, and 0 if there is none. ``explained_variance`` is that of
        the values at sampling; it is left out where the value targets do not vary.
        """
        if self._config.lr_schedule == "linear":
            progress = float(self._averaging.all_gather(torch.tensor([progress])).max())
            self._learning_rate = linear(self._initial_rate, progress)
        batch = batch.to(self._device)
        experience = experience_of(batch, self._config, self.version, self._averaging.all_gather)
        counts = self._count(batch, experience)
        if self._config.normalise_returns:
            gather = self._averaging.all_gather
            self.model.rescale_values(self._return_scale.update(experience, gather))
        counts["value_scale"] = self.model.value_scale
        self.model.train()
        adapts, change = self._config.lr_schedule == "kl_adaptive", None
        with autocast(self._device, self._precision):
            if adapts:
                change = UpdateKl(self.model, experience, self._generator, self._share)
            experience = self._loss.prepare(self.model, experience)
        per_step = [self._step(mb) for mb in self._minibatches(experience)]
        metrics_of_steps = self._over_minibatches(per_step)
        if change is not None:
            with autocast(self._device, self._precision):
                kl = change.measure(self.model, self._averaging.all_gather)
            metrics_of_steps["update_kl"] = kl
        metrics = to_floats({**metrics_of_steps, **counts})
        explained = explained_variance({name: metrics.pop(name) for name in MOMENTS})
        if explained is not None:
            metrics["explained_variance"] = explained
        steps = len(per_step) - int(metrics["empty_minibatches"])
        self.version -= len(per_step) - steps
        for name in ("policy_lag_mean", "policy_lag_max"):
            in_batches = name.replace("lag", "lag_batches")
            metrics[in_batches] = metrics[name] / len(per_step)
        self.env_steps += int(metrics["valid_steps"])
        self._update_statistics(batch, metrics)
        # Before the first reward nothing is learned, so the KL cannot guide the learning rate.
        if adapts and metrics["value_scale"] > 0 and steps > metrics["skipped_steps"]:
            self._learning_rate = kl_adaptive(
                self._learning_rate, metrics["update_kl"], self._config.lr_target_kl
            )
        metrics["learning_rate"] = self._learning_rate
        return metrics

    def _over_minibatches(self, per_step: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return the metrics of all steps together; means are weighted by the minibatches' valid
        rows."""
        columns = {name: torch.stack([m[name] for m in per_step]) for name in per_step[0]}
        rows, skipped = columns.pop("rows"), columns.pop("skipped_steps")
        deviations = self._averaging.all_gather(columns["ratio_deviation"]).amax(0)
        columns["ratio_deviation"] = deviations
        weight = rows / torch.where(rows.sum() > 0, rows.sum(), 1.0)
        means = {n: torch.where(rows > 0, c * weight, 0.0).sum() for n, c in columns.items()}
        return {
            **means,
            "ratio_deviation_first": deviations[0],
            "skipped_steps": skipped.sum(),
            "empty_minibatches": (rows == 0).sum(),
        }

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
        gathered = self._averaging.all_gather(torch.stack(own))
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
        whole = experience.reward.numel() * self._share.learners
        size = self._config.minibatch_size or self._batch_size or whole
        whole_rows = self._loss.looks_along_time or self.model.state_size > 0
        for _ in range(self._num_epochs):
            yield from minibatches(
                experience,
                size,
                whole_rows=whole_rows,
                generator=self._generator,
                due=self._batch_size,
                share=self._share,
            )

    def _step(self, minibatch: Experience) -> dict[str, torch.Tensor]:
        """Take one gradient step, or none if there is no valid row, without waiting for the device.
        The version counts the step in either case; `update` subtracts the empty minibatches once
        their number is known."""
        with autocast(self._device, self._precision):
            output = self._loss(self.model, minibatch, self._averaging.all_gather)
        metrics = self._averaging.backward(output)
        limit = self._config.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        empty = output.rows == 0
        skip = (~torch.isfinite(norm) & ~empty).float()
        # The fused kernel skips the step on the device itself where this is 1 (see GradScaler).
        self._optimiser.found_inf = skip + empty.float()  # type: ignore[attr-defined]
        self._optimiser.grad_scale = None  # type: ignore[attr-defined]
        for group in self._optimiser.param_groups:
            group["lr"] = self._learning_rate
        self._optimiser.step()
        self.version += 1
        deviation = output.metrics["ratio_deviation"]  # a maximum: not weighted as means are
        extra = {"ratio_deviation": deviation, "grad_norm": norm.detach(), "skipped_steps": skip}
        return {**metrics, **extra, "rows": output.rows}

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
            # Observations of invalid steps are left out: some are zeros (env.not_finite).
            valid = batch.valid.flatten()
            self.model.normaliser.update(leaves, valid, self._averaging.all_gather)

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that `change` can change, by name."""
        return values(self._config, LEARNER_HYPERPARAMETERS) | self._loss.hyperparameters()

    def change(self, new: Mapping[str, Any]) -> None:
        """Change hyperparameters, from the next update on. Raises ValueError for a name that cannot
        change, ConfigError for a value out of range."""
        check_names(self.hyperparameters(), new)
        self._config = changed(self._config, LEARNER_HYPERPARAMETERS, new)
        self._loss.change(new)
        self._return_scale.gamma = self._config.gamma
        if "learning_rate" in new:
            self._initial_rate = self._learning_rate = new["learning_rate"]

    def reseed(self, seed: int) -> None:
        """Seed the order of minibatches anew."""
        self._generator.manual_seed(seed)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the complete state of learning: tensors (clones on the CPU) and plain values."""
        tensors = {f"model/{n}": t for n, t in self.model.state_dict().items()}
        tensors |= optimiser_tensors(self._optimiser)
        tensors["rng/minibatches"] = self._generator.get_state()
        tensors["return_scale"] = self._return_scale.state()
        plain = {
            "version": self.version,
            "env_steps": self.env_steps,
            "learning_rate": self._learning_rate,
            "hyperparameters": self.hyperparameters(),
            **({"tag": dict(self.tag)} if self.tag else {}),
        }
        return {n: t.detach().cpu().clone() for n, t in tensors.items()}, plain

    def load(self, tensors: dict[str, torch.Tensor], plain: dict[str, Any]) -> None:
        """Restore a `state`. Raises ValueError if it is of another model."""
        model = {n[len("model/") :]: t for n, t in tensors.items() if n.startswith("model/")}
        try:
            self.model.load_state_dict(model)
        except RuntimeError as error:
            raise ValueError(f"the checkpoint is of another model: {error}") from error
        load_optimiser(self._optimiser, tensors)
        self._generator.set_state(tensors["rng/minibatches"])
        if "return_scale" in tensors:
            self._return_scale.load(tensors["return_scale"])
        else:
            self._return_scale.load_batch_moments(tensors["return_moments"])
        if not self._config.normalise_returns and not self.model.value_scale:
            self.model.rescale_values(1.0)  # returns were normalised, and every reward was 0
        self.version = plain["version"]
        self.env_steps = plain.get("env_steps", 0)
        self.tag = dict(plain.get("tag", {}))
        self.change(plain.get("hyperparameters", {}))
        self._learning_rate = plain["learning_rate"]


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimiser's state of each parameter, as ``optimiser/<its index>/<name>``."""
    state = optimiser.state_dict()["state"]
    return {f"optimiser/{i}/{n}": t for i, entry in state.items() for n, t in entry.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Restore the optimiser's state of each parameter from what `optimiser_tensors` returned."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser/"):
            _, index, key = name.split("/")
            state.setdefault(int(index), {})[key] = tensor
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def to_floats(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return all metrics as floats, copied to the CPU at once."""
    values = torch.stack([m.detach().double() for m in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))
