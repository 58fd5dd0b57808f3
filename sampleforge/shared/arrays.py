"""Named arrays in one block of shared memory."""

from __future__ import annotations

import errno
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.config import ConfigError
from sampleforge.runtime.limits import no_more_open_files, too_many_open_files
from sampleforge.runtime.machine import human_bytes, shared_memory_free

Layout = Mapping[str, tuple[tuple[int, ...], str]]
"""Array name -> (shape, numpy dtype name)."""

_NOT_CHECKED = 1 << 24
"""Bytes up to which the free memory is not asked for, which takes longer than to reserve them."""
_ALIGNMENT = 64  # a cache line: columns with different writers never share one


def layout_bytes(layout: Layout) -> int:
    """Return the bytes of shared memory that `SharedArrays` takes for this layout."""
    return sum(_padded(shape, dtype) for shape, dtype in layout.values())


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)


def _reserved(size: int) -> torch.UntypedStorage:
    """Return ``size`` bytes of shared memory, all of them 0. Raises OSError, or, outside of Linux,
    RuntimeError."""
    storage: torch.UntypedStorage
    if sys.platform != "linux":
        storage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]
        return storage
    free = shared_memory_free() if size > _NOT_CHECKED else None
    if free is not None and size > free:  # the kernel would end a process instead of refusing
        raise OSError(errno.ENOMEM, f"only {human_bytes(free)} are free")
    fd = os.memfd_create("sampleforge", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size)
        storage = torch.UntypedStorage._new_shared_fd_cpu(fd, size)  # type: ignore[attr-defined]
        return storage
    except RuntimeError as error:  # torch does not say which of the two
        raise OSError(errno.EMFILE if no_more_open_files() else errno.ENOMEM, str(error)) from error
    finally:
        os.close(fd)  # the storage has its own


def _not_reserved(size: int, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return too_many_open_files()
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        import resource  # of Unix, as this errno is

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return (
            f"{human_bytes(size)} of shared memory cannot be had: the limit on the size of a file, "
            f"which holds for it too, is {human_bytes(limit)} (`ulimit -f`); raise it with "
            "`ulimit -f unlimited`"
        )
    return (
        f"{human_bytes(size)} of shared memory cannot be had ({error}); give the machine or the "
        "container more memory, or use --serial --num-envs-per-worker 2"
    )


class SharedArrays:
    """Zero-initialised arrays by name, as numpy views (``arrays["x"]``) and torch views.

    The memory is one file descriptor that never had a name, so that a process that is killed at any
    point leaves nothing in /dev/shm. All of it is reserved at once, so that no later write can fail
    with SIGBUS. It can be pickled to child processes, which then see the same memory.
    """

    def __init__(self, layout: Layout) -> None:
        """Reserve the memory. Raises ConfigError if there is not enough of it, or if this process
        has too many open files."""
        size = layout_bytes(layout)
        try:
            storage = _reserved(size)
        except (OSError, RuntimeError) as error:
            raise ConfigError(_not_reserved(size, error)) from error
        self._attach(torch.empty(0, dtype=torch.uint8).set_(storage), dict(layout))

    def _attach(self, buffer: torch.Tensor, layout: dict[str, tuple[tuple[int, ...], str]]) -> None:
        self._buffer = buffer
        self._layout = layout
        self._torch: dict[str, torch.Tensor] = {}
        self._numpy: dict[str, npt.NDArray[Any]] = {}
        flat: npt.NDArray[np.uint8] = buffer.numpy()
        offset = 0
        for name, (shape, dtype) in layout.items():
            size = math.prod(shape) * np.dtype(dtype).itemsize
            array = flat[offset : offset + size].view(dtype).reshape(shape)
            self._numpy[name] = array
            self._torch[name] = torch.from_numpy(array)
            offset += _padded(shape, dtype)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._numpy[name]

    def tensor(self, name: str) -> torch.Tensor:
        """Return the array as a torch tensor on the same memory."""
        return self._torch[name]

    @property
    def buffer(self) -> torch.Tensor:
        """The whole memory, uint8 [nbytes]."""
        return self._buffer

    @property
    def nbytes(self) -> int:
        return self._buffer.numel()

    def __getstate__(self) -> tuple[torch.Tensor, dict[str, tuple[tuple[int, ...], str]]]:
        return self._buffer, self._layout

    def __setstate__(
        self, state: tuple[torch.Tensor, dict[str, tuple[tuple[int, ...], str]]]
    ) -> None:
        self._attach(*state)


class SharedViews(ABC):
    """The base of an object that has arrays of shared memory as attributes. `_attach` sets them:
    when it is made, and in each process that it is pickled to, because arrays would be copied."""

    @abstractmethod
    def _attach(self) -> None:
        """Set the attributes that are arrays of shared memory."""

    def __getstate__(self) -> dict[str, Any]:
        return {n: value for n, value in vars(self).items() if not isinstance(value, np.ndarray)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._attach()
