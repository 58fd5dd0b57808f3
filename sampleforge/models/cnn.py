"""Image encoders: DQN's CNN, Nature CNN, Doom CNN and IMPALA's ResNet, with an MLP for the leaves
that are not images.

Images, pixels and planes of `sampleforge.encoding`, arrive as they were stored, and keep their
dtype until the first convolution, unless a normaliser has made floats of them. For bytes its
weights are divided by 255 instead of the images: these are 8 thousand numbers instead of 28
thousand per image, and it is exact in bfloat16, which holds every integer up to 256.

channels_last, made while the images are still bytes, measured on one core of an EPYC with AVX-512
for Nature CNN on 84x84x4, against [N, C, H, W], in ms: forward and backward of 256, fp32 107-118
against 166-201, bf16 59 against 60-87; forward of 16, fp32 2.6 against 2.5-2.9, bf16 1.65 against
1.7-2.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sampleforge.config import ConfigError
from sampleforge.encoding import Encoding, describe, image_size
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoders import (
    Activation,
    Dense,
    Vector,
    activation,
    orthogonal_,
    out_of_place,
)
from sampleforge.spec import ArraySpec

CPU_PIECE = 128
"""Number of images that go through the convolutions at a time on a CPU."""
Convolutions = Callable[[int, int, Activation, bool], list[nn.Module]]
"""Makes the modules that map [N, channels, H, W] to [N, *], of which the first is a Conv2d, from
the number of channels, the smaller of H and W, the activation, and whether there are LayerNorms."""


class ImageEncoder(nn.Module):
    """Encodes each image leaf by the convolutions that ``config.encoder`` names and a dense layer
    of ``cnn_features``, and all other leaves together by the MLP's layers; returns the
    concatenation."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        found = config.encodings(observations)
        self.images = {n: spec for n, spec in observations.items() if found[n].is_convolved}
        if not self.images:
            lines = [describe(name, spec, found[name]) for name, spec in observations.items()]
            raise ConfigError(
                f"--model.encoder {config.encoder}: no observation leaf is encoded as pixels or "
                f"planes ({'; '.join(lines)}); use mlp or auto, or --model.encode LEAF=pixels"
            )
        towers = (ImageTower(spec, found[name], config) for name, spec in self.images.items())
        self.towers = nn.ModuleList(towers)
        self.out_features = config.cnn_features * len(self.images)
        rest = {name: spec for name, spec in observations.items() if name not in self.images}
        self.vector = Vector(rest, config) if rest else None
        if self.vector is not None:
            rest_act = activation(config.activation, "tanh")
            self.dense = Dense(
                self.vector.out_features,
                config.widths,
                rest_act,
                layer_norm=bool(config.layer_norm),
            )
            self.out_features += self.dense.out_features

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        parts = [tower(obs[name]) for tower, name in zip(self.towers, self.images, strict=True)]
        if self.vector is not None:
            parts.append(self.dense(self.vector(obs)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class ImageTower(nn.Module):
    """Encodes one image leaf, [N, ...] -> [N, cnn_features]."""

    def __init__(self, spec: ArraySpec, encoding: Encoding, config: ModelConfig) -> None:
        super().__init__()
        act, layer_norm = activation(config.activation, "relu"), bool(config.layer_norm)
        self.is_channel_last = encoding.channel_last
        self.scale = 1.0 if encoding.has_statistics else encoding.factor
        """The factor of what arrives: what is normalised has its scale already."""
        self.in_pieces = True
        """Whether a batch goes through the convolutions in pieces on a CPU. An export sets it to
        False, because the number of pieces depends on the size of the batch."""
        c, h, w = image_size(spec.shape, self.is_channel_last)
        stem, *rest = CONVOLUTIONS[config.encoder](c, min(h, w), act, layer_norm)
        assert isinstance(stem, nn.Conv2d)
        self.stem, self.rest = stem, nn.Sequential(*rest)
        with torch.no_grad():
            flat = self._convolve(torch.zeros(1, c, h, w), 1.0).flatten(1).shape[1]
        self.dense = Dense(flat, (config.cnn_features,), act, layer_norm=layer_norm)

    def forward(self, x: Tensor) -> Tensor:
        x = self._with_channels(x)
        # On a CPU, pieces stay in the cache from one layer to the next and back. Measured for 2048
        # images of 84x84x4, forward and backward: 320 instead of 402 us each in bf16, 570 instead
        # of 679 in fp32; no difference for 256 images.
        splits = self.in_pieces and x.device.type == "cpu"
        pieces = torch.split(x, CPU_PIECE) if splits else (x,)
        convolved = [
            self._convolve(self._as_input(piece), self.scale).flatten(1) for piece in pieces
        ]
        whole = convolved[0] if len(convolved) == 1 else torch.cat(convolved)
        features: Tensor = self.dense(whole)
        return features

    def hold_in_bf16(self) -> None:
        """Hold the weights that `forward` converts to bf16 in every pass under autocast in bf16:
        the results stay the same to the bit. The stem's stay, because `_convolve` scales them in
        fp32 first."""
        layers = (layer for layer in self.rest.modules() if isinstance(layer, nn.Conv2d))
        weights = [tensor for layer in layers for tensor in layer.parameters()]
        for parameter in (*weights, *(tensor for layer in self.dense.layers for tensor in layer)):
            parameter.data = parameter.data.bfloat16()

    def _with_channels(self, x: Tensor) -> Tensor:
        """Return images of any layout as [N, C, H, W]; the channels of a stack are joined."""
        if x.ndim == 3:
            return x.unsqueeze(1)
        if self.is_channel_last:
            x = x.movedim(-1, -3)
        return x.flatten(1, 2) if x.ndim == 5 else x

    def _as_input(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last).to(self._dtype(x.device))

    def _convolve(self, x: Tensor, scale: float) -> Tensor:
        stem = self.stem
        weight = stem.weight if scale == 1.0 else stem.weight * scale
        x = F.conv2d(x, weight, stem.bias, stem.stride, stem.padding)
        convolved: Tensor = self.rest(x)
        return convolved

    def _dtype(self, device: torch.device) -> torch.dtype:
        """Return the dtype of the convolutions. Under autocast a float32 copy would be converted a
        second time."""
        if torch.is_autocast_enabled(device.type):
            return torch.get_autocast_dtype(device.type)
        return self.stem.weight.dtype


class Activate(nn.Module):
    """An activation as a module."""

    def __init__(self, act: Activation) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


def nature_cnn(
    channels: int, smaller_side: int, act: Activation, layer_norm: bool
) -> list[nn.Module]:
    """The CNN of Mnih et al. 2015: 32 8x8/4, 64 4x4/2, 64 3x3/1. For images with a side below 36
    pixels, which are too small for it: 16 3x3/1, 32 3x3 (stride 1 below 16 pixels, as for MinAtar,
    else 2)."""
    layers = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    if smaller_side < 36:
        layers = [(16, 3, 1), (32, 3, 1 if smaller_side < 16 else 2)]
    return _stack(channels, layers, act, layer_norm)


def dqn_cnn(channels: int, smaller_side: int, act: Activation, layer_norm: bool) -> list[nn.Module]:
    """The CNN of Mnih et al. 2013 (arXiv 1312.5602), which A3C has too: 16 8x8/4, 32 4x4/2. Of an
    84x84x4 screen it takes a third of Nature CNN's multiplications (with 256 --model.cnn-features,
    as there: 2.9M instead of 9.3M)."""
    if smaller_side < 20:
        raise ConfigError(
            f"--model.encoder dqn_cnn needs images of at least 20x20 pixels, not "
            f"{smaller_side} on a side; use nature_cnn"
        )
    return _stack(channels, [(16, 8, 4), (32, 4, 2)], act, layer_norm)


def doom_cnn(
    channels: int, smaller_side: int, act: Activation, layer_norm: bool
) -> list[nn.Module]:
    """The CNN of Petrenko et al. 2020 (arXiv 2006.11751, appendix): 32 8x8/4, 64 4x4/2, 128 3x3/2.
    It leaves 18 positions of a screen of 128x72, where Nature CNN leaves 60."""
    if smaller_side < 44:
        raise ConfigError(
            f"model.encoder doom_cnn needs images of at least 44x44 pixels, not {smaller_side} "
            "on a side; use nature_cnn"
        )
    layers = [(32, 8, 4), (64, 4, 2), (128, 3, 2)]
    return _stack(channels, layers, act, layer_norm)


def _stack(
    channels: int, layers: list[tuple[int, int, int]], act: Activation, layer_norm: bool
) -> list[nn.Module]:
    """Return convolutions (width, kernel, stride) without padding, with an activation after each;
    with ``layer_norm`` normalised before it, over channels and pixels."""
    modules: list[nn.Module] = []
    for width, kernel, stride in layers:
        modules.append(orthogonal_(nn.Conv2d(channels, width, kernel, stride)))
        if layer_norm:
            modules.append(nn.GroupNorm(1, width))
        modules.append(Activate(act))
        channels = width
    return modules


def impala_resnet(
    channels: int, smaller_side: int, act: Activation, layer_norm: bool
) -> list[nn.Module]:
    """The ResNet of Espeholt et al. 2018 (arXiv 1802.01561, figure 3, large): 16, 32, 32 channels,
    each with a convolution, a 3x3/2 max-pool and two residual blocks."""
    if layer_norm:
        raise ConfigError(
            "--model.layer-norm --model.encoder impala_resnet: its residual blocks have no "
            "normalisation; leave it out, or use nature_cnn"
        )
    modules: list[nn.Module] = []
    for width in (16, 32, 32):
        conv = orthogonal_(nn.Conv2d(channels, width, 3, padding=1))
        blocks = [Residual(width, act), Residual(width, act)]
        modules += [conv, nn.MaxPool2d(3, 2, padding=1), *blocks]
        channels = width
    return [*modules, Activate(act)]


class Residual(nn.Module):
    """A residual block: x + conv(act(conv(act(x)))), with 3x3 convolutions."""

    def __init__(self, width: int, act: Activation) -> None:
        super().__init__()
        self.act, self.pure_act = act, out_of_place(act)
        self.first = orthogonal_(nn.Conv2d(width, width, 3, padding=1))
        self.second = orthogonal_(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(self.pure_act(x))
        out: Tensor = x + self.second(self.act(inner))
        return out


CONVOLUTIONS: dict[str, Convolutions] = {
    "nature_cnn": nature_cnn,
    "dqn_cnn": dqn_cnn,
    "doom_cnn": doom_cnn,
    "impala_resnet": impala_resnet,
}
