"""The MLP encoder, the conversion of observation leaves to vectors, and parts that all encoders
use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.spec import ArraySpec

Activation = Callable[[Tensor], Tensor]
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def _elu_(x: Tensor) -> Tensor:
    """A function, as the others: a copy of a network must have the same activation."""
    return F.elu(x, inplace=True)


# In place where autograd needs only the result: one allocation less per layer.
_ACTIVATIONS: dict[str, Activation] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "elu": _elu_,
    "silu": F.silu,
}


def activation(name: str, default: str) -> Activation:
    """Return the activation ``name``, or ``default`` for "auto". It may overwrite its argument."""
    return _ACTIVATIONS[default if name == "auto" else name]


def out_of_place(act: Activation) -> Activation:
    """Return the same activation in a form that does not overwrite its argument."""
    pure: dict[Activation, Activation] = {
        torch.tanh_: torch.tanh,
        torch.relu_: torch.relu,
        _elu_: F.elu,
    }
    return pure.get(act, act)


def derivative(act: Activation) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the backward pass of an activation: (gradient of its output, output) -> gradient of
    its argument. None if it needs the argument itself."""
    aten = torch.ops.aten
    known: dict[Activation, Callable[[Tensor, Tensor], Tensor]] = {
        torch.tanh_: aten.tanh_backward.default,
        torch.relu_: lambda gradient, y: aten.threshold_backward.default(gradient, y, 0),
        _elu_: lambda gradient, y: aten.elu_backward.default(gradient, 1, 1, 1, True, y),
    }
    return known.get(act)


