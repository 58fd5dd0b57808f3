"""Collective operations of the ranks of a run: `MemoryGroup` does them through shared memory,
`ProcessGroup` through a network or between GPUs.

All ranks call the same methods, and the waits of `RankGroup.all_reduce`, in the same order. A call
is complete on a rank when it returns, or, for `RankGroup.all_reduce`, when its wait returns. A
group is an object of its own, not a global one of the process, so a rank can leave it and join
another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

PeerKind = Literal["rank", "learner"]
"""What the ranks of a group are to the user; the flag --rank-timeout or --learner-timeout is the
group's time-out."""


class RankLost(RuntimeError):
    """A collective failed: a rank has died, hangs, or cannot be reached. ``silent``: the number of
    a rank that lives but was waited for in vain, where that is known, and ``seconds``: how long."""

    def __init__(self, text: str, silent: int | None = None, seconds: float = 0.0) -> None:
        super().__init__(text)
        self.silent = silent
        self.seconds = seconds


class RankGroup(Protocol):
    """The group as rank ``rank`` of ``size`` sees it. ``waited``: seconds that this rank has waited
    for other ranks since all have joined; NaN where only the GPU waits. All methods raise
    RankLost, which names the lost rank if it is known."""

    rank: int
    size: int
    waited: float

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return every rank's ``values`` [k] as float64 [ranks, k], in rank order, on their
        device."""

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to replace ``tensor`` by its sum over the ranks, and return the function that waits
        for it. All ranks get the same bits."""

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        """Return the bytes that rank ``source`` gives, on every rank; the other ranks give None."""

    def close(self) -> None:
        """Leave the group. The other ranks' collectives fail from now on."""


class SoloGroup:
    """A `RankGroup` of a single rank: its collectives return at once."""

    rank, size, waited = 0, 1, 0.0

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        return values.detach().double().unsqueeze(0)

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        return lambda: None

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        assert data is not None and source == 0
        return data

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class SoloRendezvous:
    """The `Rendezvous` of a single rank."""

    device: str
    rank = 0
    size = 1

    def join(self, generation: int) -> RankGroup:
        return SoloGroup()


class Rendezvous(Protocol):
    """Joins one rank to the other ranks; ``device`` is the one that the rank learns on."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> str: ...

    def join(self, generation: int) -> RankGroup:
        """Form the group with the ranks that join the same generation. Raises RankLost if one does
        not come."""
