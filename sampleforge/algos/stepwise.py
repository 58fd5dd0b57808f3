"""The loss on minibatches of single steps, with its gradient by hand.

Whatever does not depend on the weights is computed for all minibatches of an update together:
their columns, the normalised advantages, and, after the last one, the metrics. `AppoLoss.__call__`
is the same loss of one minibatch by autograd. It is used where minibatches are whole rows (V-trace,
recurrent cores), and the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sampleforge.algos.config import AppoLossConfig
from sampleforge.algos.experience import Experience
from sampleforge.algos.loss_columns import LossColumns, coefficients_of, metrics_of
from sampleforge.algos.precision import autocast
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.mlp_passes import ActorCriticPasses
from sampleforge.ops.policy_terms import ActionColumns, PolicyTerms, action_columns
from sampleforge.ops.ppo_gradient import PpoColumns, PpoGradient, StepTerms, ppo_gradient
from sampleforge.ops.running_stats import Gather, Moments, over_ranks, row_moments
from sampleforge.spec import ACTION_MASK

GATHERED = 512
"""Minibatches whose moments are gathered from the other ranks in one message."""

LossGradient = Callable[[Tensor, Tensor, Tensor], PpoGradient]
"""The gradient of a minibatch's loss: (parameters [N, P], values [N], factor [] by which they are
in units of ``value_scale``) -> its derivatives."""


class Network(Protocol):
    """The passes of an actor-critic for single steps of one batch, whose positions are those of the
    flattened [T * B]."""

    def differentiate(self, index: Tensor, gradient: LossGradient) -> PpoGradient:
        """Compute the outputs for the steps ``index`` (int64 [N]); add the gradients of the loss to
        those of the parameters, which are 0; return what ``gradient`` returned."""


class ByHand:
    """The `Network` of models that `passes_of` knows. The inputs of the first layer are computed
    once for all minibatches."""

    def __init__(
        self, model: ActorCritic, passes: ActorCriticPasses, experience: Experience
    ) -> None:
        self._passes = passes
        self._inputs = passes.inputs(_flat_obs(experience))
        self._factor = (model.value_scale > 0).to(model.value_scale.dtype)

    def differentiate(self, index: Tensor, gradient: LossGradient) -> PpoGradient:
        parameters, values = self._passes.forward(self._inputs.index_select(0, index))
        found = gradient(parameters, values, self._factor)
        self._passes.backward(found.by_parameters, found.by_values)
        return found


class ByAutograd:
    """The `Network` of any model without a recurrent core."""

    def __init__(
        self, model: ActorCritic, experience: Experience, device: torch.device, precision: str
    ) -> None:
        self._model = model
        self._obs = _flat_obs(experience)
        self._device, self._precision = device, precision
        self._factor = 1.0 / torch.where(model.value_scale > 0, model.value_scale, 1.0)

    def differentiate(self, index: Tensor, gradient: LossGradient) -> PpoGradient:
        obs = {name: leaf.index_select(0, index).unsqueeze(0) for name, leaf in self._obs.items()}
        is_first = torch.zeros(1, len(index), dtype=torch.bool, device=self._device)
        state = torch.zeros(len(index), 0, device=self._device)
        with autocast(self._device, self._precision):
            output = self._model(obs, state, is_first)
        found = gradient(output.parameters.detach()[0], output.values.detach()[0], self._factor)
        torch.autograd.backward(
            (output.parameters, output.values),
            (found.by_parameters.unsqueeze(0), found.by_values.unsqueeze(0)),
        )
        return found


class Minibatches(NamedTuple):
    """The minibatches of an update, one after the other."""

    positions: list[Tensor]
    """int64 [N] each: positions in the flattened [T * B] of the batch. This learner's part of a
    minibatch may be empty."""

    @property
    def sizes(self) -> list[int] | None:
        """The number of steps of each minibatch; None if all have as many, and some. An empty part
        has one step, which does not count."""
        sizes = [len(each) for each in self.positions]
        return None if min(sizes) == max(sizes) > 0 else [max(1, size) for size in sizes]

    def rows(self) -> tuple[Tensor, Tensor | None]:
        """Return the positions with a row per minibatch, int64 [S, N], N being the largest size,
        and which of them are steps of the minibatch, bool [S, N]; None: all are."""
        if self.sizes is None:
            return torch.stack(self.positions), None
        rows = pad_sequence(self.positions, batch_first=True)
        if not rows.shape[1]:
            rows = rows.new_zeros(len(rows), 1)
        sizes = torch.tensor([len(each) for each in self.positions]).unsqueeze(1)
        return rows, (torch.arange(rows.shape[1]) < sizes).to(rows.device)


class StepwiseLoss:
    """The loss of `AppoLoss` on all minibatches of an update, with GAE and without a core.

    ``rows`` (float64 [S]): the valid rows of each minibatch, by number or weight, over all ranks.
    ``least_std``: of the advantages, in the unit of values. Call `differentiate` for each minibatch
    in turn, then `metrics`.

    Inside, columns are [S, N], a row per minibatch, so that an operation does the work of all. If
    minibatches differ in size, the end of the shorter rows does not count, and is left out of the
    passes.
    """

    def __init__(
        self,
        model: ActorCritic,
        network: Network,
        experience: Experience,
        minibatches: Minibatches,
        config: AppoLossConfig,
        least_std: float,
        gather: Gather,
    ) -> None:
        assert experience.advantages is not None and experience.targets is not None
        self._model, self._network, self._config, self._gather = model, network, config, gather
        self._coefficients = coefficients_of(config)
        index, within = minibatches.rows()
        self._sizes = minibatches.sizes
        self._index = self._parts(index)
        flat = index.flatten()

        def pick(column: Tensor) -> Tensor:
            return column.flatten(0, 1).index_select(0, flat).view(*index.shape, *column.shape[2:])

        counts = pick(experience.counts)
        self._counts = counts if within is None else counts * within
        mask = self._counts if counts.dtype == torch.bool else self._counts > 0
        masked_out = ~mask
        self._scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)

        def in_units(column: Tensor) -> Tensor:
            return (pick(column) / self._scale).masked_fill_(masked_out, 0.0)

        advantages, self.rows = self._normalised(pick(experience.advantages), masked_out, least_std)
        totals = torch.where(self.rows > 0, self.rows, 1.0).unsqueeze(1)
        log_prob = pick(experience.log_prob)
        self._loss_columns = LossColumns(
            mask,
            (self._counts / totals).to(log_prob.dtype),
            log_prob,
            advantages,
            in_units(experience.value),
            in_units(experience.targets),
        )
        allowed = experience.obs.get(ACTION_MASK)
        actions = action_columns(
            model.layout,
            {n: leaf.flatten(0, 1).index_select(0, flat) for n, leaf in experience.actions.items()},
            None if allowed is None else pick(allowed).flatten(0, 1).flatten(1).bool(),
            squash=model.squash,
        )
        self._columns = self._split(actions)
        self._found: list[StepTerms] = []

    def __len__(self) -> int:
        return len(self._index)

    def differentiate(self, number: int) -> None:
        """Add to the gradients of the parameters, which are 0, those of this rank's part of the
        loss of minibatch ``number``. The sum over all ranks is the gradient of the mean over the
        minibatch."""
        columns = self._columns[number]

        def gradient(parameters: Tensor, values: Tensor, factor: Tensor) -> PpoGradient:
            layout, squash = self._model.layout, self._model.squash
            terms = PolicyTerms(layout, parameters, columns.actions, squash=squash)
            explores = bool(self._config.exploration_coeff)
            return ppo_gradient(
                terms, values, factor, columns, self._coefficients, explores=explores
            )

        found = self._network.differentiate(self._index[number], gradient)
        self._found.append(found.terms)

    @torch.no_grad()
    def metrics(self) -> dict[str, Tensor]:
        """Return the metrics [] of all minibatches together, over all ranks: means are weighted by
        valid rows, and 0 if there is none. ``ratio_deviation`` [S] is the maximum of each
        minibatch."""
        found = self._found
        uniform = [each.symmetric_kl for each in found if each.symmetric_kl is not None]
        terms = StepTerms(
            self._whole([each.log_ratio for each in found]),
            self._whole([each.moved for each in found]),
            self._whole([each.entropy for each in found]),
            self._whole(uniform) if uniform else None,
        )
        names, sums = self._loss_columns.sums(self._config, terms, self._scale, self._counts)
        total = self.rows.sum()
        means = self._gather(sums).sum(0) / torch.where(total > 0, total, 1.0)
        own = (terms.log_ratio.exp() - 1.0).abs_().amax(1)
        of_ranks = [self._gather(part) for part in torch.split(own, GATHERED)]
        return {
            **metrics_of(names, means, self._config),
            "ratio_deviation": torch.cat(of_ranks, 1).amax(0),
        }

    def _parts(self, rows: Tensor) -> Sequence[Tensor]:
        """Return the part [N, ...] of each minibatch of a column [S, N, ...]."""
        parts = rows.unbind()
        if self._sizes is None:
            return parts
        return [part[:size] for part, size in zip(parts, self._sizes, strict=True)]

    def _whole(self, parts: list[Tensor]) -> Tensor:
        """Return the column [S, N, ...] of the minibatches' ``parts``."""
        if self._sizes is None:
            return torch.stack(parts)
        return pad_sequence(parts, batch_first=True)

    def _normalised(
        self, advantages: Tensor, masked_out: Tensor, least_std: float
    ) -> tuple[Tensor, Tensor]:
        """Return the advantages [S, N] as the loss takes them, and the valid rows [S] of each
        minibatch over all ranks."""
        x = advantages / self._scale
        over_all = _over_ranks(row_moments(x, self._counts), self._gather)
        if self._config.normalise_advantages:
            std = over_all.var.sqrt().clamp(min=least_std).to(x.dtype) + 1e-8
            x = (x - over_all.mean.to(x.dtype).unsqueeze(1)).div_(std.unsqueeze(1))
        return x.masked_fill_(masked_out, 0.0), over_all.count

    def _split(self, actions: ActionColumns) -> list[PpoColumns]:
        """Return the columns of each minibatch. ``actions``: columns [S * N, ...]."""
        columns = self._loss_columns.for_gradient(self._config)
        shape = columns[0].shape
        of_actions: list[Sequence[Any]] = [
            [None] * len(self) if each is None else self._parts(each.view(*shape, *each.shape[1:]))
            for each in actions
        ]
        parts = zip(*map(self._parts, columns), strict=True)
        return [
            PpoColumns(ActionColumns(*own), *part)
            for own, part in zip(zip(*of_actions, strict=True), parts, strict=True)
        ]


def _over_ranks(own: Moments, gather: Gather) -> Moments:
    """Return the moments [S] of the minibatches over all ranks, in messages of `GATHERED`."""
    columns = (torch.split(column, GATHERED) for column in (own.mean, own.var, own.count))
    merged = [over_ranks(Moments(*part), gather) for part in zip(*columns, strict=True)]
    if len(merged) == 1:
        return merged[0]
    mean, var, count = (
        torch.cat([getattr(part, name) for part in merged]) for name in ("mean", "var", "count")
    )
    return Moments(mean, var, count)


def _flat_obs(experience: Experience) -> dict[str, Tensor]:
    return {name: leaf.flatten(0, 1) for name, leaf in experience.obs.items()}
