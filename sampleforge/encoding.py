"""The one rule that says how an observation leaf is encoded for the network: by its rank, its
bounds and its type. Encoders, normaliser, defaults, plans, the opening lines and check-env use it.

* ``pixels``: convolutions; the numbers are divided by their largest bound.
* ``planes``: convolutions; the numbers, 0 and 1 mostly, stay as they are.
* ``vector``: dense layers; the numbers are normalised by their running mean and deviation, unless
  they are integers within -1 and 1.
* ``codes``: each integer is a category: one-hot encoded, or embedded where there are many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast, get_args

from sampleforge.config import ConfigError
from sampleforge.names import nearest

if TYPE_CHECKING:
    from sampleforge.spec import ArraySpec, EnvSpec

Kind = Literal["pixels", "planes", "vector", "codes"]
KINDS: tuple[Kind, ...] = get_args(Kind)

LEAST_SIDE = 8
"""Least height and width of a leaf that the rule gives convolutions."""
LEAST_CONVOLVED = 5
"""Least height and width that convolutions take: two of 3x3 leave one position."""
LEAST_PICTURE = 36
"""Least height and width of floats that count as a picture and not as the planes of a board; those
of bytes in [0, 255] always do. The Nature CNN has its small layers below it."""
NO_BOUND = 1e30
"""A bound of a float of this size or more counts as none."""
NO_INTEGER_BOUND = 2**31 - 1
"""A bound of an integer of this size or more counts as none."""
EMBED_ABOVE = 512
"""Values of codes above which they are embedded: a gradient step of 256 rows then takes 5 ms, and
one-hot 13 (two layers of 64, actor and critic, one busy core); at 4,096 values 10 and 43 ms."""
EMBEDDING_SIZE = 16
"""Numbers that a code is embedded in."""
MOST_INPUTS = 1 << 20
"""Most numbers that --model.encode may make of the codes of a leaf: the weights of a layer of 64
units for them take 256 MiB."""


@dataclass(frozen=True)
class Encoding:
    """How one observation leaf is encoded. ``why``: the reason, in words.

    ``low`` and ``high``: the bounds, infinite for none. ``has_statistics``: the numbers are
    normalised by their running mean and deviation; otherwise they are multiplied by ``factor``.
    ``categories``: the number of values of each element of ``codes``, which begin at ``first``;
    ``embedding``: the numbers that each code is embedded in, 0 for one-hot. ``channel_last``: the
    shape of what is convolved ends with the channels.
    """

    kind: Kind
    why: str
    low: float = -math.inf
    high: float = math.inf
    has_statistics: bool = False
    factor: float = 1.0
    categories: tuple[int, ...] = ()
    first: int = 0
    embedding: int = 0
    channel_last: bool = False

    @property
    def is_convolved(self) -> bool:
        """Whether the encoders with convolutions convolve the leaf."""
        return self.kind in ("pixels", "planes")


def encodings(
    observations: Mapping[str, ArraySpec],
    given: Mapping[str, str] = MappingProxyType({}),
    *,
    normalise_vectors: bool = True,
    normalise_pixels: bool = False,
    embed_above: int | None = EMBED_ABOVE,
    embedding_size: int = EMBEDDING_SIZE,
) -> dict[str, Encoding]:
    """Return the encoding of each leaf. ``given``: kinds that overrule the rule, by leaf.
    ``embed_above``: the number of values of codes above which they are embedded, in
    ``embedding_size`` numbers each (None: never).

    Raises ConfigError for a kind that a leaf cannot have. `check_leaves` refuses ``given`` leaves
    that do not exist."""
    found = {}
    for name, spec in observations.items():
        encoding = _encoding(name, spec, given.get(name))
        many = embed_above is not None and max(encoding.categories, default=0) > embed_above
        wanted = normalise_pixels if encoding.is_convolved else normalise_vectors
        size = embedding_size if many else 0
        if name in given:
            _check_size(name, encoding.categories, size)
        found[name] = replace(
            encoding, has_statistics=encoding.has_statistics and wanted, embedding=size
        )
    return found


def check_kinds(given: Mapping[str, str]) -> None:
    """Raise ConfigError for a value of --model.encode that is no kind."""
    for name, kind in given.items():
        if kind not in KINDS:
            near = nearest(kind, KINDS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--model.encode {name}={kind}: must be {_any(KINDS)}{hint}")


def check_leaves(given: Mapping[str, str], spec: EnvSpec) -> None:
    """Raise ConfigError for a leaf of --model.encode that no agent group of ``spec`` has."""
    groups = spec.agent_groups
    leaves = list(dict.fromkeys(name for group in groups for name in group.observations))
    for name, kind in given.items():
        if name not in leaves:
            near = nearest(name, leaves, 1)
            hint = f"Did you mean {near[0]}? " if near and len(leaves) > 1 else ""
            raise ConfigError(
                f"--model.encode {name}={kind}: there is no observation leaf {name!r}. {hint}"
                f"The environment has {', '.join(leaves)}"
            )


def is_channel_last(shape: tuple[int, ...]) -> bool:
    """Return whether a shape ends with the channels rather than begins with them, [H, W, C] or
    [C, H, W]: they are the axis beside two equal ones, else the smaller one. With four axes the
    first is a stack of frames, whose channels are joined. A shape of two axes has no channels."""
    if len(shape) < 3:
        return False
    first, middle, last = shape[-3:]
    if first == middle or middle == last:
        return first == middle
    return last < first


def image_size(shape: tuple[int, ...], channel_last: bool) -> tuple[int, int, int]:
    """Return channels, height and width of what is convolved. The channels of a stack of frames,
    the first of four axes, are joined."""
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    *stack, first, middle, last = shape
    c, h, w = (last, first, middle) if channel_last else (first, middle, last)
    return math.prod(stack) * c, h, w


def lines(
    spec: EnvSpec,
    encode: Callable[[Mapping[str, ArraySpec]], Mapping[str, Encoding]],
    encoder: str = "auto",
) -> list[str]:
    """Return a line for each observation leaf of each agent group that says how it is encoded and
    why; with several groups the first agent's name stands before the leaf's. ``encode`` returns the
    encodings of leaves; ``encoder``: the name of the run's."""
    from sampleforge.spec import ACTION_MASK

    groups, found = spec.agent_groups, list[str]()
    for group in groups:
        prefix = f"{group.agents[0]}." if len(groups) > 1 else ""
        for name, encoding in encode(group.observations).items():
            if name != ACTION_MASK:
                text = describe(name, group.observations[name], encoding, encoder)
                found.append(f"{prefix}{text}")
    return found


