"""Where the sequences lie that a recurrent core learns from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SequenceShape:
    """Sequences of ``length`` env steps, one every ``stride`` steps of an env row, of which the
    first ``burn_in`` are not learned from.

    A slot begins with the last ``overlap`` steps of the rollout before, so that each of its
    sequences lies within it: sequence j of a slot is its steps from ``j * stride`` on.
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
        """Steps after the burn-in."""
        return self.length - self.burn_in

    def starts(self, steps: int) -> int:
        """Sequences of each row in a slot of so many steps."""
        count, rest = divmod(steps - self.overlap, self.stride)
        assert count >= 1 and rest == 0, (steps, self)
        return count
