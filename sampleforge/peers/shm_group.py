"""Collective operations between the ranks of one machine, through shared memory.

A message through loopback costs two context switches and a network stack, about twenty times per
update. Here a rank copies its tensor into its part of the shared memory, raises its count, and
reads the parts of the other ranks as soon as their counts have been raised too. The ranks reach a
minibatch at almost the same time, so a rank seldom has to sleep.

If all ranks read all parts, N ranks move N^2 parts of memory. So each rank sums only its share of a
large tensor, and reads the shares of all (`SHARED_FROM`): reduce-scatter, then all-gather.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, perf_counter, sleep

import numpy as np
import numpy.typing as npt
import psutil
import torch

from sampleforge.peers.group import PeerKind, RankLost
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.staging import wait_for_copies
from sampleforge.shared.wakeup import wakeups

SPIN_S = 200e-6
"""Seconds that a rank with a core of its own spins before it sleeps: a few times the cost of
waking up."""
CHECK_S = 0.02
"""Seconds between the checks of a sleeping rank that the other ranks are alive. Each looks at the
process of one of them, in turn, which takes 36 us: were it all, many ranks would do little else."""
LONGEST_CHECK_S = 1.0
"""Seconds that one check counts for at most: if more have passed, this rank was paused itself."""
SHARED_FROM = 1 << 20
"""Bytes of a tensor times (ranks - 2) from which on a rank sums only its share of it, and waits for
the other shares: it then reads 2 parts in place of one per rank."""
ALIGNMENT = 64
LEAST_ROOM = 1 << 16
_SPAN = 1 << 32
"""Number of counts that are reserved for each generation."""


class RankMemory:
    """The shared memory of ``ranks`` ranks; it can be pickled to their processes.

    ``room``: bytes of the tensors that a rank may have in flight at a time. Each rank has two
    halves of that size, because the slowest rank still reads the last tensors when the fastest one
    writes the next.
    """

    def __init__(self, ranks: int, room: int) -> None:
        self.ranks = ranks
        self.room = _padded(max(room, LEAST_ROOM))
        # A cache line and a single writer per rank.
        line = ((ranks, 8), "int64")
        self.arrays = SharedArrays(
            {
                "arrived": line,
                "asleep": line,
                "pid": line,
                "left": line,
                "parts": ((ranks, 2, self.room), "uint8"),
            }
        )
        self.wakeups = wakeups(ranks)

    @property
    def nbytes(self) -> int:
        return self.arrays.nbytes

    def rendezvous(
        self, rank: int, timeout: float, device: str, member: PeerKind = "rank"
    ) -> MemoryRendezvous:
        """Return the object with which one rank joins the others; ``timeout`` in seconds."""
        return MemoryRendezvous(self, rank, timeout, device, member)


class Silence:
    """The seconds that a rank has waited for each other rank without a sign of it. They go on over
    the groups that are formed while it waits, because a rank may be replaced meanwhile."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[int, float]] = {}

    def add(self, other: int, arrived: int, seconds: float) -> float:
        """Count ``seconds`` of waiting for rank ``other``, whose count is ``arrived``. Return all
        seconds since this count has changed, or since `forget`."""
        before, waited = self._waits.get(other, (arrived, 0.0))
        waited = seconds + (waited if before == arrived else 0.0)
        self._waits[other] = arrived, waited
        return waited

    def forget(self, other: int) -> None:
        """Begin at 0 for rank ``other``, which is replaced."""
        self._waits.pop(other, None)


@dataclass(frozen=True)
class MemoryRendezvous:
    """Joins one rank to the other ranks of a `RankMemory`."""

    memory: RankMemory
    rank: int
    timeout: float
    device: str
    member: PeerKind = "rank"
    silence: Silence = field(default_factory=Silence)

    @property
    def size(self) -> int:
        return self.memory.ranks

    def join(self, generation: int) -> MemoryGroup:
        return MemoryGroup(
            self.memory,
            self.rank,
            generation,
            timeout=self.timeout,
            member=self.member,
            silence=self.silence,
        )


