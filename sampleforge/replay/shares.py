"""The shares of several sources in the experience that a replay takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shares:
    """The source of each actor (``source_of``), and the weight of each source."""

    source_of: tuple[int, ...]
    weights: tuple[float, ...]


class ShareKeeper:
    """Keeps the numbers of slots that the actors of several sources fill in the proportion of the
    sources' weights; one per replay shard.

    A source whose share is complete gets no slot until the others have caught up. The one that is
    furthest behind always gets slots, so no source waits for itself. At most the slots that a
    source has already make the difference.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._filled = [0] * len(shares.weights)

    def count(self, actor: int) -> None:
        """Count a slot that an actor has filled."""
        self._filled[self._shares.source_of[actor]] += 1

    def may_lease(self, actor: int) -> bool:
        """Return whether an actor may have another slot."""
        weights = self._shares.weights
        progress = [filled / weight for filled, weight in zip(self._filled, weights, strict=True)]
        return progress[self._shares.source_of[actor]] <= min(progress)
