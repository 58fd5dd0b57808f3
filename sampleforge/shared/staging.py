"""Copies between host memory and a CUDA device: page-locked memory, streams and waiting."""

from __future__ import annotations

import logging
import weakref
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any

import torch

log = logging.getLogger(__name__)

_locked: set[int] = set()
"""Addresses of the buffers that `page_lock` has locked in this process, or could not: CUDA refuses
to lock one twice, and in serial mode learner and policy worker read the same slots."""


def page_lock(buffer: torch.Tensor) -> None:
    """Page-lock the memory of ``buffer``, shared or not, for CUDA, as long as the tensor lives.

    Where the machine refuses (containers and WSL may), copies from and to it are slower, and each
    is waited for: a warning of the process says so.
    """
    address = buffer.data_ptr()
    if address in _locked:
        return
    _locked.add(address)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(runtime.cudaHostRegister(address, buffer.nbytes, 0))
    if code:
        _forget_error()
        _warn_of_refusal(runtime.cudaGetErrorString(runtime.cudaError(code)))
        return
    # Not at the interpreter's exit: CUDA may have shut down before.
    weakref.finalize(buffer, _unlock, runtime, address).atexit = False


def page_locked(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return ``tensor`` in memory from which copies to ``device``, and to which copies from it, are
    not waited for: for a CUDA device a copy of it that is page-locked, or, where the machine
    refuses, the tensor itself, as for a CPU; see `page_lock`."""
    if device.type != "cuda":
        return tensor
    try:
        return tensor.pin_memory()
    except RuntimeError as error:
        _forget_error()
        _warn_of_refusal(str(error).split("\n")[0].removeprefix("CUDA error: "))
        return tensor


@cache
def _warn_of_refusal(why: str) -> None:
    """Warn, once in this process for each reason. The text is the same for all memory, because the
    driver shows what several workers warn of once."""
    log.warning(
        "CUDA cannot page-lock memory (%s): copies to and from the GPU are slower. In a container, "
        "allow it to lock memory (--ulimit memlock=-1)",
        why,
    )


def _forget_error() -> None:
    """Let CUDA's last error surface here: the next kernel would fail with it otherwise."""
    with suppress(RuntimeError):
        torch.zeros((), device="cuda")


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


def begin_on(device: torch.device) -> None:
    """Make ``device`` that of everything that this process begins on CUDA without naming one, such
    as page-locking: on cuda:0 each would open a second context, which takes half a GiB there."""
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)


def side_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which the calling thread's work on a CUDA device goes through a stream
    that no graph is recorded on.

    Torch makes 32 streams for each priority and hands them out in turn, again and again. Graphs are
    recorded on those of normal priority, a new one each time; so that a recording never meets this
    thread's copies, however many follow, these have one of the high priority."""
    if device.type == "cuda":
        return torch.cuda.stream(torch.cuda.Stream(device, priority=-1))  # type: ignore[no-untyped-call]
    return nullcontext()


def wait_for_copies(device: torch.device, *, spins: bool = False) -> None:
    """Wait until all work on the current stream of a CUDA device is complete. The processor core is
    free meanwhile, for an actor may need it; with ``spins`` CUDA waits in a loop, which ends
    sooner."""
    if device.type == "cuda" and spins:
        torch.cuda.current_stream(device).synchronize()
    elif device.type == "cuda":
        reached = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        reached.record(torch.cuda.current_stream(device))
        reached.synchronize()
