"""The shape of the sequences that a recurrent core learns from, and their places in a slot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SequenceShape:
    """Sequences of ``length`` env steps; one begins at every ``stride`` steps of an env row, and
    its first ``burn_in`` steps are not learned from.

    A slot begins with the last ``overlap`` steps of the rollout before, so that every sequence lies
    within one slot: sequence j of a slot begins at its step ``j * stride``.
    """

    length: int
    stride: int
    burn_in: int

    def __post_init__(self) -> None:
        assert 1 <= self.stride <= self.length and 0 <= self.burn_in < self.length, self

    @property
    def overlap(self) -> int:
        return self.length - self.stride

    @property
    def learned(self) -> int:
        """Number of steps after the burn-in."""
        return self.length - self.burn_in

    def starts(self, steps: int) -> int:
        """Return the number of sequences of each row in a slot of ``steps`` steps."""
        count, rest = divmod(steps - self.overlap, self.stride)
        assert count >= 1 and rest == 0, (steps, self)
        return count