class MemoryGroup:
    """A `RankGroup` in a `RankMemory`.

    Calls come in phases. A phase begins with a call when no other call is in flight; its tensors go
    into the half that the last phase did not use. A rank that begins a phase has seen that all
    ranks have reached the phase before, so no rank still reads the half that it overwrites. There
    is no lock: a rank that is killed at any point leaves nothing locked.

    ``timeout``: seconds after which a rank that others wait for counts as lost; a rank whose
    process has ended is noticed within a `CHECK_S` per rank. ``member``: what messages call a rank.
    ``silence`` knows how long this rank has already waited for others in earlier groups. Raises
    RankLost if not all ranks come.
    """

    def __init__(
        self,
        memory: RankMemory,
        rank: int,
        generation: int,
        *,
        timeout: float,
        member: PeerKind = "rank",
        silence: Silence | None = None,
    ) -> None:
        self.rank, self.size, self.timeout = rank, memory.ranks, timeout
        self._member = member
        self._silence = silence or Silence()
        self._memory = memory
        arrays = memory.arrays
        self._arrived: npt.NDArray[np.int64] = arrays["arrived"][:, 0]
        self._asleep: npt.NDArray[np.int64] = arrays["asleep"][:, 0]
        self._left: npt.NDArray[np.int64] = arrays["left"][:, 0]
        self._parts = arrays.tensor("parts")
        self._others = [other for other in range(self.size) if other != rank]
        self._spins = SPIN_S if self.size <= len(available_cores()) else 0.0
        self._views: dict[tuple[int, int, int, torch.dtype], list[torch.Tensor]] = {}
        self._unsummed: list[list[torch.Tensor]] = []
        self._checks = 0
        self._half, self._offset, self._in_flight = 0, 0, 0
        self._base = self._count = self._summed = (generation + 1) * _SPAN
        self._asleep[rank] = 0
        arrays["pid"][rank, 0] = os.getpid()
        self._arrive()
        self._processes: dict[int, psutil.Process | None] = {}
        self.waited = 0.0
        self._wait_for(self._count, "finding each other")
        self.waited = 0.0

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        wait_for_copies(values.device)  # without a loop, as the copy to the CPU would
        own = values.detach().to("cpu", torch.float64).flatten()
        gathered = torch.empty(self.size, len(own), dtype=torch.float64)
        most = self._memory.room // own.itemsize  # images have more statistics than gradients
        for begin in range(0, len(own), most):
            views = self._begin(own[begin : begin + most])
            self._finish(self._count, "gathering statistics")
            torch.stack(views, out=gathered[:, begin : begin + most])
        return gathered.view(self.size, *values.shape).to(values.device)

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        views = self._begin(tensor)
        count, shared = self._count, (self.size - 2) * tensor.nbytes >= SHARED_FROM
        if shared:
            self._unsummed.append(views)

        @torch.no_grad()
        def wait() -> None:
            if shared and self._unsummed:
                self._sum_shares()
            self._finish(self._summed if shared else count, "averaging gradients")
            if shared:
                tensor.copy_(views[0])
            elif tensor.device.type == "cpu":
                tensor.copy_(views[0])
                for view in views[1:]:  # in rank order: the same bits on all
                    tensor.add_(view)
            else:
                tensor.copy_(torch.stack(views).sum(0))

        return wait

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        assert (data is not None) == (self.rank == source), "only rank `source` gives data"
        size = int(self.all_gather(torch.tensor([len(data or b"")], dtype=torch.float64))[source])
        received = bytearray(size)
        for start in range(0, size, self._memory.room):
            end = min(size, start + self._memory.room)
            piece = data[start:end] if data is not None else b""
            own = torch.zeros(end - start, dtype=torch.uint8)
            if piece:
                own = torch.frombuffer(bytearray(piece), dtype=torch.uint8)
            views = self._begin(own)
            self._finish(self._count, "sharing weights")
            received[start:end] = views[source].numpy().tobytes()
        return bytes(received)

    def close(self) -> None:
        self._left[self.rank] = self._base
        for other in self._others:
            self._memory.wakeups[other].set()

    def _sum_shares(self) -> None:
        """Sum this rank's share of each tensor in flight that is divided into shares, and raise its
        count. The sum is that of all parts in rank order, as of a tensor that is not divided. It
        stands in rank 0's part, where no other rank reads or writes this share before."""
        self._wait_for(self._count, "averaging gradients")
        for views in self._unsummed:
            size = _padded(math.ceil(views[0].nbytes / self.size)) // views[0].itemsize
            begin = self.rank * size
            total, *others = [view.flatten()[begin : begin + size] for view in views]
            for other in others:
                total.add_(other)
        self._unsummed.clear()
        self._count += 1
        self._summed = self._count
        self._arrive()

    def _begin(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Publish this rank's tensor; return views into every rank's part, which hold their tensors
        once their counts have been raised."""
        if not self._in_flight:
            self._half, self._offset = 1 - self._half, 0
        views = self._places(tensor)
        views[self.rank].copy_(tensor)
        self._offset += _padded(tensor.nbytes)
        self._in_flight += 1
        self._count += 1
        self._arrive()
        return views

    def _places(self, like: torch.Tensor) -> list[torch.Tensor]:
        """Return views into every rank's part, in the shape and dtype of ``like``; each is made
        once."""
        key = self._half, self._offset, like.numel(), like.dtype
        views = self._views.get(key)
        if views is None:
            end = self._offset + like.nbytes
            assert end <= self._memory.room, "more in flight than there is room for"
            parts = self._parts[:, self._half, self._offset : end]
            views = self._views[key] = [part.view(like.dtype) for part in parts]
        return views if like.dim() == 1 else [view.view_as(like) for view in views]

    def _arrive(self) -> None:
        self._arrived[self.rank] = self._count
        if self._asleep.any():  # the rank that comes last wakes the others
            awaited = (self._asleep > 0) & (self._asleep <= self._arrived.min())
            for other in np.flatnonzero(awaited):
                # No further rank wakes it. Should it sleep again by now, its check wakes it.
                self._asleep[other] = 0
                self._memory.wakeups[other].set()

    def _finish(self, count: int, what: str) -> None:
        self._wait_for(count, what)
        self._in_flight -= 1

    def _all_arrived(self, count: int) -> bool:
        return bool(self._arrived.min() >= count)

    def _wait_for(self, count: int, what: str) -> None:
        """Wait until every rank's count has reached ``count``."""
        started = perf_counter()
        spin_until = started + self._spins
        while not self._all_arrived(count):
            if perf_counter() < spin_until:
                sleep(0)
            else:
                self._sleep_until(count, what)
                break
        if self._arrived.max() >= self._base + _SPAN:
            raise self._lost(int(self._arrived.argmax()), what, "it was replaced")
        self.waited += perf_counter() - started

    def _sleep_until(self, count: int, what: str) -> None:
        wakeup = self._memory.wakeups[self.rank]
        self._asleep[self.rank] = count
        checked = monotonic()
        try:
            while not self._all_arrived(count):
                # A wake-up between the check and the wait is remembered; one that is missed because
                # the processor reordered the accesses is made up for by the next check.
                wakeup.wait(CHECK_S)
                before, checked = checked, monotonic()
                self._check_others(count, what, min(checked - before, LONGEST_CHECK_S))
        finally:
            self._asleep[self.rank] = 0

    def _check_others(self, count: int, what: str, seconds: float) -> None:
        """Raise RankLost for a rank that will not come; ``seconds`` have passed since the last
        check."""
        silent = []
        behind = [int(rank) for rank in np.flatnonzero(self._arrived < count)]
        self._checks += 1
        for at, other in enumerate(behind):
            here = int(self._arrived[other])
            if here >= count:
                continue
            if here >= self._base and self._left[other] == self._base:
                raise self._lost(other, what, "it has left")
            its_turn = at == self._checks % len(behind)
            if its_turn and here >= self._base and not self._is_alive(other):
                raise self._lost(other, what, "its process has ended")
            if self._silence.add(other, here, seconds) > self.timeout:
                silent.append((here, other))
        if silent and not self._all_arrived(count):
            _, furthest_behind = min(silent)
            reason = f"it was silent for {self.timeout:g} s (--{self._member}-timeout)"
            raise self._lost(furthest_behind, what, reason, silent=True)

    def _is_alive(self, other: int) -> bool:
        """Return whether the process of a rank that has joined exists, running or stopped."""
        if other not in self._processes:
            pid = int(self._memory.arrays["pid"][other, 0])
            self._processes[other] = _process(pid)
        process = self._processes[other]
        if process is None:
            return False
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def _lost(self, other: int, what: str, why: str, *, silent: bool = False) -> RankLost:
        self._silence.forget(other)
        who = self._member
        return RankLost(
            f"{who} {self.rank} of {self.size} lost {who} {other} while {what}: {why}",
            *((other, self.timeout) if silent else ()),
        )


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
