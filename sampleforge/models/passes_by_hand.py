"""The passes of networks of dense layers by hand: forward without autograd, and backward straight
into the parameters' gradients. No input may require a gradient.

For two layers of 64 units, autograd takes longer than the arithmetic: it records each operation,
allocates each gradient and adds it to the one before. What is computed is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.encoders import MLP, Activation, derivative
from sampleforge.models.normaliser import ObservationNormaliser
from sampleforge.models.q_network import GreedyActions, QNetwork
from sampleforge.models.trunk import Trunk

MOST_INPUTS = 4096
"""Inputs of the first layer up to which passes are made by hand: once for a whole batch, of which
they take 16 KiB for each env step, not once for each minibatch. With BabyAI's 3,800 learning takes
335 us of an env step, by autograd 429."""

FEW_INPUTS = 24
"""Inputs up to which the transposed product of a layer's gradient is faster: for 256 x 4 inputs and
64 outputs 6 us instead of 14, for 256 x 23 and 256 outputs 48 instead of 88, because BLAS is slow
for a narrow result."""


def numpy_tanh_(x: Tensor) -> Tensor:
    """Replace ``x``, on the CPU, by its tanh. For 256 x 64 numbers torch.tanh takes 36 us, numpy's
    3 (an EPYC with AVX-512)."""
    if torch.compiler.is_compiling():
        return x.tanh_()
    array = x.numpy()
    np.tanh(array, out=array)
    return x


class DensePasses:
    """The passes of linear layers with an activation after each.

    ``layers``: weight [out, in] and bias [out] of each. Their gradients, if they have any, exist
    already, and `backward` overwrites them. All must stay where they are in memory.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], act: Activation) -> None:
        backward = derivative(act)
        assert backward is not None, f"no derivative of {act} is known"
        on_cpu = bool(layers) and layers[0][0].device.type == "cpu"
        self._act = numpy_tanh_ if on_cpu and act is torch.tanh_ else act
        self._derivative = backward
        self._layers = [Layer(weight, bias) for weight, bias in layers]
        self._outputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [N, out] for inputs [N, in]."""
        outputs = [x]
        for layer in self._layers:
            x = self._act(torch.addmm(layer.bias, x, layer.transposed))
            outputs.append(x)
        self._outputs = outputs
        return x

    def backward(self, gradient: Tensor) -> None:
        """Set the gradients of the parameters, given that of the first outputs of the last
        `forward`, [M, out]; the others have a gradient of 0."""
        outputs = self._outputs
        if len(gradient) < len(outputs[0]):
            outputs = [each[: len(gradient)] for each in outputs]
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            gradient = self._derivative(gradient, outputs[number + 1])
            layer.set_gradients(gradient, outputs[number])
            if number:
                gradient = torch.mm(gradient, layer.weight)

    def input_gradient(self, gradient: Tensor, rows: Tensor | None, columns: slice) -> Tensor:
        """Return the gradient [M, ...] of the ``columns`` of some inputs of the last `forward`,
        those with the indices ``rows`` [M] (None: of all), given that of their outputs, [M, out].
        Those of the parameters stay as they are."""
        if not self._layers:
            return gradient[:, columns]
        for number in reversed(range(len(self._layers))):
            weight, output = self._layers[number].weight, self._outputs[number + 1]
            output = output if rows is None else output.index_select(0, rows)
            gradient = self._derivative(gradient, output)
            if number:
                gradient = torch.mm(gradient, weight)
        # Of few columns, this order takes a third of the time.
        return torch.mm(weight[:, columns].t(), gradient.t()).t()


class Layer:
    """A linear layer, weight [out, in] and bias [out], and where its gradients are, if it has
    any."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight.detach(), bias.detach()
        self.transposed = self.weight.t()
        self._by_weight, self._by_bias = weight.grad, bias.grad

    def set_gradients(self, gradient: Tensor, inputs: Tensor) -> None:
        if torch.compiler.is_compiling():  # which makes one operation of a product and its copy
            assert self._by_weight is not None and self._by_bias is not None
            self._by_weight.copy_(torch.mm(gradient.t(), inputs))
            self._by_bias.copy_(gradient.sum(0))
            return
        if inputs.shape[1] < gradient.shape[1] and inputs.shape[1] <= FEW_INPUTS:
            assert self._by_weight is not None
            self._by_weight.copy_(torch.mm(inputs.t(), gradient).t())
        else:
            torch.mm(gradient.t(), inputs, out=self._by_weight)
        torch.sum(gradient, 0, out=self._by_bias)


