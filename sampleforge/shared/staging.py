"""Staging: copies between the slots in shared memory and the device of a policy worker or learner.

For a CPU, rows are copied only if they have to be. A CUDA device fetches one block per request or
slot directly from the slots, whose memory is page-locked, without a copy by the processor in
between; results are waited for once.
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
    """Copies blocks of rows to a device, and results back. Only one thread may use it at a time."""

    def gather(self, array: npt.NDArray[Any], *at: Index) -> torch.Tensor:
        """Return ``array[at]``, blocks [n, rows, ...], as one batch [n * rows, ...] on the
        device."""

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return a small array [n, rows, ...] that is not in shared memory as [n * rows, ...] on
        the device."""

    def back(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        """Return all tensors as numpy arrays, after their copies are complete."""


class HostStaging:
    """Staging for a CPU."""

    def gather(self, array: npt.NDArray[Any], *at: Index) -> torch.Tensor:
        return self.put(array[at])

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).flatten(0, 1)

    def back(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        return [tensor.numpy() for tensor in tensors]


class DeviceStaging:
    """Staging for ``device``; ``sources`` are the shared arrays that `gather` reads from."""

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
        on_host = []
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins)
            on_host.append(host.copy_(tensor, non_blocking=True))
        wait_for_copies(self._device)
        return [host.numpy() for host in on_host]


def staging_to(device: torch.device, sources: Sequence[SharedArrays]) -> Staging:
    """Return the staging for ``device``; ``sources`` are the shared arrays that it gathers from."""
    return HostStaging() if device.type == "cpu" else DeviceStaging(device, sources)


_locked: set[int] = set()
"""Addresses of the buffers that `page_lock` has locked in this process: CUDA refuses to lock one
twice, and in serial mode learner and policy worker read the same slots."""


def page_lock(buffer: torch.Tensor) -> None:
    """Page-lock the memory of ``buffer``, shared or not, for CUDA, as long as the tensor lives.

    Raises torch.cuda.CudaError if the machine does not allow so much (ulimit -l).
    """
    address = buffer.data_ptr()
    if address in _locked:
        return
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(int(runtime.cudaHostRegister(address, buffer.nbytes, 0)))
    _locked.add(address)
    # Not at the interpreter's exit: CUDA may have shut down before.
    weakref.finalize(buffer, _unlock, runtime, address).atexit = False


def _unlock(runtime: Any, address: int) -> None:
    _locked.discard(address)
    runtime.cudaHostUnregister(address)


class Fence:
    """Orders the work of two threads' streams on a CUDA device, without making the processor wait.
    On a CPU it does nothing, because a thread's work is done when its call returns."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        """Record the work that the calling thread has begun so far."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def follow(self) -> None:
        """Let all work that the calling thread begins from now on come after the latest `mark`."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)


def side_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which the calling thread's work on a CUDA device goes through a new
    stream."""
    if device.type == "cuda":
        return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    return nullcontext()


def wait_for_copies(device: torch.device) -> None:
    """Wait until all work on the current stream of a CUDA device is complete."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
