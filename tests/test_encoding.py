"""The one rule of how observation leaves are encoded, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.encoding import (
    Encoding,
    check_kinds,
    check_leaves,
    describe,
    encodings,
    image_size,
    lines,
)
from sampleforge.env.adapter import env_spec
from sampleforge.models.config import ModelConfig
from sampleforge.spec import EnvSpaces, EnvSpec, observation_specs

INF = np.inf


def box(low: float, high: float, shape: tuple[int, ...], dtype: Any = np.float32) -> spaces.Box:
    """A Box; infinite bounds of an integer type are those of the type."""
    if np.issubdtype(dtype, np.integer) and not np.isfinite(high):
        info = np.iinfo(dtype)
        low, high = info.min, info.max
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), dtype=dtype)


def encoding(space: spaces.Space[Any], given: str | None = None, **flags: Any) -> Encoding:
    kinds = {} if given is None else {"obs": given}
    return encodings(observation_specs(space), kinds, **flags)["obs"]


def spec_of(space: spaces.Space[Any]) -> EnvSpec:
    return env_spec("Some-v0", EnvSpaces(space, spaces.Discrete(2)), metadata={})


PIXELS = {
    "bytes": box(0, 255, (84, 84, 4), np.uint8),
    "small bytes": box(0, 255, (8, 8, 3), np.uint8),
    "grey": box(0, 255, (84, 84), np.uint8),
    "stacked": box(0, 255, (4, 84, 84, 3), np.uint8),
    "stacked, channels first": box(0, 255, (4, 3, 84, 84), np.uint8),
    "floats in [0, 255]": box(0, 255, (84, 84, 3)),
    "small floats in [0, 255]": box(0, 255, (10, 10, 3)),
    "floats in [0, 1]": box(0, 1, (84, 84, 3)),
    "grey floats": box(0, 1, (84, 84)),
    "floats in [-1, 1]": box(-1, 1, (3, 64, 64)),
    "depth in metres": box(0, 10, (64, 64, 1)),
    "integers in [0, 255]": box(0, 255, (84, 84, 3), np.int64),
    "depth of 16 bits": box(0, 65535, (64, 64, 1), np.uint16),
}
PLANES = {
    "flags": box(0, 1, (64, 64, 3), np.bool_),
    "MinAtar": box(0, 1, (10, 10, 4), np.bool_),
    "a board of bytes": box(0, 1, (8, 8, 12), np.uint8),
    "a board of floats": box(0, 1, (8, 8, 12)),
    "a board of players": box(-1, 1, (19, 19), np.int8),
    "MultiBinary": spaces.MultiBinary((10, 10, 4)),
    "a board in frames": box(0, 1, (4, 10, 10, 3), np.bool_),
    "small floats without bounds": box(-INF, INF, (5, 11, 11)),
}
VECTORS = {
    **{f"vector of {kind}": box(0, 99, (4,), kind) for kind in (np.float32, np.uint8, np.int8)},
    **{f"wide {kind}": box(-INF, INF, (4,), kind) for kind in (np.int16, np.int32, np.int64)},
    **{f"unsigned {kind}": box(0, 60_000, (4,), kind) for kind in (np.uint16, np.uint32)},
    "a number": box(0, 9, (), np.int64),
    "NetHack's text": box(0, 127, (21, 79, 80), np.uint8),
    "codes of a map": box(0, 5976, (21, 79), np.int16),
    "wide codes": box(0, 10, (64, 64, 3), np.int32),
    "frames of a vector": box(-INF, INF, (8, 17)),
    "frames of a bounded vector": box(-1, 1, (8, 17)),
    "a small grid": box(0, 255, (7, 7, 3), np.uint8),
}
AS_THEY_ARE = {
    "bits": box(0, 1, (6,), np.bool_),
    "MultiBinary": spaces.MultiBinary(6),
    "bytes of 0 and 1": box(0, 1, (6,), np.uint8),
    "signs": box(-1, 1, (6,), np.int32),
}


@pytest.mark.parametrize("name", PIXELS)
def test_pixels_are_convolved_and_divided_by_their_largest_bound(name: str) -> None:
    found = encoding(PIXELS[name])
    assert (found.kind, found.is_convolved, found.has_statistics) == ("pixels", True, False)
    assert found.factor * max(1.0, found.high) == pytest.approx(1.0)
    assert encoding(PIXELS[name], normalise_pixels=True).has_statistics


@pytest.mark.parametrize("name", PLANES)
def test_planes_are_convolved_as_they_are(name: str) -> None:
    for flag in (False, True):
        found = encoding(PLANES[name], normalise_pixels=flag)
        assert (found.kind, found.factor, found.has_statistics) == ("planes", 1.0, False)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_numbers_are_normalised_whatever_their_type(name: str) -> None:
    found = encoding(VECTORS[name])
    assert (found.kind, found.is_convolved, found.has_statistics) == ("vector", False, True)
    assert not encoding(VECTORS[name], normalise_vectors=False).has_statistics


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_vectors_of_bits_have_their_scale(name: str) -> None:
    found = encoding(AS_THEY_ARE[name])
    assert (found.kind, found.factor, found.has_statistics) == ("vector", 1.0, False)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((84, 84), (1, 84, 84)),
        ((84, 84, 4), (4, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 210, 160), (3, 210, 160)),
        ((8, 8, 12), (12, 8, 8)),  # more channels than cells
        ((12, 8, 8), (12, 8, 8)),
        ((10, 10, 10), (10, 10, 10)),
        ((4, 84, 84, 3), (12, 84, 84)),
        ((4, 3, 84, 84), (12, 84, 84)),
        ((4, 84, 84, 1), (4, 84, 84)),
    ],
)
def test_the_channels_are_found_and_joined(
    shape: tuple[int, ...], size: tuple[int, int, int]
) -> None:
    found = encoding(box(0, 255, shape, np.uint8))
    assert found.is_convolved and image_size(shape, found.channel_last) == size


def test_codes_are_one_hot_or_embedded_where_there_are_many() -> None:
    few = encoding(spaces.MultiDiscrete([3, 500]))
    many = encoding(spaces.MultiDiscrete([3, 1_000_000]))
    assert (few.kind, few.categories, few.embedding) == ("codes", (3, 500), 0)
    assert (many.categories, many.embedding) == ((3, 1_000_000), 16)
    assert not encoding(spaces.Discrete(1_000_000), embed_above=None).embedding
    given = encoding(box(-1, 3, (2, 2), np.int16), "codes")
    assert (given.categories, given.first, given.has_statistics) == ((5, 5, 5, 5), -1, False)


@pytest.mark.parametrize(
    ("space", "kind", "words"),
    [
        (box(0, 9, (4,)), "pixels", r"--model.encode obs=pixels: .*shape \[4\]; use vector$"),
        (box(0, 9, (4,), np.int8), "planes", "use vector or codes"),
        (box(0, 9, (4, 64, 3)), "planes", "at least 5 high and wide"),
        (box(0, 9, (4,)), "codes", r"obs=codes: .*float32 in \[0, 9\]; bound it"),
        (box(0, 255, (84, 84, 4), np.uint8), "codes", "28,224 elements .* 7,225,344 inputs"),
        (box(-INF, INF, (4,), np.int64), "codes", "int64 without bounds"),
    ],
)
def test_a_kind_that_a_leaf_cannot_have_is_refused(
    space: spaces.Space[Any], kind: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        encoding(space, kind)


def test_a_kind_and_a_leaf_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"--model.encode obs=pixel: must be pixels, planes, "):
        ModelConfig(encode={"obs": "pixel"})
    check_kinds({"obs": "codes"})
    spec = spec_of(spaces.Dict(image=PIXELS["bytes"], map=VECTORS["codes of a map"]))
    other = replace(spec, agents=("two",), observations={"text": spec.observations["map"]})
    spec = replace(spec, agents=("one",), other_groups=(other,))
    check_leaves({"image": "vector", "text": "codes"}, spec)
    words = r"imag=vector: there is no observation leaf 'imag'. Did you mean image.*map, text"
    with pytest.raises(ConfigError, match=words):
        check_leaves({"imag": "vector"}, spec)


@pytest.mark.parametrize(
    ("space", "given", "encoder", "line"),
    [
        (
            PIXELS["bytes"],
            None,
            "nature_cnn",
            "obs (uint8 84x84x4): pixels (convolutions, divided by 255), integers in [0, 255] of "
            "rank 3",
        ),
        (
            VECTORS["frames of a vector"],
            None,
            "mlp",
            "obs (float32 8x17): vector (dense layers, by running mean and deviation), floats "
            "without bounds of rank 2, which are pixels only in [0, 1] or [0, 255]",
        ),
        (
            VECTORS["wide codes"],
            None,
            "mlp",
            "obs (int32 64x64x3): vector (dense layers, by running mean and deviation), integers "
            "in [0, 10] of rank 3, which are no pixels; scaled like measurements: if they are "
            "codes, use --model.encode obs=codes",
        ),
        (
            PIXELS["bytes"],
            "planes",
            "own:Encoder",
            "obs (uint8 84x84x4): planes (your encoder, as stored), as given by --model.encode",
        ),
        (
            spaces.Discrete(1_000_000),
            None,
            "mlp",
            "obs (int64 scalar): codes (1,000,000 values, embedded in 16 numbers each), Discrete "
            "or MultiDiscrete",
        ),
    ],
)
def test_a_line_says_how_a_leaf_is_encoded_and_why(
    space: spaces.Space[Any], given: str | None, encoder: str, line: str
) -> None:
    spec = observation_specs(space)["obs"]
    assert describe("obs", spec, encoding(space, given), encoder) == line


def test_there_is_a_line_for_each_leaf_of_each_agent_group_and_none_for_the_mask() -> None:
    mask = spaces.MultiBinary(2)
    spec = spec_of(spaces.Dict(image=PIXELS["bytes"], action_mask=mask))
    assert [line.split()[0] for line in lines(spec, encodings)] == ["image"]
    two = replace(spec, agents=("two",))
    spec = replace(spec, agents=("one",), other_groups=(two,))
    assert [line.split()[0] for line in lines(spec, encodings)] == ["one.image", "two.image"]