def describe(name: str, spec: ArraySpec, encoding: Encoding, encoder: str = "auto") -> str:
    """Return a line that says how a leaf is encoded by ``encoder``, and why."""
    shape = "x".join(map(str, spec.shape)) or "scalar"
    scaling = _scaling(encoding)
    if ":" in encoder:
        stored = encoding.kind == "codes" or not encoding.has_statistics
        how = f"your encoder, {'as stored' if stored else scaling}"
    elif encoding.embedding:
        how = f"{max(encoding.categories):,} values, embedded in {encoding.embedding} numbers each"
    elif encoding.kind == "codes":
        how = f"one-hot, {sum(encoding.categories):,} numbers"
    else:
        dense = encoder == "mlp" or not encoding.is_convolved
        how = f"{'dense layers' if dense else 'convolutions'}, {scaling}"
    return f"{name} ({spec.dtype} {shape}): {encoding.kind} ({how}), {encoding.why}"


def _scaling(encoding: Encoding) -> str:
    if encoding.has_statistics:
        return "by running mean and deviation"
    if encoding.factor != 1.0:
        return f"divided by {1.0 / encoding.factor:g}"
    return "as they are"


def _encoding(name: str, spec: ArraySpec, given: str | None) -> Encoding:
    """Return the encoding by the rule, or of the ``given`` kind."""
    low, high = bounds(spec)
    kind, why = _kind(spec, low, high)
    if given is not None:
        _check_possible(name, spec, given, low, high)
        kind, why = cast("Kind", given), "as given by --model.encode"
    encoding = Encoding(kind, why, low, high)
    if kind == "codes":
        first = 0 if spec.categories is not None else int(low)
        return replace(encoding, categories=_categories(spec, low, high), first=first)
    is_byte, largest = spec.dtype == "uint8", max(abs(low), abs(high))
    scales = kind == "pixels" or (kind == "vector" and is_byte)
    if scales and math.isfinite(largest) and largest > 1.0:
        encoding = replace(encoding, factor=1.0 / largest)
    if kind == "vector":
        scaled = _is_float(spec) or not _within_one(low, high)
        if scaled and given is None and not _is_float(spec):
            encoding = replace(encoding, why=f"{why}; {_advice(name, spec, low, high)}")
        return replace(encoding, has_statistics=scaled)
    last = is_channel_last(spec.shape)
    return replace(encoding, has_statistics=kind == "pixels", channel_last=last)


