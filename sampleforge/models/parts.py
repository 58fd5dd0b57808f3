"""The parts of a network by which flags name its weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import nn

from sampleforge.config import ConfigError, typed
from sampleforge.runtime.config import Part


def part_of(name: str) -> Part:
    """Return the part of a network that its weight ``name``, in its ``state_dict``, belongs to: the
    encoder with the statistics that normalise observations; the recurrent core; the critic, which
    is the value head, with a trunk of its own if it has one; or the actor, the heads of the policy
    or of Q-values."""
    if name.startswith(("critic.", "value_")):
        return "critic"
    if name.startswith("head."):
        return "actor"
    if name.startswith("normaliser.") or ".encoder." in name:
        return "encoder"
    return "core" if ".core." in name else "actor"


def has_actor(parts: Collection[str]) -> bool:
    """Return whether the actor is among ``parts`` (empty: all)."""
    return not parts or "actor" in parts


def freeze_statistics(network: nn.Module, *, frozen: bool) -> None:
    """Have the statistics that normalise a network's observations, if it has any, stay as they are,
    or count again."""
    normaliser = getattr(network, "normaliser", None)
    if normaliser is not None:
        normaliser.is_frozen = frozen


def check_parts(field: str, parts: Collection[str], names: Iterable[str]) -> None:
    """Raise ConfigError for one of ``parts``, which the config's ``field`` names, of which a
    network with weights of these ``names`` has nothing."""
    there = {part_of(name) for name in names}
    for part in sorted(set(parts) - there):
        raise ConfigError(
            f"{typed(field, (part,))}: the network has no weights of this part, only of "
            f"{', '.join(sorted(there))}"
        )
