"""The gradients of soft actor-critic by hand: each matrix product once, and no others.

Policy and critics are MLPs of one vector (`passes_of`). The policy sees observations and next
observations in one pass, the critics the actions that were taken and those that are drawn for the
policy's loss. Of the first, the gradient by the weights is needed, of the second only that by the
actions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.algorithms.critics_learner import Drawing
from sampleforge.algorithms.sac.loss import Drawn, draw, soft_targets
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics
from sampleforge.models.encoders import Vector, derivative
from sampleforge.models.mlp_passes import (
    DensePasses,
    Layer,
    VectorInputs,
    dense_passes,
    is_dense,
    is_trained,
)
from sampleforge.ops.gaussian import MAX_LOG_STD, MIN_LOG_STD


class CriticPasses:
    """The passes of each of the critics."""

    def __init__(self, critics: Critics) -> None:
        *hidden, head = critics.layers
        self._hidden = [
            DensePasses([_part(layer, i) for layer in hidden], critics.act)
            for i in range(critics.count)
        ]
        self._heads = [Layer(*_part(head, i)) for i in range(critics.count)]
        self._features: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Return the values [N, B] of ``x`` [B, F + A], features beside actions."""
        self._features = [passes.forward(x) for passes in self._hidden]
        heads = zip(self._heads, self._features, strict=True)
        return torch.cat([torch.addmm(h.bias, f, h.transposed).t() for h, f in heads])

    def backward(self, by_values: Tensor) -> None:
        """Set the gradients of the weights, given those of the values of the first rows [N, M]."""
        count = by_values.shape[1]
        for i, (passes, head) in enumerate(zip(self._hidden, self._heads, strict=True)):
            by_output = by_values[i].unsqueeze(1)
            head.set_gradients(by_output, self._features[i][:count])
            passes.backward(torch.mm(by_output, head.weight))

    def by_inputs(self, by_values: Tensor) -> Tensor:
        """Return the gradient of the last inputs [M, F + A], given those of their values [N, M]."""
        parts = [
            passes.input_gradient(torch.mm(by_values[i].unsqueeze(1), head.weight))
            for i, (passes, head) in enumerate(zip(self._hidden, self._heads, strict=True))
        ]
        return sum(parts[1:], parts[0])


class SacPasses:
    """The passes of a learner's networks; `passes_of` says of which."""

    def __init__(self, model: ActorCritic, critics: Critics, target: Critics) -> None:
        self._inputs = VectorInputs(model.normaliser, model.actor)
        self._trunk = dense_passes(model.actor)
        self._head = Layer(model.policy_weight, model.policy_bias)
        self._critics, self._target = CriticPasses(critics), CriticPasses(target)

    @torch.no_grad()
    def gradients(
        self, drawing: Drawing, actions: Tensor, alpha: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Set the gradients of the critics, and if the drawing ``acts`` those of the policy; return
        the metrics, the errors [B] and the log-probabilities [B] of the actions that were drawn at
        the observations (empty, if it does not act).

        ``actions`` [B, A]: those taken, in units of their bounds; ``alpha`` []: the temperature."""
        batch, noise, weights, _, acts = drawing
        rows = len(actions)
        now, later = self._inputs(batch.obs), self._inputs(batch.next_obs)
        x = torch.cat((now, later)) if acts else later
        features = self._trunk.forward(x)
        parameters = torch.addmm(self._head.bias, features, self._head.transposed)
        after = draw(parameters[-rows:], noise[0])
        values = self._target.forward(torch.cat((later, after.actions), 1))
        targets = soft_targets(batch.returns, batch.discount, values, after.log_prob, alpha)
        joined = torch.cat((now, actions), 1)
        if not acts:
            metrics, errors = self._of_critics(self._critics.forward(joined), targets, weights)
            return metrics, errors, targets[:0]
        drawn = draw(parameters[:rows], noise[1])
        both = torch.cat((joined, torch.cat((now, drawn.actions), 1)))
        values = self._critics.forward(both)
        metrics, errors = self._of_critics(values[:, :rows], targets, weights)
        own = values[:, rows:]
        least = own.amin(0)
        which = (own == least).float()
        by_least = which / (-rows * which.sum(0))
        by_actions = self._critics.by_inputs(by_least)[:, -actions.shape[1] :]
        by_parameters = self._by_parameters(parameters[:rows], noise[1], drawn, by_actions, alpha)
        self._head.set_gradients(by_parameters, features[:rows])
        self._trunk.backward(torch.mm(by_parameters, self._head.weight))
        metrics["actor_loss"] = (alpha * drawn.log_prob - least).mean()
        metrics["entropy"] = -drawn.log_prob.mean()
        return metrics, errors, drawn.log_prob

    def _of_critics(
        self, values: Tensor, targets: Tensor, weights: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Set the gradients of the critics; return metrics and errors [B]."""
        errors = values - targets
        weighted = errors if weights is None else errors * weights
        by_values = weighted / len(targets)
        self._critics.backward(by_values)
        size = errors.abs().mean(0)
        metrics = {
            "loss": 0.5 * (by_values * errors).sum(),
            "q_mean": values.mean(),
            "td_error_mean": size.mean(),
        }
        return metrics, size

    def _by_parameters(
        self, parameters: Tensor, noise: Tensor, drawn: Drawn, by_actions: Tensor, alpha: Tensor
    ) -> Tensor:
        """Return the gradient of the policy's loss by its parameters [B, 2A]; ``by_actions``: its
        gradient by the drawn actions, through the critics."""
        rows, log_std = len(parameters), parameters.chunk(2, -1)[1]
        inside = (log_std >= MIN_LOG_STD) & (log_std <= MAX_LOG_STD)
        a = drawn.actions
        # d log pi / du = 2 tanh u, and da / du = 1 - tanh(u) ** 2
        by_u = by_actions * (1 - a * a) + (2.0 / rows * alpha) * a
        std = log_std.clamp(MIN_LOG_STD, MAX_LOG_STD).exp()
        by_log_std = (by_u * std * noise - alpha / rows) * inside
        return torch.cat((by_u, by_log_std), 1)


def passes_of(model: ActorCritic, critics: Critics, target: Critics) -> SacPasses | None:
    """Return the passes of a learner's networks by hand, or None if there are none for them.

    There are for MLP encoders of tanh, relu or elu layers, without LayerNorm and embeddings, in
    float32, all of whose parameters are trained and flat."""
    encoder = critics.encoder
    if type(encoder) is not Vector or any(True for _ in encoder.parameters()):
        return None
    if critics.norms is not None or derivative(critics.act) is None or not is_dense(model.actor):
        return None
    if not is_trained(model) or not is_trained(critics):
        return None
    return SacPasses(model, critics, target)


def _part(layer: tuple[Tensor, Tensor], number: int) -> tuple[Tensor, Tensor]:
    """Return weight [out, in] and bias [out] of one critic, with their gradients."""
    weights, biases = layer
    weight, bias = weights.detach()[number], biases.detach()[number, 0]
    if weights.grad is not None and biases.grad is not None:
        weight.grad, bias.grad = weights.grad[number], biases.grad[number, 0]
    return weight, bias
