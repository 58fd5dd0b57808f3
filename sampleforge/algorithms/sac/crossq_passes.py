"""The passes of CrossQ's networks by hand.

The critics see both ends of the transitions in one batch, by whose statistics all layers are
normalised. For the loss of the policy they are normalised by the running statistics, which is the
same as other weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.algorithms.critics_learner import Drawing
from sampleforge.algorithms.critics_passes import (
    CriticsPasses,
    Errors,
    metrics_and_sizes,
    part_of_layer,
)
from sampleforge.algorithms.sac.learner import Drawn, SacPasses, soft_targets
from sampleforge.models.batch_renorm import BatchRenorm, Renorm, renorm
from sampleforge.models.critics import Critics
from sampleforge.models.encoders import derivative
from sampleforge.models.mlp_passes import Layer


class CrossqPasses(SacPasses):
    """The passes of a learner's networks, of which there `has_passes`."""

    def _make_critics(self, critics: Critics, target: Critics) -> None:
        assert target is critics
        self._renormed = critics
        self._joint = [JointPasses(critics, number) for number in range(critics.count)]

    def _fit(
        self,
        drawing: Drawing,
        now: tuple[Tensor, Tensor],
        later: tuple[Tensor, Drawn],
        alpha: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        batch, (after, drawn) = drawing.batch, later
        x = torch.cat((torch.cat(now, 1), torch.cat((after, drawn.actions), 1)))
        values = torch.stack([critic.forward(x) for critic in self._joint])
        values, of_later = values.chunk(2, 1)
        targets = soft_targets(batch.returns, batch.discount, of_later, drawn.log_prob, alpha)
        found = [Errors(each, targets, drawing.weights) for each in values]
        for critic, errors in zip(self._joint, found, strict=True):
            critic.backward(errors.by_values)
        return metrics_and_sizes(found)

    def _for_policy(self) -> CriticsPasses:
        folded = []
        for (weight, bias), norm in zip(self._renormed.layers, self._renormed.renorms, strict=True):
            factor, shift = norm.folded()
            folded.append((weight * factor, torch.baddbmm(bias, shift, weight.transpose(1, 2))))
        return CriticsPasses(folded, self._renormed.act)


class JointPasses:
    """The passes of one of several critics, that with the index ``number``, for both ends of
    transitions."""

    def __init__(self, critics: Critics, number: int) -> None:
        backward = derivative(critics.act)
        assert backward is not None
        self._act, self._derivative = critics.act, backward
        self._layers = [Layer(*part_of_layer(layer, number)) for layer in critics.layers]
        self._norms = [RenormPasses(norm, number) for norm in critics.renorms]
        self._inputs: list[Tensor] = []  # of each layer
        self._outputs: list[Tensor] = []  # of each activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the values [2B] of ``x`` [2B, F + A], features beside actions."""
        self._inputs, self._outputs = [], []
        for norm, layer in zip(self._norms, self._layers, strict=True):
            x = norm.forward(x)
            self._inputs.append(x)
            x = torch.addmm(layer.bias, x, layer.transposed)
            if layer is not self._layers[-1]:
                x = self._act(x)
                self._outputs.append(x)
        return x.squeeze(1)

    def backward(self, by_values: Tensor) -> None:
        """Set the gradients of all parameters, given those of the first values [B] of the last
        `forward`; the others have a gradient of 0, but change the statistics of the batch."""
        gradient = by_values.unsqueeze(1)
        for number in reversed(range(len(self._layers))):
            layer, inputs = self._layers[number], self._inputs[number]
            layer.set_gradients(gradient, inputs[: len(gradient)])
            gradient = torch.mm(gradient, layer.weight)
            self._norms[number].set_gradients(gradient)
            if number:
                gradient = self._norms[number].input_gradient(gradient)
                gradient = self._derivative(gradient, self._outputs[number - 1])


class RenormPasses:
    """The passes of a `BatchRenorm` of one of several networks, that with the index ``number``, in
    training mode."""

    def __init__(self, norm: BatchRenorm, number: int) -> None:
        self._weight, self._bias = norm.weight.detach()[number, 0], norm.bias.detach()[number, 0]
        assert norm.weight.grad is not None and norm.bias.grad is not None
        self._by_weight, self._by_bias = norm.weight.grad[number, 0], norm.bias.grad[number, 0]
        self._running = norm.mean[number, 0], norm.var[number, 0]
        self._newest = norm.batch_mean[number, 0], norm.batch_var[number, 0]
        self._batches = norm.batches
        # Of the last `forward` and `set_gradients`:
        self._centred = self._factor = self._sum = self._of_normal = torch.empty(0)
        self._by = Renorm(*[torch.empty(0)] * 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [N, F] for inputs [N, F]."""
        mean = x.mean(0)
        self._centred = x - mean
        var = self._centred.square().mean(0)  # torch.var of columns takes ten times as long
        for own, new in zip(self._newest, (mean, var), strict=True):
            own.copy_(new)
        self._by = by = renorm(mean, var, self._running, self._batches)
        self._factor = by.r * self._weight / by.std
        return torch.addcmul(self._bias + by.d * self._weight, self._centred, self._factor)

    def set_gradients(self, gradient: Tensor) -> None:
        """Set the gradients of scale and shift, given that of the first outputs [M, F] of the last
        `forward`."""
        self._sum = gradient.sum(0)
        self._of_normal = (gradient * self._centred[: len(gradient)]).sum(0) / self._by.std
        self._by_weight.copy_(self._by.r * self._of_normal + self._by.d * self._sum)
        self._by_bias.copy_(self._sum)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradient [N, F] of all inputs, given that of the first outputs [M, F], with
        which `set_gradients` was called: also the others change the statistics. For a gradient g, 0
        for them, and centred inputs c it is weight * r / std * (g - mean g - c / std ** 2 * mean(g
        * c))."""
        part = self._factor / -len(self._centred)
        by_centred = part * self._of_normal / self._by.std
        result = torch.addcmul(part * self._sum, self._centred, by_centred)
        result[: len(gradient)].addcmul_(gradient, self._factor)
        return result
