"""Collective operations between ranks through a network (gloo) or between GPUs (nccl).

They use a process group of torch, but not its default one, which could not be left and joined
again.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]

from sampleforge.peers.group import PeerKind, RankLost
from sampleforge.shared.staging import wait_for_copies

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Backend = Literal["gloo", "nccl"]


class RendezvousStore:
    """A torch store through which the ranks of one machine find each other; it lives as long as
    this object.

    It is a file in memory, which only processes of this user can open: a port, also on loopback,
    would be open to every user of the machine, and what is written into the store decides to which
    addresses the ranks connect.
    """

    def __init__(self) -> None:
        fd = os.memfd_create("sampleforge rendezvous", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, fd)
        self.path = f"/proc/{os.getpid()}/fd/{fd}"

    def rendezvous(
        self,
        rank: int,
        size: int,
        backend: Backend,
        timeout: float,
        device: str,
        member: PeerKind = "rank",
    ) -> StoreRendezvous:
        """Return the object with which one rank joins the others; it can be pickled to its process.
        ``timeout`` in seconds."""
        store = partial(FileStore, self.path)
        return StoreRendezvous(store, rank, size, backend, timeout, device, member)


@dataclass(frozen=True)
class StoreRendezvous:
    """Joins one rank to the others through the torch store that ``open_store`` connects to; the
    rest is as for `ProcessGroup`."""

    open_store: Callable[[], Store]
    rank: int
    size: int
    backend: Backend
    timeout: float
    device: str
    member: PeerKind = "rank"
    address: str = "127.0.0.1"

    def join(self, generation: int) -> ProcessGroup:
        """Form the group. Raises RankLost if a rank does not come."""
        return ProcessGroup(
            PrefixStore(f"generation {generation}", self.open_store()),
            self.rank,
            self.size,
            backend=self.backend,
            timeout=self.timeout,
            address=self.address,
            device=torch.device(self.device),
            member=self.member,
        )


class ProcessGroup:
    """A `RankGroup` whose ranks find each other through ``store`` (any torch Store).

    ``timeout``: seconds after which a rank that others wait for counts as lost; a rank whose
    process has ended is noticed at once. ``address`` is the network address that gloo listens on.
    ``member``: what messages call a rank. Raises RankLost if not all ranks come.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        backend: Backend = "gloo",
        timeout: float = 60.0,
        address: str = "127.0.0.1",
        device: torch.device | None = None,
        member: PeerKind = "rank",
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._member = member
        self.waited = 0.0
        self._device = device if backend == "nccl" and device else torch.device("cpu")
        limit = timedelta(seconds=timeout)
        store.set_timeout(limit)
        try:
            self._group = _process_group(store, rank, size, backend, limit, address)
            self.all_gather(torch.zeros(1))  # connections are made now, not in the first update
        except RuntimeError as error:
            raise RankLost(f"{member} {rank} of {size} found no others: {error}") from error
        self.waited = math.nan if backend == "nccl" else 0.0

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        wait_for_copies(values.device)
        own = values.detach().to(self._device, torch.float64).contiguous()
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        self._wait(lambda: self._group.allgather([gathered], [own]), "gathering statistics")
        wait_for_copies(self._device)  # without a loop, as a copy to the CPU would
        return torch.stack(gathered).to(values.device)

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        work = self._start(lambda: self._group.allreduce([tensor]), "averaging gradients")
        return lambda: self._wait(lambda: work, "averaging gradients")

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        assert (data is not None) == (self.rank == source), "only rank `source` gives data"
        size = torch.tensor([len(data or b"")], dtype=torch.int64, device=self._device)
        self._broadcast(size, source)
        if data is not None:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        else:
            content = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        self._broadcast(content, source)
        return content.cpu().numpy().tobytes()

    def close(self) -> None:
        self._group.abort()

    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._wait(lambda: self._group.broadcast([tensor], options), "sharing weights")

    def _start(self, begin: Callable[[], Any], what: str) -> Any:
        try:
            return begin()
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _wait(self, begin: Callable[[], Any], what: str) -> None:
        started = perf_counter()
        try:
            begin().wait()  # through nccl it returns at once, and the GPU waits
            self.waited += perf_counter() - started
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _lost(self, what: str, error: RuntimeError) -> RankLost:
        who = self._member
        return RankLost(
            f"{who} {self.rank} of {self.size} lost another {who} while {what} (a {who} that is "
            f"silent for {self.timeout:g} s, --{who}-timeout, counts as lost): {error}"
        )


def _process_group(
    store: Store, rank: int, size: int, backend: Backend, timeout: timedelta, address: str
) -> Any:
    """Return a group object of the backend. Torch's default group could not be left and joined
    again."""
    if backend == "nccl":
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, nccl)
    gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = timeout
    gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, size, gloo)
