"""Normalisation of observations by running statistics, which are merged exactly, outside the
forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoders import is_channel_last, is_image
from sampleforge.ops.running_stats import Gather, Moments, alone, merge, moments, over_ranks
from sampleforge.spec import ACTION_MASK, ArraySpec

CLIP = 10.0
"""Normalised observations are clipped to +- this."""
IMAGE_INTERVAL = 61
"""Of so many images in a row, one is counted: a batch has thousands, and 28 thousand numbers each.
A prime, so that the images of a batch are of different rows."""


def normalised_leaves(
    observations: Mapping[str, ArraySpec], config: ModelConfig
) -> dict[str, ArraySpec]:
    """Return the leaves that are normalised: of floats or bytes, images by
    ``config.normalise_images``, others by ``config.normalise_observations``. Categories and masks
    have their scale already.

    Bytes that are not an image may be codes of a grid, from 0 to 10. Divided by 255 they would all
    look alike (MiniGrid-Empty-5x5 as bytes, 38k env steps: return .73; normalised .95).
    """
    return {
        name: spec
        for name, spec in observations.items()
        if spec.dtype.startswith(("float", "uint8"))
        and spec.categories is None
        and (config.normalise_images if is_image(spec) else config.normalise_observations)
        and name != ACTION_MASK
    }


def make_normaliser(
    observations: Mapping[str, ArraySpec], config: ModelConfig
) -> ObservationNormaliser | None:
    """Return the normaliser of `normalised_leaves`, None if there are none. Raises ConfigError if
    images are to be normalised and no leaf is one of bytes or floats."""
    leaves = normalised_leaves(observations, config)
    if config.normalise_images and not any(map(is_image, leaves.values())):
        shapes = {name: (spec.shape, spec.dtype) for name, spec in observations.items()}
        raise ConfigError(
            "--model.normalise-images: no observation leaf is an image of bytes or floats (rank 3, "
            f"at least 8x8 pixels): {shapes}; leave the flag out"
        )
    return ObservationNormaliser(leaves) if leaves else None


def counted(x: Tensor, spec: ArraySpec) -> Tensor:
    """Return the rows of ``x`` [N, ...] that the statistics of a leaf count: of images one in
    `IMAGE_INTERVAL`, else all."""
    return x[::IMAGE_INTERVAL] if is_image(spec) else x


class ObservationNormaliser(nn.Module):
    """Computes (x - mean) / std, clipped to +- 10, for some leaves of the observations.

    The statistics are buffers: they are published with the weights and saved in checkpoints. Only
    `update` and `merge` change them, which the learner calls. Before that the normaliser clips and
    divides bytes by 255. The standard deviation of bytes counts as at least 1, the step between
    two values, because many elements of a grid hardly ever change.
    """

    def __init__(self, leaves: Mapping[str, ArraySpec]) -> None:
        super().__init__()
        self.leaves = nn.ModuleDict()
        self._specs = dict(leaves)
        self._by_name: list[tuple[str, LeafNormaliser]] = []
        for name, spec in leaves.items():
            kind = ImageNormaliser if is_image(spec) else LeafNormaliser
            leaf = kind(spec.shape, of_bytes=spec.dtype == "uint8")
            self.leaves[name.replace(".", "/")] = leaf  # a module's name may not hold a dot
            self._by_name.append((name, leaf))

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all leaves of ``obs`` [..., *shape], the normalised ones as float32, under
        autocast images in its dtype."""
        leaves = dict(obs)
        for name, leaf in self._by_name:
            leaves[name] = leaf.forward(obs[name])
        return leaves

    def leaf(self, name: str) -> LeafNormaliser:
        """Return the normaliser of one observation leaf."""
        return dict(self._by_name)[name]

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *more: Any, **named: Any
    ) -> None:
        for name, leaf in self._by_name:
            stored = f"{prefix}leaves.{name.replace('.', '/')}.count"
            if leaf.of_bytes and stored not in state_dict:
                raise ConfigError(
                    "the checkpoint was written by a version that divided the bytes of "
                    f"observation leaf {name!r} by 255, and this one normalises them by mean and "
                    "deviation, so its weights do not fit; train anew in another --run-dir"
                )
        super()._load_from_state_dict(state_dict, prefix, *more, **named)

    @torch.no_grad()
    def update(
        self, obs: Mapping[str, Tensor], mask: Tensor | None = None, gather: Gather = alone
    ) -> None:
        """Count the observations [N, *shape] where ``mask`` (bool [N]) is True, of images those of
        `counted`. The caller passes each observation exactly once. ``gather`` adds those that the
        other ranks count at the same time."""
        for name, leaf in self._by_name:
            spec = self._specs[name]
            some = None if mask is None else counted(mask, spec)
            leaf.merge(over_ranks(moments(counted(obs[name], spec), some), gather))

    @torch.no_grad()
    def merge(self, seen: Mapping[str, Moments]) -> None:
        """Merge the moments of observations that were counted elsewhere."""
        for name, leaf in self._by_name:
            leaf.merge(seen[name])