def orthogonal_(layer: Layer, gain: float = math.sqrt(2.0)) -> Layer:
    """Initialise a layer with orthogonal weights and zero bias; return the layer."""
    assert layer.bias is not None
    make_orthogonal(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


_TO_BE_LOADED: ContextVar[bool] = ContextVar("weights to be loaded", default=False)


@contextmanager
def to_be_loaded() -> Iterator[None]:
    """Return a context for making networks whose weights are loaded afterwards: they are not made
    orthogonal, which takes 60 ms for Nature CNN. As many random numbers are drawn as otherwise."""
    token = _TO_BE_LOADED.set(True)
    try:
        yield
    finally:
        _TO_BE_LOADED.reset(token)


def make_orthogonal(weight: Tensor, gain: float = 1.0) -> None:
    """Give a new ``weight`` orthogonal values, unless others are loaded (`to_be_loaded`)."""
    if _TO_BE_LOADED.get():
        torch.empty_like(weight).normal_()
    else:
        nn.init.orthogonal_(weight, gain)


class Dense(nn.Module):
    """Linear layers [N, in] -> [N, sizes[-1]] with an activation after each; without layers the
    identity. ``layer_norm``: with LayerNorm (Ba et al. 2016, arXiv 1607.06450) before each
    activation.

    The module has the parameters itself and calls F.linear directly: at 16 rows, an nn.Sequential
    costs as much again as its arithmetic (25 against 14 us for two layers of 64 and a head).
    """

    def __init__(
        self, in_features: int, sizes: Sequence[int], act: Activation, *, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.out_features = in_features
        self.act = act
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes) if layer_norm else None
        self._names: list[tuple[str, str]] = []
        for i, size in enumerate(sizes):
            layer = orthogonal_(nn.Linear(self.out_features, size))
            self._names.append((f"weight_{i}", f"bias_{i}"))
            setattr(self, f"weight_{i}", layer.weight)
            setattr(self, f"bias_{i}", layer.bias)
            self.out_features = size

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight [out, in] and bias [out] of each layer, which are all that there is without
        ``norms``."""
        return [(getattr(self, weight), getattr(self, bias)) for weight, bias in self._names]

    def forward(self, x: Tensor) -> Tensor:
        parameters, act = self._parameters, self.act  # attribute look-ups of a Module are slow
        if self.norms is not None:
            for (weight, bias), norm in zip(self._names, self.norms, strict=True):
                x = act(norm(F.linear(x, parameters[weight], parameters[bias])))  # type: ignore[arg-type]
            return x
        for weight, bias in self._names:
            x = act(F.linear(x, parameters[weight], parameters[bias]))  # type: ignore[arg-type]
        return x


FEW_CATEGORIES = 64
"""Categories of a leaf up to which each is compared with its element: 8 rows of 16 take 6 us
instead of 12. With more, ones are written into zeros: 256 rows of MiniGrid's 1,029 take 142 us
instead of 1,227 (one core)."""


class OneHot(nn.Module):
    """One-hot encoding of a categorical leaf, [N, *shape] -> [N, sum(categories)], one block per
    element."""

    element: Tensor
    """The element of each category, int64 [categories]."""
    value: Tensor
    """Its number among those of its element, int64 [categories]."""
    first: Tensor
    """The place of each element's first category, int64 [elements]."""
    last: Tensor
    """The last category of each element, int64 [elements]."""

    def __init__(self, categories: tuple[int, ...]) -> None:
        super().__init__()
        self.out_features = sum(categories)
        self.is_narrow = self.out_features <= FEW_CATEGORIES
        sizes = torch.tensor(categories)
        self.register_buffer("first", sizes.cumsum(0) - sizes, persistent=False)
        self.register_buffer("last", sizes - 1, persistent=False)
        element = torch.arange(len(categories)).repeat_interleave(sizes)
        value = torch.arange(self.out_features) - self.first[element]
        self.register_buffer("element", element, persistent=False)
        self.register_buffer("value", value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the encoding, float32. An element whose number is no category has only zeros."""
        codes = x.reshape(-1, len(self.first))
        if self.is_narrow:
            return (codes[:, self.element] == self.value).float()
        codes = codes.long()
        known = torch.minimum(codes, self.last).clamp_min_(0)
        zeros = torch.zeros(codes.shape[0], self.out_features, device=x.device)
        return zeros.scatter_(1, known + self.first, (known == codes).float())


MOST_VECTORS = 4096
"""Vectors that an element of an embedded leaf has: a gradient step of 256 rows takes 10 ms with
them, and 52 ms with 65,536 (one core), because Adam moves them all."""


class Embedding(nn.Module):
    """Embedding of a categorical leaf with many values, [N, *shape] -> [N, elements * size].

    A code's vector is the sum of two, of its quotient and of its remainder by a divisor (Shi et al.
    2019, arXiv 1909.02107). That is the root of the number of values if they are more than
    `MOST_VECTORS`, so that a million have 2,000 vectors; else each value has a vector of its own.
    Each element has vectors of its own.
    """

    last: Tensor
    """The last category of each element, int64 [elements], as are the others."""
    divisor: Tensor
    quotients: Tensor
    """The place of each element's first vector of quotients."""
    remainders: Tensor
    """The place of its first vector of remainders."""

    def __init__(self, categories: tuple[int, ...], size: int) -> None:
        super().__init__()
        self.out_features = len(categories) * size
        divisors = [n if n <= MOST_VECTORS else math.isqrt(n - 1) + 1 for n in categories]
        counts = [math.ceil(n / d) for n, d in zip(categories, divisors, strict=True)]
        last, divisor, quotients = map(torch.tensor, (categories, divisors, counts))
        ends = (quotients + divisor).cumsum(0)
        for name, value in (
            ("last", last - 1),
            ("divisor", divisor),
            ("quotients", ends - divisor - quotients),
            ("remainders", ends - divisor),
        ):
            self.register_buffer(name, value, persistent=False)
        self.weight = nn.Parameter(torch.randn(int(ends[-1]), size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors, float32. That of a number that is no category is 0."""
        codes = x.reshape(-1, len(self.last)).long()
        known = torch.minimum(codes, self.last).clamp_min(0)
        quotient = torch.div(known, self.divisor, rounding_mode="floor")
        remainder = known - quotient * self.divisor
        vectors = F.embedding(quotient + self.quotients, self.weight)
        vectors = vectors + F.embedding(remainder + self.remainders, self.weight)
        return (vectors * (known == codes).unsqueeze(-1)).flatten(1)


class Vector(nn.Module):
    """Leaves [N, ...] -> [N, out_features] float32, flattened and concatenated in their order, each
    by its encoding. Leaves that a normaliser has converted to floats before stay as they are."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        self._specs = dict(observations)
        self._names = list(observations)
        self._encodings = config.encodings(observations)
        self.codes = nn.ModuleDict()
        self.out_features = 0
        for i, (name, spec) in enumerate(observations.items()):
            encoding = self._encodings[name]
            if encoding.kind != "codes":
                self.out_features += math.prod(spec.shape)
                continue
            sizes, size = encoding.categories, encoding.embedding
            codes = Embedding(sizes, size) if size else OneHot(sizes)
            self.codes[str(i)] = codes
            self.out_features += codes.out_features
        name, spec = next(iter(observations.items()))
        is_float = spec.dtype == "float32" or self._encodings[name].has_statistics
        is_plain = self._encodings[name].kind == "vector" and is_float and len(spec.shape) == 1
        self.plain_leaf = name if is_plain and len(observations) == 1 else None
        """The name of the only leaf, if it is a vector of floats, or of numbers of which the
        normaliser makes floats, so that it needs no conversion."""

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        parts: list[Tensor] = [
            self._vector(i, name, obs[name]) for i, name in enumerate(self._names)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _vector(self, i: int, name: str, x: Tensor) -> Tensor:
        encoding = self._encodings[name]
        if encoding.kind == "codes":
            # In int64: the difference may be out of the range of the leaf's own integers.
            block: Tensor = self.codes[str(i)](x.long() - encoding.first if encoding.first else x)
            return block
        flat = x.reshape(-1, math.prod(self._specs[name].shape)).float()
        scaled = encoding.has_statistics or encoding.factor == 1.0
        return flat if scaled else flat / (1.0 / encoding.factor)


class MLP(Dense):
    """The MLP encoder: all leaves as one vector, through layers of ``config.widths`` (tanh by
    default)."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        if not observations:
            raise ConfigError("the environment's observation has no leaf that a model could see")
        vector = Vector(observations, config)
        act = activation(config.activation, "tanh")
        norm = bool(config.layer_norm)
        super().__init__(vector.out_features, config.widths, act, layer_norm=norm)
        self.vector = vector
        self.plain_leaf = vector.plain_leaf

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        if self.plain_leaf is not None:
            return super().forward(obs[self.plain_leaf])
        return super().forward(self.vector(obs))
