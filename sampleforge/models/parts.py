"""The parts of a network by which flags name its weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Self

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


class Parted(nn.Module):
    """A network whose weights belong to parts. Modules of the ``frozen`` parts stay in evaluation
    mode while the others train, so that a batch normalisation in an encoder of one's own neither
    changes its statistics nor computes other features than when acting; the statistics that
    normalise observations stay as they are with the encoder."""

    frozen: frozenset[str] = frozenset()

    def freeze(self, parts: Collection[str]) -> None:
        """Have these parts, and no others, be ``frozen``. It is not about gradients."""
        self.frozen = frozenset(parts)
        normaliser = getattr(self, "normaliser", None)
        if normaliser is not None:
            normaliser.is_frozen = "encoder" in parts
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Put the network in training mode, its frozen parts left out, or in evaluation mode."""
        super().train(mode)
        for name, module in self.named_modules() if self.frozen else ():
            if name and part_of(f"{name}.") in self.frozen:
                module.training = False
        return self


def check_parts(field: str, parts: Collection[str], names: Iterable[str]) -> None:
    """Raise ConfigError for one of ``parts``, which the config's ``field`` names, of which a
    network with weights of these ``names`` has nothing."""
    there = {part_of(name) for name in names}
    for part in sorted(set(parts) - there):
        raise ConfigError(
            f"{typed(field, (part,))}: the network has no weights of this part, only of "
            f"{', '.join(sorted(there))}"
        )