def _kind(spec: ArraySpec, low: float, high: float) -> tuple[Kind, str]:
    """Return the kind of a leaf by the rule, and the reason in words."""
    if spec.categories is not None:
        return "codes", "Discrete or MultiDiscrete"
    rank, unit = len(spec.shape), _within_one(low, high)
    what = f"{'floats' if _is_float(spec) else 'integers'}{_range(low, high)}"
    if rank not in (2, 3, 4):
        return "vector", f"{what} of rank {rank}"
    side = min(image_size(spec.shape, is_channel_last(spec.shape))[1:])
    if side < LEAST_SIDE:
        return "vector", f"{what} of rank {rank} with sides below {LEAST_SIDE}"
    why = f"{what} of rank {rank}"
    if not _is_float(spec):
        if unit:
            return "planes", why
        if (low, high) == (0.0, 255.0) or (spec.dtype == "uint16" and high == 65535.0):
            return "pixels", why
        return "vector", f"{why}, which are no pixels"
    if rank == 2 and not (low >= 0.0 and (unit or high == 255.0)):
        return "vector", f"{why}, which are pixels only in [0, 1] or [0, 255]"
    small = f"{why} with sides below {LEAST_PICTURE}"
    if side < LEAST_PICTURE and (unit or not math.isfinite(max(abs(low), abs(high)))):
        return "planes", small
    return "pixels", why


def bounds(spec: ArraySpec) -> tuple[float, float]:
    """Return the bounds of all elements of a leaf, infinite for none: the smallest and the largest,
    within those of its type."""
    low, high = spec.low, spec.high
    if _is_float(spec):
        return -math.inf if low <= -NO_BOUND else low, math.inf if high >= NO_BOUND else high
    if spec.dtype == "bool":
        return max(low, 0.0), min(high, 1.0)
    bits = int(spec.dtype.removeprefix("u").removeprefix("int"))
    signed = not spec.dtype.startswith("u")
    most = 2.0 ** (bits - signed) - 1.0
    low, high = max(low, -most - 1.0 if signed else 0.0), min(high, most)
    return (
        -math.inf if low <= -NO_INTEGER_BOUND else low,
        math.inf if high >= NO_INTEGER_BOUND else high,
    )


def _check_possible(name: str, spec: ArraySpec, kind: str, low: float, high: float) -> None:
    """Raise ConfigError if a leaf cannot be encoded as ``kind``."""
    where, shape = f"--model.encode {name}={kind}", list(spec.shape)
    if kind in ("pixels", "planes"):
        fits = len(spec.shape) in (2, 3, 4)
        size = image_size(spec.shape, is_channel_last(spec.shape)) if fits else (0, 0, 0)
        if min(size[1:]) < LEAST_CONVOLVED:
            raise ConfigError(
                f"{where}: convolutions take arrays of rank 2 to 4 that are at least "
                f"{LEAST_CONVOLVED} high and wide, but this leaf has shape {shape}; use vector"
                f"{' or codes' if _can_be_codes(spec, low, high) else ''}"
            )
    if kind == "codes" and not _can_be_codes(spec, low, high):
        raise ConfigError(
            f"{where}: codes are integers with bounds, but this leaf has {spec.dtype}"
            f"{_range(low, high)}; bound it in the environment's space, or use vector"
        )


def _check_size(name: str, categories: tuple[int, ...], size: int) -> None:
    """Raise ConfigError if codes make too many inputs. ``size``: the length of an embedding, 0 for
    one-hot."""
    inputs = len(categories) * size or sum(categories)
    if inputs > MOST_INPUTS:
        raise ConfigError(
            f"--model.encode {name}=codes: {len(categories):,} elements with up to "
            f"{max(categories):,} values each make {inputs:,} inputs, more than {MOST_INPUTS:,}; "
            "use tighter bounds in the environment's space, or another kind"
        )


def _can_be_codes(spec: ArraySpec, low: float, high: float) -> bool:
    return spec.categories is not None or (
        not _is_float(spec) and math.isfinite(low) and math.isfinite(high)
    )


def _categories(spec: ArraySpec, low: float, high: float) -> tuple[int, ...]:
    if spec.categories is not None:
        return spec.categories
    return (int(high - low) + 1,) * math.prod(spec.shape)


def _advice(name: str, spec: ArraySpec, low: float, high: float) -> str:
    """Return a warning that integers are scaled, and what to do if they are codes."""
    scaled = "scaled like measurements"
    if not _can_be_codes(spec, low, high):
        return scaled
    return f"{scaled}: if they are codes, use --model.encode {name}=codes"


def _is_float(spec: ArraySpec) -> bool:
    return spec.dtype.startswith("float")


def _within_one(low: float, high: float) -> bool:
    return low >= -1.0 and high <= 1.0


def _range(low: float, high: float) -> str:
    """Return the bounds in words, with a space before them."""
    if math.isfinite(low) and math.isfinite(high):
        return f" in [{low:.10g}, {high:.10g}]"
    return " without bounds"


def _any(kinds: Iterable[str]) -> str:
    *some, last = kinds
    return f"{', '.join(some)} or {last}"
