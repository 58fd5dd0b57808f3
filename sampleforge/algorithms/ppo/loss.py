"""The loss of asynchronous PPO (Petrenko et al. 2020, arXiv 2006.11751): advantages and value
targets, the gradient of all minibatches of an update, and the passes of the network from and to its
outputs, by autograd or by hand. Its terms are in `sampleforge.algorithms.ppo.terms`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from sampleforge.algorithms.experience import Experience, Minibatches
from sampleforge.algorithms.learning import changed, values
from sampleforge.algorithms.losses import Loss, gathered, moments_over_ranks, valid_rows
from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.algorithms.ppo.terms import (
    Steps,
    StepTerms,
    gradient,
    kl,
    metrics_of,
    sums,
    terms_of,
)
from sampleforge.models.actor_critic import ActorCritic, ModelOutput
from sampleforge.models.forward import autocast
from sampleforge.models.passes_by_hand import ActorCriticPasses
from sampleforge.ops.masked import normalise_rows
from sampleforge.ops.policy_terms import ActionColumns, AutogradTerms, PolicyTerms, action_columns
from sampleforge.ops.returns import vtrace
from sampleforge.ops.running_stats import Gather, alone, row_moments
from sampleforge.spec import ACTION_MASK

PPO_LOSS_HYPERPARAMETERS = (
    "clip_ratio",
    "value_clip",
    "value_coeff",
    "exploration_coeff",
    "kl_coeff",
    "gae_lambda",
    "vtrace_rho",
    "vtrace_c",
)


class PpoLoss(Loss):
    """The loss: clipped surrogate on the ratio to the behaviour policy, clipped value loss,
    exploration bonus.

    Values, targets and advantages are divided by the model's ``value_scale``. If that scale follows
    the returns, the loss is independent of the rewards' unit.

    With V-trace, advantages and value targets are recomputed for every minibatch from the newest
    values and ratios; with GAE, `prepare` computes them once per batch from the values at sampling.
    """

    def __init__(
        self, config: PpoLossConfig, gamma: float, *, normalises_returns: bool = False
    ) -> None:
        names = (field.name for field in fields(PpoLossConfig))
        self._config = PpoLossConfig(**{name: getattr(config, name) for name in names})
        self._gamma = gamma
        # In units of the returns' standard deviation, which is unknown without normalisation.
        self._least_std = config.advantage_floor if normalises_returns else 0.0

    def hyperparameters(self) -> dict[str, Any]:
        return values(self._config, PPO_LOSS_HYPERPARAMETERS)

    def change(self, new: Mapping[str, Any]) -> None:
        self._config = changed(self._config, PPO_LOSS_HYPERPARAMETERS, new)
        self._gamma = new.get("gamma", self._gamma)

    @property
    def has_policy_values(self) -> bool:
        return True

    @property
    def looks_along_time(self) -> bool:
        return self._config.advantage == "vtrace"

    @torch.no_grad()
    def prepare(self, model: ActorCritic, experience: Experience) -> Experience:
        """Return the experience with the columns that are computed once per batch (GAE: advantages
        and targets), without those that only this computation needs."""
        if self._config.advantage == "vtrace":
            return experience
        last_value = _last_values(model, experience)
        advantages = experience.advantages_at_sampling(
            last_value, self._gamma, self._config.gae_lambda
        )
        targets = advantages + experience.value
        return experience.without_last_observation(advantages=advantages, targets=targets)

    def of_minibatches(
        self,
        model: ActorCritic,
        experience: Experience,
        minibatches: Minibatches,
        passes: ActorCriticPasses | None,
        precision: str,
        gather: Gather = alone,
    ) -> PpoMinibatches:
        """Return this loss of the minibatches of an experience that `prepare` has returned."""
        whole_rows = minibatches.whole_rows
        network = (
            Network(model, experience, precision, whole_rows=whole_rows)
            if passes is None
            else NetworkByHand(model, experience, passes, whole_rows=whole_rows)
        )
        return PpoMinibatches(
            model,
            network,
            experience,
            minibatches,
            gather,
            config=self._config,
            gamma=self._gamma,
            least_std=self._least_std,
        )


class PpoMinibatches:
    """`PpoLoss` of all minibatches of an update; see
    `sampleforge.algorithms.losses.MinibatchLosses`.

    What does not depend on the weights is computed for all of them together, as columns [S, N], and
    so are the metrics after the last one. With V-trace, advantages and targets are computed for
    each minibatch in its turn, between the passes forward and back. ``least_std``: of advantages,
    in the unit of values.
    """

    terms = 1

    def __init__(
        self,
        model: ActorCritic,
        network: Network,
        experience: Experience,
        minibatches: Minibatches,
        gather: Gather,
        *,
        config: PpoLossConfig,
        gamma: float,
        least_std: float,
    ) -> None:
        self._model, self._network = model, network
        self._minibatches, self._gather = minibatches, gather
        self._config, self._gamma, self._least_std = config, gamma, least_std
        # Until the first reward the scale is 0, and so are values, targets and advantages.
        self._scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)
        self._counts = minibatches.counts(experience)
        self.rows = valid_rows(self._counts, gather)
        self._steps = self._known_steps(experience)
        self._parts = [
            Steps(*part) for part in zip(*map(minibatches.parts, self._steps), strict=True)
        ]
        self._actions = self._action_columns(experience) if not model.has_own_distribution else []
        self._taken = self._actions_taken(experience) if model.has_own_distribution else []
        # Without the large columns: V-trace takes the rest of each minibatch.
        self._traced = None if experience.targets is not None else replace(experience, obs={})
        self._found: list[StepTerms] = []

    def differentiate(self, number: int) -> None:
        """Add to the gradients of the parameters, which are 0, those of this rank's part of the
        loss of minibatch ``number``."""
        steps = self._parts[number]
        parameters, values = self._network.forward(self._minibatches.index[number])
        all_values = values
        if self._traced is not None:  # there is one more time step
            count = len(steps.log_prob)
            parameters, values = parameters[:count], values[:count]
        policy = self._policy(number, parameters)
        terms = terms_of(policy, values, steps, self._config)
        if self._traced is not None:
            part = self._minibatches.part(number, self._traced)
            steps = self._with_vtrace(steps, part, all_values, terms.log_ratio)
            self._parts[number] = steps
        self._network.backward(*gradient(policy, terms, steps, self._config))
        self._found.append(terms)

    @torch.no_grad()
    def metrics(self) -> dict[str, Tensor]:
        """Return the metrics [] of all minibatches together, over all ranks; ``ratio_deviation``
        [S] is the maximum of each, ``approx_kl_max`` [] the largest of their means."""
        whole = self._minibatches.whole
        found = self._found
        uniform = [each.symmetric_kl for each in found if each.symmetric_kl is not None]
        terms = StepTerms(
            whole([each.log_ratio for each in found]),
            whole([each.moved for each in found]),
            whole([each.entropy for each in found]),
            whole(uniform) if uniform else None,
        )
        steps = self._steps
        if self._traced is not None:
            wanted, cost = (whole([getattr(x, n) for x in self._parts]) for n in ("wanted", "cost"))
            steps = steps._replace(wanted=wanted, cost=cost)
        names, of_this_rank = sums(terms, steps, self._counts, self._scale, self._config)
        total = self.rows.sum()
        means = self._gather(of_this_rank).sum(0) / torch.where(total > 0, total, 1.0)
        deviation = (terms.log_ratio.exp() - 1.0).abs_().amax(1).double()
        moved = (kl(terms.log_ratio).double() * self._counts).sum(1)
        deviations, moves = gathered(torch.cat((deviation, moved)), self._gather).chunk(2, 1)
        return {
            **metrics_of(names, means, self._config),
            "approx_kl_max": (moves.sum(0) / torch.where(self.rows > 0, self.rows, 1.0)).amax(),
            "ratio_deviation": deviations.amax(0),
        }

    def _known_steps(self, experience: Experience) -> Steps:
        """Return what is known of the steps [S, N] before the passes; with V-trace targets and
        advantages are not known yet."""
        pick, counts = self._minibatches.pick, self._counts
        log_prob = pick(experience.log_prob)
        totals = torch.where(self.rows > 0, self.rows, 1.0).unsqueeze(1)
        zeros = torch.zeros_like(log_prob)
        masked_out = ~counts if counts.dtype == torch.bool else counts <= 0
        weight = (counts / totals).to(log_prob.dtype)
        steps = Steps(
            masked_out,
            weight,
            log_prob,
            value=self._in_units(pick(experience.value), masked_out),
            wanted=zeros,
            cost=zeros,
            weighted_cost=zeros,
            value_weight=2.0 * self._config.value_coeff * weight,
            exploration_weight=(self._config.exploration_coeff or 0.0) * weight,
        )
        if experience.targets is None or experience.advantages is None:
            return steps
        advantages = self._normalised(pick(experience.advantages), counts)
        return self._with_targets(steps, pick(experience.targets), advantages)

    def _with_vtrace(
        self, steps: Steps, part: Experience, values: Tensor, log_ratio: Tensor
    ) -> Steps:
        """Return the steps [N] of a minibatch of whole rows with V-trace's targets and advantages,
        of the values of its T+1 time steps, flat."""
        config, shape = self._config, part.reward.shape
        values = (values * self._scale).view(shape[0] + 1, shape[1])
        found = vtrace(
            log_ratio.view(shape),
            part.reward,
            values[:-1],
            part.next_values(values),
            part.terminated,
            part.trace_cut,
            self._gamma,
            config.gae_lambda,
            config.vtrace_rho,
            config.vtrace_c,
        )
        advantages = self._normalised(found.advantages.reshape(1, -1), part.counts.reshape(1, -1))
        return self._with_targets(steps, found.targets.flatten(), advantages[0])

    def _normalised(self, advantages: Tensor, counts: Tensor) -> Tensor:
        """Return the advantages [S, N] of whole minibatches as the loss takes them."""
        x = advantages / self._scale
        if self._config.normalise_advantages:
            moments = moments_over_ranks(row_moments(x, counts), self._gather)
            x = normalise_rows(x, moments, self._least_std)
        return x

    def _with_targets(self, steps: Steps, targets: Tensor, advantages: Tensor) -> Steps:
        """Return the steps [...] with these targets, and advantages that are `_normalised`."""
        cost = advantages.neg().masked_fill_(steps.masked_out, 0.0)
        return steps._replace(
            wanted=self._in_units(targets, steps.masked_out) - steps.value,
            cost=cost,
            weighted_cost=steps.weight * cost,
        )

    def _in_units(self, column: Tensor, masked_out: Tensor) -> Tensor:
        return (column / self._scale).masked_fill_(masked_out, 0.0)

    def _policy(self, number: int, parameters: Tensor) -> PolicyTerms | AutogradTerms:
        """Return what the loss takes of the policy with these parameters in a minibatch."""
        model = self._model
        if not self._taken:
            columns = self._actions[number]
            return PolicyTerms(model.layout, parameters, columns, squash=model.squash)
        actions = dict(self._taken[number])
        mask = actions.pop(ACTION_MASK, None)
        return AutogradTerms(partial(model.masked_distribution, mask=mask), parameters, actions)

    def _actions_taken(self, experience: Experience) -> list[dict[str, Tensor]]:
        """Return the leaves of the actions of each minibatch, with the mask of each step."""
        minibatches, allowed = self._minibatches, experience.obs.get(ACTION_MASK)
        leaves = {name: minibatches.flat(leaf) for name, leaf in experience.actions.items()}
        if allowed is not None:
            leaves[ACTION_MASK] = minibatches.flat(allowed).flatten(1).bool()
        parts = {
            name: minibatches.parts(leaf.view(*minibatches.shape, *leaf.shape[1:]))
            for name, leaf in leaves.items()
        }
        of_each = zip(*parts.values(), strict=True)
        return [dict(zip(parts, each, strict=True)) for each in of_each]

    def _action_columns(self, experience: Experience) -> list[ActionColumns]:
        """Return the actions of each minibatch."""
        minibatches, allowed = self._minibatches, experience.obs.get(ACTION_MASK)
        actions = action_columns(
            self._model.layout,
            {name: minibatches.flat(leaf) for name, leaf in experience.actions.items()},
            None if allowed is None else minibatches.flat(allowed).flatten(1).bool(),
            squash=self._model.squash,
        )
        columns: list[Sequence[Any]] = [
            [None] * len(minibatches)
            if each is None
            else minibatches.parts(each.view(*minibatches.shape, *each.shape[1:]))
            for each in actions
        ]
        return [ActionColumns(*part) for part in zip(*columns, strict=True)]


def _last_values(model: ActorCritic, experience: Experience) -> torch.Tensor:
    """Return the values [B] of the observation after the last step, by the newest weights."""
    if model.state_size == 0:
        last = {name: leaf[-1] for name, leaf in experience.obs.items()}
        return model.step(last, experience.state, experience.is_first[-1]).values
    output: ModelOutput = model(experience.obs, experience.state, experience.is_first)
    return output.values[-1]


class Network:
    """The passes of any model on minibatches of one batch of T' time steps (the rollout, or one
    more), by autograd.

    A minibatch is ``index`` (int64 [n]): with ``whole_rows`` columns of the batch, or None for all
    of it, otherwise positions in the flattened [T * B]. Outputs are flattened, in the order of
    time; values are in units of the model's ``value_scale``.
    """

    def __init__(
        self, model: ActorCritic, experience: Experience, precision: str, *, whole_rows: bool
    ) -> None:
        self._model, self._experience, self._precision = model, experience, precision
        self._whole_rows = whole_rows
        if not whole_rows:
            self._flat = {name: leaf.flatten(0, 1) for name, leaf in experience.obs.items()}
        self._per_unit = 1.0 / torch.where(model.value_scale > 0, model.value_scale, 1.0)
        self._outputs: tuple[Tensor, Tensor] | None = None

    def forward(self, index: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the parameters of the action distribution [N, P] and the values [N], both without
        autograd."""
        with autocast(self._experience.reward.device, self._precision):
            output = self._output(index)
        parameters, values = output.parameters.flatten(0, 1), output.values.flatten(0, 1)
        self._outputs = parameters, values
        return parameters.detach(), values.detach() * self._per_unit

    def backward(self, by_parameters: Tensor, by_values: Tensor) -> None:
        """Add to the gradients of the parameters, which are 0, given those of the first outputs of
        the last `forward`, [M, P] and [M]; the others have a gradient of 0."""
        assert self._outputs is not None, "`forward` comes first"
        outputs, self._outputs = self._outputs, None
        if len(by_values) < len(outputs[1]):
            parameters, values = outputs
            outputs = parameters[: len(by_values)], values[: len(by_values)]
        gradients = by_parameters, by_values * self._per_unit
        # Of frozen parts alone an output has no gradient.
        learns = [output.requires_grad for output in outputs]
        torch.autograd.backward(list(compress(outputs, learns)), list(compress(gradients, learns)))

    def _output(self, index: Tensor | None) -> ModelOutput:
        of, model = self._experience, self._model
        if index is None:
            output: ModelOutput = model(of.obs, of.state, of.is_first)
        elif self._whole_rows:
            obs = {name: leaf[:, index] for name, leaf in of.obs.items()}
            output = model(obs, of.state[index], of.is_first[:, index])
        else:
            obs = {name: leaf.index_select(0, index)[None] for name, leaf in self._flat.items()}
            is_first = torch.zeros(1, len(index), dtype=torch.bool, device=index.device)
            output = model(obs, of.state.new_zeros(len(index), 0), is_first)
        return output


