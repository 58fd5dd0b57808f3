"""What a learner of rollouts asks of a loss, and the loss that autograd differentiates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sampleforge.algorithms.experience import Experience, part_of_minibatch
from sampleforge.algorithms.learning import Tensors
from sampleforge.algorithms.precision import autocast
from sampleforge.models.mlp_passes import ActorCriticPasses
from sampleforge.ops.running_stats import Gather, alone

MAXIMA = ("ratio_deviation",)
"""Metrics of a loss that are maxima over a minibatch, not means."""
GATHERED = 512
"""Numbers, one of each minibatch, that are gathered from the other ranks in one message."""


class Minibatches:
    """The minibatches of an update, one after the other, as places in the flattened [T * B] of its
    experience.

    ``drawn``: of each, int64 [n], its positions in [T * B], or with ``whole_rows`` its columns
    [B], which it has with all their steps (None: the whole experience). Only a learner's part of a
    minibatch may be empty; it gets a step, or column, that does not count, because all learners
    make the same passes. ``index``: what is drawn in the end.

    A column of all minibatches is [S, N], a row for each, so that an operation does the work of
    all. If they differ in size, the ends of the shorter rows do not count.
    """

    def __init__(
        self, drawn: Sequence[Tensor | None], experience: Experience, *, whole_rows: bool
    ) -> None:
        self.whole_rows = whole_rows
        self._drawn = drawn
        self.index = [each if each is None or len(each) else each.new_zeros(1) for each in drawn]
        rollout, rows = experience.reward.shape
        self._starts = torch.arange(0, rollout * rows, rows, device=experience.reward.device)
        self._every = torch.arange(rollout * rows, device=experience.reward.device)
        places = [self._places(each) for each in self.index]
        sizes = [len(each) for each in places]
        real = [
            0 if each is not None and not len(each) else size
            for each, size in zip(drawn, sizes, strict=True)
        ]
        self._sizes = None if min(real) == max(real) else sizes
        at = self.whole(places)
        self.shape = at.shape
        # A single minibatch of all steps takes the columns as they are.
        self._flat = None if self.index == [None] else at.flatten()
        self._within: Tensor | None = None
        if min(real) < at.shape[1]:
            self._within = torch.ones_like(at, dtype=torch.bool)
            for row, size in zip(self._within, real, strict=True):
                row[size:] = False

    def __len__(self) -> int:
        return len(self.index)

    def flat(self, column: Tensor) -> Tensor:
        """Return the steps [S * N, ...] of all minibatches of a column [T, B, ...]."""
        flat = column.flatten(0, 1)
        if self._flat is None:
            return flat[: self.shape[1]]
        return flat.index_select(0, self._flat)

    def pick(self, column: Tensor) -> Tensor:
        """Return the steps [S, N, ...] of all minibatches of a column [T, B, ...]."""
        return self.flat(column).view(*self.shape, *column.shape[2:])

    def counts(self, experience: Experience) -> Tensor:
        """Return how much each step counts, bool or float [S, N]: see `Experience.counts`."""
        counts = self.pick(experience.counts)
        return counts if self._within is None else counts * self._within

    def parts(self, column: Tensor) -> Sequence[Tensor]:
        """Return the steps [N, ...] of each minibatch of a column [S, N, ...]."""
        parts = column.unbind()
        if self._sizes is None:
            return parts
        return [part[:size] for part, size in zip(parts, self._sizes, strict=True)]

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the column [S, N, ...] of the minibatches' ``parts``."""
        if len(parts) == 1:
            return parts[0].unsqueeze(0)
        if self._sizes is None:
            return torch.stack(list(parts))
        return pad_sequence(list(parts), batch_first=True)

    def part(self, number: int, experience: Experience) -> Experience:
        """Return the experience of a minibatch."""
        drawn = self._drawn[number]
        if drawn is None:
            return experience
        return part_of_minibatch(experience, drawn, whole_rows=self.whole_rows)

    def _places(self, index: Tensor | None) -> Tensor:
        if index is None:
            return self._every
        return (self._starts.unsqueeze(1) + index).flatten() if self.whole_rows else index


class MinibatchLosses(Protocol):
    """The loss of each minibatch of an update. ``rows``, float64 [S]: the valid rows of each, by
    number or weight, over all ranks; 0 if there is nothing to learn from. Call `differentiate` for
    each in turn, then `metrics`."""

    rows: Tensor

    def differentiate(self, number: int) -> None:
        """Add to the gradients of the parameters, which are 0, those of this rank's part of the
        loss of minibatch ``number``. The sum over all ranks is the gradient of the mean over the
        minibatch. Does not wait for the device."""

    def metrics(self) -> Tensors:
        """Return the metrics [] of all minibatches together, over all ranks: means are weighted by
        valid rows, and 0 if there is none. Those of `MAXIMA`, [S], are of each minibatch."""


