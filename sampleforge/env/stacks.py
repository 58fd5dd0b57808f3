"""The observation leaves that are stacks of frames, which an environment names in its metadata.

    metadata = {"frame_stack": {"obs": "zero"}}

maps names of leaves to the padding of an episode's first stack; see `sampleforge.spec.ArraySpec`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from sampleforge.config import ConfigError, nearest
from sampleforge.spec import ArraySpec, StackPadding

KEY = "frame_stack"


def with_stacks(
    env_id: str, specs: Mapping[str, ArraySpec], metadata: Mapping[str, Any] | None
) -> dict[str, ArraySpec]:
    """Return ``specs`` with the ``stack`` of each leaf set from the metadata. Raises ConfigError
    for an unknown leaf or padding."""
    stacked = dict(specs)
    for name, padding in (metadata or {}).get(KEY, {}).items():
        where = f"{env_id}: metadata[{KEY!r}][{name!r}]"
        if name not in specs:
            near = " or ".join(nearest(name, specs) or specs)
            raise ConfigError(f"{where} is no observation leaf; there is {near}")
        if padding not in get_args(StackPadding):
            known = " or ".join(map(repr, get_args(StackPadding)))
            raise ConfigError(f"{where} is {padding!r}, but must be {known}")
        leaf = specs[name]
        if not leaf.shape or leaf.categories is not None:
            raise ConfigError(
                f"{where}: a stack is an array of numbers whose first axis counts the frames, but "
                f"this leaf has shape {leaf.shape}"
                f"{' of categories' if leaf.categories else ''}; leave it out"
            )
        stacked[name] = dataclasses.replace(leaf, stack=padding)
    return stacked
