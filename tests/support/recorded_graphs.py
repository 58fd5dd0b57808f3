"""CUDA graphs without a GPU: a recorder of the operations on tensors, which repeats them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

WAITS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
"""Operations whose result the processor has to know before it can go on."""


class Recorder(TorchDispatchMode):
    """Records every operation, with its arguments, and the tensors that hold its results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        if func in WAITS:
            raise AssertionError("the work waits for the device: a CUDA graph cannot hold that")
        self.operations.append((func, args, kwargs, results))
        return results

    def repeat(self) -> None:
        """Do everything again: on the same tensors, with the same numbers. The results of an
        operation that makes new tensors go where they went before."""
        with torch.inference_mode():
            for func, args, kwargs, before in self.operations:
                results = func(*args, **kwargs)
                for place, value in zip(_tensors(before), _tensors(results), strict=True):
                    if place.untyped_storage().data_ptr() != value.untyped_storage().data_ptr():
                        place.copy_(value)  # else a view, or in place


class RecordedGraphs:
    """`sampleforge.algorithms.captured.Graphs` on a CPU. What a graph cannot notice (another Python
    number, a tensor in another place) is not noticed either. ``recorded``: number of graphs."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(
        self, work: Callable[[], dict[str, torch.Tensor]]
    ) -> tuple[Callable[[], None], dict[str, torch.Tensor]]:
        self.recorded += 1
        recorder = Recorder()
        with recorder:
            results = work()
        done = [True]  # by the recording, where a GPU would only record

        def replay() -> None:
            if done:
                done.clear()
            else:
                recorder.repeat()

        return replay, results


def _tensors(results: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(results)[0] if isinstance(x, torch.Tensor)]
