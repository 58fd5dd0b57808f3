"""The passes of CrossQ's networks by hand.

The critics see both ends of the transitions in one batch, by whose statistics all layers are
normalised. For the loss of the policy they are normalised by the running statistics.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.algorithms.critics_learner import Drawing
from sampleforge.algorithms.critics_passes import (
    AllCriticsPasses,
    CriticPasses,
    Errors,
    metrics_and_sizes,
    part_of_layer,
)
from sampleforge.algorithms.sac.learner import Drawn, SacPasses, soft_targets
from sampleforge.models.batch_renorm import EPS, FARTHEST, BatchRenorm, Renorm, renorm
from sampleforge.models.critics import Critics
from sampleforge.models.encoders import derivative
from sampleforge.models.passes_by_hand import Layer


class CrossqPasses(SacPasses):
    """The passes of a learner's networks, of which there `has_passes`."""

    def _make_critics(self, critics: Critics, target: Critics) -> None:
        assert target is critics
        numbers = range(critics.count)
        self._joint = [RenormedPasses(critics, n, BatchRenormPasses) for n in numbers]
        running = [RenormedPasses(critics, n, RunningRenormPasses) for n in numbers]
        self._by_running = AllCriticsPasses(running)

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

    def _for_policy(self) -> AllCriticsPasses:
        return self._by_running


class RenormedPasses(CriticPasses):
    """The passes of one of several critics whose layers are normalised: by the statistics of a
    batch, from which it learns, or by the running ones."""

    def __init__(
        self,
        critics: Critics,
        number: int,
        norm: type[BatchRenormPasses] | type[RunningRenormPasses],
    ) -> None:
        backward = derivative(critics.act)
        assert backward is not None
        self._act, self._derivative = critics.act, backward
        self._layers = [Layer(*part_of_layer(layer, number)) for layer in critics.layers]
        self._norms = [norm(each, number) for each in critics.renorms]
        self._inputs: list[Tensor] = []  # of each layer
        self._outputs: list[Tensor] = []  # of each activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the values [N] of ``x`` [N, F + A], features beside actions."""
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
            norm = self._norms[number]
            assert isinstance(norm, BatchRenormPasses), (
                "nothing is learned by the running statistics"
            )
            norm.set_gradients(gradient)
            if number:
                gradient = self._before(number, gradient)

    def add_input_gradient(self, by_values: Tensor, result: Tensor) -> None:
        """Add to ``result`` [B, A] the gradient of the last inputs [B, F + A] by the actions, given
        those of the values [B]."""
        gradient = by_values.unsqueeze(1)
        for number in reversed(range(len(self._layers))):
            gradient = torch.mm(gradient, self._layers[number].weight)
            if number:
                gradient = self._before(number, gradient)
        result += self._norms[0].input_gradient(gradient)[:, -result.shape[1] :]

    def _before(self, number: int, gradient: Tensor) -> Tensor:
        """Return the gradient of the outputs of the layer before that with the ``number``, given
        that of its normalised inputs."""
        gradient = self._norms[number].input_gradient(gradient)
        return self._derivative(gradient, self._outputs[number - 1])


class BatchRenormPasses:
    """The passes of a `BatchRenorm` of one of several networks, that with the index ``number``, in
    training mode."""

    def __init__(self, norm: BatchRenorm, number: int) -> None:
        self._weight, self._bias = norm.weight.detach()[number, 0], norm.bias.detach()[number, 0]
        assert norm.weight.grad is not None and norm.bias.grad is not None
        self._by_weight, self._by_bias = norm.weight.grad[number, 0], norm.bias.grad[number, 0]
        self._running = norm.mean[number, 0], norm.var[number, 0]
        self._newest = norm.batch_mean[number, 0], norm.batch_var[number, 0]
        self._batches = norm.batches
        # Of the last `forward`:
        self._centred = self._normal = torch.empty(0)
        self._by = Renorm(*[torch.empty(0)] * 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [N, F] for inputs [N, F]."""
        mean = x.mean(0)
        self._centred = x - mean
        var = self._centred.square().mean(0)  # torch.var of columns takes ten times as long
        for own, new in zip(self._newest, (mean, var), strict=True):
            own.copy_(new)
        self._by = by = renorm(mean, var, self._running, self._batches)
        normal = torch.addcmul(by.d, self._centred, by.r / by.std)
        self._normal = normal.clamp_(-FARTHEST, FARTHEST)
        return torch.addcmul(self._bias, self._normal, self._weight)

    def set_gradients(self, gradient: Tensor) -> None:
        """Set the gradients of scale and shift, given that of the first outputs [M, F] of the last
        `forward`."""
        self._by_weight.copy_((gradient * self._normal[: len(gradient)]).sum(0))
        self._by_bias.copy_(gradient.sum(0))

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradient [N, F] of all inputs, given that of the first outputs [M, F]: also
        the others change the statistics. For a gradient g, 0 for the others and for what was
        clipped, and centred inputs c it is weight * r / std * (g - mean g - c / std ** 2 * mean(g *
        c))."""
        rows, count = len(gradient), len(self._centred)
        gradient = unclipped(gradient, self._normal[:rows])
        part = self._by.r * self._weight / self._by.std
        by_scale = (gradient * self._centred[:rows]).sum(0) / self._by.std.square()
        result = torch.addcmul(
            gradient.sum(0) * part / -count, self._centred, by_scale * part / -count
        )
        result[:rows].addcmul_(gradient, part)
        return result


class RunningRenormPasses:
    """The passes of such a one in evaluation mode, for gradients of the inputs alone."""

    def __init__(self, norm: BatchRenorm, number: int) -> None:
        self._weight, self._bias = norm.weight.detach()[number, 0], norm.bias.detach()[number, 0]
        self._mean, self._var = norm.mean[number, 0], norm.var[number, 0]
        self._normal = self._factor = torch.empty(0)  # of the last `forward`

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [N, F] for inputs [N, F]."""
        self._factor = (self._var + EPS).rsqrt()
        normal = (x - self._mean).mul_(self._factor)
        self._normal = normal.clamp_(-FARTHEST, FARTHEST)
        return torch.addcmul(self._bias, self._normal, self._weight)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradient [N, F] of the inputs, given that of the outputs."""
        return unclipped(gradient, self._normal) * (self._weight * self._factor)


def unclipped(gradient: Tensor, normal: Tensor) -> Tensor:
    """Return the gradient [N, F] of normalised numbers before they were clipped to ``normal``."""
    # In one operation; a comparison and a choice take three.
    passed: Tensor = torch.ops.aten.hardtanh_backward(gradient, normal, -FARTHEST, FARTHEST)
    return passed
