"""Named arrays in one block of shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.config import ConfigError
from sampleforge.runtime.machine import human_bytes

Layout = Mapping[str, tuple[tuple[int, ...], str]]
"""Array name -> (shape, numpy dtype name)."""

_ALIGNMENT = 64  # a cache line: columns with different writers never share one


def layout_bytes(layout: Layout) -> int:
    """Return the bytes of shared memory that `SharedArrays` takes for this layout."""
    return sum(_padded(shape, dtype) for shape, dtype in layout.values())


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)


class SharedArrays:
    """Zero-initialised arrays by name, as numpy views (``arrays["x"]``) and torch views.

    The memory is one file descriptor without a name (torch's file-descriptor sharing): a killed run
    leaves nothing in /dev/shm. All of it is reserved at once, so that no later write can fail with
    SIGBUS. It can be pickled to child processes, which then see the same memory.
    """

    def __init__(self, layout: Layout) -> None:
        """Reserve the memory. Raises ConfigError if there is not enough shared memory."""
        size = layout_bytes(layout)
        try:
            storage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ConfigError(
                f"{human_bytes(size)} of shared memory are not available ({error}); give the "
                "machine more (/dev/shm; docker run --shm-size=1g), or use --serial "
                "--num-envs-per-worker 2"
            ) from error
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
