"""Whether a dataset fits an environment: what its observations and actions mean there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.encoding import encodings
from sampleforge.env.adapter import offset
from sampleforge.spec import OBSERVATION, ActionSpec, ArraySpec, EnvSpec, leaves


def check_fits(source: str, expected: EnvSpec, found: EnvSpec) -> None:
    """Raise ConfigError unless data of ``found`` are data of ``expected``."""
    wrong = [
        *_differences("observation", *_observations(expected, found)),
        *_differences("action", _actions(expected), _actions(found)),
    ]
    if wrong:
        raise ConfigError(
            f"the dataset {source} does not fit {expected.env_id}: {'; '.join(wrong)}; give a "
            f"dataset of {expected.env_id}, or the environment and the --env settings that it was "
            f"recorded with ({found.env_id})"
        )


def _differences(kind: str, expected: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for name in {**expected, **found}:
        ours, theirs = expected.get(name, "none"), found.get(name, "none")
        if ours != theirs:
            yield f"{kind} leaf {name!r}: expected {ours}, found {theirs}"


def _observations(expected: EnvSpec, found: EnvSpec) -> list[dict[str, str]]:
    """Return the observation leaves of both in words, by name; pixels with what they are divided
    by, where both say so."""
    words = [_described_observations(spec) for spec in (expected, found)]
    kinds = [encodings(spec.observations) for spec in (expected, found)]
    for name in kinds[0].keys() & kinds[1].keys():
        pixels = [kind[name] for kind in kinds]
        if all(each.kind == "pixels" and math.isfinite(each.high) for each in pixels):
            for described, each in zip(words, pixels, strict=True):
                described[name] += f" of pixels up to {1.0 / each.factor:g}"
    return words


def _described_observations(spec: EnvSpec) -> dict[str, str]:
    """Return the observation leaves in words, by name; categories with their first value, which the
    slots do without."""
    declared = {} if spec.spaces is None else dict(leaves(spec.spaces.observation, OBSERVATION))
    found = {name: _describe_leaf(leaf) for name, leaf in spec.observations.items()}
    for name in found.keys() & declared.keys():
        if (start := offset(declared[name])) is not None:
            found[name] += f" from {np.asarray(start).tolist()} on"
    return found


def _actions(spec: EnvSpec) -> dict[str, str]:
    return {name: _describe_action(leaf) for name, leaf in spec.actions.items()}


def _describe_leaf(leaf: ArraySpec) -> str:
    values = f" of {sizes(leaf.categories)} values" if leaf.categories else ""
    return f"{leaf.dtype} {list(leaf.shape)}{values}"


def _describe_action(leaf: ActionSpec) -> str:
    """Return the action of the environment in words, whatever the policy's units."""
    if leaf.kind == "box":
        low, high = leaf.env_low or leaf.low, leaf.env_high or leaf.high
        return f"Box {leaf.dtype} {list(leaf.shape)} within {_bounds(low)} to {_bounds(high)}"
    start = f" from {leaf.start} on" if np.any(leaf.start) else ""
    return f"{leaf.kind} {list(leaf.shape)} of {sizes(leaf.categories)} values{start}"


def sizes(categories: Sequence[int]) -> str:
    """Return the number of values of each element in words: one number if there is one element."""
    return str(categories[0]) if len(categories) == 1 else str(list(categories))


def _bounds(numbers: Sequence[float]) -> str:
    rounded = [float(f"{x:.6g}") for x in numbers]
    return str(rounded[0] if len(set(rounded)) == 1 else rounded)