class NetworkByHand(Network):
    """The same by hand, for the models that `sampleforge.models.passes_by_hand.passes_of` knows.
    The inputs of the first layer are computed once for all minibatches."""

    def __init__(
        self,
        model: ActorCritic,
        experience: Experience,
        passes: ActorCriticPasses,
        *,
        whole_rows: bool,
    ) -> None:
        super().__init__(model, experience, "fp32", whole_rows=whole_rows)
        self._passes = passes
        self._inputs = passes.inputs({n: x.flatten(0, 1) for n, x in experience.obs.items()})
        # Where the scale is unknown, the values, and with them their gradients, are 0.
        self._known = (model.value_scale > 0).to(model.value_scale.dtype)
        if whole_rows:
            self._by_row = self._inputs.view(*experience.is_first.shape, -1)

    def forward(self, index: Tensor | None) -> tuple[Tensor, Tensor]:
        if index is None:
            inputs = self._inputs
        elif self._whole_rows:
            inputs = self._by_row.index_select(1, index).flatten(0, 1)
        else:
            inputs = self._inputs.index_select(0, index)
        parameters, values = self._passes.forward(inputs)
        return parameters, values.mul_(self._known)

    def backward(self, by_parameters: Tensor, by_values: Tensor) -> None:
        self._passes.backward(by_parameters, by_values * self._known)
