"""What a learner of rollouts asks of a loss, and the loss that autograd differentiates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sampleforge.algorithms.experience import Experience, Minibatches
from sampleforge.algorithms.learning import Tensors
from sampleforge.models.forward import autocast
from sampleforge.models.passes_by_hand import ActorCriticPasses
from sampleforge.ops.running_stats import Gather, Moments, alone, over_ranks

MAXIMA = ("ratio_deviation",)
"""Metrics of a loss that are maxima over a minibatch, not means."""
GATHERED = 512
"""Numbers, one of each minibatch, that are gathered from the other ranks in one message."""


class MinibatchLosses(Protocol):
    """The loss of each minibatch of an update. ``rows``, float64 [S]: the valid rows of each, by
    number or weight, over all ranks; 0 if there is nothing to learn from. ``terms``: number of
    backward passes that `differentiate` makes. Call `differentiate` for each in turn, then
    `metrics`."""

    rows: Tensor
    terms: int

    def differentiate(self, number: int) -> None:
        """Add to the gradients of the parameters, which are 0, those of this rank's part of the
        loss of minibatch ``number``. The sum over all ranks is the gradient of the mean over the
        minibatch. Does not wait for the device."""

    def metrics(self) -> Tensors:
        """Return the metrics [] of all minibatches together, over all ranks: means are weighted by
        valid rows, and 0 if there is none. Those of `MAXIMA`, [S], are of each minibatch."""


class Loss:
    """The base of a loss of rollouts, with its settings: a function of a minibatch, which autograd
    differentiates, or, with another `of_minibatches`, gradients that it computes itself. What a
    subclass does not override stands for: single steps, nothing that can change, nothing to
    prepare."""

    @property
    def looks_along_time(self) -> bool:
        """Whether minibatches must hold whole rows even for a model without a recurrent core."""
        return False

    @property
    def has_policy_values(self) -> bool:
        """Whether the recorded values are those of the policy that acted, of an `ActorCritic`: a
        constant that makes their mean temporal difference 0 then corrects them (`common_error`)."""
        return False

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that `change` can change, by name."""
        return {}

    def change(self, new: Mapping[str, Any]) -> None:
        """Set the new values of the loss's hyperparameters; ignore all others."""

    def prepare(self, model: Any, experience: Experience) -> Experience:
        """Return the experience with the columns that are computed once per batch."""
        return experience

    def __call__(
        self, model: Any, experience: Experience, gather: Gather
    ) -> tuple[Tensor, Tensors]:
        """Return the loss [] of a minibatch, which autograd differentiates, and metrics [] to
        report beside it. All are means over the steps that count (`Experience.counts`; 0 if there
        is none), but those of `MAXIMA`.

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
        """Return this loss of the minibatches of an experience that `prepare` has returned; here
        one by one, by autograd.

        ``passes``: those of ``model`` by hand, if there are any. ``precision``: see
        `sampleforge.models.forward.autocast`. ``gather`` connects the learners that share a
        minibatch."""
        return _OneByOne(self, model, experience, minibatches, precision, gather)


class _OneByOne:
    """The `MinibatchLosses` by autograd."""

    terms = 1

    def __init__(
        self,
        loss: Loss,
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


class SumOfLosses(Loss):
    """The sum of losses: that of an algorithm, and further terms. All of them get the experience
    that each has prepared in its turn."""

    def __init__(self, *losses: Loss) -> None:
        self._losses = losses

    @property
    def looks_along_time(self) -> bool:
        return any(loss.looks_along_time for loss in self._losses)

    @property
    def has_policy_values(self) -> bool:
        return any(loss.has_policy_values for loss in self._losses)

    def hyperparameters(self) -> dict[str, Any]:
        return {n: value for loss in self._losses for n, value in loss.hyperparameters().items()}

    def change(self, new: Mapping[str, Any]) -> None:
        for loss in self._losses:
            loss.change(new)

    def prepare(self, model: Any, experience: Experience) -> Experience:
        for loss in self._losses:
            experience = loss.prepare(model, experience)
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
        """Return the sum of the losses of the minibatches."""
        given = model, experience, minibatches, passes, precision, gather
        return _Sum([loss.of_minibatches(*given) for loss in self._losses])


class _Sum:
    """The `MinibatchLosses` of a sum. What is computed by hand comes first, because it takes the
    gradients for 0."""

    def __init__(self, terms: list[MinibatchLosses]) -> None:
        self._terms = sorted(terms, key=lambda term: isinstance(term, _OneByOne))
        self.rows = terms[0].rows
        self.terms = sum(term.terms for term in terms)

    def differentiate(self, number: int) -> None:
        for term in self._terms:
            term.differentiate(number)

    def metrics(self) -> Tensors:
        found = [term.metrics() for term in self._terms]
        loss = torch.stack([metrics["loss"] for metrics in found]).sum()
        return {name: x for metrics in found for name, x in metrics.items()} | {"loss": loss}


def valid_rows(counts: Tensor, gather: Gather) -> Tensor:
    """Return the valid rows, float64 [S], of minibatches of ``counts`` [S, N], over all ranks."""
    return gathered(counts.double().sum(1), gather).sum(0)


def gathered(of_minibatches: Tensor, gather: Gather) -> Tensor:
    """Return numbers [S] of the minibatches of all ranks, float64 [ranks, S]."""
    if len(of_minibatches) <= GATHERED:
        return gather(of_minibatches)
    return torch.cat([gather(part) for part in torch.split(of_minibatches, GATHERED)], 1)


def moments_over_ranks(own: Moments, gather: Gather) -> Moments:
    """Return the moments [S] of the minibatches over all ranks, in messages of `GATHERED`."""
    if len(own.mean) <= GATHERED:
        return over_ranks(own, gather)
    columns = (torch.split(column, GATHERED) for column in (own.mean, own.var, own.count))
    merged = [over_ranks(Moments(*part), gather) for part in zip(*columns, strict=True)]
    mean, var, count = (
        torch.cat([getattr(part, name) for part in merged]) for name in ("mean", "var", "count")
    )
    return Moments(mean, var, count)
