"""The heap of a worker process."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Constants of glibc's malloc.h."""
LARGEST_IN_HEAP = 32 << 20
"""Bytes: the largest threshold that glibc accepts. A larger block is mapped by itself."""
KEPT = 1 << 30
"""Bytes of free memory at the heap's end that are not given back."""
GROWTH = 16 << 20
"""Bytes by which the heap grows at once; they take no memory before they are written to."""


def keep_freed_memory() -> bool:
    """Make the calling process keep the memory that it frees, for its next allocation, and return
    whether its C library can.

    An update allocates and frees the same tensors again and again. By default glibc gives such
    memory back to the kernel, which then clears every page of it for the next update: a learner of
    CartPole spent a third of its time so, in some runs and not in others, depending on what lay
    at the end of its heap. The process stays as large as its largest update.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    settings = {M_MMAP_THRESHOLD: LARGEST_IN_HEAP, M_TRIM_THRESHOLD: KEPT, M_TOP_PAD: GROWTH}
    return all([mallopt(name, value) == 1 for name, value in settings.items()])
