"""The passes of a policy and its critics by hand, where they are MLPs of one vector (`has_passes`):
each matrix product once, and no others.

Each network is passed backward right after its forward pass, while its layers' outputs are near. Of
the actions of the policy, only the gradient by them is needed, and only through the critics whose
values count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics
from sampleforge.models.encoders import Activation, Vector, derivative
from sampleforge.models.passes_by_hand import DensePasses, Layer, dense_passes, is_dense, is_trained

Layers = Sequence[tuple[Tensor, Tensor]]


class PolicyPasses:
    """The passes of a policy."""

    def __init__(self, model: ActorCritic) -> None:
        self._trunk = dense_passes(model.actor)
        self._head = Layer(model.policy_weight, model.policy_bias)
        self._features: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [B, P] of the head for inputs ``x`` [B, F]."""
        self._features, head = self._trunk.forward(x), self._head
        # Of so few outputs, this order takes half the time.
        return torch.addmm(head.bias[:, None], head.weight, self._features.t()).t()

    def backward(self, by_outputs: Tensor) -> None:
        """Set the gradients of the weights, given those of the last outputs [B, P]."""
        assert self._features is not None
        self._head.set_gradients(by_outputs, self._features)
        self._trunk.backward(torch.mm(by_outputs, self._head.weight))


class CriticPasses:
    """The passes of one of several critics, that with the index ``number``; ``layers``: weight [N,
    out, in] and bias [N, 1, out] of each, as `Critics` has them, with an activation between
    them."""

    def __init__(self, layers: Layers, act: Activation, number: int) -> None:
        *hidden, head = (part_of_layer(layer, number) for layer in layers)
        self._hidden, self._head = DensePasses(hidden, act), Layer(*head)
        self._features: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the values [B] of ``x`` [B, F + A], features beside actions."""
        self._features = self._hidden.forward(x)
        return torch.addmm(self._head.bias, self._features, self._head.transposed).squeeze(1)

    def backward(self, by_values: Tensor) -> None:
        """Set the gradients of the weights, given those of the last values [B]."""
        assert self._features is not None
        by_output = by_values.unsqueeze(1)
        self._head.set_gradients(by_output, self._features)
        self._hidden.backward(torch.mm(by_output, self._head.weight))

    def add_input_gradient(self, by_values: Tensor, result: Tensor) -> None:
        """Add to ``result`` [B, A] the gradient of the last inputs [B, F + A] by the actions, given
        those of the values [B]. On a CPU no product is made for a value whose gradient is 0; on
        another device the number of these is not waited for, and no code is compiled for it."""
        columns = slice(-result.shape[1], None)
        if by_values.device.type != "cpu" or torch.compiler.is_compiling():
            by_output = torch.mm(by_values.unsqueeze(1), self._head.weight)
            result += self._hidden.input_gradient(by_output, None, columns)
            return
        rows = by_values.nonzero().squeeze(1)
        by_output = torch.mm(by_values.index_select(0, rows).unsqueeze(1), self._head.weight)
        result.index_add_(0, rows, self._hidden.input_gradient(by_output, rows, columns))


class AllCriticsPasses:
    """The passes of several critics; see `CriticPasses`."""

    def __init__(self, each: Sequence[CriticPasses]) -> None:
        self.each = each

    @classmethod
    def of(cls, critics: Critics) -> AllCriticsPasses:
        """Return those of critics without batch renormalisation."""
        return cls([CriticPasses(critics.layers, critics.act, n) for n in range(critics.count)])

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the values [N, B] of ``features`` [B, F] and ``actions`` [B, A]."""
        x = torch.cat((features, actions), 1)
        return torch.stack([critic.forward(x) for critic in self.each])

    def fit(
        self, features: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Set the gradients of `critic_loss`; return metrics and the errors [B]."""
        x, found = torch.cat((features, actions), 1), []
        for critic in self.each:
            found.append(Errors(critic.forward(x), targets, weights))
            critic.backward(found[-1].by_values)
        return metrics_and_sizes(found)


class Errors:
    """The errors of a critic's ``values`` [B]: ``errors`` [B], and ``by_values`` [B], the gradient
    of its part of `critic_loss`."""

    def __init__(self, values: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        self.values, self.errors = values, values - targets
        weighted = self.errors if weights is None else self.errors * weights
        self.by_values = weighted / len(targets)


def metrics_and_sizes(found: Sequence[Errors]) -> tuple[dict[str, Tensor], Tensor]:
    """Return metrics of several critics, and the mean over them of the sizes of their errors,
    [B]."""
    size = torch.stack([each.errors.abs() for each in found]).mean(0)
    squares = [torch.dot(each.by_values, each.errors) for each in found]
    metrics = {
        "loss": 0.5 * torch.stack(squares).sum(),
        "q_mean": torch.stack([each.values for each in found]).mean(),
        "td_error_mean": size.mean(),
    }
    return metrics, size


def has_passes(model: ActorCritic, critics: Critics) -> bool:
    """Return whether there are passes by hand of a policy and its critics.

    There are for `are_dense` networks in float32, all of whose parameters, but the standard
    deviation of a policy, are trained and flat."""
    dense = are_dense(model, critics)
    return dense and is_trained(critics) and is_trained(model, (model.log_std,))


def are_dense(model: ActorCritic, critics: Critics) -> bool:
    """Return whether a policy and its critics have MLP encoders of tanh, relu or elu layers,
    without LayerNorm and embeddings."""
    encoder = critics.encoder
    if type(encoder) is not Vector or any(True for _ in encoder.parameters()):
        return False
    if critics.norms is not None or derivative(critics.act) is None:
        return False
    return is_dense(model.actor)


def part_of_layer(layer: tuple[Tensor, Tensor], number: int) -> tuple[Tensor, Tensor]:
    """Return weight [out, in] and bias [out] of one critic, with their gradients."""
    weights, biases = layer
    weight, bias = weights.detach()[number], biases.detach()[number, 0]
    if weights.grad is not None and biases.grad is not None:
        weight.grad, bias.grad = weights.grad[number], biases.grad[number, 0]
    return weight, bias
