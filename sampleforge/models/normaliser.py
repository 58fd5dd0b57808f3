"""Normalisation of observations by running statistics, which are merged exactly, outside the
forward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sampleforge.config import ConfigError
from sampleforge.encoding import Encoding, describe
from sampleforge.models.config import ModelConfig
from sampleforge.ops.far_values import extremes
from sampleforge.ops.running_stats import Gather, Moments, alone, merge, moments, over_ranks
from sampleforge.spec import ACTION_MASK, ArraySpec

CLIP = 10.0
"""Normalised observations are clipped to +- this."""
FAR = 100.0
"""An observation of so many deviations from the mean is far; it counts in the statistics as one of
`CLIP` deviations, which is how the network sees it."""
WARM_UP = 1000
"""Number of observations from which on the statistics tell which ones are far; before, the middle
half of each batch does."""
MIDDLE = 1.349
"""Width of the middle half of a normal distribution, in deviations."""
RARE, MANY, PART = 1 / CLIP**2, 1000.0, 0.1
"""If more than `RARE` of the observations of an element are far, its scale has changed: when `MANY`
more, plus `PART` of a batch, have come, `FAR` and `CLIP` are ten times as wide for its statistics,
and so on. (Rarer ones can never be within `CLIP` deviations, however they are counted.)"""
MANY_NUMBERS = 4096
"""Numbers of a leaf above which it counts as large, as images are: 28 thousand each."""
LARGE_INTERVAL = 61
"""Of so many large leaves in a row, one is counted: a batch has thousands. A prime, so that those
of a batch are of different rows, unless there are 61, 122, ... of these."""


def normalised_leaves(
    observations: Mapping[str, ArraySpec], config: ModelConfig
) -> dict[str, ArraySpec]:
    """Return the leaves that are normalised by statistics: pixels by ``config.normalise_images``,
    vectors by ``config.normalise_observations``; see `sampleforge.encoding`.

    Bytes that are not an image may be codes of a grid, from 0 to 10. Divided by 255 they would all
    look alike (MiniGrid-Empty-5x5 as bytes, 38k env steps: return .73; normalised .95).
    """
    found = config.encodings(observations)
    return {
        name: spec
        for name, spec in observations.items()
        if found[name].has_statistics and name != ACTION_MASK
    }


def make_normaliser(
    observations: Mapping[str, ArraySpec], config: ModelConfig
) -> ObservationNormaliser | None:
    """Return the normaliser of `normalised_leaves`, None if there are none. Raises ConfigError if
    images are to be normalised and no leaf is encoded as pixels."""
    leaves, found = normalised_leaves(observations, config), config.encodings(observations)
    if config.normalise_images and not any(found[name].is_convolved for name in leaves):
        lines = [describe(name, spec, found[name]) for name, spec in observations.items()]
        raise ConfigError(
            "--model.normalise-images: no observation leaf is encoded as pixels "
            f"({'; '.join(lines)}); leave the flag out, or use --model.encode LEAF=pixels"
        )
    return ObservationNormaliser(leaves, found) if leaves else None


def counted(x: Tensor, spec: ArraySpec) -> Tensor:
    """Return the rows of ``x`` [N, ...] that the statistics of a leaf count: of one that
    `MANY_NUMBERS` calls large one in `LARGE_INTERVAL`, else all."""
    return x[::LARGE_INTERVAL] if math.prod(spec.shape) > MANY_NUMBERS else x


class ObservationNormaliser(nn.Module):
    """Computes (x - mean) / std, clipped to +- 10, for some leaves of the observations.

    The statistics are buffers: they are published with the weights and saved in checkpoints. Only
    `update` and `merge` change them, which the learner calls. Before that the normaliser clips, and
    divides bytes by their largest bound. The standard deviation of integers counts as at least 1,
    the step between two values, because many elements of a grid hardly ever change.
    """

    is_frozen = False
    """Whether the statistics stay as they are, because the encoder does (--freeze)."""

    def __init__(self, leaves: Mapping[str, ArraySpec], encodings: Mapping[str, Encoding]) -> None:
        super().__init__()
        self.leaves = nn.ModuleDict()
        self._specs = dict(leaves)
        self._by_name: list[tuple[str, LeafNormaliser]] = []
        for name, spec in leaves.items():
            kind = ImageNormaliser if encodings[name].is_convolved else LeafNormaliser
            leaf = kind(spec, encodings[name])
            self.leaves[name.replace(".", "/")] = leaf  # a module's name may not hold a dot
            self._by_name.append((name, leaf))

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all leaves of ``obs`` [..., *shape], the normalised ones as float32, under
        autocast images in its dtype."""
        leaves = dict(obs)
        for name, leaf in self._by_name:
            leaves[name] = leaf.forward(obs[name])
        return leaves

    @property
    def is_new(self) -> bool:
        """Whether it has counted no observation. Waits for the device."""
        return all(float(leaf.count) == 0 for _, leaf in self._by_name)

    def __contains__(self, name: str) -> bool:
        """Return whether the observation leaf ``name`` is normalised."""
        return name in self._specs

    def leaf(self, name: str) -> LeafNormaliser:
        """Return the normaliser of one observation leaf."""
        return dict(self._by_name)[name]

    @torch.no_grad()
    def update(
        self, obs: Mapping[str, Tensor], mask: Tensor | None = None, gather: Gather = alone
    ) -> None:
        """Count the observations [N, *shape] where ``mask`` (bool [N]) is True, of images those of
        `counted`. The caller passes each observation exactly once. ``gather`` adds those that the
        other ranks count at the same time."""
        if self.is_frozen:
            return
        for name, leaf in self._by_name:
            spec = self._specs[name]
            some = None if mask is None else counted(mask, spec)
            leaf.merge(over_ranks(leaf.moments(counted(obs[name], spec), some), gather))

    @torch.no_grad()
    def merge(self, seen: Mapping[str, Moments]) -> None:
        """Merge the moments of observations that were counted elsewhere."""
        if self.is_frozen:
            return
        for name, leaf in self._by_name:
            leaf.merge(seen[name])