class ActorCriticPasses:
    """The passes of an `ActorCritic`; `passes_of` says of which."""

    def __init__(self, model: ActorCritic) -> None:
        self._vector = VectorInputs(model.normaliser, model.actor)
        self._actor = dense_passes(model.actor)
        self._critic = None if model.critic is None else dense_passes(model.critic)
        self._policy = Layer(model.policy_weight, model.policy_bias)
        self._value_weight, self._value_bias = (
            model.value_weight.detach(),
            model.value_bias.detach(),
        )
        self._by_value = model.value_weight.grad, model.value_bias.grad
        self._log_std = None if model.log_std is None else model.log_std.detach()
        self._by_log_std = None if model.log_std is None else model.log_std.grad
        self._features: tuple[Tensor, Tensor] | None = None

    def inputs(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the inputs [N, in] of the first layer for observation leaves [N, ...]."""
        return self._vector(obs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parameters [N, P] of the action distribution and the values [N], in units of
        the model's ``value_scale``."""
        actor = self._actor.forward(x)
        critic = actor if self._critic is None else self._critic.forward(x)
        self._features = actor, critic
        parameters = torch.addmm(self._policy.bias, actor, self._policy.transposed)
        if self._log_std is not None:
            parameters = torch.cat((parameters, self._log_std.expand(len(parameters), -1)), 1)
        return parameters, torch.addmv(self._value_bias, critic, self._value_weight)

    def backward(self, by_parameters: Tensor, by_values: Tensor) -> None:
        """Set the gradients of the model's parameters, given those of the first outputs of the last
        `forward`, [M, P] and [M]; the others have a gradient of 0."""
        assert self._features is not None
        actor, critic = self._features
        if len(by_values) < len(actor):
            actor, critic = actor[: len(by_values)], critic[: len(by_values)]
        if self._log_std is not None:
            by_parameters, of_std = by_parameters.tensor_split([-len(self._log_std)], 1)
            torch.sum(of_std, 0, out=self._by_log_std)
        self._policy.set_gradients(by_parameters, actor)
        by_weight, by_bias = self._by_value
        torch.mv(critic.t(), by_values, out=by_weight)
        torch.sum(by_values, 0, keepdim=True, out=by_bias)
        by_actor = torch.mm(by_parameters, self._policy.weight)
        if self._critic is None:
            by_actor.addr_(by_values, self._value_weight)
        else:
            self._critic.backward(torch.outer(by_values, self._value_weight))
        self._actor.backward(by_actor)


def passes_of(model: nn.Module) -> ActorCriticPasses | None:
    """Return the passes of ``model`` by hand, or None if there are none for it.

    There are for an actor-critic with MLP encoders of tanh, relu or elu layers, without LayerNorm
    and embeddings and with at most `MOST_INPUTS` inputs, without a recurrent core, in float32, all
    of whose parameters are trained and flat (`sampleforge.algorithms.flat_parameters`), and whose
    passes are not compiled."""
    if type(model) is not ActorCritic or not model.has_values or "forward" in vars(model):
        return None
    if model.head is not None:
        return None
    trunks = [trunk for trunk in (model.actor, model.critic) if trunk is not None]
    if not all(map(is_dense, trunks)) or not is_trained(model):
        return None
    return ActorCriticPasses(model)


class QPasses:
    """The passes of a `QNetwork`; `q_passes_of` says of which. A target network has no gradients,
    so only its `q_values` can be computed."""

    def __init__(self, network: QNetwork) -> None:
        self._network = network
        self._vector = VectorInputs(network.normaliser, network.trunk)
        self._trunk = dense_passes(network.trunk)
        head = network.heads
        assert isinstance(head, nn.Linear)
        self._head = Layer(head.weight, head.bias)
        self._combine = self._split = None
        if network.dueling:  # Q = V + A - mean A as a product: one call for five
            count = network.num_actions
            eye = torch.eye(count, device=head.weight.device)
            self._combine = torch.cat((eye - 1.0 / count, torch.ones_like(eye[:1])))
            self._split = self._combine.t()
        self._features: Tensor | None = None

    def q_values(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the Q-values [B, A] of leaves [B, ...]."""
        self._features = self._trunk.forward(self._vector(obs))
        outputs = torch.addmm(self._head.bias, self._features, self._head.transposed)
        return outputs if self._combine is None else torch.mm(outputs, self._combine)

    def distribution(self, parameters: Tensor, obs: Mapping[str, Tensor]) -> GreedyActions:
        """Return what `QNetwork.distribution` returns."""
        return self._network.distribution(parameters, obs)

    def backward(self, by_q: Tensor) -> None:
        """Set the gradients of the network's parameters, given those of the Q-values [B, A] that
        `q_values` has returned last."""
        assert self._features is not None
        by_outputs = by_q if self._split is None else torch.mm(by_q, self._split)
        self._head.set_gradients(by_outputs, self._features)
        self._trunk.backward(torch.mm(by_outputs, self._head.weight))


def q_passes_of(network: QNetwork, target: QNetwork) -> tuple[QPasses, QPasses] | None:
    """Return the passes of a network and its target network by hand, or None if there are none.

    There are for Q-values (not distributions) of a network with an MLP encoder as in `passes_of`,
    and one plain linear layer as its head."""
    if type(network) is not QNetwork or network.value_distribution is not None:
        return None
    if not is_dense(network.trunk) or type(network.heads) is not nn.Linear:
        return None
    if not is_trained(network):
        return None
    return QPasses(network), QPasses(target)


class VectorInputs:
    """Observation leaves [N, ...] -> the inputs [N, in] of an MLP's first layer."""

    def __init__(self, normaliser: ObservationNormaliser | None, trunk: Trunk) -> None:
        encoder = trunk.encoder
        assert isinstance(encoder, MLP)
        self._normaliser, self._encoder = normaliser, encoder

    def __call__(self, obs: Mapping[str, Tensor]) -> Tensor:
        leaves = obs if self._normaliser is None else self._normaliser.forward(obs)
        name = self._encoder.plain_leaf
        return leaves[name] if name is not None else self._encoder.vector.forward(leaves)


def is_dense(trunk: Trunk) -> bool:
    """Return whether there are passes by hand of a trunk: see `passes_of`."""
    encoder = trunk.encoder
    if type(encoder) is not MLP or trunk.core is not None or derivative(encoder.act) is None:
        return False
    if encoder.norms is not None or any(True for _ in encoder.vector.parameters()):
        return False  # embeddings are trained as well
    return encoder.vector.out_features <= MOST_INPUTS


def is_trained(model: nn.Module, but: Sequence[Tensor | None] = ()) -> bool:
    """Return whether all parameters ``but`` these are trained, flat and in float32."""
    parameters = [p for p in model.parameters() if all(p is not other for other in but)]
    return all(p.grad is not None and p.dtype == torch.float32 for p in parameters)


def dense_passes(trunk: Trunk) -> DensePasses:
    """Return the passes of a trunk that `is_dense`."""
    encoder = trunk.encoder
    assert isinstance(encoder, MLP)
    return DensePasses(encoder.layers, encoder.act)
