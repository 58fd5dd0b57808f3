"""The parts of a network by which flags name its weights."""

from __future__ import annotations

from sampleforge.runtime.config import Part


def part_of(name: str) -> Part:
    """Return the part of a network that its weight ``name``, in its ``state_dict``, belongs to: the
    encoder with the statistics that normalise observations; the recurrent core; the critic, which
    is the value head, with a trunk of its own if it has one; or the actor, the heads of the policy
    or of Q-values."""
    if name.startswith(("critic.", "value_")):
        return "critic"
    if name.startswith("normaliser.") or ".encoder." in name:
        return "encoder"
    return "core" if ".core." in name else "actor"
