"""The gradients of soft actor-critic by hand: each matrix product once, and no others.

Policy and critics are MLPs of one vector (`passes_of`). Each network is passed backward right after
its forward pass, while its layers' outputs are near. Of the actions that are drawn for the policy's
loss, only the gradient by them is needed, and only through the critic that gives the least value.
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
    """The passes of one of several critics, that with the index ``number``."""

    def __init__(self, critics: Critics, number: int) -> None:
        *hidden, head = (_part(layer, number) for layer in critics.layers)
        self._hidden, self._head = DensePasses(hidden, critics.act), Layer(*head)
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

    def add_input_gradient(self, by_values: Tensor, columns: slice, result: Tensor) -> None:
        """Add to ``result`` [B, ...] the gradient of the ``columns`` of the last inputs, given
        those of the values [B]. No product is made for a value whose gradient is 0."""
        rows = by_values.nonzero().squeeze(1)
        by_output = torch.mm(by_values.index_select(0, rows).unsqueeze(1), self._head.weight)
        result.index_add_(0, rows, self._hidden.input_gradient(by_output, rows, columns))


class SacPasses:
    """The passes of a learner's networks; `passes_of` says of which."""

    def __init__(self, model: ActorCritic, critics: Critics, target: Critics) -> None:
        self._inputs = VectorInputs(model.normaliser, model.actor)
        self._trunk = dense_passes(model.actor)
        self._head = Layer(model.policy_weight, model.policy_bias)
        self._critics = [CriticPasses(critics, i) for i in range(critics.count)]
        self._targets = [CriticPasses(target, i) for i in range(critics.count)]

    @torch.no_grad()
    def gradients(
        self, drawing: Drawing, actions: Tensor, alpha: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Set the gradients of the critics, and if the drawing ``acts`` those of the policy; return
        the metrics, the errors [B] and the log-probabilities [B] of the actions that were drawn at
        the observations (empty, if it does not act).

        ``actions`` [B, A]: those taken, in units of their bounds; ``alpha`` []: the temperature."""
        batch, noise, weights, _, acts = drawing
        now, later = self._inputs(batch.obs), self._inputs(batch.next_obs)
        drawn = draw(self._policy(later)[1], noise[0])
        x = torch.cat((later, drawn.actions), 1)
        values = torch.stack([target.forward(x) for target in self._targets])
        targets = soft_targets(batch.returns, batch.discount, values, drawn.log_prob, alpha)
        metrics, errors = self._of_critics(torch.cat((now, actions), 1), targets, weights)
        if not acts:
            return metrics, errors, targets[:0]
        features, parameters = self._policy(now)
        drawn = draw(parameters, noise[1])
        least, by_actions = self._of_actions(now, drawn.actions)
        by_parameters = self._by_parameters(parameters, noise[1], drawn, by_actions, alpha)
        self._head.set_gradients(by_parameters, features)
        self._trunk.backward(torch.mm(by_parameters, self._head.weight))
        metrics["actor_loss"] = (alpha * drawn.log_prob - least).mean()
        metrics["entropy"] = -drawn.log_prob.mean()
        return metrics, errors, drawn.log_prob

    def _policy(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features [B, F] and the parameters [B, 2A] of the policy."""
        features, head = self._trunk.forward(x), self._head
        # Of so few outputs, this order takes half the time.
        return features, torch.addmm(head.bias[:, None], head.weight, features.t()).t()

    def _of_critics(
        self, x: Tensor, targets: Tensor, weights: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Set the gradients of the critics; return metrics and errors [B]."""
        rows = len(targets)
        values, sizes, squares = [], [], []
        for critic in self._critics:
            values.append(critic.forward(x))
            errors = values[-1] - targets
            by_values = (errors if weights is None else errors * weights) / rows
            critic.backward(by_values)
            sizes.append(errors.abs())
            squares.append(torch.dot(by_values, errors))
        size = torch.stack(sizes).mean(0)
        metrics = {
            "loss": 0.5 * torch.stack(squares).sum(),
            "q_mean": torch.stack(values).mean(),
            "td_error_mean": size.mean(),
        }
        return metrics, size

    def _of_actions(self, now: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest values [B] of drawn actions [B, A], and the gradient of minus their
        mean by the actions."""
        x = torch.cat((now, actions), 1)
        values = torch.stack([critic.forward(x) for critic in self._critics])
        least = values.amin(0)
        which = (values == least).float()
        by_values = which / (-len(x) * which.sum(0))  # as torch has it where two are equal
        by_actions = torch.zeros_like(actions)
        for critic, by_own in zip(self._critics, by_values, strict=True):
            critic.add_input_gradient(by_own, slice(now.shape[1], None), by_actions)
        return least, by_actions

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
