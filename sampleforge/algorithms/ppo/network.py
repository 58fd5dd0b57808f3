"""The passes of an actor-critic on minibatches: forward to its outputs, and backward from their
gradients, by autograd or by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.algorithms.experience import Experience
from sampleforge.algorithms.precision import autocast
from sampleforge.models.actor_critic import ActorCritic, ModelOutput
from sampleforge.models.mlp_passes import ActorCriticPasses


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
        torch.autograd.backward(outputs, (by_parameters, by_values * self._per_unit))

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
    """The same by hand, for the models that `sampleforge.models.mlp_passes.passes_of` knows. The
    inputs of the first layer are computed once for all minibatches."""

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
