"""Between slots and the device of whoever reads them: where they lie, or across the bus.

On a CPU nothing is moved that need not be. To a CUDA device everything goes straight out of the
slots, whose memory is page-locked for it: the device fetches one block per request or slot by
itself, with no copy by the processor in between, and what comes back is waited for once.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.shared.arrays import SharedArrays

Index = npt.NDArray[np.intp]


class Staging(Protocol):
    """Blocks of rows to a device, and answers back. Not for two threads at a time."""

    def gather(self, array: npt.NDArray[Any], *at: Index) -> torch.Tensor:
        """``array[at]``, blocks [n, rows, ...], as one batch [n * rows, ...] on the device."""

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A small array [n, rows, ...] that lies nowhere yet, as [n * rows, ...] on the device."""

    def back(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        """All of them as arrays, complete."""


class HostStaging:
    """For a CPU."""

    def gather(self, array: npt.NDArray[Any], *at: Index) -> torch.Tensor:
        return self.put(array[at])

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).flatten(0, 1)

    def back(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        return [tensor.numpy() for tensor in tensors]


class DeviceStaging:
    """For ``device``; ``sources`` are the memory that `gather` reads from."""

    def __init__(self, device: torch.device, sources: Sequence[SharedArrays]) -> None:
        self._device = device
        self._pins = device.type == "cuda"
        for source in sources:
            if self._pins:
                page_lock(source.buffer)

    def gather(self, array: npt.NDArray[Any], *at: Index) -> torch.Tensor:
        source = torch.from_numpy(array)
        whole = source.new_empty(
            (len(at[0]), *array.shape[len(at) :]), dtype=source.dtype, device=self._device
        )
        for block, place in zip(whole, zip(*(i.tolist() for i in at), strict=True), strict=True):
            block.copy_(source[place], non_blocking=True)
        return whole.flatten(0, 1)

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        host = torch.from_numpy(array).flatten(0, 1)
        host = host.pin_memory() if self._pins else host
        return host.to(self._device, non_blocking=True)

    def back(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        found = []
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins)
            found.append(host.copy_(tensor, non_blocking=True))
        wait_for_copies(self._device)
        return [host.numpy() for host in found]


def staging_to(device: torch.device, sources: Sequence[SharedArrays]) -> Staging:
    return HostStaging() if device.type == "cpu" else DeviceStaging(device, sources)


_locked: set[int] = set()
"""Addresses of what `page_lock` has locked in this process: CUDA refuses to do so twice, and in
serial mode learner and policy worker read the same slots."""


def page_lock(buffer: torch.Tensor) -> None:
    """Have CUDA page-lock ``buffer``'s memory, shared or not, for as long as the tensor lives.

    Raises torch.cuda.CudaError where the machine does not allow so much (ulimit -l).
    """
    address = buffer.data_ptr()
    if address in _locked:
        return
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(int(runtime.cudaHostRegister(address, buffer.nbytes, 0)))
    _locked.add(address)
    # Not at the interpreter's end: CUDA may have ended before.
    weakref.finalize(buffer, _unlock, runtime, address).atexit = False


def _unlock(runtime: Any, address: int) -> None:
    _locked.discard(address)
    runtime.cudaHostUnregister(address)


class Fence:
    """Keeps an order between the streams of two threads on a CUDA device, which the device sees to:
    no processor waits. On a CPU a thread's work is done when its call returns."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        """What the calling thread has begun so far comes first ..."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def follow(self) -> None:
        """... and what the calling thread begins from now on comes after the latest `mark`."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)


def side_stream(device: torch.device) -> AbstractContextManager[Any]:
    """In the calling thread, what is begun on a CUDA device goes through a stream of its own."""
    if device.type == "cuda":
        return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    return nullcontext()


def wait_for_copies(device: torch.device) -> None:
    """Until what was begun on the current stream of a CUDA device is complete."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