class LeafNormaliser(nn.Module):
    """Normalises one leaf. ``total_mean``, ``total_var`` and ``count`` are exact, float64;
    ``scale`` = 1 / std and ``shift`` = -mean / std, float32, are used by the forward pass."""

    total_mean: Tensor
    total_var: Tensor
    count: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, shape: tuple[int, ...], of_bytes: bool = False) -> None:
        super().__init__()
        self.of_bytes = of_bytes
        self.register_buffer("total_mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("total_var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale", torch.full(shape, 1 / 255 if of_bytes else 1.0))
        self.register_buffer("shift", torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        buffers = self._buffers  # attribute look-ups of a Module are slow
        y = torch.addcmul(buffers["shift"], x.float(), buffers["scale"])  # type: ignore[arg-type]
        return y.clamp_(-CLIP, CLIP)

    def merge(self, more: Moments) -> None:
        total = merge(Moments(self.total_mean, self.total_var, self.count), more)
        scale = (total.var.clamp(min=1.0) if self.of_bytes else total.var + 1e-8).rsqrt()
        some = total.count > 0  # else nothing changes; decided on the device, without waiting
        for buffer, value in (
            (self.total_mean, total.mean),
            (self.total_var, total.var),
            (self.count, total.count),
            (self.scale, scale),
            (self.shift, -total.mean * scale),
        ):
            buffer.copy_(torch.where(some, value, buffer))


class ImageNormaliser(LeafNormaliser):
    """Normalises images [..., C, H, W] or [..., H, W, C], each pixel by its own mean and deviation.

    What never changes, most of a game's screen, becomes 0, and what is seldom there, as Pong's
    ball, stands out. Used for Atari by rl_games (https://github.com/Denys88/rl_games).
    """

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        has_autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if has_autocast else torch.float32
        inner = dtype if self.of_bytes else torch.float32
        # The channels last in memory, as encoders want them; bytes have the least to move.
        is_last = is_channel_last(tuple(self.shift.shape))
        layout = torch.contiguous_format if is_last else torch.channels_last
        # (x - level) * scale + rest, where level is the mean, rounded. bfloat16 holds bytes and
        # their differences exactly, so its errors are relative to the result. Those of
        # x * scale + shift are up to half a deviation for pixels that hardly ever change, and jump
        # when the mean moves.
        level = (self.shift / self.scale).neg().round()
        level, scale, rest = (
            one.unsqueeze(0).to(inner).contiguous(memory_format=layout)
            for one in (level, self.scale, torch.addcmul(self.shift, level, self.scale))
        )
        y = x.flatten(0, -4).contiguous(memory_format=layout).to(inner, copy=True)
        # In place: for 256 images of 84x84x4, 42 us each in bfloat16.
        torch.addcmul(rest, y.sub_(level), scale, out=y).clamp_(-CLIP, CLIP)
        return y.to(dtype).view(x.shape)
