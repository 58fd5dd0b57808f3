"""What ranks tell each other, whatever the way: `MemoryGroup` on one machine, `ProcessGroup`
through a network or between GPUs.

All ranks call the same methods in the same order; each call is complete on a rank when it returns,
or, for `RankGroup.add`, when its wait returns. A group belongs to its owner alone, so it can be
left, and another one joined, within the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class RankLost(RuntimeError):
    """A collective did not come about: a rank has died, stands still, or is cut off."""


class RankGroup(Protocol):
    """Rank ``rank`` of ``size``. ``waited``: seconds spent waiting for other ranks since all have
    come. All methods raise RankLost, with which rank it is where that can be known."""

    rank: int
    size: int
    waited: float

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Every rank's ``values`` [k] as float64 [ranks, k], in rank order, on their device."""

    def add(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to replace ``tensor`` by its sum over the ranks; call the result to wait for it.
        All ranks get the same bits."""

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        """The bytes that rank ``source`` gives, on every rank; the others give None."""

    def close(self) -> None:
        """Leave. The other ranks' collectives fail from now on."""


class Rendezvous(Protocol):
    """One rank's way to the others; ``device`` is the one that it learns on."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> str: ...

    def join(self, generation: int) -> RankGroup:
        """Meet the others of the same generation. Raises RankLost if they do not come."""
