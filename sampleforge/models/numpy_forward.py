"""The forward pass of an MLP actor-critic in numpy, for the few rows of an actor's step.

At 64 rows torch takes as long to call the operations of such a network as to compute them. Here the
arrays between the layers are made once, and each layer is two calls: a matrix product, in which a
constant input of 1 stands for the bias, and the activation. Arrays are [features, rows], so that
what follows (a softmax over few actions) works on whole rows of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.encoders import MLP
from sampleforge.models.normaliser import CLIP
from sampleforge.models.trunk import Trunk

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

MAX_ROWS = 512
"""Number of rows up to which this pass is used, and was measured: it takes a quarter of torch's
time there (benchmarks/results/inference.md)."""
_ZERO, _LOW, _HIGH = (np.array(x, np.float32) for x in (0.0, -CLIP, CLIP))


def _tanh(x: Floats) -> None:
    np.tanh(x, out=x)


def _relu(x: Floats) -> None:
    np.maximum(x, _ZERO, out=x)


_ACTIVATIONS: dict[Any, Callable[[Floats], None]] = {torch.tanh_: _tanh, torch.relu_: _relu}


class Outputs(NamedTuple):
    """The outputs of a pass for ``B`` rows, valid until the next pass of as many rows."""

    head: Floats
    """[H, B], the outputs of the policy head: the parameters of the action distribution, but for a
    learned standard deviation."""
    values: Floats
    """[B], in units of returns."""


class NumpyForward:
    """Computes what `ActorCritic.step` computes, up to rounding, from the arrays of a CPU model.

    It has a copy of the weights; call `follow` whenever those of the model have changed.
    """

    def __init__(self, model: ActorCritic) -> None:
        """``model``: one that `has_numpy_forward`."""
        trunks = [trunk for trunk in (model.actor, model.critic) if trunk is not None]
        encoders = [encoder for encoder in (t.encoder for t in trunks) if isinstance(encoder, MLP)]
        leaf = encoders[0].plain_leaf
        assert leaf is not None and len(encoders) == len(trunks)
        self._leaf = leaf
        self._activation = _ACTIVATIONS[encoders[0].act]
        self._multiply = np.dot if len(trunks) == 1 else np.matmul  # dot has the quicker call
        self._mean = self._scale = None
        if model.normaliser is not None:
            normaliser = model.normaliser.leaf(leaf)
            self._mean, self._scale = (_array(x)[:, None] for x in _of(normaliser))
        self._copies: list[tuple[Floats, Floats, Floats]] = []
        self._value_scale = _array(model.value_scale)
        layers = zip(*(encoder.layers for encoder in encoders), strict=True)
        self._layers = [self._stacked(list(each)) for each in layers]
        self._make_heads(model, len(trunks))
        self._workspaces: dict[int, _Workspace] = {}
        self.follow()

    def _stacked(self, layers: list[tuple[torch.Tensor, torch.Tensor]]) -> Floats:
        """Return the array of the weights of one layer, [out, in + 1], or, of both trunks, [2, out,
        in + 1]; the last column is the bias."""
        outputs, inputs = layers[0][0].shape
        stacked = np.empty((len(layers), outputs, inputs + 1), np.float32)
        for part, (weight, bias) in zip(stacked, layers, strict=True):
            self._copies.append((part, _array(weight), _array(bias)))
        return stacked[0] if len(layers) == 1 else stacked

    def _make_heads(self, model: ActorCritic, trunks: int) -> None:
        """Make the arrays of the weights of the heads: of one trunk they are one array, with the
        value last."""
        weight, bias = _array(model.policy_weight), _array(model.policy_bias)
        self._num_outputs, inputs = weight.shape
        both = np.empty((self._num_outputs + 1, inputs + 1), np.float32)
        policy, value = both[:-1], both[-1:]
        self._copies.append((policy, weight, bias))
        self._copies.append((value, _array(model.value_weight)[None], _array(model.value_bias)))
        self._value = value
        self._heads = [both] if trunks == 1 else [policy, value]

    def follow(self) -> None:
        """Copy the weights of the model."""
        for into, weight, bias in self._copies:
            into[:, :-1] = weight
            into[:, -1] = bias
        self._value *= self._value_scale

    def __call__(self, obs: Mapping[str, Array]) -> Outputs:
        """Return the outputs for observation leaves [B, ...]."""
        x = obs[self._leaf]
        workspace = self._workspaces.get(len(x))
        if workspace is None:
            workspace = self._workspaces[len(x)] = self._workspace(len(x))
        inputs = workspace.inputs
        if self._mean is None or self._scale is None:
            inputs[...] = x.T
        else:
            np.subtract(x.T, self._mean, out=inputs, dtype=np.float32, casting="unsafe")
            np.multiply(inputs, self._scale, out=inputs)
            np.maximum(inputs, _LOW, out=inputs)
            np.minimum(inputs, _HIGH, out=inputs)
        multiply, activation = self._multiply, self._activation
        for weight, before, after in workspace.layers:
            multiply(weight, before, out=after)
            activation(after)
        for weight, before, after in workspace.heads:
            np.dot(weight, before, out=after)
        return workspace.outputs

    def _workspace(self, rows: int) -> _Workspace:
        """Return the arrays of a pass of ``rows`` rows."""
        size = (self._layers or self._heads)[0].shape[-1]
        before = np.ones((size, rows), np.float32)
        inputs = before[:-1]
        steps: list[tuple[Floats, Floats, Floats]] = []
        for weight in self._layers:
            *trunks, outputs, _ = weight.shape
            after = np.ones((*trunks, outputs + 1, rows), np.float32)
            steps.append((weight, before, after[..., :-1, :]))
            before = after
        both = np.empty((self._num_outputs + 1, rows), np.float32)
        if len(self._heads) == 1:
            heads = [(self._heads[0], before, both)]
        else:
            actor, critic = before if before.ndim == 3 else (before, before)
            heads = [(self._heads[0], actor, both[:-1]), (self._heads[1], critic, both[-1:])]
        return _Workspace(inputs, steps, heads, Outputs(both[:-1], both[-1]))


class _Workspace(NamedTuple):
    """The arrays of a pass of a number of rows: ``inputs`` [features, B], and of each layer and
    head its weights, its input and its output."""

    inputs: Floats
    layers: list[tuple[Floats, Floats, Floats]]
    heads: list[tuple[Floats, Floats, Floats]]
    outputs: Outputs


def has_numpy_forward(model: ActorCritic) -> bool:
    """Return whether `NumpyForward` can compute the outputs of ``model``: an MLP of one vector of
    numbers, with tanh or relu, without LayerNorm and a core, in float32 on the CPU."""
    trunks = [trunk for trunk in (model.actor, model.critic) if trunk is not None]
    is_known = type(model) is ActorCritic and model.has_values and model.head is None
    return is_known and all(map(_is_plain, trunks))


def _is_plain(trunk: Trunk) -> bool:
    encoder = trunk.encoder
    if type(encoder) is not MLP or encoder.plain_leaf is None or trunk.core is not None:
        return False
    if encoder.norms is not None:
        return False
    on_cpu = all(x.device.type == "cpu" and x.dtype == torch.float32 for x in trunk.parameters())
    return on_cpu and encoder.act in _ACTIVATIONS


def _of(normaliser: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    mean, scale = normaliser.mean, normaliser.scale
    assert isinstance(mean, torch.Tensor) and isinstance(scale, torch.Tensor)
    return mean, scale


def _array(tensor: torch.Tensor) -> Floats:
    """Return the memory of a tensor on the CPU as an array."""
    array: Floats = tensor.detach().numpy()
    return array
