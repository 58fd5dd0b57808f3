"""Torch's default dtype and device, which belong to the user's program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def usual_torch() -> Iterator[None]:
    """Make float32 and the CPU torch's defaults for the body, or for the function that this
    decorates. A script may have set others, and weights, states and batches must not depend on it.
    It takes 2 us."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        if torch._C._len_torch_function_stack():  # a default device is such a mode
            with torch.device("cpu"):
                yield
        else:
            yield
    finally:
        torch.set_default_dtype(before)