class Loss:
    """The base of a loss of rollouts, with its settings. What a subclass does not override stands
    for: single steps, nothing scheduled, nothing that can change, nothing to prepare."""

    @property
    def looks_along_time(self) -> bool:
        """Whether minibatches must hold whole rows even for a model without a recurrent core."""
        return False

    @property
    def is_scheduled(self) -> bool:
        """Whether the loss depends on the progress of the training."""
        return False

    def follow(self, progress: float) -> None:
        """Set what is scheduled for the next update, at ``progress`` (0 to 1) of the training."""

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that `change` can change, by name."""
        return {}

    def change(self, new: Mapping[str, Any]) -> None:
        """Set the new values of the loss's hyperparameters; ignore all others."""

    def prepare(self, model: Any, experience: Experience) -> Experience:
        """Return the experience with the columns that are computed once per batch."""
        return experience

    def of_minibatches(
        self,
        model: Any,
        experience: Experience,
        minibatches: Minibatches,
        passes: ActorCriticPasses | None,
        precision: str,
        gather: Gather = alone,
    ) -> MinibatchLosses:
        """Return this loss of the minibatches of an experience that `prepare` has returned.

        ``passes``: those of ``model`` by hand, if there are any. ``precision``: see
        `sampleforge.algorithms.precision.autocast`. ``gather`` connects the learners that share a
        minibatch."""
        raise NotImplementedError


class AutogradLoss(Loss):
    """The base of a loss that is a function of a minibatch, which autograd differentiates."""

    def __call__(
        self, model: Any, experience: Experience, gather: Gather
    ) -> tuple[Tensor, Tensors]:
        """Return the loss [] of a minibatch, and metrics [] to report beside it. All are means over
        the steps that count (`Experience.counts`; 0 if there is none), but those of `MAXIMA`.

        If several learners share a minibatch, means are over the part that ``experience`` is;
        ``gather`` collects what must be known of the other parts."""
        raise NotImplementedError

    def of_minibatches(
        self,
        model: Any,
        experience: Experience,
        minibatches: Minibatches,
        passes: ActorCriticPasses | None,
        precision: str,
        gather: Gather = alone,
    ) -> MinibatchLosses:
        """Return this loss of the minibatches, one by one."""
        return _OneByOne(self, model, experience, minibatches, precision, gather)


class _OneByOne:
    """The `MinibatchLosses` of an `AutogradLoss`."""

    def __init__(
        self,
        loss: AutogradLoss,
        model: Any,
        experience: Experience,
        minibatches: Minibatches,
        precision: str,
        gather: Gather,
    ) -> None:
        self._loss, self._model, self._experience = loss, model, experience
        self._minibatches, self._precision, self._gather = minibatches, precision, gather
        own = minibatches.counts(experience).double().sum(1)
        self.rows = gathered(own, gather).sum(0)
        self._weight = own / torch.where(self.rows > 0, self.rows, 1.0)
        self._found: list[Tensors] = []

    def differentiate(self, number: int) -> None:
        part = self._minibatches.part(number, self._experience)
        with autocast(part.reward.device, self._precision):
            loss, metrics = self._loss(self._model, part, self._gather)
        (loss * self._weight[number]).backward()  # type: ignore[no-untyped-call]
        metrics = {"loss": loss, **metrics}
        self._found.append({name: metric.detach() for name, metric in metrics.items()})

    def metrics(self) -> Tensors:
        columns = {
            name: torch.stack([each[name].double() for each in self._found])
            for name in self._found[0]
        }
        maxima = {name: columns.pop(name) for name in MAXIMA if name in columns}
        weight = self._weight * self.rows / torch.where(self.rows.sum() > 0, self.rows.sum(), 1.0)
        means = torch.where(weight > 0, torch.stack(list(columns.values())) * weight, 0.0).sum(1)
        return {
            **dict(zip(columns, self._gather(means).sum(0).unbind(), strict=True)),
            **{name: gathered(each, self._gather).amax(0) for name, each in maxima.items()},
        }


def valid_rows(counts: Tensor, gather: Gather) -> Tensor:
    """Return the valid rows, float64 [S], of minibatches of ``counts`` [S, N], over all ranks."""
    return gathered(counts.double().sum(1), gather).sum(0)


def gathered(of_minibatches: Tensor, gather: Gather) -> Tensor:
    """Return numbers [S] of the minibatches of all ranks, float64 [ranks, S]."""
    if len(of_minibatches) <= GATHERED:
        return gather(of_minibatches)
    return torch.cat([gather(part) for part in torch.split(of_minibatches, GATHERED)], 1)