class LeafNormaliser(nn.Module):
    """Normalises one leaf. ``total_mean``, ``total_var`` and ``count`` are exact, float64;
    ``scale`` = 1 / std and ``mean``, float32, are used by the forward pass: (x - mean) * scale, in
    which an element that never changes becomes 0 however far from 0 it is. With x * scale - mean *
    scale it would be what rounding leaves of two large numbers, another one in each backend."""

    total_mean: Tensor
    total_var: Tensor
    count: Tensor
    scale: Tensor
    mean: Tensor
    evidence: Tensor
    """float64 [*shape]: evidence of a change of scale; far observations are those of more than
    ``FAR * 10 ** evidence`` deviations. Not stored."""

    def __init__(self, spec: ArraySpec, encoding: Encoding) -> None:
        super().__init__()
        shape = spec.shape
        self.channel_last = encoding.channel_last
        self.of_bytes = spec.dtype == "uint8"
        self.of_integers = not spec.dtype.startswith("float")
        self.register_buffer("total_mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("total_var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale", torch.full(shape, encoding.factor))
        self.register_buffer("mean", torch.zeros(shape))
        zeros = torch.zeros(shape, dtype=torch.float64)
        self.register_buffer("evidence", zeros, persistent=False)
        self._known = False

    def forward(self, x: Tensor) -> Tensor:
        buffers = self._buffers  # attribute look-ups of a Module are slow
        y = torch.sub(x.float(), buffers["mean"])  # type: ignore[arg-type]
        return y.mul_(buffers["scale"]).clamp_(-CLIP, CLIP)  # type: ignore[arg-type]

    def moments(self, x: Tensor, mask: Tensor | None = None) -> Moments:
        """Return the moments of ``x`` [N, *shape] where ``mask`` is True, in which observations
        that are far by the statistics so far count as near ones. Without far ones the moments are
        those of `sampleforge.ops.running_stats.moments`. Waits for the device during the first
        `WARM_UP` observations only."""
        own = moments(x, mask)
        if self.of_bytes or (x.is_cpu and self._surely_near(x, own)):
            return own
        x = x.double()
        if not self._is_known():
            return moments(near_middle(x), mask) if len(x) >= 4 else own
        seen = torch.ones(len(x), dtype=torch.bool, device=x.device) if mask is None else mask
        seen = seen.view(-1, *[1] * (x.ndim - 1))
        wide = 10.0**self.evidence / self.scale
        offset = x - self.total_mean
        far = (offset.abs() > FAR * wide) & seen
        near = self.total_mean + offset.sign() * CLIP * wide
        more = (far.sum(0) - RARE * own.count) / (MANY + PART * own.count)
        self.evidence.copy_((self.evidence + more).clamp(0.0, 40.0))
        return moments(torch.where(far, near, x), mask)

    def _is_known(self) -> bool:
        """Return whether `WARM_UP` observations have been counted. Asks the device until they have:
        once or twice in a run."""
        self._known = self._known or float(self.count.cpu().numpy()) >= WARM_UP
        return self._known

    def _surely_near(self, x: Tensor, own: Moments) -> bool:
        """Return whether the moments of a batch show that none of its observations is far, because
        all of them together are not as far from the mean, or else its extremes."""
        if not self._is_known():
            return False
        # Counting is how numpy decides fastest; 2,048 x 4 numbers take 8 us here, 53 in `moments`.
        buffers = self._buffers  # attribute look-ups of a Module are slow
        if np.count_nonzero(buffers["evidence"].numpy()):  # type: ignore[union-attr]
            return False
        mean: npt.NDArray[Any] = buffers["total_mean"].numpy()  # type: ignore[union-attr]
        scale: npt.NDArray[Any] = buffers["scale"].numpy()  # type: ignore[union-attr]
        offset = own.mean.numpy() - mean
        squares = (own.var.numpy() + offset * offset) * scale * scale
        near = np.count_nonzero(x.shape[0] * squares <= FAR * FAR)
        if near == squares.size:
            return True
        low, high = extremes(x.numpy())
        return bool((np.maximum(mean - low, high - mean) * scale).max() <= FAR)

    def merge(self, more: Moments) -> None:
        total = merge(Moments(self.total_mean, self.total_var, self.count), more)
        scale = (total.var.clamp(min=1.0) if self.of_integers else total.var + 1e-8).rsqrt()
        some = total.count > 0  # else nothing changes; decided on the device, without waiting
        for buffer, value in (
            (self.total_mean, total.mean),
            (self.total_var, total.var),
            (self.count, total.count),
            (self.scale, scale),
            (self.mean, total.mean),
        ):
            buffer.copy_(torch.where(some, value, buffer))


def near_middle(x: Tensor) -> Tensor:
    """Return ``x`` [N, ...], in which numbers that are far from the middle half of their element
    count as near ones: the first observations, when no statistics tell what is far. An element
    whose middle half is one value is left as it is."""
    ordered = x.sort(0).values
    low, middle, high = (ordered[len(x) * part // 4] for part in (1, 2, 3))
    wide = (high - low) / MIDDLE
    offset = x - middle
    far = (offset.abs() > FAR * wide) & (wide > 0)
    return torch.where(far, middle + offset.sign() * CLIP * wide, x)


class ImageNormaliser(LeafNormaliser):
    """Normalises images of any layout, each pixel by its own mean and deviation.

    What never changes, most of a game's screen, becomes 0, and what is seldom there, as Pong's
    ball, stands out. Used for Atari by rl_games (https://github.com/Denys88/rl_games).
    """

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        has_autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if has_autocast else torch.float32
        inner = dtype if self.of_bytes else torch.float32
        # The channels last in memory, as encoders want them; bytes have the least to move.
        plain = self.channel_last or self.mean.ndim != 3
        layout = torch.contiguous_format if plain else torch.channels_last
        # (x - level) * scale + rest, where level is the mean, rounded. bfloat16 holds bytes and
        # their differences exactly, so its errors are relative to the result. Those of x - mean are
        # up to half a deviation for pixels that hardly ever change, and jump when the mean moves.
        level = self.mean.round()
        level, scale, rest = (
            one.unsqueeze(0).to(inner).contiguous(memory_format=layout)
            for one in (level, self.scale, (level - self.mean) * self.scale)
        )
        y = x.flatten(0, -1 - self.mean.ndim).contiguous(memory_format=layout).to(inner, copy=True)
        # In place: for 256 images of 84x84x4, 42 us each in bfloat16.
        torch.addcmul(rest, y.sub_(level), scale, out=y).clamp_(-CLIP, CLIP)
        return y.to(dtype).view(x.shape)
